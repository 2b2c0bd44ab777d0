"""The ``pds`` command on one table, dataset, pipeline or chain: what it prints in each format, and its exit codes."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import signal
import subprocess
import sys
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.csv as pc
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.python.conftest import Run

UTC_TIME = pa.timestamp("us", "UTC")
AT = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": ["a", 'b,"\n', None],
        "at": pa.array([AT, None, AT], UTC_TIME),
        "list": [[1], [2, None], None],
        "price": [1.5, math.nan, None],
        "code": [b"\x00\xff", None, b""],
    }
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def table() -> pds.Table:
    return pds.write_table("lake/events", ROWS, key="id")


def lines(run: Run, *argv: str) -> list[dict[str, Any]]:
    code, out, err = run(*argv, "-o", "ndjson")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_what_lies_below_a_folder(run: Run, table: pds.Table) -> None:
    pds.write_dataset("lake/ds", ROWS)
    assert [(entry["kind"], entry["path"]) for entry in lines(run, "ls", "lake")] == [
        ("dataset", "ds"),
        ("table", "events"),
    ]
    code, out, _ = run("ls", "lake")
    assert (code, out.splitlines()[0].split()) == (0, ["kind", "path", "url"])
    assert table.version == 1


def test_an_empty_folder_has_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("ls", "empty") == (0, "kind  path  url\n", "")


def test_tags_that_look_like_something_else(run: Run, table: pds.Table) -> None:
    table.tags.create("20260101", 1)
    table.tags.create("2", 1)
    assert len(lines(run, "scan", "lake/events", "--as-of", "20260101")) == 3
    code, _, err = run("scan", "lake/events", "--as-of", "2")
    assert (code, err) == (2, "pds: 2 is a version, and the name of a tag; rename the tag\n")


def test_a_table(run: Run, table: pds.Table) -> None:
    table.delete("id = 2")
    table.tags.create("done")
    (shown,) = lines(run, "show", "lake/events")
    assert shown["rows"] == 2
    assert (shown["version"], shown["key"], shown["tags"]) == (3, ["id"], {"done": 2})
    assert shown["columns"]["at"] == "timestamp[us, tz=UTC]"
    assert [row["name"] for row in lines(run, "schema", "lake/events")] == ROWS.column_names
    assert [version["version"] for version in lines(run, "history", "lake/events")] == [3, 2, 1]
    assert [version["version"] for version in lines(run, "history", "lake/events", "-n", "1")] == [3]
    assert [file["total_rows"] for file in lines(run, "files", "lake/events")] == [3]
    assert [row["_change_type"] for row in lines(run, "diff", "lake/events", "1")] == ["delete"]
    assert lines(run, "diff", "lake/events", "2", "3") == []
    assert [row["id"] for row in lines(run, "head", "lake/events", "--as-of", "1")] == [1, 2, 3]
    assert [row["id"] for row in lines(run, "head", "lake/events", "--as-of", "done", "-n", "1")] == [1]
    later = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    assert [row["id"] for row in lines(run, "scan", "lake/events", "--as-of", later)] == [1, 3]
    assert lines(run, "scan", "lake/events", "--where", "id > 1", "--columns", "name,id") == [{"name": None, "id": 3}]


def test_operations_are_words_in_a_text(run: Run, table: pds.Table) -> None:
    table.delete("id = 1")
    _, out, _ = run("history", "lake/events")
    assert "delete: files_removed 0, filter id = 1, read_version 1  " in out
    assert "{" not in out
    _, out, _ = run("show", "lake/events")
    assert "  create: " not in out
    assert "  delete: files_removed 0, filter id = 1, read_version 1\n" in out
    assert "  id int64, name string, at timestamp[us, tz=UTC], list list<" in out


def test_formats(run: Run, table: pds.Table) -> None:
    rows = table.scan().to_pyarrow().to_pylist()
    printed = lines(run, "scan", "lake/events")
    assert json.loads(run("scan", "lake/events", "-o", "json")[1]) == printed
    assert [row["price"] for row in printed] == [1.5, "nan", None]
    assert [row["code"] for row in printed] == ["00ff", None, ""]
    assert [row["list"] for row in printed] == [row["list"] for row in rows]
    assert [row["at"] and dt.datetime.fromisoformat(row["at"]) for row in printed] == [row["at"] for row in rows]
    code, out, _ = run("scan", "lake/events", "-o", "csv")
    (text := io.StringIO(out)).seek(0)
    columns = {
        "id": "BIGINT",
        "name": "VARCHAR",
        "at": "TIMESTAMPTZ",
        "list": "JSON",
        "price": "DOUBLE",
        "code": "VARCHAR",
    }
    read = duckdb.read_csv(text, header=True, columns=columns, allow_quoted_nulls=False).fetchall()
    assert code == 0
    assert [row[:2] for row in read] == [(1, "a"), (2, 'b,"\n'), (3, None)]
    assert json.loads(read[1][3]) == [2, None]
    assert run("scan", "lake/events", "--where", "id > 9", "-o", "json")[1] == "[]\n"
    code, out, _ = run("head", "lake/events", "--columns", "id,name")
    assert out.splitlines() == ["id  name", " 1  a", ' 2  b,"\\n', " 3"]


NESTED = pa.struct([("at", pa.timestamp("ns", "Europe/Berlin")), ("d", pa.duration("ns"))])


@pytest.mark.parametrize(
    ("values", "printed"),
    [
        (pa.array([10**18 + 1, None], pa.timestamp("ns")), "2001-09-09T01:46:40.000000001"),
        (pa.array([1, None], pa.timestamp("ns", "Europe/Berlin")), "1970-01-01T00:00:00.000000001Z"),
        (pa.array([86_399_999_999_999, None], pa.time64("ns")), "23:59:59.999999999"),
        (pa.array([10**15, None], pa.duration("s")), "PT1000000000000000S"),
        (pa.array([-1, None], pa.duration("ns")), "PT-0.000000001S"),
        (pa.array([2**63 - 1, None], pa.int64()), 2**63 - 1),
        (pa.array([Decimal("1.50"), None], pa.decimal128(38, 2)), "1.50"),
        (pa.array([[10**18 + 1], None], pa.list_(pa.timestamp("ns"))), ["2001-09-09T01:46:40.000000001"]),
        (pa.array([[None, 1], None], pa.list_(pa.int8(), 2)), [None, 1]),
        (pa.array([[1], None], pa.large_list(pa.duration("us"))), ["PT0.000001S"]),
        (
            pa.array([{"at": 1, "d": 1}, None], NESTED),
            {"at": "1970-01-01T00:00:00.000000001Z", "d": "PT0.000000001S"},
        ),
        (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.time32("s"))), [["a", "00:00:01"]]),
        (pa.array(["x", None]).dictionary_encode(), "x"),
    ],
)
def test_values_of_all_types(run: Run, values: pa.Array[Any], printed: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where pandas is not installed, of which pyarrow makes nanoseconds."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    pds.write_dataset("values", pa.table({"x": values}))
    assert lines(run, "scan", "values") == [{"x": printed}, {"x": None}]
    text = printed if isinstance(printed, str) else json.dumps(printed)
    code, out, _ = run("scan", "values", "-o", "csv")
    assert code == 0
    assert list(csv.reader(io.StringIO(out))) == [["x"], [text], []]


def test_csv_tells_nulls_and_keeps_line_ends(run: Run) -> None:
    texts = ["", None, "a\rb", "c\r\nd", 'e"', ",", " "]
    pds.write_dataset("texts", pa.table({"n": range(len(texts)), "x": texts}))
    _, out, _ = run("scan", "texts", "-o", "csv")
    assert out.splitlines()[1:3] == ['0,""', "1,"]
    options = pc.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    parse = pc.ParseOptions(newlines_in_values=True)
    read = pc.read_csv(io.BytesIO(out.encode()), convert_options=options, parse_options=parse)
    assert read["x"].to_pylist() == texts


def test_a_text_does_not_move_the_cursor(run: Run) -> None:
    pds.write_dataset("texts", pa.table({"x": ["ok\x1b[2K\tz\x9b\u202egnp", "y" * 200]}))
    assert run("scan", "texts")[1].splitlines() == ["x", "ok\\x1b[2K\\tz\\x9b\\u202egnp", "y" * 200]


def test_columns_with_commas(run: Run) -> None:
    pds.write_dataset("ds", pa.table({"a,b": [1], "c": [2]}))
    assert lines(run, "scan", "ds", "--columns", 'c,"a,b"') == [{"c": 2, "a,b": 1}]


def test_damage_of_a_dataset(run: Run, tmp_path: Path) -> None:
    pds.write_dataset("ds", ROWS)
    file = tmp_path / "ds" / "data.parquet"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    code, out, _ = run("verify", "ds", "-o", "json")
    assert code == 1
    assert json.loads(out)[0]["path"] == "ds/data.parquet"


def test_closed_and_full_streams(run: Run, table: pds.Table) -> None:
    command = f"{sys.executable} -m pds"
    for shell, code, reason in (
        (f"{command} drop lake/events <&-", 2, "needs --yes"),
        (f"{command} show lake/events >&-", 0, ""),
        (f"{command} scan lake/events >/dev/full", 1, "No space left"),
        (f"PYTHONIOENCODING=ascii {command} scan lake/events -o json >/dev/null", 0, ""),
    ):
        done = subprocess.run(["sh", "-c", shell], stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert reason in done.stderr
        assert "Traceback" not in done.stderr


def test_more_rows_than_a_block(run: Run) -> None:
    count = 2500
    pds.write_table("big", pa.table({"id": range(count)}))
    code, out, _ = run("scan", "big")
    assert [line.strip() for line in out.splitlines()] == ["id", *map(str, range(count))]
    assert code == 0
    assert len(lines(run, "scan", "big", "-n", "1234")) == 1234


def test_datasets_pipelines_and_chains(run: Run) -> None:
    pds.write_dataset("ds", ROWS)
    (shown,) = lines(run, "show", "ds")
    assert (shown["kind"], shown["rows"], shown["parts"]) == ("dataset", 3, 1)
    assert [row["id"] for row in lines(run, "head", "ds", "-n", "2")] == [1, 2]
    assert [row["path"] for row in lines(run, "files", "ds")] == ["data.parquet"]
    assert lines(run, "verify", "ds")[0]["rows"] == 3

    pipeline = pds.open_pipeline("pipe")
    pipeline.source("s", key=pa.int64(), value=pa.string())
    pipeline.aggregate("s", aggregates={"n": "count"}, name="counts")
    pipeline.update(s=pds.Changes([(1, "a"), (1, "b")]))
    assert lines(run, "show", "pipe")[0]["stages"] == ["s", "counts"]
    assert lines(run, "scan", "pipe", "--stage", "counts") == [{"target_key": 1, "source_key": 1, "value": {"n": 2}}]
    assert run("head", "pipe")[::2] == (2, "pds: name the stage with --stage; there are s, counts\n")
    assert lines(run, "tag", "pipe", "first") == [{"version": 2}]
    assert lines(run, "tag", "pipe") == [{"tag": "first", "version": 1}]
    assert [version["version"] for version in lines(run, "history", "pipe")] == [2, 1]
    assert lines(run, "optimize", "pipe")[0]["version"] >= 2

    chain = pds.odf.Dataset.create(pds.Store("."), "chain")
    chain.ingest(pa.table({"at": pa.array([AT], UTC_TIME), "x": [1]}), event_time="at")
    (shown,) = lines(run, "show", "chain")
    assert (shown["kind"], shown["last_offset"], shown["head"]) == ("chain", 0, chain.head)
    assert [row["x"] for row in lines(run, "scan", "chain", "--where", "x = 1")] == [1]
    assert [row["x"] for row in lines(run, "scan", "chain", "--as-of", chain.head)] == [1]
    assert len(lines(run, "history", "chain")) == len(chain.log())
    assert lines(run, "verify", "chain")[0]["rows"] == 1


def test_changes_of_a_table(run: Run, table: pds.Table) -> None:
    table.append(ROWS.slice(0, 1))
    assert lines(run, "restore", "lake/events", "1") == [{"version": 3}]
    assert table.refresh().scan().count() == 3
    assert lines(run, "tag", "lake/events", "good", "2") == [{"version": 4}]
    assert lines(run, "tag", "lake/events") == [{"tag": "good", "version": 2}]
    assert lines(run, "tag", "lake/events", "good", "--delete") == [{"version": 5}]
    table.append(ROWS.slice(0, 1))
    assert lines(run, "optimize", "lake/events") == [{"version": 7}]
    assert lines(run, "optimize", "lake/events", "--sort")[0]["version"] in (8, None)
    assert run("check", "lake/events")[:2] == (0, "ok\n")
    assert run("verify", "lake/events")[:2] == (0, "ok\n")


def test_an_export(run: Run, table: pds.Table, tmp_path: Path) -> None:
    assert lines(run, "export", "lake/events")[0].keys() == {"version", "versions", "bytes"}
    table.append(ROWS)
    exported = lines(run, "export", "lake/events", "--to", "delta")
    assert (exported[0]["version"], exported[0]["versions"]) == (2, 1)
    assert len(list((tmp_path / "lake" / "events" / "_delta_log").glob("*.json"))) == 2
    code, _, err = run("export", "lake/events", "--leave-out", "x,x")
    assert (code, "--leave-out takes names" in err) == (2, True)
    code, _, err = run("export", "lake/events", "--leave-out", "nothing")
    assert (code, "nothing" in err) == (2, True)
    assert lines(run, "export", "lake/events", "--rebuild", "--leave-out", "")[0]["version"] == 2


def test_an_export_to_iceberg(run: Run, table: pds.Table, tmp_path: Path) -> None:
    (exported,) = lines(run, "export", "lake/events", "--to", "iceberg")
    assert (exported["version"], exported["versions"]) == (1, 1)
    assert exported["metadata_location"] == f"file://{tmp_path}/lake/events/metadata/v1.metadata.json"
    table.append(ROWS)
    code, _, err = run("export", "lake/events", "--to", "iceberg", "--location", "s3://other/events")
    assert (code, "rebuild=True" in err) == (2, True)
    location = f"{tmp_path}/lake/events"
    (exported,) = lines(run, "export", "lake/events", "--to", "iceberg", "--rebuild", "--location", location)
    assert exported["metadata_location"] == f"{location}/metadata/v2.metadata.json"
    code, _, err = run("export", "lake/events", "--location", location)
    assert (code, "--to iceberg" in err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "same"),
    [
        ("diff lake/events 1 -o csv 2", "diff lake/events 1 2 -o csv"),
        ("diff -o csv lake/events 1 --columns id 2", "diff lake/events 1 2 --columns id -o csv"),
        ("dataset list --option host=h . ds", "dataset list . ds --option host=h"),
        ("dataset list . --option host=h ds", "dataset list . ds --option host=h"),
        ("diff -o csv -- lake/events 1", "diff lake/events 1 -o csv"),
    ],
)
def test_options_may_stand_between_arguments(run: Run, table: pds.Table, argv: str, same: str) -> None:
    table.append(ROWS)
    table.append(ROWS)
    assert run(*argv.split()) == run(*same.split())


def test_options_of_tags_may_stand_anywhere(run: Run, table: pds.Table) -> None:
    table.append(ROWS)
    assert run("tag", "lake/events", "-o", "json", "first", "1")[0] == 0
    assert run("tag", "lake/events", "second", "-o", "json", "2")[0] == 0
    assert dict(table.refresh().tags) == {"first": 1, "second": 2}
    assert run("tag", "lake/events", "--delete", "first")[0] == 0
    assert run("tag", "--delete", "lake/events", "second")[0] == 0
    assert dict(table.refresh().tags) == {}


def test_what_deletes_asks_first(run: Run, table: pds.Table) -> None:
    for _ in range(3):
        table.overwrite(ROWS)
    code, out, err = run("vacuum", "lake/events", "--older-than", "0")
    assert (code, out) == (2, "")
    assert "needs --yes" in err
    paths = {row["path"] for row in lines(run, "vacuum", "lake/events", "--older-than", "0", "--dry-run")}
    assert paths
    assert [version["version"] for version in lines(run, "history", "lake/events")] == [4, 3, 2, 1]
    assert {row["path"] for row in lines(run, "vacuum", "lake/events", "--older-than", "0", "--yes")} == paths
    assert run("drop", "lake/events")[0] == 2
    assert run("drop", "lake/events", "--yes")[0] == 0
    assert run("show", "lake/events")[0] == 1


def test_damage_is_found(run: Run, table: pds.Table, tmp_path: Path) -> None:
    (path,) = table.files()["path"].to_pylist()
    file = tmp_path / "lake" / "events" / path
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    code, out, _ = run("verify", "lake/events", "-o", "json")
    assert code == 1
    assert json.loads(out)[0]["path"] == path
    file.unlink()
    code, out, _ = run("check", "lake/events", "-o", "json")
    assert (code, json.loads(out)) == (1, [{"problem": "missing", "path": path}])


@pytest.mark.parametrize(
    ("argv", "code", "reason"),
    [
        (["show", "nothing"], 1, "nothing at 'nothing' is a table, dataset, pipeline or chain"),
        (["scan", "lake/events", "--columns", "x"], 2, "x"),
        (["scan", "lake/events", "--where", "x ="], 2, "x ="),
        (["scan", "lake/events", "--as-of", "9"], 2, "there is no version 9"),
        (["scan", "lake/events", "--as-of", "soon"], 2, "'soon' is not a version, a time or a tag"),
        (["restore", "lake/events", "soon"], 2, "'soon' is not"),
        (["scan", "lake/events", "-n", "-1"], 2, "a whole number from 0 on"),
        (["scan", "lake/events", "-n", "ten"], 2, "-n/--limit: invalid number 'ten'"),
        (["tag", "lake/events", "1"], 2, "`pds tag URL NAME 1`"),
        (["vacuum", "lake/events", "--older-than", "-1", "--yes"], 2, "negative"),
        (["vacuum", "lake/events", "--older-than", "nan", "--yes"], 2, "out of range"),
        (["diff", "lake/events", "x"], 2, "invalid int value"),
        (["show", "s3:/bucket/x"], 2, "two slashes"),
        (["vacuum", "lake/events", "--older-than", "1e300", "--yes"], 2, "out of range"),
        (["scan", "ds", "--as-of", "1"], 2, "no versions"),
        (["show", "ds", "--as-of", "1"], 2, "no versions"),
        (["verify", "ds", "--as-of", "1"], 2, "no versions"),
        (["files", "ds", "--as-of", "1"], 2, "no versions"),
        (["scan", "lake/events", "--as-of", "2030-01-01T00:00:00"], 2, "has no time zone"),
        (["restore", "lake/events", "2030-01-01"], 2, "has no time zone"),
        (["scan", "lake/events", "--stage", "x"], 2, "no stages"),
        (["scan", "lake/events", "--columns", ""], 2, "--columns takes names"),
        (["scan", "ds", "--columns", "id,id"], 2, "--columns takes names, each once"),
        (["scan", "lake/events", "-n", "9" * 20], 2, "invalid"),
        (["history", "lake/events", "--watch", "--interval", "nan"], 2, "--interval: invalid number 'nan'"),
        (["history", "lake/events", "--watch", "--interval", "soon"], 2, "above 0"),
        (["history", "lake/events", "--watch", "-o", "json"], 2, "-o ndjson"),
        (["tag", "lake/events", "--delete", "zz"], 2, "the tag 'zz' does not exist"),
        (["tag", "lake/events", "--delete"], 2, "--delete takes the name"),
        (["tag", "lake/events", "x", "1", "--delete"], 2, "and no version"),
        (["tag", "lake/events", "x", "99"], 2, "there is no version 99; the newest is 1"),
        (["tag", "lake/events", "x", "0"], 2, "version 0 does not exist"),
        (["ls", "nowhere"], 1, "there is nothing at 'nowhere'"),
    ],
)
def test_mistakes(run: Run, table: pds.Table, argv: list[str], code: int, reason: str) -> None:
    pds.write_dataset("ds", ROWS)
    failed, out, err = run(*argv)
    assert (failed, out) == (code, "")
    assert reason in err
    assert err.splitlines()[-1].startswith("pds")
    assert table.version == 1


@pytest.mark.parametrize(
    ("error", "code"), [(pds.CommitConflict("lost"), 3), (pds.CommitStateUnknown("silence"), 4), (pds.NotFound("x"), 1)]
)
def test_a_commit_that_did_not_land(
    run: Run, table: pds.Table, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(pds.Table, "restore", fail)
    assert run("restore", "lake/events", "1")[0] == code
    assert table.version == 1


def test_new_versions_are_printed_as_they_come(run: Run, table: pds.Table, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pds", "history", "lake/events", "--watch", "--interval", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as watch:
        assert watch.stdout is not None
        assert watch.stdout.readline().split()[:2] == ["version", "created_at"]
        assert watch.stdout.readline().split()[0] == "1"
        table.append(ROWS)
        assert watch.stdout.readline().split()[0] == "2"
        for _ in range(150):
            table.append(ROWS.slice(0, 1))
        assert [int(watch.stdout.readline().split()[0]) for _ in range(150)] == list(range(3, 153))
        time.sleep(0.1)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 130


def test_help_and_version(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith(f"pds {pds.__version__}, pyarrow {pa.__version__}, Python ")
    command = "import sys, pds.cli\ntry: pds.cli.main(['--help'])\nexcept SystemExit: print('pyarrow' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert printed.endswith("False\n"), "help does not wait for Arrow"
    for name in ("ls", "show", "history", "head", "vacuum", "dataset", "odf", "doctor"):
        assert name in printed


def test_an_import(run: Run, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "lake" / "delta", ROWS)
    code, out, err = run("import", "lake/delta", "--output", "json")
    assert (code, json.loads(out)) == (0, {"files": 1, "rows": ROWS.num_rows, "deleted_rows": 0})
    assert err.startswith("pds: other systems can still write")
    assert "--take-over makes" in err
    imported = pds.open_table(tmp_path / "lake" / "delta").scan(["id", "name"])
    assert imported.to_pyarrow().equals(ROWS.select(["id", "name"]))
    code, _, err = run("import", "lake/delta", "--take-over")
    assert code != 0
    assert "already exists" in err
    assert "`pds drop lake/delta`" in err
    assert run("import", "lake/delta", "--from", "iceberg", "--take-over")[0] == 2
    assert run("drop", "lake/delta", "--yes")[0] == 0
    assert run("import", "lake/delta", "--take-over")[::2] == (0, "")
    assert pds.open_table("lake/delta").scan().count() == ROWS.num_rows
    deltalake.write_deltalake(tmp_path / "lake" / "guarded", ROWS)
    assert run("import", "lake/guarded", "--take-over")[2] == ""

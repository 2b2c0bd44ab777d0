"""Tables as Delta tables: every version of the log has the rows of the table's, as other systems read it."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

import pds
from delta_readers import copy_up_to, read_delta_rs, read_duckdb, read_polars
from exported_tables import SCHEMA, change_at_random, make_rows, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3Server

pytestmark = pytest.mark.sampled(2)


@pytest.fixture
def table(tmp_path: Path) -> pds.Table:
    return pds.Table.create(pds.Store(tmp_path.as_uri()), "t", SCHEMA, key=["id"], sort_by=["id"])


def log_versions(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in (folder / "_delta_log").glob("*.json"))


def read_log(folder: Path, version: int) -> list[dict[str, Any]]:
    lines = (folder / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def features(folder: Path) -> set[str]:
    protocols = [
        line["protocol"] for version in log_versions(folder) for line in read_log(folder, version) if "protocol" in line
    ]
    return set(protocols[-1].get("readerFeatures", []))


@pytest.mark.parametrize("seed", range(6))
def test_every_version_has_the_rows_of_the_table(table: pds.Table, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    ids = [0]
    folder = tmp_path / "t"
    for _ in range(25):
        change_at_random(table, rng, ids)
        if rng.random() < 0.3:
            exported = table.export_delta()
            assert exported.version == table.version
    table.export_delta()
    assert table.export_delta().versions == 0
    where = f"id >= {ids[0] // 3} AND price < {ids[0] // 6}"
    copies: list[tuple[Path, str]] = []
    for version in log_versions(folder):
        expected = table.as_of(version)
        refused = features(copy_up_to(folder, version, tmp_path / f"log {version}"))
        polars_reads = not refused & {"columnMapping", "typeWidening"}
        for filter_by in ("true", where):
            rows = rows_of(expected.scan(None, where=None if filter_by == "true" else filter_by).to_pyarrow())
            if "typeWidening" not in refused:
                assert rows_of(read_delta_rs(folder, version, filter_by)) == rows, version
            if polars_reads:
                assert rows_of(read_polars(folder, version, filter_by)) == rows, version
        copies += [(tmp_path / f"log {version}", "true"), (tmp_path / f"log {version}", where)]
    (scratch := tmp_path / "scratch").mkdir()
    for (copy, filter_by), read in zip(copies, read_duckdb(copies, scratch), strict=True):
        expected = table.as_of(int(copy.name.split()[1]))
        rows = rows_of(expected.scan(None, where=None if filter_by == "true" else filter_by).to_pyarrow())
        assert rows_of(read) == rows, copy


def test_a_reader_that_begins_at_a_checkpoint_sees_the_same(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(100)))
    table.delete("id between 10 and 20")
    table.export_delta()
    for number in range(105):
        table.append(make_rows(range(1000 + number, 1001 + number)))
    table.delete("id % 2 = 0")
    table.export_delta()
    log = tmp_path / "t" / "_delta_log"
    checkpoints = sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))
    assert len(checkpoints) == 2
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == checkpoints[-1]
    expected = rows_of(table.scan().to_pyarrow())
    assert rows_of(read_delta_rs(tmp_path / "t")) == expected
    for path in log.glob("*.json"):
        if int(path.stem) < checkpoints[-1]:
            path.unlink()
    (log / f"{checkpoints[0]:020}.checkpoint.parquet").unlink()
    assert rows_of(read_delta_rs(tmp_path / "t")) == expected
    assert rows_of(read_polars(tmp_path / "t")) == expected


def test_a_vacuum_brings_the_log_up_to_date(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(100)))
    table.export_delta()
    table.append(make_rows(range(100, 200)))
    table.optimize.compact()
    table.vacuum(dt.timedelta(0))
    assert log_versions(tmp_path / "t")[-1] == table.version
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(table.scan().to_pyarrow())


def test_a_log_goes_on_after_versions_that_expired(table: pds.Table, tmp_path: Path) -> None:
    """Its next version is gone: readers are sent to a checkpoint."""
    table.append(make_rows(range(100)))
    table.delete("id < 10")
    table.export_delta()
    log = tmp_path / "t" / "_delta_log"
    aside = tmp_path / "aside"
    log.rename(aside)
    for number in range(3):
        table.append(make_rows(range(100 + number, 101 + number)))
    table.optimize.compact()
    table.vacuum(dt.timedelta(0))
    aside.rename(log)
    table.append(make_rows(range(500, 510)))
    exported = table.export_delta()
    assert exported.version == table.version
    expected = rows_of(table.scan().to_pyarrow())
    assert rows_of(read_delta_rs(tmp_path / "t")) == expected
    assert rows_of(read_polars(tmp_path / "t")) == expected


def test_types_and_names(tmp_path: Path) -> None:
    """Types, odd names, required and nested fields; what Delta lacks is refused by name, or left out."""
    fields: list[tuple[pa.DataType, list[Any]]] = [
        (pa.int8(), [-128, None, 127]),
        (pa.uint8(), [0, None, 255]),
        (pa.uint16(), [0, None, 65535]),
        (pa.uint32(), [0, None, 2**32 - 1]),
        (pa.float32(), [float("-inf"), None, 1.5]),
        (pa.bool_(), [True, None, False]),
        (pa.large_string(), ["", None, "ä" * 100]),
        (pa.binary(), [b"", None, b"\x00\xff"]),
        (pa.binary(3), [b"abc", None, b"\x00\xff\x01"]),
        (pa.decimal128(38, 10), [Decimal("-1.0000000001"), None, Decimal(10) ** 20]),
        (pa.timestamp("ms", "Europe/Berlin"), [-(2**40), None, 2**41]),
        (pa.timestamp("us"), [-62_135_596_800_000_000, None, 253_402_300_799_999_999]),
        (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b"]),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
        (pa.list_(pa.struct([pa.field("x", pa.int64(), nullable=False)])), [[{"x": 1}], None, []]),
    ]
    names = ["id", *(f"c{number}, with a = “name”; {data_type}"[:40] for number, (data_type, _) in enumerate(fields))]
    arrays = [pa.array(range(3), pa.int64()), *(pa.array(values, data_type) for data_type, values in fields)]
    rows = pa.table(arrays, names=names)
    unknown = rows.append_column("ns", pa.array([1, 2, 3], pa.timestamp("ns")))
    unknown = unknown.append_column("time", pa.array([1, 2, 3], pa.time64("us")))
    table = pds.write_table(tmp_path / "t", unknown)
    for leave_out in (None, ["ns"], "time"):
        with pytest.raises(pds.InvalidInput, match=r"cannot be exported to Delta.*leave_out"):
            table.export_delta(leave_out=leave_out)
    assert not (tmp_path / "t" / "_delta_log").exists()
    with pytest.raises(pds.InvalidInput, match=r"unknown column .nothing."):
        table.export_delta(leave_out=["nothing"])
    table.export_delta(leave_out=["time", "ns"])
    table.append(unknown.set_column(0, "id", pa.array(range(3, 6), pa.int64())))
    table.alter.rename_column("ns", "nanoseconds")
    table.export_delta()
    expected = rows_of(table.scan(rows.column_names).to_pyarrow())
    assert rows_of(read_delta_rs(tmp_path / "t")) == expected
    (scratch := tmp_path / "scratch").mkdir()
    assert rows_of(read_duckdb([(tmp_path / "t", "true")], scratch)[0]) == expected


def test_names_that_differ_in_case_are_refused(tmp_path: Path) -> None:
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1], "A": [1], "a": [2]}))
    with pytest.raises(pds.InvalidInput, match="only in case"):
        table.export_delta()
    table.export_delta(leave_out=["A"])
    assert read_delta_rs(tmp_path / "t").column_names == ["id", "a"]


def test_files_that_would_be_read_wrongly_are_refused(table: pds.Table, tmp_path: Path) -> None:
    """A file that was added with a column under another name, and one with values that its path has."""
    (tmp_path / "t" / "in").mkdir()
    rows = make_rows(range(10))
    pq.write_table(rows, tmp_path / "t" / "in" / "plain.parquet")
    table.add_files(["t/in/plain.parquet"])
    table.export_delta()
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(rows)
    table.alter.add_column(pa.field("kind", pa.string()))
    (tmp_path / "t" / "kind=x").mkdir()
    pq.write_table(make_rows(range(10, 20)), tmp_path / "t" / "kind=x" / "a b%.parquet")
    table.add_files(["t/kind=x/a b%.parquet"], hive_partitioning=True)
    with pytest.raises(pds.InvalidInput, match=r"a b%.parquet.*optimize.sort"):
        table.export_delta()
    assert log_versions(tmp_path / "t") == [2, 3]
    table.append(make_rows(range(20, 25), table.schema))
    with pytest.raises(pds.InvalidInput, match=r"a b%.parquet.*optimize.sort"):
        table.export_delta()
    reader = DeltaTable(str(tmp_path / "t"))
    table.optimize.sort(["id"])
    # The versions with that file are passed over.
    assert table.export_delta().versions == 1
    assert log_versions(tmp_path / "t") == [2, 3, table.version]
    expected = rows_of(table.scan().to_pyarrow())
    assert rows_of(read_delta_rs(tmp_path / "t")) == expected
    reader.update_incremental()
    rows = QueryBuilder().register("delta", reader).execute("SELECT * FROM delta")
    assert rows_of(pa.table(rows)) == expected


def test_a_version_that_lacks_a_file_is_passed_over(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_delta()
    pq.write_table(make_rows(range(10, 20)), tmp_path / "t" / "added.parquet")
    table.add_files(["t/added.parquet"])
    table.optimize.compact()
    (tmp_path / "t" / "added.parquet").unlink()
    table.export_delta()
    assert log_versions(tmp_path / "t") == [2, table.version]
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(20)))


def test_a_lost_file_does_not_stop_exports_for_ever(table: pds.Table, tmp_path: Path) -> None:
    """Its rows were replaced, but the version before has it, with deleted rows."""
    table.append(make_rows(range(10)))
    table.export_delta()
    pq.write_table(make_rows(range(10, 20)), tmp_path / "t" / "added.parquet", row_group_size=5)
    table.add_files(["t/added.parquet"])
    table.delete("id between 8 and 12")
    (tmp_path / "t" / "added.parquet").unlink()
    table.overwrite(make_rows(range(50)))
    table.export_delta()
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(50)))
    table.export_delta(rebuild=True)
    assert rows_of(read_polars(tmp_path / "t")) == rows_of(make_rows(range(50)))


def test_what_comes_late_from_a_table_that_was_here_before(table: pds.Table, tmp_path: Path) -> None:
    for number in range(5):
        table.append(make_rows(range(number, number + 1)))
    table.export_delta()
    log = tmp_path / "t" / "_delta_log"
    (checkpoint,) = log.glob("*.parquet")
    late, hint = checkpoint.read_bytes(), (log / "_last_checkpoint").read_bytes()
    store = pds.Store(tmp_path.as_uri())
    pds.Table.drop(store, "t")
    table = pds.Table.create(store, "t", SCHEMA)
    table.append(make_rows(range(20, 30)))
    table.export_delta()
    (log / "_last_checkpoint").write_bytes(hint)
    table.export_delta()
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(20, 30)))
    checkpoint.write_bytes(late)
    with pytest.raises(pds.ExportConflict, match=r"another table.*rebuild=True"):
        table.export_delta()
    table.export_delta(rebuild=True)
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(20, 30)))


def test_a_drop_removes_the_log_and_nothing_else(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(3000)))
    table.delete("small % 3 = 1")
    table.export_delta()
    (mine := tmp_path / "t" / "_dv" / "mine.txt").write_text("x")
    assert len(list(mine.parent.iterdir())) == 2
    store = pds.Store(tmp_path.as_uri())
    pds.Table.drop(store, "t")
    assert [path for path in (tmp_path / "t").rglob("*") if path.is_file()] == [mine]
    with pytest.raises(pds.NotFound):
        pds.Table.drop(store, "t")
    assert mine.exists()


def test_a_vacuum_beside_a_log_of_another_system(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    log = tmp_path / "t" / "_delta_log"
    log.mkdir()
    (theirs := log / f"{0:020}.json").write_text('{"commitInfo":{"timestamp":1}}\n')
    table.vacuum(dt.timedelta(0))
    assert list(log.iterdir()) == [theirs]
    assert theirs.read_text() == '{"commitInfo":{"timestamp":1}}\n'


def test_an_expired_log_of_unknown_origin(table: pds.Table, tmp_path: Path) -> None:
    """A table that was created anew may have expired versions, too."""
    table.append(make_rows(range(10)))
    table.export_delta(leave_out=["day"])
    log, aside = tmp_path / "t" / "_delta_log", tmp_path / "aside"
    log.rename(aside)
    store = pds.Store(tmp_path.as_uri())
    pds.Table.drop(store, "t")
    table = pds.Table.create(store, "t", SCHEMA)
    for number in range(70):
        table.append(make_rows(range(number, number + 1)))
    table.optimize.compact()
    table.vacuum(dt.timedelta(0))
    aside.rename(log)
    with pytest.raises(pds.ExportConflict, match="not known whether"):
        table.export_delta()
    with pytest.raises(pds.InvalidInput, match="give leave_out"):
        table.export_delta(rebuild=True)
    table.export_delta(rebuild=True, leave_out=[])
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(70)))


def test_new_columns_may_be_left_out(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_delta(leave_out=["day"])
    table.alter.add_column("half", pa.float16())
    with pytest.raises(pds.InvalidInput, match="leave_out to leave it out"):
        table.export_delta()
    with pytest.raises(pds.InvalidInput, match=r"differs from that of the last export, which was .\"day\""):
        table.export_delta(leave_out=["half"])
    table.export_delta(leave_out=["half", "day"])
    assert read_delta_rs(tmp_path / "t").column_names == [name for name in SCHEMA.names if name != "day"]


def test_a_version_with_a_type_that_delta_lacks_is_passed_over(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_delta()
    table.alter.add_column("half", pa.float16())
    table.alter.drop_column("half")
    table.delete("id < 5")
    assert table.export_delta(leave_out=[]).versions == 1
    assert rows_of(read_polars(tmp_path / "t")) == rows_of(make_rows(range(5, 10)))
    # A gap has its protocol and its columns again.
    assert {next(iter(line)) for line in read_log(tmp_path / "t", table.version)} >= {"protocol", "metaData"}


def test_columns_that_are_left_out_and_dropped(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_delta(leave_out=["small"])
    with pytest.raises(pds.InvalidInput, match=r"leave_out differs.*rebuild=True"):
        table.export_delta(leave_out=[])
    table.alter.drop_column("small")
    for leave_out in (["small"], [], None):
        table.append(make_rows(range(10), table.schema))
        assert table.export_delta(leave_out=leave_out).versions == 2 if leave_out == ["small"] else 1
    table.export_delta(leave_out=["day"], rebuild=True)
    table.export_delta(rebuild=True)
    assert "day" not in read_delta_rs(tmp_path / "t").column_names


def test_a_rebuild_that_fails_keeps_the_log(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_delta()
    rows = make_rows(range(10, 20))
    narrow = rows.set_column(0, "id", rows["id"].cast(pa.int32()))
    pq.write_table(narrow, tmp_path / "t" / "narrow.parquet")
    table.add_files(["t/narrow.parquet"])
    for rebuild in (False, True):
        with pytest.raises(pds.InvalidInput, match=r"narrow\.parquet"):
            table.export_delta(rebuild=rebuild)
        assert log_versions(tmp_path / "t") == [2]
    table.optimize.sort(["id"])
    table.export_delta()
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(20)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())])),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.uint16(), pa.uint64()),
        (pa.float16(), pa.float64()),
    ],
    ids=str,
)
def test_widenings_that_delta_lacks(tmp_path: Path, before: pa.DataType, after: pa.DataType) -> None:
    """They are refused until no file has the narrower type."""
    value = {"a": 1} if pa.types.is_struct(before) else [1] if pa.types.is_list(before) else 1
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1], "x": pa.array([value], before)}))
    if before != pa.float16():
        table.export_delta()
    table.alter.widen("x", after)
    for rebuild in (False, True):
        with pytest.raises(pds.InvalidInput, match=r"column .x."):
            table.export_delta(rebuild=rebuild)
    table.optimize.sort(["id"])
    table.export_delta()
    expected = rows_of(table.scan().to_pyarrow())
    assert rows_of(read_delta_rs(tmp_path / "t")) == expected
    if after != pa.uint64():
        assert rows_of(read_polars(tmp_path / "t")) == expected


def test_files_whose_names_readers_do_not_agree_about(table: pds.Table, tmp_path: Path) -> None:
    """Polars reads deleted rows of a file whose name is escaped in the log."""
    for number, name in enumerate(["a+b", "(x)", "c'd", "a b"]):
        path = tmp_path / "t" / f"{name}.parquet"
        pq.write_table(make_rows(range(number * 10, number * 10 + 10)), path)
        table.add_files([f"t/{name}.parquet"])
    table.export_delta()
    assert rows_of(read_polars(tmp_path / "t")) == rows_of(make_rows(range(40)))
    table.delete("id % 2 = 0 and id < 30")
    table.export_delta()
    expected = rows_of(table.scan().to_pyarrow())
    for read in (read_delta_rs, read_polars):
        assert rows_of(read(tmp_path / "t")) == expected
    table.delete("id = 31")
    for rebuild in (False, True):
        with pytest.raises(pds.InvalidInput, match=r"a b\.parquet.*optimize.sort"):
            table.export_delta(rebuild=rebuild)
    assert log_versions(tmp_path / "t")
    table.optimize.sort(["id"])
    # What was there is named once more, as a file that is removed.
    table.export_delta()
    assert rows_of(read_polars(tmp_path / "t")) == rows_of(table.scan().to_pyarrow())
    table.export_delta(rebuild=True)
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(table.scan().to_pyarrow())


def test_a_long_filter(table: pds.Table, tmp_path: Path) -> None:
    """The first line of the log's file, which the next export reads, stays short."""
    table.append(make_rows(range(10)))
    table.export_delta()
    table.overwrite(make_rows(range(20, 22)), where=f"id IN ({', '.join(map(str, range(5, 200_000)))})")
    table.export_delta()
    assert len(json.dumps(read_log(tmp_path / "t", table.version)[0])) < 10_000
    table.append(make_rows(range(30, 32)))
    assert table.export_delta().versions == 1
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(table.scan().to_pyarrow())


def test_a_path_that_comes_back_with_other_columns(table: pds.Table, tmp_path: Path) -> None:
    """A restore swaps the entries of one file, of which one is read wrongly by name."""
    rows = make_rows(range(10))
    pq.write_table(rows, tmp_path / "t" / "x.parquet")
    table.add_files(["t/x.parquet"])
    first = table.version
    table.export_delta()
    table.overwrite(make_rows(range(100, 103)))
    table.alter.rename_column("name", "label")
    table.alter.add_column("name", pa.string())
    table.export_delta()
    table.add_files(["t/x.parquet"])
    with pytest.raises(pds.InvalidInput, match=r"x\.parquet"):
        table.export_delta()
    table.restore(first)
    table.export_delta()
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(table.scan().to_pyarrow()) == rows_of(rows)


def test_a_log_without_a_checkpoint_gets_one(table: pds.Table, tmp_path: Path) -> None:
    """An export ended between the first version and its checkpoint."""
    table.append(make_rows(range(10)))
    table.export_delta()
    log = tmp_path / "t" / "_delta_log"
    (checkpoint,) = log.glob("*.parquet")
    checkpoint.unlink()
    (log / "_last_checkpoint").unlink()
    table.export_delta()
    assert rows_of(read_polars(tmp_path / "t")) == rows_of(make_rows(range(10)))
    checkpoint.unlink()
    table.append(make_rows(range(10, 20)))
    table.export_delta()
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(20)))


def test_a_checkpoint_of_another_table_is_replaced(table: pds.Table, tmp_path: Path) -> None:
    """It came late, when the table was removed already."""
    table.append(make_rows(range(10)))
    table.export_delta()
    log = tmp_path / "t" / "_delta_log"
    (checkpoint,) = log.glob("*.parquet")
    late = checkpoint.read_bytes()
    store = pds.Store(tmp_path.as_uri())
    pds.Table.drop(store, "t")
    assert not list(log.glob("*"))
    table = pds.Table.create(store, "t", SCHEMA, key=["id"])
    table.append(make_rows(range(50, 60)))
    log.mkdir(exist_ok=True)
    checkpoint.write_bytes(late)
    table.export_delta()
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(50, 60)))


def test_a_table_that_is_created_again_does_not_continue_the_log(table: pds.Table, tmp_path: Path) -> None:
    """Although the version of the log is older than what its manifest knows of."""
    table.append(make_rows(range(10)))
    table.export_delta()
    shutil.copytree(tmp_path / "t" / "_delta_log", tmp_path / "log")
    store = pds.Store(tmp_path.as_uri())
    pds.Table.drop(store, "t")
    table = pds.Table.create(store, "t", SCHEMA)
    for number in range(70):
        table.append(make_rows(range(number, number + 1)))
    shutil.rmtree(tmp_path / "t" / "_delta_log", ignore_errors=True)
    shutil.copytree(tmp_path / "log", tmp_path / "t" / "_delta_log")
    with pytest.raises(pds.ExportConflict, match="another table"):
        table.export_delta()


def test_a_log_of_another_system_is_left_alone(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    log = tmp_path / "t" / "_delta_log"
    log.mkdir()
    foreign = log / f"{0:020}.json"
    foreign.write_text('{"commitInfo":{"timestamp":1,"operation":"WRITE"}}\n')
    for rebuild in (False, True):
        with pytest.raises(pds.ExportConflict, match="another system"):
            table.export_delta(rebuild=rebuild)
    assert [path.name for path in log.iterdir()] == [foreign.name]


def test_a_log_of_a_table_that_was_here_before(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_delta()
    shutil.copytree(tmp_path / "t" / "_delta_log", tmp_path / "log")
    pds.Table.drop(pds.Store(tmp_path.as_uri()), "t")
    shutil.rmtree(tmp_path / "t", ignore_errors=True)
    table = pds.Table.create(pds.Store(tmp_path.as_uri()), "t", SCHEMA)
    shutil.copytree(tmp_path / "log", tmp_path / "t" / "_delta_log")
    with pytest.raises(pds.ExportConflict, match="another table"):
        table.export_delta()
    table.append(make_rows(range(5)))
    with pytest.raises(pds.ExportConflict, match="another table"):
        table.export_delta()
    table.export_delta(rebuild=True)
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_of(make_rows(range(5)))


def test_other_systems_do_not_write(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_delta()
    table.append(make_rows(range(10, 20)))
    table.export_delta()
    delta = DeltaTable(str(tmp_path / "t"))
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for write in (
        lambda: write_deltalake(delta, make_rows(range(10, 20)), mode="append"),
        lambda: delta.delete("id = 1"),
        delta.optimize.compact,
        lambda: delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True),
        lambda: delta.restore(2),
    ):
        with pytest.raises(Exception, match=r"(?i)feature|unsupported|version"):
            write()
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


@pytest.mark.s3
def test_a_table_on_s3(s3_server: S3Server, s3_store: pds.Store, s3_prefix: str) -> None:
    table = pds.Table.create(s3_store, "t", SCHEMA, key=["id"], sort_by=["id"])
    table.append(make_rows(range(3000)))
    table.delete("small % 3 = 1")
    table.export_delta()
    table.append(make_rows(range(3000, 3100)))
    table.delete("id BETWEEN 100 AND 200")
    table.export_delta()
    options = s3_server.options()
    url = s3_server.url(f"{s3_prefix}/t")
    for version in range(3, table.version + 1):
        delta = DeltaTable(url, version=version, storage_options=options)
        rows = QueryBuilder().register("delta", delta).execute("SELECT * FROM delta")
        assert rows_of(pa.table(rows)) == rows_of(table.as_of(version).scan().to_pyarrow())
    table.vacuum(dt.timedelta(0))
    assert DeltaTable(url, storage_options=options).version() == table.version

"""`pds health`: its numbers, that it reads no data, and that what it advises is what helps."""

from __future__ import annotations

import datetime as dt
import json
import secrets
import shlex
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from pds.cli import health

if TYPE_CHECKING:
    from pathlib import Path

    from tests.python.conftest import Run

AT = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def examine(run: Run, url: str) -> dict[str, Any]:
    code, out, err = run("health", url, "-o", "json")
    assert (code, err) == (0, "")
    report: dict[str, Any] = json.loads(out)
    return report


def follow(run: Run, report: dict[str, Any], *arguments: str) -> None:
    """Run the one command that a report advises."""
    (advice,) = report["next"]
    program, *argv = shlex.split(advice["command"])
    assert program == "pds"
    assert run(*argv, *arguments)[0] == 0


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": range(first, first + count)})


def pass_days(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    monkeypatch.setattr(health, "_now", lambda: later)


def test_a_new_table_needs_nothing(run: Run) -> None:
    pds.write_table("my table", rows(0, 100), key="id")
    report = examine(run, "my table")
    assert (report["rows"], report["files"], report["deleted_rows"], report["versions"]) == (100, 1, 0, 1)
    assert (report["last_compaction"], report["last_vacuum"], report["next"]) == (None, None, [])
    assert run("health", "my table")[1].splitlines()[-1].split() == ["next", "1", "nothing", "to", "do"]


def test_small_files_are_combined(run: Run) -> None:
    table = pds.write_table("my table", rows(0, 1), sort_by="id")
    for number in range(1, 12):
        table.append(rows(number, 1))
    before = examine(run, "my table")
    sizes = table.refresh().files()["size_bytes"].to_pylist()
    assert (before["files"], before["small_files"], before["bytes"]) == (12, 12, sum(sizes))
    assert before["next"] == [
        {"command": "pds optimize 'my table'", "reason": "12 small files become 1"},
    ]
    follow(run, before)
    after = examine(run, "my table")
    assert (after["files"], after["next"]) == (1, [])
    created = table.refresh().history(1)[0]["created_at"]
    assert dt.datetime.fromisoformat(after["last_compaction"]) == created


def test_deleted_rows_are_counted_and_removed(run: Run) -> None:
    table = pds.write_table("t", rows(0, 1000).append_column("name", pa.array(["a"] * 1000)), sort_by="id")
    table.delete("id < 100 AND name = 'a'")
    table.delete("id IN (500, 700) AND name = 'a'")
    report = examine(run, "t")
    assert (report["rows"], report["deleted_rows"], report["deleted_share"]) == (table.scan().count(), 102, 0.102)
    assert (report["tombstones"], report["next"]) == (2, [])
    table.delete("id < 300 AND name = 'a'")
    follow(run, examine(run, "t"))
    assert examine(run, "t")["deleted_rows"] == 0
    table.refresh().delete("id >= 400 AND name = 'a'")
    report = examine(run, "t")
    assert report["next"] == [{"command": "pds optimize t", "reason": "86% of the rows are deleted"}]
    follow(run, report)
    report = examine(run, "t")
    assert (report["deleted_rows"], report["rows"], report["next"]) == (0, 100, [])


def test_ranges_of_keys_are_not_counted(run: Run) -> None:
    table = pds.write_table("t", rows(0, 1000), key="id")
    table.delete("id < 400")
    report = examine(run, "t")
    assert (report["uncounted_deletes"], report["rows"], report["deleted_share"]) == (1, None, None)
    out = run("health", "t")[1]
    assert "nothing to do" not in out
    assert "not known: only the data can count the rows of 1 delete by" in out


@pytest.mark.parametrize("is_range", [True, False])
def test_merged_lists_of_deleted_rows_are_compressed(run: Run, tmp_path: Path, is_range: bool) -> None:
    count = 60
    table = pds.write_table("t", rows(0, 1000), key="id")
    for number in range(count):
        table.delete(f"id = {2 * number}" if is_range else f"id + 0 = {2 * number}")
    follow(run, examine(run, "t"))
    (entry,) = table.refresh()._parse_manifest()["tombstones"]
    assert (tmp_path / "t" / entry["path"]).read_bytes().startswith(health._ZSTD_MAGIC) == is_range
    expected = (None, 1) if is_range else (count, 0)
    report = examine(run, "t")
    assert (report["deleted_rows"], report["uncounted_deletes"]) == expected


def test_overlaps_are_sorted_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_FILE_BYTES", 2)
    table = pds.write_table("t", rows(0, 100), sort_by="id")
    for _ in range(11):
        table.append(rows(0, 100))
    report = examine(run, "t")
    assert (report["overlap_column"], report["overlap"]) == ("id", table.layout("id").overlap)
    assert report["next"] == [{"command": "pds optimize t --sort", "reason": "a value of id may be in 12 of 12 files"}]
    follow(run, report)
    assert examine(run, "t")["overlap"] == 1


def test_a_value_in_many_sorted_files_is_no_reason_to_sort_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_FILE_BYTES", 2)
    table = pds.write_table("t", rows(0, 100), sort_by="id")
    for _ in range(11):
        table.append(rows(0, 100))
    monkeypatch.setattr(health, "_is_sorted", lambda _history: True)
    assert examine(run, "t")["next"] == []
    monkeypatch.undo()
    assert not health._is_sorted(table.history())
    table.optimize.sort()
    table.tags.create("sorted")
    assert health._is_sorted(table.history())
    table.append(rows(0, 1))
    assert not health._is_sorted(table.history())


def test_many_small_lists_of_deleted_rows_are_merged(run: Run) -> None:
    table = pds.write_table("t", rows(0, 1000))
    for number in range(12):
        table.delete(f"id = {number}")
    report = examine(run, "t")
    assert report["next"] == [{"command": "pds optimize t", "reason": "12 small objects list deleted rows"}]
    follow(run, report)
    report = examine(run, "t")
    assert (report["tombstones"], report["deleted_rows"], report["next"]) == (1, 12, [])


def test_a_column_without_statistics_has_no_overlap(run: Run) -> None:
    pds.write_table("t", pa.table({"x": [0.5, 1.5]}), sort_by="x")
    report = examine(run, "t")
    assert (report["overlap_column"], report["overlap"]) == ("x", None)


def test_old_versions_are_vacuumed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pds.write_table("t", rows(0, 10))
    table.append(rows(10, 10))
    pass_days(monkeypatch, 6)
    assert examine(run, "t")["next"] == []
    pass_days(monkeypatch, 8)
    report = examine(run, "t")
    assert (report["versions"], report["oldest_version"]) == (2, 1)
    code, out, _ = run("health", "t")
    assert (code, out.count("(8.0 days ago)")) == (0, 1)
    follow(run, report, "--older-than", "0", "--yes")
    report = examine(run, "t")
    assert report["oldest_version"] == 2
    assert report["last_vacuum"] is not None
    assert report["next"] == [], "the version of a vacuum is no reason for another one"
    table.refresh().tags.create("a-tag")
    assert examine(run, "t")["next"] == []
    table.refresh().append(rows(20, 10))
    assert [advice["command"] for advice in examine(run, "t")["next"]] == ["pds vacuum t"]


def test_tagged_versions_can_be_read_and_count(run: Run) -> None:
    table = pds.write_table("t", rows(0, 10))
    created = table.history(1)[0]["created_at"]
    table.tags.create("first", 1)
    table.append(rows(10, 10))
    table.append(rows(20, 10))
    assert run("vacuum", "t", "--older-than", "0", "--yes")[0] == 0
    report = examine(run, "t")
    readable = [
        version for version in range(1, report["version"] + 1) if run("show", "t", "--as-of", str(version))[0] == 0
    ]
    assert readable[0] == 1
    assert (report["versions"], report["oldest_version"]) == (len(readable), 1)
    assert dt.datetime.fromisoformat(report["oldest_created"]) == created


def test_an_advice_names_the_options_and_no_values(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_MANY", 0)
    table = pds.write_table("t", rows(0, 10), key="id")
    table.append(rows(10, 10))
    options = ("--option", "durability=none", "--option", "publish_lease=7")
    code, out, _ = run("health", "t", "-o", "json", *options)
    (advice,) = json.loads(out)["next"]
    assert (code, advice["command"]) == (0, "pds optimize t --option durability=VALUE --option publish_lease=VALUE")


@pytest.mark.parametrize("has_ranges", [True, False])
def test_no_data_is_read(run: Run, tmp_path: Path, has_ranges: bool) -> None:
    table = pds.write_table("t", rows(0, 1000), key="id")
    if has_ranges:
        table.delete("id < 400")
    else:
        table.delete("id % 2 = 0")
    expected = examine(run, "t")
    for file in table.files()["path"].to_pylist():
        (tmp_path / "t" / file).unlink()
    assert examine(run, "t") == expected


def test_a_large_table_has_lists_of_files(run: Run) -> None:
    table = pds.write_table("t", rows(0, 10), sort_by="id")
    for number in range(1, 300):
        table.append(rows(10 * number, 10))
    assert table._parse_manifest()["segments"]
    report = examine(run, "t")
    assert (report["files"], report["rows"], report["versions"]) == (300, 3000, 300)
    assert report["last_compaction"] is None
    assert report["next"] == [{"command": "pds optimize t", "reason": "300 small files become 1"}]


def test_a_dataset(run: Run, tmp_path: Path) -> None:
    pds.ParquetDatasetStore(pds.Store("."), max_rows_per_file=40).write_dataset(rows(0, 100), "ds")
    report = examine(run, "ds")
    sizes = [file.stat().st_size for file in (tmp_path / "ds").glob("*.parquet")]
    assert (report["rows"], report["parts"], report["bytes"]) == (100, 3, sum(sizes))
    assert (report["missing_parts"], report["unlisted_parts"], report["next"]) == (0, 0, [])
    part = tmp_path / "ds" / pds.ParquetDatasetStore(pds.Store(".")).read_manifest("ds").parts[1]
    of_others = part.rename(part.with_name("moved.parquet"))
    report = examine(run, "ds")
    assert (report["missing_parts"], report["unlisted_parts"]) == (1, 1)
    missing = {"command": "pds verify ds", "reason": "1 part is missing"}
    assert report["next"] == [missing]
    of_others.rename(part)
    part.with_name("part-00007.parquet").write_bytes(part.read_bytes())
    follow(run, examine(run, "ds"), "--yes")
    report = examine(run, "ds")
    assert (report["missing_parts"], report["unlisted_parts"], report["next"]) == (0, 0, [])


def test_a_pipeline(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pds.open_pipeline("p")
    pipeline.source("s", key=pa.int64(), value=pa.string())
    pipeline.aggregate("s", aggregates={"n": "count"}, name="counts")
    # An update merges the runs that are not much larger than its own.
    for count in (1000, 40, 1):
        pipeline.update(s=pds.Changes([(number, secrets.token_hex(1000)) for number in range(count)]))
    report = examine(run, "p")
    sizes = [file.stat().st_size for file in (tmp_path / "p" / "run").iterdir()]
    assert (report["version"], report["versions"], report["stages"]) == (3, 3, 2)
    assert report["bytes"] < sum(sizes), "files of older versions do not count"
    assert (report["most_runs"], report["next"]) == (3, [])
    monkeypatch.setattr(health, "_MANY_RUNS", 2)
    report = examine(run, "p")
    assert report["next"] == [
        {"command": "pds optimize p", "reason": "a stage has 3 runs, which each read merges"},
    ]
    follow(run, report)
    after = examine(run, "p")
    assert after["most_runs"] < report["most_runs"]
    assert after["last_compaction"] is not None
    pass_days(monkeypatch, 8)
    assert [advice["command"] for advice in examine(run, "p")["next"]] == ["pds vacuum p"]


def test_a_chain(run: Run) -> None:
    chain = pds.odf.Dataset.create(pds.Store("."), "c")
    for number in range(12):
        chain.ingest(pa.table({"at": pa.array([AT], pa.timestamp("us", "UTC")), "x": [number]}), event_time="at")
    report = examine(run, "c")
    assert (report["rows"], report["slices"], report["blocks"]) == (12, 12, len(chain.log()))
    assert report["next"][0]["reason"].startswith("rewrites blocks: their hashes change")
    follow(run, report)
    report = examine(run, "c")
    assert (report["rows"], report["slices"], report["next"]) == (12, 1, [])


def test_an_empty_table_and_an_empty_chain(run: Run) -> None:
    pds.Table.create(pds.Store("."), "t", rows(0, 1).schema)
    report = examine(run, "t")
    assert (report["rows"], report["files"], report["deleted_share"], report["overlap"]) == (0, 0, 0.0, None)
    pds.odf.Dataset.create(pds.Store("."), "c")
    assert (examine(run, "c")["rows"], examine(run, "c")["slices"]) == (0, 0)

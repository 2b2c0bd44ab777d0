"""Tables that are exported with every commit: readers of Delta and Iceberg see each version."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import logging
import os
import pickle
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from delta_readers import read_delta_rs
from exported_tables import SCHEMA, change_at_random, make_rows, rows_of
from iceberg_readers import metadata_files, read_metadata, read_pyiceberg, snapshots

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ["delta", "iceberg"]


def create(folder: Path, exports: Any = FORMATS, **options: Any) -> pds.Table:
    return pds.Table.create(pds.Store(folder), "t", SCHEMA, key="id", sort_by="id", exports=exports, **options)


def log_versions(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in (folder / "t" / "_delta_log").glob("*.json"))


def rows_at(table: pds.Table, version: int | None = None) -> list[tuple[Any, ...]]:
    return rows_of((table if version is None else table.as_of(version)).scan().to_pyarrow())


@pytest.mark.parametrize("seed", range(3))
def test_every_commit_is_exported(tmp_path: Path, seed: int) -> None:
    table = create(tmp_path)
    rng, ids = random.Random(seed), [0]
    for _ in range(20):
        change_at_random(table, rng, ids)
        # By another process, which knows of the exports from the table alone.
        table = pds.open_table(tmp_path / "t")
    assert log_versions(tmp_path) == list(range(1, table.version + 1))
    assert list(metadata_files(tmp_path / "t")) == log_versions(tmp_path)
    assert rows_of(read_pyiceberg(metadata_files(tmp_path / "t")[table.version])) == rows_at(table)
    if str(table.schema.field("small").type) == "int16":
        assert rows_of(read_delta_rs(tmp_path / "t")) == rows_at(table)


def test_unknown_formats_export_nothing(tmp_path: Path) -> None:
    table = pds.write_table(tmp_path / "t", make_rows(range(10)))
    with pytest.raises(pds.InvalidInput, match="'hudi'"):
        table.alter.exports(["delta", "hudi"])
    assert not (tmp_path / "t" / "_delta_log").exists()
    assert not (tmp_path / "t" / "metadata").exists()


def test_results_can_be_sent(tmp_path: Path) -> None:
    table = create(tmp_path)
    result = table.append(make_rows(range(10)))
    assert pickle.loads(pickle.dumps(result)) == result == copy.deepcopy(result)  # noqa: S301 of this test
    assert dataclasses.asdict(result)["exports"].keys() == {"delta", "iceberg"}
    assert hash(result) == hash(copy.copy(result))


def test_the_location_of_the_first_export_stays(tmp_path: Path) -> None:
    table = pds.write_table(tmp_path / "t", make_rows(range(10)))
    table.export_iceberg("s3://bucket/elsewhere")
    table.alter.exports("iceberg")
    moved = tmp_path / "mount"
    moved.symlink_to(tmp_path)
    result = pds.open_table(moved / "t").append(make_rows(range(10, 20)))
    assert result.exports["iceberg"].metadata_location == "s3://bucket/elsewhere/metadata/v3.metadata.json"
    created = create(tmp_path / "other", "iceberg")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    result = pds.open_table(tmp_path / "link" / "t").append(make_rows(range(3)))
    assert result.exports["iceberg"].version == 2
    assert rows_of(read_pyiceberg(metadata_files(tmp_path / "other" / "t")[2])) == rows_at(created.refresh())


def test_the_result_of_a_commit_says_what_was_exported(tmp_path: Path) -> None:
    table = create(tmp_path)
    result = table.append(make_rows(range(10)))
    assert {name: export.version for name, export in result.exports.items()} == {"delta": 2, "iceberg": 2}
    assert all(export.versions == 1 for export in result.exports.values())
    assert result.exports["iceberg"].metadata_location.endswith("/t/metadata/v2.metadata.json")
    assert table.delete("false").exports == {}
    assert create(tmp_path / "plain", exports=()).append(make_rows(range(3))).exports == {}


def test_commits_of_all_kinds_are_exported(tmp_path: Path) -> None:
    table = create(tmp_path, "delta")
    write = table.begin_write()
    assert write.commit([write.prepare(make_rows(range(10)))]).exports["delta"].version == 2
    commits = [
        table.upsert(make_rows(range(5, 15))),
        table.merge(make_rows(range(14, 16)), on="id").when_not_matched_insert_all().execute(),
        table.tags.create("tag"),
        table.alter.rename_column("name", "title"),
        table.optimize.compact(),
        table.restore(2),
    ]
    exported = [result.exports["delta"].version for result in commits if result is not None]
    assert exported == list(range(3, 3 + len(exported)))
    assert log_versions(tmp_path) == list(range(1, table.version + 1))


def test_formats_are_set_later(tmp_path: Path) -> None:
    table = create(tmp_path, ())
    table.append(make_rows(range(10)))
    table.export_delta(leave_out=["nested"])
    result = table.alter.exports("delta")
    assert (table.exports, result.exports["delta"].version) == (("delta",), 3)
    assert table.history(1)[0]["operation"] == {"name": "set_exports", "exports": ["delta"]}
    table.append(make_rows(range(10, 20)))
    assert "nested" not in read_delta_rs(tmp_path / "t").column_names
    assert table.alter.exports([]).exports == {}
    assert (table.exports, log_versions(tmp_path)) == ((), [2, 3, 4])


@pytest.mark.parametrize(
    ("exports", "named"),
    [("hudi", "hudi"), (["delta", "Iceberg"], "Iceberg"), (["delta"], "time"), (["iceberg"], "time")],
)
def test_a_table_that_cannot_be_exported_is_not_created(tmp_path: Path, exports: Any, named: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("time", pa.time32("s"))])
    with pytest.raises(pds.InvalidInput, match=f"['\"]{named}['\"]"):
        pds.Table.create(pds.Store(tmp_path), "t", schema, exports=exports)
    with pytest.raises(pds.InvalidInput, match=f"['\"]{named}['\"]"):
        pds.write_table(tmp_path / "t", schema.empty_table(), exports=exports)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_formats_that_cannot_be_exported_are_not_set(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("time", pa.time32("s"))])
    table = pds.Table.create(pds.Store(tmp_path), "t", schema)
    for formats, error in (("delta", pds.InvalidInput), ("hudi", pds.InvalidInput), (7, pds.InvalidType)):
        with pytest.raises(error):
            table.alter.exports(formats)
    assert (table.refresh().version, table.exports) == (1, ())


def test_an_export_that_fails_leaves_the_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = create(tmp_path, "delta")
    log = tmp_path / "t" / "_delta_log"
    shutil.move(log, tmp_path / "log")
    log.write_text("a file where the log's folder was")
    with caplog.at_level(logging.WARNING, "pds"):
        result = table.append(make_rows(range(10)))
    assert isinstance(result.exports["delta"], pds.Error)
    assert "not exported to delta" in caplog.text
    assert (result.version, table.scan().count()) == (2, 10)
    log.unlink()
    shutil.move(tmp_path / "log", log)
    # The next commit writes all versions since.
    assert table.append(make_rows(range(10, 20))).exports["delta"].versions == 2
    assert log_versions(tmp_path) == [1, 2, 3]
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_at(table)


def test_a_log_of_another_system_is_reported(tmp_path: Path) -> None:
    table = create(tmp_path, "delta")
    (tmp_path / "t" / "_delta_log" / f"{2:020}.json").write_text('{"commitInfo":{}}\n')
    result = table.append(make_rows(range(10)))
    assert isinstance(result.exports["delta"], pds.errors.ExportConflict)
    assert table.scan().count() == 10


def test_many_writers_export_every_version(tmp_path: Path) -> None:
    create(tmp_path)

    def append(writer: int) -> None:
        table = pds.open_table(tmp_path / "t")
        for at in range(5):
            start = writer * 100 + at * 10
            assert not [
                e
                for e in table.append(make_rows(range(start, start + 10))).exports.values()
                if isinstance(e, pds.Error)
            ]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    table = pds.open_table(tmp_path / "t")
    assert log_versions(tmp_path) == list(range(1, table.version + 1))
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_at(table)
    assert rows_of(read_pyiceberg(metadata_files(tmp_path / "t")[table.version])) == rows_at(table)


def test_tables_by_url(tmp_path: Path) -> None:
    url = tmp_path / "t"
    table = pds.write_table(url, make_rows(range(10)), key="id", sort_by="id", exports=FORMATS)
    assert table.exports == ("delta", "iceberg")
    assert rows_of(read_delta_rs(url)) == rows_at(table)
    table = pds.write_table(url, make_rows(range(10, 20)), mode="append", exports=["iceberg", "delta"])
    assert rows_of(read_delta_rs(url)) == rows_at(table)
    with pytest.raises(pds.InvalidInput, match="exports"):
        pds.write_table(url, make_rows(range(20, 30)), mode="append", exports="delta")
    with pytest.raises(pds.AlreadyExists, match="exports"):
        create(tmp_path, "delta", exists_ok=True)
    assert pds.write_table(url, make_rows(range(20, 30)), mode="append").version == 3


def test_a_vacuum_leaves_exports_that_read(tmp_path: Path) -> None:
    table = create(tmp_path)
    for start in range(0, 50, 10):
        table.append(make_rows(range(start, start + 10)))
    table.delete("id % 2 = 0")
    table.vacuum(dt.timedelta(0))
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_at(table)
    assert rows_of(read_pyiceberg(metadata_files(tmp_path / "t")[table.version])) == rows_at(table)


def test_a_vacuum_that_cannot_export_expires_no_version(tmp_path: Path) -> None:
    """A nightly vacuum that is refused must not take away the versions whose files it leaves."""
    table = create(tmp_path)
    table.append(make_rows(range(20)))
    table.delete("id < 10")
    table.alter.widen("price", pa.decimal256(29, 2))
    before, history = table.version, [entry["version"] for entry in table.history()]
    with pytest.raises(pds.InvalidInput, match="nothing was removed"):
        table.vacuum(dt.timedelta(0))
    table.refresh()
    assert (table.version, [entry["version"] for entry in table.history()]) == (before, history)
    assert rows_at(table, 2) == rows_of(make_rows(range(20)))


def age(folder: Path) -> None:
    """Make all objects two days old."""
    then = time.time() - 2 * 86_400
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def export_objects(folder: Path, pattern: str) -> set[Path]:
    return {path for path in (folder / "t").glob(pattern) if path.is_file()}


def vacuum(table: pds.Table) -> None:
    table.vacuum(dt.timedelta(0))


def make_long_log(tmp_path: Path) -> pds.Table:
    """A table of more than 100 exported versions, the only long-lived file of which has had many deletion vectors."""
    table = create(tmp_path)
    table.append(make_rows(range(20_000)))
    for at in range(110):
        table.delete(f"id % 2 = 0 and id between {at * 100} and {at * 100 + 99}")
    return table


def test_a_vacuum_removes_what_only_expired_versions_had_exported(tmp_path: Path) -> None:
    table = make_long_log(tmp_path)
    kinds = ("_delta_log/*.json", "_dv/*.bin", "metadata/manifests/*")
    before = {kind: export_objects(tmp_path, kind) for kind in kinds}
    # What is young stays.
    vacuum(table)
    assert all(before[kind] <= export_objects(tmp_path, kind) for kind in kinds)
    age(tmp_path / "t")
    vacuum(table)
    after = {kind: export_objects(tmp_path, kind) for kind in kinds}
    checkpoints = sorted(int(path.name.split(".")[0]) for path in export_objects(tmp_path, "_delta_log/*.parquet"))
    assert log_versions(tmp_path) == list(range(checkpoints[0], table.version + 1))
    assert checkpoints[0] > 100
    assert all(len(after[kind]) < len(before[kind]) / 2 for kind in kinds)
    for version in range(table._parse_manifest()["oldest_version"], table.version + 1):
        assert rows_of(read_delta_rs(tmp_path / "t", version)) == rows_at(table, version)
    assert rows_of(read_pyiceberg(metadata_files(tmp_path / "t")[table.version])) == rows_at(table)
    # And exports go on.
    table.delete("id % 3 = 0")
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_at(table)
    assert rows_of(read_pyiceberg(metadata_files(tmp_path / "t")[table.version])) == rows_at(table)


def test_tagged_versions_stay_in_exports(tmp_path: Path) -> None:
    table = make_long_log(tmp_path)
    table.tags.create("mark", 50)
    vacuum(table)
    age(tmp_path / "t")
    vacuum(table)
    assert rows_of(read_delta_rs(tmp_path / "t", 50)) == rows_at(table, 50)
    metadata = metadata_files(tmp_path / "t")[table.version]
    assert rows_of(read_pyiceberg(metadata, snapshot=snapshots(metadata)[50])) == rows_at(table, 50)
    table.tags.delete("mark")
    age(tmp_path / "t")
    vacuum(table)
    assert min(log_versions(tmp_path)) > 100


def test_objects_of_other_systems_stay(tmp_path: Path) -> None:
    table = make_long_log(tmp_path)
    others = ["_delta_log/notes.txt", "_dv/notes.bin", "metadata/manifests/notes.avro"]
    for other in others:
        (tmp_path / "t" / other).write_text("not of this library")
    vacuum(table)
    age(tmp_path / "t")
    vacuum(table)
    assert all((tmp_path / "t" / other).exists() for other in others)
    assert min(log_versions(tmp_path)) > 100


def test_nothing_is_removed_where_it_is_not_known_what_is_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_long_log(tmp_path)
    vacuum(table)
    age(tmp_path / "t")
    before = export_objects(tmp_path, "metadata/manifests/*")
    # The list of the newest snapshot.
    newest = read_metadata(metadata_files(tmp_path / "t")[table.version])["snapshots"][-1]["manifest-list"]
    lost = tmp_path / "t" / "metadata" / "manifests" / newest.rsplit("/", 1)[1]
    content = lost.read_bytes()
    lost.unlink()
    with caplog.at_level(logging.WARNING, "pds"):
        vacuum(table)
    assert before - {lost} <= export_objects(tmp_path, "metadata/manifests/*")
    assert "was not removed" in caplog.text
    lost.write_bytes(content)


@pytest.mark.parametrize("schema_change", [True, False])
def test_names_of_iceberg_manifests_do_not_come_back(tmp_path: Path, schema_change: bool) -> None:
    table = create(tmp_path, "iceberg")
    table.append(make_rows(range(10)))
    seen: set[str] = set()
    for at in range(3):
        if schema_change:
            table.alter.rename_column("name", "title")
            table.alter.rename_column("title", "name")
        else:
            table.tags.create(f"t{at}")
        metadata = read_metadata(metadata_files(tmp_path / "t")[table.version])
        ids = [schema["schema-id"] for schema in metadata["schemas"]]
        assert len(ids) == len(set(ids))
        seen.add(str(metadata["current-schema-id"]))
    assert len(seen) == (3 if schema_change else 1)
    assert rows_of(read_pyiceberg(metadata_files(tmp_path / "t")[table.version])) == rows_at(table)


def test_metadata_of_many_versions_stays_short(tmp_path: Path) -> None:
    table = create(tmp_path, "iceberg")
    table.tags.create("first", 1)
    for at in range(140):
        table.append(make_rows(range(at, at + 1)))
    metadata = metadata_files(tmp_path / "t")
    assert list(metadata) == [1, *range(table.version - 127, table.version + 1)]
    assert set(snapshots(metadata[table.version])) <= set(metadata)
    assert rows_of(read_pyiceberg(metadata[table.version])) == rows_at(table)


def test_a_rebuild_beside_a_vacuum_keeps_what_it_names(tmp_path: Path) -> None:
    table = create(tmp_path, "iceberg")
    table.append(make_rows(range(100)))
    table.delete("id % 3 = 0")
    old = export_objects(tmp_path, "metadata/manifests/*")
    table.export_iceberg(rebuild=True)
    # No name came back, so whatever a vacuum has listed before the rebuild may go.
    for path in old:
        path.unlink()
    assert rows_of(read_pyiceberg(metadata_files(tmp_path / "t")[table.version])) == rows_at(table)


def test_nothing_is_removed_without_metadata(tmp_path: Path) -> None:
    table = create(tmp_path, "iceberg")
    table.append(make_rows(range(100)))
    age(tmp_path / "t")
    before = export_objects(tmp_path, "metadata/manifests/*")
    for path in (tmp_path / "t" / "metadata").glob("v*"):
        path.unlink()
    vacuum(table)
    assert before <= export_objects(tmp_path, "metadata/manifests/*")


def test_a_young_checkpoint_is_no_floor(tmp_path: Path) -> None:
    table = make_long_log(tmp_path)
    checkpoints = sorted(export_objects(tmp_path, "_delta_log/*.parquet"))
    vacuum(table)
    age(tmp_path / "t")
    os.utime(checkpoints[-1])
    vacuum(table)
    assert min(log_versions(tmp_path)) == 1
    # Neither is one of another table.
    age(tmp_path / "t")
    content = checkpoints[-1].read_bytes()
    other = tmp_path / "t" / "_delta_log" / f"{table.version - 1:020}.checkpoint.parquet"
    other.write_bytes(content)
    age(tmp_path / "t")
    vacuum(table)
    assert min(log_versions(tmp_path)) == 1
    assert rows_of(read_delta_rs(tmp_path / "t")) == rows_at(table)


def test_a_tag_that_the_log_lacks_does_not_keep_it(tmp_path: Path) -> None:
    table = create(tmp_path, ())
    table.append(make_rows(range(10)))
    table.tags.create("before", 1)
    table.alter.exports("delta")
    for at in range(110):
        table.append(make_rows(range(at * 10, at * 10 + 10)))
    vacuum(table)
    age(tmp_path / "t")
    vacuum(table)
    assert min(log_versions(tmp_path)) > 100

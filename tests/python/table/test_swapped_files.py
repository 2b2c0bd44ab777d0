"""Data files in the place of others, of the same length and with as many rows: every read of them is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import independent_table as independent
import pds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())])
OPTIONS = pds.WriteOptions(compression="none")
IS_ANOTHER = "another file than the one that was listed"


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "x": [number / 2 for number in ids]}, SCHEMA)


# Of the second pair statistics, and so footers, are equal, too.
PAIRS = [(rows(1, 2, 3, 4), rows(5, 6, 7, 8)), (rows(1, 2, 3, 4), rows(1, 3, 2, 4))]


def make_table(store: pds.Store, pair: tuple[pa.Table, pa.Table]) -> pds.Table:
    """A table of two files of one length: the moment in a seal is shorter, now and then."""
    while True:
        table = pds.Table.create(store, "t", SCHEMA, key="id", options=OPTIONS)
        for part in pair:
            table.append(part)
        if len(set(table.files()["size_bytes"].to_pylist())) == 1:
            return table
        pds.Table.drop(store, "t")


def swap(table: pds.Table, first: str, second: str) -> None:
    """Each file has the bytes of the other one."""
    paths = [f"{table.path}/{path}" for path in (first, second)]
    contents = [table.store.read_bytes(path) for path in paths]
    assert len(contents[0]) == len(contents[1])
    assert contents[0] != contents[1]
    for path, content in zip(paths, reversed(contents), strict=True):
        table.store.write(path, content, overwrite=True)


def run_tasks(table: pds.Table) -> None:
    for task in pickle.loads(pickle.dumps(table.scan_tasks())):  # noqa: S301 as engines do
        task.to_pyarrow()


READS: dict[str, Callable[[pds.Table], Any]] = {
    "scan": lambda table: table.scan().to_pyarrow(),
    "filter": lambda table: table.scan(["id"], where="x >= 0").to_pyarrow(),
    "one row": lambda table: table.scan(limit=1).to_pyarrow(),
    "count": lambda table: table.scan(where="x >= 0").count(),
    "tasks": run_tasks,
    "dataset": lambda table: table.to_pyarrow_dataset().to_table(),
    "polars": lambda table: table.scan_polars().collect(),
    "changes": lambda table: table.scan_changes(since=1).to_pyarrow(),
    "delete": lambda table: table.delete("x = 1"),
    "upsert": lambda table: table.upsert(rows(1, 2)),
    "compact": lambda table: table.optimize.compact(),
    "sort": lambda table: table.optimize.sort("id"),
}


@pytest.mark.parametrize("pair", PAIRS, ids=["other rows", "equal footers"])
@pytest.mark.parametrize("read", READS)
def test_every_read_is_refused(memory_store: pds.Store, read: str, pair: tuple[pa.Table, pa.Table]) -> None:
    table = make_table(memory_store, pair)
    swap(table, *table.files()["path"].to_pylist())
    opened = pds.Table(memory_store, "t")
    with pytest.raises(pds.PartCorrupted, match=IS_ANOTHER):
        READS[read](opened)
    assert opened.refresh().version == table.version, "nothing was committed"
    result = opened.verify()
    assert [path for path, _ in result.problems] == sorted(table.files()["path"].to_pylist())


def test_of_every_store(store: pds.Store) -> None:
    table = make_table(store, PAIRS[0])
    assert table.scan().to_pyarrow()["id"].to_pylist() == list(range(1, 9))
    swap(table, *table.files()["path"].to_pylist())
    with pytest.raises(pds.PartCorrupted, match=IS_ANOTHER):
        table.scan().to_pyarrow()
    swap(table, *table.files()["path"].to_pylist())
    assert table.scan().to_pyarrow()["id"].to_pylist() == list(range(1, 9)), "the same bytes are the same file"


def test_the_bytes_of_another_table(memory_store: pds.Store) -> None:
    table = make_table(memory_store, PAIRS[0])
    place = f"t/{table.files()['path'].to_pylist()[1]}"
    other = pds.Table.create(memory_store, "other", SCHEMA, options=OPTIONS)
    content = b""
    while len(content) != len(memory_store.read_bytes(place)):
        other.overwrite(rows(5, 6, 7, 8))
        (path,) = other.files()["path"].to_pylist()
        content = memory_store.read_bytes(f"other/{path}")
    memory_store.write(place, content, overwrite=True)
    with pytest.raises(pds.PartCorrupted, match=IS_ANOTHER):
        table.scan().to_pyarrow()


def test_of_files_in_segments(local_store: pds.Store) -> None:
    table = pds.Table.create(local_store, "t", SCHEMA, options=OPTIONS)
    for number in range(100):
        table.append(rows(*range(4 * number, 4 * number + 4)))
    manifest = table._parse_manifest()
    assert manifest["segments"]
    assert table.scan().to_pyarrow()["id"].to_pylist() == list(range(400))
    inline = {file["path"] for file in manifest["data_files"]}
    by_size: dict[int, list[str]] = {}
    for file in table.files().slice(1, 20).to_pylist():
        if file["path"] not in inline:
            by_size.setdefault(file["size_bytes"], []).append(file["path"])
    alike = max(by_size.values(), key=len)
    swap(table, *alike[:2])
    with pytest.raises(pds.PartCorrupted, match=IS_ANOTHER):
        pds.Table(local_store, "t").scan().to_pyarrow()
    assert pds.Table(local_store, "t").scan(where="id < 4 OR id >= 84").count() == 320


def test_of_files_of_other_writers(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", SCHEMA)
    for name, part in zip("ab", PAIRS[0], strict=True):
        pq.write_table(part, tmp_path / f"{name}.parquet", compression="none")
        table.add_files(f"{name}.parquet")
    assert table.scan().count() == 8
    swap(table, *table.files()["path"].to_pylist())
    with pytest.raises(pds.PartCorrupted, match=IS_ANOTHER):
        table.scan().to_pyarrow()


def test_what_lists_no_checksums_is_read_as_before(tmp_path: Path) -> None:
    """Versions before this one list none, and keep none when they commit."""
    store = pds.Store(tmp_path.as_uri())
    table = make_table(store, PAIRS[0])
    root = tmp_path / "t"
    snapshot = independent.newest(root)
    assert all(file["checksum"] for file in snapshot.files())
    assert independent.check(root) == []
    path = root / independent.manifest_path(table.version)
    manifest = json.loads(path.read_bytes())
    for file in manifest["data_files"]:
        del file["checksum"]
    path.write_text(json.dumps(manifest))
    copied = tmp_path / "copied"
    shutil.copytree(root, copied)
    older = pds.Table(pds.Store(tmp_path.as_uri()), "copied", options=OPTIONS)
    assert older.scan().to_pyarrow()["id"].to_pylist() == list(range(1, 9))
    sizes = older.files()["size_bytes"].to_pylist()
    while sizes[-1] != sizes[0] or len(sizes) == 2:
        older.append(rows(9, 10, 11, 12))
        sizes = older.files()["size_bytes"].to_pylist()
    listed = [file.get("checksum") for file in independent.newest(copied).files()]
    assert [checksum is None for checksum in listed] == [True, True] + [False] * (len(sizes) - 2)
    paths = older.files()["path"].to_pylist()
    swap(older, paths[0], paths[-1])
    with pytest.raises(pds.PartCorrupted, match=IS_ANOTHER):
        older.scan().to_pyarrow()


@pytest.mark.parametrize("checksum", ["", "0123", "0123456789ABCDEF", "+123456789abcdef", 5])
def test_a_checksum_that_is_none(tmp_path: Path, checksum: object) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = make_table(store, PAIRS[0])
    path = tmp_path / "t" / independent.manifest_path(table.version)
    manifest = json.loads(path.read_bytes())
    manifest["data_files"][0]["checksum"] = checksum
    path.write_text(json.dumps(manifest))
    with pytest.raises(pds.ManifestCorrupted):
        pds.Table(pds.Store(tmp_path.as_uri()), "t")

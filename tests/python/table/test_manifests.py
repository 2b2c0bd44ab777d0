"""What a commit writes: as much as changed, however wide the table is and however many files it has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import independent_table as independent
import pds

if TYPE_CHECKING:
    from pathlib import Path

# Of everything that a commit puts beside data files and tombstones.
MAX_COMMIT_BYTES = 100_000


def _metadata(store: pds.Store) -> dict[str, int]:
    """The size of each object of a table that is no data and no tombstone."""
    return {info.path: info.size for info in store.list_files("t/manifest", recursive=True)}


class _Commits:
    """A table, and how much each commit on it wrote."""

    def __init__(self, table: pds.Table) -> None:
        self.table, self.known = table, _metadata(table.store)
        self.largest = 0

    def count(self) -> None:
        """Look at what is new since."""
        now = _metadata(self.table.store)
        self.largest = max(self.largest, sum(size for path, size in now.items() if path not in self.known))
        self.known = now


def _manifest(table: pds.Table) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(table.store.read_bytes(f"t/manifest/v{table.version:08}.json"))
    return found


WIDE = pa.schema([pa.field(f"a_rather_long_name_of_column_{n}", pa.int64()) for n in range(500)])


def test_commits_on_a_wide_table_are_small() -> None:
    key, sort = WIDE.names[400], WIDE.names[499]
    table = pds.Table.create(pds.Store("memory://"), "t", WIDE, key=key, sort_by=sort)
    commits = _Commits(table)
    for n in range(120):
        table.append(pa.table({name: [n * 1_000_000_007, n * 1_000_000_007 + 5] for name in WIDE.names}, WIDE))
        commits.count()
    assert commits.largest < MAX_COMMIT_BYTES
    manifest = _manifest(table)
    assert manifest["segments"]
    kept = {*range(1, 33), 401, 500}
    assert {int(i) for file in manifest["data_files"] for i in file["min"]} == kept
    assert {int(i) for segment in manifest["segments"] for i in segment["max"]} == {*range(1, 9), 401, 500}
    # Files are left out by these columns, by others only row groups.
    for name in (WIDE.names[0], WIDE.names[31], key, sort):
        plan = table.scan(where=f"{name} = 7000000049").explain()
        assert (plan.files, plan.files_read) == (120, 1), plan
    for name in (WIDE.names[32], WIDE.names[31]):
        assert table.scan([key], where=f"{name} = 7000000049").to_pyarrow()[key].to_pylist() == [7000000049]


def test_files_are_listed_by_the_bytes_of_their_entries(local_store: pds.Store, tmp_path: Path) -> None:
    """Long values make few entries; files of one commit are more than a manifest lists."""
    table = pds.Table.create(local_store, "t", pa.schema([("text", pa.string()), ("n", pa.int64())]))
    commits = _Commits(table)
    for n in range(150):
        table.append(pa.table({"text": [f"{n:0120}", f"{n:0120}z"], "n": [n, n]}))
        commits.count()
    assert commits.largest < MAX_COMMIT_BYTES
    manifest = _manifest(table)
    assert sum(len(json.dumps(file)) for file in manifest["data_files"]) < 45_000
    options = pds.WriteOptions(max_rows_per_file=1)
    many = pds.Table(local_store, "t", options=options)
    many.append(pa.table({"text": ["x"] * 400, "n": range(400)}))
    root = next(tmp_path.rglob("_latest_manifest")).parent
    assert independent.check(root) == []
    assert many.scan().to_pyarrow()["n"].to_pylist() == [n for n in range(150) for _ in (0, 1)] + [*range(400)]
    assert len(many.files()) == 550


def test_lists_are_merged_by_their_bytes() -> None:
    """However many files a list may have, a commit that merges some writes little; neighbours stay few."""
    store = pds.Store("memory://")
    options = pds.WriteOptions(max_rows_per_file=1)
    pds.Table.create(store, "t", pa.schema([("id", pa.int64())]), key="id")
    table = pds.Table(store, "t", options=options)
    commits = _Commits(table)
    for n in range(60):
        table.append(pa.table({"id": range(n * 260, n * 260 + 260)}))
        commits.count()
    assert commits.largest < MAX_COMMIT_BYTES
    assert len(_manifest(table)["segments"]) < 20
    table.delete("id >= 20 AND id < 15580")
    # What is left of many lists is merged into one.
    for n in range(8):
        table.append(pa.table({"id": range(n * 260 + 20000, n * 260 + 20260)}))
    assert len(_manifest(table)["segments"]) < 10
    assert sorted(table.scan().to_pyarrow()["id"].to_pylist()) == [
        *range(20),
        *range(15580, 15600),
        *range(20000, 22080),
    ]


@pytest.mark.parametrize("columns", [1, 3, 200])
def test_a_schema_is_read_however_it_is_written(columns: int) -> None:
    """A short one as it is, a long one compressed."""
    schema = pa.schema([pa.field(f"c{n}", pa.int8(), metadata={"n": str(n)}) for n in range(columns)], {"k": "v"})
    table = pds.Table.create(pds.Store("memory://"), "t", schema)
    assert pds.Table(table.store, "t").schema.equals(schema, check_metadata=True)
    assert independent.arrow_schema(_manifest(table)).equals(schema, check_metadata=True)

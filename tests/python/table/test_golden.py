"""A table of format 2, as pds wrote it when that format was finished: whatever comes later has to read it.

`python tests/python/table/test_golden.py` writes it anew, which is right only as long as the format is not released.
"""

from __future__ import annotations

import datetime as dt
import io
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import independent_table as independent
import pds
from table.test_format import check_golden, record_golden

GOLDEN = Path(__file__).parents[2] / "golden" / "table-v2"
NOW = dt.timedelta(0)
# Their bounds make a list of files long enough for a segment.
TEXTS = [f"text{number}" for number in range(14)]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("ratio", pa.float64()),
        ("point", pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])),
        *((name, pa.string()) for name in TEXTS),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    """Rows with all columns."""
    numbers = range(first, first + count)
    columns = {
        "id": numbers,
        "region": [["eu", "us", None][number % 3] for number in numbers],
        "ratio": [number / 7 for number in numbers],
        "point": [None if number % 4 == 0 else {"x": number, "tags": ["a"] * (number % 3)} for number in numbers],
    } | {name: [f"{name} {number:05} {'x' * 40}" for number in numbers] for name in TEXTS}
    return pa.table(columns, schema=SCHEMA)


def write_golden(folder: Path) -> None:
    """What format 2 has beyond format 1."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store = pds.Store(folder.as_uri())
    table = pds.Table.create(store, "table", SCHEMA, key="id")
    for number in range(140):
        table.overwrite(rows(number, 1), idempotency_key=f"load {number}")
    table.vacuum(NOW)
    table.vacuum(NOW)
    many = pds.Table(store, "table", options=pds.WriteOptions(max_rows_per_file=4))
    many.overwrite(rows(0, 72))
    many.delete("id >= 70 AND id <= 70")  # of a file that the manifest lists
    many.tags.create("all texts")
    many.append(rows(100, 24))
    many.delete("id % 5 = 1")  # of files in segments
    many.delete("id >= 2 AND id <= 9")
    many.alter.rename_column("ratio", "share")
    many.alter.add_column("ratio", pa.int16())
    many.alter.drop_column("text5")
    many.alter.add_column("text5", pa.string())
    many.alter.widen("ratio", pa.int32())
    many.vacuum(NOW)
    sink = io.BytesIO()
    points = pa.array([None, {"x": 1, "tags": []}], SCHEMA.field("point").type)
    pq.write_table(pa.table({"id": [1000, 1001], "point": points}), sink)
    paths = ["in/region=%C3%A9%20u/share=0.1/ratio=-5/a.parquet", "in/ratio=__HIVE_DEFAULT_PARTITION__/b.parquet"]
    for path in paths:
        store.write(path, sink.getvalue())
    many.add_files(paths, hive_partitioning=True)
    many.append(rows(2000, 20).select(["id", "region", *TEXTS[:5]]))
    many.upsert(pa.table({"id": [1000, 2010]}))
    many.optimize.compact(where="id < 40")
    shutil.rmtree(folder / "in")
    record_golden(folder, many)


@pytest.fixture
def golden(local_store: pds.Store, tmp_path: Path) -> Path:
    """A copy of the table, as `table` in the local store."""
    root = tmp_path / "store/table"
    shutil.copytree(GOLDEN / "table", root)
    return root


def test_the_golden_table_is_read(local_store: pds.Store, golden: Path) -> None:
    table = pds.Table(local_store, "table")
    check_golden(GOLDEN, table, golden)
    replay = table.append(rows(0, 1), idempotency_key="load 3")
    assert replay.replayed
    assert replay.version == 5


def test_the_golden_table_has_all_of_the_format(golden: Path) -> None:
    snapshot = independent.newest(golden)
    manifest = snapshot.manifest
    assert manifest["format"] == 2
    assert manifest["older_transactions"]
    assert manifest["transactions"]
    assert any(segment.get("removed") for segment in manifest["segments"])
    assert any(entry.get("positions") for entry in manifest["tombstones"])
    assert any(entry["files"] for entry in manifest["tombstones"])
    assert any(file.get("constants") for file in snapshot.files())
    assert manifest["schema"]["retired"]
    columns = manifest["schema"]["columns"]
    assert all(any(name in column for column in columns) for name in ("stored", "ids", "widened"))


if __name__ == "__main__":
    write_golden(GOLDEN)

"""Maps whose keys are sorted: what Parquet does not say of them, the Arrow schema does.

The engine knows the flag; it is lost on the way to Python, as arrow-rs does not pass it on for a field.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

SORTED = pa.map_(pa.string(), pa.int64(), keys_sorted=True)
UNSORTED = pa.map_(pa.string(), pa.int64())
ROWS = [[("a", 1), ("b", None)], None, [], [("c", 3)]]
TEXTS = pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.string()), keys_sorted=True)
COLUMNS = {
    "map": pa.array(ROWS, SORTED),
    "list": pa.array([ROWS, None, [], [None]], pa.list_(SORTED)),
    "large_list": pa.array([ROWS, None, [], [None]], pa.large_list(SORTED)),
    "fixed_size_list": pa.array([ROWS[:2], None, ROWS[2:], [None, None]], pa.list_(SORTED, 2)),
    "struct": pa.array([{"m": row} for row in ROWS], pa.struct([("m", SORTED), ("n", UNSORTED)])),
    "map-of-map": pa.array([[("x", ROWS[0])], None, [("y", None)], []], pa.map_(pa.string(), SORTED, keys_sorted=True)),
    "sorted-in-unsorted": pa.array([[("x", ROWS[0])], None, [("y", [])], []], pa.map_(pa.string(), SORTED)),
    "of-dictionaries": pa.array([[("a", "x"), ("b", "y")], None, [], [("c", "x")]], TEXTS),
}


def unflagged(rows: pa.Table) -> str:
    return str(rows.schema).replace(", keys_sorted", "")


@pytest.mark.parametrize("name", COLUMNS)
def test_datasets_keep_the_flag(memory_store: pds.Store, name: str) -> None:
    rows = pa.table({"id": range(4), "c": COLUMNS[name]})
    datasets = pds.ParquetDatasetStore(memory_store)
    datasets.write_dataset(rows, "ds")
    stored = pq.read_schema(io.BytesIO(memory_store.read_bytes("ds/data.parquet")))
    assert "keys_sorted" in str(stored.field("c").type)
    result = datasets.read_dataset("ds")
    result.validate(full=True)
    assert str(result.schema) == unflagged(rows)
    assert result.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("name", COLUMNS)
def test_tables_keep_the_flag(memory_store: pds.Store, name: str) -> None:
    rows = pa.table({"id": range(4), "c": COLUMNS[name]})
    table = pds.Table.create(memory_store, "t", rows.schema, key="id")
    table.append(rows)
    table.upsert(rows.slice(1, 2))
    table.optimize.compact()
    result = table.scan().to_pyarrow().sort_by("id")
    result.validate(full=True)
    assert str(result.schema) == unflagged(rows)
    assert result.to_pylist() == rows.to_pylist()
    assert table.scan(where="id = 3").to_pyarrow()["c"].to_pylist() == rows["c"].to_pylist()[3:]
    assert table.check().ok
    assert table.verify().ok


def test_sorted_maps_are_maps_and_not_the_other_way_round(memory_store: pds.Store) -> None:
    by_flag = {kind.keys_sorted: pa.table({"c": pa.array(ROWS, kind)}) for kind in (SORTED, UNSORTED)}
    plain = pds.Table.create(memory_store, "plain", by_flag[False].schema)
    plain.append(by_flag[True])
    assert plain.scan().to_pyarrow().equals(by_flag[False])
    ordered = pds.Table.create(memory_store, "ordered", by_flag[True].schema)
    with pytest.raises(pds.InvalidInput, match=r'["\']c["\']'):
        ordered.append(by_flag[False])
    assert ordered.refresh().version == 1

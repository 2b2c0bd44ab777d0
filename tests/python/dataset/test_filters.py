"""Filters of `scan_dataset`: DuckDB judges SQL, pyarrow judges expressions; and what is fetched."""

from __future__ import annotations

import math
import subprocess
import sys
import uuid

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds
from table.test_filters import FILES, PREDICATES, _judged, _rows

WHOLE = pa.concat_tables([_rows(number) for number in range(FILES)])
NUMBERED = WHOLE.append_column("row", pa.array(range(WHOLE.num_rows)))
EXPRESSIONS = [
    pc.field("id") == 5,
    pc.field("id").isin([1, 299, 300, 10**9, None]),
    ~pc.field("id").isin([*range(400), None]),
    (pc.field("x") > 0.9) | pc.field("x").is_null(),
    ~(pc.field("x") < 0.5),
    pc.field("x") != pc.scalar(math.nan),
    pc.is_nan(pc.field("x")),
    pc.field("empty").is_null() & (pc.field("id") < 4),
    pc.field("name").isin(["a1", "c2"]) & (pc.field("Unit Price") > 20),
    pc.field("flag"),
    pc.scalar(None).cast(pa.bool_()) | (pc.field("id") == 7),
]


@pytest.fixture(params=["ours", "foreign"])
def ds(memory_store: pds.Store, request: pytest.FixtureRequest) -> pds.ParquetDatasetStore:
    """Several parts of several row groups, written by pds or by pyarrow."""
    ds = pds.ParquetDatasetStore(memory_store, max_rows_per_file=400, row_group_size=70)
    ds.write_dataset(NUMBERED, "a")
    if request.param == "foreign":
        for number, name in enumerate(ds.read_manifest("a").parts):
            sink = pa.BufferOutputStream()
            pq.write_table(NUMBERED.slice(400 * number, 400), sink, row_group_size=70)
            memory_store.write(f"a/{name}", sink.getvalue().to_pybytes(), overwrite=True)
    return ds


@pytest.mark.parametrize("predicate", PREDICATES)
def test_sql_finds_what_duckdb_finds(ds: pds.ParquetDatasetStore, predicate: str) -> None:
    found = ds.scan_dataset("a", where=predicate).read_all()
    assert found["row"].to_pylist() == _judged(WHOLE, predicate)
    assert found.schema.equals(NUMBERED.schema)
    rows = ds.scan_dataset("a", columns=["row"], where=predicate).read_all()
    assert rows.equals(found.select(["row"]))


@pytest.mark.parametrize("where", EXPRESSIONS, ids=str)
def test_expressions_find_what_pyarrow_finds(ds: pds.ParquetDatasetStore, where: pc.Expression) -> None:
    expected = NUMBERED.filter(where)
    assert ds.scan_dataset("a", columns=["row"], where=where).read_all().equals(expected.select(["row"]))
    assert ds.scan_dataset("a", columns=[], where=where).read_all().num_rows == expected.num_rows


def test_only_row_groups_with_matches_are_fetched(memory_store: pds.Store) -> None:
    count = 40_000
    table = pa.table({"n": range(count), "text": [f"{n * 7919 % count:060}" for n in range(count)]})
    ds = pds.ParquetDatasetStore(memory_store, max_rows_per_file=10_000, row_group_size=2_500, compression="none")
    ds.write_dataset(table, "a")
    memory_store.reset_metrics()
    list(ds.scan_dataset("a", where="n < 0"))
    opened = memory_store.metrics()
    far = ",".join(str(10**6 + n) for n in range(1000))
    for where in ("n = 12345", pc.field("n") == 12345, f"n IN ({far}, 12345)"):
        memory_store.reset_metrics()
        assert ds.scan_dataset("a", where=where).read_all()["n"].to_pylist() == [12345]
        used = memory_store.metrics()
        # Beyond the footers, one row group of sixteen.
        assert used["requests"] - opened["requests"] <= 2, where
        assert used["bytes_read"] - opened["bytes_read"] < 1.2 * 2_500 * 70, where


def test_a_filter_beside_fields_of_structs(memory_store: pds.Store) -> None:
    rows = [{"s": None if n % 5 == 0 else {"x": n, "y": str(n)}, "n": n} for n in range(300)]
    table = pa.Table.from_pylist(rows)
    ds = pds.ParquetDatasetStore(memory_store, row_group_size=50)
    ds.write_dataset(table, "a")
    found = ds.scan_dataset("a", columns=["s.y", "n", "s.y"], where="get_field(s, 'x') > 120 AND n < 140").read_all()
    assert found.column_names == ["y", "n", "y"]
    expected = [row["n"] for row in rows if row["s"] and 120 < row["n"] < 140]
    assert found.column(1).to_pylist() == expected
    assert found.column(0).to_pylist() == found.column(2).to_pylist() == [str(n) for n in expected]


@pytest.mark.parametrize("where", ["nmae = 1", "n", "n +", "n = 1 AND", "1 / (n - 1) > 0"])
def test_filters_that_cannot_be_used(memory_store: pds.Store, where: str) -> None:
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(pa.table({"n": [1, 2]}), "a")
    with pytest.raises(pds.InvalidInput):
        ds.scan_dataset("a", where=where).read_all()
    with pytest.raises(pds.InvalidType, match="SQL"):
        ds.scan_dataset("a", where=1)


NULL_DICTIONARIES = """
import sys
import pyarrow as pa, pyarrow.compute as pc
import pds

nulls = pa.DictionaryArray.from_arrays(pa.array([None, None, None], pa.int8()), pa.nulls(0))
rows = pa.table({"n": [1, 2, 3], "d": nulls})
d, n = pc.field("d"), pc.field("n")
store = pds.Store("memory://")
datasets = pds.ParquetDatasetStore(store)
datasets.write_dataset(rows, "a")
table = pds.Table.create(store, "t", rows.schema)
table.append(rows)
for where, ids in (
    (d.is_null(), [1, 2, 3]),
    (d.is_valid(), []),
    (d.is_null() & (n > 1), [2, 3]),
    (d.is_valid() | (n < 2), [1]),
    (pc.coalesce(d, d).is_null(), [1, 2, 3]),
    (d == "a", []),
    (n == 2, [2]),
):
    assert datasets.scan_dataset("a", where=where).read_all()["n"].to_pylist() == ids, where
    assert table.scan(where=where).to_pyarrow()["n"].to_pylist() == ids, where
    assert table.to_pyarrow_dataset().to_table(filter=where)["n"].to_pylist() == ids, where
"""


def test_expressions_on_dictionaries_of_nulls() -> None:
    """In a process of its own: pruning by them crashes pyarrow."""
    done = subprocess.run([sys.executable, "-c", NULL_DICTIONARIES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _nested_extensions() -> dict[str, pa.Array]:
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=n).bytes for n in range(3)], pa.binary(16)))
    names = pa.array(["a", "b", "c"])
    return {
        "list": pa.ListArray.from_arrays([0, 1, 2, 3], ids),
        "struct": pa.StructArray.from_arrays([ids], ["id"]),
        "map": pa.MapArray.from_arrays([0, 1, 2, 3], names, ids),
        "structs": pa.ListArray.from_arrays([0, 1, 2, 3], pa.StructArray.from_arrays([ids], ["id"])),
        "dictionaries": pa.ListArray.from_arrays([0, 1, 2, 3], names.dictionary_encode()),
    }


@pytest.mark.parametrize("name", ["list", "struct", "map", "structs", "dictionaries"])
def test_filters_beside_extension_types_within_others(memory_store: pds.Store, name: str) -> None:
    rows = pa.table({"n": [1, 2, 3], "x": _nested_extensions()[name]})
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(rows, "a")
    table = pds.Table.create(memory_store, "t", rows.schema)
    table.append(rows)
    for where, ids in ((pc.field("n") > 1, [2, 3]), (pc.field("x").is_null(), []), ("n > 1", [2, 3])):
        assert ds.scan_dataset("a", where=where).read_all()["n"].to_pylist() == ids
        assert table.scan(where=where).to_pyarrow()["n"].to_pylist() == ids

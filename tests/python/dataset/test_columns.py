"""`columns`: names, fields of structs by dots and repeated names, as `pyarrow.parquet.read_table` takes them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

POINT = pa.struct([("x", pa.int64()), ("y", pa.string()), ("in", pa.struct([("z", pa.float64()), ("w", pa.bool_())]))])
POINTS = [
    {"x": 1, "y": "p", "in": {"z": 0.5, "w": True}},
    None,
    {"x": None, "y": "q", "in": None},
    {"x": 4, "y": None, "in": {"z": None, "w": False}},
]
TABLE = pa.table(
    {
        "a": pa.array([1, 2, 3, 4], pa.int32()),
        "s": pa.array(POINTS, POINT),
        "l": pa.array([[{"u": 1}], [], None, [{"u": None}]]),
        "d": pa.array(["k", None, "k", "m"]).dictionary_encode(),
        "dotted.name": [10, 20, 30, 40],
    }
)
COLUMNS: list[list[str]] = [
    ["s.x"],
    ["s.in.z"],
    ["s.in"],
    ["s.y", "a"],
    ["s.in.w", "a", "s.x", "s.in.z"],
    ["a", "a"],
    ["s", "s.x"],
    ["s.x", "s.x"],
    ["dotted.name", "d"],
    ["l", "s.in"],
    [],
]


def _peer(columns: list[str]) -> pa.Table:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, store_schema=True)
    return pq.read_table(sink, columns=columns)


@pytest.mark.parametrize("columns", COLUMNS, ids=",".join)
def test_columns_are_those_of_pyarrow(memory_store: pds.Store, columns: list[str]) -> None:
    ds = pds.ParquetDatasetStore(memory_store, row_group_size=3)
    ds.write_dataset(TABLE, "a")
    expected = _peer(columns)
    manifest = ds.read_manifest("a")
    for found in (
        ds.read_dataset("a", columns=columns),
        ds.scan_dataset("a", columns=columns).read_all(),
        ds.read_part("a", manifest, 0, columns).read_all(),
    ):
        assert found.schema.names == expected.schema.names
        assert found.schema.types == expected.schema.types
        assert found.num_rows == TABLE.num_rows
        assert [column.to_pylist() for column in found.columns] == [column.to_pylist() for column in expected.columns]


@pytest.mark.parametrize("name", ["s.nope", "nope", "l.u", "a.x", "s.", ".s", "s.in.z.q"])
def test_what_there_is_not_is_named(memory_store: pds.Store, name: str) -> None:
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(TABLE, "a")
    for read in (ds.read_dataset, ds.scan_dataset):
        with pytest.raises(pds.errors.InvalidInput, match=r"dotted\.name"):
            read("a", columns=["a", name])


def _wide(store: pds.Store) -> pds.ParquetDatasetStore:
    ds = pds.ParquetDatasetStore(store, compression="none")
    noise = np.random.default_rng(1).integers(0, 2**62, 100_000)
    columns: dict[str, Any] = {f"c{i}": noise + i for i in range(10)}
    columns["s"] = pa.StructArray.from_arrays([pa.array(noise), pa.array(noise + 1)], ["x", "y"])
    ds.write_dataset(pa.table(columns), "a")
    return ds


@pytest.mark.defaults
def test_only_the_fields_asked_for_are_fetched(memory_store: pds.Store) -> None:
    ds = _wide(memory_store)
    memory_store.reset_metrics()
    found = ds.read_dataset("a", columns=["s.y"])
    assert found.num_rows == 100_000
    assert memory_store.metrics()["bytes_read"] < 1_200_000


@pytest.mark.defaults
def test_a_filter_fetches_its_own_columns_and_those_asked_for(memory_store: pds.Store) -> None:
    ds = _wide(memory_store)
    whole = ds.read_dataset("a")
    where = (pc.field("c3") > 1 << 61) & (pc.field("c7") < 1 << 61 | 1 << 60)
    expected = whole.filter(where).select(["c1"])
    memory_store.reset_metrics()
    found = ds.scan_dataset("a", columns=["c1"], where=where).read_all()
    assert found.equals(expected)
    assert 0 < found.num_rows < whole.num_rows
    # Three columns of twelve, and the footer.
    whole_bytes = memory_store.get_file_info("a/data.parquet").size
    assert memory_store.metrics()["bytes_read"] < 0.3 * whole_bytes


def test_columns_of_one_name(tmp_path: Path) -> None:
    """Pyarrow writes and reads such files, and other writers of datasets are free to."""
    table = pa.table([pa.array([1, 2]), pa.array([3, 4]), pa.array(["x", "y"])], names=["a", "a", "b"])
    folder = tmp_path / "d"
    folder.mkdir()
    pq.write_table(table, folder / "data.parquet")
    manifest = {"dataset_key": "d", "parts": ["data.parquet"], "row_count": 2, "schema_hash": "0" * 16}
    manifest |= {"compression": "zstd", "created_at_utc": "2026-01-01T00:00:00+00:00"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "_SUCCESS").touch()
    datasets = pds.ParquetDatasetStore(pds.Store(tmp_path))
    assert datasets.read_dataset("d").equals(table)
    assert datasets.scan_dataset("d").read_all().equals(table)
    assert datasets.read_dataset("d", columns=["b"]).equals(table.select([2]))
    for read in (datasets.read_dataset, datasets.scan_dataset):
        with pytest.raises(pds.InvalidInput, match='several columns are named "a"'):
            read("d", columns=["b", "a"])
    with pytest.raises(pds.InvalidInput):
        datasets.scan_dataset("d", where="a = 1").read_all()

"""Seals: another reader finds every checksum right, both versions are read, and damage of what is read is noticed.

Run as a program it writes the file of tests/golden/seals for the newest version anew. That is only for a new version:
the files that are there have to be read for ever.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from independent_seal import check_file
from independent_xxh3 import xxh3_64

GOLDEN = Path(__file__).parent.parent / "golden" / "seals"
VERSIONS = (1, 2)
ROWS = 20_000


def _golden_rows() -> pa.Table:
    numbers = np.arange(ROWS)
    return pa.table(
        {
            "id": pa.array(numbers * 3, pa.int64()),
            "city": [f"city {n // 500 % 7}" for n in numbers],
            "value": pa.array([None if n % 5 == 0 else n / 3 for n in numbers], pa.float64()),
            "list": pa.array([[int(n)] * (n % 3) for n in numbers], pa.list_(pa.int32())),
        }
    )


def _table(rows: pa.Table, data: bytes | None = None, **options: Any) -> tuple[pds.Store, pds.Table]:
    """A table of one file, which pds writes or which is given."""
    store = pds.Store("memory://")
    table = pds.Table.create(store, "t", rows.schema, key="id", **options)
    if data is None:
        table.append(rows)
    else:
        store.write("t/given.parquet", data)
        table.add_files("t/given.parquet")
    return store, table


def _file(table: pds.Table) -> str:
    (path,) = table.files()["path"].to_pylist()
    return f"{table.path}/{path}"


def test_the_other_readers_hash_is_xxh3() -> None:
    known = {b"": 0x2D06800538D394C2, b"a": 0xE6C632B61E964E1F, b"abc": 0x78AF5F94892F3950}
    assert {data: xxh3_64(data) for data in known} == known


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_file_of_each_version_is_read(version: int) -> None:
    data = (GOLDEN / f"v{version}.parquet").read_bytes()
    seal = check_file(data)
    assert seal.version == version
    assert bool(seal.pages) == (version == 2)
    rows = _golden_rows()
    _, table = _table(rows, data)
    assert table.scan().to_pyarrow().equals(rows)
    for position in (0, 8_191, 8_192, ROWS - 1):
        assert table.scan(where=f"id = {position * 3}").to_pyarrow().equals(rows.slice(position, 1))
    assert pq.read_table(io.BytesIO(data)).equals(rows)


def test_page_checksums_are_of_the_chunks_with_several_pages(store: pds.Store) -> None:
    rows = _golden_rows().append_column("text", pa.array([f"{n:0300}" for n in range(ROWS)]))
    table = pds.Table.create(store, "t", rows.schema, key="id")
    table.append(rows)
    seal = check_file(store.read_bytes(_file(table)))
    assert seal.version == 2
    assert set(seal.pages) == {(0, leaf) for leaf in range(5)}


def test_a_wide_file_of_few_rows_has_no_page_checksums(store: pds.Store) -> None:
    wide = pa.table({f"c{i}": [1, 2, 3] for i in range(1000)})
    table = pds.Table.create(store, "t", wide.schema)
    table.append(wide)
    seal = check_file(store.read_bytes(_file(table)))
    assert (seal.version, seal.pages) == (2, {})
    # The hashes of the chunks and some hundred bytes.
    assert seal.length < 8 * 1000 + 300


def test_row_groups_and_empty_files(store: pds.Store) -> None:
    datasets = pds.ParquetDatasetStore(store, row_group_size=9_000)
    datasets.write_dataset(_golden_rows(), "several")
    seal = check_file(store.read_bytes("several/data.parquet"))
    assert sorted(seal.pages) == [(group, leaf) for group in (0, 1) for leaf in range(4)]
    datasets.write_dataset(_golden_rows().slice(0, 0), "empty")
    assert check_file(store.read_bytes("empty/data.parquet")).chunks == []


if __name__ == "__main__":
    _store = pds.Store("memory://")
    pds.ParquetDatasetStore(_store).write_dataset(_golden_rows(), "d")
    _data = _store.read_bytes("d/data.parquet")
    (GOLDEN / f"v{check_file(_data).version}.parquet").write_bytes(_data)

"""Seals: another reader finds every checksum right, both versions are read, and damage of what is read is noticed.

Run as a program it writes the file of tests/golden/seals for the newest version anew. That is only for a new version:
the files that are there have to be read for ever.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from independent_seal import check_file, data_pages
from independent_xxh3 import xxh3_64

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parents[2] / "golden" / "seals"
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


# -- damage -----------------------------------------------------------------------


def _plain_rows() -> pa.Table:
    """Columns whose pages have one length, and one with a dictionary."""
    numbers = np.arange(40_000, dtype="int64")
    cities = [f"city {n % 40:04}" + "x" * 200 for n in range(40_000)]
    return pa.table({"id": numbers, "other": numbers[::-1], "city": cities})


# Row groups of a few rows have one page a column: who uses the file is for the defaults.
@pytest.fixture(scope="module")
def plain_file() -> bytes:
    rows = _plain_rows()
    store = pds.Store("memory://")
    datasets = pds.ParquetDatasetStore(store, compression="none")
    datasets.write_dataset(rows, "d")
    data = store.read_bytes("d/data.parquet")
    assert set(check_file(data).pages) == {(0, 0), (0, 1), (0, 2)}
    return data


def _read_key(data: bytes, key: int, **scan: Any) -> pa.Table:
    _, table = _table(_plain_rows(), data)
    return table.scan(where=f"id = {key}", **scan).to_pyarrow()


def _swapped(data: bytes, left: tuple[int, int], right: tuple[int, int]) -> bytes:
    (at, size), (other, other_size) = sorted([left, right])
    assert size == other_size
    middle = data[at + size : other]
    return data[:at] + data[other : other + size] + middle + data[at : at + size] + data[other + size :]


@pytest.mark.defaults
def test_a_page_in_the_place_of_another_is_noticed(plain_file: bytes) -> None:
    pages = data_pages(plain_file)
    key = 2 * 8_192 + 5
    assert _read_key(plain_file, key).num_rows == 1
    for left, right in [((0, 1, 2), (0, 1, 3)), ((0, 0, 2), (0, 0, 1)), ((0, 0, 2), (0, 1, 2))]:
        swapped = _swapped(plain_file, pages[left], pages[right])
        assert swapped != plain_file
        with pytest.raises(pds.DatasetIncomplete, match="checksum of page"):
            _read_key(swapped, key)


@pytest.mark.defaults
def test_a_changed_dictionary_page_is_noticed(plain_file: bytes) -> None:
    chunk = pq.read_metadata(io.BytesIO(plain_file)).row_group(0).column(2)
    at = chunk.dictionary_page_offset + 600
    damaged = plain_file[:at] + b"?" + plain_file[at + 1 :]
    assert damaged != plain_file
    with pytest.raises(pds.DatasetIncomplete, match=r"checksum of page 0 of column .*city"):
        _read_key(damaged, 3)
    assert _read_key(damaged, 3, columns=["other"]).num_rows == 1


def _regions(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Where what a key needs lies: its pages, all indexes, the page checksums, the seal and the footer."""
    pages = data_pages(data)
    yield from ((f"page of column {leaf}", *pages[0, leaf, 1]) for leaf in range(3))
    (footer_length,) = struct.unpack_from("<I", data, len(data) - 8)
    end = max(at + size for at, size in pages.values())
    yield "indexes to footer", end, len(data) - 8 - footer_length - end
    yield "footer", len(data) - 8 - footer_length, footer_length + 8


@pytest.mark.defaults
def test_every_changed_byte_of_what_a_key_needs_is_noticed_or_not_read(plain_file: bytes) -> None:
    expected = _plain_rows().slice(9_000, 1)
    for region, at, size in _regions(plain_file):
        noticed = 0
        step = max(1, size // 25)
        for position in range(at, at + size, step):
            damaged = bytearray(plain_file)
            damaged[position] ^= 0x15
            try:
                rows = _read_key(bytes(damaged), 9_000)
            except pds.RemoteStoreError:
                noticed += 1
            else:
                assert rows.equals(expected), (region, position)
        assert noticed > 0, region
        if region.startswith("page"):
            assert noticed == len(range(at, at + size, step)), region


@pytest.mark.defaults
def test_a_whole_read_notices_what_it_did_before(plain_file: bytes) -> None:
    (at, size) = data_pages(plain_file)[0, 1, 4]
    damaged = bytearray(plain_file)
    damaged[at + size // 2] ^= 1
    _, table = _table(_plain_rows(), bytes(damaged))
    with pytest.raises(pds.DatasetIncomplete, match="checksum of column"):
        table.scan().to_pyarrow()
    # Its page is not read.
    assert table.scan(where="id = 9000").count() == 1


if __name__ == "__main__":
    _store = pds.Store("memory://")
    pds.ParquetDatasetStore(_store).write_dataset(_golden_rows(), "d")
    _data = _store.read_bytes("d/data.parquet")
    (GOLDEN / f"v{check_file(_data).version}.parquet").write_bytes(_data)

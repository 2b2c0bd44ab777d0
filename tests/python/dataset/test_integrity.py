"""Damage is noticed on every read of the damaged bytes, and never becomes wrong data."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "a"
SMALL = pa.table(
    {
        "id": pa.array(range(40), pa.int32()),
        "name": [f"name {index % 7}" for index in range(40)],
        "noise": [random.Random(index).random() for index in range(40)],
    }
)


def _datasets(store: pds.Store, **options: Any) -> pds.ParquetDatasetStore:
    return pds.ParquetDatasetStore(store, **{"compression": "none", **options})


@pytest.fixture
def ds(memory_store: pds.Store) -> pds.ParquetDatasetStore:
    """A dataset of three parts with two row groups each."""
    ds = _datasets(memory_store, max_rows_per_file=16, row_group_size=8)
    ds.write_dataset(SMALL, KEY)
    return ds


def _part(number: int) -> str:
    return f"{KEY}/part-{number:05}.parquet"


def _put(ds: pds.ParquetDatasetStore, path: str, content: bytes) -> None:
    ds.store.write(path, content, overwrite=True)


READS: Any = {
    "read": lambda ds: ds.read_dataset(KEY),
    "scan": lambda ds: ds.scan_dataset(KEY).read_all(),
    "id": lambda ds: ds.read_dataset(KEY, columns=["id"]),
    "name": lambda ds: ds.read_dataset(KEY, columns=["name"]),
    "noise": lambda ds: ds.scan_dataset(KEY, columns=["noise"]).read_all(),
}


def _outcome(read: Callable[[], pa.Table], expected: pa.Table) -> bool:
    """Whether damage was noticed; data that is wrong fails the test."""
    try:
        table = read()
    except pds.DatasetIncomplete:
        return True
    assert table.equals(expected), "damaged data was handed over"
    return False


def _sampled(size: int, count: int) -> Iterator[int]:
    """Every byte of the ends, and some in between."""
    edge = min(96, size // 2)
    yield from range(edge)
    yield from range(size - edge, size)
    yield from sorted(random.Random(size).sample(range(edge, size - edge), count))


def _chunk_bytes(content: bytes) -> dict[str, set[int]]:
    """Which bytes belong to the chunks of which column, by pyarrow's reading of the footer."""
    metadata = pq.ParquetFile(pa.BufferReader(content)).metadata
    owned: dict[str, set[int]] = {}
    for group, index in itertools.product(range(metadata.num_row_groups), range(metadata.num_columns)):
        chunk = metadata.row_group(group).column(index)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        end = start + chunk.total_compressed_size
        owned.setdefault(chunk.path_in_schema, set()).update(range(start, end))
    return owned


def test_every_flipped_bit_of_a_chunk_is_noticed(ds: pds.ParquetDatasetStore) -> None:
    content = ds.store.read_bytes(_part(1))
    owned = _chunk_bytes(content)
    for column, positions in owned.items():
        for position in sorted(positions):
            damaged = bytearray(content)
            damaged[position] ^= 1 << (position % 8)
            _put(ds, _part(1), bytes(damaged))
            with pytest.raises(pds.PartCorrupted):
                ds.read_dataset(KEY, columns=[column])
    _put(ds, _part(1), content)
    assert ds.read_dataset(KEY).equals(SMALL)


@pytest.mark.parametrize("name", READS)
def test_no_flipped_byte_becomes_wrong_data(ds: pds.ParquetDatasetStore, name: str) -> None:
    content = ds.store.read_bytes(_part(2))
    expected = READS[name](ds)
    for position in _sampled(len(content), 400):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        _put(ds, _part(2), bytes(damaged))
        _outcome(lambda: READS[name](ds), expected)


def test_verify_notices_every_flipped_byte(ds: pds.ParquetDatasetStore) -> None:
    content = ds.store.read_bytes(_part(0))
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        _put(ds, _part(0), bytes(damaged))
        with pytest.raises(pds.DatasetIncomplete):
            ds.verify_dataset(KEY)


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "brotli", "lz4", "none"])
def test_damage_below_a_codec(memory_store: pds.Store, codec: str) -> None:
    ds = _datasets(memory_store, compression=codec)
    ds.write_dataset(SMALL, KEY)
    content = memory_store.read_bytes(f"{KEY}/data.parquet")
    for position in sorted(_chunk_bytes(content)["name"])[::5]:
        damaged = bytearray(content)
        damaged[position] ^= 2
        _put(ds, f"{KEY}/data.parquet", bytes(damaged))
        with pytest.raises(pds.PartCorrupted):
            ds.read_dataset(KEY, columns=["name"])


def test_damage_elsewhere_does_not_hinder_a_partial_read(ds: pds.ParquetDatasetStore) -> None:
    content = bytearray(ds.store.read_bytes(_part(1)))
    owned = _chunk_bytes(bytes(content))
    content[min(owned["noise"]) + 3] ^= 1
    _put(ds, _part(1), bytes(content))
    assert ds.read_dataset(KEY, columns=["id", "name"]).equals(SMALL.select(["id", "name"]))
    with pytest.raises(pds.PartCorrupted):
        ds.read_dataset(KEY)


@pytest.mark.parametrize("name", READS)
def test_every_truncation_is_noticed(ds: pds.ParquetDatasetStore, name: str) -> None:
    content = ds.store.read_bytes(_part(1))
    for size in [*range(0, len(content), 61), len(content) - 1]:
        _put(ds, _part(1), content[:size])
        with pytest.raises(pds.DatasetIncomplete, match=r"part-00001\.parquet"):
            READS[name](ds)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("extra", [b"\0", b"x" * 100, None], ids=["byte", "bytes", "itself"])
def test_bytes_behind_it_are_noticed(ds: pds.ParquetDatasetStore, name: str, extra: bytes | None) -> None:
    content = ds.store.read_bytes(_part(1))
    expected = READS[name](ds)
    _put(ds, _part(1), content + (content if extra is None else extra))
    noticed = _outcome(lambda: READS[name](ds), expected)
    # A file twice in a row is the file with its footer further away: nothing it gives is wrong.
    assert noticed or extra is None


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (0, 2), (2, 1)], ids=str)
def test_a_repeated_part_is_noticed(ds: pds.ParquetDatasetStore, name: str, pair: tuple[int, int]) -> None:
    _put(ds, _part(pair[0]), ds.store.read_bytes(_part(pair[1])))
    with pytest.raises(pds.PartCorrupted):
        READS[name](ds)


@pytest.mark.parametrize("name", READS)
def test_swapped_parts_are_noticed(ds: pds.ParquetDatasetStore, name: str) -> None:
    first, second = ds.store.read_bytes(_part(0)), ds.store.read_bytes(_part(1))
    _put(ds, _part(0), second)
    _put(ds, _part(1), first)
    with pytest.raises(pds.PartCorrupted):
        READS[name](ds)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("same", [True, False], ids=["same rows", "other rows"])
def test_a_part_of_an_older_version_is_noticed(ds: pds.ParquetDatasetStore, name: str, *, same: bool) -> None:
    old = ds.store.read_bytes(_part(1))
    ds.write_dataset(SMALL if same else SMALL.take(list(range(39, -1, -1))), KEY, overwrite=True)
    _put(ds, _part(1), old)
    with pytest.raises(pds.PartCorrupted):
        READS[name](ds)


@pytest.mark.parametrize("name", READS)
def test_a_part_of_another_dataset_is_noticed(ds: pds.ParquetDatasetStore, name: str) -> None:
    ds.write_dataset(SMALL, "b")
    _put(ds, _part(1), ds.store.read_bytes("b/part-00001.parquet"))
    with pytest.raises(pds.PartCorrupted):
        READS[name](ds)


@pytest.mark.parametrize("name", READS)
def test_a_part_made_by_others_between_ours_is_noticed(ds: pds.ParquetDatasetStore, name: str) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(SMALL.slice(16, 16), sink)
    _put(ds, _part(1), sink.getvalue().to_pybytes())
    with pytest.raises(pds.PartCorrupted):
        READS[name](ds)


def _rewrite_manifest(ds: pds.ParquetDatasetStore, **changes: Any) -> None:
    manifest = dataclasses.replace(ds.read_manifest(KEY), **changes)
    _put(ds, f"{KEY}/manifest.json", manifest.to_json().encode())


def test_a_part_left_out_of_the_manifest_is_noticed(ds: pds.ParquetDatasetStore) -> None:
    for parts, rows in [([0, 1], 32), ([1, 2], 24), ([0, 2], 24)]:
        _rewrite_manifest(ds, parts=[f"part-{n:05}.parquet" for n in parts], row_count=rows)
        with pytest.raises(pds.PartCorrupted):
            ds.read_dataset(KEY)


def test_parts_in_another_order_are_noticed(ds: pds.ParquetDatasetStore) -> None:
    _rewrite_manifest(ds, parts=[f"part-{n:05}.parquet" for n in (1, 0, 2)])
    with pytest.raises(pds.PartCorrupted):
        ds.read_dataset(KEY)


@pytest.mark.parametrize("same", [True, False], ids=["same rows", "other rows"])
def test_the_only_part_of_an_older_version_is_noticed(memory_store: pds.Store, *, same: bool) -> None:
    ds = _datasets(memory_store)
    ds.write_dataset(SMALL, KEY)
    old = memory_store.read_bytes(f"{KEY}/data.parquet")
    ds.write_dataset(SMALL if same else SMALL.take(list(range(39, -1, -1))), KEY, overwrite=True)
    _put(ds, f"{KEY}/data.parquet", old)
    with pytest.raises(pds.PartCorrupted):
        ds.read_dataset(KEY, columns=["id"])


NO_PARQUET = {
    "empty": b"",
    "one byte": b"P",
    "text": b"id,name\n1,a\n" * 20,
    "magic only": b"PAR1PAR1",
    "huge footer": b"PAR1" + b"\0" * 50 + b"\xff\xff\xff\x7fPAR1",
    "negative footer": b"PAR1" + b"\0" * 50 + b"\xff\xff\xff\xffPAR1",
    "encrypted": b"PARE" + b"\0" * 50 + b"\x10\0\0\0PARE",
    "zeros": b"\0" * 4096,
}


@pytest.mark.parametrize("content", NO_PARQUET.values(), ids=NO_PARQUET)
@pytest.mark.parametrize("name", READS)
def test_what_is_not_parquet(ds: pds.ParquetDatasetStore, name: str, content: bytes) -> None:
    _put(ds, _part(0), content)
    with pytest.raises(pds.PartCorrupted, match=r"part-00000\.parquet"):
        READS[name](ds)


def test_a_foreign_part_that_is_damaged_stays_in_the_error_model(
    memory_store: pds.Store,
) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(SMALL, sink, compression="none")
    content = sink.getvalue().to_pybytes()
    ds = _datasets(memory_store)
    ds.write_dataset(SMALL, KEY)
    for position in _sampled(len(content), 600):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        _put(ds, f"{KEY}/data.parquet", bytes(damaged))
        # Without checksums wrong values cannot be told; a panic or a foreign error must not be.
        try:
            ds.read_dataset(KEY)
        except pds.RemoteStoreError:
            continue


def test_damage_is_named(ds: pds.ParquetDatasetStore) -> None:
    content = bytearray(ds.store.read_bytes(_part(1)))
    content[min(_chunk_bytes(bytes(content))["name"]) + 2] ^= 1
    _put(ds, _part(1), bytes(content))
    with pytest.raises(pds.PartCorrupted) as caught:
        ds.read_dataset(KEY)
    assert isinstance(caught.value, pds.DatasetIncomplete)
    assert caught.value.path is not None
    assert "part-00001.parquet" in str(caught.value)
    assert "name" in str(caught.value)


def test_checksums_are_hidden_from_others(local_store: pds.Store) -> None:
    ds = _datasets(local_store)
    ds.write_dataset(SMALL, KEY)
    file = pq.ParquetFile(local_store.url.removeprefix("file://") + f"/{KEY}/data.parquet")
    assert file.schema_arrow.equals(SMALL.schema, check_metadata=True)
    assert set(file.metadata.metadata) == {b"ARROW:schema"}
    assert sorted(info.name for info in local_store.list_files(KEY)) == [
        "_SUCCESS",
        "data.parquet",
        "manifest.json",
    ]

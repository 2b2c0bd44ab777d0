"""Whatever the writer takes, every reader returns: keys, runs and offsets that are too few for a row group."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = {"int8": 128, "uint8": 256, "int16": 32768, "uint16": 65536}


def _dictionary(key: str, values: list[Any], data_type: pa.DataType) -> pa.DictionaryArray:
    codes = pa.array(range(len(values)), pa.type_for_alias(key))
    return pa.DictionaryArray.from_arrays(codes, pa.array(values, data_type))


def _all_reads(ds: pds.ParquetDatasetStore) -> Iterator[pa.Table]:
    yield ds.read_dataset("a")
    yield ds.scan_dataset("a").read_all()
    yield ds.read_part("a", ds.read_manifest("a"), 0).read_all()
    ds.verify_dataset("a")


def _check(store: pds.Store, table: pa.Table, **options: Any) -> None:
    ds = pds.ParquetDatasetStore(store, **options)
    ds.write_dataset(table, "a", overwrite=True)
    for found in _all_reads(ds):
        assert found.schema.equals(table.schema)
        assert found.to_pydict() == table.to_pydict()


@pytest.mark.parametrize("key", ["int8", "uint8"])
@pytest.mark.parametrize(
    "data_type", [pa.string(), pa.large_string(), pa.binary(), pa.int64(), pa.decimal128(9, 2)], ids=str
)
def test_chunks_whose_dictionaries_together_outgrow_their_keys(
    memory_store: pds.Store, key: str, data_type: pa.DataType
) -> None:
    count = KEYS[key]
    chunks = []
    for chunk in range(3):
        numbers = [chunk * count + i for i in range(count)]
        of_text = pa.types.is_integer(data_type) or pa.types.is_decimal(data_type)
        values = numbers if of_text else [f"v{n}" for n in numbers]
        chunks.append(_dictionary(key, values, data_type))
    other = pa.array(range(3 * count))
    table = pa.table({"c": pa.chunked_array(chunks), "n": other})
    _check(memory_store, table)
    _check(memory_store, table, row_group_size=100)


@pytest.mark.defaults
@pytest.mark.parametrize("key", KEYS)
def test_a_dictionary_that_uses_all_keys(memory_store: pds.Store, key: str) -> None:
    values = [f"v{n}" for n in range(KEYS[key])]
    table = pa.table({"c": _dictionary(key, values, pa.string())})
    _check(memory_store, table)
    assert pds.ParquetDatasetStore(memory_store).read_dataset("a")["c"].num_chunks == 1


def test_a_stream_whose_batches_have_their_own_dictionaries(memory_store: pds.Store) -> None:
    batches = [
        pa.record_batch({"c": _dictionary("int8", [f"{batch}-{n}" for n in range(100)], pa.string())})
        for batch in range(50)
    ]
    stream = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(stream, "a")
    expected = pa.Table.from_batches(batches).to_pydict()
    for found in _all_reads(ds):
        assert found.to_pydict() == expected


def test_nested_dictionaries_that_outgrow_their_keys(memory_store: pds.Store) -> None:
    chunks = [_dictionary("int8", [f"{c}{n}" for n in range(100)], pa.string()) for c in "abc"]
    lists = [pa.ListArray.from_arrays(pa.array(range(0, 101, 4), pa.int32()), chunk) for chunk in chunks]
    structs = [pa.StructArray.from_arrays([chunk], ["d"])[:25] for chunk in chunks]
    table = pa.table({"l": pa.chunked_array(lists), "s": pa.chunked_array(structs)})
    _check(memory_store, table)


@pytest.mark.defaults
def test_runs_that_are_longer_than_their_type_counts(memory_store: pds.Store) -> None:
    data_type = pa.run_end_encoded(pa.int16(), pa.int64())
    one = pa.RunEndEncodedArray.from_arrays(pa.array([30_000], pa.int16()), pa.array([7]))
    table = pa.table({"r": pa.chunked_array([one] * 5, data_type)})
    _check(memory_store, table)


def test_foreign_files_with_small_keys(memory_store: pds.Store) -> None:
    chunks = [_dictionary("int8", [f"{c}{n}" for n in range(100)], pa.string()) for c in "ab"]
    table = pa.table({"c": pa.chunked_array(chunks)})
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(table, "a")
    sink = io.BytesIO()
    pq.write_table(table, sink)
    memory_store.write("a/data.parquet", sink.getvalue(), overwrite=True)
    for found in _all_reads(ds):
        assert found.to_pydict() == table.to_pydict()


def test_tables_read_them_too(memory_store: pds.Store) -> None:
    chunks = [_dictionary("int8", [f"{c}{n}" for n in range(100)], pa.string()) for c in "ab"]
    data = pa.table({"c": pa.chunked_array(chunks)})
    table = pds.Table.create(memory_store, "t", data.schema)
    table.append(data)
    found = table.scan().to_reader().read_all()
    assert found["c"].to_pylist() == data["c"].to_pylist()


def _equal_values(size: int, rows: int) -> pa.Array[Any]:
    return pa.array([b"x" * size], pa.binary()).take(pa.array([0] * rows, pa.int32()))


@pytest.mark.slow
def test_more_than_two_gigabytes_of_bytes_in_a_row_group(memory_store: pds.Store) -> None:
    chunk = _equal_values(300_000, 4000)
    table = pa.table({"b": pa.chunked_array([chunk, chunk])})
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(table, "a")
    del table, chunk
    for lengths in (
        [len(value) for batch in ds.scan_dataset("a") for value in batch.column(0).to_pylist()],
        [len(value.as_py()) for value in ds.read_dataset("a")["b"]],
    ):
        assert lengths == [300_000] * 8000
    assert ds.verify_dataset("a").rows == 8000


@pytest.mark.slow
def test_more_than_two_gigabytes_in_a_batch_of_a_stream(memory_store: pds.Store) -> None:
    batch = pa.record_batch({"s": _equal_values(40_000, 10_000).cast(pa.string()), "n": range(10_000)})
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(pa.RecordBatchReader.from_batches(batch.schema, iter([batch] * 7)), "a")
    rows = 0
    for found in ds.scan_dataset("a"):
        assert found.nbytes < 256 << 20
        rows += found.num_rows
    assert rows == 70_000
    assert ds.read_part("a", ds.read_manifest("a"), 0, ["n"]).read_all().num_rows == 70_000


@pytest.mark.slow
def test_a_foreign_file_without_size_statistics(memory_store: pds.Store) -> None:
    """Only the decoder finds out that the values are too many for one array."""
    text = pa.array(["y" * 300_000], pa.large_string()).take(pa.array([0] * 8000, pa.int32()))
    sink = io.BytesIO()
    pq.write_table(pa.table({"s": text}), sink, write_statistics=False, store_schema=False)
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(pa.table({"s": ["y"]}), "a")
    manifest = memory_store.read_bytes("a/manifest.json").replace(b'"row_count": 1', b'"row_count": 8000')
    memory_store.write("a/manifest.json", manifest, overwrite=True)
    memory_store.write("a/data.parquet", sink.getvalue(), overwrite=True)
    rows = sum(found.num_rows for found in ds.scan_dataset("a"))
    assert rows == 8000

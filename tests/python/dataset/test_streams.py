"""Data in and out as streams: any producer, bounded memory, no copy at the border."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import arro3.core
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = pa.table({"n": list(range(100)), "s": [f"s{n}" for n in range(100)]})
MIB = 1 << 20


@pytest.fixture
def ds(memory_store: pds.Store) -> pds.ParquetDatasetStore:
    return pds.ParquetDatasetStore(memory_store)


class OnlyAStream:
    """An object that has nothing but the protocol's method."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.calls = 0

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        self.calls += 1
        return self.table.__arrow_c_stream__(requested_schema)


PRODUCERS: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow table": lambda table: table,
    "pyarrow reader": lambda table: table.to_reader(max_chunksize=7),
    "pyarrow batch": lambda table: table.combine_chunks().to_batches()[0],
    "polars": pl.from_arrow,
    "pandas": lambda table: table.to_pandas(),
    "duckdb": duckdb.from_arrow,
    "arro3 table": arro3.core.Table.from_arrow,
    "arro3 reader": arro3.core.RecordBatchReader.from_arrow,
    "protocol": OnlyAStream,
}


@pytest.mark.parametrize("name", PRODUCERS)
def test_any_producer(ds: pds.ParquetDatasetStore, name: str) -> None:
    expected = pa.RecordBatchReader.from_stream(PRODUCERS[name](ROWS)).read_all()
    manifest = ds.write_dataset(PRODUCERS[name](ROWS), "a")
    result = ds.read_dataset("a")
    assert manifest.row_count == 100
    # pandas itself writes in its metadata how many rows the frame has.
    assert result.schema.equals(expected.schema, check_metadata=name != "pandas")
    assert result.to_pydict() == ROWS.to_pydict()


def test_the_stream_is_asked_for_once(ds: pds.ParquetDatasetStore) -> None:
    source = OnlyAStream(ROWS)
    ds.write_dataset(source, "a")
    assert source.calls == 1


def test_a_refused_write_does_not_consume(ds: pds.ParquetDatasetStore) -> None:
    ds.write_dataset(ROWS, "a")
    reader = ROWS.to_reader()
    for call in (
        lambda: ds.write_dataset(reader, "a"),
        lambda: ds.write_dataset(reader, "b", metadata={"k": 1}),
    ):
        with pytest.raises(pds.RemoteStoreError):
            call()
    assert reader.read_all().equals(ROWS)


def test_batches_of_all_sizes(ds: pds.ParquetDatasetStore) -> None:
    batches = _with_empty(ROWS, [0, 1, 0, 5, 44, 50, 0])
    stream = pa.RecordBatchReader.from_batches(ROWS.schema, batches)
    small = pds.ParquetDatasetStore(ds.store, max_rows_per_file=9, row_group_size=4)
    assert len(small.write_dataset(stream, "a").parts) == 12
    assert small.read_dataset("a").equals(ROWS)


def _with_empty(table: pa.Table, sizes: list[int]) -> Iterator[pa.RecordBatch]:
    batch = table.combine_chunks().to_batches()[0]
    start = 0
    for size in sizes:
        yield batch.slice(start, size)
        start += size


def test_an_empty_stream_keeps_the_schema(ds: pds.ParquetDatasetStore) -> None:
    stream = pa.RecordBatchReader.from_batches(ROWS.schema, iter([]))
    assert ds.write_dataset(stream, "a").row_count == 0
    assert ds.read_dataset("a").equals(ROWS.slice(0, 0))


@pytest.mark.parametrize("after", [0, 1, 30])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_producer_that_raises(store: pds.Store, after: int, *, overwrite: bool) -> None:
    ds = pds.ParquetDatasetStore(store, max_rows_per_file=7)
    if overwrite:
        ds.write_dataset(ROWS, "a")
    before = sorted(info.path for info in store.list_files("", recursive=True))

    def batches() -> Iterator[pa.RecordBatch]:
        yield from _with_empty(ROWS, [1] * after)
        msg = "the source broke"
        raise RuntimeError(msg)

    stream = pa.RecordBatchReader.from_batches(ROWS.schema, batches())
    with pytest.raises(Exception, match="the source broke"):
        ds.write_dataset(stream, "a", overwrite=overwrite)

    assert sorted(info.path for info in store.list_files("", recursive=True)) == before
    assert ds.dataset_exists("a") is overwrite
    ds.write_dataset(ROWS.slice(3), "a", overwrite=True)
    assert ds.read_dataset("a").equals(ROWS.slice(3))


def test_scan_streams_in_order(store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(store, max_rows_per_file=30, row_group_size=8)
    ds.write_dataset(ROWS, "a")
    reader = ds.scan_dataset("a", columns=["s", "n"])
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.names == ["s", "n"]
    batches = list(reader)
    assert len(batches) > 1
    assert pa.Table.from_batches(batches).equals(ROWS.select(["s", "n"]))


@pytest.mark.parametrize(
    "where",
    [
        pc.field("n") < 10,
        (pc.field("n") > 95) | (pc.field("s") == "s3"),
        pc.field("n").isin([1, 50, 99]) & ~(pc.field("n") == 50),
        pc.field("s").is_null(),
        pc.scalar(True),
        pc.scalar(False),
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [None, ["s"], ["n"], []])
def test_scan_filters_as_pyarrow_does(
    ds: pds.ParquetDatasetStore, where: pc.Expression, columns: list[str] | None
) -> None:
    pds.ParquetDatasetStore(ds.store, row_group_size=8).write_dataset(ROWS, "a")
    expected = ROWS.filter(where)
    result = ds.scan_dataset("a", columns=columns, where=where).read_all()
    assert result.equals(expected if columns is None else expected.select(columns))


def test_a_filter_on_an_unknown_column(ds: pds.ParquetDatasetStore) -> None:
    ds.write_dataset(ROWS, "a")
    with pytest.raises(pds.InvalidInput, match="nmae"):
        ds.scan_dataset("a", where=pc.field("nmae") == 1).read_all()


def test_a_scan_can_be_left(s3_store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(s3_store, max_rows_per_file=10)
    ds.write_dataset(ROWS, "a")
    for _ in range(5):
        reader = ds.scan_dataset("a")
        next(reader)
        del reader
    reader = ds.scan_dataset("a")
    reader.close()
    assert ds.read_dataset("a").equals(ROWS)


def test_from_one_dataset_into_another(ds: pds.ParquetDatasetStore) -> None:
    ds.write_dataset(ROWS, "a")
    ds.write_dataset(ds.scan_dataset("a"), "b")
    ds.write_dataset(ds.scan_dataset("a", where=pc.field("n") < 5), "a", overwrite=True)
    assert ds.read_dataset("b").equals(ROWS)
    assert ds.read_dataset("a").equals(ROWS.slice(0, 5))


@pytest.mark.defaults
def test_what_is_read_belongs_to_nobody_else(ds: pds.ParquetDatasetStore) -> None:
    big = pa.table({"n": pa.array(range(500_000))})
    ds.write_dataset(big, "a")
    held = pa.total_allocated_bytes()
    result = ds.read_dataset("a")
    # The buffers are the engine's own: pyarrow allocated nothing to take them over.
    assert pa.total_allocated_bytes() - held < 100_000
    del ds
    assert result.equals(big)


@pytest.mark.defaults
def test_what_is_written_is_not_copied(ds: pds.ParquetDatasetStore) -> None:
    big = pa.table({"n": pa.array(range(500_000))})
    held = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    peak = pool.max_memory()
    ds.write_dataset(big, "a")
    assert pa.total_allocated_bytes() == held
    assert pool.max_memory() == peak


# Writes a stream, reads it as one, and prints how far the process grew in each, in bytes.
MEASURED = """
import json, sys
import numpy as np, pyarrow as pa, pds
url, total, limit, what = json.loads(sys.argv[1])
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
rows = 1 << 17
noise = np.random.default_rng(1).integers(0, 2**62, rows)
batch = pa.record_batch({"a": noise, "b": noise[::-1].copy()})
def batches():
    for _ in range(total // batch.nbytes):
        yield batch
ds = pds.ParquetDatasetStore(pds.Store(url), memory_limit=limit, row_group_size=1 << 18)
warm = pa.RecordBatchReader.from_batches(batch.schema, iter([batch]))
ds.write_dataset(warm, "warm", overwrite=True)
if what == "table":
    source = pa.Table.from_batches([pa.record_batch({"a": np.tile(noise, total // batch.nbytes)})])
else:
    source = pa.RecordBatchReader.from_batches(batch.schema, batches())
before = peak()
if what == "read":
    seen = sum(b.num_rows for b in ds.scan_dataset("a"))
else:
    seen = ds.write_dataset(source, "a", overwrite=True).row_count
print(json.dumps([seen, peak() - before]))
"""


def _measured(url: str, total: int, limit: int, what: str) -> tuple[int, int]:
    argument = json.dumps([url, total, limit, what])
    done = subprocess.run([sys.executable, "-c", MEASURED, argument], check=True, capture_output=True, text=True)
    rows, grown = json.loads(done.stdout)
    return rows, grown


@pytest.mark.slow
def test_a_long_stream_in_bounded_memory(tmp_path: Path) -> None:
    url, total, limit = (tmp_path / "store").as_uri(), 640 * MIB, 128 * MIB
    rows, grown = _measured(url, total, limit, "write")
    assert rows == total // 16
    assert grown < limit + 44 * MIB
    rows, grown = _measured(url, total, limit, "read")
    assert rows == total // 16
    assert grown < limit + 44 * MIB


@pytest.mark.slow
def test_a_large_table_is_not_copied(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    rows, grown = _measured(url, 512 * MIB, 64 * MIB, "table")
    assert rows == 256 * MIB // 8
    assert grown < 110 * MIB


def test_a_slow_store_slows_the_producer() -> None:
    batch = pa.record_batch({"n": pa.array(range(1 << 17))})
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for _ in range(2000):
            taken += batch.nbytes
            yield batch

    with ScriptedS3() as server, ThreadPoolExecutor(1) as pool:
        store = pds.Store("s3://bucket", storage_options=server.options() | {"max_retries": "0"})
        ds = pds.ParquetDatasetStore(store, compression="none", memory_limit=64 * MIB, row_group_size=1 << 18)
        server.restart(dict.fromkeys(range(3, 500), "hold"))
        stream = pa.RecordBatchReader.from_batches(batch.schema, batches())
        write = pool.submit(ds.write_dataset, stream, "a")
        assert server.held.wait(30)
        before, stopped = -1, taken
        while before != stopped and stopped < 128 * MIB:
            time.sleep(1)
            before, stopped = stopped, taken
        server.released.set()
        with pytest.raises(pds.BackendUnavailable):
            write.result()

    assert stopped < 128 * MIB

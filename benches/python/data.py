"""The data sets of the comparison, made once and kept in the cache as Arrow files.

Everything is seeded. The files are uncompressed, so that loading one costs no more than reading it,
and nothing of it falls into the measured time.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from servers.process import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH_ROWS = 131_072
STREAM_BATCH_ROWS = 65_536
STREAM_BATCHES = 320


@dataclasses.dataclass(frozen=True)
class DataSet:
    """One table: what it is, how it is made, which columns a partial read takes."""

    title: str
    version: int
    make: Callable[[Path], Iterator[pa.RecordBatch]]
    few_columns: tuple[str, ...]


def folder() -> Path:
    """Where the benchmarks keep data and raw results, outside the clone."""
    path = cache_dir() / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _lineitem(scratch: Path) -> Iterator[pa.RecordBatch]:
    tool = Path(sys.executable).with_name("tpchgen-cli")
    flags = ["parquet", "-s", "1", "--tables", "lineitem", "--output-dir", str(scratch)]
    subprocess.run([tool, *flags], check=True, stdout=subprocess.DEVNULL)
    file = pq.ParquetFile(scratch / "lineitem.parquet")
    # Plain types and no field metadata: what a table has that comes from anywhere else.
    schema = pa.schema([pa.field(f.name, _plain(f.type), f.nullable) for f in file.schema_arrow])
    for batch in file.iter_batches(BATCH_ROWS):
        columns = [a.cast(t) for a, t in zip(batch.columns, schema.types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(kind) else kind


def _wide(_: Path) -> Iterator[pa.RecordBatch]:
    """200 columns: 80 integers of several widths and spreads, 70 floats, 50 repeating strings."""
    rng = np.random.default_rng(200)
    words = [pa.array([f"{i:02d}-value-{j}" for j in range(4 + 7 * i)]) for i in range(50)]
    for _ in range(4):
        rows = 125_000
        columns = {}
        for i in range(80):
            kind = (np.int16, np.int32, np.int64, np.int64)[i % 4]
            high = min(10 ** (1 + i % 12), np.iinfo(kind).max)
            columns[f"i{i:03d}"] = pa.array(rng.integers(0, high, rows).astype(kind))
        for i in range(70):
            value = rng.normal(100.0, 10.0, rows)
            rounded = np.round(value, 2) if i % 2 else value
            columns[f"f{i:03d}"] = pa.array(rounded.astype(np.float32 if i % 5 == 0 else float))
        for i in range(50):
            picks = pa.array(rng.integers(0, len(words[i]), rows))
            columns[f"s{i:03d}"] = words[i].take(picks)
        yield pa.record_batch(columns)


def _text_pool(rng: np.random.Generator, size: int) -> bytes:
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", dtype=np.uint8)
    odds = 1 / np.arange(2, 28)
    lengths = rng.integers(2, 11, 20_000)
    words = [rng.choice(letters, n, p=odds / odds.sum()).tobytes() for n in lengths]
    ranks = rng.zipf(1.3, size // 6) % len(words)
    return b" ".join(words[i] for i in ranks)


def _text(_: Path) -> Iterator[pa.RecordBatch]:
    """Three columns of 500 to 4,000 bytes of words with the frequencies of a language."""
    rng = np.random.default_rng(3)
    pool = _text_pool(rng, 64 * 2**20)
    rows = 15_000
    for number in range(8):
        columns = {"id": pa.array(np.arange(number * rows, (number + 1) * rows))}
        for name in ("title", "body", "notes"):
            lengths = rng.integers(500, 4001, rows)
            starts = rng.integers(0, len(pool) - 4001, rows)
            parts = [pool[s : s + n] for s, n in zip(starts, lengths, strict=True)]
            offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
            columns[name] = pa.Array.from_buffers(pa.string(), rows, buffers)
        yield pa.record_batch(columns)


def _small(_: Path) -> Iterator[pa.RecordBatch]:
    yield _mixed(np.random.default_rng(8), 1_000)


def _mixed(rng: np.random.Generator, rows: int) -> pa.RecordBatch:
    """Eight columns such as a pipeline passes on."""
    cities = pa.array(["Amsterdam", "Berlin", "Cadiz", "Dublin", "Essen", "Faro", "Genoa"])
    return pa.record_batch(
        {
            "id": pa.array(rng.integers(0, 2**40, rows)),
            "customer": pa.array(rng.integers(0, 50_000, rows).astype(np.int32)),
            "quantity": pa.array(rng.integers(1, 50, rows).astype(np.int16)),
            "price": pa.array(np.round(rng.gamma(2.0, 40.0, rows), 2)),
            "paid": pa.array(rng.random(rows) < 0.9),
            "at": pa.array(1_700_000_000_000_000 + rng.integers(0, 10**13, rows), pa.timestamp("us", "UTC")),
            "city": cities.take(pa.array(rng.integers(0, len(cities), rows))),
            "code": pa.array([f"{v:012x}" for v in rng.integers(0, 2**48, rows).tolist()]),
        }
    )


DATA = {
    "lineitem": DataSet("TPC-H lineitem, scale factor 1", 1, _lineitem, ("l_orderkey", "l_extendedprice")),
    "wide": DataSet("200 columns, 500,000 rows", 1, _wide, ("i042", "s021")),
    "text": DataSet("long strings, 120,000 rows of 3 x 500 to 4,000 bytes", 1, _text, ("title",)),
    "small": DataSet("1,000 rows of 8 columns", 1, _small, ("id", "price")),
}


def path(name: str) -> Path:
    """The Arrow file of a data set, made on the first call."""
    data = DATA[name]
    target = folder() / f"{name}-v{data.version}.arrow"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder()) as scratch:
        part = Path(scratch) / "data.arrow"
        batches = data.make(Path(scratch))
        first = next(batches)
        with pa.OSFile(os.fspath(part), "wb") as sink, pa.ipc.new_file(sink, first.schema) as file:
            file.write(first)
            for batch in batches:
                file.write(batch)
        shutil.move(part, target)
    return target


def load(name: str) -> pa.Table:
    """The data set in memory of its own (not mapped: the pages would count as the writer's)."""
    with pa.OSFile(os.fspath(path(name)), "rb") as source:
        return pa.ipc.open_file(source).read_all()


def count_rows(name: str) -> int:
    """The rows of the data set, without loading it."""
    with pa.memory_map(os.fspath(path(name))) as source:
        return pa.ipc.open_file(source).count_rows()


def stream() -> pa.RecordBatchReader:
    """A long stream that itself holds little: few batches, again and again, with new ids."""
    rng = np.random.default_rng(5)
    kept = [_mixed(rng, STREAM_BATCH_ROWS) for _ in range(8)]

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(STREAM_BATCHES):
            start = number * STREAM_BATCH_ROWS
            ids = pa.array(np.arange(start, start + STREAM_BATCH_ROWS))
            yield kept[number % len(kept)].set_column(0, "id", ids)

    return pa.RecordBatchReader.from_batches(kept[0].schema, batches())

"""Random columns in pages of every version, codec and encoding that pyarrow writes are read as they were."""

from __future__ import annotations

import io
import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = ["", "a", "Straße", "漢字", "x" * 31, "y" * 32, "z" * 33, "é" * 90, "ends with a part of é", "𝄞"]
VALUES: dict[pa.DataType, Callable[[random.Random], object]] = {
    pa.bool_(): lambda rng: rng.random() < 0.5,
    pa.int8(): lambda rng: rng.randrange(-128, 128),
    pa.uint16(): lambda rng: rng.randrange(1 << 16),
    pa.int32(): lambda rng: rng.randrange(-(1 << 31), 1 << 31),
    pa.uint64(): lambda rng: rng.randrange(1 << 64),
    pa.float64(): lambda rng: rng.uniform(-1e9, 1e9),
    pa.decimal128(15, 2): lambda rng: Decimal(rng.randrange(10**15)).scaleb(-2),
    pa.timestamp("us", "UTC"): lambda rng: rng.randrange(1 << 50),
    pa.string(): lambda rng: rng.choice(WORDS) + str(rng.randrange(1000)),
    pa.large_string(): lambda rng: rng.choice(WORDS) * rng.randrange(3),
    pa.binary(): lambda rng: rng.randbytes(rng.choice([0, 1, 31, 33, 200])),
}
MANIFEST = {"dataset_key": "a", "parts": ["data.parquet"], "schema_hash": "0" * 16, "compression": "none"}
CREATED = {"created_at_utc": "2026-11-21T00:00:00.000001+00:00"}


def _column(rng: random.Random, data_type: pa.DataType, rows: int) -> pa.Array:
    """Few or many distinct values, in runs, with nulls here and there or for long, or none."""
    distinct = [VALUES[data_type](rng) for _ in range(rng.choice([1, 2, 30, 3000]))]
    nulls = rng.choice([0, 0, 1, 50, 100])
    values: list[object] = []
    while len(values) < rows:
        run = rng.choice([1, 1, 1, 20, 2500])
        values += [None if rng.randrange(100) < nulls else rng.choice(distinct)] * run
    return pa.array(values[:rows], data_type)


def _table(rng: random.Random) -> pa.Table:
    rows = rng.choice([0, 1, 100, 3000, 9000])
    columns, fields = [], []
    for number, data_type in enumerate(VALUES):
        columns.append(_column(rng, data_type, rows))
        is_nullable = columns[-1].null_count > 0 or rng.random() < 0.5
        fields.append(pa.field(f"c{number}", data_type, is_nullable))
    return pa.table(columns, schema=pa.schema(fields))


def _write(folder: Path, rng: random.Random, table: pa.Table) -> str:
    options = {
        "compression": rng.choice(["none", "zstd", "zstd", "zstd", "snappy", "gzip", "lz4", "brotli"]),
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "data_page_size": rng.choice([100, 5000, 1 << 20]),
        "max_rows_per_page": rng.choice([50, 1000, 20_000]),
        "row_group_size": rng.choice([700, 1 << 20]),
        "use_dictionary": rng.random() < 0.7,
        "dictionary_pagesize_limit": rng.choice([300, 1 << 20]),
        "write_page_checksum": rng.random() < 0.5,
        "write_page_index": rng.random() < 0.5,
    }
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    folder.mkdir()
    (folder / "data.parquet").write_bytes(sink.getvalue())
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | CREATED | {"row_count": table.num_rows}))
    (folder / "_SUCCESS").touch()
    return str(options)


@pytest.mark.parametrize("seed", range(24))
def test_pages_of_pyarrow(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = _table(rng)
    options = _write(tmp_path / "a", rng, table)
    datasets = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()))
    assert datasets.read_dataset("a").combine_chunks().equals(table.combine_chunks()), options
    read = datasets.scan_dataset("a", columns=["c8", "c1"]).read_all()
    assert read.combine_chunks().equals(table.select(["c8", "c1"]).combine_chunks()), options

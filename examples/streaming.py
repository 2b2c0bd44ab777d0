"""More rows than fit into memory: streams in, streams out, parts of a given size."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = round(20_000_000 * float(os.environ.get("PDS_SCALE", "1")))
BATCH_ROWS = 50_000


def readings(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Made up as they are asked for."""
    for start in range(0, ROWS, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, ROWS))
        values = [number % 977 / 10 for number in numbers]
        yield pa.record_batch([pa.array(numbers), pa.array(values)], schema=schema)


def main() -> None:
    """Write a stream, then read it as one."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64())])
    with tempfile.TemporaryDirectory() as folder:
        datasets = pds.ParquetDatasetStore(
            pds.Store(Path(folder).as_uri()),
            max_rows_per_file=max(ROWS // 4, 1),
            memory_limit=128 << 20,
        )

        # Anything with __arrow_c_stream__ is taken: readers, polars, DuckDB, pandas.
        stream = pa.RecordBatchReader.from_batches(schema, readings(schema))
        manifest = datasets.write_dataset(stream, "readings")
        print(f"wrote {manifest.row_count:,} rows in {len(manifest.parts)} parts")

        rows, total = 0, 0.0
        for batch in datasets.scan_dataset("readings", columns=["value"]):
            rows += batch.num_rows
            total += sum(batch["value"].to_pylist())
        print(f"read {rows:,} values, {total / rows:.3f} on average")


if __name__ == "__main__":
    main()

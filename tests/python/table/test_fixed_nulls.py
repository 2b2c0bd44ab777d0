"""Columns of a long fixed length that have only nulls: embeddings or pictures that are not there yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

# More than a GiB in Arrow.
LENGTH, BATCH, BATCHES = 65_536, 500, 34
SCHEMA = pa.schema([("k", pa.int64()), ("e", pa.binary(LENGTH))])


def _batches() -> Iterator[pa.RecordBatch]:
    for number in range(BATCHES):
        keys = pa.array(range(number * BATCH, number * BATCH + BATCH), pa.int64())
        yield pa.record_batch([keys, pa.nulls(BATCH, SCHEMA.field("e").type)], schema=SCHEMA)


def _write(store: pds.Store) -> pds.Table:
    table = pds.Table.create(store, "t", SCHEMA)
    table.append(pa.RecordBatchReader.from_batches(SCHEMA, _batches()))
    return table


def _add(store: pds.Store) -> pds.Table:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA) as writer:
        writer.write_table(pa.Table.from_batches(_batches()), row_group_size=BATCH * BATCHES)
    store.write("t/x.parquet", sink.getvalue().to_pybytes(), overwrite=True)
    table = pds.Table.create(store, "t", SCHEMA)
    table.add_files("t/x.parquet")
    return table


@pytest.mark.parametrize("make", [_write, _add], ids=["own", "foreign"])
def test_what_was_written_is_read(memory_store: pds.Store, make: object) -> None:
    """The row group was committed, and passed for a damaged one ever after."""
    table: pds.Table = make(memory_store)  # type: ignore[operator]
    rows, nulls = 0, 0
    for batch in table.scan().to_reader():
        rows += batch.num_rows
        nulls += batch.column("e").null_count
    assert (rows, nulls) == (BATCH * BATCHES, BATCH * BATCHES)
    assert table.scan(where="k = 700").to_pyarrow().to_pylist() == [{"k": 700, "e": None}]
    table.verify()

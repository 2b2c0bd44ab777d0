"""One file of a write fails while the request of another is on its way: that ends before the files are removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripted_s3 import Request

ROWS = pa.table({"a": range(40)})
SLOW_SECONDS = 0.5


def _append(table: pds.Table, _store: pds.Store) -> None:
    table.append(ROWS)


def _overwrite(table: pds.Table, _store: pds.Store) -> None:
    table.overwrite(ROWS)


def _update(_table: pds.Table, store: pds.Store) -> None:
    pipeline = pds.Pipeline(store, "p")
    pipeline._file_rows, pipeline._page_rows = 2, 1
    numbers = pipeline.source("numbers", key=pa.int64(), value=pa.int64())
    pipeline.producer(numbers, key=pa.int64(), value=pa.int64(), name="same")(
        lambda key, values: ((key, value) for value in values)
    )
    pipeline.update(numbers=pds.Changes([(number, number) for number in range(8)]))


def _add_files(table: pds.Table, store: pds.Store) -> None:
    table.add_files([f"in/{number}.parquet" for number in range(4)])


@pytest.mark.parametrize("write", [_append, _overwrite, _add_files, _update])
@pytest.mark.parametrize("fault", ["403", "404"])
def test_nothing_is_left(write: Callable[[pds.Table, pds.Store], None], fault: str) -> None:
    with ScriptedS3() as server:
        options = server.options() | {"stall_timeout": "30", "retry_timeout": "60"}
        store = pds.Store("s3://bucket/prefix", storage_options=options)
        for number in range(4):
            sink = pa.BufferOutputStream()
            pq.write_table(ROWS, sink)
            store.write(f"in/{number}.parquet", sink.getvalue().to_pybytes())
        write_options = pds.WriteOptions(max_rows_per_file=10)
        table = pds.Table.create(store, "t", ROWS.schema, options=write_options)
        before = server.snapshot().keys()
        # A copy is a PUT, too.
        failing = server.on("put|copy", ".parquet", fault)
        first = []

        def delay(request: Request) -> None:
            """The first file arrives late, and takes its place before."""
            if request.touches("put|copy", ".parquet") and not first:
                first.append(request)
                deadline = time.monotonic() + 20
                while not failing.hit.is_set() and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(SLOW_SECONDS)

        server.before = delay
        with pytest.raises((pds.PermissionDenied, pds.NotFound)):
            write(table, store)
        time.sleep(2 * SLOW_SECONDS)
        assert failing.hit.is_set()
        assert first
        assert not server.failures
        assert server.snapshot().keys() == before
        server.before = None
        server.restart()
        write(table, store)
        assert server.snapshot().keys() > before

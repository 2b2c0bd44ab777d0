"""Scans of the engine as streams of pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from pds.at_exit import stop_at_exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pds import _pds


def read_scan(scan: _pds.Scan) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a scan, and close it."""
    try:
        while (batch := scan.next_batch()) is not None:
            yield batch
    finally:
        scan.close()


def make_reader(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return batches as a stream, which threads of other libraries may read; it fails when the interpreter ends."""
    return pa.RecordBatchReader.from_batches(schema, stop_at_exit(batches))

"""Scans of the engine as streams of pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds import _pds
from pds.at_exit import stop_at_exit

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_scan(scan: _pds.Scan) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a scan, and close it."""
    try:
        while (batch := scan.next_batch()) is not None:
            yield batch
    finally:
        scan.close()


def make_reader(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return batches as a stream, which threads of other libraries may read.

    It fails when the interpreter ends, and at every call after one that failed or was interrupted: see `stop_at_exit`.
    """
    return pa.RecordBatchReader.from_batches(schema, stop_at_exit(batches))


def unfold(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without run-end encoding and list views, which few functions of pyarrow know, at any depth.

    Other batches stay as they are. Otherwise all columns have the types as which Parquet stores them.
    """
    is_folded = any(_is_folded(field.type) for field in batch.schema)
    return _pds.to_stored_types(batch) if is_folded else batch


def _is_folded(data_type: Any) -> bool:  # noqa: ANN401 a type of any kind
    if isinstance(data_type, pa.BaseExtensionType):
        return _is_folded(data_type.storage_type)
    types: Any = pa.types
    kinds = (types.is_run_end_encoded, types.is_list_view, types.is_large_list_view)
    if any(matches(data_type) for matches in kinds):
        return True
    if types.is_dictionary(data_type):
        return _is_folded(data_type.value_type)
    return any(_is_folded(data_type.field(position).type) for position in range(data_type.num_fields))

"""Rows of callers as Arrow streams that the engine can import."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from pds.errors import InvalidType
from pds.inputs import convert_pandas, is_pandas_frame, keep_cause, read_batches, refuse_data, refuse_stream
from pds.readers import make_reader

if TYPE_CHECKING:
    from collections.abc import Iterator

ArrowStream = Any
"""Any object with `__arrow_c_stream__`: a table or reader of pyarrow, polars, pandas, DuckDB, arro3, …

The index of a data frame of pandas is a column if it has a name, and is left out if it has none. A reader gives its
rows once: a second call of pds refuses it. One that others have emptied has 0 rows, which pyarrow cannot tell.
"""


def arrow_stream(data: object) -> pa.Table | pa.RecordBatchReader:
    """Return the data as a pyarrow Table or RecordBatchReader, without a copy where the types allow it."""
    if not isinstance(data, pa.Table | pa.RecordBatchReader):
        data = _import_stream(data)
    if not any(_has_fixed_children(field.type) for field in data.schema):
        return data
    batches = data.to_batches() if isinstance(data, pa.Table) else read_batches(data)
    return make_reader(data.schema, (compact_batch(batch) for batch in batches))


@contextlib.contextmanager
def read_stream(data: object) -> Iterator[pa.Table | pa.RecordBatchReader]:
    """Yield the data as `arrow_stream` returns it, to be read within.

    Raises:
        InvalidInput: An earlier call of pds has read the data (see `read_batches`); or a reader of the caller raised an
            exception, the cause.
    """
    with keep_cause(data) as watched:
        yield arrow_stream(watched)


def _import_stream(data: object) -> pa.Table | pa.RecordBatchReader:
    if is_pandas_frame(data):
        return convert_pandas(data)
    if type(data).__module__.startswith("polars") and type(data).__name__ == "DataFrame":
        # polars exports them as addresses in memory.
        objects = [name for name, dtype in cast("Any", data).schema.items() if str(dtype) == "Object"]
        if objects:
            raise InvalidType(f"column {objects[0]!r} has Python objects, which Arrow has no type for; cast it")
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
        if hasattr(data, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(data)])
    except (pa.ArrowInvalid, TypeError) as error:
        raise InvalidType(f"data must be a table or a stream of batches: {error}") from error
    except Exception as error:  # noqa: BLE001 a stream of any library
        refusal = refuse_stream(error)
        raise refusal from refusal.__cause__
    raise refuse_data(data)


def _has_fixed_children(data_type: pa.DataType, *, nested: bool = False) -> bool:
    """Whether a struct or fixed-size list is within another one: arrow-rs cannot import slices of these types."""
    if pa.types.is_fixed_size_list(data_type) or pa.types.is_struct(data_type):
        if nested:
            return True
        nested = True
    children = (data_type.field(i) for i in range(data_type.num_fields))
    return any(_has_fixed_children(child.type, nested=nested) for child in children)


def compact_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without offsets that arrow-rs cannot import. Only a batch that has such offsets is copied."""
    if not any(column.offset and _has_fixed_children(column.type) for column in batch.columns):
        return batch
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def is_in_memory(source: object) -> bool:
    """Whether all rows of the source are in memory before the write begins."""
    return isinstance(source, pa.Table) or type(source).__module__.partition(".")[0] in {
        "polars",
        "pandas",
    }


def replace_views(data_type: Any, *, large: bool = False) -> Any:  # noqa: ANN401 a type of any kind
    """Return a type with texts and bytes in the place of views of them, also within nested types."""
    leaves = {
        "string_view": pa.large_string() if large else pa.string(),
        "binary_view": pa.large_binary() if large else pa.binary(),
    }

    def replace(field: Any) -> Any:  # noqa: ANN401 a field of any type
        return field.with_type(replace_views(field.type, large=large))

    types: Any = pa.types
    if types.is_struct(data_type):
        return pa.struct([replace(field) for field in data_type])
    if types.is_map(data_type):
        return pa.map_(replace(data_type.key_field), replace(data_type.item_field), data_type.keys_sorted)
    if types.is_fixed_size_list(data_type):
        return pa.list_(replace(data_type.value_field), data_type.list_size)
    if types.is_list(data_type) or types.is_large_list(data_type):
        return (pa.large_list if types.is_large_list(data_type) else pa.list_)(replace(data_type.value_field))
    return leaves.get(str(data_type), data_type)

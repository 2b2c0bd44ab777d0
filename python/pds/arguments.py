"""Checks of what users pass to datasets: a clear error before anything is asked or written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pds import _pds
from pds.errors import InvalidInput, InvalidType
from pds.paths import file_path

ArrowStream = Any
"""Any object with `__arrow_c_stream__`: a table or reader of pyarrow, polars, pandas, DuckDB, arro3, …"""


def require_text(what: str, value: object) -> str:
    """A string that can be written down."""
    if not isinstance(value, str):
        raise InvalidType(f"{what} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} is not text that can be encoded: {value!r}") from error
    return value


def one_key(dataset_key: object, key: object) -> str:
    """The one spelling of the dataset's key, given under either name."""
    if (dataset_key is None) == (key is None):
        raise InvalidType("give the dataset's key once, as dataset_key or as key")
    return file_path(key if dataset_key is None else dataset_key)


def check_text(overwrite: object, run_id: object, metadata: object) -> None:
    """Refuse what a manifest cannot hold."""
    if not isinstance(overwrite, bool):
        raise InvalidType(f"overwrite must be True or False, not {overwrite!r}")
    if run_id is not None:
        require_text("run_id", run_id)
    if metadata is not None:
        if not isinstance(metadata, dict):
            raise InvalidType(f"metadata must be a dict of strings, not {type(metadata).__name__}")
        for name, value in metadata.items():
            require_text("a key of metadata", name)
            require_text(f"metadata[{name!r}]", value)


def arrow_stream(data: object) -> pa.Table | pa.RecordBatchReader:
    """The data as a table or a reader of pyarrow, without a copy."""
    if not isinstance(data, pa.Table | pa.RecordBatchReader):
        data = _imported(data)
    if not any(_has_fixed_children(field.type) for field in data.schema):
        return data
    batches = data.to_batches() if isinstance(data, pa.Table) else data
    return pa.RecordBatchReader.from_batches(data.schema, (_compact(batch) for batch in batches))


def _imported(data: object) -> pa.Table | pa.RecordBatchReader:
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
        if hasattr(data, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(data)])
    except (pa.ArrowInvalid, TypeError) as error:
        raise InvalidType(f"data must be a table or a stream of batches: {error}") from error
    raise InvalidType(
        f"data must be a pyarrow Table or have __arrow_c_stream__, as polars, pandas and DuckDB have; "
        f"{type(data).__name__} has not"
    )


def _has_fixed_children(kind: pa.DataType, *, inside: bool = False) -> bool:
    """Whether a struct or fixed-size list holds a struct: arrow-rs cannot import slices of those."""
    if pa.types.is_fixed_size_list(kind) or pa.types.is_struct(kind):
        if inside:
            return True
        inside = True
    children = (kind.field(i) for i in range(kind.num_fields))
    return any(_has_fixed_children(child.type, inside=inside) for child in children)


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with slices cut out of their buffers; a copy only where there are any."""
    if all(column.offset == 0 for column in batch.columns):
        return batch
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def is_in_memory(source: object) -> bool:
    """Whether the data is in memory whatever the writer does."""
    return isinstance(source, pa.Table) or type(source).__module__.partition(".")[0] in {
        "polars",
        "pandas",
    }


def schema_hash(schema: pa.Schema) -> str:
    """The hash of a schema that manifests hold (PDS-004)."""
    return hashlib.sha256(schema.to_string().encode()).hexdigest()[:16]


def column_paths(columns: object) -> list[str] | None:
    """The names of the columns asked for, each as often as it is asked for."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InvalidType(f"columns must be a list of names, not {columns!r}")
    for name in columns:
        require_text("a name in columns", name)
    return list(columns)


def column_names(columns: object) -> list[str] | None:
    """The names of the columns asked for, each once."""
    names = column_paths(columns)
    if names is not None and len(set(names)) < len(names):
        raise InvalidInput(f"a column is asked for twice in {names}")
    return names


def check_task(task: object) -> None:
    """Refuse what does not number a task."""
    if isinstance(task, bool) or not isinstance(task, int) or task < 0:
        raise InvalidInput(f"task must be a whole number that is not negative, not {task!r}")


def check_schema(schema: pa.Schema) -> None:
    """Refuse, by name, what Parquet cannot hold."""
    _check_metadata(schema.metadata, "the schema")
    for field in schema:
        # Names are cut at a NUL on their way into the core.
        _check_field(field, field.name)
    _pds.check_schema(schema)


def _check_metadata(metadata: dict[bytes, bytes] | None, what: str) -> None:
    for pair in (metadata or {}).items():
        for entry in pair:
            try:
                entry.decode()
            except UnicodeDecodeError as error:
                raise InvalidInput(f"metadata of {what} is not text: {entry!r}") from error


def _check_field(field: pa.Field[pa.DataType], column: str) -> None:
    if "\0" in field.name:
        name = column.replace("\0", "\\0")
        raise InvalidInput(f"column '{name}': a name contains a NUL")
    _check_metadata(field.metadata, f"column {column!r}")
    for i in range(field.type.num_fields):
        _check_field(field.type.field(i), column)


def check_where(where: object) -> None:
    """Refuse what is no filter expression."""
    if where is not None and not isinstance(where, pc.Expression):
        raise InvalidType(f"where must be a pyarrow.compute.Expression, not {type(where).__name__}")


def check_filter(schema: pa.Schema, where: pc.Expression) -> None:
    """Refuse a filter that does not fit the columns there are."""
    try:
        schema.empty_table().filter(where)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInput(f"where does not fit the columns {schema.names}: {error}") from error

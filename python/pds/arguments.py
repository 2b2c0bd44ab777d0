"""Validation of the arguments of public functions, before the first request to the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from pds import _pds
from pds.errors import InvalidInput, InvalidType
from pds.flags import require_bool
from pds.paths import normalize_file_path

if TYPE_CHECKING:
    import pyarrow.compute as pc

_MAX_SECONDS = 100 * 365 * 86400
"""A century, which can be added to any clock without overflow."""

_MAX_TASK = 2**63 - 1


def require_text(label: str, value: object) -> str:
    """Return `value` if it is a string that UTF-8 can encode; `label` names it in errors.

    Raises:
        InvalidType: The value is not a string.
        InvalidInput: The string has surrogates, which UTF-8 cannot encode.
    """
    if not isinstance(value, str):
        raise InvalidType(f"{label} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{label} cannot be encoded as UTF-8: {value!r}") from error
    return value


def check_seconds(label: str, value: object) -> float:
    """Return `value` if it is a valid number of seconds; `label` names it in errors."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{label} must be a number (seconds), not {value!r}")
    if not value >= 0:
        raise InvalidInput(f"{label} must be a non-negative number of seconds, not {value}")
    return float(min(value, _MAX_SECONDS))


def require_timedelta(label: str, value: object) -> float:
    """Return the seconds of `value` if it is a timedelta; `label` names it in errors."""
    if not isinstance(value, timedelta):
        raise InvalidType(f"{label} must be a timedelta, not {type(value).__name__}")
    return value.total_seconds()


def check_schema_mode(schema_mode: object) -> None:
    """Raise an error if the way to take new columns is not a valid one."""
    if require_text("schema_mode", schema_mode) not in ("strict", "merge"):
        raise InvalidInput(f'schema_mode must be "strict" or "merge", not {schema_mode!r}')


def resolve_key(dataset_key: object, key: object) -> str:
    """Return the normalized key of a dataset, which is passed as either `dataset_key` or `key`."""
    if (dataset_key is None) == (key is None):
        raise InvalidType("pass the key of the dataset exactly once, as dataset_key or as key")
    return normalize_file_path(key if dataset_key is None else dataset_key)


def check_manifest_fields(overwrite: object, run_id: object, metadata: object) -> None:
    """Raise an error if a manifest cannot hold `run_id` or `metadata`, or if `overwrite` is not a boolean."""
    require_bool("overwrite", overwrite)
    if run_id is not None:
        require_text("run_id", run_id)
    if metadata is not None:
        if not isinstance(metadata, dict):
            raise InvalidType(f"metadata must be a dict of strings, not {type(metadata).__name__}")
        for name, value in metadata.items():
            require_text("a key of metadata", name)
            require_text(f"metadata[{name!r}]", value)


def hash_schema(schema: pa.Schema) -> str:
    """Return the hash of a schema for the field `schema_hash` of a manifest (PDS-004)."""
    import hashlib  # noqa: PLC0415 it loads OpenSSL, and reads need none

    return hashlib.sha256(require_schema(schema).to_string().encode()).hexdigest()[:16]


def check_column_paths(columns: object) -> list[str] | None:
    """Return the column names as a list, with duplicates; None stands for all columns."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InvalidType(f"columns must be a list of names, not {columns!r}")
    for name in columns:
        require_text("a name in columns", name)
    return list(columns)


def check_column_names(columns: object) -> list[str] | None:
    """Return the column names as a list without duplicates; None stands for all columns."""
    names = check_column_paths(columns)
    if names is not None and len(set(names)) < len(names):
        raise InvalidInput(f"columns has a name twice: {names}")
    return names


def check_task(task: object) -> None:
    """Raise an error if the number of a task is not a non-negative integer."""
    if isinstance(task, bool) or not isinstance(task, int) or task < 0:
        raise InvalidInput(f"task must be a non-negative integer, not {task!r}")
    if task > _MAX_TASK:
        raise InvalidInput(f"task must be a number of a task up to {_MAX_TASK}, not {task}")


def require_schema(schema: object) -> pa.Schema:
    """Return `schema` if it is one of pyarrow."""
    if not isinstance(schema, pa.Schema):
        raise InvalidType(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
    return schema


def check_schema(schema: pa.Schema) -> None:
    """Raise an error that names the first column that Parquet cannot store."""
    _check_metadata(schema.metadata, "the schema")
    for field in schema:
        # The Arrow C data interface cuts names at a NUL, so the native check would not see it.
        _check_field(field, field.name)
    _pds.check_schema(schema)


def _check_metadata(metadata: dict[bytes, bytes] | None, label: str) -> None:
    for pair in (metadata or {}).items():
        for entry in pair:
            try:
                entry.decode()
            except UnicodeDecodeError as error:
                raise InvalidInput(f"metadata of {label} must be UTF-8 text, not {entry!r}") from error


def _check_field(field: pa.Field[pa.DataType], column: str) -> None:
    if "\0" in field.name:
        name = column.replace("\0", "\\0")
        raise InvalidInput(f"column '{name}': a column name must not contain NUL")
    _check_metadata(field.metadata, f"column {column!r}")
    _check_type(field.type, column)


def _check_type(data_type: Any, column: str) -> None:  # noqa: ANN401 a type of any kind
    if isinstance(data_type, pa.BaseExtensionType):
        # The types of pyarrow itself have no such method, and metadata that is text.
        serialize = getattr(data_type, "__arrow_ext_serialize__", bytes)
        _check_metadata({b"": serialize()}, f"the extension type {data_type.extension_name!r} of column {column!r}")
        _check_type(data_type.storage_type, column)
    elif pa.types.is_dictionary(data_type):
        _check_type(data_type.value_type, column)
    for i in range(data_type.num_fields):
        _check_field(data_type.field(i), column)


def is_expression(value: object) -> TypeGuard[pc.Expression]:
    """Whether a filter is an expression of pyarrow."""
    if isinstance(value, str):
        return False
    # It takes a third as long as pyarrow itself, and a script that has an expression has imported it.
    import pyarrow.compute as pc  # noqa: PLC0415

    return isinstance(value, pc.Expression)


def require_where(where: object) -> None:
    """Raise an error if `where` is not a filter."""
    if not isinstance(where, str) and not is_expression(where):
        raise InvalidType(f"where must be SQL or a pyarrow.compute.Expression, not {type(where).__name__}")


def check_where(where: object) -> None:
    """Raise an error if `where` is neither None nor a filter."""
    if where is not None:
        require_where(where)


def make_empty(schema: pa.Schema) -> pa.Table:
    """Return no rows: `Schema.empty_table` fails for extension types and dictionaries within nested types."""
    return pa.Table.from_batches([], schema)


def check_filter(schema: pa.Schema, where: pc.Expression) -> None:
    """Raise an error if the filter cannot be applied to the columns of `schema`."""
    try:
        make_empty(schema).filter(where)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInput(f"where cannot be applied to the columns {schema.names}: {error}") from error

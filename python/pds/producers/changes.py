"""What callers push to a source: changes of some keys, or all rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds.errors import InvalidInput, InvalidType
from pds.inputs import refuse_closed
from pds.producers.convert import BadValueError, ColumnBuilder
from pds.producers.errors import abbreviate
from pds.producers.graph import SourceInput
from pds.streams import arrow_stream

# The classes of columns in polars and arro3, which have the Arrow interface of tables.
_COLUMNS = {"Array", "ChunkedArray", "Series"}

if TYPE_CHECKING:
    from pds.producers.engine import Engine, SourceRows
    from pds.streams import ArrowStream


@dataclass(frozen=True)
class Changes:
    """Changes of a source. A key that is named is replaced as a whole; a key that is not named stays as it is.

    Args:
        upserts: Rows with the columns `key` and `value`, in any order; those of one key are kept in theirs. An Arrow
            stream (a table of pyarrow, polars, pandas or DuckDB, for example), or an iterable of pairs (key, value).
            With an engine of Spark also a DataFrame: tasks sort its rows, those of one key by their values.
        deletes: The keys of which no row is left: an Arrow array, an Arrow stream with the column `key`, or an iterable
            of keys.
    """

    upserts: ArrowStream | Iterable[tuple[Any, Any]] | None = None
    deletes: ArrowStream | Iterable[Any] | None = None


@dataclass(frozen=True)
class Replace:
    """All rows of a source. Keys that are not among them are deleted; keys with the same rows as before stay unchanged.

    Args:
        rows: Rows as in `Changes.upserts`.
    """

    rows: ArrowStream | Iterable[tuple[Any, Any]]


def to_input(name: str, changes: object, fields: pa.Schema) -> SourceInput:
    """Return the changes of a source as the engine reads them.

    Raises:
        InvalidInput: A value cannot be stored in a column.
        InvalidType: The changes are neither `Changes` nor `Replace`, or not made of rows.
    """
    if isinstance(changes, Replace):
        return SourceInput(name, _to_rows(name, changes.rows, fields), None, "all")
    if not isinstance(changes, Changes):
        raise InvalidType(
            f"the changes of {name!r} must be pds.Changes(upserts=…, deletes=…) or pds.Replace(…), "
            f"not {type(changes).__name__}"
        )
    upserts = None if changes.upserts is None else _to_rows(name, changes.upserts, fields)
    deletes = None if changes.deletes is None else _to_keys(name, changes.deletes, fields.field("key"))
    return SourceInput(name, upserts, deletes, "named")


def is_spread(engine: Engine, changes: object) -> bool:
    """Whether changes have rows or keys that are spread over the processes of an engine."""
    parts = _split(changes)
    return parts is not None and any(engine.takes(part) for part in parts[:2])


def _split(changes: object) -> tuple[object, object, str] | None:
    """Return the upserts, the deletes and which keys change; None if these are no changes."""
    if isinstance(changes, Replace):
        return changes.rows, None, "all"
    if isinstance(changes, Changes):
        return changes.upserts, changes.deletes, "named"
    return None


def stage_input(engine: Engine, rows: SourceRows, changes: object) -> SourceInput | None:
    """Return changes whose rows an engine staged; None if none of them are spread over its processes.

    Args:
        engine: The engine.
        rows: The source.
        changes: As for `to_input`. What is not spread is staged from here.

    Raises:
        InvalidInput, InvalidType: As `to_input`.
    """
    parts = _split(changes)
    if parts is None or not is_spread(engine, changes):
        return None
    upserts, deletes, scope = parts
    name, fields = rows.source.name, rows.source.fields

    def stage(part: object, *, is_keys: bool) -> list[bytes] | None:
        if part is None:
            return None
        if engine.takes(part):
            return engine.stage(replace(rows, is_keys=is_keys), part)
        stream = _to_keys(name, part, fields.field("key")) if is_keys else _to_rows(name, part, fields)
        return [replace(rows, is_keys=is_keys, is_canonical=False).stage(stream)]

    staged = stage(upserts, is_keys=False)
    try:
        return SourceInput(name, staged, stage(deletes, is_keys=True), scope)
    except BaseException:
        rows.discard(staged or [])
        raise


def to_key_stream(name: str, keys: object, field: pa.Field[Any]) -> pa.Table | pa.RecordBatchReader:
    """Return keys as a stream of one column, `key`."""
    return _to_keys(name, keys, field)


def _is_stream(data: object) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _to_rows(name: str, rows: object, fields: pa.Schema) -> pa.Table | pa.RecordBatchReader:
    if _is_stream(rows):
        return arrow_stream(rows)
    if not isinstance(rows, Iterable):
        raise InvalidType(f"the rows of {name!r} must be an Arrow stream or pairs (key, value), not {rows!r}")
    refuse_closed(rows)
    pairs = list(rows)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004 a key and a value
            raise InvalidType(f"a row of {name!r} must be a tuple (key, value), not {abbreviate(pair)}")
    columns = [_to_array(name, [pair[at] for pair in pairs], fields.field(at)) for at in range(2)]
    # A null where the field does not allow it is reported by the engine.
    nullable = pa.schema([field.with_nullable(True) for field in fields])  # noqa: FBT003
    return pa.Table.from_arrays(columns, schema=nullable)


def _to_keys(name: str, keys: object, field: pa.Field[Any]) -> pa.Table | pa.RecordBatchReader:
    array: Any = keys
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        array = keys
    elif _is_stream(keys) and type(keys).__name__ in _COLUMNS:
        array = _align_column(name, keys, field.type)
    elif _is_stream(keys):
        return arrow_stream(keys)
    elif isinstance(keys, Iterable) and not isinstance(keys, str | bytes):
        refuse_closed(keys)
        array = _to_array(name, list(keys), field)
    else:
        raise InvalidType(f"the keys of {name!r} must be an Arrow array or a list of keys, not {abbreviate(keys)}")
    return arrow_stream(pa.table({"key": array}))


def _align_column(name: str, keys: Any, data_type: pa.DataType) -> pa.ChunkedArray[Any]:  # noqa: ANN401 of any library
    """Return a column of texts, bytes or integers with the type of the keys; any other as it is."""
    chunked_array: Any = pa.chunked_array
    column: pa.ChunkedArray[Any] = chunked_array(keys)
    values: Any = column.type
    is_dictionary = pa.types.is_dictionary(values)
    values = values.value_type if is_dictionary else values
    if not any(is_alike(values) and is_alike(data_type) for is_alike in (_is_text, _is_bytes, pa.types.is_integer)):
        return column
    try:
        if is_dictionary:
            # pyarrow does not cast a dictionary of views.
            chunks: list[Any] = column.chunks
            column = chunked_array([c.dictionary.cast(data_type).take(c.indices) for c in chunks], data_type)
        return column.cast(data_type)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"a key of {name!r} is not of type {data_type}: {error}") from error


def _is_text(data_type: pa.DataType) -> bool:
    return str(data_type) in {"string", "large_string", "string_view"}


def _is_bytes(data_type: pa.DataType) -> bool:
    return str(data_type) in {"binary", "large_binary", "binary_view"}


def _to_array(name: str, values: list[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    """Return values as they are: one that the type does not have exactly is refused, as what functions emit is."""
    try:
        # A null where the field does not allow it is reported by the engine.
        builder = ColumnBuilder(field.with_nullable(True))  # noqa: FBT003
        for value in values:
            builder.append(value)
        return builder.finish()
    except (BadValueError, TypeError) as error:
        raise InvalidInput(f"a {field.name} of {name!r} is not of type {field.type}: {error}") from error

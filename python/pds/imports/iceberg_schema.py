"""The columns of an Iceberg table: types, and where they are in data files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from pds.errors import InvalidInput
from pds.imports.plan import PlannedColumn, map_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import MappedField, NameMapping

_PRIMITIVES: Final[dict[type[IcebergType], pa.DataType]] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    DateType: pa.date32(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    StringType: pa.string(),
    TimeType: pa.time64("us"),
    TimestampNanoType: pa.timestamp("ns"),
    TimestampType: pa.timestamp("us"),
    TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    UUIDType: pa.binary(16),
}


def to_schema(schema: Schema) -> pa.Schema:
    """Return the schema of a table with these columns.

    Raises:
        InvalidInput: pds has no such type, or files lack a column that has a default for them.
    """
    return pa.schema([_to_field(field, field.name) for field in schema.fields])


def to_columns(schema: Schema, mapping: NameMapping | None) -> list[PlannedColumn]:
    """Return where columns are in data files: by their ids, or by name in files that have none."""
    mapped = {field.field_id: field for field in mapping or ()}
    return [
        PlannedColumn(_mapped_names(field, mapped.get(field.field_id)), tuple(_list_ids(field)))
        for field in schema.fields
    ]


def _to_field(field: NestedField, column: str) -> pa.Field[pa.DataType]:
    if field.initial_default is not None:
        raise InvalidInput(
            f"column {column!r}: {field.name!r} has the initial default {field.initial_default!r}, which older files "
            "do not hold; rewrite the table's files, and import again"
        )
    return pa.field(field.name, _to_type(field.field_type, column), nullable=not field.required)


def _to_type(data_type: IcebergType, column: str) -> pa.DataType:
    if type(data_type) in _PRIMITIVES:
        return _PRIMITIVES[type(data_type)]
    if isinstance(data_type, DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, FixedType):
        return pa.binary(len(data_type))
    if isinstance(data_type, StructType):
        return pa.struct([_to_field(field, column) for field in data_type.fields])
    if isinstance(data_type, ListType):
        return pa.list_(_to_field(data_type.element_field, column))
    if isinstance(data_type, MapType):
        return map_type(_to_type(data_type.key_type, column), _to_field(data_type.value_field, column))
    raise InvalidInput(
        f"column {column!r} has the type {data_type}, which pds does not have; drop it, and import again"
    )


def _nested_fields(data_type: IcebergType) -> tuple[NestedField, ...]:
    if isinstance(data_type, StructType):
        return data_type.fields
    if isinstance(data_type, ListType):
        return (data_type.element_field,)
    if isinstance(data_type, MapType):
        return (data_type.key_field, data_type.value_field)
    return ()


def _list_ids(field: NestedField) -> Iterator[int]:
    yield field.field_id
    for nested in _nested_fields(field.field_type):
        yield from _list_ids(nested)


def _mapped_names(field: NestedField, mapped: MappedField | None) -> tuple[str, ...]:
    """Return the names of a column in files without ids: none if a nested field has another name there."""
    if mapped is None or not _has_same_names(field, mapped):
        return ()
    return tuple(mapped.names)


def _has_same_names(field: NestedField, mapped: MappedField) -> bool:
    by_id = {nested.field_id: nested for nested in mapped.fields}
    for nested in _nested_fields(field.field_type):
        mapped_field = by_id.get(nested.field_id)
        if (
            mapped_field is None
            or list(mapped_field.names) != [nested.name]
            or not _has_same_names(nested, mapped_field)
        ):
            return False
    return True

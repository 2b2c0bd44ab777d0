"""The columns of a Delta table: types, and where they are in data files."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

from pds.errors import InvalidInput
from pds.imports.plan import PlannedColumn, map_type

_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+), *(\d+)\)")
_NAME: Final = "delta.columnMapping.physicalName"
_ID: Final = "delta.columnMapping.id"
_CONSTRAINT: Final = "delta.constraints."
# By the begin of keys in a field's metadata.
_RULES: Final = {
    "CURRENT_DEFAULT": "default value",
    "delta.generationExpression": "generation expression",
    "delta.identity.": "identity values",
    "delta.invariants": "invariant",
}


def to_schema(fields: list[dict[str, Any]]) -> pa.Schema:
    """Return the schema of a table of these fields, as the log has them.

    Raises:
        InvalidInput: pds has no such type, or a nested field was renamed.
    """
    return pa.schema([_to_field(field, field["name"]) for field in fields])


def to_columns(fields: list[dict[str, Any]], mode: str, constants: set[str]) -> list[PlannedColumn]:
    """Return where columns are in data files. Those of `constants` are in none, whatever files have that name."""
    return [PlannedColumn() if field["name"] in constants else _to_column(field, mode) for field in fields]


def physical_name(field: dict[str, Any]) -> str:
    """Return the name that a field has in data files and in the log."""
    return str(field["metadata"].get(_NAME, field["name"]))


def list_rules(fields: list[dict[str, Any]], configuration: dict[str, str]) -> list[str]:
    """Return the constraints of a Delta table, and its generated, identity and default columns, as texts."""
    constraints = (name.removeprefix(_CONSTRAINT) for name in sorted(configuration) if name.startswith(_CONSTRAINT))
    rules = [f"the CHECK constraint {name!r}" for name in constraints]
    for field in fields:
        for begin, rule in _RULES.items():
            if any(key.startswith(begin) for key in field["metadata"]):
                rules.append(f"the {rule} of column {field['name']!r}")
    return rules


def _to_column(field: dict[str, Any], mode: str) -> PlannedColumn:
    if mode == "none":
        return PlannedColumn(names=(field["name"],))
    if mode == "name":
        return PlannedColumn(names=(physical_name(field),))
    if _is_nested(field["type"]):
        raise InvalidInput(
            f"column {field['name']!r} is nested, and column mapping by id is not supported for such columns; "
            "rewrite the table with column mapping by name, or without it"
        )
    return PlannedColumn(field_ids=(int(field["metadata"][_ID]),))


def _is_nested(data_type: object) -> bool:
    return isinstance(data_type, dict)


def _to_field(field: dict[str, Any], column: str, *, is_nested: bool = False) -> pa.Field[pa.DataType]:
    name = field["name"]
    if is_nested and physical_name(field) != name:
        raise InvalidInput(
            f"column {column!r}: the nested field {name!r} is called {physical_name(field)!r} in data files: it was "
            "renamed, or the table has column mapping since it was made; rewrite the table without column mapping"
        )
    return pa.field(name, _to_type(field["type"], column), nullable=field["nullable"])


def _to_type(data_type: Any, column: str) -> pa.DataType:  # noqa: ANN401 JSON
    if isinstance(data_type, str):
        if data_type in _PRIMITIVES:
            return _PRIMITIVES[data_type]
        if decimal := _DECIMAL.fullmatch(data_type):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
    elif data_type["type"] == "struct":
        return pa.struct([_to_field(field, column, is_nested=True) for field in data_type["fields"]])
    elif data_type["type"] == "array":
        element = _to_type(data_type["elementType"], column)
        return pa.list_(pa.field("element", element, nullable=data_type["containsNull"]))
    elif data_type["type"] == "map":
        key, value = (_to_type(data_type[part], column) for part in ("keyType", "valueType"))
        return map_type(key, pa.field("value", value, nullable=data_type["valueContainsNull"]))
    raise InvalidInput(
        f"column {column!r} has the type {data_type!r}, which pds does not have; drop it, and import again"
    )

"""Values of Dagster's assets and ops as Arrow data."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Union, get_args, get_origin

from dagster import TableColumn, TableColumnConstraints, TableSchema

from pds.errors import InvalidType

if TYPE_CHECKING:
    import pyarrow as pa

Frames = Mapping[str, tuple[str, str]]
"""The module and the name of classes, by the text that errors have."""

FRAMES: Final[Frames] = {
    "pyarrow.Table": ("pyarrow", "Table"),
    "pyarrow.RecordBatchReader": ("pyarrow", "RecordBatchReader"),
    "polars.DataFrame": ("polars", "DataFrame"),
    "pandas.DataFrame": ("pandas", "DataFrame"),
}


class InputType(NamedTuple):
    """The type that the annotation of an input selects."""

    frame: str
    is_mapping: bool
    allows_mapping: bool

    @classmethod
    def parse(cls, annotation: object, frames: Frames = FRAMES) -> InputType:
        """Return the type for an annotation; `frames` are the types that can be loaded, by name."""
        if get_origin(annotation) in (Union, types.UnionType):
            members = [arg for arg in get_args(annotation) if arg is not type(None)]
            if len(members) == 1:
                return cls.parse(members[0], frames)
        if annotation in (Any, object):
            return cls("pyarrow.Table", is_mapping=False, allows_mapping=True)
        origin = get_origin(annotation) or annotation
        if origin is list and get_args(annotation):
            # For a fan-in, Dagster loads the upstream outputs one by one and makes the list.
            return cls.parse(get_args(annotation)[0], frames)
        if origin in (dict, Mapping):
            item = cls.parse((*get_args(annotation), Any, Any)[1], frames)
            if not item.is_mapping:
                return cls(item.frame, is_mapping=True, allows_mapping=True)
        for name, (module, attribute) in frames.items():
            # The module of a class in an annotation is already imported.
            if module in sys.modules and annotation is getattr(sys.modules[module], attribute):
                return cls(name, is_mapping=False, allows_mapping=False)
        others = ", or a dict of it" if frames is FRAMES else ""
        msg = f"cannot load {annotation!r}: use one of {', '.join(frames)}{others}"
        raise InvalidType(msg)


def check_columns(value: object) -> list[str] | None:
    """Return `columns` of the metadata of an input, if it is None or a list of names."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        msg = f"input metadata 'columns' must be a list of column names, not {value!r}"
        raise InvalidType(msg)
    return list(value)


def make_table_schema(schema: pa.Schema) -> TableSchema:
    """Return a schema as Dagster displays it."""
    return TableSchema(columns=[_make_column(field) for field in schema])


def _make_column(field: pa.Field[Any]) -> TableColumn:
    return TableColumn(
        name=field.name,
        type=str(field.type),
        constraints=TableColumnConstraints(nullable=field.nullable),
    )

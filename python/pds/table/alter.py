"""Schema evolution: changes of the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pds import _pds
from pds.arguments import check_column_names, check_schema, require_text
from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from pds._pds import TableHandle
    from pds.engine_types import CommitFields
    from pds.table.results import CommitResult

_Commit = Callable[["Callable[[TableHandle, float], tuple[CommitFields, TableHandle]]"], "CommitResult"]


class Alter:
    """Adds, renames, drops, widens and reorders columns. No data file is rewritten.

    A column has an identifier that does not depend on its name. A column that is dropped and added again is a new
    column, and existing rows have nulls in it. Older versions keep their columns. Writes that began before a change
    stay valid.

    Names mean the columns that the table object shows, whatever others have renamed them to. Every method is one commit
    and returns a `CommitResult`. It raises `InvalidInput` if the change does not fit the columns of the table,
    `CommitConflict` if others have dropped a column that it names, `InvalidType` if an argument has an invalid type,
    and the commit errors of `Table.append`.
    """

    def __init__(self, commit: _Commit, set_exports: Callable[[str | Sequence[str]], CommitResult]) -> None:
        self._commit = commit
        self._set_exports = set_exports

    def add_column(self, column: str | pa.Field[pa.DataType], type: pa.DataType | None = None) -> CommitResult:  # noqa: A002 the field's word
        """Add a column after the others. Existing rows have nulls in it.

        Args:
            column: The name of the column, or a nullable field.
            type: The type of the column, if `column` is a name.

        Raises:
            InvalidInput: There is such a column, `scan_changes` adds one of this name, the name is empty, or the column
                is not nullable.
        """
        schema = _make_schema(column, type)
        return self._commit(lambda handle, timeout: _pds.add_column(handle, schema, timeout))

    def rename_column(self, column: str, to: str) -> CommitResult:
        """Rename the column `column` to `to`: not to "", nor to a name of `scan_changes`, such as `_change_type`."""
        require_text("column", column)
        check_schema(pa.schema([(require_text("to", to), pa.null())]))
        return self._commit(lambda handle, timeout: _pds.rename_column(handle, column, to, timeout))

    def drop_column(self, column: str) -> CommitResult:
        """Drop a column. A column of the key or of the sort order, or the only column, cannot be dropped."""
        require_text("column", column)
        return self._commit(lambda handle, timeout: _pds.drop_column(handle, column, timeout))

    def widen(self, column: str, type: pa.DataType) -> CommitResult:  # noqa: A002 the field's word
        """Change the type of a column to a type that holds all its values.

        Allowed are a wider integer or float, a decimal with more digits and the same scale, another type of strings
        or binaries (large, view), the value type of a dictionary, and structs and lists of the same kind with such
        changes.
        """
        schema = _make_schema(require_text("column", column), type)
        return self._commit(lambda handle, timeout: _pds.widen(handle, schema, timeout))

    def reorder(self, columns: list[str]) -> CommitResult:
        """Reorder the columns. `columns` has the names of all columns in the new order."""
        names = check_column_names(columns)
        if names is None:
            raise InvalidType("columns must be a list of column names, not None")
        return self._commit(lambda handle, timeout: _pds.reorder(handle, names, timeout))

    def exports(self, formats: str | Sequence[str]) -> CommitResult:
        """Set the formats to which every commit is exported; see `Table.exports`.

        The table is exported first, with the columns that earlier exports left out. So call `Table.export_delta` or
        `Table.export_iceberg` before, where columns are to be left out or another location is to be named.

        Args:
            formats: Some of `"delta"` and `"iceberg"`; an empty list ends exports, and what was exported stays.

        Raises:
            InvalidInput, ExportConflict: As for `Table.export_delta` and `Table.export_iceberg`. Nothing is committed.
        """
        return self._set_exports(formats)


def _make_schema(column: object, data_type: object) -> pa.Schema:
    """Return a schema with one column, made of a field or of a name and a type."""
    if not isinstance(column, pa.Field):
        if not isinstance(data_type, pa.DataType):
            raise InvalidType(f"type must be a pyarrow.DataType, not {data_type!r}")
        column = pa.field(require_text("column", column), data_type)
    elif data_type is not None:
        raise InvalidInput(f"field {column.name!r} has its own type; pass a field, or a name and a type")
    schema = pa.schema([column])
    check_schema(schema)
    return schema

"""Changes of a table's columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from pds import _pds
from pds.arguments import check_schema, column_names, require_text
from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from pds._pds import TableHandle, _Outcome
    from pds.table.results import CommitResult

_Commit = Callable[["Callable[[TableHandle, float], tuple[_Outcome, TableHandle]]"], "CommitResult"]


class Alter:
    """Adds, renames, drops, widens and orders columns; no data file is written again.

    Columns have identities that outlive their names: a column that is dropped and added again is
    another one, and rows that were written before have nulls in it. Older versions keep the columns
    they had. Writers that began before a change need not begin again.

    Every method commits at once, gives a `CommitResult` and raises `InvalidInput` where the change does not
    fit the columns there are, and otherwise what `Table.append` raises.
    """

    def __init__(self, commit: _Commit) -> None:
        self._commit = commit

    def add_column(self, column: str | pa.Field[pa.DataType], type: pa.DataType | None = None) -> CommitResult:  # noqa: A002 the field's word
        """Add a column behind the others; the rows there are have nulls in it.

        Args:
            column: Its name, with a type; or a field, which must be nullable.
            type: Its type.
        """
        schema = _one(column, type)
        return self._commit(lambda handle, timeout: _pds.add_column(handle, schema, timeout))

    def rename_column(self, column: str, to: str) -> CommitResult:
        """Give a column another name."""
        require_text("column", column)
        check_schema(pa.schema([(require_text("to", to), pa.null())]))
        return self._commit(lambda handle, timeout: _pds.rename_column(handle, column, to, timeout))

    def drop_column(self, column: str) -> CommitResult:
        """Drop a column, which may not be of the table's key or sort order."""
        require_text("column", column)
        return self._commit(lambda handle, timeout: _pds.rename_column(handle, column, None, timeout))

    def widen(self, column: str, type: pa.DataType) -> CommitResult:  # noqa: A002 the field's word
        """Give a column a type that holds every value of the one it has.

        A wider integer or float, more digits of a decimal with the same scale, a float that holds the
        halves, large or view strings and binaries, the values of a dictionary.
        """
        schema = _one(require_text("column", column), type)
        return self._commit(lambda handle, timeout: _pds.widen(handle, schema, timeout))

    def reorder(self, columns: list[str]) -> CommitResult:
        """Put all columns in another order."""
        names = column_names(columns)
        if names is None:
            raise InvalidType("columns must be a list of names, not None")
        return self._commit(lambda handle, timeout: _pds.reorder(handle, names, timeout))


def _one(column: object, kind: object) -> pa.Schema:
    """The schema of one column."""
    if not isinstance(column, pa.Field):
        if not isinstance(kind, pa.DataType):
            raise InvalidType(f"type must be a pyarrow.DataType, not {kind!r}")
        column = pa.field(require_text("column", column), kind)
    elif kind is not None:
        raise InvalidInput("a field has a type of its own; give a name and a type, or a field")
    schema = pa.schema([column])
    check_schema(schema)
    return schema

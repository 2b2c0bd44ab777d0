"""Files written anew so that reading costs less; the rows stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pds.predicate import predicate_of
from pds.table.checks import check_size, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from pds._pds import TableHandle, _Options, _Outcome
    from pds.table.results import CommitResult

_Rewrite = Callable[
    ["Callable[[TableHandle, _Options, float], tuple[_Outcome, TableHandle] | None]"], "CommitResult | None"
]

_TARGET_BYTES = 128 << 20


class Optimize:
    """Writes files anew; older versions keep theirs until a vacuum.

    Whoever appends or deletes meanwhile is not held up. How far it is, is logged as INFO by `pds.table`.
    Both methods give what was written, or None where nothing is worth it, and raise `CommitConflict` where
    others changed the same files until `commit_timeout`, and otherwise what `Table.append` raises.
    """

    def __init__(self, rewrite: _Rewrite, schema: pa.Schema) -> None:
        self._rewrite = rewrite
        self._schema = schema

    def compact(
        self, target_file_size: int = _TARGET_BYTES, *, where: str | pc.Expression | None = None
    ) -> CommitResult | None:
        """Write small files as larger ones, and files anew of which most rows are deleted.

        Small tombstone files become few. What is written comes last; rows keep their order in it, and are
        sorted where the table has a sort order.

        Args:
            target_file_size: Bytes. Files of fewer than half as many are joined with their neighbours.
            where: Only files that may hold rows for which this holds; as for `Table.scan`.
        """
        size = check_size("target_file_size", target_file_size)
        meant = None if where is None else predicate_of(where, self._schema)
        return self._rewrite(lambda handle, options, timeout: handle.compact(size, meant, options, timeout))

    def sort(
        self, by: str | Sequence[str] | None = None, *, target_file_size: int = _TARGET_BYTES
    ) -> CommitResult | None:
        """Write all rows anew, sorted, so that every file has a range of its own.

        Filters on these columns then read few files. Memory is bounded; what does not fit is kept in
        temporary files on the local disk. Rows that are equal keep their order; nulls come last.

        Args:
            by: Names of columns. None is the table's `sort_by`, or else its key.
            target_file_size: Bytes of a file, about.

        Raises:
            InvalidInput: There is no such column, it cannot be sorted, or no column is named.
        """
        size = check_size("target_file_size", target_file_size)
        names = None if by is None else names_of("by", by)
        return self._rewrite(lambda handle, options, timeout: handle.sort(names, size, options, timeout))

"""Rewrites of data files that make reads cheaper. The rows stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pds.predicate import to_predicate
from pds.progress import reported
from pds.table.checks import check_names, check_size
from pds.telemetry import traces

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from pds._pds import TableHandle
    from pds.engine_types import CommitFields, Options
    from pds.progress import ProgressArgument
    from pds.table.results import CommitResult

_Rewrite = Callable[
    ["Callable[[TableHandle, Options, float], tuple[CommitFields, TableHandle] | None]"], "CommitResult | None"
]

_TARGET_BYTES = 128 << 20


@traces("pds.table", "compact", "sort", owner=lambda optimize: optimize._rewrite.__self__)  # noqa: SLF001 of this class
class Optimize:
    """Rewrites data files. Older versions keep their files until a vacuum.

    Concurrent appends and deletes are not blocked. The progress is logged at level INFO by loggers below `pds.table`.
    Both methods return the result of the last commit, or None if no file needs a rewrite. They raise `CommitConflict`
    if nothing was committed because concurrent commits changed the same files in all attempts until `commit_timeout`,
    which begins when the new files are written; and the other commit errors of `Table.append`.
    """

    def __init__(self, rewrite: _Rewrite, schema: pa.Schema) -> None:
        self._rewrite = rewrite
        self._schema = schema

    def compact(
        self,
        target_file_size: int = _TARGET_BYTES,
        *,
        where: str | pc.Expression | None = None,
        progress: ProgressArgument = False,
    ) -> CommitResult | None:
        """Combine small files, and rewrite files in which most rows are deleted.

        Each new file is a commit of its own, with its own `commit_timeout`; files that others change all the time stay
        as they are. The result is that of the last commit, with the files and attempts of all. An error leaves the
        commits before it in place.

        Small tombstone files are combined too, in the last commit. New files come after the others. Their rows keep
        their order, or are sorted if the table has a sort order.

        Args:
            target_file_size: The size of new files, in bytes. Files of less than half this size are combined with
                their neighbors. Defaults to 128 MiB.
            where: A filter, as for `Table.scan`. Only files that may have matching rows are rewritten. Defaults to
                all files.
            progress: As for `Table.append`.

        Raises:
            InvalidInput: The size is not positive, or the filter is not valid.
            InvalidType: An argument has an invalid type.
        """
        size = check_size("target_file_size", target_file_size)
        predicate = None if where is None else to_predicate(where, self._schema)
        with reported("compact", progress):
            return self._rewrite(lambda handle, options, timeout: handle.compact(size, predicate, options, timeout))

    def sort(
        self,
        by: str | Sequence[str] | None = None,
        *,
        target_file_size: int = _TARGET_BYTES,
        progress: ProgressArgument = False,
    ) -> CommitResult | None:
        """Rewrite all rows in sorted order, so that every file has its own range of values.

        Filters on the sort columns then read few files. Memory is bounded: rows that do not fit are kept in temporary
        files on the local disk. The sort is stable, and nulls come last. Floats have one zero and one NaN, which is
        greater than any other value, as in DuckDB, polars and Spark.

        Args:
            by: The names of the sort columns. Defaults to the `sort_by` columns of the table, or else to its key.
            target_file_size: The approximate size of new files, in bytes. Defaults to 128 MiB.
            progress: As for `Table.append`. Rows count when they are written, after all of them were read and sorted.

        Raises:
            InvalidInput: A column does not exist or cannot be sorted, there is no sort column, or the size is not
                positive.
            InvalidType: An argument has an invalid type.
        """
        size = check_size("target_file_size", target_file_size)
        names = None if by is None else check_names("by", by)
        with reported("sort", progress):
            return self._rewrite(lambda handle, options, timeout: handle.sort(names, size, options, timeout))

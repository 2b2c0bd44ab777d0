"""Writes of which many processes stage the rows and one commits them."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pds import _pds
from pds.errors import CommitConflict, NotFound, RemoteStoreError, TransactionExpired
from pds.predicate import to_predicate
from pds.store import native_handle
from pds.table.options import CommitOptions
from pds.table.tasks import check_sendable

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    import pyarrow.compute as pc

    from pds.engine_types import CommitFields
    from pds.options import WriteOptions
    from pds.predicate import Predicate
    from pds.store import Store
    from pds.table.results import CommitResult
    from pds.table.table import Table

    Where = str | pc.Expression


class ReplacedRows(NamedTuple):
    """The rows that an overwrite with a filter replaces, as a `ReplacedSearch` found them."""

    searched: _pds.TableHandle
    """The version that was split into the tasks."""
    messages: list[bytes]
    """Those of all tasks."""


@dataclass(frozen=True)
class StagedWrite:
    """An append or an overwrite, to be pickled and sent to the processes that stage its rows.

    Files that are staged and never committed are invisible, until a vacuum removes them.
    """

    store: Store
    path: str
    overwrite: bool
    where: Where | None
    options: WriteOptions
    commit_options: CommitOptions
    # The version at which the write began, its columns and its sort order; and columns that the commit adds.
    task: bytes
    new_columns: tuple[str, ...] = ()
    # Names of columns of the caller's snapshot, or of that version, that none of the columns has.
    other_names: frozenset[str] = frozenset()

    @classmethod
    def begin(
        cls,
        table: Table,
        *,
        overwrite: bool,
        where: Where | None,
        idempotency_key: str | None,
        if_version: int | None,
        by_newest_names: bool = False,
    ) -> tuple[StagedWrite, CommitResult | None]:
        """Begin a write at the newest version, which the table then shows.

        Columns go by the names that they have in the snapshot that the table shows before, or by their newest names if
        rows are made later: then none of the former may have become that of another column.

        Returns:
            The write; and the result of the commit that had the idempotency key, if there is one: then nothing is to
            be written.

        Raises:
            InvalidInput: An argument or the filter is not valid, or the filter depends on the time or on chance or
                cannot be pickled.
            InvalidType: An argument has an invalid type.
            CommitConflict: `if_version` is not the newest version; or a column of the filter was dropped since the
                snapshot, or a name may mean two columns.
        """
        location = table._location  # noqa: SLF001 of the same package
        options = CommitOptions.checked(idempotency_key, if_version, location.timeout)
        predicate = None if where is None else to_predicate(where, table.schema)
        check_sendable(where)
        replays: list[bool] = []
        named: list[_pds.TableHandle] = []
        names = set(table.schema.names)

        def begin(handle: _pds.TableHandle) -> tuple[CommitFields | None, _pds.TableHandle]:
            commit, newest = _pds.begin_staged(handle, predicate, location.options, options)
            replays.append(commit is not None)
            if commit is not None:
                named.append(newest)
            elif by_newest_names:
                _pds.check_same_names(newest, handle, predicate)
                named.append(newest)
            else:
                named.append(_pds.name_columns(newest, handle, None))
            return commit, newest

        result = table._commit_with(begin)  # noqa: SLF001 as above
        if idempotency_key is None:
            # So that whoever does not know whether the commit happened can repeat it.
            options = options._replace(idempotency_key=f"pds {uuid.uuid4().hex}")
        (columns,) = named
        others = frozenset(names.union(table.schema.names).difference(columns.schema.names))
        task = _pds.writer_task(columns)
        write = cls(table.store, table.path, overwrite, where, location.options, options, task, other_names=others)
        return write, result if replays[0] else None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, without those that the commit adds."""
        return self.opened.schema

    def check_names(self, names: Iterable[str]) -> None:
        """Check that no name of rows is that of a column that others have dropped or renamed.

        Raises:
            CommitConflict: One is.
        """
        for name in names:
            if name in self.other_names:
                raise CommitConflict(
                    f"column {name!r} was renamed or dropped by another commit; refresh the table and write again",
                    path=self.path,
                )

    def with_new_columns(self, schema: pa.Schema) -> StagedWrite:
        """Return this append for rows with columns that the table does not have.

        The commit adds those, as nullable ones, together with the rows.

        Raises:
            InvalidInput: The name of a column is not valid, or the type of some of its values is not known.
            CommitConflict: As for `check_names`.
        """
        self.check_names(schema.names)
        known = self.schema
        names = tuple(name for name in schema.names if known.get_field_index(name) < 0)
        return replace(self, task=_pds.writer_task_with_columns(self.task, schema), new_columns=names)

    def stage(self, rows: pa.RecordBatchReader, threads: int | None = None) -> bytes:
        """Write rows as data files, and return a list of them for `commit`.

        Raises:
            InvalidInput: A column does not exist in the table, has a type whose values could be lost, or has a null
                and is not nullable; or a row does not match the filter.
        """
        handle = native_handle(self.store)
        return _pds.stage_rows(handle, self.path, self.task, rows, self._predicate(), self.options, threads)

    def with_key(self, idempotency_key: str) -> StagedWrite:
        """Return this write with another idempotency key."""
        return replace(self, commit_options=self.commit_options._replace(idempotency_key=idempotency_key))

    def discard(self, lists: list[bytes]) -> None:
        """Remove staged files that are not to be committed."""
        _pds.discard_staged(native_handle(self.store), self.path, lists)

    def commit(self, table: Table, lists: list[bytes], replaced: ReplacedRows | None = None) -> CommitResult:
        """Commit the staged files of lists, in this order. The same call again changes nothing.

        It removes no file, since an earlier call may have committed them. Errors are those of `Table.append`.

        Args:
            table: The table, which then shows the new version.
            lists: What `stage` returned.
            replaced: For an overwrite with a filter, the rows that tasks have found. The commit searches only files
                that came later then; else all that may have rows of the filter.

        Raises:
            TransactionExpired: As for `Table.append`; or the version at which the write began has been vacuumed, or the
                table was dropped and created again since then.
        """
        searched, messages = (None, []) if replaced is None else replaced
        return table._commit_with(  # noqa: SLF001 of the same package
            lambda handle: _pds.commit_staged(
                handle,
                self.task,
                lists,
                self.overwrite,
                self._predicate(),
                searched,
                messages,
                list(self.new_columns),
                self.options,
                self.commit_options,
            )
        )

    def commit_once(self, table: Table, lists: list[bytes], replaced: ReplacedRows | None = None) -> CommitResult:
        """Commit as `commit` does, if nobody can have called that before: then files are removed after a refusal."""
        try:
            return self.commit(table, lists, replaced)
        except (CommitConflict, NotFound, TransactionExpired):
            with contextlib.suppress(RemoteStoreError):
                self.discard(lists)
            raise

    def _predicate(self) -> str | Predicate | None:
        if self.where is None:
            return None
        return to_predicate(self.where, self.schema)

    @property
    def opened(self) -> _pds.TableHandle:
        """The version at which the write began, without files, its columns under the names that rows go by."""
        return _pds.open_scan_task(native_handle(self.store), self.path, self.task)

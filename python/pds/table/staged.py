"""Writes of which many processes stage the rows and one commits them."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pds import _pds
from pds.errors import CommitConflict, NotFound, RemoteStoreError, TransactionExpired
from pds.predicate import to_predicate
from pds.store import native_handle
from pds.table.options import CommitOptions
from pds.table.tasks import check_sendable, pack_columns

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from pds.engine_types import CommitFields
    from pds.options import WriteOptions
    from pds.predicate import Predicate
    from pds.store import Store
    from pds.table.results import CommitResult
    from pds.table.table import Table

    Where = str | pc.Expression


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
    # The version at which the write began, its columns and its sort order.
    task: bytes

    @classmethod
    def begin(
        cls,
        table: Table,
        *,
        overwrite: bool,
        where: Where | None,
        idempotency_key: str | None,
        if_version: int | None,
    ) -> tuple[StagedWrite, CommitResult | None]:
        """Begin a write at the newest version, which the table then shows.

        Returns:
            The write; and the result of the commit that had the idempotency key, if there is one: then nothing is to
            be written.

        Raises:
            InvalidInput: An argument or the filter is not valid, or the filter depends on the time or on chance or
                cannot be pickled.
            InvalidType: An argument has an invalid type.
            CommitConflict: `if_version` is not the newest version.
        """
        location = table._location  # noqa: SLF001 of the same package
        options = CommitOptions.checked(idempotency_key, if_version, location.timeout)
        predicate = None if where is None else to_predicate(where, table.schema)
        check_sendable(where)
        replays: list[bool] = []

        def begin(handle: _pds.TableHandle) -> tuple[CommitFields | None, _pds.TableHandle]:
            commit, newest = _pds.begin_staged(handle, predicate, location.options, options)
            replays.append(commit is not None)
            return commit, newest

        result = table._commit_with(begin)  # noqa: SLF001 as above
        if idempotency_key is None:
            # So that whoever does not know whether the commit happened can repeat it.
            options = options._replace(idempotency_key=f"pds {uuid.uuid4().hex}")
        write = cls(table.store, table.path, overwrite, where, location.options, options, pack_columns(table))
        return write, result if replays[0] else None

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

    def commit(self, table: Table, lists: list[bytes]) -> CommitResult:
        """Commit the staged files of lists, in this order. The same call again changes nothing.

        It removes no file, since an earlier call may have committed them. Errors are those of `Table.append`.

        Raises:
            TransactionExpired: As for `Table.append`; or the version at which the write began has been vacuumed, or the
                table was dropped and created again since then.
        """
        return table._commit_with(  # noqa: SLF001 of the same package
            lambda handle: _pds.commit_staged(
                handle, self.task, lists, self.overwrite, self._predicate(), self.options, self.commit_options
            )
        )

    def commit_once(self, table: Table, lists: list[bytes]) -> CommitResult:
        """Commit as `commit` does, if nobody can have called that before: then files are removed after a refusal."""
        try:
            return self.commit(table, lists)
        except (CommitConflict, NotFound, TransactionExpired):
            with contextlib.suppress(RemoteStoreError):
                self.discard(lists)
            raise

    def _predicate(self) -> str | Predicate | None:
        if self.where is None:
            return None
        handle = _pds.open_scan_task(native_handle(self.store), self.path, self.task)
        return to_predicate(self.where, handle.schema)

"""Tables: append and read snapshots of a folder of Parquet files, committed by compare-and-swap."""

from __future__ import annotations

__all__ = ["CheckResult", "CommitResult", "ScanPlan", "Table", "TableChanges", "TableScan", "Tags", "VacuumResult"]

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from pds import _pds
from pds.arguments import ArrowStream, arrow_stream, check_schema, is_in_memory, require_text
from pds.errors import AlreadyExists, InvalidInput, InvalidType
from pds.predicate import Predicate, predicate_of
from pds.store import Store, handle_of
from pds.table.alter import Alter
from pds.table.checks import check_key, check_limit, check_version, names_of
from pds.table.location import TableLocation
from pds.table.merge import Merge
from pds.table.optimize import Optimize
from pds.table.results import CheckResult, CommitResult, ScanPlan, VacuumResult, entry_of
from pds.table.scan import TableChanges, TableScan
from pds.table.snapshot import Snapshot
from pds.table.tags import Tags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow.compute as pc

    from pds._pds import _Outcome
    from pds.options import WriteOptions
    from pds.table.merge import Clauses

    Where = str | pc.Expression

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMEOUT_SECONDS = 120.0


class _Shown:
    """Guards which snapshot a table shows; anew in a forked child, which may lack the thread that held it."""

    lock = threading.Lock()


os.register_at_fork(after_in_child=lambda: setattr(_Shown, "lock", threading.Lock()))


class Table(Snapshot):
    """One snapshot of a table; it stays the same until `refresh`, whatever others commit.

    A table is a folder of immutable objects and one pointer that a conditional write moves; there is
    no catalog and no lock. Writes always go to the newest snapshot, and this object then shows what
    they made.

    Args:
        store: Where the table is. It must keep conditional writes, as S3, Azure Blob, Google Cloud
            Storage, local files and memory do.
        path: The table's folder, relative to the store.
        version: The snapshot. None is the newest.
        options: How data files are written. None is zstd and row groups of 1,048,576 rows.
        commit_timeout: Seconds that a commit is tried while other writers come first.

    Raises:
        NotFound: There is no table.
        VersionExpired: The version has been vacuumed.
        FormatNotSupported: A newer pds wrote the table.
        ManifestCorrupted: The pointer or the manifest cannot be used.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        version: int | None = None,
        options: WriteOptions | None = None,
        commit_timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        if version is not None:
            check_version(version)
        self._location = TableLocation.of(store, path, options, commit_timeout)
        self._handle = _pds.TableHandle.open(self._location.handle, path, version)

    @classmethod
    def _of(cls, location: TableLocation, handle: _pds.TableHandle) -> Self:
        table = cls.__new__(cls)
        table.__dict__.update(_location=location, _handle=handle)
        return table

    @classmethod
    def create(  # noqa: PLR0913 the signature of the design
        cls,
        store: Store,
        path: str,
        schema: pa.Schema,
        *,
        key: str | Sequence[str] = (),
        sort_by: str | Sequence[str] = (),
        exists_ok: bool = False,
        options: WriteOptions | None = None,
        commit_timeout: float = _TIMEOUT_SECONDS,
    ) -> Self:
        """Create an empty table.

        Args:
            store: Where the table shall be.
            path: The table's folder, relative to the store.
            schema: The columns.
            key: The columns that identify a row. They are not checked to be unique.
            sort_by: The columns that files are sorted by.
            exists_ok: Open the table if there is one with the same schema, key and order.
            options: As for `Table`.
            commit_timeout: As for `Table`.

        Raises:
            AlreadyExists: There is a table, or with `exists_ok` one with other columns, another key or order.
            ManifestCorrupted: There is no table, but manifests of one that was removed in part.
            UnsafeStore: The store does not keep conditions, so writers would undo one another.
            InvalidInput: Parquet cannot hold a column, by name; or a key is no column.
        """
        if not isinstance(schema, pa.Schema):
            raise InvalidType(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        check_schema(schema)
        location = TableLocation.of(store, path, options, commit_timeout)
        names = (names_of("key", key), names_of("sort_by", sort_by))
        try:
            return cls._of(location, _pds.TableHandle.create(location.handle, path, schema, *names))
        except AlreadyExists:
            if not exists_ok:
                raise
        found = cls._of(location, _pds.TableHandle.open(location.handle, path, None))
        if not found.schema.equals(schema):
            raise AlreadyExists(f"there is a table with other columns: {found.schema.names}", path=path)
        for name, wanted in zip(("key", "sort_by"), names, strict=True):
            there = found._columns_of(name)  # noqa: SLF001 ours
            if there != wanted:
                raise AlreadyExists(f"there is a table with {name}={there}, not {wanted}", path=path)
        return found

    def _columns_of(self, role: str) -> list[str]:
        """The names of the columns of the table's key, or of its order."""
        manifest = self._manifest()
        names = {column["id"]: column["name"] for column in manifest["schema"]["columns"]}
        return [names[column] for column in manifest[role]]

    @staticmethod
    def exists(store: Store, path: str) -> bool:
        """Whether there is a table."""
        return _pds.table_exists(handle_of(store), require_text("path", path))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.store, self.path, self.version, self._location.options, self._location.timeout)

    def __repr__(self) -> str:
        return f"Table({self.store!r}, {self.path!r}, version={self.version})"

    # -- what there is -----------------------------------------------------------

    @property
    def tags(self) -> Tags:
        """Names of versions."""
        return Tags(self.path, self.version, self._manifest()["tags"], self._tag)

    @property
    def alter(self) -> Alter:
        """Changes of the columns."""
        return Alter(self._commit)

    @property
    def optimize(self) -> Optimize:
        """Files written anew: compact, sort."""
        return Optimize(self._rewrite, self.schema)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """What was done, newest first, as far as it has not been vacuumed.

        Args:
            limit: So many versions at most.

        Returns:
            For each version: version, created_at, commit_id and operation (name and counts).
        """
        wanted = check_limit(limit)
        return [
            entry_of(json.loads(found)) for found in self._handle.history(self.version if wanted is None else wanted)
        ]

    def refresh(self) -> Self:
        """Show the newest snapshot from now on."""
        began = self._handle
        self._show(_pds.TableHandle.open(self._location.handle, self.path, None), began)
        return self

    def as_of(self, when: int | datetime | str) -> Self:
        """The table as it was.

        Args:
            when: A version; a time with a zone, for the version that was the newest then; or a tag.

        Raises:
            VersionExpired: It has been vacuumed; the error names the oldest version there is.
            NotFound: There is no such tag.
        """
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise InvalidInput(f"{when!r} has no time zone; give one, for instance tzinfo=datetime.UTC")
            return self._of(self._location, self._handle.at_time((when - _EPOCH) // _MICROSECOND))
        if isinstance(when, str):
            return self._of(self._location, self._handle.at(self.tags[when]))
        return self._of(self._location, self._handle.at(check_version(when)))

    # -- what can be done --------------------------------------------------------

    def append(self, data: ArrowStream, *, idempotency_key: str | None = None) -> CommitResult:
        """Add rows. Appends never conflict with one another.

        Args:
            data: Any object with `__arrow_c_stream__`, streamed in bounded memory. Columns are matched
                by name; those that are missing are null. A column may have another type if every value
                has its equal in the table's: fewer bits or digits, a coarser unit of time, another zone or
                dictionary.
            idempotency_key: Up to 1024 bytes. A second write with the same key changes nothing and gives
                the first one's result with `replayed=True`.

        Raises:
            InvalidInput: A column is not one of the table's, has a type whose values could be lost, or
                holds a null it may not.
            CommitConflict: Other writers came first until `commit_timeout`; nothing was committed.
            CommitStateUnknown: The store could not be asked whether the commit happened;
                `was_committed` tells later.
            TransactionExpired: A vacuum ran meanwhile that removed what had been written, or older columns
                were restored; write again.
        """
        return self._write(data, idempotency_key, overwrite=False)

    def overwrite(
        self, data: ArrowStream, where: Where | None = None, *, idempotency_key: str | None = None
    ) -> CommitResult:
        """Put rows in the place of all there are, or of those for which a predicate holds.

        With `where` no data file is written again. Rows that others bring meanwhile and for which it
        holds are replaced as well. The other arguments and errors are those of `append`.

        Args:
            data: As for `append`.
            where: As for `scan`; it must hold for every row of `data`. None is all rows.
            idempotency_key: As for `append`.

        Raises:
            InvalidInput: The predicate cannot be used, or does not hold for a new row.
        """
        if where is None:
            return self._write(data, idempotency_key, overwrite=True)
        return self._exchange(data, predicate_of(where, self.schema), None, idempotency_key)

    def upsert(
        self, data: ArrowStream, on: str | Sequence[str] | None = None, *, idempotency_key: str | None = None
    ) -> CommitResult:
        """Put rows in the place of those with the same key, and add those whose key is not there.

        The new rows are written to new files, and no data file again: of the files that may hold a
        key the columns of the key are read. Memory is bounded but for the keys of `data`. Of two that
        bring the same key at once one comes after the other.

        Args:
            data: As for `append`; columns that are missing are null.
            on: The columns that rows are matched by. None is the table's key.
            idempotency_key: As for `append`.

        Returns:
            `rows` is what was written; the history has `rows_deleted`.

        Raises:
            InvalidInput: As for `append`; or two rows of `data` have the same key, or one a null in it.
            CommitConflict, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        return self._exchange(data, None, None if on is None else names_of("on", on), idempotency_key)

    def merge(self, source: ArrowStream, on: str | Sequence[str] | None = None) -> Merge:
        """Change, delete and add rows as those of a source say: `when_…` clauses, then `execute`.

            table.merge(changes, on="id").when_matched_update_all().when_not_matched_insert_all().execute()

        Args:
            source: As `data` for `append`; it is held in memory, and may have columns that the table has not.
            on: The columns that rows are matched by. None is the table's key.
        """
        stream, names = arrow_stream(source), None if on is None else names_of("on", on)
        if isinstance(stream, pa.RecordBatchReader):
            # For every attempt anew.
            stream = stream.read_all()

        def execute(clauses: Clauses, key: str | None) -> CommitResult:
            before, location, began = self._requests(), self._location, self._handle
            outcome, handle = began.merge(stream, names, clauses, location.options, key, location.timeout)
            if outcome is not None:
                return self._done(outcome, handle, before, began)
            self._show(handle, began)
            return self._unchanged(before, handle)

        return Merge(execute)

    def _exchange(
        self, data: ArrowStream, where: str | Predicate | None, on: list[str] | None, idempotency_key: str | None
    ) -> CommitResult:
        check_key(idempotency_key)
        source = arrow_stream(data)
        before, began = self._requests(), self._handle
        outcome, handle = began.exchange(
            source, self._location.options, is_in_memory(data), where, on, idempotency_key, self._location.timeout
        )
        return self._done(outcome, handle, before, began)

    def _write(self, data: ArrowStream, idempotency_key: str | None, *, overwrite: bool) -> CommitResult:
        check_key(idempotency_key)
        source = arrow_stream(data)
        before, began = self._requests(), self._handle
        outcome, handle = began.write(
            source, self._location.options, is_in_memory(data), overwrite, idempotency_key, self._location.timeout
        )
        return self._done(outcome, handle, before, began)

    def delete(self, where: Where) -> CommitResult:
        """Delete the rows for which a predicate holds. No data file is written again.

        A range of the key, `"id BETWEEN 5 AND 9"`, is deleted without reading data. For any other predicate
        its columns are read. Rows that are appended meanwhile stay.

        Args:
            where: As for `scan`; "true" is all rows.

        Returns:
            `rows` is what was deleted, None where the range of a key was not counted; `bytes` what was
            written to say so. Where nothing is to be deleted nothing is committed, and `attempts` is 0.

        Raises:
            InvalidInput: The predicate cannot be used.
            CommitConflict, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        before, began = self._requests(), self._handle
        outcome, rows, size, handle = began.delete(predicate_of(where, self.schema), self._location.timeout)
        self._show(handle, began)
        requests = self._requests() - before
        if outcome is None:
            return self._unchanged(before, handle)
        version, commit_id, attempts, waited, replayed, *_ = outcome
        return CommitResult(version, commit_id, rows, 0, size, requests, attempts, waited, replayed)

    def add_files(self, paths: str | Sequence[str], *, idempotency_key: str | None = None) -> CommitResult:
        """Add Parquet files that are there already; their rows are not written again.

        Files within the table's folder stay where they are, and no vacuum removes them: from then on they
        must not be changed. Files elsewhere in the store are copied into the table, by the store itself
        where it can. Columns are matched by the names they have now, also after they are renamed.

        Args:
            paths: Paths relative to the store.
            idempotency_key: As for `append`.

        Raises:
            NotFound: There is no such file.
            PartCorrupted: It is no Parquet file.
            AlreadyExists: It is one of the table's files already.
            InvalidInput: It has a column that the table does not have, or of a type whose values could be
                lost, or may have nulls where the table may not; or it is one of the table's own objects.
            CommitConflict, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        check_key(idempotency_key)
        names = names_of("paths", paths)
        return self._commit(lambda handle, timeout: handle.add_files(names, idempotency_key, timeout))

    def restore(self, when: int | datetime | str) -> CommitResult:
        """Make the rows and columns of an older snapshot the newest; nothing is copied.

        Args:
            when: As for `as_of`.
        """
        version = self.as_of(when).version
        return self._commit(lambda handle, timeout: handle.restore(version, timeout))

    def vacuum(self, retention: timedelta = timedelta(days=7), *, dry_run: bool = False) -> VacuumResult:
        """Remove versions that were replaced longer ago than `retention`, and what only they need.

        Tagged versions stay. A write that began before the oldest version left fails with
        TransactionExpired, so `retention` should be longer than the longest write.

        Args:
            retention: By the store's clock.
            dry_run: Only say what would be removed.
        """
        if not isinstance(retention, timedelta):
            raise InvalidType(f"retention must be a timedelta, not {type(retention).__name__}")
        found = VacuumResult(*self._handle.vacuum(retention.total_seconds(), dry_run, self._location.timeout))
        if not dry_run:
            self.refresh()
        return found

    def check(self) -> CheckResult:
        """Whether everything is there that the newest version and those before it name; sizes are compared.

        No data is read. The table is looked at as it is now, whatever snapshot this object shows.
        """
        return CheckResult(*self._handle.check())

    def was_committed(self, commit_id: str) -> int | None:
        """The version that a commit made, None if it made none. For CommitStateUnknown."""
        return self._handle.was_committed(require_text("commit_id", commit_id))

    def _commit(self, change: Callable[[_pds.TableHandle, float], tuple[_Outcome, _pds.TableHandle]]) -> CommitResult:
        before, began = self._requests(), self._handle
        return self._done(*change(began, self._location.timeout), before, began)

    def _rewrite(
        self, rewrite: Callable[[_pds.TableHandle, WriteOptions, float], tuple[_Outcome, _pds.TableHandle] | None]
    ) -> CommitResult | None:
        before, began = self._requests(), self._handle
        done = rewrite(began, self._location.options, self._location.timeout)
        return None if done is None else self._done(*done, before, began)

    def _tag(self, name: str, version: int | None) -> CommitResult:
        return self._commit(lambda handle, timeout: handle.tag(name, version, timeout))

    def _requests(self) -> int:
        return self.store.metrics()["requests"]

    def _unchanged(self, before: int, handle: _pds.TableHandle) -> CommitResult:
        return CommitResult(handle.version, "", 0, 0, 0, self._requests() - before, 0, 0.0, replayed=False)

    def _done(self, outcome: _Outcome, handle: _pds.TableHandle, before: int, began: _pds.TableHandle) -> CommitResult:
        self._show(handle, began)
        return CommitResult.of(outcome, self._requests() - before)

    def _show(self, handle: _pds.TableHandle, began: _pds.TableHandle) -> None:
        """Show what a call gave that began with `began`, unless another thread's call has given a newer one."""
        with _Shown.lock:
            if self._handle is began or handle.created_at >= self._handle.created_at:
                self._handle = handle


def _reopen(store: Store, path: str, version: int, options: WriteOptions, commit_timeout: float) -> Table:
    return Table(store, path, version=version, options=options, commit_timeout=commit_timeout)

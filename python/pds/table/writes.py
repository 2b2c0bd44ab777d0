"""Commits of rows to a table."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Literal, Self

import pyarrow as pa

from pds import _pds
from pds.arguments import check_schema_mode
from pds.flags import require_bool
from pds.inputs import read_rows
from pds.predicate import Predicate, to_predicate
from pds.progress import reported
from pds.streams import ArrowStream, is_in_memory, read_stream
from pds.table.checks import check_idempotency_key, check_names
from pds.table.export_calls import export_committed
from pds.table.merge import Merge
from pds.table.options import CommitOptions
from pds.table.results import CommitResult
from pds.table.snapshot import Snapshot
from pds.telemetry import run_traced, traces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow.compute as pc

    from pds.engine_types import CommitFields
    from pds.options import WriteOptions
    from pds.progress import ProgressArgument
    from pds.table.merge import MergeClause

    Where = str | pc.Expression


class _SnapshotGuard:
    """The lock for changes of `Table._handle`. A forked child gets a new lock, which no thread of the parent holds."""

    lock = threading.Lock()


os.register_at_fork(after_in_child=lambda: setattr(_SnapshotGuard, "lock", threading.Lock()))


@traces("pds.table", "append", "overwrite", "upsert", "delete", "add_files")
class Writes(Snapshot):
    """A snapshot with methods that commit rows, and take the snapshot that they made."""

    def refresh(self) -> Self:
        """Change this object to the newest snapshot of the table, and return it."""
        base_handle = self._handle
        self._update_snapshot(_pds.TableHandle.open(self._location.handle, self.path, None), base_handle)
        return self

    def append(
        self,
        data: ArrowStream,
        *,
        schema_mode: Literal["strict", "merge"] = "strict",
        idempotency_key: str | None = None,
        if_version: int | None = None,
        progress: ProgressArgument = False,
    ) -> CommitResult:
        """Append rows. Concurrent appends do not conflict.

        Args:
            data: Any object with `__arrow_c_stream__`. A stream is written in bounded memory. The index of a data frame
                of pandas is a column if it has a name, and is left out if it has none. Columns are matched by name, as
                this object shows them: one that others have renamed is followed. Missing columns are null. A column
                may have another type than in the table if the type of the table holds all its values: a type with
                fewer bits or digits, a coarser unit of time, another time zone or dictionary.
            schema_mode: What to do with columns that the table does not have: `"strict"` refuses them, `"merge"` adds
                them to the table, in the same commit and as nullable ones; but not columns of the type null. A column
                with a null type within its type, such as a list of nulls, and the names of the columns of
                `scan_changes` are refused.
            idempotency_key: A text of up to 1024 bytes. A second write with the same key changes nothing, and
                returns the result of the first write with `replayed=True`.
            if_version: Commit only if this is the newest version of the table, for a write of rows that were made from
                those that were read. Defaults to any version. If this handle is at that version, a table that was
                dropped and created anew since is a conflict too.
            progress: True for a bar on standard error or in a notebook, or a function that is called with a
                `pds.Progress` about five times a second, and once at the end. All calls are of one other thread, not of
                this one. An error of it is logged, and ends the calls but not the operation.

        Raises:
            InvalidInput: A column does not exist in the table, has a type whose values could be lost, or has a
                null and is not nullable; or the reader `data` raised an exception, which is the `__cause__`.
            InvalidType: An argument has an invalid type.
            CommitConflict: The commit lost all races against other writers until `commit_timeout`, or `if_version` is
                not the newest version; or other commits dropped a column of `data`. Nothing was committed.
            CommitStateUnknown: The store did not confirm the commit. Check later with `was_committed`.
            TransactionExpired: A vacuum removed the written files, the table was dropped and created again, a restore
                changed the columns, or another commit added or renamed a column with the name of a new one, before the
                commit. Nothing was committed. Repeat the write.
        """
        check_schema_mode(schema_mode)
        mode = "merge_schema" if schema_mode == "merge" else "append"
        with reported("append", progress, data):
            return self._write(data, mode, idempotency_key, if_version)

    def overwrite(
        self,
        data: ArrowStream,
        where: Where | None = None,
        *,
        idempotency_key: str | None = None,
        if_version: int | None = None,
        progress: ProgressArgument = False,
    ) -> CommitResult:
        """Replace all rows, or the rows that match a filter.

        With `where`, no data file is rewritten, and rows that concurrent commits add are replaced too if they match.

        Args:
            data: As for `append`.
            where: A filter, as for `scan`. Every row of `data` must match it. Defaults to all rows.
            idempotency_key: As for `append`.
            if_version: As for `append`. Without it, rows that were committed since you read are replaced as well.
            progress: As for `append`.

        Raises:
            InvalidInput: As for `append`; or the filter is not valid, or a new row does not match it.
            CommitConflict: As for `append` and `delete`.
            InvalidType, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        with reported("overwrite", progress, data):
            if where is None:
                return self._write(data, "overwrite", idempotency_key, if_version)
            commit = self._commit_options(idempotency_key, if_version)
            return self._replace_rows(data, to_predicate(where, self.schema), None, commit)

    def upsert(
        self,
        data: ArrowStream,
        on: str | Sequence[str] | None = None,
        *,
        idempotency_key: str | None = None,
        if_version: int | None = None,
        progress: ProgressArgument = False,
    ) -> CommitResult:
        """Replace the rows that have the same key as new rows, and insert the other new rows.

        The new rows are written to new files, and no data file is rewritten. The key columns are read from the files
        that may have a key of `data`. Memory is bounded except for the keys of `data`. Concurrent upserts of the same
        key are applied one after the other.

        Args:
            data: As for `append`. Missing columns are null.
            on: The names of the columns that rows are matched by. Defaults to the key of the table.
            idempotency_key: As for `append`.
            if_version: As for `append`.
            progress: As for `append`.

        Returns:
            `rows` is the number of written rows. The history has `rows_deleted`.

        Raises:
            InvalidInput: As for `append`; or two rows of `data` have the same key, or a key has a null.
            InvalidType, CommitConflict, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        commit = self._commit_options(idempotency_key, if_version)
        with reported("upsert", progress, data):
            return self._replace_rows(data, None, None if on is None else check_names("on", on), commit)

    def merge(self, source: ArrowStream, on: str | Sequence[str] | None = None) -> Merge:
        """Update, delete and insert rows by the rows of a source: add clauses with `when_…`, and then `execute`.

            table.merge(changes, on="id").when_matched_update_all().when_not_matched_insert_all().execute()

        Args:
            source: As `data` for `append`. The source is held in memory, and may have columns that the table does
                not have.
            on: The names of the columns that rows are matched by. Defaults to the key of the table.

        Raises:
            InvalidInput, InvalidType: An argument is not valid. `Merge.execute` raises the other errors.
        """
        names = None if on is None else check_names("on", on)
        with read_stream(source) as rows:
            # Every attempt reads the source from its beginning.
            data = read_rows(rows) if isinstance(rows, pa.RecordBatchReader) else rows

        def execute(
            clauses: list[MergeClause],
            idempotency_key: str | None,
            if_version: int | None,
            progress: ProgressArgument,
        ) -> CommitResult:
            options, commit = self._location.options, self._commit_options(idempotency_key, if_version)
            with reported("merge", progress):
                return run_traced(
                    "pds.table.merge",
                    self._location.url,
                    lambda: self._commit_with(lambda handle: handle.merge(data, names, clauses, options, commit)),
                )

        return Merge(execute)

    def _commit_options(self, idempotency_key: str | None, if_version: int | None) -> CommitOptions:
        return CommitOptions.checked(idempotency_key, if_version, self._location.timeout)

    def _replace_rows(
        self, data: ArrowStream, where: str | Predicate | None, on: list[str] | None, commit: CommitOptions
    ) -> CommitResult:
        options, in_memory = self._location.options, is_in_memory(data)
        with read_stream(data) as source:
            return self._commit_with(lambda handle: handle.replace_rows(source, where, on, options, in_memory, commit))

    def _write(self, data: ArrowStream, mode: str, idempotency_key: str | None, if_version: int | None) -> CommitResult:
        commit = self._commit_options(idempotency_key, if_version)
        options, in_memory = self._location.options, is_in_memory(data)
        with read_stream(data) as source:
            return self._commit_with(lambda handle: handle.write(source, mode, options, in_memory, commit))

    def delete(self, where: Where, *, progress: ProgressArgument = False) -> CommitResult:
        """Delete the rows that match a filter. No data file is rewritten.

        A range of the key, such as `"id BETWEEN 5 AND 9"`, is deleted without a read of data. For any other filter,
        its columns are read. Rows that concurrent commits append are not deleted.

        Args:
            where: A filter, as for `scan`. "true" matches all rows. It is about the columns that this object shows,
                whatever others have named them since.
            progress: As for `append`. Files are those whose rows are compared with the filter, of all that may have
                matching rows; rows and bytes are those of the result, and known at the end.

        Returns:
            `rows` is the number of deleted rows, or None if the rows of a key range were not counted. `bytes` is
            the size of the new tombstones. If no row matches, nothing is committed and `attempts` is 0.

        Raises:
            InvalidInput: The filter is not valid.
            CommitConflict: As for `append`; or other commits dropped a column of the filter, or changed its type so
                that the filter may mean something else.
            InvalidType, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        predicate = to_predicate(where, self.schema)
        with reported("delete", progress):
            return self._commit_with(lambda handle: handle.delete(predicate, self._location.timeout))

    def add_files(
        self,
        paths: str | Sequence[str],
        *,
        hive_partitioning: bool = False,
        idempotency_key: str | None = None,
        progress: ProgressArgument = False,
    ) -> CommitResult:
        """Add existing Parquet files to the table. Their rows are not rewritten.

        Files in the folder of the table stay where they are, and a vacuum does not remove them. They must not be
        changed any more: one that is written again, even with the same rows, is PartCorrupted from then on. Files
        elsewhere in the store are copied into the folder, by the store itself if it can copy.
        Columns are matched by their current names in the table, and stay matched when a column is renamed later.

        Args:
            paths: The path of a file, or a list of paths, relative to the store.
            hive_partitioning: Whether folders `name=value` of a path are values of columns that the file does not
                hold, as Hive, Spark and pyarrow lay datasets out. Values are percent-decoded, and
                `__HIVE_DEFAULT_PARTITION__` is null; a time without an offset is one of the column's time zone.
                Where a file holds the column, its own values count.
            idempotency_key: As for `append`.
            progress: As for `append`.

        Raises:
            NotFound: A file does not exist.
            PartCorrupted: A file is not a Parquet file.
            AlreadyExists: A file is a data file of the table already.
            InvalidInput: A file has a column that the table does not have, a type whose values could be lost, or
                possible nulls in a column that is not nullable; a path is that of an internal object of the table; or a
                folder `name=value` names no column of the table, or a value that its type does not have exactly.
            InvalidType, CommitConflict, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        check_idempotency_key(idempotency_key)
        names = check_names("paths", paths)
        require_bool("hive_partitioning", hive_partitioning)
        with reported("add_files", progress):
            return self._commit(
                lambda handle, timeout: handle.add_files(names, hive_partitioning, idempotency_key, timeout)
            )

    def _commit(
        self, change: Callable[[_pds.TableHandle, float], tuple[CommitFields, _pds.TableHandle]]
    ) -> CommitResult:
        return self._commit_with(lambda handle: change(handle, self._location.timeout))

    def _commit_with(
        self, change: Callable[[_pds.TableHandle], tuple[CommitFields | None, _pds.TableHandle]]
    ) -> CommitResult:
        requests_before, base_handle = self._count_requests(), self._handle
        return self._finish_commit(*change(base_handle), requests_before, base_handle)

    def _rewrite(
        self, rewrite: Callable[[_pds.TableHandle, WriteOptions, float], tuple[CommitFields, _pds.TableHandle] | None]
    ) -> CommitResult | None:
        requests_before, base_handle = self._count_requests(), self._handle
        result = rewrite(base_handle, self._location.options, self._location.timeout)
        if result is None:
            self.refresh()
            return None
        return self._finish_commit(*result, requests_before, base_handle)

    def _set_tag(self, name: str, version: int | None) -> CommitResult:
        return self._commit(lambda handle, timeout: handle.tag(name, version, timeout))

    def _count_requests(self) -> int:
        return self.store.metrics()["requests"]

    def _finish_commit(
        self,
        commit: CommitFields | None,
        handle: _pds.TableHandle,
        requests_before: int,
        base_handle: _pds.TableHandle,
    ) -> CommitResult:
        """Take the snapshot of an operation, and return its result; without a commit there was nothing to do."""
        self._update_snapshot(handle, base_handle)
        if commit is None:
            return CommitResult.nothing(handle.version, self._count_requests() - requests_before)
        exports = export_committed(self._location, handle)
        return CommitResult.of(commit, self._count_requests() - requests_before, exports)

    def _update_snapshot(self, handle: _pds.TableHandle, base_handle: _pds.TableHandle) -> None:
        """Take the snapshot of an operation based on `base_handle`, unless another thread has set a newer one."""
        with _SnapshotGuard.lock:
            if self._handle is base_handle or handle.created_at >= self._handle.created_at:
                self._handle = handle

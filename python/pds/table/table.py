"""Tables: snapshots of a folder of Parquet files, and commits of new ones."""

from __future__ import annotations

__all__ = [
    "CheckResult",
    "CommitResult",
    "ScanPlan",
    "Table",
    "TableChanges",
    "TableScan",
    "Tags",
    "VacuumResult",
    "list_tables",
]

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from pds import _pds
from pds.arguments import ArrowStream, arrow_stream, check_schema, is_in_memory, require_text
from pds.errors import AlreadyExists, InvalidInput, InvalidType
from pds.predicate import Predicate, to_predicate
from pds.store import Store, native_handle
from pds.table.alter import Alter
from pds.table.checks import check_idempotency_key, check_limit, check_names, check_version
from pds.table.location import TableLocation
from pds.table.merge import Merge
from pds.table.optimize import Optimize
from pds.table.options import CommitOptions
from pds.table.results import CheckResult, CommitResult, ScanPlan, VacuumResult, make_history_entry
from pds.table.scan import TableChanges, TableScan
from pds.table.snapshot import Snapshot
from pds.table.tags import Tags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow.compute as pc

    from pds._pds import _CommitFields
    from pds.options import WriteOptions
    from pds.table.merge import MergeClause

    Where = str | pc.Expression

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMEOUT_SECONDS = 120.0


class _SnapshotGuard:
    """The lock for changes of `Table._handle`. A forked child gets a new lock, which no thread of the parent holds."""

    lock = threading.Lock()


os.register_at_fork(after_in_child=lambda: setattr(_SnapshotGuard, "lock", threading.Lock()))


class Table(Snapshot):
    """A snapshot of a table. It does not change until `refresh`, a write or a vacuum of this object.

    A table is a folder of immutable objects and one pointer, which conditional writes move. There is no catalog and
    no lock. A write is always based on the newest snapshot. After a write, this object has the snapshot that the
    write made, or the newest snapshot if there was nothing to write.

    Args:
        store: The store of the table. It must honor conditional writes, as S3, Azure Blob Storage, Google Cloud
            Storage, local files and memory do.
        path: The folder of the table, relative to the store.
        version: The version of the snapshot. Defaults to the newest version.
        options: The options of data files. Defaults to zstd and row groups of 1,048,576 rows.
        commit_timeout: The time in seconds in which a commit is attempted again after conflicts with other writers. It
            does not include the work before the first attempt, such as uploads.

    Raises:
        NotFound: The table does not exist.
        VersionExpired: A vacuum removed the version.
        FormatNotSupported: A newer version of pds wrote the table.
        ManifestCorrupted: The pointer or the manifest is not valid.
        InvalidInput: The version does not exist, or an argument is not valid.
        InvalidType: An argument has an invalid type.
        UnsafeStore: The store is a `remote_store.Store`.
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
        self._location = TableLocation.from_arguments(store, path, options, commit_timeout=commit_timeout)
        self._handle = _pds.TableHandle.open(self._location.handle, path, version)

    @classmethod
    def _from_handle(cls, location: TableLocation, handle: _pds.TableHandle) -> Self:
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
            store: The store of the table.
            path: The folder of the table, relative to the store.
            schema: The schema of the table.
            key: The names of the columns that identify a row. Uniqueness is not checked. Defaults to no key.
            sort_by: The names of the columns that files are sorted by. Defaults to no sort order.
            exists_ok: Whether to open an existing table that has the same schema, key and sort order.
            options: As for `Table`.
            commit_timeout: As for `Table`.

        Raises:
            AlreadyExists: The table exists, or, with `exists_ok`, has another schema, key or sort order.
            ManifestCorrupted: The folder has manifests of a table that was removed in part.
            UnsafeStore: The store does not honor conditional writes, so writers would overwrite each other.
            InvalidInput: Parquet cannot store a column, which the message names, or a column of `key` or
                `sort_by` does not exist.
            InvalidType: An argument has an invalid type.
        """
        if not isinstance(schema, pa.Schema):
            raise InvalidType(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        check_schema(schema)
        location = TableLocation.from_arguments(store, path, options, commit_timeout=commit_timeout)
        names = (check_names("key", key), check_names("sort_by", sort_by))
        try:
            return cls._from_handle(location, _pds.TableHandle.create(location.handle, path, schema, *names))
        except AlreadyExists:
            if not exists_ok:
                raise
        table = cls._from_handle(location, _pds.TableHandle.open(location.handle, path, None))
        if not table.schema.equals(schema):
            raise AlreadyExists(f"the table exists with other columns: {table.schema.names}", path=path)
        for role, expected in zip(("key", "sort_by"), names, strict=True):
            existing = table._get_column_names(role)  # noqa: SLF001 an instance of this class
            if existing != expected:
                raise AlreadyExists(f"the table exists with {role}={existing}, not {role}={expected}", path=path)
        return table

    def _get_column_names(self, role: str) -> list[str]:
        """Return the names of the columns of the key (`key`) or of the sort order (`sort_by`)."""
        manifest = self._parse_manifest()
        names = {column["id"]: column["name"] for column in manifest["schema"]["columns"]}
        return [names[column_id] for column_id in manifest[role]]

    @staticmethod
    def exists(store: Store, path: str) -> bool:
        """Return whether a table exists at `path`."""
        return _pds.table_exists(native_handle(store), require_text("path", path))

    @staticmethod
    def drop(store: Store, path: str) -> None:
        """Remove a table with all its versions. There is no way back.

        Stop its writers before: a commit that is under way fails, or leaves objects that block a new table at
        `path`. Files of the table's folder that `add_files` left in place stay. A removal that was interrupted is
        finished by another one.

        Raises:
            NotFound: There is no table at `path`.
            InvalidType: An argument has an invalid type.
        """
        _pds.drop_table(native_handle(store), require_text("path", path))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.store, self.path, self.version, self._location.options, self._location.timeout)

    def __repr__(self) -> str:
        return f"Table({self.store!r}, {self.path!r}, version={self.version})"

    # -- reading -----------------------------------------------------------------

    @property
    def tags(self) -> Tags:
        """The tags of this snapshot, with methods that create and delete tags."""
        return Tags(self.path, self.version, self._parse_manifest()["tags"], self._set_tag)

    @property
    def alter(self) -> Alter:
        """Schema evolution: add, rename, drop, widen and reorder columns."""
        return Alter(self._commit)

    @property
    def optimize(self) -> Optimize:
        """Rewrites of data files: compact, sort."""
        return Optimize(self._rewrite, self.schema)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the commits up to this snapshot, newest first, without those that a vacuum removed.

        Args:
            limit: The maximum number of versions. Defaults to all versions.

        Returns:
            A dict for each version: `version`, `created_at`, `commit_id` and `operation` (a name and counts).
        """
        checked_limit = check_limit(limit)
        entries = self._handle.history(self.version if checked_limit is None else checked_limit)
        return [make_history_entry(json.loads(entry)) for entry in entries]

    def refresh(self) -> Self:
        """Change this object to the newest snapshot of the table, and return it."""
        base_handle = self._handle
        self._update_snapshot(_pds.TableHandle.open(self._location.handle, self.path, None), base_handle)
        return self

    def as_of(self, when: int | datetime | str) -> Self:
        """Return an older snapshot of the table (time travel).

        Args:
            when: A version; a time with a time zone, for the newest version at that time; or a tag of this snapshot.

        Raises:
            VersionExpired: A vacuum removed the version. The message names the oldest version.
            NotFound: The tag does not exist.
            InvalidInput: The version does not exist, or the time has no time zone.
            InvalidType: `when` is neither a version, a time nor a tag.
        """
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise InvalidInput(f"{when!r} has no time zone; add one, for example tzinfo=datetime.UTC")
            return self._from_handle(self._location, self._handle.at_time((when - _EPOCH) // _MICROSECOND))
        if isinstance(when, str):
            return self._from_handle(self._location, self._handle.at(self.tags[when]))
        return self._from_handle(self._location, self._handle.at(check_version(when)))

    # -- writing -----------------------------------------------------------------

    def append(
        self,
        data: ArrowStream,
        *,
        schema_mode: Literal["strict", "merge"] = "strict",
        idempotency_key: str | None = None,
        if_version: int | None = None,
    ) -> CommitResult:
        """Append rows. Concurrent appends do not conflict.

        Args:
            data: Any object with `__arrow_c_stream__`. A stream is written in bounded memory. Columns are matched
                by name, and missing columns are null. A column may have another type than in the table if the
                type of the table holds all its values: a type with fewer bits or digits, a coarser unit of time,
                another time zone or dictionary.
            schema_mode: What to do with columns that the table does not have: `"strict"` refuses them, `"merge"` adds
                them to the table, in the same commit and as nullable ones; but not columns of the type null.
            idempotency_key: A text of up to 1024 bytes. A second write with the same key changes nothing, and
                returns the result of the first write with `replayed=True`.
            if_version: Commit only if this is the newest version of the table, for a write of rows that were made from
                those that were read. Defaults to any version.

        Raises:
            InvalidInput: A column does not exist in the table, has a type whose values could be lost, or has a
                null and is not nullable.
            InvalidType: An argument has an invalid type.
            CommitConflict: The commit lost all races against other writers until `commit_timeout`, or `if_version` is
                not the newest version. Nothing was committed.
            CommitStateUnknown: The store did not confirm the commit. Check later with `was_committed`.
            TransactionExpired: A vacuum removed the written files, or a restore changed the columns, before the
                commit. Nothing was committed. Repeat the write.
        """
        if schema_mode not in ("strict", "merge"):
            raise InvalidInput(f'schema_mode must be "strict" or "merge", not {schema_mode!r}')
        mode = "merge_schema" if schema_mode == "merge" else "append"
        return self._write(data, mode, idempotency_key, if_version)

    def overwrite(
        self,
        data: ArrowStream,
        where: Where | None = None,
        *,
        idempotency_key: str | None = None,
        if_version: int | None = None,
    ) -> CommitResult:
        """Replace all rows, or the rows that match a filter.

        With `where`, no data file is rewritten, and rows that concurrent commits add are replaced too if they match.

        Args:
            data: As for `append`.
            where: A filter, as for `scan`. Every row of `data` must match it. Defaults to all rows.
            idempotency_key: As for `append`.
            if_version: As for `append`. Without it, rows that were committed since you read are replaced as well.

        Raises:
            InvalidInput: As for `append`; or the filter is not valid, or a new row does not match it.
            InvalidType, CommitConflict, CommitStateUnknown, TransactionExpired: As for `append`.
        """
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

        Returns:
            `rows` is the number of written rows. The history has `rows_deleted`.

        Raises:
            InvalidInput: As for `append`; or two rows of `data` have the same key, or a key has a null.
            InvalidType, CommitConflict, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        commit = self._commit_options(idempotency_key, if_version)
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
        data, names = arrow_stream(source), None if on is None else check_names("on", on)
        if isinstance(data, pa.RecordBatchReader):
            # Every attempt reads the source from its beginning.
            data = data.read_all()

        def execute(clauses: list[MergeClause], idempotency_key: str | None, if_version: int | None) -> CommitResult:
            options, commit = self._location.options, self._commit_options(idempotency_key, if_version)
            return self._commit_with(lambda handle: handle.merge(data, names, clauses, options, commit))

        return Merge(execute)

    def _commit_options(self, idempotency_key: str | None, if_version: int | None) -> CommitOptions:
        return CommitOptions.checked(idempotency_key, if_version, self._location.timeout)

    def _replace_rows(
        self, data: ArrowStream, where: str | Predicate | None, on: list[str] | None, commit: CommitOptions
    ) -> CommitResult:
        source, options = arrow_stream(data), self._location.options
        in_memory = is_in_memory(data)
        return self._commit_with(lambda handle: handle.replace_rows(source, where, on, options, in_memory, commit))

    def _write(self, data: ArrowStream, mode: str, idempotency_key: str | None, if_version: int | None) -> CommitResult:
        commit = self._commit_options(idempotency_key, if_version)
        source, options = arrow_stream(data), self._location.options
        in_memory = is_in_memory(data)
        return self._commit_with(lambda handle: handle.write(source, mode, options, in_memory, commit))

    def delete(self, where: Where) -> CommitResult:
        """Delete the rows that match a filter. No data file is rewritten.

        A range of the key, such as `"id BETWEEN 5 AND 9"`, is deleted without a read of data. For any other filter,
        its columns are read. Rows that concurrent commits append are not deleted.

        Args:
            where: A filter, as for `scan`. "true" matches all rows.

        Returns:
            `rows` is the number of deleted rows, or None if the rows of a key range were not counted. `bytes` is
            the size of the new tombstones. If no row matches, nothing is committed and `attempts` is 0.

        Raises:
            InvalidInput: The filter is not valid.
            InvalidType, CommitConflict, CommitStateUnknown, TransactionExpired: As for `append`.
        """
        predicate = to_predicate(where, self.schema)
        return self._commit_with(lambda handle: handle.delete(predicate, self._location.timeout))

    def add_files(
        self,
        paths: str | Sequence[str],
        *,
        hive_partitioning: bool = False,
        idempotency_key: str | None = None,
    ) -> CommitResult:
        """Add existing Parquet files to the table. Their rows are not rewritten.

        Files in the folder of the table stay where they are, and a vacuum does not remove them. They must not be
        changed any more. Files elsewhere in the store are copied into the folder, by the store itself if it can copy.
        Columns are matched by their current names in the table, and stay matched when a column is renamed later.

        Args:
            paths: The path of a file, or a list of paths, relative to the store.
            hive_partitioning: Whether folders `name=value` of a path are values of columns that the file does not
                hold, as Hive, Spark and pyarrow lay datasets out. Values are percent-decoded, and
                `__HIVE_DEFAULT_PARTITION__` is null; a time without an offset is one of the column's time zone.
                Where a file holds the column, its own values count.
            idempotency_key: As for `append`.

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
        return self._commit(
            lambda handle, timeout: handle.add_files(names, hive_partitioning, idempotency_key, timeout)
        )

    def restore(self, when: int | datetime | str) -> CommitResult:
        """Commit a new version that has the rows and columns of an older snapshot. No data is copied.

        Args:
            when: As for `as_of`.

        Raises:
            The errors of `as_of`, and the commit errors of `append`.
        """
        version = self.as_of(when).version
        return self._commit(lambda handle, timeout: handle.restore(version, timeout))

    def vacuum(self, retention: timedelta = timedelta(days=7), *, dry_run: bool = False) -> VacuumResult:
        """Remove versions that were replaced longer ago than `retention`, and the objects that only they reference.

        Tagged versions stay. A write that began before the oldest remaining version fails with TransactionExpired, so
        `retention` should be longer than the longest write.

        Args:
            retention: The minimum age, by the clock of the store. Defaults to 7 days.
            dry_run: Whether to list the objects and remove nothing.

        Raises:
            InvalidInput: The retention is negative.
            InvalidType: The retention is not a timedelta.
            CommitConflict, CommitStateUnknown: As for `append`.
        """
        if not isinstance(retention, timedelta):
            raise InvalidType(f"retention must be a timedelta, not {type(retention).__name__}")
        result = VacuumResult(**self._handle.vacuum(retention.total_seconds(), dry_run, self._location.timeout))
        if not dry_run:
            self.refresh()
        return result

    def check(self) -> CheckResult:
        """Check that the objects of the newest version and of the versions before it exist, without reading data.

        The sizes of the objects of the newest version are compared too. The check is of the current state of the
        table, and not of the snapshot of this object.
        """
        return CheckResult(**self._handle.check())

    def was_committed(self, commit_id: str) -> int | None:
        """Return the version that a commit made, or None if it was not committed. Use it after CommitStateUnknown."""
        return self._handle.was_committed(require_text("commit_id", commit_id))

    def _commit(
        self, change: Callable[[_pds.TableHandle, float], tuple[_CommitFields, _pds.TableHandle]]
    ) -> CommitResult:
        return self._commit_with(lambda handle: change(handle, self._location.timeout))

    def _commit_with(
        self, change: Callable[[_pds.TableHandle], tuple[_CommitFields | None, _pds.TableHandle]]
    ) -> CommitResult:
        requests_before, base_handle = self._count_requests(), self._handle
        return self._finish_commit(*change(base_handle), requests_before, base_handle)

    def _rewrite(
        self, rewrite: Callable[[_pds.TableHandle, WriteOptions, float], tuple[_CommitFields, _pds.TableHandle] | None]
    ) -> CommitResult | None:
        requests_before, base_handle = self._count_requests(), self._handle
        result = rewrite(base_handle, self._location.options, self._location.timeout)
        return None if result is None else self._finish_commit(*result, requests_before, base_handle)

    def _set_tag(self, name: str, version: int | None) -> CommitResult:
        return self._commit(lambda handle, timeout: handle.tag(name, version, timeout))

    def _count_requests(self) -> int:
        return self.store.metrics()["requests"]

    def _finish_commit(
        self,
        commit: _CommitFields | None,
        handle: _pds.TableHandle,
        requests_before: int,
        base_handle: _pds.TableHandle,
    ) -> CommitResult:
        """Take the snapshot of an operation, and return its result; without a commit there was nothing to do."""
        self._update_snapshot(handle, base_handle)
        requests = self._count_requests() - requests_before
        return CommitResult.nothing(handle.version, requests) if commit is None else CommitResult.of(commit, requests)

    def _update_snapshot(self, handle: _pds.TableHandle, base_handle: _pds.TableHandle) -> None:
        """Take the snapshot of an operation based on `base_handle`, unless another thread has set a newer one."""
        with _SnapshotGuard.lock:
            if self._handle is base_handle or handle.created_at >= self._handle.created_at:
                self._handle = handle


def list_tables(store: Store, prefix: str = "") -> list[str]:
    """Return the paths of the tables below a folder, sorted. Folders with the files of tables are not listed.

    Args:
        store: The store.
        prefix: The folder, relative to the store. Defaults to the whole store.

    Raises:
        InvalidType: An argument has an invalid type.
        InvalidPath: The prefix is not a valid path.
    """
    return _pds.list_tables(native_handle(store), require_text("prefix", prefix))


def _reopen(store: Store, path: str, version: int, options: WriteOptions, commit_timeout: float) -> Table:
    return Table(store, path, version=version, options=options, commit_timeout=commit_timeout)

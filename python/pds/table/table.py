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
    "VerifyResult",
    "list_tables",
]

import json
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from pds import _pds
from pds.arguments import check_schema, require_schema, require_text
from pds.defaults import COMMIT_TIMEOUT_SECONDS
from pds.errors import AlreadyExists, InvalidInput, VersionExpired
from pds.flags import require_bool
from pds.store import Store, native_handle
from pds.table.alter import Alter
from pds.table.checks import check_limit, check_names, check_version, to_micros
from pds.table.export_calls import check_exports, export_committed
from pds.table.location import TableLocation
from pds.table.maintenance import Maintenance
from pds.table.optimize import Optimize
from pds.table.options import CommitOptions, NewTable
from pds.table.results import (
    CheckResult,
    CommitResult,
    History,
    ScanPlan,
    VacuumResult,
    VerifyResult,
    make_history_entry,
    plot_entries,
)
from pds.table.scan import TableChanges, TableScan
from pds.table.tags import Tags
from pds.telemetry import traces

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from pds.options import WriteOptions
    from pds.table.charts import Chart
    from pds.table.distributed import TableWrite
    from pds.table.options import NewRows
    from pds.table.writes import Where


@traces("pds.table", "restore", "vacuum", "check", "verify", "export_delta", "export_iceberg")
class Table(Maintenance):
    """A snapshot of a table. It does not change until `refresh`, a write or a vacuum of this object.

    A table is a folder of immutable objects and one pointer, which conditional writes move. There is no catalog and
    no lock. A write is always based on the newest snapshot. Names of columns mean those that this object shows: a write
    follows a column that others have renamed, and one that they have dropped is a CommitConflict. After a write, this
    object has the snapshot that the write made, or the newest snapshot if there was nothing to write.

    Args:
        store: The store of the table. It must honor conditional writes, as S3, Azure Blob Storage, Google Cloud
            Storage, local files and memory do.
        path: The folder of the table, relative to the store.
        version: The version of the snapshot. Defaults to the newest version.
        options: The options of data files. Defaults to zstd and row groups of 1,048,576 rows.
        commit_timeout: The time in seconds in which a commit is attempted again after conflicts with other writers. It
            does not include the work before the first attempt, such as uploads, nor that of the next seven times that a
            conflict makes it begin again.

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
        commit_timeout: float = COMMIT_TIMEOUT_SECONDS,
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
        exports: str | Sequence[str] = (),
        exists_ok: bool = False,
        options: WriteOptions | None = None,
        commit_timeout: float = COMMIT_TIMEOUT_SECONDS,
    ) -> Self:
        """Create an empty table.

        Args:
            store: The store of the table.
            path: The folder of the table, relative to the store.
            schema: The schema of the table. Every column must have a name. One with the name of a column that
                `scan_changes` adds, such as `_change_type`, is for stored changes: `scan_changes` of this table then
                reads the other columns only.
            key: The names of the columns that identify a row. Uniqueness is not checked. Defaults to no key.
            sort_by: The names of the columns that files are sorted by, as `optimize.sort` sorts. Defaults to no sort
                order.
            exports: The formats to which every commit is exported: `"delta"`, `"iceberg"`. See `Table.exports`.
            exists_ok: Whether to open an existing table that has the same schema, key, sort order and exports.
            options: As for `Table`.
            commit_timeout: As for `Table`.

        Raises:
            AlreadyExists: The table exists, or, with `exists_ok`, has another schema, key, sort order or other
                exports.
            ManifestCorrupted: The folder has manifests of a table that was removed in part.
            UnsafeStore: The store does not honor conditional writes, so writers would overwrite each other.
            InvalidInput: Parquet or a format of `exports` cannot store a column, which the message names; a column has
                an empty name; or a column of `key` or `sort_by` does not exist.
            InvalidType: An argument has an invalid type.
        """
        require_bool("exists_ok", exists_ok)
        check_schema(require_schema(schema))
        location = TableLocation.from_arguments(store, path, options, commit_timeout=commit_timeout)
        names = (check_names("key", key), check_names("sort_by", sort_by))
        formats = check_exports(exports, new_at=location)
        try:
            handle = _pds.TableHandle.create(location.handle, path, NewTable(schema, *names, formats))
        except AlreadyExists:
            if not exists_ok:
                raise
        else:
            export_committed(location, handle)
            return cls._from_handle(location, handle)
        table = cls._from_handle(location, _pds.TableHandle.open(location.handle, path, None))
        if not table.schema.equals(schema):
            raise AlreadyExists(f"the table exists with other columns: {table.schema.names}", path=path)
        for role, expected in zip(("key", "sort_by"), names, strict=True):
            existing = table._get_column_names(role)  # noqa: SLF001 an instance of this class
            if existing != expected:
                raise AlreadyExists(f"the table exists with {role}={existing}, not {role}={expected}", path=path)
        if sorted(set(formats)) != list(table.exports):
            raise AlreadyExists(
                f"the table exists with exports={list(table.exports)}, not exports={formats}", path=path
            )
        return table

    @classmethod
    def _create_with_rows(
        cls, store: Store, path: str, new: NewTable, rows: NewRows, options: WriteOptions | None
    ) -> Self:
        """Create a table whose first version has rows; `pds.write_table` says what is raised."""
        location = TableLocation.from_arguments(store, path, options, commit_timeout=COMMIT_TIMEOUT_SECONDS)
        check_exports(new.exports, new_at=location)
        commit = CommitOptions.checked(rows.idempotency_key, None, location.timeout)
        handle = _pds.create_table_with_rows(
            location.handle, path, new, rows.data, location.options, rows.in_memory, commit
        )
        export_committed(location, handle)
        return cls._from_handle(location, handle)

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

        Stop its writers before: a commit that is under way fails, or may leave a manifest that blocks a new table at
        `path`. Nothing that began on the dropped table is ever committed to a new one. What a killed `write_table` left
        before there was a table is spared for a day. Files of the table's folder that `add_files` left in place stay.
        A removal that was interrupted is finished by another one.

        Raises:
            NotFound: There is no table at `path`.
            InvalidPath: The folder, or one in it, is a symbolic link of local files. Nothing was removed.
            InvalidType: An argument has an invalid type.
        """
        _pds.drop_table(native_handle(store), require_text("path", path))

    def __reduce__(self) -> tuple[Any, ...]:
        opened = (self.store, self.path, self.version, self._handle.commit_id)
        return _reopen, (*opened, self._location.options, self._location.timeout)

    def __repr__(self) -> str:
        return f"Table({self.store!r}, {self.path!r}, version={self.version})"

    # -- reading -----------------------------------------------------------------

    @property
    def tags(self) -> Tags:
        """The tags of this snapshot, with methods that create and delete tags."""
        return Tags(self.path, self.version, self._parse_manifest()["tags"], self._set_tag)

    @property
    def alter(self) -> Alter:
        """Schema evolution: add, rename, drop, widen and reorder columns; and the formats of exports."""
        return Alter(self._commit, self._set_exports)

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
        return History(make_history_entry(json.loads(entry)) for entry in entries)

    def plot_history(self, limit: int | None = 50) -> Chart:
        """Return a chart of the rows that the versions wrote or deleted: `print` it, or show it in a notebook.

        Args:
            limit: As for `history`. Defaults to 50 versions.
        """
        return plot_entries(self.history(limit))

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
            return self._from_handle(self._location, self._handle.at_time(to_micros(when)))
        if isinstance(when, str):
            return self._from_handle(self._location, self._handle.at(self.tags[when]))
        return self._from_handle(self._location, self._handle.at(check_version(when)))

    # -- writing -----------------------------------------------------------------

    def restore(self, when: int | datetime | str) -> CommitResult:
        """Commit a new version that has the rows and columns of an older snapshot. No data is copied.

        Commits that it takes back keep their idempotency keys: their rows are loaded again with other keys.

        Args:
            when: As for `as_of`.

        Raises:
            VersionExpired, NotFound, InvalidInput, InvalidType: As for `as_of`.
            CommitConflict, CommitStateUnknown: As for `append`.
        """
        version = self.as_of(when).version
        return self._commit(lambda handle, timeout: handle.restore(version, timeout))

    def begin_write(
        self,
        mode: Literal["append", "overwrite"] = "append",
        where: Where | None = None,
        *,
        idempotency_key: str | None = None,
        if_version: int | None = None,
    ) -> TableWrite:
        """Begin an append or an overwrite whose rows many processes write, such as those of Dask or Ray.

            write = table.begin_write()
            messages = [write.prepare(rows) for rows in parts]  # in any process: the write can be pickled
            write.commit(messages)  # one version with all rows

        The write begins at the newest version, which this object then shows.

        Args:
            mode: `"append"` adds the rows, `"overwrite"` replaces rows.
            where: As for `overwrite`: which rows to replace. Defaults to all rows.
            idempotency_key: As for `append`. Defaults to a key of this write.
            if_version: As for `append`.

        Raises:
            InvalidInput: An argument or the filter is not valid; or the filter depends on the time or on chance or
                cannot be pickled.
            InvalidType: An argument has an invalid type.
            CommitConflict: `if_version` is not the newest version; or a name of a column of this snapshot, or a column
                of the filter, means another one by now: `refresh`, and begin again.
        """
        from pds.table.distributed import TableWrite  # noqa: PLC0415 few need it
        from pds.table.staged import StagedWrite  # noqa: PLC0415 few need it

        if require_text("mode", mode) not in ("append", "overwrite"):
            raise InvalidInput(f'mode must be "append" or "overwrite", not {mode!r}')
        if mode == "append" and where is not None:
            raise InvalidInput('where is for mode="overwrite"')
        write, committed = StagedWrite.begin(
            self,
            overwrite=mode == "overwrite",
            where=where,
            idempotency_key=idempotency_key,
            if_version=if_version,
            by_newest_names=True,
        )
        return TableWrite(write, self, committed, write_id=uuid.uuid4().bytes, own_key=idempotency_key is not None)

    def was_committed(self, commit_id: str) -> int | None:
        """Return the version that a commit made, or None if it was not committed. Use it after CommitStateUnknown.

        Raises:
            VersionExpired: No version that is left is of this commit, and one that has been vacuumed may be.
        """
        return self._handle.was_committed(require_text("commit_id", commit_id))


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


def _reopen(
    store: Store, path: str, version: int, commit_id: str, options: WriteOptions, commit_timeout: float
) -> Table:
    table = Table(store, path, version=version, options=options, commit_timeout=commit_timeout)
    if table._handle.commit_id != commit_id:  # noqa: SLF001 of this module
        message = f"version {version} is of a table that was removed, and another table was created in its place"
        raise VersionExpired(message, path=path)
    return table

"""Reads of a snapshot of a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from pds import _pds
from pds.arguments import check_column_names, require_text
from pds.display import Summarized
from pds.errors import InvalidInput
from pds.flags import require_bool
from pds.predicate import to_predicate
from pds.table.checks import check_limit, check_size, check_version
from pds.table.results import make_files_table, summarize_snapshot
from pds.table.scan import TableChanges, TableScan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from pds.display import Summary
    from pds.predicate import Predicate
    from pds.store import Store
    from pds.table.layout import Layout
    from pds.table.location import TableLocation
    from pds.table.tasks import ScanTask

    Where = str | pc.Expression


class Snapshot(Summarized):
    """One version of a table and its rows."""

    _location: TableLocation
    _handle: _pds.TableHandle

    @property
    def store(self) -> Store:
        """The store of the table."""
        return self._location.store

    @property
    def path(self) -> str:
        """The folder of the table, relative to the store."""
        return self._location.path

    @property
    def version(self) -> int:
        """The version of the snapshot, from 1."""
        return self._handle.version

    @property
    def schema(self) -> pa.Schema:
        """The schema of the snapshot."""
        return self._handle.schema

    def to_pyarrow_dataset(self) -> ds.Dataset:
        """Return the snapshot as a pyarrow Dataset, for engines that push columns and filters down.

        Such an engine reads what `scan` would read: `duckdb.sql("FROM dataset WHERE …")`. For polars there is
        `scan_polars`; DataFusion takes tables themselves: `SessionContext.register_table("name", table)`.
        """
        from pds.table.dataset import SnapshotDataset  # noqa: PLC0415 the import of pyarrow.dataset is slow

        return SnapshotDataset(self._pin())

    def scan_polars(self) -> pl.LazyFrame:
        """Return the rows of the snapshot as a lazy frame of polars. No data is read before it is collected.

        Only columns that the query uses are read. A limit ends the read, and filters that mean the same in pds prune
        files, row groups and pages as those of `scan` do; polars applies all filters itself. The frame stays at this
        snapshot. Errors of reads are those of pds, which older versions of polars put into a ComputeError.

        Raises:
            ModuleNotFoundError: polars is not installed.
            CapabilityNotSupported: polars has no type for a column.
        """
        from pds.table.polars import scan_polars  # noqa: PLC0415 an optional dependency

        return scan_polars(self._pin())

    def __datafusion_table_provider__(self, session: object) -> object:
        """Return the snapshot as a table of DataFusion: `SessionContext.register_table("name", table)` calls this.

        Only columns that a query uses are read, in about as many partitions as the session wants. DataFusion applies
        all filters itself; those that mean the same in pds prune files, row groups and pages as those of `scan` do.
        The table stays at this snapshot.

        Args:
            session: The session that registers the table, or its codec.

        Raises:
            CapabilityNotSupported: pds needs another major version of DataFusion.
        """
        from pds.table.datafusion import make_provider  # noqa: PLC0415 an optional dependency

        return make_provider(self, session)

    def _pin(self) -> Self:
        """Return this snapshot as an object of its own, which a write of this one does not change."""
        pinned = object.__new__(type(self))
        pinned.__dict__.update(self.__dict__)
        return pinned

    def _parse_manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads(self._handle.manifest())
        return manifest

    @property
    def file_count(self) -> int:
        """The number of data files in the snapshot. No request is sent."""
        return self._handle.file_count

    def _summarize(self) -> Summary:
        return summarize_snapshot(repr(self), self._parse_manifest(), self.schema)

    def files(self) -> pa.Table:
        """Return the data files of the snapshot.

        Returns:
            A table with the columns `path`, `size_bytes`, `row_group_count` and `total_rows`.
        """
        return make_files_table(self._handle.files())

    def layout(self, column: str | None = None) -> Layout:
        """Return how the data files lie over the range of a column: which overlap, and which have deleted rows.

        `print` and notebooks draw it. The manifest has all of it, so no request is sent. Few overlaps mean that a
        filter on the column opens few files; `optimize.sort` makes them few.

        Args:
            column: The name of the column. Defaults to the first one of the sort order, else of the key.

        Raises:
            InvalidInput: The column does not exist, or manifests have no statistics of its type; or the table has
                neither a sort order nor a key, and no column was passed.
            InvalidType: The name is not a string.
        """
        from pds.table.layout import make_layout  # noqa: PLC0415 few need it

        manifest = self._parse_manifest()
        if column is None:
            names = {entry["id"]: entry["name"] for entry in manifest["schema"]["columns"]}
            leading = [*manifest["sort_by"], *manifest["key"]]
            if not leading:
                raise InvalidInput("the table has neither a sort order nor a key; pass the name of a column")
            column = names[leading[0]]
        return make_layout(manifest, self.schema, require_text("column", column))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        where: Where | None = None,
        limit: int | None = None,
        use_stats: bool = True,
    ) -> TableScan:
        r"""Return a scan of the rows of the snapshot. No data is read before a method of the scan asks for rows.

        Args:
            columns: The names of the columns, in the order of the result. Defaults to all columns.
            where: A filter over any columns of the table: an SQL predicate such as
                `"at >= TIMESTAMP '2026-01-01' AND name LIKE 'a%'"`, or a `pyarrow.compute.Expression`. Statistics
                prune files and row groups without matching rows. SQL is faster, because the engine evaluates it
                without calling pyarrow. The rules of SQL filters:

                - Names that are not plain words are quoted: `"\"unit price\" > 3"`.
                - Numbers are compared exactly, whatever their types, and so are times; a number and a time are not.
                  An integer beyond 2**53 beside a float is the nearest float.
                - Floats: -0.0 equals 0.0. NaN equals NaN and is the largest value; in pyarrow, NaN is neither
                  equal to, less than nor greater than any value.
                - Casts truncate: `CAST(5.75 AS BIGINT)` is 5.
                - Rows of values are compared value by value, as in `(a, b) > (1, 'x')`; one with NULL that the values
                  before it do not decide is not found. Structs, lists and maps have no order.
                - Literals with a decimal point are decimals in sums and products with integers and decimals.
                  Quotients with such a literal are floats.
                - A time, date or text without a time zone is in UTC if it is used with a time that has one.
            limit: The maximum number of rows. Defaults to all rows.
            use_stats: If False, every file and row group is read, and `where` is evaluated as it is written. The
                rows are the same, and the scan is slower; use it to check the pruning.

        Raises:
            InvalidInput: A column does not exist, or the filter is not valid.
            InvalidType: An argument has an invalid type.
        """
        prunes = require_bool("use_stats", use_stats)
        names, predicate = self._check_selection(columns, where)
        scan = TableScan(self._handle, names, predicate, check_limit(limit), use_stats=prunes, path=self.path)
        return self._adapt_scan(scan)

    def _adapt_scan(self, scan: TableScan) -> TableScan:
        """Return what `scan` returns, for rows that have reads of their own."""
        return scan

    def _check_selection(
        self, columns: Sequence[str] | None, where: Where | None
    ) -> tuple[list[str] | None, str | Predicate | None]:
        names = check_column_names(columns)
        for name in names or []:
            if self.schema.get_field_index(name) < 0:
                raise InvalidInput(f"unknown column {name!r}; the table has the columns {self.schema.names}")
        predicate = None if where is None else to_predicate(where, self.schema)
        if predicate is not None:
            self._handle.check_filter(predicate)
        return names, predicate

    def scan_tasks(
        self,
        columns: Sequence[str] | None = None,
        *,
        where: Where | None = None,
        count: int = 128,
        min_bytes: int = 16 << 20,
        max_bytes: int = 128 << 20,
    ) -> list[ScanTask]:
        """Split a scan into tasks for other processes, such as those of Ray, Dask or Spark.

        The rows of all tasks, one task after the other, are those of `scan`, in their order. Tasks can be pickled, with
        the options of the store, credentials that were passed among them; the other processes must reach the store.
        Only lists of files are read, and files without matching rows, as far as statistics tell, are in no task. A file
        that is much larger than a task is split between row groups: several tasks have a share of it, by bytes.

        Args:
            columns: As for `scan`.
            where: As for `scan`.
            count: About how many tasks there should be.
            min_bytes: The least bytes that a task reads, even if there are fewer tasks then. Only columns count that
                are selected or in the filter, by a share of each file that is estimated from their types.
            max_bytes: The most bytes that a task of more than one file reads, even if there are more tasks then. A
                share of a file is up to half of that larger, and has one row group at least.

        Returns:
            The tasks; an empty list if no file may have matching rows.

        Raises:
            InvalidInput: A column does not exist, a number is below 1, or the filter is not valid, depends on the time
                or on chance, or cannot be pickled.
            InvalidType: An argument has an invalid type.
            VersionExpired: A vacuum removed the snapshot.
        """
        from pds.table.tasks import ScanTask, check_sendable  # noqa: PLC0415 few need it

        names, predicate = self._check_selection(columns, where)
        check_sendable(where)
        least, most = check_size("min_bytes", min_bytes), check_size("max_bytes", max_bytes)
        if most < least:
            raise InvalidInput(f"max_bytes must not be below min_bytes, but {max_bytes} is below {min_bytes}")
        tasks = _pds.split_scan(self._handle, predicate, names, check_size("count", count, "tasks"), least, most)
        return [ScanTask(self.store, self.path, names, where, files) for files in tasks]

    def scan_changes(
        self, since: int, until: int | None = None, *, columns: Sequence[str] | None = None
    ) -> TableChanges:
        """Return the inserted and deleted rows of every commit after the version `since`, up to `until`.

        An update is a delete and an insert. Compactions are skipped, except those that dropped the values of a
        column which `until` has again: such a compaction deletes rows with these values and inserts rows without
        them. The rows have the columns of `until` and the columns that Delta Lake adds: `_change_type` ("insert" or
        "delete"), `_commit_version` and `_commit_timestamp`. Commits are in order; within a commit, deletes come
        first.

        Args:
            since: A version, whose own changes are not included. 0 includes those of version 1.
            until: A version. Defaults to this snapshot.
            columns: The columns of `until` to read, in this order. Defaults to all. A row is a change if any of its
                columns changed. A column with the name of one that is added cannot be read.

        Raises:
            VersionExpired: A vacuum removed a version in this range. The message names the oldest version.
            InvalidInput: A version or a column does not exist, a column has the name of one that is added, `until` is
                before `since`, or (when read) a restore made a column narrower than it was in a version of this range.
            InvalidType: A version is not an integer, or the name of a column is not a string.
        """
        first = 0 if type(since) is int and since == 0 else check_version(since)
        handle = self._handle if until is None else self._handle.at(check_version(until))
        changes = TableChanges(handle, first, check_column_names(columns))
        _ = changes.schema  # raises the errors of this call
        return changes

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

"""What can be read of a snapshot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pds.arguments import column_names
from pds.errors import InvalidInput
from pds.predicate import predicate_of
from pds.table.checks import check_limit, check_version
from pds.table.html import table_html
from pds.table.results import files_of
from pds.table.scan import TableChanges, TableScan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from pds import _pds
    from pds.store import Store
    from pds.table.location import TableLocation

    Where = str | pc.Expression


class Snapshot:
    """One version of a table, and the rows in it."""

    _location: TableLocation
    _handle: _pds.TableHandle

    @property
    def store(self) -> Store:
        """Where the table is."""
        return self._location.store

    @property
    def path(self) -> str:
        """The table's folder."""
        return self._location.path

    @property
    def version(self) -> int:
        """The snapshot's number, from 1."""
        return self._handle.version

    @property
    def schema(self) -> pa.Schema:
        """The snapshot's columns."""
        return self._handle.schema

    def to_pyarrow_dataset(self) -> ds.Dataset:
        """The snapshot for engines that push columns and filters down: they read no more than `scan` would.

        `duckdb.sql("FROM dataset WHERE …")`, `polars.scan_pyarrow_dataset(dataset)`, DataFusion's
        `SessionContext.register_dataset("name", dataset)`.
        """
        from pds.table.dataset import SnapshotDataset  # noqa: PLC0415 pyarrow.dataset takes its time

        return SnapshotDataset(self)

    def _manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._handle.manifest())
        return found

    @property
    def file_count(self) -> int:
        """How many data files the snapshot has. Nothing is read to know it."""
        return self._handle.file_count

    def _repr_html_(self) -> str:
        return table_html(repr(self), self._manifest(), self.schema)

    def files(self) -> pa.Table:
        """The snapshot's data files: path, size_bytes, row_group_count, total_rows."""
        return files_of(self._handle.files())

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        where: Where | None = None,
        limit: int | None = None,
        use_stats: bool = True,
    ) -> TableScan:
        r"""The snapshot's rows.

        Args:
            columns: Names of columns, in the order wanted. None is all.
            where: Only rows for which this holds: an SQL predicate over any of the table's columns, such
                as `"at >= TIMESTAMP '2026-01-01' AND name LIKE 'a%'"`, or a `pyarrow.compute.Expression`.
                Names that are no plain words are quoted in SQL: `"\"unit price\" > 3"`. Files and row
                groups without such rows are not read. SQL is the engine's own and faster. It compares numbers
                and times exactly, whatever their types; of floats -0.0 equals 0.0, and NaN equals NaN and is
                the largest, while pyarrow compares it with nothing. Casts cut: `CAST(5.75 AS BIGINT)` is 5.
                Numbers with a point are decimals in sums and products with integers and decimals; quotients
                by them and of them are floats. A time, a date or a text without a zone is one of UTC where it is
                beside a time with a zone.
            limit: So many rows at most.
            use_stats: False reads every file and row group and evaluates `where` as it is written, without
                statistics and rewriting. The rows are the same; it is slower, and there to check that.

        Raises:
            InvalidInput: There is no such column, or the predicate cannot be used.
        """
        names = column_names(columns)
        for name in names or []:
            if self.schema.get_field_index(name) < 0:
                raise InvalidInput(f"no column {name!r}; there are {self.schema.names}")
        meant = None if where is None else predicate_of(where, self.schema)
        if meant is not None:
            self._handle.check_filter(meant)
        return TableScan(self._handle, names, meant, check_limit(limit), use_stats=use_stats)

    def scan_changes(self, since: int, until: int | None = None) -> TableChanges:
        """What happened to the rows: the inserts and deletes of every commit after `since` up to `until`.

        An update is a delete and an insert. Compactions are passed over, except those that left out a
        column which `until` has again: their rows lose its values. The rows have the columns of
        `until` and, named as Delta Lake names them, `_change_type` ("insert" or "delete"),
        `_commit_version` and `_commit_timestamp`; commits are in order, and within a commit deletes come
        first.

        Args:
            since: A version; its own changes are not told.
            until: A version. None is this snapshot.

        Raises:
            VersionExpired: A version in between has been vacuumed; the error names the oldest there is.
            InvalidInput: There is no such version, or `until` is before `since`.
        """
        handle = self._handle if until is None else self._handle.at(check_version(until))
        changes = TableChanges(handle, check_version(since))
        _ = changes.schema  # so that what cannot be read is said now
        return changes

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

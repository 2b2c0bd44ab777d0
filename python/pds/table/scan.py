"""Lazy reads of the rows and the changes of a table."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from pds import frames
from pds.display import Summarized, Summary, list_columns, list_names, shorten_names
from pds.progress import reported
from pds.readers import make_reader, read_scan
from pds.table.results import ScanPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd
    import polars as pl
    import pyarrow.compute as pc

    from pds import _pds
    from pds.predicate import Predicate
    from pds.progress import ProgressArgument

    Where = str | pc.Expression

# The columns that changes have after those of the table, with Delta's names.
CHANGE_COLUMNS: Final = ("_change_type", "_commit_version", "_commit_timestamp")


class Rows(ABC):
    """Rows that are read on demand. Every method reads them again."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of the rows."""

    @abstractmethod
    def _open_scan(self) -> _pds.Scan:
        """Open a scan."""

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        yield from read_scan(self._open_scan())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream of batches, in bounded memory.

        Raises:
            VersionExpired: A vacuum removed the snapshot during the read.
            PartCorrupted: A file is not the file that was written.
            InvalidInput: An earlier call of the stream failed or was interrupted. Begin a new one.
        """
        return make_reader(self.schema, self._read_batches())

    def to_pyarrow(self, *, progress: ProgressArgument = False) -> pa.Table:
        """Return the rows as a pyarrow Table. Errors are those of `to_reader`.

        Args:
            progress: True to show a bar, or a function that is called with a `Progress` a few times a second. Its rows
                and bytes are those that were read; how many there will be is not known with a filter.
        """
        with reported("read", progress):
            return pa.Table.from_batches(list(self._read_batches()), self.schema)

    def to_pandas(self, *, progress: ProgressArgument = False) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame. Without pandas: ModuleNotFoundError. Other errors: `to_reader`.

        Raises:
            CapabilityNotSupported: pandas cannot hold a column.

        Args:
            progress: As for `to_pyarrow`.
        """
        return frames.to_pandas(functools.partial(self.to_pyarrow, progress=progress))

    def to_polars(self, *, progress: ProgressArgument = False) -> pl.DataFrame:
        """Return the rows as a polars DataFrame. Without polars: ModuleNotFoundError. Other errors: `to_reader`.

        Raises:
            CapabilityNotSupported: polars has no type for a column. No rows are read then.

        Args:
            progress: As for `to_pyarrow`.
        """
        return frames.to_polars(functools.partial(self.to_pyarrow, progress=progress), lambda: self.schema)

    def count(self) -> int:
        """Return the number of rows. Errors are those of `to_reader`."""
        return sum(batch.num_rows for batch in self._read_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


class Source(Protocol):
    """Rows that do not change, such as a snapshot of a table, for engines that choose columns and filters."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""

    def scan(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, limit: int | None = None
    ) -> Rows:
        """Return a scan of the rows, with the arguments of `Table.scan`."""


class TableScan(Summarized, Rows):
    """A scan of a snapshot, which reads the rows on demand. Every method reads them again."""

    def __init__(
        self,
        handle: _pds.TableHandle,
        columns: list[str] | None,
        where: str | Predicate | None,
        limit: int | None,
        *,
        use_stats: bool = True,
        path: str = "",
    ) -> None:
        self._handle = handle
        self._path = path
        self._columns = columns
        self._where = where
        self._limit = limit
        self._use_stats = use_stats

    @property
    def schema(self) -> pa.Schema:
        """The schema of the selected columns."""
        schema = self._handle.schema
        if self._columns is None:
            return schema
        return pa.schema([schema.field(name) for name in self._columns]).with_metadata(schema.metadata)

    def _open_scan(self) -> _pds.Scan:
        return self._handle.scan(self._columns, self._where, self._limit, self._use_stats)

    def count(self) -> int:
        """Return the number of rows.

        Without a filter, the manifest and the files of deleted rows tell the number, and data files are read only for
        deletes of ranges of the key and of whole row groups. So a data file that is missing may not be noticed.
        Other errors are those of `to_reader`.
        """
        return self._handle.count(self._where, self._limit, self._use_stats)

    def __repr__(self) -> str:
        arguments = [f"columns={shorten_names(self.schema.names)}"]
        if self._where is not None:
            arguments.append(f"where={getattr(self._where, 'text', self._where)!r}")
        if self._limit is not None:
            arguments.append(f"limit={self._limit}")
        if not self._use_stats:
            arguments.append("use_stats=False")
        return f"TableScan({', '.join(arguments)})"

    def _describe_source(self) -> dict[str, object]:
        return {"table": self._path or None, "version": self._handle.version}

    def _summarize(self) -> Summary:
        properties = self._describe_source() | {
            "where": getattr(self._where, "text", self._where),
            "limit": self._limit,
            "statistics": None if self._use_stats else "not used",
        }
        return Summary(f"{type(self).__name__}: rows are read on demand", properties, (list_columns(self.schema),))

    def explain(self) -> ScanPlan:
        """Return the files and row groups that the scan reads. Only footers are read, and the limit is ignored."""
        return ScanPlan(**self._handle.explain(self._where, self._use_stats))


class TableChanges(Summarized, Rows):
    """The inserted and deleted rows between two versions, read on demand. Every method reads them again."""

    def __init__(self, handle: _pds.TableHandle, since: int, columns: list[str] | None) -> None:
        self._handle = handle
        self._since = since
        self._columns = columns
        self._schema: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """The selected columns of the table, then `_change_type`, `_commit_version` and `_commit_timestamp`."""
        if self._schema is None:
            # It begins to read.
            scan = self._open_scan()
            self._schema = scan.schema
            scan.close()
        return self._schema

    def _open_scan(self) -> _pds.Scan:
        return self._handle.changes(self._since, self._columns)

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={shorten_names(self._columns)}"
        return f"TableChanges(since={self._since}, until={self._handle.version}{columns})"

    def _summarize(self) -> Summary:
        # The schema of the changes is that of a read.
        columns = list_columns(self._handle.schema) if self._columns is None else list_names("column", self._columns)
        properties = {"since version": self._since, "until version": self._handle.version}
        return Summary("TableChanges: rows are read on demand", properties, (columns,))

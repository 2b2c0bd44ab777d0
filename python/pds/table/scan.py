"""The rows of a snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pyarrow as pa

from pds.table.html import SHOWN_ROWS, rows_html
from pds.table.results import ScanPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    import polars as pl

    from pds import _pds
    from pds.predicate import Predicate


class Rows(ABC):
    """Rows that are not yet read. They can be read again and again."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns."""

    @abstractmethod
    def _open(self, *, counted: bool = False) -> _pds.Scan:
        """Begin to read; `counted` is without columns, where that is enough to count."""

    def _batches(self, *, counted: bool = False) -> Iterator[pa.RecordBatch]:
        scan = self._open(counted=counted)
        try:
            while (batch := scan.next_batch()) is not None:
                yield batch
        finally:
            scan.close()

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of batches, in bounded memory.

        Raises:
            VersionExpired: The snapshot was vacuumed while it was read.
            PartCorrupted: A file is not what was written.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_pyarrow(self) -> pa.Table:
        """The rows in memory."""
        return pa.Table.from_batches(list(self._batches()), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return self.to_pyarrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars DataFrame."""
        import polars as pl  # noqa: PLC0415 only who asks for it needs it

        return pl.DataFrame(self.to_pyarrow())

    def count(self) -> int:
        """How many rows there are."""
        return sum(batch.num_rows for batch in self._batches(counted=True))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


class TableScan(Rows):
    """The rows of a snapshot, not yet read. It can be read again and again."""

    def __init__(
        self,
        handle: _pds.TableHandle,
        columns: list[str] | None,
        where: str | Predicate | None,
        limit: int | None,
        *,
        use_stats: bool = True,
    ) -> None:
        self._handle = handle
        self._columns = columns
        self._where = where
        self._limit = limit
        self._use_stats = use_stats

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        schema = self._handle.schema
        if self._columns is None:
            return schema
        return pa.schema([schema.field(name) for name in self._columns]).with_metadata(schema.metadata)

    def _open(self, *, counted: bool = False) -> _pds.Scan:
        return self._handle.scan([] if counted else self._columns, self._where, self._limit, self._use_stats)

    def __repr__(self) -> str:
        parts = [f"columns={self.schema.names}"]
        if self._where is not None:
            parts.append(f"where={getattr(self._where, 'text', self._where)!r}")
        if self._limit is not None:
            parts.append(f"limit={self._limit}")
        if not self._use_stats:
            parts.append("use_stats=False")
        return f"TableScan({', '.join(parts)})"

    def _repr_html_(self) -> str:
        limit = SHOWN_ROWS + 1 if self._limit is None else min(self._limit, SHOWN_ROWS + 1)
        rows = TableScan(self._handle, self._columns, self._where, limit, use_stats=self._use_stats).to_pyarrow()
        return rows_html(rows.slice(0, SHOWN_ROWS), more=rows.num_rows > SHOWN_ROWS)

    def explain(self) -> ScanPlan:
        """What would be read. Footers are read to know it, and no rows; a limit is not considered."""
        return ScanPlan(*self._handle.explain(self._where, self._use_stats))


class TableChanges(Rows):
    """Rows that were inserted and deleted, not yet read. They can be read again and again."""

    def __init__(self, handle: _pds.TableHandle, since: int) -> None:
        self._handle = handle
        self._since = since

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, then `_change_type`, `_commit_version` and `_commit_timestamp`."""
        return self._open().schema

    def _open(self, *, counted: bool = False) -> _pds.Scan:  # noqa: ARG002 it reads all columns anyway
        return self._handle.changes(self._since)

"""The rows of a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    import polars as pl

    from pds import _pds


class TableScan:
    """The rows of a snapshot, not yet read. It can be read again and again."""

    def __init__(
        self, handle: _pds.TableHandle, columns: list[str] | None, where: str | None, limit: int | None
    ) -> None:
        self._handle = handle
        self._columns = columns
        self._where = where
        self._limit = limit

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        schema = self._handle.schema
        if self._columns is None:
            return schema
        return pa.schema([schema.field(name) for name in self._columns]).with_metadata(schema.metadata)

    def _batches(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        scan = self._handle.scan(columns, self._where, self._limit)
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
        return pa.RecordBatchReader.from_batches(self.schema, self._batches(self._columns))

    def to_pyarrow(self) -> pa.Table:
        """The rows in memory."""
        return pa.Table.from_batches(list(self._batches(self._columns)), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return self.to_pyarrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars DataFrame."""
        import polars as pl  # noqa: PLC0415 only who asks for it needs it

        return pl.DataFrame(self.to_pyarrow())

    def count(self) -> int:
        """How many rows there are; columns are not read for it."""
        return sum(batch.num_rows for batch in self._batches([]))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

"""The rows of a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pds.tables.scan import TableScan

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from pds import _pds
    from pds.tables.predicate import Predicate


class Scan(TableScan):
    """The rows of a dataset as they were appended, retractions and corrections among them."""

    def __init__(
        self,
        chain: _pds.ChainHandle,
        at: tuple[str | None, int | None],
        handle: _pds.TableHandle,
        columns: list[str] | None,
        where: str | Predicate | None,
        operation: str,
    ) -> None:
        super().__init__(handle, columns, where, None)
        self._chain = chain
        self._at = at
        self._operation = operation

    def to_ledger(self) -> LedgerRows:
        """The rows that are left when retractions and corrections are applied.

        A retraction and a correct-from take away one row that is equal in event time and in all columns
        that are not the system's; a correct-to adds one. Rows keep their order. The operation is left out
        unless it is asked for. To find the rows, all of the dataset are held in memory.

        Raises:
            InvalidInput: Something is retracted that is not there.
        """
        left = pa.Table.from_batches([self._chain.ledger(*self._at)])
        (offset,) = left.column_names
        asked = self._columns
        if asked is None:
            asked = [name for name in self.schema.names if name != self._operation]
        wanted = list(dict.fromkeys([*asked, offset]))
        rows = TableScan(self._handle, wanted, self._where, None).to_pyarrow()
        kept = pc.is_in(rows[offset], value_set=left[offset].combine_chunks())
        return LedgerRows(rows.filter(kept).select(asked))


class LedgerRows:
    """The rows that are left of a dataset, in memory."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def to_pyarrow(self) -> pa.Table:
        """The rows as a pyarrow Table."""
        return self._rows

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return self._rows.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars DataFrame."""
        import polars as pl  # noqa: PLC0415 only who asks for it needs it

        return pl.DataFrame(self._rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return self._rows.num_rows

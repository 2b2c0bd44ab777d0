"""The rows of a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from pds.table.scan import TableScan

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from pds import _pds
    from pds.predicate import Predicate


class Scan(TableScan):
    """The rows of a dataset as they were appended, retractions and corrections among them."""

    def __init__(
        self,
        chain: _pds.ChainHandle,
        block: str,
        handle: _pds.TableHandle,
        columns: list[str] | None,
        where: str | Predicate | None,
    ) -> None:
        super().__init__(handle, columns, where, None)
        self._chain = chain
        self._block = block

    def to_ledger(self) -> LedgerRows:
        """The rows that are left when retractions and corrections are applied.

        A retraction and a correct-from take away one row that is equal in event time and in all columns
        that are not the system's, so what takes it away needs the same event time; a correct-to adds one.
        Rows keep their order. The operation is left out
        unless it is asked for. To find the rows, all of the dataset are held in memory.

        Raises:
            InvalidInput: Something is retracted that is not there.
        """
        schema, batches = self._chain.ledger(self._block, self._handle, self._columns, self._where)
        return LedgerRows(pa.Table.from_batches(batches, schema))


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

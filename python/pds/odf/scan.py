"""Reads of the rows of Open Data Fabric datasets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa

from pds import frames
from pds.display import Summarized, Summary, list_columns, shorten_names
from pds.errors import PartCorrupted
from pds.table.scan import TableScan

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    import polars as pl

    from pds import _pds
    from pds.table.results import ScanPlan


@contextlib.contextmanager
def checking_slices(chain: _pds.ChainHandle) -> Iterator[None]:
    """Raise VersionExpired where a vacuum removed a slice that is missing."""
    try:
        yield
    except PartCorrupted as error:
        if error.path is not None:
            chain.check_retained(error.path.rpartition("/")[2])
        raise


class Scan(TableScan):
    """The rows of a dataset as they were appended, including retractions and corrections."""

    def __init__(self, chain: _pds.ChainHandle, block: str, rows: TableScan) -> None:
        self.__dict__.update(rows.__dict__)
        self._chain = chain
        self._block = block

    def _describe_source(self) -> dict[str, object]:
        return {"dataset": self._path, "block": self._block}

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        with checking_slices(self._chain):
            yield from super()._read_batches()

    def count(self) -> int:
        """Return the number of rows, without a filter from the blocks alone. Other errors are those of `to_reader`."""
        with checking_slices(self._chain):
            return super().count()

    def explain(self) -> ScanPlan:
        """Return the slices and row groups that the scan reads, as `TableScan.explain` does."""
        with checking_slices(self._chain):
            return super().explain()

    def to_ledger(self) -> LedgerRows:
        """Apply retractions and corrections, and return the remaining rows.

        A retraction or a correct-from removes one row that has the same event time and the same values in all columns
        except the other system columns. A correct-to adds a row. Rows keep their order. The result has the operation
        column only if it is one of the selected columns. All rows of the dataset are held in memory.

        Raises:
            InvalidInput: A retracted or corrected row does not exist.
            VersionExpired: A vacuum removed the block or its slices.
            FormatNotSupported: A `SetVocab` renamed system columns after the first rows.
        """
        with checking_slices(self._chain):
            schema, batches = self._chain.ledger(self._block, self._handle, self._columns, self._where)
        return LedgerRows(pa.Table.from_batches(batches, schema))


class LedgerRows(Summarized):
    """The rows of a dataset after retractions and corrections, in memory."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def to_pyarrow(self) -> pa.Table:
        """Return the rows as a pyarrow Table."""
        return self._rows

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame."""
        return frames.to_pandas(self.to_pyarrow)

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a polars DataFrame."""
        return frames.to_polars(self.to_pyarrow, lambda: self._rows.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return self._rows.num_rows

    def __repr__(self) -> str:
        return f"LedgerRows(columns={shorten_names(self._rows.schema.names)}, rows={len(self)})"

    def _summarize(self) -> Summary:
        return Summary("LedgerRows: in memory", {"rows": len(self)}, (list_columns(self._rows.schema),))

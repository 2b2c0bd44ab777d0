"""Snapshots of tables, and other rows that do not change, as lazy frames of polars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pds.arguments import make_empty
from pds.errors import CapabilityNotSupported, InvalidInput
from pds.frames import check_polars_types, polars_errors, refuse_polars

try:
    import polars as pl
    from polars.io.plugins import register_io_source
except ImportError as error:
    message = "scan_polars needs polars 1.33 or newer: pip install 'pds[polars]'"
    raise ModuleNotFoundError(message, name="polars") from error

from pds.table.polars_filters import to_sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from pds.table.scan import Rows, Source


def scan_polars(source: Source) -> pl.LazyFrame:
    """Return the rows of a source as a lazy frame.

    Raises:
        CapabilityNotSupported: polars has no type for a column, or a column has no name.
    """
    if "" in source.schema.names:
        raise CapabilityNotSupported("polars has no columns without a name; rename it with table.alter")
    check_polars_types(source.schema)
    frame = _to_frame(make_empty(source.schema))
    try:
        lazy = register_io_source(ReadSource(source), schema=frame.schema, is_pure=True)
        lazy.collect_schema()
    except polars_errors() as error:
        raise refuse_polars(source.schema, error) from error
    return lazy


@dataclass(frozen=True)
class ReadSource:
    """Reads a source for polars. It can be pickled if the source can."""

    source: Source

    def __call__(
        self, columns: list[str] | None, predicate: pl.Expr | None, max_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        """Return the rows that polars asks for, in batches.

        Args:
            columns: The names of the columns. Defaults to all columns.
            predicate: A filter. polars does not apply it again.
            max_rows: The number of rows that are read before they are filtered.
            batch_size: The most rows in a batch.
        """
        if max_rows == 0:
            return
        # A frame without columns has no rows: of a query of no column, polars counts those of any one.
        names = list(self.source.schema.names) if columns is None else list(columns) or self.source.schema.names[:1]
        used = names if predicate is None else list(dict.fromkeys([*names, *predicate.meta.root_names()]))
        for batch in self._scan(used, predicate, max_rows)._read_batches():  # noqa: SLF001 of the package
            frame = _to_frame(batch)
            if predicate is not None:
                # Here too, so that the result does not depend on the translation of the filter.
                frame = frame.filter(predicate)
            # `select` would take `*` and `^…$` for patterns.
            frame = pl.DataFrame([frame.get_column(name) for name in names])
            yield from [frame] if not batch_size or frame.height <= batch_size else frame.iter_slices(batch_size)

    def _scan(self, columns: list[str], predicate: pl.Expr | None, max_rows: int | None) -> Rows:
        if predicate is not None and max_rows is None:
            schema = _to_frame(make_empty(self.source.schema)).schema
            where = to_sql(predicate, schema)
            if where is not None:
                try:
                    return self.source.scan(columns, where=where)
                except InvalidInput:
                    # pds refuses it; polars may not.
                    pass
        return self.source.scan(columns, limit=max_rows)


def _to_frame(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    try:
        return cast("pl.DataFrame", pl.from_arrow(rows))
    except polars_errors() as error:
        raise refuse_polars(rows.schema, error) from error

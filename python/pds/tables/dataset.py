"""A snapshot as a `pyarrow.dataset.Dataset`, so that other engines push columns and filters down."""

# The stubs of pyarrow do not know that its datasets are made to be derived from.
# mypy: disable-error-code="override, call-overload, arg-type, call-arg, no-any-return"
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pds.arguments import column_names
from pds.errors import CapabilityNotSupported, InvalidInput, InvalidType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pds.tables.scan import TableScan

    Columns = Sequence[str] | dict[str, pc.Expression] | None


class Snapshot(Protocol):
    """What is asked of a table."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def scan(self, columns: Sequence[str] | None = None, *, where: pc.Expression | None = None) -> TableScan:
        """The rows for which a filter holds."""


class SnapshotDataset(ds.Dataset):
    """A snapshot of a table for whoever reads pyarrow datasets: DuckDB, polars, DataFusion, pyarrow.

    Columns and filters that they push down are read and pruned as `Table.scan` does. It is one fragment.
    Methods have the arguments of pyarrow's; those that say how to read and not what are not looked at.

    Args:
        table: The snapshot.
        where: A filter for all that is read.
    """

    def __init__(self, table: Snapshot, where: pc.Expression | None = None) -> None:
        # Not that of the base class, which is made for pyarrow's own datasets.
        self._table = table
        self._where = where

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._table.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """What all rows have in common: nothing is known."""
        return pc.scalar(value=True)

    def __repr__(self) -> str:
        return f"SnapshotDataset({self._table!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._table, self._where)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[SnapshotFragment]:  # noqa: A002 pyarrow's name
        """The rows for which `filter` may hold, as one fragment."""
        yield SnapshotFragment(self if filter is None else self.filter(filter))

    def filter(self, expression: pc.Expression) -> SnapshotDataset:
        """The rows for which an expression holds."""
        return type(self)(self._table, _both(self._where, expression))

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> SnapshotScanner:
        """Read columns of the rows for which `filter` holds.

        Args:
            columns: Names of columns, or new columns by name. None is all.
            filter: An expression over any of the columns.
            batch_size: Rows a batch at most.

        Raises:
            InvalidInput: There is no such column, or the filter cannot be used.
        """
        return SnapshotScanner(self._table, columns, _both(self._where, filter), batch_size)

    def to_table(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> pa.Table:
        """The rows in memory."""
        return self.scanner(columns, filter, batch_size).to_table()

    def to_batches(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> Iterator[pa.RecordBatch]:
        """The rows as batches, in bounded memory."""
        return self.scanner(columns, filter, batch_size).to_batches()

    def head(
        self,
        num_rows: int,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        **_others: object,
    ) -> pa.Table:
        """The first rows."""
        return self.scanner(columns, filter).head(num_rows)

    def take(
        self,
        indices: object,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        **_others: object,
    ) -> pa.Table:
        """The rows at these places, of those for which `filter` holds."""
        return self.scanner(columns, filter).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **_others: object) -> int:  # noqa: A002 pyarrow's name
        """How many rows there are."""
        return self.scanner([], filter).count_rows()

    def sort_by(self, sorting: str | list[tuple[str, str]], **_others: object) -> ds.InMemoryDataset:
        """The rows in memory, sorted."""
        return ds.InMemoryDataset(self.to_table().sort_by(sorting))

    def join(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Not offered; `to_table` and join there."""
        raise CapabilityNotSupported("a snapshot is not joined; use to_table() and join there")

    def join_asof(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Not offered; `to_table` and join there."""
        raise CapabilityNotSupported("a snapshot is not joined; use to_table() and join there")

    def replace_schema(self, schema: pa.Schema) -> SnapshotDataset:
        """The dataset itself: a snapshot is read with its own schema."""
        _check_same(schema, self.schema)
        return self


class SnapshotFragment:
    """All of a dataset, for engines that read fragment by fragment."""

    def __init__(self, dataset: SnapshotDataset) -> None:
        self._dataset = dataset

    @property
    def physical_schema(self) -> pa.Schema:
        """The columns."""
        return self._dataset.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """What all rows have in common: nothing is known."""
        return self._dataset.partition_expression

    def scanner(
        self,
        schema: pa.Schema | None = None,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> SnapshotScanner:
        """As `SnapshotDataset.scanner`; the schema has to be the dataset's."""
        if schema is not None:
            _check_same(schema, self._dataset.schema)
        return self._dataset.scanner(columns, filter, batch_size)

    def to_table(self, schema: pa.Schema | None = None, columns: Columns = None, **others: Any) -> pa.Table:  # noqa: ANN401 passed on
        """The rows in memory."""
        return self.scanner(schema, columns, **others).to_table()

    def to_batches(
        self,
        schema: pa.Schema | None = None,
        columns: Columns = None,
        **others: Any,  # noqa: ANN401 passed on
    ) -> Iterator[pa.RecordBatch]:
        """The rows as batches."""
        return self.scanner(schema, columns, **others).to_batches()

    def count_rows(self, filter: pc.Expression | None = None, **_others: object) -> int:  # noqa: A002 pyarrow's name
        """How many rows there are."""
        return self._dataset.count_rows(filter)


def _check_same(schema: pa.Schema, own: pa.Schema) -> None:
    if not schema.equals(own):
        raise CapabilityNotSupported("a snapshot is read with its own schema; cast what to_table() gives")


class SnapshotScanner(ds.Scanner):
    """What of a snapshot is read; as often as it is asked."""

    def __init__(self, table: Snapshot, columns: Columns, where: pc.Expression | None, batch_size: int | None) -> None:
        self._schema = table.schema
        self._batch_size = batch_size
        self._projection: dict[str, pc.Expression] | None = None
        names: list[str] | None
        if isinstance(columns, dict):
            self._projection = columns
            names = _needed(columns, table.schema)
        else:
            names = column_names(None if columns is None else list(columns))
        self._scan: TableScan = table.scan(names, where=where)

    @property
    def dataset_schema(self) -> pa.Schema:
        """The snapshot's columns."""
        return self._schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns that are read."""
        if self._projection is None:
            return self._scan.schema
        return self._projected([]).schema

    def _projected(self, batches: list[pa.RecordBatch]) -> pa.Table:
        return ds.Scanner.from_batches(
            batches, schema=self._scan.schema, columns=self._projection, use_threads=False
        ).to_table()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as batches."""
        for batch in self._scan.to_reader():
            found = [batch] if self._projection is None else self._projected([batch]).to_batches()
            for batch_found in found:
                step = self._batch_size or max(batch_found.num_rows, 1)
                yield from (batch_found.slice(at, step) for at in range(0, batch_found.num_rows, step))

    def scan_batches(self) -> NoReturn:
        """Not offered: there are no fragments to tell."""
        raise CapabilityNotSupported("a snapshot's batches do not tell their fragment; use to_batches()")

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def to_table(self) -> pa.Table:
        """The rows in memory."""
        return pa.Table.from_batches(list(self.to_batches()), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        found, left = [], num_rows
        for batch in self.to_batches():
            if left <= 0:
                break
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
        return pa.Table.from_batches(found, self.projected_schema)

    def take(self, indices: object) -> pa.Table:
        """The rows at these places."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """How many rows there are."""
        return self._scan.count()


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _needed(projection: dict[str, pc.Expression], schema: pa.Schema) -> list[str]:
    """The columns that new ones are made of, or more."""
    for name, expression in projection.items():
        if not isinstance(expression, pc.Expression):
            raise InvalidType(f"column {name!r} must be a pyarrow.compute.Expression, not {expression!r}")
    texts = [str(expression) for expression in projection.values()]
    if any("FieldPath" in found for found in texts):
        return list(schema.names)
    needed = [name for name in schema.names if any(name in found for found in texts)]
    try:
        ds.Scanner.from_batches([], schema=pa.schema([schema.field(n) for n in needed]), columns=projection)
    except (pa.ArrowException, TypeError, ValueError):
        needed = list(schema.names)
    try:
        ds.Scanner.from_batches([], schema=pa.schema([schema.field(n) for n in needed]), columns=projection)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(f"the columns {sorted(projection)} cannot be made: {error}") from error
    return needed or list(schema.names[:1])

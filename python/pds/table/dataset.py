"""A snapshot as a `pyarrow.dataset.Dataset`, so that other engines push columns and filters down."""

# The stubs of pyarrow do not know that its datasets are made to be derived from.
# mypy: disable-error-code="override, call-overload, arg-type, call-arg, no-any-return"
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from pds.arguments import column_names
from pds.errors import CapabilityNotSupported, InvalidInput, InvalidType
from pds.predicate import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pds.table.scan import TableScan

    Columns = Sequence[str] | dict[str, pc.Expression] | None


# As a name it is told by pyarrow where it looks for it.
_NOWHERE = "a snapshot of a pds table is read by its own methods: use scanner() or to_table()"


class Snapshot(Protocol):
    """What is asked of a table."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def scan(self, columns: Sequence[str] | None = None, *, where: pc.Expression | None = None) -> TableScan:
        """The rows for which a filter holds."""


class SnapshotDataset(ds.FileSystemDataset):
    """A snapshot of a table for whoever reads pyarrow datasets: DuckDB, polars, DataFusion, pyarrow.

    Columns and filters that they push down are read and pruned as `Table.scan` does. It is one fragment.
    Methods have the arguments of pyarrow's; those that say how to read and not what are not looked at.

    Args:
        table: The snapshot.
        where: A filter for all that is read.
    """

    def __init__(self, table: Snapshot, where: pc.Expression | None = None) -> None:
        # What asks pyarrow's own code for the rows, and not the methods here, finds a file that is not there.
        nowhere, file_format = fs.LocalFileSystem(), ds.ParquetFileFormat()
        fragment = file_format.make_fragment(_NOWHERE, nowhere)
        super().__init__([fragment], table.schema, file_format, nowhere)
        self._table = table
        self._where = where

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._table.schema

    def __repr__(self) -> str:
        return f"SnapshotDataset({self._table!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._table, self._where)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[SnapshotFragment]:  # noqa: A002 pyarrow's name
        """The rows for which `filter` may hold, as one fragment."""
        yield SnapshotFragment(self if filter is None else self.filter(filter))

    def filter(self, expression: pc.Expression) -> SnapshotDataset:
        """The rows for which an expression holds."""
        if not isinstance(expression, pc.Expression):
            raise InvalidType(f"a filter must be a pyarrow.compute.Expression, not {expression!r}")
        return type(self)(self._table, _both(self._where, expression))

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> ds.Scanner:
        """Read columns of the rows for which `filter` holds, once.

        Args:
            columns: Names of columns, or new columns by name. None is all.
            filter: An expression over any of the columns.
            batch_size: Rows a batch at most.

        Raises:
            InvalidInput: There is no such column, or the filter cannot be used.
        """
        if batch_size is not None and batch_size <= 0:
            raise InvalidInput(f"batch_size must be positive, not {batch_size}")
        names = _needed(columns, self.schema) if isinstance(columns, dict) else column_names(columns)
        projection = columns if isinstance(columns, dict) else None
        found = self._table.scan(names, where=_both(self._where, filter)).to_reader()
        if batch_size is not None:
            # pyarrow takes batches of a stream as they come.
            found = pa.RecordBatchReader.from_batches(found.schema, _cut(found, batch_size))
        return ds.Scanner.from_batches(found, columns=projection)

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
        yield from self.scanner(columns, filter, batch_size).to_batches()

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
        return self._table.scan([], where=_both(self._where, filter)).count()

    def sort_by(self, sorting: str | list[tuple[str, str]], **_others: object) -> ds.InMemoryDataset:
        """The rows in memory, sorted."""
        return ds.InMemoryDataset(self.to_table().sort_by(sorting))

    def join(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Not offered; `to_table` and join there."""
        raise CapabilityNotSupported("a snapshot is not joined; use to_table() and join there")

    def join_asof(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Not offered; `to_table` and join there."""
        raise CapabilityNotSupported("a snapshot is not joined; use to_table() and join there")

    def replace_schema(self, schema: pa.Schema) -> ds.InMemoryDataset:
        """The rows in memory: a union of datasets begins so."""
        _check_same(schema, self.schema)
        return ds.InMemoryDataset(self.to_table())


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
    ) -> ds.Scanner:
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


def _cut(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _needed(projection: dict[str, pc.Expression], schema: pa.Schema) -> list[str]:
    """The columns that new ones are made of, or more."""
    for name, expression in projection.items():
        if not isinstance(expression, pc.Expression):
            raise InvalidType(f"column {name!r} must be a pyarrow.compute.Expression, not {expression!r}")
    needed: set[str] = set()
    for name, expression in projection.items():
        try:
            needed.update(columns_of(expression, schema))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(f"column {name!r} cannot be made: {error}") from error
    # Rows without a column are no rows to a projection.
    return [name for name in schema.names if name in needed] or list(schema.names[:1])

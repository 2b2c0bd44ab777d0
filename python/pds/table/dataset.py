"""A snapshot as a `pyarrow.dataset.Dataset`, for engines that push columns and filters down."""

# The stubs of pyarrow do not allow classes that derive from its datasets.
# mypy: disable-error-code="override, call-overload, arg-type, call-arg, no-any-return"
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from pds.arguments import check_column_names
from pds.at_exit import stop_at_exit
from pds.errors import CapabilityNotSupported, InvalidInput, InvalidType
from pds.predicate import find_columns
from pds.readers import make_reader
from pds.table.checks import check_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pds.table.scan import Source

    Columns = Sequence[str] | dict[str, pc.Expression] | None


# The path of a file that does not exist. The FileNotFoundError of pyarrow has it, and so explains itself.
_PLACEHOLDER_PATH = "a snapshot of a pds table is read by its own methods: use scanner() or to_table()"


class SnapshotDataset(ds.FileSystemDataset):
    """A snapshot of a table for engines that read pyarrow datasets: DuckDB, polars, DataFusion, pyarrow.

    Columns and filters that the engine pushes down are read and pruned as by `Table.scan`. The dataset has one
    fragment. The methods have the arguments of pyarrow; arguments that do not change the result are ignored.

    Args:
        source: The snapshot.
        where: A filter for all reads. Defaults to all rows.
    """

    def __init__(self, source: Source, where: pc.Expression | None = None) -> None:
        # C++ code of pyarrow does not call the methods of this class. It finds a file that does not exist, and fails.
        filesystem, file_format = fs.LocalFileSystem(), ds.ParquetFileFormat()
        fragment = file_format.make_fragment(_PLACEHOLDER_PATH, filesystem)
        super().__init__([fragment], source.schema, file_format, filesystem)
        self._source = source
        self._where = where

    @property
    def schema(self) -> pa.Schema:
        """The schema of the snapshot."""
        return self._source.schema

    def __repr__(self) -> str:
        return f"SnapshotDataset({self._source!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._source, self._where)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[SnapshotFragment]:  # noqa: A002 pyarrow's name
        """Return one fragment with the rows that match `filter`."""
        yield SnapshotFragment(self if filter is None else self.filter(filter))

    def filter(self, expression: pc.Expression) -> SnapshotDataset:
        """Return a dataset with the rows that match an expression.

        Raises:
            InvalidType: The expression is not a `pyarrow.compute.Expression`.
        """
        if not isinstance(expression, pc.Expression):
            raise InvalidType(f"expression must be a pyarrow.compute.Expression, not {expression!r}")
        return type(self)(self._source, _combine_filters(self._where, expression))

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> ds.Scanner:
        """Return a scanner of the rows that match `filter`. The scanner can be read once.

        Args:
            columns: The names of columns, or expressions by the names of new columns. Defaults to all columns.
            filter: An expression over any columns. Defaults to all rows.
            batch_size: The maximum number of rows in a batch.

        Raises:
            InvalidInput: A column does not exist, the filter is not valid, or the batch size is not positive.
            InvalidType: An argument has an invalid type.
        """
        projection = columns if isinstance(columns, dict) else None
        return ds.Scanner.from_batches(self._open_reader(columns, filter, batch_size), columns=projection)

    def _open_reader(
        self, columns: Columns, where: pc.Expression | None, batch_size: int | None
    ) -> pa.RecordBatchReader:
        """Return a stream of the columns, or of those that a projection uses."""
        if batch_size is not None:
            batch_size = check_size("batch_size", batch_size, "rows")
        is_projection = isinstance(columns, dict)
        names = _find_source_columns(columns, self.schema) if is_projection else check_column_names(columns)
        reader = self._source.scan(names, where=_combine_filters(self._where, where)).to_reader()
        if batch_size is None:
            return reader
        # The scanner of pyarrow does not split the batches of a stream.
        return make_reader(reader.schema, _split_batches(reader, batch_size))

    def to_table(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> pa.Table:
        """Return the rows as a pyarrow Table."""
        return self.scanner(columns, filter, batch_size).to_table()

    def to_batches(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows as batches, in bounded memory. After an error or Ctrl-C, each later call raises, too."""
        return stop_at_exit(self._read_batches(columns, filter, batch_size))

    def _read_batches(
        self, columns: Columns, where: pc.Expression | None, batch_size: int | None
    ) -> Iterator[pa.RecordBatch]:
        if isinstance(columns, dict):
            yield from self.scanner(columns, where, batch_size).to_batches()
        else:
            # A scanner would read ahead of whoever takes some rows only.
            yield from self._open_reader(columns, where, batch_size)

    def head(
        self,
        num_rows: int,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        **_others: object,
    ) -> pa.Table:
        """Return the first `num_rows` rows."""
        return self.scanner(columns, filter).head(num_rows)

    def take(
        self,
        indices: object,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        **_others: object,
    ) -> pa.Table:
        """Return the rows at the positions `indices` among the rows that match `filter`."""
        return self.scanner(columns, filter).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **_others: object) -> int:  # noqa: A002 pyarrow's name
        """Return the number of rows that match `filter`."""
        return self._source.scan([], where=_combine_filters(self._where, filter)).count()

    def sort_by(self, sorting: str | list[tuple[str, str]], **_others: object) -> ds.InMemoryDataset:
        """Return the rows in memory, sorted."""
        return ds.InMemoryDataset(self.to_table().sort_by(sorting))

    def join(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise CapabilityNotSupported: joins of snapshots are not supported. Join the result of `to_table`."""
        raise CapabilityNotSupported("joins of a snapshot are not supported; join the result of to_table()")

    def join_asof(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise CapabilityNotSupported: joins of snapshots are not supported. Join the result of `to_table`."""
        raise CapabilityNotSupported("joins of a snapshot are not supported; join the result of to_table()")

    def replace_schema(self, schema: pa.Schema) -> ds.InMemoryDataset:
        """Return the rows in memory. pyarrow calls this method for a union of datasets.

        Raises:
            CapabilityNotSupported: The schema is not the schema of the snapshot.
        """
        _check_schema(schema, self.schema)
        return ds.InMemoryDataset(self.to_table())


class SnapshotFragment:
    """The only fragment of a dataset, for engines that read fragment by fragment."""

    def __init__(self, dataset: SnapshotDataset) -> None:
        self._dataset = dataset

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of the snapshot."""
        return self._dataset.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """An expression that is true for all rows."""
        return self._dataset.partition_expression

    def scanner(
        self,
        schema: pa.Schema | None = None,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 pyarrow's name
        batch_size: int | None = None,
        **_others: object,
    ) -> ds.Scanner:
        """Return a scanner, as `SnapshotDataset.scanner` does.

        Raises:
            CapabilityNotSupported: The schema is not the schema of the snapshot.
        """
        if schema is not None:
            _check_schema(schema, self._dataset.schema)
        return self._dataset.scanner(columns, filter, batch_size)

    def to_table(self, schema: pa.Schema | None = None, columns: Columns = None, **others: Any) -> pa.Table:  # noqa: ANN401 passed on
        """Return the rows as a pyarrow Table."""
        return self.scanner(schema, columns, **others).to_table()

    def to_batches(
        self,
        schema: pa.Schema | None = None,
        columns: Columns = None,
        **others: Any,  # noqa: ANN401 passed on
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows as batches, in bounded memory."""
        if schema is not None:
            _check_schema(schema, self._dataset.schema)
        return self._dataset.to_batches(columns, **others)

    def count_rows(self, filter: pc.Expression | None = None, **_others: object) -> int:  # noqa: A002 pyarrow's name
        """Return the number of rows that match `filter`."""
        return self._dataset.count_rows(filter)


def _check_schema(schema: pa.Schema, snapshot_schema: pa.Schema) -> None:
    if not schema.equals(snapshot_schema):
        raise CapabilityNotSupported(
            "a snapshot cannot be read with another schema than its own; cast the result of to_table()"
        )


def _split_batches(batches: Iterable[pa.RecordBatch], max_rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from (batch.slice(offset, max_rows) for offset in range(0, batch.num_rows, max_rows))


def _combine_filters(first: pc.Expression | None, second: pc.Expression | None) -> pc.Expression | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _find_source_columns(projection: dict[str, pc.Expression], schema: pa.Schema) -> list[str]:
    """Return the columns that the expressions of a projection use, or a superset of them."""
    for name, expression in projection.items():
        if not isinstance(expression, pc.Expression):
            raise InvalidType(f"column {name!r} must be a pyarrow.compute.Expression, not {expression!r}")
    used: set[str] = set()
    for name, expression in projection.items():
        try:
            used.update(find_columns(expression, schema))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(f"the expression of column {name!r} is not valid: {error}") from error
    # A projection loses the number of rows of a batch without columns, so one column is always read.
    return [name for name in schema.names if name in used] or list(schema.names[:1])

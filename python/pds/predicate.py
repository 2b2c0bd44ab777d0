"""Filters: SQL, which the engine evaluates, and pyarrow expressions, which pyarrow evaluates for the engine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from pds.arguments import is_expression, require_text, require_where
from pds.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow.compute as pc

_MASK = "mask"


def to_predicate(where: object, schema: pa.Schema) -> str | Predicate:
    """Return the filter in the form that the engine takes, for rows with the columns of `schema`.

    Raises:
        InvalidInput: The expression cannot be evaluated on these columns, or the SQL text cannot be encoded.
        InvalidType: The filter is neither SQL text nor a `pyarrow.compute.Expression`.
    """
    if is_expression(where):
        return Predicate(where, schema)
    require_where(where)
    return require_text("where", where)


def _format_expression(expression: pc.Expression) -> str:
    try:
        return str(expression)
    except UnicodeDecodeError:
        # The expression has a binary literal that is not UTF-8.
        return "<an expression>"


def _evaluate(expression: pc.Expression, batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    import pyarrow.dataset as ds  # noqa: PLC0415 imported only for pyarrow expressions

    rows = max((batch.num_rows for batch in batches), default=1)
    columns = {_MASK: expression}
    scanner = ds.Scanner.from_batches(
        (_replace_columns(batch) for batch in batches),
        schema=_replace_types(schema),
        columns=columns,
        batch_size=max(rows, 1),
        use_threads=False,
    )
    result: pa.Table = scanner.to_table()
    return result


def _replaced_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of the values for dictionaries by which pyarrow crashes.

    It crashes when it prunes by dictionaries of nulls, and when it compares one of large strings or binaries with null.
    """
    if pa.types.is_dictionary(data_type):
        values = data_type.value_type
        if pa.types.is_null(values) or pa.types.is_large_string(values) or pa.types.is_large_binary(values):
            return values
    return data_type


def _replace_types(schema: pa.Schema) -> pa.Schema:
    for position, field in enumerate(schema):
        schema = schema.set(position, field.with_type(_replaced_type(field.type)))
    return schema


def _replace_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = _replace_types(batch.schema)
    columns: list[Any] = [
        cast("pa.DictionaryArray[Any, Any]", column).dictionary_decode() if column.type != field.type else column
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def find_columns(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """Return the names of the columns that an expression uses.

    pyarrow has no such function. So columns are left out one by one, and those that the expression can be bound
    without are unused. Errors are those of pyarrow for an expression that cannot be bound to the schema.
    """

    def can_bind(names: Iterable[str]) -> bool:
        try:
            _evaluate(expression, [], pa.schema([schema.field(name) for name in names]))
        except (pa.ArrowException, TypeError, ValueError):
            return False
        return True

    _evaluate(expression, [], schema)
    text = _format_expression(expression)
    # A FieldPath addresses a column by its position, so the positions of all columns must stay.
    if "FieldPath" in text:
        return list(schema.names)
    columns = [name for name in schema.names if name in text]
    if not can_bind(columns):
        columns = list(schema.names)
    for name in list(columns):
        others = [other for other in columns if other != name]
        if can_bind(others):
            columns = others
    return columns


class Predicate:
    """A pyarrow expression that pyarrow evaluates. The engine calls `holds` and `may_hold`.

    Args:
        expression: A boolean expression over the columns of `schema`.
        schema: The columns of the table.

    Raises:
        InvalidInput: The expression cannot be evaluated on these columns, or is not boolean.
    """

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self.text = _format_expression(expression)
        try:
            data_type = _evaluate(expression, [], schema).schema.field(0).type
            self.columns = find_columns(expression, schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(f"the filter {self.text} cannot be used: {error}") from error
        if not (pa.types.is_boolean(data_type) or pa.types.is_null(data_type)):
            raise InvalidInput(f"the filter {self.text} has type {data_type}; a filter must be true or false")

    def holds(self, batches: list[pa.RecordBatch], rows: int) -> pa.Array[Any]:
        """Return a boolean mask of the rows that match the expression.

        Args:
            batches: One batch, which has the columns of the expression.
            rows: The number of rows in the batch, which may have no columns.
        """
        (batch,) = batches
        # The columns of the table may have been reordered since the expression was made.
        batch = batch.select(self.columns)
        if not batch.num_columns:
            batch = pa.RecordBatch.from_arrays([pa.nulls(rows)], ["rows"])
        try:
            mask = _evaluate(self._expression, [batch], batch.schema).column(_MASK).combine_chunks()
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(f"the filter {self.text} cannot be evaluated: {error}") from error
        return mask.cast(pa.bool_())

    def may_hold(self, bounds: list[pa.RecordBatch], rows: int) -> pa.Array[Any]:
        """Return a boolean mask of the files or row groups that may have rows that match the expression.

        pyarrow prunes them by their statistics, as it prunes the files of a dataset by partition expressions.

        Args:
            bounds: Minima, maxima, null counts and row counts: four batches with a row for each file or row group.
            rows: The number of files or row groups.
        """
        import pyarrow.compute as pc  # noqa: PLC0415 imported only for pyarrow expressions
        import pyarrow.dataset as ds  # noqa: PLC0415
        from pyarrow import fs  # noqa: PLC0415

        minima, maxima, null_counts = (_replace_columns(batch.select(self.columns)) for batch in bounds[:3])
        row_counts = bounds[3].column(0)
        all_true = pa.array([True] * rows, pa.bool_())
        # pyarrow simplifies `not (x < nan)` to `x >= nan`, which holds for no row instead of for all.
        if not minima.num_columns or re.search(r"\bnan\b", self.text):
            return all_true
        local, file_format = fs.LocalFileSystem(), ds.ParquetFileFormat()
        statistics: list[tuple[Any, ...]] = [
            (name, *(batch.column(name) for batch in (minima, maxima, null_counts))) for name in minima.schema.names
        ]
        try:
            fragments = []
            for row in range(rows):
                guarantees = [
                    guarantee
                    for name, low, high, nulls in statistics
                    for guarantee in _build_guarantees(name, low[row], high[row], nulls[row], row_counts[row])
                ]
                combined = guarantees[0] if guarantees else pc.scalar(value=True)
                for guarantee in guarantees[1:]:
                    combined &= guarantee
                fragments.append(file_format.make_fragment(str(row), local, partition_expression=combined))
            dataset = ds.FileSystemDataset(fragments, minima.schema, file_format, local)
            matching = {int(fragment.path) for fragment in dataset.get_fragments(self._expression)}
        except (pa.ArrowException, TypeError, ValueError):
            # Without pruning the result is the same; the read is slower.
            return all_true
        return pa.array([row in matching for row in range(rows)], pa.bool_())


def _build_guarantees(
    name: str,
    low: Any,  # noqa: ANN401 a scalar of any type
    high: Any,  # noqa: ANN401
    nulls: Any,  # noqa: ANN401
    rows: Any,  # noqa: ANN401
) -> list[pc.Expression]:
    """Return what the statistics of a column guarantee, as pyarrow does for the statistics of Parquet files."""
    import pyarrow.compute as pc  # noqa: PLC0415 imported only for pyarrow expressions

    field = pc.field(name)
    if nulls.is_valid and rows.is_valid and nulls.as_py() == rows.as_py():
        return [field.is_null()]
    if not (low.is_valid and high.is_valid):
        return []
    guarantees = [field >= pc.scalar(low), field <= pc.scalar(high)]
    if not nulls.is_valid or nulls.as_py():
        guarantees = [guarantee | field.is_null() for guarantee in guarantees]
    return guarantees

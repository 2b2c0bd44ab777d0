"""Filters: SQL for the engine, and pyarrow expressions that the engine asks about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEPT = "kept"


def predicate_of(where: object, schema: pa.Schema) -> str | Predicate:
    """What the engine takes for a filter of rows with these columns."""
    if isinstance(where, pc.Expression):
        return Predicate(where, schema)
    if not isinstance(where, str):
        raise InvalidType(f"where must be SQL or a pyarrow.compute.Expression, not {type(where).__name__}")
    return require_text("where", where)


def _shown(expression: pc.Expression) -> str:
    try:
        return str(expression)
    except UnicodeDecodeError:
        # A literal of bytes.
        return "<an expression>"


def _evaluated(expression: pc.Expression, batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    import pyarrow.dataset as ds  # noqa: PLC0415 only who filters so needs it

    rows = max((batch.num_rows for batch in batches), default=1)
    scanner = ds.Scanner.from_batches(
        iter(batches), schema=schema, columns={_KEPT: expression}, batch_size=max(rows, 1), use_threads=False
    )
    found: pa.Table = scanner.to_table()
    return found


def columns_of(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns of an expression, which pyarrow does not tell, by leaving out one after the other.

    Raises what pyarrow raises where it does not fit the schema.
    """

    def binds(names: Iterable[str]) -> bool:
        try:
            _evaluated(expression, [], pa.schema([schema.field(name) for name in names]))
        except (pa.ArrowException, TypeError, ValueError):
            return False
        return True

    _evaluated(expression, [], schema)
    shown = _shown(expression)
    # Where fields are meant by their place, all places have to be there.
    if "FieldPath" in shown:
        return list(schema.names)
    needed = [name for name in schema.names if name in shown]
    if not binds(needed):
        needed = list(schema.names)
    for name in list(needed):
        rest = [other for other in needed if other != name]
        if binds(rest):
            needed = rest
    return needed


class Predicate:
    """A pyarrow expression, evaluated by pyarrow; the engine calls `holds` and `may_hold`.

    Args:
        expression: Over the columns of `schema`.
        schema: The table's columns.
    """

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self.text = _shown(expression)
        try:
            kind = _evaluated(expression, [], schema).schema.field(0).type
            self.columns = columns_of(expression, schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(f"the filter {self.text} cannot be used: {error}") from error
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise InvalidInput(f"the filter {self.text} is {kind}, and must be true or false")

    def holds(self, batches: list[pa.RecordBatch], rows: int) -> pa.Array[Any]:
        """For which rows it holds."""
        (batch,) = batches
        # The table's columns may stand in another order by now.
        batch = batch.select(self.columns)
        if not batch.num_columns:
            batch = pa.RecordBatch.from_arrays([pa.nulls(rows)], ["rows"])
        try:
            kept = _evaluated(self._expression, [batch], batch.schema).column(_KEPT).combine_chunks()
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(f"the filter {self.text} cannot be evaluated: {error}") from error
        return kept.cast(pa.bool_())

    def may_hold(self, bounds: list[pa.RecordBatch], rows: int) -> pa.Array[Any]:
        """Which containers may hold rows for which it holds, by the bounds and nulls of their columns.

        pyarrow decides, as it does for the files of a dataset whose partition expressions are the bounds.
        """
        import pyarrow.dataset as ds  # noqa: PLC0415 only who filters so needs it
        from pyarrow import fs  # noqa: PLC0415

        low, high, nulls = (part.select(self.columns) for part in bounds[:3])
        counts = bounds[3]
        every = pa.array([True] * rows, pa.bool_())
        # pyarrow simplifies `not (x < nan)` to `x >= nan`, which holds for no row instead of for all.
        if not low.num_columns or re.search(r"\bnan\b", self.text):
            return every
        local, file_format = fs.LocalFileSystem(), ds.ParquetFileFormat()
        known: list[tuple[Any, ...]] = [
            (name, *(part.column(name) for part in (low, high, nulls))) for name in low.schema.names
        ]
        try:
            fragments = []
            for row in range(rows):
                facts = [
                    fact
                    for name, lows, highs, empty in known
                    for fact in _facts(name, lows[row], highs[row], empty[row], counts.column(0)[row])
                ]
                fact = facts[0] if facts else pc.scalar(value=True)
                for other in facts[1:]:
                    fact &= other
                fragments.append(file_format.make_fragment(str(row), local, partition_expression=fact))
            dataset = ds.FileSystemDataset(fragments, low.schema, file_format, local)
            left = {int(fragment.path) for fragment in dataset.get_fragments(self._expression)}
        except (pa.ArrowException, TypeError, ValueError):
            # Slower, and no error.
            return every
        return pa.array([row in left for row in range(rows)], pa.bool_())


def _facts(name: str, low: Any, high: Any, nulls: Any, rows: Any) -> list[pc.Expression]:  # noqa: ANN401 any scalars
    """What bounds say of a column, as pyarrow says it of Parquet's statistics."""
    field = pc.field(name)
    if nulls.is_valid and rows.is_valid and nulls.as_py() == rows.as_py():
        return [field.is_null()]
    if not (low.is_valid and high.is_valid):
        return []
    facts = [field >= pc.scalar(low), field <= pc.scalar(high)]
    if not nulls.is_valid or nulls.as_py():
        facts = [fact | field.is_null() for fact in facts]
    return facts

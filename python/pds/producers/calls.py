"""How the engine calls the function of a stage: with readers, for record batches."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds.errors import InvalidType
from pds.producers.batches import BatchFunction
from pds.producers.groups import MAX_ROWS
from pds.producers.rows import RowFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pds.producers.graph import Node


@dataclass(frozen=True)
class StageCall:
    """The function of a stage, and how it is called."""

    stage: str
    function: Callable[..., Any]
    fields: pa.Schema
    """The fields `key` and `value` of what it emits."""
    is_join: bool
    max_group_rows: int | None
    """The largest group of a function that takes batches; None for one that takes a key and its values."""
    batch_rows: int | None = None
    """About how many rows a batch has; None for the default."""

    def check(self) -> None:
        """Raise an InvalidType if the function cannot emit values of these types."""
        if self.max_group_rows is None:
            self._make_row_function([pa.field("value", pa.null())], pa.field("key", pa.null()))

    def __call__(self, readers: Sequence[pa.RecordBatchReader]) -> Iterable[pa.RecordBatch]:
        """Call the function for the groups of readers; of a join, the first reader lists all keys."""
        source_key = readers[0].schema.field("key")
        if self.max_group_rows is not None:
            batches = BatchFunction(
                self.function,
                stage=self.stage,
                source_key=source_key,
                source_value=readers[0].schema.field("value"),
                target_key=self.fields.field("key"),
                target_value=self.fields.field("value"),
                max_group_rows=self.max_group_rows,
            )
            batches.batch_rows = self.batch_rows
            return batches(readers)
        sides = readers[1:] if self.is_join else readers
        values = [reader.schema.field("value") for reader in sides]
        # A join of one feeder is called as a merge is.
        return self._make_row_function(values, source_key)(sides if len(sides) == 1 else readers)

    def _make_row_function(self, values: Sequence[pa.Field[Any]], source_key: pa.Field[Any]) -> RowFunction:
        try:
            return RowFunction(
                self.function,
                stage=self.stage,
                source_key=source_key,
                source_values=values,
                target_key=self.fields.field("key"),
                target_value=self.fields.field("value"),
            )
        except TypeError as error:
            raise InvalidType(f"stage {self.stage!r}: {error}") from error


def vary_batches(node: Node, rows: float) -> Node:
    """Return a stage whose function gets `rows` rows in more batches than in an update, of a size by chance."""
    call = node.function
    if not isinstance(call, StageCall) or call.max_group_rows is None:
        return node
    most = max(1, min(MAX_ROWS, int(rows)) // 2)
    batch_rows = random.randint(-(-most // 8), most)  # noqa: S311 no secret
    return node._replace(function=replace(call, batch_rows=batch_rows))

"""What the engine is told of a graph and of an update; it reads the attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from pds.producers.engine import BoundEngine


Order = tuple[list[str], bool]
"""The expressions by which the values of a key are in order, and whether the greatest is first."""


class Node(NamedTuple):
    """A source, or a stage with its function."""

    name: str
    feeders: list[str] | None
    """None for a source."""
    is_join: bool
    fields: pa.Schema
    """The fields `key` and `value`."""
    descending: bool
    skip_unchanged: bool
    definition: dict[str, int]
    function: Callable[[Sequence[pa.RecordBatchReader]], Iterable[pa.RecordBatch]] | None
    preserve: Callable[[pa.RecordBatchReader, str | None], Any] | None = None
    operator: str | None = None
    """An operator as JSON, in place of the function."""
    order_by: Order | None = None
    """The order of the values of a key."""
    function_digest: tuple[str, str] | None = None
    """What compiled the function, and a digest of it."""


class ConsumedTable(NamedTuple):
    """How far a table, or a stage of another pipeline, was read."""

    location: str
    """The path of the table; that of the pipeline, `#` and the name of the stage."""
    version: int
    commit_id: str
    columns: list[int]
    """The ids of the columns that were read; none of a stage."""


class SourceInput(NamedTuple):
    """The changes of a source, as Arrow streams, or as lists of the messages of staged parts."""

    source: str
    upserts: object
    deletes: object
    scope: str
    """`named`, `all` or `listed`: which keys change."""
    consumed: ConsumedTable | None = None
    """How far the table that feeds it was read."""
    consumed_before: ConsumedTable | None = None
    """How far it had been read before."""
    is_canonical: bool = False
    """Whether the rows of a key are sorted by their values."""


class UpdateArguments(NamedTuple):
    """The options of an update."""

    base_version: int | None
    idempotency_key: str | None
    memory_limit: int
    page_rows: int | None
    file_rows: int | None
    commit_timeout: float
    rebuilt: list[str]
    """The stages to compute anew."""
    rebuilds_changed: bool
    """Whether stages whose definition has changed are computed anew, too."""
    sample: float | None = None
    """Of these stages about which part of the keys is computed; None for all."""
    changed_function: Callable[[str], None] | None = None
    """Called with the name of a stage whose function changed and whose version did not."""
    engine: BoundEngine | None = None
    """What runs the tasks of large stages."""

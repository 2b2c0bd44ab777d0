"""Ingests of which many processes write the slices, and one appends the blocks of all.

The process that begins an ingest makes a task for each slice, which another process runs, and commits the messages that
the tasks return. A task must know how many rows come before those of its slice. `pds.spark.ingest` is the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pds import _pds
from pds.arguments import require_text
from pds.odf.block import Block
from pds.odf.events import check_source_state, format_rfc3339
from pds.odf.results import IngestResult
from pds.store import native_handle

if TYPE_CHECKING:
    import datetime as dt

    import pyarrow as pa

    from pds.odf.dataset import Dataset
    from pds.options import WriteOptions
    from pds.store import Store


@dataclass(frozen=True)
class SliceTask:
    """Writes rows as a slice; to be pickled and sent to another process.

    A slice that is never committed is in no block, and a vacuum removes it.
    """

    store: Store
    path: str
    options: WriteOptions
    task: bytes

    def write(self, rows: pa.RecordBatchReader, threads: int) -> list[bytes]:
        """Write the rows, and return a message about the slice for `commit`; none without rows.

        Raises:
            InvalidInput: As for `Dataset.ingest`.
        """
        message = _pds.write_task_slice(native_handle(self.store), self.path, self.task, rows, self.options, threads)
        return [] if message is None else [message]


@dataclass(frozen=True)
class SharedIngest:
    """An ingest at one state of the chain."""

    dataset: Dataset
    handle: _pds.SharedIngestHandle

    @classmethod
    def begin(
        cls,
        dataset: Dataset,
        schema: pa.Schema,
        *,
        event_time: str | None = None,
        watermark: dt.datetime | str | None = None,
        source_state: dict[str, str] | None = None,
    ) -> SharedIngest:
        """Begin an ingest of rows with this schema at the newest block.

        Raises:
            InvalidInput, InvalidType, InvalidAppend: As for `Dataset.ingest`, as far as the columns show it.
        """
        if event_time is not None:
            require_text("event_time", event_time)
        watermark_text = None if watermark is None else format_rfc3339(watermark)
        location = dataset._location  # noqa: SLF001 of the same package
        handle = _pds.SharedIngestHandle.begin(
            dataset._handle,  # noqa: SLF001 as above
            schema,
            event_time,
            watermark_text,
            check_source_state(source_state),
            location.options,
            location.timeout,
        )
        return cls(dataset, handle)

    @property
    def operation(self) -> str:
        """The name of the column of operations, which the rows need not have."""
        return self.dataset._handle.facts(None, None)["system_columns"][1]  # noqa: SLF001 as above

    @property
    def timeout(self) -> float:
        """The time in seconds in which a commit is attempted again."""
        return self.dataset._location.timeout  # noqa: SLF001 as above

    def task(self, rows_before: int) -> SliceTask:
        """Return the task of the rows that come after so many rows of this ingest."""
        location = self.dataset._location  # noqa: SLF001 as above
        return SliceTask(location.store, location.path, location.options, self.handle.task(rows_before))

    def commit(self, messages: list[bytes], rows: int) -> IngestResult | None:
        """Append a block for each slice, in this order, all or none. It can be called once.

        Args:
            messages: What the tasks have returned, in their order.
            rows: The number of rows that all tasks together have written.

        Returns:
            The blocks; None if another writer changed the offsets or the columns: nothing was appended, the slices are
            removed, and the rows have to be written again for a new ingest.

        Raises:
            InvalidInput: The slices do not follow one another, have another number of rows, or were committed before.
                The slices stay.
            InvalidAppend, CommitConflict, CommitStateUnknown, TransactionExpired: As for `Dataset.ingest`.
        """
        appended = self.handle.commit(messages, rows)
        if appended is None:
            return None
        attempts = appended["attempts"]
        blocks = [Block._from_handle(handle) for handle in appended["blocks"]]  # noqa: SLF001 as above
        events: list[Any] = [block.event for block in blocks]
        slices = [event.new_data for event in events if getattr(event, "new_data", None) is not None]
        if not slices:
            return IngestResult(blocks, 0, None, None, 0, None, None, attempts)
        first, last = slices[0]["offsetInterval"]["start"], slices[-1]["offsetInterval"]["end"]
        size = sum(slice_["size"] for slice_ in slices)
        is_one = len(slices) == 1
        logical_hash = slices[0]["logicalHash"] if is_one else None
        physical_hash = slices[0]["physicalHash"] if is_one else None
        return IngestResult(blocks, last - first + 1, first, last, size, logical_hash, physical_hash, attempts)

"""What runs on the executors: one partition into parts, parts of a dataset into batches.

Both are plain picklable values that Spark calls with an iterator of batches; they import no
session and keep no state between calls.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from pds.errors import RemoteStoreError
from pds.spark.schema import conform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pds import DatasetManifest, DatasetWrite, ParquetDatasetStore, StagedPart
    from pds._pds import PartIndex

__all__ = ["MESSAGE_DDL", "PrepareParts", "ReadParts"]

MESSAGE_DDL: Final = "task int, attempt int, rows bigint, bytes bigint, part binary"
_MESSAGE_TYPES: Final[dict[str, pa.DataType]] = {
    "task": pa.int32(),
    "attempt": pa.int32(),
    "rows": pa.int64(),
    "bytes": pa.int64(),
    "part": pa.binary(),
}
_MESSAGE: Final = pa.schema(_MESSAGE_TYPES)


@functools.cache
def freeze_worker_gc() -> None:
    """Take what was imported out of the collection that PySpark runs after every task."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class PrepareParts:
    """Writes a partition as parts that no reader can see, and yields a message for each."""

    write: DatasetWrite
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as the function of ``mapInArrow``."""
        freeze_worker_gc()
        context = TaskContext.get()
        if context is None:
            msg = "parts are prepared in Spark's tasks only"
            raise RuntimeError(msg)
        task = context.partitionId()
        reader = pa.RecordBatchReader.from_batches(self.schema, conform(batches, self.schema))
        # Spark runs as many tasks as there are processors; together they must not use more.
        parts = self.write.prepare(reader, task=task, threads=context.cpus())
        try:
            yield _messages(parts, task, context.attemptNumber())
        except BaseException:
            # The message was not taken, so nobody is going to publish them.
            with contextlib.suppress(RemoteStoreError):
                self.write.abort(parts)
            raise


def _messages(parts: list[StagedPart], task: int, attempt: int) -> pa.RecordBatch:
    columns: list[list[Any]] = [
        [task] * len(parts),
        [attempt] * len(parts),
        [part.rows for part in parts],
        [part.bytes for part in parts],
        [part.to_bytes() for part in parts],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _MESSAGE, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_MESSAGE)


@dataclass(frozen=True)
class ReadParts:
    """Reads the parts of one dataset that a task's number stands for."""

    datasets: ParquetDatasetStore
    key: str
    manifest: DatasetManifest
    part_index: PartIndex
    columns: tuple[str, ...] | None
    schema: pa.Schema
    tasks: tuple[tuple[int, ...], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as the function of ``mapInArrow`` over a range of task numbers."""
        freeze_worker_gc()
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for part in (part for number in numbers for part in self.tasks[number]):
                reader = self.datasets.read_part(
                    self.key, self.manifest, part, self.columns, part_index=self.part_index
                )
                yield from conform(reader, self.schema)

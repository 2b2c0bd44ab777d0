"""The functions that run on the executors: one writes a partition as parts, the other reads parts as batches.

Both are picklable objects that Spark calls with an iterator of batches. They do not import a session, and keep no
state between calls.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import pickle
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from pds.errors import RemoteStoreError
from pds.readers import make_reader
from pds.spark.schema import align_to_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from pds import DatasetManifest, DatasetWrite, ParquetDatasetStore, StagedPart
    from pds._pds import PartIndex
    from pds.dataset_arguments import PartSelection
    from pds.table.results import CommitResult

__all__ = ["MESSAGE_DDL", "PrepareParts", "ReadParts", "SentTasks", "send_tasks"]

_T = TypeVar("_T")

MESSAGE_DDL: Final = "task int, attempt int, rows bigint, bytes bigint, part binary"
_MESSAGE_TYPES: Final[dict[str, pa.DataType]] = {
    "task": pa.int32(),
    "attempt": pa.int32(),
    "rows": pa.int64(),
    "bytes": pa.int64(),
    "part": pa.binary(),
}
_MESSAGE: Final = pa.schema(_MESSAGE_TYPES)
# A list of tasks that is larger is not sent with the function of a job: each task of Spark loads all of that.
_MAX_LIST_BYTES: Final = 1 << 20
# Unless its tasks have more in common, such as a long filter, that each of them would have to have.
_MAX_TIMES_SHARED: Final = 4
# Its functions have no types.
_PICKLER: Final[Any] = cloudpickle


@functools.cache
def freeze_worker_gc() -> None:
    """Exclude imported objects from the garbage collection that PySpark runs after every task."""
    gc.collect()
    gc.freeze()


def task_context() -> TaskContext:
    """Return the context of the Spark task in which this is called."""
    context = TaskContext.get()
    if context is None:
        msg = "this function must be called in a Spark task"
        raise RuntimeError(msg)
    return context


@dataclass(frozen=True)
class SentTasks(Generic[_T]):
    """Tasks as a function of a job has them; see `send_tasks`."""

    tasks: list[_T] | None = field(repr=False)
    """None if each comes in the row of its number."""

    def take(self, batch: pa.RecordBatch) -> Iterator[tuple[int, _T]]:
        """Return the tasks of a batch of rows, with their numbers."""
        numbers: list[Any] = batch.column(0).to_pylist()
        if self.tasks is not None:
            yield from ((number, self.tasks[number]) for number in numbers)
            return
        pickled: list[Any] = batch.column(1).to_pylist()
        for number, task in zip(numbers, pickled, strict=True):
            yield number, pickle.loads(task)  # noqa: S301 from the driver


def send_tasks(spark: SparkSession, tasks: Sequence[_T]) -> tuple[DataFrame, SentTasks[_T]]:
    """Return a DataFrame with a row for each task, in a partition of its own, in their order; and what finds the tasks.

    A short list is a part of the function, which costs no shuffle. Of a long one a task of Spark gets its own entry.

    Args:
        spark: A classic or a Connect session.
        tasks: They can be pickled.
    """
    count = len(tasks)
    size = len(_PICKLER.dumps(list(tasks)))
    # Spark has it since version 4.1.
    is_long = size > _MAX_LIST_BYTES and hasattr(spark.range(0), "repartitionById")
    pickled = _pickle_each(tasks, size * _MAX_TIMES_SHARED) if is_long else None
    if pickled is None:
        return spark.range(0, count, 1, numPartitions=max(1, count)), SentTasks(list(tasks))
    rows = pa.table({"number": pa.array(range(count), pa.int32()), "task": pa.array(pickled, pa.binary())})
    return spark.createDataFrame(rows).repartitionById(count, "number"), SentTasks(None)


def _pickle_each(tasks: Sequence[object], max_bytes: int) -> list[bytes] | None:
    """Return the pickled tasks, or None if they are larger together."""
    pickled: list[bytes] = []
    for task in tasks:
        pickled.append(_PICKLER.dumps(task))
        max_bytes -= len(pickled[-1])
        if max_bytes < 0:
            return None
    return pickled


def warn_of_exports(result: CommitResult) -> None:
    """Warn of the exports of a commit that failed, where Spark takes no result."""
    for name, outcome in result.exports.items():
        if isinstance(outcome, RemoteStoreError):
            warnings.warn(
                f"version {result.version} is committed, and could not be exported to {name}: {outcome}", stacklevel=2
            )


def check_messages(messages: Sequence[object], kind: type[_T]) -> list[_T]:
    """Return what all tasks of a write have staged.

    Raises:
        RemoteStoreError: A task has no message, as tasks that failed: its rows would be missing.
    """
    staged = [message for message in messages if isinstance(message, kind)]
    if len(staged) < len(messages):
        raise RemoteStoreError(
            f"{len(messages) - len(staged)} of {len(messages)} tasks did not say what they have staged, so nothing is "
            "committed; run the write anew"
        )
    return staged


def choose_attempts(messages: Iterable[tuple[int, int, _T]]) -> tuple[list[_T], list[_T]]:
    """Choose one attempt of each task.

    Args:
        messages: The number of a task, that of an attempt, and what the attempt has written.

    Returns:
        What the chosen attempts have written, in the order of the tasks; and what the others have.
    """
    attempts: defaultdict[int, defaultdict[int, list[_T]]] = defaultdict(lambda: defaultdict(list))
    for task, attempt, written in messages:
        attempts[task][attempt].append(written)
    chosen: list[_T] = []
    duplicates: list[_T] = []
    for task in sorted(attempts):
        first = min(attempts[task])
        for attempt, written_by in attempts[task].items():
            (chosen if attempt == first else duplicates).extend(written_by)
    return chosen, duplicates


@dataclass(frozen=True)
class PrepareParts:
    """Writes a partition as unpublished parts, and yields a batch with a message for each part."""

    write: DatasetWrite
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the batches of one partition; a function for ``mapInArrow``."""
        freeze_worker_gc()
        context = task_context()
        task = context.partitionId()
        reader = make_reader(self.schema, align_to_schema(batches, self.schema))
        # Spark runs several tasks at once, so each task uses only the processors that Spark assigned to it.
        parts = self.write.prepare(reader, task=task, threads=context.cpus())
        try:
            yield _make_messages(parts, task, context.attemptNumber())
        except BaseException:
            # Spark did not take the messages, so the parts will not be published.
            with contextlib.suppress(RemoteStoreError):
                self.write.abort(parts)
            raise


def _make_messages(parts: list[StagedPart], task: int, attempt: int) -> pa.RecordBatch:
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
    """Reads the parts of a dataset that belong to a task."""

    datasets: ParquetDatasetStore
    key: str
    manifest: DatasetManifest
    part_index: PartIndex
    columns: tuple[str, ...] | None
    schema: pa.Schema
    tasks: tuple[tuple[PartSelection, ...], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the parts of the tasks whose numbers are in the batches; a function for ``mapInArrow``."""
        freeze_worker_gc()
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for part in (part for number in numbers for part in self.tasks[number]):
                reader = self.datasets.read_part(
                    self.key, self.manifest, part.index, self.columns, share=part.share, part_index=self.part_index
                )
                yield from align_to_schema(reader, self.schema)

"""Jobs of Spark: tasks that can be pickled run on the executors, and their messages come to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from pds.spark.tasks import SentTasks, freeze_worker_gc, send_tasks, task_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

__all__ = ["flatten", "run_tasks"]

_DDL: Final = "task int, messages array<binary>"
_MESSAGES: Final = pa.schema([pa.field("task", pa.int32()), pa.field("messages", pa.list_(pa.binary()))])


class _Task(Protocol):
    """What a task does."""

    def run(self, threads: int | None = None) -> list[bytes]: ...


def flatten(by_task: list[list[bytes]]) -> list[bytes]:
    """Return the messages of all tasks."""
    return [message for messages in by_task for message in messages]


def run_tasks(spark: SparkSession, tasks: Sequence[_Task]) -> list[list[bytes]]:
    """Run tasks by a job, and return the messages of each."""
    if not tasks:
        return []
    rows, sent = send_tasks(spark, tasks)
    results = rows.mapInArrow(RunTasks(sent), _DDL).collect()
    messages = {row.task: [bytes(message) for message in row.messages] for row in results}
    # Fails if Spark has lost one.
    return [messages[number] for number in range(len(tasks))]


@dataclass(frozen=True)
class RunTasks:
    """Runs tasks, and yields their messages."""

    tasks: SentTasks[_Task]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks in the batches; a function for ``mapInArrow``."""
        freeze_worker_gc()
        threads = task_context().cpus()
        for batch in batches:
            for number, task in self.tasks.take(batch):
                columns: list[list[Any]] = [[number], [task.run(threads)]]
                arrays = [pa.array(column, field.type) for column, field in zip(columns, _MESSAGES, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=_MESSAGES)

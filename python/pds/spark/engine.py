"""The engine that computes the large stages of pipelines by Spark tasks.

A stage takes two jobs, or one. Each is a plan of numbers, one for each task, and its only action is ``collect``: Spark
moves the results of tasks, a few lines each, and no row. A task reads and writes the store itself. Of a task that runs
twice one result counts, and what else was written is in no version.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import uuid
from dataclasses import dataclass
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.util import inheritable_thread_target

from pds.errors import (
    FormatNotSupported,
    InvalidInput,
    InvalidType,
    NotFound,
    PartCorrupted,
    PermissionDenied,
    VersionExpired,
)
from pds.producers.engine import BoundEngine, SourceRows, StageTasks
from pds.producers.errors import ProduceError
from pds.readers import make_reader
from pds.spark.functions import PickledStage, pickle_stage
from pds.spark.schema import align_to_schema, check_columns, fit_to_table
from pds.spark.settings import batch_limit_settings, batch_limits
from pds.spark.tasks import SentTasks, freeze_worker_gc, send_tasks, task_context
from pds.spark.write import check_frame, require_shippable
from pds.table.checks import check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from pds.producers.engine import Part
    from pds.producers.graph import Node
    from pds.store import Store

__all__ = ["SparkEngine"]

_LOCAL_BYTES: Final = 64 << 20
_TASK_BYTES: Final = 128 << 20

_DDL: Final = "task int, result binary, error binary"
_MESSAGE_TYPES: Final[dict[str, pa.DataType]] = {"task": pa.int32(), "result": pa.binary(), "error": pa.binary()}
_MESSAGE: Final = pa.schema(_MESSAGE_TYPES)
# Its functions have no types.
_PICKLER: Final[Any] = cloudpickle
# Each attempt of a task would raise these again. All others may be of the moment, and Spark tries again.
_LASTING: Final = (
    ProduceError,
    InvalidInput,
    InvalidType,
    NotFound,
    VersionExpired,
    PermissionDenied,
    PartCorrupted,
    FormatNotSupported,
)


class SparkEngine:
    """Computes the large stages of a pipeline by Spark tasks: ``pds.Pipeline(store, path, engine=SparkEngine(spark))``.

    Stages with little work are computed by the process of the update, without a job; the result of an update says how
    many tasks each stage took. The tables are the same either way. The tasks read and write the store, so the
    executors must be able to reach it; its options, including credentials that were passed, are sent to them. The
    functions of stages are sent with the jobs, and so are the modules that define them, unless these are installed.
    Other modules must be importable there: see ``SparkSession.addArtifacts``.

    A hook that preserves values sees all rows in their order, in one task.

    Args:
        spark: A classic or a Connect session.
        local_bytes: The most bytes of work of a stage that the process of the update computes: what the update adds to
            the feeders of the stage, and what is read of their stored rows.
        task_bytes: About the bytes of work of a task. Each may take the memory limit of the pipeline.

    Raises:
        InvalidInput: A number is not positive.
        InvalidType: An argument has an invalid type.
    """

    def __init__(self, spark: SparkSession, *, local_bytes: int = _LOCAL_BYTES, task_bytes: int = _TASK_BYTES) -> None:
        if isinstance(spark, type) or not hasattr(spark, "interruptTag"):
            raise InvalidType(f"spark must be a SparkSession, not {spark!r}")
        self._spark = spark
        self._local_bytes = check_size("local_bytes", local_bytes)
        self._task_bytes = check_size("task_bytes", task_bytes)

    def bind(self, store: Store, path: str, nodes: Sequence[Node]) -> BoundEngine:
        """Return the engine for a pipeline.

        Raises:
            InvalidInput: The store or the function of a stage cannot be sent to the executors.
        """
        require_shippable(store, store)
        for node in nodes:
            # A function that cannot be sent is found now, not by the first update that is large.
            pickle_stage((node.function, node.preserve), node)
        by_name = {node.name: node for node in nodes}
        tag = f"pds-{uuid.uuid4().hex}"

        def run_tasks(stage: str, job: bytes, count: int) -> list[bytes | Exception]:
            work = RunTasks(pickle_stage(StageTasks.of(store, path, nodes, stage, job), by_name[stage]))
            # A thread has tags of its own, and this one is not the caller's.
            self._spark.addTag(tag)
            try:
                return self._run_numbers(work, count)
            finally:
                self._spark.removeTag(tag)

        # Its jobs have the group, the tags and the pool of the caller's.
        inheriting = inheritable_thread_target(self._spark)(run_tasks)
        return BoundEngine(self._local_bytes, self._task_bytes, inheriting, lambda: _interrupt(self._spark, tag))

    def takes(self, rows: object) -> bool:
        """Whether rows are a DataFrame."""
        return isinstance(rows, DataFrame)

    def stage(self, target: SourceRows, rows: DataFrame) -> list[bytes]:
        """Stage the rows of a DataFrame, which runs once, by its partitions."""
        schema = fit_to_table(check_frame(rows), target.source.fields, case_sensitive=True)
        check_columns(target, schema)
        # Columns are renamed to their positions, because mapInArrow splits names at dots and fails on backticks.
        renamed = rows.toDF(*(f"c{position}" for position in range(len(schema))))
        with batch_limit_settings(rows.sparkSession, batch_limits(rows.schema)):
            results = _collect(renamed.mapInArrow(StageRows(target, schema), _DDL))
        return _staged(target, results)

    def stage_parts(self, target: SourceRows, parts: Sequence[Part]) -> list[bytes]:
        """Stage rows that tasks read."""
        rows, sent = send_tasks(self._spark, parts)
        return _staged(target, _collect_all(rows.mapInArrow(StageParts(target, sent), _DDL), len(parts)))

    def _run_numbers(self, work: Work, count: int) -> list[bytes | Exception]:
        numbers = self._spark.range(0, count, 1, numPartitions=count)
        return _collect_all(numbers.mapInArrow(RunNumbers(work), _DDL), count)

    def __repr__(self) -> str:
        return f"SparkEngine(local_bytes={self._local_bytes}, task_bytes={self._task_bytes})"


def _interrupt(spark: SparkSession, tag: str) -> None:
    with contextlib.suppress(Exception):
        spark.interruptTag(tag)


def _collect(plan: DataFrame) -> list[bytes | Exception]:
    """Return the result of each task, in their order, or its exception. This is the only action on a plan."""
    rows = plan.collect()
    messages = {row.task: row for row in rows}
    if len(messages) != len(rows):
        raise RuntimeError(f"{len(rows)} results of {len(messages)} tasks")
    results: list[bytes | Exception] = []
    for _, row in sorted(messages.items()):
        if row.error is None:
            results.append(bytes(row.result))
            continue
        failure, cause, traceback = pickle.loads(bytes(row.error))  # noqa: S301 of this job
        failure.__cause__ = _load_cause(cause, RemoteTraceback(traceback))
        results.append(failure)
    return results


def _collect_all(plan: DataFrame, count: int) -> list[bytes | Exception]:
    results = _collect(plan)
    if len(results) != count:
        raise RuntimeError(f"{len(results)} of {count} tasks gave a result")
    return results


def _load_cause(pickled: bytes | None, remote: RemoteTraceback) -> BaseException:
    """Return the exception of the user's function, if the driver can load it, and where it was raised."""
    with contextlib.suppress(Exception):
        cause = None if pickled is None else pickle.loads(pickled)  # noqa: S301 of this job
        if isinstance(cause, BaseException):
            cause.__cause__ = remote
            return cause
    return remote


def _staged(target: SourceRows, results: list[bytes | Exception]) -> list[bytes]:
    """Return the messages of staged parts, or raise the first exception of them."""
    failure = next((result for result in results if isinstance(result, Exception)), None)
    messages = [result for result in results if isinstance(result, bytes)]
    if failure is not None:
        target.discard(messages)
        raise failure
    return messages


class RemoteTraceback(Exception):
    """The traceback of an error on an executor."""


class Work(Protocol):
    """What the tasks of a job do."""

    def run(self, number: int, threads: int) -> bytes:
        """Run a task by so many threads, and return its result."""


@dataclass(frozen=True)
class RunNumbers:
    """Runs the tasks whose numbers are in a partition."""

    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks, and yield a message for each; a function for ``mapInArrow``."""
        freeze_worker_gc()
        # Spark runs several tasks at once, so each task uses only the processors that Spark assigned to it.
        threads = task_context().cpus()
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                yield _report(number, functools.partial(self.work.run, number, threads))


def _report(number: int, run: Callable[[], bytes]) -> pa.RecordBatch:
    result, error = None, None
    try:
        result = run()
    except _LASTING as raised:
        cause = None
        with contextlib.suppress(Exception):
            cause = _PICKLER.dumps(raised.__cause__)
        error = _PICKLER.dumps((raised, cause, "".join(format_exception(raised))))
    columns: list[list[Any]] = [[number], [result], [error]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _MESSAGE, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_MESSAGE)


@dataclass(frozen=True)
class RunTasks:
    """Runs tasks of a stage."""

    pickled: PickledStage
    """A ``StageTasks``; it has the options of the store."""

    def run(self, number: int, threads: int) -> bytes:
        """Run a task of the stage."""
        tasks: StageTasks = self.pickled.load()
        return tasks.run(number, threads)


@dataclass(frozen=True)
class StageParts:
    """Stages parts of a source."""

    target: SourceRows
    parts: SentTasks[Part]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the parts in the batches; a function for ``mapInArrow``."""
        freeze_worker_gc()
        threads = task_context().cpus()
        for batch in batches:
            for number, part in self.parts.take(batch):
                yield _report(number, functools.partial(self._stage, part, threads))

    def _stage(self, part: Part, threads: int) -> bytes:
        return self.target.stage(part.open(), threads)


@dataclass(frozen=True)
class StageRows:
    """Stages the rows of a partition of a DataFrame."""

    target: SourceRows
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the batches of one partition; a function for ``mapInArrow``."""
        freeze_worker_gc()
        reader = make_reader(self.schema, align_to_schema(batches, self.schema))
        context = task_context()
        yield _report(context.partitionId(), lambda: self.target.stage(reader, context.cpus()))

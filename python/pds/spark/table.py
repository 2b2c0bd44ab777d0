"""Reads a table as a DataFrame: every task opens its own data files.

The driver splits the scan of one version into tasks (`pds.table.ScanTask`) and sends them with the job: some hundred
bytes for each, and some ten for each file. Of more than 1 MiB a task of Spark gets its own only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pds import Table
from pds.errors import InvalidType
from pds.spark.options import TASK_SIZES
from pds.spark.schema import align_to_schema, frame_schema, worker_schema
from pds.spark.tasks import SentTasks, freeze_worker_gc, send_tasks
from pds.spark.write import require_shippable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Where = str | pc.Expression

__all__ = ["check_table", "read_table", "read_tasks"]


def read_table(
    spark: SparkSession,
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    version: int | None = None,
) -> DataFrame:
    """Read a version of a table as a DataFrame.

    Name the columns and the filter here and not in a ``select`` or ``filter``, because Spark does not push these down
    to this source. Statistics prune files, row groups and pages without matching rows, as in ``Table.scan``.

    Args:
        spark: A classic or a Connect session.
        table: The table. The executors must be able to reach its store. The store's options, including credentials
            that were passed, are sent to the executors.
        columns: The names of the columns to fetch, in the order of the result. Defaults to all columns.
        where: A filter, as for ``Table.scan``.
        version: The version to read. Defaults to that of ``table``.

    Returns:
        A DataFrame with the types of Spark that hold all values of the table's types, in the order of ``Table.scan``.
        Every action reads the version again, whatever has been committed since; it fails after a vacuum of the version.

    Raises:
        InvalidInput: A column or the version does not exist, the filter is not valid, depends on the time or on chance
            or cannot be pickled, or the store cannot be sent to the executors.
        InvalidType: An argument has an invalid type, or columns have types that Spark does not have. The message names
            all of them.
        VersionExpired: The version has been vacuumed.
    """
    check_table(table)
    snapshot = table if version is None else table.as_of(version)
    schema = frame_schema(snapshot.scan(columns, where=where).schema)
    tasks = snapshot.scan_tasks(columns, where=where, **TASK_SIZES)
    return read_tasks(spark, tasks, schema)


def check_table(table: Table) -> None:
    """Check that it is a table that executors can open.

    Raises:
        InvalidInput: Its store cannot be sent to them.
        InvalidType: It is not a table.
    """
    if not isinstance(table, Table):
        raise InvalidType(f"table must be a pds.Table, not {type(table).__name__}")
    require_shippable(table.store, table.store)


class _Task(Protocol):
    """What a task of Spark reads."""

    def to_reader(self) -> pa.RecordBatchReader:
        """Open it."""


def read_tasks(spark: SparkSession, tasks: Sequence[_Task], schema: StructType) -> DataFrame:
    """Return the rows of tasks, in their order, as a DataFrame."""
    rows, sent = send_tasks(spark, tasks)
    return rows.mapInArrow(ReadTasks(sent, worker_schema(schema)), schema)


@dataclass(frozen=True)
class ReadTasks:
    """Reads tasks."""

    tasks: SentTasks[_Task]
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the tasks in the batches; a function for ``mapInArrow``."""
        freeze_worker_gc()
        for batch in batches:
            for _, task in self.tasks.take(batch):
                yield from align_to_schema(task.to_reader(), self.schema)

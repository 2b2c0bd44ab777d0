"""Reads a table as a DataFrame: every task opens its own data files.

The driver splits the scan of one version into tasks (`pds.table.ScanTask`) and sends them with the job. Where their
lists of files are too long for that, each worker process splits the same scan again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pds import Table
from pds.errors import InvalidType
from pds.spark.schema import align_to_schema, frame_schema, worker_schema
from pds.spark.tasks import freeze_worker_gc
from pds.spark.write import require_shippable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from pds import Store
    from pds.table.tasks import ScanTask

    Where = str | pc.Expression

__all__ = ["read_table"]

_MAX_SENT_BYTES: Final = 1 << 20
# Fewer and smaller tasks would cost more to start than to run.
_SIZES: Final = {"count": 128, "min_bytes": 16 << 20, "max_bytes": 128 << 20}


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
        InvalidInput: A column does not exist, the filter is not valid, there is no such version, or the store cannot be
            sent to the executors.
        InvalidType: An argument has an invalid type, or columns have types that Spark does not have. The message names
            all of them.
        VersionExpired: The version has been vacuumed.
    """
    if not isinstance(table, Table):
        raise InvalidType(f"table must be a pds.Table, not {type(table).__name__}")
    require_shippable(table.store, table.store)
    snapshot = table if version is None else table.as_of(version)
    schema = frame_schema(snapshot.scan(columns, where=where).schema)
    tasks = snapshot.scan_tasks(columns, where=where, **_SIZES)
    is_short = sum(task.size_bytes for task in tasks) <= _MAX_SENT_BYTES
    plan = _Plan(table.store, table.path, snapshot.version, columns, where, dict(_SIZES), uuid.uuid4().hex)
    read = ReadTasks(tasks if is_short else plan, worker_schema(schema))
    return spark.range(0, len(tasks), 1, numPartitions=max(1, len(tasks))).mapInArrow(read, schema)


class _Plan(NamedTuple):
    """What it takes to split a scan as the driver did."""

    store: Store
    path: str
    version: int
    columns: Sequence[str] | None
    where: Where | None
    sizes: dict[str, int]
    # Tells the plans of a worker process apart.
    name: str

    def split(self) -> list[ScanTask]:
        """The tasks."""
        snapshot = Table(self.store, self.path).as_of(self.version)
        return snapshot.scan_tasks(self.columns, where=self.where, **self.sizes)


class _LastSplit:
    """The tasks of the plan that a worker process split last."""

    name: str = ""
    tasks: Sequence[ScanTask] = ()


@dataclass(frozen=True)
class ReadTasks:
    """Reads tasks of a scan."""

    tasks: list[ScanTask] | _Plan
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the tasks whose numbers are in the batches; a function for ``mapInArrow``."""
        freeze_worker_gc()
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                yield from align_to_schema(self._tasks()[number].to_reader(), self.schema)

    def _tasks(self) -> Sequence[ScanTask]:
        if not isinstance(self.tasks, _Plan):
            return self.tasks
        if _LastSplit.name != self.tasks.name:
            _LastSplit.name, _LastSplit.tasks = self.tasks.name, self.tasks.split()
        return _LastSplit.tasks

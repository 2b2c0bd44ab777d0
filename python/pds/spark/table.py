"""Reads a table as a DataFrame: every task opens its own data files.

The driver splits the scan of one version into tasks (`pds.table.ScanTask`) and sends them with the job: some hundred
bytes for each, and some ten for each file. Changes are split by version.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from pds import Table
from pds.errors import InvalidInput, InvalidType
from pds.spark.options import TASK_SIZES, check_commit
from pds.spark.schema import align_to_schema, frame_schema, worker_schema
from pds.spark.tasks import freeze_worker_gc
from pds.spark.write import require_shippable
from pds.table.tasks import pack_columns, with_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pds.store import Store

    Where = str | pc.Expression

__all__ = ["read_table", "scan_changes"]

# Tasks that read the changes of many versions.
_MOST_CHANGE_TASKS: Final = 128
# Operations that rewrite files and change no rows.
_REWRITES: Final = ("compact", "sort")


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
    _check_table(table)
    snapshot = table if version is None else table.as_of(version)
    schema = frame_schema(snapshot.scan(columns, where=where).schema)
    tasks = snapshot.scan_tasks(columns, where=where, **TASK_SIZES)
    return _read(spark, tasks, schema)


def scan_changes(
    spark: SparkSession, table: Table, since: int, until: int | None = None, *, columns: Sequence[str] | None = None
) -> DataFrame:
    """Read the inserted and deleted rows of every commit after the version `since`, up to `until`, as a DataFrame.

    The rows and columns are those of `Table.scan_changes`. A task reads the changes of one version, or of several if
    there are more than 128.

    Args:
        spark: A classic or a Connect session.
        table: The table, as for `read_table`.
        since: A version. Its own changes are not included.
        until: A version. Defaults to that of ``table``.
        columns: As for `Table.scan_changes`.

    Returns:
        A DataFrame with the types of Spark, commit by commit. Every action reads the changes again; it fails after a
        vacuum of one of the versions.

    Raises:
        InvalidInput: A version or a column does not exist, `until` is before `since`, the store cannot be sent to the
            executors, or a compaction or sort dropped values of a column that `until` has again.
        InvalidType: As for `read_table`.
        VersionExpired: A vacuum removed a version in this range.
    """
    _check_table(table)
    last = table if until is None else table.as_of(until)
    schema = frame_schema(table.scan_changes(since, until, columns=columns).schema)
    names = None if columns is None else list(columns)
    _check_rewrites(last, last.history(last.version - since), names)
    commit = last.history(1)[0]["commit_id"]
    # One object, which is pickled once for all tasks.
    packed = pack_columns(last)
    step = max(1, -(-(last.version - since) // _MOST_CHANGE_TASKS))
    tasks = [
        ChangesTask(
            table.store,
            table.path,
            (first, min(first + step - 1, last.version)),
            (last.version, commit),
            names,
            packed,
        )
        for first in range(since + 1, last.version + 1, step)
    ]
    return _read(spark, tasks, schema)


def _check_rewrites(last: Table, entries: list[dict[str, Any]], names: list[str] | None) -> None:
    """Check that no version has rewritten files without a column that is read: a task would not know of it."""
    columns = {column["id"]: column["name"] for column in _parse_schema(last)["columns"]}
    for entry in entries:
        if entry["operation"]["name"] not in _REWRITES:
            continue
        schema = _parse_schema(last.as_of(entry["version"]))
        kept = {column["id"] for column in schema["columns"]}
        for number, name in columns.items():
            if number <= schema["last_id"] and number not in kept and (names is None or name in names):
                raise InvalidInput(
                    f"version {entry['version']} rewrote files while column {name!r} was dropped; read the changes "
                    "with Table.scan_changes"
                )


def _parse_schema(table: Table) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(table._handle.manifest())["schema"]  # noqa: SLF001 of the package
    return schema


def _check_table(table: Table) -> None:
    if not isinstance(table, Table):
        raise InvalidType(f"table must be a pds.Table, not {type(table).__name__}")
    require_shippable(table.store, table.store)


class _Task(Protocol):
    """What a task of Spark reads."""

    def to_reader(self) -> pa.RecordBatchReader:
        """Open it."""


@dataclass(frozen=True)
class ChangesTask:
    """The changes of some versions, with the columns of another one."""

    store: Store
    path: str
    versions: tuple[int, int]
    # The version whose columns these are, and its commit: another table may be at the path by then.
    until: tuple[int, str]
    names: list[str] | None
    columns: bytes

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the changes."""
        first, last = self.versions
        newest = Table(self.store, self.path)
        check_commit(newest, *self.until)
        return with_columns(newest.as_of(last), self.columns).scan_changes(first - 1, columns=self.names).to_reader()


def _read(spark: SparkSession, tasks: Sequence[_Task], schema: StructType) -> DataFrame:
    read = ReadTasks(tasks, worker_schema(schema))
    return spark.range(0, len(tasks), 1, numPartitions=max(1, len(tasks))).mapInArrow(read, schema)


@dataclass(frozen=True)
class ReadTasks:
    """Reads tasks."""

    tasks: Sequence[_Task]
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the tasks whose numbers are in the batches; a function for ``mapInArrow``."""
        freeze_worker_gc()
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                yield from align_to_schema(self.tasks[number].to_reader(), self.schema)

"""Reads the changes of a table as a DataFrame: every task reads those of some versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pds import Table
from pds.spark.options import check_commit
from pds.spark.schema import frame_schema
from pds.spark.table import check_table, read_tasks
from pds.table.tasks import pack_columns, with_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from pds.store import Store

__all__ = ["REWRITES", "ChangesTask", "scan_changes", "split_changes"]

# Tasks that read the changes of many versions.
_MOST_CHANGE_TASKS: Final = 128
# Operations that rewrite files and change no rows.
REWRITES: Final = ("compact", "sort")


def scan_changes(
    spark: SparkSession, table: Table, since: int, until: int | None = None, *, columns: Sequence[str] | None = None
) -> DataFrame:
    """Read the inserted and deleted rows of every commit after the version `since`, up to `until`, as a DataFrame.

    The rows and columns are those of `Table.scan_changes`. A task reads the changes of one version, or of several if
    there are more than 128.

    Args:
        spark: A classic or a Connect session.
        table: The table, as for `read_table`.
        since: A version, whose own changes are not included. 0 includes those of version 1.
        until: A version. Defaults to that of ``table``.
        columns: As for `Table.scan_changes`.

    Returns:
        A DataFrame with the types of Spark, commit by commit. Every action reads the changes again; it fails after a
        vacuum of one of the versions.

    Raises:
        InvalidInput: A version or a column does not exist, `until` is before `since`, or the store cannot be sent to
            the executors.
        InvalidType: As for `read_table`.
        VersionExpired: A vacuum removed a version in this range.
    """
    check_table(table)
    last = table if until is None else table.as_of(until)
    schema = frame_schema(table.scan_changes(since, until, columns=columns).schema)
    tasks = split_changes(last, since, None if columns is None else list(columns))
    return read_tasks(spark, tasks, schema)


def split_changes(last: Table, since: int, names: list[str] | None) -> list[ChangesTask]:
    """Return tasks for the changes after the version `since`, up to that of `last`, with its columns."""
    commit = last.history(1)[0]["commit_id"]
    # One object, which is pickled once for all tasks.
    packed = pack_columns(last)
    step = max(1, -(-(last.version - since) // _MOST_CHANGE_TASKS))
    return [
        ChangesTask(
            last.store,
            last.path,
            (first, min(first + step - 1, last.version)),
            (last.version, commit),
            names,
            packed,
        )
        for first in range(since + 1, last.version + 1, step)
    ]


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

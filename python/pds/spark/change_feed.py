"""Reads the changes of a table as a DataFrame: every task reads those of some versions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pds import Table
from pds.errors import InvalidInput
from pds.spark.options import check_commit
from pds.spark.schema import frame_schema
from pds.spark.table import check_table, read_tasks
from pds.table.tasks import pack_columns, with_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from pds.store import Store

__all__ = ["scan_changes"]

# Tasks that read the changes of many versions.
_MOST_CHANGE_TASKS: Final = 128
# Operations that rewrite files and change no rows.
_REWRITES: Final = ("compact", "sort")


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
    check_table(table)
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
    return read_tasks(spark, tasks, schema)


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

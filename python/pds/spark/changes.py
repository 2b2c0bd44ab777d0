"""Deletes, upserts and merges of tables: the tasks search and write data files, and the driver commits.

The rows of an upsert and the source of a merge are shuffled by key and staged as data files that no version names. Then
tasks search the files of one version, each a part of them for the keys of a part of the staged rows. The driver leaves
out files whose keys, by their bounds, are not among those of the part; so rows are shuffled to ranges of the key, and
not by its hash: otherwise each part would have keys from all over the table. No process holds more than a part. If
another commit has changed what was searched, the newest version is searched, with the same staged files.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 its usual name
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pds import _pds
from pds.errors import CommitConflict, InvalidInput, NotFound, RemoteStoreError, TransactionExpired
from pds.spark.jobs import flatten, run_tasks
from pds.spark.options import TASK_SIZES
from pds.spark.schema import check_columns, fit_to_table
from pds.spark.settings import batch_limit_settings, batch_limits
from pds.spark.stage import stage_plan
from pds.spark.table import check_table
from pds.spark.tasks import choose_attempts
from pds.spark.write import check_frame, is_case_sensitive
from pds.table.checks import check_names
from pds.table.merge import Merge
from pds.table.staged import StagedWrite
from pds.table.task_changes import (
    DeleteTask,
    MergePart,
    MergeTask,
    StagedSource,
    TaskChange,
    UnmatchedTask,
    UpsertTask,
    commit_options,
    deletes_by_key,
    key_columns,
    opened_columns,
    staged_sizes,
    stages_source,
    with_opened_names,
)
from pds.table.tasks import pack_columns, split_search

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from pds import Table
    from pds._pds import TableHandle
    from pds.progress import ProgressArgument
    from pds.table.merge import MergeClause
    from pds.table.options import CommitOptions
    from pds.table.results import CommitResult

    Where = str | pc.Expression

__all__ = ["delete", "merge", "upsert"]

# How many versions are searched until a conflict is an error.
_MAX_SEARCHES: Final = 5
# The most of a source that one task holds, unless one task staged more.
_MAX_SOURCE_ROWS: Final = 1 << 20
_MAX_SOURCE_BYTES: Final = 32 << 20
# The most tasks that search together, unless the source has more parts.
_MAX_SEARCH_TASKS: Final = 512


def delete(spark: SparkSession, table: Table, where: Where) -> CommitResult:
    """Delete the rows that match a filter, by one commit. No data file is rewritten.

    The tasks read the columns of the filter. A range of the key, and rows in files that one task would read, are
    deleted by the driver without a job.

    Args:
        spark: A classic or a Connect session.
        table: The table, which then shows the new version. The executors must be able to reach its store. The store's
            options, including credentials that were passed, are sent to the executors.
        where: A filter, as for ``Table.delete``. It must not depend on the time or on chance.

    Returns:
        As ``Table.delete``. Rows that others add while the job runs stay, unless a conflict makes it begin again.

    Raises:
        InvalidInput: The filter is not valid, depends on the time or on chance or cannot be pickled, or the store
            cannot be sent to the executors. Raised before the job starts.
        InvalidType: An argument has an invalid type.
        CommitConflict: As for ``Table.append``; or others changed the searched rows during each of five jobs.
        CommitStateUnknown, TransactionExpired: As for ``Table.append``.
        pyspark.errors.PySparkException: The job failed. The table is unchanged.
    """
    check_table(table)
    options, opened = commit_options(table), opened_columns(table)
    searches = _count_searches(options)
    while True:
        searches -= 1
        change = TaskChange(table.refresh(), options, opened, where=where)
        tasks = split_search(change.snapshot, where, **TASK_SIZES)
        if len(tasks) < 2 or deletes_by_key(change.snapshot, where):  # noqa: PLR2004 one task alone
            return change.delete()
        messages = flatten(run_tasks(spark, [DeleteTask(task) for task in tasks]))
        try:
            return change.commit(messages)
        except CommitConflict as conflict:
            if searches == 0 or isinstance(conflict, TransactionExpired):
                raise


def upsert(
    df: DataFrame,
    table: Table,
    on: str | Sequence[str] | None = None,
    *,
    idempotency_key: str | None = None,
    if_version: int | None = None,
) -> CommitResult:
    """Replace the rows that have the same key as rows of a DataFrame, and insert the others, by one commit.

    Files whose keys, by their bounds, are not among those of the rows are not read. Rows are shuffled to ranges of the
    key, for which Spark takes a sample: it runs the last stage of the plan of ``df`` twice.

    Args:
        df: As for ``append``.
        table: As for ``append``.
        on: The names of the columns that rows are matched by. Defaults to the key of the table.
        idempotency_key: As for ``append``.
        if_version: As for ``append``.

    Returns:
        ``rows`` is the number of written rows. The history has ``rows_deleted``.

    Raises:
        InvalidInput: As for ``append``; or a column of the key is missing, or has a map or a variant.
        InvalidType, CommitStateUnknown, TransactionExpired: As for ``append``.
        CommitConflict: As for ``append``; or others changed the searched rows during each of five searches. A commit
            that adds rows does, since they may have the same keys.
        pyspark.errors.PySparkException: As for ``append``; or two rows have the same key, or a key has a null.
    """
    options = _check_commit(table, idempotency_key, if_version)
    return _merge(df, table, _check_on(on), None, options)


def merge(df: DataFrame, table: Table, on: str | Sequence[str] | None = None) -> Merge:
    """Update, delete and insert rows by the rows of a DataFrame: add clauses with ``when_…``, and then ``execute``.

        pds.spark.merge(df, table, on="id").when_matched_update_all().when_not_matched_insert_all().execute()

    The clauses are those of ``Table.merge``; ``now()`` is the time at which the merge begins. A task holds a part of
    the source, of a million rows or 32 MiB, also where a clause is about rows that do not match by source.

    Args:
        df: A batch DataFrame of a classic or a Connect session. It may have columns that the table does not have, of
            types that can be written.
        table: As for ``append``.
        on: As for ``upsert``.

    Raises:
        InvalidInput, InvalidType: An argument is not valid. ``execute`` raises these for a clause or a column, before
            the job starts; the others as ``upsert`` does, and ``PySparkException`` for a value that its column cannot
            hold.
    """
    check_frame(df)
    check_table(table)
    names = _check_on(on)

    def execute(
        clauses: list[MergeClause],
        idempotency_key: str | None,
        if_version: int | None,
        progress: ProgressArgument,
    ) -> CommitResult:
        if progress is not False:
            raise InvalidInput("a merge on Spark reports no progress; look at the job in the UI of Spark")
        return _merge(df, table, names, clauses, _check_commit(table, idempotency_key, if_version))

    return Merge(execute)


def _check_commit(table: Table, idempotency_key: str | None, if_version: int | None) -> CommitOptions:
    check_table(table)
    return commit_options(table, idempotency_key, if_version)


def _check_on(on: str | Sequence[str] | None) -> list[str] | None:
    return None if on is None else check_names("on", on)


def _count_searches(options: CommitOptions) -> int:
    """Return how many versions are searched until a conflict is an error."""
    return _MAX_SEARCHES if options.if_version is None else 1


def _merge(
    df: DataFrame, table: Table, on: list[str] | None, clauses: list[MergeClause] | None, options: CommitOptions
) -> CommitResult:
    """Upsert without clauses; else merge."""
    schema, opened = check_frame(df), opened_columns(table)
    write, replay = StagedWrite.begin(
        table, overwrite=False, where=None, idempotency_key=options.idempotency_key, if_version=options.if_version
    )
    if replay is not None:
        return replay
    # The rows are shuffled and matched by the same names, whatever becomes of the columns meanwhile.
    snapshot = with_opened_names(table, opened)
    key = key_columns(snapshot) if on is None else on
    writes_all = clauses is None or any(clause.assignments == [] for clause in clauses)
    write.check_names(schema.names if writes_all else key)
    if clauses is None:
        schema = fit_to_table(schema, snapshot.schema, case_sensitive=is_case_sensitive(df))
    else:
        # Clauses compute with the other columns as they are, unless one writes all.
        columns = pa.schema([field for field in snapshot.schema if writes_all or field.name in key])
        schema = fit_to_table(schema, columns, case_sensitive=True)
        write = stages_source(write, snapshot, schema)
    change = _Merge(df.sparkSession, table, opened, write, key or on, clauses, time.time_ns() // 1000)
    check_columns(write, schema)
    # Raises what is wrong with the key and the clauses.
    change.check(snapshot)
    change.make_task(pack_columns(snapshot), [], has_all_files=True).run()
    for name in key:
        if name not in schema.names:
            raise InvalidInput(f"missing key column {name!r} in the data; rows are matched by it")
        if _holds_unhashable(df.schema[schema.names.index(name)].dataType):
            raise InvalidInput(f"Spark cannot shuffle by the key column {name!r}, which has a map or a variant")
    bounded = [name for name in key if _has_bounds(df.schema[schema.names.index(name)].dataType)]
    # The first column makes the ranges, whichever it is of the key.
    sorted_key = sorted(key, key=lambda name: name not in bounded)
    by_range = bool(bounded) and change.can_prune
    return change.run(_stage(df, write, schema, sorted_key, by_range=by_range), options)


def _has_bounds(data_type: DataType) -> bool:
    """Return whether tables have bounds of a column of this type, and Spark orders its values as they do."""
    if isinstance(data_type, StringType):
        # A collation has an order of its own.
        return data_type == StringType()
    # Not every Spark 4.x has times of the day.
    is_time = type(data_type).__name__ == "TimeType"
    return is_time or isinstance(data_type, IntegralType | DecimalType | DateType | TimestampType | TimestampNTZType)


def _holds_unhashable(data_type: DataType) -> bool:
    """Return whether a type is or holds one that Spark does not hash."""
    if isinstance(data_type, StructType):
        return any(_holds_unhashable(field.dataType) for field in data_type)
    if isinstance(data_type, ArrayType):
        return _holds_unhashable(data_type.elementType)
    return isinstance(data_type, MapType | VariantType)


def _stage(df: DataFrame, write: StagedWrite, schema: pa.Schema, key: Sequence[str], *, by_range: bool) -> list[bytes]:
    """Stage the rows by key: those with the same one in the same list.

    Ranges of the key are made from a sample, for which Spark runs the plan of the DataFrame a first time.
    """
    # By position, since a name may have dots and backticks.
    renamed = df.toDF(*(f"c{position}" for position in range(len(schema))))
    columns = [F.col(f"c{schema.names.index(name)}") for name in key]
    if by_range:
        # Keys that are the same here have the same place in Spark's order: -0.0 and 0.0, and all NaN.
        by_key = renamed.repartitionByRange(*columns)
    else:
        # By an expression that is nobody else's: where rows are partitioned like that already Spark leaves the shuffle
        # out, and may then split a partition.
        by_key = renamed.repartition(F.xxhash64(F.lit("pds"), *columns))
    with batch_limit_settings(df.sparkSession, batch_limits(df.schema)):
        messages = stage_plan(by_key, write, schema).collect()
    lists, duplicates = choose_attempts((m.task, m.attempt, bytes(m.files)) for m in messages)
    if duplicates:
        with contextlib.suppress(RemoteStoreError):
            write.discard(duplicates)
    return lists


@dataclass(frozen=True)
class _Merge:
    """An upsert, or a merge by clauses."""

    spark: SparkSession
    table: Table
    # By its names the source and the clauses name columns.
    opened: TableHandle
    write: StagedWrite
    on: list[str] | None
    clauses: list[MergeClause] | None
    # The same time for all tasks and searches, in microseconds since 1970.
    now: int

    def run(self, lists: list[bytes], options: CommitOptions) -> CommitResult:
        """Search the newest version for the keys of staged rows and commit, until no other commit has come between."""
        sources = self._group(lists)
        may_be_committed = False
        try:
            searches = _count_searches(options)
            while True:
                searches -= 1
                change = TaskChange(self.table.refresh(), options, self.opened)
                self.check(change.snapshot)
                messages = self._search(change, sources)
                may_be_committed = True
                try:
                    return change.commit(messages)
                except (CommitConflict, NotFound) as error:
                    may_be_committed = False
                    with contextlib.suppress(RemoteStoreError):
                        change.discard(messages)
                    if searches == 0 or isinstance(error, NotFound | TransactionExpired):
                        raise
        finally:
            # The rows of an upsert may be committed, those of a source never are.
            if self.clauses is not None or not may_be_committed:
                with contextlib.suppress(RemoteStoreError):
                    self.write.discard(lists)

    def check(self, snapshot: Table) -> None:
        """Check that the clauses mean with the columns of a snapshot what they meant when they were written."""
        if self.clauses is not None:
            _pds.check_merge(self.opened, self.make_part(pack_columns(snapshot), []))

    def make_task(
        self, target: bytes, lists: list[bytes], *, has_all_files: bool, reports_matches: bool = False
    ) -> UpsertTask | MergeTask:
        """Return the task of a part of the table's files and a part of the staged rows."""
        store, path, part = self.table.store, self.table.path, self.make_part(target, lists)
        if self.clauses is None:
            return UpsertTask(store, path, part)
        return MergeTask(store, path, part, has_all_files, reports_matches)

    def make_part(self, target: bytes, lists: list[bytes]) -> MergePart:
        """Return a part of the table's files with a part of the staged rows."""
        options = self.write.options
        return MergePart(target, self.write.task, lists, self.on, self.clauses or [], self.now, options)

    def _group(self, lists: list[bytes]) -> list[list[bytes]]:
        """Group lists of staged rows, each group for tasks of its own."""
        groups: list[list[bytes]] = []
        most_bytes = _MAX_SOURCE_BYTES if self.clauses is not None else float("inf")
        rows = size = 0
        for staged, (list_rows, list_bytes) in zip(lists, staged_sizes(lists), strict=True):
            rows, size = rows + list_rows, size + list_bytes
            if not groups or rows > _MAX_SOURCE_ROWS or size > most_bytes:
                groups.append([])
                rows, size = list_rows, list_bytes
            groups[-1].append(staged)
        return groups

    @property
    def can_prune(self) -> bool:
        """Whether a part of the source may need only some files if its keys are a range."""
        return self.table.file_count > 1

    def _select(self, *, by_source: bool) -> list[MergeClause]:
        """Return the clauses about rows that the source does not have, or the others."""
        return [clause for clause in self.clauses or () if (clause.rows == "not_matched_by_source") == by_source]

    def _search(self, change: TaskChange, parts: list[list[bytes]]) -> list[bytes]:
        """Return what the tasks of one version have found and written."""
        if not self._select(by_source=True):
            return self.match_rows(change, parts, reads_all=False)
        if len(parts) < 2:  # noqa: PLR2004 tasks can have the whole source
            return self.match_rows(change, parts or [[]], reads_all=True)
        matching = replace(self, clauses=self._select(by_source=False))
        messages = matching.match_rows(change, parts, reads_all=False, reports_matches=True)
        try:
            return messages + flatten(run_tasks(self.spark, self._make_unmatched(change, messages)))
        except BaseException:
            with contextlib.suppress(RemoteStoreError):
                change.discard(messages)
            raise

    def _make_unmatched(self, change: TaskChange, messages: list[bytes]) -> list[UnmatchedTask]:
        """Return the tasks that change the rows that no part of the source has."""
        by_source = replace(self, clauses=self._select(by_source=True))
        store, path = self.table.store, self.table.path
        return [
            UnmatchedTask(store, path, by_source.make_part(target, []), matched)
            for target, matched in change.split_all(TASK_SIZES, _MAX_SEARCH_TASKS, messages)
        ]

    def match_rows(
        self, change: TaskChange, parts: list[list[bytes]], *, reads_all: bool, reports_matches: bool = False
    ) -> list[bytes]:
        """Return what the tasks for the rows of the source have found and written."""
        source = StagedSource(self.write.task, parts, self.on, self.clauses is not None, reads_all)
        targets = change.split(source, TASK_SIZES, max(_MAX_SEARCH_TASKS, 2 * len(parts)))
        tasks = [
            [
                self.make_task(target, lists, has_all_files=len(of_part) == 1, reports_matches=reports_matches)
                for target in of_part
            ]
            for lists, of_part in zip(parts, targets, strict=True)
        ]
        by_task = iter(run_tasks(self.spark, [task for of_part in tasks for task in of_part]))
        by_part = [[next(by_task) for _ in of_part] for of_part in tasks]
        messages = [message for of_part in by_part for message in flatten(of_part)]
        if not any(clause.rows == "not_matched" for clause in self.clauses or ()):
            return messages
        inserts = [
            of_part[0].to_insert(flatten(messages_of_part))
            for of_part, messages_of_part in zip(tasks, by_part, strict=True)
            if isinstance(of_part[0], MergeTask) and not of_part[0].has_all_files
        ]
        if not inserts:
            return messages
        try:
            return messages + flatten(run_tasks(self.spark, inserts))
        except BaseException:
            with contextlib.suppress(RemoteStoreError):
                change.discard(messages)
            raise

"""Writes a DataFrame to a table: the tasks stage data files, and the driver commits them.

Each task streams its partition into data files that no version of the table names, and returns a list of them. The
driver commits the files of one attempt of each task, in the order of the partitions, as one version. A task that is
retried, runs twice or is lost with its executor does not change the result.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from pds.arguments import check_schema_mode
from pds.errors import InvalidInput, RemoteStoreError
from pds.readers import make_reader
from pds.spark.jobs import flatten, run_tasks
from pds.spark.options import TASK_SIZES
from pds.spark.schema import align_to_schema, check_columns, fit_to_table
from pds.spark.settings import batch_limit_settings, batch_limits
from pds.spark.table import check_table
from pds.spark.tasks import choose_attempts, freeze_worker_gc, task_context
from pds.spark.write import check_frame, is_case_sensitive
from pds.table.staged import StagedWrite
from pds.table.task_changes import ReplacedSearch, with_opened_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from pds import Table
    from pds.table.results import CommitResult
    from pds.table.staged import ReplacedRows

    Where = str | pc.Expression

__all__ = ["append", "overwrite"]

STAGED_DDL: Final = "task int, attempt int, files binary"
_MESSAGE_TYPES: Final[dict[str, pa.DataType]] = {"task": pa.int32(), "attempt": pa.int32(), "files": pa.binary()}
_MESSAGE: Final = pa.schema(_MESSAGE_TYPES)


def append(
    df: DataFrame,
    table: Table,
    *,
    schema_mode: Literal["strict", "merge"] = "strict",
    idempotency_key: str | None = None,
    if_version: int | None = None,
) -> CommitResult:
    """Append the rows of a DataFrame to a table, by one commit.

    Every non-empty partition becomes one data file, or several as the table's ``max_rows_per_file`` says. Rows of a
    table with a sort order are sorted within each partition. The plan runs once. If the job fails, nothing is
    committed; files of tasks that had ended stay, invisible, until a vacuum removes them.

    Args:
        df: A batch DataFrame of a classic or a Connect session. Columns are matched by name, whatever its case unless
            the session is case-sensitive, and missing ones are null.
        table: The table, which then shows the new version. The executors must be able to reach its store. The store's
            options, including credentials that were passed, are sent to the executors.
        schema_mode: As for ``Table.append``: ``"merge"`` adds columns that the table does not have, in the same commit.
            What is added is decided before the job starts. A type of Spark that Arrow does not have, such as
            ``variant``, is added as the type in which its values are stored.
        idempotency_key: As for ``Table.append``. If there was a commit with this key, no job starts.
        if_version: As for ``Table.append``.

    Returns:
        The result of the commit. ``requests`` and ``waited`` are those of the driver.

    Raises:
        InvalidInput: A column does not exist in the table or has a type whose values could be lost, a column that is to
            be added differs from another one in case only and the session is not case-sensitive, an argument is not
            valid, or the store cannot be sent to the executors. Raised before the job starts.
        InvalidType: An argument has an invalid type, or columns have types that cannot be written. As above.
        CommitConflict, CommitStateUnknown: As for ``Table.append``.
        TransactionExpired: As for ``Table.append``; or the version at which the write began has been vacuumed, or the
            table was dropped and created again since then.
        pyspark.errors.PySparkException: The job failed, for example by a null in a column that is not nullable. The
            table is unchanged.
    """
    check_schema_mode(schema_mode)
    begin = functools.partial(
        StagedWrite.begin, overwrite=False, where=None, idempotency_key=idempotency_key, if_version=if_version
    )
    return _write(df, table, begin, adds_columns=schema_mode == "merge")


def overwrite(
    df: DataFrame,
    table: Table,
    where: Where | None = None,
    *,
    idempotency_key: str | None = None,
    if_version: int | None = None,
) -> CommitResult:
    """Replace all rows of a table by those of a DataFrame, or the rows that match a filter, by one commit.

    Args:
        df: As for ``append``. If it reads the table itself, pass the version that it reads as ``if_version``, or rows
            that others commit while the job runs are lost.
        table: As for ``append``.
        where: As for ``Table.overwrite``: every row of ``df`` must match it. Tasks of a second job find the rows to
            replace; the driver does if one task would, and in files that others add while the job runs.
        idempotency_key: As for ``append``.
        if_version: As for ``append``.

    Returns:
        As ``append``.

    Raises:
        InvalidInput: As for ``append``; or the filter is not valid, depends on the time or on chance or cannot be
            pickled.
        InvalidType, CommitConflict, CommitStateUnknown, TransactionExpired: As for ``append``.
        pyspark.errors.PySparkException: As for ``append``; or a row does not match the filter.
    """
    begin = functools.partial(
        StagedWrite.begin, overwrite=True, where=where, idempotency_key=idempotency_key, if_version=if_version
    )
    return _write(df, table, begin, adds_columns=False)


def _write(
    df: DataFrame,
    table: Table,
    begin: Callable[[Table], tuple[StagedWrite, CommitResult | None]],
    *,
    adds_columns: bool,
) -> CommitResult:
    schema = check_frame(df)
    check_table(table)
    write, replay = begin(table)
    if replay is not None:
        return replay
    case_sensitive = is_case_sensitive(df)
    schema = fit_to_table(schema, write.schema, case_sensitive=case_sensitive)
    write.check_names(schema.names)
    if adds_columns:
        columns = [*write.schema.names, *write.other_names]
        write = write.with_new_columns(schema)
        if not case_sensitive:
            _check_case(write.new_columns, columns)
    check_columns(write, schema)
    with batch_limit_settings(df.sparkSession, batch_limits(df.schema)):
        messages = stage_plan(df, write, schema).collect()
    lists, duplicates = choose_attempts((m.task, m.attempt, bytes(m.files)) for m in messages)
    if duplicates:
        with contextlib.suppress(RemoteStoreError):
            write.discard(duplicates)
    try:
        replaced = _find_replaced(df.sparkSession, table, write)
    except BaseException:
        with contextlib.suppress(RemoteStoreError):
            write.discard(lists)
        raise
    return write.commit_once(table, lists, replaced)


def _find_replaced(spark: SparkSession, table: Table, write: StagedWrite) -> ReplacedRows | None:
    """Find the rows that an overwrite with a filter replaces, by tasks; None if the commit is to find them."""
    if write.where is None:
        return None
    newest = table.refresh()
    if write.commit_options.if_version not in (None, newest.version):
        # The commit refuses it.
        return None
    try:
        # The filter, and the commit, go by the names of the columns when the write began.
        search = ReplacedSearch(with_opened_names(newest, write.opened), write.where, **TASK_SIZES)
    except InvalidInput:
        # Others have dropped a column of the filter: the commit says so.
        return None
    if len(search.tasks) < 2:  # noqa: PLR2004 one task alone
        return None
    return search.end(flatten(run_tasks(spark, search.tasks)))


def _check_case(new_columns: Iterable[str], columns: Iterable[str]) -> None:
    """Check that no column is added that the session cannot tell from another one."""
    by_lower = {name.lower(): name for name in columns}
    for name in new_columns:
        other = by_lower.get(name.lower())
        if other is not None:
            raise InvalidInput(
                f"column {name!r} differs in case only from column {other!r} of the table; rename it, or set "
                "spark.sql.caseSensitive"
            )


def stage_plan(df: DataFrame, write: StagedWrite, schema: pa.Schema) -> DataFrame:
    """Return the plan that stages the files. Its only useful action is ``collect``."""
    # Columns are renamed to their positions, because mapInArrow splits names at dots and fails on backticks.
    renamed = df.toDF(*(f"c{position}" for position in range(len(schema))))
    return renamed.mapInArrow(StageRows(write, schema), STAGED_DDL)


@dataclass(frozen=True)
class StageRows:
    """Writes a partition as data files that no version names, and yields a message with a list of them."""

    write: StagedWrite
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the batches of one partition; a function for ``mapInArrow``."""
        freeze_worker_gc()
        context = task_context()
        reader = make_reader(self.schema, align_to_schema(batches, self.schema))
        # Spark runs several tasks at once, so each task uses only the processors that Spark assigned to it.
        files = self.write.stage(reader, context.cpus())
        columns: list[list[Any]] = [[context.partitionId()], [context.attemptNumber()], [files]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _MESSAGE, strict=True)]
        try:
            yield pa.RecordBatch.from_arrays(arrays, schema=_MESSAGE)
        except BaseException:
            # Spark did not take the message, so the files will not be committed.
            with contextlib.suppress(RemoteStoreError):
                self.write.discard([files])
            raise

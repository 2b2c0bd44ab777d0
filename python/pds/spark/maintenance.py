"""Maintenance of tables whose data is too much for one process: the tasks read and write, the driver commits."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from pds.defaults import RETENTION
from pds.errors import CommitConflict, TransactionExpired
from pds.flags import require_bool
from pds.spark.jobs import flatten, run_tasks
from pds.spark.options import TASK_SIZES
from pds.spark.table import check_table
from pds.table.results import VerifyResult
from pds.table.rewrite_tasks import Rewrite
from pds.table.sort_tasks import Sort
from pds.table.tasks import split_verification
from pds.table.vacuum_tasks import Vacuum

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    import pyarrow.compute as pc
    from pyspark.sql import SparkSession

    import pds
    from pds import Table
    from pds.table.results import CommitResult
    from pds.table.tasks import ScanTask

    Where = str | pc.Expression

__all__ = ["compact", "sort", "vacuum", "verify"]

# The most groups of files of a job: then they are committed.
_GROUPS: Final = 128
# Each range of a sort reads a page or more of each run, so few large runs cost less. A task spills what it cannot hold.
_SORT_SIZES: Final = {"count": 128, "min_bytes": 64 << 20, "max_bytes": 1 << 30}
# S3 removes files by the thousand, and manifests one by one.
_REMOVALS: Final = {"objects": 2000, "max_tasks": 128}


def compact(
    spark: SparkSession, table: Table, target_file_size: int = 128 << 20, *, where: Where | None = None
) -> CommitResult | None:
    """Combine small files, and rewrite files in which most rows are deleted, each new file by a task.

    The files are chosen, and each group of them is committed, as by ``Table.optimize.compact``. A group whose files
    others change while its task runs stays as it is.

    Args:
        spark: A classic or a Connect session.
        table: The table, which then shows the newest version. The executors must be able to reach its store.
        target_file_size: As for ``Table.optimize.compact``.
        where: As for ``Table.optimize.compact``.

    Returns:
        As ``Table.optimize.compact``; ``requests`` is that of the driver.

    Raises:
        InvalidInput, InvalidType: An argument is not valid, or the store cannot be sent to the executors.
        CommitConflict: Nothing was committed, because others changed the files of all groups.
        CommitStateUnknown, TransactionExpired: As for ``Table.append``.
        pyspark.errors.PySparkException: A job failed. What was committed before stays.
    """
    check_table(table)
    result: CommitResult | None = None
    conflict: CommitConflict | None = None
    jobs = number = 1
    while number <= jobs:
        # Of the newest version, so that others have only the time of one job to change the files.
        rewrite = Rewrite(table.refresh(), target_file_size, where)
        if number == 1:
            jobs = math.ceil(len(rewrite.tasks) / _GROUPS)
        number += 1
        messages = flatten(run_tasks(spark, rewrite.tasks[:_GROUPS]))
        try:
            result = _add(result, rewrite.commit(messages))
        except TransactionExpired:
            raise
        except CommitConflict as error:
            conflict = error
    if result is None and conflict is not None:
        raise conflict
    return result


def sort(
    spark: SparkSession, table: Table, by: str | Sequence[str] | None = None, *, target_file_size: int = 128 << 20
) -> CommitResult | None:
    """Rewrite all rows in sorted order, by two jobs, and one commit.

    The rows and their order are as of ``Table.optimize.sort``, but no process reads or spills all of them: the tasks of
    the first job write the files sorted, each some of them, those of the second one a range of the keys each. Rows
    with the same key are in one range. So all rows are written twice, and nothing is shuffled by Spark. A table that
    one task would read is sorted by the driver.

    Args:
        spark: A classic or a Connect session.
        table: The table, which then shows the newest version. The executors must be able to reach its store.
        by: As for ``Table.optimize.sort``.
        target_file_size: As for ``Table.optimize.sort``.

    Returns:
        As ``Table.optimize.sort``; ``requests`` is that of the driver.

    Raises:
        InvalidInput, InvalidType: An argument is not valid, or the store cannot be sent to the executors.
        CommitConflict: Others have changed the files or deleted rows of them while the jobs ran. Appends do not
            conflict, but for ``add_files`` that leaves files where they are.
        CommitStateUnknown, TransactionExpired: As for ``Table.append``.
        pyspark.errors.PySparkException: A job failed. The table is unchanged.
    """
    check_table(table)
    plan = Sort(table.refresh(), by, target_file_size, **_SORT_SIZES)
    if len(plan.tasks) <= 1:
        return table.optimize.sort(by, target_file_size=target_file_size)
    try:
        ranges = plan.split(flatten(run_tasks(spark, plan.tasks)))
        messages = flatten(run_tasks(spark, ranges))
    except BaseException:
        plan.discard()
        raise
    return plan.commit(messages)


def vacuum(
    spark: SparkSession, table: Table, retention: timedelta = RETENTION, *, dry_run: bool = False
) -> pds.VacuumResult:
    """Remove versions that were replaced longer ago than ``retention``, and the objects that only they reference.

    The driver commits, lists the objects and decides which go, by the rules of ``Table.vacuum``; tasks remove them. So
    few objects that one task would remove them are removed by the driver.

    Args:
        spark: A classic or a Connect session.
        table: The table, which then shows the newest version. The executors must be able to reach its store.
        retention: As for ``Table.vacuum``.
        dry_run: As for ``Table.vacuum``; it starts no job.

    Returns:
        As ``Table.vacuum``.

    Raises:
        InvalidInput, InvalidType: An argument is not valid, or the store cannot be sent to the executors; or as
            ``Table.vacuum``.
        InvalidPath, CommitConflict, CommitStateUnknown, ExportConflict: As ``Table.vacuum``.
        pyspark.errors.PySparkException: The job failed. No version needs what is left: the next vacuum removes it.
    """
    check_table(table)
    require_bool("dry_run", dry_run)
    if dry_run:
        return table.vacuum(retention, dry_run=True)
    committed = Vacuum(table, retention, **_REMOVALS)
    if len(committed.tasks) > 1:
        run_tasks(spark, committed.tasks)
    else:
        for task in committed.tasks:
            task.run()
    committed.end()
    return committed.result


def verify(spark: SparkSession, table: Table) -> VerifyResult:
    """Read every byte of the snapshot that a table shows, by tasks.

    Args:
        spark: A classic or a Connect session.
        table: The table. The executors must be able to reach its store.

    Returns:
        As ``Table.verify``.

    Raises:
        InvalidInput, InvalidType: An argument is not valid, or the store cannot be sent to the executors.
        VersionExpired: A vacuum removed the version before the job.
        pyspark.errors.PySparkException: The job failed.
    """
    check_table(table)
    tasks, problems = split_verification(table, **TASK_SIZES)
    results = [json.loads(message) for message in flatten(run_tasks(spark, [_VerifyTask(task) for task in tasks]))]
    # A tombstone file is read by each task that has files of it.
    all_problems = {*problems, *((path, reason) for result in results for path, reason in result["problems"])}
    totals = {name: sum(result[name] for result in results) for name in ("files", "rows", "bytes")}
    return VerifyResult(table.version, **totals, problems=sorted(all_problems))


@dataclass(frozen=True)
class _VerifyTask:
    task: ScanTask

    def run(self, threads: int | None = None) -> list[bytes]:
        del threads
        return [json.dumps(asdict(self.task.verify())).encode()]


def _add(before: CommitResult | None, last: CommitResult | None) -> CommitResult | None:
    """Return the last commit with the rows, files, attempts and delays of all."""
    if before is None or last is None:
        return last or before
    return replace(
        last,
        rows=(before.rows or 0) + (last.rows or 0),
        files=before.files + last.files,
        bytes=before.bytes + last.bytes,
        requests=before.requests + last.requests,
        attempts=before.attempts + last.attempts,
        waited=before.waited + last.waited,
    )

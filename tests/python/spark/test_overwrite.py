"""`pds.spark.overwrite` of the rows of a filter: tasks find them, and the rows are those of plain Python."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import pds
import pds.spark
from pds.spark import stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("score", pa.float64())])
BOTH_PLACES = pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])


@pytest.fixture
def target(one_target: Target) -> Target:
    return one_target


def rows(first: int, last: int, name: str = "old") -> pa.Table:
    ids = range(first, last)
    return pa.table({"id": ids, "name": [f"{name} {i}" for i in ids], "score": [i / 8 for i in ids]}, SCHEMA)


def make_table(target: Target, path: str) -> pds.Table:
    """A table of six files with deleted rows."""
    table = pds.Table.create(target.store, path, SCHEMA, key="id", options=pds.WriteOptions(row_group_size=32))
    for number in range(6):
        table.append(rows(number * 100, number * 100 + 100))
    table.delete("id % 10 = 3")
    return table


@pytest.fixture
def twins(target: Target, monkeypatch: pytest.MonkeyPatch) -> tuple[pds.Table, pds.Table]:
    """Two tables with the same rows: for Spark, by many tasks, and for plain Python."""
    monkeypatch.setattr(stage, "TASK_SIZES", {"count": 5, "min_bytes": 1, "max_bytes": 1 << 30})
    return make_table(target, "spark"), make_table(target, "local")


def frame(spark: SparkSession, data: pa.Table) -> DataFrame:
    return spark.createDataFrame(data).repartition(3)


def listed(table: pds.Table) -> list[dict[str, Any]]:
    newest = pds.Table(table.store, table.path)
    return sorted(newest.scan().to_pyarrow().to_pylist(), key=lambda row: (row["id"], str(row)))


def same(ours: pds.Table, local: pds.Table) -> bool:
    """Whether both have the same rows, and their last commits the same counts; and nothing is left over."""
    assert listed(ours) == listed(local)
    last, expected = ours.history(1)[0]["operation"], local.history(1)[0]["operation"]
    # Rows of Spark are in more files.
    names = ("name", "rows", "rows_deleted", "filter")
    assert {name: last.get(name) for name in names} == {name: expected.get(name) for name in names}
    assert ours.check() == pds.table.CheckResult(ours.version, [], [], [])
    return True


def watch(monkeypatch: pytest.MonkeyPatch, *commits: Callable[[], object]) -> list[int]:
    """Makes others commit when tasks have searched; returns a list of the numbers of their tasks."""
    run, pending, searches = stage.run_tasks, list(commits), list[int]()

    def meanwhile(spark: SparkSession, tasks: Any) -> list[list[bytes]]:
        messages = run(spark, tasks)
        searches.append(len(tasks))
        if pending:
            pending.pop(0)()
        return messages

    monkeypatch.setattr(stage, "run_tasks", meanwhile)
    return searches


FILTERS: list[tuple[Any, pa.Table]] = [
    # Some rows of some files, whole files and row groups, none, all.
    ("id BETWEEN 40 AND 259", rows(45, 60, "new")),
    ("score * 8 % 7 = 2", rows(2, 3, "new")),
    ("id >= 100 AND id < 300", rows(100, 140, "new")),
    ("name LIKE '%9' OR name LIKE 'new%'", rows(700, 705, "new")),
    (pc.field("score") < 30, rows(0, 200, "new")),
    ("name = 'none'", rows(0, 0)),
    ("id < 0", rows(0, 0)),
    ("true", rows(5, 9, "last")),
]


@BOTH_PLACES
def test_rows_of_a_filter_are_those_of_plain_python(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, local = twins
    searches = watch(monkeypatch)
    for where, data in FILTERS:
        before = spark.createDataFrame(ours.scan().to_pyarrow())
        result = pds.spark.overwrite(frame(spark, data), ours, where)
        expected = local.overwrite(data, where=where)
        assert (result.version, result.rows, result.attempts) == (expected.version, expected.rows, expected.attempts)
        assert same(ours, local), where
        if isinstance(where, str):
            # As Spark understands the filter.
            left = before.where(f"NOT coalesce({where}, false)").toArrow().to_pylist()
            assert listed(ours) == sorted([*left, *data.to_pylist()], key=lambda row: (row["id"], str(row)))
    assert max(searches) > 1
    # The files that a filter cannot match are not searched.
    assert len(searches) < len(FILTERS)


@pytest.mark.parametrize("seed", range(6))
def test_random_filters_and_rows(spark: SparkSession, twins: tuple[pds.Table, pds.Table], seed: int) -> None:
    ours, local = twins
    choose = random.Random(seed)
    for _ in range(4):
        first, modulus, rest = choose.randrange(0, 500), choose.randrange(2, 9), choose.randrange(2)
        where = f"id >= {first} AND id % {modulus} = {rest}"
        ids = [i for i in range(first, first + 80) if i % modulus == rest]
        data = pa.table({"id": ids, "name": [f"{seed} {i}" for i in ids], "score": [None] * len(ids)}, SCHEMA)
        pds.spark.overwrite(frame(spark, data), ours, where)
        local.overwrite(data, where=where)
        assert same(ours, local), where
        if choose.random() < 0.5:
            for table in twins:
                table.optimize.compact()


def test_commits_in_between(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that others add are replaced as well, and nothing is searched again by a job."""
    ours, local = twins
    other = pds.Table(ours.store, ours.path)
    where, data = "id % 2 = 0", pa.table({"id": [2], "name": ["new"], "score": [0.5]}, SCHEMA)
    commits: list[Callable[[pds.Table], object]] = [
        lambda table: table.append(rows(1000, 1010)),
        lambda table: table.delete("id IN (7, 8, 501)"),
        lambda table: table.refresh().optimize.compact(),
        lambda table: table.upsert(rows(8, 12, "upserted")),
        lambda table: table.restore(4),
        lambda table: table.alter.add_column("more", pa.int64()),
        lambda table: table.overwrite(rows(0, 50, "all")),
        lambda table: table.refresh().vacuum(),
    ]
    for commit in commits:
        with monkeypatch.context() as patch:
            searches = watch(patch, lambda commit=commit: commit(other))  # type: ignore[misc]
            pds.spark.overwrite(frame(spark, data), ours, where)
        assert len(searches) <= 1
        commit(local)
        local.overwrite(data, where=where)
        assert listed(ours) == listed(local)
        assert ours.refresh().check().orphans == []
        for table in twins:
            table.append(rows(300, 330))
            table.append(rows(330, 360))


def test_columns_that_others_change(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other names are followed, before the search and after it; a dropped column is a conflict, and no row is lost."""
    ours, local = twins
    other = pds.Table(ours.store, ours.path)
    plan = stage.stage_plan

    def exchange(*arguments: Any) -> Any:
        other.alter.rename_column("score", "points")
        other.alter.add_column("score", pa.float64())
        return plan(*arguments)

    with monkeypatch.context() as patch:
        searches = watch(patch)
        patch.setattr(stage, "stage_plan", exchange)
        result = pds.spark.overwrite(frame(spark, rows(0, 3, "new")), ours, "score < 5")
    assert (result.attempts, len(searches)) == (1, 1)
    other.alter.drop_column("score")
    other.alter.rename_column("points", "score")
    local.overwrite(rows(0, 3, "new"), where="score < 5")
    assert listed(ours.refresh()) == listed(local)
    with monkeypatch.context() as patch:
        searches = watch(patch, lambda: other.alter.rename_column("score", "points"))
        pds.spark.overwrite(frame(spark, rows(10, 12, "new")), ours, "score < 70")
    assert len(searches) == 1
    other.alter.rename_column("points", "score")
    local.overwrite(rows(10, 12, "new"), where="score < 70")
    assert listed(ours.refresh()) == listed(local)
    with monkeypatch.context() as patch:
        watch(patch, lambda: other.alter.drop_column("score"))
        with pytest.raises(pds.CommitConflict, match="score"):
            pds.spark.overwrite(frame(spark, rows(0, 3, "lost")), ours, "score < 70")
    assert listed(ours) == [{"id": row["id"], "name": row["name"]} for row in listed(local)]
    assert ours.refresh().check().orphans == []


def test_what_does_not_match_and_what_is_required(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = twins
    before, version = listed(ours), ours.version
    other = pds.Table(ours.store, ours.path)
    with pytest.raises(PySparkException, match="does not satisfy the overwrite predicate"):
        pds.spark.overwrite(frame(spark, rows(90, 110)), ours, "id >= 100 OR id < 50")
    with monkeypatch.context() as patch:
        searches = watch(patch, lambda: other.append(rows(2000, 2001)))
        with pytest.raises(pds.CommitConflict):
            pds.spark.overwrite(frame(spark, rows(0, 3)), ours, "id % 2 < 5", if_version=version)
        assert len(searches) == 1
        plan = stage.stage_plan
        patch.setattr(stage, "stage_plan", lambda *a: (other.append(rows(2001, 2002)), plan(*a))[1])
        with pytest.raises(pds.CommitConflict):
            pds.spark.overwrite(frame(spark, rows(0, 3)), ours, "id % 2 < 5", if_version=ours.refresh().version)
        # It was refused without a search.
        assert len(searches) == 1
    assert listed(ours) == before + rows(2000, 2002).to_pylist()
    first = pds.spark.overwrite(frame(spark, rows(0, 3)), ours, "id % 2 < 5", idempotency_key="k")
    again = pds.spark.overwrite(frame(spark, rows(3, 9)), ours, "id % 2 < 5", idempotency_key="k")
    assert (again.replayed, again.version) == (True, first.version)
    assert listed(ours) == rows(0, 3).to_pylist()
    assert ours.refresh().check().orphans == []


class Lost:
    """A task that fails, some times or always."""

    def __init__(self, task: Any, times: int) -> None:
        self.task, self.times = task, times

    def run(self, threads: int | None = None) -> list[bytes]:
        from pyspark import TaskContext  # noqa: PLC0415 in a worker

        messages: list[bytes] = self.task.run(threads)
        if TaskContext.get().attemptNumber() < self.times:
            raise RuntimeError("lost after its search")
        return messages


def test_searches_that_are_lost(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, local = twins
    run = stage.run_tasks
    for times in (2, 9):
        with monkeypatch.context() as patch:
            patch.setattr(stage, "run_tasks", lambda spark, tasks, n=times: run(spark, [Lost(t, n) for t in tasks]))
            if times == 9:
                with pytest.raises(PySparkException, match="lost after its search"):
                    pds.spark.overwrite(frame(spark, rows(0, 4)), ours, "id % 2 < 3")
                continue
            pds.spark.overwrite(frame(spark, rows(2, 3, "new")), ours, "name LIKE '%2'")
        local.overwrite(rows(2, 3, "new"), where="name LIKE '%2'")
        assert same(ours, local)
    assert listed(ours) == listed(local)
    # The driver removes the new rows that are not to be committed.
    assert ours.refresh().check().orphans == []

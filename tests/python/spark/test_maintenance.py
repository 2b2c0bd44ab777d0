"""`pds.spark.compact`, `sort`, `verify` and `vacuum`: the rows stay the same, as with the local engine."""

from __future__ import annotations

import datetime as dt
import math
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import pds
import pds.spark
from pds.spark import maintenance
from pds.table.rewrite_tasks import Rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
BOTH_PLACES = pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])


@pytest.fixture
def target(one_target: Target) -> Target:
    return one_target


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"id": range(first, last), "name": [f"name {i}" for i in range(first, last)]}, SCHEMA)


def make_table(target: Target, path: str, sort_by: Sequence[str] = ()) -> pds.Table:
    """A table of many files with deleted rows, of which some are mostly deleted."""
    table = pds.Table.create(target.store, path, SCHEMA, key="id", sort_by=sort_by)
    for number in range(20):
        table.append(rows(number * 100, number * 100 + 100))
    table.delete("id % 10 = 3")
    table.delete("id BETWEEN 510 AND 590")
    table.delete("id >= 1500 AND id % 10 != 5")
    return table


def size_of(table: pds.Table, files: int) -> int:
    return sum(table.files()["size_bytes"].to_pylist()[:files])


def listed(table: pds.Table) -> list[dict[str, Any]]:
    return table.scan().to_pyarrow().to_pylist()


@BOTH_PLACES
@pytest.mark.parametrize("sort_by", [(), ("name",)])
def test_small_files_are_combined(spark: SparkSession, target: Target, place: str, sort_by: Sequence[str]) -> None:
    ours, local = make_table(target, "spark", sort_by), make_table(target, "local", sort_by)
    before = sorted(row["id"] for row in listed(ours))
    size = size_of(ours, 4)
    for where in ("id < 700", None):
        result, expected = pds.spark.compact(spark, ours, size, where=where), local.optimize.compact(size, where=where)
        assert result is not None
        assert expected is not None
        assert (result.rows, result.files) == (expected.rows, expected.files)
        assert ours.files()["total_rows"] == local.files()["total_rows"]
        assert listed(ours) == listed(local)
    assert sorted(row["id"] for row in listed(ours)) == before
    assert ours.check().orphans == []
    assert pds.spark.compact(spark, pds.Table.create(target.store, "empty", SCHEMA)) is None


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Makes others commit while the tasks of the first job run."""
    run = maintenance.run_tasks

    def commit(action: Callable[[], object]) -> None:
        pending = [action]

        def meanwhile(spark: SparkSession, tasks: Any) -> Any:
            messages = run(spark, tasks)
            if pending:
                pending.pop()()
            return messages

        monkeypatch.setattr(maintenance, "run_tasks", meanwhile)

    return commit


@pytest.mark.parametrize("groups", [3, 100])
def test_commits_in_between(
    spark: SparkSession,
    target: Target,
    between: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
    groups: int,
) -> None:
    """A group whose rows others delete stays until the next job; appends do not matter."""
    monkeypatch.setattr(maintenance, "_GROUPS", groups)
    table = make_table(target, "table")
    size = size_of(table, 4)
    other = pds.Table(table.store, table.path)

    def act() -> None:
        other.delete("id = 8 OR id = 1111")
        other.append(rows(5000, 5010))
        other.append(rows(6000, 6010))

    before = {row["id"] for row in listed(table)}
    between(act)
    result = pds.spark.compact(spark, table, size)
    assert result is not None
    assert {row["id"] for row in listed(table)} == before - {8, 1111} | {*range(5000, 5010), *range(6000, 6010)}
    assert len(listed(table)) == len({row["id"] for row in listed(table)})
    stay = {*table.files()["path"].to_pylist()} & {*table.as_of(24).files()["path"].to_pylist()}
    if groups == 100:
        assert len(stay) >= 4
    else:
        # The last job has no more groups than the others, and the appended files are one, too.
        assert len(stay) <= 4
    assert table.check().orphans == []
    assert table.check().missing == []


def test_rows_of_all_groups_are_deleted_by_others(
    spark: SparkSession, target: Target, between: Callable[[Callable[[], object]], None]
) -> None:
    table = pds.Table.create(target.store, "table", SCHEMA)
    for number in range(8):
        table.append(rows(number * 100, number * 100 + 100))
    other = pds.Table(table.store, table.path)
    between(lambda: other.delete("id % 7 = 1"))
    files = table.files()
    with pytest.raises(pds.CommitConflict, match="while they were rewritten"):
        pds.spark.compact(spark, table, size_of(table, 4))
    assert table.refresh().files()["path"] == files["path"]
    assert table.check().orphans == []


def test_all_groups_are_compacted_by_others(
    spark: SparkSession, target: Target, between: Callable[[Callable[[], object]], None]
) -> None:
    table = make_table(target, "table")
    other = pds.Table(table.store, table.path)
    before = {row["id"] for row in listed(table)}
    between(other.optimize.compact)
    assert pds.spark.compact(spark, table) is None
    assert {row["id"] for row in listed(table.refresh())} == before
    assert table.check().orphans == []

    def create_anew() -> None:
        pds.Table.drop(table.store, table.path)
        make_table(target, "table")

    between(create_anew)
    table.append(rows(3000, 3010))
    table.append(rows(3010, 3020))
    with pytest.raises(pds.TransactionExpired):
        pds.spark.compact(spark, table)


def test_messages_are_committed_once(target: Target) -> None:
    """A second commit of a message would remove the files that the first one has named."""
    table = pds.Table.create(target.store, "table", SCHEMA)
    for number in range(4):
        table.append(rows(number * 100, number * 100 + 100))
    before = listed(table)
    rewrite = Rewrite(table, 1 << 20, None)
    messages = [message for task in rewrite.tasks for message in task.run()]
    for given in (messages * 2, messages, messages):
        if given is messages and len(table.files()) == 4:
            assert rewrite.commit(given) is not None
        else:
            with pytest.raises(pds.InvalidInput, match="given to commit before"):
                rewrite.commit(given)
    assert listed(table.refresh()) == before
    assert table.check().missing == []


def test_arguments_are_checked(spark: SparkSession, target: Target) -> None:
    table = make_table(target, "table")
    with pytest.raises(pds.InvalidInput, match="target_file_size"):
        pds.spark.compact(spark, table, 0)
    with pytest.raises(pds.InvalidInput, match="nothing"):
        pds.spark.compact(spark, table, where="nothing = 1")
    with pytest.raises(pds.InvalidType, match="table must be"):
        pds.spark.compact(spark, table.store)  # type: ignore[arg-type]


@BOTH_PLACES
def test_all_bytes_are_verified_by_tasks(
    spark: SparkSession, target: Target, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "TASK_SIZES", {"count": 100, "min_bytes": 1, "max_bytes": 3000})
    table = make_table(target, "lake/orders")
    result = pds.spark.verify(spark, table)
    assert result.ok
    assert result == table.verify()
    assert (result.files, result.rows) == (20, 2000)
    paths = table.files()["path"].to_pylist()
    for path, content in ((paths[3], None), (paths[17], target.store.read_bytes(f"{table.path}/{paths[5]}"))):
        target.store.delete(f"{table.path}/{path}")
        if content is not None:
            target.store.write(f"{table.path}/{path}", content)
    (tombstone, *_) = (name for name in target.files() if "/tombstone/" in name)
    target.store.write(tombstone, b"{", overwrite=True)
    result = pds.spark.verify(spark, table)
    expected = sorted([paths[3], paths[17], tombstone.removeprefix(f"{table.path}/")])
    assert [path for path, _ in result.problems] == expected
    assert result == table.verify()
    empty = pds.Table.create(target.store, "none", SCHEMA)
    assert pds.spark.verify(spark, empty) == empty.verify()


@BOTH_PLACES
@pytest.mark.parametrize("by", ["name", ["name", "id"]])
def test_rows_are_sorted_by_tasks(
    spark: SparkSession, target: Target, place: str, by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_SORT_SIZES", {"count": 100, "min_bytes": 1, "max_bytes": 3000})
    ours, local = make_table(target, "spark"), make_table(target, "local")
    size = size_of(ours, 6)
    result = pds.spark.sort(spark, ours, by, target_file_size=size)
    expected = local.optimize.sort(by, target_file_size=size)
    assert result is not None
    assert expected is not None
    assert result.rows == expected.rows
    assert listed(ours) == listed(local)
    ours.vacuum(dt.timedelta(0))
    assert ours.check() == pds.table.CheckResult(ours.version, [], [], [])
    # One task would read this.
    monkeypatch.undo()
    assert pds.spark.sort(spark, ours, "id") is not None
    assert [row["id"] for row in listed(ours)] == sorted(row["id"] for row in listed(local))
    assert pds.spark.sort(spark, pds.Table.create(target.store, "empty", SCHEMA, key="id")) is None


def test_floats_have_the_order_of_spark(spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_SORT_SIZES", {"count": 100, "min_bytes": 1, "max_bytes": 3000})
    values = [None, math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 1.5, -1.5]
    count = 1800
    keys = pa.array([values[number * 7 % 9] for number in range(count)], pa.float64())
    second = pa.array([number * 11 % 4 for number in range(count)], pa.int32())
    schema = pa.schema([("key", keys.type), ("second", second.type), ("n", pa.int64())])
    table = pds.Table.create(target.store, "floats", schema)
    for begin in range(0, count, 300):
        part = slice(begin, begin + 300)
        table.append(pa.table({"key": keys[part], "second": second[part], "n": range(begin, begin + 300)}))
    rows = pds.spark.read_table(spark, table)
    ordered = rows.orderBy(f.asc_nulls_last("key"), "second", "n").toArrow()["n"].to_pylist()
    assert pds.spark.sort(spark, table, ["key", "second"], target_file_size=size_of(table, 2)) is not None
    assert table.scan().to_pyarrow()["n"].to_pylist() == ordered


def test_a_sort_that_fails_leaves_the_table(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_SORT_SIZES", {"count": 100, "min_bytes": 1, "max_bytes": 3000})
    table = make_table(target, "t")
    before = listed(table)
    run, jobs = maintenance.run_tasks, []

    def run_once(spark: SparkSession, tasks: Sequence[Any]) -> list[list[bytes]]:
        jobs.append(len(tasks))
        if len(jobs) > 1:
            raise OSError("the second job is lost")
        return run(spark, tasks)

    monkeypatch.setattr(maintenance, "run_tasks", run_once)
    with pytest.raises(OSError, match="second job"):
        pds.spark.sort(spark, table, "name")
    assert (len(jobs), listed(table.refresh())) == (2, before)
    assert table.check().orphans == [], "the first round's files are removed"


class Failing:
    """A task that fails, or fails after it has done its work."""

    def __init__(self, task: Any, *, works: bool) -> None:
        self.task, self.works = task, works

    def run(self, threads: int | None = None) -> list[bytes]:
        if self.works:
            self.task.run(threads)
        raise OSError("lost")


@BOTH_PLACES
def test_what_no_version_needs_is_removed_by_tasks(
    spark: SparkSession, target: Target, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_REMOVALS", {"objects": 5, "max_tasks": 100})
    ours, local = make_table(target, "spark"), make_table(target, "local")
    run, jobs = maintenance.run_tasks, list[int]()

    def count(spark: SparkSession, tasks: Sequence[Any]) -> list[list[bytes]]:
        jobs.append(len(tasks))
        return run(spark, tasks)

    monkeypatch.setattr(maintenance, "run_tasks", count)
    for table in (ours, local):
        table.tags.create("early", 3)
        table.optimize.compact()
    rows_before, early = listed(ours), listed(ours.as_of("early"))
    dry = pds.spark.vacuum(spark, ours, dt.timedelta(0), dry_run=True)
    assert dry == ours.vacuum(dt.timedelta(0), dry_run=True)
    assert pds.spark.vacuum(spark, ours).files == [], "nothing is a week old"
    assert jobs == []
    result, expected = pds.spark.vacuum(spark, ours, dt.timedelta(0)), local.vacuum(dt.timedelta(0))
    assert len(result.files) == len(expected.files) == len(dry.files)
    assert jobs == [-(-(len(result.files) + len(result.manifests)) // 5)]
    assert {*result.files, *result.manifests}.isdisjoint(path.removeprefix("spark/") for path in target.files())
    left = [[path.split("/")[:2] for path in target.files() if path.startswith(name)] for name in ("spark", "local")]
    assert [folder for _, folder in left[0]] == [folder for _, folder in left[1]]
    assert (listed(ours), listed(ours.as_of("early"))) == (rows_before, early)
    assert ours.check() == pds.table.CheckResult(ours.version, [], [], [])
    assert ours.verify().ok
    with pytest.raises(pds.VersionExpired):
        ours.as_of(5)


@pytest.mark.parametrize("works", [False, True])
def test_a_vacuum_that_fails_leaves_its_objects_to_the_next(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    monkeypatch.setattr(maintenance, "_REMOVALS", {"objects": 5, "max_tasks": 100})
    table = make_table(target, "t")
    table.optimize.compact()
    before, run = listed(table), maintenance.run_tasks
    with monkeypatch.context() as patch:

        def fail_some(spark: SparkSession, tasks: Sequence[Any]) -> list[list[bytes]]:
            return run(spark, [Failing(task, works=works) if n % 2 else task for n, task in enumerate(tasks)])

        patch.setattr(maintenance, "run_tasks", fail_some)
        with pytest.raises(PySparkException, match="lost"):
            pds.spark.vacuum(spark, table, dt.timedelta(0))
    assert listed(table.refresh()) == before
    assert table.check().missing == []
    pds.spark.vacuum(spark, table, dt.timedelta(0))
    assert listed(table) == before
    assert table.check() == pds.table.CheckResult(table.version, [], [], [])
    assert {path.split("/")[1] for path in target.files()} == {"_latest_manifest", "data", "manifest"}
    # The pointer, and the manifests of the two vacuums.
    assert len(target.files()) == len(table.files()) + 3


def test_arguments_of_a_vacuum_are_checked(spark: SparkSession, target: Target) -> None:
    table = make_table(target, "t")
    version = table.version
    with pytest.raises(pds.InvalidType, match="dry_run"):
        pds.spark.vacuum(spark, table, dry_run=1)  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidType, match="retention"):
        pds.spark.vacuum(spark, table, 7)  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidInput, match="retention"):
        pds.spark.vacuum(spark, table, -dt.timedelta(1))
    hidden = pds.Table.create(pds.Store("memory://"), "t", SCHEMA)
    with pytest.raises(pds.InvalidInput, match="executors cannot reach"):
        pds.spark.vacuum(spark, hidden)
    assert table.refresh().version == version

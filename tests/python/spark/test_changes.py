"""`pds.spark.delete`, `upsert` and `merge`: the same rows as the local engine, whatever becomes of tasks."""

from __future__ import annotations

import itertools
import random
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException

import pds
import pds.spark
from pds.spark import changes, jobs
from pds.spark import tasks as spark_tasks
from pds.table.tasks import split_search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("score", pa.float64())])
# A session takes seconds for each test: only these run on S3, too.
BOTH_PLACES = pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])
# How many tasks search the table, and rows of the source that one of them holds at most.
GRIDS = pytest.mark.parametrize(
    ("targets", "rows", "place"),
    [
        (1, 1 << 20, "local"),
        (5, 1 << 20, "local"),
        (1, 1, "local"),
        (5, 1, "local"),
        pytest.param(5, 1, "s3", marks=pytest.mark.s3),
    ],
)


@pytest.fixture
def target(one_target: Target) -> Target:
    return one_target


@pytest.fixture
def grid(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Sets how many tasks there are; with one row, every shuffled partition is a part of the source."""

    def set_grid(targets: int, rows: int) -> None:
        sizes = {"count": targets, "min_bytes": 1, "max_bytes": 1 << 30}
        monkeypatch.setattr(changes, "TASK_SIZES", sizes)
        monkeypatch.setattr(changes, "_MAX_SOURCE_ROWS", rows)
        spark.conf.set("spark.sql.adaptive.enabled", str(rows > 1).lower())

    yield set_grid
    spark.conf.unset("spark.sql.adaptive.enabled")


def rows(first: int, last: int, name: str = "old", step: int = 1) -> pa.Table:
    ids = range(first, last, step)
    return pa.table({"id": ids, "name": [f"{name} {i}" for i in ids], "score": [i / 8 for i in ids]}, SCHEMA)


def make_table(target: Target, path: str, files: int = 6) -> pds.Table:
    """A table of some files with deleted rows."""
    table = pds.Table.create(target.store, path, SCHEMA, key="id", options=pds.WriteOptions(row_group_size=64))
    for number in range(files):
        table.append(rows(number * 100, number * 100 + 100))
    table.delete("id % 10 = 3")
    return table


@pytest.fixture
def twins(target: Target) -> tuple[pds.Table, pds.Table]:
    """Two tables with the same rows: for Spark, and for the local engine."""
    return make_table(target, "spark"), make_table(target, "local")


def frame(spark: SparkSession, data: pa.Table, partitions: int = 4) -> DataFrame:
    return spark.createDataFrame(data).repartition(partitions)


def listed(table: pds.Table, by: str = "id") -> list[dict[str, Any]]:
    return sorted(table.scan().to_pyarrow().to_pylist(), key=lambda row: (str(row[by]), str(row)))


def same(ours: pds.Table, local: pds.Table) -> bool:
    """Whether both have the same rows, and their last commits the same counts; and nothing is left over."""
    assert listed(ours) == listed(local)
    assert listed(pds.Table(ours.store, ours.path)) == listed(local)
    last, expected = ours.history(1)[0]["operation"], local.history(1)[0]["operation"]
    names = ("name", "rows", "rows_updated", "rows_inserted", "rows_deleted", "filter")
    assert {name: last.get(name) for name in names} == {name: expected.get(name) for name in names}
    assert ours.check().orphans == []
    return True


@BOTH_PLACES
@pytest.mark.parametrize("targets", [1, 5])
def test_rows_of_a_filter_are_deleted(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], grid: Callable[[int, int], None], targets: int, place: str
) -> None:
    grid(targets, 1)
    ours, local = twins
    for where in ("score * 8 % 7 = 2", "name LIKE '%9'", "id = 5 OR id > 450", "id IN (20, 21, 420)", "name = 'no'"):
        result, expected = pds.spark.delete(spark, ours, where), local.delete(where)
        assert (result.rows, result.version, result.attempts) == (expected.rows, expected.version, expected.attempts)
        assert same(ours, local), where
    # Whole files and row groups leave without a line for each row.
    result, expected = pds.spark.delete(spark, ours, "score < 30 OR name IS NULL"), local.delete("score < 30")
    assert result.rows == expected.rows
    assert listed(ours) == listed(local)
    assert len(ours.files()) == len(local.files())


def test_ranges_of_the_key_and_small_tables_start_no_job(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, local = twins
    monkeypatch.setattr(changes, "run_tasks", lambda *_: pytest.fail("a job"))
    pds.spark.delete(spark, ours, "score = 5")
    grid(5, 1)
    assert pds.spark.delete(spark, ours, "id BETWEEN 90 AND 310").rows is None
    local.delete("score = 5")
    local.delete("id BETWEEN 90 AND 310")
    assert listed(ours) == listed(local)
    assert pds.spark.delete(spark, ours, "id = 100000").attempts == 0


@GRIDS
def test_rows_are_upserted(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    targets: int,
    rows: int,
    place: str,
) -> None:
    grid(targets, rows)
    ours, local = twins
    data = globals()["rows"](37, 900, "new", step=3).select(["name", "id"])
    result, expected = pds.spark.upsert(frame(spark, data), ours), local.upsert(data)
    assert (result.version, result.rows) == (expected.version, expected.rows)
    assert same(ours, local)
    # By another column than the key.
    data = pa.table({"id": [1000, 1001], "name": ["old 8", "old 99999"]}, SCHEMA.remove(2))
    pds.spark.upsert(frame(spark, data), ours, on="name")
    local.upsert(data, on="name")
    assert same(ours, local)


def merge_all(merge: pds.table.Merge) -> pds.table.Merge:
    return (
        merge.when_matched_delete("source.score < 0")
        .when_matched_update({"score": "target.score + source.score"}, "source.score > 20")
        .when_matched_update_all("source.score > 10")
        .when_not_matched_insert({"id": "source.id", "name": "'new'"}, "source.id % 2 = 0")
        .when_not_matched_insert_all("source.id % 3 = 0")
    )


def merge_by_source(merge: pds.table.Merge) -> pds.table.Merge:
    merge = merge_all(merge).when_not_matched_by_source_delete("target.id % 4 = 1")
    return merge.when_not_matched_by_source_update({"name": "'gone'"}, "target.id % 4 = 2")


@GRIDS
def test_rows_are_merged(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    targets: int,
    rows: int,
    place: str,
) -> None:
    grid(targets, rows)
    ours, local = twins
    choose = random.Random(targets)
    ids = choose.sample(range(800), 300)
    scores = [choose.choice([-1.0, 5.0, 15.0, 25.0]) for _ in ids]
    source = pa.table({"score": scores, "id": ids, "name": ["x"] * 300})
    for clauses in (merge_all, merge_by_source):
        result = clauses(pds.spark.merge(frame(spark, source), ours)).execute()
        expected = clauses(local.merge(source)).execute()
        assert (result.version, result.rows) == (expected.version, expected.rows)
        assert same(ours, local)
    more = source.append_column("more", source["id"]).select(["more", "id"])
    for merge in (pds.spark.merge(frame(spark, more), ours), local.merge(more)):
        merge.when_matched_update({"name": "concat('more ', source.more)"}, "source.more % 5 = 0").execute()
    assert same(ours, local)
    nulls = spark.sql("SELECT id, array() AS nothing, map('a', NULL) AS none FROM range(5)")
    assert pds.spark.merge(nulls, ours).when_matched_update({"score": "source.id"}, "source.id = 6").execute().rows == 0
    unmatched = pds.spark.merge(frame(spark, source), ours).when_matched_update_all("source.id < 0")
    assert unmatched.execute().attempts == 0
    assert ours.refresh().check().orphans == []


BY_SOURCE: list[Callable[[pds.table.Merge], pds.table.Merge]] = [
    merge_by_source,
    # All that the source does not have goes: no column is read for it.
    lambda merge: merge.when_matched_update_all().when_not_matched_insert_all().when_not_matched_by_source_delete(),
    lambda merge: merge.when_not_matched_by_source_delete("target.score > 30"),
    lambda merge: merge.when_not_matched_by_source_update({"score": "target.score + 1"}).when_matched_delete(),
    lambda merge: (
        merge.when_not_matched_by_source_delete("target.id % 3 = 0")
        .when_not_matched_by_source_update({"name": "concat(target.name, '!')"}, "target.id % 3 = 1")
        .when_not_matched_by_source_delete()
        .when_not_matched_insert({"id": "source.id"}, "source.score < 0")
    ),
]


@BOTH_PLACES
@pytest.mark.parametrize("clauses", BY_SOURCE)
def test_rows_that_no_part_of_the_source_has(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    clauses: Callable[[pds.table.Merge], pds.table.Merge],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are known by what all parts have found, though no task has more than a part."""
    grid(5, 1)
    ours, local = twins
    held: list[int] = []
    run = changes.run_tasks

    def watch(spark: SparkSession, tasks: Any) -> Any:
        held.extend(len(task.part.lists) for task in tasks if hasattr(task, "part"))
        return run(spark, tasks)

    monkeypatch.setattr(changes, "run_tasks", watch)
    choose = random.Random(7)
    for ids in (choose.sample(range(700), 250), list(range(100, 300)), [5], []):
        scores = [choose.choice([-1.0, 5.0, 15.0, 25.0]) for _ in ids]
        schema = pa.schema([("id", pa.int64()), ("score", pa.float64()), ("name", pa.string())])
        source = pa.table({"id": ids, "score": scores, "name": ["x"] * len(ids)}, schema)
        result = clauses(pds.spark.merge(frame(spark, source), ours)).execute()
        expected = clauses(local.merge(source)).execute()
        assert (result.version, result.rows) == (expected.version, expected.rows)
        assert listed(ours) == listed(local), ids
        assert expected.attempts == 0 or same(ours, local)
        # One part has the whole of a small source.
        assert len(ids) < 100 or max(held) == 1
        held.clear()
        for table in twins:
            table.append(rows(1000, 1100))
            table.delete("id >= 1050")


def test_rows_that_no_part_has_are_those_of_spark(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], grid: Callable[[int, int], None]
) -> None:
    """As a full outer join by Spark has them."""
    grid(5, 1)
    ours, _ = twins
    source = spark.range(50, 900, 3, numPartitions=4).selectExpr("id", "concat('new ', id) AS name")
    before = pds.spark.read_table(spark, ours, version=ours.version)
    joined = before.alias("t").join(source.alias("s"), "id", "full")
    joined = joined.where("s.name IS NOT NULL OR id % 4 != 1").selectExpr(
        "id",
        "CASE WHEN s.name IS NOT NULL THEN s.name WHEN id % 4 = 2 THEN 'gone' ELSE t.name END AS name",
        "t.score AS score",
    )
    expected = sorted((row.asDict() for row in joined.collect()), key=lambda row: (str(row["id"]), str(row)))
    merge = pds.spark.merge(source, ours).when_matched_update_all().when_not_matched_insert_all()
    merge = merge.when_not_matched_by_source_delete("target.id % 4 = 1")
    merge.when_not_matched_by_source_update({"name": "'gone'"}, "target.id % 4 = 2").execute()
    assert listed(ours) == expected


def test_commits_in_between_where_rows_have_no_match(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In front of the second job, and behind it."""
    grid(4, 1)
    ours, local = twins
    other = pds.Table(ours.store, ours.path)
    commits: list[Callable[[pds.Table], object]] = [
        lambda table: table.append(rows(700, 710)),
        lambda table: table.delete("id IN (6, 400)"),
        lambda table: table.refresh().optimize.compact(),
    ]
    data = rows(50, 650, "new", step=2)
    for number, commit in enumerate(commits):
        with monkeypatch.context() as patch:
            nothing: list[Callable[[], object]] = [bool] * (1 + number % 2)
            searches = between(patch, *nothing, lambda commit=commit: commit(other))  # type: ignore[misc]
            merge_by_source(pds.spark.merge(frame(spark, data), ours)).execute()
        assert len(searches) > 2 + number % 2
        commit(local)
        merge_by_source(local.merge(data)).execute()
        assert listed(ours) == listed(local)
        assert ours.refresh().check().orphans == []
        for table in twins:
            table.append(rows(1000, 1200, "more", step=3))
            table.delete("id >= 1100")


def test_targets_are_sized_by_what_is_rewritten(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that rewrites rows without a match holds all their columns."""
    ours, _ = twins
    sizes = ours.files()["size_bytes"].to_pylist()
    monkeypatch.setattr(changes, "TASK_SIZES", {"count": 1, "min_bytes": 1, "max_bytes": sum(sizes) // 2})
    searches = between(monkeypatch)
    source = pa.table({"id": [1, 599], "score": [0.5, 0.5], "name": ["x", "x"]})
    merge_by_source(pds.spark.merge(frame(spark, source, 1), ours)).execute()
    # Then the rows that matched in none of several tasks are inserted.
    assert len(searches) == 2
    assert searches[0] > 1
    monkeypatch.setattr(changes, "TASK_SIZES", {"count": 1, "min_bytes": 1, "max_bytes": sum(sizes)})
    del searches[:]
    merge_all(pds.spark.merge(frame(spark, source, 1), ours)).execute()
    assert searches == [1]


def test_a_part_of_the_source_is_compared_with_files_of_its_keys(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parts are ranges of the key, so that files are searched once, and not once for each part."""
    grid(100, 1)
    spark.conf.set("spark.sql.shuffle.partitions", "12")
    try:
        ours, local = twins
        searches = between(monkeypatch)
        data = rows(0, 600, "new")
        pds.spark.upsert(frame(spark, data), ours)
        local.upsert(data)
        assert same(ours, local)
        assert len(searches) == 1
        assert 6 <= searches[0] <= 12 + 6
        # A row beyond all files, and one within a file.
        data = rows(5, 10_006, "newer", step=10_000)
        pds.spark.upsert(frame(spark, data), ours)
        local.upsert(data)
        assert same(ours, local)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "3")


def test_a_key_that_begins_with_a_column_without_bounds(
    spark: SparkSession,
    target: Target,
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranges are those of its first column with bounds."""
    grid(100, 1)
    tables = [pds.Table.create(target.store, name, SCHEMA, key=["score", "id"]) for name in ("spark", "local")]
    for number in range(6):
        for table in tables:
            table.append(rows(number * 100, number * 100 + 100))
    spark.conf.set("spark.sql.shuffle.partitions", "12")
    try:
        ours, local = tables
        searches = between(monkeypatch)
        data = rows(0, 600, "new")
        pds.spark.upsert(frame(spark, data), ours)
        local.upsert(data)
        assert same(ours, local)
        assert 6 <= searches[0] <= 12 + 6
        data = rows(50, 650, "newer")
        for merge in (pds.spark.merge(frame(spark, data), ours), local.merge(data)):
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        assert same(ours, local)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "3")


def test_keys_of_several_columns_and_kinds(
    spark: SparkSession, target: Target, grid: Callable[[int, int], None]
) -> None:
    """What is one key here is one for the shuffle: -0.0 and 0.0, all NaN, numbers of other widths."""
    grid(3, 1)
    nan = float("nan")
    schema = pa.schema([("a", pa.float64()), ("b", pa.string()), ("c", pa.decimal128(12, 2)), ("value", pa.int64())])
    floats = [0.0, nan, 1.5, -2.0, 0.1]
    ones = pa.array([Decimal(1)] * 10, pa.decimal128(12, 2))
    before = pa.table({"a": floats * 2, "b": ["x"] * 5 + ["y"] * 5, "c": ones, "value": range(10)})
    for name in ("spark", "local"):
        table = pds.Table.create(target.store, name, schema, key=["a", "b", "c"])
        for first in range(0, 10, 2):
            table.append(before.slice(first, 2).cast(schema))
    ours, local = pds.Table(target.store, "spark"), pds.Table(target.store, "local")
    update = pa.table(
        {
            "a": pa.array([-0.0, nan, 1.5, 7.0], pa.float32()).cast(pa.float64()),
            "b": ["x", "y", "z", "x"],
            "c": pa.array([Decimal(1)] * 4, pa.decimal128(5, 1)),
            "value": pa.array([100, 101, 102, 103], pa.int16()),
        }
    )
    pds.spark.upsert(frame(spark, update), ours)
    local.upsert(update)
    assert same_values(ours, local)
    twice = spark.createDataFrame(pa.table({"a": [0.0, -0.0] * 20, "b": [f"{i // 2}" for i in range(40)]}))
    both = twice.selectExpr("a", "b", "CAST(1 AS DECIMAL(3,0)) AS c").repartition(20, "a")
    with pytest.raises(PySparkException, match="same a, b, c"):
        pds.spark.upsert(both, ours)
    # By ranges of a key that begins with a column that has bounds.
    ranged = pds.Table.create(
        target.store, "ranged", pa.schema([("c", pa.int32()), ("a", pa.float64())]), key=["c", "a"]
    )
    for number in (1, 2):
        ranged.append(pa.table({"c": pa.array([number] * 3, pa.int32()), "a": [0.0, nan, None]}))
    zeros = spark.range(40).selectExpr("1 AS c", "IF(id % 2 = 0, 0.0D, -0.0D) AS a").repartition(20, "a")
    with pytest.raises(PySparkException, match="same c, a"):
        pds.spark.upsert(zeros, ranged)
    none = spark.sql("SELECT 1 AS c, CAST(NULL AS double) AS a")
    with pytest.raises(PySparkException, match="null in key column"):
        pds.spark.upsert(none, ranged)
    assert pds.spark.upsert(zeros.limit(1), ranged).rows == 1
    assert ranged.scan().count() == 6
    nans = spark.sql("SELECT CAST('NaN' AS double) AS a, 'k' AS b UNION ALL SELECT sqrt(CAST(-1 AS double)), 'k'")
    with pytest.raises(PySparkException, match="same a, b, c"):
        pds.spark.upsert(nans.selectExpr("*", "CAST(1 AS DECIMAL(3,0)) AS c"), ours)


def test_rows_that_are_partitioned_by_key_already(
    spark: SparkSession, target: Target, grid: Callable[[int, int], None]
) -> None:
    """Spark leaves out a shuffle that it takes for done, and may split what it takes for skewed."""
    grid(1, 1000)
    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4096",
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1",
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "8192",
        "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "1",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        twice = spark.range(0, 8_000, 1, numPartitions=8).selectExpr("id % 4000 AS id", "concat('n', id) AS name")
        once = spark.range(0, 4_000, 1, numPartitions=8).selectExpr("id", "id / 8 AS score")
        frames = [twice.hint("rebalance", "id").where("name != 'x'"), twice.join(once, "id")]
        # By ranges of the key where the table has files that these can leave out; else by its hash.
        for number, (df, files) in enumerate(itertools.product(frames, (0, 2))):
            table = make_table(target, f"t{number}", files)
            with pytest.raises(PySparkException, match="two rows have the same id"):
                pds.spark.upsert(df, table)
            merge = pds.spark.merge(df, table).when_not_matched_insert({"id": "source.id"})
            with pytest.raises(PySparkException, match="two rows have the same id"):
                merge.execute()
        assert pds.spark.upsert(once.hint("rebalance", "id"), table).rows == 4_000
        assert table.scan().count() == 4_000
        assert pds.spark.upsert(once.repartitionByRange("id"), table).rows == 4_000
        assert table.scan().count() == 4_000
    finally:
        for name in settings:
            spark.conf.unset(name)


def same_values(ours: pds.Table, local: pds.Table) -> bool:
    """Like `same`, where NaN are values."""
    assert sorted(map(str, listed(ours, "value"))) == sorted(map(str, listed(local, "value")))
    return True


@pytest.mark.parametrize("bad", ["IF(id = 7, 8, id) AS id", "IF(id = 7, NULL, id) AS id", "raise_error('no') AS id"])
def test_keys_that_are_there_twice_and_jobs_that_fail(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], grid: Callable[[int, int], None], bad: str
) -> None:
    grid(3, 4)
    ours, _ = twins
    before, version = listed(ours), ours.version
    data = spark.range(0, 20, 1, numPartitions=4).selectExpr(bad)
    with pytest.raises(PySparkException):
        pds.spark.upsert(data, ours)
    with pytest.raises(PySparkException):
        pds.spark.merge(data, ours).when_matched_delete().when_not_matched_insert_all().execute()
    assert listed(ours.refresh()) == before
    assert ours.version == version
    if "raise_error" not in bad:
        assert [path for path in ours.check().orphans if "IF" not in bad] == []


def test_what_is_wrong_is_told_before_a_job_starts(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, local = twins
    monkeypatch.setattr(changes, "stage_plan", lambda *_: pytest.fail("a job"))
    monkeypatch.setattr(changes, "run_tasks", lambda *_: pytest.fail("a job"))
    numbers = spark.range(3)
    bad_clauses: list[Callable[[pds.table.Merge], pds.table.Merge]] = [
        lambda merge: merge.when_matched_update({"nothing": "1"}),
        lambda merge: merge.when_matched_update({"name": "source.nothing"}),
        lambda merge: merge.when_matched_delete("source.id +"),
        lambda merge: merge.when_not_matched_insert({"id": "source.id"}, "target.id = 1"),
        lambda merge: merge,
    ]
    for add in bad_clauses:
        with pytest.raises(pds.InvalidInput) as ours_told:
            add(pds.spark.merge(numbers, ours)).execute()
        with pytest.raises(pds.InvalidInput) as local_told:
            add(local.merge(pa.table({"id": [1]}))).execute()
        assert str(ours_told.value).split(" (")[0] == str(local_told.value).split(" (")[0]
    with pytest.raises(pds.InvalidInput, match='"id" is missing'):
        pds.spark.upsert(numbers.selectExpr("CAST(id AS string) AS name"), ours)
    with pytest.raises(pds.InvalidInput, match='missing key column "id"'):
        pds.spark.merge(numbers.selectExpr("id AS other"), ours).when_matched_delete().execute()
    with pytest.raises(pds.InvalidInput, match="type mismatch"):
        pds.spark.merge(numbers.selectExpr("CAST(id AS string) AS id"), ours).when_matched_delete().execute()
    with pytest.raises(pds.InvalidType, match="'none' is or holds map<void,void>"):
        pds.spark.merge(spark.sql("SELECT 1L AS id, map() AS none"), ours)
    with pytest.raises(pds.InvalidInput, match="unknown column"):
        pds.spark.upsert(numbers, ours, on="nothing")
    with pytest.raises(pds.InvalidInput, match="names no column"):
        pds.spark.upsert(numbers, ours, on=[])
    with pytest.raises(pds.InvalidInput, match="names no column"):
        pds.spark.merge(numbers, ours, on=()).when_matched_delete().execute()
    maps = spark.sql("SELECT named_struct('m', map('a', 1)) AS key")
    of_maps = pds.Table.create(ours.store, "maps", maps.limit(0).toArrow().schema, key="key")
    with pytest.raises(pds.InvalidInput, match="has a map or a variant"):
        pds.spark.upsert(maps, of_maps)
    with pytest.raises(pds.InvalidInput, match="not deterministic"):
        pds.spark.delete(spark, ours, "now() > TIMESTAMP '2020-01-01'")
    with pytest.raises(pds.InvalidType, match="table must be"):
        pds.spark.delete(spark, ours.store, "true")  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidType, match="on must be"):
        pds.spark.upsert(numbers, ours, on=5)  # type: ignore[arg-type]
    keyless = pds.Table.create(ours.store, "keyless", SCHEMA)
    with pytest.raises(pds.InvalidInput, match="no key"):
        pds.spark.upsert(numbers, keyless)
    hidden = pds.Table.create(pds.Store("memory://"), "t", SCHEMA, key="id")
    with pytest.raises(pds.InvalidInput, match="executors cannot reach"):
        pds.spark.upsert(numbers, hidden)
    assert ours.refresh().check().orphans == []


class Lost:
    """A task that fails three times after it has done its work."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def run(self, threads: int | None = None) -> list[bytes]:
        messages = self.task.run(threads)
        context = TaskContext.get()
        if context.partitionId() in (0, 2) and context.attemptNumber() < 3:
            raise RuntimeError("lost after writing")
        return messages


@BOTH_PLACES
def test_tasks_that_are_tried_again_change_nothing_twice(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    grid(4, 20)
    run = changes.run_tasks
    monkeypatch.setattr(changes, "run_tasks", lambda spark, tasks: run(spark, [Lost(task) for task in tasks]))
    ours, local = twins
    data = rows(50, 650, "new", step=5)
    pds.spark.upsert(frame(spark, data), ours)
    local.upsert(data)
    assert same(ours, local)
    data = rows(0, 700, "newer", step=7)
    merge_all(pds.spark.merge(frame(spark, data), ours)).execute()
    merge_all(local.merge(data)).execute()
    assert listed(ours) == listed(local)
    assert pds.spark.delete(spark, ours, "score = 10 OR score = 60").rows == local.delete("score IN (10, 60)").rows
    assert listed(ours) == listed(local)


def between(monkeypatch: pytest.MonkeyPatch, *commits: Callable[[], object]) -> list[int]:
    """Makes others commit while tasks search; returns a list of the numbers of their tasks."""
    run, pending, searches = changes.run_tasks, list(commits), list[int]()

    def meanwhile(spark: SparkSession, tasks: Any) -> Any:
        messages = run(spark, tasks)
        searches.append(len(tasks))
        if pending:
            pending.pop(0)()
        return messages

    monkeypatch.setattr(changes, "run_tasks", meanwhile)
    return searches


def test_commits_in_between(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is as if it had come before or after."""
    grid(4, 1 << 20)
    ours, local = twins
    other = pds.Table(ours.store, ours.path)
    data = rows(590, 620, "new")
    with monkeypatch.context() as patch:
        searches = between(patch, lambda: other.append(rows(600, 610)), lambda: other.delete("id = 595"))
        pds.spark.upsert(frame(spark, data), ours)
    assert len(searches) == 2, "rows that were added are searched; a deleted row is none that is missing"
    local.append(rows(600, 610))
    local.delete("id = 595")
    local.upsert(data)
    assert listed(ours) == listed(local)

    raised = pa.table({"id": range(700), "by": [1.0] * 700})

    def add(merge: pds.table.Merge) -> pds.table.Merge:
        return merge.when_matched_update({"score": "target.score + source.by"})

    with monkeypatch.context() as patch:
        searches = between(
            patch, lambda: other.delete("id = 605"), lambda: other.upsert(rows(606, 607, "x")), other.optimize.compact
        )
        add(pds.spark.merge(frame(spark, raised), ours)).execute()
    assert len(searches) == 4
    local.delete("id = 605")
    local.upsert(rows(606, 607, "x"))
    add(local.merge(raised)).execute()
    assert listed(ours) == listed(local)

    for table in (ours, local):
        table.append(rows(800, 810))
    appended = rows(900, 910)
    with monkeypatch.context() as patch:
        searches = between(patch, lambda: other.append(appended))
        pds.spark.delete(spark, ours, "name LIKE '%0'")
    assert len(searches) == 1, "rows that others add stay"
    local.delete("name LIKE '%0'")
    local.append(appended)
    assert listed(ours) == listed(local)
    with monkeypatch.context() as patch:
        searches = between(patch, lambda: other.delete("id = 1"), other.refresh().optimize.compact)
        pds.spark.delete(spark, ours, "name LIKE '%1'")
    assert len(searches) == 1
    with monkeypatch.context() as patch:
        searches = between(patch, other.refresh().optimize.compact)
        assert pds.spark.delete(spark, ours, "name LIKE '%2'").attempts == 1
    assert len(searches) == 1, "then one task would read the table"
    local.delete("name LIKE '%1' OR name LIKE '%2'")
    assert listed(ours) == listed(local)
    assert ours.check().orphans == []


def test_commits_in_between_where_there_is_nothing_to_change(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they have added is searched, too."""
    grid(3, 1 << 20)
    ours, _ = twins
    other = pds.Table(ours.store, ours.path)
    merge = pds.spark.merge(frame(spark, rows(5000, 5010, "new")), ours).when_matched_update_all()
    with monkeypatch.context() as patch:
        searches = between(patch, lambda: other.append(rows(5005, 5006)))
        assert merge.execute().rows == 1
    assert len(searches) == 2
    assert ours.scan(where="id = 5005").to_pyarrow()["name"].to_pylist() == ["new 5005"]
    merge = pds.spark.merge(frame(spark, rows(6000, 6010, "new")), ours).when_matched_update_all()
    version = ours.version
    with monkeypatch.context() as patch:
        between(patch, lambda: other.append(rows(7000, 7001)))
        with pytest.raises(pds.CommitConflict):
            merge.execute(if_version=version)
    with monkeypatch.context() as patch:
        stage = changes.stage_plan
        patch.setattr(changes, "stage_plan", lambda *a: (other.append(rows(8000, 8001)), stage(*a))[1])
        with pytest.raises(pds.CommitConflict):
            merge.execute(if_version=ours.refresh().version)


def test_another_thread_that_moves_the_handle_on(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All is of the version whose tasks search, also if it restores one."""
    grid(4, 1)
    ours, _ = twins
    ours.append(pa.table({"id": [9001, 9002], "name": ["a", "b"], "score": [None, None]}, SCHEMA))
    version = ours.version
    ours.delete("name = 'b'")
    by_key = changes.deletes_by_key

    def meanwhile(table: pds.Table, where: str) -> bool:
        ours.restore(version)
        monkeypatch.setattr(changes, "deletes_by_key", by_key)
        return by_key(table, where)

    monkeypatch.setattr(changes, "deletes_by_key", meanwhile)
    pds.spark.delete(spark, ours, "name = 'a' OR name = 'old 8'")
    assert ours.scan(where="id IN (8, 9001, 9002)").to_pyarrow()["name"].to_pylist() == ["b"]


def test_a_long_list_of_tasks_is_not_a_part_of_each(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid(6, 1 << 20)
    monkeypatch.setattr(spark_tasks, "_MAX_LIST_BYTES", 1)
    ours, local = twins
    sent: list[Any] = []

    def send(session: SparkSession, tasks: Any) -> Any:
        sent.append(spark_tasks.send_tasks(session, tasks))
        return sent[-1]

    monkeypatch.setattr(jobs, "send_tasks", send)
    pds.spark.delete(spark, ours, "name LIKE '%7' AND score > 20")
    local.delete("name LIKE '%7' AND score > 20")
    assert same(ours, local)
    ((_, tasks),) = sent
    assert tasks.tasks is None


def test_a_message_that_is_lost(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], grid: Callable[[int, int], None]
) -> None:
    grid(4, 1 << 20)
    ours, _ = twins
    change = changes.TaskChange(ours, changes.commit_options(ours), where="score > 0")
    sizes = {"count": 4, "min_bytes": 1, "max_bytes": 1 << 20}
    tasks = [changes.DeleteTask(task) for task in split_search(ours, "score > 0", **sizes)]
    messages = [message for task in tasks for message in task.run()]
    for some in (messages[1:], [*messages, messages[0]]):
        with pytest.raises(pds.RemoteStoreError, match="searches"):
            change.commit(some)
    assert change.commit(messages).rows == 539
    assert ours.scan().count() == 1


def test_no_end_of_commits_in_between(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid(2, 1 << 20)
    ours, _ = twins
    other = pds.Table(ours.store, ours.path)
    appends = [lambda n=n: other.append(rows(1000 + n, 1001 + n)) for n in range(20)]
    searches = between(monkeypatch, *appends)
    with pytest.raises(pds.CommitConflict):
        pds.spark.upsert(frame(spark, rows(0, 10, "new")), ours)
    assert len(searches) == 5
    with pytest.raises(pds.CommitConflict):
        pds.spark.upsert(frame(spark, rows(0, 10, "new")), ours, if_version=ours.refresh().version)
    assert len(searches) == 6
    merge = pds.spark.merge(frame(spark, rows(0, 10, "new")), ours).when_matched_update_all()
    with pytest.raises(pds.CommitConflict):
        merge.execute()
    assert ours.refresh().check().orphans == []
    assert not [row for row in listed(ours) if row["name"].startswith("new")]


def test_a_key_that_was_used_starts_no_job(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = twins
    data = frame(spark, rows(0, 10, "new"))
    first = pds.spark.upsert(data, ours, idempotency_key="load 1")
    ours.append(rows(2000, 2001))
    monkeypatch.setattr(changes, "stage_plan", lambda *_: pytest.fail("a job"))
    again = pds.spark.upsert(data, ours, idempotency_key="load 1")
    assert (again.replayed, again.version) == (True, first.version)
    again = pds.spark.merge(data, ours).when_matched_delete().execute(idempotency_key="load 1")
    assert (again.replayed, again.version) == (True, first.version)


def test_the_time_is_one_in_all_tasks(
    spark: SparkSession,
    twins: tuple[pds.Table, pds.Table],
    grid: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in a search after a conflict, and in the local engine in all clauses."""
    grid(5, 1)
    ours, local = twins
    other = pds.Table(ours.store, ours.path)
    between(monkeypatch, lambda: other.append(rows(5000, 5001)))
    data = rows(550, 650, "new")
    for merge in (pds.spark.merge(frame(spark, data), ours), local.merge(data)):
        merge = merge.when_matched_update({"name": "CAST(now() AS VARCHAR)"})  # noqa: PLW2901 as users write it
        merge.when_not_matched_insert({"id": "source.id", "name": "CAST(now() AS VARCHAR)"}).execute()
    for table in (ours, local):
        changed = table.scan(where="id BETWEEN 550 AND 650").to_pyarrow()["name"].to_pylist()
        assert (len(changed), len(set(changed))) == (100, 1)


def test_clauses_compute_with_times_in_utc(spark: SparkSession, target: Target) -> None:
    """As those of `Table.merge` with the same rows, whatever zone a column of the table has."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "Europe/Berlin")), ("day", pa.string())])
    table = pds.Table.create(target.store, "zoned", schema, key="id")
    table.append(pa.table({"id": [1, 2], "at": [None, None], "day": ["", ""]}, schema))
    source = spark.sql("SELECT id, TIMESTAMP'2026-01-01 23:30:00Z' AS at FROM VALUES (1L), (2L), (3L) AS ids(id)")
    merge = pds.spark.merge(source, table).when_matched_delete("CAST(source.at AS DATE) > DATE '2026-01-01'")
    merge = merge.when_matched_update({"day": "CAST(source.at AS VARCHAR)"}).when_not_matched_insert_all()
    merge.execute()
    found = {row["id"]: row["day"] for row in table.scan().to_pyarrow().to_pylist()}
    assert found == {1: "2026-01-01T23:30:00Z", 2: "2026-01-01T23:30:00Z", 3: None}


def test_times_of_a_coarser_unit_are_assigned_if_no_digit_is_lost(spark: SparkSession, target: Target) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms", "UTC")), ("s", pa.timestamp("s"))])
    table = pds.Table.create(target.store, "coarse", schema, key="id")
    at, s = "TIMESTAMP'1969-12-31 23:30:00.123Z' AS at", "TIMESTAMP_NTZ'1960-01-01 00:00:01' AS s"
    source = spark.range(1, 3).selectExpr("id", at, s)
    values = {"at": "source.at", "s": "source.s"}
    pds.spark.merge(source, table).when_not_matched_insert({"id": "source.id", **values}).execute()
    pds.spark.merge(source.where("id = 1"), table).when_matched_update(values).execute()
    columns = {"id": pa.array([1, 2]), "at": pa.array([-1_799_877] * 2), "s": pa.array([-315_619_199] * 2)}
    assert table.scan().to_pyarrow().sort_by("id").equals(pa.table(columns).cast(schema))
    finer = source.selectExpr("id", "at + INTERVAL '0.0001' SECOND AS at", "s")
    with pytest.raises(PySparkException, match='column "at": a time has digits'):
        pds.spark.merge(finer, table).when_matched_update(values).execute()
    assert table.refresh().version == 3


def test_empty_dataframes_and_tables(spark: SparkSession, target: Target, twins: tuple[pds.Table, pds.Table]) -> None:
    ours, local = twins
    none = frame(spark, rows(0, 10)).where("id < 0")
    assert pds.spark.upsert(none, ours).rows == 0
    assert pds.spark.merge(none, ours).when_matched_delete().when_not_matched_insert_all().execute().attempts == 0
    assert listed(ours) == listed(local)
    pds.spark.merge(none, ours).when_not_matched_by_source_delete("target.id < 50").execute()
    local.delete("id < 50")
    assert listed(ours) == listed(local)
    empty = pds.Table.create(target.store, "empty", SCHEMA, key="id")
    assert pds.spark.delete(spark, empty, "score = 1").attempts == 0
    pds.spark.merge(frame(spark, rows(0, 50)), empty).when_not_matched_insert_all().execute()
    pds.spark.upsert(frame(spark, rows(40, 60, "new")), empty)
    names = [row["name"] for row in sorted(listed(empty), key=lambda row: row["id"])]
    assert names == [f"old {i}" for i in range(40)] + [f"new {i}" for i in range(40, 60)]


def test_a_table_that_was_created_again(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    """Its rows are not those that were searched, although versions and keys are the same."""
    ours, _ = twins
    path = ours.path

    def again() -> None:
        pds.Table.drop(ours.store, path)
        make_table(target, path)

    between(monkeypatch, again)
    with pytest.raises(pds.TransactionExpired):
        pds.spark.merge(frame(spark, rows(0, 10, "new")), ours).when_matched_update_all().execute()
    assert not [row for row in listed(ours.refresh()) if row["name"].startswith("new")]


def test_columns_changed_in_between(
    spark: SparkSession, twins: tuple[pds.Table, pds.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows keep their columns by id."""
    ours, _ = twins
    other = pds.Table(ours.store, ours.path)
    between(monkeypatch, lambda: other.alter.rename_column("score", "points"), lambda: other.append(rows(0, 0)))
    pds.spark.upsert(frame(spark, rows(0, 10, "new")), ours)
    assert ours.scan(where="id = 8").to_pyarrow().to_pylist() == [{"id": 8, "name": "new 8", "points": 1.0}]

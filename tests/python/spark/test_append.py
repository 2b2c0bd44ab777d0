"""`pds.spark.append` and `overwrite`: each row once, whatever becomes of tasks; nothing where the job fails."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import pds
import pds.spark
from pds.spark import stage
from pds.spark.write import check_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("score", pa.float64())])


# A session takes seconds for each test: only these run on S3, too.
BOTH_PLACES = pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])


@pytest.fixture
def target(one_target: Target) -> Target:
    return one_target


@pytest.fixture
def table(target: Target) -> pds.Table:
    table = pds.Table.create(target.store, "lake/orders", SCHEMA, key="id")
    table.append(pa.table({"id": [-1], "name": ["old"], "score": [0.5]}, SCHEMA))
    return table


def frame(spark: SparkSession, first: int, count: int) -> DataFrame:
    """Rows in four partitions."""
    numbers = spark.range(first, first + count, 1, numPartitions=4)
    return numbers.selectExpr("concat('name ', id) AS name", "id", "CAST(id AS double) / 8 AS score")


def expected(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"name {number}", "score": number / 8} for number in range(first, first + count)]


def listed(table: pds.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_pyarrow().to_pylist(), key=lambda row: row["id"])


class Message(NamedTuple):
    """As a task sends it."""

    task: int
    attempt: int
    files: bytes


OLD = [{"id": -1, "name": "old", "score": 0.5}]


@BOTH_PLACES
def test_rows_are_appended_by_one_commit(spark: SparkSession, table: pds.Table, place: str) -> None:
    result = pds.spark.append(frame(spark, 0, 1000), table)
    assert (result.version, result.rows, result.files, result.replayed) == (3, 1000, 4, False)
    assert table.version == 3, "the handle shows what was made"
    assert listed(table) == OLD + expected(0, 1000)
    assert listed(pds.Table(table.store, table.path)) == OLD + expected(0, 1000)
    assert table.check().orphans == []
    result = pds.spark.overwrite(frame(spark, 5, 10), table)
    assert (result.version, listed(table)) == (4, expected(5, 10))


def test_columns_by_name_and_missing_ones(spark: SparkSession, table: pds.Table) -> None:
    pds.spark.append(spark.range(3).selectExpr("CAST(id AS smallint) AS id"), table)
    assert listed(table)[1:] == [{"id": number, "name": None, "score": None} for number in range(3)]


def wider(spark: SparkSession, first: int, count: int) -> DataFrame:
    """Rows in four partitions, with two columns that the table does not have."""
    numbers = spark.range(first, first + count, 1, numPartitions=4)
    return numbers.selectExpr("id * 3 AS `new.one`", "ID", "named_struct('a', id, 'b', array('x')) AS nested")


def expect_wider(first: int, count: int) -> list[dict[str, Any]]:
    old = [row | {"new.one": None, "nested": None} for row in OLD]
    return old + [
        {"id": n, "name": None, "score": None, "new.one": 3 * n, "nested": {"a": n, "b": ["x"]}}
        for n in range(first, first + count)
    ]


@BOTH_PLACES
def test_new_columns_are_added_by_the_commit_of_the_rows(
    spark: SparkSession, table: pds.Table, place: str, monkeypatch: pytest.MonkeyPatch, lose_tasks: Any
) -> None:
    plan = stage.stage_plan
    monkeypatch.setattr(stage, "stage_plan", lambda *args: plan(*args).mapInArrow(lose_tasks, stage.STAGED_DDL))
    with pytest.raises(pds.InvalidInput, match=r'unknown column "new\.one"'):
        pds.spark.append(wider(spark, 0, 100), table)
    result = pds.spark.append(wider(spark, 0, 100), table, schema_mode="merge", idempotency_key="load 1")
    assert (result.version, result.rows, table.version) == (3, 100, 3)
    assert listed(table) == expect_wider(0, 100)
    assert table.history(1)[0]["operation"]["columns_added"] == ["new.one", "nested"]
    twin = pds.Table.create(table.store, "twin", SCHEMA, key="id")
    written = check_frame(wider(spark, 0, 1).withColumnRenamed("ID", "id"))
    twin.append(written.empty_table(), schema_mode="merge")
    assert table.schema.equals(twin.schema)
    again = pds.spark.append(wider(spark, 0, 100), table, schema_mode="merge", idempotency_key="load 1")
    assert (again.replayed, again.version) == (True, 3)
    assert table.as_of(2).schema.equals(SCHEMA)
    assert pds.spark.append(wider(spark, 100, 0), table, schema_mode="merge").version == 4
    assert "columns_added" not in table.history(1)[0]["operation"]
    read = pds.spark.read_table(spark, table, columns=["id", "new.one"], where="id = 7")
    assert [tuple(row) for row in read.collect()] == [(7, 21)]


def test_a_job_that_fails_adds_no_column(spark: SparkSession, table: pds.Table) -> None:
    bad = spark.range(0, 100, 1, numPartitions=4).selectExpr("id", "IF(id = 77, raise_error('no'), id) AS other")
    with pytest.raises(PySparkException):
        pds.spark.append(bad, table, schema_mode="merge")
    assert table.refresh().version == 2
    assert table.schema.equals(SCHEMA)


def test_a_column_that_another_commit_adds_during_the_job(
    spark: SparkSession, table: pds.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, other = stage.stage_plan, pds.Table(table.store, table.path)
    for number, (data_type, fits) in enumerate([(pa.int64(), True), (pa.string(), False)]):
        name = f"other {number}"

        def meanwhile(*args: Any, name: str = name, data_type: pa.DataType = data_type) -> Any:
            other.alter.add_column(name, data_type)
            return plan(*args)

        monkeypatch.setattr(stage, "stage_plan", meanwhile)
        df = spark.range(4).selectExpr("id", f"id + 1 AS `{name}`")
        if fits:
            pds.spark.append(df, table, schema_mode="merge")
        else:
            with pytest.raises(pds.TransactionExpired, match="write again"):
                pds.spark.append(df, table, schema_mode="merge")
        assert table.refresh().check().orphans == []
    assert [row["other 0"] for row in listed(table)] == [None, 1, 2, 3, 4]
    assert table.schema.names == [*SCHEMA.names, "other 0", "other 1"]


def test_new_columns_that_are_refused_before_a_job_starts(
    spark: SparkSession, table: pds.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(stage, "stage_plan")
    numbers = spark.range(3)
    table.alter.add_column("NAME", pa.string())
    version = table.version
    for df, message in (
        (numbers.selectExpr("id", "'a' AS Name"), "differs in case only"),
        (numbers.selectExpr("id", "'a' AS _change_type"), "scan_changes"),
        (numbers.selectExpr("CAST(id AS string) AS id", "id AS other"), "type mismatch"),
        (numbers.selectExpr("id AS other"), '"id" is missing'),
    ):
        with pytest.raises(pds.InvalidInput, match=message):
            pds.spark.append(df, table, schema_mode="merge")
    with pytest.raises(pds.InvalidInput, match="schema_mode must be"):
        pds.spark.append(numbers, table, schema_mode="add")  # type: ignore[arg-type]
    assert pds.Table(table.store, table.path).version == version
    assert table.check().orphans == []


def test_a_dataframe_without_rows(spark: SparkSession, table: pds.Table) -> None:
    result = pds.spark.append(frame(spark, 0, 0), table)
    assert (result.rows, result.files) == (0, 0)
    assert listed(table) == OLD
    pds.spark.overwrite(frame(spark, 0, 0), table)
    assert listed(table) == []


def test_a_key_that_was_used_starts_no_job(spark: SparkSession, table: pds.Table, target: Target) -> None:
    first = pds.spark.append(frame(spark, 0, 8), table, idempotency_key="load 1")
    table.append(pa.table({"id": [99], "name": [None], "score": [None]}, SCHEMA))
    files = target.files()
    again = pds.spark.append(frame(spark, 0, 8), table, idempotency_key="load 1")
    assert again.replayed
    assert (again.version, again.commit_id) == (first.version, first.commit_id)
    assert target.files() == files
    assert len(listed(table)) == 10


@BOTH_PLACES
def test_tasks_that_are_tried_again_add_their_rows_once(
    spark: SparkSession, table: pds.Table, monkeypatch: pytest.MonkeyPatch, place: str, lose_tasks: Any
) -> None:
    plan = stage.stage_plan
    monkeypatch.setattr(stage, "stage_plan", lambda *args: plan(*args).mapInArrow(lose_tasks, stage.STAGED_DDL))
    pds.spark.append(frame(spark, 0, 5000), table)
    assert listed(table) == OLD + expected(0, 5000)


def test_of_two_attempts_of_a_task_one_is_committed(
    spark: SparkSession, table: pds.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As speculation delivers them, where Spark took the messages of both."""
    plan = stage.stage_plan

    class Twice:
        def __init__(self, *args: Any) -> None:
            self._args = args

        def collect(self) -> list[Any]:
            first, second = plan(*self._args).collect(), plan(*self._args).collect()
            return [*(Message(row.task, 1, row.files) for row in first), *second]

    monkeypatch.setattr(stage, "stage_plan", Twice)
    pds.spark.append(frame(spark, 0, 100), table)
    assert listed(table) == OLD + expected(0, 100)
    assert table.check().orphans == [], "files of the other attempts are removed"


def test_a_job_that_fails_commits_nothing(spark: SparkSession, table: pds.Table) -> None:
    numbers = spark.range(0, 100, 1, numPartitions=4)
    for bad in (
        numbers.selectExpr("IF(id = 77, NULL, id) AS id"),
        numbers.selectExpr("IF(id = 77, raise_error('no'), id) AS id"),
    ):
        with pytest.raises(PySparkException):
            pds.spark.append(bad, table)
    assert pds.Table(table.store, table.path).version == 2
    assert listed(table.refresh()) == OLD


def test_what_is_wrong_with_columns_is_told_before_a_job_starts(spark: SparkSession, table: pds.Table) -> None:
    numbers = spark.range(3)
    with pytest.raises(pds.InvalidInput, match='unknown column "other"'):
        pds.spark.append(numbers.selectExpr("id", "id AS other"), table)
    with pytest.raises(pds.InvalidInput, match="type mismatch"):
        pds.spark.append(numbers.selectExpr("CAST(id AS string) AS id"), table)
    with pytest.raises(pds.InvalidInput, match='"id" is missing'):
        pds.spark.append(numbers.selectExpr("CAST(id AS string) AS name"), table)
    with pytest.raises(pds.InvalidType, match="table must be"):
        pds.spark.append(numbers, table.store)  # type: ignore[arg-type]
    hidden = pds.Table.create(pds.Store("memory://"), "t", SCHEMA)
    with pytest.raises(pds.InvalidInput, match="executors cannot reach"):
        pds.spark.append(numbers, hidden)
    assert pds.Table(table.store, table.path).version == 2


def test_commits_in_between(spark: SparkSession, table: pds.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another process, after the job has begun."""
    plan, other = stage.stage_plan, pds.Table(table.store, table.path)

    def meanwhile(*args: Any) -> Any:
        other.append(pa.table({"id": [-5], "name": ["between"], "score": [None]}, SCHEMA))
        return plan(*args)

    monkeypatch.setattr(stage, "stage_plan", meanwhile)
    assert pds.spark.append(frame(spark, 0, 5), table).version == 4
    assert [row["id"] for row in listed(table)] == [-5, -1, 0, 1, 2, 3, 4]
    with pytest.raises(pds.CommitConflict):
        pds.spark.append(frame(spark, 5, 5), table, if_version=4)
    assert table.refresh().check().orphans == [], "what was staged for it is removed"
    assert len(listed(table)) == 8


def test_files_are_sorted_as_the_table_says(spark: SparkSession, target: Target) -> None:
    table = pds.Table.create(target.store, "sorted", SCHEMA, sort_by=["score"])
    shuffled = frame(spark, 0, 400).orderBy("name").coalesce(2)
    pds.spark.append(shuffled, table)
    for batch in table.scan_tasks(["score"], count=1000, min_bytes=1):
        scores = batch.to_pyarrow()["score"].to_pylist()
        assert scores == sorted(scores)
    assert listed(table) == expected(0, 400)


@BOTH_PLACES
def test_rows_of_a_filter_are_replaced(spark: SparkSession, table: pds.Table, place: str) -> None:
    pds.spark.append(frame(spark, 0, 100), table)
    replaced = frame(spark, 40, 10).selectExpr("id", "'new' AS name")
    result = pds.spark.overwrite(replaced, table, where="id BETWEEN 40 AND 59")
    assert result.rows == 10
    new = [{"id": number, "name": "new", "score": None} for number in range(40, 50)]
    assert listed(table) == OLD + expected(0, 40) + new + expected(60, 40)
    with pytest.raises(PySparkException, match="does not satisfy"):
        pds.spark.overwrite(frame(spark, 0, 10), table, where="id < 5")
    with pytest.raises(pds.InvalidInput, match="now"):
        pds.spark.overwrite(frame(spark, 0, 10), table, where="now() > '2020-01-01'")
    assert listed(pds.Table(table.store, table.path)) == listed(table)
    pds.spark.overwrite(frame(spark, 0, 0), table, where="id >= 0")
    assert listed(table) == OLD


def test_a_table_is_replaced_by_what_is_computed_from_it(spark: SparkSession, table: pds.Table) -> None:
    pds.spark.append(frame(spark, 0, 50), table)
    halves = pds.spark.read_table(spark, table).where("id >= 0").selectExpr("id", "name", "score / 2 AS score")
    pds.spark.overwrite(halves, table)
    assert listed(table) == [row | {"score": row["score"] / 2} for row in expected(0, 50)]

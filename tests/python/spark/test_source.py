"""`format("pds")`: what Spark reads and writes is what the table has, whatever Spark pushes down."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import pds
import pds.spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
    from tests.python.spark.conftest import Target

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(12, 2)),
        ("good", pa.bool_()),
        ("big", pa.uint64()),
        ("tags", pa.list_(pa.string())),
    ]
)
NOW = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


def rows(first: int, count: int) -> pa.Table:
    """Rows that depend on their ids alone."""
    ids = range(first, first + count)
    columns = {
        "id": ids,
        "name": [None if number % 7 == 0 else f"it's 100% {number}" for number in ids],
        "score": [[float("nan"), -0.0, 0.0, None, number / 4][number % 5] for number in ids],
        "day": [dt.date(2026, 1, 1) + dt.timedelta(number) for number in ids],
        "at": [NOW + dt.timedelta(hours=number) for number in ids],
        "price": [None if number % 11 == 0 else decimal.Decimal(number * 25) / 100 for number in ids],
        "good": [[True, False, None][number % 3] for number in ids],
        "big": [2**64 - 1 - number for number in ids],
        "tags": [["a", None][: number % 3] for number in ids],
    }
    return pa.table(columns, SCHEMA)


# A session takes seconds for each test: only these run on S3, too.
BOTH_PLACES = pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])


@pytest.fixture
def target(one_target: Target) -> Target:
    return one_target


@pytest.fixture
def table(target: Target) -> pds.Table:
    table = pds.Table.create(target.store, "lake/orders", SCHEMA, key="id")
    for number in range(5):
        table.append(rows(20 * number, 20))
    table.delete("id % 10 = 3")
    return table


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """A session that pushes filters down."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def reader(spark: SparkSession, target: Target, **options: Any) -> DataFrameReader:
    found = spark.read.format("pds").options(**options)
    return found.options(**{f"storage.{name}": value for name, value in target.options.items()})


def load(spark: SparkSession, target: Target, path: str = "lake/orders", **options: Any) -> DataFrame:
    return reader(spark, target, **options).load(f"{target.store.url}/{path}")


def writer(df: DataFrame, target: Target, mode: str, **options: Any) -> DataFrameWriter:
    found = df.write.format("pds").mode(mode).options(**options)
    return found.options(**{f"storage.{name}": value for name, value in target.options.items()})


def listed(found: pa.Table) -> list[str]:
    return [str(row) for row in found.to_pylist()]


@BOTH_PLACES
def test_rows_and_types_are_those_of_the_table(
    spark: SparkSession, target: Target, table: pds.Table, place: str
) -> None:
    df = load(spark, target)
    direct = pds.spark.read_table(spark, table)
    assert df.schema == direct.schema
    assert [str(row) for row in df.collect()] == [str(row) for row in direct.collect()]
    assert df.count() == 90
    assert df.rdd.getNumPartitions() == 1


def test_a_version_a_time_columns_and_a_filter(spark: SparkSession, target: Target, table: pds.Table) -> None:
    table.alter.drop_column("good")
    for options in (
        {"version": 3},
        {"versionAsOf": "3"},
        {"timestampAsOf": table.as_of(3).history(1)[0]["created_at"].isoformat()},
    ):
        df = load(spark, target, columns="name, id", where="id >= 15", **options)
        assert df.columns == ["name", "id"]
        assert sorted(row.id for row in df.collect()) == list(range(15, 40))
    assert "good" not in load(spark, target).columns
    assert load(spark, target, columns='["id"]').columns == ["id"]


def test_a_schema_selects_columns(spark: SparkSession, target: Target, table: pds.Table) -> None:
    df = reader(spark, target).schema("day date, id bigint").load(f"{target.store.url}/lake/orders")
    assert df.columns == ["day", "id"]
    assert df.where("id < 2").collect()[1].day == dt.date(2026, 1, 2)
    for bad, options, message in [
        ("id string", {}, "not string"),
        ("other int", {}, "other"),
        ("ID bigint", {}, "ID"),
        ("name string NOT NULL", {}, "NOT NULL"),
        ("id bigint", {"columns": "name"}, "twice"),
    ]:
        with pytest.raises(PySparkException, match=message):
            reader(spark, target, **options).schema(bad).load(f"{target.store.url}/lake/orders").collect()


def test_a_frame_stays_at_its_version(spark: SparkSession, target: Target, table: pds.Table) -> None:
    df = load(spark, target)
    table.append(rows(500, 5))
    assert df.count() == 90
    assert load(spark, target).count() == 95


CONDITIONS = [
    "id = 5", "id > 90", "id <= 7 AND id <> 2", "NOT (id < 80)", "id IN (1, 2, 99, 1000)", "id NOT IN (1, 2)",
    "name = 'it\\'s 100% 8'", "name > 'it\\'s 100% 95'", "name LIKE 'it\\'s 100\\%%'", "name IS NULL",
    "name IS NOT NULL", "score > 3", "score = 0.0", "score = double('NaN')", "score < double('NaN')", "score <> 0.0",
    "day = date'2026-02-01'", "day > date'2026-03-30'", "day IN (date'2026-01-01', date'2026-01-02')",
    "at = timestamp'2026-11-01 05:00:00Z'", "at >= timestamp'2026-11-04 00:00:00'",
    "at < timestamp'1950-01-01 00:00:00'", "price = 5", "price > 4.99", "price = 5.25", "price < 0.51 OR price > 24",
    "price IN (1.00, 2.50)", "good", "NOT good", "good = false", "good <=> NULL", "good IS NULL",
    "big > 18446744073709551610", "big = 18446744073709551615", "id + 1 = 3", "get(tags, 0) = 'a'", "size(tags) = 1",
]  # fmt: skip


def test_filters_of_spark(spark: SparkSession, target: Target, table: pds.Table, pushdown: None) -> None:
    """Each on a DataFrame that has seen others, beside its values for the same rows of another source."""
    df = load(spark, target)
    values = [f"({condition}) AS c{number}" for number, condition in enumerate(CONDITIONS)]
    alone = pds.spark.read_table(spark, table).selectExpr("id", *values).collect()
    for number, condition in enumerate(CONDITIONS):
        found = sorted(row.id for row in df.where(condition).select("id").collect())
        assert found == [row.id for row in alone if row[f"c{number}"]], condition
    assert df.count() == 90
    assert df.where("id < 5").union(df.where("id >= 95")).count() == 9
    assert df.where("id < 5").join(df.withColumnRenamed("name", "other"), "id").count() == 4


def test_a_filter_leaves_files_unread(spark: SparkSession, target: Target, table: pds.Table) -> None:
    """A file without matching rows may be damaged."""
    first = next(name for name in target.files() if name.endswith(".parquet"))
    target.store.write(first, b"damaged", overwrite=True)
    last = table.scan(where="id > 85").to_pyarrow().num_rows
    assert load(spark, target, where="id > 85 -- the last").count() == last == 13
    with pytest.raises(PySparkException):
        load(spark, target).count()


def test_options_that_are_not_valid_are_refused(spark: SparkSession, target: Target, table: pds.Table) -> None:
    url = f"{target.store.url}/lake/orders"
    for options, message in [
        ({"edition": "3"}, "no option"),
        ({"version": "x"}, "must be a number"),
        ({"version": "3", "timestamp": "2026-01-01"}, "twice"),
        ({"timestamp": "2026-01-01"}, "time zone"),
        ({"version": "99"}, "there is no version 99"),
        ({"columns": "id,other"}, "other"),
        ({"where": "other = 1"}, "other"),
    ]:
        with pytest.raises(PySparkException, match=message):
            reader(spark, target, **options).load(url)
    for path in ("orders", "memory://x/orders", "s3://bucket"):
        with pytest.raises(PySparkException, match=r"the table|executors"):
            spark.read.format("pds").load(path)
    with pytest.raises(PySparkException, match=r"NotFound|not found|does not exist"):
        load(spark, target, "lake/none")


@BOTH_PLACES
def test_rows_are_written(spark: SparkSession, target: Target, table: pds.Table, place: str) -> None:
    url = f"{target.store.url}/lake/orders"
    more = load(spark, target).drop("big").where("id < 10").withColumn("id", f.col("id") + 1000).repartition(3)
    writer(more, target, "append").save(url)
    found = table.refresh().scan(["id"]).to_pyarrow()["id"].to_pylist()
    assert sorted(found) == [n for n in range(100) if n % 10 != 3] + [1000 + n for n in range(10) if n != 3]
    assert table.version == 8
    again = load(spark, target).drop("big").where("id >= 1000").withColumn("id", f.col("id") - 1000)
    assert [str(row) for row in again.orderBy("id").collect()] == [
        str(row) for row in load(spark, target, version=7).drop("big").where("id < 10").orderBy("id").collect()
    ]
    for _ in range(2):
        writer(more, target, "append", idempotencyKey="k").save(url)
    assert table.refresh().scan().count() == 90 + 9 + 9
    writer(spark.range(50, 60).selectExpr("id"), target, "overwrite", replaceWhere="id >= 20").save(url)
    found = table.refresh().scan(["id"]).to_pyarrow()["id"].to_pylist()
    assert sorted(found) == [n for n in range(20) if n % 10 != 3] + list(range(50, 60))
    with pytest.raises(PySparkException, match="if_version"):
        writer(spark.range(4), target, "overwrite", ifVersion=8).save(url)
    writer(spark.range(4), target, "overwrite", ifVersion=table.version).save(url)
    assert sorted(table.refresh().scan(["id"]).to_pyarrow()["id"].to_pylist()) == [0, 1, 2, 3]
    assert table.check().orphans == []


def test_a_table_is_made_where_there_is_none(spark: SparkSession, target: Target) -> None:
    df = spark.range(10).selectExpr("id", "CAST(id AS string) AS `a name`", "array(id) AS list")
    writer(df, target, "append").save(f"{target.store.url}/made")
    assert [str(row) for row in load(spark, target, "made").collect()] == [str(row) for row in df.collect()]
    assert load(spark, target, "made").schema.simpleString() == df.schema.simpleString()


def test_what_cannot_be_written_is_refused(spark: SparkSession, target: Target, table: pds.Table) -> None:
    url = f"{target.store.url}/lake/orders"
    with pytest.raises(PySparkException, match=r"mode|append"):
        spark.range(3).write.format("pds").save(url)
    for df, mode, options, message in [
        (spark.range(3).selectExpr("id", "id AS other"), "append", {}, "unknown column"),
        (spark.range(3).selectExpr("CAST(id AS string) AS id"), "append", {}, "type mismatch"),
        (spark.range(3), "append", {"replaceWhere": "id > 1"}, "replaceWhere"),
        (spark.range(3), "overwrite", {"replaceWhere": "id > 1"}, "does not satisfy"),
        (spark.range(3), "append", {"mergeSchema": "true"}, "no option"),
        (spark.range(9).selectExpr("IF(id = 7, raise_error('no'), id) AS id"), "append", {}, "no"),
    ]:
        with pytest.raises(PySparkException, match=message):
            writer(df, target, mode, **options).save(url)
    assert table.refresh().version == 7
    assert table.scan().count() == 90


def test_an_absolute_path_is_one_of_local_files(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a folder%20" / "täble 1%"
    table = pds.Table.create(pds.Store(path.parent.as_uri()), path.name, pa.schema([("id", pa.int64())]))
    spark.range(3).write.format("pds").mode("append").save(str(path))
    assert spark.read.format("pds").load(str(path)).count() == 3
    assert table.refresh().scan().count() == 3


def test_a_table_that_is_made_anew_is_not_read(spark: SparkSession, target: Target, table: pds.Table) -> None:
    df = load(spark, target, version=2)
    pds.Table.drop(target.store, "lake/orders")
    pds.Table.create(target.store, "lake/orders", SCHEMA).append(rows(500, 5))
    with pytest.raises(PySparkException, match="created again"):
        df.count()


def test_sql_reads_a_view(spark: SparkSession, target: Target, table: pds.Table) -> None:
    load(spark, target).createOrReplaceTempView("orders")
    (row,) = spark.sql("SELECT count(*) AS n, max(id) AS last FROM orders WHERE id < 50").collect()
    assert (row.n, row.last) == (45, 49)


def test_modes_and_layouts_that_spark_refuses(spark: SparkSession, target: Target, table: pds.Table) -> None:
    url = f"{target.store.url}/lake/orders"
    for mode in ("ignore", "errorifexists"):
        with pytest.raises(PySparkException, match=f"(?i){mode}"):
            writer(spark.range(3), target, mode).save(url)
    with pytest.raises(PySparkException, match="partitioning"):
        writer(spark.range(3), target, "append").partitionBy("id").save(url)
    assert table.refresh().version == 7


def test_partitions_without_rows(spark: SparkSession, target: Target) -> None:
    url = f"{target.store.url}/made"
    some = spark.range(0, 8, 1, numPartitions=4).where("id = 5")
    none = spark.createDataFrame([], some.schema)
    for df in (none, some, none, some.limit(0)):
        writer(df, target, "append").save(url)
    assert [row.id for row in load(spark, target, "made").collect()] == [5]
    assert load(spark, target, "made").select().count() == 1
    writer(none, target, "overwrite").save(url)
    assert load(spark, target, "made").count() == 0


def test_tasks_that_fail_in_the_middle_write_their_rows_once(
    spark: SparkSession, target: Target, table: pds.Table
) -> None:
    def fail_twice(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if TaskContext.get().attemptNumber() < 2:
                raise RuntimeError("lost in the middle")

    df = spark.range(1000, 1060, 1, numPartitions=3).mapInArrow(fail_twice, "id bigint")
    writer(df, target, "overwrite").save(f"{target.store.url}/lake/orders")
    assert sorted(table.refresh().scan(["id"]).to_pyarrow()["id"].to_pylist()) == list(range(1000, 1060))
    assert table.version == 8
    # What a lost attempt has staged is in no version.
    table.vacuum(dt.timedelta(0))
    assert table.refresh().check().orphans == []


def test_what_was_read_is_written_back(spark: SparkSession, target: Target, table: pds.Table) -> None:
    """The unsigned numbers among it; by the data source, and by tasks."""
    before = listed(table.scan().to_pyarrow())
    writer(load(spark, target, where="id < 50"), target, "overwrite", replaceWhere="id < 50").save(
        f"{target.store.url}/lake/orders"
    )
    pds.spark.overwrite(load(spark, target, where="id >= 50"), table, where="id >= 50")
    pds.spark.upsert(load(spark, target, where="id BETWEEN 40 AND 60"), table)
    assert sorted(listed(table.scan().to_pyarrow())) == sorted(before)
    negative = load(spark, target).selectExpr("id", "big - 18446744073709551616 AS big").limit(1)
    with pytest.raises(PySparkException, match="big"):
        pds.spark.append(negative.selectExpr("id", "CAST(big AS decimal(20,0)) AS big"), table)
    schema = pa.schema([("k", pa.uint32()), ("v", pa.string()), ("n", pa.uint16())])
    keyed = pds.Table.create(target.store, "keyed", schema, key="k")
    keyed.append(pa.table({"k": [1, 2], "v": ["a", "b"], "n": [1, 2]}, schema))
    source = spark.sql("SELECT 2L AS k, 'new' AS v, 65535 AS n UNION ALL SELECT 4000000000L, 'more', -1")
    merge = pds.spark.merge(source, keyed).when_matched_update({"v": "source.v"})
    merge.when_not_matched_insert({"k": "source.k", "v": "CAST(source.n AS VARCHAR)"}).execute()
    found = {row["k"]: (row["v"], row["n"]) for row in keyed.scan().to_pyarrow().to_pylist()}
    assert found == {1: ("a", 1), 2: ("new", 2), 4_000_000_000: ("-1", None)}
    pds.spark.merge(source.where("n > 0"), keyed).when_matched_update_all().when_not_matched_insert_all().execute()
    found = {row["k"]: (row["v"], row["n"]) for row in keyed.scan().to_pyarrow().to_pylist()}
    assert found == {1: ("a", 1), 2: ("new", 65535), 4_000_000_000: ("-1", None)}


def test_a_view_that_sql_makes(spark: SparkSession, target: Target, table: pds.Table) -> None:
    options = {"path": f"{target.store.url}/lake/orders", "columns": "id,name"}
    options |= {f"storage.{name}": value for name, value in target.options.items()}
    listing = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW made_by_sql USING pds OPTIONS ({listing})")
    assert spark.table("made_by_sql").columns == ["id", "name"]
    assert spark.sql("SELECT count(*) FROM made_by_sql WHERE id < 50").first()[0] == 45

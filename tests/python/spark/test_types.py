"""Every Spark type through `pds.spark`: kept, read alike by others, or refused by column name."""

from __future__ import annotations

import datetime as dt
import decimal
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.ml.linalg import Vectors
from pyspark.sql import types as t
from remote_store.ext.parquet import ParquetDatasetStore as RemoteDatasets

import pds
import pds.spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

# SQL expressions, several rows each; every column gets a null besides.
CASES = {
    "boolean": ["true", "false"],
    "tinyint": ["127Y", "-128Y"],
    "smallint": ["32767S", "-32768S"],
    "int": ["2147483647", "-2147483648"],
    "bigint": ["9223372036854775807L", "-9223372036854775808L"],
    "float": ["1.5F", "float('-inf')", "float('nan')", "-0.0F"],
    "double": ["1.5D", "double('inf')", "double('nan')", "-0.0D"],
    "decimal_9": ["CAST(1234567.89 AS decimal(9,2))", "CAST(-0.01 AS decimal(9,2))"],
    "decimal_18": ["CAST(123456789012.345678 AS decimal(18,6))"],
    "decimal_38": [f"CAST('{'9' * 38}' AS decimal(38,0))", "CAST(-1 AS decimal(38,0))"],
    "decimal_small": ["CAST(0.00000000000000000000000000000000000001 AS decimal(38,38))"],
    "string": ["''", "'ü\\u0000x'", "repeat('long ', 1000)"],
    "binary": ["X''", "X'00FF'"],
    "date": ["DATE'0001-01-01'", "DATE'9999-12-31'", "DATE'1582-10-10'"],
    "timestamp": [
        "TIMESTAMP'2026-03-08 02:30:00.123456 UTC'",
        "TIMESTAMP'1582-10-10 00:00:00 UTC'",
        "TIMESTAMP'9999-12-31 00:00:00 UTC'",
    ],
    "timestamp_ntz": ["TIMESTAMP_NTZ'2026-03-29 02:30:00.123456'", "TIMESTAMP_NTZ'0001-01-01'"],
    "interval": ["INTERVAL '-1 02:03:04.000005' DAY TO SECOND", "INTERVAL '0' DAY"],
    "interval_hour": ["INTERVAL '5' HOUR"],
    "time": ["TIME'23:59:59.999999'", "TIME'00:00:00'"],
    "time_0": ["CAST('01:02:03' AS time(0))"],
    "void": [],
    "collated": ["'A' COLLATE UTF8_LCASE", "'a' COLLATE UTF8_LCASE"],
    "varchar": ["CAST('a' AS varchar(10))"],
    "array": ["array(1, NULL)", "array()"],
    "array_of_required": ["array(1L, 2L)"],
    "struct": ["named_struct('x', 1, 'y', 'a')", "named_struct('x', NULL, 'y', 'b')"],
    "map": ["map('a', 1, 'b', NULL)", "map()"],
    "deep": [
        (
            "map('k', array(named_struct('at', TIMESTAMP'2026-01-01 00:00:00 UTC', "
            "'by', map(1, CAST(1.5 AS decimal(10,2))))))"
        ),
    ],
}


def _frame_sql(values: list[str]) -> str:
    rows = [f"SELECT {number} AS n, {value} AS c" for number, value in enumerate(values)]
    return " UNION ALL ".join([*rows, "SELECT 99 AS n, NULL AS c"]) + " ORDER BY n"


def _same(rows: list[Any], others: list[Any]) -> bool:
    # By text: a NaN is not equal to itself.
    return [repr(row) for row in rows] == [repr(row) for row in others]


@pytest.mark.parametrize("case", CASES)
def test_a_type_comes_back_as_it_was(case: str, spark: SparkSession, local_target: Target, tmp_path: Path) -> None:
    df = spark.sql(_frame_sql(CASES[case])).coalesce(1)
    expected = df.collect()

    pds.spark.write_dataset(df, local_target.store, "typed")

    again = pds.spark.read_dataset(spark, local_target.store, "typed")
    assert again.schema == df.schema
    assert _same(again.collect(), expected)
    theirs = spark.read.parquet(f"{tmp_path}/target/typed/*.parquet")
    assert next(field.dataType for field in theirs.schema) == t.IntegerType()
    assert theirs.schema["c"].dataType.simpleString() == df.schema["c"].dataType.simpleString()
    assert _same(theirs.collect(), expected)
    assert _same(
        local_target.by_arrow("typed").to_pylist(),
        RemoteDatasets(local_target.remote).read_dataset("typed").to_pylist(),
    )


def test_pyarrow_sees_the_types_its_users_expect(spark: SparkSession, target: Target) -> None:
    names = [name for name in CASES if CASES[name]]
    df = spark.sql("SELECT " + ", ".join(f"{CASES[name][0]} AS {name}" for name in names))
    pds.spark.write_dataset(df, target.store, "typed")

    schema = target.by_arrow("typed").schema

    assert schema.equals(target.datasets.read_dataset("typed").schema)
    expected = {
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "decimal_9": pa.decimal128(9, 2),
        "decimal_38": pa.decimal128(38, 0),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "interval": pa.duration("us"),
        "time": pa.time64("us"),
        "collated": pa.string(),
        "varchar": pa.string(),
    }
    assert {name: schema.field(name).type for name in expected} == expected


def test_timestamps_are_instants_whatever_the_zone(spark: SparkSession, target: Target) -> None:
    sql = "SELECT TIMESTAMP'2026-07-01 12:00:00.000001 UTC' AS at"
    zone = spark.conf.get("spark.sql.session.timeZone")
    hashes = set()
    try:
        for key, name in (("a", "America/St_Johns"), ("b", "Asia/Kathmandu"), ("c", "UTC")):
            spark.conf.set("spark.sql.session.timeZone", name)
            manifest = pds.spark.write_dataset(spark.sql(sql), target.store, key)
            hashes.add(manifest.schema_hash)
            again = pds.spark.read_dataset(spark, target.store, key)
            assert again.collect() == spark.sql(sql).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    assert len(hashes) == 1
    expected = dt.datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
    for key in "abc":
        assert target.by_arrow(key)["at"].to_pylist() == [expected]


def test_variants_and_vectors_come_back(spark: SparkSession, local_target: Target) -> None:
    vectors = spark.createDataFrame(
        [(1, Vectors.dense([1.0, 2.0])), (2, None), (3, Vectors.sparse(3, {1: 5.0}))],
        ["n", "v"],
    )
    variants = spark.sql("SELECT parse_json('{\"a\": [1, null]}') AS v UNION ALL SELECT NULL")
    for key, df in (("vectors", vectors), ("variants", variants)):
        pds.spark.write_dataset(df, local_target.store, key)
        again = pds.spark.read_dataset(spark, local_target.store, key)
        assert again.schema == df.schema
        assert _same(again.collect(), df.collect())


def test_comments_of_columns_come_back(spark: SparkSession, local_target: Target) -> None:
    schema = t.StructType([t.StructField("id", t.LongType(), metadata={"comment": "a number"})])
    df = spark.createDataFrame([(1,)], schema)

    pds.spark.write_dataset(df, local_target.store, "commented")

    assert pds.spark.read_dataset(spark, local_target.store, "commented").schema == schema


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SELECT 1 AS ok, INTERVAL '1-2' YEAR TO MONTH AS bad", "bad"),
        ("SELECT 1 AS ok, array(INTERVAL '1' MONTH) AS bad", "bad"),
        ("SELECT make_interval(1, 2, 3) AS `bad one`", "bad one"),
        ("SELECT named_struct('a', 1, 'a', 2) AS bad", "bad"),
        ("SELECT named_struct('a', named_struct()) AS bad", "bad"),
        ("SELECT st_geomfromwkb(X'0101000000000000000000F03F0000000000000040') AS bad", "bad"),
    ],
)
def test_a_type_that_cannot_be_written_is_refused_by_name(
    sql: str, name: str, spark: SparkSession, local_target: Target
) -> None:
    with pytest.raises(pds.errors.InvalidType, match=f"column '{name}' is or holds"):
        pds.spark.write_dataset(spark.sql(sql), local_target.store, "typed")
    assert local_target.files() == []


def test_all_columns_that_cannot_be_written_are_named(spark: SparkSession, local_target: Target) -> None:
    df = spark.sql("SELECT INTERVAL '1' MONTH AS m, 1 AS ok, make_interval(1) AS i")
    with pytest.raises(pds.errors.InvalidType, match=r"'m' is .*; column 'i' is "):
        pds.spark.write_dataset(df, local_target.store, "typed")


RUNS = pa.array([7, 7, None, 8], pa.run_end_encoded(pa.int16(), pa.int32()))
VIEWS = pa.array([[1, None], None, [], [2]], pa.list_view(pa.uint8()))

# What others write, and what Spark has for it.
FOREIGN: dict[str, tuple[pa.Array, t.DataType, list[Any]]] = {
    "uint8": (pa.array([255, None], pa.uint8()), t.ShortType(), [255, None]),
    "uint16": (pa.array([65535], pa.uint16()), t.IntegerType(), [65535]),
    "uint32": (pa.array([2**32 - 1], pa.uint32()), t.LongType(), [2**32 - 1]),
    "uint64": (pa.array([2**64 - 1], pa.uint64()), t.DecimalType(20, 0), [Decimal(2**64 - 1)]),
    "half": (pa.array([1.5], pa.float16()), t.FloatType(), [1.5]),
    "large_string": (pa.array(["a", None], pa.large_string()), t.StringType(), ["a", None]),
    "string_view": (pa.array(["a"], pa.string_view()), t.StringType(), ["a"]),
    "large_binary": (pa.array([b"a"], pa.large_binary()), t.BinaryType(), [b"a"]),
    "fixed": (pa.array([b"abc"], pa.binary(3)), t.BinaryType(), [b"abc"]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), t.StringType(), ["a", "b", "a"]),
    "decimal256": (
        pa.array([Decimal("1.50")], pa.decimal256(20, 2)),
        t.DecimalType(20, 2),
        [Decimal("1.50")],
    ),
    "seconds": (
        pa.array([0], pa.timestamp("s")),
        t.TimestampNTZType(),
        [dt.datetime(1970, 1, 1)],  # noqa: DTZ001 that is what NTZ means
    ),
    "nanos": (
        pa.array([1_000], pa.timestamp("ns")),
        t.TimestampNTZType(),
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1)],  # noqa: DTZ001 as above
    ),
    "millis": (
        pa.array([1_500], pa.duration("ms")),
        t.DayTimeIntervalType(),
        [dt.timedelta(0, 1.5)],
    ),
    "time32": (pa.array([1_000], pa.time32("ms")), t.TimeType(6), [dt.time(0, 0, 1)]),
    "large_list": (
        pa.array([[1, None], None], pa.large_list(pa.int8())),
        t.ArrayType(t.ByteType()),
        [[1, None], None],
    ),
    "fixed_list": (
        pa.array([[1, 2]], pa.list_(pa.uint8(), 2)),
        t.ArrayType(t.ShortType()),
        [[1, 2]],
    ),
    "halves": (pa.array([[1.5, None]], pa.list_(pa.float16())), t.ArrayType(t.FloatType()), [[1.5, None]]),
    "runs": (RUNS, t.IntegerType(), [7, 7, None, 8]),
    "runs_of_texts": (
        pa.array(["a", "a", None, "é"], pa.run_end_encoded(pa.int32(), pa.string())),
        t.StringType(),
        ["a", "a", None, "é"],
    ),
    "runs_in_structs": (
        pa.StructArray.from_arrays([RUNS], ["x"]),
        t.StructType([t.StructField("x", t.IntegerType())]),
        [(7,), (7,), (None,), (8,)],
    ),
    "list_view": (VIEWS, t.ArrayType(t.ShortType()), [[1, None], None, [], [2]]),
    # Values in another order than the rows, and one that no row has.
    "moved_views": (
        pa.ListViewArray.from_arrays(pa.array([2, 0], pa.int32()), pa.array([2, 1], pa.int32()), [9, 8, 7, 6]),
        t.ArrayType(t.LongType()),
        [[7, 6], [9]],
    ),
    "large_list_view": (
        pa.array([["a"], None], pa.large_list_view(pa.string())),
        t.ArrayType(t.StringType()),
        [["a"], None],
    ),
    "views_in_lists": (
        pa.array([[[1], None], []], pa.list_(pa.list_view(pa.int32()))),
        t.ArrayType(t.ArrayType(t.IntegerType())),
        [[[1], None], []],
    ),
    "views_in_maps": (
        pa.array([[("k", [1])], None], pa.map_(pa.string(), pa.list_view(pa.int32()))),
        t.MapType(t.StringType(), t.ArrayType(t.IntegerType())),
        [{"k": [1]}, None],
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_types_of_others_are_widened(case: str, spark: SparkSession, local_target: Target) -> None:
    values, kind, expected = FOREIGN[case]
    local_target.datasets.write_dataset(pa.table({"c": values}), "foreign")

    df = pds.spark.read_dataset(spark, local_target.store, "foreign")

    assert df.schema == t.StructType([t.StructField("c", kind)])
    assert [row.c for row in df.collect()] == expected


@pytest.mark.parametrize(
    "values",
    [
        pa.array([decimal.Decimal(1)], pa.decimal256(76, 0)),
        pa.array([[decimal.Decimal(1)]], pa.list_view(pa.decimal256(76, 0))),
    ],
    ids=lambda values: str(values.type),
)
def test_a_type_that_spark_lacks_is_refused_by_name(
    values: pa.Array, spark: SparkSession, local_target: Target
) -> None:
    table = pa.table({"ok": [1], "bad": values})
    local_target.datasets.write_dataset(table, "foreign")

    with pytest.raises(pds.errors.InvalidType, match="column 'bad' is or holds"):
        pds.spark.read_dataset(spark, local_target.store, "foreign")
    assert pds.spark.read_dataset(spark, local_target.store, "foreign", columns=["ok"]).collect() == [(1,)]


def test_columns_that_spark_has_otherwise_are_read_and_written_back(
    spark: SparkSession, local_target: Target, tmp_path: Path
) -> None:
    """By tasks, by the data source, as a stream and as changes; where a digit could be lost they are not written."""
    names = ["half", "runs", "runs_of_texts", "list_view", "views_in_maps", "moved_views"]
    rows = pa.table({name: pa.concat_arrays([FOREIGN[name][0].slice(0, 1)] * 3) for name in names})
    place = f"{local_target.store.url}/folded"
    table = pds.Table.create(local_target.store, "folded", rows.schema)
    table.append(rows)
    df = pds.spark.read_table(spark, table)
    assert [field.dataType for field in df.schema] == [FOREIGN[name][1] for name in names]
    expected = [tuple(FOREIGN[name][2][0] for name in names)] * 3
    assert [tuple(row) for row in df.collect()] == expected
    assert [tuple(row) for row in spark.read.format("pds").load(place).collect()] == expected
    assert [tuple(row)[:-3] for row in pds.spark.scan_changes(spark, table, 0).collect()] == expected

    same = df.drop("half")
    pds.spark.append(same, table)
    same.write.format("pds").mode("append").save(place)
    stored = table.refresh().scan(names[1:]).to_pyarrow()
    assert stored.schema == rows.drop_columns("half").schema
    assert stored.to_pylist() == rows.drop_columns("half").to_pylist() * 3
    with pytest.raises(pds.InvalidInput, match=r"column ['\"]half"):
        pds.spark.append(df, table)
    with pytest.raises(PySparkException, match="half"):
        df.write.format("pds").mode("append").save(place)

    stream = spark.readStream.format("pds").option("startingVersion", 1).load(place)
    query = stream.writeStream.format("memory").queryName("folded").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert [tuple(row)[1:] for row in spark.table("folded").collect()] == [row[1:] for row in expected] * 3


def test_a_value_that_would_be_cut_off_fails_the_task(spark: SparkSession, local_target: Target) -> None:
    table = pa.table({"at": pa.array([1_001], pa.timestamp("ns"))})
    local_target.datasets.write_dataset(table, "foreign")
    df = pds.spark.read_dataset(spark, local_target.store, "foreign")

    with pytest.raises(Exception, match=r"column 'at'.*would lose data"):
        df.collect()

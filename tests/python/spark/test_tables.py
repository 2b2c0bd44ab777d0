"""`pds.spark.read_table`: the rows of a scan, whatever was done to the table, in tasks."""

from __future__ import annotations

import datetime as dt
import io
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

import pds
import pds.spark
from pds.spark import change_feed, tasks
from pds.spark import table as spark_table
from pds.spark.write import check_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
NOW = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


def rows(first: int, count: int) -> pa.Table:
    """Rows that depend on their ids alone."""
    ids = range(first, first + count)
    columns = {
        "id": ids,
        "name": [None if number % 7 == 0 else f"name {number} {'x' * 48}" for number in ids],
        "tags": [["a", None][: number % 3] for number in ids],
        "at": [NOW + dt.timedelta(hours=number) for number in ids],
    }
    return pa.table(columns, SCHEMA)


@pytest.fixture
def table(target: Target, monkeypatch: pytest.MonkeyPatch) -> pds.Table:
    """A table of many small files, of which a task has few."""
    monkeypatch.setattr(spark_table, "TASK_SIZES", {"count": 6, "min_bytes": 1, "max_bytes": 1 << 30})
    table = pds.Table.create(target.store, "lake/orders", SCHEMA, key="id")
    for number in range(60):
        table.append(rows(20 * number, 20))
    return table


def collect(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in df.collect()]


def listed(found: pa.Table) -> list[dict[str, Any]]:
    """As Spark gives them: times are those of the machine's zone."""
    return [
        {
            name: value.astimezone().replace(tzinfo=None) if isinstance(value, dt.datetime) else value
            for name, value in row.items()
        }
        for row in found.to_pylist()
    ]


def partitions(df: DataFrame) -> int:
    return df.rdd.getNumPartitions()


def test_the_rows_of_a_scan(spark: SparkSession, table: pds.Table) -> None:
    segments = table._parse_manifest()["segments"]
    assert segments, "files of both kinds of lists"
    table.delete("id BETWEEN 100 AND 130")
    table.delete("id % 7 = 3")
    table.delete("id >= 790")
    df = pds.spark.read_table(spark, table)
    assert 6 <= partitions(df) <= 7
    assert collect(df) == listed(table.scan().to_pyarrow())
    old = pds.spark.read_table(spark, table, version=10)
    assert collect(old) == listed(table.as_of(10).scan().to_pyarrow())


@pytest.mark.parametrize("groups", [1, 7, 40])
def test_a_large_file_is_read_by_several_tasks(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    options = pds.WriteOptions(row_group_size=20)
    table = pds.Table.create(target.store, "lake/large", SCHEMA, key="id", options=options)
    table.append(rows(0, 20 * groups))
    table.delete("id % 7 = 3 OR id BETWEEN 25 AND 44")
    monkeypatch.setattr(spark_table, "TASK_SIZES", {"count": 1, "min_bytes": 1, "max_bytes": 1 << 30})
    assert partitions(pds.spark.read_table(spark, table)) == 1
    monkeypatch.setattr(spark_table, "TASK_SIZES", {"count": 6, "min_bytes": 1, "max_bytes": 1 << 30})
    table.store.reset_metrics()
    df = pds.spark.read_table(spark, table)
    assert partitions(df) == min(groups, 6)
    # Tasks have other processes: these would be the driver's.
    assert table.store.metrics()["requests"] == 0
    assert collect(df) == listed(table.scan().to_pyarrow())
    assert df.count() == table.scan().count()
    selected = pds.spark.read_table(spark, table, columns=["name"], where="id % 20 = 5")
    assert collect(selected) == listed(table.scan(["name"], where="id % 20 = 5").to_pyarrow())


def test_of_a_long_list_a_task_loads_its_own_entry(
    spark: SparkSession, table: pds.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = listed(table.scan().to_pyarrow())
    parts = table.scan_tasks(**spark_table.TASK_SIZES)
    monkeypatch.setattr(tasks, "_MAX_LIST_BYTES", sum(part.size_bytes for part in parts) // 2)
    df = pds.spark.read_table(spark, table)
    assert partitions(df) == len(parts) >= 6
    assert collect(df) == expected
    assert df.count() == 1200
    sent_rows, sent = tasks.send_tasks(spark, parts)
    assert sent.tasks is None
    numbered = sent_rows.select("number", f.spark_partition_id()).collect()
    assert [tuple(row) for row in numbered] == [(number, number) for number in range(len(parts))]
    # A filter that all have would be sent with each.
    where = f"id IN ({', '.join(str(number) for number in range(20_000))})"
    filtered = table.scan_tasks(where=where, **spark_table.TASK_SIZES)
    assert tasks.send_tasks(spark, filtered)[1].tasks is not None
    assert collect(pds.spark.read_table(spark, table, where=where)) == expected


@pytest.mark.parametrize(
    "where",
    ["id < 45 OR name LIKE 'name 333 %'", pc.field("id") >= 780, "at < TIMESTAMP '2026-11-02 00:00:00Z'", "id < 0"],
    ids=str,
)
def test_columns_and_filters(spark: SparkSession, table: pds.Table, where: str | pc.Expression) -> None:
    table.delete("id % 5 = 1")
    df = pds.spark.read_table(spark, table, columns=["name", "id"], where=where)
    assert df.columns == ["name", "id"]
    assert collect(df) == listed(table.scan(["name", "id"], where=where).to_pyarrow())


def test_a_changed_schema_and_added_files(spark: SparkSession, target: Target, table: pds.Table) -> None:
    table.alter.rename_column("name", "title")
    table.alter.add_column("region", pa.string())
    table.alter.drop_column("tags")
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [5000, 5001], "title": ["x", None]}), sink)
    target.store.write("in/region=eu/a.parquet", sink.getvalue())
    table.add_files(["in/region=eu/a.parquet"], hive_partitioning=True)
    table.upsert(pa.table({"id": [3, 6000], "title": ["three", "new"], "region": ["us", "us"]}))
    df = pds.spark.read_table(spark, table)
    assert df.columns == ["id", "title", "at", "region"]
    by_id = sorted(collect(df), key=lambda row: row["id"])
    assert by_id == sorted(listed(table.scan().to_pyarrow()), key=lambda row: row["id"])


def test_later_commits_change_nothing(spark: SparkSession, table: pds.Table) -> None:
    df = pds.spark.read_table(spark, table, columns=["id"])
    before = collect(df)
    table.delete("true")
    table.optimize.compact()
    assert collect(df) == before
    assert collect(pds.spark.read_table(spark, table)) == []
    table.vacuum(dt.timedelta(0))
    table.vacuum(dt.timedelta(0))
    with pytest.raises(PySparkException, match="VersionExpired"):
        df.collect()


def test_types_of_spark_follow_their_columns(spark: SparkSession, target: Target) -> None:
    """Not the names: a column that is added is none that had its name."""
    df = spark.sql(
        "SELECT IF(rand() >= 0, 1L, NULL) AS id, 'A' COLLATE UTF8_LCASE AS name, "
        "IF(rand() >= 0, parse_json('[7]'), NULL) AS v"
    )
    table = pds.Table.create(target.store, "spark_types", check_frame(df))
    pds.spark.append(df, table)
    table.refresh().alter.rename_column("v", "w")
    read = pds.spark.read_table(spark, table)
    assert [row[0] for row in read.selectExpr("CAST(w:[0] AS int)").collect()] == [7]
    assert read.where("name = 'a'").count() == 1
    table.alter.drop_column("name")
    table.alter.add_column("name", pa.string())
    table.alter.rename_column("id", "number")
    table.append(pa.table({"number": [2], "name": ["x"]}))
    read = pds.spark.read_table(spark, table)
    assert read.columns == ["number", "w", "name"]
    assert read.where("name = 'X'").count() == table.scan(where="name = 'X'").count() == 0
    assert read.where("name = 'x' AND w IS NULL").count() == 1
    pds.spark.append(read.where("number = 1"), table)
    assert [row[0] for row in pds.spark.read_table(spark, table).selectExpr("CAST(w:[0] AS int)").collect()] == [
        7,
        None,
        7,
    ]


def test_an_empty_table(spark: SparkSession, target: Target) -> None:
    empty = pds.Table.create(target.store, "empty", SCHEMA)
    df = pds.spark.read_table(spark, empty)
    assert df.columns == SCHEMA.names
    assert df.collect() == []


def test_bad_arguments(spark: SparkSession, table: pds.Table) -> None:
    with pytest.raises(pds.InvalidInput, match="nothing"):
        pds.spark.read_table(spark, table, columns=["nothing"])
    with pytest.raises(pds.InvalidInput, match="nothing"):
        pds.spark.read_table(spark, table, where="nothing = 1")
    for where in ("at > now()", "random() < 0.5"):
        with pytest.raises(pds.InvalidInput, match="is not deterministic"):
            pds.spark.read_table(spark, table, where=where)
    with pytest.raises(pds.InvalidInput, match="cannot be pickled"):
        pds.spark.read_table(spark, table, where=pc.field(0) < 3)
    with pytest.raises(pds.InvalidInput, match="no version 999"):
        pds.spark.read_table(spark, table, version=999)
    with pytest.raises(pds.InvalidType, match="table must be"):
        pds.spark.read_table(spark, "lake/orders")  # type: ignore[arg-type]
    hidden = pds.Table.create(pds.Store("memory://"), "t", SCHEMA)
    with pytest.raises(pds.InvalidInput, match="executors cannot reach"):
        pds.spark.read_table(spark, hidden)


def test_changes_are_those_of_the_table(
    spark: SparkSession, target: Target, table: pds.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = table.version
    table.delete("id % 9 = 4")
    table.upsert(rows(1190, 30))
    table.optimize.compact(1 << 20)
    table.alter.drop_column("tags")
    table.alter.add_column("more", pa.int64())
    table.append(rows(5000, 3).drop_columns("tags").append_column("more", pa.array([1, None, 2])))
    table.delete("id BETWEEN 100 AND 105")
    end = table.version
    table.append(rows(9000, 1).drop_columns("tags").append_column("more", pa.array([3])))
    for most, since, until, columns in (
        (2, begin, None, None),
        (128, begin, None, ["more", "id"]),
        (128, begin - 7, begin + 1, ["tags"]),
        (4, 1, end, None),
        (2, end, end, None),
    ):
        monkeypatch.setattr(change_feed, "_MOST_CHANGE_TASKS", most)
        expected = listed(table.scan_changes(since, until, columns=columns).to_pyarrow())
        df = pds.spark.scan_changes(spark, table, since, until, columns=columns)
        assert collect(df) == expected
        assert partitions(df) <= most
    # What a compaction wrote without a column came back with another version.
    table.alter.drop_column("name")
    table.optimize.compact(1 << 20)
    table.restore(end)
    for until in range(end, table.version + 1):
        df = pds.spark.scan_changes(spark, table, end, until)
        assert collect(df) == listed(table.scan_changes(end, until).to_pyarrow()), until
    df = pds.spark.scan_changes(spark, table, end, columns=["id"])
    assert collect(df) == listed(table.scan_changes(end, columns=["id"]).to_pyarrow())
    with pytest.raises(pds.InvalidInput, match="first version must not be the newer one"):
        pds.spark.scan_changes(spark, table, end, begin)
    with pytest.raises(pds.InvalidInput, match="nothing"):
        pds.spark.scan_changes(spark, table, begin, columns=["nothing"])
    df = pds.spark.scan_changes(spark, table, begin, columns=["id"])
    pds.Table.drop(target.store, "lake/orders")
    again = pds.Table.create(target.store, "lake/orders", SCHEMA, key="id")
    for number in range(table.version):
        again.append(rows(number, 1))
    with pytest.raises(PySparkException, match="dropped and created again"):
        df.collect()


def test_damage_is_noticed_by_every_way_to_read(spark: SparkSession, local_target: Target, tmp_path: Path) -> None:
    """A file has the bytes of another of its length, or one bit of it is another."""
    store = local_target.store
    table = pds.Table.create(store, "lake/orders", SCHEMA, options=pds.WriteOptions(compression="none"))
    for number in range(1, 4):
        table.append(rows(21 * number, 21))
    files = sorted(table.files().to_pylist(), key=lambda file: file["size_bytes"])
    # The moment in a seal is shorter, now and then.
    if files[1]["size_bytes"] != files[2]["size_bytes"]:
        files.reverse()
    paths = [f"lake/orders/{file['path']}" for file in files]
    kept = store.read_bytes(paths[1])
    flipped = bytearray(kept)
    flipped[len(kept) // 3] ^= 4
    swapped = store.read_bytes(paths[2])
    assert len(swapped) == len(kept)
    url = f"{store.url}/lake/orders"

    def stream(**options: str) -> None:
        rows = spark.readStream.format("pds").options(**options).load(url)
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(options)))
        query.trigger(availableNow=True).start().awaitTermination()

    reads: list[tuple[bytes, Callable[[], object]]] = [
        (swapped, pds.spark.read_table(spark, table).collect),
        (flipped, pds.spark.read_table(spark, table, where="name LIKE '%3%'").collect),
        (swapped, spark.read.format("pds").load(url).collect),
        (flipped, spark.read.format("pds").load(url).collect),
        (swapped, pds.spark.scan_changes(spark, table, 1).collect),
        (flipped, pds.spark.scan_changes(spark, table, 1).collect),
        (swapped, stream),
        (flipped, partial(stream, startingVersion="2")),
    ]
    for damaged, read in reads:
        store.write(paths[1], damaged, overwrite=True)
        with pytest.raises(PySparkException, match="PartCorrupted"):
            read()
        store.write(paths[1], kept, overwrite=True)
    assert pds.spark.read_table(spark, table).count() == 63


def test_texts_of_columns_of_char_are_compared_as_they_are(spark: SparkSession, one_target: Target) -> None:
    """Spark keeps char(n) in the metadata of a column, and pads what is compared with it."""
    place = f"{one_target.store.url}/chars"
    storage = {f"storage.{name}": value for name, value in one_target.options.items()}
    kept = {"comment": "what it is"}
    orders = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)", "spark.watermarkDelayMs": 10}
    schema = StructType([StructField("c", StringType(), metadata=kept | orders)])
    rows = spark.createDataFrame([("ab   ",)], schema)
    rows.write.format("pds").options(**storage).mode("append").save(place)
    table = pds.Table(one_target.store, "chars")
    table.append(pa.table({"c": ["ab"]}))
    for read in (pds.spark.read_table(spark, table), spark.read.format("pds").options(**storage).load(place)):
        assert read.schema["c"].metadata == kept
        assert read.where("c = 'ab'").count() == 1
        assert read.where("c = 'ab   '").count() == 1

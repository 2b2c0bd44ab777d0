"""`pds.spark.write_dataset`: what lies in the store afterwards, and in which order."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import functions as f
from remote_store.ext.parquet import ParquetDatasetStore as RemoteDatasets

import pds
import pds.spark
from pds.spark.schema import dataset_schema
from pds.spark.write import message_plan

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """A thousand rows in four partitions."""
    numbers = spark.range(0, 1000, 1, numPartitions=4)
    return numbers.select("id", (f.col("id") % 7).cast("int").alias("group"), f.hex("id").alias("name"))


def _files_of(key: str, *parts: str) -> list[str]:
    return sorted(f"{key}/{name}" for name in ["_SUCCESS", "manifest.json", *parts])


def _numbered(count: int) -> list[str]:
    return [f"part-{number:05d}.parquet" for number in range(count)]


def test_one_part_for_each_partition_in_their_order(rows: DataFrame, target: Target) -> None:
    manifest = pds.spark.write_dataset(rows, target.store, "silver/orders")

    assert target.files() == _files_of("silver/orders", *_numbered(4))
    assert manifest == target.datasets.read_manifest("silver/orders")
    assert manifest.parts == _numbered(4)
    assert manifest.row_count == 1000
    table = target.datasets.read_dataset("silver/orders")
    assert table.to_pylist() == [row.asDict() for row in rows.collect()]


def test_other_readers_see_the_same(rows: DataFrame, target: Target, spark: SparkSession) -> None:
    pds.spark.write_dataset(rows, target.store, "orders")
    expected = [row.asDict() for row in rows.collect()]

    assert target.by_arrow("orders").to_pylist() == expected
    assert RemoteDatasets(target.remote).read_dataset("orders").to_pylist() == expected
    again = pds.spark.read_dataset(spark, target.store, "orders")
    assert again.schema == rows.schema
    assert again.collect() == rows.collect()


def test_spark_reads_the_files_itself(
    rows: DataFrame, local_target: Target, tmp_path: Path, spark: SparkSession
) -> None:
    pds.spark.write_dataset(rows, local_target.store, "orders")

    files = spark.read.parquet(f"{tmp_path}/target/orders/*.parquet")

    assert sorted(files.collect()) == sorted(rows.collect())


def test_run_id_and_metadata_are_in_the_manifest(rows: DataFrame, target: Target) -> None:
    manifest = pds.spark.write_dataset(
        rows, target.store, "orders", run_id="run-7", metadata={"source": "tests", "ü": ""}
    )

    assert (manifest.run_id, manifest.metadata) == ("run-7", {"source": "tests", "ü": ""})
    assert target.datasets.read_manifest("orders") == manifest


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_empty_frame_is_one_part_with_the_schema(
    rows: DataFrame, target: Target, spark: SparkSession, overwrite: bool
) -> None:
    if overwrite:
        pds.spark.write_dataset(rows, target.store, "orders")

    empty = rows.where("id < 0")
    manifest = pds.spark.write_dataset(empty, target.store, "orders", overwrite=overwrite)

    assert manifest.row_count == 0
    assert manifest.parts == _numbered(1)
    assert target.files() == _files_of("orders", *_numbered(1))
    assert pds.spark.read_dataset(spark, target.store, "orders").schema == rows.schema
    assert target.by_arrow("orders").schema.names == ["id", "group", "name"]


def test_a_frame_without_partitions(spark: SparkSession, local_target: Target) -> None:
    nothing = spark.createDataFrame([], "id bigint, name string").where("false")
    assert nothing.mapInArrow(lambda batches: batches, nothing.schema).collect() == []

    manifest = pds.spark.write_dataset(nothing, local_target.store, "orders")

    assert (manifest.row_count, manifest.parts) == (0, _numbered(1))


def test_empty_partitions_leave_no_gap(rows: DataFrame, target: Target) -> None:
    some = rows.where("id between 300 and 400 or id > 900")

    manifest = pds.spark.write_dataset(some, target.store, "orders")

    assert manifest.parts == _numbered(2)
    assert target.files() == _files_of("orders", *_numbered(2))
    assert target.datasets.read_dataset("orders")["id"].to_pylist() == [
        *range(300, 401),
        *range(901, 1000),
    ]


def test_max_rows_per_file_splits_within_each_partition(rows: DataFrame, target: Target) -> None:
    manifest = pds.spark.write_dataset(rows, target.store, "orders", max_rows_per_file=100)

    assert manifest.parts == _numbered(12)
    assert target.files() == _files_of("orders", *_numbered(12))
    counts = []
    for part in manifest.parts:
        with target.arrow.open_input_file(f"orders/{part}") as file:
            counts.append(pq.ParquetFile(file).metadata.num_rows)
    assert counts == [100, 100, 50] * 4
    assert target.datasets.read_dataset("orders")["id"].to_pylist() == list(range(1000))


def test_codec_and_row_groups_are_those_asked_for(rows: DataFrame, local_target: Target) -> None:
    manifest = pds.spark.write_dataset(rows, local_target.store, "orders", compression="snappy", row_group_size=50)

    assert manifest.compression == "snappy"
    with local_target.arrow.open_input_file(f"orders/{manifest.parts[0]}") as file:
        footer = pq.ParquetFile(file).metadata
    assert footer.num_row_groups == 5
    assert footer.row_group(0).column(0).compression == "SNAPPY"


def test_overwrite_replaces_the_whole_dataset(rows: DataFrame, target: Target) -> None:
    pds.spark.write_dataset(rows, target.store, "orders", max_rows_per_file=100)

    few = rows.where("id < 10").coalesce(1).select("name")
    pds.spark.write_dataset(few, target.store, "orders", overwrite=True)

    assert target.files() == _files_of("orders", *_numbered(1))
    assert target.datasets.read_dataset("orders").num_rows == 10


def test_an_overwrite_may_read_what_it_replaces(rows: DataFrame, target: Target, spark: SparkSession) -> None:
    pds.spark.write_dataset(rows, target.store, "orders")
    before = pds.spark.read_dataset(spark, target.store, "orders")

    pds.spark.write_dataset(before.where("id % 2 = 0"), target.store, "orders", overwrite=True)

    assert target.datasets.read_dataset("orders")["id"].to_pylist() == list(range(0, 1000, 2))


def test_a_plan_with_a_shuffle_runs_once(rows: DataFrame, local_target: Target, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def mark(batches: Any) -> Any:
        context = TaskContext.get()
        (marks / f"{context.stageId()}-{context.partitionId()}-{context.taskAttemptId()}").touch()
        yield from batches

    counted = rows.mapInArrow(mark, rows.schema).repartition(3, "group").sortWithinPartitions("id")
    manifest = pds.spark.write_dataset(counted, local_target.store, "orders")

    assert manifest.row_count == 1000
    assert len(list(marks.iterdir())) == 4


def test_names_that_spark_takes_apart(spark: SparkSession, target: Target) -> None:
    odd = spark.sql("SELECT 1 AS `a.b`, 2 AS `c``d`, 3 AS `e f`, 4 AS `ü`, 5 AS `a`")

    pds.spark.write_dataset(odd, target.store, "odd")

    table = target.by_arrow("odd")
    assert table.to_pylist() == [{"a.b": 1, "c`d": 2, "e f": 3, "ü": 4, "a": 5}]
    assert pds.spark.read_dataset(spark, target.store, "odd").collect() == odd.collect()


def test_messages_are_small_and_hold_no_data(rows: DataFrame, target: Target) -> None:
    write = target.datasets.begin_write("orders")
    schema = dataset_schema(rows.schema, case_sensitive=False)

    messages = message_plan(rows, write, schema).collect()

    assert [message.task for message in messages] == [0, 1, 2, 3]
    assert {message.attempt for message in messages} == {0}
    assert [message.rows for message in messages] == [250] * 4
    assert all(message.bytes > 1000 for message in messages)
    assert all(len(message.part) < 1024 for message in messages)
    assert not target.datasets.dataset_exists("orders")
    write.abort([pds.StagedPart.from_bytes(bytes(message.part)) for message in messages])
    assert target.files() == []


def test_two_jobs_at_once_are_two_datasets(rows: DataFrame, target: Target) -> None:
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(pds.spark.write_dataset, rows, target.store, f"orders/{number}") for number in range(4)]
        counts = [job.result().row_count for job in jobs]

    assert counts == [1000] * 4
    assert len(target.files()) == 4 * 6


def test_one_of_two_jobs_on_one_key_wins(rows: DataFrame, target: Target) -> None:
    def write(rest: int) -> pds.DatasetManifest | pds.AlreadyExists:
        try:
            return pds.spark.write_dataset(rows.where(f"id % 2 = {rest}"), target.store, "orders")
        except pds.AlreadyExists as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(write, [0, 1]))

    (winner,) = [rest for rest in (0, 1) if isinstance(outcomes[rest], pds.DatasetManifest)]
    assert target.datasets.read_dataset("orders")["id"].to_pylist() == list(range(winner, 1000, 2))
    assert target.files() == _files_of("orders", *_numbered(4))

"""What `pds.spark.write_dataset` refuses before the job starts, and jobs that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import remote_store
from pyspark.sql import functions as f
from remote_store.backends import MemoryBackend

import pds
import pds.spark
from servers.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target


@pytest.fixture
def untouched(spark: SparkSession, tmp_path: Path) -> Iterator[DataFrame]:
    """A frame that must not be run."""
    mark = tmp_path / "was-run"

    def run(batches: Any) -> Any:
        mark.touch()
        yield from batches

    yield spark.range(10).mapInArrow(run, "id bigint")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("key", "options", "error"),
    [
        ("", {}, pds.InvalidPath),
        ("/", {}, pds.InvalidPath),
        ("a/../b", {}, pds.InvalidPath),
        ("a\0", {}, pds.InvalidPath),
        ("orders", {"compression": "best"}, pds.errors.InvalidInput),
        ("orders", {"row_group_size": 0}, pds.errors.InvalidInput),
        ("orders", {"max_rows_per_file": -1}, pds.errors.InvalidInput),
        ("orders", {"metadata": {"number": 1}}, pds.errors.InvalidInput),
        ("orders", {"run_id": 7}, pds.errors.InvalidInput),
    ],
)
def test_a_bad_argument_is_refused_before_the_job(
    key: str, options: dict[str, Any], error: type, untouched: DataFrame, local_target: Target
) -> None:
    with pytest.raises(error):
        pds.spark.write_dataset(untouched, local_target.store, key, **options)
    assert local_target.files() == []


def test_an_existing_dataset_is_refused_before_the_job(
    untouched: DataFrame, spark: SparkSession, target: Target
) -> None:
    pds.spark.write_dataset(spark.range(3), target.store, "numbers")

    with pytest.raises(pds.AlreadyExists):
        pds.spark.write_dataset(untouched, target.store, "numbers")

    assert target.datasets.read_dataset("numbers").num_rows == 3


def test_a_dataset_that_appears_meanwhile_is_kept(spark: SparkSession, target: Target) -> None:
    table = spark.range(3).toArrow()
    original = pds.ParquetDatasetStore.begin_write

    def begin(self: pds.ParquetDatasetStore, *args: Any, **options: Any) -> Any:
        write = original(self, *args, **options)
        target.datasets.write_dataset(table, "numbers")
        return write

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pds.ParquetDatasetStore, "begin_write", begin)
        with pytest.raises(pds.AlreadyExists):
            pds.spark.write_dataset(spark.range(0, 100, 1, 2), target.store, "numbers")

    assert target.datasets.read_dataset("numbers").equals(table)
    assert len(target.files()) == 3


@pytest.mark.parametrize(
    ("sql", "case_sensitive", "match"),
    [
        ("SELECT 1 AS a, 2 AS a", "true", "'a' occurs twice"),
        ("SELECT 1 AS a, 2 AS A", "false", "'A' occurs twice"),
    ],
)
def test_columns_of_the_same_name_are_refused(
    sql: str, case_sensitive: str, match: str, spark: SparkSession, local_target: Target
) -> None:
    spark.conf.set("spark.sql.caseSensitive", case_sensitive)
    try:
        with pytest.raises(pds.errors.InvalidInput, match=match):
            pds.spark.write_dataset(spark.sql(sql), local_target.store, "orders")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_names_that_differ_in_case_are_two_where_spark_says_so(spark: SparkSession, local_target: Target) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        df = spark.sql("SELECT 1 AS a, 2 AS A")
        pds.spark.write_dataset(df, local_target.store, "orders")
        again = pds.spark.read_dataset(spark, local_target.store, "orders")
        assert again.collect() == [(1, 2)]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_frame_without_columns_is_refused(spark: SparkSession, local_target: Target) -> None:
    with pytest.raises(pds.errors.InvalidInput, match="no columns"):
        pds.spark.write_dataset(spark.range(3).select(), local_target.store, "orders")


def test_what_is_no_frame_is_refused(local_target: Target) -> None:
    with pytest.raises(pds.errors.InvalidType, match="pyarrow"):
        pds.spark.write_dataset(pa.table({"a": [1]}), local_target.store, "orders")


def test_a_stream_is_refused(spark: SparkSession, local_target: Target) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(pds.errors.InvalidInput, match="foreachBatch"):
        pds.spark.write_dataset(stream, local_target.store, "orders")


def test_each_batch_of_a_stream_is_a_dataset(spark: SparkSession, local_target: Target, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    spark.range(0, 100, 1, 2).write.parquet(str(source))

    def write(batch: DataFrame, number: int) -> None:
        pds.spark.write_dataset(batch, local_target.store, f"batch={number}", overwrite=True)

    stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
    query = stream.parquet(str(source)).writeStream.foreachBatch(write)
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    for active in spark.streams.active:
        active.awaitTermination(60)

    keys = local_target.datasets.list_datasets()
    assert keys == ["batch=0", "batch=1"]
    rows = [local_target.datasets.read_dataset(key)["id"].to_pylist() for key in keys]
    assert sorted(rows[0] + rows[1]) == list(range(100))


def test_a_store_of_one_process_is_refused(untouched: DataFrame, spark: SparkSession) -> None:
    with (
        pds.Store("memory://") as store,
        pytest.raises(pds.errors.InvalidInput, match="executors"),
    ):
        pds.spark.write_dataset(untouched, store, "orders")
    with pytest.raises(pds.errors.InvalidInput, match="executors"):
        pds.spark.write_dataset(untouched, remote_store.Store(MemoryBackend()), "orders")
    with pytest.raises(pds.errors.InvalidInput, match="executors"):
        pds.spark.read_dataset(spark, remote_store.Store(MemoryBackend()), "orders")


def test_a_store_that_cannot_replace_is_refused(untouched: DataFrame, local_target: Target, tmp_path: Path) -> None:
    everything = set(remote_store.Capability) - {remote_store.Capability.DELETE}

    class Limited(remote_store.backends.LocalBackend):
        @property
        def capabilities(self) -> remote_store.CapabilitySet:
            return remote_store.CapabilitySet(everything)

    store = remote_store.Store(Limited(str(tmp_path / "target")))
    with pytest.raises((pds.CapabilityNotSupported, pds.errors.InvalidInput)):
        pds.spark.write_dataset(untouched, store, "orders", overwrite=True)


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, target: Target) -> None:
    df = spark.range(0, 1000, 1, 4).select(
        f.when(f.col("id") < 990, f.col("id")).otherwise(f.raise_error(f.lit("broken on purpose")))
    )

    with pytest.raises(Exception, match="broken on purpose"):
        pds.spark.write_dataset(df, target.store, "orders")

    assert target.files() == []
    assert not target.datasets.dataset_exists("orders")


def test_a_job_that_fails_keeps_what_was_there(spark: SparkSession, target: Target) -> None:
    pds.spark.write_dataset(spark.range(10), target.store, "orders")
    before = target.files()

    broken = spark.range(0, 1000, 1, 4).select(f.raise_error(f.lit("broken on purpose")).alias("x"))
    with pytest.raises(Exception, match="broken on purpose"):
        pds.spark.write_dataset(broken, target.store, "orders", overwrite=True)

    assert target.files() == before
    assert target.datasets.read_dataset("orders").num_rows == 10


def test_an_unreachable_store_is_an_error_before_the_job(untouched: DataFrame) -> None:
    options = {
        "aws_endpoint": f"http://127.0.0.1:{free_port()}",
        "allow_http": "true",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "max_retries": 1,
    }
    with (
        pds.Store("s3://bucket/prefix", storage_options=options) as store,
        pytest.raises(pds.BackendUnavailable),
    ):
        pds.spark.write_dataset(untouched, store, "orders")

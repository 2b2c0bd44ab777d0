"""The plain API in a function of the user's own: a worker is a process like any other."""

from __future__ import annotations

import os
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import functions as f

import pds

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def sales(spark: SparkSession) -> DataFrame:
    """A thousand sales of five regions, those of a region in one partition and in order."""
    numbers = spark.range(0, 1000, 1, numPartitions=4)
    regions = numbers.select("id", (f.col("id") % 5).cast("int").alias("region"))
    return regions.repartition(3, "region").sortWithinPartitions("region", "id")


def _one_dataset_per_partition(store: pds.Store) -> Any:
    def write(batches: Any) -> Any:
        table = pa.Table.from_batches(batches)
        key = f"partition={TaskContext.get().partitionId()}"
        manifest = pds.ParquetDatasetStore(store).write_dataset(table, key, overwrite=True)
        yield pa.record_batch({"key": [key], "rows": [manifest.row_count]})

    return write


def _one_dataset_per_region(store: pds.Store, fail: bool) -> Any:
    def write(batches: Any) -> Any:
        datasets = pds.ParquetDatasetStore(store)
        slices = (piece for batch in batches for piece in _by_region(batch))
        for region, pieces in groupby(slices, key=lambda piece: piece[0]):
            stream = [batch for _, batch in pieces]
            key = pds.partition_path("sales", region=region)
            reader = pa.RecordBatchReader.from_batches(stream[0].schema, stream)
            manifest = datasets.write_dataset(reader, key, overwrite=True)
            if fail and TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("lost after writing")
            yield pa.record_batch({"key": [key], "rows": [manifest.row_count]})

    return write


def _by_region(batch: pa.RecordBatch) -> Any:
    ends = [i for i in range(1, batch.num_rows) if batch["region"][i] != batch["region"][i - 1]]
    for start, end in zip([0, *ends], [*ends, batch.num_rows], strict=True):
        if start < end:
            yield batch["region"][start].as_py(), batch.slice(start, end - start)


def test_one_dataset_for_each_partition(sales: DataFrame, target: Target) -> None:
    ranges = sales.repartitionByRange(4, "id")

    written = ranges.mapInArrow(_one_dataset_per_partition(target.store), "key string, rows long")

    assert sum(row.rows for row in written.collect()) == 1000
    keys = target.datasets.list_datasets()
    assert keys == [f"partition={number}" for number in range(4)]
    ids = [i for key in keys for i in target.datasets.read_dataset(key)["id"].to_pylist()]
    assert sorted(ids) == list(range(1000))


@pytest.mark.parametrize("fail", [False, True], ids=["calm", "retried"])
def test_one_dataset_for_each_value(fail: bool, sales: DataFrame, target: Target) -> None:
    written = sales.mapInArrow(_one_dataset_per_region(target.store, fail), "key string, rows long")

    assert sorted(written.collect()) == [(f"region={n}/sales", 200) for n in range(5)]
    expected = [f"region={n}/sales/{name}" for n in range(5) for name in ("_SUCCESS", "data.parquet", "manifest.json")]
    assert target.files() == sorted(expected)
    for n in range(5):
        table = target.datasets.read_dataset(f"region={n}/sales")
        assert table["id"].to_pylist() == list(range(n, 1000, 5))


def test_spark_finds_the_values_in_the_keys(
    sales: DataFrame, local_target: Target, spark: SparkSession, tmp_path: Path
) -> None:
    sales.mapInArrow(_one_dataset_per_region(local_target.store, fail=False), "key string, rows long").collect()

    files = spark.read.option("pathGlobFilter", "*.parquet").option("recursiveFileLookup", "false")
    read = files.option("basePath", f"{tmp_path}/target").parquet(f"{tmp_path}/target/*/sales")

    assert sorted(read.select("id", "region").collect()) == sorted(sales.select("id", "region").collect())


def test_datasets_are_read_in_workers(sales: DataFrame, target: Target, spark: SparkSession) -> None:
    sales.mapInArrow(_one_dataset_per_region(target.store, fail=False), "key string, rows long").collect()
    store = target.store

    def read(batches: Any) -> Any:
        datasets = pds.ParquetDatasetStore(store)
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from datasets.scan_dataset(f"region={number}/sales", columns=["id"])

    ids = spark.range(0, 5, 1, numPartitions=5).mapInArrow(read, "id bigint").collect()

    assert sorted(row.id for row in ids) == list(range(1000))


def test_a_worker_reopens_what_the_driver_had_open(spark: SparkSession, target: Target) -> None:
    target.store.write("note", b"from the driver")
    store, driver = target.store, os.getpid()

    def look(batches: Any) -> Any:
        assert os.getpid() != driver
        for batch in batches:
            yield pa.record_batch({"text": [store.read_bytes("note").decode()] * batch.num_rows})

    rows = spark.range(0, 8, 1, numPartitions=8).mapInArrow(look, "text string").collect()

    assert [row.text for row in rows] == ["from the driver"] * 8
    assert target.store.read_bytes("note") == b"from the driver"

"""`pds.spark.ingest`: a DataFrame as a slice of an Open Data Fabric dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import pds
import pds.spark
from pds import odf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """A thousand rows in four partitions, each with a time of its own."""
    numbers = spark.range(0, 1000, 1, numPartitions=4)
    return numbers.select("id", f.timestamp_seconds(f.col("id") + 1_767_225_600).alias("at"))


def _folders(store: pds.Store) -> set[str]:
    return {str(file.path).split("/")[1] for file in store.list_files("chain", recursive=True)}


def test_rows_are_numbered_in_the_order_of_the_partitions(rows: DataFrame, target: Target) -> None:
    dataset = odf.Dataset.create(target.store, "chain")
    result = pds.spark.ingest(rows, dataset, event_time="at")
    pds.spark.ingest(rows.limit(10), dataset, event_time="at")
    assert (result.rows, result.first_offset, result.last_offset) == (1000, 0, 999)
    found = dataset.scan(["offset", "id"]).to_pyarrow()
    assert found["offset"].to_pylist() == list(range(1010))
    assert found["id"].to_pylist()[:1000] == list(range(1000))
    assert dataset.verify().rows == 1010
    assert _folders(target.store) == {"blocks", "data", "refs"}


def test_a_job_that_fails_leaves_nothing(rows: DataFrame, target: Target) -> None:
    dataset = odf.Dataset.create(target.store, "chain")
    failing = rows.select("id", f.raise_error(f.lit("on purpose")).cast("string").alias("text"))
    with pytest.raises(PySparkException, match="on purpose"):
        pds.spark.ingest(failing, dataset)
    with pytest.raises(pds.InvalidInput, match="unknown column"):
        pds.spark.ingest(rows, dataset, event_time="when")
    assert [block.event.kind for block in dataset.log()] == ["Seed"]
    assert _folders(target.store) == {"blocks", "refs"}

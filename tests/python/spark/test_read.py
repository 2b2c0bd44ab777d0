"""`pds.spark.read_dataset`: rows, columns, tasks, and datasets that change under it."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from remote_store.ext.parquet import ParquetDatasetStore as RemoteDatasets

import pds
import pds.spark
from pds.spark import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"
TABLE = pa.table(
    {
        "id": pa.array(range(1000), pa.int64()),
        "name": [f"name {number}" for number in range(1000)],
        "tags": [[str(number % 3)] * (number % 4) for number in range(1000)],
    },
)


def _partitions(df: DataFrame) -> int:
    return df.rdd.getNumPartitions()


def test_rows_come_in_the_order_of_the_dataset(spark: SparkSession, target: Target) -> None:
    parted = pds.ParquetDatasetStore(target.store, max_rows_per_file=300)
    parted.write_dataset(TABLE, "orders")

    df = pds.spark.read_dataset(spark, target.store, "orders")

    assert df.columns == ["id", "name", "tags"]
    assert [row.asDict() for row in df.collect()] == TABLE.to_pylist()


def test_what_remote_store_wrote_is_read(spark: SparkSession, target: Target) -> None:
    RemoteDatasets(target.remote, max_rows_per_file=400).write_dataset(TABLE, "orders")

    df = pds.spark.read_dataset(spark, target.store, "orders")

    assert [row.asDict() for row in df.collect()] == TABLE.to_pylist()


def test_a_remote_store_is_read_and_written_through(spark: SparkSession, local_target: Target) -> None:
    df = spark.range(0, 100, 1, numPartitions=3)

    manifest = pds.spark.write_dataset(df, local_target.remote, "numbers")

    assert manifest.row_count == 100
    assert local_target.files() == sorted(f"numbers/{name}" for name in ["_SUCCESS", "manifest.json", *manifest.parts])
    again = pds.spark.read_dataset(spark, local_target.remote, "numbers")
    assert again.collect() == df.collect()


def test_only_the_columns_asked_for_in_their_order(spark: SparkSession, target: Target) -> None:
    target.datasets.write_dataset(TABLE, "orders")

    df = pds.spark.read_dataset(spark, target.store, "orders", columns=["tags", "id"])

    assert df.columns == ["tags", "id"]
    assert [row.asDict() for row in df.collect()] == TABLE.select(["tags", "id"]).to_pylist()


def test_an_unknown_column_is_an_error_at_once(spark: SparkSession, target: Target) -> None:
    target.datasets.write_dataset(TABLE, "orders")

    with pytest.raises(pds.errors.InvalidInput, match="nope"):
        pds.spark.read_dataset(spark, target.store, "orders", columns=["id", "nope"])


def test_a_dataset_without_rows(spark: SparkSession, target: Target) -> None:
    target.datasets.write_dataset(TABLE.slice(0, 0), "empty")

    df = pds.spark.read_dataset(spark, target.store, "empty")

    assert df.columns == TABLE.column_names
    assert df.collect() == []


def test_a_missing_dataset_is_not_found(spark: SparkSession, target: Target) -> None:
    with pytest.raises(pds.NotFound):
        pds.spark.read_dataset(spark, target.store, "nothing")


def test_large_parts_have_a_task_each(spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_MIN_TASK_BYTES", 1)
    parted = pds.ParquetDatasetStore(target.store, max_rows_per_file=300)
    parted.write_dataset(TABLE, "orders")

    df = pds.spark.read_dataset(spark, target.store, "orders")

    assert _partitions(df) == 4
    assert [row.asDict() for row in df.collect()] == TABLE.to_pylist()


def test_many_small_parts_are_read_by_few_tasks(spark: SparkSession, target: Target) -> None:
    parted = pds.ParquetDatasetStore(target.store, max_rows_per_file=50)
    parted.write_dataset(TABLE, "orders")

    df = pds.spark.read_dataset(spark, target.store, "orders")

    assert _partitions(df) == 1
    assert [row.asDict() for row in df.collect()] == TABLE.to_pylist()


@pytest.mark.parametrize(
    ("sizes", "row_groups", "count"),
    [
        ([0], 0, 1),
        ([10 << 30] * 3, 1, 3),
        ([10 << 30] * 3, 80, 240),
        ([10 << 30] * 3, 1000, 240),
        ([10 << 30] * 3, 7, 21),
        ([20 << 30], 1000, 160),
        ([1 << 20] * 1000, 9, 63),
        ([200 << 20, 0, 1, 300 << 20], 1, 3),
        ([200 << 20, 0, 1, 300 << 20], 100, 32),
    ],
)
def test_tasks_have_every_part_or_its_shares_once_in_order(sizes: list[int], row_groups: int, count: int) -> None:
    tasks = read._group_parts(sizes, [row_groups] * len(sizes))

    selected = [part for task in tasks for part in task]
    expected = []
    for index in range(len(sizes)):
        (shares,) = {part.share[1] if part.share else 1 for part in selected if part.index == index}
        numbers = range(shares)
        expected += [(index, (number, shares) if shares > 1 else None) for number in numbers]
        assert shares <= max(row_groups, 1)
    assert [(part.index, part.share) for part in selected] == expected
    assert len(tasks) == count
    assert all(tasks)


@pytest.mark.parametrize("groups", [1, 2, 7, 100])
def test_a_large_part_is_read_by_several_tasks(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    monkeypatch.setattr(read, "_MIN_TASK_BYTES", 1)
    monkeypatch.setattr(read, "_TASKS", 7)
    datasets = pds.ParquetDatasetStore(target.store, row_group_size=-(-1000 // groups))
    manifest = datasets.write_dataset(TABLE, "orders")
    assert datasets.index_parts("orders", manifest).row_groups == [groups]

    df = pds.spark.read_dataset(spark, target.store, "orders")

    assert _partitions(df) == min(groups, 7)
    assert [row.asDict() for row in df.collect()] == TABLE.to_pylist()
    assert df.count() == 1000
    assert df.where("id % 3 = 0").count() == 334


@pytest.mark.parametrize("kept", [True, False])
def test_a_dataset_replaced_meanwhile_fails_the_action(kept: bool, spark: SparkSession, target: Target) -> None:
    target.datasets.write_dataset(TABLE, "orders")
    df = pds.spark.read_dataset(spark, target.store, "orders")
    assert df.count() == 1000

    # The same rows and names of parts once more are another dataset all the same.
    other = TABLE if kept else TABLE.slice(0, 10).select(["id"])
    target.datasets.write_dataset(other, "orders", overwrite=True)

    with pytest.raises(Exception, match="DatasetIncomplete"):
        df.collect()
    assert pds.spark.read_dataset(spark, target.store, "orders").count() == other.num_rows


@pytest.mark.parametrize("early", [True, False])
def test_swapped_and_repeated_parts_are_noticed(early: bool, spark: SparkSession, target: Target) -> None:
    """On the driver, or by the task that finds another part than the driver found."""
    parted = pds.ParquetDatasetStore(target.store, max_rows_per_file=300)
    parted.write_dataset(TABLE, "orders")
    paths = [f"orders/part-0000{part}.parquet" for part in range(4)]
    contents = [target.store.read_bytes(path) for path in paths]
    for order in ([1, 0, 2, 3], [0, 0, 2, 3], [0, 1, 2, 2]):
        df = None if early else pds.spark.read_dataset(spark, target.store, "orders")
        for path, source in zip(paths, order, strict=True):
            target.store.write(path, contents[source], overwrite=True)
        with pytest.raises(Exception, match=r"PartCorrupted|parts were swapped"):
            (df or pds.spark.read_dataset(spark, target.store, "orders")).collect()
        for path, content in zip(paths, contents, strict=True):
            target.store.write(path, content, overwrite=True)
    assert pds.spark.read_dataset(spark, target.store, "orders").count() == 1000


def test_fields_of_structs_are_columns(spark: SparkSession, target: Target) -> None:
    points = pa.table({"p": [{"x": 1, "y": "a"}, None, {"x": 3, "y": None}], "n": [1, 2, 3]})
    target.datasets.write_dataset(points, "points")
    df = pds.spark.read_dataset(spark, target.store, "points", columns=["p.y", "n"])
    assert [tuple(row) for row in df.collect()] == [("a", 1), (None, 2), (None, 3)]


def test_a_part_that_is_gone_is_an_error_at_once(spark: SparkSession, local_target: Target) -> None:
    parted = pds.ParquetDatasetStore(local_target.store, max_rows_per_file=500)
    manifest = parted.write_dataset(TABLE, "orders")
    local_target.store.delete(f"orders/{manifest.parts[1]}")

    with pytest.raises(pds.DatasetIncomplete, match=manifest.parts[1]):
        pds.spark.read_dataset(spark, local_target.store, "orders")


@pytest.mark.parametrize(
    "description",
    [
        "no json",
        "[]",
        '{"type":"struct"}',
        json.dumps({"type": "struct", "fields": [{"name": "id", "type": "nonsense"}]}),
        t.StructType([t.StructField("id", t.StringType())]).json(),
        t.StructType([t.StructField("other", t.LongType())]).json(),
    ],
)
def test_a_wrong_description_is_left_aside(description: str, spark: SparkSession, local_target: Target) -> None:
    table = TABLE.select(["id"]).replace_schema_metadata({ROW_METADATA: description})
    local_target.datasets.write_dataset(table, "orders")

    df = pds.spark.read_dataset(spark, local_target.store, "orders")

    assert df.schema == t.StructType([t.StructField("id", t.LongType())])
    assert df.count() == 1000


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code from a dataset was run')",))


def test_a_description_cannot_bring_code(spark: SparkSession, local_target: Target) -> None:
    trap = {
        "type": "udt",
        "class": "java.lang.Object",
        "pyClass": "pds_no_such_module.Trap",
        "serializedClass": pickle.dumps(_Trap()).hex(),
        "sqlType": "long",
    }
    field = {"name": "id", "type": trap, "nullable": True, "metadata": {}}
    for module in ("this", "pyspark.ml.linalg"):
        trap["pyClass"] = f"{module}.Trap"
        description = json.dumps({"type": "struct", "fields": [field]})
        table = TABLE.select(["id"]).replace_schema_metadata({ROW_METADATA: description})
        local_target.datasets.write_dataset(table, "orders", overwrite=True)

        df = pds.spark.read_dataset(spark, local_target.store, "orders")

        assert df.schema["id"].dataType == t.LongType()

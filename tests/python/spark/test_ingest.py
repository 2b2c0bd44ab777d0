"""`pds.spark.ingest`: a DataFrame as slices of an Open Data Fabric dataset, written by tasks."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import pds
import pds.spark
from pds import odf
from pds.spark import jobs
from pds.spark.tasks import SentTasks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

pytestmark = pytest.mark.sampled(3)

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

INGEST = sys.modules[pds.spark.ingest.__module__]
# Later than the clock, so it is the time of every block and row.
TIME = dt.datetime(2126, 1, 1, tzinfo=dt.UTC)
IDENTITY = odf.Identity.generate()


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


def _create(store: pds.Store, path: str) -> odf.Dataset:
    return odf.Dataset.create(store, path, identity=IDENTITY, system_time=TIME)


def _events(dataset: odf.Dataset) -> list[dict[str, Any]]:
    """All events, without what depends on the random identity in a file."""
    events = [block.event.to_dict() for block in reversed(dataset.log())]
    for event in events:
        for name in ("physicalHash", "size"):
            event.get("newData", {}).pop(name, None)
    return events


def _slices(dataset: odf.Dataset) -> set[str]:
    events = [block.event.to_dict() for block in dataset.log()]
    return {event["newData"]["physicalHash"] for event in events if "newData" in event}


def _data(target: Target) -> set[str]:
    return {str(file.path).split("/")[-1] for file in target.store.list_files("chain/data")}


def test_slices_of_tasks_are_those_of_an_ingest_for_each_partition(rows: DataFrame, target: Target) -> None:
    """So the logical hashes are the same, which cover offsets, times and values."""
    dataset, local = _create(target.store, "chain"), _create(target.store, "local")
    dataset.ingest(rows.limit(3).toArrow(), event_time="at")
    local.ingest(rows.limit(3).toArrow(), event_time="at")
    result = pds.spark.ingest(rows, dataset, event_time="at", slice_bytes=1)
    assert (result.rows, result.first_offset, result.last_offset) == (1000, 3, 1002)
    assert len(result.blocks) == 4
    for first in range(0, 1000, 250):
        local.ingest(rows.where(f"id >= {first} AND id < {first + 250}").toArrow(), event_time="at")
    assert _events(dataset) == _events(local)
    assert dataset.verify().rows == 1003
    assert _data(target) == _slices(dataset)


def test_small_partitions_are_one_slice_as_of_one_ingest(rows: DataFrame, target: Target) -> None:
    dataset, local = _create(target.store, "chain"), _create(target.store, "local")
    result = pds.spark.ingest(rows, dataset)
    expected = local.ingest(rows.toArrow())
    assert result.logical_hash == expected.logical_hash
    assert _events(dataset) == _events(local)


def test_a_correction_is_in_one_slice(spark: SparkSession, target: Target) -> None:
    dataset = _create(target.store, "chain")
    # Of four partitions the second and the third begin with a correct-to.
    numbers = spark.range(0, 40, 1, numPartitions=4)
    op = f.when(f.col("id").isin(9, 19), 2).when(f.col("id").isin(10, 20), 3).otherwise(0).cast("int")
    result = pds.spark.ingest(numbers.select("id", op.alias("op")), dataset, slice_bytes=1)
    assert [block.event.new_data["offsetInterval"] for block in result.blocks[1:]] == [
        {"start": 0, "end": 29},
        {"start": 30, "end": 39},
    ]
    assert dataset.verify().rows == 40


def test_without_rows_only_the_schema_is_set(rows: DataFrame, target: Target) -> None:
    dataset, local = _create(target.store, "chain"), _create(target.store, "local")
    result = pds.spark.ingest(rows.where("id < 0"), dataset, event_time="at")
    local.ingest(rows.where("id < 0").toArrow(), event_time="at")
    assert result.rows == 0
    assert _events(dataset) == _events(local)
    assert _folders(target.store) == {"blocks", "refs"}


def test_columns_of_types_that_spark_does_not_have(spark: SparkSession, target: Target) -> None:
    """Times in milliseconds, as Kamu has them, among these."""
    dataset = _create(target.store, "chain")
    times = pa.array([1, 1_767_225_600_001], pa.timestamp("ms", "UTC"))
    rows = pa.table({"id": pa.array([1, 4_000_000_000], pa.uint32()), "at": times, "event_time": times})
    dataset.ingest(rows.slice(0, 1))
    # The time of an event is cut to milliseconds, as by `Dataset.ingest`.
    df = spark.sql(
        "SELECT 4000000000L AS id, TIMESTAMP'2026-01-01 00:00:00.001Z' AS at, "
        "TIMESTAMP'2026-01-01 00:00:00.001002Z' AS event_time"
    )
    pds.spark.ingest(df, dataset)
    assert dataset.scan(["id", "at"]).to_pyarrow().equals(rows.select(["id", "at"]))
    assert dataset.scan(["event_time"]).to_pyarrow()["event_time"].to_pylist() == times.to_pylist()
    finer = df.withColumn("at", f.col("event_time"))
    for bad, message in ((finer, "would lose data"), (df.withColumn("id", -f.col("id")), "not in range")):
        with pytest.raises(PySparkException, match=message):
            pds.spark.ingest(bad, dataset)
    assert dataset.verify().rows == 2


def test_rows_that_a_killed_driver_left_are_removed_after_a_week(local_target: Target, tmp_path: Path) -> None:
    dataset = _create(local_target.store, "chain")
    dataset.ingest(pa.table({"id": [1]}))
    chain = tmp_path / "target" / "chain"
    before = {path.name for path in chain.iterdir()}
    for name, days in (("_ingest-old", 8), ("_ingest-new", 6), ("other", 8)):
        local_target.datasets.write_dataset(pa.table({"id": [1]}), f"chain/{name}")
        # In its first job a driver has hidden files only.
        local_target.datasets.begin_write(f"chain/{name}-job").prepare(pa.table({"id": [1]}))
        then = time.time() - days * 24 * 3600
        for path in (*(chain / name).iterdir(), *(chain / f"{name}-job").iterdir()):
            os.utime(path, (then, then))
    INGEST._remove_abandoned(dataset, local_target.datasets)
    left = {path.name for path in chain.iterdir() if not path.is_dir() or any(path.iterdir())}
    assert left - before == {"_ingest-new", "_ingest-new-job", "other", "other-job"}
    assert dataset.verify().rows == 1


def _always(batches: Any) -> Any:
    messages = list(batches)
    if TaskContext.get().partitionId() == 1:
        raise RuntimeError("lost after writing")
    yield from messages


def _run_under(happens: Any) -> Any:
    """As `run_tasks`, with something that happens to tasks that have run."""

    def run_tasks(spark: SparkSession, tasks: Any) -> list[list[bytes]]:
        numbers = spark.range(0, len(tasks), 1, numPartitions=len(tasks))
        run = jobs.RunTasks(SentTasks(list(tasks)))
        plan = numbers.mapInArrow(run, jobs._DDL).mapInArrow(happens, jobs._DDL)
        messages = {row.task: [bytes(message) for message in row.messages] for row in plan.collect()}
        return [messages[number] for number in range(len(tasks))]

    return run_tasks


def test_tasks_that_are_tried_again_change_no_row(
    rows: DataFrame, target: Target, monkeypatch: pytest.MonkeyPatch, lose_tasks: Any
) -> None:
    dataset = _create(target.store, "chain")
    monkeypatch.setattr(INGEST, "run_tasks", _run_under(lose_tasks))
    pds.spark.ingest(rows, dataset, slice_bytes=1)
    assert dataset.scan(["id"]).to_pyarrow()["id"].to_pylist() == list(range(1000))
    assert dataset.verify().rows == 1000
    assert len(_slices(dataset)) == 4
    # What lost attempts wrote is in no block, and a vacuum removes it.
    assert len(_data(target) - _slices(dataset)) == 6


def test_a_job_that_fails_while_slices_are_written_appends_nothing(
    rows: DataFrame, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = _create(target.store, "chain")
    monkeypatch.setattr(INGEST, "run_tasks", _run_under(_always))
    with pytest.raises(PySparkException, match="lost after writing"):
        pds.spark.ingest(rows, dataset, slice_bytes=1)
    assert [block.event.kind for block in dataset.log()] == ["Seed"]
    assert _folders(target.store) == {"blocks", "refs", "data"}
    monkeypatch.undo()
    assert pds.spark.ingest(rows, dataset).last_offset == 999


def test_rows_of_another_writer_come_before(rows: DataFrame, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = _create(target.store, "chain")
    sizes: list[int] = []

    def run_tasks(spark: SparkSession, tasks: Any) -> list[list[bytes]]:
        messages = jobs.run_tasks(spark, tasks)
        sizes.extend(len(message) for by_task in messages for message in by_task)
        if len(sizes) == 4:
            dataset.ingest(rows.limit(5).toArrow())
        return messages

    monkeypatch.setattr(INGEST, "run_tasks", run_tasks)
    result = pds.spark.ingest(rows, dataset, slice_bytes=1)
    assert (result.first_offset, result.last_offset) == (5, 1004)
    assert result.attempts == 2
    assert dataset.scan(["id"]).to_pyarrow()["id"].to_pylist() == [*range(5), *range(1000)]
    assert dataset.verify().rows == 1005
    assert _data(target) == _slices(dataset)
    # Of 250 rows nothing comes to the driver but where they are, and their hashes.
    assert len(sizes) == 8
    assert max(sizes) < 400


class SlowJobs:
    """Runs jobs here: each takes 1,000 s of its clock, and during the first `rivals` another writer appends a row."""

    def __init__(self, dataset: odf.Dataset, rivals: int) -> None:
        self.dataset, self.rivals, self.seconds = dataset, rivals, 0.0

    def monotonic(self) -> float:
        return self.seconds

    def run_tasks(self, spark: SparkSession, tasks: Any) -> list[list[bytes]]:  # noqa: ARG002 as that of Spark
        messages: list[list[bytes]] = [task.run(1) for task in tasks]
        self.seconds += 1000
        if self.rivals:
            self.rivals -= 1
            self.dataset.ingest(pa.table({"id": pa.array([-1], pa.int64())}))
        return messages


@pytest.mark.parametrize("rivals", [3, 9])
def test_the_time_of_jobs_is_no_time_of_waiting(
    rows: DataFrame, local_target: Target, monkeypatch: pytest.MonkeyPatch, rivals: int
) -> None:
    dataset = _create(local_target.store, "chain")
    slow = SlowJobs(dataset, rivals)
    monkeypatch.setattr(INGEST, "run_tasks", slow.run_tasks)
    monkeypatch.setattr(INGEST, "time", slow)
    if rivals == 3:
        result = pds.spark.ingest(rows.select("id"), dataset)
        assert (result.attempts, result.first_offset, result.last_offset) == (4, 3, 1002)
    else:
        with pytest.raises(pds.CommitConflict, match="gave up after 9 jobs"):
            pds.spark.ingest(rows.select("id"), dataset)
        assert dataset.verify().rows == 9
    assert _data(local_target) == _slices(dataset)


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_the_size_of_slices_is_checked(size: Any, rows: DataFrame, local_target: Target) -> None:
    dataset = _create(local_target.store, "chain")
    with pytest.raises((pds.InvalidInput, pds.InvalidType), match="slice_bytes"):
        pds.spark.ingest(rows, dataset, slice_bytes=size)

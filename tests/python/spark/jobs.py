"""Jobs in sessions of their own: `python jobs.py SCENE MASTER CONFIG`, run by `test_faults.py`.

CONFIG is JSON: `targets` (name to URL and options of a store), `conf` (Spark settings), `operations` (the arguments of
`run_struck`; they are done on S3). What was seen is printed as the last line, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import pds
import pds.spark
from pds.spark import engine as engine_module
from pds.spark import write
from pds.spark.tasks import MESSAGE_DDL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

ROWS = 60_000
PARTITIONS = 6
UNLUCKY = 2
STRAGGLER_SECONDS = 120.0


def after_writing(happens: Callable[[], None]) -> Callable[..., Iterator[Any]]:
    """Lets something happen to the first attempt of one task of each job when what it writes is written."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        messages = list(batches)
        context = TaskContext.get()
        if context.partitionId() == UNLUCKY and context.attemptNumber() == 0:
            happens()
        yield from messages

    return run


def kill_executor() -> None:
    """The JVM this worker belongs to ends at once, and the worker with it."""
    parents = psutil.Process().parents()
    executor = next(process for process in parents if process.name() == "java")
    os.kill(executor.pid, signal.SIGKILL)
    time.sleep(30)


def lag() -> None:
    """Long enough for another attempt to be started, to finish, and to have this one killed."""
    time.sleep(STRAGGLER_SECONDS)


def frame(spark: SparkSession) -> DataFrame:
    """Enough bytes that every part is staged in the store."""
    numbers = spark.range(0, ROWS, 1, numPartitions=PARTITIONS)
    return numbers.selectExpr("id", "sha2(CAST(id AS string), 512) AS name")


def write_and_read(spark: SparkSession, store: pds.Store, key: str) -> dict[str, Any]:
    """What one write with `pds.spark` took and gave."""
    start = time.monotonic()
    manifest = pds.spark.write_dataset(frame(spark), store, key)
    seconds = time.monotonic() - start
    ids = pds.spark.read_dataset(spark, store, key, columns=["id"]).collect()
    report = pds.ParquetDatasetStore(store).verify_dataset(key)
    return {
        "parts": manifest.parts,
        "row_count": manifest.row_count,
        "verified": report.rows,
        "exact": [row.id for row in ids] == list(range(ROWS)),
        "seconds": seconds,
    }


def words_of(key: int, names: Iterator[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        yield name[:2], key
        yield name[2:3], key + 1


def update_pipeline(spark: SparkSession, store: pds.Store, key: str) -> dict[str, Any]:
    """What two updates of a pipeline by tasks took and gave, beside those of this process."""
    engine = pds.spark.SparkEngine(spark, local_bytes=1, task_bytes=200_000)
    pipelines = []
    start = time.monotonic()
    tasks = []
    for where, runner in ((key, engine), (f"{key}-here", None)):
        pipeline = pds.Pipeline(store, where, engine=runner)
        names = pipeline.source("names", key=pa.int64(), value=pa.string())
        words = pipeline.producer(names, key=pa.string(), value=pa.int64(), name="words")(words_of)
        pipeline.aggregate(words, aggregates={"n": ("value", "sum")}, name="sums")
        whole = frame(spark).withColumnsRenamed({"id": "key", "name": "value"})
        changed, deleted = whole.where("key % 11 = 3").selectExpr("key", "'changed' AS value"), whole.where("key < 500")
        updates: list[Any] = [pds.Changes(whole), pds.Changes(changed.where("key >= 500"), deleted.select("key"))]
        if runner is None:
            updates = [
                pds.Changes(*(None if c is None else c.toArrow() for c in (u.upserts, u.deletes))) for u in updates
            ]
        for update in updates:
            result = pipeline.update(names=update)
            tasks.append([stage.tasks for stage in result.stages.values()])
        pipelines.append((pipeline, time.monotonic() - start))
    (one, seconds), (other, _) = pipelines
    reads = [(name, table) for name in ("words", "sums") for table in ("read", "key_mappings", "changes")]
    return {
        "tasks": tasks,
        "same": all(getattr(one[name], table)().equals(getattr(other[name], table)()) for name, table in reads),
        "rows": one["words"].read().num_rows,
        "seconds": seconds,
    }


def under_fire(
    spark: SparkSession, store: pds.Store, key: str, happens: Callable[[], None] | None, *, with_pipeline: bool
) -> dict[str, Any]:
    """The same, with something happening to one task after it has written."""
    plan, collect = write.message_plan, engine_module._collect
    if happens is not None:
        accident = after_writing(happens)
        write.message_plan = lambda *args: plan(*args).mapInArrow(accident, MESSAGE_DDL)
        engine_module._collect = lambda plan: collect(plan.mapInArrow(accident, engine_module._DDL))
    try:
        seen = write_and_read(spark, store, key)
        if with_pipeline:
            seen["pipeline"] = update_pipeline(spark, store.child("pipelines"), key)
        return seen
    finally:
        write.message_plan, engine_module._collect = plan, collect


def run_operations(
    spark: SparkSession, url: str, options: dict[str, str], runs: list[tuple[str, str, list[int], int]]
) -> list[int]:
    """How many requests were struck of each operation."""
    from spark.operations import OPERATIONS, Place, run_struck  # noqa: PLC0415 other scenes need neither
    from spark.relay import Relay, Way  # noqa: PLC0415 as above

    by_name = {operation.name: operation for operation in OPERATIONS}
    struck: list[int] = []
    with Relay(options["aws_endpoint"]) as relay, tempfile.TemporaryDirectory() as folder:
        by_relay = options | {"aws_endpoint": relay.endpoint}
        for number, (name, way, numbers, enough) in enumerate(runs):
            start = time.monotonic()
            where = f"{url}/{name}-{uuid.uuid4().hex}"
            stores = [pds.Store(where, storage_options=each) for each in (by_relay, options)]
            place = Place(spark, stores[0], stores[1], by_relay, Path(folder) / str(number))
            struck.append(len(run_struck(by_name[name], place, relay, Way(way), numbers, enough)))
            seconds = time.monotonic() - start
            sys.stderr.write(f"{name}, {way} {numbers}: {struck[-1]} struck, {seconds:.1f} s\n")
    return struck


SCENES: dict[str, dict[str, Callable[[], None] | None]] = {
    "cluster": {"calm": None, "killed": kill_executor},
    "standalone": {"speculated": lag},
    "connect": {"calm": None},
    "operations": {},
}


def main() -> None:
    """Runs one scene against all targets."""
    scene, master, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    builder = SparkSession.builder.appName(f"pds {scene}")
    builder = builder.remote(master) if scene == "connect" else builder.master(master)
    for name, value in config["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if scene == "connect":
        changed = pds.spark.enable(spark).changed
        if {name: spark.conf.get(name) for name in changed} != {name: new for name, (_, new) in changed.items()}:
            raise AssertionError(changed)
    seen: dict[str, Any] = {}
    for target, (url, options) in config["targets"].items():
        with pds.Store(url, storage_options=options) as store:
            accidents = SCENES[scene].items()
            seen[target] = {
                key: under_fire(spark, store, key, what, with_pipeline=target == "s3") for key, what in accidents
            }
    runs = config["operations"]
    seen["operations"] = run_operations(spark, *config["targets"]["s3"], runs) if runs else []
    spark.stop()
    sys.stdout.write(f"{json.dumps(seen)}\n")


if __name__ == "__main__":
    main()

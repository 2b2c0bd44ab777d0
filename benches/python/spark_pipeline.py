"""A pipeline that Spark computes, against recomputing its results with Spark SQL: ``make bench-spark``.

Orders by id (customer, amount), the sums by customer and of these by country. The pipeline is built from a DataFrame by
tasks, then so many orders change, at random: 0.01 %, 1 % and 10 %, which are read from Parquet. The peer reads all
orders after the change from Parquet, computes both sums with ``groupBy`` and writes them as Parquet. Both results are
compared. A ratio is the peer's seconds by those of the pipeline in the same session; the median, the lowest and the
highest of the rounds, and the median for the processor time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from process_tree import cpu_seconds
from pyspark.sql import DataFrame, SparkSession

import pds
import pds.spark

if TYPE_CHECKING:
    from collections.abc import Callable

SHARES = (0.0001, 0.01, 0.1)
COUNTRIES = 200
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
}


class Costs(NamedTuple):
    """Seconds, and seconds of processor time of Python, the JVM and Spark's workers."""

    wall: float
    cpu: float


def _orders(spark: SparkSession, rows: int, changed: list[int]) -> DataFrame:
    """The orders after some changes: of 1 in ``step`` orders, another amount and customer."""
    salt = "0"
    for number, step in enumerate(changed, 1):
        salt = f"if(xxhash64(id, {number}) % {step} = 0, {number}, {salt})"
    customer, amount = (f"pmod(xxhash64(id, {column}, {salt}), {top})" for column, top in ((7, rows // 10), (8, 1000)))
    numbers = spark.range(0, rows, 1, numPartitions=4 * (os.cpu_count() or 1))
    return numbers.selectExpr("id AS key", f"struct({customer} AS customer, {amount} AS amount) AS value")


def _declare(store: pds.Store, spark: SparkSession) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "sums", engine=pds.spark.SparkEngine(spark))
    order = pa.struct([("customer", pa.int64()), ("amount", pa.int64())])
    orders = pipeline.source("orders", key=pa.int64(), value=order)
    amounts = pipeline.select(orders, key="customer", value="amount", name="amounts")
    customers = pipeline.aggregate(amounts, aggregates={"sum": ("value", "sum")}, name="customers")
    named = pipeline.select(customers, key=f"key % {COUNTRIES}", value="sum", name="sums of customers")
    pipeline.aggregate(named, aggregates={"sum": ("value", "sum")}, name="countries")
    return pipeline


def _recompute(spark: SparkSession, folder: Path) -> None:
    orders = spark.read.parquet(f"{folder}/orders").selectExpr("value.customer AS key", "value.amount AS amount")
    orders.groupBy("key").sum("amount").write.mode("overwrite").parquet(f"{folder}/customers")
    customers = spark.read.parquet(f"{folder}/customers").withColumnRenamed("sum(amount)", "sum")
    countries = customers.selectExpr(f"key % {COUNTRIES} AS key", "sum").groupBy("key").sum("sum")
    countries.write.mode("overwrite").parquet(f"{folder}/countries")


def _check(spark: SparkSession, folder: Path, pipeline: pds.Pipeline) -> None:
    expected = spark.read.parquet(f"{folder}/countries").orderBy("key").collect()
    content = pipeline["countries"].read()
    found = list(zip(content["target_key"].to_pylist(), (v["sum"] for v in content["value"].to_pylist()), strict=True))
    if found != [tuple(row) for row in expected]:
        raise RuntimeError("the pipeline and Spark SQL differ")


def _timed(work: Callable[[], Any]) -> tuple[Any, Costs]:
    before, start = cpu_seconds(), time.perf_counter()
    result = work()
    return result, Costs(time.perf_counter() - start, cpu_seconds() - before)


def _run(spark: SparkSession, rows: int, folder: Path) -> list[tuple[str, Costs, Costs, str]]:
    """For the build and each update: its name, its costs, those of the peer, and what took tasks."""
    measured = []
    with pds.Store((folder / "pds").as_uri()) as store:
        pipeline = _declare(store, spark)
        steps: list[int] = []
        for share in (None, *SHARES):
            steps += [] if share is None else [round(1 / share)]
            after = _orders(spark, rows, steps)
            after.write.mode("overwrite").parquet(f"{folder}/orders")
            pushed = spark.read.parquet(f"{folder}/orders")
            if share is not None:
                changed = pushed.where(f"xxhash64(key, {len(steps)}) % {steps[-1]} = 0")
                changed.write.mode("overwrite").parquet(f"{folder}/changed")
                pushed = spark.read.parquet(f"{folder}/changed")
            changes = pds.Changes(pushed)
            result, own = _timed(lambda changes=changes: pipeline.update(orders=changes))
            _, peer = _timed(lambda: _recompute(spark, folder))
            _check(spark, folder, pipeline)
            tasks = ", ".join(f"{name} {stage.tasks}" for name, stage in result.stages.items())
            measured.append(("build" if share is None else f"{share:.2%} changed", own, peer, tasks))
    return measured


def main() -> None:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rounds = []
    for _ in range(arguments.rounds):
        folder = Path(tempfile.mkdtemp(prefix="bench-pipeline-", dir=arguments.folder))
        try:
            rounds.append(_run(spark, arguments.rows, folder))
        finally:
            shutil.rmtree(folder)
    spark.stop()
    print("| update | pipeline, seconds | Spark SQL ÷ pipeline | CPU | tasks |\n| --- | ---: | ---: | ---: | --- |")
    for measured in zip(*rounds, strict=True):
        name, _, _, tasks = measured[0]
        ratios = sorted(peer.wall / own.wall for _, own, peer, _ in measured)
        cpu = statistics.median(peer.cpu / max(own.cpu, 0.01) for _, own, peer, _ in measured)
        seconds = statistics.median(own.wall for _, own, _, _ in measured)
        text = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {name} | {seconds:.2f} | {text} | {cpu:.2f} | {tasks} |")


if __name__ == "__main__":
    main()

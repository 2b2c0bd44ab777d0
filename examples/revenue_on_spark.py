"""Revenue by nation and month: a pipeline that Spark computes, updated by what changed, compared with Spark SQL.

    python examples/revenue_on_spark.py             PDS_SCALE=1 has 1.5 million orders

Orders, their items and customers like those of TPC-H, generated. The items are summed by order, these are joined to
their order and the customer, and summed by nation and month. Then one order in a thousand changes and some go.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession

import pds
import pds.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDERS = round(1_500_000 * float(os.environ.get("PDS_SCALE", "1")))
CUSTOMERS, NATIONS = max(ORDERS // 10, 10), 25
MONEY = pa.decimal128(18, 2)
SQL = """
    SELECT c.value.nation AS nation, o.value.month AS month, sum(i.revenue) AS revenue
    FROM (SELECT key, sum(value) AS revenue FROM items GROUP BY key) i
    JOIN orders o ON o.key = i.key JOIN customers c ON c.key = o.value.customer
    GROUP BY 1, 2 ORDER BY 1, 2
"""


def declare(store: pds.Store, engine: pds.spark.SparkEngine) -> pds.Pipeline:
    """Declare the graph."""
    p = pds.Pipeline(store, "revenue", engine=engine)
    order = pa.struct([("customer", pa.int64()), ("month", pa.int32())])
    orders = p.source("orders", key=pa.int64(), value=order)
    items = p.source("items", key=pa.int64(), value=MONEY)
    customers = p.source("customers", key=pa.int64(), value=pa.struct([("nation", pa.int32())]))
    sums = p.aggregate(items, aggregates={"revenue": ("value", "sum")}, name="revenue of orders")
    priced = p.join_rows(orders, sums, name="orders with revenue")
    moved = p.select(priced, key="customer", value={"month": "month", "revenue": "revenue"}, name="by customer")
    located = p.join_rows(moved, customers, name="with nations")
    placed = p.select(
        located, key="named_struct('nation', nation, 'month', month)", value="revenue", name="by nation and month"
    )
    p.aggregate(placed, aggregates={"revenue": ("value", "sum")}, name="revenue")
    return p


def generate(spark: SparkSession) -> dict[str, DataFrame]:
    """Return the sources."""
    orders = spark.range(0, ORDERS, 1, 8).selectExpr(
        "id AS key",
        f"struct(pmod(xxhash64(id), {CUSTOMERS}) AS customer, CAST(pmod(xxhash64(id, 1), 84) AS int) AS month) "
        "AS value",
    )
    items = spark.range(0, 4 * ORDERS, 1, 8).selectExpr(
        "id DIV 4 AS key", "CAST(pmod(xxhash64(id, 2), 100000) / 100 AS decimal(18, 2)) AS value"
    )
    customers = spark.range(0, CUSTOMERS, 1, 8).selectExpr(
        "id AS key", f"struct(CAST(pmod(xxhash64(id, 3), {NATIONS}) AS int) AS nation) AS value"
    )
    return {"orders": orders, "items": items, "customers": customers}


def compare(spark: SparkSession, pipeline: pds.Pipeline, sources: dict[str, DataFrame]) -> float:
    """Compute the result anew by Spark SQL; return the seconds that it took."""
    for name, frame in sources.items():
        frame.createOrReplaceTempView(name)
    start = time.perf_counter()
    expected = [(row.nation, row.month, row.revenue) for row in spark.sql(SQL).collect()]
    seconds = time.perf_counter() - start
    table = pipeline["revenue"].read()
    keys, values = table["target_key"].to_pylist(), table["value"].to_pylist()
    found = [(key["nation"], key["month"], value["revenue"]) for key, value in zip(keys, values, strict=True)]
    if found != expected:
        sys.exit("the pipeline and Spark SQL differ")
    return seconds


def main() -> None:
    """Run it."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        store = pds.Store(Path(folder).as_uri())
        # On a cluster the defaults are right. Here the tasks are smaller, so that there are some.
        pipeline = declare(store, pds.spark.SparkEngine(spark, local_bytes=8 << 20, task_bytes=32 << 20))
        sources = generate(spark)

        def update(text: str, **changes: pds.Changes) -> None:
            start = time.perf_counter()
            result = pipeline.update(**changes)
            seconds = time.perf_counter() - start
            recomputed = compare(spark, pipeline, sources)
            tasks = sum(stage.tasks for stage in result.stages.values())
            written = sum(stage.bytes_written for stage in result.stages.values()) / 2**20
            print(f"{text:16} {seconds:6.1f} s, {tasks:3} tasks, {written:7.1f} MiB written;", end=" ")
            print(f"recomputed: {recomputed:.1f} s")

        update("build:", **{name: pds.Changes(frame) for name, frame in sources.items()})
        doubled = "CAST(value * 2 AS decimal(18, 2)) AS value"
        changed = sources["items"].where("key % 1000 = 7").selectExpr("key", doubled)
        gone = sources["orders"].where("key % 5000 = 11").select("key")
        sources["items"] = sources["items"].where("key % 1000 <> 7").union(changed)
        sources["orders"] = sources["orders"].where("key % 5000 <> 11")
        update("0.1 % changed:", items=pds.Changes(changed), orders=pds.Changes(deletes=gone))
        print("the pipeline has what Spark SQL computes from all rows")
    spark.stop()


if __name__ == "__main__":
    main()

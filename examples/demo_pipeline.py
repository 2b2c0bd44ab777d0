"""The second half of the main job: a pipeline that Spark builds from tables, then updates by what changed.

    make demo                   at scale factor 1, or PDS_SCALE

1. Spark writes orders, lineitem and customer of TPC-H to tables on an S3 server that this script starts.
2. A pipeline, which computes its large stages by tasks of Spark, has the revenue by order, joined to orders and
   customers, and by nation and month.
3. Prices change, orders get another date, and some are deleted, by ``pds.spark.upsert``, ``merge`` and ``delete``. The
   pipeline is refreshed after each.
4. Each time Spark SQL computes the same from all rows of the tables, and every number is compared.

The exit code is 0 only if every comparison holds. The bytes that were read are those that the server saw.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from demo import print_table, spark_session, tpch_table

import pds
import pds.spark
from servers import S3Server
from servers.process import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

KEYS = {"orders": ["o_orderkey"], "lineitem": ["l_orderkey", "l_linenumber"], "customer": ["c_custkey"]}
USED = {
    "orders": ["o_orderkey", "o_custkey", "o_orderdate"],
    "lineitem": ["l_orderkey", "l_extendedprice", "l_discount"],
    "customer": ["c_custkey", "c_nationkey"],
}
SQL = """
    SELECT c_nationkey, CAST(date_trunc('month', o_orderdate) AS date), sum(l_extendedprice * (1 - l_discount))
    FROM orders JOIN lineitem ON l_orderkey = o_orderkey JOIN customer ON c_custkey = o_custkey
    GROUP BY 1, 2 ORDER BY 1, 2
"""


def load(spark: SparkSession, store: pds.Store, scale: float) -> dict[str, pds.Table]:
    """Write the tables."""
    tables = {}
    for name, key in KEYS.items():
        rows = spark.read.parquet(str(tpch_table(name, scale)))
        tables[name] = pds.Table.create(store, f"tables/{name}", rows.limit(0).toArrow().schema, key=key, sort_by=key)
        pds.spark.append(rows, tables[name])
    return tables


def declare(store: pds.Store, tables: dict[str, pds.Table], spark: SparkSession) -> pds.Pipeline:
    """Declare the graph, without a line of Python by row.

    The orders get their nation by customer, of which few change. The revenue, which changes often, is joined by order.
    """
    p = pds.Pipeline(store, "revenue", engine=pds.spark.SparkEngine(spark))
    items = p.source("lineitem", tables["lineitem"], key="l_orderkey", value=["l_extendedprice", "l_discount"])
    orders = p.source("orders", tables["orders"], key="o_custkey", value=["o_orderkey", "o_orderdate"])
    customers = p.source("customer", tables["customer"], key="c_custkey", value="c_nationkey")
    prices = p.select(items, key="key", value="l_extendedprice * (1 - l_discount)", name="prices")
    revenue = p.aggregate(prices, aggregates={"revenue": ("value", "sum")}, name="revenue by order")
    located = p.join_rows(orders, customers, name="orders with customers")
    placed = p.select(
        located,
        key="o_orderkey",
        value={"nation": "customer", "month": "CAST(date_trunc('month', o_orderdate) AS date)"},
        name="nation and month by order",
        skip_unchanged=True,
    )
    joined = p.join_rows(placed, revenue, name="orders with revenue")
    summed = p.select(
        joined, key="named_struct('nation', nation, 'month', month)", value="revenue", name="by nation and month"
    )
    p.aggregate(summed, aggregates={"revenue": ("value", "sum")}, name="revenue by nation and month")
    return p


def changes(spark: SparkSession, tables: dict[str, pds.Table]) -> dict[str, Callable[[], object]]:
    """Return what happens to the tables, by name."""
    orders, items = tables["orders"], tables["lineitem"]

    def reprice() -> None:
        some = pds.spark.read_table(spark, items).where("l_orderkey % 10007 = 3")
        doubled = some.withColumn("l_extendedprice", (some.l_extendedprice * 2).cast("decimal(15, 2)"))
        pds.spark.upsert(doubled, items)

    def postpone() -> None:
        some = pds.spark.read_table(spark, orders).where("o_orderkey % 1009 = 5")
        later = some.selectExpr("o_orderkey", "date_add(o_orderdate, 40) AS o_orderdate")
        merge = pds.spark.merge(later, orders)
        merge.when_matched_update({"o_orderdate": "source.o_orderdate"}).execute()

    def cancel() -> None:
        pds.spark.delete(spark, items, "l_orderkey % 1013 = 8")
        pds.spark.delete(spark, orders, "o_orderkey % 1013 = 8")

    return {
        "0.01 % of the items have other prices": reprice,
        "0.1 % of the orders are postponed": postpone,
        "0.1 % of the orders are deleted": cancel,
    }


class Demo:
    """The run: it updates, compares, and keeps a line for each update."""

    def __init__(self, spark: SparkSession, server: S3Server, tables: dict[str, pds.Table], p: pds.Pipeline) -> None:
        self.spark, self.server, self.tables, self.pipeline = spark, server, tables, p
        self.lines = [
            ["update", "keys changed", "s", "MB read", "MB written", "tasks", "anew: s", "MB read", "times faster"]
        ]
        self.is_right = True

    def refresh(self, name: str) -> None:
        """Update the pipeline, and compare it with all rows of the tables."""
        before, start = self.server.traffic(), time.perf_counter()
        result = self.pipeline.refresh()
        seconds, traffic = time.perf_counter() - start, self.server.traffic() - before
        before, start = self.server.traffic(), time.perf_counter()
        expected = self.recompute()
        anew, anew_traffic = time.perf_counter() - start, self.server.traffic() - before
        content = self.pipeline["revenue by nation and month"].read().to_pydict()
        pairs = zip(content["target_key"], content["value"], strict=True)
        if [(key["nation"], key["month"], value["revenue"]) for key, value in pairs] != expected:
            print(f"{name}: the pipeline and Spark SQL differ", flush=True)
            self.is_right = False
        changed = sum(result.stages[name].keys_in for name in KEYS)
        tasks = sum(stage.tasks for stage in result.stages.values())
        written = sum(stage.bytes_written for stage in result.stages.values())
        # The server's process reads what is sent to it, too.
        counts = [f"{(traffic.bytes_read - written) / 1e6:,.1f}", f"{written / 1e6:,.2f}", str(tasks)]
        others = [f"{anew:.1f}", f"{anew_traffic.bytes_read / 1e6:,.1f}", f"{anew / seconds:.1f}"]
        self.lines.append([name, f"{changed:,}", f"{seconds:.1f}", *counts, *others])
        print(f"{name}: {len(expected):,} rows compared", flush=True)

    def recompute(self) -> list[tuple[object, ...]]:
        """Compute the same by Spark SQL from all rows of the tables."""
        for name, table in self.tables.items():
            rows = pds.spark.read_table(self.spark, table.refresh(), columns=USED[name])
            rows.createOrReplaceTempView(name)
        return [tuple(row) for row in self.spark.sql(SQL).collect()]


def main() -> int:
    """Run it; the exit code."""
    scale = float(os.environ.get("PDS_SCALE", "1"))
    with S3Server.start() as server:
        spark = spark_session(cache_dir() / "demo" / "run")
        with pds.Store(server.url("demo"), storage_options=server.options()) as store:
            start = time.perf_counter()
            tables = load(spark, store, scale)
            rows = sum(table.scan().count() for table in tables.values())
            print(
                f"TPC-H scale factor {scale:g}: {rows:,} rows in tables, {time.perf_counter() - start:.1f} s",
                flush=True,
            )
            demo = Demo(spark, server, tables, declare(store, tables, spark))
            demo.refresh("all rows are new")
            for name, change in changes(spark, tables).items():
                change()
                demo.refresh(name)
        spark.stop()
    print_table("A pipeline on Spark, updated by what changed, and Spark SQL from all rows", demo.lines)
    print("\nEvery comparison holds." if demo.is_right else "\nTHE RESULTS DIFFER.")
    return 0 if demo.is_right else 1


if __name__ == "__main__":
    sys.exit(main())

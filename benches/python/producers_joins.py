"""Pipelines with joins: orders with their customers, and the revenue of TPC-H by order, customer, nation and month."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from producers_graphs import GROUP_ROWS, Graph, cached, cached_table, choose, query, write_by_duckdb
from producers_sums import INT, ORDER, ROWS_A_CUSTOMER, change_orders, order_files

import pds


def _customers(keys: np.ndarray, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    names = pa.array([f"customer {number:x}" for number in random.integers(0, 2**40, len(keys)).tolist()])
    nations = pa.array(random.integers(0, 25, len(keys)))
    return pa.table({"key": keys, "value": pa.StructArray.from_arrays([names, nations], ["name", "nation"])})


def _join_files(rows: int) -> dict[str, Path]:
    count = rows // ROWS_A_CUSTOMER
    customers = cached_table(f"customers-{count}", lambda: _customers(np.arange(count), 2))
    return order_files(rows) | {"customers": customers}


def _change_customers(rows: int, keys: int, seed: int) -> dict[str, pds.Changes]:
    chosen = choose(rows // ROWS_A_CUSTOMER, keys, seed)
    return {"customers": pds.Changes(_customers(chosen, 100 + seed))}


def _declare_join(p: pds.Pipeline, _: int) -> None:
    p.source("orders", key=INT, value=ORDER)
    p.source("customers", key=INT, value=pa.struct([("name", pa.string()), ("nation", INT)]))
    p.select("orders", key="customer", value={"number": "key", "amount": "amount"}, name="orders of customers")
    p.join_rows("orders of customers", "customers", name="joined")


JOINED = """
    SELECT o.value.customer AS key, o.key AS number, o.value.amount AS amount, c.value.name AS name,
        c.value.nation AS nation
    FROM orders o JOIN customers c ON o.value.customer = c.key ORDER BY 1, 2
"""


def _join_by_polars(sources: dict[str, Path], folder: Path) -> None:
    left = pl.scan_parquet(sources["orders"])
    left = left.select(pl.col("key").alias("number"), pl.col("value").struct.unnest())
    right = pl.scan_parquet(sources["customers"]).select(pl.col("key"), pl.col("value").struct.unnest())
    joined = left.join(right, left_on="customer", right_on="key")
    joined = joined.select("customer", "number", "amount", "name", "nation").sort("customer", "number")
    joined.collect().write_parquet(folder / "joined.parquet")


def _join_by_duckdb(sources: dict[str, Path], folder: Path) -> None:
    write_by_duckdb(sources, {"joined": JOINED}, folder)


EXPECTED = """
    SELECT c.value.nation, count(*), count(DISTINCT c.value.name), sum(o.value.amount)::BIGINT
    FROM orders o JOIN customers c ON o.value.customer = c.key GROUP BY 1 ORDER BY 1
"""
STORED = """
    SELECT value.nation, count(*), count(DISTINCT value.name), sum(value.amount)::BIGINT
    FROM joined GROUP BY 1 ORDER BY 1
"""


def _has_joined(pipeline: pds.Pipeline, _: int) -> bool:
    stored = query(pipeline, STORED, names=["joined"])
    return stored == query(pipeline, EXPECTED, names=["orders", "customers"])


JOIN = Graph(
    "orders joined with customers",
    _declare_join,
    _join_files,
    {"orders": change_orders, "customers": _change_customers},
    {"polars": _join_by_polars, "duckdb": _join_by_duckdb},
    _has_joined,
)


# -- TPC-H: revenue by order, by customer, by nation and month --------------------

ROWS_A_SCALE = 6_000_000
ROWS_OF = {
    "lineitems": (
        "lineitem",
        "l_orderkey",
        {"price": "l_extendedprice * 100", "discount": "l_discount * 100"},
    ),
    "orders": (
        "orders",
        "o_orderkey",
        {"customer": "o_custkey", "month": "year(o_orderdate) * 100 + month(o_orderdate)"},
    ),
    "customers": ("customer", "c_custkey", {"nation": "c_nationkey"}),
}


def _tpch_files(rows: int) -> dict[str, Path]:
    """The tables of about so many line items, as the sources have them: prices in cents, discounts in percent."""
    scale = f"{rows / ROWS_A_SCALE:g}"

    def make(name: str, path: Path) -> None:
        table, key, value = ROWS_OF[name]
        fields = ", ".join(f"{field} := ({text})::BIGINT" for field, text in value.items())
        tool = Path(sys.executable).with_name("tpchgen-cli")
        with TemporaryDirectory(dir=path.parent) as folder:
            flags = ["parquet", "-s", scale, "--tables", table, "--output-dir", folder]
            subprocess.run([tool, *flags], check=True, stdout=subprocess.DEVNULL)
            ordered = (
                duckdb.read_parquet(f"{folder}/{table}.parquet")
                .project(f"{key}::BIGINT AS key, struct_pack({fields}) AS value")
                .order("key")
            )
            ordered.write_parquet(str(path), compression="zstd", row_group_size=GROUP_ROWS)

    return {name: cached(f"tpch-{name}-{scale}", lambda path, name=name: make(name, path)) for name in ROWS_OF}


def _declare_tpch(p: pds.Pipeline, _: int) -> None:
    p.source("lineitems", key=INT, value=pa.struct([("price", INT), ("discount", INT)]))
    p.source("orders", key=INT, value=pa.struct([("customer", INT), ("month", INT)]))
    p.source("customers", key=INT, value=pa.struct([("nation", INT)]))
    revenue = {"revenue": ("revenue", "sum")}
    p.select("lineitems", value={"revenue": "price * (100 - discount)"}, name="revenues")
    p.aggregate("revenues", aggregates=revenue, name="by_order")
    p.join_rows("orders", "by_order", name="orders_with_revenue")
    p.select("orders_with_revenue", key="customer", value={"month": "month", "revenue": "revenue"}, name="of_customers")
    p.aggregate("of_customers", aggregates=revenue, name="by_customer")
    p.join_rows("of_customers", "customers", name="with_nations")
    # Months are numbers such as 199812.
    p.select("with_nations", key="nation * 1000000 + month", value={"revenue": "revenue"}, name="of_nations")
    p.aggregate("of_nations", aggregates=revenue, name="by_nation")


def _change_lineitems(rows: int, keys: int, seed: int) -> dict[str, pds.Changes]:
    """Orders get other line items."""
    numbers = pq.read_table(_tpch_files(rows)["orders"], columns=["key"])["key"].to_numpy()
    chosen = np.repeat(numbers[choose(len(numbers), keys, seed)], 4)
    random = np.random.default_rng(seed)
    figures = [pa.array(random.integers(low, high, len(chosen))) for low, high in ((90_000, 10_000_000), (0, 11))]
    value = pa.StructArray.from_arrays(figures, ["price", "discount"])
    return {"lineitems": pds.Changes(pa.table({"key": chosen, "value": value}))}


BY_ORDER = """
    SELECT key, sum(value.price * (100 - value.discount))::BIGINT AS revenue FROM lineitems GROUP BY 1 ORDER BY 1
"""
BY_CUSTOMER = """
    SELECT o.value.customer AS key, sum(r.revenue)::BIGINT AS revenue
    FROM orders o JOIN by_order r ON o.key = r.key GROUP BY 1 ORDER BY 1
"""
BY_NATION = """
    SELECT c.value.nation * 1000000 + o.value.month AS key, sum(r.revenue)::BIGINT AS revenue
    FROM orders o JOIN by_order r ON o.key = r.key JOIN customers c ON o.value.customer = c.key GROUP BY 1 ORDER BY 1
"""


def _tpch_by_duckdb(sources: dict[str, Path], folder: Path) -> None:
    queries = {"by_order": BY_ORDER, "by_customer": BY_CUSTOMER, "by_nation": BY_NATION}
    write_by_duckdb(sources, queries, folder)


def _tpch_by_polars(sources: dict[str, Path], folder: Path) -> None:
    tables = {name: pl.scan_parquet(path) for name, path in sources.items()}
    tables = {name: rows.select(pl.col("key"), pl.col("value").struct.unnest()) for name, rows in tables.items()}
    revenue = (pl.col("price") * (100 - pl.col("discount"))).sum().alias("revenue")
    by_order = tables["lineitems"].group_by("key").agg(revenue).sort("key").collect()
    by_order.write_parquet(folder / "by_order.parquet")
    of_customers = tables["orders"].join(by_order.lazy(), on="key")
    by_customer = of_customers.group_by("customer").agg(pl.col("revenue").sum()).sort("customer")
    by_customer.collect().write_parquet(folder / "by_customer.parquet")
    with_nations = of_customers.join(tables["customers"], left_on="customer", right_on="key")
    key = (pl.col("nation") * 1_000_000 + pl.col("month")).alias("key")
    by_nation = with_nations.group_by(key).agg(pl.col("revenue").sum()).sort("key")
    by_nation.collect().write_parquet(folder / "by_nation.parquet")


def _has_revenues(pipeline: pds.Pipeline, _: int) -> bool:
    expected = f"WITH by_order AS ({BY_ORDER}) {BY_NATION}"
    stored = "SELECT target_key, value.revenue FROM by_nation ORDER BY 1"
    names = ["lineitems", "orders", "customers"]
    return query(pipeline, stored, names=["by_nation"]) == query(pipeline, expected, names=names)


TPCH = Graph(
    "TPC-H, revenue by order, by customer, by nation and month",
    _declare_tpch,
    _tpch_files,
    {"orders": _change_lineitems},
    {"polars": _tpch_by_polars, "duckdb": _tpch_by_duckdb},
    _has_revenues,
)

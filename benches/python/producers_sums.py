"""Pipelines over orders: their amounts by customer, and the sums of these by country."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from producers_graphs import Graph, cached_table, choose, query, write_by_duckdb

import pds

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

INT = pa.int64()
ORDER = pa.struct([("customer", INT), ("amount", INT)])
ROWS_A_CUSTOMER = 10
ROWS_A_COUNTRY = 5_000
ROWS_A_REGION = 100_000


def orders(keys: np.ndarray, seed: int, total: int) -> pa.Table:
    """Orders of customers at random."""
    random = np.random.default_rng(seed)
    customers = pa.array(random.integers(0, total // ROWS_A_CUSTOMER, len(keys)))
    amounts = pa.array(random.integers(1, 1000, len(keys)))
    return pa.table({"key": keys, "value": pa.StructArray.from_arrays([customers, amounts], fields=[*ORDER])})


def order_files(rows: int) -> dict[str, Path]:
    """So many orders."""
    return {"orders": cached_table(f"orders-{rows}", lambda: orders(np.arange(rows), 1, rows))}


def change_orders(rows: int, keys: int, seed: int) -> dict[str, pds.Changes]:
    """Orders get another customer and amount."""
    return {"orders": pds.Changes(orders(choose(rows, keys, seed), 100 + seed, rows))}


def _declare_sums(p: pds.Pipeline, rows: int) -> None:
    """Orders by id (customer, amount), amounts by customer, sums by country; stages take batches in Python."""
    countries = count_countries(rows)
    source = p.source("orders", key=INT, value=ORDER)

    @p.producer(source, key=INT, value=INT, batch=True)
    def amounts(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column("value")
        return pa.record_batch(
            {
                "source_row": pa.array(np.arange(batch.num_rows)),
                "key": values.field("customer"),
                "value": values.field("amount"),
            }
        )

    @p.producer(amounts, key=INT, value=INT, batch=True)
    def by_country(batch: pa.RecordBatch) -> pa.RecordBatch:
        table = pa.table({"row": np.arange(batch.num_rows), "key": batch.column("key"), "value": batch.column("value")})
        sums = table.group_by("key", use_threads=False).aggregate([("row", "min"), ("value", "sum")])
        return pa.record_batch(
            {
                "source_row": sums["row_min"].combine_chunks(),
                "key": pa.array(sums["key"].to_numpy() % countries),
                "value": sums["value_sum"].combine_chunks(),
            }
        )


def _declare_chain(p: pds.Pipeline, rows: int) -> None:
    """The same and a third stage, without Python."""
    p.source("orders", key=INT, value=ORDER)
    p.select("orders", key="customer", value="amount", name="amounts")
    p.aggregate("amounts", aggregates={"sum": ("value", "sum")}, name="customers")
    p.select("customers", key=f"key % {count_countries(rows)}", value="sum", name="by_country")


def _declare_python_chain(p: pds.Pipeline, rows: int) -> None:
    """Three stages that are functions of Python, called key by key."""
    countries, regions = count_countries(rows), max(1, rows // ROWS_A_REGION)
    source = p.source("orders", key=INT, value=ORDER)

    @p.producer(source, key=INT, value=INT)
    def amounts(_: int, values: Iterable[dict[str, int]]) -> Iterable[tuple[int, int]]:
        for order in values:
            yield order["customer"], order["amount"]

    @p.producer(amounts, key=INT, value=INT)
    def by_country(customer: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
        yield customer % countries, sum(values)

    @p.producer(by_country, key=INT, value=INT)
    def by_region(country: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
        yield country % regions, sum(values)


CUSTOMERS = "SELECT value.customer AS key, sum(value.amount)::BIGINT AS sum FROM orders GROUP BY 1 ORDER BY 1"
COUNTRIES = "SELECT key % {} AS country, sum(sum)::BIGINT AS sum FROM customers GROUP BY 1 ORDER BY 1"
EXPECTED = "SELECT value.customer % ?, sum(value.amount)::BIGINT FROM orders GROUP BY 1 ORDER BY 1"
STORED = "SELECT target_key, sum(value)::BIGINT FROM by_country GROUP BY 1 ORDER BY 1"


def count_countries(rows: int) -> int:
    """So many that ten times the rows are in ten times the countries."""
    return max(1, rows // ROWS_A_COUNTRY)


def _sums_by_polars(sources: dict[str, Path], folder: Path) -> None:
    countries = count_countries(pq.read_metadata(sources["orders"]).num_rows)
    rows = pl.scan_parquet(sources["orders"]).select(pl.col("value").struct.unnest())
    sums = rows.group_by("customer").agg(pl.col("amount").sum()).sort("customer").collect()
    sums.write_parquet(folder / "customers.parquet")
    by_country = sums.group_by((pl.col("customer") % countries).alias("country")).agg(pl.col("amount").sum())
    by_country.sort("country").write_parquet(folder / "countries.parquet")


def _sums_by_duckdb(sources: dict[str, Path], folder: Path) -> None:
    countries = count_countries(pq.read_metadata(sources["orders"]).num_rows)
    write_by_duckdb(sources, {"customers": CUSTOMERS, "countries": COUNTRIES.format(countries)}, folder)


def _has_sums(pipeline: pds.Pipeline, rows: int) -> bool:
    expected = query(pipeline, EXPECTED, count_countries(rows), names=["orders"])
    return query(pipeline, STORED, names=["by_country"]) == expected


SUMS = Graph(
    "orders by customer and country, functions of batches",
    _declare_sums,
    order_files,
    {"orders": change_orders},
    {"polars": _sums_by_polars, "duckdb": _sums_by_duckdb},
    _has_sums,
)
CHAIN = Graph("select, aggregate, select", _declare_chain, order_files, {"orders": change_orders}, check=_has_sums)
PYTHON_CHAIN = Graph(
    "three functions of Python", _declare_python_chain, order_files, {"orders": change_orders}, check=_has_sums
)

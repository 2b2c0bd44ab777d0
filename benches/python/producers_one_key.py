"""Pipelines in which one key has all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from producers_graphs import Graph, cached_table, choose

import pds

if TYPE_CHECKING:
    from pathlib import Path

INT = pa.int64()


def _values(rows: int) -> dict[str, Path]:
    """Values in no order, none twice."""

    def make() -> pa.Table:
        return pa.table({"key": np.arange(rows), "value": np.random.default_rng(1).permutation(rows) * 1000})

    return {"orders": cached_table(f"values-{rows}", make)}


def _change_values(rows: int, keys: int, seed: int) -> dict[str, pds.Changes]:
    values = np.random.default_rng(100 + seed).integers(0, rows * 1000, keys)
    return {"orders": pds.Changes(pa.table({"key": choose(rows, keys, seed), "value": values}))}


def _declare_ends(p: pds.Pipeline, _: int) -> None:
    p.source("orders", key=INT, value=INT)
    p.select("orders", key="1", order_by="value", name="amounts")
    aggregates = {"n": "count"} | {name: ("value", name) for name in ("sum", "min", "max")}
    p.aggregate("amounts", aggregates=aggregates, name="totals")
    p.first("amounts", by="value", rows=10, name="least")


def _declare_unordered(p: pds.Pipeline, _: int) -> None:
    p.source("orders", key=INT, value=INT)
    p.select("orders", key="1", name="amounts")
    p.aggregate("amounts", aggregates={"sum": ("value", "sum"), "max": ("value", "max")}, name="totals")


def _declare_join(p: pds.Pipeline, _: int) -> None:
    p.source("orders", key=INT, value=INT)
    p.source("names", key=INT, value=pa.string())
    p.select("orders", key="1", name="amounts")
    p.join_rows("amounts", "names", name="joined")


def _rows_of_join(rows: int) -> dict[str, Path]:
    make = lambda: pa.table({"key": pa.array([1], INT), "value": ["the only one"]})  # noqa: E731 as a def is longer
    return _values(rows) | {"names": cached_table("names", make)}


def _change_name(_: int, keys: int, seed: int) -> dict[str, pds.Changes]:
    if keys != 1:
        raise ValueError("there is one name")
    return {"names": pds.Changes([(1, f"name {seed}")])}


ENDS = Graph("select in an order, aggregate, first", _declare_ends, _values, {"orders": _change_values})
UNORDERED = Graph("select, aggregate", _declare_unordered, _values, {"orders": _change_values})
JOIN = Graph("select, join_rows", _declare_join, _rows_of_join, {"orders": _change_values, "names": _change_name})

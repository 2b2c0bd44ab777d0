"""The number of distinct values of each key, against COUNT(DISTINCT) of DuckDB over all rows."""

from __future__ import annotations

import math
import random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import pds

pytestmark = pytest.mark.sampled(3)

COLUMNS = {
    "i": pa.int32(),
    "f": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "d": pa.decimal128(9, 2),
    "t": pa.timestamp("us"),
    "r": pa.struct([("x", pa.int64()), ("y", pa.string())]),
}
VALUE = pa.struct([("k", pa.string()), *COLUMNS.items()])
AGGREGATES: dict[str, Any] = {
    **{f"distinct_{column}": (column, "count_distinct") for column in COLUMNS},
    "n": "count",
    "total": ("i", "sum"),
    "least": ("i", "min"),
}


def declare(store: pds.Store, path: str = "p", **options: Any) -> pds.Pipeline:
    """Rows that are grouped by the field `k` of their value."""
    pipeline = pds.Pipeline(store, path)
    pipeline.source("rows", key=pa.int64(), value=VALUE)
    pipeline.select("rows", key="k", value={"k": "k", **{c: c for c in COLUMNS}}, name="by_key", **options)
    pipeline.aggregate("by_key", aggregates=AGGREGATES, name="counts")
    return pipeline


def make_row(rng: random.Random) -> dict[str, Any]:
    """A value of which any field may be null, and most have equal ones."""
    row = {
        "i": rng.randrange(3),
        "f": rng.choice([0.0, -0.0, math.nan, -math.nan, math.inf, 1.5]),
        "s": rng.choice(["", "a", "a\0", "é"]),
        "b": rng.random() < 0.5,
        "d": rng.randrange(3),
        "t": rng.randrange(3),
        "r": {"x": rng.choice([None, 1]), "y": rng.choice([None, "", "x"])},
    }
    row = {name: None if rng.random() < 0.3 else value for name, value in row.items()}
    return {"k": rng.choice([None, "a", "b", "c"]), **row}


def to_table(rows: dict[int, dict[str, Any]]) -> pa.Table:
    return pa.table({"key": pa.array(rows, pa.int64()), "value": pa.array(rows.values(), VALUE)})


def counted_by_duckdb(rows: dict[int, dict[str, Any]]) -> list[tuple[Any, ...]]:
    data = pa.table(to_table(rows)["value"].combine_chunks().flatten(), VALUE.names)
    counts = [f"count(DISTINCT {column})" for column in COLUMNS]
    aggregates = ", ".join(["k", *counts, "count(*)", "sum(i)", "min(i)"])
    with duckdb.connect() as connection:
        return connection.from_arrow(data).aggregate(aggregates, "k").order("k NULLS FIRST").fetchall()


def counted(pipeline: pds.Pipeline) -> list[tuple[Any, ...]]:
    table = pipeline["counts"].read()
    values = [tuple(value[name] for name in AGGREGATES) for value in table["value"].to_pylist()]
    return [(key, *value) for key, value in zip(table["target_key"].to_pylist(), values, strict=True)]


def change_rows(
    pipeline: pds.Pipeline, rows: dict[int, dict[str, Any]], rng: random.Random
) -> dict[int, dict[str, Any]]:
    """Upserts and deletes some rows; returns what is there then."""
    keys = rng.sample(range(60), rng.randrange(1, 25))
    deletes = [key for key in keys if key in rows and rng.random() < 0.4]
    changed = {key: make_row(rng) for key in keys if key not in deletes}
    pipeline.update(rows=pds.Changes(to_table(changed), deletes))
    return {key: row for key, row in (rows | changed).items() if key not in deletes}


@pytest.mark.parametrize("order_by", [None, "i"])
@pytest.mark.parametrize("seed", range(3))
def test_random_changes(memory_store: pds.Store, seed: int, order_by: str | None) -> None:
    rng = random.Random(seed)
    pipeline = declare(memory_store, **({} if order_by is None else {"order_by": order_by}))
    rows: dict[int, dict[str, Any]] = {}
    for _ in range(8):
        rows = change_rows(pipeline, rows, rng)
        assert counted(pipeline) == counted_by_duckdb(rows)
    assert pipeline.check().ok
    assert pipeline.explain().stages["counts"].cost == "group"


def test_two_counts_give_it_from_what_changed(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=pa.int64(), value=VALUE)
    pipeline.select("rows", key="named_struct('k', k, 's', s)", value="1", where="s IS NOT NULL", name="by_both")
    pipeline.aggregate("by_both", aggregates={"n": "count"}, name="texts")
    pipeline.select("texts", key="key.k", value="n", name="by_key")
    pipeline.aggregate("by_key", aggregates={"distinct": "count", "n": ("value", "sum")}, name="counts")
    rng = random.Random(1)
    rows: dict[int, dict[str, Any]] = {}
    for _ in range(8):
        rows = change_rows(pipeline, rows, rng)
        data = pa.table(to_table(rows)["value"].combine_chunks().flatten(), VALUE.names)
        with duckdb.connect() as connection:
            texts = connection.from_arrow(data).filter("s IS NOT NULL")
            counts = texts.aggregate("k, count(DISTINCT s), count(s)", "k")
            expected = counts.order("k NULLS FIRST").fetchall()
        actual = pipeline["counts"].read().to_pylist()
        assert [(row["target_key"], *row["value"].values()) for row in actual] == expected
    assert [pipeline.explain().stages[name].cost for name in ("texts", "counts")] == ["changes", "changes"]


def test_a_key_with_more_values_than_are_kept_in_memory(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=pa.int64(), value=pa.string())
    pipeline.select("rows", key="'all'", value="value", name="together")
    pipeline.aggregate("together", aggregates={"distinct": ("value", "count_distinct")}, name="counts")
    numbers = np.arange(400_000)
    texts = pa.array((numbers * 7919 % 300_007).astype(str))
    pipeline.update(rows=pds.Changes(pa.table({"key": numbers, "value": texts})))
    (counts,) = pipeline["counts"].read()["value"].to_pylist()
    assert counts == {"distinct": len(texts.unique())}
    pipeline.update(rows=pds.Changes([(0, "new"), (1, "new")]))
    (counts,) = pipeline["counts"].read()["value"].to_pylist()
    texts = pa.concat_arrays([pa.array(["new", "new"]), texts[2:]])
    assert counts == {"distinct": len(texts.unique())}


def test_what_has_no_distinct_values(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=pa.int64(), value=pa.list_(pa.int64()))
    with pytest.raises(pds.InvalidInput, match="needs a column"):
        pipeline.aggregate("rows", aggregates={"n": "count_distinct"}, name="a")
    with pytest.raises(pds.InvalidInput, match="cannot be computed"):
        pipeline.aggregate("rows", aggregates={"n": ("value", "count_distinct")}, name="a")

"""Distinct values and first rows: against DuckDB over the same rows, before and after random changes."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(2)

INT = pa.int64()
VALUE = pa.struct([("amount", pa.float64()), ("name", pa.string()), ("at", pa.timestamp("us"))])
NAN = float("nan")

FIRSTS: dict[str, dict[str, Any]] = {
    "one": {"by": "amount"},
    "last": {"by": "amount", "descending": True},
    "top three": {"by": ["amount", '"at"'], "rows": 3, "descending": [True, False]},
    "expression": {"by": "coalesce(length(name), 0) * 2", "rows": 2},
    "more than there are": {"by": "name", "rows": 1000},
}


def _row(rng: random.Random) -> dict[str, Any] | None:
    if rng.random() < 0.1:
        return None
    return {
        "amount": rng.choice([None, 0.0, -0.0, 1.5, -2.0, NAN, math.inf, -math.inf]),
        "name": rng.choice([None, "", "a", "bb", "É"]),
        "at": rng.choice([None, 0, 86_400_000_000, -1]),
    }


def _plain(value: Any) -> Any:
    """A value that is equal to itself, zeros alike."""
    if isinstance(value, dict):
        return {name: _plain(field) for name, field in value.items()}
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def _rows(pipeline: pds.Pipeline, name: str) -> list[str]:
    rows = pipeline[name].read().to_pylist()
    assert all(repr(row["target_key"]) == repr(row["source_key"]) for row in rows)
    return [repr((row["target_key"], _plain(row["value"]))) for row in rows]


def _by_duckdb(data: dict[int, list[Any]], first: dict[str, Any] | None) -> list[str]:
    keys = [key for key, values in data.items() for _ in values]
    values = [value for values in data.values() for value in values]
    rows = pa.table({"key": pa.array(keys, INT), "value": pa.array(values, VALUE), "place": range(len(keys))})
    assert rows is not None
    if first is None:
        found = duckdb.sql("select distinct key, value from rows").fetchall()
        return sorted(repr((key, _plain(value))) for key, value in found)
    by = [first["by"]] if isinstance(first["by"], str) else first["by"]
    directions = first.get("descending", False)
    directions = [directions] * len(by) if isinstance(directions, bool) else directions
    order = ", ".join(f"{text} {'desc' if one else 'asc'} nulls last" for text, one in zip(by, directions, strict=True))
    query = f"""
        select key, value from (
            select key, value, row_number() over (partition by key order by {order}, place) as n
            from (select key, value, place, value.amount as amount, value.name as name, value."at" as "at" from rows)
        ) where n <= {first.get("rows", 1)} order by key nulls first, n
    """  # noqa: S608 own text
    return [repr((key, _plain(value))) for key, value in duckdb.sql(query).fetchall()]


def _declare(store: pds.Store, path: str) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, path, memory_limit=1 << 20)
    pipeline.source("s", key=INT, value=VALUE)
    pipeline.distinct("s", name="distinct")
    for name, options in FIRSTS.items():
        pipeline.first("s", name=name, **options)
    return pipeline


@pytest.mark.parametrize("seed", range(4))
def test_random_changes(memory_store: pds.Store, seed: int) -> None:
    rng = random.Random(seed)
    data: dict[int, list[Any]] = {}
    pipeline = _declare(memory_store, "p")
    for _ in range(5):
        changes = {rng.randrange(30): [_row(rng) for _ in range(rng.choice([0, 1, 1, 5, 40]))] for _ in range(12)}
        upserts = [(key, value) for key, values in changes.items() for value in values]
        deletes = [key for key, values in changes.items() if not values and key in data]
        # Arrow takes numbers for timestamps.
        keys, values = [key for key, _ in upserts], [value for _, value in upserts]
        rows = pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array(values, VALUE)})
        pipeline.update(s=pds.Changes(rows, deletes))
        data = {key: values for key, values in sorted({**data, **changes}.items()) if values}
        assert sorted(_rows(pipeline, "distinct")) == _by_duckdb(data, None)
        for name, options in FIRSTS.items():
            assert _rows(pipeline, name) == _by_duckdb(data, options), name
    assert pipeline.check().ok


def test_more_rows_than_memory(memory_store: pds.Store) -> None:
    """A key whose rows are sorted in files; what comes first is what was there first."""
    pipeline = pds.Pipeline(memory_store, "p", memory_limit=1 << 20)
    pipeline.source("s", key=INT, value=INT)
    pipeline.first("s", by="value % 1000", rows=3, name="first")
    pipeline.distinct("s", name="distinct")
    count = 300_000
    table = pa.table({"key": pa.array([7] * count, INT), "value": pa.array(range(count), INT)})
    pipeline.update(s=pds.Changes(table))
    assert pipeline["first"].read()["value"].to_pylist() == [0, 1000, 2000]
    assert pipeline["distinct"].read()["value"].to_pylist() == list(range(count))


@pytest.mark.parametrize("feeders", [("strict", "loose"), ("loose", "strict")])
def test_a_null_of_any_feeder(memory_store: pds.Store, feeders: tuple[str, str]) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    for name in ("strict", "also strict"):
        pipeline.source(name, key=INT, value=pa.field("value", INT, nullable=False))
    pipeline.source("loose", key=INT, value=INT)
    pipeline.distinct(*feeders, name="distinct")
    pipeline.first(*feeders, by="value", descending=True, rows=3, name="first")
    pipeline.distinct("strict", "also strict", name="no null")
    pipeline.update(strict=pds.Changes([(1, 5)]))
    pipeline.update(loose=pds.Changes([(1, None), (1, 7), (1, 5), (2, None)]))
    for name, values in {"distinct": [5, 7, None], "first": [7, 5, 5]}.items():
        table = pipeline[name].read()
        assert table.schema.field("value").nullable
        assert list(zip(table["target_key"].to_pylist(), table["value"].to_pylist(), strict=True)) == [
            *((1, value) for value in values),
            (2, None),
        ]
    assert not pipeline["no null"].read().schema.field("value").nullable
    assert pipeline.check().ok


def test_an_update_changes_what_changed(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=INT, descending=True)
    pipeline.first("s", by="value", descending=True, name="greatest", skip_unchanged=True)
    pipeline.aggregate("greatest", aggregates={"n": "count"}, name="n")
    pipeline.update(s=pds.Changes([(1, 5), (1, 9), (2, 3)]))
    result = pipeline.update(s=pds.Changes([(1, 9), (1, 8)]))
    assert result.stages["greatest"].keys_out == 0
    assert pipeline["greatest"].read().to_pydict() == {"target_key": [2, 1], "source_key": [2, 1], "value": [3, 9]}
    result = pipeline.update(s=pds.Changes([(1, 8)], [2]))
    assert result.stages["greatest"].keys_out == 2
    assert pipeline["greatest"].read()["value"].to_pylist() == [8]


@pytest.mark.parametrize(
    ("declare", "error", "message"),
    [
        (lambda p: p.first("s", by=[], name="x"), pds.InvalidInput, "at least one expression"),
        (lambda p: p.first("s", by="value", rows=0, name="x"), pds.InvalidInput, "1 or more"),
        (lambda p: p.first("s", by="value", rows="2", name="x"), pds.InvalidType, "rows"),
        (lambda p: p.first("s", by="nothing", name="x"), pds.InvalidInput, "nothing"),
        (lambda p: p.first("s", by="random()", name="x"), pds.InvalidInput, "not deterministic"),
        (lambda p: p.first("s", by=1, name="x"), pds.InvalidType, "must be SQL"),
        (lambda p: p.first("s", by="value", descending=[True, False], name="x"), pds.InvalidInput, "directions"),
        (lambda p: p.first("s", by="value", descending=1, name="x"), pds.InvalidType, "descending"),
        (lambda p: p.first("s", "t", by="value", name="x"), pds.InvalidInput, "types of values"),
        (lambda p: p.distinct(name="x"), pds.InvalidInput, "feeder"),
    ],
)
def test_bad_arguments(
    memory_store: pds.Store, declare: Callable[[pds.Pipeline], object], error: type[Exception], message: str
) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=INT)
    pipeline.source("t", key=INT, value=pa.string())
    with pytest.raises(error, match=message):
        declare(pipeline)
    pipeline.distinct("s", name="x")

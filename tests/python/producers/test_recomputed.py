"""Aggregates of all values of a key, and of truth values: against those of DuckDB over all rows."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import pds

pytestmark = pytest.mark.sampled(3)

INT, TEXT = pa.int64(), pa.string()
COLUMNS = {
    "i": pa.int32(),
    "f": pa.float64(),
    "d": pa.decimal128(9, 2),
    "s": TEXT,
    "t": pa.timestamp("us"),
    "b": pa.bool_(),
}
VALUE = pa.struct([("k", TEXT), *COLUMNS.items()])
FRACTIONS = (0.0, 0.07, 0.5, 1.0)
# DuckDB's `count_if` of nulls alone is null.
TRUTHS = {"bool_and": "bool_and(b)", "bool_or": "bool_or(b)", "count_if": "count(*) FILTER (WHERE b)"}
# The aggregate, and what DuckDB computes; `{order}` is the order of the rows.
AGGREGATES: dict[str, tuple[Any, str]] = {
    **{f"median_{c}": ((c, "median"), f"median({c}::DOUBLE)") for c in "ifd"},
    **{
        f"cont_{c}_{at}": ((c, "percentile_cont", fraction), f"quantile_cont({c}::DOUBLE, {fraction})")
        for c in "ifd"
        for at, fraction in enumerate(FRACTIONS)
    },
    **{
        f"disc_{c}_{at}": ((c, "percentile_disc", fraction), f"quantile_disc({c}, {fraction})")
        for c in "ifdst"
        for at, fraction in enumerate(FRACTIONS)
    },
    "joined": (("s", "string_agg", ", "), "string_agg(s, ', ' ORDER BY {order})"),
    "run": (("s", "string_agg", ""), "string_agg(s, '' ORDER BY {order})"),
    **{f"list_{c}": ((c, "list"), f"list({c} ORDER BY {{order}})") for c in COLUMNS},
    **{name: (("b", name), text) for name, text in TRUTHS.items()},
    "n": ("count", "count(*)"),
    "least": (("i", "min"), "min(i)"),
}


def declare(store: pds.Store, path: str = "p", **options: Any) -> pds.Pipeline:
    """Rows that are grouped by the field `k` of their value."""
    pipeline = pds.Pipeline(store, path)
    pipeline.source("rows", key=INT, value=VALUE)
    pipeline.select("rows", key="k", value={"k": "k", **{c: c for c in COLUMNS}}, name="by_key", **options)
    aggregates = {name: aggregate for name, (aggregate, _) in AGGREGATES.items()}
    pipeline.aggregate("by_key", aggregates=aggregates, name="results")
    return pipeline


def make_row(rng: random.Random) -> dict[str, Any]:
    """A value of which any field may be null."""
    row = {
        "i": rng.randrange(-5, 5),
        "f": rng.choice([0.0, -1.5, 0.1, 1e300, 3.0, math.inf if rng.random() < 0.1 else 2.5]),
        "d": Decimal(rng.randrange(-500, 500)) / 100,
        "s": rng.choice(["", "a", "é", "zz"]),
        "t": dt.datetime(2024, 1, 1) + dt.timedelta(rng.randrange(9)),  # noqa: DTZ001 without a zone
        "b": rng.random() < 0.7,
    }
    row = {name: None if rng.random() < 0.3 else value for name, value in row.items()}
    return {"k": rng.choice([None, "a", "b", "c"]), **row}


def push(pipeline: pds.Pipeline, rows: dict[int, list[Any]], deletes: list[int]) -> None:
    keys = [key for key, values in rows.items() for _ in values]
    values = [value for values in rows.values() for value in values]
    table = pa.table({"key": pa.array(keys, INT), "value": pa.array(values, VALUE)})
    pipeline.update(rows=pds.Changes(table, deletes))


def by_duckdb(rows: dict[int, list[Any]], order: str) -> list[tuple[Any, ...]]:
    values = pa.array([value for _, values in sorted(rows.items()) for value in values], VALUE)
    columns = [*values.flatten(), pa.array(range(len(values)), INT)]
    data = pa.table(columns, [*VALUE.names, "place"])
    aggregates = ", ".join(["k", *(text.format(order=order) for _, text in AGGREGATES.values())])
    with duckdb.connect() as connection:
        return connection.from_arrow(data).aggregate(aggregates, "k").order("k NULLS FIRST").fetchall()


def read(pipeline: pds.Pipeline) -> list[tuple[Any, ...]]:
    table = pipeline["results"].read()
    values = [tuple(value[name] for name in AGGREGATES) for value in table["value"].to_pylist()]
    return [(key, *value) for key, value in zip(table["target_key"].to_pylist(), values, strict=True)]


def assert_same(results: list[tuple[Any, ...]], judged: list[tuple[Any, ...]]) -> None:
    assert [key for key, *_ in results] == [key for key, *_ in judged]
    for ours, theirs in zip(results, judged, strict=True):
        for name, value, other in zip(["k", *AGGREGATES], ours, theirs, strict=True):
            if name.startswith(("median", "cont")) and None not in (value, other):
                assert value == pytest.approx(other, rel=1e-14, abs=1e-14), name
            else:
                assert value == other, name


@pytest.mark.parametrize("order_by", [None, "i"])
@pytest.mark.parametrize("seed", range(3))
def test_random_changes(memory_store: pds.Store, seed: int, order_by: str | None) -> None:
    rng = random.Random(seed)
    options = {} if order_by is None else {"order_by": order_by}
    order = "place" if order_by is None else "i NULLS LAST, place"
    pipeline = declare(memory_store, **options)
    rows: dict[int, list[Any]] = {}
    for _ in range(8):
        keys = rng.sample(range(40), rng.randrange(1, 20))
        deletes = [key for key in keys if key in rows and rng.random() < 0.4]
        changed = {key: [make_row(rng) for _ in range(rng.randrange(1, 4))] for key in keys if key not in deletes}
        push(pipeline, changed, deletes)
        rows = {key: values for key, values in (rows | changed).items() if key not in deletes}
        assert_same(read(pipeline), by_duckdb(rows, order))
        if rng.random() < 0.3:
            pipeline.compact(min_delta=0)
    whole = declare(memory_store, "whole", **options)
    push(whole, rows, [])
    assert pipeline["results"].read() == whole["results"].read()
    assert pipeline.check().ok
    assert pipeline.check(sample=0.3).ok
    assert pipeline.explain().stages["results"].cost == "group"


def test_not_a_number_is_the_greatest_number(memory_store: pds.Store) -> None:
    fractions = (0.0, 0.07, 0.5, 0.7, 1.0)
    functions = {"percentile_cont": "quantile_cont", "percentile_disc": "quantile_disc"}
    names = [(name, fraction) for name in functions for fraction in fractions]
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=INT, value=pa.float64())
    aggregates: dict[str, Any] = {f"{name} {fraction}": ("value", name, fraction) for name, fraction in names}
    pipeline.aggregate("rows", aggregates=aggregates, name="results")
    for values in ([math.nan, 2.0, -0.0, 0.0, -math.nan, 1.0, None], [None, math.nan], [-0.0, 1.0]):
        pipeline.update(rows=pds.Changes([(1, value) for value in values]))
        rows = pa.table({"f": pa.array(values, pa.float64())})
        assert rows.num_rows == len(values)
        columns = ", ".join(f"{functions[name]}(f, {fraction})" for name, fraction in names)
        (expected,) = duckdb.sql(f"SELECT {columns} FROM rows").fetchall()  # noqa: S608 our own
        (results,) = pipeline["results"].read()["value"].to_pylist()
        assert list(results.values()) == pytest.approx(list(expected), nan_ok=True)


def test_truth_values_are_counted_by_what_changed(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=TEXT, value=pa.bool_())
    pipeline.aggregate("rows", aggregates={name: ("value", name) for name in TRUTHS}, name="results")
    assert pipeline.explain().stages["results"].cost == "changes"
    steps: list[list[bool | None]] = [[True, None], [True, False], [None], [False], [True, True]]
    for values in steps:
        pipeline.update(rows=pds.Changes([("a", value) for value in values]))
        rows = pa.table({"b": pa.array(values, pa.bool_())})
        assert rows.num_rows == len(values)
        (expected,) = duckdb.sql(f"SELECT {', '.join(TRUTHS.values())} FROM rows").fetchall()  # noqa: S608 our own
        (results,) = pipeline["results"].read()["value"].to_pylist()
        assert tuple(results.values()) == expected
    assert pipeline.check().ok


def test_feeders_are_one_after_the_other(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    for name in ("x", "y"):
        pipeline.source(name, key=INT, value=TEXT)
    aggregates: dict[str, Any] = {"joined": ("value", "string_agg", "-"), "all": ("value", "list")}
    pipeline.aggregate("x", "y", aggregates=aggregates, name="a")
    pipeline.update(y=pds.Changes([(1, "c"), (1, "b")]))
    pipeline.update(x=pds.Changes([(1, "z"), (1, None)]))
    (value,) = pipeline["a"].read()["value"].to_pylist()
    assert value == {"joined": "z-c-b", "all": ["z", None, "c", "b"]}
    pipeline.update(y=pds.Changes([(1, "d")]))
    (value,) = pipeline["a"].read()["value"].to_pylist()
    assert value == {"joined": "z-d", "all": ["z", None, "d"]}


def test_a_key_with_more_values_than_are_kept_in_memory(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=INT, value=INT)
    pipeline.select("rows", key="'all'", value={"n": "value", "s": "cast(value as varchar)"}, name="together")
    aggregates: dict[str, Any] = {
        "median": ("n", "median"),
        "low": ("n", "percentile_disc", 0.01),
        "text": ("s", "percentile_disc", 0.75),
    }
    pipeline.aggregate("together", aggregates=aggregates, name="a")
    numbers = np.arange(500_000)
    values = numbers * 7919 % 300_007
    steps: list[list[int]] = [[], [0, 1]]
    for changed in steps:
        values[changed] = 10**6
        pushed = numbers if not changed else np.array(changed)
        pipeline.update(rows=pds.Changes(pa.table({"key": pushed, "value": values[pushed]})))
        (results,) = pipeline["a"].read()["value"].to_pylist()
        texts = sorted(values.astype(str).tolist())
        assert results == {
            "median": float(np.median(values)),
            "low": int(np.sort(values)[5_000 - 1]),
            "text": texts[375_000 - 1],
        }


@pytest.mark.parametrize("aggregate", [("value", "string_agg", ","), ("value", "list")], ids=str)
def test_texts_of_a_key_are_bounded(memory_store: pds.Store, aggregate: Any) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=INT, value=TEXT)
    pipeline.aggregate("rows", aggregates={"all": aggregate}, name="a")
    with pytest.raises(pds.InvalidInput, match=r'"a", key 1.*"all".*more than 67108864 bytes'):
        pipeline.update(rows=pds.Changes([(1, "x" * 1_000_000)] * 70 + [(2, "y")]))
    assert pipeline.version == 0
    pipeline.update(rows=pds.Changes([(1, "x" * 1_000_000)] * 20 + [(2, "y")]))
    joined = [len("".join(value["all"]).replace(",", "")) for value in pipeline["a"].read()["value"].to_pylist()]
    assert joined == [20_000_000, 1]


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.large_string(), ["b", None, "a"]),
        (pa.string_view(), ["b" * 40, None, "a"]),
        (pa.dictionary(pa.int8(), TEXT), ["b", None, "a"]),
        (pa.list_(INT), [[1, None], None, []]),
        (pa.struct([("x", INT), ("y", TEXT)]), [{"x": 1, "y": None}, None, {"x": None, "y": "b"}]),
        (pa.binary(2), [b"ab", None, b"cd"]),
        (pa.bool_(), [True, None, False]),
    ],
    ids=str,
)
def test_types(memory_store: pds.Store, data_type: pa.DataType, values: list[Any]) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=INT, value=pa.struct([("c", data_type)]))
    is_text = values[2] == "a"
    aggregates: dict[str, Any] = {"all": ("c", "list")}
    if is_text:
        aggregates |= {"joined": ("c", "string_agg", "+"), "first": ("c", "percentile_disc", 0.5)}
    pipeline.aggregate("rows", aggregates=aggregates, name="a")
    for count in (3, 2):
        fields = pa.StructArray.from_arrays([pa.array(values[:count], data_type)], ["c"])
        pipeline.update(rows=pds.Changes(pa.table({"key": pa.array([1] * count), "value": fields})))
        (result,) = pipeline["a"].read()["value"].to_pylist()
        texts = [value for value in values[:count] if value is not None]
        expected = {"joined": "+".join(texts), "first": min(texts)} if is_text else {}
        assert result == {"all": values[:count], **expected}
    assert pipeline.check().ok


@pytest.mark.parametrize(
    ("aggregate", "error", "message"),
    [
        ("median", pds.InvalidInput, "needs a column"),
        (("text", "median"), pds.InvalidInput, "Utf8 is not a number"),
        (("number", "string_agg", ","), pds.InvalidInput, "Int64 is not a text"),
        (("number", "bool_and"), pds.InvalidInput, "Int64 is not a truth value"),
        (("items", "percentile_disc", 0.5), pds.InvalidInput, "has no order"),
        (("number", "percentile_cont"), pds.InvalidInput, "fraction .* is missing"),
        (("number", "percentile_cont", 1.5), pds.InvalidInput, "must be 0 to 1, not 1.5"),
        (("number", "percentile_cont", math.nan), pds.InvalidInput, "must be 0 to 1, not nan"),
        (("number", "percentile_disc", "0.5"), pds.InvalidType, "must be a number"),
        (("text", "string_agg"), pds.InvalidInput, "delimiter .* is missing"),
        (("text", "string_agg", 1), pds.InvalidType, "must be a str"),
        (("number", "median", 0.5), pds.InvalidInput, "median takes a column only; leave out 0.5"),
        (("number", "percentile_cont", 0.5, 1), pds.InvalidType, "pair of column and function"),
        ((None, "count"), pds.InvalidType, "pair of column and function"),
    ],
)
def test_bad_aggregates(memory_store: pds.Store, aggregate: Any, error: type[Exception], message: str) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    value = pa.struct([("text", TEXT), ("number", INT), ("items", pa.list_(INT))])
    pipeline.source("rows", key=INT, value=value)
    with pytest.raises(error, match=message):
        pipeline.aggregate("rows", aggregates={"x": aggregate}, name="a")
    pipeline.aggregate("rows", aggregates={"x": "count"}, name="a")

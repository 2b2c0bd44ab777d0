"""Aggregates, computed by what changed: against those of all rows by DuckDB, pyarrow and math.fsum."""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import json
import math
import random
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(2)

D = decimal.Decimal
INT, TEXT = pa.int64(), pa.string()
KEYS = [None, "a", "b", "c"]
VALUE = pa.struct(
    [
        ("i", pa.int32()),
        ("u", pa.uint64()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("d", pa.decimal128(12, 3)),
        ("w", pa.decimal256(50, 2)),
        ("s", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("b", pa.bool_()),
        ("e", pa.dictionary(pa.int8(), pa.string())),
    ]
)
SPREADS = ("variance", "stddev", "var_pop", "stddev_pop")
AGGREGATES = {"n": "count"} | {
    f"{function}_{column}": (column, function)
    for column in VALUE.names
    for function in ("count", "sum", "mean", "min", "max", *SPREADS)
    if function in ("count", "min", "max") or column in "iufgdw"
}


def declare(store: pds.Store, path: str = "p", **options: Any) -> pds.Pipeline:
    """A source of orders, that are grouped by the field `k` of their value, and aggregated."""
    pipeline = pds.Pipeline(store, path)
    pipeline._page_rows, pipeline._file_rows = options.get("page_rows"), options.get("file_rows")
    value = pa.struct([("k", TEXT), *VALUE])
    orders = pipeline.source("orders", key=INT, value=value)

    @pipeline.producer(orders, key=TEXT, value=VALUE, batch=True)
    def by_key(batch: pa.RecordBatch) -> pa.RecordBatch:
        fields = batch["value"].flatten()
        values = pa.StructArray.from_arrays(fields[1:], fields=list(VALUE))
        rows = pa.array(range(batch.num_rows), INT)
        return pa.RecordBatch.from_arrays([rows, fields[0], values], ["source_row", "key", "value"])

    pipeline.aggregate(by_key, aggregates=AGGREGATES, name="totals")
    return pipeline


FLOATS = [0.1, -0.0, 1e16, -1e16, 1e-300, 5e-324, 1.7e308, 3.0]
STRANGE = [math.inf, -math.inf, math.nan]


def make_value(rng: random.Random) -> dict[str, Any]:
    """A value, any field of which may be null."""

    def maybe(make: Callable[[], Any]) -> Any:
        return None if rng.random() < 0.2 else make()

    floats = FLOATS if rng.random() < 0.97 else STRANGE
    return {
        "k": rng.choice(KEYS),
        "i": maybe(lambda: rng.randrange(-(2**31), 2**31)),
        "u": maybe(lambda: rng.randrange(2**60)),
        "f": maybe(lambda: rng.choice(floats) * rng.choice([1, -1, rng.random()])),
        "g": maybe(lambda: rng.choice([0.1, 2.5, -1e30])),
        "d": maybe(lambda: D(rng.randrange(-(10**12) + 1, 10**12)).scaleb(-3)),
        "w": maybe(lambda: D(rng.randrange(10**49)).scaleb(-2)),
        "s": maybe(lambda: rng.choice(["", "x", "é", "zz"]) * rng.randrange(3)),
        "t": maybe(lambda: rng.randrange(10**12)),
        "b": maybe(lambda: rng.random() < 0.5),
        "e": maybe(lambda: rng.choice("pqr")),
    }


def push(pipeline: pds.Pipeline, rows: dict[int, list[Any]], deletes: list[int]) -> None:
    keys = [key for key, values in rows.items() for _ in values]
    values = [value for values in rows.values() for value in values]
    node = pipeline._nodes["orders"].fields.field("value").type
    # pyarrow makes no dictionaries out of a struct's values.
    fields = [pa.array([v[f.name] for v in values], _plain(f.type)).cast(f.type) for f in node]
    table = pa.table({"key": pa.array(keys, INT), "value": pa.StructArray.from_arrays(fields, fields=list(node))})
    pipeline.update(orders=pds.Changes(table, deletes))


def _plain(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def expected(rows: dict[int, list[Any]]) -> dict[str | None, dict[str, Any]]:
    """What all rows make, in plain Python."""
    groups: dict[str | None, list[Any]] = {}
    for values in rows.values():
        for value in values:
            groups.setdefault(value["k"], []).append(value)
    return {key: _aggregate(values) for key, values in groups.items()}


def _aggregate(values: list[Any]) -> dict[str, Any]:
    results: dict[str, Any] = {"n": len(values)}
    for name, (column, function) in ((n, a) for n, a in AGGREGATES.items() if n != "n"):
        present = [value[column] for value in values if value[column] is not None]
        if column == "g":
            present = pa.array(present, pa.float32()).to_pylist()
        if function == "count":
            results[name] = len(present)
        elif not present:
            results[name] = None
        elif function in SPREADS:
            results[name] = _spread([float(x) for x in present], function)
        elif function in ("min", "max"):
            floats = isinstance(present[0], float)
            nans = [x for x in present if floats and math.isnan(x)]
            others = [x + 0.0 if floats else x for x in present if not (floats and math.isnan(x))]
            least = function == "min"
            results[name] = (min if least else max)(others) if others and (least or not nans) else nans[0]
        else:
            results[name] = _sum(present, len(present) if function == "mean" else None)
    return results


def _sum(values: list[Any], count: int | None) -> Any:
    if isinstance(values[0], float):
        strange = [x for x in values if not math.isfinite(x)]
        total: Any = sum(strange) if strange else _exact(values)
        return total if count is None else total / count
    if isinstance(values[0], decimal.Decimal):
        with decimal.localcontext() as context:
            context.prec = 100
            exact = sum(values)
        return exact if count is None else float(exact) / count
    return sum(values) if count is None else float(sum(values)) / count


def _spread(values: list[float], function: str) -> float | None:
    degrees = len(values) - (function in ("variance", "stddev"))
    if degrees == 0:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    if any(math.isinf(x * x) for x in values):
        return math.inf
    exact = [fractions.Fraction(x) for x in values]
    distances = len(exact) * sum(x * x for x in exact) - sum(exact) ** 2
    variance = float(distances / (len(exact) * degrees))
    return math.sqrt(variance) if function.startswith("stddev") else variance


def _exact(values: list[float]) -> float:
    total = sum(map(fractions.Fraction, values))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def plain(value: Any) -> Any:
    """Of a result, something that equals itself, and tells zeros apart."""
    return repr(value) if isinstance(value, float) else value


def results(pipeline: pds.Pipeline) -> dict[str | None, dict[str, Any]]:
    table = pipeline["totals"].read()
    assert table["target_key"].equals(table["source_key"])
    values = table["value"].combine_chunks()
    types = {f.name: f.type for f in values.type}
    rows = zip(
        table["target_key"].to_pylist(),
        *(values.field(n).cast(_comparable(t)).to_pylist() for n, t in types.items()),
        strict=True,
    )
    return {key: dict(zip(types, row, strict=True)) for key, *row in rows}


def _comparable(data_type: pa.DataType) -> pa.DataType:
    return INT if pa.types.is_timestamp(data_type) else data_type


def assert_same(found: dict[str | None, dict[str, Any]], wanted: dict[str | None, dict[str, Any]]) -> None:
    spreads: list[list[Any]] = []
    for groups in (found, {key: wanted[key] for key in found if key in wanted}, wanted):
        spreads.append(
            [group.pop(name) for group in groups.values() for name in list(group) if name.startswith(SPREADS)]
        )
        for group in groups.values():
            group.update({name: plain(value) for name, value in group.items()})
    assert found == wanted
    for value, other in zip(*spreads[:2], strict=True):
        assert (value is None) == (other is None)
        assert value is None or value == pytest.approx(other, rel=1e-14, abs=0.0, nan_ok=True)


LONGER = [pytest.mark.slow, pytest.mark.soak]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=LONGER) for seed in range(4, 12))])
def test_random_changes(memory_store: pds.Store, seed: int) -> None:
    rng = random.Random(seed)
    pipeline = declare(memory_store, page_rows=rng.choice([None, 4]), file_rows=rng.choice([None, 7]))
    rows: dict[int, list[Any]] = {}
    for _ in range(8):
        keys = rng.sample(range(30), rng.randrange(1, 12))
        deletes = [key for key in keys if key in rows and rng.random() < 0.4]
        changed = {key: [make_value(rng) for _ in range(rng.randrange(1, 4))] for key in keys if key not in deletes}
        push(pipeline, changed, deletes)
        rows = {key: values for key, values in (rows | changed).items() if key not in deletes}
        assert_same(results(pipeline), expected(rows))
        if rng.random() < 0.3:
            pipeline.compact(min_delta=0)
    # States, too, are those that all rows have.
    whole = declare(memory_store, "whole")
    push(whole, rows, [])
    assert stored_states(memory_store, pipeline) == stored_states(memory_store, whole)
    assert pipeline.check().ok
    assert pipeline.check(sample=0.2).ok


def stored_states(store: pds.Store, pipeline: pds.Pipeline) -> dict[str | None, bytes]:
    """The column that readers do not see, from a file by another reader."""
    pipeline.compact(min_delta=0)
    manifest = json.loads(pipeline._open().manifest())
    (node,) = (node for node in manifest["nodes"] if node["name"] == "totals")
    states: dict[str | None, bytes] = {}
    for run in node["content"]:
        for file in run["files"]:
            data = store.read_bytes(f"{pipeline.path}/{file['name']}")
            table = pq.read_table(pa.BufferReader(data))
            assert table.schema.names == ["target_key", "source_key", "value", "state"]
            states.update(zip(table["target_key"].to_pylist(), table["state"].to_pylist(), strict=True))
    return states


def declare_sums(store: pds.Store, path: str = "p", **options: Any) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, path)
    numbers = pipeline.source("numbers", key=TEXT, value=INT)
    aggregates = {"n": "count", "total": ("value", "sum"), "least": ("value", "min")}
    pipeline.aggregate(numbers, aggregates=aggregates, name="sums", **options)
    return pipeline


def sums(pipeline: pds.Pipeline, name: str = "sums") -> dict[str, tuple[Any, ...]]:
    table = pipeline[name].read()
    values = [tuple(value.values()) for value in table["value"].to_pylist()]
    return dict(zip(table["target_key"].to_pylist(), values, strict=True))


def test_a_sum_that_does_not_fit(memory_store: pds.Store) -> None:
    pipeline = declare_sums(memory_store)
    pipeline.update(numbers=pds.Changes([("a", 2**63 - 1), ("b", 1)]))
    before = {str(info.path) for info in memory_store.list_files("", recursive=True)}
    with pytest.raises(pds.InvalidInput, match=r'"sums", key a.*"total".*9223372036854775808 does not fit int64'):
        pipeline.update(numbers=pds.Changes([("a", 2**63 - 1), ("a", 1)]))
    assert {str(info.path) for info in memory_store.list_files("", recursive=True)} == before
    # What is too large on the way is none in the end.
    pipeline.update(numbers=pds.Changes([("a", 2**63 - 1), ("a", 5), ("a", -5)]))
    assert sums(pipeline) == {"a": (3, 2**63 - 1, -5), "b": (1, 1, 1)}


def test_what_is_hidden_is_not_seen(memory_store: pds.Store) -> None:
    pipeline = declare_sums(memory_store, skip_unchanged=True)
    pipeline.update(numbers=pds.Changes([("a", 1), ("b", 2)]))
    table = pipeline["sums"]
    assert table.read().schema.names == ["target_key", "source_key", "value"]
    assert table.read(["a"]).schema.names == ["target_key", "source_key", "value"]
    assert table.changes(1).schema.names == ["type", "key", "value"]
    assert table.lineage(["a"]) == {"numbers": ["a"]}
    assert table.key_mappings().to_pydict() == {"source_key": ["a", "b"], "target_key": ["a", "b"]}


def test_states_that_change_behind_equal_results(memory_store: pds.Store) -> None:
    """The sum stays, and its parts do not: later sums know the parts, and no stage behind it is called."""
    called = []
    pipeline = pds.Pipeline(memory_store, "p")
    numbers = pipeline.source("numbers", key=TEXT, value=INT)
    pipeline.aggregate(numbers, aggregates={"total": ("value", "sum")}, name="sums", skip_unchanged=True)

    @pipeline.producer("sums", key=TEXT, value=INT)
    def after(key: str, values: Any) -> Any:
        called.append(key)
        for value in values:
            yield key, value["total"]

    pipeline.update(numbers=pds.Changes([("a", 1), ("a", 2), ("b", 7)]))
    called.clear()
    pipeline.update(numbers=pds.Changes([("a", 3)]))
    assert called == []
    assert pipeline["sums"].changes(2).num_rows == 0
    pipeline.update(numbers=pds.Changes([("a", 4), ("b", 7)]))
    assert sums(pipeline) == {"a": (4,), "b": (7,)}
    pipeline.update(numbers=pds.Changes(deletes=["a"]))
    assert sums(pipeline) == {"b": (7,)}


def test_feeders_and_aggregates_of_aggregates(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    for name in ("x", "y"):
        pipeline.source(name, key=TEXT, value=INT, descending=True)
    pipeline.aggregate("x", "y", aggregates={"total": ("value", "sum"), "greatest": ("value", "max")}, name="sums")

    @pipeline.producer("sums", key=pa.bool_(), value=INT)
    def by_sign(_key: str, values: Any) -> Any:
        for value in values:
            yield value["total"] >= 0, value["total"]

    pipeline.aggregate(by_sign, aggregates={"keys": "count", "total": ("value", "sum")}, name="signs")
    pipeline.update(x=pds.Changes([("a", 5), ("b", -1)]), y=pds.Changes([("a", 6), ("c", 2)]))
    assert sums(pipeline) == {"c": (2, 2), "b": (-1, -1), "a": (11, 6)}
    assert list(sums(pipeline)) == ["c", "b", "a"]
    assert sums(pipeline, "signs") == {False: (1, -1), True: (2, 13)}
    pipeline.update(y=pds.Changes([("b", 1)], ["a"]))
    assert sums(pipeline) == {"c": (2, 2), "b": (0, 1), "a": (5, 5)}
    assert sums(pipeline, "signs") == {True: (3, 7)}
    pipeline.update(x=pds.Changes(deletes=["a", "b"]), y=pds.Changes(deletes=["b", "c"]))
    assert sums(pipeline) == sums(pipeline, "signs") == {}


def test_variances_of_great_and_tiny_values(memory_store: pds.Store) -> None:
    """The squares and the result fit a double; the sum of squares times the number of values does not."""
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=pa.float64())
    pipeline.aggregate("s", aggregates={name: ("value", name) for name in SPREADS}, name="spreads")
    groups = {
        1: [1.3e154, -1.3e154] * 50,
        2: [1e-150, 3e-150],
        3: [1e150] * 99 + [2e150],
        4: [1e9 + n for n in range(9)],
    }
    pipeline.update(s=pds.Changes([(key, value) for key, values in groups.items() for value in values]))
    for row in pipeline["spreads"].read().to_pylist():
        values = groups[row["target_key"]]
        assert row["value"] == pytest.approx({name: _spread(values, name) for name in SPREADS}, rel=1e-14, abs=0.0)


def test_a_constant_key_without_rows(memory_store: pds.Store) -> None:
    """As GROUP BY of a constant: no rows are no group, also where all leave; with the next one it comes back."""
    functions = {"sum": "fsum", "mean": "avg", "min": "min", "max": "max", "median": "median", "bool_or": "bool_or"}
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("numbers", key=INT, value=INT)
    pipeline.select("numbers", key="'all'", value={"n": "value", "b": "value > 1"}, name="together")
    aggregates: dict[str, Any] = {"rows": "count", "distinct": ("n", "count_distinct")}
    aggregates |= {name: ("b" if name == "bool_or" else "n", name) for name in functions}
    pipeline.aggregate("together", aggregates=aggregates, name="totals")
    texts = [f"{text}({'n > 1' if name == 'bool_or' else 'n'})" for name, text in functions.items()]
    pipeline.update(numbers=pds.Changes(pa.table({"key": pa.array([], INT), "value": pa.array([], INT)})))
    assert pipeline["totals"].read().num_rows == 0
    before: dict[int, int | None] = {}
    steps: list[dict[int, int | None]] = [{1: None}, {1: 5, 2: None}, {}, {3: 1}, {3: None}, {}]
    for numbers in steps:
        left = [key for key in before if key not in numbers]
        pipeline.update(numbers=pds.Changes(list(numbers.items()), left))
        rows = pa.table({"n": pa.array(numbers.values(), INT)})
        assert rows.num_rows == len(numbers)
        query = f"SELECT count(*), count(DISTINCT n), {', '.join(texts)} FROM rows HAVING count(*) > 0"  # noqa: S608 our own
        expected = duckdb.sql(query).fetchall()
        assert [tuple(value.values()) for value in pipeline["totals"].read()["value"].to_pylist()] == expected
        kind = 2 if not numbers else 1 if before else 0
        assert pipeline["totals"].changes()["type"].to_pylist() == [kind]
        before = numbers
    assert pipeline.check().ok


def test_a_row_of_a_large_group_costs_what_changed(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    rows = pipeline.source("rows", key=INT, value=INT)

    @pipeline.producer(rows, key=TEXT, value=INT, batch=True)
    def as_one(batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = pa.array(["all"] * batch.num_rows)
        return pa.RecordBatch.from_arrays(
            [pa.array(range(batch.num_rows), INT), keys, batch["value"]], ["source_row", "key", "value"]
        )

    aggregates = {"n": "count"} | {f: ("value", f) for f in ("sum", "mean", "min", "max")}
    pipeline.aggregate(as_one, aggregates=aggregates, name="totals")
    count = 300_000
    rng = random.Random(1)
    values = [rng.randrange(10**12) for _ in range(count)]
    table = pa.table({"key": range(count), "value": pa.array(values, INT)})
    stages = pipeline.update(rows=pds.Changes(table)).stages.values()
    built = sum(stage.bytes_written for stage in stages)
    read = memory_store.metrics()["bytes_read"]
    result = pipeline.update(rows=pds.Changes([(1000, 10**12 - 1)]))
    read = memory_store.metrics()["bytes_read"] - read
    written = sum(stage.bytes_written for stage in result.stages.values())
    values[1000] = 10**12 - 1
    (value,) = pipeline["totals"].read()["value"].to_pylist()
    total = sum(values)
    assert value == {"n": count, "sum": total, "mean": total / count, "min": min(values), "max": max(values)}
    assert result.stages["totals"].keys_in == 1
    assert read + written < built / 20, (read, written, built)


@pytest.mark.parametrize(
    ("data_type", "functions", "first", "second"),
    [
        (pa.null(), {"count": 0}, None, None),
        (pa.list_(INT), {"count": 1}, [1], None),
        (pa.string_view(), {"count": 2, "min": "a" * 40, "max": "b"}, "b", "a" * 40),
        (pa.binary(2), {"min": b"aa", "max": b"bb"}, b"bb", b"aa"),
        (pa.duration("s"), {"min": dt.timedelta(seconds=1), "max": dt.timedelta(seconds=2)}, 1, 2),
        (pa.decimal256(76, 1), {"min": D(1), "count": 2}, D(1), D(2)),
        (pa.decimal128(38, 0), {"sum": D(10**38 - 1), "mean": (10**38 - 1) / 2}, D(10**38 - 2), D(1)),
        (pa.float16(), {"sum": 3.5, "max": 2.0}, np.float16(1.5), np.float16(2.0)),
        (pa.struct([("x", INT)]), {"min": {"x": 1}, "max": {"x": 2}}, {"x": 2}, {"x": 1}),
    ],
)
def test_types(
    memory_store: pds.Store, data_type: pa.DataType, functions: dict[str, Any], first: Any, second: Any
) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    # A field, since those of a value that is a struct are the columns.
    pipeline.source("rows", key=INT, value=pa.struct([("c", data_type)]))
    pipeline.aggregate("rows", aggregates={name: ("c", name) for name in functions}, name="totals")
    values = pa.StructArray.from_arrays([pa.array([first, second], data_type)], ["c"])
    pipeline.update(rows=pds.Changes(pa.table({"key": pa.array([1, 1]), "value": values})))
    assert pipeline["totals"].read()["value"].to_pylist() == [functions]
    pipeline.update(rows=pds.Changes(pa.table({"key": pa.array([1]), "value": values[:1]})))
    assert pipeline.check().ok
    assert pipeline.check(sample=0.2).ok


def test_many_batches_of_groups(memory_store: pds.Store) -> None:
    """Results of many small batches, old and new ones in turn."""
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline._page_rows, pipeline._file_rows = 2, 8
    pipeline.source("numbers", key=INT, value=INT)
    pipeline.select("numbers", key="key / 3", name="thirds")
    pipeline.aggregate("thirds", aggregates={f: ("value", f) for f in ("min", "max")}, name="sums")
    rows = {key: key * 7919 % 1000 for key in range(600)}
    pipeline.update(numbers=pds.Changes(list(rows.items())))
    for step in (2, 5):
        changed = {key: (key * 31 * step) % 1000 for key in range(0, 600, step)}
        rows |= changed
        pipeline.update(numbers=pds.Changes(list(changed.items())))
        groups = [[rows[key] for key in range(n, n + 3)] for n in range(0, 600, 3)]
        assert sums(pipeline) == {n: (min(group), max(group)) for n, group in enumerate(groups)}


def test_definitions(memory_store: pds.Store) -> None:
    pipeline = declare_sums(memory_store)
    pipeline.update(numbers=pds.Changes([("a", 1), ("a", 3)]))
    other = pds.Pipeline(memory_store, "p")
    other.source("numbers", key=TEXT, value=INT)
    other.aggregate("numbers", aggregates={"n": "count"}, name="sums")
    with pytest.raises(pds.DefinitionChanged, match="types of its key or value"):
        other.update(numbers=pds.Changes([("b", 1)]))
    other.rebuild("sums")
    assert sums(other) == {"a": (2,)}
    again = pds.Pipeline(memory_store, "p")
    again.source("numbers", key=TEXT, value=INT)
    aggregates = {"n": ("value", "count")}
    again.aggregate("numbers", aggregates=aggregates, name="sums")
    with pytest.raises(pds.DefinitionChanged, match="options"):
        again.update(numbers=pds.Changes([("b", 1)]))
    again.rebuild()
    again.update(numbers=pds.Changes([("a", None), ("b", 1)]))
    assert sums(again) == {"a": (0,), "b": (1,)}


@pytest.mark.parametrize(
    ("aggregates", "error", "message"),
    [
        ({}, pds.InvalidInput, "needs an aggregate"),
        ([("n", "count")], pds.InvalidType, "must be a dict"),
        ({"n": "sum"}, pds.InvalidInput, "needs a column"),
        ({"n": 1}, pds.InvalidType, "pair of column and function"),
        ({"n": ("value", "mode")}, pds.InvalidInput, "unknown function 'mode' of the aggregate 'n'.*'median'"),
        ({"n": ("price", "sum")}, pds.InvalidInput, 'column "price" does not exist; the value has \\["value"\\]'),
        ({"n": ("value", "sum")}, pds.InvalidInput, '"n" cannot be computed: Utf8 is not a number'),
        ({"": "count"}, pds.InvalidInput, "an aggregate needs a name"),
    ],
)
def test_bad_aggregates(memory_store: pds.Store, aggregates: Any, error: type[Exception], message: str) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("texts", key=INT, value=TEXT)
    with pytest.raises(error, match=message):
        pipeline.aggregate("texts", aggregates=aggregates, name="sums")
    pipeline.aggregate("texts", aggregates={"n": "count"}, name="sums")

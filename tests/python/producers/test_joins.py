"""Declared joins: against DuckDB over all rows of both sides, and against a pipeline that is built anew."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(3)

INT, TEXT = pa.int64(), pa.string()
KINDS: tuple[Any, ...] = ("inner", "left", "right", "full", "semi", "anti")
LEFT = pa.struct([("k", pa.float64()), ("a", INT), ("x", TEXT)])
RIGHT = pa.struct([("k", pa.float64()), ("b", INT), ("x", TEXT)])
PAIR = pa.struct([("n", INT), ("t", TEXT)])
KEYS = [None, 0.0, -0.0, 1.0, 2.0, 3.0, float("nan")]


def _declare(store: pds.Store, path: str, **options: Any) -> pds.Pipeline:
    """Sources by number, re-keyed to a column that several rows share, and joined in each way."""
    pipeline = pds.Pipeline(store, path, memory_limit=1 << 20)
    pipeline.source("l", key=INT, value=LEFT)
    pipeline.source("r", key=INT, value=RIGHT)
    pipeline.select("l", key="k", value={"a": "a", "x": "x"}, name="lefts", **options)
    pipeline.select("r", key="k", value={"b": "b", "x": "x"}, name="rights", **options)
    for kind in KINDS:
        pipeline.join_rows("lefts", "rights", how=kind, name=kind, **options)
    return pipeline


def _bag(rows: list[Any]) -> list[str]:
    return sorted(
        repr(tuple(0.0 if value == 0 and isinstance(value, float) else value for value in row)) for row in rows
    )


def _joined(pipeline: pds.Pipeline, kind: str) -> list[str]:
    rows = pipeline[kind].read().to_pylist()
    return _bag([(row["target_key"], *row["value"].values()) for row in rows])


def _by_duckdb(left: dict[int, list[Any]], right: dict[int, list[Any]], kind: str) -> list[str]:
    def table(side: dict[int, list[Any]], data_type: pa.StructType) -> pa.Table:
        values = [value for values in side.values() for value in values]
        return pa.Table.from_pylist([value or dict.fromkeys(data_type.names) for value in values], pa.schema(data_type))

    with duckdb.connect() as connection:
        connection.register("l", table(left, LEFT))
        connection.register("r", table(right, RIGHT))
        columns = "l.k, a, l.x" if kind in ("semi", "anti") else "coalesce(l.k, r.k) as k, a, l.x, b, r.x"
        query = f"select {columns} from l {kind} join r on l.k = r.k"  # noqa: S608 own text
        return _bag(connection.execute(query).fetchall())


def _change(rng: random.Random, side: dict[int, list[Any]], column: str) -> pds.Changes:
    changes: dict[int, list[Any]] = {}
    for _ in range(rng.choice([0, 1, 1, 3, 8])):
        rows = [
            {"k": rng.choice(KEYS), column: rng.randrange(3), "x": rng.choice([None, "", "é"])}
            for _ in range(rng.choice([0, 0, 1, 1, 2]))
        ]
        changes[rng.randrange(12)] = rows
    upserts = [(key, value) for key, values in changes.items() for value in values]
    deletes = [key for key, values in changes.items() if not values and key in side]
    side.update(changes)
    for key in [key for key, values in side.items() if not values]:
        del side[key]
    return pds.Changes(upserts, deletes)


LONGER = [pytest.mark.slow, pytest.mark.soak]


@pytest.mark.parametrize("skip_unchanged", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=LONGER) for seed in range(2, 20))])
def test_random_changes(memory_store: pds.Store, seed: int, skip_unchanged: bool) -> None:
    rng = random.Random(seed)
    pipeline = _declare(memory_store, "p", skip_unchanged=skip_unchanged)
    left: dict[int, list[Any]] = {}
    right: dict[int, list[Any]] = {}
    for step in range(12):
        changes = {"l": _change(rng, left, "a"), "r": _change(rng, right, "b")}
        pipeline.update(**changes)
        if step == 6:
            pipeline.compact(min_delta=0)
        for kind in KINDS:
            assert _joined(pipeline, kind) == _by_duckdb(left, right, kind), (step, kind)
    assert pipeline.check().ok
    assert pipeline.check(sample=0.2).ok
    fresh = _declare(memory_store, "fresh")
    upserts = [[(key, value) for key, values in side.items() for value in values] for side in (left, right)]
    fresh.update(l=pds.Changes(upserts[0]), r=pds.Changes(upserts[1]))
    for kind in KINDS:
        assert repr(pipeline[kind].read().to_pylist()) == repr(fresh[kind].read().to_pylist()), kind
        assert repr(pipeline[kind].key_mappings().to_pylist()) == repr(fresh[kind].key_mappings().to_pylist()), kind


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_never_null_and_sides_without_a_row(memory_store: pds.Store, kind: Any) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    for name in ("a", "b"):
        pipeline.source(name, key=INT, value=pa.field("value", INT, nullable=False))
    pipeline.join_rows("a", "b", how=kind, name="joined")
    pipeline.update(a=pds.Changes([(1, 10), (2, 20)]), b=pds.Changes([(2, 200), (3, 300)]))
    rows = {
        "inner": [(2, 20, 200)],
        "left": [(1, 10, None), (2, 20, 200)],
        "right": [(2, 20, 200), (3, None, 300)],
        "full": [(1, 10, None), (2, 20, 200), (3, None, 300)],
        "semi": [(2, 20)],
        "anti": [(1, 10)],
    }
    table = pipeline["joined"].read()
    values = [tuple(v.values()) if isinstance(v, dict) else (v,) for v in table["value"].to_pylist()]
    keys = table["target_key"].to_pylist()
    assert [(key, *value) for key, value in zip(keys, values, strict=True)] == rows[kind]
    value = table.schema.field("value").type
    nullable = [field.nullable for field in value] if pa.types.is_struct(value) else []
    expected = [kind in ("right", "full"), kind in ("left", "full")]
    assert nullable == (expected if kind not in ("semi", "anti") else [])


@pytest.mark.parametrize("kind", KINDS)
def test_struct_keys_with_nulls_and_joins_of_joins(memory_store: pds.Store, kind: Any) -> None:
    key = pa.struct([("n", INT), ("t", TEXT)])
    keys = [None, {"n": 1, "t": None}, {"n": 1, "t": "x"}, {"n": 2, "t": "y"}, {"n": None, "t": None}]
    pipeline = pds.Pipeline(memory_store, "p")
    for name in ("a", "b", "c"):
        pipeline.source(name, key=key, value=INT, descending=True)
    pipeline.join_rows("a", "b", how=kind, name="ab")
    pipeline.join_rows("ab", "c", how="left", name="abc")
    data: dict[str, dict[int, int]] = {"a": {}, "b": {}, "c": {}}
    rng = random.Random(1)
    for step in range(15):
        changes = {}
        for name, side in data.items():
            at = rng.randrange(len(keys))
            if at in side and rng.random() < 0.6:
                changes[name] = pds.Changes(deletes=[keys[at]])
                del side[at]
            else:
                changes[name] = pds.Changes([(keys[at], step)])
                side[at] = step
        pipeline.update(**changes)
        matches = {at for at in (2, 3) if at in data["a"] and at in data["b"]}
        expected = [(at, {"a": data["a"][at], "b": data["b"][at]}) for at in matches]
        if kind in ("semi", "anti"):
            expected = [(at, value) for at, value in data["a"].items() if (at in matches) == (kind == "semi")]
        if kind in ("left", "full"):
            expected += [(at, {"a": value, "b": None}) for at, value in data["a"].items() if at not in matches]
        if kind in ("right", "full"):
            expected += [(at, {"a": None, "b": value}) for at, value in data["b"].items() if at not in matches]
        rows = pipeline["ab"].read().to_pylist()
        assert sorted(repr((row["target_key"], row["value"])) for row in rows) == sorted(
            repr((keys[at], value)) for at, value in expected
        )
        rows = pipeline["abc"].read().to_pylist()
        assert len(rows) == len(expected)
        for row in rows:
            at = keys.index(row["target_key"])
            assert row["value"]["c"] == (data["c"].get(at) if at in (2, 3) else None)
    assert pipeline.check().ok
    assert pipeline.check(sample=0.2).ok
    origins = pipeline["abc"].lineage([keys[2]])
    assert origins["ab"] == ([keys[2]] if pipeline["abc"].read([keys[2]]).num_rows else [])


def test_a_changed_row_costs_its_pairs(memory_store: pds.Store) -> None:
    """A key with 2,000 rows on one side and 3 on the other: a changed row of the 2,000 makes 3 rows, not 6,000."""
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("l", key=INT, value=pa.struct([("k", INT), ("a", INT)]))
    pipeline.source("r", key=INT, value=pa.struct([("k", INT), ("b", INT)]))
    pipeline.select("l", key="k", value="a", name="many")
    pipeline.select("r", key="k", value="b", name="few")
    pipeline.join_rows("many", "few", name="pairs")
    pipeline.update(
        l=pds.Changes([(n, {"k": 7, "a": n}) for n in range(2000)]),
        r=pds.Changes([(n, {"k": 7, "b": n}) for n in range(3)]),
    )
    assert pipeline["pairs"].read().num_rows == 6000
    result = pipeline.update(l=pds.Changes([(5, {"k": 7, "a": -1})]))
    assert result.stages["pairs"].rows_out == 3
    result = pipeline.update(r=pds.Changes(deletes=[1]))
    assert result.stages["pairs"].rows_out == 0
    rows = pipeline["pairs"].read()["value"].to_pylist()
    assert len(rows) == 4000
    assert sorted(row["few"] for row in rows if row["many"] == -1) == [0, 2]
    assert pipeline.check().ok
    assert pipeline.check(sample=0.2).ok


def test_groups_that_spill(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p", memory_limit=1 << 20)
    pipeline.source("l", key=INT, value=INT)
    pipeline.source("r", key=INT, value=TEXT)
    pipeline.join_rows("l", "r", how="full", name="pairs")
    pipeline.aggregate("pairs", aggregates={"n": "count", "sum": ("l", "sum")}, name="n")
    pipeline.update(l=pds.Changes([(1, n) for n in range(20)]), r=pds.Changes([(1, "x" * 100) for _ in range(9000)]))
    assert pipeline["n"].read()["value"].to_pylist() == [{"n": 180_000, "sum": 9000 * 190}]
    pipeline.update(l=pds.Changes([(1, 5)]))
    assert pipeline["n"].read()["value"].to_pylist() == [{"n": 9000, "sum": 45_000}]
    pipeline.update(l=pds.Changes(deletes=[1]))
    assert pipeline["n"].read()["value"].to_pylist() == [{"n": 9000, "sum": None}]


@pytest.mark.parametrize("data_type", [TEXT, pa.string_view()], ids=str)
def test_a_long_value_beside_many_rows(memory_store: pds.Store, data_type: pa.DataType) -> None:
    """Of a batch of short values: 8,000 copies of it would be more than a batch can hold."""
    pipeline = pds.Pipeline(memory_store, "p", memory_limit=1 << 20)
    pipeline.source("docs", key=INT, value=data_type)
    pipeline.source("hits", key=INT, value=INT)
    pipeline.join_rows("docs", "hits", name="pairs")
    pipeline.select("pairs", key="length(docs)", value="hits", name="lengths")
    texts = ["x" * 600_000, *("y" * 100 for _ in range(4000))]
    docs = pa.table({"key": pa.array(range(len(texts)), INT), "value": pa.array(texts, data_type)})
    pipeline.update(docs=pds.Changes(docs), hits=pds.Changes([(0, n) for n in range(300)]))
    assert pipeline["lengths"].read().group_by("target_key").aggregate([([], "count_all")]).to_pylist() == [
        {"target_key": 600_000, "count_all": 300}
    ]


def test_a_side_without_a_row_has_nulls_of_any_type(memory_store: pds.Store) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([5], INT))
    right = pa.StructArray.from_arrays([runs], ["r"])
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("a", key=INT, value=INT)
    pipeline.source("b", key=INT, value=right.type)
    pipeline.join_rows("a", "b", how="left", name="ab")
    pipeline.update(a=pds.Changes([(1, 7), (3, 8)]), b=pds.Changes(pa.table({"key": [1, 2], "value": right})))
    assert pipeline["ab"].read()["value"].to_pylist() == [{"a": 7, "r": 5}, {"a": 8, "r": None}]


def test_names_of_fields(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("a", key=INT, value=PAIR)
    pipeline.source("b", key=INT, value=pa.struct([("t", INT), ("t_right", INT)]))
    pipeline.source("c", key=INT, value=TEXT)
    pipeline.join_rows("a", "b", suffix="_b", name="ab")
    pipeline.join_rows("ab", "c", how="left", name="abc")
    pipeline.update(a=pds.Changes([(1, (2, "x"))]), b=pds.Changes([(1, (3, 4))]))
    assert pipeline["abc"].read()["value"].to_pylist() == [{"n": 2, "t": "x", "t_b": 3, "t_right": 4, "c": None}]
    source = pipeline["abc"].read()["source_key"].to_pylist()
    assert source == [{"left": {"left": 1, "right": 1, "side": 0}, "right": None, "side": 1}]


@pytest.mark.parametrize(
    ("declare", "error", "message"),
    [
        (lambda p: p.join_rows("a", "a", name="x"), pds.InvalidInput, "twice"),
        (lambda p: p.join_rows("a", "nothing", name="x"), pds.InvalidInput, "not declared"),
        (lambda p: p.join_rows("a", "t", name="x"), pds.InvalidInput, "types of keys"),
        (lambda p: p.join_rows("a", "d", name="x"), pds.InvalidInput, "orders of keys"),
        (lambda p: p.join_rows("a", "b", how="cross", name="x"), pds.InvalidInput, "one of"),
        (lambda p: p.join_rows("a", "b", suffix=1, name="x"), pds.InvalidType, "suffix"),
        (lambda p: p.join_rows("a", "b", suffix="", name="x"), pds.InvalidInput, "suffix"),
    ],
)
def test_bad_arguments(
    memory_store: pds.Store, declare: Callable[[pds.Pipeline], object], error: type[Exception], message: str
) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    for name in ("a", "b"):
        pipeline.source(name, key=INT, value=PAIR)
    pipeline.source("t", key=TEXT, value=PAIR)
    pipeline.source("d", key=INT, value=PAIR, descending=True)
    with pytest.raises(error, match=message):
        declare(pipeline)

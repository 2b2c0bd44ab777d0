"""The values of a key in an order, and what reads them from its ends: against DuckDB over the same rows."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sampled(3)

INT, TEXT = pa.int64(), pa.string()
NAN = float("nan")
VALUE = pa.struct([("k", INT), ("amount", pa.float64()), ("name", TEXT)])
COLUMNS = {"amount": [None, 0.0, -0.0, 1.5, -2.0, NAN, math.inf, -math.inf, 7.0], "name": [None, "", "a", "bb", "É"]}


def declare(store: pds.Store, column: str, descending: bool, path: str = "p", **sizes: int) -> pds.Pipeline:
    """Values by a key that many have, in an order; their texts in that order, the first ones and the extremes."""
    pipeline = pds.Pipeline(store, path, memory_limit=1 << 22)
    pipeline._page_rows, pipeline._file_rows = sizes.get("page_rows"), sizes.get("file_rows")
    pipeline.source("s", key=INT, value=VALUE)
    fields = {"amount": "amount", "name": "name"}
    groups = pipeline.select(
        "s", key="value.k", value=fields, order_by=column, order_descending=descending, name="groups"
    )

    @pipeline.producer(groups, key=INT, value=TEXT)
    def texts(key: int, values: Iterator[dict[str, Any]]) -> Iterator[tuple[int, str]]:
        yield key, " ".join(str(plain(value[column])) for value in values)

    pipeline.first(groups, by=column, descending=descending, rows=3, name="first")
    aggregates = {"n": "count"} | {f"{f}_{c}": (c, f) for f in ("min", "max") for c in fields}
    pipeline.aggregate(groups, aggregates=aggregates, name="extremes")
    pipeline.aggregate(groups, aggregates={"low": (column, "min"), "high": (column, "max")}, name="ends")
    return pipeline


def plain(value: Any) -> Any:
    """A value that is equal to itself, zeros alike."""
    if isinstance(value, dict):
        return {name: plain(field) for name, field in value.items()}
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def check(pipeline: pds.Pipeline, rows: dict[int, dict[str, Any]], column: str, descending: bool) -> None:
    rows_table = pa.table(
        {"id": pa.array(list(rows), INT)}
        | {name: pa.array([row[name] for row in rows.values()], VALUE.field(name).type) for name in VALUE.names}
    )
    assert rows_table is not None
    direction = "desc" if descending else "asc"
    by = f"k nulls first, {column} {direction} nulls last, id {direction}"
    ordered = duckdb.sql(f"select k, id, amount, name from rows_table order by {by}").fetchall()  # noqa: S608 own text
    stored = [
        (row["target_key"], row["source_key"], row["value"]["amount"], row["value"]["name"])
        for row in pipeline["groups"].read().to_pylist()
    ]
    assert list(map(repr, map(_plain_row, stored))) == list(map(repr, map(_plain_row, ordered)))
    mappings = [tuple(row.values()) for row in pipeline["groups"].key_mappings().to_pylist()]
    assert mappings == sorted((key, row["k"]) for key, row in rows.items())
    groups: dict[int, list[Any]] = {}
    for key, _, amount, name in ordered:
        groups.setdefault(key, []).append({"amount": amount, "name": name})
    texts = {row["target_key"]: row["value"] for row in pipeline["texts"].read().to_pylist()}
    assert texts == {key: " ".join(str(plain(v[column])) for v in values) for key, values in groups.items()}
    first = [(row["target_key"], plain(row["value"])) for row in pipeline["first"].read().to_pylist()]
    assert first == [(key, plain(value)) for key, values in groups.items() for value in values[:3]]
    ends = duckdb.sql(
        "select k, count(*) as n, min(amount), min(name), max(amount), max(name) from rows_table group by k order by k"
    ).fetchall()
    extremes = [(row["target_key"], *row["value"].values()) for row in pipeline["extremes"].read().to_pylist()]
    assert list(map(_plain_row, extremes)) == list(map(_plain_row, ends))
    of_column = 2 if column == "amount" else 3
    both = [(row["target_key"], *row["value"].values()) for row in pipeline["ends"].read().to_pylist()]
    assert list(map(_plain_row, both)) == [_plain_row((r[0], r[of_column], r[of_column + 2])) for r in ends]


def _plain_row(row: tuple[Any, ...]) -> list[Any]:
    return [plain(value) for value in row]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("column", COLUMNS)
def test_random_changes(memory_store: pds.Store, column: str, descending: bool) -> None:
    """Of keys with few rows and with many; pages of two rows make a key of a hundred one with many."""
    rng = random.Random(len(column) + descending)
    pipeline = declare(memory_store, column, descending, page_rows=2, file_rows=64)
    rows: dict[int, dict[str, Any]] = {}

    def row() -> dict[str, Any]:
        return {"k": rng.choice([1, 1, 1, 1, 2, 2, 3]), **{name: rng.choice(of) for name, of in COLUMNS.items()}}

    for changed, gone in [(400, 0), (3, 3), (30, 0), (0, 60), (1, 0), (0, 150), (200, 20), (0, 300)]:
        upserts = {rng.randrange(500): row() for _ in range(changed)}
        # Those at the ends go first.
        ends = sorted(rows, key=lambda key: repr((rows[key][column] is None, rows[key][column])))
        deletes = [key for key in ends[: gone // 2] + ends[len(ends) - gone // 2 :] if key not in upserts]
        pipeline.update(s=pds.Changes(list(upserts.items()), sorted(set(deletes))))
        rows = {key: value for key, value in {**rows, **upserts}.items() if key not in deletes}
        check(pipeline, rows, column, descending)
    assert pipeline.check().ok
    pipeline.compact()
    check(pipeline, rows, column, descending)


def test_a_value_that_moves(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=TEXT, value=INT)
    pipeline.select("s", key="1", order_by="value", name="one")
    pipeline.update(s=pds.Changes([("a", 1), ("b", 3), ("b", 2), ("b", 3)]))
    pipeline.update(s=pds.Changes([("a", 5)]))
    rows = [(row["source_key"], row["value"]) for row in pipeline["one"].read().to_pylist()]
    assert rows == [("b", 2), ("b", 3), ("b", 3), ("a", 5)]
    pipeline.update(s=pds.Changes([("b", 5)], ["a"]))
    assert pipeline["one"].read().to_pylist() == [{"target_key": 1, "source_key": "b", "value": 5}]
    assert pipeline["one"].lineage([1]) == {"s": ["b"]}
    assert [list(row.values()) for row in pipeline["one"].changes().to_pylist()] == [[1, 1, 5]]


def test_another_order_is_another_definition(memory_store: pds.Store) -> None:
    def pipeline(**options: Any) -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, "p")
        pipeline.source("s", key=INT, value=VALUE)
        pipeline.select("s", key="value.k", name="one", **options)

        @pipeline.producer("one", key=INT, value=TEXT)
        def texts(key: int, values: Iterator[dict[str, Any]]) -> Iterator[tuple[int, str]]:
            yield key, "".join(value["name"] for value in values)

        return pipeline

    rows = [(n, {"k": 1, "amount": float(-n), "name": name}) for n, name in enumerate("cab")]
    pipeline().update(s=pds.Changes(rows))
    for options, text in (
        ({"order_by": "amount"}, "bac"),
        ({"order_by": "name"}, "abc"),
        ({"order_by": "amount", "order_descending": True}, "cab"),
        ({"order_by": ["amount > -1", "name"]}, "abc"),
        ({}, "cab"),
    ):
        other = pipeline(**options)
        with pytest.raises(pds.DefinitionChanged, match='"one" has changed: the order of the values of a key'):
            other.update()
        other.rebuild()
        assert other["texts"].read()["value"].to_pylist() == [text]
        assert other.check().ok
        other.update(s=pds.Changes([(9, {"k": 2, "amount": 1.0, "name": "x"})]))
        other.update(s=pds.Changes(deletes=[9]))
        assert other["texts"].read()["value"].to_pylist() == [text]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"key": "value.name"}, id="type of the key"),
        pytest.param({"value": "amount"}, id="type of the value"),
        pytest.param({"descending": True}, id="order of the key"),
    ],
)
def test_another_order_beside_another_table(memory_store: pds.Store, options: dict[str, Any]) -> None:
    """The order of the values changes together with what the old tables cannot hold."""

    def select(path: str, **selection: Any) -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, path)
        pipeline._page_rows, pipeline._file_rows = 2, 8
        pipeline.source("s", key=INT, value=VALUE)
        pipeline.select("s", **{"key": "value.k", "name": "one"} | selection)
        pipeline.aggregate("one", aggregates={"n": "count"}, name="counts")
        return pipeline

    rows = [(n, {"k": n % 5, "amount": float(n * 7 % 11), "name": "abc"[n % 3]}) for n in range(40)]
    select("p", order_by="amount").update(s=pds.Changes(rows))
    order = "value * 2" if "value" in options else "amount * 2"
    rebuilt, whole = (select(path, order_by=order, **options) for path in ("p", "whole"))
    rebuilt.rebuild()
    whole.update(s=pds.Changes(rows))
    change = pds.Changes([(3, {"k": 4, "amount": 0.5, "name": "c"}), (50, {"k": 0, "amount": 1.5, "name": "d"})], [7])
    for update in (pds.Changes(), change):
        for pipeline in (rebuilt, whole):
            pipeline.update(s=update)
        for name in ("one", "counts"):
            assert rebuilt[name].read().equals(whole[name].read())
            assert rebuilt[name].key_mappings().equals(whole[name].key_mappings())
    assert rebuilt.check().ok


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"order_by": "list"}, pds.InvalidInput, "has no order"),
        ({"order_by": "value"}, pds.InvalidInput, "is a struct; order by its fields"),
        ({"order_by": "nothing"}, pds.InvalidInput, "nothing"),
        ({"order_by": "random()"}, pds.InvalidInput, "not deterministic"),
        ({"order_by": []}, pds.InvalidInput, "order_by of 'one' needs an expression"),
        ({"order_by": 1}, pds.InvalidType, "the order of 'one' must be SQL"),
        ({"order_by": ["n", 1]}, pds.InvalidType, "'one'"),
        ({"order_descending": True}, pds.InvalidInput, "needs order_by"),
        ({"order_by": "n", "order_descending": 1}, pds.InvalidType, "order_descending of 'one'"),
    ],
)
def test_orders_that_cannot_be_are_refused(
    memory_store: pds.Store, options: dict[str, Any], error: type[Exception], reason: str
) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=pa.struct([("n", INT), ("list", pa.list_(INT))]))
    with pytest.raises(error, match=reason):
        pipeline.select("s", name="one", **options)
    with pytest.raises(error, match=reason):
        pipeline.producer("s", key=INT, value=pa.struct([("n", INT), ("list", pa.list_(INT))]), name="one", **options)(
            lambda key, values: ((key, value) for value in values)
        )


def test_an_order_that_cannot_be_computed_names_the_stage(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=INT)
    pipeline.select("s", key="1", order_by="10 / value", name="one")
    with pytest.raises(pds.InvalidInput, match=r'stage "one".*order of the values.*10 / value'):
        pipeline.update(s=pds.Changes([(1, 0)]))
    assert pipeline.version == 0


def test_a_hook_sees_earlier_values_of_the_key(memory_store: pds.Store) -> None:
    """The order is that of what the function emitted, not of what the hook made of it."""
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=TEXT, value=INT)
    hook = pds.Preserve(lambda new, earlier, _state: (earlier or new * 100) + new % 2, {})
    pipeline.producer("s", key=INT, value=INT, order_by="value", order_descending=True, preserve=hook, name="one")(
        lambda _, values: ((1, value) for value in values)
    )
    pipeline.update(s=pds.Changes([("a", 2), ("b", 4)]))
    assert pipeline["one"].read()["value"].to_pylist() == [400, 400]
    pipeline.update(s=pds.Changes([("a", 7)]))
    rows = pipeline["one"].read().to_pylist()
    assert [(row["source_key"], row["value"]) for row in rows] == [("a", 401), ("b", 400)]


NAMED = pa.struct([("id", INT), ("place", INT), ("name", TEXT)])


def number_rows(new: dict[str, Any], earlier: dict[str, Any] | None, state: dict[str, Any]) -> dict[str, Any]:
    """A row keeps its id; a row of another name gets the next one."""
    if earlier is not None and earlier["name"] == new["name"]:
        return {**new, "id": earlier["id"]}
    state["calls"] = state.get("calls", 0) + 1
    return {**new, "id": state["calls"]}


@pytest.mark.parametrize("descending", [False, True])
def test_a_row_that_moves_keeps_its_earlier_value(memory_store: pds.Store, descending: bool) -> None:
    """More rows than fit in memory, of few keys; the hook is called in the order of the rows."""
    rng = random.Random(7)
    called: list[tuple[int, str]] = []

    def hook(new: dict[str, Any], earlier: dict[str, Any] | None, state: dict[str, Any]) -> dict[str, Any]:
        called.append((new["place"], new["name"]))
        return number_rows(new, earlier, state)

    pipeline = pds.Pipeline(memory_store, "p", memory_limit=1 << 20)
    pipeline.source("s", key=TEXT, value=INT)
    options = {"order_by": "place", "order_descending": descending, "preserve": pds.Preserve(hook)}

    @pipeline.producer("s", key=INT, value=NAMED, **options)
    def rows(name: str, values: Iterator[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        for value in values:
            yield len(name) % 2, {"id": None, "place": value, "name": name}

    names = [f"{'n' * rng.randrange(200)}{n}" for n in range(3000)]
    places = {name: rng.randrange(500) for name in names}
    pipeline.update(s=pds.Changes(list(places.items())))
    first = {row["value"]["name"]: row["value"]["id"] for row in pipeline["rows"].read().to_pylist()}
    assert sorted(first.values()) == list(range(1, 3001))
    for moved in (names[:1], names[5:900], names):
        called.clear()
        changes = {name: rng.randrange(500) for name in moved}
        places |= changes
        pipeline.update(s=pds.Changes(list(changes.items())))
        stored = pipeline["rows"].read().to_pylist()
        assert {row["value"]["name"]: row["value"]["id"] for row in stored} == first
        assert {row["value"]["name"]: row["value"]["place"] for row in stored} == places
        of_moved = [row["value"] for row in stored if row["value"]["name"] in changes]
        assert called == [(value["place"], value["name"]) for value in of_moved]


def test_the_earlier_value_is_the_first_one_of_its_pair(memory_store: pds.Store) -> None:
    """Of rows that one source key emits under a target key; those of a new source key get the first one of the key."""
    given: list[tuple[int, int | None]] = []

    def hook(new: int, earlier: int | None, _: dict[str, Any]) -> int:
        given.append((new, earlier))
        return new

    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=TEXT, value=INT)
    pipeline.producer("s", key=INT, value=INT, order_by="value", preserve=pds.Preserve(hook), name="one")(
        lambda _, values: ((1, value) for value in values)
    )
    pipeline.update(s=pds.Changes([("a", 1), ("b", 4), ("b", 2), ("c", 3)]))
    assert given == [(1, None), (2, 1), (3, 1), (4, 1)]
    given.clear()
    pipeline.update(s=pds.Changes([("b", 9), ("b", 0), ("c", 5), ("d", 4)]))
    assert given == [(0, 2), (4, 1), (5, 3), (9, 2)]
    given.clear()
    pipeline.update(s=pds.Changes([("e", 7)], ["a", "b"]))
    assert given == [(7, 0)]


def test_values_of_a_hook_have_no_order(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline._page_rows, pipeline._file_rows = 2, 64
    pipeline.source("s", key=INT, value=INT)
    hook = pds.Preserve(lambda new, _earlier, _state: -new, {})
    pipeline.producer("s", key=INT, value=INT, order_by="value", preserve=hook, name="one")(
        lambda _, values: ((1, value) for value in values)
    )
    pipeline.first("one", by="value", rows=2, name="first")
    pipeline.aggregate("one", aggregates={"low": ("value", "min"), "high": ("value", "max")}, name="ends")
    pipeline.update(s=pds.Changes([(n, n) for n in range(200)]))
    pipeline.update(s=pds.Changes(deletes=[0, 199]))
    assert pipeline["first"].read()["value"].to_pylist() == [-198, -197]
    assert pipeline["ends"].read()["value"].to_pylist() == [{"low": -198, "high": -1}]


def test_fields_that_expressions_do_not_see(memory_store: pds.Store) -> None:
    """A field named `value` or `key`, of which the least value leaves, beside an order by the key."""
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline._page_rows, pipeline._file_rows = 2, 64
    pipeline.source("s", key=INT, value=pa.struct([("key", INT), ("value", INT)]))
    aggregates = {f"{function}_{name}": (name, function) for function in ("min", "max") for name in ("key", "value")}
    for name, order in (("by_key", "key"), ("by_field", "value.value")):
        pipeline.select("s", key="1", order_by=order, name=name)
        pipeline.aggregate(name, aggregates=aggregates, name=f"ends_{name}")
    with pytest.raises(pds.InvalidInput, match='"value" is a struct; order by its fields'):
        pipeline.select("s", key="1", order_by="value", name="by_value")
    pipeline.update(s=pds.Changes([(n, {"key": -n, "value": n}) for n in range(200)]))
    pipeline.update(s=pds.Changes(deletes=[0, 199]))
    for name in ("by_key", "by_field"):
        (ends,) = pipeline[f"ends_{name}"].read()["value"].to_pylist()
        assert ends == {"min_key": -198, "max_key": -1, "min_value": 1, "max_value": 198}


def test_joins_of_rows_with_an_order(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("left", key=INT, value=INT)
    pipeline.source("right", key=INT, value=INT)
    for side in ("left", "right"):
        pipeline.select(side, key="1", order_by="value", order_descending=True, name=f"by_{side}")
    pipeline.join_rows("by_left", "by_right", name="pairs")
    pipeline.update(left=pds.Changes([(1, 1), (2, 2)]), right=pds.Changes([(1, 10)]))
    pipeline.update(left=pds.Changes([(1, 3)]), right=pds.Changes([(2, 5)]))
    values = [tuple(row.values()) for row in pipeline["pairs"].read()["value"].to_pylist()]
    assert sorted(values) == [(2, 5), (2, 10), (3, 5), (3, 10)]
    assert pipeline.check().ok

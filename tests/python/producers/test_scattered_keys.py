"""What an update of some keys reads: no rows that it replaces, and once all rows of its keys that it does not."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import pds
from producers.engines import RepeatingEngine
from producers.model import Changes, Model, Preserve, Source, Stage
from producers.pipelines import compare, declare, to_changes

if TYPE_CHECKING:
    from collections.abc import Iterable

INT = pa.int64()
ROWS = 20_000


def remove_runs(store: pds.Store, pipeline: pds.Pipeline, name: str, table: str) -> None:
    """Remove the files of a table, so that an update that reads one of them fails. Of local files no bytes are kept."""
    manifest = json.loads(pipeline._open().manifest())
    (node,) = (node for node in manifest["nodes"] if node["name"] == name)
    files = [file["name"] for run in node[table] for file in run["files"]]
    assert files
    for file in files:
        store.delete(f"{pipeline.path}/{file}")


def read_values(pipeline: pds.Pipeline, name: str) -> list[tuple[Any, ...]]:
    table = pipeline[name].read()
    return sorted(zip(*(table[column].to_pylist() for column in table.schema.names), strict=True))


def to_table(rows: dict[int, list[int]]) -> pa.Table:
    pairs = [(key, value) for key, values in rows.items() for value in values]
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    return pa.table({"key": pa.array(keys, INT), "value": pa.array(values, INT)})


def test_rows_of_a_source_that_an_update_replaces_are_not_read(local_store: pds.Store) -> None:
    rng = random.Random(1)
    pipeline = pds.Pipeline(local_store, "p")
    pipeline.source("numbers", key=INT, value=INT)
    pipeline.select("numbers", key="key % 7", name="sevens")
    rows = {key: rng.randrange(2**60) for key in range(ROWS)}
    pipeline.update(numbers=pds.Changes(pa.table({"key": list(rows), "value": list(rows.values())})))
    remove_runs(local_store, pipeline, "numbers", "content")
    changed = {key: rng.randrange(2**60) for key in rng.sample(range(ROWS + 100), 50)}
    deleted = [key for key in (7, 8, 19_999) if key not in changed]
    pipeline.update(numbers=pds.Changes(list(changed.items()), deleted))
    rows = {key: value for key, value in (rows | changed).items() if key not in deleted}
    assert read_values(pipeline, "sevens") == sorted((key % 7, key, value) for key, value in rows.items())


def test_key_mappings_of_groups_are_not_read(local_store: pds.Store) -> None:
    """Their content says the same. They are as they were where no group comes or goes."""
    rng = random.Random(2)
    pipeline = pds.Pipeline(local_store, "p")
    pipeline.source("orders", key=INT, value=INT)
    pipeline.select("orders", key="key / 4", name="amounts")
    pipeline.aggregate("amounts", aggregates={"sum": ("value", "sum")}, name="sums")
    rows = {key: rng.randrange(1000) for key in range(4 * ROWS)}
    pipeline.update(orders=pds.Changes(pa.table({"key": list(rows), "value": list(rows.values())})))
    remove_runs(local_store, pipeline, "sums", "mappings")
    changed = {key: rng.randrange(1000) for key in rng.sample(range(4 * ROWS), 20)}
    pipeline.update(orders=pds.Changes(list(changed.items())))
    rows |= changed
    sums = {group: sum(rows[key] for key in range(4 * group, 4 * group + 4)) for group in range(ROWS)}
    assert read_values(pipeline, "sums") == [(group, group, {"sum": total}) for group, total in sums.items()]


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_two_feeders_that_change_apart(memory_store: pds.Store, seed: int) -> None:
    """Keys of one feeder's update are read in the other, whether its own has other keys, the same results or none."""
    rng = random.Random(seed)
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline._page_rows, pipeline._file_rows = rng.choice([(None, None), (2, 8)])
    for name in ("x", "y"):
        pipeline.source(name, key=INT, value=INT)
        aggregates = {"n": "count", "total": ("value", "sum")}
        pipeline.aggregate(name, aggregates=aggregates, name=f"{name} sums", skip_unchanged=rng.random() < 0.5)
    pipeline.select("x sums", "y sums", key="n", value="total", name="both")
    pipeline.aggregate("both", aggregates={"n": "count", "total": ("value", "sum")}, name="totals")
    stored: dict[str, dict[int, list[int]]] = {"x": {}, "y": {}}
    for _ in range(8):
        changes = {}
        for name in rng.choice([["x"], ["y"], ["x", "y"]]):
            keys = rng.sample(range(12), rng.randrange(1, 6))
            deletes = [key for key in keys if rng.random() < 0.3]
            # Few values, so that a group often has the result that it had.
            new = {k: [rng.randrange(2) for _ in range(rng.randrange(1, 4))] for k in keys if k not in deletes}
            changes[name] = pds.Changes([(key, value) for key, values in new.items() for value in values], deletes)
            stored[name] = {key: values for key, values in (stored[name] | new).items() if key not in deletes}
        pipeline.update(changes)
        x, y = to_table(stored["x"]), to_table(stored["y"])
        expected = duckdb.sql(
            "SELECT n, count(*), sum(total) FROM (SELECT count(*) n, sum(value) total FROM x GROUP BY key UNION ALL "
            "SELECT count(*) n, sum(value) total FROM y GROUP BY key) GROUP BY n ORDER BY n"
        ).fetchall()
        found = [(key, value["n"], value["total"]) for key, _, value in read_values(pipeline, "totals")]
        assert found == expected, (x.num_rows, y.num_rows)
    assert pipeline.check().ok


def stored_bytes(pipeline: pds.Pipeline, *tables: tuple[str, str]) -> int:
    manifest = json.loads(pipeline._open().manifest())
    nodes = {node["name"]: node for node in manifest["nodes"]}
    return sum(file["size_bytes"] for name, table in tables for run in nodes[name][table] for file in run["files"])


def sum_up(customer: int, amounts: Iterable[int]) -> Iterable[tuple[int, int]]:
    yield customer, sum(amounts)


@pytest.mark.parametrize("is_aggregate", [False, True])
def test_rows_of_changed_keys_are_read_once(memory_store: pds.Store, is_aggregate: bool) -> None:
    """For what they had, for what else their target keys have, and for the next stage.

    Pages have so many rows that a process does not keep them.
    """
    rng = np.random.default_rng(1)
    count, customers = 140_000, 14_000
    pipeline = pds.Pipeline(memory_store, "p", memory_limit=4 << 30)
    pipeline._page_rows = 70_000
    pipeline.source("orders", key=INT, value=pa.struct([("customer", INT), ("amount", INT)]))
    pipeline.select("orders", key="value.customer", value="value.amount", name="amounts")
    if is_aggregate:
        pipeline.aggregate("amounts", aggregates={"total": ("value", "sum")}, name="totals")
    else:
        pipeline.producer("amounts", key=INT, value=INT, name="totals")(sum_up)

    def to_orders(keys: np.ndarray) -> pa.Table:
        columns = [pa.array(rng.integers(0, most, len(keys))) for most in (customers, 2**58)]
        return pa.table({"key": keys, "value": pa.StructArray.from_arrays(columns, ["customer", "amount"])})

    pipeline.update(orders=pds.Changes(to_orders(np.arange(count))))
    content = stored_bytes(pipeline, ("amounts", "content"))
    others = stored_bytes(pipeline, ("amounts", "mappings"), ("totals", "content"), ("totals", "mappings"))
    read = memory_store.metrics()["bytes_read"]
    pipeline.update(orders=pds.Changes(to_orders(np.sort(rng.choice(count, 50, replace=False)))))
    read = memory_store.metrics()["bytes_read"] - read
    assert read < others + 1.7 * content, (read, others, content)
    orders = pipeline["orders"].read()
    expected = duckdb.sql(
        "SELECT value.customer customer, sum(value.amount)::BIGINT FROM orders GROUP BY customer ORDER BY customer"
    ).fetchall()
    totals = pipeline["totals"].read().to_pylist()
    sums = [(row["target_key"], row["value"]["total"] if is_aggregate else row["value"]) for row in totals]
    assert (orders.num_rows, sums) == (count, expected)


def deal(source: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Several rows of some pairs."""
    for value in values:
        yield value % 11, value
        if value % 4 == 0:
            yield value % 11, source


def add_up(_: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
    numbers = list(values)
    yield len(numbers) % 5, sum(numbers)


def rekey(key: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
    for value in values:
        yield (key + value) % 6, value


def compare_sides(key: int, lefts: Iterable[int], rights: Iterable[int]) -> Iterable[tuple[int, int]]:
    yield key % 4, sum(lefts) - sum(rights)


def keep(new: int, earlier: int | None, state: dict[str, int]) -> int:
    state["calls"] += 1
    return state["calls"] if earlier is None else earlier + new % 3


def random_graph(rng: random.Random) -> tuple[list[Source], list[Stage]]:
    """Stages of several feeders that change together and apart, with a hook, and one that feeds an aggregate alone."""
    key, value = pa.field("key", INT), pa.field("value", INT)
    descending = {name: rng.random() < 0.5 for name in ("sources", "sides", "ends")}
    sources = [Source(name, key, value, descending=descending["sources"]) for name in ("s", "t")]

    def stage(name: str, feeders: list[str], function: Any, order: str, **options: Any) -> Stage:
        is_descending, skips = descending.get(order, False), rng.random() < 0.4
        return Stage(name, feeders, function, key, value, descending=is_descending, skip_unchanged=skips, **options)

    stages = [
        stage("left", ["s", "t"], deal, "sides"),
        stage("right", ["t"], deal, "sides"),
        stage("alone", ["s"], rekey, ""),
        stage("sums", ["left", "right"], add_up, "ends"),
        stage("joined", ["right", "left"], compare_sides, "", join=True),
        stage("kept", ["left"], rekey, "ends", preserve=Preserve(keep, {"calls": 0})),
        stage("last", ["sums", "kept"], add_up, ""),
    ]
    return sources, stages


def to_groups(pairs: Iterable[tuple[int, Any]]) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def compare_groups(pipeline: pds.Pipeline, model: Model, name: str) -> None:
    """The aggregate over a stage, computed from all of its rows."""
    groups = to_groups((key, value) for key, _, value in model.content(name))
    expected = {key: (len(values), sum(values), min(values)) for key, values in groups.items()}
    rows = read_values(pipeline, f"groups of {name}")
    assert {key: tuple(value.values()) for key, _, value in rows} == expected


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_whose_keys_have_several_rows(memory_store: pds.Store, seed: int) -> None:
    """Rows are set aside of all keys, of some or of none; stages are computed here, by tasks, or some here."""
    rng = random.Random(seed)
    sources, stages = random_graph(rng)
    model = Model(sources, stages)
    sizes = {"page_rows": rng.choice([1, 2, 16]), "file_rows": rng.choice([8, 64])}
    sizes["memory_limit"] = 1 << rng.choice([13, 16, 17, 19, 28])
    engine = None if rng.random() < 0.6 else RepeatingEngine(rng.choice([0, 1 << 12]), repeats=False)
    pipeline = declare(memory_store, "p", sources, stages, engine=engine, **sizes)
    for name in ("left", "alone"):
        aggregates = {"n": "count", "total": ("value", "sum"), "low": ("value", "min")}
        pipeline.aggregate(name, aggregates=aggregates, name=f"groups of {name}")
    for number in range(8):
        changes = {}
        for name in rng.choice([["s"], ["t"], ["s", "t"]]):
            keys = rng.sample(range(70), rng.choice([1, 4, 25]) if number else 60)
            deletes = [key for key in keys if number and rng.random() < 0.3]
            upserts = [(k, rng.randrange(90)) for k in keys if k not in deletes for _ in range(rng.randrange(1, 4))]
            changes[name] = Changes(upserts, deletes)
        model.update(changes)
        if number and rng.random() < 0.3:
            pipeline.compact(min_delta=0)
        if rng.random() < 0.3:
            pipeline.preview(to_changes(changes)).commit()
        else:
            pipeline.update(to_changes(changes))
        compare(memory_store, pipeline, model)
        for name in ("left", "alone"):
            compare_groups(pipeline, model, name)


def declare_operators(pipeline: pds.Pipeline) -> None:
    """Stages that take pairs, or the first rows, of keys of which others take all rows."""
    pipeline.join_rows("left", "right", how="full", name="pairs")
    pipeline.first("left", by="value", rows=2, name="first of left")
    pipeline.select("s", "t", key="value % 9", order_by="value", name="ordered")
    pipeline.first("ordered", by="value", rows=2, name="lowest")
    pipeline.distinct("ordered", name="distinct")
    pipeline.aggregate("ordered", aggregates={"low": ("value", "min"), "high": ("value", "max")}, name="ends")


def compare_operators(pipeline: pds.Pipeline, model: Model) -> None:
    """What operators make of rows, computed from all of them."""

    def read(name: str) -> dict[int, list[Any]]:
        return to_groups((row["target_key"], row["value"]) for row in pipeline[name].read().to_pylist())

    left, right = (to_groups((key, value) for key, _, value in model.content(name)) for name in ("left", "right"))
    pairs = [(k, a, b) for k in left | right for a in left.get(k, [None]) for b in right.get(k, [None])]
    joined = ((key, value["left"], value["right"]) for key, values in read("pairs").items() for value in values)
    assert Counter(joined) == Counter(pairs)
    assert read("first of left") == {key: sorted(values)[:2] for key, values in left.items()}
    groups = to_groups((value % 9, value) for name in ("s", "t") for _, _, value in model.content(name))
    assert read("lowest") == {key: sorted(values)[:2] for key, values in groups.items()}
    assert read("distinct") == {key: sorted(set(values)) for key, values in groups.items()}
    assert read("ends") == {key: [{"low": min(values), "high": max(values)}] for key, values in groups.items()}


@pytest.mark.parametrize("seed", range(4))
def test_joins_and_first_rows_of_keys_whose_rows_are_set_aside(memory_store: pds.Store, seed: int) -> None:
    rng = random.Random(seed)
    sources, stages = random_graph(rng)
    stages = [stage for stage in stages if stage.name in ("left", "right", "sums")]
    model = Model(sources, stages)
    pipeline = declare(memory_store, "p", sources, stages, page_rows=4, memory_limit=1 << (14, 17, 19, 28)[seed])
    declare_operators(pipeline)
    for number in range(5):
        changes = {}
        for name in rng.choice([["s"], ["t"], ["s", "t"]]) if number else ["s", "t"]:
            keys = rng.sample(range(70), rng.choice([1, 4, 25]) if number else 60)
            deletes = [key for key in keys if number and rng.random() < 0.3]
            changes[name] = Changes([(key, rng.randrange(90)) for key in keys if key not in deletes], deletes)
        model.update(changes)
        pipeline.update(to_changes(changes))
        compare_operators(pipeline, model)


def test_a_key_with_many_bytes_between_keys_with_few(memory_store: pds.Store) -> None:
    """It has them in the blocks of the others."""

    def deal_texts(source: int, texts: Iterable[str]) -> Iterable[tuple[int, str]]:
        for text in texts:
            yield (5 if source < 100 else source % 10), text

    key, text = pa.field("key", INT), pa.field("value", pa.string())
    count = pa.field("value", INT)
    sources = [Source("s", key, text)]
    stages = [
        Stage("groups", ["s"], deal_texts, key, text),
        Stage("lengths", ["groups"], lambda key, texts: [(key % 3, sum(map(len, texts)))], key, count),
    ]
    model, pipeline = Model(sources, stages), declare(memory_store, "p", sources, stages)
    rows = [(n, "x" * (2000 + n)) for n in range(100)] + [(n, f"text {n}") for n in range(100, 160)]
    some = Changes([(3, "y" * 1000), (107, "z")], [4, 105])
    for update in (Changes(rows), some, Changes([(105, "")], list(range(1, 90)))):
        model.update({"s": update})
        pipeline.update(to_changes({"s": update}))
        compare(memory_store, pipeline, model)

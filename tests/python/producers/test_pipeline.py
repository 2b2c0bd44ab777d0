"""The engine gives the tables of the vectors, and those of the model on random graphs and updates."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pds
from producers.model import Changes, Model, ModelError, Order, Preserve, Source, Stage
from producers.pipelines import assert_equal, compare, declare, objects, to_changes
from producers.test_model import CASES, build_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    # What a function was called with: a key, and the values of each feeder.
    Calls = list[tuple[Any, list[list[Any]]]]

pytestmark = pytest.mark.sampled(2)

SIZES = {"tiny": {"page_rows": 1, "file_rows": 2, "memory_limit": 1 << 12}, "large": {}}
# With room for some of the rows that an update could set aside for the next stages.
RANDOM_SIZES = {**SIZES, "small": {"page_rows": 2, "file_rows": 8, "memory_limit": 1 << 16}}


def recording(stage: Stage, calls: Calls) -> Stage:
    """The stage, whose function also notes what it is called with."""

    def produce(key: Any, *values: Iterator[Any]) -> Iterable[tuple[Any, Any]] | None:
        sides = [list(side) for side in values]
        calls.append((key, sides))
        return stage.produce(key, *map(iter, sides))

    return dataclasses.replace(stage, produce=produce)


def called_with(model: Model, stage: Stage) -> Calls:
    """What the last update has to call its function with, in the order of the keys."""
    calls = [(key, [list(side) for side in sides]) for key, sides in model.tables(stage.name).input if any(sides)]
    return calls if stage.join else [(key, [[value for side in sides for value in side]]) for key, sides in calls]


def run_vectors(store: pds.Store, name: str, sizes: dict[str, Any]) -> None:
    """Apply the updates of a case; the model gives what the file has."""
    case = CASES[name]
    model = build_model(case)
    calls: dict[str, Calls] = {stage: [] for stage in model.stages}
    stages = [recording(stage, calls[stage.name]) for stage in model.stages.values()]
    pipeline = declare(store, name, list(model.sources.values()), stages, **sizes)
    for update in case.updates:
        changes = {source: Changes.from_rows(rows) for source, rows in update.changes.items()}
        if update.error is not None:
            before = objects(store)
            with pytest.raises(pds.InvalidInput):
                pipeline.update(to_changes(changes), base_version=update.base_version)
            assert pipeline.version == update.base_version
            assert objects(store) == before
            continue
        result = pipeline.update(to_changes(changes), base_version=update.base_version)
        assert result.version == update.base_version + 1 == model.update(changes)
        compare(store, pipeline, model)
        for stage in model.stages.values():
            # Tasks end in any order.
            actual = sorted(calls[stage.name], key=repr)
            assert_equal(actual, sorted(called_with(model, stage), key=repr), f"calls of {stage.name}")
            calls[stage.name].clear()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_vectors(memory_store: pds.Store, name: str, sizes: str) -> None:
    run_vectors(memory_store, name, SIZES[sizes])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_vectors_in_local_files(local_store: pds.Store, name: str, sizes: str) -> None:
    run_vectors(local_store, name, SIZES[sizes])


@pytest.mark.s3
@pytest.mark.sampled(4)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_vectors_in_s3(s3_store: pds.Store, name: str, sizes: str) -> None:
    run_vectors(s3_store, name, SIZES[sizes])


KEYS = {
    "int": (pa.int64(), st.one_of(st.none(), st.integers(-3, 3))),
    "text": (
        pa.string(),
        st.one_of(st.none(), st.sampled_from(["", "a", "é", "\U0001f600", "a" * 70 + "b", "a" * 70])),
    ),
    "float": (pa.float64(), st.sampled_from([None, 0.0, -0.0, math.nan, -math.nan, math.inf, -1.5, 5e-324])),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.one_of(
            st.none(),
            st.builds(lambda a, b: {"a": a, "b": b}, st.sampled_from([None, 0, 1]), st.sampled_from([None, "", "x"])),
        ),
    ),
}


ORDERS = [
    ("value", lambda value: value),
    ("(value + 1) % 3", lambda value: (value + 1) % 3),
    ("nullif(value, 3) / 2", lambda value: None if value == 3 else int(value / 2)),
]


def spread(key: Any, values: Any) -> Any:
    """Emit each pair of a value under its own key, and some under the key zero."""
    for value in values:
        yield value["to"], value["n"]
        if value["n"] % 3 == 0:
            yield value["to"], value["n"] + 1


def total(key: Any, values: Any) -> Any:
    numbers = list(values)
    yield len(numbers) % 2, sum(numbers)
    if len(numbers) > 2:
        yield 7, numbers[-1]


def number_it(key: Any, values: Any) -> Any:
    for value in values:
        yield key, value
        if value == 1:
            yield None, value


def keep_number(new: int, earlier: int | None, state: dict[str, Any]) -> int:
    """Depends on what it is given as the earlier value, and on how often it is called."""
    state["next"] += 1
    return state["next"] * 100 + new if earlier is None else earlier + new % 2


def pair_up(key: Any, lefts: Any, rights: Any) -> Any:
    listed = list(rights)
    for left in lefts:
        for right in listed or [-1]:
            yield left % 3, right


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Source], list[Stage], str]:
    """Two sources of pairs, and up to four stages over them."""
    kind = draw(st.sampled_from(sorted(KEYS)))
    key, value = (
        pa.field("key", KEYS[kind][0]),
        pa.field("value", pa.struct([("to", KEYS[kind][0]), ("n", pa.int64())])),
    )
    is_descending = draw(st.booleans())
    sources = [
        Source(name, key, value, descending=is_descending, skip_unchanged=draw(st.booleans())) for name in ("s", "t")
    ]
    number, count = pa.field("value", pa.int64()), pa.field("key", pa.int64())

    def option() -> bool:
        return draw(st.booleans())

    same = option()
    orders = st.sampled_from([None, *ORDERS])

    def order() -> Order | None:
        chosen = draw(orders)
        return None if chosen is None else Order(*chosen, descending=option())

    stages = [
        Stage(
            "one",
            draw(st.sampled_from([["s"], ["s", "t"], ["t", "s"]])),
            spread,
            key,
            number,
            descending=same,
            skip_unchanged=option(),
            order=order(),
        ),
        Stage(
            "kept",
            ["one"],
            number_it,
            key,
            number,
            descending=option(),
            skip_unchanged=option(),
            preserve=Preserve(keep_number, {"next": 1}),
            order=order(),
        ),
        Stage("two", ["t"], spread, key, number, descending=same, skip_unchanged=option(), order=order()),
        Stage(
            "sums",
            draw(st.sampled_from([["one"], ["one", "two"], ["two", "one"]])),
            total,
            count,
            number,
            descending=option(),
            skip_unchanged=option(),
        ),
        Stage("pairs", ["one", "two"], pair_up, count, number, join=True, descending=option(), order=order()),
    ]
    return sources, stages, kind


@st.composite
def updates(draw: st.DrawFn, kind: str) -> list[dict[str, Changes]]:
    keys = KEYS[kind][1]
    value = st.builds(lambda to, n: {"to": to, "n": n}, keys, st.integers(0, 6))
    rows = st.lists(st.tuples(keys, value), max_size=6)
    change = st.builds(Changes, rows, st.lists(keys, max_size=2))
    return draw(st.lists(st.dictionaries(st.sampled_from(["s", "t"]), change, max_size=2), min_size=1, max_size=6))


@settings(deadline=None)
@given(st.data())
def test_random_graphs_and_updates_are_as_in_the_model(data: st.DataObject) -> None:
    sources, stages, kind = data.draw(graphs())
    sizes = RANDOM_SIZES[data.draw(st.sampled_from(sorted(RANDOM_SIZES)))]
    model = Model(sources, stages)
    store = pds.Store("memory://")
    pipeline = declare(store, "p", sources, stages, **sizes)
    for changes in data.draw(updates(kind)):
        code = refusal_of(model, changes)
        if code is None:
            assert pipeline.update(to_changes(changes)).version == model.version
            compare(store, pipeline, model)
        else:
            assert code in {"delete_mixed_with_upsert", "two_deletes"}
            with pytest.raises(pds.InvalidInput, match="delete"):
                pipeline.update(to_changes(changes))
            assert pipeline.version == model.version


def refusal_of(model: Model, changes: dict[str, Changes]) -> str | None:
    """Update the model; return the code of its refusal, if it refuses."""
    try:
        model.update(changes)
    except ModelError as refusal:
        return refusal.code
    return None

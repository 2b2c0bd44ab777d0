"""Keys with so many rows that they are not read as a whole."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from producers.model import Changes, Model, Source, Stage
from producers.pipelines import compare, declare, to_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

INT = pa.int64()


def by_remainder(_: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
    for value in values:
        yield value % 3, value


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_whether_a_key_has_rows(memory_store: pds.Store, seed: int, descending: bool) -> None:
    """Rows come and go at both ends of keys with many blocks, of which all but the last few go at once."""
    rng = random.Random(seed)
    sources = [Source("s", pa.field("key", INT), pa.field("value", INT), descending=descending)]
    stages = [Stage("groups", ["s"], by_remainder, pa.field("key", INT), pa.field("value", INT), descending=descending)]
    model = Model(sources, stages)
    pipeline = declare(memory_store, "p", sources, stages, page_rows=2, file_rows=100)
    everything = list(range(900))
    updates = [
        Changes([(key, key) for key in everything]),
        Changes(deletes=everything[:890]),
        Changes([(key, key) for key in everything[:400]]),
        Changes(deletes=[rng.randrange(400)]),
        Changes([(-1, 3)], [899]),
        Changes([(key, 1) for key in everything]),
        Changes([(-2, 0)], [-1]),
        Changes(deletes=everything),
        Changes([(key, rng.randrange(9)) for key in everything], [-2]),
        Changes(deletes=sorted(rng.sample(everything, 880))),
    ]
    for update in updates:
        model.update({"s": update})
        pipeline.update(**to_changes({"s": update}))
        compare(memory_store, pipeline, model)
    assert pipeline.check().ok


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda: pds.Changes([(300_001, 5)]), id="comes"),
        pytest.param(lambda: pds.Changes(deletes=[7]), id="goes"),
        pytest.param(lambda: pds.Changes(deletes=list(range(1000))), id="the first 1000 go"),
    ],
)
def test_a_row_that_comes_or_goes_costs_what_changed(
    memory_store: pds.Store, change: Callable[[], pds.Changes]
) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", key=INT, value=INT)
    pipeline.select("rows", key="value / 1000000", name="groups")
    pipeline.aggregate("groups", aggregates={"n": "count"}, name="counts")
    count = 300_000
    table = pa.table({"key": range(count), "value": pa.array(range(count), INT)})
    stages = pipeline.update(rows=pds.Changes(table)).stages.values()
    built = sum(stage.bytes_written for stage in stages)
    read = memory_store.metrics()["bytes_read"]
    pipeline.update(rows=change())
    read = memory_store.metrics()["bytes_read"] - read
    assert read < built / 10, (read, built)
    assert pipeline["groups"].changes().num_rows == pipeline["counts"].read()["value"].to_pylist()[0]["n"]


def test_rows_of_many_keys_with_many_rows(memory_store: pds.Store) -> None:
    """Between keys with few rows, and of one update."""
    sources = [Source("s", pa.field("key", INT), pa.field("value", INT))]
    stages = [Stage("groups", ["s"], _by_size, pa.field("key", INT), pa.field("value", INT))]
    model = Model(sources, stages)
    pipeline = declare(memory_store, "p", sources, stages, page_rows=1, file_rows=50)
    rows: list[tuple[Any, Any]] = [(key, key) for key in range(600)]
    for update in (Changes(rows), Changes([(600 + key, key) for key in range(20)], list(range(0, 600, 7)))):
        model.update({"s": update})
        pipeline.update(**to_changes({"s": update}))
        compare(memory_store, pipeline, model)


def _by_size(_: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Every second key has many rows."""
    for value in values:
        yield value % 10 if value % 2 else value, value

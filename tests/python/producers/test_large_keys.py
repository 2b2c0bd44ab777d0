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

pytestmark = pytest.mark.sampled(3)

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
    # Values that no encoding makes small, beside which the end of a file, read in one request, is little.
    values = random.Random(1).sample(range(count), count)
    table = pa.table({"key": range(count), "value": pa.array(values, INT)})
    stages = pipeline.update(rows=pds.Changes(table)).stages.values()
    built = sum(stage.bytes_written for stage in stages)
    read = memory_store.metrics()["bytes_read"]
    pipeline.update(rows=change())
    read = memory_store.metrics()["bytes_read"] - read
    assert read < built / 5, (read, built)
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


@pytest.mark.parametrize("prefix", ["", "u" * 64, "é" * 70])
def test_keys_that_are_alike_in_key_indexes(memory_store: pds.Store, prefix: str) -> None:
    """Indexes have the first 64 characters of a key, so they say of each such key that it is in all blocks."""
    rng = random.Random(len(prefix))
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline._page_rows, pipeline._file_rows = 2, 64
    pipeline.source("s", key=INT, value=pa.struct([("k", pa.string()), ("n", INT)]))
    pipeline.select("s", key="value.k", value="value.n", order_by="value", name="groups")
    pipeline.first("groups", by="value", rows=2, name="first")
    pipeline.aggregate("groups", aggregates={"low": ("value", "min"), "high": ("value", "max")}, name="ends")
    rows: dict[int, tuple[str, int]] = {}
    for changed, gone in ((300, 0), (20, 20), (0, 200), (1, 0), (200, 50)):
        new = {rng.randrange(400): (prefix + rng.choice("aab"), rng.randrange(1000)) for _ in range(changed)}
        deletes = [key for key in rng.sample(sorted(rows), min(gone, len(rows))) if key not in new]
        pipeline.update(s=pds.Changes([(key, {"k": k, "n": n}) for key, (k, n) in new.items()], deletes))
        rows = {key: row for key, row in {**rows, **new}.items() if key not in deletes}
        groups: dict[str, list[int]] = {}
        for k, n in sorted(rows.values()):
            groups.setdefault(k, []).append(n)
        ends = {row["target_key"]: row["value"] for row in pipeline["ends"].read().to_pylist()}
        assert ends == {k: {"low": numbers[0], "high": numbers[-1]} for k, numbers in groups.items()}
        first = [(row["target_key"], row["value"]) for row in pipeline["first"].read().to_pylist()]
        assert first == [(k, n) for k, numbers in groups.items() for n in numbers[:2]]
    assert pipeline.check().ok


def _by_size(_: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Every second key has many rows."""
    for value in values:
        yield value % 10 if value % 2 else value, value


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda keys: pds.Changes(deletes=keys[:1]), id="least"),
        pytest.param(lambda keys: pds.Changes(deletes=keys[-1:]), id="greatest"),
        pytest.param(lambda keys: pds.Changes(deletes=sorted(keys[:500] + keys[-500:])), id="500 at each end"),
        pytest.param(lambda keys: pds.Changes([(keys[0], 5)], keys[-1:]), id="moves"),
    ],
)
def test_what_leaves_an_end_costs_a_few_pages(
    memory_store: pds.Store, change: Callable[[list[int]], pds.Changes], descending: bool
) -> None:
    """Beside what it costs to find the rows that change."""
    count = 300_000
    values = random.Random(1).sample(range(10, 10**9), count)
    table = pa.table({"key": range(count), "value": pa.array(values, INT)})
    changes = change(sorted(range(count), key=values.__getitem__))

    def update(path: str, *, has_ends: bool) -> tuple[pds.Pipeline, int, int]:
        pipeline = pds.Pipeline(memory_store, path)
        pipeline.source("s", key=INT, value=INT)
        pipeline.select("s", key="true", order_by="value", order_descending=descending, name="one")
        if has_ends:
            pipeline.aggregate("one", aggregates={"low": ("value", "min"), "high": ("value", "max")}, name="ends")
            pipeline.first("one", by="value", descending=descending, rows=10, name="first")
        built = pipeline.update(s=pds.Changes(table)).stages["one"].bytes_written
        read = memory_store.metrics()["bytes_read"]
        pipeline.update(s=changes)
        return pipeline, built, memory_store.metrics()["bytes_read"] - read

    _, _, found = update("found", has_ends=False)
    pipeline, built, read = update("ends", has_ends=True)
    assert read - found < built / 3, (read, found, built)
    stored = sorted(pipeline["s"].read()["value"].to_pylist(), reverse=descending)
    assert pipeline["ends"].read()["value"].to_pylist() == [{"low": min(stored), "high": max(stored)}]
    assert pipeline["first"].read()["value"].to_pylist() == stored[:10]


def test_more_changes_of_a_key_than_are_kept_in_memory(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=INT)
    pipeline.select("s", key="true", order_by="value", name="one")
    pipeline.aggregate("one", aggregates={"low": ("value", "min"), "high": ("value", "max")}, name="ends")
    count = 200_000
    pipeline.update(s=pds.Changes(pa.table({"key": range(count), "value": pa.array(range(count), INT)})))
    pipeline.update(s=pds.Changes(deletes=list(range(100_000))))
    assert pipeline["ends"].read()["value"].to_pylist() == [{"low": 100_000, "high": count - 1}]
    pipeline.update(s=pds.Changes(deletes=list(range(100_000, count))))
    assert pipeline["ends"].read().num_rows == 0

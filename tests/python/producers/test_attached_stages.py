"""Sources that are fed by stages of other pipelines: two pipelines have the rows of one with the stages of both."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pds
from producers.net_changes import STAGES, declare, move
from producers.pipelines import plain_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.sampled(2)

NOW = dt.timedelta(0)
TEXT: Any = {"key": pa.string(), "value": pa.string()}


def describe(key: Any, values: Iterator[Any]) -> Iterator[tuple[str, str]]:
    """Emit the values in their order."""
    yield repr(tuple(key) if isinstance(key, tuple) else key), ", ".join(map(repr, values))


def add_last(pipeline: pds.Pipeline, feeders: dict[str, Any]) -> None:
    """Two stages on each feeder."""
    for name, feeder in feeders.items():
        pipeline.producer(feeder, **TEXT, name=f"last of {name}")(describe)
        pipeline.aggregate(feeder, aggregates={"n": "count"}, name=f"counts of {name}")


def declare_second(store: pds.Store, first: pds.Pipeline, stages: Sequence[str] = STAGES) -> pds.Pipeline:
    """A pipeline that is fed by stages of another one."""
    second = pds.Pipeline(store, "second")
    feeders = {name: second.source(f"from {name}", first[name], descending=name == "moved") for name in stages}
    add_last(second, feeders)
    return second


def declare_whole(store: pds.Store, stages: Sequence[str] = STAGES) -> pds.Pipeline:
    """One pipeline with the stages of both."""
    whole = declare(store, "whole", stages)
    add_last(whole, {name: name for name in stages})
    return whole


KEYS = st.sampled_from([None, 0, 1, 2, 3])
NUMBERS = st.dictionaries(KEYS, st.lists(st.integers(-4, 4), max_size=3), min_size=1, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["s", "t"]), NUMBERS),
        st.tuples(st.sampled_from(["refresh", "compact", "vacuum", "compact second", "rebuild"]), st.none()),
    ),
    min_size=1,
    max_size=6,
)


def to_changes(source: str, groups: dict[Any, list[Any]]) -> pds.Changes:
    convert: Any = str if source == "t" else int
    upserts = [(key, convert(value)) for key, values in groups.items() for value in values]
    return pds.Changes(upserts or None, [key for key, values in groups.items() if not values] or None)


def check(second: pds.Pipeline, first: pds.Pipeline, whole: pds.Pipeline, stages: Sequence[str] = STAGES) -> None:
    for name in stages:
        rows = [(row["target_key"], row["value"]) for row in first[name].read().to_pylist()]
        assert plain_rows(second[f"from {name}"].read()) == rows, name
        for last in (f"last of {name}", f"counts of {name}"):
            assert plain_rows(second[last].read()) == plain_rows(whole[last].read()), last


@settings(deadline=None)
@given(STEPS, st.sampled_from(STAGES))
def test_any_changes(steps: list[tuple[str, Any]], stage: str) -> None:
    store = pds.Store("memory://")
    first, whole = declare(store, "first", [stage]), declare_whole(store, [stage])
    for each in (first, whole):
        each._page_rows, each._file_rows = 2, 5
        each.update(s=pds.Changes([(0, 1), (0, 2), (1, 3)]), t=pds.Changes([(1, "a")]))
    second = declare_second(store, first, [stage])
    for name, groups in [*steps, ("refresh", None)]:
        if name in {"s", "t"}:
            for each in (first, whole):
                each.update({name: to_changes(name, groups)})
        elif name == "refresh":
            second.refresh()
            check(second, first, whole, [stage])
            assert second.refresh() is None
        elif name == "compact":
            first.compact(min_delta=0)
        elif name == "vacuum":
            first.vacuum(NOW)
        elif name == "rebuild":
            first.rebuild(stage)
        elif second.version:
            second.compact(min_delta=0)


def run_chain(store: pds.Store) -> None:
    first, whole = declare(store, "first"), declare_whole(store)
    for each in (first, whole):
        each.update(s=pds.Changes([(n, n) for n in range(9)]), t=pds.Changes([(4, "a")]))
    second = declare_second(store, first)
    second.refresh()
    for each in (first, whole):
        each.update(s=pds.Changes([(3, 7), (3, 8)], [4]), t=pds.Changes([(3, "b")]))
        each.update(s=pds.Changes([(9, 9)], [5]))
    second.refresh()
    check(second, first, whole)
    first.compact(min_delta=0)
    first.tag("begin", 1)
    first.vacuum(NOW)
    # The version that was read is not there any more: all is compared, and nothing differs.
    result = second.refresh()
    assert result is not None
    assert [stage.keys_out for stage in result.stages.values()] == [0] * len(result.stages)
    check(second, first, whole)


def test_in_s3(s3_store: pds.Store) -> None:
    run_chain(s3_store)


def test_in_local_files(local_store: pds.Store) -> None:
    run_chain(local_store)


@pytest.fixture
def first(memory_store: pds.Store) -> pds.Pipeline:
    first = declare(memory_store, "first")
    first.update(s=pds.Changes([(1, 1), (2, 2), (3, 3)]))
    return first


def open_second(first: pds.Pipeline, function: Callable[..., Any] = describe) -> pds.Pipeline:
    second = pds.Pipeline(first._location.store, "second")
    source = second.source("x", first["ordered"])
    second.producer(source, **TEXT, name="texts")(function)
    return second


def read_texts(second: pds.Pipeline) -> dict[str, str]:
    return {row["target_key"]: row["value"] for row in second["texts"].read().to_pylist()}


def test_only_keys_that_changed_are_called_for(first: pds.Pipeline) -> None:
    calls: list[Any] = []

    def noted(key: Any, values: Iterator[Any]) -> Iterator[tuple[str, str]]:
        calls.append(key)
        return describe(key, values)

    second = open_second(first, noted)
    result = second.refresh()
    assert result is not None
    assert calls == [None, 1, 2]
    # The greatest value comes first, and not because values are sorted.
    assert read_texts(second) == {"None": "3, -3", "1": "1, -1", "2": "2"}
    calls.clear()
    first.update(s=pds.Changes([(2, 5)]))
    first.update(s=pds.Changes([(4, 4)]))
    result = second.refresh()
    assert result is not None
    assert calls == [1, 2]
    assert result.stages["x"].keys_out == 2
    calls.clear()
    # A key that came and went, the same rows, and upkeep.
    first.update(s=pds.Changes([(9, 8)]))
    first.update(s=pds.Changes([(1, 1)], [9]))
    first.compact(min_delta=0)
    first.tag("now")
    assert second.refresh() is None
    assert calls == []
    consumed = next(node for node in _read_nodes(second) if node["name"] == "x")["consumed"]
    assert (consumed["location"], consumed["version"], consumed["columns"]) == ("first#ordered", 3, [])


def _read_nodes(pipeline: pds.Pipeline) -> list[dict[str, Any]]:
    from pds.producers.tables import read_nodes  # noqa: PLC0415 what is stored

    return list(read_nodes(pipeline._open()).values())


def test_a_version_that_was_vacuumed_has_the_whole_compared(first: pds.Pipeline) -> None:
    second = open_second(first)
    second.refresh()
    first.update(s=pds.Changes([(2, 5)]))
    first.vacuum(NOW)
    result = second.refresh()
    assert result is not None
    assert result.stages["x"].keys_out == 1
    assert read_texts(second) == {"None": "3, -3", "1": "1, -1", "2": "5, -5"}


def test_deleted_keys_that_are_not_held_are_read_again(first: pds.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pds.producers.attached_stage._MAX_HELD_BYTES", 0)
    second = open_second(first)
    second.refresh()
    first.update(s=pds.Changes([(2, 9)], [1, 3]))
    second.refresh()
    assert read_texts(second) == {"None": "9, -9"}
    assert plain_rows(second["x"].read()) == [(None, 9), (None, -9)]


def test_the_limit_of_held_keys_counts_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one key takes far more memory than the key."""
    from pds.producers.attached_stage import StageChanges  # noqa: PLC0415 what this test calls

    schema = pa.schema([("type", pa.int32()), ("key", pa.int64()), ("value", pa.binary(1000))])
    keys = range(1000)

    def delete(key: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"type": 2, "key": key, "value": None}], schema=schema)

    class Scan:
        def __init__(self) -> None:
            self._batches = map(delete, keys)

        def next_batch(self) -> pa.RecordBatch | None:
            return next(self._batches, None)

        def close(self) -> None:
            pass

    open_scan: Any = Scan
    for limit, is_held in ((100_000, False), (10_000_000, True)):
        monkeypatch.setattr("pds.producers.attached_stage._MAX_HELD_BYTES", limit)
        changes = StageChanges(open_scan, pa.schema([schema.field("key"), schema.field("value")]))
        assert [batch.num_rows for batch in changes.read_upserts()] == [0] * len(keys)
        assert (changes._deleted is not None) == is_held
        assert [batch.column(0)[0].as_py() for batch in changes.read_deletes()] == list(keys)


def test_another_pipeline_at_the_same_path_is_compared(first: pds.Pipeline) -> None:
    """Its versions have the same numbers, and other commits."""
    second = open_second(first)
    second.refresh()
    for updates in (1, 2):
        elsewhere = declare(pds.Store("memory://"), "first")
        for number in range(updates):
            elsewhere.update(s=pds.Changes([(1, 1), (2, 2 + 3 * number)]))
        moved = pds.Pipeline(first._location.store, "second")
        moved.producer(moved.source("x", elsewhere["ordered"]), **TEXT, name="texts")(describe)
        moved.refresh()
        assert moved.refresh() is None
        assert read_texts(moved) == {"1": "1, -1", "2": ["2", "5, -5"][updates - 1]}


def test_stages_of_a_pipeline_are_read_at_one_version(first: pds.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    from pds.producers.attached_stage import AttachedStage  # noqa: PLC0415 what this test changes

    second = pds.Pipeline(first._location.store, "second")
    for name in ("moved", "ordered"):
        second.source(name, first[name], descending=True)
    read = AttachedStage.read

    def update_after(self: AttachedStage, *arguments: Any) -> Any:
        new = read(self, *arguments)
        first.update(s=pds.Changes([(8, first.version)]))
        return new

    monkeypatch.setattr(AttachedStage, "read", update_after)
    second.refresh()
    versions = {node["name"]: node["consumed"]["version"] for node in _read_nodes(second)}
    assert versions == {"moved": 1, "ordered": 1}


def test_a_version_that_is_vacuumed_while_it_is_read(first: pds.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    from pds.producers.attached_stage import AttachedStage  # noqa: PLC0415 what this test changes

    second = open_second(first)
    second.refresh()
    first.update(s=pds.Changes([(2, 5)]))
    opened, times = AttachedStage.open_newest, 0

    def vacuum_after(self: AttachedStage) -> Any:
        nonlocal times
        times += 1
        handle = opened(self)
        if times == 1:
            first.update(s=pds.Replace([(7, 7)]))
            first.compact(min_delta=0)
            first.vacuum(NOW)
        return handle

    monkeypatch.setattr(AttachedStage, "open_newest", vacuum_after)
    second.refresh()
    monkeypatch.undo()
    second.refresh()
    assert read_texts(second) == {"1": "7, -7"}


def test_renamed_removed_and_changed_stages(first: pds.Pipeline) -> None:
    store = first._location.store
    second = open_second(first)
    second.refresh()
    first.rename("ordered", "sorted")
    with pytest.raises(pds.NotFound, match="pipeline 'first' has no stage 'ordered' any more, which feeds 'x'"):
        second.refresh()
    assert second.version == 1
    renamed = pds.Pipeline(store, "second")
    source = renamed.source("x", pds.Pipeline(store, "first")["sorted"])
    renamed.producer(source, **TEXT, name="texts")(describe)
    # All is compared: nothing differs.
    result = renamed.refresh()
    assert result is not None
    assert result.stages["x"].keys_out == 0
    first.remove("sums")
    first.remove("sorted")
    with pytest.raises(pds.NotFound, match="it has"):
        renamed.refresh()


def test_other_types_of_a_stage(memory_store: pds.Store) -> None:
    def declare_first(data_type: pa.DataType, version: int) -> pds.Pipeline:
        first = pds.Pipeline(memory_store, "first")
        source = first.source("s", key=pa.int64(), value=pa.int64())
        first.producer(source, key=pa.int64(), value=data_type, name="ordered", version=version)(move)
        return first

    first = declare_first(pa.int64(), 1)
    first.update(s=pds.Changes([(1, 1)]))
    second = open_second(first)
    second.refresh()
    first = declare_first(pa.int32(), 2)
    first.rebuild()
    message = "the value of stage 'ordered' of pipeline 'first', which feeds 'x', is int32 now, not int64"
    with pytest.raises(pds.DefinitionChanged, match=message):
        second.refresh()
    # A process that begins now declares another source than the stored one.
    with pytest.raises(pds.DefinitionChanged):
        open_second(first).refresh()
    # And back again: the version between has other types.
    first = declare_first(pa.int64(), 3)
    first.rebuild()
    first.update(s=pds.Changes([(1, 2)]))
    second.refresh()
    assert read_texts(second) == {"2": "2"}


def test_what_cannot_feed_a_source_is_refused(first: pds.Pipeline) -> None:
    store = first._location.store
    second = pds.Pipeline(store, "second")
    with pytest.raises(pds.NotFound, match="nothing"):
        second.source("x", first["nothing"])
    with pytest.raises(pds.InvalidInput, match="leave `key` and `value` out"):
        second.source("x", first["moved"], key="target_key")
    with pytest.raises(pds.InvalidInput, match="leave `key` and `value` out"):
        second.source("x", first["moved"], value=pa.int64())
    with pytest.raises(pds.InvalidInput, match="'s' is a source"):
        second.source("x", first["s"])
    with pytest.raises(pds.InvalidInput, match="has no data yet"):
        second.source("x", declare(store, "empty")["moved"])
    with pytest.raises(pds.InvalidInput, match="one of this pipeline"):
        first.source("x", first["moved"])
    with pytest.raises(pds.InvalidInput, match="one of this pipeline"):
        first.source("x", pds.Pipeline(store, "first").as_of(1)["moved"])
    with first.preview(s=pds.Changes([(1, 2)])) as preview, pytest.raises(pds.InvalidInput, match="preview"):
        second.source("x", preview["moved"])
    declared = first.select("s", name="declared")
    with pytest.raises(pds.InvalidType, match=r"pipeline\['name'\]"):
        second.source("x", declared)  # type: ignore[arg-type]
    second.source("x", first["moved"])
    with pytest.raises(pds.InvalidInput, match="fed by a stage of another pipeline; update that pipeline, and call"):
        second.update(x=pds.Changes([(1, 1)]))


def test_the_same_place_by_another_url(tmp_path: Path) -> None:
    first = declare(pds.Store(str(tmp_path)), "a/first")
    first.update(s=pds.Changes([(1, 1)]))
    inner = pds.Store(str(tmp_path / "a"))
    with pytest.raises(pds.InvalidInput, match="one of this pipeline"):
        first.source("x", pds.Pipeline(inner, "first")["moved"])
    # Another one in that store, and another store.
    for store, path in ((inner, "second"), (pds.Store("memory://"), "a/first")):
        second = pds.Pipeline(store, path)
        second.source("x", first["moved"], descending=True)
        second.refresh()
        rows = first["moved"].read()
        assert second["x"].read()["value"].to_pylist() == rows["value"].to_pylist()


def test_a_pipeline_that_is_gone(first: pds.Pipeline) -> None:
    second = open_second(first)
    second.refresh()
    store = first._location.store
    for info in list(store.list_files("first", recursive=True)):
        store.delete(str(info.path))
    with pytest.raises(pds.NotFound, match="pipeline at 'first' does not exist; its stage 'ordered' feeds a source"):
        second.refresh()
    assert second.version == 1


def test_rows_that_another_process_pushes_go(first: pds.Pipeline) -> None:
    second = open_second(first)
    second.refresh()
    expected = read_texts(second)
    pushing = pds.Pipeline(first._location.store, "second")
    source = pushing.source("x", key=pa.int64(), value=pa.int64())
    pushing.producer(source, **TEXT, name="texts")(describe)
    pushing.update(x=pds.Changes([(1, 99), (77, 1)]))
    second.refresh()
    assert read_texts(second) == expected


def test_it_is_explained(first: pds.Pipeline) -> None:
    second = open_second(first)
    second.refresh()
    stage = second.explain().stages["x"]
    assert (stage.kind, stage.cost, stage.key_pages) == ("stage", "group", 0)
    assert "stage 'ordered' of pipeline 'first'" in stage.reads
    assert second.check().differences == []
    assert second.as_of(1)["x"].read() == second["x"].read()

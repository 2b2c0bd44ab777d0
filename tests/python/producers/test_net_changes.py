"""`changes(since=, until=)`: what several versions changed together, against contents that plain Python compares."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pds
from pds.readers import read_scan
from producers.net_changes import ADD, DELETE, STAGES, UPDATE, changes_of, check, compare, declare, move

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = dt.timedelta(0)
KEYS = st.sampled_from([None, 0, 1, 2, 3])
NUMBERS = st.dictionaries(KEYS, st.lists(st.integers(-4, 4), max_size=3), min_size=1, max_size=3)
TEXTS = st.dictionaries(KEYS, st.lists(st.sampled_from(["a", "b"]), max_size=2), max_size=2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), NUMBERS, TEXTS),
        st.tuples(st.sampled_from(["compact", "merge", "rebuild", "tag"]), st.none(), st.none()),
    ),
    min_size=1,
    max_size=5,
)


def to_changes(groups: dict[Any, list[Any]]) -> pds.Changes:
    """Keys with their values; those without any are deleted."""
    upserts = [(key, value) for key, values in groups.items() for value in values]
    return pds.Changes(upserts or None, [key for key, values in groups.items() if not values] or None)


def take_step(pipeline: pds.Pipeline, stage: str, name: str, numbers: Any, texts: Any) -> None:
    if name == "update":
        pipeline.update(s=to_changes(numbers), **({"t": to_changes(texts)} if texts else {}))
    elif name == "compact":
        pipeline.compact()
    elif name == "merge":
        pipeline.compact(min_delta=0)
    elif name == "rebuild":
        pipeline.rebuild(stage)
    else:
        pipeline.tag(f"tag {pipeline.version}")


@settings(deadline=None)
@given(STEPS, st.sampled_from(STAGES))
def test_any_versions(steps: list[tuple[str, Any, Any]], stage: str) -> None:
    pipeline = declare(pds.Store("memory://"), stages=[stage])
    pipeline._page_rows, pipeline._file_rows = 2, 5
    pipeline.update(s=pds.Changes([(0, 1), (0, 2), (1, 3)]), t=pds.Changes([(1, "a")]))
    for step in steps:
        take_step(pipeline, stage, *step)
    for until in range(1, pipeline.version + 1):
        for since in range(until + 1):
            check(pipeline, stage, since, until, descending=stage == "moved")


@pytest.fixture
def pipeline(memory_store: pds.Store) -> pds.Pipeline:
    pipeline = declare(memory_store)
    pipeline.update(s=pds.Changes([(1, 1), (2, 2), (3, 4)]))
    return pipeline


def test_types_are_from_the_rows_at_both_ends(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=pa.int64(), value=pa.string())
    pipeline.select(source, name="copy")
    rows = [(1, "same"), (2, "old"), (2, "other"), (3, "goes"), (4, "back")]
    pipeline.update(s=pds.Changes(rows))
    pipeline.update(s=pds.Changes([(2, "new"), (2, "other"), (5, "came"), (6, "came and went"), (4, "away")], [3]))
    pipeline.update(s=pds.Changes([(4, "back"), (1, "same"), (5, "came twice")], [6]))
    stage = pipeline["copy"]
    assert changes_of(stage.changes(since=1)) == [
        (UPDATE, 2, "new"),
        (UPDATE, 2, "other"),
        (DELETE, 3, None),
        (ADD, 5, "came twice"),
    ]
    assert changes_of(stage.changes(since=1, until=2)) == changes_of(stage.changes(2))
    assert changes_of(pipeline.as_of(2)["copy"].changes(since=1)) == changes_of(stage.changes(2))
    # One version as `changes` has it, but for keys whose rows are as before.
    assert changes_of(stage.changes(since=2)) == [row for row in changes_of(stage.changes()) if row[1] != 1]
    assert changes_of(stage.changes(since=3)) == []
    values = [*stage.read()["value"].to_pylist()]
    assert changes_of(stage.changes(since=0)) == [
        (ADD, 1, values[0]),
        (ADD, 2, values[1]),
        (UPDATE, 2, values[2]),
        (ADD, 4, "back"),
        (ADD, 5, "came twice"),
    ]


def test_a_sink_follows_a_stage(pipeline: pds.Pipeline) -> None:
    """It applies the changes since the version that it stores, from any version to any later one."""
    sink: dict[Any, list[Any]] = {}
    version = 0
    random = np.random.default_rng(7)
    for number in range(12):
        pipeline.update(s=pds.Changes([(int(key), number) for key in random.integers(0, 6, 2)]))
        if number % 4 == 3:
            pipeline.compact(min_delta=0)
        if number % 3 < 2:
            continue
        stage = pipeline["ordered"]
        changes = changes_of(stage.changes(since=version))
        for key in {key for _, key, _ in changes}:
            assert (key not in sink) == ((ADD, key) in [row[:2] for row in changes])
            sink.pop(key, None)
        for kind, key, value in changes:
            if kind != DELETE:
                sink.setdefault(key, []).append(value)
        version = stage.version
        rows = stage.read()
        expected: dict[Any, list[Any]] = {}
        for key, value in zip(rows["target_key"].to_pylist(), rows["value"].to_pylist(), strict=True):
            expected.setdefault(key, []).append(value)
        assert sink == expected


def test_what_cannot_be_is_refused(pipeline: pds.Pipeline) -> None:
    pipeline.update(s=pds.Changes([(1, 5)]))
    stage = pipeline["moved"]
    with pytest.raises(pds.InvalidInput, match="leave one of them out"):
        stage.changes(2, since=1)
    with pytest.raises(pds.InvalidInput, match="`until` needs `since`"):
        stage.changes(until=2)
    with pytest.raises(pds.InvalidInput, match="must not be the newer one"):
        stage.changes(since=2, until=1)
    with pytest.raises(pds.InvalidInput, match="must not be the newer one"):
        stage.changes(since=3)
    with pytest.raises(pds.InvalidInput, match="there is no version 3; the newest is 2"):
        stage.changes(since=1, until=3)
    for wrong in (True, False, 1.0, 0.0, "1"):
        with pytest.raises(pds.InvalidType, match="since must be an integer"):
            stage.changes(since=wrong)  # type: ignore[arg-type]
        with pytest.raises(pds.InvalidType, match="until must be an integer"):
            stage.changes(since=1, until=wrong)  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidInput, match="since -1 does not exist; versions begin at 1"):
        stage.changes(since=-1)
    for number in (-1, 0):
        with pytest.raises(pds.InvalidInput, match=f"until {number} does not exist; versions begin at 1"):
            stage.changes(since=0, until=number)
    with pytest.raises(pds.InvalidInput, match="only stages have changes"):
        pipeline["s"].changes(since=1)
    empty = declare(pipeline._location.store, "empty")
    with pytest.raises(pds.InvalidInput, match="has no data yet"):
        empty["moved"].changes(since=0)


def test_versions_that_a_vacuum_removed(pipeline: pds.Pipeline) -> None:
    for number in range(3):
        pipeline.update(s=pds.Changes([(number, number + 10), (7, number)]))
    before = pipeline["moved"].read()
    pipeline.tag("kept", 2)
    pipeline.update(s=pds.Changes([(3, 8)], [1]))
    pipeline.vacuum(NOW)
    oldest = _read_manifest(pipeline)["oldest_version"]
    assert oldest > 4
    for since in (1, 3, 4):
        with pytest.raises(pds.VersionExpired, match=f"oldest available version is {oldest}"):
            pipeline["moved"].changes(since=since)
    with pytest.raises(pds.VersionExpired):
        pipeline["moved"].changes(since=0, until=3)
    # A tag keeps one, and the versions between are not needed.
    check(pipeline, "moved", 2, pipeline.version, descending=True)
    check(pipeline, "moved", 0, 2, descending=True)
    # Versions below the first one do not matter.
    pipeline.update(s=pds.Changes([(9, 9)]))
    check(pipeline, "moved", oldest, pipeline.version, descending=True)
    assert compare(before, pipeline["moved"].read(), descending=True)


def test_a_version_that_was_opened_before_a_vacuum(tmp_path: Path) -> None:
    pipeline = declare(pds.Store(str(tmp_path)))
    pipeline.update(s=pds.Changes([(1, 1), (2, 2)]))
    pipeline.update(s=pds.Changes([(1, 5)]))
    # As another process, which has read the manifest only.
    opened = pds.Pipeline(pds.Store(str(tmp_path)), "p")["moved"]
    pipeline.update(s=pds.Replace([(8, 8)]))
    pipeline.compact(min_delta=0)
    pipeline.vacuum(NOW)
    with pytest.raises(pds.VersionExpired, match="oldest available version is"):
        opened.changes(since=0)


def test_renamed_removed_and_new_stages(pipeline: pds.Pipeline) -> None:
    store = pipeline._location.store
    before = pipeline["moved"].read()
    pipeline.rename("moved", "shifted")
    renamed = pds.Pipeline(store, "p")
    source = renamed.source("s", key=pa.int64(), value=pa.int64())
    renamed.source("t", key=pa.int64(), value=pa.string())
    stage = renamed.producer(source, key=pa.int64(), value=pa.int64(), name="shifted", descending=True)(move)
    for name in ("by_pair", "sums", "ordered", "joined"):
        renamed.remove(name)
    renamed.update(s=pds.Changes([(1, 7)], [2]))
    after = renamed["shifted"].read()
    changed = compare(before, after, descending=True)
    # It is the same stage, whatever its name was.
    assert changed
    assert changes_of(renamed["shifted"].changes(since=1)) == changed
    renamed.select(stage, name="added")
    renamed.update(s=pds.Changes([(4, 4)]))
    rows = renamed["added"].read()
    assert changes_of(renamed["added"].changes(since=1)) == compare(None, rows)
    assert changes_of(renamed["added"].changes(since=0)) == compare(None, rows)
    with pytest.raises(pds.NotFound, match="shifted"):
        renamed["shifted"].changes(since=0, until=1)
    # Nobody knows any more what the stage was called.
    renamed.tag("first", 1)
    renamed.vacuum(NOW)
    with pytest.raises(pds.VersionExpired, match="oldest available version is"):
        renamed["shifted"].changes(since=1)


def emit_texts(_: int, values: Iterator[int]) -> Iterator[tuple[str, int]]:
    for value in values:
        yield str(value), value


def emit_numbers(_: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
    for value in values:
        yield value, value


def declare_numbers(store: pds.Store, version: int, function: Any, **options: Any) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "p")
    source = pipeline.source("s", key=pa.int64(), value=pa.int64())
    fields: dict[str, Any] = {"key": pa.int64(), "value": pa.int64(), "name": "numbers", **options}
    pipeline.producer(source, version=version, **fields)(function)
    return pipeline


def test_stages_whose_definition_changed(memory_store: pds.Store) -> None:
    numbers = declare_numbers(memory_store, 1, emit_numbers)
    numbers.update(s=pds.Changes([(1, 1), (2, 2), (3, 3)]))
    # The order of the keys.
    reversed_numbers = declare_numbers(memory_store, 1, emit_numbers, descending=True)
    reversed_numbers.rebuild()
    assert changes_of(reversed_numbers["numbers"].changes(since=1)) == []
    reversed_numbers.update(s=pds.Changes([(2, 7)]))
    changed = [(ADD, 7, 7), (DELETE, 2, None)]
    assert changes_of(reversed_numbers["numbers"].changes(since=1)) == changed
    # The types, and back.
    texts = declare_numbers(memory_store, 2, emit_texts, key=pa.string())
    texts.rebuild()
    with pytest.raises(pds.DefinitionChanged, match='the key of stage "numbers" is Int64 in version 1, and Utf8'):
        texts["numbers"].changes(since=1)
    numbers = declare_numbers(memory_store, 3, emit_numbers)
    numbers.rebuild()
    assert sorted(changes_of(numbers["numbers"].changes(since=1))) == sorted(changed)
    other_values = declare_numbers(memory_store, 4, emit_numbers, value=pa.int32())
    other_values.rebuild()
    with pytest.raises(pds.DefinitionChanged, match="the value of stage"):
        other_values["numbers"].changes(since=1)


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("count", [4, 40_000])
def test_a_field_of_the_key_may_be_null_or_not_from_now_on(memory_store: pds.Store, count: int, nullable: bool) -> None:
    """Keys that go are deleted, and those that stay were there, however large the runs are."""

    def declared(nullable: bool, version: int, divisor: int) -> pds.Pipeline:
        key = pa.struct([pa.field("x", pa.int64(), nullable=nullable)])

        def emit(batch: pa.RecordBatch) -> pa.RecordBatch:
            numbers = np.array(batch["key"])
            rows = np.flatnonzero(numbers % divisor == 0)
            emitted = pa.StructArray.from_arrays([pa.array(numbers[rows])], fields=list(key))
            texts = pa.array([f"{number:x}" * 8 for number in (numbers[rows] * 0x9E3779B97F4A7).tolist()])
            return pa.RecordBatch.from_arrays([pa.array(rows), emitted, texts], names=["source_row", "key", "value"])

        pipeline = pds.Pipeline(memory_store, "p")
        pipeline.source("s", key=pa.int64(), value=pa.int64())
        pipeline.producer("s", key=key, value=pa.string(), name="texts", batch=True, version=version)(emit)
        return pipeline

    numbers = pa.array(range(count), pa.int64())
    declared(not nullable, 1, 1).update(s=pds.Changes(pa.table({"key": numbers, "value": numbers})))
    pipeline = declared(nullable, 2, 2)
    pipeline.rebuild()
    deleted = [(DELETE, {"x": number}, None) for number in range(1, count, 2)]
    net = changes_of(pipeline["texts"].changes(since=1))
    assert [change for change in net if change[0] == DELETE] == deleted
    kinds = {key["x"]: kind for kind, key, _ in changes_of(pipeline["texts"].changes())}
    assert [number for number, kind in kinds.items() if kind == DELETE] == list(range(1, count, 2))
    assert ADD not in kinds.values()


def test_a_preview_has_them(pipeline: pds.Pipeline) -> None:
    before = pipeline["moved"].read()
    pipeline.update(s=pds.Changes([(1, 5)]))
    with pipeline.preview(s=pds.Changes([(5, 3)], [2])) as preview:
        expected = compare(before, preview["moved"].read(), descending=True)
        assert changes_of(preview["moved"].changes(since=1)) == expected
        assert changes_of(preview["moved"].changes(since=1, until=preview.version)) == expected
        last = compare(pipeline["moved"].read(), preview["moved"].read(), descending=True)
        assert changes_of(preview["moved"].changes(since=2)) == last
        assert changes_of(preview["moved"].changes(since=1, until=2)) == changes_of(pipeline["moved"].changes(since=1))


@pytest.mark.parametrize(("updates", "compacts"), [(3, False), (3, True), (20, True)])
def test_the_cost_follows_what_changed(memory_store: pds.Store, updates: int, compacts: bool) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=pa.int64(), value=pa.string())
    pipeline.select(source, key="value", name="texts")
    count = 120_000
    noise = np.random.default_rng(3).bytes(count * 48).hex()
    texts = [noise[96 * number : 96 * (number + 1)] for number in range(count)]
    pipeline.update(s=pds.Changes(pa.table({"key": pa.array(range(count), pa.int64()), "value": texts})))
    for number in range(updates):
        pipeline.update(s=pds.Changes([(7, f"new {number}")]))
    if compacts:
        pipeline.compact(min_delta=0)
    nodes = {node["name"]: node for node in _read_manifest(pipeline)["nodes"]}
    stored = sum(file["size_bytes"] for run in nodes["texts"]["content"] for file in run["files"])
    before = memory_store.metrics()["bytes_read"]
    changes = changes_of(pipeline["texts"].changes(since=1))
    # All keys of both contents are about as much as one content.
    assert memory_store.metrics()["bytes_read"] - before < stored / 2
    last = f"new {updates - 1}"
    assert sorted(changes) == [(ADD, last, last), (DELETE, texts[7], None)]


def test_a_vacuum_that_was_killed(tmp_path: Path) -> None:
    """It leaves manifests of versions between, without their runs; nothing of these is needed."""
    pipeline = pds.Pipeline(pds.Store(str(tmp_path)), "p")
    source = pipeline.source("s", key=pa.int64(), value=pa.string())
    pipeline.select(source, name="copy")
    noise = np.random.default_rng(5).bytes(30_000 * 48).hex()
    pipeline.update(s=pds.Changes([(key, noise[96 * key : 96 * (key + 1)]) for key in range(30_000)]))
    pipeline.update(s=pds.Changes([(7, "new")], [8]))
    pipeline.compact(min_delta=0)
    pipeline.tag("first", 1)
    manifests = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    pipeline.vacuum(NOW)
    removed = [path for path in manifests if not path.exists()]
    assert removed
    for path in removed:
        path.write_bytes(manifests[path])
    assert changes_of(pipeline["copy"].changes(since=1)) == [(UPDATE, 7, "new"), (DELETE, 8, None)]


def test_rows_and_deletes_share_batches(memory_store: pds.Store) -> None:
    """Also where every other key is deleted: a batch takes far longer, and far more memory, than a row."""
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=pa.int64(), value=pa.string())
    pipeline.select(source, name="copy")
    count = 2_000
    pipeline.update(s=pds.Changes([(key, "old") for key in range(count)]))
    pipeline.update(s=pds.Changes([(key, "new") for key in range(0, count, 2)], list(range(1, count, 2))))
    changes = check(pipeline, "copy", 1, 2)
    assert changes == changes_of(pipeline["copy"].changes())
    handle = pipeline["copy"]._get_handle()
    for scan in (handle.net_changes("copy", 1, 64 << 20), handle.changes("copy", 64 << 20)):
        assert [batch.num_rows for batch in read_scan(scan)] == [count]


def _read_manifest(pipeline: pds.Pipeline) -> dict[str, Any]:
    handle = pipeline._open()
    assert handle is not None
    manifest: dict[str, Any] = json.loads(handle.manifest())
    return manifest


def test_large_groups_are_compared_within_little_memory(memory_store: pds.Store) -> None:
    """One key has all rows, far more than what is held at a time."""
    pipeline = pds.Pipeline(memory_store, "p", memory_limit=1 << 20)
    source = pipeline.source("s", key=pa.int64(), value=pa.int64())
    pipeline.select(source, key="1", name="all")
    count = 100_000
    keys = pa.array(range(count), pa.int64())
    pipeline.update(s=pds.Changes(pa.table({"key": keys, "value": keys})))
    pipeline.update(s=pds.Changes([(count - 1, 0)]))
    changes = pipeline["all"].changes(since=1)
    assert changes["value"].to_pylist() == [*range(count - 1), 0]
    assert set(changes["type"].to_pylist()) == {UPDATE}
    pipeline.update(s=pds.Changes([(count - 1, count - 1)]))
    assert pipeline["all"].changes(since=1).num_rows == 0

"""Previews show what an update would make, and make nothing else until they are committed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import pds
from producers.pipelines import objects, plain_rows
from producers.words import split_words

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sampled(2)

INT, TEXT = pa.int64(), pa.string()


def words_or_failure(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
    for word, number in split_words(key, phrases):
        if word == "fail":
            raise ZeroDivisionError
        yield word, number


def words(store: pds.Store) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "words")
    pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.producer("phrases", key=TEXT, value=INT, name="words")(words_or_failure)
    return pipeline


def changes_to(*rows: tuple[int, str], deletes: list[int] | None = None) -> pds.Changes:
    return pds.Changes(list(rows) or None, deletes)


@pytest.fixture
def pipeline(memory_store: pds.Store) -> pds.Pipeline:
    pipeline = words(memory_store)
    pipeline.update(phrases=changes_to((1, "a b"), (2, "b")))
    return pipeline


def test_a_preview_has_the_tables_of_the_next_version(pipeline: pds.Pipeline) -> None:
    store = pipeline._location.store
    before = objects(store)
    with pipeline.preview(phrases=changes_to((1, "c"), deletes=[2])) as preview:
        assert preview.version == 2
        assert preview.names == ["phrases", "words"]
        assert plain_rows(preview["words"].read()) == [("c", 1, 1)]
        assert plain_rows(preview["words"].changes()) == [(2, "a", None), (2, "b", None), (0, "c", 1)]
        assert (preview.stages["words"].keys_in, preview.stages["words"].keys_out) == (2, 3)
        assert preview["words"].lineage(["c"]) == {"phrases": [1]}
        # Nobody else sees it.
        assert pipeline.version == 1
        assert plain_rows(pipeline["words"].read()) == [("a", 1, 1), ("b", 1, 1), ("b", 2, 2)]
        assert objects(store) > before
    assert objects(store) == before
    with pytest.raises(pds.InvalidInput, match="committed or discarded"):
        preview.commit()


@pytest.mark.parametrize("first", [True, False])
def test_a_preview_is_committed_as_it_was_seen(memory_store: pds.Store, first: bool) -> None:
    pipeline = words(memory_store)
    if not first:
        pipeline.update(phrases=changes_to((7, "z")))
    with pipeline.preview(phrases=changes_to((1, "c d")), idempotency_key="k") as preview:
        shown = plain_rows(preview["words"].read())
        result = preview.commit()
    assert result.version == pipeline.version == (1 if first else 2)
    assert plain_rows(pipeline["words"].read()) == shown
    assert result.stages["words"].keys_out == 2
    assert [entry["commit_id"] for entry in pipeline.history(1)] == [result.commit_id]
    # It was that update.
    assert pipeline.update(phrases=changes_to((9, "x")), idempotency_key="k").replayed
    assert plain_rows(pipeline["words"].read()) == shown


@pytest.mark.parametrize("first", [True, False])
def test_a_preview_with_a_key_that_was_used_meanwhile_is_replayed(memory_store: pds.Store, first: bool) -> None:
    pipeline = words(memory_store)
    if not first:
        pipeline.update(phrases=changes_to((7, "z")))
    preview = pipeline.preview(phrases=changes_to((1, "c")), idempotency_key="k")
    other = pipeline.preview(phrases=changes_to((1, "d")), idempotency_key="k")
    committed = preview.commit()
    before = objects(memory_store)
    replayed = other.commit()
    assert replayed.replayed
    assert (replayed.version, replayed.commit_id) == (committed.version, committed.commit_id)
    assert objects(memory_store) < before
    assert pipeline.version == committed.version


def test_a_preview_with_a_key_that_was_used_before_shows_no_change(memory_store: pds.Store) -> None:
    """As `update`, which changes nothing then, whatever its base version is."""
    pipeline = words(memory_store)
    earlier = pipeline.update(phrases=changes_to((1, "a")), idempotency_key="k")
    pipeline.update(phrases=changes_to((2, "b")))
    before = objects(memory_store)
    with pipeline.preview(phrases=changes_to((1, "c")), idempotency_key="k", base_version=1) as preview:
        assert (preview.replayed, preview.version, preview.stages) == (True, 2, {})
        assert plain_rows(preview["words"].read()) == [("a", 1, 1), ("b", 2, 2)]
        assert plain_rows(preview["words"].changes()) == []
        assert objects(memory_store) == before
        result = preview.commit()
    replayed = pipeline.update(phrases=changes_to((1, "c")), idempotency_key="k", base_version=1)
    for one in (result, replayed):
        assert (one.version, one.commit_id, one.replayed, one.stages) == (1, earlier.commit_id, True, {})
    with pytest.raises(pds.InvalidInput, match="committed or discarded"):
        preview.commit()
    assert objects(memory_store) == before
    with pipeline.preview(phrases=changes_to((1, "c")), idempotency_key="other") as preview:
        assert not preview.replayed
        assert plain_rows(preview["words"].changes()) == [(2, "a", None), (0, "c", 1)]


def test_a_preview_whose_key_was_used_long_ago_is_replayed(memory_store: pds.Store) -> None:
    """So many updates later that lists have the key, not the newest manifest."""
    pipeline = words(memory_store)
    preview = pipeline.preview(phrases=changes_to((1, "c")), idempotency_key="k")
    committed = pipeline.update(phrases=changes_to((1, "d")), idempotency_key="k")
    for number in range(130):
        pipeline.update(phrases=changes_to((2, str(number))), idempotency_key=f"other {number}")
    assert "k" not in manifest(pipeline)["transactions"]
    replayed = preview.commit()
    assert (replayed.version, replayed.commit_id, replayed.replayed) == (1, committed.commit_id, True)
    with pipeline.preview(phrases=changes_to((1, "c")), idempotency_key="k") as preview:
        assert preview.replayed


@pytest.mark.parametrize("first", [True, False])
def test_a_preview_loses_against_an_update(memory_store: pds.Store, first: bool) -> None:
    pipeline = words(memory_store)
    if not first:
        pipeline.update(phrases=changes_to((7, "z")))
    preview = pipeline.preview(phrases=changes_to((1, "c")))
    pipeline.update(phrases=changes_to((1, "d")))
    before = plain_rows(pipeline["words"].read())
    with pytest.raises(pds.CommitConflict):
        preview.commit()
    assert plain_rows(pipeline["words"].read()) == before
    named = {file["name"] for node in manifest(pipeline)["nodes"] for file in files(node)}
    old = set() if first else {file["name"] for node in manifest(pipeline, 1)["nodes"] for file in files(node)}
    runs = {path.removeprefix("words/") for path in objects(memory_store) if "/run/" in path}
    assert runs == named | old


def manifest(pipeline: pds.Pipeline, version: int | None = None) -> Any:
    handle = pds._pds.PipelineHandle.open(pipeline._location.handle, pipeline.path, version)
    assert handle is not None
    return json.loads(handle.manifest())


def files(node: Any) -> list[Any]:
    runs = [*node["content"], *node["mappings"], *([node["update"]] if node["update"] else [])]
    return [file for run in runs for file in run["files"]]


def test_a_preview_lands_beside_a_compaction_of_other_runs(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    for number in range(3):
        text = np.random.default_rng(number).bytes(100_000 >> (3 * number)).hex()
        pipeline.update(phrases=changes_to((number, text)))
    preview = pipeline.preview(phrases=changes_to((9, "new")))
    pipeline.compact(min_delta=0)
    try:
        preview.commit()
    except pds.CommitConflict:
        # The update would have merged runs that the compaction merged.
        pipeline.update(phrases=changes_to((9, "new")))
    assert pipeline["words"].read(["new"]).num_rows == 1
    assert pipeline["words"].read().num_rows == 4


def test_errors_leave_nothing(pipeline: pds.Pipeline) -> None:
    store = pipeline._location.store
    before = objects(store)
    with pytest.raises(pds.ProduceError, match="ZeroDivisionError"):
        pipeline.preview(phrases=changes_to((1, "fail")))
    with pytest.raises(pds.CommitConflict):
        pipeline.preview(phrases=changes_to((1, "x")), base_version=0)
    with pytest.raises(pds.InvalidInput, match="no source"):
        pipeline.preview(words=changes_to((1, "x")))
    assert objects(store) == before


def test_a_vacuum_removes_a_preview_that_was_left(pipeline: pds.Pipeline) -> None:
    store = pipeline._location.store
    before = objects(store)
    preview = pipeline.preview(phrases=changes_to((1, "c")))
    left = objects(store) - before
    assert left
    pipeline.update(phrases=changes_to((3, "e")))
    pipeline.vacuum(dt.timedelta(0))
    assert not left & objects(store)
    with pytest.raises((pds.CommitConflict, pds.TransactionExpired)):
        preview.commit()


def test_reads_of_a_preview_whose_rows_a_vacuum_removed(local_store: pds.Store) -> None:
    """Another update has made a version of its number, which is there, and whole."""
    pipeline = words(local_store)
    pipeline.update(phrases=changes_to((1, "a b"), (2, "b")))
    preview = pipeline.preview(phrases=changes_to((1, "c")))
    pipeline.update(phrases=changes_to((3, "e")))
    assert preview.version == pipeline.version
    pipeline.vacuum(dt.timedelta(0))
    table = preview["words"]
    for read in (
        table.read,
        table.changes,
        table.key_mappings,
        lambda: table.read(["c"]),
        lambda: table.changes(since=0),
        lambda: table.lineage(["c"]),
    ):
        with pytest.raises(pds.VersionExpired, match="version 1 has been vacuumed"):
            read()
    assert pipeline["words"].read()["target_key"].to_pylist() == ["a", "b", "b", "e"]


@pytest.mark.parametrize("is_first", [False, True])
def test_reads_of_a_preview_beside_a_tagged_version(local_store: pds.Store, is_first: bool) -> None:
    """A vacuum spares the rows of the tagged version, and none that a preview wrote."""
    pipeline = words(local_store)
    if not is_first:
        pipeline.update(phrases=changes_to((1, "a b")))
    preview = pipeline.preview(phrases=changes_to((1, "c")))
    if is_first:
        pipeline.update(phrases=changes_to((1, "a b")))
    rows = plain_rows(pipeline["words"].read())
    pipeline.tag("first", 1)
    pipeline.update(phrases=changes_to((3, "e")))
    pipeline.vacuum(dt.timedelta(0))
    table = preview["words"]
    for read in (table.read, table.changes, lambda: table.changes(since=0)):
        with pytest.raises(pds.VersionExpired, match="rows of the preview"):
            read()
    assert plain_rows(pipeline.as_of("first")["words"].read()) == rows


COUNTED = ("plain", "compared", "spread", "sums", "values", "latest", "ordered", "joined")


def spread(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
    for value in values:
        yield (key + value) % 50, value
        if value % 3 == 0:
            yield (key + value) % 50, -value


def declare_counted(store: pds.Store) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "counted")
    pipeline._page_rows, pipeline._file_rows = 100, 1000
    pipeline.source("plain", key=INT, value=INT)
    pipeline.source("compared", key=INT, value=INT, skip_unchanged=True)
    pipeline.producer("plain", "compared", key=INT, value=INT, name="spread")(spread)
    pipeline.aggregate("spread", aggregates={"n": "count", "sum": ("value", "sum")}, name="sums")
    pipeline.distinct("spread", name="values")
    pipeline.first("spread", by="value", name="latest")
    pipeline.producer("plain", key=INT, value=INT, name="ordered", order_by="value")(spread)
    pipeline.join_rows("plain", "compared", name="joined")
    return pipeline


def stored_rows(version: Any, name: str) -> list[tuple[Any, str, str]]:
    """The rows: key, what decides beside it which rows are compared, and value."""
    rows = []
    for row in version[name].read().to_pylist():
        source = None if "key" in row else row["source_key"]
        # The order of a value is a part of where it is.
        place = (row["value"], source) if name == "ordered" else source
        rows.append((row.get("key", row.get("target_key")), repr(place), repr(row["value"])))
    return rows


def count_by_hand(name: str, before: list[tuple[Any, str, str]], after: list[tuple[Any, str, str]]) -> dict[str, Any]:
    places: dict[tuple[Any, str], tuple[list[str], list[str]]] = {}
    for side, rows in enumerate((before, after)):
        for key, place, value in rows:
            places.setdefault((key, place), ([], []))[side].append(value)
    had, has = ({key for key, *_ in rows} for rows in (before, after))
    changed = {key for (key, _), (old, new) in places.items() if old != new}
    return {
        "name": name,
        "keys_added": len(changed - had),
        "keys_updated": len(changed & had & has),
        "keys_deleted": len(changed - has),
        "rows_added": sum(max(len(new) - len(old), 0) for old, new in places.values()),
        "rows_updated": sum(a != b for old, new in places.values() for a, b in zip(old, new, strict=False)),
        "rows_deleted": sum(max(len(old) - len(new), 0) for old, new in places.values()),
    }


@pytest.mark.parametrize("seed", range(2))
def test_a_preview_counts_what_changes(memory_store: pds.Store, seed: int) -> None:
    """As a comparison of the tables before and after, whichever runs the update merges."""
    rng = random.Random(seed)
    pipeline = declare_counted(memory_store)
    before: dict[str, list[tuple[Any, str, str]]] = {key: [] for key in COUNTED}
    # So many rows that no update of a few merges them with what it adds.
    keys = rng.sample(range(2**50), 3500)

    def all_rows() -> list[tuple[int, int]]:
        return [(key, rng.randrange(2**50)) for key in keys for _ in range(rng.choice([1, 2]))]

    pushes: list[dict[str, list[tuple[int, int]]]] = [
        {name: all_rows() for name in COUNTED[:2]},
        {"plain": [(key, rng.randrange(9)) for key in rng.sample(keys, 20) for _ in range(2)]},
        {name: [(key, rng.randrange(9)) for key in rng.sample(keys, 20)] for name in COUNTED[:2]},
        {"compared": []},
    ]
    for number, pushed in enumerate(pushes):
        changes = {}
        for name, rows in pushed.items():
            # Some are as they were, some go, some have no row.
            stored = [(key, int(value)) for key, _, value in before[name]]
            same = {key for key, _ in rng.sample(stored, min(len(stored), 5))} - {key for key, _ in rows}
            others = sorted({*keys, *range(50)} - same - {key for key, _ in rows})
            deletes = rng.sample(others, 10) if number else None
            changes[name] = pds.Changes([*rows, *(row for row in stored if row[0] in same)] or None, deletes)
        with pipeline.preview(changes) as preview:
            after = {name: stored_rows(preview, name) for name in COUNTED}
            expected = {name: count_by_hand(name, before[name], after[name]) for name in COUNTED}
            assert {name: dataclasses.asdict(counts) for name, counts in preview.counts.items()} == expected
            assert any(one["rows_added"] + one["rows_deleted"] for one in expected.values())
            preview.commit()
        before = after
        if number == 1:
            pipeline.compact(min_delta=0)


def count_rebuilt(pipeline: pds.Pipeline, key: pa.DataType, function: Any) -> dict[str, Any]:
    """What a preview counts that rebuilds the words as texts; counts of 0 are left out."""
    other = pds.Pipeline(pipeline._location.store, "words")
    other.source("phrases", key=INT, value=TEXT)
    other.producer("phrases", key=key, value=TEXT, name="words")(function)
    handle = other._preview([], other._make_arguments()._replace(rebuilt=["words"]))
    try:
        counts: list[Any] = list(handle.count_changes(1 << 20))
    finally:
        handle.discard()
    of_phrases, of_words = ({name: value for name, value in one.items() if value} for one in counts)
    assert of_phrases == {"name": "phrases"}
    return of_words


def test_a_stage_with_other_tables_has_new_rows_only(pipeline: pds.Pipeline) -> None:
    counts = count_rebuilt(pipeline, TEXT, lambda key, texts: ((text[0], str(key)) for text in texts))
    # Three rows of "a" and "b" went; "a" and "b" begin the texts.
    assert counts == {"name": "words", "rows_added": 2, "rows_deleted": 3, "keys_updated": 2}


def test_keys_of_another_type_have_all_gone(pipeline: pds.Pipeline) -> None:
    counts = count_rebuilt(pipeline, INT, lambda key, texts: ((key, text) for text in texts))
    assert counts == {"name": "words", "rows_added": 2, "rows_deleted": 3, "keys_added": 2, "keys_deleted": 2}


def test_a_new_stage_and_a_replay_are_counted(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    pipeline.update(phrases=changes_to((1, "a b"), (2, "b")), idempotency_key="k")
    with pipeline.preview(phrases=changes_to((1, "c")), idempotency_key="k") as preview:
        assert {tuple(dataclasses.asdict(one).values())[1:] for one in preview.counts.values()} == {(0,) * 6}
    pipeline.aggregate("words", aggregates={"n": "count"}, name="counts")
    with pipeline.preview() as preview:
        assert dataclasses.asdict(preview.counts["counts"]) == {
            **dict.fromkeys(dataclasses.asdict(preview.counts["counts"]), 0),
            "name": "counts",
            "keys_added": 2,
            "rows_added": 2,
        }
        assert preview.counts["words"].rows_added == preview.counts["phrases"].rows_added == 0


def test_a_preview_whose_counts_fail_leaves_nothing(pipeline: pds.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pipeline._location.store
    before = objects(store)

    def fail(**_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("pds.producers.versions.ChangeCounts", fail)
    with pytest.raises(ZeroDivisionError):
        pipeline.preview(phrases=changes_to((1, "c")))
    assert objects(store) == before

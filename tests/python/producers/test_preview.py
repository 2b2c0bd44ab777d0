"""Previews show what an update would make, and make nothing else until they are committed."""

from __future__ import annotations

import datetime as dt
import json
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

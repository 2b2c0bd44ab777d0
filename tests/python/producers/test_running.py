"""A function that an update runs cannot update the pipeline: each would wait for the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from producers.engines import RepeatingEngine
from producers.pipelines import plain_rows
from producers.words import split_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INT, TEXT = pa.int64(), pa.string()


def words(store: pds.Store, function: Callable[..., Any] = split_words) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "words")
    phrases = pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.producer(phrases, key=TEXT, value=INT, name="words")(function)
    return pipeline


def put(pipeline: pds.Pipeline, *rows: tuple[int, str]) -> Any:
    return pipeline.update(phrases=pds.Changes(rows))


@pytest.mark.parametrize("mode", ["rows", "batch", "hook", "tasks"])
@pytest.mark.parametrize("call", ["update", "refresh", "rebuild"])
def test_a_function_cannot_update_its_own_pipeline(memory_store: pds.Store, mode: str, call: str) -> None:
    """It would wait for the update that waits for it. Another handle of the pipeline is the pipeline, too."""
    is_nested = False
    refusals: list[str | None] = []

    def nest() -> None:
        if is_nested:
            for each in (pipeline, words(memory_store)):
                with pytest.raises(pds.InvalidInput, match="its own pipeline 'words'") as refused:
                    getattr(each, call)()
                refusals.append(refused.value.path)

    def by_row(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        # The generator goes on when it is asked for a row.
        nest()
        yield from split_words(key, phrases)

    def by_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        nest()
        columns = [pa.array(range(batch.num_rows)), batch.column("value"), batch.column("key")]
        return pa.RecordBatch.from_arrays(columns, ["source_row", "key", "value"])

    def keep(new: int, _: int | None, __: dict[str, Any]) -> int:
        nest()
        return new

    options: dict[str, Any] = {"batch": mode == "batch", "preserve": pds.Preserve(keep) if mode == "hook" else None}
    functions: dict[str, Callable[..., Any]] = {"batch": by_batch, "hook": split_words}
    function = functions.get(mode, by_row)
    engine = RepeatingEngine(repeats=False) if mode == "tasks" else None
    pipeline = pds.Pipeline(memory_store, "words", engine=engine)
    phrases = pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.producer(phrases, key=TEXT, value=INT, name="words", **options)(function)
    is_nested = True
    assert put(pipeline, (1, "a")).version == 1
    assert set(refusals) == {"words"}
    pipeline.preview(phrases=pds.Changes([(1, "a")])).discard()
    assert len(refusals) == 4
    is_nested = False
    # It is refused only there.
    assert put(pipeline, (2, "b")).version == 2
    assert plain_rows(pipeline["words"].read()) == [("a", 1, 1), ("b", 2, 2)]


def test_a_function_updates_other_pipelines_but_none_that_waits(memory_store: pds.Store) -> None:
    def again(key: int, values: Iterator[str]) -> Iterator[tuple[int, str]]:
        with pytest.raises(pds.InvalidInput, match="its own pipeline 'words'"):
            put(words(memory_store), (9, "z"))
        for value in values:
            yield key, value

    def through(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        other = pds.Pipeline(memory_store, "log")
        other.producer(other.source("keys", key=INT, value=TEXT), key=INT, value=TEXT, name="again")(again)
        other.update(keys=pds.Changes([(key, "seen")]))
        # The same folder of another store is another pipeline.
        put(words(elsewhere), (key, "x"))
        yield from split_words(key, phrases)

    elsewhere = pds.Store("memory://")
    assert put(words(memory_store, through), (1, "a")).version == 1
    assert plain_rows(pds.Pipeline(memory_store, "log").as_of(1)["again"].read()) == [(1, 1, "seen")]
    assert plain_rows(words(elsewhere)["phrases"].read()) == [(1, "x")]

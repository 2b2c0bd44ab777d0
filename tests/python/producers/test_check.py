"""A check computes stages anew, and finds those that are not what their functions say."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from fault_runs import PATIENT
from pds.producers.calls import StageCall
from pds.producers.preserve import PreservePass
from producers.pipelines import objects
from producers.words import count, split_words
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sampled(3)

INT, TEXT = pa.int64(), pa.string()


def declare(store: pds.Store, words: Callable[..., Any] = split_words, **options: Any) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "p")
    pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.producer("phrases", key=TEXT, value=INT, name="words", **options)(words)
    pipeline.producer("words", key=INT, value=TEXT, name="counts")(count)
    return pipeline


def fill(pipeline: pds.Pipeline) -> None:
    pipeline.update(phrases=pds.Changes([(n, f"a w{n % 7}") for n in range(50)]))
    pipeline.update(phrases=pds.Changes([(3, "b b")], [4]))


def test_deterministic_stages_are_as_they_are_stored(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store)
    fill(pipeline)
    before = objects(memory_store)
    checked = pipeline.check()
    assert (checked.ok, checked.version, checked.differences) == (True, 2, [])
    assert pipeline.check("counts").ok
    assert objects(memory_store) == before
    assert pipeline.version == 2


@pytest.mark.parametrize(("name", "table"), [("phrases", "content"), ("words", "content"), ("words", "mappings")])
@pytest.mark.parametrize(
    ("at", "sample", "is_looked_up"),
    [pytest.param(-30, None, False, id="footer"), pytest.param(40, 1.0, True, id="page")],
)
def test_a_damaged_file_is_noticed_where_it_was_written(
    name: str, table: str, at: int, sample: float | None, *, is_looked_up: bool
) -> None:
    """A process keeps the bytes of small files that it wrote, and pages that it looked up. A check reads the store."""
    with ScriptedS3() as server:
        stores = [pds.Store("s3://bucket/lake", server.options(client) | PATIENT) for client in ("writer", "other")]
        pipeline = declare(stores[0])
        fill(pipeline)
        if is_looked_up:
            pipeline["phrases"].read([3])
            pipeline["words"].read(["a"])
            pipeline["words"].key_mappings([3])
        (node,) = (node for node in json.loads(pipeline._open().manifest())["nodes"] if node["name"] == name)
        (file,) = node[table][0]["files"]
        path = f"p/{file['name']}"
        whole = stores[0].read_bytes(path)
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        stores[0].write(path, bytes(damaged), overwrite=True)
        for store in stores:
            with pytest.raises(pds.PartCorrupted):
                declare(store).check("words", sample=sample)
        stores[0].write(path, whole, overwrite=True)
        for store in stores:
            assert declare(store).check("words", sample=sample).ok


def test_rows_of_a_feed_that_failed_are_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if what calls the function catches the error of the feed."""

    def catch(_call: StageCall, readers: list[pa.RecordBatchReader]) -> Iterator[pa.RecordBatch]:
        with contextlib.suppress(Exception):
            readers[0].read_all()
        yield from ()

    with ScriptedS3() as server:
        stores = [pds.Store("s3://bucket/lake", server.options(client) | PATIENT) for client in ("writer", "other")]
        pipeline = declare(stores[0])
        fill(pipeline)
        (node,) = (node for node in json.loads(pipeline._open().manifest())["nodes"] if node["name"] == "phrases")
        for file in (file for run in node["content"] for file in run["files"]):
            damaged = bytearray(stores[0].read_bytes(f"p/{file['name']}"))
            damaged[40] ^= 0x55
            stores[0].write(f"p/{file['name']}", bytes(damaged), overwrite=True)
        monkeypatch.setattr(StageCall, "__call__", catch)
        with pytest.raises(pds.PartCorrupted):
            declare(stores[1]).check("words")


@pytest.mark.parametrize("kind", ["rows", "hook"])
def test_rows_that_were_not_read_are_not_none(
    memory_store: pds.Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if what calls the function, or the hook, ends before the rows do."""

    def leave(readers: list[pa.RecordBatchReader]) -> Iterator[pa.RecordBatch]:
        assert readers[0].read_next_batch().num_rows
        yield from ()

    if kind == "rows":
        monkeypatch.setattr(StageCall, "__call__", lambda _call, readers: leave(readers))
    else:
        monkeypatch.setattr(PreservePass, "__iter__", lambda hook: leave([hook._reader]))
    pipeline = declare(memory_store, preserve=pds.Preserve(lambda new, _earlier, _state: new))
    with pytest.raises(pds.RemoteStoreError, match="ended before it had read all of its rows"):
        fill(pipeline)
    assert pipeline.version == 0


def test_a_random_function(memory_store: pds.Store) -> None:
    def words(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        for word, number in split_words(key, phrases):
            yield word, number if number != 7 else random.randrange(1 << 60)

    pipeline = declare(memory_store, words)
    fill(pipeline)
    before = objects(memory_store)
    checked = pipeline.check()
    assert not checked.ok
    (difference,) = checked.differences
    assert (difference.name, difference.keys, difference.examples) == ("words", 2, ["a", "w0"])
    assert objects(memory_store) == before


@pytest.mark.parametrize("sample", [None, 1.0])
def test_a_function_that_gives_the_sizes_of_its_batches(memory_store: pds.Store, sample: float | None) -> None:
    """All keys were in one batch when they were stored."""

    def emit(batch: pa.RecordBatch, values: Any) -> pa.RecordBatch:
        rows = pa.array(range(batch.num_rows))
        return pa.RecordBatch.from_arrays([rows, batch["key"], values], names=["source_row", "key", "value"])

    def sizes(batch: pa.RecordBatch) -> pa.RecordBatch:
        return emit(batch, pa.array([batch.num_rows] * batch.num_rows, INT))

    def copies(batch: pa.RecordBatch) -> pa.RecordBatch:
        return emit(batch, batch["value"])

    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=INT)
    pipeline.producer("s", key=INT, value=INT, name="sizes", batch=True)(sizes)
    pipeline.producer("s", key=INT, value=INT, name="copies", batch=True)(copies)
    pipeline.update(s=pds.Changes([(n, n) for n in range(20)]))
    assert set(pipeline["sizes"].read()["value"].to_pylist()) == {20}
    (difference,) = pipeline.check(sample=sample).differences
    assert (difference.name, difference.keys) == ("sizes", 20)


def sampled(store: pds.Store, keys: int = 1000) -> tuple[pds.Pipeline, list[int]]:
    """A pipeline with small pages, and the keys for which the function of "words" was called."""
    called: list[int] = []

    def words(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        called.append(key)
        return split_words(key, phrases)

    pipeline = declare(store, words)
    pipeline._page_rows, pipeline._file_rows = 10, 300
    pipeline.update(phrases=pds.Changes([(n, f"a w{n % 7}") for n in range(keys)]))
    pipeline.update(phrases=pds.Changes([(3, "b b"), (keys + 5, "last")], [4, 500]))
    called.clear()
    return pipeline, called


def test_a_sample_of_the_keys(memory_store: pds.Store) -> None:
    pipeline, called = sampled(memory_store)
    before = objects(memory_store)
    first, all_keys = [], set(range(1001)) - {4, 500, 1000} | {1005}
    for _ in range(40):
        assert pipeline.check("words", sample=0.05).ok
        # Each key once, and as many as were asked for, give or take chance.
        assert 1 <= len(called) == len(set(called)) < 400
        first.append(called[0])
        assert set(called) <= all_keys
        called.clear()
    assert len(set(first)) > 10
    assert pipeline.check("words", sample=1.0).ok
    assert called == sorted(all_keys)
    assert pipeline.check(sample=0.3).ok
    assert objects(memory_store) == before


@pytest.mark.parametrize("sample", [1e-9, 0.3, 1])
def test_a_sample_finds_a_function_that_changed(memory_store: pds.Store, sample: float) -> None:
    sampled(memory_store)
    changed = declare(memory_store, lambda key, phrases: ((w.upper(), n) for w, n in split_words(key, phrases)))
    (difference,) = changed.check(sample=sample).differences
    assert difference.name == "words"
    assert all(
        example.isupper() or example in {"a", "b", "last"} or example[0] == "w" for example in difference.examples
    )


def test_a_sample_of_a_key_with_many_rows(memory_store: pds.Store) -> None:
    """Blocks of the index begin with the same key."""
    pipeline = declare(memory_store)
    pipeline._page_rows, pipeline._file_rows = 4, 8
    pipeline.update(phrases=pds.Changes([(n, "same other" if n % 2 else "same") for n in range(200)]))
    for sample in (0.01, 0.5, 1):
        for _ in range(5):
            assert pipeline.check(sample=sample).ok


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("key", [pa.string(), pa.binary(70), pa.struct([("a", pa.string()), ("b", pa.int64())])])
def test_a_sample_of_keys_that_begin_alike(memory_store: pds.Store, key: pa.DataType, *, descending: bool) -> None:
    """An index has the first bytes of a key only."""
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline._page_rows, pipeline._file_rows = 10, 50
    pipeline.source("s", key=key, value=INT, descending=descending)
    called = 0

    def produce(name: Any, values: Iterator[int]) -> Iterator[tuple[Any, int]]:
        nonlocal called
        called += 1
        for value in values:
            yield name, value

    pipeline.producer("s", key=key, value=INT, name="t", descending=descending)(produce)
    names = [f"{'x' * 64}{n:06}" for n in range(200)]
    keys = {"string": names, "fixed_size_binary[70]": [name.encode() for name in names]}.get(
        str(key), [{"a": None if n % 5 == 0 else "x" * 64, "b": n} for n in range(200)]
    )
    pipeline.update(s=pds.Changes(list(zip(keys, range(200), strict=True))))
    called = 0
    assert pipeline.check(sample=1).ok
    assert called == 200
    called = 0
    assert pipeline.check(sample=0.001).ok
    assert called > 0


def test_a_sample_costs_about_its_part(memory_store: pds.Store) -> None:
    """Also of keys with many rows, and of many small runs over a large one."""
    pipeline = declare(memory_store)
    pipeline._page_rows = 10
    called = 0

    def produce(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        nonlocal called
        for value in values:
            called += 1
            yield key, value

    pipeline.source("s", key=INT, value=INT)
    pipeline.producer("s", key=INT, value=INT, name="groups")(lambda key, _: [(key % 100, key)])
    pipeline.producer("groups", key=INT, value=INT, name="sums")(produce)
    pipeline.producer("s", key=INT, value=INT, name="same")(produce)
    pipeline.update(s=pds.Changes([(n, n) for n in range(20_000)]))
    for n in range(4):
        pipeline.update(s=pds.Changes([(n * 4999, -1)]))
    for stage in ("sums", "same"):
        called = 0
        for _ in range(10):
            assert pipeline.check(stage, sample=0.05).ok
        assert 0 < called < 0.15 * 10 * 20_000


def test_a_sample_of_a_stage_with_a_new_feeder(memory_store: pds.Store) -> None:
    """What the check computes of the feeder is not stored yet, and has no index."""

    def make(feeder: str) -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, "p")
        pipeline._page_rows = 10
        pipeline.source("s", key=INT, value=INT)
        for name in ("a", "x", *({feeder} - {"a", "x"})):
            pipeline.producer("s", key=INT, value=INT, name=name)(lambda key, values: ((key, v) for v in values))
        count_rows = lambda key, values: [(key, sum(1 for _ in values))]  # noqa: E731 it is one expression
        pipeline.producer("a", feeder, key=INT, value=INT, name="c")(count_rows)
        return pipeline

    make("x").update(s=pds.Changes([(n, n) for n in range(500)]))
    for _ in range(5):
        assert make("b").check("c", sample=0.05).ok


def test_samples_that_cannot_be(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store)
    fill(pipeline)
    for sample in (0, -0.5, 1.1, float("nan")):
        with pytest.raises(pds.InvalidInput, match="sample must be above 0 and at most 1"):
            pipeline.check(sample=sample)
    for wrong in ("0.1", True):
        with pytest.raises(pds.InvalidType, match="sample must be a number"):
            pipeline.check(sample=wrong)  # type: ignore[arg-type]


def test_a_function_that_depends_on_its_batches(memory_store: pds.Store) -> None:
    calls = itertools.count()

    def words(batch: pa.RecordBatch) -> pa.RecordBatch:
        number = pa.array([next(calls)] * batch.num_rows, INT)
        rows = pa.array(range(batch.num_rows), INT)
        return pa.RecordBatch.from_arrays([rows, batch["value"], number], ["source_row", "key", "value"])

    pipeline = declare(memory_store, words, batch=True)
    fill(pipeline)
    assert [difference.name for difference in pipeline.check().differences] == ["words"]


def test_a_function_that_changed_without_a_new_version(memory_store: pds.Store) -> None:
    fill(declare(memory_store))
    changed = declare(memory_store, lambda key, phrases: ((w.upper(), n) for w, n in split_words(key, phrases)))
    (difference,) = changed.check().differences
    assert (difference.name, len(difference.examples)) == ("words", 10)
    changed.rebuild("words")
    assert changed.check().ok


def test_what_cannot_be_checked(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store)
    with pytest.raises(pds.NotFound, match="no version"):
        pipeline.check()
    fill(pipeline)
    for name in ("phrases", "nothing"):
        with pytest.raises(pds.NotFound, match=f"no stage '{name}'"):
            pipeline.check(name)
    with pytest.raises(pds.InvalidType):
        pipeline.check(1)  # type: ignore[arg-type]
    with pytest.raises(pds.DefinitionChanged):
        declare(memory_store, version=2).check()


def test_a_stage_that_is_new_is_not_checked(memory_store: pds.Store) -> None:
    fill(declare(memory_store))
    pipeline = declare(memory_store)
    pipeline.producer("words", key=INT, value=TEXT, name="more")(lambda *_: ())
    assert pipeline.check().ok
    with pytest.raises(pds.NotFound, match="no stage 'more'"):
        pipeline.check("more")


@pytest.mark.parametrize("between", ["compact", "update"])
def test_a_check_beside_other_commits(memory_store: pds.Store, between: str) -> None:
    """Each stage is compared with the version that it is computed from."""
    other = declare(memory_store)
    random_numbers = random.Random(1)
    for number in range(3):
        # Each is so much smaller than the one before it that no update merges its runs with those.
        text = " ".join(f"{random_numbers.getrandbits(128):x}" for _ in range(16_000 >> (3 * number)))
        other.update(phrases=pds.Changes([(number, text)]))
    is_checking = False

    def words(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        nonlocal is_checking
        if is_checking:
            is_checking = False
            if between == "compact":
                other.compact(min_delta=0)
            else:
                # As another process: a function cannot update its own pipeline.
                with ThreadPoolExecutor(1) as process:
                    process.submit(other.update, phrases=pds.Changes([(9, "new")])).result()
        return split_words(key, phrases)

    pipeline = declare(memory_store, words)
    is_checking = True
    before = pipeline.version
    checked = pipeline.check()
    assert checked.ok
    assert checked.version == pipeline.version == before + 1

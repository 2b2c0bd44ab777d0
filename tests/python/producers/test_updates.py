"""Pipelines as users meet them: refusals before anything is written, versions, compaction, several writers."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import arro3.core
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pds
from producers.model import Changes, Model, Source, Stage
from producers.pipelines import compare, declare, objects, plain_rows, to_changes
from producers.words import split_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sampled(2)

INT, TEXT = pa.int64(), pa.string()


def words(store: pds.Store, function: Callable[..., Any] = split_words, **options: Any) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "words")
    phrases = pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.producer(phrases, key=TEXT, value=INT, name="words", **options)(function)
    return pipeline


def put(pipeline: pds.Pipeline, *rows: tuple[int, str], deletes: list[int] | None = None, **options: Any) -> Any:
    return pipeline.update(phrases=pds.Changes(rows or None, deletes), **options)


def random_text(seed: int = 1) -> str:
    """So much that an update does not merge it with what it adds."""
    return np.random.default_rng(seed).bytes(200_000).hex()


def test_before_the_first_update_there_is_nothing(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    assert (pipeline.version, pipeline.history()) == (0, [])
    with pytest.raises(pds.InvalidInput, match="update the pipeline first"):
        pipeline["words"].read()
    with pytest.raises(pds.NotFound, match="nothing"):
        pipeline["nothing"]
    assert objects(memory_store) == set()


def test_rows_come_from_any_arrow_data_or_pairs(memory_store: pds.Store) -> None:
    expected = [("a", 1, 1), ("b", 1, 1), ("b", 2, 2)]
    table = pa.table({"value": ["a b", "b"], "key": [1, 2]})
    for rows in (table, table.to_reader(), pl.DataFrame(table), [(1, "a b"), (2, "b")]):
        pipeline = words(memory_store)
        pipeline.update(phrases=pds.Replace(rows))
        assert plain_rows(pipeline["words"].read()) == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (pds.Changes([(1, "a")], [1]), "key 1 is both deleted and upserted"),
        (pds.Changes(None, [2, 2]), "key 2 is deleted twice"),
        (pds.Changes(pa.table({"key": [1]})), "value"),
        (pds.Changes(pa.table({"key": ["x"], "value": ["a"]})), "key"),
        (pds.Changes(pa.table({"key": [1], "value": ["a"], "more": [1]})), "more"),
        (pds.Changes([("x", "a")]), "a key of 'phrases' is not of type int64"),
        (pds.Changes(None, ["x"]), "a key of 'phrases' is not of type int64"),
    ],
)
def test_changes_that_cannot_be_are_refused_before_anything_is_written(
    memory_store: pds.Store, changes: pds.Changes, reason: str
) -> None:
    pipeline = words(memory_store)
    put(pipeline, (1, "a"))
    before = objects(memory_store)
    with pytest.raises(pds.InvalidInput, match=reason):
        pipeline.update(phrases=changes)
    assert objects(memory_store) == before


def test_arguments_are_checked(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    with pytest.raises(pds.InvalidType, match=r"pds\.Changes"):
        pipeline.update(phrases=[(1, "a")])  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidInput, match="there is no source 'words'"):
        pipeline.update(words=pds.Changes())
    with pytest.raises(pds.InvalidType, match="a feeder of"):
        pipeline.producer(split_words, key=INT, value=INT, name="x")(split_words)  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidInput, match="fed by 'sentences', which is not declared"):
        pipeline.producer("sentences", key=INT, value=INT, name="x")(split_words)
    with pytest.raises(pds.InvalidInput, match="two stages or sources named 'words'"):
        pipeline.source("words", key=INT, value=INT)
    with pytest.raises(pds.InvalidInput, match="keys are scalars"):
        pipeline.source("lists", key=pa.list_(INT), value=INT)
    with pytest.raises(pds.InvalidInput, match="needs a feeder"):
        pipeline.producer(key=INT, value=INT, name="alone")(split_words)
    other = pipeline.source("other", key=TEXT, value=TEXT)
    with pytest.raises(pds.InvalidInput, match="different types of keys: Int64 and Utf8"):
        pipeline.producer("phrases", other, key=INT, value=INT, name="mixed")(split_words)
    with pytest.raises(pds.InvalidInput, match="twice"):
        pipeline.producer("phrases", "phrases", key=INT, value=INT, name="twice")(split_words)


def test_nulls_are_refused_where_they_are_not_allowed(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    strict = pa.field("k", pa.struct([pa.field("a", INT, nullable=False)]), nullable=False)
    source = pipeline.source("s", key=strict, value=pa.field("v", TEXT, nullable=False))
    pipeline.producer(source, key=pa.field("k", TEXT, nullable=False), value=INT, name="p")(
        lambda _, values: ((value if value != "null" else None, 1) for value in values)
    )
    for row in ((None, "x"), ({"a": None}, "x"), ({"a": 1}, None)):
        with pytest.raises(pds.InvalidInput, match="null"):
            pipeline.update(s=pds.Changes([row]))
    with pytest.raises(pds.ProduceError, match="null"):
        pipeline.update(s=pds.Changes([({"a": 1}, "null")]))
    assert pipeline.version == 0
    pipeline.update(s=pds.Changes([({"a": 1}, "x")]))
    assert pipeline["p"].read().schema == pa.schema(
        [pa.field("target_key", TEXT, nullable=False), strict.with_name("source_key"), pa.field("value", INT)]
    )


def test_an_error_of_a_function_names_the_stage_the_key_and_the_line(memory_store: pds.Store) -> None:
    def fail(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        for _ in phrases:
            if key == 2:
                raise ZeroDivisionError("no words")
            yield "x", key

    pipeline = words(memory_store, fail)
    put(pipeline, (1, "a"))
    before = objects(memory_store)
    with pytest.raises(pds.ProduceError, match=r"'words'.*key 2.*test_updates\.py.*no words") as failure:
        put(pipeline, (1, "b"), (2, "b"))
    assert (failure.value.stage, failure.value.key) == ("words", 2)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert objects(memory_store) == before
    assert pipeline.version == 1


def test_a_base_version_conflicts_with_updates_only(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, (1, random_text()), base_version=0)
    with pytest.raises(pds.CommitConflict, match="version 1"):
        put(pipeline, (1, "b"), base_version=0)
    with pytest.raises(pds.InvalidInput, match="no version 7"):
        put(pipeline, (1, "b"), base_version=7)
    put(pipeline, (2, "b"))
    assert pipeline.compact(min_delta=0).version == 3
    assert put(pipeline, (3, "c"), base_version=2).version == 4
    with pytest.raises(pds.CommitConflict, match="version 4"):
        put(pipeline, (3, "c"), base_version=3)


def test_a_base_version_that_was_vacuumed_conflicts_only_with_updates(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, (1, random_text()))
    put(pipeline, (2, "b"))
    pipeline.compact(min_delta=0)
    pipeline.vacuum(dt.timedelta(0))
    for version in (1, 2):
        with pytest.raises(pds.VersionExpired):
            pipeline.as_of(version)["words"].read()
    before, newest = objects(memory_store), pipeline.version
    for write in (pipeline.update, pipeline.preview):
        with pytest.raises(pds.CommitConflict, match="updated to version 2 after version 1, on which this update"):
            write(phrases=pds.Changes([(3, "c")]), base_version=1)
    assert (objects(memory_store), pipeline.version) == (before, newest)
    # Nobody changed data after version 2, although it cannot be read any more.
    put(pipeline, (3, "c"), base_version=2)
    assert plain_rows(pipeline["words"].read(["b", "c"])) == [("b", 2, 2), ("c", 3, 3)]


def test_a_base_version_is_checked_before_rows_are_read(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, (1, "a"), base_version=0)
    batches_read = []

    def batches() -> Iterator[pa.RecordBatch]:
        batches_read.append(1)
        yield pa.record_batch({"key": pa.array([2], INT), "value": pa.array(["b"], TEXT)})

    for write in (pipeline.update, pipeline.preview):
        rows = pa.RecordBatchReader.from_batches(pa.schema([("key", INT), ("value", TEXT)]), batches())
        with pytest.raises(pds.CommitConflict, match="version 0"):
            write(phrases=pds.Changes(rows), base_version=0)
    assert batches_read == []


def test_an_update_with_the_same_key_is_done_once(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    first = put(pipeline, (1, "a"), idempotency_key="monday")
    again = put(pipeline, (1, "other"), idempotency_key="monday")
    assert (again.version, again.commit_id, again.replayed) == (first.version, first.commit_id, True)
    put(pipeline, (2, "b"), idempotency_key="tuesday")
    assert put(pipeline, (2, "c"), idempotency_key="tuesday").replayed
    assert plain_rows(pipeline["words"].read()) == [("a", 1, 1), ("b", 2, 2)]


def test_a_graph_must_be_as_it_is_stored(memory_store: pds.Store) -> None:
    put(words(memory_store), (1, "a"))
    with pytest.raises(pds.DefinitionChanged, match=r'"words".*version'):
        put(words(memory_store, version=2), (1, "b"))
    with pytest.raises(pds.DefinitionChanged, match="order"):
        put(words(memory_store, descending=True), (1, "b"))
    partial = pds.Pipeline(memory_store, "words")
    partial.source("phrases", key=INT, value=TEXT)
    with pytest.raises(pds.DefinitionChanged, match='"words", which is not declared'):
        partial.update(phrases=pds.Changes([(1, "b")]))
    assert plain_rows(words(memory_store)["words"].read()) == [("a", 1, 1)]


def test_a_new_stage_is_made_of_what_is_there(memory_store: pds.Store) -> None:
    put(words(memory_store), (1, "a b"), (2, "b"))
    pipeline = words(memory_store)
    pipeline.producer("words", key=INT, value=TEXT, name="counts")(lambda word, keys: [(sum(1 for _ in keys), word)])
    put(pipeline, (3, "c"))
    assert plain_rows(pipeline["counts"].read()) == [(1, "a", "a"), (1, "c", "c"), (2, "b", "b")]
    assert plain_rows(pipeline["counts"].changes()) == [(0, 1, "a"), (1, 1, "c"), (0, 2, "b")]


def test_older_versions_can_be_read_until_they_are_vacuumed(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, (1, "a"))
    put(pipeline, (1, "b"))
    old = pipeline.as_of(1)
    assert (old.version, old.names) == (1, ["phrases", "words"])
    assert plain_rows(old["words"].read()) == [("a", 1, 1)]
    assert plain_rows(pipeline["words"].changes(1)) == [(0, "a", 1)]
    assert plain_rows(pipeline["words"].changes()) == [(2, "a", None), (0, "b", 1)]
    assert [entry["operation"]["name"] for entry in pipeline.history()] == ["update", "update"]
    removed = pipeline.vacuum(dt.timedelta(0))
    assert removed.files
    with pytest.raises(pds.VersionExpired, match="version"):
        pipeline.as_of(1)
    assert plain_rows(pipeline["words"].read()) == [("b", 1, 1)]


def test_tables_are_read_by_key(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, *((n, f"w{n % 7} w{n % 11}") for n in range(100)))
    expected = [row for row in plain_rows(pipeline["words"].read()) if row[0] in {"w3", "w10"}]
    assert plain_rows(pipeline["words"].read(["w3", "w10", "none"])) == expected
    assert plain_rows(pipeline["words"].key_mappings([5])) == [(5, "w5"), (5, "w5")]
    assert plain_rows(pipeline["phrases"].read(pa.array([5, 3]))) == [(3, "w3 w3"), (5, "w5 w5")]
    with pytest.raises(pds.InvalidInput, match="a source"):
        pipeline["phrases"].key_mappings()
    with pytest.raises(pds.InvalidInput, match="a source"):
        pipeline["phrases"].changes()


def test_compaction_changes_nothing(memory_store: pds.Store) -> None:
    key, number = pa.field("key", INT), pa.field("value", INT)

    def spread(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        for value in values:
            yield value % 5, value + key

    source, stage = Source("s", key, number), Stage("p", ["s"], spread, key, number)
    model = Model([source], [stage])
    pipeline = declare(memory_store, "p", [source], [stage])
    for version in range(8):
        changes = {"s": Changes([(n, version * n) for n in range(version, version + 3)], [version - 1])}
        model.update(changes)
        pipeline.update(to_changes(changes))
        compare(memory_store, pipeline, model)
        before = [plain_rows(pipeline[name].read()) for name in ("s", "p")]
        merged = pipeline.compact(min_delta=[0, 0.25, 100][version % 3])
        if merged.tables:
            assert plain_rows(pipeline["p"].changes()) == [], "a compaction changes no key"
        assert [plain_rows(pipeline[name].read()) for name in ("s", "p")] == before


def test_updates_of_several_writers_are_all_there(local_store: pds.Store) -> None:
    put(words(local_store), (0, "start"))
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        pipeline = words(local_store)
        try:
            for n in range(6):
                put(pipeline, (writer * 100 + n, f"w{n} common"))
                if n == writer:
                    pipeline.compact(min_delta=0)
        except BaseException as failure:  # noqa: BLE001 told below
            failures.append(failure)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    pipeline = words(local_store)
    keys = [writer * 100 + n for writer in range(1, 4) for n in range(6)]
    assert [row[1] for row in plain_rows(pipeline["words"].read(["common"]))] == keys
    rows = sorted((word, key) for key in keys for word in (f"w{key % 100}", "common"))
    assert [row[:2] for row in plain_rows(pipeline["words"].read())] == sorted([*rows, ("start", 0)])
    pipeline.vacuum(dt.timedelta(0))
    assert [row[1] for row in plain_rows(pipeline["words"].read(["common"]))] == keys


def test_a_large_value_and_many_columns(memory_store: pds.Store) -> None:
    wide = pa.struct([pa.field(f"c{n}", INT) for n in range(1000)])
    pipeline = pds.Pipeline(memory_store, "wide", memory_limit=8 << 20)
    source = pipeline.source("s", key=INT, value=wide)
    texts = pipeline.source("t", key=INT, value=TEXT)
    pipeline.producer(source, key=INT, value=wide, name="wide")(lambda key, rows: ((key % 3, row) for row in rows))
    pipeline.producer(texts, key=INT, value=TEXT, name="long")(lambda key, rows: ((key % 3, row) for row in rows))
    row = {f"c{n}": n for n in range(1000)}
    long = "x" * (1 << 20)
    pipeline.update(
        s=pds.Changes([(n, row) for n in range(50)]), t=pds.Changes([(n, long + str(n)) for n in range(40)])
    )
    pipeline.update(s=pds.Changes([(7, {**row, "c999": -1})]), t=pds.Changes([(7, "short")], [8]))
    assert [r["value"]["c999"] for r in pipeline["wide"].read([1]).to_pylist() if r["source_key"] == 7] == [-1]
    texts_by_key = {r["source_key"]: r["value"] for r in pipeline["long"].read().to_pylist()}
    assert texts_by_key == {n: "short" if n == 7 else long + str(n) for n in range(40) if n != 8}


def test_lineage_goes_back_to_the_sources(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "lineage")
    phrases = pipeline.source("phrases", key=INT, value=TEXT)
    books = pipeline.source("books", key=INT, value=TEXT)
    ids = pipeline.producer(phrases, books, key=TEXT, value=INT, name="words")(split_words)
    pipeline.producer(ids, key=INT, value=TEXT, name="counts")(lambda word, keys: [(sum(1 for _ in keys), word)])
    pipeline.update(
        phrases=pds.Changes([(1, "the blue red"), (2, "the red fish")]), books=pds.Changes([(2, "the sea"), (3, "red")])
    )
    assert pipeline["counts"].lineage([3]) == {"phrases": [1, 2], "books": [2, 3], "words": ["red", "the"]}
    assert pipeline["words"].lineage(["sea"]) == {"phrases": [2], "books": [2]}
    assert pipeline["words"].lineage(["none"]) == {"phrases": [], "books": []}


def test_keys_are_a_list_or_a_column_of_any_library(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "keys")
    words = pipeline.source("words", key=TEXT, value=INT)
    numbers = pipeline.source("numbers", key=INT, value=INT)
    pipeline.select(words, key="key", value="value", name="by_word")
    pipeline.select(numbers, key="key", value="value", name="by_number")
    pipeline.update(words=pds.Changes([("a", 1), ("b", 2)]), numbers=pds.Changes([(1, 1), (2, 2)]))
    words_keys: list[Any] = [
        pd.Series(["b"]),
        pl.Series(["b"]),
        pl.Series(["b"], dtype=pl.Categorical),
        arro3.core.Array(["b"], type=pa.string()),
        arro3.core.ChunkedArray([pa.array(["b"])]),
    ]
    for keys in words_keys:
        assert pipeline["by_word"].read(keys)["value"].to_pylist() == [2]
        assert pipeline["by_word"].lineage(keys) == {"words": ["b"]}
    for keys in (pd.Series([2]), pl.Series([2]), pl.Series([2], dtype=pl.Int8)):
        assert pipeline["by_number"].read(keys)["value"].to_pylist() == [2]
    for keys in (pl.Series([2]), pl.Series([None])):
        with pytest.raises(pds.InvalidInput, match="expected values of type"):
            pipeline["by_word"].read(keys)
    with pytest.raises(pds.InvalidInput, match="a key of 'by_number' is not of type int64"):
        pipeline["by_number"].read(pl.Series([2**63], dtype=pl.UInt64))
    pipeline.update(words=pds.Changes(deletes=pl.Series(["a", "b"])))
    assert pipeline["by_word"].read().num_rows == 0
    with pytest.raises(
        pds.InvalidType, match="the keys of 'by_word' must be an Arrow array or a list of keys, not None"
    ):
        pipeline["by_word"].lineage(None)


def test_a_stage_runs_in_plain_python(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "unit")
    key = pa.struct([("a", INT), ("b", TEXT)])
    left, right = (pipeline.source(name, key=key, value=INT) for name in ("left", "right"))
    sums = pipeline.producer(left, key=TEXT, value=INT, name="sums")(lambda key, values: [(key.b, key.a + sum(values))])
    pairs = pipeline.join(left, right, key=INT, value=INT, name="pairs")(
        lambda _, lefts, rights: [(sum(lefts), sum(rights))]
    )
    assert pds.testing.run(sums, {(1, "x"): [1, 2], (2, "y"): [3]}) == [("x", 4), ("y", 5)]
    assert pds.testing.run(pairs, {(1, "x"): ([1, 2], [5]), (2, "y"): ([], [1])}) == [(3, 5), (0, 1)]
    with pytest.raises(pds.ProduceError, match="'sums'"):
        pds.testing.run(sums, {(None, "x"): [1]})
    with pytest.raises(pds.InvalidInput, match="2 feeders"):
        pds.testing.run(pairs, {(1, "x"): [1]})
    with pytest.raises(pds.InvalidType, match="a stage"):
        pds.testing.run(left, {})
    assert objects(memory_store) == set()


def test_a_graph_is_drawn(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    assert str(pipeline.draw()) == "phrases  no data\nwords    no data <- phrases"
    put(pipeline, (1, "a b"), (2, "b"))
    other = pipeline.source("<more> & more", key=TEXT, value=INT)
    pipeline.producer("words", other, key=INT, value=INT, name="both")(lambda _, values: values)
    assert str(pipeline.draw()).splitlines() == [
        "phrases        2 rows, 1 run",
        "words          3 rows, 1 run <- phrases (2 rows)",
        "<more> & more  no data",
        "both           no data <- words (3 rows), <more> & more",
    ]
    drawn = ET.fromstring(pipeline.draw()._repr_svg_())
    texts = [element for element in drawn.iter() if element.tag.endswith("text")]
    on_edges = [element.text for element in texts if element.get("class") == "rows"]
    in_boxes = [element.text for element in texts if element.get("class") != "rows"]
    assert in_boxes[::2] == ["phrases", "words", "<more> & more", "both"]
    assert in_boxes[1::2] == ["2 rows, 1 run", "3 rows, 1 run", "no data", "no data"]
    assert on_edges == ["2 rows", "3 rows"]
    assert len([element for element in drawn.iter() if element.tag.endswith("line")]) == 3


def test_counts_of_edges_that_cross_are_apart(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    sources = [pipeline.source(name, key=INT, value=INT) for name in ("a", "b")]
    for name in ("first", "second"):
        pipeline.producer(*sources, key=INT, value=INT, name=name)(lambda key, values: ((key, one) for one in values))
    pipeline.update(a=pds.Changes([(1, 1)]), b=pds.Changes([(key, key) for key in range(1000)]))
    drawn = ET.fromstring(pipeline.draw()._repr_svg_())
    counts = [element for element in drawn.iter() if element.get("class") == "rows"]
    assert [element.text for element in counts] == ["1 row", "1,000 rows", "1 row", "1,000 rows"]
    places = [(int(element.get("x") or 0), int(element.get("y") or 0)) for element in counts]
    assert len(set(places)) == 4
    for one, other in itertools.combinations(places, 2):
        assert one[0] != other[0] or abs(one[1] - other[1]) >= 10


def test_a_snapshot_that_was_vacuumed_says_so(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, (1, random_text()))
    put(pipeline, (2, "b"))
    old, table = pipeline.as_of(1), pipeline.as_of(2)["words"]
    pipeline.compact(min_delta=0)
    pipeline.vacuum(dt.timedelta(0))
    with pytest.raises(pds.VersionExpired, match="version 2 has been vacuumed; the oldest available version is 3"):
        table.read()
    with pytest.raises(pds.VersionExpired, match="oldest"):
        old["words"].changes()
    assert plain_rows(pipeline["words"].read(["b"])) == [("b", 2, 2)]


def test_base_version_0_is_a_pipeline_without_data(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    assert pipeline.update().version == 1
    assert put(pipeline, (1, "a"), base_version=0).version == 2
    with pytest.raises(pds.CommitConflict):
        put(pipeline, (1, "a"), base_version=0)


def test_a_pipeline_is_no_table(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, (1, "a"))
    for call in (pds.Table.drop, pds.Table):
        with pytest.raises(pds.InvalidPath, match="the folder of a pipeline, not of a table"):
            call(memory_store, "words")
    assert plain_rows(pipeline["words"].read()) == [("a", 1, 1)]


def test_a_table_is_no_pipeline(memory_store: pds.Store) -> None:
    pds.Table.create(memory_store, "words", pa.schema([("id", pa.int64())]))
    with pytest.raises(pds.InvalidPath, match="the folder of a table, not of a pipeline"):
        put(words(memory_store), (1, "a"))


def test_compactions_land_beside_updates_that_never_stop(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, *((n, random_text(n)) for n in range(10)))
    put(pipeline, (10, "w10"))
    is_done = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        own, n = words(memory_store), 100
        try:
            while not is_done.is_set():
                put(own, (n, f"w{n}"))
                n += 1
        except BaseException as failure:  # noqa: BLE001 told below
            failures.append(failure)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        merged = [pipeline.compact(min_delta=0) for _ in range(5)]
    finally:
        is_done.set()
        writer.join()
    assert failures == []
    assert any(result.tables for result in merged)
    numbers = [row[0] for row in plain_rows(pipeline["phrases"].read())]
    assert numbers == [*range(11), *range(100, 100 + len(numbers) - 11)]
    assert len(numbers) > 11


def test_a_file_that_was_rewritten_as_it_was_is_opened_anew(memory_store: pds.Store) -> None:
    pipeline = words(memory_store)
    put(pipeline, *((n, random_text(n)) for n in range(10)))
    expected = plain_rows(pipeline["phrases"].read([3]))
    for info in list(memory_store.list_files("words/run", recursive=True)):
        memory_store.write(str(info.path), memory_store.read_bytes(str(info.path)), overwrite=True)
    for _ in range(2):
        try:
            found = plain_rows(pipeline["phrases"].read([4]))
        except pds.FileChanged:
            continue
    assert found == [(4, random_text(4))]
    assert plain_rows(pipeline["phrases"].read([3])) == expected


def test_a_nullable_key_of_a_later_feeder_is_read_back(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    strict = pipeline.source("strict", key=pa.field("k", INT, nullable=False), value=TEXT)
    loose = pipeline.source("loose", key=INT, value=TEXT)
    pipeline.producer(strict, loose, key=TEXT, value=INT, name="p")(lambda _, values: ((value, 1) for value in values))
    pipeline.update(loose=pds.Changes([(None, "x")]), strict=pds.Changes([(1, "y")]))
    assert plain_rows(pipeline["p"].read()) == [("x", None, 1), ("y", 1, 1)]
    assert plain_rows(pipeline["p"].key_mappings()) == [(None, "x"), (1, "y")]
    assert pipeline["p"].lineage(["x"]) == {"strict": [], "loose": [None]}


def test_keys_to_read_are_of_the_type_of_the_key(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=pa.struct([("a", INT), ("b", INT)]), value=TEXT)
    pipeline.update(s=pds.Changes([({"a": 1, "b": 2}, "x"), ({"a": 2, "b": 1}, "y")]))
    with pytest.raises(pds.InvalidInput, match="expected values of type"):
        pipeline["s"].read(pa.array([{"b": 1, "a": 2}]))
    assert [row["value"] for row in pipeline["s"].read([{"b": 1, "a": 2}]).to_pylist()] == ["y"]


@pytest.mark.parametrize("state", [{"n": {1: 2}}, {"n": 2**64}, {"n": (1, 2)}, {"n": object()}, {"n": "x" * 70_000}])
def test_the_state_of_a_hook_comes_back_as_it_is(memory_store: pds.Store, state: dict[str, Any]) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=INT, value=INT)
    with pytest.raises(pds.InvalidInput, match="the state of the hook of stage 'p'"):
        pipeline.producer(source, key=INT, value=INT, name="p", preserve=pds.Preserve(max, state))(lambda *_: [])

    def spoil(new: int, _: int | None, current: dict[str, Any]) -> int:
        current.update(state)
        return new

    pipeline.producer(source, key=INT, value=INT, name="q", preserve=pds.Preserve(spoil))(lambda key, _: [(key, 1)])
    with pytest.raises(pds.InvalidInput, match="the state of the hook of stage 'q'"):
        pipeline.update(s=pds.Changes([(1, 1)]))
    assert pipeline.version == 0


def test_lineage_has_each_key_once(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=pa.float64(), value=INT)
    pipeline.producer(source, key=INT, value=INT, name="p")(lambda _, values: ((1, value) for value in values))
    pipeline.update(s=pds.Changes([(float("nan"), 1), (float("nan"), 2), (0.5, 3), (0.5, 4)]))
    assert list(map(repr, pipeline["p"].lineage([1])["s"])) == ["0.5", "nan"]

"""Stages that are computed anew, removed and renamed: what is stored is what a new pipeline would hold."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pds
from producers.pipelines import plain_rows
from producers.words import count, split_words, texts_of_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sampled(2)

INT, TEXT = pa.int64(), pa.string()


def lower_words(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
    for word, number in split_words(key, phrases):
        yield word.lower(), number


def lengths(key: int, phrases: Iterator[str]) -> Iterator[tuple[int, int]]:
    for word, number in split_words(key, phrases):
        yield len(word), number


# The function and options of the stage `words`.
DEFINITIONS: dict[str, dict[str, Any]] = {
    "first": {"function": split_words, "key": TEXT, "value": INT, "version": 1},
    "other function": {"function": lower_words, "key": TEXT, "value": INT, "version": 2},
    "other value": {"function": texts_of_words, "key": TEXT, "value": TEXT, "version": 2},
    "other key": {"function": lengths, "key": INT, "value": INT, "version": 2},
    "other order": {"function": split_words, "key": TEXT, "value": INT, "version": 2, "descending": True},
    "other feeders": {
        "function": lower_words,
        "key": TEXT,
        "value": INT,
        "version": 2,
        "feeders": ("books", "phrases"),
    },
}


def declare(store: pds.Store, path: str, name: str, counter: Callable[..., Any] = count) -> pds.Pipeline:
    """Return a pipeline of two sources, `words` and what counts them."""
    options = dict(DEFINITIONS[name])
    function, feeders = options.pop("function"), options.pop("feeders", ("phrases",))
    pipeline = pds.Pipeline(store, path)
    pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.source("books", key=INT, value=TEXT)
    pipeline.producer(*feeders, name="words", **options)(function)
    pipeline.producer("words", key=INT, value=TEXT, name="counts")(counter)
    return pipeline


def contents(pipeline: pds.Pipeline) -> dict[str, list[Any]]:
    tables = {name: plain_rows(pipeline[name].read()) for name in ("words", "counts")}
    return tables | {f"{name} mappings": plain_rows(pipeline[name].key_mappings()) for name in ("words", "counts")}


def mirror(rows: pa.Table, changes: pa.Table | None = None) -> dict[Any, list[Any]]:
    """Return the values by key, after changes were applied."""
    values: dict[Any, list[Any]] = {}
    for row in plain_rows(rows):
        values.setdefault(row[0], []).append(row[-1])
    changed: dict[Any, list[Any]] = {}
    for kind, key, value in [] if changes is None else plain_rows(changes):
        assert (kind == 0) == (key not in values and key not in changed) or kind > 0
        changed.setdefault(key, []).extend([] if kind == 2 else [value])
    return {key: listed for key, listed in {**values, **changed}.items() if listed}


PHRASES = st.dictionaries(
    st.integers(0, 5), st.lists(st.sampled_from(["a", "A", "bb", "Bb c"]), max_size=3).map(" ".join)
)


@settings(deadline=None)
@given(
    st.lists(PHRASES, min_size=1, max_size=3),
    PHRASES,
    st.sampled_from(sorted(DEFINITIONS)),
    st.sampled_from(sorted(DEFINITIONS)),
)
def test_a_rebuild_gives_what_a_new_pipeline_would(
    phrases: list[dict[int, str]], books: dict[int, str], before: str, after: str
) -> None:
    store = pds.Store("memory://")
    pipeline = declare(store, "p", before)
    current: dict[int, str] = {}
    for rows in phrases:
        pipeline.update(phrases=pds.Changes(list(rows.items()) or None))
        current |= rows
    pipeline.update(books=pds.Changes(list(books.items()) or None))
    old = {name: pipeline[name].read() for name in ("words", "counts")}
    rebuilt = declare(store, "p", after)
    if DEFINITIONS[after]["version"] < DEFINITIONS[before]["version"]:
        with pytest.raises(pds.DefinitionChanged, match="version 2 of its function"):
            rebuilt.rebuild()
        return
    rebuilt.rebuild("words")
    new = declare(store, "new", after)
    new.update(phrases=pds.Changes(list(current.items()) or None), books=pds.Changes(list(books.items()) or None))
    assert contents(rebuilt) == contents(new)
    for name in ("words", "counts"):
        table = rebuilt[name]
        if old[name].schema.field(0).type == table.read().schema.field(0).type:
            assert mirror(old[name], table.changes()) == mirror(table.read())
    # Updates go on from there.
    changes = pds.Changes([(1, "new A")], [0])
    rebuilt.update(phrases=changes)
    new.update(phrases=changes)
    assert contents(rebuilt) == contents(new)


def test_a_stage_behind_a_rebuilt_one_is_called_for_what_differs(memory_store: pds.Store) -> None:
    calls: list[str] = []

    def counter(word: str, keys: Iterator[int]) -> Iterator[tuple[int, str]]:
        calls.append(word)
        return count(word, keys)

    declare(memory_store, "p", "first", counter).update(phrases=pds.Changes([(1, "a b C"), (2, "b d")]))
    calls.clear()
    result = declare(memory_store, "p", "other function", counter).rebuild("words")
    assert calls == ["c"]
    assert (result.stages["words"].keys_out, result.stages["counts"].keys_out) == (2, 1)


def test_a_named_stage_is_rebuilt_although_its_definition_is_the_same(memory_store: pds.Store) -> None:
    prefix = "x"

    def words(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        for word, number in split_words(key, phrases):
            yield prefix + word, number

    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.producer("phrases", key=TEXT, value=INT)(words)
    pipeline.update(phrases=pds.Changes([(1, "a")]))
    prefix = "y"
    # Nothing says that it has changed.
    pipeline.rebuild()
    assert plain_rows(pipeline["words"].read()) == [("xa", 1, 1)]
    pipeline.rebuild("words")
    assert plain_rows(pipeline["words"].read()) == [("ya", 1, 1)]
    assert pipeline.rebuild("words", idempotency_key="once").version == 4
    assert pipeline.rebuild("words", idempotency_key="once").replayed


def test_a_hook_keeps_what_it_gave_when_its_stage_is_rebuilt(memory_store: pds.Store) -> None:
    def number(new: int, earlier: int | None, state: dict[str, Any]) -> int:
        if earlier is not None:
            return earlier
        state["next"] = state.get("next", 0) + 1
        return int(state["next"])

    def ids(version: int, function: Callable[..., Any], **options: Any) -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, "p")
        pipeline.source("phrases", key=INT, value=TEXT)
        hook = pds.Preserve(number, {})
        options = {"key": TEXT, "value": INT, "version": version, **options}
        pipeline.producer("phrases", name="ids", preserve=hook, **options)(function)
        return pipeline

    ids(1, split_words).update(phrases=pds.Changes([(1, "b a")]))
    ids(1, split_words).update(phrases=pds.Changes([(2, "0")]))
    rebuilt = ids(2, lambda key, phrases: [*split_words(key, phrases), ("c", key)])
    rebuilt.rebuild()
    rows = {row[0]: row[2] for row in plain_rows(rebuilt["ids"].read())}
    assert rows == {"a": 1, "b": 2, "0": 3, "c": 4}
    # Also by tables of another order, and of another null.
    for options in ({"descending": True}, {"key": pa.field("key", TEXT, nullable=False)}):
        other = ids(2, lambda key, phrases: [*split_words(key, phrases), ("c", key)], **options)
        other.rebuild("ids")
        assert {row[0]: row[2] for row in plain_rows(other["ids"].read())} == rows


@pytest.mark.parametrize("nullable", [True, False])
def test_a_hook_keeps_what_it_gave_where_a_field_may_be_null_or_not_from_now_on(
    memory_store: pds.Store, nullable: bool
) -> None:
    """The types are the same but for that, also to those who read net changes."""

    def number(_new: Any, earlier: Any, state: dict[str, Any]) -> Any:
        state["last"] += earlier is None
        return {"id": state["last"]} if earlier is None else earlier

    def declared(nullable: bool, version: int) -> pds.Pipeline:
        key = pa.struct([pa.field("x", INT, nullable=nullable)])
        value = pa.struct([pa.field("id", INT, nullable=nullable)])
        pipeline = pds.Pipeline(memory_store, "p")
        source = pipeline.source("s", key=INT, value=INT)
        preserve = pds.Preserve(number, {"last": 0})
        emit = pipeline.producer(source, key=key, value=value, name="ids", version=version, preserve=preserve)
        emit(lambda key, _: [({"x": key}, {"id": 0})])
        return pipeline

    pipeline = declared(not nullable, 1)
    for key in (5, 1):
        pipeline.update(s=pds.Changes([(key, 0)]))
    pipeline = declared(nullable, 2)
    pipeline.rebuild()
    assert [(key["x"], value["id"]) for key, _, value in plain_rows(pipeline["ids"].read())] == [(1, 2), (5, 1)]


def test_what_cannot_be_rebuilt_is_refused(memory_store: pds.Store) -> None:
    declare(memory_store, "p", "first").update(phrases=pds.Changes([(1, "a")]))
    pipeline = declare(memory_store, "p", "other function")
    with pytest.raises(pds.DefinitionChanged, match=r'"words" has changed.*rebuild it'):
        pipeline.rebuild("counts")
    for name in ("phrases", "nothing"):
        with pytest.raises(pds.InvalidInput, match=f'no stage "{name}"'):
            pipeline.rebuild(name)
    with pytest.raises(pds.InvalidType):
        pipeline.rebuild(1)  # type: ignore[arg-type]
    other = pds.Pipeline(memory_store, "p")
    other.source("phrases", key=INT, value=INT)
    for name in ("books", "words", "counts"):
        other.source(name, key=INT, value=INT)
    with pytest.raises(pds.DefinitionChanged, match=r'"phrases".*another name'):
        other.rebuild()
    with pytest.raises(pds.CommitConflict):
        pipeline.rebuild("words", base_version=0)
    assert pipeline.version == 1


def test_values_of_a_stage_may_become_nullable(memory_store: pds.Store) -> None:
    """What is stored fits, so nothing is computed anew; the way back would refuse stored rows."""

    def spread(key: int, values: Iterator[int | None]) -> Iterator[tuple[int, dict[str, int | None] | None]]:
        for number in values:
            yield key, None if number is None else {"n": number or None}

    def declared(*, field: bool, value: bool, key: bool = False) -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, "p")
        pipeline.source("s", key=INT, value=INT)
        fields = pa.struct([pa.field("n", INT, nullable=field)])
        target, emitted = pa.field("key", INT, nullable=key), pa.field("value", fields, nullable=value)
        pipeline.producer("s", key=target, value=emitted, name="spread")(spread)
        pipeline.first("spread", by="key", name="first")
        return pipeline

    strict = declared(field=False, value=False)
    strict.update(s=pds.Changes([(1, 5), (2, 6)]))
    with pytest.raises(pds.ProduceError, match="null"):
        strict.update(s=pds.Changes([(3, None)]))
    halfway = declared(field=True, value=False)
    halfway.update(s=pds.Changes([(4, 0)]))
    loose = declared(field=True, value=True)
    result = loose.update(s=pds.Changes([(3, None)]))
    assert {name: stage.keys_in for name, stage in result.stages.items() if name != "s"} == {"spread": 1, "first": 1}
    for name in ("spread", "first"):
        table = loose[name].read()
        assert table["value"].to_pylist() == [{"n": 5}, {"n": 6}, None, {"n": None}]
        assert table.schema.field("value").nullable
    # Old versions are as they were declared.
    assert not loose.as_of(1)["spread"].read().schema.field("value").nullable
    for narrower in (strict, halfway, declared(field=False, value=True), declared(field=True, value=True, key=True)):
        with pytest.raises(pds.DefinitionChanged, match="types of its key or value"):
            narrower.update(s=pds.Changes([(5, 1)]))
    loose.compact(min_delta=0)
    assert loose.rebuild("spread").stages["spread"].keys_out == 0
    assert loose.check().ok


def test_stages_are_removed(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store, "p", "first")
    pipeline.update(phrases=pds.Changes([(1, "a")]))
    with pytest.raises(pds.InvalidInput, match='stage "counts" is fed by'):
        pipeline.remove("words")
    with pytest.raises(pds.NotFound, match='no source or stage "nothing"'):
        pipeline.remove("nothing")
    with pytest.raises(pds.InvalidInput, match="name the"):
        pipeline.remove()
    assert pipeline.remove("counts") == 2
    with pytest.raises(pds.NotFound, match="counts"):
        pipeline["counts"]
    assert plain_rows(pipeline.as_of(1)["counts"].read()) == [(1, "a", "a")]
    assert plain_rows(pipeline["words"].changes()) == []
    partial = pds.Pipeline(memory_store, "p")
    partial.source("phrases", key=INT, value=TEXT)
    partial.source("books", key=INT, value=TEXT)
    partial.producer("phrases", key=TEXT, value=INT, name="words")(split_words)
    partial.update(phrases=pds.Changes([(2, "b")]))
    # A process that still declares it has an older graph.
    with pytest.raises(pds.DefinitionChanged, match='"counts" was removed'):
        pipeline.update(phrases=pds.Changes([(3, "b")]))
    with pytest.raises(pds.DefinitionChanged, match='"counts" was removed'):
        pipeline.rebuild()
    pipeline.rebuild("counts")
    assert plain_rows(pipeline["counts"].read()) == [(1, "a", "a"), (1, "b", "b")]
    assert [entry["operation"]["name"] for entry in pipeline.history()] == ["update", "update", "remove", "update"]
    pipeline.remove("counts")
    newer = pds.Pipeline(memory_store, "p")
    newer.source("phrases", key=INT, value=TEXT)
    newer.source("books", key=INT, value=TEXT)
    newer.producer("phrases", key=TEXT, value=INT, name="words")(split_words)
    newer.producer("words", key=INT, value=TEXT, name="counts", version=2)(count)
    newer.update(phrases=pds.Changes([(3, "b")]))
    assert plain_rows(newer["counts"].read()) == [(1, "a", "a"), (2, "b", "b")]


def test_a_removed_source_comes_back_by_another_name_only(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store, "p", "first")
    pipeline.update(phrases=pds.Changes([(1, "a")]), books=pds.Changes([(1, "b")]))
    pipeline.remove("books")
    with pytest.raises(pds.DefinitionChanged, match=r'"books" was removed.*another name'):
        pipeline.update(books=pds.Changes([(2, "c")]))
    other = pds.Pipeline(memory_store, "p")
    other.source("phrases", key=INT, value=TEXT)
    other.producer("phrases", key=TEXT, value=INT, name="words")(split_words)
    other.producer("words", key=INT, value=TEXT, name="counts")(count)
    other.source("novels", key=INT, value=TEXT)
    other.update(novels=pds.Changes([(2, "c")]))
    other.rename("novels", "books")
    pipeline.update(books=pds.Changes([(3, "d")]))
    assert plain_rows(pipeline["books"].read()) == [(2, "c"), (3, "d")]


def test_a_source_does_not_become_a_stage(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("raw", key=INT, value=INT)
    pipeline.source("a", key=INT, value=INT)
    pipeline.update(a=pds.Changes([(1, 10)]), raw=pds.Changes([(1, 1)]))
    for value in (INT, TEXT):
        other = pds.Pipeline(memory_store, "p")
        other.source("raw", key=INT, value=INT)
        other.producer("raw", key=INT, value=value, name="a")(lambda key, _: [(key, None)])
        for rebuild in (lambda other=other: other.rebuild(), lambda other=other: other.rebuild("a")):
            with pytest.raises(pds.DefinitionChanged, match=r'"a" has changed.*another name'):
                rebuild()
    assert plain_rows(pipeline["a"].read()) == [(1, 10)]


def test_changes_of_new_tables_know_what_was_deleted_before(memory_store: pds.Store) -> None:
    """Two runs, of which the newer one deletes."""

    def numbers(value: pa.DataType, version: int, skipped: int) -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, "p")
        pipeline.source("s", key=INT, value=INT)

        def spread(key: int, values: Iterator[int]) -> Iterator[tuple[int, Any]]:
            for number in values:
                if key != skipped:
                    yield key, number if value == INT else str(number)

        pipeline.producer("s", key=INT, value=value, name="n", version=version)(spread)
        return pipeline

    first = numbers(INT, 1, -1)
    first.update(s=pds.Changes([(n, n) for n in range(20_000)]))
    first.update(s=pds.Changes(deletes=[5, 6]))
    second = numbers(TEXT, 2, 7)
    second.rebuild()
    kinds = {key: kind for kind, key, _ in plain_rows(second["n"].changes())}
    assert set(kinds) == set(range(20_000)) - {5, 6}
    assert kinds.pop(7) == 2
    assert set(kinds.values()) == {1}


def test_stages_are_renamed(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store, "p", "first")
    pipeline.update(phrases=pds.Changes([(1, "a b"), (2, "b")]))
    rows = contents(pipeline)
    with pytest.raises(pds.InvalidInput, match='"counts" already'):
        pipeline.rename("words", "counts")
    with pytest.raises(pds.InvalidInput, match="name"):
        pipeline.rename("words", "")
    with pytest.raises(pds.NotFound, match="nothing"):
        pipeline.rename("nothing", "x")
    assert pipeline.rename("words", "tokens") == 2
    with pytest.raises(pds.DefinitionChanged, match='"tokens", which is not declared'):
        pipeline.update(phrases=pds.Changes([(3, "c")]))
    renamed = pds.Pipeline(memory_store, "p")
    renamed.source("phrases", key=INT, value=TEXT)
    renamed.source("books", key=INT, value=TEXT)
    renamed.producer("phrases", key=TEXT, value=INT, name="tokens")(split_words)
    renamed.producer("tokens", key=INT, value=TEXT, name="counts")(count)
    assert plain_rows(renamed["tokens"].read()) == rows["words"]
    renamed.update(phrases=pds.Changes(deletes=[1]))
    assert plain_rows(renamed["counts"].read()) == [(1, "b", "b")]


def test_a_join_has_a_field_with_the_new_name_of_its_feeder(memory_store: pds.Store) -> None:
    def joined(left: str) -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, "p")
        for name in (left, "right"):
            pipeline.source(name, key=INT, value=INT)
        pipeline.join_rows(left, "right", name="pairs")
        return pipeline

    pipeline = joined("old")
    pipeline.update(old=pds.Changes([(1, 2)]), right=pds.Changes([(1, 3)]))
    pipeline.rename("old", "new")
    renamed = joined("new")
    with pytest.raises(pds.DefinitionChanged, match='"pairs" has changed: the types'):
        renamed.update(new=pds.Changes([(1, 4)]))
    renamed.rebuild("pairs")
    renamed.update(new=pds.Changes([(1, 4)]))
    assert renamed["pairs"].read()["value"].to_pylist() == [{"new": 4, "right": 3}]


def test_before_there_is_a_version_nothing_can_be_changed(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store, "p", "first")
    for change in (lambda: pipeline.remove("words"), lambda: pipeline.rename("words", "x")):
        with pytest.raises(pds.NotFound):
            change()
    # A rebuild is the first update then.
    assert pipeline.rebuild("words").version == 1


@pytest.mark.filterwarnings("ignore:the function of stage")
@pytest.mark.parametrize("change", ["remove", "rename", "compact", "rebuild"])
def test_an_update_beside_a_change_of_the_graph(memory_store: pds.Store, change: str) -> None:
    """It is planned again, and finds another graph, or lands."""
    begun, may_go_on = threading.Event(), threading.Event()
    waits = threading.Event()

    def counter(word: str, keys: Iterator[int]) -> Iterator[tuple[int, str]]:
        if waits.is_set():
            waits.clear()
            begun.set()
            may_go_on.wait(30)
        return count(word, keys)

    declare(memory_store, "p", "first").update(phrases=pds.Changes([(1, "a b"), (2, "b")]))
    pipeline = declare(memory_store, "p", "first", counter)
    outcome: list[Any] = []

    def update() -> None:
        try:
            outcome.append(pipeline.update(phrases=pds.Changes([(3, "c")])).version)
        except Exception as error:  # noqa: BLE001 the test looks at it
            outcome.append(error)

    waits.set()
    thread = threading.Thread(target=update)
    thread.start()
    assert begun.wait(30)
    other = declare(memory_store, "p", "first")
    {
        "remove": lambda: other.remove("counts"),
        "rename": lambda: other.rename("words", "tokens"),
        "compact": lambda: other.compact(min_delta=0),
        "rebuild": lambda: declare(memory_store, "p", "other value").rebuild(),
    }[change]()
    may_go_on.set()
    thread.join()
    if change != "compact":
        assert isinstance(outcome[0], pds.DefinitionChanged)
        return
    # There was nothing to compact.
    assert outcome == [2]
    assert plain_rows(pipeline["counts"].read()) == [(1, "a", "a"), (1, "c", "c"), (2, "b", "b")]

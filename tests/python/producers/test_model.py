"""The model of pipelines gives the tables of the vectors, and holds its invariants."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.model import Changes, Model, ModelError, Preserve, Source, Stage, exact, order_key
from producers.vectors import VectorCase, assign_id, load_cases

CASES = {case.name: case for case in load_cases()}


def build_model(case: VectorCase) -> Model:
    sources = [
        Source(name, pa.field("key", key), pa.field("value", value)) for name, (key, value) in case.sources.items()
    ]
    stages = [
        Stage(
            stage.name,
            stage.feeders,
            stage.function,
            pa.field("key", stage.key),
            pa.field("value", stage.value),
            join=stage.join,
            descending=stage.descending,
            preserve=None if stage.preserve_state is None else Preserve(assign_id, stage.preserve_state),
        )
        for stage in case.stages
    ]
    return Model(sources, stages)


def pair_model(**options: Any) -> Model:
    """A source of pairs, and a stage that emits them."""
    pairs = pa.field("value", pa.struct([("key", pa.int64()), ("value", pa.string())]))
    source = Source("s", pa.field("key", pa.int64()), pairs)
    key = pa.field("key", pa.int64())
    return Model([source], [Stage("p", ["s"], emit, key, pa.field("value", pa.string()), **options)])


def emit(_: Any, values: Any) -> Any:
    return [(value["key"], value["value"]) for value in values]


def pairs(*rows: tuple[int, int, str]) -> list[tuple[int, dict[str, Any]]]:
    return [(source, {"key": key, "value": value}) for source, key, value in rows]


def test_there_are_eleven_cases() -> None:
    assert len(CASES) == 11


@pytest.mark.parametrize("name", CASES)
def test_vectors(name: str) -> None:
    case = CASES[name]
    model = build_model(case)
    for update in case.updates:
        assert model.version == update.base_version
        changes = {source: Changes.from_rows(rows) for source, rows in update.changes.items()}
        if update.error is not None:
            with pytest.raises(ModelError) as refusal:
                model.update(changes)
            assert refusal.value.code == update.error
            assert model.version == update.base_version
            continue
        assert model.update(changes) == update.base_version + 1
        for stage, tables in update.expected.items():
            assert model.content(stage) == tables["content"]
            assert model.tables(stage).key_mappings == tables["key_mappings"]
            assert [row[:2] if row[0] == "delete" else row for row in model.tables(stage).update] == [
                row[:2] if row[0] == "delete" else row for row in tables["update"]
            ]
        for stage, rows in update.input.items():
            is_join = next(s.join for s in case.stages if s.name == stage)
            calls = model.tables(stage).input
            assert rows == [(k, v if is_join else [item for side in v for item in side]) for k, v in calls]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (Changes(pairs((1, 1, "a")), [1]), "delete_mixed_with_upsert"),
        (Changes([], [1, 1]), "two_deletes"),
        (Changes([], [None, None]), "two_deletes"),
    ],
)
def test_refused_updates_change_nothing(changes: Changes, code: str) -> None:
    model = pair_model()
    model.update({"s": Changes(pairs((1, 1, "a")))})
    with pytest.raises(ModelError) as refusal:
        model.update({"s": changes})
    assert refusal.value.code == code
    assert (model.version, model.content("p")) == (1, [(1, 1, "a")])


def test_nulls_are_refused_where_the_field_is_not_nullable() -> None:
    key = pa.field("key", pa.struct([pa.field("a", pa.int64(), nullable=False)]), nullable=False)
    source = Source("s", key, pa.field("value", pa.int64(), nullable=False))
    model = Model([source], [])
    for row, code in ((None, 1), "null_key"), (({"a": None}, 1), "null_key"), (({"a": 1}, None), "null_value"):
        with pytest.raises(ModelError) as refusal:
            model.update({"s": Changes([row])})
        assert refusal.value.code == code


def test_keys_are_in_order() -> None:
    floats = [None, -math.inf, -1.5, 0.0, 5e-324, 2.0, math.inf, math.nan]
    backwards = list(reversed(floats))
    assert sorted(backwards, key=lambda key: order_key(key, pa.float64())) == floats
    assert order_key(-0.0, pa.float64()) == order_key(0.0, pa.float64())
    assert order_key(-math.nan, pa.float64()) == order_key(math.nan, pa.float64())
    texts = [None, "", "Z", "a", "é", "\uffff", "\U0001f600"]
    assert sorted(texts, key=lambda key: order_key(key, pa.string(), descending=True)) == texts[::-1]
    data_type = pa.struct([("a", pa.int64()), ("b", pa.string())])
    structs = [None, {"a": None, "b": None}, (None, "x"), (1, None), {"a": 1, "b": "x"}, (2, "")]
    backwards = list(reversed(structs))
    assert sorted(backwards, key=lambda key: order_key(key, data_type)) == structs
    assert order_key((1, "x"), data_type) == order_key({"a": 1, "b": "x"}, data_type)


def test_a_key_whose_contributors_are_all_replaced_is_an_update() -> None:
    model = pair_model()
    model.update({"s": Changes(pairs((1, 7, "a")))})
    model.update({"s": Changes(pairs((2, 7, "b")), [1])})
    assert model.tables("p").update == [("update", 7, "b")]


def test_skip_unchanged_leaves_out_keys_with_the_same_rows() -> None:
    model, plain = pair_model(skip_unchanged=True), pair_model()
    for each in (model, plain):
        each.update({"s": Changes(pairs((1, 7, "a"), (1, 8, "b")))})
        each.update({"s": Changes(pairs((1, 7, "a"), (1, 8, "c")))})
    assert model.content("p") == plain.content("p")
    assert model.tables("p").update == [("update", 8, "c")]
    assert plain.tables("p").update == [("update", 7, "a"), ("update", 8, "c")]


def test_preserve_prefers_the_pair_then_the_key_then_this_pass() -> None:
    def keep_first(new: str, earlier: str | None, state: dict[str, Any]) -> str:
        state["calls"] = state.get("calls", 0) + 1
        return new if earlier is None else earlier

    model = pair_model(preserve=Preserve(keep_first))
    model.update({"s": Changes(pairs((1, 7, "a"), (2, 7, "b"), (2, 8, "c")))})
    assert model.content("p") == [(7, 1, "a"), (7, 2, "a"), (8, 2, "c")]
    # The key keeps its value of version 1 although no source key is left that wrote it.
    model.update({"s": Changes(pairs((3, 7, "x")), [1, 2])})
    assert model.content("p") == [(7, 3, "a")]
    # A key that comes back is new.
    model.update({"s": Changes(pairs((3, 8, "y")))})
    assert model.content("p") == [(8, 3, "y")]
    assert model.tables("p").state == {"calls": 5}
    assert model.tables("p", 1).state == {"calls": 3}


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.sampled_from("ab")), max_size=6)
UPDATES = st.lists(st.tuples(ROWS, st.sets(st.integers(0, 4))), max_size=5)


@given(UPDATES, st.booleans(), st.booleans())
def test_update_rows_applied_to_a_mirror_give_the_content(updates: Any, descending: bool, skip: bool) -> None:
    model = pair_model(descending=descending, skip_unchanged=skip)
    mirror: dict[int, list[str]] = {}
    for rows, deletes in updates:
        sources = {row[0] for row in rows}
        model.update({"s": Changes(pairs(*rows), sorted(deletes - sources))})
        types = {}
        for kind, key, value in model.tables("p").update:
            if key not in types:
                types[key] = kind
                assert (kind == "add") == (key not in mirror or not mirror[key])
                mirror[key] = []
            mirror[key].extend([] if kind == "delete" else [value])
        content: dict[int, list[str]] = {}
        for key, _, value in model.content("p"):
            content.setdefault(key, []).append(value)
        assert {key: values for key, values in mirror.items() if values} == content
        assert list(content) == sorted(content, reverse=descending)


def test_exact_tells_bits_apart() -> None:
    assert exact(0.0) != exact(-0.0)
    assert exact({"a": [math.nan]}) == exact({"a": [math.nan]})
    assert exact(1) != exact(True)

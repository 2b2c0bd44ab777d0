"""The cases of `tests/vectors/producers.json` as graphs and updates, for the model and for the engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATH = Path(__file__).parents[2] / "vectors" / "producers.json"
_SCALARS = {"int32": pa.int32(), "int64": pa.int64(), "string": pa.string(), "bool": pa.bool_(), "double": pa.float64()}

# The derived cases name no types: source key, source value, target key, target value.
_DERIVED_TYPES = {
    "EssayFruit": ("int32", "struct<key:int32,value:string>", "int32", "string"),
    "EmptyUpdate": ("int32", "struct<key:string,value:int32>", "string", "int32"),
    "KeyMoves": ("int32", "struct<key:string,value:int32>", "string", "int32"),
    "NullKeys": ("string", "struct<key:string,value:int32>", "string", "int32"),
    "DescendingTarget": ("int32", "struct<key:int32,value:string>", "int32", "string"),
    "TwoFeedersUntouchedSide": ("int32", "string", "int32", "string"),
    "TwoFeedersUntouchedSide.m": ("int32", "string", "int32", "list<string>"),
    "ErrorDeleteThenUpsert": ("int32", "struct<key:string,value:int32>", "string", "int32"),
}


def parse_type(text: str) -> pa.DataType:
    """The Arrow type of a name such as `struct<Id:int32,Name:string>`."""
    if match := re.fullmatch(r"struct<(.*)>", text):
        return pa.struct([(name, parse_type(child)) for name, child in re.findall(r"(\w+):(\w+)", match[1])])
    if match := re.fullmatch(r"list<(.*)>", text):
        return pa.list_(parse_type(match[1]))
    return _SCALARS[text]


def project_stuff(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    rows = list(values)
    name = f"{rows[0]['FirstName']} {rows[0]['LastName']}"
    for number in range(1, max(row["Copies"] for row in rows) + 1):
        yield len(rows), {"Id": key, "FirstFullName": name, "Copy": number}


def identity(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield key, value


def split_words(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        for word in value.split(" "):
            yield word, key


def count_by_key(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    yield sum(1 for _ in values), key


def word_with_blank_id(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield value, {"Id": 0}


def emit_pairs(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Each value is a struct of a target key and a value."""
    for value in values:
        yield value["key"], value["value"]


def collect(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    yield key, list(values)


def join_pairs(key: Any, lefts: Iterator[Any], rights: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    listed = list(rights)
    for left in lefts:
        for right in listed:
            yield key, {"left": left, "right": right}


FUNCTIONS: dict[str, Callable[..., Iterator[tuple[Any, Any]]]] = {
    function.__name__: function
    for function in (project_stuff, identity, split_words, count_by_key, word_with_blank_id, emit_pairs, collect)
}


def assign_id(new: Any, earlier: Any, state: dict[str, Any]) -> Any:
    """The preserve hook `id_counter`; the state is `{"field": …, "next": …}`."""
    if earlier is not None:
        return {**new, state["field"]: earlier[state["field"]]}
    number = state["next"]
    state["next"] += 1
    return {**new, state["field"]: number}


@dataclass(frozen=True)
class VectorStage:
    """A stage of a case. `feeders` are names of sources and stages."""

    name: str
    function: Callable[..., Iterator[tuple[Any, Any]]]
    feeders: tuple[str, ...]
    key: pa.DataType
    value: pa.DataType
    descending: bool = False
    join: bool = False
    preserve_state: dict[str, Any] | None = None
    """The first state of the hook `assign_id`; None is no hook."""


@dataclass
class VectorUpdate:
    """One update of the whole pipeline, and the tables expected after it, by stage and table."""

    base_version: int
    changes: dict[str, list[tuple[str, Any, Any]]] = field(default_factory=dict)
    expected: dict[str, dict[str, list[tuple[Any, ...]]]] = field(default_factory=dict)
    input: dict[str, list[tuple[Any, Any]]] = field(default_factory=dict)
    """By stage: (key, list of values), or for a join (key, list of lists of values); no value is a delete."""
    error: str | None = None


@dataclass
class VectorCase:
    """A graph and its updates."""

    name: str
    sources: dict[str, tuple[pa.DataType, pa.DataType]]
    stages: list[VectorStage]
    updates: list[VectorUpdate]


def load_cases() -> list[VectorCase]:
    """All cases, those of joins too."""
    document = json.loads(PATH.read_text())
    return [_load_case(case) for case in document["cases"]] + [_load_join(case) for case in document["joins"]]


def _to_value(value: Any, data_type: pa.DataType) -> Any:
    """A pair of the file is a struct."""
    if isinstance(value, list) and pa.types.is_struct(data_type):
        return dict(zip((child.name for child in data_type), value, strict=True))
    return value


def _to_rows(table: str, rows: list[list[Any]], value_type: pa.DataType) -> list[tuple[Any, ...]]:
    if table == "key_mappings":
        return [tuple(row) for row in rows]
    return [(*row[:-1], _to_value(row[-1], value_type)) for row in rows]


def _load_case(case: dict[str, Any]) -> VectorCase:
    sources, stages = {}, []
    for producer in case["producers"]:
        name = producer["name"]
        types = _DERIVED_TYPES.get(f"{case['name']}.{name}", _DERIVED_TYPES.get(case["name"]))
        if types is None:
            types = tuple(producer[part] for part in ("source_key", "source_value", "target_key", "target_value"))
        source_key, source_value, key, value = map(parse_type, types)
        feeders = tuple(producer["sources"])
        if not feeders:
            feeders = (f"{name}_source",)
            sources[feeders[0]] = (source_key, source_value)
        hook = producer.get("preserve")
        state = None if hook is None else {"field": hook["field"], "next": hook["start"]}
        is_descending = producer.get("target_order") == "desc"
        function = FUNCTIONS[producer["produce"]]
        stages.append(VectorStage(name, function, feeders, key, value, is_descending, preserve_state=state))
    return VectorCase(case["name"], sources, stages, _load_updates(case["steps"], sources, stages))


def _load_updates(
    steps: list[dict[str, Any]], sources: dict[str, tuple[pa.DataType, pa.DataType]], stages: list[VectorStage]
) -> list[VectorUpdate]:
    value_of = {stage.name: stage.value for stage in stages}
    updates: list[VectorUpdate] = []
    for step in steps:
        name = step["producer"]
        if "base_version" in step and (not updates or updates[-1].base_version != step["base_version"]):
            updates.append(VectorUpdate(step["base_version"]))
        update = updates[-1]
        if step["op"] == "update":
            value_type = sources[f"{name}_source"][1]
            update.changes[f"{name}_source"] = [(*row[:2], _to_value(row[2], value_type)) for row in step["rows"]]
        update.error = step.get("expect_error")
        for table, rows in step.get("expect", {}).items():
            if table == "rows":
                update.input[name] = _to_input(rows)
            else:
                update.expected.setdefault(name, {})[table] = _to_rows(table, rows, value_of[name])
    return updates


def _to_input(rows: list[list[Any]]) -> list[tuple[Any, Any]]:
    groups: list[tuple[Any, list[Any]]] = []
    for kind, key, value in rows:
        if not groups or groups[-1][0] != key:
            groups.append((key, []))
        if kind != "delete":
            groups[-1][1].append(value)
    return list(groups)


def _load_join(case: dict[str, Any]) -> VectorCase:
    left, right = parse_type(case["join"]["left_type"]), parse_type(case["join"]["right_type"])
    value = pa.struct([("left", left), ("right", right)])
    sources = {"left": (pa.string(), left), "right": (pa.string(), right)}
    stage = VectorStage("join", join_pairs, ("left", "right"), pa.string(), value, join=True)
    updates = []
    for step in case["steps"]:
        update = VectorUpdate(step["base_version"])
        update.changes = {side: [tuple(row) for row in step[side]] for side in sources}
        update.expected["join"] = {
            table: _to_rows(table, step[table], value) for table in ("content", "key_mappings", "update")
        }
        update.input["join"] = [(key, [lefts or [], rights or []]) for key, lefts, rights in step["effective"]]
        updates.append(update)
    return VectorCase(case["name"], sources, [stage], updates)

"""A model of a pipeline in plain Python: every version is computed from scratch from the whole current sources."""

from __future__ import annotations

import datetime as dt
import functools
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class ModelError(Exception):
    """An update that is refused; `code` is one of the words of the vectors."""

    def __init__(self, code: str, where: str) -> None:
        super().__init__(f"{where}: {code}")
        self.code = code


@functools.total_ordering
class _Reversed:
    """A key whose order is the reverse."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.key == other.key

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.key < self.key)

    def __hash__(self) -> int:
        return hash(self.key)


def order_key(value: Any, data_type: pa.DataType, descending: bool = False) -> Any:
    """A hashable value that sorts as the key does, and is equal for equal keys only."""
    key = _ascending_key(value, data_type)
    return _Reversed(key) if descending else key


def order_function(data_type: pa.DataType, descending: bool = False) -> Callable[[Any], Any]:
    """`order_key` for the keys of a type."""
    return functools.partial(order_key, data_type=data_type, descending=descending)


def _ascending_key(value: Any, data_type: pa.DataType) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if pa.types.is_struct(data_type):
        items = _field_values(value, data_type)
        return (1, *(_ascending_key(item, child.type) for item, child in zip(items, data_type, strict=True)))
    if pa.types.is_floating(data_type):
        bits = struct.unpack(">Q", struct.pack(">d", _normalize_float(value)))[0]
        return (1, bits ^ (2**64 - 1) if bits >> 63 else bits | 1 << 63)
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return (1, value.astimezone(dt.UTC))
    return (1, value)


def _field_values(value: Any, data_type: pa.StructType) -> list[Any]:
    return [value[child.name] for child in data_type] if isinstance(value, dict) else list(value)


def _normalize_float(value: float) -> float:
    return float("nan") if value != value else value + 0.0  # noqa: PLR0124


def normalize_key(value: Any, data_type: pa.DataType) -> Any:
    """A key as it is stored: one zero, one NaN; structs as tuples."""
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        items = _field_values(value, data_type)
        return tuple(normalize_key(item, child.type) for item, child in zip(items, data_type, strict=True))
    return _normalize_float(value) if pa.types.is_floating(data_type) else value


def exact(value: Any) -> Any:
    """A hashable value that is equal for values of equal bits only."""
    if isinstance(value, float):
        return "float", struct.pack(">d", value)
    if isinstance(value, dict):
        return "struct", tuple((name, exact(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return "list", tuple(map(exact, value))
    return type(value).__name__, value


def copied(value: Any) -> Any:
    """A copy that changes alone; `copy.deepcopy` takes ten times as long."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return tuple(map(copied, value)) if type(value) is tuple else value


def _check_nulls(value: Any, column: pa.Field, code: str, where: str) -> None:
    if value is None:
        if not column.nullable:
            raise ModelError(code, where)
    elif pa.types.is_struct(column.type):
        for item, child in zip(_field_values(value, column.type), column.type, strict=True):
            _check_nulls(item, child, code, where)


@dataclass(frozen=True)
class Changes:
    """Rows (key, value) that replace those of their keys, and keys to delete."""

    upserts: Sequence[tuple[Any, Any]] = ()
    deletes: Sequence[Any] = ()

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]]) -> Changes:
        """Changes from rows (type, key, value); add and update mean the same."""
        listed = list(rows)
        return cls(
            [(key, value) for kind, key, value in listed if kind != "delete"],
            [key for kind, key, _ in listed if kind == "delete"],
        )


@dataclass(frozen=True)
class Preserve:
    """`function(new, earlier, state) -> value`; the state is changed in place and commits with the version."""

    function: Callable[[Any, Any, dict[str, Any]], Any]
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """The order of the values of a key: an expression, and a function that computes it. Nulls are last."""

    by: str
    function: Callable[[Any], int | None]
    descending: bool = False

    def place(self, value: Any, source: Any) -> Any:
        """A value that sorts as a row with this value and source key does."""
        number = self.function(value)
        place = (number or 0, source)
        return number is None, _Reversed(place) if self.descending else place


@dataclass(frozen=True)
class Source:
    """A source that callers push."""

    name: str
    key: pa.Field
    value: pa.Field
    descending: bool = False
    skip_unchanged: bool = False


@dataclass(frozen=True)
class Stage:
    """A stage: `produce(key, values)`, or for a join `produce(key, values_of_a, values_of_b, …)`."""

    name: str
    feeders: Sequence[str]
    produce: Callable[..., Iterable[tuple[Any, Any]] | None]
    key: pa.Field
    value: pa.Field
    join: bool = False
    descending: bool = False
    skip_unchanged: bool = False
    preserve: Preserve | None = None
    order: Order | None = None


@dataclass(frozen=True)
class Row:
    """One row of content. The rows of a source have no source key."""

    target_key: Any
    source_key: Any
    value: Any


@dataclass
class Tables:
    """The tables of one source or stage in one version."""

    content: list[Row] = field(default_factory=list)
    key_mappings: list[tuple[Any, Any]] = field(default_factory=list)
    update: list[tuple[str, Any, Any]] = field(default_factory=list)
    changed: dict[Any, Any] = field(default_factory=dict)
    """The keys of `update`, by `order_key`."""
    input: list[tuple[Any, list[list[Any]]]] = field(default_factory=list)
    """What the stage was called with: each changed key with the values of each feeder; all empty is a delete."""
    state: dict[str, Any] = field(default_factory=dict)


def _first_state(node: Source | Stage) -> dict[str, Any]:
    preserve = node.preserve if isinstance(node, Stage) else None
    return {} if preserve is None else copied(preserve.state)


class Model:
    """A graph of sources and stages with the tables of every version. Version 0 is empty."""

    def __init__(self, sources: Sequence[Source], stages: Sequence[Stage]) -> None:
        self.sources = {source.name: source for source in sources}
        self.stages = {stage.name: stage for stage in stages}
        nodes: dict[str, Source | Stage] = dict(self.sources)
        for stage in stages:
            if not stage.feeders or len(set(stage.feeders)) < len(stage.feeders):
                raise ValueError(f"{stage.name} needs feeders, each of them once")
            if len({(nodes[name].key.type, nodes[name].descending) for name in stage.feeders}) > 1:
                raise ValueError(f"the feeders of {stage.name} differ in type or order of their keys")
            nodes[stage.name] = stage
        self.nodes = nodes
        self.versions = [{name: Tables(state=_first_state(node)) for name, node in nodes.items()}]
        # Stages that the next version has, and this one has not.
        self.added: set[str] = set()

    @property
    def version(self) -> int:
        return len(self.versions) - 1

    def tables(self, name: str, version: int = -1) -> Tables:
        """The tables of a source or stage; the newest version by default."""
        return self.versions[version][name]

    def add(self, stage: Stage) -> None:
        """Have another stage from the next version on."""
        self.stages[stage.name] = self.nodes[stage.name] = stage
        self.versions[-1][stage.name] = Tables(state=_first_state(stage))
        self.added.add(stage.name)

    def remove(self, name: str) -> None:
        """Have a stage no more."""
        del self.stages[name], self.nodes[name]

    def content(self, name: str, version: int = -1) -> list[tuple[Any, Any, Any]]:
        """Rows (target_key, source_key, value)."""
        return [(row.target_key, row.source_key, row.value) for row in self.tables(name, version).content]

    def update(self, changes: dict[str, Changes]) -> int:
        """Make the next version and return its number; a refused update changes nothing."""
        tables: dict[str, Tables] = {}
        for source in self.sources.values():
            tables[source.name] = self._update_source(source, changes.get(source.name, Changes()))
        for stage in self.stages.values():
            tables[stage.name] = self._update_stage(stage, tables)
        self.versions.append(tables)
        self.added.clear()
        return self.version

    def _order(self, name: str) -> Callable[[Any], Any]:
        node = self.nodes[name]
        return order_function(node.key.type, node.descending)

    def _update_source(self, source: Source, changes: Changes) -> Tables:
        order = self._order(source.name)
        groups = _group(self.tables(source.name).content, order)
        changed: dict[Any, Any] = {}
        deleted, upserted = set(), set()
        for key in changes.deletes:
            _check_nulls(key, source.key, "null_key", source.name)
            place = order(key)
            if place in deleted:
                raise ModelError("two_deletes", source.name)
            deleted.add(place)
            changed[place] = normalize_key(key, source.key.type)
            groups.pop(place, None)
        for key, value in changes.upserts:
            _check_nulls(key, source.key, "null_key", source.name)
            _check_nulls(value, source.value, "null_value", source.name)
            place = order(key)
            if place in deleted:
                raise ModelError("delete_mixed_with_upsert", source.name)
            stored = changed.setdefault(place, normalize_key(key, source.key.type))
            if place not in upserted:
                groups[place] = []
                upserted.add(place)
            groups[place].append(Row(stored, None, copied(value)))
        content = [row for place in sorted(groups) for row in groups[place]]
        return self._finish(source, Tables(content), changed)

    def _update_stage(self, stage: Stage, tables: dict[str, Tables]) -> Tables:
        old = self.tables(stage.name)
        first = stage.feeders[0]
        by_source, by_target = self._order(first), self._order(stage.name)
        changed: dict[Any, Any] = {}
        for name in stage.feeders:
            changed.update(tables[name].changed)
        groups = [_group(tables[name].content, by_source) for name in stage.feeders]
        keys = {place: rows[0].target_key for group in groups for place, rows in group.items()}
        if stage.name in self.added:
            changed = dict(keys)
        rows = [
            row
            for place in sorted(keys)
            for row in self._produce(stage, keys[place], [_values(group.get(place, [])) for group in groups])
        ]

        def place(row: Row) -> Any:
            if stage.order is None:
                return by_target(row.target_key), by_source(row.source_key)
            # Whatever the order of the feeder is.
            source = order_key(row.source_key, self.nodes[first].key.type)
            return by_target(row.target_key), stage.order.place(row.value, source)

        # The sort is stable, which keeps the order of emission.
        rows.sort(key=place)
        result = Tables(rows, state=copied(old.state))
        result.input = [
            (changed[place], [_values(group.get(place, [])) for group in groups]) for place in sorted(changed)
        ]
        if stage.preserve is not None:
            result.content = self._preserve(stage, stage.preserve, rows, changed, result.state)
        mappings = [(row.source_key, row.target_key) for row in result.content]
        result.key_mappings = sorted(mappings, key=lambda pair: (by_source(pair[0]), by_target(pair[1])))
        instructed = {
            by_target(row.target_key): row.target_key
            for row in [*old.content, *result.content]
            if by_source(row.source_key) in changed
        }
        return self._finish(stage, result, instructed)

    @staticmethod
    def _produce(stage: Stage, key: Any, values: list[list[Any]]) -> list[Row]:
        if stage.join:
            arguments = [iter(copied(side)) for side in values]
        else:
            arguments = [iter(copied([value for side in values for value in side]))]
        rows = []
        for target_key, value in stage.produce(key, *arguments) or ():
            _check_nulls(target_key, stage.key, "null_key", stage.name)
            _check_nulls(value, stage.value, "null_value", stage.name)
            rows.append(Row(normalize_key(target_key, stage.key.type), key, copied(value)))
        return rows

    def _preserve(
        self, stage: Stage, hook: Preserve, rows: list[Row], changed: dict[Any, Any], state: dict[str, Any]
    ) -> list[Row]:
        """The rows with values of the hook for changed source keys, and with their old values for the others."""
        by_source, by_target = self._order(stage.feeders[0]), self._order(stage.name)
        old_pairs: dict[Any, list[Any]] = {}
        old_keys: dict[Any, Any] = {}
        for row in self.tables(stage.name).content:
            old_pairs.setdefault((by_target(row.target_key), by_source(row.source_key)), []).append(row.value)
            old_keys.setdefault(by_target(row.target_key), row.value)
        emitted: dict[Any, int] = {}
        stored: dict[Any, Any] = {}
        result = []
        for row in rows:
            target, source = by_target(row.target_key), by_source(row.source_key)
            number = emitted.get((target, source), 0)
            emitted[target, source] = number + 1
            if source not in changed:
                value = old_pairs[target, source][number]
            else:
                if (target, source) in old_pairs:
                    earlier = old_pairs[target, source][0]
                else:
                    earlier = old_keys[target] if target in old_keys else stored.get(target)
                value = copied(hook.function(copied(row.value), copied(earlier), state))
                stored.setdefault(target, value)
            result.append(Row(row.target_key, row.source_key, value))
        return result

    def _finish(self, node: Source | Stage, result: Tables, instructed: dict[Any, Any]) -> Tables:
        """Add the update table and its keys."""
        order = self._order(node.name)
        before, after = _group(self.tables(node.name).content, order), _group(result.content, order)
        for place in sorted(instructed):
            rows, old_rows = after.get(place, []), before.get(place, [])
            if node.skip_unchanged and _identities(rows) == _identities(old_rows):
                continue
            result.changed[place] = instructed[place]
            if not rows:
                result.update.append(("delete", instructed[place], None))
            for number, row in enumerate(rows):
                kind = "update" if number or old_rows else "add"
                result.update.append((kind, row.target_key, row.value))
        return result


def _group(rows: Iterable[Row], order: Callable[[Any], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(order(row.target_key), []).append(row)
    return groups


def _values(rows: Iterable[Row]) -> list[Any]:
    return [row.value for row in rows]


def _identities(rows: Iterable[Row]) -> list[Any]:
    return [(exact(row.source_key), exact(row.value)) for row in rows]

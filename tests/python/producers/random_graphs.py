"""Random graphs of all kinds of stages: each stage as pipelines declare it, and as the model has it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import pds
from producers import plain_operators as plain
from producers.model import Order, Preserve, Source, Stage
from producers.plain_operators import column_of

INT, TEXT, FLOAT = pa.int64(), pa.string(), pa.float64()
WIDE = pa.struct([("k", TEXT), ("n", INT), ("f", FLOAT), ("s", TEXT), ("b", pa.bool_()), ("l", pa.list_(INT))])
PAIR = pa.struct([("n", INT), ("s", TEXT)])
NUMBER, KEY = pa.field("value", INT), pa.field("key", INT)
Declare = Callable[[pds.Pipeline], object]
Random = random.Random


@dataclass(frozen=True)
class Step:
    """A source or stage of a graph."""

    node: Source | Stage
    declare: Declare
    # What its values are; the others are one of `COLUMNS`.
    kind: str
    # What it is an example of, for the report.
    operator: str
    # The columns of values that only this stage has.
    columns: dict[str, str]
    # Whether the order of its rows is known here: that of a join follows from source keys, which the model has not.
    ordered: bool = True
    # Whether the model knows which keys an update of it names: it does not for operators, which may know better.
    exact_changes: bool = False
    # It and what feeds it.
    upstream: frozenset[str] = frozenset()
    # Another definition with the same tables.
    other: Step | None = None

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def feeders(self) -> tuple[str, ...]:
        return tuple(self.node.feeders) if isinstance(self.node, Stage) else ()

    @property
    def hook(self) -> Preserve | None:
        return self.node.preserve if isinstance(self.node, Stage) else None


# The columns of a value by its kind, and what is in them.
COLUMNS = {
    "wide": {"n": "int", "f": "float", "s": "text", "b": "bool"},
    "flat": {"n": "int", "s": "text", "b": "bool", "l": "int"},
    "pair": {"n": "int", "s": "text"},
    "number": {"value": "int"},
    "text": {"value": "text"},
}


def _number_or(value: Any, default: int) -> int:
    return default if value is None else value


def _part(value: Any, modulus: int) -> int | None:
    return None if value is None else abs(value) % modulus


def _selected_values(step: Step) -> list[tuple[Any, plain.Expression, str]]:
    """Expressions of a value in SQL, the same in Python, and the kind of the result."""
    same: tuple[Any, plain.Expression, str] = (None, lambda _, v: v, step.kind)
    listed = [] if step.kind in ("results", "joined") else [same]
    for name, what in step.columns.items():
        quoted = f'"{name}"'
        if what == "int":
            listed += [
                (quoted, lambda _, v, c=name: column_of(v, c), "number"),
                (f"coalesce({quoted}, 7)", lambda _, v, c=name: _number_or(column_of(v, c), 7), "number"),
            ]
        if what == "text":
            listed += [
                (quoted, lambda _, v, c=name: column_of(v, c), "text"),
                (
                    f"coalesce({quoted}, 'none') || '-'",
                    lambda _, v, c=name: ("none" if column_of(v, c) is None else column_of(v, c)) + "-",
                    "text",
                ),
            ]
    if {"n", "s"} <= step.columns.keys():
        both = {"n": "n", "s": "s"}
        listed.append((both, lambda _, v: {name: column_of(v, name) for name in both}, "pair"))
    return listed


def _selected_keys(step: Step) -> list[tuple[Any, plain.Expression, pa.DataType]]:
    key = step.node.key.type
    listed: list[tuple[Any, plain.Expression, pa.DataType]] = [(None, lambda k, _: k, key)]
    if key == INT:
        listed.append(("key % 3", lambda k, _: None if k is None else int(math.fmod(k, 3)), INT))
        listed.append(("cast(key as varchar)", lambda k, _: None if k is None else str(k), TEXT))
    for name, what in step.columns.items():
        quoted = f'"{name}"'
        if what == "int":
            listed.append((f"abs({quoted}) % 4", lambda _, v, c=name: _part(column_of(v, c), 4), INT))
        if what == "text":
            listed.append((quoted, lambda _, v, c=name: column_of(v, c), TEXT))
    return listed


def _conditions(step: Step) -> list[tuple[str | None, plain.Expression]]:
    listed: list[tuple[str | None, plain.Expression]] = [(None, lambda _k, _v: True)] * 2
    for name, what in step.columns.items():
        quoted = f'"{name}"'
        if what == "int":
            listed.append((f"{quoted} > 0", lambda _, v, c=name: _number_or(column_of(v, c), 0) > 0))
            listed.append((f"{quoted} in (1, 2, 5)", lambda _, v, c=name: column_of(v, c) in (1, 2, 5)))
        if what == "text":
            listed.append((f"{quoted} is not null", lambda _, v, c=name: column_of(v, c) is not None))
        if what == "bool":
            listed.append((quoted, lambda _, v, c=name: column_of(v, c) is True))
    return listed


def _orders(step_kind: str) -> list[tuple[str, Callable[[Any], int | None]]]:
    column = {"number": "value", "wide": "n", "pair": "n", "flat": "l"}.get(step_kind)
    if column is None:
        return []
    quoted = f'"{column}"'
    return [
        (quoted, lambda value: column_of(value, column)),
        (f"abs({quoted}) % 3", lambda value: _part(column_of(value, column), 3)),
    ]


VALUE_TYPES = {"wide": WIDE, "pair": PAIR, "number": INT, "text": TEXT}


class Maker:
    """Makes the stages of one random graph."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.steps: dict[str, Step] = {}
        # It knows the types.
        self.declared = pds.Pipeline(pds.Store("memory://"), "types")

    def by_chance(self, chance: float) -> bool:
        return self.rng.random() < chance

    def add(self, step: Step | None) -> None:
        if step is None:
            return
        step.declare(self.declared)
        upstream = {step.name}.union(*(self.steps[name].upstream for name in step.feeders))
        others = [self.steps[name] for name in step.feeders]
        is_exact = step.exact_changes and all(other.exact_changes for other in others)
        # Texts may have another type than was thought.
        key = pa.field("key", self.fields(step)[0])
        other = None if step.other is None else replace(step.other, node=replace(step.other.node, key=key))
        self.steps[step.name] = replace(
            step,
            node=replace(step.node, key=key),
            upstream=frozenset(upstream),
            exact_changes=is_exact,
            other=other,
        )

    def fields(self, step: Step) -> tuple[pa.DataType, pa.DataType, bool]:
        node = self.declared._nodes[step.name]
        return node.fields.field("key").type, node.fields.field("value").type, node.descending

    def choose(self, is_fit: Callable[[Step], bool]) -> Step | None:
        fit = [step for step in self.steps.values() if is_fit(step)]
        return self.rng.choice(fit) if fit else None

    def feeders(self, is_fit: Callable[[Step], bool], most: int = 2) -> list[Step]:
        """One, or two with the same types."""
        one = self.choose(is_fit)
        if one is None:
            return []
        alike = [
            step
            for step in self.steps.values()
            if is_fit(step) and step is not one and step.kind == one.kind and self.fields(step) == self.fields(one)
        ]
        more = self.rng.sample(alike, min(most - 1, len(alike))) if self.by_chance(0.4) else []
        return [one, *more]

    def sources(self, table: pds.Table) -> None:
        descending = self.by_chance(0.5)
        for name in ("a", "b"):
            skips = self.by_chance(0.5)
            source = Source(name, KEY, pa.field("value", WIDE), descending=descending, skip_unchanged=skips)

            def declare(p: pds.Pipeline, s: Source = source) -> object:
                options = {"descending": s.descending, "skip_unchanged": s.skip_unchanged}
                return p.source(s.name, key=KEY, value=WIDE, **options)

            self.add(Step(source, declare, "wide", "source", COLUMNS["wide"], exact_changes=True))
        attached = Source("t", KEY, NUMBER)
        self.add(
            Step(
                attached,
                lambda p: p.source("t", table, key="g", value="v"),
                "number",
                "table",
                COLUMNS["number"],
            )
        )

    def select(self, name: str) -> Step | None:
        feeders = self.feeders(lambda _: True)
        first = feeders[0]
        key_text, key, key_type = self.rng.choice(_selected_keys(first))
        value_text, value, kind = self.rng.choice(_selected_values(first))
        orders = _orders(kind) if all(step.ordered for step in feeders) and self.by_chance(0.4) else []
        by, direction = self.rng.choice(orders) if orders else None, self.by_chance(0.5)
        descending, skips = self.by_chance(0.5), self.by_chance(0.4)
        names = [step.name for step in feeders]
        columns = COLUMNS.get(kind, first.columns)

        def make(where_text: str | None, where: plain.Expression) -> Step:
            options: dict[str, Any] = {"descending": descending, "skip_unchanged": skips}
            order = None
            if by is not None:
                options |= {"order_by": by[0], "order_descending": direction}
                order = Order(by[0], by[1], descending=direction)
            stage = Stage(
                name,
                names,
                plain.select(key, value, where),
                pa.field("key", key_type),
                pa.field("value", VALUE_TYPES.get(kind, INT)),
                descending=descending,
                skip_unchanged=skips,
                order=order,
            )

            def declare(p: pds.Pipeline) -> object:
                texts = {"key": key_text, "value": value_text, "where": where_text}
                texts = {name: text for name, text in texts.items() if text is not None}
                return p.select(*names, name=name, **texts, **options)

            operator = "select" + " by order" * (order is not None) + " of a union" * (len(names) > 1)
            return Step(stage, declare, kind, operator, columns, ordered=all(f.ordered for f in feeders))

        one, other = self.rng.sample(_conditions(first), 2)
        return replace(make(*one), other=make(*other))

    def aggregate(self, name: str) -> Step | None:
        feeders = self.feeders(lambda step: bool(step.columns))
        is_ordered = all(step.ordered for step in feeders)
        aggregates: dict[str, Any] = {"n": "count"}
        columns = feeders[0].columns
        for number in range(self.rng.randrange(1, 6)):
            column = self.rng.choice(sorted(columns))
            aggregates[f"r{number}"] = self.rng.choice(_aggregates(column, columns[column], is_ordered=is_ordered))
        if self.by_chance(0.5):
            # Those that are computed by what changed alone.
            cheap = ("count", "sum", "mean", "variance", "var_pop", "stddev", "stddev_pop", "bool_and", "count_if")
            aggregates = {n: a for n, a in aggregates.items() if a == "count" or a[1] in cheap}
        skips = self.by_chance(0.4)
        names = [step.name for step in feeders]
        key_type, _, descending = self.fields(feeders[0])
        stage = Stage(
            name,
            names,
            plain.aggregate(aggregates),
            pa.field("key", key_type),
            NUMBER,
            descending=descending,
            skip_unchanged=skips,
        )

        def declare(p: pds.Pipeline) -> object:
            return p.aggregate(*names, aggregates=aggregates, name=name, skip_unchanged=skips)

        operator = "aggregate of a union" if len(names) > 1 else "aggregate"
        return Step(stage, declare, "results", operator, {"n": "int"})

    def _same_keys(self, name: str, feeders: list[Step], produce: plain.Produce, declare: Declare, **more: Any) -> Step:
        key_type, _, descending = self.fields(feeders[0])
        value = pa.field("value", VALUE_TYPES.get(more["kind"], INT))
        stage = Stage(
            name,
            [step.name for step in feeders],
            produce,
            pa.field("key", key_type),
            value,
            descending=descending,
            join=more.pop("join", False),
            skip_unchanged=more.pop("skips"),
        )
        return Step(stage, declare, **more)

    def first(self, name: str) -> Step | None:
        by = {"wide": ("n", "s", "f"), "pair": ("n", "s"), "number": ("value",), "text": ("value",)}
        feeders = self.feeders(lambda step: step.kind in by and step.ordered)
        if not feeders:
            return None
        kind = feeders[0].kind
        column, rows, descending = self.rng.choice(by[kind]), self.rng.randrange(1, 4), self.by_chance(0.5)
        names, skips = [step.name for step in feeders], self.by_chance(0.4)
        return self._same_keys(
            name,
            feeders,
            plain.first(column, rows, descending=descending),
            lambda p: p.first(*names, by=column, rows=rows, descending=descending, name=name, skip_unchanged=skips),
            kind=kind,
            operator="first",
            columns=COLUMNS[kind],
            skips=skips,
        )

    def distinct(self, name: str) -> Step | None:
        feeders = self.feeders(lambda step: step.kind in ("number", "text"))
        if not feeders:
            return None
        names, skips = [step.name for step in feeders], self.by_chance(0.4)
        kind = feeders[0].kind
        return self._same_keys(
            name,
            feeders,
            plain.distinct,
            lambda p: p.distinct(*names, name=name, skip_unchanged=skips),
            kind=kind,
            operator="distinct",
            columns=COLUMNS[kind],
            skips=skips,
        )

    def flatten(self, name: str) -> Step | None:
        feeders = self.feeders(lambda step: step.kind == "wide")
        names, skips = [step.name for step in feeders], self.by_chance(0.4)
        return self._same_keys(
            name,
            feeders,
            plain.flatten("l"),
            lambda p: p.flatten(*names, field="l", name=name, skip_unchanged=skips),
            kind="flat",
            operator="flatten",
            columns=COLUMNS["flat"],
            ordered=all(step.ordered for step in feeders),
            skips=skips,
        )

    def _two_numbers(self, is_fit: Callable[[Step], bool]) -> list[Step]:
        """Two with the same keys."""
        fit = [step for step in self.steps.values() if step.kind == "number" and is_fit(step)]
        keys = {step.name: self.fields(step)[::2] for step in fit}
        pairs = [
            [one, other] for one in fit for other in fit if one is not other and keys[one.name] == keys[other.name]
        ]
        return self.rng.choice(pairs) if pairs else []

    def join_rows(self, name: str) -> Step | None:
        feeders = self._two_numbers(lambda _: True)
        if not feeders:
            return None
        left, right = (step.name for step in feeders)
        how, skips = self.rng.choice(["inner", "left", "right", "full", "semi", "anti"]), self.by_chance(0.4)
        is_struct = how not in ("semi", "anti")
        return self._same_keys(
            name,
            feeders,
            plain.join_rows(how, left, right),
            lambda p: p.join_rows(left, right, how=how, name=name, skip_unchanged=skips),  # type: ignore[arg-type]
            kind="joined" if is_struct else "number",
            operator=f"{how} join",
            columns={left: "int", right: "int"} if is_struct else COLUMNS["number"],
            ordered=False,
            join=True,
            skips=skips,
        )

    def producer(self, name: str) -> Step | None:
        feeder = self.choose(lambda step: step.kind in FUNCTIONS and step.ordered)
        if feeder is None:
            return None
        produce, key = self.rng.choice(FUNCTIONS[feeder.kind])
        preserve = None
        if feeder.exact_changes and self.by_chance(0.5):
            preserve = Preserve(keep_number, {"next": 1})
        orders = self.rng.choice(_orders("number")) if self.by_chance(0.4) else None
        options: dict[str, Any] = {"descending": self.by_chance(0.5), "skip_unchanged": self.by_chance(0.4)}
        direction, is_batch = self.by_chance(0.5), self.by_chance(0.5)

        def make(function: plain.Produce, version: int) -> Step:
            order = None if orders is None else Order(orders[0], orders[1], descending=direction)
            stage = Stage(
                name, [feeder.name], function, pa.field("key", key), NUMBER, preserve=preserve, order=order, **options
            )
            called = by_batch(function, key) if is_batch else function

            def declare(p: pds.Pipeline) -> object:
                return p.producer(
                    feeder.name,
                    key=key,
                    value=INT,
                    name=name,
                    batch=is_batch,
                    version=version,
                    order_by=order and order.by,
                    order_descending=order is not None and direction,
                    preserve=preserve and pds.Preserve(preserve.function, preserve.state),
                    **options,
                )(called)

            operator = ("batches" if is_batch else "function") + " with a hook" * (preserve is not None)
            return Step(stage, declare, "number", operator, COLUMNS["number"], exact_changes=True)

        return replace(make(produce, 1), other=make(_shifted(produce), 2))

    def general_join(self, name: str) -> Step | None:
        feeders = self._two_numbers(lambda step: step.ordered)
        if not feeders:
            return None
        names = [step.name for step in feeders]
        options = {"descending": self.by_chance(0.5), "skip_unchanged": self.by_chance(0.4)}
        stage = Stage(name, names, pair_up, KEY, NUMBER, join=True, **options)

        def declare(p: pds.Pipeline) -> object:
            return p.join(*names, key=INT, value=INT, name=name, **options)(pair_up)

        return Step(stage, declare, "number", "join by a function", COLUMNS["number"], exact_changes=True)


def _aggregates(column: str, what: str, *, is_ordered: bool) -> list[Any]:
    names = ["count", "count_distinct", "min", "max"]
    listed: list[Any] = []
    if what in ("int", "float"):
        names += ["sum", "mean", "variance", "stddev", "var_pop", "stddev_pop"]
    if what == "int":
        names.append("median")
        fractions = (0.0, 0.25, 0.5, 0.75, 1.0)
        listed += [(column, name, at) for name in ("percentile_cont", "percentile_disc") for at in fractions]
    if what == "text":
        listed += [(column, "percentile_disc", at) for at in (0.25, 1.0)]
    if what == "bool":
        names = ["count", "min", "max", "bool_and", "bool_or", "count_if"]
    if is_ordered:
        listed += [(column, "list")] + [(column, "string_agg", ", ")] * (what == "text")
    return listed + [(column, name) for name in names] * 2


def spread(_key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        name, number = column_of(value, "k"), column_of(value, "n")
        yield name, number
        if number is not None and number % 3 == 0:
            yield name, number + 1


def numbers_by_text(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield column_of(value, "s"), column_of(value, "n")
    yield str(key), 0


def total(_key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    numbers = list(values)
    yield len(numbers) % 2, sum(number or 0 for number in numbers)
    if len(numbers) > 2:
        yield 7, numbers[-1]


def first_only(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Leaves values unread."""
    yield len(str(key)), next(values)


def pair_up(_key: Any, lefts: Iterator[Any], rights: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    listed = list(rights)
    for left in lefts:
        for right in listed or [-1]:
            yield (left or 0) % 3, right


FUNCTIONS: dict[str, list[tuple[plain.Produce, pa.DataType]]] = {
    "wide": [(spread, TEXT), (numbers_by_text, TEXT)],
    "pair": [(numbers_by_text, TEXT)],
    "number": [(total, INT), (first_only, INT)],
}


def _shifted(function: plain.Produce) -> plain.Produce:
    """Another version of a function."""

    def produce(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        for target, value in function(key, values):
            yield target, None if value is None else value + 100

    return produce


def keep_number(new: int | None, earlier: int | None, state: dict[str, Any]) -> int:
    """Depends on what it gets as the earlier value, and on how often it is called."""
    state["next"] += 1
    return state["next"] * 100 + (new or 0) % 50 if earlier is None else earlier + (new or 0) % 2


def by_batch(function: plain.Produce, key: pa.DataType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function of batches that calls another one for each key."""

    def produce(batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, values = batch["key"].to_pylist(), batch["value"].to_pylist()
        begins = [at for at in range(len(keys)) if at == 0 or keys[at] != keys[at - 1]]
        rows = [
            (begin, target, value)
            for begin, end in zip(begins, [*begins[1:], len(keys)], strict=True)
            for target, value in function(keys[begin], iter(values[begin:end]))
        ]
        columns = [pa.array([row[at] for row in rows], of) for at, of in enumerate((INT, key, INT))]
        return pa.RecordBatch.from_arrays(columns, ["source_row", "key", "value"])

    return produce


def make_graph(rng: Random, table: pds.Table) -> list[Step]:
    """Two sources that are pushed, one that a table feeds, and stages behind them."""
    maker = Maker(rng)
    maker.sources(table)
    makers = [maker.select] * 4 + [maker.aggregate] * 3 + [maker.producer] * 3 + [maker.join_rows] * 3
    makers += [maker.first, maker.distinct, maker.flatten, maker.general_join]
    for number in range(rng.randrange(5, 13)):
        maker.add(rng.choice(makers)(f"x{number}"))
    return list(maker.steps.values())

"""Random graphs of all kinds of stages: each stage as pipelines declare it, and as the model has it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import pds
from producers import plain_operators as plain
from producers.model import Order, Preserve, Source, Stage
from producers.plain_operators import column_of
from producers.random_functions import (
    DATE,
    FLOAT,
    FUNCTIONS,
    INT,
    NUMBERS,
    PAIR,
    TEXT,
    Faults,
    by_batch,
    keep_number,
    mix,
    shifted,
)

BOOL, DECIMAL, BYTES = pa.bool_(), pa.decimal128(9, 2), pa.binary()
WIDE = pa.struct(
    [
        *(("k", TEXT), ("n", INT), ("f", FLOAT), ("s", TEXT), ("b", BOOL), ("l", NUMBERS)),
        *(("t", DATE), ("d", DECIMAL), ("x", BYTES)),
    ]
)
KEY_PAIR = pa.struct([("x", INT), ("y", TEXT)])
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
    "wide": {"n": "int", "f": "float", "s": "text", "b": "bool", "t": "date", "d": "decimal", "x": "bytes"},
    "flat": {"n": "int", "f": "float", "s": "text", "b": "bool", "l": "int", "t": "date"},
    "pair": {"n": "int", "s": "text"},
    "number": {"value": "int"},
    "text": {"value": "text"},
    "real": {"value": "float"},
    "list": {},
}
KEY_TYPES = {"float": FLOAT, "bool": BOOL, "date": DATE, "decimal": DECIMAL, "bytes": BYTES, "text": TEXT}


def _number_or(value: Any, default: int) -> int:
    return default if value is None else value


def _rest(value: Any, modulus: int) -> int | None:
    return None if value is None else int(math.fmod(value, modulus))


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
        if what == "float":
            listed.append((quoted, lambda _, v, c=name: column_of(v, c), "real"))
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
    if step.kind == "wide":
        listed.append(('"l"', lambda _, v: column_of(v, "l"), "list"))
    return listed


def _selected_keys(step: Step) -> list[tuple[Any, plain.Expression, pa.DataType]]:
    key = step.node.key.type
    listed: list[tuple[Any, plain.Expression, pa.DataType]] = [(None, lambda k, _: k, key)]
    if key == INT:
        listed.append(("key % 3", lambda k, _: _rest(k, 3), INT))
        listed.append(("cast(key as varchar)", lambda k, _: None if k is None else str(k), TEXT))
    for name, what in step.columns.items():
        quoted = f'"{name}"'
        if what == "int":
            listed.append((f"abs({quoted}) % 4", lambda _, v, c=name: _part(column_of(v, c), 4), INT))
        if what in KEY_TYPES:
            listed.append((quoted, lambda _, v, c=name: column_of(v, c), KEY_TYPES[what]))
    if {"n", "s"} <= step.columns.keys():
        both = """named_struct('n', "n" % 3, 's', "s")"""
        listed.append((both, lambda _, v: {"n": _rest(column_of(v, "n"), 3), "s": column_of(v, "s")}, PAIR))
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
        if what == "float":
            # Not-a-number is the greatest.
            listed.append((f"{quoted} >= 0", lambda _, v, c=name: not _number_or(column_of(v, c), -1) < 0))
    return listed


def _orders(step_kind: str) -> list[tuple[str, Callable[[Any], int | None]]]:
    column = {"number": "value", "wide": "n", "pair": "n", "flat": "l"}.get(step_kind)
    if column is None:
        return []
    quoted = f'"{column}"'
    listed: list[tuple[str, Callable[[Any], int | None]]] = [
        (quoted, lambda value: column_of(value, column)),
        (f"abs({quoted}) % 3", lambda value: _part(column_of(value, column), 3)),
    ]
    if step_kind == "wide":
        listed.append(('"t"', lambda value: _days(column_of(value, "t"))))
    return listed


def _days(date: Any) -> int | None:
    return None if date is None else date.toordinal()


VALUE_TYPES = {"wide": WIDE, "pair": PAIR, "number": INT, "text": TEXT, "real": FLOAT, "list": NUMBERS}


class Maker:
    """Makes the stages of one random graph."""

    def __init__(self, rng: Random, faults: Faults) -> None:
        self.rng = rng
        self.faults = faults
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

    def sources(self, table: pds.Table, key_type: pa.DataType) -> None:
        key = pa.field("key", key_type)
        descending = self.by_chance(0.5)
        for name in ("a", "b"):
            skips = self.by_chance(0.5)
            source = Source(name, key, pa.field("value", WIDE), descending=descending, skip_unchanged=skips)

            def declare(p: pds.Pipeline, s: Source = source) -> object:
                options = {"descending": s.descending, "skip_unchanged": s.skip_unchanged}
                return p.source(s.name, key=s.key, value=WIDE, **options)

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
        by = {"wide": ("n", "s", "f", "t", "d"), "pair": ("n", "s")}
        by |= dict.fromkeys(("number", "text", "real"), ("value",))
        feeders = self.feeders(lambda step: step.kind in by and step.ordered)
        if not feeders:
            return None
        kind = feeders[0].kind
        columns = self.rng.sample(by[kind], self.rng.choice([1, 1, min(2, len(by[kind]))]))
        rows, directions = self.rng.randrange(1, 4), [self.by_chance(0.5) for _ in columns]
        names, skips = [step.name for step in feeders], self.by_chance(0.4)
        return self._same_keys(
            name,
            feeders,
            plain.first(columns, rows, directions),
            lambda p: p.first(*names, by=columns, rows=rows, descending=directions, name=name, skip_unchanged=skips),
            kind=kind,
            operator="first by several" if len(columns) > 1 else "first",
            columns=COLUMNS[kind],
            skips=skips,
        )

    def distinct(self, name: str) -> Step | None:
        feeders = self.feeders(lambda step: step.kind in ("number", "text", "real"))
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
        feeders = self.feeders(lambda step: step.kind in ("wide", "list"))
        names, skips = [step.name for step in feeders], self.by_chance(0.4)
        field, kind = ("l", "flat") if feeders[0].kind == "wide" else (None, "number")
        return self._same_keys(
            name,
            feeders,
            plain.flatten(field),
            lambda p: p.flatten(*names, field=field, name=name, skip_unchanged=skips),
            kind=kind,
            operator="flatten" if field else "flatten a value",
            columns=COLUMNS[kind],
            ordered=all(step.ordered for step in feeders),
            skips=skips,
        )

    def _with_same_keys(self, is_fit: Callable[[Step], bool], most: int = 2) -> list[Step]:
        """Two, or up to so many, with the same keys."""
        fit = [step for step in self.steps.values() if is_fit(step)]
        keys = {step.name: self.fields(step)[::2] for step in fit}
        one = self.rng.choice(fit)
        others = [step for step in fit if step is not one and keys[step.name] == keys[one.name]]
        if not others:
            return []
        return [one, *self.rng.sample(others, min(self.rng.randrange(1, most), len(others)))]

    def _columns(self, step: Step, suffix: str, taken: dict[str, str]) -> dict[str, str]:
        """The columns that the value of a side has in the rows of a join, by their names there."""
        value: Any = self.fields(step)[1]
        if not pa.types.is_struct(value):
            return {step.name: "value"}
        return {field.name + suffix * (field.name in taken): field.name for field in value}

    def join_rows(self, name: str) -> Step | None:
        feeders = self._with_same_keys(lambda step: step.kind != "joined")
        if not feeders:
            return None
        how, skips = self.rng.choice(["inner", "left", "right", "full", "semi", "anti"]), self.by_chance(0.4)
        left, right = feeders
        names = self._columns(left, "", {})
        sides = names, self._columns(right, "_right", names)
        is_struct = how not in ("semi", "anti")
        if is_struct and (names.keys() & sides[1].keys() or len({*names, *sides[1]}) < len(names) + len(sides[1])):
            return None
        columns = {
            joined: step.columns[column]
            for step, side in zip(feeders, sides, strict=True)
            for joined, column in side.items()
            if column in step.columns
        }
        return self._same_keys(
            name,
            feeders,
            plain.join_rows(how, *sides),
            lambda p: p.join_rows(left.name, right.name, how=how, name=name, skip_unchanged=skips),  # type: ignore[arg-type]
            kind="joined" if is_struct else left.kind,
            operator=f"{how} join",
            columns=columns if is_struct else left.columns,
            ordered=False,
            join=True,
            skips=skips,
        )

    def producer(self, name: str) -> Step | None:
        feeders = self.feeders(lambda step: step.kind in FUNCTIONS and step.ordered, most=3)
        if not feeders:
            return None
        produce, key, kind = self.rng.choice(FUNCTIONS[feeders[0].kind])
        names = [step.name for step in feeders]
        preserve = None
        if kind == "number" and all(step.exact_changes for step in feeders) and self.by_chance(0.5):
            preserve = Preserve(keep_number, {"next": 1})
        orders = self.rng.choice(_orders(kind)) if _orders(kind) and self.by_chance(0.4) else None
        options: dict[str, Any] = {"descending": self.by_chance(0.5), "skip_unchanged": self.by_chance(0.4)}
        direction, is_batch, value = self.by_chance(0.5), self.by_chance(0.5), VALUE_TYPES[kind]

        def make(function: plain.Produce, version: int) -> Step:
            order = None if orders is None else Order(orders[0], orders[1], descending=direction)
            fields = pa.field("key", key), pa.field("value", value)
            stage = Stage(name, names, function, *fields, preserve=preserve, order=order, **options)
            faulty = self.faults.within(function)
            called = by_batch(faulty, key, value) if is_batch else faulty

            def declare(p: pds.Pipeline) -> object:
                return p.producer(
                    *names,
                    key=key,
                    value=value,
                    name=name,
                    batch=is_batch,
                    version=version,
                    order_by=order and order.by,
                    order_descending=order is not None and direction,
                    preserve=preserve and pds.Preserve(preserve.function, preserve.state),
                    **options,
                )(called)

            operator = ("batches" if is_batch else "function") + " of a union" * (len(names) > 1)
            # A row that a hook leaves as it was may get another place by the value that it had for the hook.
            moves = preserve is not None and order is not None and options["skip_unchanged"]
            return Step(
                stage, declare, kind, operator + " with a hook" * (preserve is not None), COLUMNS[kind],
                exact_changes=not moves,
            )  # fmt: skip

        step = make(produce, 1)
        return replace(step, other=make(shifted(produce), 2)) if kind == "number" else step

    def general_join(self, name: str) -> Step | None:
        feeders = self._with_same_keys(lambda step: step.ordered, most=4)
        if not feeders:
            return None
        names = [step.name for step in feeders]
        options = {"descending": self.by_chance(0.5), "skip_unchanged": self.by_chance(0.4)}
        stage = Stage(name, names, mix, KEY, NUMBER, join=True, **options)
        faulty = self.faults.within(mix)

        def declare(p: pds.Pipeline) -> object:
            return p.join(*names, key=INT, value=INT, name=name, **options)(faulty)

        return Step(stage, declare, "number", "join by a function", COLUMNS["number"], exact_changes=True)


def _aggregates(column: str, what: str, *, is_ordered: bool) -> list[Any]:
    names = ["count", "count_distinct", "min", "max"]
    listed: list[Any] = []
    if what in ("int", "float", "decimal"):
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


def make_graph(rng: Random, table: pds.Table, key_type: pa.DataType, faults: Faults) -> list[Step]:
    """Two sources that are pushed, one that a table feeds, and stages behind them."""
    maker = Maker(rng, faults)
    maker.sources(table, key_type)
    makers = [maker.select] * 4 + [maker.aggregate] * 3 + [maker.producer] * 3 + [maker.join_rows] * 3
    makers += [maker.first, maker.distinct, maker.flatten, maker.general_join]
    for number in range(rng.randrange(5, 13)):
        maker.add(rng.choice(makers)(f"x{number}"))
    return list(maker.steps.values())

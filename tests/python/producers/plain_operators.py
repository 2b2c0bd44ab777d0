"""What operators of pipelines make of the rows of a key, in plain Python: the functions of stages of the model."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from producers.model import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Produce = Callable[..., Iterator[tuple[Any, Any]]]
    # Of a key and a value.
    Expression = Callable[[Any, Any], Any]


def column_of(value: Any, name: str) -> Any:
    """The value itself, or a field of it; of a null the fields are null."""
    if name == "value":
        return value
    return None if value is None else value[name]


def sort_key(value: Any) -> tuple[Any, ...]:
    """A value that sorts as one that is not null does in SQL: not-a-number is the greatest float."""
    if isinstance(value, float):
        return math.isnan(value), 0.0 if math.isnan(value) else value
    return (value.encode() if isinstance(value, str) else value,)


def select(key: Expression, value: Expression, where: Expression) -> Produce:
    """The rows for which the condition is true."""

    def produce(source: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        for each in values:
            if where(source, each):
                yield key(source, each), value(source, each)

    return produce


def aggregate(aggregates: dict[str, Any]) -> Produce:
    """A row with the result of each, as `Pipeline.aggregate` has them."""

    def produce(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        rows = list(values)
        yield key, {name: _aggregate(rows, each) for name, each in aggregates.items()}

    return produce


def _aggregate(rows: list[Any], spec: Any) -> Any:
    if spec == "count":
        return len(rows)
    column, function, *options = spec
    every = [column_of(row, column) for row in rows]
    values = [value for value in every if value is not None]
    if function in COUNTS:
        return COUNTS[function](values)
    if function == "list":
        return every
    return RESULTS[function](values, *options) if values else None


def _sum(values: list[Any]) -> Any:
    if not isinstance(values[0], float):
        return sum(values)
    strange = [value for value in values if not math.isfinite(value)]
    return sum(strange) if strange else float(sum(map(Fraction, values)))


def _mean(values: list[Any]) -> float:
    return float(_sum(values) / len(values))


def _spread(values: list[Any], left_out: int) -> float | None:
    degrees = len(values) - left_out
    if degrees == 0:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    exactly = [Fraction(value) for value in values]
    mean = sum(exactly) / len(exactly)
    return float(sum((value - mean) ** 2 for value in exactly) / degrees)


def _root(variance: float | None) -> float | None:
    return None if variance is None else math.sqrt(variance)


def _interpolated(values: list[Any], fraction: float = 0.5) -> float:
    listed = sorted(map(float, values))
    place = fraction * (len(listed) - 1)
    low = math.floor(place)
    high = min(low + 1, len(listed) - 1)
    return listed[low] + (listed[high] - listed[low]) * (place - low)


def _at_fraction(values: list[Any], fraction: float) -> Any:
    listed = sorted(values, key=sort_key)
    return listed[max(math.ceil(fraction * len(listed)), 1) - 1]


COUNTS: dict[str, Callable[[list[Any]], int]] = {
    "count": len,
    "count_distinct": lambda values: len(set(map(exact, values))),
    "count_if": lambda values: sum(value is True for value in values),
}
RESULTS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "min": lambda values: min(values, key=sort_key),
    "max": lambda values: max(values, key=sort_key),
    "variance": lambda values: _spread(values, 1),
    "var_pop": lambda values: _spread(values, 0),
    "stddev": lambda values: _root(_spread(values, 1)),
    "stddev_pop": lambda values: _root(_spread(values, 0)),
    "bool_and": all,
    "bool_or": any,
    "median": _interpolated,
    "percentile_cont": _interpolated,
    "percentile_disc": _at_fraction,
    "string_agg": lambda values, delimiter: delimiter.join(values),
}


def first(column: str, rows: int, *, descending: bool) -> Produce:
    """The first rows by a column: nulls last in both directions, those alike in the order in which they come."""

    def produce(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        listed = [(column_of(value, column), value) for value in values]
        present = [pair for pair in listed if pair[0] is not None]
        # A reversed sort leaves rows that are alike in their order, too.
        present.sort(key=lambda pair: sort_key(pair[0]), reverse=descending)
        nulls = [pair for pair in listed if pair[0] is None]
        for _, value in [*present, *nulls][:rows]:
            yield key, value

    return produce


def distinct(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Each value once, in ascending order, null last."""
    listed = set(values)
    for value in sorted(listed - {None}, key=sort_key):
        yield key, value
    if None in listed:
        yield key, None


def flatten(field: str) -> Produce:
    """A row for each element of a list, which takes the place of the list."""

    def produce(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        for value in values:
            for element in column_of(value, field) or ():
                yield key, {**value, field: element}

    return produce


def join_rows(how: str, left_name: str, right_name: str) -> Produce:
    """The pairs of rows of two sides, whose values are one field each; a null key equals none."""

    def produce(key: Any, lefts: Iterator[Any], rights: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        left, right = list(lefts), list(rights)
        has_pairs = key is not None and bool(left) and bool(right)
        if how in ("semi", "anti"):
            yield from ((key, value) for value in left if has_pairs == (how == "semi"))
            return
        if has_pairs:
            yield from ((key, {left_name: a, right_name: b}) for a in left for b in right)
            return
        if how in ("left", "full"):
            yield from ((key, {left_name: a, right_name: None}) for a in left)
        if how in ("right", "full"):
            yield from ((key, {left_name: None, right_name: b}) for b in right)

    return produce

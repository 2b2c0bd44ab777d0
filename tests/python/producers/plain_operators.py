"""What operators of pipelines make of the rows of a key, in plain Python: the functions of stages of the model."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from producers.model import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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


def _one_zero(value: Any) -> Any:
    """Zeros are alike, and results are 0.0."""
    return value + 0.0 if isinstance(value, float) else value


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
    "count_distinct": lambda values: len(set(map(exact, map(_one_zero, values)))),
    "count_if": lambda values: sum(value is True for value in values),
}
RESULTS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "min": lambda values: _one_zero(min(values, key=sort_key)),
    "max": lambda values: _one_zero(max(values, key=sort_key)),
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


def first(columns: Sequence[str], rows: int, descending: Sequence[bool]) -> Produce:
    """The first rows by some columns: nulls last in both directions, those alike in the order in which they come."""

    def produce(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        listed = list(values)
        # A sort leaves rows that are alike in their order, also a reversed one: that by the first column is the last.
        for column, direction in reversed(list(zip(columns, descending, strict=True))):
            pairs = [(column_of(value, column), value) for value in listed]
            present = [pair for pair in pairs if pair[0] is not None]
            present.sort(key=lambda pair: sort_key(pair[0]), reverse=direction)
            listed = [value for _, value in (*present, *(pair for pair in pairs if pair[0] is None))]
        for value in listed[:rows]:
            yield key, value

    return produce


def distinct(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Each value once, in ascending order, null last."""
    listed = {exact(value): value for value in map(_one_zero, values)}
    has_null = listed.pop(exact(None), 0) is None
    for value in sorted(listed.values(), key=sort_key):
        yield key, value
    if has_null:
        yield key, None


def flatten(field: str | None) -> Produce:
    """A row for each element of a list, which takes the place of the list."""

    def produce(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        for value in values:
            for element in column_of(value, field or "value") or ():
                yield key, {**value, field: element} if field else element

    return produce


def _equals_none(key: Any) -> bool:
    return any(map(_equals_none, key)) if isinstance(key, tuple) else key is None


def join_rows(how: str, left_columns: dict[str, str], right_columns: dict[str, str]) -> Produce:
    """The pairs of rows of two sides, whose columns get other names; a key with a null in it equals none."""

    def pair(left: Any, right: Any) -> dict[str, Any]:
        columns = {name: column_of(left, column) for name, column in left_columns.items()}
        return columns | {name: column_of(right, column) for name, column in right_columns.items()}

    def produce(key: Any, lefts: Iterator[Any], rights: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        left, right = list(lefts), list(rights)
        has_pairs = bool(left) and bool(right) and not _equals_none(key)
        if how in ("semi", "anti"):
            yield from ((key, value) for value in left if has_pairs == (how == "semi"))
            return
        if has_pairs:
            yield from ((key, pair(a, b)) for a in left for b in right)
            return
        if how in ("left", "full"):
            yield from ((key, pair(a, None)) for a in left)
        if how in ("right", "full"):
            yield from ((key, pair(None, b)) for b in right)

    return produce

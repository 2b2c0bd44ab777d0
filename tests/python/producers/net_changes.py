"""Net changes in plain Python: the rows of a stage at two versions, compared key by key; and graphs that have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pds
from producers.model import exact, order_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ADD, UPDATE, DELETE = range(3)
PAIR = pa.struct([("x", pa.int64()), ("y", pa.string())])
STAGES = ("moved", "by_pair", "ordered", "sums", "joined")

Change = tuple[int, Any, Any]


def _group(rows: pa.Table | None, *, descending: bool) -> dict[Any, tuple[Any, list[Any]]]:
    """The values of each key, by a value that sorts as the key does."""
    groups: dict[Any, tuple[Any, list[Any]]] = {}
    if rows is None:
        return groups
    data_type = rows.schema.field(0).type
    for key, value in zip(rows.column(0).to_pylist(), rows.column("value").to_pylist(), strict=True):
        groups.setdefault(order_key(key, data_type, descending), (key, []))[1].append(value)
    return groups


def compare(before: pa.Table | None, after: pa.Table, *, descending: bool = False) -> list[Change]:
    """The changes between two contents; None is one before the first version."""
    old, new = _group(before, descending=descending), _group(after, descending=descending)
    changes: list[Change] = []
    for place in sorted({*old, *new}):
        if place not in new:
            changes.append((DELETE, old[place][0], None))
            continue
        key, values = new[place]
        if place in old and list(map(exact, old[place][1])) == list(map(exact, values)):
            continue
        kinds = [UPDATE if place in old else ADD] + [UPDATE] * (len(values) - 1)
        changes += [(kind, key, value) for kind, value in zip(kinds, values, strict=True)]
    return changes


def changes_of(table: pa.Table) -> list[Change]:
    """The rows of changes."""
    assert table.column_names == ["type", "key", "value"]
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def check(pipeline: pds.Pipeline, stage: str, since: int, until: int, *, descending: bool = False) -> list[Change]:
    """The net changes of a stage are those of its contents. Return them."""
    before = pipeline.as_of(since)[stage].read() if since else None
    expected = compare(before, pipeline.as_of(until)[stage].read(), descending=descending)
    actual = changes_of(pipeline[stage].changes(since=since, until=until))
    assert list(map(exact, actual)) == list(map(exact, expected)), f"{stage} from {since} to {until}"
    return actual


def move(_: Any, values: Iterator[int]) -> Iterator[tuple[int | None, int]]:
    """Emit each value under its rest, and some twice."""
    for value in values:
        yield value % 3 or None, value
        if value % 2:
            yield value % 3 or None, -value


def pair_up(key: Any, values: Iterator[int]) -> Iterator[tuple[Any, int]]:
    """Emit each value under a struct."""
    for value in values:
        yield {"x": key, "y": "odd" if value % 2 else None}, value


def declare(store: pds.Store, path: str = "p", stages: Sequence[str] = STAGES) -> pds.Pipeline:
    """A pipeline with stages of all kinds over two sources, or with some of them."""
    pipeline = pds.Pipeline(store, path)
    first = pipeline.source("s", key=pa.int64(), value=pa.int64())
    second = pipeline.source("t", key=pa.int64(), value=pa.string())
    integers: Any = {"key": pa.int64(), "value": pa.int64()}
    if "moved" in stages:
        pipeline.producer(first, **integers, name="moved", descending=True)(move)
    if "by_pair" in stages:
        pipeline.producer(first, key=PAIR, value=pa.int64(), name="by_pair")(pair_up)
    if "ordered" in stages or "sums" in stages:
        pipeline.producer(first, **integers, name="ordered", order_by="value", order_descending=True)(move)
    if "sums" in stages:
        aggregates: Any = {"n": "count", "mean": ("value", "mean"), "low": ("value", "min")}
        pipeline.aggregate("ordered", aggregates=aggregates, name="sums")
    if "joined" in stages:
        pipeline.join_rows(first, second, how="full", name="joined")
    return pipeline

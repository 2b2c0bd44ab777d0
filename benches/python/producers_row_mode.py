"""How many rows stages produce in a second whose functions are called key by key, beside the functions' own time.

The own time is that of the same function over the same rows in plain Python, without the collector, its pairs dropped.
It is taken off the time of the build, which reads the source from Arrow, stores it, calls the function, sorts and
stores its rows; and off the build less what a pipeline takes that has only the source.
"""

from __future__ import annotations

import collections
import gc
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from producers_costs import Table, measured, scratch
from producers_sums import ORDER, orders

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

INT, TEXT = pa.int64(), pa.string()
KEYS = 1_000
WORDS = 4


class Case(NamedTuple):
    """A function, and the rows that it is called for."""

    title: str
    function: Callable[[Any, Iterator[Any]], Iterable[tuple[Any, Any]]]
    key: pa.DataType
    rows: Callable[[int], pa.Table]
    """Those from which it produces so many."""
    value: pa.DataType = INT


def _remainders(_: int, values: Iterable[int]) -> Iterable[tuple[int, int]]:
    for value in values:
        yield value % KEYS, value


def _amounts(_: int, values: Iterable[dict[str, int]]) -> Iterable[tuple[int, int]]:
    for order in values:
        yield order["customer"], order["amount"]


def _words(key: int, values: Iterable[str]) -> Iterable[tuple[str, int]]:
    for text in values:
        for word in text.split():
            yield word, key


def _numbers(rows: int, values_a_key: int) -> pa.Table:
    values = np.random.default_rng(1).integers(0, 10**9, rows)
    return pa.table({"key": np.arange(rows) // values_a_key, "value": values})


def _phrases(rows: int) -> pa.Table:
    random = np.random.default_rng(1)
    picks = random.integers(0, 10_000, (rows // WORDS, WORDS)).tolist()
    return pa.table({"key": np.arange(len(picks)), "value": [" ".join(f"w{n:x}" for n in row) for row in picks]})


CASES = (
    Case("ten numbers a key, a row each", _remainders, INT, lambda rows: _numbers(rows, 10)),
    Case("one number a key, a row each", _remainders, INT, lambda rows: _numbers(rows, 1)),
    Case("one struct a key, a row each", _amounts, INT, lambda rows: orders(np.arange(rows), 1, rows), ORDER),
    Case("one phrase a key, a row for each of four words", _words, TEXT, _phrases, TEXT),
)


def compare(rows: int, rounds: int) -> None:
    """Prints the rows a second."""
    table = Table(
        "a function of", "rows produced", "of the build in the function", "rows a second beside it",
        "the same without storing the source", texts=1,
    )  # fmt: skip
    for case in CASES:
        data = case.rows(rows)
        groups = _groups(data)
        walls: dict[str, list[float]] = {"own": [], "build": [], "source": []}
        for number in range(rounds + 1):
            with scratch() as folder:
                figures = {
                    "own": _own_seconds(case, groups),
                    "build": _build_seconds(case, data, folder / "build", has_stage=True),
                    "source": _build_seconds(case, data, folder / "source", has_stage=False),
                }
            if number:
                for name, wall in figures.items():
                    walls[name].append(wall)
        own, build, source = (statistics.median(walls[name]) for name in ("own", "build", "source"))
        rates = [rows / (build - own), rows / (build - own - source)]
        table.add(case.title, f"{rows:,}", f"{own / build:.0%}", *(f"{rate:,.0f}" for rate in rates))


def _groups(data: pa.Table) -> list[tuple[Any, list[Any]]]:
    groups: list[tuple[Any, list[Any]]] = []
    for key, value in zip(data["key"].to_pylist(), data["value"].to_pylist(), strict=True):
        if not groups or groups[-1][0] != key:
            groups.append((key, []))
        groups[-1][1].append(value)
    return groups


def _own_seconds(case: Case, groups: list[tuple[Any, list[Any]]]) -> float:
    def call() -> None:
        for key, values in groups:
            collections.deque(case.function(key, iter(values)), maxlen=0)

    gc.collect()
    gc.disable()
    try:
        return measured(call).wall
    finally:
        gc.enable()


def _build_seconds(case: Case, data: pa.Table, folder: Path, *, has_stage: bool) -> float:
    store = pds.Store(folder.as_uri())
    pipeline = pds.Pipeline(store, "bench")
    source = pipeline.source("rows", key=INT, value=data.schema.field("value").type)
    if has_stage:
        pipeline.producer(source, key=case.key, value=INT, name="stage")(case.function)
    costs = measured(lambda: pipeline.update(rows=pds.Changes(data)), store)
    if has_stage and pipeline["stage"].scan().count() == 0:
        raise SystemExit(f"{case.title}: nothing was produced")
    return costs.wall

"""The peak memory of builds and updates, each in a process of its own, above the level after opening."""

from __future__ import annotations

from typing import NamedTuple

from producers_costs import KIB, Table, run_child, scratch
from producers_registry import GRAPHS

LIMIT_MIB = 256
ALLOWED_MIB = LIMIT_MIB + 200


class Case(NamedTuple):
    """A pipeline, and updates by what changes and the number of keys."""

    graph: str
    updates: list[tuple[str, int]]


CASES = (
    Case("sums", [("orders", 1), ("orders", 10_000)]),
    Case("join", [("orders", 1), ("orders", 10_000), ("customers", 10_000)]),
    Case("one key", [("orders", 1), ("orders", 10_000)]),
    Case("one key, no order", [("orders", 1), ("orders", 10_000)]),
    Case("one key, join", [("orders", 1), ("names", 1)]),
)


def compare(sizes: list[int]) -> None:
    """Prints the peaks beside what is allowed."""
    title = f"MiB above the level before, at most {ALLOWED_MIB}"
    table = Table("pipeline", "rows", "operation", title, "reached", texts=1)
    for case in CASES:
        for rows in sizes:
            _measure(case, rows, table)


def _measure(case: Case, rows: int, table: Table) -> None:
    title = f"{case.graph}: {GRAPHS[case.graph].title}"
    with scratch() as folder:
        order = {"graph": case.graph, "rows": rows, "url": (folder / "lake").as_uri(), "opened": True}
        operations = {"build": order | {"op": "build"}}
        for changed, keys in case.updates:
            update = {"op": "update", "changed": changed, "keys": keys, "seed": 1}
            operations[f"update of {keys:,} {changed}"] = order | update
        for what, arguments in operations.items():
            peak = run_child(**arguments).peak_kib / KIB
            table.add(title, f"{rows:,}", what, f"{peak:,.0f}", "yes" if peak <= ALLOWED_MIB else "**no**")

"""What operations on tables cost in requests and bytes at the sizes that hurt; nothing is timed.

    python benches/python/table_counts.py

Each line is printed with what is at most wanted of it. The tables are in memory, and what reaches the store is counted.
The exit code is 1 if a line is above its limit.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

KIB = 1 << 10
COMMIT_KIB = 100
LINES: list[tuple[str, str, str, bool]] = []


def add(what: str, measured: float, limit: float, unit: str) -> None:
    """A line of the table."""
    LINES.append((what, f"{measured:,.0f} {unit}", f"{limit:,.0f} {unit}", measured <= limit))


def written(store: pds.Store, work: Callable[[], object]) -> float:
    """The KiB that are written."""
    store.reset_metrics()
    work()
    return store.metrics()["bytes_written"] / KIB


def read_requests(store: pds.Store, work: Callable[[], object]) -> int:
    """The requests that are sent."""
    store.reset_metrics()
    work()
    return int(store.metrics()["requests"])


def count_keyed_appends(appends: int) -> None:
    """Each append has an idempotency key, which the table remembers."""
    store = pds.Store("memory://")
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64())]), key="id")
    sizes = [
        written(store, lambda n=n: table.append(pa.table({"id": [n]}), idempotency_key=f"append {n}"))
        for n in range(appends)
    ]
    add(
        f"an append of one row with a key, the largest of {appends:,}, its file included", max(sizes), COMMIT_KIB, "KiB"
    )
    add(f"the same, mean of the last 1,000 of {appends:,}", sum(sizes[-1000:]) / 1000, COMMIT_KIB, "KiB")


def count_wide_commits(columns: int) -> None:
    """Deletes of a wide table write no data file."""
    store = pds.Store("memory://")
    names = [f"a_rather_long_name_of_column_{n}" for n in range(columns)]
    table = pds.Table.create(store, "t", pa.schema([(name, pa.int64()) for name in names]), key=names[0])
    for n in range(120):
        table.append(pa.table({name: [2 * n, 2 * n + 1] for name in names}))
    sizes = [written(store, lambda n=n: table.delete(f"{names[0]} = {2 * n}")) for n in range(100)]
    add(
        f"a delete of one row of a table of {columns} columns and 120 files, the largest of 100",
        max(sizes),
        COMMIT_KIB,
        "KiB",
    )


def count_many_files(files: int) -> None:
    """A table of files of one row each."""
    store = pds.Store("memory://")
    options = pds.WriteOptions(max_rows_per_file=1)
    pds.Table.create(store, "t", pa.schema([("id", pa.int64())]), key="id", options=options)
    pds.Table(store, "t", options=options).append(pa.table({"id": range(files)}))
    opened = read_requests(store, lambda: pds.Table(store, "t").schema)
    counted = read_requests(store, lambda: pds.Table(store, "t").scan().count())
    add(f"open and count the rows of {files:,} files", counted, opened, "requests")
    table = pds.Table(store, "t")
    size = written(store, lambda: table.delete(f"id BETWEEN 5 AND {files - 5}"))
    add(f"a delete of a range of keys that is in {files - 9:,} of {files:,} files", size, COMMIT_KIB, "KiB")


def count_lists(files: int) -> None:
    """Of sorted files only those are read that have a value of the list."""
    store = pds.Store("memory://")
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64())]), sort_by="id")
    for n in range(files):
        table.append(pa.table({"id": range(n * 100, n * 100 + 100)}))
    for values in (21, 10_000):
        # All are in the first file, or in none.
        ids = [*range(10), *range(10**6, 10**6 + values - 10)]
        plan = table.scan(where=f"id IN ({', '.join(map(str, ids))})").explain()
        add(f"files of {files} that are read for a list of {values:,} keys, which one has", plan.files_read, 1, "files")


def main() -> int:
    """Count, and print the table."""
    count_keyed_appends(10_000)
    count_wide_commits(500)
    count_many_files(100_000)
    count_lists(50)
    print("| what | counted | at most |\n| --- | ---: | ---: |")
    for what, measured, limit, is_met in LINES:
        print(f"| {what} | {measured}{'' if is_met else ' (**above**)'} | {limit} |")
    return 0 if all(is_met for *_, is_met in LINES) else 1


if __name__ == "__main__":
    sys.exit(main())

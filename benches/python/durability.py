"""What it costs that local files are on the disk before a write is reported: ``make bench-durability``.

Each case with ``durability="full"`` (the default) and ``durability="none"``, in turn, round after round, in one
process and on one disk, which should be the one that counts: a folder in memory has nothing to wait for. A ratio is
made within a round; the median, the lowest and the highest are printed as rows of a table.

    make bench-durability
    make bench-durability ARGS='--rounds 3 --folder /mnt/disk'
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

# Of each small operation, so many in a row.
TIMES = 20


def _rows(count: int) -> pa.Table:
    return pa.table({"id": np.arange(count), "value": np.random.default_rng(1).random(count)})


def _create(store: pds.Store) -> None:
    for number in range(TIMES):
        pds.ParquetDatasetStore(store).write_dataset(_rows(100), f"new/{number}")


def _overwrite(store: pds.Store) -> None:
    for _ in range(TIMES):
        pds.ParquetDatasetStore(store).write_dataset(_rows(100), "old", overwrite=True)


def _parts(store: pds.Store) -> None:
    pds.ParquetDatasetStore(store, max_rows_per_file=10_000).write_dataset(_rows(1_000_000), "parts")


def _large(store: pds.Store) -> None:
    pds.ParquetDatasetStore(store, compression="none").write_dataset(_rows(20_000_000), "large")


def _append(store: pds.Store) -> None:
    table = pds.Table.create(store, "table", _rows(1).schema)
    for _ in range(TIMES):
        table.append(_rows(100))


CASES: dict[str, Callable[[pds.Store], None]] = {
    f"create a dataset of 100 rows, {TIMES} times": _create,
    f"overwrite a dataset of 100 rows, {TIMES} times": _overwrite,
    f"append 100 rows to a table, {TIMES} times": _append,
    "write a dataset of 100 parts, 16 MB": _parts,
    "write a dataset of one part, 320 MB": _large,
}


def _seconds(work: Callable[[pds.Store], None], durability: str, folder: Path) -> float:
    place = Path(tempfile.mkdtemp(prefix="pds-durability-", dir=folder))
    try:
        store = pds.Store(place.as_uri(), durability=durability)
        pds.ParquetDatasetStore(store).write_dataset(_rows(100), "old")
        start = time.perf_counter()
        work(store)
        return time.perf_counter() - start
    finally:
        shutil.rmtree(place)


def _ratio(work: Callable[[pds.Store], None], folder: Path, *, full_first: bool) -> float:
    """The time of a round synced over that unsynced."""
    order = ("full", "none") if full_first else ("none", "full")
    taken = {durability: _seconds(work, durability, folder) for durability in order}
    return taken["full"] / taken["none"]


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(prog="make bench-durability")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    print("| what | synced, over unsynced |\n| --- | ---: |")
    for name, work in CASES.items():
        # The first round is for warming up.
        rounds = range(options.rounds + 1)
        ratios = [_ratio(work, options.folder, full_first=bool(number % 2)) for number in rounds][1:]
        print(f"| {name} | **{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)


if __name__ == "__main__":
    main()

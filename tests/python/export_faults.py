"""Tables that are exported under faults, and beside writers that change them."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema([("id", pa.int64()), ("noise", pa.float64())])
OPTIONS = pds.WriteOptions(compression="none", row_group_size=1000)


def make_rows(first: int, count: int) -> pa.Table:
    noise = np.random.default_rng(first).random(count)
    return pa.table({"id": np.arange(first, first + count), "noise": noise}, schema=SCHEMA)


def open_table(place: pds.Store) -> pds.Table:
    return pds.Table(place, "t", options=OPTIONS)


def fill(place: pds.Store) -> None:
    """Two files with deleted rows: few, which a log of Delta has in it, and many, in an object of their own."""
    pds.Table.create(place, "t", SCHEMA, key="id", options=OPTIONS)
    open_table(place).append(make_rows(0, 60))
    open_table(place).append(make_rows(1000, 3000))
    open_table(place).delete("id = 30")
    open_table(place).delete("noise < 0.5 AND id >= 1000")


def change_after_export(place: pds.Store) -> None:
    open_table(place).delete("noise < 0.7 AND id >= 1000")
    open_table(place).append(make_rows(5000, 10))


def change_beside_exports(url: str, export: Callable[[pds.Table], object]) -> pds.Table:
    """A writer that appends, deletes, restores and compacts, and vacuums now and then, beside three exporters."""
    fill(pds.Store(url))
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            export(open_table(pds.Store(url)))

    table = open_table(pds.Store(url))
    with ThreadPoolExecutor(3) as pool:
        exporters = [pool.submit(go_on) for _ in range(3)]
        try:
            for number in range(60):
                _change(table, number)
        finally:
            is_over.set()
        for exporter in exporters:
            exporter.result()
    table.refresh()
    export(table)
    return table


def _change(table: pds.Table, number: int) -> None:
    table.refresh()
    if number % 7 == 1:
        table.delete(f"id % 5 = {number % 5}")
    elif number % 7 == 3:
        table.optimize.compact()
    elif number % 11 == 5:
        table.restore(table.version - 1)
    elif number % 20 == 19:
        table.vacuum(dt.timedelta(0))
    else:
        table.append(make_rows(10_000 + 100 * number, 100))

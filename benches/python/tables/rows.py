"""The rows of the comparison, made once and kept in the cache as an Arrow file.

Four columns of TPC-H's lineitem (scale factor 1, twice over if need be), a sorted key ``id`` from 0,
and ``r``, a random number from 0 to 9,999 that everybody's random delete has as its predicate.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import data
import numpy as np
import pyarrow as pa

from tables.cases import SMALL_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from tables.cases import Sizes

VERSION = 1
COLUMNS = ("l_partkey", "l_extendedprice", "l_shipdate", "l_comment")
NAMES = ("id", "r", *COLUMNS)
SCANNED = ("id", "l_extendedprice")
RANDOM_BELOW = 100


def _random(rows: int) -> np.ndarray:
    return np.random.default_rng(4).integers(0, 10_000, rows).astype(np.int32)


def path(rows: int) -> Path:
    """The Arrow file of so many rows, made on the first call."""
    target = data.folder() / f"table-{rows}-v{VERSION}.arrow"
    if target.exists():
        return target
    part = target.with_suffix(f".{os.getpid()}")
    random, sink, done = _random(rows), None, 0
    try:
        while done < rows:
            with pa.OSFile(os.fspath(data.path("lineitem")), "rb") as source:
                file = pa.ipc.open_file(source)
                for number in range(file.num_record_batches):
                    taken = file.get_batch(number).slice(0, rows - done)
                    batch = _batch(taken, done, random)
                    sink = sink or pa.ipc.new_file(os.fspath(part), batch.schema)
                    sink.write(batch)
                    done += batch.num_rows
                    if done == rows:
                        break
    finally:
        if sink:
            sink.close()
    part.rename(target)
    return target


def _batch(taken: pa.RecordBatch, start: int, random: np.ndarray) -> pa.RecordBatch:
    stop = start + taken.num_rows
    columns = {"id": pa.array(np.arange(start, stop)), "r": pa.array(random[start:stop])}
    return pa.record_batch({**columns, **{name: taken[name] for name in COLUMNS}})


def load(total: int, count: int) -> pa.Table:
    """The first rows of a file, in memory of their own (not mapped: pages would count as the writer's)."""
    with pa.OSFile(os.fspath(path(total)), "rb") as source:
        file, batches, done = pa.ipc.open_file(source), [], 0
        for number in range(file.num_record_batches):
            if done >= count:
                break
            batch = file.get_batch(number).slice(0, count - done)
            # Joined with nothing it is copied: in the file decimals lie at odd places, as in nobody's memory.
            batches += pa.Table.from_batches([batch, batch.slice(0, 0)]).combine_chunks().to_batches()
            done += batch.num_rows
        return pa.Table.from_batches(batches, file.schema)


def schema(sizes: Sizes) -> pa.Schema:
    """The columns of the data."""
    return load(sizes.rows, 1).schema


def small(total: int, count: int, start: int = 0) -> list[pa.Table]:
    """Small tables of following rows, each of one batch; they begin anew at the end of the data."""
    places = [(start + number) % (total // SMALL_ROWS) * SMALL_ROWS for number in range(count)]
    everything = load(total, max(places) + SMALL_ROWS)
    return [everything.slice(place, SMALL_ROWS).combine_chunks() for place in places]


def small_path(total: int) -> Path:
    """The Arrow file of one small table, made on the first call."""
    target = path(total).with_suffix(".small.arrow")
    if not target.exists():
        (table,) = small(total, 1)
        part = target.with_suffix(f".{os.getpid()}")
        with pa.OSFile(os.fspath(part), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
        part.rename(target)
    return target


def asked(kind: str, sizes: Sizes) -> tuple[list[str] | None, tuple[int, int] | None]:
    """The columns and the keys of a read; None are all."""
    if kind == "scan-range":
        return list(SCANNED), sizes.scanned
    return None, (sizes.key, sizes.key) if kind == "lookup" else None


def left(total: int, loaded: int, deleted: tuple[int, int] | None) -> np.ndarray:
    """The keys of the loaded table, before or after both deletes: what a scan has to find."""
    keys = np.arange(loaded)
    if deleted is None:
        return keys
    outside = (keys < deleted[0]) | (keys > deleted[1])
    return keys[outside & (_random(total)[:loaded] >= RANDOM_BELOW)]

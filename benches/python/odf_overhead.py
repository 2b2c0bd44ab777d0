"""What a verifiable chain costs: ``make bench-odf``.

Ingest of a table next to a plain write of the same Parquet: the same rows, with the system columns in the
table already, by the same writer into the same local store. Both take turns, round after round, in one
process; a ratio is made within a round, and the median, the lowest and the highest are printed. Ingest
hashes all rows (arrow-digest) and all bytes (SHA3-256), which the plain write does not. Blocks are encoded
and read back, hash included, and a chain of them is verified.

    make bench-odf
    make bench-odf ARGS='--rows 1000000 --rounds 3'
"""

from __future__ import annotations

import argparse
import datetime as dt
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from data import load

import pds
from pds import odf

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = ["l_orderkey", "l_partkey", "l_quantity", "l_extendedprice", "l_shipdate", "l_comment"]
BLOCKS = 2_000


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _plain(rows: pa.Table) -> pa.Table:
    """The rows as a slice has them."""
    count = rows.num_rows
    moment = pa.scalar(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), pa.timestamp("ms", "UTC"))
    system = {
        "offset": pa.array(range(count), pa.int64()),
        "op": pa.repeat(pa.scalar(0, pa.int32()), count),
        "system_time": pa.repeat(moment, count),
        "event_time": pa.repeat(moment, count),
    }
    for position, (name, column) in enumerate(system.items()):
        rows = rows.add_column(position, name, column)
    return rows


def _round(rows: pa.Table, plain: pa.Table, *, plain_first: bool) -> float:
    """Ingest's time over that of a plain write."""
    folder = Path(tempfile.mkdtemp(prefix="pds-odf-"))
    try:
        store = pds.Store(folder.as_uri())
        datasets = pds.ParquetDatasetStore(store)
        chain = odf.Dataset.create(store, "chain")
        if plain_first:
            written = _seconds(lambda: datasets.write_dataset(plain, "plain"))
            return _seconds(lambda: chain.ingest(rows)) / written
        ingested = _seconds(lambda: chain.ingest(rows))
        return ingested / _seconds(lambda: datasets.write_dataset(plain, "plain"))
    finally:
        shutil.rmtree(folder)


def overhead(rows: pa.Table, rounds: int) -> list[float]:
    """Ingest's time over that of a plain write, by round."""
    plain = _plain(rows)
    ratios = [_round(rows, plain, plain_first=bool(number % 2)) for number in range(rounds + 1)]
    # The first round is for warming up.
    return ratios[1:]


def blocks() -> tuple[float, float]:
    """Blocks encoded and read back a second, and blocks of a chain verified a second."""
    store = pds.Store("memory://")
    chain = odf.Dataset.create(store, "chain")
    moment = dt.datetime.now(dt.UTC)
    previous = chain.log()[0]
    made = [previous]

    def encode() -> None:
        nonlocal previous
        for number in range(1, BLOCKS + 1):
            previous = odf.Block(moment, previous.hash, number, odf.SetInfo(f"block {number}", ["a", "b"]))
            made.append(odf.Block.from_bytes(previous.to_bytes()))

    encoded = BLOCKS / _seconds(encode)
    for block in made[1:]:
        store.write(f"chain/blocks/{block.hash}", block.to_bytes())
    store.write("chain/refs/head", previous.hash.encode(), overwrite=True)
    return encoded, (BLOCKS + 1) / _seconds(odf.Dataset(store, "chain").verify)


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(prog="make bench-odf")
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = load("lineitem").slice(0, options.rows).select(COLUMNS)
    ratios = overhead(rows, options.rounds)
    print(
        f"ingest of {rows.num_rows:,} rows, {len(COLUMNS)} columns: {statistics.median(ratios):.2f} times the plain "
        f"write ({min(ratios):.2f} to {max(ratios):.2f}, {options.rounds} rounds)"
    )
    encoded, verified = blocks()
    print(f"blocks: {encoded:,.0f} encoded and read back a second, {verified:,.0f} verified a second")


if __name__ == "__main__":
    main()

"""What an update of a pipeline costs beside computing everything anew: ``make bench-producers``.

A source of rows and two stages over it: the rows by customer, summed, and these sums by country. Updates of 1, 100 and
10,000 keys are compared, in the same process and on the same local files, with building the pipeline anew, and with
what polars and DuckDB take to read the source's rows from Parquet and aggregate them twice. Figures are ratios of
times (the median of the rounds), and bytes and requests at the store.

    make bench-producers
    make bench-producers ARGS='--rows 1000000 --rounds 3'
    make bench-producers ARGS='--rows 1000000 --in-a-row 1000'      updates of 100 keys one after another
    make bench-producers ARGS='--rows 1000000 --one-group'          aggregates of a key that has all rows
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS_A_CUSTOMER = 10
COUNTRIES = 200
UPDATES = (1, 100, 10_000)


def declare(store: pds.Store) -> pds.Pipeline:
    """Orders by id (customer, amount), amounts by customer, sums by country."""
    p = pds.Pipeline(store, "sums")
    order = pa.struct([("customer", pa.int64()), ("amount", pa.int64())])
    orders = p.source("orders", key=pa.int64(), value=order)

    @p.producer(orders, key=pa.int64(), value=pa.int64(), batch=True)
    def amounts(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows: Any = batch.column("value")
        return pa.record_batch(
            {
                "source_row": pa.array(np.arange(batch.num_rows)),
                "key": rows.field("customer"),
                "value": rows.field("amount"),
            }
        )

    @p.producer(amounts, key=pa.int64(), value=pa.int64(), batch=True)
    def by_country(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = pa.table({"row": np.arange(batch.num_rows), "key": batch.column("key"), "value": batch.column("value")})
        sums = rows.group_by("key", use_threads=False).aggregate([("row", "min"), ("value", "sum")])
        countries = pa.array(sums["key"].to_numpy() % COUNTRIES)
        return pa.record_batch(
            {
                "source_row": sums["row_min"].combine_chunks(),
                "key": countries,
                "value": sums["value_sum"].combine_chunks(),
            }
        )

    return p


def orders(first: int, count: int, seed: int, total: int) -> pa.Table:
    """Rows of orders."""
    random = np.random.default_rng(seed)
    value = pa.StructArray.from_arrays(
        [pa.array(random.integers(0, total // ROWS_A_CUSTOMER, count)), pa.array(random.integers(1, 1000, count))],
        ["customer", "amount"],
    )
    return pa.table({"key": np.arange(first, first + count), "value": value})


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def recompute_polars(path: Path) -> pl.DataFrame:
    """Both aggregates, from Parquet."""
    rows = pl.scan_parquet(path).select(pl.col("value").struct.unnest())
    sums = rows.group_by("customer").agg(pl.col("amount").sum())
    return sums.sort("customer").with_columns(pl.col("customer") % COUNTRIES).collect()


def recompute_duckdb(path: Path) -> object:
    """Both aggregates, from Parquet."""
    source = duckdb.read_parquet(str(path))
    sums = source.aggregate("value.customer customer, sum(value.amount) amount", "value.customer").order("customer")
    return (
        sums.project(f"customer % {COUNTRIES} country, amount")
        .aggregate("country, sum(amount)", "country")
        .order("country")
        .arrow()
    )


def measure(rows: int, rounds: int) -> list[dict[str, Any]]:
    """The figures of each number of updated keys."""
    folder = Path(tempfile.mkdtemp(prefix="pds-producers-"))
    try:
        data = orders(0, rows, 1, rows)
        parquet = folder / "orders.parquet"
        pq.write_table(data, parquet)
        store = pds.Store((folder / "lake").as_uri())
        pipeline = declare(store)
        results: list[pds.UpdateResult] = []
        build = seconds(lambda: results.append(pipeline.update(orders=pds.Changes(data))))
        built = written_by(results.pop())
        polars = statistics.median(seconds(lambda: recompute_polars(parquet)) for _ in range(rounds))
        duck = statistics.median(seconds(lambda: recompute_duckdb(parquet)) for _ in range(rounds))
        figures = []
        for keys in UPDATES:
            times, read, written, requests = [], [], [], []
            for number in range(rounds):
                first = (number * 7919 * keys) % max(1, rows - keys)
                changes = orders(first, keys, 100 + number, rows)
                chosen = np.sort(np.random.default_rng(number).choice(rows, keys, replace=False))
                changes = changes.set_column(0, "key", pa.array(chosen))
                at, bytes_before = store.metrics()["requests"], read_bytes()
                times.append(seconds(lambda c=changes: results.append(pipeline.update(orders=pds.Changes(c)))))
                read.append(read_bytes() - bytes_before)
                written.append(written_by(results.pop()))
                requests.append(store.metrics()["requests"] - at)
            took = statistics.median(times)
            figures.append(
                {
                    "rows": rows,
                    "keys": keys,
                    "rebuild": build / took,
                    "polars": polars / took,
                    "duckdb": duck / took,
                    "bytes": (statistics.median(read) + statistics.median(written)) / built,
                    "requests": statistics.median(requests),
                    "seconds": took,
                }
            )
        check(pipeline)
        return figures
    finally:
        shutil.rmtree(folder)


def measure_one_group(rows: int, rounds: int) -> list[dict[str, Any]]:
    """What a row of the only key costs that changes, comes or leaves, beside a rebuild of its aggregates."""
    folder = Path(tempfile.mkdtemp(prefix="pds-producers-"))
    try:
        store = pds.Store((folder / "lake").as_uri())
        p = pds.Pipeline(store, "group")
        p.source("orders", key=pa.int64(), value=pa.int64())
        p.select("orders", key="'all'", order_by="value", name="amounts")
        aggregates = {"n": "count"} | {name: ("value", name) for name in ("sum", "min", "max")}
        p.aggregate("amounts", aggregates=aggregates, name="totals")
        p.first("amounts", by="value", rows=10, name="least")
        amounts = np.random.default_rng(1).permutation(rows) * 1000
        p.update(orders=pds.Changes(pa.table({"key": np.arange(rows), "value": amounts})))
        results: list[pds.UpdateResult] = []
        builds, built = [], []
        for _ in range(rounds):
            at = read_bytes()
            builds.append(seconds(lambda: results.append(p.rebuild("amounts", "totals", "least"))))
            built.append(read_bytes() - at)
        least, greatest = (np.argsort(amounts)[part].tolist() for part in (slice(rounds), slice(-rounds, None)))
        changes = {
            "changed": [pds.Changes([(rows // 2 + number, number)]) for number in range(rounds)],
            "added": [pds.Changes([(rows + number, rows * 500 + number)]) for number in range(rounds)],
            "the least removed": [pds.Changes(deletes=[key]) for key in least],
            "the greatest removed": [pds.Changes(deletes=[key]) for key in reversed(greatest)],
        }
        lines = []
        for what, updates in changes.items():
            times, moved = [], []
            for update in updates:
                at = read_bytes()
                times.append(seconds(lambda c=update: results.append(p.update(orders=c))))
                moved.append(read_bytes() - at + written_by(results.pop()))
            lines.append(
                {
                    "what": what,
                    "rebuild": statistics.median(builds) / statistics.median(times),
                    "bytes": statistics.median(moved) / statistics.median(built),
                }
            )
        if not p.check().ok:
            raise SystemExit("the aggregates are not those of all rows")
        return lines
    finally:
        shutil.rmtree(folder)


def read_bytes() -> int:
    """The bytes that this process has read, of files and all else."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


def written_by(result: pds.UpdateResult) -> int:
    """The bytes of the runs that an update wrote."""
    return sum(stage.bytes_written for stage in result.stages.values())


def measure_in_a_row(rows: int, updates: int) -> dict[str, float]:
    """What updates of 100 keys cost after many of them."""
    folder = Path(tempfile.mkdtemp(prefix="pds-producers-"))
    try:
        store = pds.Store((folder / "lake").as_uri())
        pipeline = declare(store)
        pipeline.update(orders=pds.Changes(orders(0, rows, 1, rows)))
        times, changed, written, most_runs, manifest_bytes = [], 0, 0, 0, 0
        results: list[pds.UpdateResult] = []
        for number in range(updates):
            changes = orders(0, 100, number, rows)
            chosen = np.sort(np.random.default_rng(number).choice(rows, 100, replace=False))
            changes = changes.set_column(0, "key", pa.array(chosen))
            changed += changes.nbytes
            times.append(seconds(lambda c=changes: results.append(pipeline.update(orders=pds.Changes(c)))))
            written += written_by(results.pop())
            manifest = store.read_bytes(f"sums/manifest/v{pipeline.version:08}.json")
            manifest_bytes = max(manifest_bytes, len(manifest))
            nodes = json.loads(manifest)["nodes"]
            most_runs = max(most_runs, *(len(runs) for node in nodes for runs in (node["content"], node["mappings"])))
        check(pipeline)
        return {
            "slowdown": statistics.median(times[-20:]) / statistics.median(times[:20]),
            "runs": most_runs,
            "written": written / changed,
            "manifest": manifest_bytes,
        }
    finally:
        shutil.rmtree(folder)


def check(pipeline: pds.Pipeline) -> None:
    """The sums are those of the orders."""
    rows = pipeline["orders"].read()["value"].combine_chunks()
    table = pa.table({"c": pc.subtract(rows.field("customer"), 0).to_numpy() % COUNTRIES, "a": rows.field("amount")})
    expected = dict(zip(*table.group_by("c").aggregate([("a", "sum")]).to_pydict().values(), strict=True))
    stored = pipeline["by_country"].read().group_by("target_key").aggregate([("value", "sum")]).to_pydict()
    if dict(zip(*stored.values(), strict=True)) != expected:
        raise SystemExit("the pipeline has other sums than its orders")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, action="append", help="rows of the source; may be given more than once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-a-row", type=int, help="measure so many updates of 100 keys instead")
    parser.add_argument("--one-group", action="store_true", help="measure aggregates of one key instead")
    arguments = parser.parse_args()
    if arguments.one_group:
        print("| rows of the key | one row | rebuild / update | bytes read and written, of those a rebuild reads |")
        print("| ---: | --- | ---: | ---: |")
        for rows in arguments.rows or [1_000_000, 10_000_000]:
            for f in measure_one_group(rows, arguments.rounds):
                print(f"| {rows:,} | {f['what']} | {f['rebuild']:.0f} | {f['bytes']:.2%} |", flush=True)
        return
    if arguments.in_a_row is not None:
        print(
            "| rows | updates | last 20 / first 20 | most runs of a table | bytes written / changed | manifest bytes |"
        )
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        for rows in arguments.rows or [1_000_000]:
            f = measure_in_a_row(rows, arguments.in_a_row)
            print(
                f"| {rows:,} | {arguments.in_a_row:,} | {f['slowdown']:.2f} | {f['runs']:.0f} | {f['written']:.0f} "
                f"| {f['manifest']:,.0f} |"
            )
        return
    print(
        "| rows | keys | rebuild by pds / update | polars / update | DuckDB / update | bytes of a rebuild | requests |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for rows in arguments.rows or [1_000_000, 10_000_000]:
        for f in measure(rows, arguments.rounds):
            print(
                f"| {f['rows']:,} | {f['keys']:,} | {f['rebuild']:.1f} | {f['polars']:.2f} | {f['duckdb']:.2f} "
                f"| {f['bytes']:.2%} | {f['requests']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

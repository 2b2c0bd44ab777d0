"""What some rows of a file of one row group cost: requests and the share of the file's bytes, and the file's size.

`PYTHONPATH=tools python benches/python/pages.py` prints the table of docs/benchmarks.md ("Pages"), counted by a client
that has opened the table on the S3 server of the tests and read nothing of it. With `--sizes` it prints the bytes of
each column's file, in memory, and the processor time to read it, to be compared with another build's.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pyarrow as pa

import pds
from servers import S3Server

ROWS = 1 << 20
PREDICATES = [
    ("id = 1500000", ["id", "value"]),
    ("id = 1500000", None),
    ("id BETWEEN 1500000 AND 1600000", None),
    ("value < 0.000001", None),
    ("city = 'city 7' AND value < 0.1", None),
]


def _rows() -> pa.Table:
    chance = np.random.default_rng(3)
    cities = np.array([f"city {i}" for i in range(1000)])
    return pa.table(
        {
            "id": np.arange(ROWS) * 3,
            "value": chance.random(ROWS),
            "price": np.round(chance.gamma(2, 50, ROWS), 2),
            "city": cities[chance.integers(0, 1000, ROWS)],
            "flag": chance.random(ROWS) < 0.1,
            "text": [f"row {n} is {n * 7919 % 10007}" for n in range(ROWS)],
        }
    )


def _print_costs(rows: pa.Table) -> None:
    with S3Server.start("pds-bench") as server:
        table = pds.Table.create(pds.Store(server.url("pages"), server.options()), "t", rows.schema, key="id")
        table.append(rows)
        _print_costs_on(server, table.files()["size_bytes"][0].as_py(), rows)


def _print_costs_on(server: S3Server, size: int, rows: pa.Table) -> None:
    print("| rows | columns | requests, by pages | bytes, by pages | requests, by chunks | bytes, by chunks |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for predicate, columns in PREDICATES:
        figures = []
        for use_stats in (True, False):
            store = pds.Store(server.url("pages"), server.options())
            table = pds.Table(store, "t")
            store.reset_metrics()
            table.scan(where=predicate, columns=columns, use_stats=use_stats).to_pyarrow()
            metrics = store.metrics()
            figures.append(f"{metrics['requests']} | {metrics['bytes_read'] / size:.2%}")
        count = len(columns or rows.column_names)
        print(f"| `{predicate}` | {count} | {figures[0]} | {figures[1]} |")


def _print_sizes(rows: pa.Table) -> None:
    for name in [*rows.column_names, "all"]:
        store = pds.Store("memory://")
        datasets = pds.ParquetDatasetStore(store)
        datasets.write_dataset(rows if name == "all" else rows.select([name]), "d")
        size = len(store.read_bytes("d/data.parquet"))
        times = []
        for _ in range(9):
            start = time.process_time()
            datasets.read_dataset("d")
            times.append(time.process_time() - start)
        print(f"{name:8} {size:>10} bytes, {min(times):.4f} s of processor time to read")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", action="store_true", help="print sizes and times of columns")
    (_print_sizes if parser.parse_args().sizes else _print_costs)(_rows())

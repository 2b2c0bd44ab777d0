"""Requests and bytes of operations, counted by `Store.metrics()` at the S3 test server; nothing is timed.

    PYTHONPATH=tools python benches/python/request_costs.py

It prints the table of docs/explanation/requests.md. The money is that of the requests alone, at the prices below.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

import pds
from servers import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable

# US dollars a request: the public list price of S3 Standard in us-east-1. Deletes are free.
WRITE_PRICE = 0.005 / 1000
READ_PRICE = 0.0004 / 1000
FILES = 10
ROWS = 1_000
KIB = 1 << 10


def make_rows(number: int) -> pa.Table:
    """Rows of one file; the keys of different files do not overlap."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    return pa.table({"id": ids, "kind": [f"kind {n % 7}" for n in ids], "euros": [n / 7 for n in ids]})


def report(store: pds.Store, what: str, work: Callable[[], object]) -> None:
    """Print a line of the table."""
    store.reset_metrics()
    work()
    counted = store.metrics()
    writes = counted["put"] + counted["post"] + counted["copy"] + counted["list"]
    reads = counted["get"] + counted["head"]
    kinds = [f"{counted[kind]} {kind.upper()}" for kind in ("get", "head", "list", "put", "post", "delete", "copy")]
    shown = ", ".join(kind for kind in kinds if not kind.startswith("0 "))
    money = (writes * WRITE_PRICE + reads * READ_PRICE) * 1_000_000
    sent, received = counted["bytes_written"] / KIB, counted["bytes_read"] / KIB
    print(f"| {what} | {shown or 'none'} | {sent:,.0f} | {received:,.0f} | {money:,.2f} |")


def report_datasets(store: pds.Store) -> None:
    """A small dataset."""
    datasets = pds.ParquetDatasetStore(store)
    report(store, "dataset: write 1,000 rows", lambda: datasets.write_dataset(make_rows(0), "d"))
    report(store, "dataset: overwrite them", lambda: datasets.write_dataset(make_rows(1), "d", overwrite=True))
    report(store, "dataset: read them", lambda: datasets.read_dataset("d"))


def report_tables(store: pds.Store) -> None:
    """A table of ten files whose keys do not overlap."""
    # What a store is asked about itself, it is asked once for each handle.
    report(store, "table: create an empty one", lambda: pds.Table.create(store, "t", make_rows(0).schema, key="id"))
    report(store, "table: open it", lambda: pds.Table(store, "t"))
    table = pds.Table(store, "t")
    report(store, "table: append 1,000 rows", lambda: table.append(make_rows(0)))
    report(store, "table: append with an idempotency key", lambda: table.append(make_rows(1), idempotency_key="1"))
    report(store, "table: append again with that key", lambda: table.append(make_rows(1), idempotency_key="1"))
    for number in range(2, FILES):
        table.append(make_rows(number))
    report(store, "table of 10 files: count the rows", lambda: table.scan().count())
    report(store, "table of 10 files: scan all rows", lambda: table.scan().to_pyarrow())
    report(store, "table of 10 files: scan one key", lambda: table.scan(where="id = 4321").to_pyarrow())
    report(store, "table of 10 files: delete a range of keys", lambda: table.delete("id BETWEEN 100 AND 200"))
    report(store, "table of 10 files: delete by another column", lambda: table.delete("kind = 'kind 3'"))
    report(store, "table of 10 files: upsert 100 rows of one file", lambda: table.upsert(make_rows(5).slice(0, 100)))
    report(store, "table: read the changes of the last commit", lambda: read_changes(table))
    report(store, "table of 11 files: compact", table.optimize.compact)
    report(store, f"table: vacuum {table.version} versions", lambda: table.vacuum(timedelta(0)))
    report(store, "table: write a Delta log", table.export_delta)


def read_changes(table: pds.Table) -> pa.Table:
    """The rows of the last commit."""
    return table.scan_changes(table.version - 1).to_pyarrow()


if __name__ == "__main__":
    with S3Server.start() as server, pds.Store(server.url("costs"), server.options()) as s3:
        print("| operation | requests | KiB sent | KiB received | dollars a million times |")
        print("| --- | --- | ---: | ---: | ---: |")
        pds.ParquetDatasetStore(s3).write_dataset(make_rows(0), "first")  # probes the server's conditions
        report_datasets(s3)
        report_tables(s3)

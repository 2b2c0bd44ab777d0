"""An event log: appends, a retention delete, a delete for one person, time travel, vacuum.

python examples/event_log.py
"""

from __future__ import annotations

import datetime as dt
import random
import tempfile
from pathlib import Path

import pyarrow as pa

import pds

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("person", pa.string()),
        ("amount", pa.float64()),
    ]
)
BEGIN = dt.datetime(2026, 9, 1, tzinfo=dt.UTC)
PER_DAY = 2_000


def day(number: int) -> pa.Table:
    """The events of one day."""
    chance = random.Random(number)
    ids = range(number * PER_DAY, (number + 1) * PER_DAY)
    return pa.table(
        {
            "id": ids,
            "at": [BEGIN + dt.timedelta(days=number, seconds=40 * n) for n in range(PER_DAY)],
            "person": [f"person {chance.randrange(500)}" for _ in ids],
            "amount": [chance.random() for _ in ids],
        },
        SCHEMA,
    )


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        store = pds.Store(Path(folder).as_uri())
        events = pds.Table.create(store, "lake/events", SCHEMA, key="id")
        for number in range(60):
            # Run again after a crash, a day is there once all the same.
            events.append(day(number), idempotency_key=f"day {number}")
        print(f"version {events.version}: {events.scan().count():,} events")

        old = events.delete("at < TIMESTAMP WITH TIME ZONE '2026-10-01 00:00:00+00'")
        print(f"retention: {old.rows:,} events of September are gone; {old.bytes:,} bytes were written")

        events.tags.create("before the request", events.version)
        person = "person = 'person 42'"
        gone = events.delete(person)
        print(f"one person: {gone.rows} events are gone; {gone.bytes:,} bytes were written")

        earlier = events.as_of("before the request")
        print(f"left of them: {events.scan(where=person).count()}; in version {earlier.version}: ", end="")
        print(f"{earlier.scan(where=person).count()}, until the tag is deleted and a vacuum has run")
        events.tags.delete("before the request")
        removed = events.vacuum(dt.timedelta(0))
        print(f"a vacuum removes {len(removed.files)} files, {removed.bytes:,} bytes")

        spent = events.scan(["person", "amount"], where="id >= 100000").to_polars()
        top = spent.group_by("person").sum().sort("amount", descending=True).head(3)
        print(top)
        for entry in events.history(3):
            print(entry["version"], entry["created_at"].isoformat(timespec="seconds"), entry["operation"])


if __name__ == "__main__":
    main()

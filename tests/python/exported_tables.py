"""Tables whose exports are compared with them, and operations on them at random."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    import pds


def rows_of(data: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a table in the order of its column `id`."""
    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame.sort("id").rows()


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("small", pa.int16()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("nested", pa.struct([("u", pa.int32()), ("v", pa.list_(pa.int64()))])),
    ]
)


def make_rows(ids: range, schema: pa.Schema = SCHEMA) -> pa.Table:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    columns: dict[str, Callable[[int], Any]] = {
        "name": lambda n: None if n % 7 == 0 else f"name {n}",
        "small": lambda n: n % 1000,
        "price": lambda n: Decimal(n) / 4,
        "at": lambda n: at + dt.timedelta(microseconds=n * 1_000_001),
        "day": lambda n: at.date() + dt.timedelta(days=n),
        "nested": lambda n: None if n % 5 == 0 else {"u": n, "v": [n, None]},
    }
    values = {
        field.name: [n if field.name == "id" else columns.get(field.name, str)(n) for n in ids] for field in schema
    }
    return pa.table(values, schema=schema)


def change_at_random(table: pds.Table, rng: random.Random, ids: list[int]) -> None:
    """One operation; `ids` has the first id that was never used."""
    count = rng.choice([1, 20, 300])
    fresh = range(ids[0], ids[0] + count)
    low = rng.randrange(max(1, ids[0]))
    names = table.schema.names
    operations: list[Callable[[], Any]] = [
        lambda: table.append(make_rows(fresh, table.schema)),
        lambda: table.upsert(make_rows(range(low, low + count), table.schema)),
        lambda: table.delete(f"id between {low} and {low + count}"),
        lambda: table.delete(f"small % 3 = {low % 3} and id > {low}"),
        lambda: table.overwrite(make_rows(fresh, table.schema), where=f"id > {low}"),
        table.optimize.compact,
        table.optimize.sort,
        lambda: table.restore(rng.randrange(1, table.version + 1)),
        lambda: table.tags.create(f"tag-{table.version}"),
    ]
    if "name" in names and rng.random() < 0.2:
        operations.append(lambda: table.alter.rename_column("name", f"name {ids[0]}"))
    if str(table.schema.field("small").type) == "int16" and rng.random() < 0.2:
        operations.append(lambda: table.alter.widen("small", pa.int32()))
    rng.choice([operations[0], *operations])()
    ids[0] += count

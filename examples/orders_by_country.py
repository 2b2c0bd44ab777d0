"""Orders joined to customers and summed by country, kept up to date from two tables.

python examples/orders_by_country.py
"""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

MONEY = pa.decimal128(18, 2)


def create_tables(store: pds.Store) -> tuple[pds.Table, pds.Table]:
    """Create the tables that other programs write."""
    customers = pds.Table.create(
        store, "customers", pa.schema([("customer_id", pa.int64()), ("country", pa.string())]), key="customer_id"
    )
    customers.append(pa.table({"customer_id": [1, 2, 3], "country": ["DK", "DK", "IS"]}))
    schema = pa.schema([("order_id", pa.int64()), ("customer_id", pa.int64()), ("total", MONEY)])
    orders = pds.Table.create(store, "orders", schema, key="order_id")
    totals = pa.array([Decimal("10.00"), Decimal("2.50"), Decimal("7.25")], MONEY)
    orders.append(pa.table({"order_id": [100, 101, 102], "customer_id": [1, 2, 3], "total": totals}))
    return customers, orders


def declare(store: pds.Store, customers: pds.Table, orders: pds.Table) -> pds.Pipeline:
    """Declare the graph."""
    p = pds.Pipeline(store, "orders-by-country")
    countries = p.source("customers", customers, key="customer_id", value="country")
    totals = p.source("orders", orders, key="customer_id", value="total")

    @p.join(totals, countries, key=pa.string(), value=MONEY)
    def total_by_customer(
        _: int, totals: Iterator[Decimal], countries: Iterator[str]
    ) -> Iterator[tuple[str | None, Decimal]]:
        country = next(countries, None)  # a left join: an order may come before its customer
        for total in totals:
            yield country, total

    @p.producer(total_by_customer, key=pa.string(), value=MONEY)
    def total_by_country(country: str | None, totals: Iterator[Decimal]) -> Iterator[tuple[str | None, Decimal]]:
        yield country, sum(totals, Decimal(0))

    return p


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        store = pds.Store(Path(folder).as_uri())
        customers, orders = create_tables(store)
        p = declare(store, customers, orders)

        def show(text: str) -> None:
            rows: list[dict[str, Any]] = p["total_by_country"].read().to_pylist()
            print(f"{text:24}", {row["target_key"]: str(row["value"]) for row in rows})

        p.refresh()
        show("at first:")
        orders.append(
            pa.table(
                {
                    "order_id": [103, 104],
                    "customer_id": [3, 9],
                    "total": pa.array([Decimal("1.00"), Decimal("5.00")], MONEY),
                }
            )
        )
        p.refresh()
        show("two orders more:")
        customers.upsert(pa.table({"customer_id": [2], "country": ["SE"]}))
        p.refresh()
        show("a customer moved:")
        orders.delete("order_id = 100")
        result = p.refresh()
        show("an order was deleted:")
        stages = {} if result is None else result.stages
        print("keys that this took:", {name: stage.keys_in for name, stage in stages.items()})
        print("nothing is new:", p.refresh())


if __name__ == "__main__":
    main()

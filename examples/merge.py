"""Changes of a source merged into a table, which DuckDB and polars then query with pushdown.

python examples/merge.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pds

SCHEMA = pa.schema([("sku", pa.int64()), ("name", pa.string()), ("stock", pa.int64())])
ITEMS = 10_000


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        store = pds.Store(Path(folder).as_uri())
        table = pds.Table.create(store, "items", SCHEMA, key="sku", sort_by="sku")

        # Parquet files that are there already are taken over without being written again.
        items = {"sku": range(ITEMS), "name": [f"item {n}" for n in range(ITEMS)], "stock": [10] * ITEMS}
        pq.write_table(pa.table(items, SCHEMA), Path(folder) / "old.parquet")
        print(f"taken over: {table.add_files('old.parquet').rows:,} rows")

        changes = pa.table(
            {
                "sku": [1, 2, 3, ITEMS],
                "sold": [4, 10, 0, 0],
                "name": ["item 1", "item 2", "item three", "a new one"],
                "gone": [False, True, False, False],
            }
        )
        done = (
            table.merge(changes, on="sku")
            .when_matched_delete("source.gone")
            .when_matched_update({"name": "source.name", "stock": "target.stock - source.sold"})
            .when_not_matched_insert({"sku": "source.sku", "name": "source.name", "stock": "0"})
            .execute(idempotency_key="changes of 2026-11-22")
        )
        what = table.history(1)[0]["operation"]
        print(f"version {done.version}: {what['rows_updated']} updated, {what['rows_inserted']} inserted,", end=" ")
        print(f"{what['rows_deleted']} deleted, {done.bytes:,} bytes written")

        dataset = table.to_pyarrow_dataset()
        ((count,),) = duckdb.from_arrow(dataset).filter("stock < 10").aggregate("count(*)").fetchall()
        lazy = pl.scan_pyarrow_dataset(dataset).filter(pl.col("stock") < 10).select("sku", "stock")
        print(f"low on stock: {count} by DuckDB\n{lazy.collect()}")
        if count != table.scan(where=pc.field("stock") < 10).count():
            raise SystemExit("DuckDB sees other rows")


if __name__ == "__main__":
    main()

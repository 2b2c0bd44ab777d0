"""Datasets on local disk: written whole, replaced whole, read whole or by column."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import pds


def main() -> None:
    """Write, refuse, replace, read, look, delete."""
    orders = pa.table(
        {
            "id": range(1000),
            "country": ["DE", "FR", "IT", "ES"] * 250,
            "cents": [number * 7 % 501 for number in range(1000)],
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        datasets = pds.ParquetDatasetStore(pds.Store(Path(folder).as_uri()))

        manifest = datasets.write_dataset(orders, "silver/orders", metadata={"source": "shop"})
        print(f"wrote {manifest.row_count} rows as {manifest.parts}")

        try:
            datasets.write_dataset(orders, "silver/orders")
        except pds.AlreadyExists as error:
            print(f"refused: {error}")
        datasets.write_dataset(orders.slice(0, 900), "silver/orders", overwrite=True)

        # Only the bytes of these columns are read.
        cents = datasets.read_dataset("silver/orders", columns=["country", "cents"])
        totals = cents.group_by("country").aggregate([("cents", "sum")]).sort_by("country")
        print(totals.to_pylist())

        dear = datasets.scan_dataset("silver/orders", where=pc.field("cents") > 490)
        print(f"{dear.read_all().num_rows} orders above 4.90")

        report = datasets.verify_dataset("silver/orders")
        print(f"verified {report.rows} rows, {report.bytes} bytes")
        datasets.delete_dataset("silver/orders")
        print(f"left: {datasets.list_datasets()}")


if __name__ == "__main__":
    main()

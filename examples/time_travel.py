"""Time travel: versions, tags, what changed, a column that is renamed, and the way back.

python examples/time_travel.py
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa

import pds


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        store = pds.Store(Path(folder).as_uri())
        schema = pa.schema([("sku", pa.string()), ("stock", pa.int32())])
        stock = pds.Table.create(store, "shop/stock", schema, key="sku")
        stock.append(pa.table({"sku": ["apple", "pear", "plum"], "stock": pa.array([10, 4, 0], pa.int32())}))
        stock.tags.create("inventory", stock.version)

        stock.upsert(pa.table({"sku": ["pear", "fig"], "stock": pa.array([3, 12], pa.int32())}))
        stock.delete("stock = 0")
        stock.alter.rename_column("stock", "pieces")
        print("now:      ", stock.scan().to_pyarrow().to_pylist())
        print("inventory:", stock.as_of("inventory").scan().to_pyarrow().to_pylist())

        since = stock.tags["inventory"]
        changes = stock.scan_changes(since).to_pyarrow()
        counted = Counter(zip(changes["_commit_version"].to_pylist(), changes["_change_type"].to_pylist(), strict=True))
        for (version, change), rows in sorted(counted.items()):
            print(f"version {version}: {rows} {change}(s)")

        stock.restore("inventory")
        print("restored: ", stock.scan().to_pyarrow().to_pylist())
        for version in stock.history():
            print(f"{version['version']:3} {version['operation']['name']}")
        # Tagged versions stay, whatever the retention.
        stock.vacuum()
        print("check:", "all there" if stock.check().ok else "something is missing")


if __name__ == "__main__":
    main()

"""The same datasets on S3, and how many requests it takes.

It runs against the S3 server of the tests. With a bucket of your own, the store is
``pds.Store("s3://bucket/prefix")``; region and credentials come from the environment, a profile
or the machine, or are given as options.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

import pds
from servers import S3Server


def main() -> None:
    """Write to S3, count requests, read by another reader."""
    events = pa.table({"id": range(100_000), "kind": ["view", "cart", "buy", "view"] * 25_000})
    with (
        S3Server.start() as server,
        pds.Store(server.url("lake"), storage_options=server.options()) as store,
    ):
        print(store)
        datasets = pds.ParquetDatasetStore(store)

        datasets.write_dataset(events, "events/day=2026-01-01")
        print(f"to write it took {store.metrics()}")

        store.reset_metrics()
        ids = datasets.read_dataset("events/day=2026-01-01", columns=["id"])
        print(f"to read {ids.num_rows} ids it took {store.metrics()}")

        path = f"{server.bucket}/lake/events/day=2026-01-01/data.parquet"
        table = pq.read_table(path, filesystem=server.arrow_filesystem(), partitioning=None)
        print(f"pyarrow reads the same: {table.equals(events)}")


if __name__ == "__main__":
    main()

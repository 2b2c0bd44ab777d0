"""Eight writers append to one table at once, without a server or a lock; a reader holds its snapshot.

python examples/concurrent_writers.py
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

import pds

WRITERS = 8
EACH = 5
ROWS = 1_000


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder).as_uri()
        schema = pa.schema([("writer", pa.int32()), ("number", pa.int64())])
        table = pds.Table.create(pds.Store(url), "numbers", schema)

        def write(writer: int) -> list[pds.CommitResult]:
            # Each could as well be a process on a machine of its own.
            mine = pds.Table(pds.Store(url), "numbers")
            rows = pa.table({"writer": pa.array([writer] * ROWS, pa.int32()), "number": range(ROWS)})
            return [mine.append(rows) for _ in range(EACH)]

        with ThreadPoolExecutor(WRITERS) as pool:
            done = [result for results in pool.map(write, range(WRITERS)) for result in results]

        versions = sorted(result.version for result in done)
        print(f"{len(done)} commits made the versions {versions[0]} to {versions[-1]}")
        print(f"attempts: {sum(result.attempts for result in done)}, data files uploaded once each")
        print(f"the reader still sees version {table.version} with {table.scan().count()} rows")
        print(f"refreshed: version {table.refresh().version} with {table.scan().count():,} rows")
        if table.scan().count() != WRITERS * EACH * ROWS:
            raise SystemExit("rows were lost")


if __name__ == "__main__":
    main()

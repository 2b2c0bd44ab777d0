"""The time of one import in a process of its own, beside pyarrow, which all of them need or meet.

The argument is the name of a system; pyarrow itself is measured alone. A lazy package is made to
load what its user needs.
"""

import importlib
import json
import sys
import time

NEEDED = {
    "pds": ("pds", "Store", "ParquetDatasetStore"),
    "pyarrow": ("pyarrow",),
    "polars": ("polars", "DataFrame"),
    "duckdb": ("duckdb", "connect"),
    "deltalake": ("deltalake", "write_deltalake"),
    "remote-store": ("remote_store.ext.parquet", "ParquetDatasetStore"),
}


def main() -> None:
    """Prints the figures as JSON."""
    module, *names = NEEDED[sys.argv[1]]
    if module != "pyarrow":
        importlib.import_module("pyarrow")
    start = time.perf_counter()
    loaded = importlib.import_module(module)
    for name in names:
        getattr(loaded, name)
    print(json.dumps({"wall": time.perf_counter() - start}))


if __name__ == "__main__":
    main()

"""What is compared: every combination of data set, operation and store that is run."""

from __future__ import annotations

import dataclasses

import systems

STORES = {
    "local": "local disk",
    "s3": "S3 server",
    "slow": "S3 over 30 ms, 20 MiB/s a connection",
}
OPERATIONS = {
    "write": "write",
    "read": "read whole",
    "columns": "read few columns",
    "small": "write a small dataset",
    "stream": "write a stream",
    "spark": "write from Spark",
    "import": "import",
}
# Cold is from the start of a process to the result (cold.py), limit beside what nobody can do without (limits.py).
MODES = ("warm", "cold", "limit")
# Who is compared with the limit: pds, and who is the fastest peer of most lines.
LIMITED = ("pds", "polars")


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the tables."""

    data: str
    op: str
    store: str
    mode: str = "warm"

    @property
    def key(self) -> str:
        """The name in raw results."""
        return f"{self.data}/{self.op}/{self.store}" + (f"/{self.mode}" if self.mode != "warm" else "")

    @property
    def counts(self) -> bool:
        """Whether requests and bytes are counted too."""
        return self.store == "s3" and self.op != "stream" and self.mode == "warm"

    @property
    def unmeasured(self) -> int:
        """Rounds that do not count. A warm process has its warm-up within."""
        return 1 if self.mode == "cold" else 0

    def systems(self) -> list[str]:
        """Who takes part."""
        if self.mode == "limit":
            return [*LIMITED, "limit"]
        if self.op == "spark":
            return ["pds", "spark"]
        if self.op == "import":
            return ["pds", "pyarrow", "polars", "duckdb", "deltalake", "remote-store"]
        needs = "read" if self.op == "columns" else self.op
        able = [s.key for s in systems.ALL if needs in s.operations]
        # The second S3 client of remote-store is no other system on a disk.
        return [key for key in able if key != "remote-store-arrow" or self.store != "local"]


CASES = [
    *(
        Case(data, op, store)
        for data in ("lineitem", "wide", "text")
        for op in ("write", "read", "columns")
        for store in ("local", "s3")
    ),
    *(
        Case(data, op, store, "limit")
        for data in ("lineitem", "wide", "text")
        for op in ("write", "read", "columns")
        for store in ("local", "s3")
    ),
    Case("lineitem", "write", "slow"),
    *(Case("small", "small", store) for store in ("local", "s3")),
    Case("stream", "stream", "local"),
    Case("stream", "stream", "s3"),
    Case("spark", "spark", "local"),
    Case("none", "import", "local"),
    *(
        Case(data, op, store, "cold")
        for data, op in (("lineitem", "write"), ("lineitem", "read"), ("lineitem", "columns"), ("small", "small"))
        for store in ("local", "s3")
    ),
]

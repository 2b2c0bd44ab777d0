"""What is compared: operations, the tables they find, and how large everything is."""

from __future__ import annotations

import dataclasses

STORES = {"local": "local disk", "s3": "S3 server", "slow": "S3 server over 30 ms"}
ROWS = 12_000_000
SMALL_ROWS = 1_000
FILES = (10, 1_000, 100_000)
FAST = ("local", "s3")
SLOW = ("slow",)
# All rows of a table of so many files are read over the slow line.
SCANNED_FILES = 500
WRITERS = (1, 4, 8)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """All numbers; a scale below 1 is for trying the program, not for figures."""

    scale: float = 1.0

    @property
    def rows(self) -> int:
        """Rows of the data."""
        return max(20 * SMALL_ROWS, int(ROWS * self.scale))

    @property
    def loaded(self) -> int:
        """Rows of the table that is deleted from and scanned."""
        return self.rows // 2

    @property
    def scanned(self) -> tuple[int, int]:
        """First and last key of a scan of a sixth of the table; the deleted range is in the midst."""
        return self.loaded * 2 // 5, self.loaded * 2 // 5 + self.loaded // 6 - 1

    @property
    def deleted(self) -> tuple[int, int]:
        """First and last key of the range that is deleted: a sixtieth of the table."""
        return self.loaded // 2, self.loaded // 2 + self.loaded // 60 - 1

    @property
    def key(self) -> int:
        """The key that is looked up."""
        return self.loaded * 5 // 9

    @property
    def pieces(self) -> int:
        """Files of the table that is compacted."""
        return max(5, int(100 * min(self.scale, 1)))

    def appends(self, wanted: int) -> int:
        """Small appends one after another."""
        return max(5, int(wanted * min(self.scale, 1)))

    @property
    def writer_appends(self) -> int:
        """Small appends of each of several processes."""
        return max(3, int(20 * min(self.scale, 1)))

    def files(self, wanted: int) -> int:
        """Files of a table of many files; the smallest stays as it is."""
        return max(min(wanted, FILES[0]), int(wanted * min(self.scale, 1)))


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation. Those of a group take turns in every round."""

    title: str
    group: str
    kind: str
    table: str
    size: int = 0
    stores: tuple[str, ...] = FAST

    @property
    def changes(self) -> bool:
        """Whether it leaves the table other than it was."""
        reads = {"scan-range", "scan-full", "scan-files", "scan-by-two", "lookup", "open", "count", "feed"}
        return self.kind not in reads


def _files(count: int) -> dict[str, Op]:
    table = f"files-{count}"
    return {
        f"open-{count}": Op(f"open, {count:,} files", table, "open", table, count),
        f"count-{count}": Op(f"open and count the files, {count:,} files", table, "count", table, count),
        f"commit-{count}": Op(f"open and append 1,000 rows, {count:,} files", table, "commit", table, count),
    }


def _scans_of_files(count: int) -> dict[str, Op]:
    """And by two readers of one file each, which is what pds once did by itself."""
    title, table = f"scan {count} files of 1,000 rows", f"files-{count}"
    return {
        f"scan-{count}": Op(title, table, "scan-files", table, count, SLOW),
        f"scan-{count}-by-two": Op(f"{title}, two at a time", table, "scan-by-two", table, count, SLOW),
    }


OPERATIONS: dict[str, Op] = {
    "append-12m": Op("append 12M rows", "append", "append", "empty", 1),
    "append-6m": Op("append 6M rows", "append", "append", "empty", 2),
    "appends-100": Op("100 appends of 1,000 rows", "appends", "appends", "empty", 100),
    "appends-1000": Op("1,000 appends of 1,000 rows", "appends", "appends", "empty", 1_000),
    "delete-range": Op("delete 100K keys by range", "delete", "delete-range", "loaded"),
    "delete-random": Op("delete a random 1 %", "delete", "delete-random", "loaded"),
    "upsert-random": Op("upsert a random 1 %", "change", "upsert-random", "loaded"),
    "upsert-range": Op("upsert 100K keys of a range", "change", "upsert-range", "loaded"),
    "merge": Op("merge a random 1 %: update, delete, insert", "change", "merge", "loaded"),
    "compact": Op("compact 100 files of 60,000 rows", "compact", "compact", "pieces"),
    "feed": Op("read the changes of an upsert and a delete", "feed", "feed", "evolved"),
    "scan-range": Op("scan 1M of 6M keys, 2 columns", "scan", "scan-range", "loaded"),
    "scan-full": Op("full scan of 6M rows", "scan", "scan-full", "loaded"),
    "lookup": Op("look up one of 6M keys", "scan", "lookup", "loaded"),
    "scan-range-deleted": Op("scan 1M keys after the deletes", "scan", "scan-range", "deleted"),
    "scan-full-deleted": Op("full scan after the deletes", "scan", "scan-full", "deleted"),
    **{name: op for count in FILES for name, op in _files(count).items()},
    **{
        f"writers-{count}": Op(f"{count} process{'es' * (count > 1)} appending", "writers", "writers", "empty", count)
        for count in WRITERS
    },
    **_scans_of_files(SCANNED_FILES),
}
# From the start of a process to its result (../cold.py), on the local disk.
COLD = (f"open-{FILES[0]}", f"commit-{FILES[0]}", "lookup", "scan-range")
MODES = ("warm", "cold")
# Only with --full, or by name.
LONG = {"appends-1000"}
GROUPS = tuple(dict.fromkeys(op.group for op in OPERATIONS.values()))


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the tables."""

    op: str
    store: str
    mode: str = "warm"

    @property
    def key(self) -> str:
        """The name in raw results."""
        return f"{self.op}/{self.store}" + (f"/{self.mode}" if self.mode != "warm" else "")

    @property
    def unmeasured(self) -> int:
        """Rounds that do not count. A warm process has its warm-up within."""
        return 1 if self.mode == "cold" else 0

    @property
    def what(self) -> Op:
        """The operation."""
        return OPERATIONS[self.op]


CASES = [
    *(Case(name, store) for store in STORES for name, op in OPERATIONS.items() if store in op.stores),
    *(Case(name, "local", "cold") for name in COLD),
]

"""What every system is asked to do, in the same few methods.

A system is made in the process that is measured, before the clock runs: modules and a client, but
nothing of a table. Every method begins with no more than a name, so opening the table is part of
what is measured; only a run of appends keeps what it opened, as a user would. ``home`` is a folder
on this machine for what a system keeps outside of the store.
"""

from __future__ import annotations

import abc
import importlib.metadata
import os
import random
import shutil
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from systems import Place

ALL_KINDS = frozenset(
    {
        "append",
        "appends",
        "commit",
        "compact",
        "count",
        "delete-random",
        "delete-range",
        "feed",
        "lookup",
        "merge",
        "open",
        "scan-files",
        "scan-full",
        "scan-range",
        "upsert-random",
        "upsert-range",
        "writers",
    }
)
KEEP_TRYING_SECONDS = 120.0
LONGEST_PAUSE_SECONDS = 0.02
LINKS_OF_A_FILE = 10_000  # file systems have a limit
# A compacted file may be so large: all rows of the table are in one.
COMPACTED_BYTES = 256 * 2**20

Range = tuple[int, int]


class TableSystem(abc.ABC):
    """One system at one place; what it cannot do, it leaves out of ``kinds``."""

    key: ClassVar[str]
    title: ClassVar[str]
    package: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = ALL_KINDS
    stores: ClassVar[frozenset[str]] = frozenset({"local", "s3", "slow"})
    # Whether an open table keeps other processes out.
    exclusive: ClassVar[bool] = False

    def __init__(self, place: Place, home: Path) -> None:
        self.place = place
        self.home = home

    @classmethod
    def version(cls, store: str) -> str:
        """What to print beside the figures of a store."""
        del store
        return importlib.metadata.version(cls.package)

    @abc.abstractmethod
    def create(self, name: str, schema: pa.Schema) -> None:
        """Makes an empty table."""

    @abc.abstractmethod
    def open(self, name: str) -> Any:  # noqa: ANN401 each system its own type
        """The newest table, ready for whatever comes."""

    @abc.abstractmethod
    def append(self, table: Any, rows: pa.Table) -> Any:  # noqa: ANN401 as above
        """Commits rows; what to append to next."""

    def close(self, table: Any) -> None:  # noqa: ANN401, B027 as above; most have nothing to do
        """Gives back what ``open`` gave."""

    @abc.abstractmethod
    def column_names(self, table: Any) -> list[str]:  # noqa: ANN401 as above
        """The columns of an open table."""

    @abc.abstractmethod
    def count_files(self, table: Any) -> int:  # noqa: ANN401 as above
        """How many data files an open table has."""

    @abc.abstractmethod
    def delete(self, name: str, predicate: str) -> None:
        """Deletes by an SQL predicate."""

    @abc.abstractmethod
    def scan(self, name: str, columns: Sequence[str] | None, keys: Range | None) -> pa.Table:
        """Rows in memory: all, or those with keys from the first to the last."""

    def create_with_feed(self, name: str, schema: pa.Schema) -> None:
        """Makes an empty table whose changes can be read."""
        self.create(name, schema)

    def upsert(self, name: str, source: pa.Table) -> None:
        """Replaces the rows that have a key of the source, and inserts the source's other rows."""
        self.refuse(f"upsert {source.num_rows} rows into {name}")

    def merge(self, name: str, source: pa.Table) -> None:
        """The same, but a matched row is deleted where the source's ``r`` is at least ``DELETED_FROM``."""
        self.refuse(f"merge {source.num_rows} rows into {name}")

    def compact(self, name: str) -> None:
        """Writes the rows of many small files into as few as it can."""
        self.refuse(f"compact {name}")

    def changes(self, name: str, commits: int) -> pa.Table:
        """The rows that the last commits deleted and inserted, with a column ``_change_type``."""
        self.refuse(f"read the changes of {commits} commits of {name}")

    def scan_by_two(self, name: str) -> pa.Table:
        """All rows in memory, read of two files at a time."""
        self.refuse(f"read two files of {name} at a time")

    def build(self, name: str, rows: pa.Table, files: int) -> None:
        """Makes a table of many equal files, behind the system's back where that is faster."""
        self.refuse(f"make {name} of {files} files and {rows.num_rows} rows")

    def refuse(self, what: str) -> NoReturn:
        """Says what the system cannot do; its ``kinds`` leave it out."""
        raise RuntimeError(f"{self.title} cannot {what}")

    def conflict(self, error: Exception) -> bool:
        """Whether an append failed because others came first, so that trying again is right."""
        del error
        return False

    # -- what follows from these ---------------------------------------------------

    def append_all(self, name: str, batches: Sequence[pa.Table]) -> None:
        """Commits one after the other."""
        table = self.open(name)
        for rows in batches:
            table = self.append(table, rows)
        self.close(table)

    def append_among_others(self, name: str, batches: Sequence[pa.Table]) -> dict[str, int]:
        """Commits one after the other, again and again on a conflict; how often there was one."""
        counts = {"conflicts": 0, "errors": 0}
        stop = time.monotonic() + KEEP_TRYING_SECONDS
        table = None
        for rows in batches:
            while True:
                try:
                    table = self.open(name) if table is None else table
                    table = self.append(table, rows)
                except Exception as error:
                    if not self.conflict(error):
                        raise
                    self._give_up(table)
                    table = None
                    counts["conflicts"] += 1
                    if time.monotonic() > stop:
                        counts["errors"] += 1
                        break
                    time.sleep(random.uniform(0.0, LONGEST_PAUSE_SECONDS))
                else:
                    if self.exclusive:
                        self.close(table)
                        table = None
                    break
        if table is not None:
            self.close(table)
        return counts

    def _give_up(self, table: Any) -> None:  # noqa: ANN401 as above
        if table is not None:
            self.close(table)

    def warm_up(self, rows: pa.Table) -> None:
        """Everything once on a few rows, so that what is loaded late is there."""
        self.create("warm", rows.schema)
        self.append_all("warm", [rows, rows])
        table = self.open("warm")
        self.column_names(table)
        self.count_files(table)
        self.close(table)
        self.scan("warm", None, None)
        self.scan("warm", ["id"], (0, 3))
        if "delete-range" in self.kinds:
            self.delete("warm", "id >= 0 AND id <= 2")
        for kind, change in {"upsert-random": self.upsert, "merge": self.merge}.items():
            if kind in self.kinds:
                change("warm", rows)
        if "compact" in self.kinds:
            self.compact("warm")
        if "feed" in self.kinds:
            self.create_with_feed("warm-feed", rows.schema)
            self.append_all("warm-feed", [rows])
            self.upsert("warm-feed", rows.slice(0, 2))
            self.changes("warm-feed", 1)


def between(keys: Range) -> str:
    """A range of keys as everybody understands it, or one key."""
    if keys[0] == keys[1]:
        return f"id = {keys[0]}"
    return f"id >= {keys[0]} AND id <= {keys[1]}"


def link_copies(first: Path, names: Sequence[str]) -> None:
    """More names for a file, in its folder; on an S3 server they are objects of their own."""
    for number, name in enumerate(names):
        if number % LINKS_OF_A_FILE:
            os.link(first, first.with_name(name))
        else:
            first = Path(shutil.copy2(first, first.with_name(name)))


def new_id() -> str:
    """32 hexadecimal digits."""
    return uuid.uuid4().hex

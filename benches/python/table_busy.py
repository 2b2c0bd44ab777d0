"""Long operations beside an appender that never stops, at the sizes that hurt.

    PYTHONPATH=tools python benches/python/table_busy.py

Another client appends one row after the other, commit after commit, while an operation with a `commit_timeout` of 0.2 s
works, on the local disk and on the S3 server. Each is run several times, on a table of its own. Printed is how often it
landed, how many times its timeout it took and what the appender committed meanwhile (medians), and how many requests of
the S3 server read each data file of the table, by its access log: as many of each, unless one was looked at again. The
rows are checked afterwards. The exit code is 1 if something did not land, or was read a second time.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pds
from servers import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("text", pa.string())])
TIMEOUT_SECONDS = 0.2
COMPACTED_ROWS, COMPACTED_FILES = 8_000_000, 80
UPSERTED_KEYS, UPSERTED_FILES, ROWS_PER_FILE = 1_000, 300, 1_000
APPENDED_FROM = 1 << 40
UPSERTED_VALUE = -1.0
STORES = {"local": "local disk", "s3": "S3 server"}


class Run(NamedTuple):
    """How an operation ended; the numbers of requests that its files took."""

    landed: bool
    timeouts: float
    commits: int
    reads: set[int]


class Place(NamedTuple):
    """A folder for tables."""

    url: str
    options: dict[str, str]
    log: Path | None

    @classmethod
    @contextlib.contextmanager
    def start(cls, store: str) -> Iterator[Place]:
        """On the local disk, or on a server that runs until the block ends."""
        if store == "local":
            with tempfile.TemporaryDirectory() as folder:
                yield cls(Path(folder).as_uri(), {}, None)
        else:
            with S3Server.start("pds-bench") as server:
                yield cls(server.url("busy"), server.options(), server.folder / "access.log")

    def count_reads(self) -> Counter[str]:
        """How many requests read each data file so far."""
        text = self.log.read_text(errors="replace") if self.log else ""
        return Counter(re.findall(r" s3_GetObject \S*?(data/\S+) ", text))


class Busy:
    """A table, the client that works on it, and the one that appends."""

    def __init__(self, place: Place, name: str) -> None:
        self._place, self._name = place, name
        self._worker, self._appender = (pds.Store(place.url, storage_options=place.options) for _ in range(2))
        self.table = pds.Table.create(self._appender, name, SCHEMA, key="id")
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self.commits = 0

    def _append(self) -> None:
        table = pds.Table(self._appender, self._name)
        try:
            while not self._stop.is_set():
                table.append(make_rows(APPENDED_FROM + self.commits, 1))
                self.commits += 1
        except BaseException as error:  # noqa: BLE001 raised by the thread that waits
            self._failure = error

    def measure(self, work: Callable[[pds.Table], object]) -> Run:
        """The operation, from a commit of the appender to one after it."""
        table = pds.Table(self._worker, self._name, commit_timeout=TIMEOUT_SECONDS)
        files = [re.sub(r".*(data/)", r"\1", path) for path in table.files()["path"].to_pylist()]
        earlier, landed = self._place.count_reads(), True
        thread = threading.Thread(target=self._append)
        thread.start()
        try:
            self._await_commit()
            before, start = self.commits, time.monotonic()
            try:
                work(table)
            except pds.CommitConflict:
                landed = False
            seconds, commits = time.monotonic() - start, self.commits - before
            self._await_commit()
        finally:
            self._stop.set()
            thread.join()
        reads = self._place.count_reads() - earlier
        return Run(landed, seconds / TIMEOUT_SECONDS, commits, {reads[file] for file in files})

    def _await_commit(self) -> None:
        before = self.commits
        while self.commits == before:
            if self._failure is not None:
                raise self._failure
            time.sleep(0.001)

    def check(self, rows: int, upserted: int = 0) -> None:
        """The rows of the filling, those of the appender, and among them those of the upsert."""
        self.table.refresh()
        scanned = self.table.scan(["id", "value"]).to_pyarrow()
        ids = np.sort(scanned["id"].to_numpy())
        appended = np.arange(APPENDED_FROM, APPENDED_FROM + self.commits)
        if not np.array_equal(ids, np.concatenate([np.arange(rows), appended])):
            raise RuntimeError(f"{len(ids)} rows, others than the {rows + self.commits} that were written")
        changed = pc.sum(pc.equal(scanned["value"], UPSERTED_VALUE)).as_py()
        if changed != upserted:
            raise RuntimeError(f"{changed} rows were changed and not {upserted}")


def make_rows(first: int, count: int) -> pa.Table:
    """Rows of following keys."""
    ids = np.arange(first, first + count)
    values = np.random.default_rng(first).random(count)
    return pa.table({"id": ids, "value": values, "text": [f"row {n % 1009}" for n in ids.tolist()]}, SCHEMA)


def fill(place: Place, name: str, files: int, each: int) -> Busy:
    """A table of files of following keys."""
    busy = Busy(place, name)
    for number in range(files):
        busy.table.append(make_rows(number * each, each))
    return busy


def compact(place: Place, number: int, scale: float) -> Run:
    """All rows into one file."""
    each = max(1, int(COMPACTED_ROWS / COMPACTED_FILES * scale))
    busy = fill(place, f"compaction-{number}", COMPACTED_FILES, each)
    run = busy.measure(lambda table: table.optimize.compact())
    busy.check(COMPACTED_FILES * each)
    return run


def upsert(place: Place, number: int, scale: float) -> Run:
    """Keys that are spread over all files."""
    each = max(UPSERTED_KEYS // UPSERTED_FILES + 1, int(ROWS_PER_FILE * scale))
    busy = fill(place, f"upsert-{number}", UPSERTED_FILES, each)
    rows = UPSERTED_FILES * each
    values = pa.array(np.full(UPSERTED_KEYS, UPSERTED_VALUE))
    source = make_rows(0, rows).take(np.arange(UPSERTED_KEYS) * rows // UPSERTED_KEYS).set_column(1, "value", values)
    run = busy.measure(lambda table: table.upsert(source))
    busy.check(rows, UPSERTED_KEYS if run.landed else 0)
    return run


WORK = {
    f"compaction of {COMPACTED_ROWS:,} rows in {COMPACTED_FILES} files": compact,
    f"upsert of {UPSERTED_KEYS:,} keys that are in {UPSERTED_FILES} files": upsert,
}


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="below 1: little data, to try the program")
    options = parser.parse_args()
    print("| beside an appender | store | landed | time by timeout | its commits meanwhile | requests for each file |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    is_met = True
    for what, work in WORK.items():
        for store, title in STORES.items():
            with Place.start(store) as place:
                runs = [work(place, number, options.scale) for number in range(options.rounds)]
            landed = sum(run.landed for run in runs)
            timeouts, commits = (statistics.median(run[figure] for run in runs) for figure in (1, 2))
            reads = sorted(set().union(*(run.reads for run in runs)))
            shown = " or ".join(map(str, reads)) if place.log else "-"
            print(
                f"| {what} | {title} | {landed} of {len(runs)} | {timeouts:.1f} | {commits:,.0f} | {shown} |",
                flush=True,
            )
            is_met = is_met and landed == len(runs) and len(reads) == 1
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())

"""Many writers of one table: threads, processes, kill -9, a vacuum that spares nothing."""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from killed_writers import kill, start

if TYPE_CHECKING:
    from servers import S3Server

SCHEMA = pa.schema([("writer", pa.int64()), ("number", pa.int64())])
ROWS = 3
PROCESSES = 4
LIVES = 3

# Appends for ever: says what it begins and what was acknowledged. A vacuum may cost it a turn.
WRITER = """
import json, os, sys
import pyarrow as pa
import pds
url, options, writer, number, rows = json.loads(sys.argv[1])
table = pds.Table(pds.Store(url, storage_options=options), "t")
def say(end):
    os.write(1, f"{end} {number}\\n".encode())  # at once: a line that was begun is a whole one
while True:
    number += 1
    say("begin")
    try:
        table.append(pa.table({"writer": [writer] * rows, "number": [number] * rows}))
    except pds.TransactionExpired:
        say("refused")
    else:
        say("done")
"""


def test_threads_append(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", SCHEMA)

    def write(writer: int) -> None:
        mine = pds.Table(store, "t")
        for number in range(5):
            mine.append(pa.table({"writer": [writer] * ROWS, "number": [number] * ROWS}))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    found = table.refresh().scan().to_pyarrow()
    counts = Counter(zip(found["writer"].to_pylist(), found["number"].to_pylist(), strict=True))
    assert counts == {(writer, number): ROWS for writer in range(8) for number in range(5)}
    # Those that wait for each other go together.
    assert table.version <= 41


@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_processes_that_are_killed_lose_nothing(request: pytest.FixtureRequest, place: str, seed: int) -> None:
    store: pds.Store = request.getfixturevalue(f"{place}_store")
    server: S3Server | None = request.getfixturevalue("s3_server") if place == "s3" else None
    options = server.options() if server else {}
    chance = random.Random(seed)
    table = pds.Table.create(store, "t", SCHEMA)
    ends: dict[tuple[int, int], str] = {}
    numbers = dict.fromkeys(range(PROCESSES), 0)
    for _ in range(LIVES):
        writers = {w: start(WRITER, store.url, options, w, numbers[w], ROWS) for w in range(PROCESSES)}
        enough = table.refresh().scan().count() + 3 * PROCESSES * ROWS
        begin = time.monotonic()
        # However slow the machine is, each life sees some writes.
        while time.monotonic() < begin + 3 or table.refresh().scan().count() < enough:
            time.sleep(chance.uniform(0.1, 0.8))
            table.vacuum(dt.timedelta(0))
            assert time.monotonic() < begin + 120, "nothing is written"
        for writer, process in writers.items():
            time.sleep(chance.uniform(0, 0.05))
            told, last = kill(process)
            ends |= {(writer, number): end for number, end in told.items()}
            numbers[writer] = max(numbers[writer], last)
    # Another writer goes on where they were stopped.
    table.refresh().append(pa.table({"writer": [-1], "number": [0]}))
    table.vacuum(dt.timedelta(0))
    found = table.scan().to_pyarrow()
    counts = Counter(zip(found["writer"].to_pylist(), found["number"].to_pylist(), strict=True))
    assert counts.pop((-1, 0)) == 1
    assert set(counts.values()) == {ROWS}
    done = {write for write, end in ends.items() if end == "done"}
    refused = {write for write, end in ends.items() if end == "refused"}
    assert len(done) > PROCESSES * LIVES
    assert done <= counts.keys()
    assert not refused & counts.keys()
    # Nothing is missing, and nothing is left that no version names but what began at the last vacuum or later.
    assert table.check().missing == []
    floor = json.loads(store.read_bytes(f"t/manifest/v{table.refresh().version:08}.json"))["gc_floor"]
    named = {f"t/{path}" for path in table.files()["path"].to_pylist()}
    there = {info.path for info in store.list_files("t/data", recursive=True)}
    assert named <= there
    assert [path for path in there - named if int(path.rsplit("/b", 1)[1].split("-")[0]) < floor] == []

"""Processes that write to one table are stopped, woken and killed, with a vacuum that spares nothing between.

A stopped process wakes with what it knew long ago: whatever was reported is there exactly once, whatever
was refused is not.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from scripted_s3 import Rule

SCHEMA = pa.schema([("writer", pa.int64()), ("number", pa.int64())])
ROWS = 3
WRITERS = 3
SECONDS = 8
PATIENT = {"stall_timeout": "60", "retry_timeout": "120"}
# How a write can end that another may have made impossible.
REFUSED = ("TransactionExpired", "CommitConflict", "VersionExpired", "NotFound")

# Appends and deletes for ever, and tells how each write ended.
WRITER = """
import json, os, sys
import pyarrow as pa
import pds
url, options, writer, turns = json.loads(sys.argv[1])
store = pds.Store(url, storage_options=options)
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
say("ready")
sys.stdin.readline()
number = 0
while number < turns:
    number += 1
    say("begin", number)
    try:
        table = pds.Table(store, "t")
        table.append(pa.table({"writer": [writer] * 3, "number": [number] * 3}))
        say("done", number)
    except pds.RemoteStoreError as error:
        say(type(error).__name__, number, getattr(error, "commit_id", ""))
"""


class _Writer:
    """A process that appends."""

    def __init__(self, url: str, options: dict[str, str], writer: int, turns: int = 1 << 30) -> None:
        arguments = json.dumps([url, options, writer, turns])
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def go(self) -> None:
        """Have it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Stop it wherever it is, and wait until it stands."""
        os.kill(self._process.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] not in "TZ":
            time.sleep(0.001)

    def go_on(self) -> None:
        """Let it run."""
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self, *, kill: bool) -> dict[int, tuple[str, str]]:
        """How each of its writes ended, by number: the word, and the commit where it is unknown."""
        if kill:
            self._process.kill()
        told, _ = self._process.communicate(timeout=120)
        ends = {}
        for line in told.splitlines():
            word, number, *commit = line.split()
            ends[int(number)] = (word, commit[0] if commit else "")
        return ends


def _check(table: pds.Table, ends: dict[tuple[int, int], tuple[str, str]]) -> Counter[tuple[int, int]]:
    """Every write is there once or not at all, as was reported."""
    table = table.refresh()
    assert table.check().ok, table.check()
    found = table.scan().to_pyarrow()
    counts = Counter(zip(found["writer"].to_pylist(), found["number"].to_pylist(), strict=True))
    assert set(counts.values()) <= {ROWS}, "half a write, or one twice"
    for write, (word, commit) in ends.items():
        if word == "done":
            assert write in counts, f"{write} was reported as done"
        elif word == "CommitStateUnknown":
            assert (table.was_committed(commit) is not None) == (write in counts), write
        elif word != "begin":
            assert word in REFUSED, word
            assert write not in counts, f"{write} was refused: {word}"
    return counts


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("after", ["compact and vacuum", "much and vacuum"])
def test_stopped_at_each_request_of_an_append(after: str) -> None:
    """The answer to the request before is there when it wakes, or the request is on its way."""
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/p", storage_options=server.options("b"))
        table = pds.Table.create(store, "t", SCHEMA)
        table.append(pa.table({"writer": [0] * ROWS, "number": [0] * ROWS}))
        before = server.save()
        alone = _Writer("s3://bucket/p", server.options("a") | PATIENT, 1, 1)
        alone.go()
        assert alone.end(kill=False) == {1: ("done", "")}
        requests = [r for r in server.seen if r.client == "a"]
        for number in range(len(requests)):
            for moment in ("pause", "pause after"):
                server.restart()
                server.restore(before)
                writer = _Writer("s3://bucket/p", server.options("a") | PATIENT, 1, 1)
                rule: Rule = server.stop("a", moment, skip=number)
                rule.times = 1
                writer.go()
                rule.wait()
                writer.stop()
                _others(pds.Table(store, "t"), after)
                rule.resume()
                writer.go_on()
                ends = {(1, n): end for n, end in writer.end(kill=False).items()}
                where = f"{moment} at request {number}, {requests[number]}"
                try:
                    counts = _check(pds.Table(store, "t"), ends)
                    assert counts[0, 0] == ROWS
                    pds.Table(store, "t").append(pa.table({"writer": [9] * ROWS, "number": [9] * ROWS}))
                    pds.Table(store, "t").vacuum(dt.timedelta(0))
                    _check(pds.Table(store, "t"), ends)
                except AssertionError as failure:
                    raise AssertionError(f"{where}: {ends}: {failure}") from failure


def _others(table: pds.Table, after: str) -> None:
    """What goes on while the writer stands."""
    for turn in range(12 if after.startswith("much") else 1):
        table.append(pa.table({"writer": [5] * ROWS, "number": [turn] * ROWS}))
    if after.startswith("compact"):
        table.optimize.compact()
    if after.endswith("vacuum"):
        table.vacuum(dt.timedelta(0))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("seed", [1, 2])
def test_stopped_and_killed_at_random(request: pytest.FixtureRequest, place: str, seed: int) -> None:
    store: pds.Store = request.getfixturevalue(f"{place}_store")
    options = request.getfixturevalue("s3_server").options() if place == "s3" else {}
    chance = random.Random(seed)
    table = pds.Table.create(store, "t", SCHEMA)
    ends: dict[tuple[int, int], tuple[str, str]] = {}
    writers = {number: _Writer(store.url, options, number) for number in range(WRITERS)}
    for writer in writers.values():
        writer.go()
    following = WRITERS
    limit = time.monotonic() + SECONDS
    while time.monotonic() < limit:
        number, writer = chance.choice(list(writers.items()))
        writer.stop()
        time.sleep(chance.uniform(0, 0.2))
        table.vacuum(dt.timedelta(0))
        if chance.random() < 0.3:
            table.optimize.compact()
        if chance.random() < 0.4:
            ends |= {(number, n): end for n, end in writers.pop(number).end(kill=True).items()}
            writers[following] = _Writer(store.url, options, following)
            writers[following].go()
            following += 1
        else:
            writer.go_on()
            time.sleep(chance.uniform(0, 0.2))
    for number, writer in writers.items():
        ends |= {(number, n): end for n, end in writer.end(kill=True).items()}
    # Another goes on where they were stopped.
    table.refresh().append(pa.table({"writer": [-1] * ROWS, "number": [0] * ROWS}))
    counts = _check(table, ends)
    assert len([end for end, _ in ends.values() if end == "done"]) > WRITERS, f"seed {seed}: {ends}"
    table.vacuum(dt.timedelta(0))
    assert _check(table, ends) == counts, f"seed {seed}"

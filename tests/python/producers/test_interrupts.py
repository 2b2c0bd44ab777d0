"""Ctrl-C while a function of a stage runs: the function ends with the call, and so may the process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from pds.producers.interrupts import RunningFunctions, interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The second call of a function never returns, and the first one of a function that gets all rows at once.
SCRIPT = """
import os, signal, sys
import pyarrow as pa, pds

calls = 0

def wait():
    global calls
    calls += 1
    if calls == 2 or kind == "by_batch":
        os.kill(os.getpid(), signal.SIGINT)
        try:
            while True:
                pass
        finally:
            os.write(1, b"ended ")

def by_row(key, values):
    wait()
    yield key, 1

def by_batch(rows):
    wait()
    return pa.record_batch([rows["key"], rows["key"], rows["value"]], ["source_key", "target_key", "value"])

def hook(new, earlier, state):
    wait()
    return new

INT = pa.int64()
kind, url = sys.argv[1:]
p = pds.Pipeline(pds.Store(url), "p")
p.source("s", key=INT, value=INT)
if kind == "hook":
    p.producer("s", key=INT, value=INT, name="x", preserve=pds.Preserve(hook))(lambda key, values: [(key, 1)])
else:
    p.producer("s", key=INT, value=INT, name="x", batch=kind == "by_batch")(globals()[kind])
try:
    p.update(s=pds.Changes([(key, key) for key in range(40)]))
except KeyboardInterrupt:
    os.write(1, b"interrupted ")
sys.exit(7)
"""


@pytest.mark.parametrize("kind", ["by_row", "by_batch", "hook"])
def test_a_function_that_runs_ends_with_the_call(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, kind, tmp_path.as_uri()]
    run = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stderr) == (7, "")
    assert sorted(run.stdout.split()) == ["ended", "interrupted"]
    assert pds.Pipeline(pds.Store(tmp_path.as_uri()), "p").version == 0


def test_what_begins_after_the_interrupt_ends_at_once() -> None:
    running = RunningFunctions()
    running.interrupt()
    with pytest.raises(KeyboardInterrupt):
        next(running.watch(iter([])))


def test_a_function_that_catches_the_interrupt_does_not_seem_to_have_ended() -> None:
    running = RunningFunctions()

    def catch() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"key": [1]})
        with contextlib.suppress(BaseException):
            running.interrupt()
            raise KeyboardInterrupt

    batches = running.watch(catch())
    assert next(batches).num_rows == 1
    for error in (KeyboardInterrupt, pds.InvalidInput):
        with pytest.raises(error):
            next(batches)


def test_an_interrupted_function_that_returns_ends_with_the_interrupt() -> None:
    running = RunningFunctions()
    with pytest.raises(KeyboardInterrupt), running.entered():
        running.interrupt()


# A thread updates a pipeline, and its function catches what ends it, when the process ends, which takes another second.
CAUGHT = """
import atexit, sys, threading, time
atexit.register(time.sleep, 1)
import pyarrow as pa, pds

entered = threading.Event()

def catch(key, values):
    if not entered.is_set():
        try:
            entered.set()
            while True:
                pass
        except:
            pass

p = pds.Pipeline(pds.Store(sys.argv[1]), "p")
p.source("s", key=pa.int64(), value=pa.int64())
p.producer("s", key=pa.int64(), value=pa.int64(), name="x")(catch)
changes = pds.Changes([(key, key) for key in range(10)])
threading.Thread(target=lambda: p.update(s=changes), daemon=True).start()
sys.exit(0 if entered.wait(60) else 1)
"""


def test_a_function_that_catches_the_end_of_the_process_commits_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CAUGHT, tmp_path.as_uri()], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert pds.Pipeline(pds.Store(tmp_path.as_uri()), "p").version == 0


def test_the_functions_of_other_calls_go_on() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible() as interrupted:
        raise KeyboardInterrupt
    with interruptible() as running, running.entered():
        pass
    with pytest.raises(KeyboardInterrupt), interrupted.entered():
        pass
    with pytest.raises(ValueError, match="own"), interruptible() as failed:
        raise ValueError("own")
    with failed.entered():
        pass


FORKED = """
import os
from pds.producers.interrupts import RunningFunctions

running = RunningFunctions()
running._lock.acquire()
child = os.fork()
if child == 0:
    raise SystemExit(3)
running._lock.release()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_of_a_fork_does_not_wait_for_functions_of_its_parent() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.split() == ["3"]

"""Processes that can be stopped and killed, forked from one that has imported everything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

LIMIT_SECONDS = 120

# Forks for every line it is told; the child does it and writes into a file how it ended.
PARENT = """
import base64, io, json, os, signal, sys
import numpy, pyarrow as pa
import pds, pds._pds
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def do(job):
    store = pds.Store(job["url"], storage_options=job["options"])
    ds = pds.ParquetDatasetStore(store, compression="none", max_rows_per_file=job["per_file"])
    if job["verb"] == "write":
        noise = numpy.random.default_rng(job["version"]).random(job["rows"])
        versions = pa.array([job["version"]] * job["rows"], pa.int64())
        data = pa.table({"version": versions, "noise": noise})
        ds.write_dataset(data, job["key"], overwrite=job["overwrite"])
    else:
        getattr(ds, job["verb"] + "_dataset")(job["key"])

print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    ended = {"error": None}
    try:
        do(job)
    except BaseException as error:
        ended = {"error": type(error).__name__, "message": str(error)}
    with open(job["ended"] + ".new", "w") as file:
        json.dump(ended, file)
    os.rename(job["ended"] + ".new", job["ended"])
    os._exit(0)
"""


class Ended(NamedTuple):
    """How a child's work ended."""

    error: str | None
    message: str = ""


class Child:
    """A process that does one call."""

    def __init__(self, pid: int, ended: Path) -> None:
        self.pid, self._ended = pid, ended

    @property
    def is_alive(self) -> bool:
        """Whether the process is there."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> None:
        """Stop it wherever it is, and wait until it stands."""
        os.kill(self.pid, signal.SIGSTOP)
        limit = time.monotonic() + LIMIT_SECONDS
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < limit
            time.sleep(0.001)

    def go_on(self) -> None:
        """Let a stopped one run."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._wait_gone()

    def wait(self) -> Ended:
        """Until its call has ended; how."""
        self._wait_gone()
        assert self._ended.exists(), "it died"
        return Ended(**json.loads(self._ended.read_text()))

    def _wait_gone(self) -> None:
        limit = time.monotonic() + LIMIT_SECONDS
        while self.is_alive:
            assert time.monotonic() < limit, "the process does not end"
            time.sleep(0.005)


class Children:
    """The process that forks them."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self._lock = threading.Lock()
        self._parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline().strip()

    def start(self, job: dict[str, Any]) -> Child:
        """Have a child do a job: url, options, key, verb, and version, rows, per_file, overwrite to write."""
        assert self._parent.stdin is not None
        with self._lock:
            self._count += 1
            ended = Path(self._folder.name) / str(self._count)
            self._parent.stdin.write(json.dumps(job | {"ended": str(ended)}) + "\n")
            self._parent.stdin.flush()
            return Child(int(self._line()), ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._parent.stdin.close()  # type: ignore[union-attr]
        self._parent.wait()
        self._parent.stdout.close()  # type: ignore[union-attr]
        self._folder.cleanup()

"""A system without another thread: calls end with an error, and print nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Root has as many threads as it wants.
PROGRAM = """
import contextlib, os, resource, sys, time
import pyarrow as pa
import pds

ROWS = pa.table({"n": list(range(1000))})
store = pds.Store("memory://")
datasets = pds.ParquetDatasetStore(store)
datasets.write_dataset(ROWS, "a")


@contextlib.contextmanager
def no_threads():
    is_root = os.getuid() == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if is_root:
        os.setresuid(65534, 65534, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
        if is_root:
            os.setresuid(0, 0, 0)


def refuse(call):
    begin = time.monotonic()
    try:
        call()
    except pds.RemoteStoreError as error:
        assert "no thread for this call" in str(error), repr(error)
        assert "ulimit -u" in error.hint, error.hint
        assert time.monotonic() - begin < 60
    else:
        sys.exit("there were threads")


# Tokio's idle threads end after ten seconds.
time.sleep(12)
with no_threads():
    refuse(lambda: store.is_file("a/_SUCCESS"))
assert store.is_file("a/_SUCCESS")
# Now there is one thread, which the call takes; what it decodes by has none.
with no_threads():
    refuse(lambda: datasets.read_dataset("a"))
assert datasets.read_dataset("a").equals(ROWS)
"""


@pytest.mark.slow
def test_calls_that_get_no_thread_say_so() -> None:
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""

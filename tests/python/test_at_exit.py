"""How a process ends that stopped to read, or to write, midway."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

INTERRUPTED_WRITE = """
import os, signal, sys, threading, time
import pyarrow as pa
import pds

def rows():
    for number in range(10**6):
        time.sleep(0.05)
        yield pa.record_batch({"id": pa.array([number], pa.int64())})

threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
stream = pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), rows())
pds.write_table(sys.argv[1], stream)
"""

READ_IN_PART = """
import sys
import duckdb, polars as pl
import pds

data = pds.open_table(sys.argv[1]).to_pyarrow_dataset()
if sys.argv[2] == "polars":
    assert len(pl.scan_pyarrow_dataset(data).head(5).collect()) == 5
elif sys.argv[2] == "duckdb":
    assert duckdb.execute("SELECT * FROM data").fetchone() is not None
elif sys.argv[2] == "batches":
    for _ in data.to_batches():
        break
else:
    reader = data.scanner().to_reader()
    reader.read_next_batch()
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that must end."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def large_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with many batches."""
    path = str(tmp_path_factory.mktemp("exit") / "large")
    pds.write_table(path, pa.table({"id": range(3_000_000)}))
    return path


@pytest.mark.parametrize("how", ["polars", "duckdb", "batches", "scanner"])
def test_a_process_ends_that_read_some_rows(large_table: str, how: str) -> None:
    ended = run(READ_IN_PART, large_table, how)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_interrupted_write_does_not_abort_the_process(tmp_path: Path) -> None:
    ended = run(INTERRUPTED_WRITE, str(tmp_path / "t"))
    assert ended.returncode not in (0, -signal.SIGABRT), ended.stderr
    assert "KeyboardInterrupt" in ended.stderr
    assert "Fatal Python error" not in ended.stderr


class Stop(BaseException):
    """An exception that ends more than a call."""


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt("now"), Stop("all"), GeneratorExit()])
@pytest.mark.parametrize("write", [pds.write_table, pds.write_dataset])
def test_what_an_input_raises_comes_out(tmp_path: Path, raised: BaseException, write: Callable[..., object]) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise raised

    stream = pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), rows())
    with pytest.raises(type(raised)) as caught:
        write(str(tmp_path / "t"), stream)
    assert caught.value is raised

"""Hidden files, which killed writers leave on a local disk: vacuums remove them once nobody can finish them."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from pds import odf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NOW = dt.timedelta(0)
ROWS = pa.table({"n": [1, 2]})

WRITER = """
import sys, pds
store = pds.Store(sys.argv[1])
while True:
    store.write("big", bytes(100_000_000), overwrite=True)
"""


def fill_table(store: pds.Store) -> Callable[[], Sequence[str]]:
    table = pds.Table.create(store, "d", ROWS.schema)
    table.append(ROWS)
    table.delete("n = 1")
    assert table.verify().ok
    return lambda: table.vacuum(NOW).files


def fill_pipeline(store: pds.Store) -> Callable[[], Sequence[str]]:
    pipeline = pds.Pipeline(store, "d")
    pipeline.source("rows", key=pa.int64(), value=pa.string())
    pipeline.update(rows=pds.Changes([(1, "a")]))
    return lambda: pipeline.vacuum(NOW).files


def fill_chain(store: pds.Store) -> Callable[[], Sequence[str]]:
    chain = odf.Dataset.create(store, "d")
    chain.ingest(ROWS)
    return lambda: chain.vacuum().files


FILLED = {"table": fill_table, "pipeline": fill_pipeline, "chain": fill_chain}


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that is stopped while it writes, and the hidden file that it will rename."""
    folder = tmp_path / "writer"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", WRITER, folder.as_uri()]) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                assert time.monotonic() < deadline
                if found := list(folder.glob(".pds-*")):
                    process.send_signal(signal.SIGSTOP)
                    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
                    # It may have been renamed meanwhile.
                    if found[0].exists():
                        break
                    process.send_signal(signal.SIGCONT)
            yield process, found[0]
        finally:
            process.kill()


@pytest.mark.parametrize("kind", FILLED)
def test_a_vacuum_removes_the_hidden_files_of_processes_that_ended(
    tmp_path: Path, stopped: tuple[subprocess.Popen[bytes], Path], kind: str
) -> None:
    process, hidden = stopped
    store = pds.Store((tmp_path / "lake").as_uri())
    vacuum = FILLED[kind](store)
    folder = tmp_path / "lake" / "d"
    # Each vacuum of a table makes a version, and removes the ones before.
    before = {path for path in folder.rglob("*") if path.is_file() and path.parent.name != "manifest"}
    left = [path / hidden.name for path in [folder, *folder.rglob("*")] if path.is_dir()]
    assert len(left) > 2
    for path in left:
        path.write_bytes(b"half")
    # Of a process on another host, which may be writing, and of one that wrote last eight days ago.
    tag = ".pds-00000000-1-1-"
    foreign = [(folder / f"{tag}{number:032x}.tmp") for number in range(2)]
    for path in foreign:
        path.write_bytes(b"half")
    days_ago = time.time() - 8 * 86_400
    os.utime(foreign[1], (days_ago, days_ago))
    assert vacuum() == [foreign[1].name], "the stopped process will go on"
    process.kill()
    process.wait()
    relative = sorted(str(path.relative_to(folder)) for path in left)
    assert sorted(vacuum()) == relative
    after = {path for path in folder.rglob("*") if path.is_file()} - {foreign[0]}
    assert not [path for path in after if path.name.startswith(".pds-")]
    assert before <= after, "nothing else is removed"
    assert vacuum() == []

"""Stores and datasets that were used before a fork can be used after it, on both sides."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from fault_runs import PATIENT
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = pa.table({"n": list(range(1000)), "s": [str(n) for n in range(1000)]})
LIMIT_SECONDS = 30


def _in_child(work: Callable[[], None]) -> None:
    """Run ``work`` in a forked child, which must come to an end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 nothing may leave the child but its code
            traceback.print_exc()
        finally:
            os._exit(code)
    limit = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@pytest.fixture
def ds(store: pds.Store) -> pds.ParquetDatasetStore:
    """Used before the fork, so that threads, clients and connections exist."""
    ds = pds.ParquetDatasetStore(store, max_rows_per_file=300)
    ds.write_dataset(ROWS, "before")
    assert ds.read_dataset("before").equals(ROWS)
    return ds


def _use(ds: pds.ParquetDatasetStore, key: str) -> None:
    assert ds.read_dataset("before").equals(ROWS)
    ds.write_dataset(ROWS.slice(1), key, overwrite=True)
    assert ds.read_dataset(key).equals(ROWS.slice(1))
    assert ds.scan_dataset(key).read_all().equals(ROWS.slice(1))
    assert key in ds.list_datasets()
    assert ds.store.read_bytes(f"{key}/_SUCCESS") == b""


def test_a_child_uses_what_it_inherited(ds: pds.ParquetDatasetStore) -> None:
    for turn in range(3):
        _in_child(lambda turn=turn: _use(ds, f"child{turn}"))
    _use(ds, "parent")


def test_a_grandchild(ds: pds.ParquetDatasetStore) -> None:
    def child() -> None:
        _use(ds, "child")
        _in_child(lambda: _use(ds, "grandchild"))
        _use(ds, "child")

    _in_child(child)
    _use(ds, "parent")


def test_a_fork_while_another_thread_is_in_a_call(ds: pds.ParquetDatasetStore) -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            _use(ds, "thread")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for turn in range(5):
            _in_child(lambda turn=turn: _use(ds, f"child{turn}"))
    finally:
        done.set()
        thread.join()


def test_many_forks_while_threads_hold_the_locks_of_memory() -> None:
    """A child must not inherit a lock that no thread of its own will release."""
    store = pds.Store("memory://")
    done = threading.Event()

    def work(name: str) -> None:
        while not done.is_set():
            store.write(name, b"x" * 100_000, overwrite=True)
            store.read_bytes(name)

    threads = [threading.Thread(target=work, args=(f"thread{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(100):
            _in_child(lambda turn=turn: store.write(f"child{turn}", b""))
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_a_child_knows_what_its_parent_found_out_about_a_server() -> None:
    with ScriptedS3() as server:
        options = server.options() | PATIENT
        pds.write_dataset("s3://bucket/lake/parent", ROWS, storage_options=options)
        probes = sum(request.is_probe for request in server.seen)
        assert probes > 10

        def child() -> None:
            pds.write_dataset("s3://bucket/lake/child", ROWS, storage_options=options)

        _in_child(child)
        assert pds.read_dataset("s3://bucket/lake/child", storage_options=options).equals(ROWS)
        assert sum(request.is_probe for request in server.seen) == probes


def test_a_reader_made_before_the_fork(ds: pds.ParquetDatasetStore) -> None:
    reader = ds.scan_dataset("before")
    _in_child(lambda: _use(ds, "child"))
    assert reader.read_all().equals(ROWS)


def test_a_scan_begun_before_the_fork_is_the_parents(ds: pds.ParquetDatasetStore) -> None:
    """In the child it says so: the threads that send its batches are not there."""
    reader = ds.scan_dataset("before")

    def child() -> None:
        with pytest.raises(pds.InvalidInput, match="fork"):
            reader.read_all()
        assert ds.scan_dataset("before").read_all().equals(ROWS)

    _in_child(child)
    assert reader.read_all().equals(ROWS)


def test_a_table_opened_before_the_fork(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", ROWS.schema)
    table.append(ROWS)
    scan = table.scan()

    def child() -> None:
        assert scan.to_pyarrow().num_rows == 1000
        table.append(ROWS)

    _in_child(child)
    table.append(ROWS)
    assert table.scan().to_pyarrow().num_rows >= 2000


def _pool_task(ds: pds.ParquetDatasetStore, number: int) -> int:
    ds.write_dataset(ROWS.slice(number), f"pool/{number}")
    return ds.read_dataset(f"pool/{number}").num_rows


def test_multiprocessing_with_fork(shared: pds.ParquetDatasetStore) -> None:
    # A pool ends its workers by this signal. Where it raises an exception instead, as Dagster would have it, one that
    # comes as a worker begins to wait for the pool's lock does not wake it, and the pool waits for it for ever.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        rows = pool.starmap_async(_pool_task, [(shared, number) for number in range(6)])
        assert rows.get(timeout=60) == [1000 - number for number in range(6)]
    assert len(shared.list_datasets("pool")) == 6


@pytest.mark.parametrize("turn", ["first", "second"])
def test_no_test_inherits_what_another_made_of_sigterm(turn: str) -> None:
    """The second of them would, without the fixture that puts it back."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, turn
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def shared(request: pytest.FixtureRequest) -> pds.ParquetDatasetStore:
    """A store whose objects other processes see."""
    ds = pds.ParquetDatasetStore(request.getfixturevalue(f"{request.param}_store"))
    ds.write_dataset(ROWS, "before")
    return ds


# A thread overwrites a dataset whose files are locked; once its intent says what it does, the process forks.
FORKS_WHILE_IT_PUBLISHES = """
import contextlib, gc, json, os, pathlib, sys, threading, time
import pyarrow as pa
import pds

ds = pds.ParquetDatasetStore(pds.Store(sys.argv[1]))
rows = pa.table({"n": list(range(10))})
write = threading.Thread(target=lambda: ds.write_dataset(rows, "a", overwrite=True), daemon=True)
write.start()
phase = None
while phase != "active":
    time.sleep(0.001)
    with contextlib.suppress(OSError, ValueError):
        phase = json.loads(pathlib.Path(sys.argv[2]).read_bytes())["phase"]
child = os.fork()
if child == 0:
    gc.collect()
    time.sleep(600)
print(child, flush=True)
write.join()
time.sleep(600)
"""


def _is_locked(path: Path) -> bool:
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_child_does_not_keep_the_lease_of_its_killed_parent(tmp_path: Path) -> None:
    ds = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()), max_rows_per_file=300)
    ds.write_dataset(ROWS, "a")
    intent = tmp_path / "a" / "_publish.json"
    command = [sys.executable, "-c", FORKS_WHILE_IT_PUBLISHES, tmp_path.as_uri(), str(intent)]
    with contextlib.ExitStack() as locked:
        for path in (tmp_path / "a").iterdir():
            fcntl.flock(locked.enter_context(path.open("r+b")), fcntl.LOCK_EX)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
            try:
                assert publisher.stdout is not None
                child = int(publisher.stdout.readline())
                assert _is_locked(intent)
            finally:
                publisher.kill()
    try:
        assert not _is_locked(intent)
        ds.write_dataset(ROWS.slice(1), "a", overwrite=True)
        assert ds.read_dataset("a").equals(ROWS.slice(1))
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_writes_of_a_child_are_seen(shared: pds.ParquetDatasetStore) -> None:
    _in_child(lambda: _use(shared, "child"))
    assert shared.read_dataset("child").equals(ROWS.slice(1))

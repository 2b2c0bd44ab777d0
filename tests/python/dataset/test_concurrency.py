"""Many writers and readers of one key, in threads and in processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "a"
ROWS = 600
THREADS = 8
PROCESSES = 4
EACH = 6

# Waits for the word to go, writes, tells how each write ended.
WRITER = """
import json, sys
import pyarrow as pa
import pds
url, options, writer, overwrite, each, rows = json.loads(sys.argv[1])
store = pds.Store(url, storage_options=options)
ds = pds.ParquetDatasetStore(store, max_rows_per_file=100 + writer)
print("ready", flush=True)
sys.stdin.readline()
for turn in range(each):
    table = pa.table({"writer": [writer * 1000 + turn] * rows, "row": list(range(rows))})
    try:
        ds.write_dataset(table, "a", overwrite=overwrite)
        print("written", flush=True)
    except pds.AlreadyExists:
        print("exists", flush=True)
"""


def _table(writer: int) -> pa.Table:
    return pa.table({"writer": [writer] * ROWS, "row": list(range(ROWS))})


def _writer_of(table: pa.Table) -> int:
    """Whose dataset it is; a mixture fails."""
    assert table["row"].to_pylist() == list(range(ROWS))
    (writer,) = set(table["writer"].to_pylist())
    return int(writer)


def _datasets(store: pds.Store, writer: int) -> pds.ParquetDatasetStore:
    # Different numbers of parts make a mixture of two datasets easy to see.
    return pds.ParquetDatasetStore(store, max_rows_per_file=100 + writer)


def _only_its_files(store: pds.Store) -> None:
    parts = pds.ParquetDatasetStore(store).read_manifest(KEY).parts
    names = sorted(info.name for info in store.list_files(KEY, recursive=True))
    assert names == sorted(["_SUCCESS", "manifest.json", *parts])


def _together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work`` in so many threads that begin at once; results or errors."""
    start = threading.Barrier(count)

    def run(number: int) -> Any:
        start.wait()
        try:
            return work(number)
        except Exception as error:  # noqa: BLE001 the caller judges it
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_create_once(store: pds.Store) -> None:
    for turn in range(3):
        key = f"{KEY}{turn}"
        ended = _together(THREADS, lambda n, key=key: _datasets(store, n).write_dataset(_table(n), key))
        winners = [n for n, end in enumerate(ended) if isinstance(end, pds.DatasetManifest)]
        assert len(winners) == 1, ended
        assert all(isinstance(e, pds.AlreadyExists) for n, e in enumerate(ended) if n not in winners)
        assert _writer_of(pds.ParquetDatasetStore(store).read_dataset(key)) == winners[0]


def test_threads_overwrite(store: pds.Store) -> None:
    ended = _together(THREADS, lambda n: _datasets(store, n).write_dataset(_table(n), KEY, overwrite=True))
    assert all(isinstance(end, pds.DatasetManifest) for end in ended), ended
    assert _writer_of(pds.ParquetDatasetStore(store).read_dataset(KEY)) in range(THREADS)
    _only_its_files(store)


def _processes(store: pds.Store, options: dict[str, str], *, overwrite: bool) -> list[list[str]]:
    running = []
    for writer in range(PROCESSES):
        arguments = json.dumps([store.url, options, writer, overwrite, EACH, ROWS])
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", WRITER, arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    told = []
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        told.append(out.split())
    return told


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def shared(request: pytest.FixtureRequest) -> tuple[pds.Store, dict[str, str]]:
    """A store that other processes reach too, and its options."""
    store = request.getfixturevalue(f"{request.param}_store")
    options = request.getfixturevalue("s3_server").options() if request.param == "s3" else {}
    return store, options


def test_processes_create_once(shared: tuple[pds.Store, dict[str, str]]) -> None:
    store, options = shared
    told = _processes(store, options, overwrite=False)
    assert sum(lines.count("written") for lines in told) == 1
    assert sum(lines.count("exists") for lines in told) == PROCESSES * EACH - 1
    _writer_of(pds.ParquetDatasetStore(store).read_dataset(KEY))
    _only_its_files(store)


def test_processes_overwrite(shared: tuple[pds.Store, dict[str, str]]) -> None:
    store, options = shared
    told = _processes(store, options, overwrite=True)
    assert told == [["written"] * EACH] * PROCESSES
    found = _writer_of(pds.ParquetDatasetStore(store).read_dataset(KEY))
    assert found in {writer * 1000 + EACH - 1 for writer in range(PROCESSES)}
    _only_its_files(store)


class _Turns:
    """Lets a writer go on only after every reader got through once more."""

    def __init__(self, readers: int) -> None:
        self._finished = [0] * readers
        self._changed = threading.Condition()
        self.done = threading.Event()

    def read(self, reader: int, read: Callable[[], None]) -> None:
        """Read until the writer is done."""
        try:
            while not self.done.is_set():
                read()
                with self._changed:
                    self._finished[reader] += 1
                    self._changed.notify_all()
        finally:
            self.done.set()
            with self._changed:
                self._changed.notify_all()

    def wait(self) -> None:
        """Until each has begun and ended a read since."""
        with self._changed:
            wanted = [finished + 2 for finished in self._finished]
            assert self._changed.wait_for(
                lambda: self.done.is_set() or all(f >= w for f, w in zip(self._finished, wanted, strict=True)), 60
            )


def test_readers_never_see_a_mixture(store: pds.Store) -> None:
    _datasets(store, 0).write_dataset(_table(0), KEY)
    reads = {
        "read": lambda ds: ds.read_dataset(KEY),
        "scan": lambda ds: ds.scan_dataset(KEY).read_all(),
        "columns": lambda ds: ds.read_dataset(KEY, columns=["writer", "row"]),
    }
    turns = _Turns(len(reads))

    def read(number: int) -> list[int]:
        name = list(reads)[number]
        seen = []
        ds = pds.ParquetDatasetStore(store)

        def once() -> None:
            try:
                seen.append(_writer_of(reads[name](ds)))
            except pds.DatasetIncomplete as error:
                # A stream that has handed out batches cannot start over, and says so.
                if name != "scan" or "replaced" not in str(error):
                    raise

        turns.read(number, once)
        return seen

    def write() -> None:
        try:
            for version in range(1, 25):
                _datasets(store, version % 7).write_dataset(_table(version), KEY, overwrite=True)
                if version % 6 == 0:
                    turns.wait()
        finally:
            turns.done.set()

    ended = _together(1 + len(reads), lambda number: read(number - 1) if number else write())

    assert [e for e in ended if isinstance(e, BaseException)] == []
    for seen in ended[1:]:
        assert seen == sorted(seen)
        # What it was when the writer waited, at least.
        assert {6, 12, 18, 24} <= set(seen)


def test_verify_and_exists_during_overwrites(store: pds.Store) -> None:
    ds = _datasets(store, 0)
    ds.write_dataset(_table(0), KEY)
    turns = _Turns(2)

    def check() -> None:
        assert ds.verify_dataset(KEY).rows == ROWS
        assert ds.read_manifest(KEY).row_count == ROWS

    def write() -> None:
        try:
            for turn in range(20):
                ds.write_dataset(_table(1), KEY, overwrite=True)
                if turn % 5 == 0:
                    turns.wait()
        finally:
            turns.done.set()

    assert _together(3, lambda number: turns.read(number - 1, check) if number else write()) == [None, None, None]


def test_delete_against_overwrite(store: pds.Store) -> None:
    ds = _datasets(store, 0)
    for _ in range(4):
        ds.write_dataset(_table(0), KEY, overwrite=True)
        ended = _together(
            2,
            lambda n: ds.delete_dataset(KEY) if n else ds.write_dataset(_table(1), KEY, overwrite=True),
        )
        assert not [e for e in ended if isinstance(e, Exception) and not isinstance(e, pds.NotFound)]
        if ds.dataset_exists(KEY):
            assert _writer_of(ds.read_dataset(KEY)) == 1
            _only_its_files(store)
        else:
            assert list(store.list_files("", recursive=True)) == []


def test_keys_do_not_disturb_each_other(store: pds.Store) -> None:
    def work(number: int) -> None:
        ds = _datasets(store, number)
        for turn in range(4):
            ds.write_dataset(_table(number), f"k/{number}", overwrite=turn > 0)
            assert _writer_of(ds.read_dataset(f"k/{number}")) == number

    assert _together(THREADS, work) == [None] * THREADS


def test_a_writer_that_takes_no_lease_does_not_make_others_wait() -> None:
    """It changes files while a publish holds its lease: that publish ends with an error, and the next one lands."""
    store = pds.Store("memory://foreign-writer", publish_lease=1)
    datasets = pds.ParquetDatasetStore(store, max_rows_per_file=1)
    table = pa.table({"a": [1, 2, 3]})
    datasets.write_dataset(table, KEY)
    manifest = store.read_bytes(f"{KEY}/manifest.json")
    ended = threading.Event()

    def disturb() -> None:
        turn = 0
        while not ended.is_set():
            if store.is_file(f"{KEY}/_publish.json"):
                turn += 1
                store.write(f"{KEY}/manifest.json", manifest + b" " * (turn % 50 + 1), overwrite=True)
                store.write(f"{KEY}/_SUCCESS", b"", overwrite=True)

    def overwrite_until_disturbed() -> None:
        for _ in range(3_000):
            datasets.write_dataset(table, KEY, overwrite=True)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        with pytest.raises(pds.RemoteStoreError, match="another publish changed the dataset") as caught:
            overwrite_until_disturbed()
    finally:
        ended.set()
        thread.join()
    assert "timed out waiting" not in str(caught.value)
    datasets.write_dataset(table, KEY, overwrite=True)
    assert datasets.read_dataset(KEY).equals(table)

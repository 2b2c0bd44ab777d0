"""Ctrl-C ends any call, also one that waits for a server that does not answer.

It takes 0.2 s on an idle machine. What is asserted is less: a call that does not notice goes on for
half a minute, until the server counts as silent, or for ever.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import remote_store
from remote_store.backends import MemoryBackend

import hung
import pds
from pds import odf
from producers.engines import RepeatingEngine, Spread
from scripted_s3 import Rule, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scripted_s3 import Request

LIMIT_SECONDS = 2
TRIES = 3
ROWS = pa.table({"n": [1, 2, 3]})


def _large() -> pa.Table:
    noise = random.Random(1).randbytes(8 * 1_500_000)
    return pa.table({"n": pa.Array.from_buffers(pa.int64(), 1_500_000, [None, pa.py_buffer(noise)])})


def _interrupted(call: Callable[[], Any], after: float = 0.3) -> float:
    """Seconds from Ctrl-C to its exception."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.monotonic() - sent[0]
    finally:
        timer.cancel()
        timer.join()


@pytest.fixture(scope="module")
def datasets() -> Iterator[pds.ParquetDatasetStore]:
    """A store behind a server that never answers."""
    with hung.hung_server() as endpoint:
        store = pds.Store("s3://bucket/p", storage_options=hung.options(endpoint))
        yield pds.ParquetDatasetStore(store, row_group_size=1 << 20)


CALLS: dict[str, Callable[[pds.ParquetDatasetStore], Any]] = {
    "write_dataset": lambda ds: ds.write_dataset(ROWS, "a"),
    "overwrite": lambda ds: ds.write_dataset(ROWS, "a", overwrite=True),
    "a large write": lambda ds: ds.begin_write("a", overwrite=True).prepare(_large()),
    "read_dataset": lambda ds: ds.read_dataset("a"),
    "scan_dataset": lambda ds: ds.scan_dataset("a").read_all(),
    "read_manifest": lambda ds: ds.read_manifest("a"),
    "dataset_exists": lambda ds: ds.dataset_exists("a"),
    "delete_dataset": lambda ds: ds.delete_dataset("a"),
    "verify_dataset": lambda ds: ds.verify_dataset("a"),
    "list_datasets": lambda ds: ds.list_datasets(),
    "clean_dataset": lambda ds: ds.clean_dataset("a"),
    "read_bytes": lambda ds: ds.store.read_bytes("a"),
    "write": lambda ds: ds.store.write("a", b"x"),
    "list_files": lambda ds: list(ds.store.list_files("")),
    "exists": lambda ds: ds.store.exists("a"),
    "copy": lambda ds: ds.store.copy("a", "b"),
    "delete": lambda ds: ds.store.delete("a"),
}


@pytest.mark.parametrize("name", CALLS)
def test_any_call_ends(datasets: pds.ParquetDatasetStore, name: str) -> None:
    delays = [_interrupted(lambda: CALLS[name](datasets)) for _ in range(TRIES)]
    assert max(delays) < LIMIT_SECONDS, delays


def test_the_process_goes_on(datasets: pds.ParquetDatasetStore, memory_store: pds.Store) -> None:
    _interrupted(lambda: datasets.read_dataset("a"))
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(ROWS, "a")
    assert ds.read_dataset("a").equals(ROWS)


def test_a_stream_being_read_ends(datasets: pds.ParquetDatasetStore) -> None:
    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            time.sleep(0.01)
            yield from ROWS.to_batches()

    stream = pa.RecordBatchReader.from_batches(ROWS.schema, endless())
    ds = pds.ParquetDatasetStore(pds.Store("memory://"))
    assert _interrupted(lambda: ds.write_dataset(stream, "a")) < LIMIT_SECONDS
    assert not ds.dataset_exists("a")


def test_uploads_in_flight_are_aborted() -> None:
    with ScriptedS3() as server:
        options = server.options() | {"stall_timeout": "60"}
        ds = pds.ParquetDatasetStore(
            pds.Store("s3://bucket/p", storage_options=options), compression="none", row_group_size=1 << 20
        )
        # What the server can do is found out once.
        ds.write_dataset(ROWS, "before")
        server.restart()
        ds.write_dataset(_large(), "a")
        parts = [number for number, r in enumerate(server.seen) if "partNumber" in r.query]
        server.restore({})
        server.restart({parts[-1]: "stall"})

        _interrupted(lambda: ds.write_dataset(_large(), "a"), after=3)

        assert server.held.is_set()
        limit = time.monotonic() + 5
        while server.bucket.uploads and time.monotonic() < limit:
            time.sleep(0.05)
        assert server.bucket.uploads == {}
        assert server.snapshot() == {}


def _stage_rows(store: pds.Store) -> Callable[[], object]:
    """An update whose rows an engine stages, in three files."""
    pipeline = pds.Pipeline(store, "p", engine=RepeatingEngine())
    pipeline._page_rows, pipeline._file_rows = 1, 1
    pipeline.source("numbers", key=pa.int64(), value=pa.int64())
    pairs = pa.table({"key": [1, 2, 3], "value": [1, 2, 3]})
    pipeline.update(numbers=pds.Changes(pairs))
    return lambda: pipeline.update(numbers=pds.Changes(Spread([pairs])))


def _append_rows(store: pds.Store) -> Callable[[], object]:
    table = pds.Table.create(store, "t", ROWS.schema, options=pds.WriteOptions(max_rows_per_file=1))
    table.append(ROWS)
    return lambda: table.append(ROWS)


def _ingest_rows(store: pds.Store) -> Callable[[], object]:
    chain = odf.Dataset.create(store, "d")
    chain.ingest(ROWS)
    return lambda: chain.ingest(ROWS)


@pytest.mark.parametrize(("prepare", "files"), [(_stage_rows, 3), (_append_rows, 3), (_ingest_rows, 1)])
def test_files_that_have_their_names_are_removed(
    prepare: Callable[[pds.Store], Callable[[], object]], files: int
) -> None:
    """No version lists them: they are there, the last one on its way, when Ctrl-C comes."""
    with ScriptedS3() as server:
        write = prepare(pds.Store("s3://bucket/p", storage_options=server.options() | {"stall_timeout": "60"}))
        before = server.snapshot()

        def is_file(request: Request) -> bool:
            return request.verb == "put" and any(folder in request.key for folder in ("/data/", "/run/"))

        _interrupt_at(server.add(Rule(is_file, "hold after", skip=files - 1, times=1)), write)
        assert len(server.snapshot().keys() - before.keys()) == files
        server.released.set()
        limit = time.monotonic() + 30
        while server.snapshot() != before and time.monotonic() < limit:
            time.sleep(0.05)
        assert server.snapshot().keys() == before.keys()


def _interrupt_at(rule: Rule, call: Callable[[], object]) -> None:
    """Have Ctrl-C come while the request that a rule hits has no answer."""

    def interrupt() -> None:
        rule.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    thread.join()


CHANGES: dict[str, Callable[[pds.Table], object]] = {
    "append": lambda table: table.append(ROWS),
    "append with a key": lambda table: table.append(ROWS, idempotency_key="k"),
    "upsert": lambda table: table.upsert(ROWS),
    "overwrite": lambda table: table.overwrite(ROWS, where="n % 5 > 0"),
}


def _changed_table(server: ScriptedS3) -> pds.Table:
    store = pds.Store("s3://bucket/p", storage_options=server.options() | {"stall_timeout": "60"})
    pds.Table.create(store, "t", ROWS.schema, key="n").append(pa.table({"n": range(1, 20)}))
    # Another handle has read nothing yet.
    return pds.Table(pds.Store("s3://bucket/p", storage_options=server.options() | {"stall_timeout": "60"}), "t")


def test_a_reader_that_was_interrupted_does_not_look_ended() -> None:
    with ScriptedS3() as server:
        table = _changed_table(server)
        reader = table.scan().to_reader()
        reading = server.add(Rule(lambda r: r.verb == "get" and "/data/" in r.key, "hold", times=1))
        _interrupt_at(reading, reader.read_all)
        server.released.set()
        for read in (reader.read_all, reader.read_next_batch):
            with pytest.raises(pds.InvalidInput, match="KeyboardInterrupt"):
                read()
        copy = pds.Table.create(table.store, "copy", ROWS.schema)
        with pytest.raises(pds.InvalidInput, match="KeyboardInterrupt"):
            copy.append(reader)
        assert copy.refresh().version == 1
        assert table.scan().to_pyarrow().num_rows == 19


@pytest.mark.parametrize("name", ["upsert", "overwrite"])
def test_files_of_a_change_that_is_not_committed_yet_are_removed(name: str) -> None:
    """They are there, and the rows to replace are being read, when Ctrl-C comes."""
    with ScriptedS3() as server:
        table = _changed_table(server)
        before = server.snapshot().keys()
        reading = server.add(Rule(lambda r: r.verb == "get" and "/data/" in r.key, "hold", times=1))
        _interrupt_at(reading, lambda: CHANGES[name](table))
        server.released.set()
        wrote = [seen for seen in server.seen if seen.verb == "put" and "/data/" in seen.key and seen.key not in before]
        assert wrote
        limit = time.monotonic() + 30
        while server.snapshot().keys() != before and time.monotonic() < limit:
            time.sleep(0.05)
        assert server.snapshot().keys() == before
        CHANGES[name](table)
        assert table.version == 3


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_a_commit_may_name_stay(name: str) -> None:
    """The manifest is there, but not its answer, when Ctrl-C comes."""
    with ScriptedS3() as server:
        table = _changed_table(server)
        before = server.snapshot().keys()
        manifest = server.add(Rule(lambda r: r.verb == "put" and "/manifest/" in r.key, "hold after", times=1))
        _interrupt_at(manifest, lambda: CHANGES[name](table))
        written = {key for key in server.snapshot().keys() - before if "/data/" in key}
        assert written
        server.released.set()
        # What is still done in the background is done by then.
        time.sleep(1)
        assert written <= server.snapshot().keys()
        after = pds.Table(pds.Store("s3://bucket/p", storage_options=server.options()), "t")
        # Whoever comes next finds the manifest, if the pointer does not name it yet.
        after.append(pa.table({"n": [100]}))
        assert after.version == 4
        remaining = {n for n in range(1, 20) if name.startswith("append") or (name == "upsert" and n > 3) or n % 5 == 0}
        rows = after.scan().to_pyarrow()["n"].to_pylist()
        assert sorted(rows) == sorted([*remaining, 1, 2, 3, 100])


@pytest.mark.parametrize("name", ["overwrite", "delete_dataset", "clean_dataset"])
def test_waiting_for_another_writer_ends(name: str) -> None:
    with ScriptedS3() as server:
        patient = {"stall_timeout": "60"}

        def opened(client: str) -> pds.ParquetDatasetStore:
            return pds.ParquetDatasetStore(pds.Store("s3://bucket/p", storage_options=server.options(client) | patient))

        opened("first").write_dataset(ROWS, "a")
        paused = server.on("put", "manifest.json", "pause", client="first")
        first = threading.Thread(target=lambda: opened("first").write_dataset(ROWS, "a", overwrite=True))
        first.start()
        try:
            paused.wait()
            waiting = opened("second")
            assert _interrupted(lambda: CALLS[name](waiting), after=1) < LIMIT_SECONDS
            # It did wait: it asked again and again, and changed nothing.
            asked = [r for r in server.seen if r.client == "second" and r.touches("get|put", "_publish.json")]
            # What the server can do is found out with objects that are removed again.
            changed = [
                event
                for event in server.log
                if event.client == "second" and event.request.mutates and not event.request.is_probe
            ]
            assert len(asked) > 2, asked
            assert not [event for event in changed if event.answer.is_success], changed
        finally:
            paused.resume()
            first.join()
        assert opened("third").read_dataset("a").equals(ROWS)


@pytest.mark.defaults
@pytest.mark.parametrize("method", ["delete", "move"])
def test_what_an_interrupted_call_still_does_is_waited_for(method: str) -> None:
    """A thread cannot be ended: its change of a `remote_store.Store` comes before those of the next call."""
    entered, gate = threading.Event(), threading.Event()

    class Blocking(remote_store.Store):
        def _wait(self, path: str) -> None:
            if not entered.is_set() and "a/" in path:
                entered.set()
                gate.wait(60)

        def delete(self, path: str, **options: Any) -> None:
            if method == "delete":
                self._wait(path)
            super().delete(path, **options)

        def move(self, src: str, dst: str, **options: Any) -> None:
            if method == "move":
                self._wait(dst)
            super().move(src, dst, **options)

    large, larger = _large().slice(0, 20_000), _large().slice(0, 30_000)
    store = Blocking(MemoryBackend())
    entered.set()
    pds.ParquetDatasetStore(store).write_dataset(ROWS, "a")
    entered.clear()

    def interrupt() -> None:
        entered.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        pds.ParquetDatasetStore(store).write_dataset(large, "a", overwrite=True)
    other = pds.ParquetDatasetStore(store)
    other.write_dataset(ROWS, "b")
    assert not gate.is_set(), "another dataset is not waited for"
    timer = threading.Timer(0.5, gate.set)
    timer.start()
    other.write_dataset(larger, "a", overwrite=True)
    assert gate.is_set()
    timer.join()
    assert other.read_dataset("a").equals(larger)
    names = {str(info.path) for info in store.list_files("a") if "/.pds-" not in str(info.path)}
    assert names == {"a/_SUCCESS", "a/data.parquet", "a/manifest.json"}

"""A read that failed or was interrupted does not look ended: every later call of the same reader raises."""

from __future__ import annotations

import contextlib
import inspect
import random
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds
from pds import _pds, odf
from pds.readers import make_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = pa.table({"id": range(90), "x": [n / 7 for n in range(90)]})
THIRDS = [ROWS.slice(first, 30) for first in range(0, 90, 30)]

READERS: dict[str, Callable[[Path], pa.RecordBatchReader]] = {
    "table": lambda folder: pds.open_table(folder / "t").scan().to_reader(),
    "filter": lambda folder: pds.open_table(folder / "t").scan(["x"], where="id >= 0").to_reader(),
    "changes": lambda folder: pds.open_table(folder / "t").scan_changes(0, columns=["id"]).to_reader(),
    "dataset": lambda folder: pds.scan_dataset(folder / "d"),
    "dataset by a filter": lambda folder: pds.scan_dataset(folder / "d", where="id >= 0"),
    "chain": lambda folder: pds.open_chain(folder / "c").scan().to_reader(),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table, a dataset and a chain of three files with the same rows."""
    table = pds.write_table(tmp_path / "t", THIRDS[0])
    chain = odf.Dataset.create(table.store, "c")
    chain.ingest(THIRDS[0])
    for rows in THIRDS[1:]:
        table.append(rows)
        chain.ingest(rows)
    pds.ParquetDatasetStore(table.store, max_rows_per_file=30).write_dataset(ROWS, "d")
    return tmp_path


@contextlib.contextmanager
def damaged(folder: Path) -> Iterator[None]:
    """Each file with the last rows has another byte in its pages."""
    contents = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if content[:4] == b"PAR1" and pq.read_table(path)["id"][0].as_py() == 60:
            contents[path] = content
    assert len(contents) == 3
    for path, content in contents.items():
        path.write_bytes(content[:40] + bytes([content[40] ^ 255]) + content[41:])
    yield
    for path, content in contents.items():
        path.write_bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_that_failed_does_not_look_ended(folder: Path, name: str) -> None:
    with damaged(folder):
        reader = READERS[name](folder)
        with pytest.raises(pds.PartCorrupted):
            reader.read_all()
    reads: list[Callable[[], object]] = [
        reader.read_all,
        reader.read_next_batch,
        lambda: list(reader),
        lambda: pds.write_table(folder / "copy", reader),
    ]
    for read in reads:
        with pytest.raises(pds.InvalidInput, match=r"PartCorrupted: .* from the start, with a new scan or reader"):
            read()
    with pytest.raises(Exception, match="from the start"):
        pa.RecordBatchReader.from_stream(reader).read_all()
    with pytest.raises(pds.NotFound):
        pds.open_table(folder / "copy")
    assert READERS[name](folder).read_all().num_rows == 90


def test_a_loop_that_tries_once_more_does_not_lose_rows(folder: Path) -> None:
    rows, errors = 0, []
    with damaged(folder):
        reader = pds.open_table(folder / "t").scan().to_reader()
        for _ in range(10):
            try:
                rows += reader.read_next_batch().num_rows
            except pds.Error as error:
                errors.append(error)
    assert rows == 60
    assert [type(error) for error in errors[:2]] == [pds.PartCorrupted, pds.InvalidInput]
    assert not errors[1].retryable


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("columns", [["id"], {"id": pc.field("id") + 1}], ids=["columns", "projection"])
def test_batches_that_failed_do_not_look_ended(folder: Path, batch_size: int | None, columns: Any) -> None:
    with damaged(folder):
        batches = pds.open_table(folder / "t").to_pyarrow_dataset().to_batches(columns, batch_size=batch_size)
        with pytest.raises(pds.PartCorrupted):
            list(batches)
    for _ in range(2):
        with pytest.raises(pds.InvalidInput, match="from the start"):
            next(batches)


def test_a_native_scan_raises_after_a_failure_and_after_it_was_closed(folder: Path) -> None:
    table = pds.open_table(folder / "t")
    with damaged(folder):
        scan = table._handle.scan(None, None, None, True)
        with pytest.raises(pds.PartCorrupted):
            list(iter(scan.next_batch, None))
    for _ in range(2):
        with pytest.raises(pds.InvalidInput, match="PartCorrupted"):
            scan.next_batch()
    closed = table._handle.scan(None, None, None, True)
    assert closed.next_batch() is not None
    closed.close()
    for _ in range(2):
        with pytest.raises(pds.InvalidInput, match="the scan is closed"):
            closed.next_batch()
    ended = table._handle.scan(None, None, None, True)
    batches = iter(ended.next_batch, None)
    assert sum(batch.num_rows for batch in batches) == 90
    assert ended.next_batch() is None


class Numbers:
    """Fails at one item, and goes on at the next call as if nothing had been."""

    def __init__(self, failing: int) -> None:
        self.items = iter(range(4))
        self.failing = failing

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> int:
        item = next(self.items)
        if item == self.failing:
            raise KeyboardInterrupt
        return item


def test_a_stream_of_items_raises_after_a_failure_and_ends_after_an_end() -> None:
    stream = _pds.ItemStream(Numbers(failing=2))
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    for _ in range(2):
        with pytest.raises(pds.InvalidInput, match=r"\(KeyboardInterrupt\)"):
            next(stream)
    ended = _pds.ItemStream(Numbers(failing=9))
    assert list(ended) == [0, 1, 2, 3]
    assert list(ended) == []


def test_a_stream_of_items_is_read_by_one_thread_at_a_time() -> None:
    entered, resumed = threading.Event(), threading.Event()

    def wait() -> Iterator[int]:
        entered.set()
        assert resumed.wait(60)
        yield from range(3)

    stream = _pds.ItemStream(wait())
    items: list[object] = []
    thread = threading.Thread(target=lambda: items.append(next(stream)))
    thread.start()
    assert entered.wait(60)
    try:
        with pytest.raises(pds.InvalidInput, match="another thread"):
            next(stream)
    finally:
        resumed.set()
        thread.join()
    assert [*items, *stream] == [0, 1, 2]


def test_after_an_interrupt_at_any_moment_no_rows_are_left_out() -> None:
    batch, count = pa.record_batch({"id": [1]}), 500

    def read(reader: pa.RecordBatchReader) -> int:
        return reader.read_all().num_rows

    outside = (read.__code__, inspect.currentframe().f_code)  # type: ignore[union-attr]

    def interrupt(_signal: int, frame: Any) -> None:
        # Not when all rows are read: what has them then is not the reader.
        if frame.f_code not in outside:
            raise KeyboardInterrupt

    chance, interrupts = random.Random(5), 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(200):
            reader = make_reader(batch.schema, (each for each in [batch] * count))
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 5e-4))
                rows = read(reader)
            except KeyboardInterrupt:
                interrupts += 1
            else:
                assert rows == count
                continue
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            # It may have come before the reader was asked for anything.
            with contextlib.suppress(pds.InvalidInput):
                assert read(reader) == count
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts


def test_generators_become_readers_in_one_place() -> None:
    package = Path(pds.__file__).parent
    users = {path.name for path in package.rglob("*.py") if "RecordBatchReader.from_batches" in path.read_text()}
    assert users == {"readers.py"}

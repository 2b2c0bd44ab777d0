"""The progress of operations: it only grows, belongs to one operation, and ends with what the result says."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import io
import logging
import multiprocessing
import pickle
import random
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from pds import odf
from pds import progress as progress_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = 30_000


class Recorder:
    """Collects the calls of an operation, and checks what holds for all of them."""

    def __init__(self) -> None:
        self.calls: list[pds.Progress] = []

    def __call__(self, progress: pds.Progress) -> None:
        self.calls.append(progress)

    @property
    def last(self) -> pds.Progress:
        assert self.calls, "the function was not called"
        assert [call.is_last for call in self.calls] == [False] * (len(self.calls) - 1) + [True]
        for before, after in zip(self.calls, self.calls[1:], strict=False):
            assert after.operation == before.operation
            for name in ("files", "rows", "bytes", "elapsed"):
                assert getattr(before, name) <= getattr(after, name), name
        for call in self.calls:
            for done, total in ((call.files, call.files_total), (call.rows, call.rows_total)):
                assert total is None or done <= total
        last = self.calls[-1]
        assert last.files_total in (None, last.files)
        assert last.rows_total in (None, last.rows)
        return last

    def counts(self) -> tuple[int, int, int]:
        last = self.last
        return last.files, last.rows, last.bytes


@pytest.fixture(autouse=True)
def calls_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_INTERVAL_SECONDS", 0.001)


def _rows(count: int = ROWS, first: int = 0) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(first, first + count), pa.int64()), "text": [f"t{n % 97}" for n in range(count)]}
    )


def _stream(table: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(table.schema, iter(table.to_batches(max_chunksize=1000)))


def _make_table(store: pds.Store, path: str = "t", files: int = 1) -> pds.Table:
    table = pds.Table.create(store, path, _rows(1).schema, key="id", options=pds.WriteOptions(max_rows_per_file=10_000))
    for number in range(files):
        table.append(_rows(first=number * ROWS))
    return table


def _read_files(table: pds.Table, before: set[str]) -> tuple[int, int, int]:
    """Return the number, the rows and the bytes of the data files that a table has besides, by the files themselves."""
    files = rows = size = 0
    for path in set(table.files()["path"].to_pylist()) - before:
        data = table.store.read_bytes(f"{table.path}/{path}")
        files, rows, size = files + 1, rows + pq.read_metadata(io.BytesIO(data)).num_rows, size + len(data)
    return files, rows, size


# -- tables ------------------------------------------------------------------------


Write = tuple[str, "Callable[[pds.Table, Recorder], pds.CommitResult | None]"]
WRITES: list[Write] = [
    ("append", lambda table, seen: table.append(_rows(first=ROWS), progress=seen)),
    ("append", lambda table, seen: table.append(_stream(_rows(first=ROWS)), progress=seen)),
    ("overwrite", lambda table, seen: table.overwrite(_rows(5000), progress=seen)),
    ("overwrite", lambda table, seen: table.overwrite(_rows(5000), where="id < 5000", progress=seen)),
    ("upsert", lambda table, seen: table.upsert(_rows(5000), progress=seen)),
    (
        "merge",
        lambda table, seen: (
            table.merge(_rows(first=ROWS // 2), on="id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(progress=seen)
        ),
    ),
    ("compact", lambda table, seen: table.optimize.compact(progress=seen)),
    ("sort", lambda table, seen: table.optimize.sort(progress=seen)),
]


@pytest.mark.parametrize(("operation", "write"), WRITES, ids=[f"{n}-{w[0]}" for n, w in enumerate(WRITES)])
def test_writes_report_what_they_wrote(memory_store: pds.Store, operation: str, write: Callable[..., Any]) -> None:
    table = _make_table(memory_store)
    table.delete("id % 10 = 3")
    before = set(table.files()["path"].to_pylist())
    seen = Recorder()
    result = write(table, seen)
    assert seen.last.operation == operation
    assert seen.counts() == (result.files, result.rows, result.bytes)
    assert seen.counts() == _read_files(table, before)
    assert seen.last.phase == "commit"


def test_a_table_in_memory_has_a_total_and_a_stream_has_none(memory_store: pds.Store) -> None:
    table = _make_table(memory_store)
    seen, of_stream = Recorder(), Recorder()
    table.append(_rows(), progress=seen)
    table.append(_stream(_rows()), progress=of_stream)
    assert {call.rows_total for call in seen.calls} == {ROWS}
    assert {call.rows_total for call in of_stream.calls} == {None}
    assert of_stream.last.fraction is None
    assert seen.last.fraction == 1


@pytest.mark.parametrize("mode", ["append", "overwrite", "ignore"])
def test_write_table_reports(memory_store: pds.Store, mode: Any, tmp_path: Path) -> None:
    for expected in (ROWS, 0 if mode == "ignore" else ROWS):
        seen = Recorder()
        table = pds.write_table(tmp_path / "t", _rows(), mode=mode, progress=seen)
        assert seen.last.operation == "write_table"
        assert seen.last.rows == expected
    assert table.scan().count() == (2 * ROWS if mode == "append" else ROWS)


def test_deletes_report_files_and_rows(memory_store: pds.Store) -> None:
    table = _make_table(memory_store)
    expected = pa.compute.sum(pa.compute.equal(_rows()["text"], "t5")).as_py()
    files = table.scan(where="text = 't5'").explain().files_read
    seen, by_key = Recorder(), Recorder()
    result = table.delete("text = 't5'", progress=seen)
    assert seen.counts() == (files, expected, result.bytes)
    assert result.rows == expected
    table.delete("id < 10", progress=by_key)
    assert by_key.last.files == 0


def test_added_files_are_reported(memory_store: pds.Store) -> None:
    table = _make_table(memory_store, files=0)
    sizes = {}
    for number, path in enumerate(["t/in_place.parquet", "elsewhere/copied.parquet"]):
        buffer = io.BytesIO()
        pq.write_table(_rows(100 * (number + 1), first=number * 1000), buffer)
        memory_store.write(path, buffer.getvalue())
        sizes[path] = len(buffer.getvalue())
    seen = Recorder()
    result = table.add_files(list(sizes), progress=seen)
    assert seen.counts() == (2, 300, sum(sizes.values())) == (result.files, result.rows, result.bytes)
    assert seen.last.files_total == 2


def test_maintenance_reports(memory_store: pds.Store) -> None:
    table = _make_table(memory_store, files=2)
    table.optimize.compact(1 << 30)
    seen = Recorder()
    verified = table.verify(progress=seen)
    assert seen.counts() == (verified.files, verified.rows, verified.bytes) == _read_files(table, set())
    assert seen.last.files_total == verified.files
    assert (seen.last.rows_total, seen.last.fraction) == (verified.rows, 1)
    stored = [info for info in memory_store.list_files("t", recursive=True) if "/" in info.path.removeprefix("t/")]
    checked = Recorder()
    table.check(progress=checked)
    assert checked.counts() == (len(stored), 0, sum(info.size for info in stored))
    for dry_run in (True, False):
        vacuumed = Recorder()
        result = table.vacuum(timedelta(0), dry_run=dry_run, progress=vacuumed)
        assert vacuumed.counts() == (len(result.files) + len(result.manifests), 0, result.bytes)
        assert len(result.files) > 0


def test_damaged_files_are_verified_but_their_rows_are_not_counted(memory_store: pds.Store) -> None:
    table = _make_table(memory_store)
    victim = f"t/{table.files()['path'][0].as_py()}"
    data = bytearray(memory_store.read_bytes(victim))
    data[len(data) // 3] ^= 0xFF
    memory_store.write(victim, bytes(data), overwrite=True)
    seen = Recorder()
    result = table.verify(progress=seen)
    assert not result.ok
    assert seen.counts() == (result.files, result.rows, result.bytes)
    assert result.rows < ROWS


# -- datasets, pipelines, chains ---------------------------------------------------


def test_datasets_report(memory_store: pds.Store) -> None:
    datasets = pds.ParquetDatasetStore(memory_store, max_rows_per_file=10_000)
    seen, verified = Recorder(), Recorder()
    manifest = datasets.write_dataset(_rows(), "d", progress=seen)
    report = datasets.verify_dataset("d", progress=verified)
    assert seen.counts() == verified.counts() == (len(manifest.parts), manifest.row_count, report.bytes)
    parts = [memory_store.read_bytes(f"d/{name}") for name in manifest.parts]
    assert report.bytes == sum(map(len, parts))
    assert verified.last.files_total == len(parts)


def test_small_datasets_report(memory_store: pds.Store, tmp_path: Path) -> None:
    seen = Recorder()
    pds.write_dataset(tmp_path / "d", _rows(10), progress=seen)
    assert seen.counts()[:2] == (1, 10)
    assert seen.last.bytes == (tmp_path / "d" / "data.parquet").stat().st_size


def _sums(result: Any) -> tuple[int, int, int]:
    stages = result.stages.values()
    return (
        sum(stage.files_written for stage in stages),
        sum(stage.rows_out for stage in stages),
        sum(stage.bytes_written for stage in stages),
    )


def _make_pipeline(store: pds.Store) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "p")
    source = pipeline.source("numbers", key=pa.int64(), value=pa.int64())

    @pipeline.producer(source, key=pa.int64(), value=pa.int64(), name="halves")
    def halves(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        for value in values:
            yield key // 2, value

    return pipeline


def test_pipelines_report(memory_store: pds.Store) -> None:
    pipeline = _make_pipeline(memory_store)
    pushed = pds.Changes(pa.table({"key": pa.array(range(2000)), "value": pa.array(range(2000))}))
    seen = Recorder()
    result = pipeline.update(numbers=pushed, progress=seen)
    assert seen.counts() == _sums(result)
    stored = [info.size for info in memory_store.list_files("p", recursive=True) if info.path.endswith(".parquet")]
    assert seen.counts() == (len(stored), 4000, sum(stored))
    assert seen.last.operation == "update"
    more = pds.Changes(pa.table({"key": [1, 5000], "value": [7, 7]}))
    previewed = Recorder()
    with pipeline.preview(numbers=more, progress=previewed) as preview:
        assert previewed.counts() == _sums(preview)
    rebuilt = Recorder()
    unchanged = pipeline.rebuild("halves", progress=rebuilt)
    # Its rows were emitted, and turned out to be the same.
    assert _sums(unchanged) == (rebuilt.last.files, 0, rebuilt.last.bytes)
    assert rebuilt.last.rows == pipeline["halves"].read().num_rows
    pipeline.update(numbers=more)
    checked = Recorder()
    assert pipeline.check(progress=checked).ok
    assert checked.last.rows == pipeline["halves"].read().num_rows
    vacuumed = Recorder()
    removed = pipeline.vacuum(timedelta(0), progress=vacuumed)
    assert vacuumed.counts() == (len(removed.files) + len(removed.manifests), 0, removed.bytes)


def test_compactions_of_pipelines_report(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("numbers", key=pa.int64(), value=pa.binary())
    chance = random.Random(5)
    values = [chance.randbytes(64) for _ in range(5000)]
    for count in (5000, 2):
        pipeline.update(numbers=pds.Changes(pa.table({"key": range(count), "value": values[:count]})))
    seen = Recorder()
    result = pipeline.compact(min_delta=0, progress=seen)
    assert seen.counts() == (1, 0, result.bytes_written)
    assert result.bytes_written > 0


def test_refreshes_report(memory_store: pds.Store) -> None:
    table = _make_table(memory_store)
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("rows", table, key="id")
    seen, unchanged = Recorder(), Recorder()
    result = pipeline.refresh(progress=seen)
    assert seen.counts() == _sums(result)
    assert seen.last.rows == ROWS
    assert pipeline.refresh(progress=unchanged) is None
    assert unchanged.counts() == (0, 0, 0)


def test_chains_report(memory_store: pds.Store) -> None:
    chain = odf.Dataset.create(memory_store, "c")
    total = 0
    for first in (0, ROWS):
        seen = Recorder()
        result = chain.ingest(_rows(first=first), progress=seen)
        assert seen.counts() == (1, result.rows, result.bytes)
        total += result.bytes
    verified = Recorder()
    report = chain.verify(progress=verified)
    assert verified.counts() == (report.slices, report.rows, total)
    assert verified.last.files_total == 2


def test_maintenance_of_chains_reports(memory_store: pds.Store) -> None:
    chain = odf.Dataset.create(memory_store, "c")
    for first in range(3):
        chain.ingest(_rows(first=first * ROWS))
    merged, removed = Recorder(), Recorder()
    assert chain.compact(progress=merged) is not None
    assert merged.counts()[:2] == (1, 3 * ROWS)
    chain.vacuum(progress=removed)
    assert removed.counts() == (0, 0, 0)


def test_reads_report(memory_store: pds.Store) -> None:
    table = _make_table(memory_store, files=3)
    table.delete(f"id < {ROWS // 2}")
    rows = table.scan().count()
    for read in ("to_pyarrow", "to_pandas", "to_polars"):
        seen = Recorder()
        assert len(getattr(table.scan(), read)(progress=seen)) == rows
        assert seen.last.operation == "read"
        assert seen.last.rows == seen.last.rows_total == rows
        assert seen.last.bytes > rows
    filtered, limited = Recorder(), Recorder()
    table.scan(where="id >= 0").to_pyarrow(progress=filtered)
    assert (filtered.last.rows, filtered.last.rows_total) == (rows, None)
    table.scan(limit=7).to_pyarrow(progress=limited)
    assert (limited.last.rows, limited.last.rows_total) == (7, 7)
    changes = Recorder()
    assert table.scan_changes(1).to_pyarrow(progress=changes).num_rows == changes.last.rows


def test_exports_report(tmp_path: Path) -> None:
    table = _make_table(pds.Store(tmp_path))
    for export in (table.export_delta, table.export_iceberg):
        seen = Recorder()
        result = export(progress=seen)
        assert seen.last.operation == export.__name__
        assert seen.counts() == (0, 0, result.bytes)


# -- calls -------------------------------------------------------------------------


def test_operations_of_several_threads_are_apart(memory_store: pds.Store) -> None:
    def write(number: int) -> tuple[int, int]:
        seen = Recorder()
        table = pds.Table.create(memory_store, f"t{number}", _rows(1).schema)
        result = table.append(_stream(_rows(1000 * (number + 1))), progress=seen)
        assert seen.counts() == (result.files, result.rows, result.bytes)
        return number, seen.last.rows

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write, range(12))) == [(number, 1000 * (number + 1)) for number in range(12)]


def test_rows_that_are_read_from_another_table_are_not_counted(memory_store: pds.Store) -> None:
    source = _make_table(memory_store, "source")
    target = _make_table(memory_store, "target", files=0)
    inner, outer = Recorder(), Recorder()

    def read() -> Iterator[pa.RecordBatch]:
        source.append(_rows(10), progress=inner)
        yield from _rows(20).to_batches()

    target.append(pa.RecordBatchReader.from_batches(_rows(1).schema, read()), progress=outer)
    assert (inner.last.rows, outer.last.rows) == (10, 20)
    copied = Recorder()
    target.append(source.scan(), progress=copied)
    assert copied.last.rows == source.scan().count()


def test_an_error_of_the_function_does_not_hide_the_commit(
    memory_store: pds.Store, caplog: pytest.LogCaptureFixture
) -> None:
    table = _make_table(memory_store)
    calls = []

    def fail(progress: pds.Progress) -> None:
        calls.append(progress)
        raise RuntimeError("the disk of the log is full")

    with caplog.at_level(logging.ERROR, "pds"):
        result = table.append(_rows(first=ROWS), progress=fail)
    assert (result.rows, table.scan().count()) == (ROWS, 2 * ROWS)
    assert len(calls) == 1
    assert "the disk of the log is full" in caplog.text


def test_failed_operations_have_a_last_call(memory_store: pds.Store) -> None:
    table = _make_table(memory_store)
    seen = Recorder()

    def broken() -> Iterator[pa.RecordBatch]:
        yield _rows(10).to_batches()[0]
        raise ValueError("the input ends here")

    with pytest.raises(Exception, match="the input ends here"):
        table.append(pa.RecordBatchReader.from_batches(_rows(1).schema, broken()), progress=seen)
    assert seen.last.is_last
    assert table.scan().count() == ROWS


def test_an_interrupt_ends_the_operation(memory_store: pds.Store) -> None:
    table = _make_table(memory_store)
    seen = Recorder()

    def interrupt(progress: pds.Progress) -> None:
        seen(progress)
        if progress.rows > 0 and not progress.is_last and not interrupted:
            interrupted.append(True)
            _thread.interrupt_main()

    interrupted: list[bool] = []

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield from _rows(100).to_batches()

    with pytest.raises(KeyboardInterrupt):
        table.append(pa.RecordBatchReader.from_batches(_rows(1).schema, endless()), progress=interrupt)
    assert seen.last.rows > 0
    assert table.refresh().scan().count() == ROWS


def test_other_arguments_are_refused(memory_store: pds.Store) -> None:
    table = _make_table(memory_store)
    with pytest.raises(pds.InvalidType, match="progress must be True, False or a function, not 1"):
        table.append(_rows(1), progress=1)  # type: ignore[arg-type]
    assert table.refresh().scan().count() == ROWS


def test_nothing_is_started_without_progress(memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_Report", None)
    table = _make_table(memory_store)
    assert table.append(_rows(1)).rows == 1


def test_progress_pickles() -> None:
    progress = pds.Progress("append", "write", 1, 2, 3, None, 4, 0.5, is_last=False)
    assert pickle.loads(pickle.dumps(progress)) == progress  # noqa: S301 its own bytes


def _write_in_child(folder: str, results: Any) -> None:
    seen = Recorder()
    pds.write_table(f"{folder}/child", _rows(), progress=seen)
    results.put(seen.last.rows)


def test_forked_children_report_their_own(tmp_path: Path) -> None:
    seen = Recorder()
    pds.write_table(tmp_path / "parent", _rows(10), progress=seen)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_write_in_child, args=(str(tmp_path), results))
    child.start()
    assert results.get(timeout=60) == ROWS
    child.join()
    assert seen.last.rows == 10


# -- displays ----------------------------------------------------------------------


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_a_line_at_the_end(
    memory_store: pds.Store, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _make_table(memory_store)
    table.append(_rows(), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("append: 30,000 of 30,000 rows, 3 files, ")


def test_lines_are_not_written_too_often(capsys: pytest.CaptureFixture[str]) -> None:
    show = progress_module._Lines(1.0)
    for tenths in range(35):
        show(pds.Progress("sort", "sort", 0, None, 0, None, 0, tenths / 10, is_last=False))
    show(pds.Progress("sort", "commit", 3, None, 5, 5, 2_500_000, 3.6, is_last=True))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "sort (sort): 1.0 s",
        "sort (sort): 2.0 s",
        "sort (sort): 3.0 s",
        "sort: 5 of 5 rows, 3 files, 2.5 MB, 3.6 s",
    ]


def test_a_terminal_has_a_bar(memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    _make_table(memory_store).append(_rows(), progress=True)
    assert "━" in terminal.getvalue()
    assert "append" in terminal.getvalue()


def test_a_terminal_without_rich_has_lines(memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    _make_table(memory_store).append(_rows(), progress=True)
    assert terminal.getvalue().splitlines()[-1].startswith("append: 30,000 of 30,000 rows")


def test_a_notebook_has_one_bar(memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    class Shown:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown[0] = content

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Shown:
        assert raw
        assert display_id
        shown.append(content)
        return Shown()

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    ipython.display = types.SimpleNamespace(display=display)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    _make_table(memory_store).append(_rows(), progress=True)
    (content,) = shown
    assert content["text/html"].startswith('<progress value="1.0000"></progress> append: 30,000 of 30,000 rows')


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_no_error_of_the_last_call_hides_the_commit(memory_store: pds.Store, error: BaseException) -> None:
    table = pds.Table.create(memory_store, "t", _rows(1).schema)

    def fail(progress: pds.Progress) -> None:
        if progress.is_last:
            raise error

    assert table.append(_rows(3), progress=fail).rows == 3
    with pytest.raises(pds.InvalidInput):
        table.append(pa.table({"other": [1]}), progress=fail)


def test_a_function_that_waits_for_the_caller_does_not_stop_it(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pds.progress._LAST_CALL_SECONDS", 0.2)
    table = pds.Table.create(memory_store, "t", _rows(1).schema)
    lock = threading.Lock()
    with lock:
        assert table.append(_rows(3), progress=lambda _progress: lock.acquire()).rows == 3
    assert "append has ended" in caplog.text


def test_calls_have_the_variables_of_the_caller(memory_store: pds.Store) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    variable.set("mine")
    table = pds.Table.create(memory_store, "t", _rows(1).schema)
    seen: list[str] = []
    table.append(_rows(3), progress=lambda _progress: seen.append(variable.get()))
    assert set(seen) == {"mine"}


def test_a_display_that_cannot_be_made_does_not_stop_the_operation(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pds.Table.create(memory_store, "t", _rows(1).schema)
    closed = io.StringIO()
    closed.close()
    for stderr in (closed, object(), None):
        monkeypatch.setattr(sys, "stderr", stderr)
        assert table.append(_rows(3), progress=True).rows == 3

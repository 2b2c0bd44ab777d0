"""Every fault at every request of what writes a Delta log: readers see no wrong row, and the next export mends it."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

import pds
from delta_readers import read_delta_rs
from exported_tables import rows_of
from fault_runs import DISTINCT, Operation, Run, ended, plan, run_all, store
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("noise", pa.float64())])
OPTIONS = pds.WriteOptions(compression="none", row_group_size=1000)


def _rows(first: int, count: int) -> pa.Table:
    noise = np.random.default_rng(first).random(count)
    return pa.table({"id": np.arange(first, first + count), "noise": noise}, schema=SCHEMA)


def _open(place: pds.Store) -> pds.Table:
    return pds.Table(place, "t", options=OPTIONS)


def _filled(place: pds.Store) -> None:
    """Two files; deleted rows in the log, and in an object of their own."""
    pds.Table.create(place, "t", SCHEMA, key="id", options=OPTIONS)
    _open(place).append(_rows(0, 60))
    _open(place).append(_rows(1000, 3000))
    _open(place).delete("id = 30")
    _open(place).delete("noise < 0.5 AND id >= 1000")


def _exported(place: pds.Store) -> None:
    _filled(place)
    _open(place).export_delta()
    _open(place).delete("noise < 0.7 AND id >= 1000")
    _open(place).append(_rows(5000, 10))


def _rewritten(place: pds.Store) -> None:
    _exported(place)
    _open(place).optimize.sort("noise")


OPERATIONS = {
    "begin": Operation(lambda s: _open(s).export_delta(), _filled),
    "go on": Operation(lambda s: _open(s).export_delta(), _exported),
    "rebuild": Operation(lambda s: _open(s).export_delta(rebuild=True), _exported),
    "vacuum": Operation(lambda s: _open(s).vacuum(dt.timedelta(0)), _rewritten, in_steps=True),
}


def _download(server: ScriptedS3, folder: Path) -> Path:
    for key, stored in server.save().items():
        path = folder / key.removeprefix("prefix/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored.content)
    return folder / "t"


def _newest(copy: Path) -> int | None:
    """The newest version of a log; None if there is no log, or none that is whole."""
    try:
        return DeltaTable(str(copy)).version()
    except (DeltaError, TableNotFoundError):
        return None


def _read(copy: Path, version: int) -> list[tuple[Any, ...]] | None:
    """The rows of a version; None if the log does not lead to it, or files are missing."""
    try:
        return rows_of(read_delta_rs(copy, version))
    except (DeltaError, TableNotFoundError, pa.ArrowInvalid):
        return None


def _check_log(server: ScriptedS3, folder: Path, *, may_be_missing: bool) -> int | None:
    """Compares all versions that are still there with the table's; gives the newest."""
    table = _open(store(server))
    copy = _download(server, folder)
    newest = _newest(copy)
    assert newest is not None or may_be_missing
    checkpoints = (copy / "_delta_log").glob("*.checkpoint.parquet")
    first = min((int(path.name.split(".")[0]) for path in checkpoints), default=2**63)
    for path in (copy / "_delta_log").glob("*.json"):
        version = int(path.stem)
        rows = _read(copy, version)
        assert rows is not None or version != newest
        try:
            expected = table.as_of(version)
        except pds.VersionExpired:
            continue
        # Readers do not get to versions before the first checkpoint.
        if rows is not None or version >= first:
            assert rows == rows_of(expected.scan().to_pyarrow()), version
    return newest


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("one_of", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_one_fault(name: str, one_of: int, tmp_path: Path) -> None:
    """In the gate each request has a third of the faults; `make soak` has them all."""
    operation = OPERATIONS[name]
    with ScriptedS3() as server:
        operation.setup(store(server))
        before = server.save()
        server.restart()
        operation.work(store(server))
        requests = list(server.seen)
        assert _check_log(server, tmp_path / "whole", may_be_missing=False) == _open(store(server)).version

    def judge(server: ScriptedS3, run: Run) -> None:
        folder = tmp_path / f"{run.number} {run.fault}"
        server.restart(run.faults())
        error = ended(lambda: operation.work(store(server, run)))
        server.restart()
        _check_log(server, folder / "after the fault", may_be_missing=name in ("begin", "rebuild"))
        table = _open(store(server))
        assert error is not None or name == "vacuum" or table.export_delta().versions == 0
        table.append(_rows(9000, 3))
        assert table.export_delta().version == table.version
        assert _check_log(server, folder / "mended", may_be_missing=False) == table.version

    run_all(plan(requests, DISTINCT, lasts=False, one_of=one_of), before, judge)


def _change(table: pds.Table, number: int) -> None:
    table.refresh()
    if number % 7 == 1:
        table.delete(f"id % 5 = {number % 5}")
    elif number % 7 == 3:
        table.optimize.compact()
    elif number % 11 == 5:
        table.restore(table.version - 1)
    elif number % 20 == 19:
        table.vacuum(dt.timedelta(0))
    else:
        table.append(_rows(10_000 + 100 * number, 100))


def test_exports_at_once(tmp_path: Path) -> None:
    """Three exporters beside a writer that appends, deletes, restores and compacts, and a vacuum now and then."""
    url = tmp_path.as_uri()
    _filled(pds.Store(url))
    is_over = threading.Event()

    def export() -> None:
        while not is_over.is_set():
            _open(pds.Store(url)).export_delta()

    with ThreadPoolExecutor(3) as pool:
        exporters = [pool.submit(export) for _ in range(3)]
        try:
            table = _open(pds.Store(url))
            for number in range(60):
                _change(table, number)
        finally:
            is_over.set()
        for exporter in exporters:
            exporter.result()
    table.refresh()
    table.export_delta()
    folder = tmp_path / "t"
    assert rows_of(read_delta_rs(folder)) == rows_of(table.scan().to_pyarrow())
    compared = 0
    for path in sorted((folder / "_delta_log").glob("*.json")):
        try:
            expected = table.as_of(int(path.stem))
        except pds.VersionExpired:
            continue
        assert rows_of(read_delta_rs(folder, int(path.stem))) == rows_of(expected.scan().to_pyarrow()), path.stem
        compared += 1
    assert compared > 5

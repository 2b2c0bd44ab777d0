"""Every fault at every request of what writes a Delta log: readers see no wrong row, and the next export mends it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

import pds
from delta_readers import read_delta_rs
from export_faults import change_after_export, change_beside_exports, fill, make_rows, open_table
from exported_tables import rows_of
from fault_runs import DISTINCT, Operation, Run, ended, plan, run_all, store
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]


def _exported(place: pds.Store) -> None:
    fill(place)
    open_table(place).export_delta()
    change_after_export(place)


def _rewritten(place: pds.Store) -> None:
    _exported(place)
    open_table(place).optimize.sort("noise")


OPERATIONS = {
    "begin": Operation(lambda s: open_table(s).export_delta(), fill),
    "go on": Operation(lambda s: open_table(s).export_delta(), _exported),
    "rebuild": Operation(lambda s: open_table(s).export_delta(rebuild=True), _exported),
    "vacuum": Operation(lambda s: open_table(s).vacuum(dt.timedelta(0)), _rewritten, in_steps=True),
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
    table = open_table(store(server))
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
@pytest.mark.parametrize("share", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_one_fault(name: str, share: int, tmp_path: Path) -> None:
    """In the gate each request has a ninth of the faults; `make soak` has them all."""
    operation = OPERATIONS[name]
    with ScriptedS3() as server:
        operation.setup(store(server))
        before = server.save()
        server.restart()
        operation.work(store(server))
        requests = list(server.seen)
        assert _check_log(server, tmp_path / "whole", may_be_missing=False) == open_table(store(server)).version

    def judge(server: ScriptedS3, run: Run) -> None:
        folder = tmp_path / f"{run.number} {run.fault}"
        server.restart(run.faults())
        error = ended(lambda: operation.work(store(server, run)))
        server.restart()
        _check_log(server, folder / "after the fault", may_be_missing=name in ("begin", "rebuild"))
        table = open_table(store(server))
        assert error is not None or name == "vacuum" or table.export_delta().versions == 0
        table.append(make_rows(9000, 3))
        assert table.export_delta().version == table.version
        assert _check_log(server, folder / "mended", may_be_missing=False) == table.version

    run_all(plan(requests, DISTINCT, lasts=False, share=share), before, judge)


def test_exports_at_once(tmp_path: Path) -> None:
    table = change_beside_exports(tmp_path.as_uri(), pds.Table.export_delta)
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

"""Every fault at every request of an import: there is no table, or the whole one, and the next import mends it."""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING

import deltalake
import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import StaticTable

import pds
from delta_readers import read_delta_rs
from exported_tables import SCHEMA, make_rows, rows_of
from fault_runs import DISTINCT, Run, ended, plan, run_all, store
from pds.imports import iceberg
from pds.imports.delta import import_into
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]

OPTIONS = pds.WriteOptions(row_group_size=20)


def _download(place: pds.Store, folder: Path) -> Path:
    for file in place.list_files("t", recursive=True):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(place.read_bytes(file.path))
    return folder / "t"


def _write_delta(folder: Path) -> None:
    """As deltalake does."""
    deltalake.write_deltalake(folder / "t", make_rows(range(60)))
    deltalake.write_deltalake(folder / "t", make_rows(range(60, 65)), mode="append")
    deltalake.DeltaTable(folder / "t").delete("id = 3")


def _export_delta(folder: Path) -> None:
    """Deletion vectors, and a log that is guarded; without what pds itself knows of the table."""
    source = pds.Table.create(pds.Store(folder), "t", SCHEMA, key="id", options=OPTIONS)
    for ids in (range(50), range(50, 60), range(60, 65)):
        source.append(make_rows(ids))
    source.delete("id between 20 and 39 or id % 9 = 0")
    source.export_delta()
    for own in ("manifest", "tombstone"):
        shutil.rmtree(folder / "t" / own)
    (folder / "t" / "_latest_manifest").unlink()


def _without_take_over(place: pds.Store, folder: Path) -> None:
    import_into(place, "t", lambda: deltalake.DeltaTable(folder / "t"), take_over=False)


class _LocalIO(PyArrowFileIO):
    """Opens the metadata, which has locations on S3, in a folder: the faults are those of pds."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(f"{self._folder}/{location.removeprefix('s3://bucket/prefix/')}")


def _export_iceberg(folder: Path) -> None:
    """Position deletes; without what pds itself knows of the table."""
    source = pds.Table.create(pds.Store(folder), "t", SCHEMA, key="id", options=OPTIONS)
    for ids in (range(50), range(50, 60), range(60, 65)):
        source.append(make_rows(ids))
    source.delete("id between 20 and 39 or id % 9 = 0")
    source.export_iceberg("s3://bucket/prefix/t")
    for own in ("manifest", "tombstone"):
        shutil.rmtree(folder / "t" / own)
    (folder / "t" / "_latest_manifest").unlink()


def _read_iceberg(folder: Path) -> StaticTable:
    (metadata,) = (folder / "t" / "metadata").glob("*.metadata.json")
    table = StaticTable.from_metadata(str(metadata))
    table.io = _LocalIO(folder)
    return table


def _import_iceberg(place: pds.Store, folder: Path) -> None:
    iceberg.import_into(place, "t", _read_iceberg(folder), lambda: _read_iceberg(folder))


@pytest.mark.parametrize(
    ("make", "work"),
    [(_write_delta, _without_take_over), (_export_iceberg, _import_iceberg)],
    ids=["delta", "iceberg"],
)
def test_one_fault_of_an_import_that_leaves_the_other_table_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], work: Callable[[pds.Store, Path], None]
) -> None:
    make(tmp_path)
    local = pds.Store(tmp_path)
    contents = {file.path: local.read_bytes(file.path) for file in local.list_files("t", recursive=True)}

    with ScriptedS3() as server, warnings.catch_warnings(action="ignore"):
        for path, content in contents.items():
            store(server).write(path, content)
        before = server.save()
        server.restart()
        work(store(server), tmp_path)
        requests = list(server.seen)
        expected = rows_of(pds.Table(store(server), "t").scan().to_pyarrow())
    if make is _write_delta:
        assert expected == rows_of(read_delta_rs(tmp_path / "t"))
    else:
        assert expected == rows_of(_read_iceberg(tmp_path).scan().to_arrow())

    def judge(server: ScriptedS3, run: Run) -> None:
        server.restart(run.faults())
        error = ended(lambda: work(store(server, run), tmp_path))
        server.restart()
        place = store(server)
        if not pds.Table.exists(place, "t"):
            assert error is not None
            work(place, tmp_path)
        table = pds.Table(place, "t")
        assert rows_of(table.scan().to_pyarrow()) == expected
        assert table.version == 1
        assert {path: place.read_bytes(path) for path in contents} == contents

    with warnings.catch_warnings(action="ignore"):
        runs = plan(requests, DISTINCT, lasts=False) + plan(requests, ["403"], lasts=True)
        run_all(runs, before, judge)


@pytest.mark.parametrize("make", [_write_delta, _export_delta])
@pytest.mark.parametrize("share", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_one_fault(tmp_path: Path, make: Callable[[Path], None], share: int) -> None:
    """In the gate each request has a ninth of the faults; `make soak` has them all."""
    local = tmp_path / "local"
    local.mkdir()
    make(local)
    paths = [file.path for file in pds.Store(local).list_files("t", recursive=True)]
    expected = rows_of(read_delta_rs(local / "t"))

    def work(place: pds.Store, copy: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            import_into(place, "t", lambda: deltalake.DeltaTable(copy), take_over=True)

    with ScriptedS3() as server:
        for path in paths:
            store(server).write(path, pds.Store(local).read_bytes(path))
        before = server.save()
        server.restart()
        work(store(server), local / "t")
        requests = list(server.seen)
        assert rows_of(pds.Table(store(server), "t").scan().to_pyarrow()) == expected

    def judge(server: ScriptedS3, run: Run) -> None:
        server.restart(run.faults())
        error = ended(lambda: work(store(server, run), local / "t"))
        server.restart()
        place = store(server)
        if pds.Table.exists(place, "t"):
            assert rows_of(pds.Table(place, "t").scan().to_pyarrow()) == expected
        else:
            assert error is not None
            work(place, _download(place, tmp_path / f"{run.number} {run.fault} {run.lasts}"))
        table = pds.Table(place, "t")
        assert rows_of(table.scan().to_pyarrow()) == expected
        assert table.version == 1
        log = _download(place, tmp_path / f"{run.number} {run.fault} {run.lasts} after")
        features = deltalake.DeltaTable(log).protocol().writer_features or ()
        assert "pds-readOnly" in features
        assert rows_of(read_delta_rs(log)) == expected

    runs = plan(requests, DISTINCT, lasts=False, share=share) + plan(requests, ["403"], lasts=True)
    run_all(runs, before, judge)

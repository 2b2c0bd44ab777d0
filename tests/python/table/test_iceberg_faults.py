"""Every fault at every request of what writes Iceberg metadata: readers see no wrong row, the next export mends it."""

from __future__ import annotations

import datetime as dt
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

import pds
from export_faults import change_after_export, change_beside_exports, fill, make_rows, open_table
from exported_tables import rows_of
from fault_runs import DISTINCT, Operation, Run, ended, plan, run_all, store
from iceberg_readers import metadata_files, read_pyiceberg, snapshots
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]


class Place:
    """Where readers find the tables of all runs: of one after the other, because paths are absolute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return str(self.folder / "t")

    def operations(self) -> dict[str, Operation]:
        def exported(place: pds.Store) -> None:
            fill(place)
            open_table(place).export_iceberg(self.location)
            change_after_export(place)

        def rewritten(place: pds.Store) -> None:
            exported(place)
            open_table(place).optimize.sort("noise")

        return {
            "begin": Operation(lambda s: open_table(s).export_iceberg(self.location), fill),
            "go on": Operation(lambda s: open_table(s).export_iceberg(), exported),
            "rebuild": Operation(lambda s: open_table(s).export_iceberg(self.location, rebuild=True), exported),
            "vacuum": Operation(lambda s: open_table(s).vacuum(dt.timedelta(0)), rewritten, in_steps=True),
        }

    def check(self, server: ScriptedS3, *, may_be_missing: bool) -> int | None:
        """Compares all versions that were exported and are still there with the table's; gives the newest."""
        table = open_table(store(server))
        with self._lock:
            shutil.rmtree(self.folder, ignore_errors=True)
            for key, stored in server.save().items():
                path = self.folder / key.removeprefix("prefix/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(stored.content)
            files = metadata_files(self.folder / "t")
            assert files or may_be_missing
            newest = snapshots(files[max(files)]) if files else {}
            for version in files.keys() | newest.keys():
                try:
                    expected = table.as_of(version)
                except pds.VersionExpired:
                    if version == max(files):
                        # By a vacuum that could not export, and so has removed nothing.
                        read_pyiceberg(files[version])
                    continue
                if version in newest:
                    rows = read_pyiceberg(files[max(files)], snapshot=newest[version])
                else:
                    rows = read_pyiceberg(files[version])
                assert rows_of(rows) == rows_of(expected.scan().to_pyarrow()), version
            hint = self.folder / "t" / "metadata" / "version-hint.text"
            assert not hint.exists() or int(hint.read_text()) in files
            return max(files, default=None)


@pytest.mark.parametrize("name", ["begin", "go on", "rebuild", "vacuum"])
@pytest.mark.parametrize("share", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_one_fault(name: str, share: int, tmp_path: Path) -> None:
    """In the gate each request has a ninth of the faults; `make soak` has them all."""
    place = Place(tmp_path / "place")
    operation = place.operations()[name]
    with ScriptedS3() as server:
        operation.setup(store(server))
        before = server.save()
        server.restart()
        operation.work(store(server))
        requests = list(server.seen)
        assert place.check(server, may_be_missing=False) == open_table(store(server)).version

    def judge(server: ScriptedS3, run: Run) -> None:
        server.restart(run.faults())
        error = ended(lambda: operation.work(store(server, run)))
        server.restart()
        place.check(server, may_be_missing=name in ("begin", "rebuild"))
        table = open_table(store(server))
        assert error is not None or name == "vacuum" or table.export_iceberg(place.location).versions == 0
        table.append(make_rows(9000, 3))
        assert table.export_iceberg(place.location).version == table.version
        assert place.check(server, may_be_missing=False) == table.version
        hint = server.save()["prefix/t/metadata/version-hint.text"].content
        assert hint == str(table.version).encode()

    run_all(plan(requests, DISTINCT, lasts=False, share=share), before, judge)


def test_exports_at_once(tmp_path: Path) -> None:
    table = change_beside_exports(tmp_path.as_uri(), pds.Table.export_iceberg)
    folder = tmp_path / "t"
    assert rows_of(read_pyiceberg(folder)) == rows_of(table.scan().to_pyarrow())
    compared: list[Any] = []
    files = metadata_files(folder)
    for version, snapshot in snapshots(files[table.version]).items():
        expected = rows_of(table.as_of(version).scan().to_pyarrow())
        assert rows_of(read_pyiceberg(files[table.version], snapshot=snapshot)) == expected, version
        assert rows_of(read_pyiceberg(files[version])) == expected, version
        compared.append(version)
    assert len(compared) > 5

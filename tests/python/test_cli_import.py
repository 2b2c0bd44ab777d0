"""``pds import`` where there is a table already: it names a way out only if that loses nothing of the other system."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from tests.python.conftest import Run

ROWS = pa.table({"a": [1, 2, 3]})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def import_again(run: Run, *argv: str) -> str:
    code, out, err = run("import", *argv)
    assert (code, out) == (1, "")
    assert err.startswith("pds: a table already exists at ")
    return err


@pytest.mark.parametrize("to", ["delta", "iceberg"])
def test_an_export_is_nothing_to_import(run: Run, to: str) -> None:
    pds.write_table("n", ROWS)
    assert run("export", "n", "--to", to)[0] == 0
    err = import_again(run, "n", "--from", to)
    assert "there is nothing to import of its own export" in err
    assert "pds drop" not in err


def test_an_import_can_be_repeated(run: Run) -> None:
    deltalake.write_deltalake("d", ROWS)
    assert run("import", "d")[0] == 0
    pds.open_table("d").append(ROWS)
    err = import_again(run, "d")
    assert "to import it again, run `pds drop d` first" in err
    assert "leaves the files of the Delta table" in err
    assert run("drop", "d", "--yes")[0] == 0
    assert run("import", "d")[0] == 0
    assert pds.open_table("d").scan().count() == ROWS.num_rows


def test_timestamps_of_partitions_need_a_zone(run: Run) -> None:
    at = pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    deltalake.write_deltalake("d", pa.table({"at": at, "n": [1]}), partition_by=["at"])
    code, _, err = run("import", "d")
    assert code != 0
    assert "--partition-time-zone UTC" in err
    assert run("import", "d", "--from", "iceberg", "--partition-time-zone", "UTC")[0] == 2
    assert run("import", "d", "--partition-time-zone", "Europe/Berlin")[0] == 0
    assert pds.open_table("d").scan(where="at = TIMESTAMP '2026-01-31 11:00:00'").count() == 1


def test_what_began_as_something_else_is_not_dropped_for_it(run: Run) -> None:
    """An import of the other format, and a table whose beginning was vacuumed."""
    deltalake.write_deltalake("d", ROWS)
    assert run("import", "d")[0] == 0
    table = pds.open_table("d")
    table.export_iceberg()
    assert import_again(run, "d", "--from", "iceberg") == "pds: a table already exists at \"d\" | path='d'\n"
    table.append(ROWS)
    table.refresh().vacuum(timedelta(0))
    assert pds.open_table("d").history()[-1]["version"] > 1
    assert import_again(run, "d") == "pds: a table already exists at \"d\" | path='d'\n"


def test_a_copied_export_has_files_that_a_drop_deletes(run: Run) -> None:
    pds.write_table("n", ROWS).export_delta()
    shutil.copytree("n/data", "copy/data")
    shutil.copytree("n/_delta_log", "copy/_delta_log")
    assert run("import", "copy")[0] == 0
    err = import_again(run, "copy")
    assert "`pds drop` would delete the imported files" in err
    assert "first" not in err
    assert run("drop", "copy", "--yes")[0] == 0
    assert list(Path("copy").rglob("b*.parquet")) == [], "which is why"

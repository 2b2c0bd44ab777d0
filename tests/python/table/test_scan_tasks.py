"""Tasks of a scan: together they have its rows, whoever reads them."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds
from pds.table.tasks import split_files

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def _rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": ids, "name": [f"{number:030}" for number in ids]}, SCHEMA)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a table with files that segments list and that the manifest lists, and deletions in both."""
    folder = tmp_path_factory.mktemp("filled")
    table = pds.Table.create(pds.Store(folder.as_uri()), "t", SCHEMA, key="id")
    for number in range(80):
        table.append(_rows(10 * number, 10))
    table.delete("id BETWEEN 95 AND 123")
    table.delete("id % 7 = 0")
    table.append(_rows(95, 5))
    assert table._parse_manifest()["segments"]
    return folder


@pytest.fixture
def table(filled: Path, tmp_path: Path) -> pds.Table:
    """A copy of the table."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return pds.Table(pds.Store(tmp_path.as_uri()), "t")


def _concat(tasks: list[Any], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([task.to_pyarrow() for task in tasks] or [schema.empty_table()]).combine_chunks()


@pytest.mark.parametrize("count", [1, 7, 1000])
@pytest.mark.parametrize("where", [None, "id > 90 AND id < 400", pc.field("name") == f"{303:030}", "id < 0"], ids=str)
@pytest.mark.parametrize("columns", [None, ["name"], ["name", "id"]])
def test_the_tasks_have_the_rows_of_the_scan(
    table: pds.Table, count: int, where: str | pc.Expression | None, columns: list[str] | None
) -> None:
    tasks = table.scan_tasks(columns, where=where, count=count, min_bytes=1)
    scan = table.scan(columns, where=where)
    assert _concat(tasks, scan.schema).equals(scan.to_pyarrow().combine_chunks())
    assert all(task.schema == scan.schema for task in tasks)
    assert len(tasks) <= count + 1
    again = pickle.loads(pickle.dumps(tasks))  # noqa: S301 ours
    assert sum(task.count() for task in again) == scan.count()


def test_tasks_are_neither_too_small_nor_too_large(table: pds.Table) -> None:
    file_bytes = table.files()["size_bytes"][0].as_py()
    assert len(table.scan_tasks()) == 1
    assert len(table.scan_tasks(count=1, min_bytes=1, max_bytes=1)) == table.file_count
    assert len(table.scan_tasks(count=1, min_bytes=1, max_bytes=9 * file_bytes)) >= table.file_count // 9
    assert len(table.scan_tasks(count=1000, min_bytes=20 * file_bytes)) <= table.file_count // 19 + 1


@pytest.mark.parametrize("step", [1, 7, 200])
def test_tasks_of_some_files_have_their_rows(table: pds.Table, step: int) -> None:
    sizes = {"count": 3, "min_bytes": 1, "max_bytes": 1 << 30}
    names = ["name", "id"]
    scan = table.scan(names)
    starts = range(0, table.file_count + 1, step)
    parts = [split_files(table, names, (start, start + step), **sizes) for start in starts]
    assert _concat([task for part in parts for task in part], scan.schema).equals(scan.to_pyarrow().combine_chunks())
    rest = split_files(table, names, (step, None), **sizes)
    expected = _concat([task for part in parts[1:] for task in part], scan.schema)
    assert _concat(rest, scan.schema).equals(expected)


def test_a_task_is_of_its_version(table: pds.Table) -> None:
    tasks = table.scan_tasks(["id"], count=3, min_bytes=1)
    before = table.scan(["id"]).to_pyarrow().combine_chunks()
    table.delete("true")
    table.alter.drop_column("name")
    table.optimize.compact()
    assert _concat(tasks, before.schema).equals(before)


def _count(task: Any) -> int:
    found: int = task.count()
    return found


def test_other_processes_read_tasks(table: pds.Table) -> None:
    tasks = table.scan_tasks(where="id > 200", count=4, min_bytes=1)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert sum(pool.map(_count, tasks)) == table.scan(where="id > 200").count()


def test_bad_arguments(table: pds.Table) -> None:
    for bad in (
        {"count": 0},
        {"min_bytes": 0},
        {"min_bytes": 5, "max_bytes": 4},
        {"columns": ["x"]},
        {"where": "x = 1"},
    ):
        with pytest.raises(pds.InvalidInput):
            table.scan_tasks(**bad)
    for bad in ({"count": 1.5}, {"max_bytes": "1"}, {"columns": "id"}):
        with pytest.raises(pds.InvalidType):
            table.scan_tasks(**bad)


def test_bytes_that_are_no_task_are_refused(table: pds.Table) -> None:
    (task,) = table.scan_tasks()
    for damaged in (b"", b"{}", task._files[:-3], task._files[:40] + b"\0\0\0" + task._files[43:]):
        task._files = damaged
        with pytest.raises(pds.InvalidInput, match="not a scan task"):
            task.to_pyarrow()


@pytest.mark.parametrize("where", ["name < CAST(now() AS string)", "random() < 0.5 AND id > 3"])
def test_a_filter_that_may_change_between_tasks_is_refused(table: pds.Table, where: str) -> None:
    with pytest.raises(pds.InvalidInput, match="is not deterministic"):
        table.scan_tasks(where=where)


def test_a_filter_that_cannot_be_sent_is_refused(table: pds.Table) -> None:
    assert table.scan(where=pc.field(0) < 3).count() == 2
    with pytest.raises(pds.InvalidInput, match="name its columns"):
        table.scan_tasks(where=pc.field(0) < 3)


def test_a_task_tells_nothing_of_earlier_commits(table: pds.Table) -> None:
    table.delete(f"id IN ({', '.join(map(str, range(10_000, 40_000)))}) OR id = 5")
    (task,) = table.scan_tasks()
    assert task.size_bytes < 20_000
    assert task.count() == table.scan().count()

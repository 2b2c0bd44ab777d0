"""A vacuum whose objects other processes remove: the same as `Table.vacuum`, whenever and however often they do it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import pds
from pds.table.staged import StagedWrite
from pds.table.vacuum_tasks import Vacuum

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
NO_TIME = dt.timedelta(0)


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"id": range(first, last), "name": [f"n{i}" for i in range(first, last)]}, SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> pds.Store:
    return pds.Store(tmp_path.as_uri())


def make_table(store: pds.Store, path: str = "t") -> pds.Table:
    """A table with many objects that its newest version does not need, and some that no version does."""
    table = pds.Table.create(store, path, SCHEMA, key="id")
    lost = begin(table)
    for number in range(8):
        lost.stage(rows(900, 901).to_reader())
        table.append(rows(number * 10, number * 10 + 10))
    table.delete("id % 7 = 1")
    table.tags.create("early", 4)
    table.optimize.compact()
    table.delete("id % 7 = 2")
    return table


def begin(table: pds.Table) -> StagedWrite:
    write, _ = StagedWrite.begin(table, overwrite=False, where=None, idempotency_key=None, if_version=None)
    return write


def objects(store: pds.Store, path: str = "t") -> set[str]:
    return {str(info.path).removeprefix(f"{path}/") for info in store.list_files(path, recursive=True)}


def content(table: pds.Table) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = table.scan().to_pyarrow().to_pylist()
    return listed


@pytest.mark.parametrize(("size", "most"), [(1, 1000), (3, 1000), (1, 4), (1000, 1000)])
def test_the_same_objects_go(store: pds.Store, size: int, most: int) -> None:
    table = make_table(store)
    early, newest, before = content(table.as_of("early")), content(table), objects(store)
    expected = table.vacuum(NO_TIME, dry_run=True)
    vacuum = Vacuum(table, NO_TIME, objects=size, max_tasks=most)
    # What is named is what a vacuum by one process would have removed, and the version before its own commit.
    assert vacuum.result.oldest_version == expected.oldest_version
    assert set(vacuum.result.files) == set(expected.files)
    assert set(vacuum.result.manifests) == set(expected.manifests)
    assert vacuum.result.bytes == expected.bytes
    assert before < objects(store), "nothing has been removed yet"
    sizes = [len(task.files) + len(task.manifests) for task in vacuum.tasks]
    assert sum(sizes) == len(expected.files) + len(expected.manifests)
    assert max(sizes) <= max(size, -(-sum(sizes) // most))
    assert len(sizes) <= most
    assert size > 1 or most < 1000 or set(sizes) == {1}
    for task in reversed(vacuum.tasks):
        sent = pickle.loads(pickle.dumps(task))  # noqa: S301 our own
        # Spark may run a task twice.
        assert sent.run() == sent.run(1) == []
    vacuum.end()
    assert objects(store) & before == before - {*expected.files, *expected.manifests}
    assert content(table) == newest
    assert content(table.as_of("early")) == early
    assert table.check() == pds.table.CheckResult(table.version, [], [], [])
    again = table.vacuum(NO_TIME)
    assert (again.files, len(again.manifests)) == ([], 1)


def test_what_is_young_or_needed_stays(store: pds.Store) -> None:
    table = make_table(store)
    before = objects(store)
    vacuum = Vacuum(table, dt.timedelta(hours=1), objects=1, max_tasks=9)
    assert (vacuum.tasks, vacuum.result.files, vacuum.result.manifests) == ([], [], [])
    vacuum.end()
    assert before < objects(store)
    with pytest.raises(pds.InvalidInput, match="retention"):
        Vacuum(table, -dt.timedelta(seconds=1), objects=1, max_tasks=9)
    with pytest.raises(pds.InvalidType, match="retention must be a timedelta"):
        Vacuum(table, 3, objects=1, max_tasks=9)  # type: ignore[arg-type]


def test_tasks_that_are_late_hit_nothing_of_a_table_that_came_later(store: pds.Store) -> None:
    """Whose manifests have the same names."""
    table = make_table(store)
    vacuum = Vacuum(table, NO_TIME, objects=2, max_tasks=100)
    assert "manifest/v00000003.json" in vacuum.result.manifests
    pds.Table.drop(store, "t")
    later = make_table(store)
    before, rows_before = objects(store), content(later)
    for task in vacuum.tasks:
        with pytest.raises(pds.TransactionExpired, match="created again"):
            task.run()
    assert objects(store) == before
    assert content(later.refresh()) == rows_before
    assert content(later.as_of(3)) == rows(0, 20).to_pylist()


def test_tasks_that_see_another_table_say_so(store: pds.Store, tmp_path: Path) -> None:
    """A worker that does not share the folder, and a task that runs after the table is back from a copy."""
    table = make_table(store)
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    vacuum = Vacuum(table, NO_TIME, objects=2, max_tasks=100)
    elsewhere = pds.Store((tmp_path / "elsewhere").as_uri())
    with pytest.raises(pds.NotFound):
        dataclasses.replace(vacuum.tasks[0], store=elsewhere).run()
    shutil.rmtree(tmp_path / "t")
    shutil.move(tmp_path / "copy", tmp_path / "t")
    before = objects(store)
    for task in vacuum.tasks:
        with pytest.raises(pds.TransactionExpired):
            task.run()
    assert objects(store) == before
    assert content(pds.Table(store, "t").as_of(3)) == rows(0, 20).to_pylist()


def test_a_writer_that_began_before_the_vacuum_is_refused_before_its_files_go(store: pds.Store) -> None:
    table = make_table(store)
    write = begin(table)
    staged = write.stage(rows(500, 510).to_reader())
    table.append(rows(600, 601))
    vacuum = Vacuum(table, NO_TIME, objects=1, max_tasks=100)
    assert any(path.endswith(".parquet") for task in vacuum.tasks for path in task.files)
    with pytest.raises(pds.TransactionExpired):
        write.commit(table, [staged])
    for task in vacuum.tasks:
        task.run()
    vacuum.end()
    assert table.check().ok


def test_what_was_not_removed_goes_with_the_next_vacuum(store: pds.Store) -> None:
    table = make_table(store)
    newest = content(table)
    vacuum = Vacuum(table, NO_TIME, objects=1, max_tasks=100)
    for task in vacuum.tasks[::2]:
        task.run()
    assert table.refresh().check().missing == []
    expected = {*vacuum.result.files, *vacuum.result.manifests} & objects(store)
    removed = table.vacuum(NO_TIME)
    assert expected <= {*removed.files, *removed.manifests}
    assert table.check().orphans == []
    assert content(table) == newest
    # The tasks that ran no more.
    for task in vacuum.tasks:
        task.run()
    assert content(table.refresh()) == newest


def test_exports_are_brought_up_to_date_before_anything_goes(store: pds.Store, tmp_path: Path) -> None:
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    for first in range(0, 50, 10):
        table.append(rows(first, first + 10))
    table.export_delta()
    table.append(rows(700, 705))
    table.optimize.compact()
    vacuum = Vacuum(table, NO_TIME, objects=1, max_tasks=100)
    assert len(vacuum.result.files) == 6
    for task in vacuum.tasks:
        task.run()
    vacuum.end()
    exported = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert sorted(exported["id"].to_pylist()) == sorted(row["id"] for row in content(table))


def test_a_folder_that_became_a_link_keeps_its_files(store: pds.Store, tmp_path: Path) -> None:
    """As after a move to another disk: they may be those of another table."""
    table = make_table(store)
    shutil.copytree(tmp_path / "t", tmp_path / "other")
    other = pds.Table(store, "other")
    expected = content(other.as_of(4))
    vacuum = Vacuum(table, NO_TIME, objects=1, max_tasks=4)
    shutil.rmtree(tmp_path / "t" / "data")
    (tmp_path / "t" / "data").symlink_to(tmp_path / "other" / "data")
    for task in vacuum.tasks:
        with pytest.raises(pds.InvalidPath):
            task.run()
    assert content(other.as_of(4)) == expected

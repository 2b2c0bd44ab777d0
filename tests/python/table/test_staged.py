"""Writes of which some processes stage the rows and one commits them: `pds.table.staged`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds
from pds.table.staged import StagedWrite
from pds.table.task_changes import ReplacedSearch

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def store(tmp_path: Path) -> pds.Store:
    return pds.Store(tmp_path.as_uri())


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    table = pds.Table.create(store, "t", SCHEMA)
    table.append(rows(0))
    return table


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{number}" for number in ids]}, SCHEMA)


def ids(table: pds.Table) -> list[int]:
    return sorted(pds.Table(table.store, table.path).scan(["id"]).to_pyarrow()["id"].to_pylist())


def begin(table: pds.Table, **options: Any) -> StagedWrite:
    defaults: dict[str, Any] = {"overwrite": False, "where": None, "idempotency_key": None, "if_version": None}
    write, replay = StagedWrite.begin(table, **(defaults | options))
    assert replay is None
    return write


def files(table: pds.Table) -> set[str]:
    return {info.path for info in table.store.list_files("t", recursive=True) if info.path.endswith(".parquet")}


def test_lists_are_committed_in_their_order_and_the_others_removed(table: pds.Table) -> None:
    before = files(table)
    write = begin(table)
    lists = [write.stage(rows(number, number + 10).to_reader()) for number in (3, 1, 2)]
    empty = write.stage(rows().to_reader())
    assert ids(table) == [0]
    write.discard([lists[1]])
    result = write.commit(table, [lists[2], empty, lists[0]])
    assert (result.rows, result.files, result.version) == (4, 2, 3)
    assert table.scan().to_pyarrow()["id"].to_pylist() == [0, 2, 12, 3, 13]
    assert len(files(table) - before) == 2


def test_another_process_stages(table: pds.Table) -> None:
    write = begin(table)
    code = """
import pickle, sys
import pyarrow as pa
write = pickle.load(sys.stdin.buffer)
rows = pa.table({"id": pa.array([7, 8], pa.int64()), "name": ["a", None]})
sys.stdout.buffer.write(write.stage(rows.to_reader(), 1))
"""
    run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(write), stdout=subprocess.PIPE, check=True)
    write.commit(table, [run.stdout])
    assert ids(table) == [0, 7, 8]


def test_a_write_of_a_table_that_was_made_anew_is_refused(table: pds.Table, store: pds.Store) -> None:
    """Whose version has the same number, a lower one, or one far away."""
    for versions in (0, 1, 100):
        write = begin(table)
        staged = write.stage(rows(5).to_reader())
        pds.Table.drop(store, "t")
        with pytest.raises(pds.NotFound):
            write.commit_once(table, [staged])
        other = pds.Table.create(store, "t", SCHEMA)
        for number in range(versions):
            other.append(rows(number))
        with pytest.raises(pds.TransactionExpired, match="created again"):
            write.commit_once(table, [staged])
        with pytest.raises(pds.TransactionExpired):
            write.stage(rows(6).to_reader())
        assert ids(other) == list(range(versions))
        assert other.refresh().check().orphans == []
        table = other


def test_a_write_that_outlives_a_vacuum_is_refused(table: pds.Table) -> None:
    write = begin(table)
    staged = write.stage(rows(5).to_reader())
    for number in range(1, 4):
        table.append(rows(number))
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pds.TransactionExpired):
        write.commit_once(table, [staged])
    assert ids(table) == [0, 1, 2, 3]
    assert table.refresh().check().orphans == []


def test_a_write_that_began_many_versions_ago(table: pds.Table) -> None:
    write = begin(table)
    staged = write.stage(rows(1000).to_reader())
    for number in range(1, 100):
        table.append(rows(number))
    table.alter.rename_column("name", "title")
    write.commit(table, [staged])
    assert ids(table) == [*range(100), 1000]
    assert table.scan(where="id = 1000").to_pyarrow()["title"].to_pylist() == ["n1000"]


def test_a_key_and_a_required_version(table: pds.Table) -> None:
    write = begin(table, idempotency_key="k", if_version=2)
    staged = write.stage(rows(1).to_reader())
    second = write.stage(rows(2).to_reader())
    first = write.commit(table, [staged])
    # The driver is tried again.
    replay = write.commit(table, [second])
    assert replay.replayed
    assert replay.commit_id == first.commit_id
    write.discard([second])
    _, again = StagedWrite.begin(table, overwrite=False, where=None, idempotency_key="k", if_version=None)
    assert again is not None
    assert (again.replayed, again.commit_id) == (True, first.commit_id)
    with pytest.raises(pds.CommitConflict):
        begin(table, if_version=2)
    late = begin(table, if_version=3)
    staged = late.stage(rows(3).to_reader())
    table.append(rows(4))
    with pytest.raises(pds.CommitConflict):
        late.commit_once(table, [staged])
    assert ids(table) == [0, 1, 4]
    assert table.refresh().check().orphans == []


@pytest.mark.parametrize("where", ["id < 10", pc.field("id") < 10])
def test_rows_of_a_filter_are_replaced(table: pds.Table, where: Any) -> None:
    table.append(rows(9, 10, 11))
    write = pickle.loads(pickle.dumps(begin(table, overwrite=True, where=where)))  # noqa: S301 our own
    with pytest.raises(pds.InvalidInput, match="does not satisfy"):
        write.stage(rows(5, 12).to_reader())
    staged = write.stage(rows(5, 6).to_reader())
    table.append(rows(7, 12))
    write.commit(table, [staged])
    assert ids(table) == [5, 6, 10, 11, 12]


def test_arguments_are_checked(table: pds.Table) -> None:
    for options in ({"idempotency_key": ""}, {"if_version": 0}, {"overwrite": True, "where": "random() < 1"}):
        with pytest.raises(pds.InvalidInput):
            begin(table, **options)
    write = begin(table)
    for bad in (pa.table({"id": ["a"]}), pa.table({"id": [1], "other": [1]}), pa.table({"name": ["a"]})):
        with pytest.raises(pds.InvalidInput):
            write.stage(bad.to_reader())
    for damaged in (b"", b"{}", write.stage(rows(1).to_reader())[:-4]):
        with pytest.raises(pds.InvalidInput, match="not the message of a task"):
            write.commit(table, [damaged])
    assert ids(table) == [0]


def test_the_same_lists_are_committed_once(table: pds.Table) -> None:
    """By a driver that does not know how its first attempt ended, whatever happened since then."""
    write = begin(table)
    lists = [write.stage(rows(1).to_reader()), write.stage(rows(2).to_reader())]
    first = write.commit(table, lists)
    for change in (lambda: table.append(rows(3)), table.optimize.compact, lambda: table.vacuum(dt.timedelta(0))):
        change()
        again = write.commit(table, lists)
        assert (again.replayed, again.commit_id) == (True, first.commit_id)
        assert ids(table) == [0, 1, 2, *([3] if table.version > 3 else [])]


def test_another_place_is_noticed_before_anything_is_written(table: pds.Table, tmp_path: Path) -> None:
    """A folder that processes do not share."""
    write = begin(table)
    for other in (tmp_path / "elsewhere", tmp_path / "beside"):
        elsewhere = dataclasses.replace(write, store=pds.Store(other.as_uri()))
        if other.name == "beside":
            pds.Table.create(elsewhere.store, "t", SCHEMA).append(rows(0))
        with pytest.raises(pds.TransactionExpired):
            elsewhere.stage(rows(1).to_reader())
        assert not [path for path in other.rglob("*.parquet") if "00000001" not in path.name]


WIDER = pa.schema(
    [("extra", pa.float64()), pa.field("id", pa.int64(), nullable=False), ("nested", pa.struct([("a", pa.int64())]))]
)


def wider(*ids: int) -> pa.Table:
    """Rows with two columns that the table does not have, and without one that it has."""
    columns = {"extra": [number / 4 for number in ids], "id": ids, "nested": [{"a": number} for number in ids]}
    return pa.table(columns, WIDER)


@pytest.mark.parametrize("lists", [0, 1, 3])
def test_new_columns_are_added_with_the_rows(table: pds.Table, store: pds.Store, lists: int) -> None:
    """As an append of the same rows by one process adds them."""
    twin = pds.Table.create(store, "twin", SCHEMA)
    twin.append(rows(0))
    content = [wider(number, number + 10) for number in range(1, lists + 1)]
    twin.append(pa.concat_tables([WIDER.empty_table(), *content]), schema_mode="merge")
    write = pickle.loads(pickle.dumps(begin(table).with_new_columns(WIDER)))  # noqa: S301 our own
    staged = [write.stage(part.to_reader()) for part in content]
    assert pds.Table(store, "t").schema.equals(SCHEMA), "nothing is added yet"
    result = write.commit(table, staged)
    assert (result.version, result.rows) == (3, 2 * lists)
    assert table.schema.equals(twin.schema)
    assert table.scan().to_pyarrow().equals(twin.scan().to_pyarrow())
    added = [t.history(1)[0]["operation"]["columns_added"] for t in (table, twin)]
    assert added == [["extra", "nested"]] * 2
    again = write.commit(table, staged)
    assert (again.replayed, again.version) == (True, 3)
    assert table.as_of(2).schema.equals(SCHEMA)
    assert table.check().orphans == []


def test_columns_that_the_table_has_are_not_added(table: pds.Table) -> None:
    write = begin(table).with_new_columns(SCHEMA)
    assert write.new_columns == ()
    write.commit(table, [write.stage(rows(1).to_reader())])
    assert "columns_added" not in table.history(1)[0]["operation"]
    assert ids(table) == [0, 1]


def read_wider(table: pds.Table) -> list[tuple[Any, ...]]:
    newest = pds.Table(table.store, table.path)
    return [tuple(row.values()) for row in newest.scan(["id", "extra", "nested"]).to_pyarrow().to_pylist()]


def test_new_columns_and_commits_in_between(table: pds.Table) -> None:
    """Others take the ids of the new columns, add one of them, or the same."""
    write = begin(table).with_new_columns(WIDER)
    staged = [write.stage(wider(1).to_reader())]
    other = pds.Table(table.store, "t")
    other.alter.add_column("taken", pa.int64())
    other.append(pa.table({"id": [5], "taken": [55]}))
    write.commit(table, staged)
    assert table.schema.names == ["id", "name", "taken", "extra", "nested"]
    assert read_wider(table) == [(0, None, None), (5, None, None), (1, 0.25, {"a": 1})]
    assert table.scan(["taken"]).to_pyarrow()["taken"].to_pylist() == [None, 55, None]
    second = begin(table).with_new_columns(pa.schema([*WIDER, ("last", pa.string())]))
    staged = [second.stage(wider(2).append_column("last", pa.array(["z"])).to_reader())]
    other.append(pa.table({"id": [6], "last": ["y"]}), schema_mode="merge")
    second.commit(table, staged)
    assert "columns_added" not in table.history(1)[0]["operation"]
    assert table.scan(["id", "last"]).to_pyarrow().to_pylist()[-2:] == [{"id": 6, "last": "y"}, {"id": 2, "last": "z"}]


@pytest.mark.parametrize("taken", [pa.string(), pa.int64()])
def test_a_new_column_that_another_commit_adds_with_another_type(table: pds.Table, taken: pa.DataType) -> None:
    write = begin(table).with_new_columns(WIDER)
    staged = [write.stage(wider(1).to_reader())]
    pds.Table(table.store, "t").alter.add_column("extra", taken)
    with pytest.raises(pds.TransactionExpired, match="write again"):
        write.commit_once(table, staged)
    assert ids(table) == [0]
    assert table.refresh().schema.names == ["id", "name", "extra"]
    assert table.check().orphans == []


def test_new_columns_that_cannot_be_added(table: pds.Table) -> None:
    for field, message in (
        (pa.field("", pa.int64()), "name"),
        (pa.field("_change_type", pa.string()), "scan_changes"),
        (pa.field("extra", pa.list_(pa.null())), "cast it"),
        (pa.field("extra", pa.null()), "cast it"),
    ):
        with pytest.raises(pds.InvalidInput, match=message):
            begin(table).with_new_columns(pa.schema([*SCHEMA, field]))
    replacing = begin(table, overwrite=True).with_new_columns(WIDER)
    staged = [replacing.stage(wider(1).to_reader())]
    with pytest.raises(pds.InvalidInput, match="by appends only"):
        replacing.commit(table, staged)
    replacing.discard(staged)
    assert table.refresh().version == 2
    assert table.check().orphans == []


def test_what_tasks_found_is_replaced(table: pds.Table) -> None:
    """By a commit that does not read the files again; a message that is lost is an error, and nothing changes."""
    for first in range(10, 60, 10):
        table.append(rows(*range(first, first + 10)))
    where = "id % 2 = 0"
    write = begin(table, overwrite=True, where=where)
    lists = [write.stage(rows(100).to_reader())]
    search = ReplacedSearch(table, where, count=100, min_bytes=1, max_bytes=1)
    assert len(search.tasks) == 6
    messages = [message for task in search.tasks for message in pickle.loads(pickle.dumps(task)).run()]  # noqa: S301 our own
    before = ids(table)
    for some in (messages[1:], [*messages, messages[0]], []):
        with pytest.raises(pds.RemoteStoreError, match="6 files were to be searched"):
            write.commit(table, lists, search.end(some))
    assert ids(table) == before
    # Neither these nor a compaction make it search the files that it knows: they cannot be read.
    table.append(rows(61, 62, 63))
    hidden = [table.store.read_bytes(f"t/{path}") for path in table.files()["path"].to_pylist()[:6]]
    for path in table.files()["path"].to_pylist()[:6]:
        table.store.write(f"t/{path}", b"not to be read", overwrite=True)
    result = write.commit(table, lists, search.end(messages))
    for path, content in zip(table.as_of(8).files()["path"].to_pylist(), hidden, strict=False):
        table.store.write(f"t/{path}", content, overwrite=True)
    assert result.rows == 1
    assert ids(table) == [*(number for number in before if number % 2), 61, 63, 100]
    again = write.commit(table, lists, search.end(messages))
    assert (again.replayed, again.version) == (True, result.version)

"""Writes that many processes prepare and one commits: `Table.begin_write`."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from pds.table.distributed import TableWrite

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def make_rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{number}" for number in ids]}, SCHEMA)


@pytest.fixture
def table(local_store: pds.Store) -> pds.Table:
    table = pds.Table.create(local_store, "t", SCHEMA)
    table.append(make_rows(0))
    return table


def read_ids(table: pds.Table) -> list[int]:
    return pds.Table(table.store, table.path).scan(["id"]).to_pyarrow()["id"].to_pylist()


def prepare_range(write: TableWrite, begin: int) -> bytes:
    return write.prepare(make_rows(*range(begin, begin + 10)), threads=1)


def read_task(task: Any) -> int:
    return sum(task.to_pyarrow()["id"].to_pylist())


def test_processes_prepare_and_one_commits(table: pds.Table) -> None:
    write = table.begin_write()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        messages = list(pool.map(prepare_range, [write] * 4, range(10, 50, 10)))
        assert read_ids(table) == [0]
        result = write.commit(messages)
        assert (result.rows, result.files, result.version, table.version) == (40, 4, 3, 3)
        assert read_ids(table) == [0, *range(10, 50)]
        tasks = table.scan_tasks(["id"], min_bytes=1, max_bytes=1)
        assert len(tasks) > 1
        assert sum(pool.map(read_task, tasks)) == sum(range(10, 50))


def test_a_commit_that_is_repeated_changes_nothing(table: pds.Table) -> None:
    write = table.begin_write()
    messages = [write.prepare(make_rows(1)), write.prepare(make_rows(2)), write.prepare(make_rows())]
    first = write.commit([messages[1], messages[0], messages[1], messages[2], messages[2]])
    assert read_ids(table) == [0, 2, 1]
    again = pickle.loads(pickle.dumps(write)).commit(messages)  # noqa: S301 our own
    assert (again.version, again.replayed) == (first.version, True)
    assert read_ids(table) == [0, 2, 1]


def test_a_lost_answer_of_a_commit(table: pds.Table) -> None:
    """A driver that dies after its commit begins again with its key."""
    write = table.begin_write(idempotency_key="job 7")
    assert write.committed is None
    first = write.commit([write.prepare(make_rows(1))])
    repeated = table.begin_write(idempotency_key="job 7")
    assert repeated.committed is not None
    assert repeated.committed.version == first.version
    assert repeated.commit([]).replayed
    assert read_ids(table) == [0, 1]


def test_commits_do_not_lose_each_other(table: pds.Table) -> None:
    writes = [table.begin_write() for _ in range(3)]
    messages = [[write.prepare(make_rows(number))] for number, write in enumerate(writes, 1)]
    table.append(make_rows(9))
    for write, prepared in zip(writes, messages, strict=True):
        write.commit(prepared)
    assert read_ids(table) == [0, 9, 1, 2, 3]


def test_overwrites(table: pds.Table) -> None:
    table.append(make_rows(1, 2, 3))
    write = table.begin_write("overwrite", "id >= 2")
    with pytest.raises(pds.InvalidInput, match="does not satisfy"):
        write.prepare(make_rows(1))
    write.commit([write.prepare(pl.DataFrame({"id": [7]}))])
    assert read_ids(table) == [0, 1, 7]
    write = table.begin_write("overwrite", if_version=table.version)
    message = write.prepare(make_rows(8).to_reader())
    table.append(make_rows(5))
    with pytest.raises(pds.CommitConflict):
        write.commit([message])
    write = table.begin_write("overwrite")
    write.commit([write.prepare(make_rows(8))])
    assert read_ids(table) == [8]


def test_messages_of_another_write_are_refused(table: pds.Table) -> None:
    """Their files may have been committed and rewritten, or removed, or be of another table."""
    write = table.begin_write()
    messages = [write.prepare(make_rows(number)) for number in (1, 2)]
    write.commit(messages)
    table.optimize.compact()
    other = pds.Table.create(table.store, "other", SCHEMA)
    for later in (table.begin_write(), table.begin_write("overwrite", "id > 5"), other.begin_write()):
        with pytest.raises(pds.InvalidInput, match="not of this write"):
            later.commit(messages)
    assert read_ids(table) == [0, 1, 2]
    assert read_ids(other) == []


def test_each_set_of_messages_is_one_commit(table: pds.Table) -> None:
    """Also of copies of the write: no commit is taken for that of other messages."""
    write = table.begin_write()
    copies = [pickle.loads(pickle.dumps(write)) for _ in range(3)]  # noqa: S301 our own
    messages = [write.prepare(make_rows(number)) for number in (1, 2, 3)]
    results = [copy.commit([message]) for copy, message in zip(copies, messages, strict=True)]
    assert [(result.rows, result.replayed) for result in results] == [(1, False)] * 3
    assert copies[2].commit([messages[0]]).replayed
    assert write.commit([messages[1]]).replayed
    assert read_ids(table) == [0, 1, 2, 3]
    with pytest.raises(pds.InvalidInput, match="committed before"):
        write.commit(messages)


def test_a_write_is_older_than_a_vacuum(table: pds.Table) -> None:
    write = table.begin_write()
    message = write.prepare(make_rows(1))
    table.append(make_rows(2))
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pds.TransactionExpired):
        write.commit([message])
    assert read_ids(table) == [0, 2]


def test_arguments_that_are_not_valid(table: pds.Table) -> None:
    write = table.begin_write()
    message = write.prepare(make_rows(1))
    anything: Any = write
    for error, call in (
        (pds.InvalidInput, lambda: table.begin_write("merge")),  # type: ignore[arg-type]
        (pds.InvalidInput, lambda: table.begin_write("append", "id > 1")),
        (pds.InvalidInput, lambda: table.begin_write("overwrite", "nothing > 1")),
        (pds.CommitConflict, lambda: table.begin_write(if_version=1)),
        (pds.InvalidType, lambda: write.commit(message)),  # type: ignore[arg-type]
        (pds.InvalidType, lambda: anything.commit([None])),
        (pds.InvalidInput, lambda: write.commit([b"message"])),
        (pds.InvalidType, lambda: anything.commit(["message"])),
        (pds.InvalidType, lambda: anything.commit([bytearray(message)])),
        (pds.InvalidType, lambda: write.prepare(7)),
        (pds.InvalidInput, lambda: write.prepare(make_rows(1), threads=0)),
        (pds.InvalidInput, lambda: write.prepare(pa.table({"other": [1]}))),
    ):
        with pytest.raises(error):
            call()
    assert read_ids(table) == [0]

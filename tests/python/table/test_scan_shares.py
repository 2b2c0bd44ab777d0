"""Tasks that read shares of a large file: together they read each of its rows once."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds
from pds import _pds
from pds.store import native_handle
from pds.table.scan import TableScan
from pds.table.staged import StagedWrite
from pds.table.task_changes import DeleteTask, ReplacedSearch, TaskChange, commit_options
from pds.table.tasks import ScanTask, split_files, split_search, split_verification

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("x", pa.float64())])
GROUP_ROWS = 10
HUGE = 1 << 40


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    names = [None if number % 11 == 0 else f"name {number:030}" for number in ids]
    return pa.table({"id": ids, "name": names, "x": [number / 7 for number in ids]}, SCHEMA)


def create(store: pds.Store, *groups: int, key: str | tuple[str, ...] = "id") -> pds.Table:
    """A table with a file for each number of row groups."""
    options = pds.WriteOptions(row_group_size=GROUP_ROWS, compression="none")
    table = pds.Table.create(store, "t", SCHEMA, key=key, options=options)
    first = 0
    for count in groups:
        table.append(rows(first, count * GROUP_ROWS))
        first += count * GROUP_ROWS
    assert table.files()["row_group_count"].to_pylist() == list(groups)
    return table


def split(table: pds.Table, count: int, columns: list[str] | None = None, where: Any = None) -> list[ScanTask]:
    """About as many tasks, as another process gets them."""
    tasks = table.scan_tasks(columns, where=where, count=count, min_bytes=1, max_bytes=HUGE)
    sent: list[ScanTask] = pickle.loads(pickle.dumps(tasks))  # noqa: S301 ours
    return sent


def concat(tasks: list[ScanTask], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([task.to_pyarrow() for task in tasks] or [schema.empty_table()]).combine_chunks()


def check(table: pds.Table, count: int, columns: list[str] | None = None, where: Any = None) -> list[ScanTask]:
    """Compare the rows of tasks, and what they count, with those of the scan. Return the tasks."""
    scan = table.scan(columns, where=where)
    tasks = split(table, count, columns, where)
    assert concat(tasks, scan.schema).equals(scan.to_pyarrow().combine_chunks())
    for task in tasks:
        expected = task.to_pyarrow().num_rows
        assert task.count() == expected
        # Without columns there are footers to read and nothing else, unless rows are selected.
        bare = ScanTask(table.store, table.path, [], where, task.to_bytes())
        assert bare.to_pyarrow().num_rows == expected
    return tasks


@pytest.mark.parametrize("groups", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 99, 100, 250])
def test_each_row_of_a_file_is_read_once(memory_store: pds.Store, groups: int, count: int) -> None:
    table = create(memory_store, groups)
    tasks = check(table, count)
    assert len(tasks) == min(groups, count)
    assert sum(task.count() for task in tasks) == groups * GROUP_ROWS
    if groups >= 2 * count:
        # All row groups have about one size.
        assert all(task.count() >= GROUP_ROWS for task in tasks)


def pack_shares(table: pds.Table, shares: dict[str, Any]) -> ScanTask:
    """A task with all files of a table, of which it has shares that no planner makes."""
    (whole,) = table.scan_tasks(count=1, min_bytes=HUGE, max_bytes=HUGE)
    manifest = pa.CompressedInputStream(pa.BufferReader(whole.to_bytes()), "zstd").read()
    line = json.dumps({"shares": shares}, separators=(",", ":")).encode()
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(line + b"\n" + manifest)
    return ScanTask(table.store, table.path, None, None, packed.getvalue().to_pybytes())


@pytest.mark.parametrize("groups", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [1, 2, 7, 101, 250])
def test_more_shares_than_row_groups(memory_store: pds.Store, groups: int, count: int) -> None:
    """They are made of files that are listed without the number of their row groups."""
    table = create(memory_store, groups)
    path = table.files()["path"][0].as_py()
    tasks = [pack_shares(table, {path: {"index": index, "count": count}}) for index in range(count)]
    assert concat(tasks, SCHEMA).equals(table.scan().to_pyarrow().combine_chunks())
    counts = [task.count() for task in tasks]
    assert sum(counts) == groups * GROUP_ROWS
    assert counts.count(0) >= count - groups


@pytest.mark.parametrize(
    "shares",
    [
        {"a": {"index": 3, "count": 3}},
        {"a": {"index": 0, "count": 0}},
        {"a": {"index": -1, "count": 3}},
        {"a": {"index": 0, "count": 3, "columns": 1}},
        {"a": 1},
    ],
    ids=str,
)
def test_a_task_of_a_share_that_does_not_exist_is_refused(memory_store: pds.Store, shares: dict[str, Any]) -> None:
    task = pack_shares(create(memory_store, 2), shares)
    for read in (task.to_pyarrow, task.count, task.find_rows, task.verify):
        with pytest.raises(pds.InvalidInput, match="not a scan task"):
            read()


@pytest.mark.parametrize("count", [1, 3, 8, 40])
def test_small_files_are_joined_and_large_ones_split(memory_store: pds.Store, count: int) -> None:
    table = create(memory_store, 1, 40, 1, 1, 1, 15, 2, 60, 1)
    tasks = check(table, count)
    assert count // 2 <= len(tasks) <= 2 * count + 1
    check(table, count, ["name"])
    check(table, count, ["x", "id"], "id BETWEEN 395 AND 700")


def test_a_task_is_not_larger_than_it_may_be(memory_store: pds.Store) -> None:
    table = create(memory_store, 40)
    file_bytes = table.files()["size_bytes"][0].as_py()

    def number(**sizes: int) -> int:
        return len(table.scan_tasks(**{"count": 1, "min_bytes": 1, "max_bytes": HUGE} | sizes))

    assert number() == number(count=1000, min_bytes=file_bytes) == 1
    assert number(max_bytes=file_bytes // 4) == 4
    assert number(max_bytes=1) == number(count=1000) == 40
    # A file that is a little larger than a task is one.
    assert number(max_bytes=file_bytes * 3 // 4) == 1
    assert number(max_bytes=file_bytes * 2 // 3 - 1) == 2
    # Of a file the columns that are read count.
    assert len(table.scan_tasks(["x"], count=1, min_bytes=1, max_bytes=file_bytes // 4)) < 4


DELETES: dict[str, list[str]] = {
    "rows": ["id % 3 = 1", "x > 5 AND id % 7 = 2"],
    "row groups": ["id + 0 BETWEEN 200 AND 349", "id % 10 = 4 AND id > 100"],
    "keys": ["id BETWEEN 95 AND 303", "id BETWEEN 310 AND 311", "id % 5 = 0"],
    "all of the first": ["id + 0 < 400"],
}


@pytest.mark.parametrize("deletes", DELETES)
@pytest.mark.parametrize("count", [1, 5, 13, 100])
def test_deleted_rows_are_in_no_share(memory_store: pds.Store, deletes: str, count: int) -> None:
    table = create(memory_store, 40, 1, 20)
    for where in DELETES[deletes]:
        table.delete(where)
    check(table, count)
    for where in ("id % 2 = 0", "name LIKE '%7'", "id BETWEEN 190 AND 205"):
        check(table, count, ["x"], where)
    assert sum(task.count() for task in split(table, count)) == table.scan().count()


@pytest.mark.parametrize("count", [1, 4, 40])
@pytest.mark.parametrize(
    "where",
    ["id >= 0", "id = 237", "id IN (1, 399, 200)", "id > 390 OR id < 5", "name IS NULL", "x > 1e9", "id < 0"],
)
def test_filters_select_row_groups_of_each_share(memory_store: pds.Store, where: str, count: int) -> None:
    table = create(memory_store, 40)
    for columns in (None, ["name"]):
        check(table, count, columns, where)
    check(table, count, ["id"], pc.field("x") < 20)


def test_pages_are_read_of_each_share(memory_store: pds.Store) -> None:
    options = pds.WriteOptions(row_group_size=30_000, compression="none")
    table = pds.Table.create(memory_store, "t", SCHEMA, options=options)
    table.append(rows(0, 120_000))
    table.delete("id BETWEEN 50000 AND 50100 OR id % 1000 = 7")
    for where in ("id = 77777", "id BETWEEN 29990 AND 30100", "id IN (1, 59999, 60000, 119999)"):
        tasks = check(table, 4, ["id", "name"], where)
        memory_store.reset_metrics()
        assert concat(tasks, table.scan(["id", "name"]).schema).num_rows == table.scan(where=where).count()
        assert memory_store.metrics()["bytes_read"] < table.files()["size_bytes"][0].as_py()


def test_values_of_partitions_and_new_columns(memory_store: pds.Store) -> None:
    table = create(memory_store, 7, key=())
    table.alter.add_column("region", pa.string())
    for region, first in (("eu", 1000), ("us", 2000)):
        sink = io.BytesIO()
        pq.write_table(rows(first, 100), sink, row_group_size=9)
        memory_store.write(f"in/region={region}/a.parquet", sink.getvalue())
    table.add_files(["in/region=eu/a.parquet", "in/region=us/a.parquet"], hive_partitioning=True)
    table.append(rows(3000, 35).append_column("region", pa.array(["asia"] * 35)))
    for count in (1, 4, 30):
        check(table, count)
        check(table, count, ["region"])
        check(table, count, ["region", "id"], "region = 'us' AND id > 2050")


def test_dictionaries_are_those_of_the_table(memory_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("word", pa.dictionary(pa.int32(), pa.string()))])
    options = pds.WriteOptions(row_group_size=GROUP_ROWS)
    table = pds.Table.create(memory_store, "t", schema, options=options)
    words = pa.array([f"word {number % 5}" for number in range(200)]).dictionary_encode()
    table.append(pa.table({"id": range(200), "word": words.cast(schema.field("word").type)}, schema))
    for count in (2, 20):
        tasks = split(table, count)
        assert len(tasks) == count
        read = [task.to_pyarrow() for task in tasks]
        assert all(part.schema == table.scan().schema for part in read)
        assert [value for part in read for value in part["word"].to_pylist()] == words.to_pylist()


@pytest.mark.parametrize("limit", [0, 1, 10, 11, 25, 30, 31])
def test_a_limit_counts_the_rows_of_the_share(memory_store: pds.Store, limit: int) -> None:
    """Not those of the file, which are more than the limit."""
    table = create(memory_store, 40, 1, 1)
    path = table.files()["path"][0].as_py()
    task = pack_shares(table, {path: {"index": 39, "count": 40}})
    handle = _pds.open_scan_task(native_handle(memory_store), "t", task.to_bytes())
    scan = TableScan(handle, None, None, limit, path="t")
    assert scan.to_pyarrow()["id"].to_pylist() == list(range(390, 420))[:limit]
    assert scan.count() == min(limit, 30)


def test_a_plan_opens_no_file(memory_store: pds.Store) -> None:
    table = create(memory_store, 60, 1, 60)
    table.delete("id % 9 = 4")
    memory_store.reset_metrics()
    whole = table.scan_tasks(count=1, min_bytes=1, max_bytes=HUGE)
    assert len(whole) == 1
    requests = memory_store.metrics()["requests"]
    memory_store.reset_metrics()
    tasks = split(table, 30)
    assert len(tasks) >= 20
    assert memory_store.metrics()["requests"] == requests == 0


def damage(store: pds.Store, path: str, group: int) -> None:
    """Change a byte of a column of a row group."""
    content = bytearray(store.read_bytes(path))
    column = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(group).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    content[start + column.total_compressed_size // 2] ^= 0xFF
    store.write(path, bytes(content), overwrite=True)


def outcomes(tasks: list[ScanTask]) -> list[bool]:
    """For each task whether its rows are read."""
    results = []
    for task in tasks:
        try:
            task.to_pyarrow()
        except pds.PartCorrupted:
            results.append(False)
        else:
            results.append(True)
    return results


@pytest.mark.parametrize("group", [0, 3, 6])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_damaged_row_group_is_noticed_by_the_task_that_reads_it(
    memory_store: pds.Store, group: int, count: int
) -> None:
    table = create(memory_store, 7)
    tasks = split(table, count)
    reads_it = [group * GROUP_ROWS in task.to_pyarrow()["id"].to_pylist() for task in tasks]
    assert sum(reads_it) == 1
    damage(memory_store, f"t/{table.files()['path'][0].as_py()}", group)
    assert outcomes(tasks) == [not reads for reads in reads_it]


def longer(_: bytes) -> bytes:
    return _parquet(rows(0, 71))


def of_other_row_groups(content: bytes) -> bytes:
    other = _parquet(rows(0, 70), row_group_size=35)
    return other if len(other) != len(content) else _parquet(rows(0, 70), row_group_size=14)


def truncated(content: bytes) -> bytes:
    return content[:-1]


def without_footer(content: bytes) -> bytes:
    return content[:-30] + bytes(30)


def _parquet(content: pa.Table, row_group_size: int = GROUP_ROWS) -> bytes:
    sink = io.BytesIO()
    pq.write_table(content, sink, row_group_size=row_group_size)
    return sink.getvalue()


@pytest.mark.parametrize("change", [longer, of_other_row_groups, truncated, without_footer])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_another_file_is_noticed_by_every_task(
    memory_store: pds.Store, change: Callable[[bytes], bytes], count: int
) -> None:
    table = create(memory_store, 7)
    tasks = split(table, count)
    path = f"t/{table.files()['path'][0].as_py()}"
    memory_store.write(path, change(memory_store.read_bytes(path)), overwrite=True)
    assert outcomes(tasks) == [False] * count


def test_a_file_that_is_gone_is_noticed_by_every_task(memory_store: pds.Store) -> None:
    table = create(memory_store, 7)
    tasks = split(table, 7)
    table.overwrite(rows(0, 5))
    for _ in range(2):
        table.vacuum(dt.timedelta(0))
    for task in tasks:
        with pytest.raises(pds.VersionExpired):
            task.to_pyarrow()


def test_what_is_about_whole_files_refuses_shares(memory_store: pds.Store) -> None:
    tasks = split(create(memory_store, 7), 4, where="id > 3")
    assert len(tasks) == 4
    for task in tasks:
        with pytest.raises(pds.InvalidInput, match=r"shares of .*whole files"):
            task.verify()


def test_verifications_have_tasks_of_whole_files(memory_store: pds.Store) -> None:
    table = create(memory_store, 40, 1, 40)
    sizes = {"count": 100, "min_bytes": 1, "max_bytes": HUGE}
    assert [task.verify().files for task in split_verification(table, **sizes)[0]] == [1, 1, 1]
    assert len(table.scan_tasks(**sizes)) == 81


def find(table: pds.Table, where: str, count: int) -> tuple[TaskChange, list[list[bytes]]]:
    """A delete by tasks, and the messages of each."""
    change = TaskChange(table, commit_options(table), where=where)
    tasks = split_search(change.snapshot, where, count=count, min_bytes=1, max_bytes=HUGE)
    sent: list[ScanTask] = pickle.loads(pickle.dumps(tasks))  # noqa: S301 ours
    return change, [DeleteTask(task).run() for task in sent]


# Rows, row groups, a whole file, all but one row of it, rows of which some are deleted already.
SEARCHED = [
    "id % 7 = 3",
    "x * 7 >= 20 AND x * 7 < 45",
    "x * 7 < 70 OR id = 200",
    "id <> 75 AND x * 7 >= 70 AND x * 7 < 80",
    "name IS NULL OR x * 7 >= 90",
    "x < 1000",
]


@pytest.mark.parametrize("count", [1, 3, 12, 100])
@pytest.mark.parametrize("before", ["false", "id >= 30 AND id < 40", "x * 7 > 33 AND x * 7 < 62", "id % 2 = 0"])
def test_shares_find_the_rows_of_a_delete(memory_store: pds.Store, count: int, before: str) -> None:
    """What a delete by one process finds: files of which nothing is left leave the table, too."""
    ours, local = (create(memory_store.child(name), 7, 1, 12, 1) for name in ("ours", "local"))
    for table in (ours, local):
        table.delete(before)
    for where in SEARCHED:
        change, messages = find(ours, where, count)
        result, expected = change.commit([m for of_task in messages for m in of_task]), local.delete(where)
        assert (result.rows, result.version) == (expected.rows, expected.version), where
        assert ours.scan().to_pyarrow().equals(local.scan().to_pyarrow())
        assert ours.files()["total_rows"].equals(local.files()["total_rows"])
        operations = [table.history(1)[0]["operation"] for table in (ours, local)]
        assert operations[0] == operations[1]
        # Row groups of which nothing is left are deleted as such.
        sizes = [sum(t["size_bytes"] for t in table._parse_manifest()["tombstones"]) for table in (ours, local)]
        assert sizes[0] == sizes[1]
    assert ours.check().ok


@pytest.mark.parametrize(
    ("groups", "where", "deleted"),
    [
        ((20, 1), "id % 2 = 0", 21 * GROUP_ROWS // 2),
        # Whole files, of which one has rows, and statistics tell nothing: a task without rows looks like any other.
        ((1, 1, 1, 1, 1), "id * 1 = 1", 1),
    ],
)
def test_a_search_that_is_lost_or_there_twice(
    memory_store: pds.Store, groups: tuple[int, ...], where: str, deleted: int
) -> None:
    table = create(memory_store, *groups)
    change, messages = find(table, where, 8)
    assert len(messages) > 4
    for number in range(len(messages)):
        lost, twice = messages[:number] + messages[number + 1 :], [*messages, messages[number]]
        for some in (lost, twice, [*lost, messages[number - 1]]):
            with pytest.raises(pds.RemoteStoreError, match="searches"):
                change.commit([m for of_task in some for m in of_task])
    assert table.refresh().scan().count() == sum(groups) * GROUP_ROWS
    assert change.commit([m for of_task in messages for m in of_task]).rows == deleted


def test_an_overwrite_takes_over_what_shares_found(memory_store: pds.Store) -> None:
    ours, local = (create(memory_store.child(name), 20, 3) for name in ("ours", "local"))
    where, data = "x * 7 >= 15 AND id <> 222", rows(20, 5)
    write, _ = StagedWrite.begin(ours, overwrite=True, where=where, idempotency_key=None, if_version=None)
    search = ReplacedSearch(ours, where, count=8, min_bytes=1, max_bytes=HUGE)
    assert len(search.tasks) > 6
    messages = [message for task in search.tasks for message in task.run()]
    lists = [write.stage(data.to_reader())]
    with pytest.raises(pds.RemoteStoreError, match="2 files were to be searched, and 1 were"):
        write.commit(ours, lists, search.end(messages[1:]))
    for table in (ours, local):
        table.delete("id % 3 = 0")
    write.commit(ours, lists, search.end(messages))
    local.overwrite(data, where=where)
    assert ours.scan().to_pyarrow().equals(local.scan().to_pyarrow())
    assert ours.history(1)[0]["operation"]["rows_deleted"] == local.history(1)[0]["operation"]["rows_deleted"]


@pytest.mark.parametrize("step", [1, 2])
def test_shares_of_some_of_the_files(memory_store: pds.Store, step: int) -> None:
    table = create(memory_store, 20, 1, 20)
    sizes = {"count": 8, "min_bytes": 1, "max_bytes": HUGE}
    parts = [split_files(table, SCHEMA.names, (first, first + step), **sizes) for first in range(0, 3, step)]
    tasks = [task for part in parts for task in part]
    assert len(tasks) > 8
    assert concat(tasks, SCHEMA).equals(table.scan().to_pyarrow().combine_chunks())

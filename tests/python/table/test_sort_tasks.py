"""A sort by many tasks leaves the rows, in their order, that a sort by one process leaves."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds
from pds.table.sort_tasks import Sort

SMALL = {"count": 1000, "min_bytes": 1, "max_bytes": 1}

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integers": (pa.int64(), [None, 5, -3, 0, 2**40, 7]),
    "floats": (pa.float64(), [None, math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5]),
    "texts": (pa.string(), [None, "", "a", "z" * 300, "z" * 299 + "a", "é", "\U0001f600"]),
    "times": (
        pa.timestamp("us", "UTC"),
        [None, dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    ),
    "decimals": (pa.decimal128(20, 4), [None, 0, 1, -1, 10**9]),
    "booleans": (pa.bool_(), [None, True, False]),
    "bytes": (pa.binary(), [None, b"", b"\xff", b"\x00"]),
}


def make_table(store: pds.Store, path: str, kind: str, seed: int) -> pds.Table:
    """Two sort columns with many equal values, files of several row groups, and deleted rows."""
    draw = random.Random(seed)
    data_type, values = KEYS[kind]
    schema = pa.schema([("n", pa.int64()), ("key", data_type), ("second", pa.int32())])
    options = pds.WriteOptions(row_group_size=20)
    table = pds.Table.create(store, path, schema, options=options)
    number = 0
    for _ in range(9):
        rows = [
            {"n": (number := number + 1), "key": draw.choice(values), "second": draw.choice([None, 1, 2, 3])}
            for _ in range(draw.choice([1, 50, 130]))
        ]
        table.append(pa.Table.from_pylist(rows, schema))
    table.delete("n % 5 = 2")
    return table


def run_twice(tasks: list[Any], threads: int = 1) -> list[bytes]:
    """Each in another process, as it were, and once more for nothing."""
    messages = []
    for task in pickle.loads(pickle.dumps(tasks)):  # noqa: S301 as engines do
        task.run(threads)
        messages.extend(task.run(threads))
    return messages


def sort_by_tasks(table: pds.Table, by: Any, size: int) -> tuple[int, Any]:
    plan = Sort(table, by, size, **SMALL)
    ranges = plan.split(run_twice(plan.tasks))
    return len(ranges), plan.commit(run_twice(ranges))


@pytest.mark.parametrize("by", ["key", ["key", "second"], ["second", "key"]])
@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_those_of_a_local_sort(memory_store: pds.Store, kind: str, by: Any) -> None:
    ours, local = (make_table(memory_store, path, kind, seed=7) for path in ("ours", "local"))
    count, result = sort_by_tasks(ours, by, size=2000)
    expected = local.optimize.sort(by, target_file_size=2000)
    assert expected is not None
    assert (result.rows, result.replayed) == (expected.rows, False)
    assert repr(ours.scan().to_pyarrow().to_pylist()) == repr(local.scan().to_pyarrow().to_pylist())
    assert count > 1 or len(KEYS[kind][1]) < 4
    assert ours.history(1)[0]["operation"]["name"] == "sort"
    ours.vacuum(dt.timedelta(0))
    assert ours.check() == pds.table.CheckResult(ours.version, [], [], [])
    assert ours.verify().ok


def test_ranges_have_about_the_rows_of_a_file(memory_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = pds.Table.create(memory_store, "t", schema, key="id")
    draw = random.Random(3)
    ids = list(range(200_000))
    draw.shuffle(ids)
    for begin in range(0, len(ids), 50_000):
        some = ids[begin : begin + 50_000]
        table.append(pa.table({"id": some, "text": [f"row {n}" for n in some]}, schema))
    size = sum(table.files()["size_bytes"].to_pylist()) // 6
    _, result = sort_by_tasks(table, None, size)
    assert result.rows == 200_000
    rows = table.files()["total_rows"].to_pylist()
    assert 4 <= len(rows) <= 10
    assert max(rows) < 3 * sum(rows) / len(rows)
    assert table.scan(["id"]).to_pyarrow()["id"].to_pylist() == list(range(200_000))
    plan = table.scan(where="id BETWEEN 70000 AND 70100").explain()
    assert plan.files_read == 1


def test_others_meanwhile(memory_store: pds.Store) -> None:
    table = make_table(memory_store, "t", "integers", seed=1)
    other = pds.Table(memory_store, "t")
    plan = Sort(table, "key", 1000, **SMALL)
    ranges = plan.split(run_twice(plan.tasks))
    other.append(pa.table({"n": [-1], "key": [0], "second": [0]}, other.schema))
    assert plan.commit(run_twice(ranges)) is not None, "appends do not conflict"
    assert table.scan(["n"]).to_pyarrow()["n"].to_pylist()[0] == -1, "new files come after the others"
    with pytest.raises(pds.InvalidInput, match="once"):
        plan.commit([])
    plan = Sort(table, "key", 1000, **SMALL)
    ranges = plan.split(run_twice(plan.tasks))
    other.delete("n % 7 = 1")
    expected = other.scan().to_pyarrow()
    with pytest.raises(pds.CommitConflict):
        plan.commit(run_twice(ranges))
    assert table.refresh().scan().to_pyarrow() == expected
    plan = Sort(table, "key", 1000, **SMALL)
    plan.split([message for task in plan.tasks for message in task.run()])
    plan.discard()
    table.vacuum(dt.timedelta(0))
    assert table.check().orphans == []


def once(tasks: list[Any]) -> list[bytes]:
    return [message for task in tasks for message in task.run()]


def planned(table: pds.Table, by: Any = "key", size: int = 1000) -> tuple[Sort, list[bytes]]:
    plan = Sort(table, by, size, **SMALL)
    return plan, once(plan.split(once(plan.tasks)))


@pytest.mark.parametrize("change", ["delete", "overwrite", "sort", "restore"])
def test_a_conflict_is_no_success(memory_store: pds.Store, change: str) -> None:
    """Even where small tombstone files could be merged, or no file of the sort is left."""
    table = make_table(memory_store, "t", "integers", seed=1)
    other = pds.Table(memory_store, "t")
    plan, ranges = planned(table)
    if change == "delete":
        other.delete("n = 3")
        other.delete("n = 8")
    elif change == "overwrite":
        other.overwrite(pa.table({"n": [1], "key": [1], "second": [1]}, other.schema))
    elif change == "sort":
        other.optimize.sort("n")
    else:
        other.restore(3)
    version, expected = other.version, other.scan().to_pyarrow()
    with pytest.raises(pds.CommitConflict):
        plan.commit(ranges)
    assert table.refresh().version == version
    assert table.scan().to_pyarrow() == expected
    assert table.check().missing == []


def test_messages_that_are_not_one_of_each_task(memory_store: pds.Store) -> None:
    table = make_table(memory_store, "t", "integers", seed=1)
    expected = sorted(table.scan(["n"]).to_pyarrow()["n"].to_pylist())
    plan = Sort(table, "key", 1000, **SMALL)
    runs = once(plan.tasks)
    for wrong in ([], runs[:-1], [*runs[:-1], runs[0]], [*runs, runs[0]]):
        other = Sort(table, "key", 1000, **SMALL)
        with pytest.raises(pds.InvalidInput, match="first round"):
            other.commit(once(other.split(wrong)))
    ranges = once(plan.split(runs))
    _, foreign = planned(table)
    assert len(ranges) == len(foreign) > 2
    for wrong in (
        [],
        ranges[:-1],
        [*ranges[:-1], ranges[0]],
        [*ranges, ranges[0]],
        foreign,
        [*ranges[:-1], foreign[-1]],
    ):
        with pytest.raises(pds.InvalidInput, match="second round"):
            plan.commit(wrong)
    plan.commit(ranges[::-1])
    assert sorted(table.scan(["n"]).to_pyarrow()["n"].to_pylist()) == expected
    keys = [key for key in table.scan(["key"]).to_pyarrow()["key"].to_pylist() if key is not None]
    assert keys == sorted(keys)


def test_many_rows_of_one_key_are_several_files(memory_store: pds.Store) -> None:
    schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema)
    for begin in range(0, 100_000, 25_000):
        numbers = range(begin, begin + 25_000)
        table.append(pa.table({"key": ["a", "b"] * 12_500, "n": numbers}, schema))
    size = sum(table.files()["size_bytes"].to_pylist()) // 20
    local = pds.Table.create(memory_store, "local", schema)
    local.append(table.scan().to_pyarrow())
    local.optimize.sort("key", target_file_size=size)
    plan, ranges = planned(table, "key", size)
    assert len(ranges) < 5
    plan.commit(ranges)
    assert table.files().num_rows > 5
    assert table.scan().to_pyarrow() == local.scan().to_pyarrow()


def test_a_column_of_runs_and_one_of_structs(memory_store: pds.Store) -> None:
    runs = pa.run_end_encoded(pa.int32(), pa.int64())
    struct = pa.struct([("a", pa.int32()), ("b", pa.string())])
    schema = pa.schema([("runs", runs), ("struct", struct), ("n", pa.int64())])
    tables = [pds.Table.create(memory_store, path, schema) for path in ("ours", "local")]
    draw = random.Random(5)
    for _ in range(4):
        values = [draw.choice([None, 1, 2, 3, 4]) for _ in range(3000)]
        structs = [None if value is None else {"a": value, "b": draw.choice([None, "x"])} for value in values]
        encoded = pc.run_end_encode(pa.array(values, pa.int64()))
        rows = pa.table([encoded, pa.array(structs, struct), pa.array(range(3000))], schema=schema)
        for table in tables:
            table.append(rows)
    ours, local = tables
    for by in ("runs", "struct"):
        plan, ranges = planned(ours, by, 4000)
        assert len(ranges) > 1
        plan.commit(ranges)
        local.optimize.sort(by, target_file_size=4000)
        assert ours.scan().to_pyarrow().to_pylist() == local.scan().to_pyarrow().to_pylist()


def test_long_keys_are_not_sent(memory_store: pds.Store) -> None:
    schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema)
    for begin in range(0, 60, 20):
        keys = [f"{(n * 37) % 60:02}" * 250_000 for n in range(begin, begin + 20)]
        table.append(pa.table({"key": keys, "n": range(begin, begin + 20)}, schema))
    plan = Sort(table, "key", 10_000, **SMALL)
    runs = once(plan.tasks)
    assert max(len(run) for run in runs) < 20_000
    plan.commit(once(plan.split(runs)))
    keys = table.scan(["key"]).to_pyarrow()["key"].to_pylist()
    assert keys == sorted(keys)


def test_nothing_to_sort(memory_store: pds.Store) -> None:
    table = make_table(memory_store, "t", "integers", seed=1)
    table.delete("true")
    plan = Sort(table, "key", 1000, **SMALL)
    ranges = once(plan.split(once(plan.tasks)))
    plan.commit(ranges)
    assert table.scan().count() == 0
    assert table.verify().ok


def test_bad_arguments(memory_store: pds.Store) -> None:
    table = make_table(memory_store, "t", "integers", seed=1)
    with pytest.raises(pds.InvalidInput, match="no sort order and no key"):
        Sort(table, None, 1000, **SMALL)
    with pytest.raises(pds.InvalidInput, match="nothing"):
        Sort(table, "nothing", 1000, **SMALL)
    with pytest.raises(pds.InvalidInput, match="positive"):
        Sort(table, "key", 0, **SMALL)
    plan = Sort(table, "key", 1000, **SMALL)
    with pytest.raises(pds.InvalidInput, match="both rounds"):
        plan.commit([])

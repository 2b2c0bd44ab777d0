"""How many requests reads of a table send."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds
from scripted_s3 import Request, ScriptedS3

if TYPE_CHECKING:
    from scripted_s3 import Rule

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("name", pa.string())])
FILES = 50
ROWS = 100


def _rows(number: int) -> pa.Table:
    ids = list(range(number * ROWS, (number + 1) * ROWS))
    return pa.table({"id": ids, "x": [n / 7 for n in ids], "name": [f"n{n}" for n in ids]}, SCHEMA)


@pytest.fixture
def table(memory_store: pds.Store) -> pds.Table:
    """Files that are sorted by the key, each with several row groups."""
    options = pds.WriteOptions(row_group_size=40)
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id", options=options)
    for number in range(FILES):
        table.append(_rows(number))
    return table


def _count(table: pds.Table, store: pds.Store) -> tuple[int, int]:
    """The count and the number of requests that it took."""
    store.reset_metrics()
    count = table.scan().count()
    return count, store.metrics()["requests"]


def test_a_count_of_all_rows_reads_nothing(table: pds.Table, memory_store: pds.Store) -> None:
    assert _count(table, memory_store) == (FILES * ROWS, 0)
    assert table.scan(limit=7).count() == 7
    assert table.scan(limit=0).count() == 0
    assert table.scan(columns=["x"], use_stats=False).count() == FILES * ROWS


def test_a_count_after_deletes_reads_the_tombstones_only(table: pds.Table, memory_store: pds.Store) -> None:
    table.delete("id % 10 = 3")
    table.delete(pc.field("id") == 14)
    # Both deletes have removed this row if they were planned on the same version.
    stale = pds.Table(memory_store, "t", version=table.version - 1)
    stale.delete("id % 100 = 14")
    table.refresh()
    expected = sum(1 for n in range(FILES * ROWS) if n % 10 != 3 and n % 100 != 14)
    assert _count(table, memory_store) == (expected, 3)
    assert table.scan().to_pyarrow().num_rows == expected


@pytest.mark.parametrize(
    ("where", "most"),
    [
        # Whole row groups of one file: its footer has their sizes.
        ("id BETWEEN 200 AND 279 AND x >= 0", 2),
        # A range of the key: the keys of the files at its ends are read.
        ("id BETWEEN 150 AND 1049", 1 + 2 * 2),
    ],
)
def test_a_count_opens_only_files_that_the_tombstones_do_not_count(
    table: pds.Table, memory_store: pds.Store, where: str, most: int
) -> None:
    table.delete(where)
    count, requests = _count(table, memory_store)
    assert count == table.scan().to_pyarrow().num_rows < FILES * ROWS
    assert requests <= most


def test_a_count_of_many_files(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    for n in range(600):
        table.append(pa.table({"id": [2 * n, 2 * n + 1], "x": [0.5, None], "name": ["a", "b"]}))
    assert _count(table, memory_store) == (1200, 0)
    # Two files leave a segment, which is read.
    table.delete("id BETWEEN 6 AND 9")
    assert _count(table, memory_store) == (1196, 1)
    assert table.scan().to_pyarrow().num_rows == 1196
    # Tombstones may be about files of any segment.
    table.delete("x IS NULL AND id > 600")
    assert table.scan().count() == table.scan().to_pyarrow().num_rows < 1196


def test_a_small_file_is_one_request(table: pds.Table, memory_store: pds.Store) -> None:
    memory_store.reset_metrics()
    assert table.scan().to_pyarrow().num_rows == FILES * ROWS
    assert memory_store.metrics()["requests"] == FILES


def test_a_limit_opens_only_the_files_that_it_needs(table: pds.Table, memory_store: pds.Store) -> None:
    memory_store.reset_metrics()
    assert table.scan(["id"], limit=ROWS + 1).to_pyarrow()["id"].to_pylist() == list(range(ROWS + 1))
    assert memory_store.metrics()["requests"] == 2
    table.delete("id = 5")
    memory_store.reset_metrics()
    ids = [n for n in range(ROWS + 1) if n != 5]
    assert table.scan(["id"], limit=ROWS).to_pyarrow()["id"].to_pylist() == ids
    assert memory_store.metrics()["requests"] == 3


@pytest.mark.parametrize("step", [100, 5])
def test_a_long_list_reads_only_the_files_with_its_values(table: pds.Table, memory_store: pds.Store, step: int) -> None:
    in_two_files = [*range(300, 311), *range(4000, 4011)]
    values = ",".join(map(str, in_two_files))
    assert table.scan(where=f"id IN ({values})").explain().files_read == 2
    assert table.scan(where=f"id IN ({values})").explain().row_groups_read == 2
    assert table.scan(where=f"id IN ({values}) AND name < 'n4'").explain().files_read == 1
    assert table.scan(where=f"id IN ({values}) OR id = 777").explain().files_read == 3
    assert table.scan(where=f"CAST(id AS DECIMAL(30, 2)) IN ({values}, NULL)").explain().files_read == 2
    assert table.scan(where=f"NOT (id NOT IN ({values}))").explain().files_read == 2
    # Between the files: numbers that none of them has.
    spread = range(-step * 5000, step * 5000, step)
    expected = [n for n in spread if 0 <= n < FILES * ROWS]
    memory_store.reset_metrics()
    found = table.scan(where=f"id IN ({','.join(map(str, spread))})").to_pyarrow()["id"].to_pylist()
    assert found == expected
    assert memory_store.metrics()["requests"] == FILES
    far = ",".join(str(10**9 + n) for n in range(10_000))
    memory_store.reset_metrics()
    assert table.scan(where=f"id IN ({far}, 4321)").to_pyarrow()["id"].to_pylist() == [4321]
    assert memory_store.metrics()["requests"] == 1


def test_keys_at_both_ends_read_the_files_at_both_ends(table: pds.Table, memory_store: pds.Store) -> None:
    source = pa.table({"id": [0, FILES * ROWS - 1], "x": [1.5, 2.5], "name": ["a", "b"]}, SCHEMA)
    memory_store.reset_metrics()
    assert table.upsert(source).version == FILES + 2
    # Besides the two files: the pointer, the manifest and what the commit reads again.
    assert memory_store.metrics()["get"] < 10
    assert table.scan(where="x IN (1.5, 2.5)").to_pyarrow().sort_by("id")["name"].to_pylist() == ["a", "b"]


class _Gate:
    """Holds back reads of data files until so many of them wait at once, and a moment longer for more to come.

    A read that is sent once more, because the machine is slow, does not count.
    """

    def __init__(self, server: ScriptedS3, expected: int) -> None:
        self._keys: set[str] = set()
        self._expected = expected
        self._lock = threading.Lock()
        self._is_full, self._is_open = threading.Event(), threading.Event()
        self._next_fault = server.next_fault
        server.next_fault = self.wait  # type: ignore[method-assign]

    @property
    def most(self) -> int:
        return len(self._keys)

    def wait(self, request: Request) -> tuple[str, Rule | None]:
        if request.method == "GET" and "/data/" in request.key and not self._is_open.is_set():
            with self._lock:
                is_first = not self._keys
                self._keys.add(request.key)
                if self.most == self._expected:
                    self._is_full.set()
            if is_first:
                self._is_full.wait(20)
                self._is_open.wait(0.5)
                self._is_open.set()
            self._is_open.wait()
        return self._next_fault(request)


def test_many_small_files_are_read_at_once() -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/p", storage_options=server.options())
        table = pds.Table.create(store, "t", SCHEMA, key="id")
        for number in range(FILES):
            table.append(_rows(number))
        gate = _Gate(server, expected=32)
        assert table.scan(["id"]).to_pyarrow()["id"].to_pylist() == list(range(FILES * ROWS))
        assert gate.most == 32


def test_what_is_read_ahead_arrives_while_the_consumer_works() -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/p", storage_options=server.options())
        table = pds.Table.create(store, "t", SCHEMA, key="id")
        for number in range(FILES):
            table.append(_rows(number))
        sizes = table.files()["size_bytes"].to_pylist()
        first_paths = tuple(table.files()["path"].to_pylist()[:6])
        resumed = threading.Event()
        next_fault = server.next_fault

        def wait(request: Request) -> tuple[str, Rule | None]:
            if request.method == "GET" and "/data/" in request.key and not request.key.endswith(first_paths):
                resumed.wait(20)
            return next_fault(request)

        server.next_fault = wait  # type: ignore[method-assign]
        store.reset_metrics()
        reader = table.scan().to_reader()
        assert reader.read_next_batch().num_rows == ROWS
        # The next batches wait for the consumer, which does not come back for a while.
        time.sleep(0.3)
        resumed.set()
        deadline = time.monotonic() + 20
        while store.metrics()["get_bytes"] < 0.9 * sum(sizes[:32]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert store.metrics()["get_bytes"] >= 0.9 * sum(sizes[:32])
        assert sum(batch.num_rows for batch in reader) == (FILES - 1) * ROWS

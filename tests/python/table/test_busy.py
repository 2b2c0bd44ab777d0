"""Long operations beside writers that never stop: they land, and nothing is done twice.

Another client commits whenever the operation reads or writes data, so that its snapshot is never the newest.
What is counted are requests and files, never time.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scripted_s3 import Request

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
OPTIONS = pds.WriteOptions(compression="none")
# Less than the first plan takes.
SHORT = 0.2
FILES = 12
ROWS = 10
PATIENT = {"stall_timeout": "20", "retry_timeout": "60"}


class Busy:
    """A table, and a neighbour who commits in between the requests of the operation under test."""

    def __init__(self, server: ScriptedS3) -> None:
        self.server = server
        self.ours = pds.Store("s3://bucket/p", storage_options=server.options("ours") | PATIENT)
        self._theirs = pds.Store("s3://bucket/p", storage_options=server.options("theirs") | PATIENT)
        pds.Table.create(self._theirs, "t", SCHEMA, key="id", options=OPTIONS)
        self._lock = threading.Lock()
        self.commits = 0

    def fill(self, files: int = FILES) -> None:
        """Files of neighboring keys."""
        for first in range(0, files * ROWS, ROWS):
            self.theirs().append(rows(range(first, first + ROWS)))

    def theirs(self) -> pds.Table:
        """The table as the neighbour opens it."""
        return pds.Table(self._theirs, "t", options=OPTIONS)

    def open(self, timeout: float = SHORT) -> pds.Table:
        """The table of the operation under test."""
        return pds.Table(self.ours, "t", options=OPTIONS, commit_timeout=timeout)

    def disturb(self, commit: Callable[[int], object], *, every: int = 1, limit: int = 1 << 30) -> None:
        """Have `commit` called before every so many requests of ours for data or tombstones."""
        counted = 0

        def before(request: Request) -> None:
            nonlocal counted
            is_work = request.verb in {"get", "put"} and re.search("/(data|tombstone)/", request.key)
            if request.client != "ours" or not is_work:
                return
            with self._lock:
                counted += 1
                if counted % every == 0 and self.commits < limit:
                    self.commits += 1
                    commit(self.commits)

        self.server.restart()
        self.server.before = before

    def calm(self) -> pds.Table:
        """Have no more of it; the newest table, checked, as the neighbour reads it."""
        self.server.before = None
        assert not self.server.failures, self.server.failures
        table = self.theirs()
        report = table.check()
        assert report.ok
        assert report.orphans == []
        return table

    def looks(self) -> Counter[str]:
        """How often we looked at each data file: how often its footer was read."""
        reads = [r for r in self.server.seen if r.client == "ours" and r.verb == "get" and "/data/" in r.key]
        return Counter(r.key for r in reads if r.headers.get("range", "").startswith("bytes=-"))

    def written(self, folder: str) -> int:
        """How many objects we put there."""
        return sum(r.client == "ours" and r.verb == "put" and f"/{folder}/" in r.key for r in self.server.seen)


def rows(ids: range | list[int], n: int = 0) -> pa.Table:
    return pa.table({"id": list(ids), "n": [n] * len(ids)}, SCHEMA)


def ids(table: pds.Table) -> list[int]:
    found: list[int] = table.scan(["id"]).to_pyarrow()["id"].to_pylist()
    return sorted(found)


@pytest.fixture
def busy() -> Iterator[Busy]:
    with ScriptedS3() as server:
        yield Busy(server)


def test_a_compaction_beside_an_appender_who_never_stops(busy: Busy) -> None:
    busy.fill()
    size = busy.theirs().files()["size_bytes"].to_pylist()[0]
    busy.disturb(lambda number: busy.theirs().append(rows([10_000 + number])))
    # Groups of three files.
    done = busy.open().optimize.compact(size * 3 + size // 2)
    table = busy.calm()
    assert done is not None
    assert busy.commits > FILES
    assert ids(table) == [*range(FILES * ROWS), *range(10_001, 10_001 + busy.commits)]
    # Nothing was read or written twice.
    assert set(busy.looks().values()) == {1}
    assert len(busy.looks()) == FILES
    operations = Counter(entry["operation"]["name"] for entry in table.history())
    assert busy.written("data") == done.files == operations["compact"] == FILES // 3


def test_a_compaction_writes_only_a_group_again_whose_rows_were_deleted(busy: Busy) -> None:
    busy.fill()
    size = busy.theirs().files()["size_bytes"].to_pylist()[0]

    def delete(_: int) -> None:
        busy.theirs().delete("n = 0 AND id = 25")

    # At the first request, after the first plan read the table's lists.
    busy.disturb(delete, limit=1)
    assert busy.open().optimize.compact(size * 3 + size // 2) is not None
    table = busy.calm()
    assert ids(table) == [i for i in range(FILES * ROWS) if i != 25]
    assert busy.written("data") == FILES // 3 + 1


def test_tombstones_are_merged_beside_an_appender(busy: Busy) -> None:
    busy.fill(4)
    for number in range(6):
        busy.theirs().delete(f"n = 0 AND id = {number * 5}")
    busy.disturb(lambda number: busy.theirs().append(rows([10_000 + number])))
    assert busy.open().optimize.compact(1) is not None
    table = busy.calm()
    assert busy.written("tombstone") == 1
    assert ids(table)[:34] == [i for i in range(40) if i not in range(0, 30, 5)]


UPDATES: dict[str, Callable[[pds.Table], object]] = {
    "upsert": lambda t: t.upsert(rows(range(0, FILES * ROWS, 2), 1)),
    "merge": lambda t: (
        t.merge(rows(range(0, FILES * ROWS, 2), 1), on="id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    ),
    "overwrite": lambda t: t.overwrite(rows(range(0, FILES * ROWS, 2), 1), where=f"id % 2 = 0 AND id < {FILES * ROWS}"),
}


def _check_update(busy: Busy, extra: list[int]) -> None:
    table = busy.calm()
    found = table.scan().to_pyarrow().sort_by("id").to_pylist()
    expected = [{"id": i, "n": 1 - i % 2} for i in range(FILES * ROWS)]
    assert found == expected + [{"id": i, "n": 0} for i in extra]


@pytest.mark.parametrize("name", UPDATES)
def test_plans_longer_than_the_timeout_beside_an_appender(busy: Busy, name: str) -> None:
    """A conflict makes a second plan, during which others commit too: its time does not count either."""
    busy.fill()

    def commit(number: int) -> None:
        # So that the second plan takes longer too, which reads the files that are new.
        time.sleep(SHORT)
        if number == 1:
            busy.theirs().upsert(rows([24], 5))
        else:
            busy.theirs().append(rows([10_000 + number]))

    # In all of the first plan and in some that follow it.
    busy.disturb(commit, limit=FILES + 6)
    UPDATES[name](busy.open())
    _check_update(busy, list(range(10_002, 10_001 + busy.commits)))


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_beside_an_appender_of_other_keys(busy: Busy, name: str) -> None:
    """Their bounds say that no row is concerned, so the second plan reads nothing."""
    busy.fill()
    busy.disturb(lambda number: busy.theirs().append(rows([10_000 + number])))
    UPDATES[name](busy.open())
    _check_update(busy, list(range(10_001, 10_001 + busy.commits)))
    assert set(busy.looks().values()) == {1}
    assert len(busy.looks()) == FILES
    assert (busy.written("data"), busy.written("tombstone")) == (1, 1)


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_looks_once_at_each_file_that_comes(busy: Busy, name: str) -> None:
    """Files that come may have matching rows, by their bounds: each is looked at, the others not again."""
    busy.fill()
    # From a key between two of ours to one above all.
    busy.disturb(lambda number: busy.theirs().append(rows([-1, 10_000 + number])), every=4)
    UPDATES[name](busy.open(60))
    table = busy.calm()
    assert busy.commits > FILES // 4
    looks = busy.looks()
    assert set(looks.values()) == {1}
    assert len(looks) >= FILES
    assert table.scan(where="n = 1").count() == FILES * ROWS // 2


@pytest.mark.parametrize("name", ["upsert", "merge"])
def test_an_update_beside_an_upsert_of_its_keys(busy: Busy, name: str) -> None:
    """The row is in another file by then, and its old file is read no second time for an upsert."""
    busy.fill()
    busy.disturb(lambda number: busy.theirs().upsert(rows([number * 2], 7)), limit=3)
    UPDATES[name](busy.open(60))
    table = busy.calm()
    found = table.scan().to_pyarrow().sort_by("id").to_pylist()
    assert found == [{"id": i, "n": 1 - i % 2} for i in range(FILES * ROWS)]


def _is_create(request: Request) -> bool:
    """Whether it is the attempt to commit."""
    return request.verb == "put" and re.search(r"/manifest/v\d+\.json$", request.key) is not None


def test_a_lost_race_is_three_requests(busy: Busy) -> None:
    """The create that others were faster with, what they created, and the pointer: no list is read again.

    Where they have committed once more by then, that manifest is the fourth.
    """
    # So many files that a segment lists some of them.
    busy.fill(7 * FILES)
    busy.theirs().upsert(rows([2], 5))
    others = list(range(FILES * ROWS, 7 * FILES * ROWS))
    lost: list[list[tuple[str, str]]] = []

    def before(request: Request) -> None:
        if request.client == "ours" and _is_create(request) and len(lost) < 5:
            lost.append([("get", request.key), ("get", "p/t/_latest_manifest")])
            for number in range(1 + len(lost) % 2):
                others.append(10_000 + len(others))
                version = busy.theirs().append(rows(others[-1:])).version
                if number == 1:
                    lost[-1].append(("get", f"p/t/manifest/v{version:08}.json"))

    for update in UPDATES.values():
        lost.clear()
        busy.server.restart()
        busy.server.before = before
        update(busy.open(60))
        ours = [r for r in busy.server.seen if r.client == "ours"]
        _check_update(busy, others)
        reads = Counter(r.key for r in ours if r.verb == "get" and re.search("/(segments|tombstone)/", r.key))
        assert any("/segments/" in key for key in reads)
        assert any("/tombstone/" in key for key in reads)
        assert set(reads.values()) == {1}
        creates = [number for number, request in enumerate(ours) if _is_create(request)]
        for expected, (first, last) in zip(lost, itertools.pairwise(creates), strict=True):
            retried = [r for r in ours[first + 1 : last] if "/segments/" not in r.key]
            assert [(r.verb, r.key) for r in retried] == expected


def test_what_is_read_before_a_delay_is_not_the_next_snapshot(busy: Busy) -> None:
    """The eighth loss is followed by a delay, and what is the newest before it is mostly replaced after it."""
    busy.fill()
    others = list(range(FILES * ROWS))
    versions: list[int] = []

    def before(request: Request) -> None:
        if request.client == "ours" and _is_create(request) and len(versions) < 8:
            for _ in range(2):
                others.append(10_000 + len(others))
                version = busy.theirs().append(rows(others[-1:])).version
            versions.append(version)

    busy.server.restart()
    busy.server.before = before
    busy.open(60).append(rows([5_000]))
    ours = [r for r in busy.server.seen if r.client == "ours"]
    assert ids(busy.calm()) == sorted([*others, 5_000])
    creates = [number for number, request in enumerate(ours) if _is_create(request)]
    assert len(creates) == 9
    retried = [(r.verb, r.key) for r in ours[creates[7] + 1 : creates[8]]]
    pointer = ("get", "p/t/_latest_manifest")
    newest = ("get", f"p/t/manifest/v{versions[7]:08}.json")
    assert retried == [("get", ours[creates[7]].key), pointer, pointer, newest]


def test_a_delete_beside_upserts_of_its_rows(busy: Busy) -> None:
    busy.fill()
    busy.disturb(lambda number: busy.theirs().upsert(rows([number * 10], 0)), limit=3)
    busy.open(60).delete("n = 0")
    assert ids(busy.calm()) == []


def test_files_are_added_in_place_beside_an_appender(busy: Busy) -> None:
    busy.fill(3)
    part = pds.Table.create(busy.ours, "other", SCHEMA, options=OPTIONS)
    part.append(rows([7000]))
    path = part.files()["path"].to_pylist()[0]
    busy.ours.write("t/incoming/x.parquet", busy.ours.read_bytes(f"other/{path}"))

    def before(request: Request) -> None:
        if request.client == "ours" and "incoming" in request.key:
            busy.commits += 1
            busy.theirs().append(rows([20_000 + busy.commits]))

    busy.server.restart()
    busy.server.before = before
    busy.open().add_files(["t/incoming/x.parquet"])
    table = busy.calm()
    assert busy.commits > 0
    assert ids(table) == [*range(3 * ROWS), 7000, *range(20_001, 20_001 + busy.commits)]
    assert sum("incoming" in r.key for r in busy.server.seen if r.client == "ours") == busy.commits

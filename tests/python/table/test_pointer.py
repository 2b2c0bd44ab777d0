"""A table whose pointer is lost or put back, and objects that should be there and are not."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

POINTER = "t/_latest_manifest"
SCHEMA = pa.schema([("id", pa.int64())])


def _manifest(version: int) -> str:
    return f"t/manifest/v{version:08}.json"


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, SCHEMA)


def _ids(table: pds.Table) -> list[int]:
    found: list[int] = table.scan().to_pyarrow()["id"].to_pylist()
    return sorted(found)


def _other_process(store: pds.Store) -> pds.Store:
    """The same objects, and nothing that was seen of them before."""
    other: pds.Store = pickle.loads(pickle.dumps(store))  # noqa: S301 ours
    return other


@pytest.fixture
def table(durable_store: pds.Store) -> pds.Table:
    table = pds.Table.create(durable_store, "t", SCHEMA)
    for number in range(4):
        table.append(_rows(number))
    return table


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def durable_store(request: pytest.FixtureRequest) -> pds.Store:
    """A store that another handle opens with the same objects."""
    store: pds.Store = request.getfixturevalue(f"{request.param}_store")
    return store


# -- a lost pointer ----------------------------------------------------------------


def test_a_table_without_its_pointer_is_the_newest_version(table: pds.Table) -> None:
    store = table.store
    before = store.read_bytes(POINTER)
    store.delete(POINTER)
    found = pds.Table(_other_process(store), "t")
    assert (found.version, _ids(found)) == (5, [0, 1, 2, 3])
    # It is placed again, as it was.
    assert store.read_bytes(POINTER) == before
    table.append(_rows(4))
    assert _ids(found.refresh()) == [0, 1, 2, 3, 4]
    assert found.check() == pds.table.CheckResult(6, [], [], [])


def test_a_lost_pointer_of_a_vacuumed_table(table: pds.Table) -> None:
    store = table.store
    table.tags.create("first", 2)
    table.vacuum(dt.timedelta(0))
    store.delete(POINTER)
    other = _other_process(store)
    assert pds.Table.exists(other, "t")
    with pytest.raises(pds.AlreadyExists):
        pds.Table.create(other, "t", SCHEMA)
    found = pds.Table(other, "t")
    assert (found.version, _ids(found)) == (7, [0, 1, 2, 3])
    found.append(_rows(9))
    assert _ids(found.as_of("first")) == [0]


def test_a_writer_goes_on_when_the_pointer_is_lost(table: pds.Table) -> None:
    stop = threading.Event()
    store, other = table.store, _other_process(table.store)

    def lose() -> None:
        while not stop.wait(0.01):
            other.delete(POINTER, missing_ok=True)

    thief = threading.Thread(target=lose)
    thief.start()
    done: list[int] = []
    unknown: list[tuple[int, str]] = []
    try:
        for number in range(100, 110):
            try:
                pds.Table(store, "t", commit_timeout=2).append(_rows(number))
                done.append(number)
            except pds.CommitStateUnknown as error:
                unknown.append((number, error.commit_id or ""))
            except (pds.NotFound, pds.CommitConflict, pds.BackendUnavailable):
                pass
    finally:
        stop.set()
        thief.join()
    found = pds.Table(_other_process(store), "t")
    done += [number for number, commit_id in unknown if found.was_committed(commit_id)]
    assert _ids(found.refresh()) == sorted([0, 1, 2, 3, *done])
    assert found.check().missing == []


def test_a_creator_that_ended_before_the_pointer(durable_store: pds.Store) -> None:
    pds.Table.create(durable_store, "t", SCHEMA)
    durable_store.delete(POINTER)
    other = _other_process(durable_store)
    assert pds.Table(other, "t").version == 1
    assert durable_store.read_bytes(POINTER)


def test_what_is_left_of_a_table_is_none_and_no_place_for_one(table: pds.Table) -> None:
    store = table.store
    late = store.read_bytes(_manifest(5))
    store.delete_folder("t", recursive=True)
    assert not pds.Table.exists(store, "t")
    # The last request of a writer of that table.
    store.write(_manifest(5), late)
    for place in (store, _other_process(store)):
        for look in (
            lambda place=place: pds.Table(place, "t"),
            lambda place=place: pds.Table.create(place, "t", SCHEMA),
            lambda place=place: pds.Table.create(place, "t", SCHEMA, exists_ok=True),
        ):
            with pytest.raises(pds.ManifestCorrupted, match=r"v00000005\.json.*remove the folder"):
                look()
    assert not store.exists(POINTER)
    store.delete_folder("t", recursive=True)
    assert pds.Table.create(store, "t", SCHEMA).version == 1


def test_a_stray_manifest_is_not_taken_for_the_newest_version(table: pds.Table) -> None:
    store = table.store
    stray = json.loads(store.read_bytes(_manifest(5)))
    stray |= {"version": 6, "previous": 5, "commit_id": "0" * 32, "recent_commits": ["1" * 32]}
    store.write(_manifest(6), json.dumps(stray).encode())
    store.delete(POINTER)
    assert pds.Table(_other_process(store), "t").version == 5


# -- never back --------------------------------------------------------------------


def test_a_pointer_that_was_put_back_is_not_followed(table: pds.Table) -> None:
    store = table.store
    old = store.read_bytes(POINTER)
    table.append(_rows(4))
    table.append(_rows(5))
    newest = store.read_bytes(POINTER)
    store.write(POINTER, old, overwrite=True)
    # Neither by the table, nor by another of the same process.
    assert table.refresh().version == 7
    assert store.read_bytes(POINTER) == newest
    store.write(POINTER, old, overwrite=True)
    assert _ids(pds.Table(store, "t")) == [0, 1, 2, 3, 4, 5]
    # Who has not seen more goes on from it, and loses nothing.
    store.write(POINTER, old, overwrite=True)
    pds.Table(_other_process(store), "t").append(_rows(6))
    assert _ids(table.refresh()) == [0, 1, 2, 3, 4, 5, 6]


def test_a_pointer_that_was_put_back_behind_a_vacuum(table: pds.Table) -> None:
    store = table.store
    old = store.read_bytes(POINTER)
    table.append(_rows(4))
    table.vacuum(dt.timedelta(0))
    store.write(POINTER, old, overwrite=True)
    for place in (store, _other_process(store)):
        assert _ids(pds.Table(place, "t")) == [0, 1, 2, 3, 4]


def test_a_pointer_that_was_put_back_before_one_who_knew_that_version(table: pds.Table) -> None:
    """What it remembers of the version is gone: it was vacuumed."""
    store, idle = table.store, _other_process(table.store)
    old = store.read_bytes(POINTER)
    known = pds.Table(idle, "t")
    for number in range(4, 8):
        table.append(_rows(number))
    table.optimize.compact()
    table.vacuum(dt.timedelta(0))
    table.vacuum(dt.timedelta(0))
    store.write(POINTER, old, overwrite=True)
    known.append(_rows(8))
    for place in (idle, store, _other_process(store)):
        assert _ids(pds.Table(place, "t")) == [*range(9)]
    pds.Table.drop(idle, "t")
    assert not [info for info in store.list_files(recursive=True) if str(info.path).startswith("t/")]


def test_a_newest_manifest_that_is_lost_is_noticed_by_who_knew_it(table: pds.Table) -> None:
    table.store.delete(_manifest(table.version))
    for use in (table.refresh, lambda: table.append(_rows(9)), lambda: pds.Table(table.store, "t")):
        with pytest.raises(pds.ManifestCorrupted):
            use()


@pytest.mark.parametrize("name", [POINTER, _manifest(5)])
def test_a_huge_file_in_the_place_of_metadata_is_refused_unread(tmp_path: Path, name: str) -> None:
    table = pds.Table.create(pds.Store(tmp_path.as_uri()), "t", SCHEMA)
    for number in range(4):
        table.append(_rows(number))
    os.truncate(tmp_path / name, 1 << 42)  # more than any memory; the file has holes
    for use in (table.refresh, lambda: table.append(_rows(9)), lambda: pds.Table(table.store, "t")):
        with pytest.raises(pds.ManifestCorrupted, match="too many bytes"):
            use()


def test_a_table_in_the_place_of_another_is_followed(table: pds.Table) -> None:
    store = table.store
    store.delete_folder("t", recursive=True)
    other = _other_process(store)
    made = pds.Table.create(other, "t", SCHEMA)
    made.append(_rows(7))
    assert (table.refresh().version, _ids(table)) == (2, [7])
    for number in range(8, 12):
        made.append(_rows(number))
    assert _ids(table.refresh()) == [7, 8, 9, 10, 11]


def test_threads_that_share_a_table_never_see_it_go_back(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    writers, each = 8, 25

    def write(writer: int) -> int:
        back = 0
        for number in range(each):
            made = table.append(_rows(writer * each + number)).version
            seen = table.version
            back += seen < made
            back += table.refresh().version < seen
        return back

    with ThreadPoolExecutor(writers) as pool:
        assert sum(pool.map(write, range(writers))) == 0
    assert _ids(table) == list(range(writers * each))


def test_the_answer_that_comes_last_does_not_bring_an_older_snapshot(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    base_handle = table._handle
    first = _handle_after(table, 1)
    table.append(_rows(2))
    newest = table.version
    table._update_snapshot(first, base_handle)
    assert table.version == newest


def _handle_after(table: pds.Table, number: int) -> Any:
    mine = pds.Table(table.store, table.path)
    mine.append(_rows(number))
    return mine._handle


# -- objects that are missing --------------------------------------------------------


@pytest.mark.parametrize("tagged", [True, False])
def test_a_kept_manifest_that_is_missing_is_told(table: pds.Table, tagged: bool) -> None:
    store = table.store
    if tagged:
        table.tags.create("eom", 2)
        table.overwrite(_rows(50))
        table.vacuum(dt.timedelta(0))
        assert store.exists(_manifest(2))
    orphan = f"t/data/2026/01/01/00/b00000000-{'0' * 32}.parquet"
    store.write(orphan, b"")
    store.delete(_manifest(2))
    assert table.check().missing == ["manifest/v00000002.json"]
    # What it needs is not known: nothing is removed, and that is said.
    advice = "delete the tags .*eom" if tagged else "shorter retention"
    for dry_run in (True, False):
        retention = dt.timedelta(0) if tagged else dt.timedelta(days=1)
        with pytest.raises(pds.ManifestCorrupted, match=rf"v00000002\.json.*{advice}"):
            table.vacuum(retention, dry_run=dry_run)
    assert store.exists(orphan)
    if tagged:
        table.refresh().tags.delete("eom")
    assert "data/2026/01/01/00" in "".join(table.vacuum(dt.timedelta(0)).files)
    assert table.check().missing == []


# -- what others wrote ---------------------------------------------------------------


def test_a_schema_of_a_type_that_nobody_knows_is_damage(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    manifest = json.loads(memory_store.read_bytes(_manifest(1)))
    raw = base64.b64decode(manifest["arrow_schema"])
    at = [i for i in range(len(raw)) if raw[i : i + 4] == (64).to_bytes(4, "little")]
    found = 0
    for place in at:
        manifest["arrow_schema"] = base64.b64encode(raw[:place] + b"\x07" + raw[place + 1 :]).decode()
        memory_store.write(_manifest(1), json.dumps(manifest).encode(), overwrite=True)
        try:
            _ = table.refresh().schema
        except pds.ManifestCorrupted:
            found += 1
            with pytest.raises(pds.ManifestCorrupted):
                table.scan().to_pyarrow()
    assert found > 0


def test_exists_ok_wants_the_same_key_and_order(memory_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.int64())])

    def create(**options: Any) -> pds.Table:
        return pds.Table.create(memory_store, "t", schema, exists_ok=True, **options)

    assert create(key="id", sort_by="x").version == 1
    assert create(key="id", sort_by=["x"]).version == 1
    for options, role in (
        ({"key": "x", "sort_by": "x"}, "key"),
        ({"key": ["id", "x"], "sort_by": "x"}, "key"),
        ({"sort_by": "x"}, "key"),
        ({"key": "id"}, "sort_by"),
        ({"key": "id", "sort_by": "id"}, "sort_by"),
    ):
        with pytest.raises(pds.AlreadyExists, match=f"with {role}="):
            create(**options)
    pds.Table(memory_store, "t").alter.rename_column("x", "y")
    with pytest.raises(pds.AlreadyExists):
        create(key="id", sort_by="x")


def test_a_late_manifest_in_an_empty_slot_is_no_version(memory_store: pds.Store) -> None:
    """Of a tagged version the next one is asked for, which has been vacuumed."""
    table = pds.Table.create(memory_store, "t", SCHEMA)
    for number in range(4):
        table.append(_rows(number))
    late = json.loads(memory_store.read_bytes(_manifest(3)))
    table.tags.create("second", 2)
    table.append(_rows(9))
    table.vacuum(dt.timedelta(0))
    assert not memory_store.exists(_manifest(3))
    # Made from version 2 by a writer that slept since.
    memory_store.write(_manifest(3), json.dumps(late | {"commit_id": "0" * 32}).encode())
    with pytest.raises(pds.VersionExpired):
        table.scan_changes(since=2).to_pyarrow()


def test_changes_over_a_restore_of_a_file_that_left_and_came_back(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(_rows(1, 2, 3), sink)
    memory_store.write("t/mine/a.parquet", sink.getvalue().to_pybytes())
    table.append(_rows(10, 2))
    table.add_files("t/mine/a.parquet")
    table.delete("id = 2")
    deleted = table.version
    table.overwrite(_rows(1), where="id IN (1, 3)")
    table.optimize.compact()
    gone = "mine/a.parquet" not in table.files()["path"].to_pylist()
    if gone:
        table.add_files("t/mine/a.parquet")
    before, since = _ids(table), table.version
    table.restore(deleted)
    changes = table.scan_changes(since=since).to_pyarrow().to_pylist()
    for change in changes:
        if change["_change_type"] == "delete":
            before.remove(change["id"])
        else:
            before.append(change["id"])
    assert sorted(before) == _ids(table) == [1, 3, 10]

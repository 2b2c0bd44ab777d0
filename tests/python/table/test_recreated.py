"""What began on a table that was dropped meanwhile never reaches the table that was created in its place."""

from __future__ import annotations

import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from scripted_s3 import Request, Rule, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OLD = pa.schema([("id", pa.int64()), ("price", pa.int64())])
# The same ids of columns stand for others.
NEW = pa.schema([("stock", pa.int64()), ("id", pa.int64())])
NEW_ROWS = {"stock": [5, 6], "id": [7, 8]}
MERGED_ROWS = {"stock": [5, 6, None, None], "id": [7, 8, 1, 2], "price": [None, None, 100, 200]}


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with ScriptedS3() as server:
        yield server


def _store(server: ScriptedS3) -> pds.Store:
    return pds.Store("s3://bucket/prefix", storage_options=_options(server))


def _options(server: ScriptedS3) -> dict[str, str]:
    """Requests wait for as long as a table is dropped and created."""
    return server.options() | {"stall_timeout": "30", "retry_timeout": "60"}


def _old(store: pds.Store, versions: int = 3) -> pds.Table:
    table = pds.Table.create(store, "t", OLD, key="id")
    for number in range(versions - 1):
        table.append(pa.table({"id": [number], "price": [number * 10]}))
    return table


def _replace(store: pds.Store, versions: int = 3) -> None:
    """Drops the table, and creates one with as many versions."""
    with suppress(pds.NotFound):
        pds.Table.drop(store, "t")
    table = pds.Table.create(store, "t", NEW, key="id")
    table.append(pa.table(NEW_ROWS))
    for _ in range(versions - 2):
        table.tags.create(f"tag {table.version}", table.version)


def _rows_of(store: pds.Store) -> dict[str, list[Any]]:
    table = pds.Table(store, "t")
    table.verify()
    return dict(table.scan().to_pyarrow().to_pydict())


def _stream(between: Callable[[], None] | None = None) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1]), pa.array([100])], schema=OLD)
        if between is not None:
            between()
        yield pa.record_batch([pa.array([2]), pa.array([200])], schema=OLD)

    return pa.RecordBatchReader.from_batches(OLD, batches())


def _file(store: pds.Store) -> str:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [50], "price": [1]}), sink)
    store.write("x.parquet", sink.getvalue().to_pybytes(), overwrite=True)
    return "x.parquet"


WRITES: dict[str, Callable[[pds.Table, pa.RecordBatchReader], object]] = {
    "append": lambda table, rows: table.append(rows),
    "append with a key": lambda table, rows: table.append(rows, idempotency_key="k"),
    "append with columns": lambda table, rows: table.append(rows, schema_mode="merge"),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "overwrite some": lambda table, rows: table.overwrite(rows, where="id >= 1"),
    "upsert": lambda table, rows: table.upsert(rows),
}
OTHERS: dict[str, Callable[[pds.Table], object]] = {
    "add_files": lambda table: table.add_files(_file(table.store)),
    "restore": lambda table: table.restore(2),
    "compact": lambda table: table.optimize.compact(),
    "delete": lambda table: table.delete("id = 0"),
    "vacuum": lambda table: table.vacuum(timedelta(0)),
}


@pytest.mark.parametrize("versions", [2, 3, 5, 80], ids=["fewer", "as many", "more", "many more"])
@pytest.mark.parametrize("write", WRITES)
def test_rows_of_a_long_stream_stay_out(store: pds.Store, write: str, versions: int) -> None:
    table = _old(store)
    with pytest.raises((pds.TransactionExpired, pds.CommitConflict)) as raised:
        WRITES[write](table, _stream(lambda: _replace(store, versions)))
    assert isinstance(raised.value, pds.TransactionExpired), raised.value
    assert "removed and created again" in str(raised.value)
    assert _rows_of(store) == NEW_ROWS
    assert pds.Table(store, "t").version == versions


@pytest.mark.parametrize("versions", [2, 3, 5, 80], ids=["fewer", "as many", "more", "many more"])
def test_a_snapshot_of_a_table_that_was_replaced_has_expired(store: pds.Store, versions: int) -> None:
    """Its files are gone, and are not missing in the new table."""
    table, deleted = _old(store), pds.Table(store, "t")
    deleted.delete("id + 0 = 0")
    _replace(store, versions)
    for snapshot in (table, deleted):
        with pytest.raises(pds.VersionExpired, match="another table was created in its place"):
            snapshot.scan().to_pyarrow()
    assert table.refresh().scan().to_pyarrow().to_pydict() == NEW_ROWS


@pytest.mark.parametrize("versions", [2, 3, 5])
def test_a_tag_of_a_table_that_was_replaced_names_no_version_of_the_new_one(store: pds.Store, versions: int) -> None:
    table = _old(store)
    _replace(store, versions)
    before = dict(pds.Table(store, "t").tags)
    with pytest.raises(pds.VersionExpired):
        table.tags.create("mine")
    assert dict(table.refresh().tags) == before


OF_VERSIONS: dict[str, Callable[[pds.Table], object]] = {
    "as_of own": lambda table: table.as_of(table.version),
    "as_of": lambda table: table.as_of(2),
    "as_of tag": lambda table: table.as_of("good"),
    "as_of time": lambda table: table.as_of(datetime.now(UTC)),
    "restore": lambda table: table.restore(2),
    "restore tag": lambda table: table.restore("good"),
    "tag own": lambda table: table.tags.create("mine"),
    "tag": lambda table: table.tags.create("mine", 2),
}


@pytest.mark.parametrize("versions", [2, 4, 80], ids=["fewer", "as many", "many more"])
@pytest.mark.parametrize("call", OF_VERSIONS.values(), ids=OF_VERSIONS)
def test_versions_that_were_read_are_not_those_of_a_table_in_their_place(
    store: pds.Store, call: Callable[[pds.Table], object], versions: int
) -> None:
    """A restore took the rows of the new table back."""
    table = _old(store)
    table.tags.create("good", 2)
    _replace(store, versions)
    before = dict(pds.Table(store, "t").tags)
    with pytest.raises(pds.VersionExpired, match="another"):
        call(table)
    newest = pds.Table(store, "t")
    assert newest.version == versions
    assert dict(newest.tags) == before
    assert _rows_of(store) == NEW_ROWS


def test_a_pickled_table_is_that_table(local_store: pds.Store) -> None:
    table = _old(local_store)
    pickled = pickle.dumps(table)
    assert pickle.loads(pickled).scan().to_pyarrow() == table.scan().to_pyarrow()  # noqa: S301 own bytes
    _replace(local_store, 4)
    with pytest.raises(pds.VersionExpired, match="another table was created in its place"):
        pickle.loads(pickled)  # noqa: S301 own bytes


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("operation", [*WRITES, *OTHERS])
def test_a_table_that_is_replaced_before_any_request_stays_as_it_is(operation: str) -> None:
    """Objects of the old one may be left, and errors differ; but the new table has its rows, and all of its files."""
    request = 0
    while True:
        with ScriptedS3() as server:
            store, other = _store(server), _store(server)
            table, sent = _old(store), [0]

            def before(_: Request, sent: list[int] = sent, other: pds.Store = other, at: int = request) -> None:
                sent[0] += 1
                if sent[0] == at + 1:
                    _replace(other)

            server.before = before
            with suppress(pds.Error):
                if operation in WRITES:
                    WRITES[operation](table, _stream())
                else:
                    OTHERS[operation](table)
            server.before = None
            if sent[0] <= request:
                break
            rows = _rows_of(other)
            # What read the new table first was an operation on it: columns are matched by name.
            is_on_new = operation == "delete" or (operation == "append with columns" and rows == MERGED_ROWS)
            assert rows == NEW_ROWS or is_on_new, request
        request += 1
    assert request > 3


def test_a_vacuum_never_removes_manifests_of_a_later_table(server: ScriptedS3) -> None:
    """Its requests are late: the table was dropped, and another one has versions with the same numbers."""
    table = _old(_store(server))

    def removes_manifest(request: Request) -> bool:
        return request.method in ("DELETE", "POST") and b"manifest/v0000000" in request.key.encode() + request.body

    rule = server.add(Rule(removes_manifest, "late 500", 0, 9))
    with suppress(pds.Error):
        table.vacuum(timedelta(0))
    rule.wait()
    _replace(_store(server), 4)
    rule.land()
    assert _rows_of(_store(server)) == NEW_ROWS


def test_a_drop_of_leftovers_spares_what_a_new_table_will_list(server: ScriptedS3) -> None:
    outcomes: list[str] = []

    def before(request: Request) -> None:
        if not outcomes and request.method == "PUT" and request.key.endswith("manifest/v00000001.json"):
            outcomes.append("")
            try:
                pds.Table.drop(_store(server), "t")
            except pds.NotFound:
                outcomes.append("not found")

    server.before = before
    url = "s3://bucket/prefix/t"
    pds.write_table(url, pa.table({"id": [1]}), storage_options=_options(server))
    assert outcomes == ["", "not found"]
    assert pds.open_table(url, storage_options=_options(server)).scan().to_pyarrow()["id"].to_pylist() == [1]


def test_a_new_table_whose_files_a_drop_took_is_not_reported(server: ScriptedS3) -> None:
    """Between its upload and its creation, another table came and went in the same place."""
    done: list[int] = []

    def before(request: Request) -> None:
        if not done and request.method == "PUT" and request.key.endswith("manifest/v00000001.json"):
            done.append(1)
            _old(_store(server))
            pds.Table.drop(_store(server), "t")

    server.before = before
    with pytest.raises(pds.PartCorrupted, match="drop the new table and write again"):
        pds.write_table("s3://bucket/prefix/t", pa.table({"id": [1]}), storage_options=_options(server))
    pds.Table.drop(_store(server), "t")
    pds.write_table("s3://bucket/prefix/t", pa.table({"id": [1]}), storage_options=_options(server))


def test_a_manifest_that_came_too_late_does_not_stop_the_new_table(server: ScriptedS3) -> None:
    table = _old(_store(server), versions=4)
    done: list[int] = []

    def before(request: Request) -> None:
        if not done and request.method == "PUT" and request.key.endswith("manifest/v00000005.json"):
            done.append(1)
            _replace(_store(server), 2)

    server.before = before
    with pytest.raises((pds.CommitStateUnknown, pds.TransactionExpired)):
        table.append(pa.table({"id": [9], "price": [9]}))
    server.before = None
    new = pds.Table(_store(server), "t")
    for number in range(5):
        new.append(pa.table({"stock": [number], "id": [100 + number]}))
    assert new.version == 7
    assert new.scan().count() == 7

"""The answer of a conditional write is lost, and every later request is denied: the write may have landed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from fault_runs import ended
from fault_runs import impatient_store as store
from pds import odf
from publish.harness import LEASE_OPTIONS, Call
from scripted_s3 import CLASS_A, CLASS_B, Answer, Request, ScriptedS3
from scripted_s3.faults import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(3)

LOST = ("drop after", "500 after", "stall after")
DENIED = ("401", "403")
# The answer of the only send, and what is raised.
REFUSED = {
    "401": pds.PermissionDenied,
    "403": pds.PermissionDenied,
    "413": pds.RemoteStoreError,
    "423": pds.ResourceLocked,
    "501": pds.RemoteStoreError,
}
ROWS = pa.table({"at": pa.array([1, 2, 3], pa.timestamp("ms", "UTC")), "id": [1, 2, 3]})
MORE = ROWS.set_column(1, "id", [[4, 5, 6]])


def _deny_after(server: ScriptedS3, name: str, lost: str, denied: str) -> Rule:
    """The first PUT of an object whose name contains `name` lands without an answer; all after it is denied."""
    put = server.add(Rule(lambda r: r.verb == "put" and name in r.key and not r.is_probe, lost, times=1))
    server.add(Rule(lambda _: put.hit.is_set(), denied))
    return put


def _ids(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


def _table(server: ScriptedS3) -> pds.Table:
    return pds.Table(store(server), "t")


TABLE_WORK: dict[str, Callable[[pds.Table], object]] = {
    "append": lambda table: table.append(MORE),
    "delete": lambda table: table.delete("id = 2"),
    "overwrite": lambda table: table.overwrite(MORE),
    "upsert": lambda table: table.upsert(MORE, on="id"),
    "compact": lambda table: table.optimize.compact(),
}
TABLE_IDS = {
    "append": [1, 1, 2, 2, 3, 3, 4, 5, 6],
    "delete": [1, 1, 3, 3],
    "overwrite": [4, 5, 6],
    "upsert": [1, 1, 2, 2, 3, 3, 4, 5, 6],
    "compact": [1, 1, 2, 2, 3, 3],
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize(("work", "denied"), [*((work, "403") for work in TABLE_WORK), ("append", "401")])
def test_a_commit_that_landed_keeps_its_files(work: str, denied: str, lost: str) -> None:
    with ScriptedS3() as server:
        table = pds.Table.create(store(server), "t", ROWS.schema)
        table.append(ROWS)
        table.append(ROWS)
        put = _deny_after(server, "t/manifest/", lost, denied)
        error = ended(lambda: TABLE_WORK[work](_table(server)))
        assert put.hit.is_set()
        assert isinstance(error, pds.CommitStateUnknown), repr(error)
        server.restart()
        # Readers see it once a writer has looked for it and moved the pointer on.
        assert _table(server).was_committed(error.commit_id)
        assert _ids(_table(server).scan().to_pyarrow()) == TABLE_IDS[work]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("denied", DENIED)
def test_a_head_that_moved_keeps_its_slice(denied: str, lost: str) -> None:
    with ScriptedS3() as server:
        dataset = odf.Dataset.create(store(server), "d")
        dataset.ingest(ROWS, event_time="at")
        put = _deny_after(server, "refs/head", lost, denied)
        error = ended(lambda: odf.Dataset(store(server), "d").ingest(MORE, event_time="at"))
        assert put.hit.is_set()
        assert isinstance(error, pds.CommitStateUnknown), repr(error)
        server.restart()
        assert _ids(odf.Dataset(store(server), "d").scan().to_pyarrow()) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("name", ["_publish.json", "manifest.json", "_SUCCESS", "part"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_publish_that_began_is_finished_by_the_next_one(is_first: bool, name: str, lost: str) -> None:
    with ScriptedS3() as server:
        datasets = pds.ParquetDatasetStore(
            pds.Store("s3://bucket/p", storage_options=server.options() | LEASE_OPTIONS), max_rows_per_file=2
        )
        if not is_first:
            datasets.write_dataset(ROWS, "d")
        put = _deny_after(server, name, lost, "403")
        error = ended(lambda: datasets.write_dataset(MORE, "d", overwrite=True))
        assert put.hit.is_set()
        assert error is not None
        server.restart()
        datasets.clean_dataset("d", older_than=0)
        if name == "_publish.json":
            # A publish that has changed nothing is given up.
            assert datasets.dataset_exists("d") is not is_first
        else:
            assert _ids(datasets.read_dataset("d")) == [4, 5, 6]
        datasets.write_dataset(ROWS, "d", overwrite=True)
        assert _ids(datasets.read_dataset("d")) == [1, 2, 3]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("denied", DENIED)
def test_a_denial_after_a_lost_answer_does_not_say_that_nothing_was_written(denied: str, lost: str) -> None:
    with ScriptedS3() as server:
        opened = store(server)
        put = _deny_after(server, "a", lost, denied)
        error = ended(lambda: opened.write("a", b"1", overwrite=False))
        assert put.hit.is_set()
        assert isinstance(error, pds.BackendUnavailable), repr(error)
        server.restart()
        assert opened.read_bytes("a") == b"1"


@pytest.mark.parametrize("refused", REFUSED)
def test_a_refused_commit_is_definite_and_removes_its_files(refused: str) -> None:
    with ScriptedS3() as server:
        table = pds.Table.create(store(server), "t", ROWS.schema)
        before = set(server.snapshot())
        rule = server.add(Rule(lambda r: r.verb == "put" and "t/manifest/" in r.key, refused))
        error = ended(lambda: table.append(ROWS))
        assert isinstance(error, REFUSED[refused]), repr(error)
        assert not isinstance(error, pds.CommitStateUnknown)
        assert len(rule.requests) == 1
        assert set(server.snapshot()) == before


@pytest.mark.parametrize("refused", REFUSED)
def test_a_refused_head_is_definite_and_removes_the_slice(refused: str) -> None:
    with ScriptedS3() as server:
        dataset = odf.Dataset.create(store(server), "d")
        dataset.ingest(ROWS, event_time="at")
        before = {key for key in server.snapshot() if "/data/" in key}
        rule = server.add(Rule(lambda r: r.verb == "put" and "refs/head" in r.key, refused))
        error = ended(lambda: dataset.ingest(MORE, event_time="at"))
        assert isinstance(error, REFUSED[refused]), repr(error)
        assert not isinstance(error, pds.CommitStateUnknown)
        assert len(rule.requests) == 1
        assert {key for key in server.snapshot() if "/data/" in key} == before


@pytest.mark.parametrize("refused", REFUSED)
def test_a_table_whose_pointer_cannot_be_moved_is_read(refused: str) -> None:
    """A reader that has seen a newer version does not go back, and needs no write."""
    with ScriptedS3() as server:
        table = pds.Table.create(store(server), "t", ROWS.schema)
        old = server.snapshot()["prefix/t/_latest_manifest"]
        table.append(ROWS)
        server.bucket.put_object("prefix/t/_latest_manifest", old)
        rule = server.on("put", "_latest_manifest", refused)
        assert _ids(table.refresh().scan().to_pyarrow()) == [1, 2, 3]
        assert len(rule.requests) == 1


def _refuse_after_late(server: ScriptedS3, name: str, refused: str) -> Rule:
    """The first PUT of an object whose key contains `name` is answered 500 and lands later; the others are refused."""
    late = server.add(Rule(lambda r: r.verb == "put" and name in r.key and not r.is_probe, "late 500", times=1))
    server.add(Rule(lambda r: r.verb == "put" and name in r.key and not r.is_probe, refused))
    return late


@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_that_lands_after_a_refusal_finds_its_files(is_first: bool, refused: str) -> None:
    """Or it does not land, because another one came first."""
    with ScriptedS3() as server:
        table = pds.Table.create(store(server), "t", ROWS.schema)
        late = _refuse_after_late(server, "t/manifest/", refused)
        error = ended(lambda: table.append(ROWS))
        assert isinstance(error, pds.CommitStateUnknown), repr(error)
        kept = [*late.requests]
        if is_first:
            assert [answer.status for answer in late.land()] == [200]
            server.restart()
            assert table.was_committed(error.commit_id) == 2
            assert _ids(_table(server).scan().to_pyarrow()) == [1, 2, 3]
            return
        server.restart()
        _table(server).append(MORE)
        assert [server.apply(request, is_late=True).status for request in kept] == [412]
        assert table.was_committed(error.commit_id) is None
        assert _ids(_table(server).scan().to_pyarrow()) == [4, 5, 6]


@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_head_that_moves_after_a_refusal_finds_its_slice(is_first: bool, refused: str) -> None:
    with ScriptedS3() as server:
        dataset = odf.Dataset.create(store(server), "d")
        dataset.ingest(ROWS, event_time="at")
        late = _refuse_after_late(server, "refs/head", refused)
        error = ended(lambda: dataset.ingest(MORE, event_time="at"))
        assert isinstance(error, pds.CommitStateUnknown), repr(error)
        kept = [*late.requests]
        if is_first:
            assert [answer.status for answer in late.land()] == [200]
        server.restart()
        if not is_first:
            odf.Dataset(store(server), "d").ingest(MORE, event_time="at")
            assert [server.apply(request, is_late=True).status for request in kept] == [412]
        opened = odf.Dataset(store(server), "d")
        assert _ids(opened.scan().to_pyarrow()) == [1, 2, 3, 4, 5, 6]
        opened.verify()


@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.parametrize("name", ["_publish.json", "manifest.json", "_SUCCESS", "part"])
def test_a_publish_of_which_a_request_lands_after_a_refusal_is_whole(name: str, refused: str) -> None:
    with ScriptedS3() as server:
        opened = pds.Store("s3://bucket/p", storage_options=server.options() | LEASE_OPTIONS)
        datasets = pds.ParquetDatasetStore(opened, max_rows_per_file=2)
        datasets.write_dataset(ROWS, "d")
        late = _refuse_after_late(server, name, refused)
        error = ended(lambda: datasets.write_dataset(MORE, "d", overwrite=True))
        assert late.hit.is_set()
        late.land()
        server.restart()
        datasets.clean_dataset("d", older_than=0)
        assert _ids(datasets.read_dataset("d")) in ([[4, 5, 6]] if error is None else [[1, 2, 3], [4, 5, 6]])
        datasets.write_dataset(ROWS, "d", overwrite=True)
        assert _ids(datasets.read_dataset("d")) == [1, 2, 3]


@pytest.mark.parametrize("lost", LOST)
def test_a_probe_that_is_denied_is_a_refusal(lost: str) -> None:
    """Whatever the probe object holds, nothing was committed: what was uploaded goes, and the answer is told."""
    with ScriptedS3() as server:
        probe = server.add(Rule(lambda r: r.verb == "put" and r.is_probe, lost, times=1))
        server.add(Rule(lambda r: r.verb == "get" and r.is_probe, "403", times=1))
        pipeline = pds.Pipeline(store(server), "p")
        pipeline.source("words", key=pa.string(), value=pa.string())
        with pytest.raises(pds.PermissionDenied):
            pipeline.update(words=pds.Changes([("a", "b")]))
        assert probe.hit.is_set()
        assert server.snapshot() == {}


def test_a_move_leaves_a_source_that_was_replaced_meanwhile() -> None:
    with ScriptedS3() as server:
        files = pds.Store("s3://bucket", server.options())
        files.write("a", b"old")
        create = server.add(Rule(lambda r: r.touches("put", "b"), "pause", times=1))
        move = Call(lambda: files.move("a", "b"))
        create.wait()
        files.write("a", b"new", overwrite=True)
        create.resume()
        assert isinstance(move.wait().error, pds.FileChanged), repr(move.error)
        assert (files.read_bytes("a"), files.read_bytes("b")) == (b"new", b"old")


@pytest.mark.parametrize("fault", ["pause", "pause after"])
@pytest.mark.parametrize("ignores", [CLASS_A, CLASS_B])
def test_a_move_over_a_file_leaves_a_source_that_was_replaced_meanwhile(ignores: frozenset[str], fault: str) -> None:
    with ScriptedS3(ignores) as server:
        files = pds.Store("s3://bucket", server.options())
        files.write("a", b"old")
        files.write("b", b"target")
        copy = server.add(Rule(lambda r: r.verb == "copy", fault, times=1))
        move = Call(lambda: files.move("a", "b", overwrite=True))
        copy.wait()
        files.write("a", b"new", overwrite=True)
        copy.resume()
        assert isinstance(move.wait().error, pds.FileChanged), repr(move.error)
        assert files.read_bytes("a") == b"new"
        # A copy that comes after the write finds another version.
        assert files.read_bytes("b") == (b"target" if fault == "pause" else b"old")


@pytest.mark.parametrize("code", ["KMS.ThrottlingException", "InternalError", "AccessDenied"])
@pytest.mark.parametrize("method", ["copy", "move"])
def test_a_copy_that_is_answered_by_an_error_was_not_made(
    method: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 sends the status of a long copy before it knows whether that succeeds."""
    body = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>scripted</Message></Error>"
    with ScriptedS3() as server:
        handle = server.bucket.handle

        def refuse(request: Request) -> Answer:
            return Answer(200, body.encode()) if request.verb == "copy" else handle(request)

        files = pds.Store("s3://bucket", server.options())
        files.write("a", b"x")
        monkeypatch.setattr(server.bucket, "handle", refuse)
        expected = pds.PermissionDenied if code == "AccessDenied" else pds.BackendUnavailable
        with pytest.raises(expected, match=code):
            getattr(files, method)("a", "b", overwrite=True)
        assert server.snapshot() == {"a": b"x"}


def test_a_deletion_that_is_denied_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers a bulk deletion with status 200 and an error for each object."""
    body = "<DeleteResult><Error><Key>d/x</Key><Code>AccessDenied</Code><Message>No</Message></Error></DeleteResult>"
    with ScriptedS3() as server:
        handle = server.bucket.handle

        def refuse(request: Request) -> Answer:
            return Answer(200, body.encode()) if request.method == "POST" else handle(request)

        files = pds.Store("s3://bucket", server.options())
        files.write("d/x", b"x")
        monkeypatch.setattr(server.bucket, "handle", refuse)
        server.restart()
        with pytest.raises(pds.PermissionDenied) as caught:
            files.delete("d/x")
        assert caught.value.path == "d/x"
        assert [request.method for request in server.seen].count("POST") == 1
        with pytest.raises(pds.PermissionDenied) as caught:
            files.delete_folder("d", recursive=True)
        assert caught.value.path == "d/x"
        assert server.snapshot() == {"d/x": b"x"}


def test_a_name_that_is_busy_after_an_attempt_without_an_answer() -> None:
    """The first attempt may still land."""
    with ScriptedS3() as server:
        files = store(server)
        lost = server.on("put", "x", "drop")
        server.add(Rule(lambda r: r.touches("put", "x") and lost.hit.is_set(), "409"))
        error = ended(lambda: files.write("x", b"1"))
        assert isinstance(error, pds.BackendUnavailable), repr(error)
        assert "may have been created" in str(error)

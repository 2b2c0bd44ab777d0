"""Objects that S3 does not copy by one request, which it does up to 5 GiB, are copied by ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import pds
from pds import odf
from publish.harness import Call
from scripted_s3 import CLASS_A, CLASS_B, ScriptedS3
from scripted_s3.faults import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

# Ranges have 64 MiB.
LARGE = np.random.default_rng(1).bytes(130 << 20)
BYTES = b"x" * 17


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with ScriptedS3() as server:
        server.bucket.max_copied_bytes = 16
        yield server


def _files(server: ScriptedS3) -> pds.Store:
    # The server takes its time to hash a large object.
    return pds.Store("s3://bucket", {**server.options(), "stall_timeout": "20"})


def _content(server: ScriptedS3, key: str) -> bytes:
    return server.bucket.objects[key].content


@pytest.mark.parametrize("method", ["copy", "move"])
def test_a_large_object_is_copied_by_ranges(server: ScriptedS3, method: str) -> None:
    files = _files(server)
    server.bucket.put_object("a", LARGE)
    getattr(files, method)("a", "b", overwrite=True)
    assert _content(server, "b") == LARGE
    assert ("a" in server.bucket.objects) == (method == "copy")
    assert {request.query["partNumber"] for request in server.seen if request.verb == "piece"} == {"1", "2", "3"}
    # No byte of it came here.
    assert not [request for request in server.seen if request.touches("get", "a")]
    assert not server.bucket.uploads


@pytest.mark.parametrize("method", ["copy", "move"])
@pytest.mark.parametrize("ignores", [CLASS_A, CLASS_B])
def test_a_large_object_that_must_not_replace_another(method: str, ignores: frozenset[str]) -> None:
    """Where a completion has no conditions, the object passes through the client."""
    with ScriptedS3(ignores) as server:
        files = _files(server)
        server.bucket.put_object("a", LARGE)
        server.bucket.put_object("b", b"old")
        with pytest.raises(pds.AlreadyExists):
            getattr(files, method)("a", "b")
        assert _content(server, "b") == b"old"
        # Another writer is faster.
        create = server.add(Rule(lambda r: r.touches("complete|put", "c"), "pause", times=1))
        call = Call(lambda: getattr(files, method)("a", "c"))
        create.wait()
        server.bucket.put_object("c", b"rival")
        create.resume()
        assert isinstance(call.wait().error, pds.AlreadyExists), repr(call.error)
        assert (_content(server, "a"), _content(server, "c")) == (LARGE, b"rival")
        getattr(files, method)("a", "d")
        assert _content(server, "d") == LARGE
        assert not server.bucket.uploads


def test_a_version_that_is_replaced_meanwhile_is_not_mixed_with_the_next(server: ScriptedS3) -> None:
    files = _files(server)
    server.bucket.put_object("a", LARGE)
    server.bucket.put_object("other", LARGE[::-1])
    second = server.add(Rule(lambda r: r.verb == "piece" and r.query["partNumber"] == "2", "pause", times=1))
    move = Call(lambda: files.move("a", "b", overwrite=True))
    second.wait()
    server.bucket.objects["a"] = server.bucket.objects.pop("other")
    second.resume()
    assert isinstance(move.wait().error, pds.FileChanged), repr(move.error)
    assert list(server.bucket.objects) == ["a"]
    assert not server.bucket.uploads


@pytest.mark.parametrize("verb", ["begin", "piece", "complete"])
@pytest.mark.parametrize("fault", ["drop after", "500", "403"])
def test_a_copy_by_ranges_that_fails_leaves_nothing(server: ScriptedS3, verb: str, fault: str) -> None:
    files = _files(server)
    server.bucket.put_object("a", BYTES)
    server.bucket.put_object("b", b"old")
    server.on(verb, "b", fault)
    if fault == "403":
        with pytest.raises(pds.PermissionDenied):
            files.move("a", "b", overwrite=True)
        assert (_content(server, "a"), _content(server, "b")) == (BYTES, b"old")
    else:
        files.move("a", "b", overwrite=True)
        assert (list(server.bucket.objects), _content(server, "b")) == (["b"], BYTES)
    # An upload whose first answer was lost has no name here.
    assert len(server.bucket.uploads) == ((verb, fault) == ("begin", "drop after"))


def _move_whose_upload_is_gone(server: ScriptedS3) -> tuple[Rule, Call]:
    """A move of `a` over `b`, and its request to complete the upload, which waits."""
    files = _files(server)
    server.bucket.put_object("a", BYTES)
    server.bucket.put_object("b", b"old")
    complete = server.add(Rule(lambda r: r.touches("complete", "b"), "pause", times=1))
    move = Call(lambda: files.move("a", "b", overwrite=True))
    complete.wait()
    server.bucket.uploads.clear()
    return complete, move


def test_a_move_whose_upload_is_aborted_keeps_its_source(server: ScriptedS3) -> None:
    complete, move = _move_whose_upload_is_gone(server)
    complete.resume()
    assert isinstance(move.wait().error, pds.NotFound), repr(move.error)
    assert (_content(server, "a"), _content(server, "b")) == (BYTES, b"old")


def test_another_object_of_the_same_size_is_not_taken_for_the_copy(server: ScriptedS3) -> None:
    complete, move = _move_whose_upload_is_gone(server)
    rival = b"y" * len(BYTES)
    server.bucket.put_object("b", rival)
    complete.resume()
    assert isinstance(move.wait().error, pds.BackendUnavailable), repr(move.error)
    assert "replaced meanwhile" in str(move.error)
    assert (_content(server, "a"), _content(server, "b")) == (BYTES, rival)


def test_a_large_slice_is_ingested(server: ScriptedS3) -> None:
    """Its name, a hash, is known when all of it is uploaded."""
    numbers = np.random.default_rng(1).integers(0, 1 << 62, 3_000_000)
    rows = pa.table({"at": pa.array([0] * len(numbers), pa.timestamp("ms", "UTC")), "number": numbers})
    dataset = odf.Dataset.create(_files(server), "d")
    dataset.ingest(rows, event_time="at")
    assert [request.verb for request in server.seen].count("copy") == 1
    assert dataset.scan(["number"]).to_pyarrow()["number"].to_numpy().tolist() == numbers.tolist()
    assert not server.bucket.uploads


def test_parts_with_checksums_are_found_again() -> None:
    """The id of an upload part is a document then."""
    rows = pa.table({"number": np.random.default_rng(1).integers(0, 1 << 62, 3_000_000)})
    with ScriptedS3() as server:
        options = {**server.options(), "aws_checksum_algorithm": "sha256"}
        datasets = pds.ParquetDatasetStore(pds.Store("s3://bucket", options))
        write = datasets.begin_write("d")
        parts = [part for task in range(2) for part in write.prepare(rows, task)]
        assert len(server.bucket.uploads) == 2
        write.publish(parts, rows.schema)
        assert datasets.read_dataset("d").equals(pa.concat_tables([rows, rows]))

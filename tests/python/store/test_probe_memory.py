"""What one store of a process found out about a server is known to the next, as long as nothing speaks against it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from fault_runs import PATIENT
from scripted_s3 import CLASS_B, CONDITIONS, ScriptedS3
from scripted_s3.faults import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scripted_s3 import Request

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with ScriptedS3() as server:
        yield server


def _sent(server: ScriptedS3) -> tuple[int, int]:
    """How many requests came since the last restart: those of probes, and all others."""
    probes = sum(request.is_probe for request in server.seen)
    return probes, len(server.seen) - probes


def _write(server: ScriptedS3, url: str, options: Mapping[str, str]) -> tuple[int, int]:
    """Write a dataset by its URL; what that sends."""
    server.restart()
    pds.write_dataset(url, ROWS, storage_options=options)
    sent = _sent(server)
    assert pds.read_dataset(url, storage_options=options).equals(ROWS)
    return sent


def _move(server: ScriptedS3, options: Mapping[str, str], name: str) -> int:
    """Move a file by a store of its own, which deletes the version that was copied; how many probes that sends."""
    store = pds.Store("s3://bucket/files", storage_options=options)
    store.write(name, b"x")
    before = _sent(server)[0]
    store.move(name, f"{name}.moved")
    assert (store.exists(name), store.read_bytes(f"{name}.moved")) == (False, b"x")
    return _sent(server)[0] - before


@pytest.mark.parametrize("ignores", [frozenset(), CLASS_B])
def test_the_second_call_by_url_does_not_probe(server: ScriptedS3, ignores: frozenset[str]) -> None:
    server.bucket.ignores = ignores
    options = server.options() | PATIENT
    probes, others = _write(server, "s3://bucket/lake/a", options)
    assert probes > 10
    assert _write(server, "s3://bucket/lake/b", options) == (0, others)
    # What a store cannot do is known in every folder.
    assert _write(server, "s3://bucket/elsewhere/c/d", options) == (0, others)
    assert not any("-_probe-" in key for key in server.snapshot())
    assert not server.bucket.uploads


@pytest.mark.parametrize(
    ("more", "is_probed"),
    [
        ({}, False),
        ({"stall_timeout": "29"}, False),
        ({"aws_secret_access_key": "another"}, False),
        ({"aws_access_key_id": "somebody"}, True),
        ({"aws_skip_signature": "true"}, True),
        ({"aws_region": "elsewhere"}, True),
        ({"aws_virtual_hosted_style_request": "false"}, True),
    ],
)
def test_whoever_may_see_another_bucket_probes(server: ScriptedS3, more: dict[str, str], is_probed: bool) -> None:
    options = server.options() | PATIENT
    _write(server, "s3://bucket/lake/a", options)
    assert (_write(server, "s3://bucket/lake/b", options | more)[0] > 0) == is_probed
    assert _write(server, "s3://bucket/lake/c", options | more)[0] == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("AWS_CONDITIONAL_PUT", "etag"), ("AWS_PROXY_EXCLUDES", "127.0.0.1"), ("no_proxy", "127.0.0.1,localhost,s3.lan")],
)
def test_the_environment_may_lead_to_another_server(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    options = server.options() | PATIENT
    _write(server, "s3://bucket/lake/a", options)
    monkeypatch.setenv(name, value)
    assert _write(server, "s3://bucket/lake/b", options)[0] > 0
    assert _write(server, "s3://bucket/lake/c", options)[0] == 0


def test_another_server_is_probed(server: ScriptedS3) -> None:
    options = server.options() | PATIENT
    _write(server, "s3://bucket/lake/a", options)
    with ScriptedS3(ignores=frozenset(CONDITIONS)) as unsafe, pytest.raises(pds.UnsafeStore):
        _write(unsafe, "s3://bucket/lake/a", options | {"aws_endpoint": unsafe.endpoint})
    assert unsafe.snapshot() == {}


def test_threads_that_probe_at_once(server: ScriptedS3) -> None:
    options, barrier = server.options() | PATIENT, threading.Barrier(2)

    def write(number: int) -> None:
        barrier.wait()
        pds.write_dataset(f"s3://bucket/lake/{number}", ROWS, storage_options=options)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    assert _sent(server)[0] > 10
    for number in range(2):
        assert pds.read_dataset(f"s3://bucket/lake/{number}", storage_options=options).equals(ROWS)
    assert _write(server, "s3://bucket/lake/c", options)[0] == 0


@pytest.mark.parametrize(("verb", "fault"), [("complete", "403"), ("complete", "drop"), ("delete", "409")])
def test_what_a_probe_did_not_find_out_is_not_remembered(server: ScriptedS3, verb: str, fault: str) -> None:
    """The conditions of these requests are not known then, which is no answer for other users of the process."""
    options = server.options() | PATIENT | {"max_retries": "0"}

    def matches(request: Request) -> bool:
        is_conditional = verb == "complete" or "if-match" in request.headers
        return request.verb == verb and request.is_probe and is_conditional

    rule = server.add(Rule(matches, fault))
    assert _move(server, options, "a") > 0
    assert rule.hit.is_set()
    rule.drop()
    assert _move(server, options, "b") > 0
    assert _move(server, options, "c") == 0


def test_a_refused_server_is_probed_every_time(server: ScriptedS3) -> None:
    options = server.options() | PATIENT
    server.bucket.ignores_conditions = True
    for _ in range(2):
        server.restart()
        with pytest.raises(pds.UnsafeStore):
            pds.write_dataset("s3://bucket/lake/a", ROWS, storage_options=options)
        assert _sent(server)[0] > 0
    server.bucket.ignores_conditions = False
    assert _write(server, "s3://bucket/lake/a", options)[0] > 0
    assert _write(server, "s3://bucket/lake/b", options)[0] == 0


def test_an_answer_that_contradicts_is_a_reason_to_probe(server: ScriptedS3) -> None:
    """A server that knows conditional deletions is replaced by one that does not."""
    options = server.options() | PATIENT
    assert _move(server, options, "a") > 0
    assert _move(server, options, "b") == 0
    unknown = server.add(Rule(lambda r: r.verb == "delete" and "if-match" in r.headers, "501", times=1))
    assert _move(server, options, "c") == 0
    assert unknown.hit.is_set()
    assert _move(server, options, "d") > 0
    assert _move(server, options, "e") == 0


def test_a_server_that_was_replaced_by_an_unsafe_one_is_refused(server: ScriptedS3) -> None:
    """A table looks for itself before it is created; from then on all others do."""
    options = server.options() | PATIENT
    _write(server, "s3://bucket/lake/a", options)
    server.bucket.ignores_conditions = True
    with pytest.raises(pds.UnsafeStore):
        pds.Table.create(pds.Store("s3://bucket/lake", storage_options=options), "t", ROWS.schema)
    before = server.snapshot()
    with pytest.raises(pds.UnsafeStore):
        pds.write_dataset("s3://bucket/lake/b", ROWS, storage_options=options)
    assert server.snapshot() == before

"""``pds doctor`` tells which stores are safe for writers that do not know of one another."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import pds
from pds.doctor import Finding, judge, probe
from scripted_s3 import ScriptedS3
from scripted_s3.bucket import CONDITIONS

if TYPE_CHECKING:
    from tests.python.conftest import Run

    from scripted_s3.bucket import Answer, Request

RULES = [
    "write",
    "read",
    "list",
    "conditional create",
    "conditional replace",
    "concurrent creates",
    "concurrent replaces",
    "delete",
]


class RacingS3(ScriptedS3):
    """A server that looks whether the condition of a write holds, and writes some time later.

    One request after another gets what it should get.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def apply(self, request: Request, *, is_late: bool = False) -> Answer:
        conditions = {"if-none-match", "if-match"} & request.headers.keys()
        if request.method != "PUT" or not conditions:
            return super().apply(request, is_late=is_late)
        with self.bucket.lock:
            before = dict(self.bucket.objects)
            answer = self.bucket.handle(request)
            if not answer.is_success:
                return answer
            self.bucket.objects = before
        time.sleep(self._seconds)
        headers = {name: value for name, value in request.headers.items() if name not in conditions}
        return super().apply(replace(request, headers=headers), is_late=is_late)


def _open(server: ScriptedS3) -> pds.Store:
    return pds.Store("s3://bucket/lake", **server.options())


def test_a_store_that_keeps_every_rule_is_safe(store: pds.Store) -> None:
    store.write("before", b"1")
    findings = list(probe(store))
    assert [finding.name for finding in findings] == RULES
    assert [finding.detail for finding in findings if not finding.passed] == []
    assert judge(findings) == "safe"
    assert [info.path for info in store.list_files(recursive=True)] == ["before"]


def test_a_server_that_ignores_conditions_is_unsafe(run: Run) -> None:
    with ScriptedS3(ignores=frozenset(CONDITIONS)) as server:
        findings = list(probe(_open(server)))
        options = [f"--option={name}={value}" for name, value in server.options().items()]
        code, out, _ = run("doctor", "s3://bucket/lake", *options)
        assert server.snapshot() == {}
    assert {finding.name for finding in findings if finding.unsafe} >= {"conditional create", "conditional replace"}
    assert judge(findings) == "unsafe"
    assert code == 1
    assert out.splitlines()[-1].startswith("UNSAFE: ")


@pytest.mark.parametrize("seconds", [0.001, 0.05])
def test_a_server_that_looks_before_it_writes_is_unsafe(seconds: float) -> None:
    with RacingS3(seconds) as server:
        findings = {finding.name: finding for finding in probe(_open(server))}
        assert server.snapshot() == {}
    # One after another is no test of it.
    assert findings["conditional create"].passed
    assert findings["conditional replace"].passed
    assert findings["concurrent creates"].unsafe
    assert findings["concurrent replaces"].unsafe
    assert "at the same time succeeded" in findings["concurrent creates"].detail
    assert judge(findings.values()) == "unsafe"


def test_an_account_that_may_not_list_leaves_nothing() -> None:
    with ScriptedS3() as server:
        server.on("list", "", "403", times=1000)
        store = _open(server)
        with pytest.raises(pds.PermissionDenied, match="access denied"):
            list(store.list_files(recursive=True))
        # A refusal is an answer, and is not asked for again.
        assert sum(request.verb == "list" for request in server.seen) == 1
        findings = {finding.name: finding for finding in probe(store)}
        assert server.snapshot() == {}
    assert {name for name, finding in findings.items() if not finding.passed} == {"list", "delete"}
    assert judge(findings.values()) == "unknown"


def test_a_server_that_cannot_be_reached_is_asked_once() -> None:
    with ScriptedS3() as server:
        store = _open(server)
    findings = list(probe(store))
    assert [finding.passed for finding in findings] == [False] * len(RULES)
    assert findings[-1].detail == "not tried, since write failed"
    assert judge(findings) == "unknown"


def test_nothing_is_known_without_findings() -> None:
    assert judge([]) == "unknown"
    assert judge([Finding("write", passed=True, detail=""), Finding("x", passed=False, detail="")]) == "unknown"

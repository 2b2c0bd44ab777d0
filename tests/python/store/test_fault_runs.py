"""What the runs of fault tests measure and say: not how busy the machine is, and which run failed how."""

from __future__ import annotations

import time

import pytest

import fault_runs
import pds
from fault_runs import PATIENT, Run, own_seconds, plan, run_all, store
from scripted_s3 import ScriptedS3


def test_time_in_which_a_process_has_no_turn_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_runs, "waited_for_processors", float)
    begin = time.monotonic()
    with own_seconds() as taken:
        # No other thread of Python runs meanwhile.
        sum(range(60_000_000))
        held = time.monotonic() - begin
        counted = taken()
    assert held > 0.3, "it shows nothing"
    assert counted < held / 2


def test_a_call_that_waits_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_runs, "waited_for_processors", float)
    with own_seconds() as taken:
        time.sleep(1)
        assert 0.3 < taken() < 1.2


def test_time_in_which_processors_are_wanted_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter([5.0, 5.0, 5.8])
    monkeypatch.setattr(fault_runs, "waited_for_processors", lambda: next(waited))
    with own_seconds() as taken:
        time.sleep(1)
        without = taken()
        assert taken() < max(without - 0.3, 0.1)


def test_what_waited_for_processors_is_counted() -> None:
    before = fault_runs.waited_for_processors()
    assert fault_runs.waited_for_processors() >= before >= 0


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("fault", ["403", "cut", "drop after", "stall"])
def test_only_a_fault_without_an_answer_is_waited_for_by_the_clock(fault: str, *, lasts: bool) -> None:
    with ScriptedS3() as server:
        store(server).write("a", b"1")
        (request, *_) = server.seen
    limit = Run(0, request, fault, lasts).options()["stall_timeout"]
    assert (limit == PATIENT["stall_timeout"]) is (fault != "stall")
    assert float(limit) <= float(PATIENT["stall_timeout"])


def test_a_failure_names_the_run_its_fault_and_what_was_sent() -> None:
    with ScriptedS3() as server:
        store(server).write("a", b"1")
        requests = list(server.seen)
    runs = plan(requests, ["403"], lasts=False, share=1)

    def judge(server: ScriptedS3, run: Run) -> None:
        server.restart(run.faults())
        with pytest.raises(pds.PermissionDenied):
            store(server, run).write("b", b"1")
        server.restart()
        assert store(server).read_bytes("b") == b"1"

    with pytest.raises(AssertionError) as failed:
        run_all(runs, {}, judge)
    (note,) = failed.value.args
    assert f"{len(runs)} of {len(runs)} runs failed" in note
    assert "403 at request 0, put prefix/a" in note
    assert "s of its own in" in note
    assert "0 put prefix/b" in note
    assert "then get prefix/b" in note

"""Requests of what changes a pipeline that wait, get lost on the way, or arrive twice, while others go on.

Meanwhile another process updates the pipeline, compacts it and vacuums it without sparing anything. After all that its
updates are there; what waited is there if it was reported, and not if it was refused; and a later vacuum finds no file
missing.
"""

from __future__ import annotations

import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import pds
from fault_runs import GATE_SHARE, Run, ended, plan, run_all, store
from producers.test_faults import ALL, PipelineCase, look, open_pipeline

if TYPE_CHECKING:
    from scripted_s3 import ScriptedS3

pytestmark = pytest.mark.slow

# A client that waits for its answer as long as the others take.
PATIENT = {"stall_timeout": "60", "retry_timeout": "120"}
WRITES = "put|copy|delete|complete"
NAMES = [
    "create",
    "update",
    "update once",
    "preview",
    "preview of the first version",
    "update by tasks",
    "rebuild",
    "rebuild as it is",
    "remove",
    "rename a stage",
    "tag",
    "compaction",
    "vacuum",
    "vacuum beside a tag",
]
GATED = {"create", "update", "preview", "compaction", "vacuum"}
# The first key of the others.
OTHERS = 1000


def go_on(place: pds.Store, key: int) -> list[int]:
    """What another process does; return the keys of its updates. One that is too old for the graph does nothing."""
    pipeline, done = open_pipeline(place), []
    try:
        for number in (key, key + 1):
            pipeline.update(phrases=pds.Changes([(number, f"other {number}")]))
            done.append(number)
            pipeline.compact(min_delta=0)
    except pds.DefinitionChanged:
        pass
    if pipeline.version:
        pipeline.vacuum(dt.timedelta(0))
    return done


class LateCase(PipelineCase):
    """An operation on the pipeline of which one request is not done when it is sent."""

    def judge(self, server: ScriptedS3, run: Run) -> None:
        """One run, and what is there after it."""
        place = store(server)
        mine = pds.Store("s3://bucket/prefix", storage_options=server.options("a") | PATIENT)
        rule = server.stop("a", run.fault, skip=run.number)
        rule.times = 1
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(ended, lambda: self.operation.work(mine))
            while not rule.hit.is_set() and not working.done():
                time.sleep(0.005)
            if run.fault.startswith("pause"):
                try:
                    done = go_on(place, OTHERS)
                finally:
                    rule.resume()
                error = working.result()
            else:
                error = working.result()
                done = go_on(place, OTHERS)
                rule.land()
        is_done = self.is_done(place, error)
        self.compare(place, done, is_done, error)
        done += go_on(place, OTHERS + 10)
        self.compare(place, done, is_done, error)

    def compare(self, place: pds.Store, done: list[int], is_done: bool | None, error: Exception | None) -> None:
        state = look(place) or {"phrases": [], "tags": []}
        others = [row for row in state["phrases"] if row[0] >= OTHERS]
        assert others == [(key, f"other {key}") for key in done], f"updates of others are lost, after {error!r}"
        rows = [row for row in state["phrases"] if row[0] < OTHERS]
        old, new = (one or {"phrases": [], "tags": []} for one in (self.old, self.new))
        expected = [old, new] if is_done is None else [new if is_done else old]
        assert (rows, state["tags"]) in [(one["phrases"], one["tags"]) for one in expected], repr(error)
        if self.old is not None:
            assert state.keys() in [one.keys() for one in expected], repr(error)
        if "counts" in state:
            words: dict[str, int] = {}
            for word, *_ in state["words"]:
                words[word] = words.get(word, 0) + 1
            counts = sorted((-number, word) for word, number in words.items())
            assert [(-number, word) for number, word, _ in state["counts"]] == counts, "the stage is up to date"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in GATED else pytest.mark.soak) for name in NAMES]
)
def test_a_write_that_is_late(name: str) -> None:
    case = LateCase(ALL[name])
    share = GATE_SHARE * max(1, len(case.requests) // 16)
    faults = ("pause", "pause after", "late drop", "duplicate")
    run_all(plan(case.requests, faults, lasts=False, verbs=WRITES, share=share), case.before, case.judge)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", ["pause", "pause after", "late drop", "late 500", "duplicate"])
def test_any_request_that_is_late(name: str, fault: str) -> None:
    case = LateCase(ALL[name])
    run_all(plan(case.requests, [fault], lasts=False), case.before, case.judge)

"""Every fault at every request of what changes an Open Data Fabric dataset.

After each: the chain verifies, data and all; what was reported as appended is there exactly once, what
failed is not, and where the outcome is open the log tells.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import pds
from fault_runs import DISTINCT, LASTING, PASSING, Run, ended, plan, run_all
from pds import odf
from scripted_s3 import FAULTS, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripted_s3 import Stored

pytestmark = [pytest.mark.slow, pytest.mark.soak]

PATH = "weather"
OPTIONS = pds.WriteOptions(compression="none")
IDENTITY = odf.Identity.generate()
TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
# Little goes in one PUT; more than a piece is a multipart upload.
LITTLE, MUCH = 20, 560_000
SHORT = 1.0


def _rows(seed: int, count: int = LITTLE) -> pa.Table:
    noise = np.random.default_rng(seed).random(count)
    times = pa.array([TIME + dt.timedelta(days=seed)] * count, pa.timestamp("ms", "UTC"))
    return pa.table({"at": times, "noise": noise})


def _store(server: ScriptedS3) -> pds.Store:
    return pds.Store("s3://bucket/prefix", storage_options=server.options())


def _open(store: pds.Store) -> odf.Dataset:
    return odf.Dataset(store, PATH, options=OPTIONS, timeout=SHORT)


def _create(store: pds.Store) -> None:
    odf.Dataset.create(store, PATH, identity=IDENTITY, system_time=TIME, options=OPTIONS, timeout=SHORT)


def _filled(store: pds.Store) -> None:
    _create(store)
    for seed in (1, 2, 3):
        _open(store).ingest(_rows(seed), event_time="at")


class Operation(NamedTuple):
    """What changes a dataset, and what is there before."""

    work: Callable[[pds.Store], object]
    setup: Callable[[pds.Store], None] = _filled


OPERATIONS = {
    "create": Operation(_create, lambda _: None),
    "first ingest": Operation(lambda s: _open(s).ingest(_rows(9), event_time="at"), _create),
    "ingest": Operation(lambda s: _open(s).ingest(_rows(9), event_time="at")),
    "append": Operation(lambda s: _open(s).append(odf.SetInfo(description="air"))),
    "append two": Operation(
        lambda s: _open(s).append([odf.SetInfo(description="air"), odf.SetLicense("a", "b", "c", "d")])
    ),
    "compact": Operation(lambda s: _open(s).compact()),
}
LARGE = {"ingest": Operation(lambda s: _open(s).ingest(_rows(9, MUCH), event_time="at"))}


class State(NamedTuple):
    """What a reader sees, whatever the names of the objects are."""

    events: list[str]
    rows: list[float]


def _look(store: pds.Store) -> State | None:
    """The dataset as it is, all of it verified; None if there is none."""
    if not odf.Dataset.exists(store, PATH):
        return None
    dataset = _open(store)
    dataset.verify()
    log = dataset.log()
    events = [block.event.kind for block in reversed(log)]
    rows = dataset.scan().to_pyarrow()["noise"].to_pylist() if "SetDataSchema" in events else []
    return State(events, rows)


class _Case:
    """An operation, what it makes of the dataset, and what a second time makes of that."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        with ScriptedS3() as server:
            operation.setup(_store(server))
            self.before: dict[str, Stored] = server.save()
            self.old = _look(_store(server))
            server.restart()
            operation.work(_store(server))
            self.requests = list(server.seen)
            self.new = _look(_store(server))
            self.second_error = type(ended(lambda: operation.work(_store(server))))
            self.newer = _look(_store(server))

    def judge(self, server: ScriptedS3, run: Run) -> None:
        """One run, and what is there after it."""
        server.restart(run.faults())
        error = ended(lambda: self.operation.work(_store(server)))
        server.restart()
        store = _store(server)
        if not run.lasts and run.fault in PASSING:
            assert error is None, repr(error)
        found = _look(store)
        if error is None:
            assert found == self.new, "reported as done, and it is not there"
        elif isinstance(error, pds.CommitStateUnknown):
            assert error.commit_id
            is_there = found is not None and error.commit_id in {block.hash for block in _open(store).log()}
            assert found == (self.new if is_there else self.old), f"{error!r}, and it is {'not ' * is_there}there"
        else:
            assert found == self.old, f"{error!r}, and something of it is there"
            if not run.lasts:
                self._check_clean(server, error)
        self._do_it_again(store, found)

    def _check_clean(self, server: ScriptedS3, error: Exception) -> None:
        """Of what certainly failed no data is left; blocks are small, and may be another's too."""
        left = sorted(key for key in server.save().keys() - self.before.keys() if "/blocks/" not in key)
        uploads = [upload.key for upload in server.bucket.uploads.values() if upload.pieces]
        assert not left, f"{left} are left after {error!r}"
        assert not uploads, f"uploads of {uploads} are left after {error!r}"

    def _do_it_again(self, store: pds.Store, found: State | None) -> None:
        second = ended(lambda: self.operation.work(store))
        now = _look(store)
        if found == self.old:
            assert second is None, f"the second time: {second!r}"
            assert now == self.new, "the second time made something else"
        else:
            assert type(second) is self.second_error, f"the second time: {second!r}"
            assert now == self.newer, "the second time made something else"


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_fault(name: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, DISTINCT, lasts=False), case.before, case.judge)


@pytest.mark.parametrize("name", ["ingest", "append"])
def test_a_fault_that_lasts(name: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, ("403", "412", "drop after"), lasts=True), case.before, case.judge)


@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("fault", LASTING)
def test_any_fault(name: str, fault: str, *, lasts: bool) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, [fault], lasts=lasts), case.before, case.judge)


@pytest.mark.parametrize("fault", ["403", "404", "500 after", "drop after"])
def test_one_fault_of_uploads(fault: str) -> None:
    case = _Case(LARGE["ingest"])
    run_all(plan(case.requests, [fault], lasts=False), case.before, case.judge)


@pytest.mark.soak
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("fault", FAULTS)
def test_any_fault_of_uploads(fault: str, *, lasts: bool) -> None:
    case = _Case(LARGE["ingest"])
    run_all(plan(case.requests, [fault], lasts=lasts), case.before, case.judge)

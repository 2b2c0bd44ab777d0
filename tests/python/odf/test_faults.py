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
from fault_runs import DISTINCT, ENDS_UPLOADS, FEW_AT_ONCE, LASTING, Case, Operation, Run, ended, plan, run_all, store
from pds import odf
from pds.odf.shared_ingest import SharedIngest
from scripted_s3 import FAULTS

if TYPE_CHECKING:
    from scripted_s3 import ScriptedS3

pytestmark = pytest.mark.slow

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


def _open(place: pds.Store) -> odf.Dataset:
    return odf.Dataset(place, PATH, options=OPTIONS, timeout=SHORT)


def _create(place: pds.Store) -> None:
    odf.Dataset.create(place, PATH, identity=IDENTITY, system_time=TIME, options=OPTIONS, timeout=SHORT)


def _filled(place: pds.Store) -> None:
    _create(place)
    for seed in (1, 2, 3):
        _open(place).ingest(_rows(seed), event_time="at")


def _ingest_by_tasks(place: pds.Store) -> None:
    """As an ingest, by the steps of one of which many processes write the slices."""
    rows = _rows(9)
    shared = SharedIngest.begin(_open(place), rows.schema, event_time="at")
    result = shared.commit(shared.task(0).write(rows.to_reader(), 1), rows.num_rows)
    assert result is not None, "there is no other writer"


OPERATIONS = {
    "create": Operation(_create, lambda _: None),
    "first ingest": Operation(lambda s: _open(s).ingest(_rows(9), event_time="at"), _create),
    "ingest": Operation(lambda s: _open(s).ingest(_rows(9), event_time="at"), _filled),
    "first ingest by tasks": Operation(_ingest_by_tasks, _create),
    "ingest by tasks": Operation(_ingest_by_tasks, _filled),
    "append": Operation(lambda s: _open(s).append(odf.SetInfo(description="air")), _filled),
    "append two": Operation(
        lambda s: _open(s).append([odf.SetInfo(description="air"), odf.SetLicense("a", "b", "c", "d")]), _filled
    ),
    "compact": Operation(lambda s: _open(s).compact(), _filled),
}
LARGE = {"ingest": Operation(lambda s: _open(s).ingest(_rows(9, MUCH), event_time="at"), _filled)}


class State(NamedTuple):
    """What a reader sees, whatever the names of the objects are."""

    events: list[str]
    rows: list[float]


def _look(place: pds.Store) -> State | None:
    """The dataset as it is, all of it verified; None if there is none."""
    if not odf.Dataset.exists(place, PATH):
        return None
    dataset = _open(place)
    dataset.verify()
    log = dataset.log()
    events = [block.event.kind for block in reversed(log)]
    rows = dataset.scan().to_pyarrow()["noise"].to_pylist() if "SetDataSchema" in events else []
    return State(events, rows)


class _Case(Case[State]):
    """An operation on the dataset."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation, _look)

    def judge(self, server: ScriptedS3, run: Run) -> None:
        """One run, and what is there after it."""
        error = self.run(server, run)
        found = _look(store(server))
        if error is None:
            assert found == self.new, "reported as done, and it is not there"
        elif isinstance(error, pds.CommitStateUnknown):
            assert error.commit_id
            is_there = found is not None and error.commit_id in {block.hash for block in _open(store(server)).log()}
            assert found == (self.new if is_there else self.old), f"{error!r}, and it is {'not ' * is_there}there"
        else:
            assert found == self.old, f"{error!r}, and something of it is there"
            if not run.lasts:
                # Blocks are small, and may be another's too.
                self.check_clean(server, error, spared="/blocks/")
        self._do_it_again(store(server), found)

    def _do_it_again(self, place: pds.Store, found: State | None) -> None:
        second = ended(lambda: self.operation.work(place))
        now = _look(place)
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


@pytest.mark.soak
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


def test_one_fault_where_an_upload_ends() -> None:
    case = _Case(LARGE["ingest"])
    faults = ["403", "500 after", "drop after", "cut"]
    run_all(plan(case.requests, faults, lasts=False, verbs=ENDS_UPLOADS), case.before, case.judge, FEW_AT_ONCE)


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["403", "404", "500 after", "drop after"])
def test_one_fault_of_uploads(fault: str) -> None:
    case = _Case(LARGE["ingest"])
    run_all(plan(case.requests, [fault], lasts=False), case.before, case.judge, FEW_AT_ONCE)


@pytest.mark.soak
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("fault", FAULTS)
def test_any_fault_of_uploads(fault: str, *, lasts: bool) -> None:
    case = _Case(LARGE["ingest"])
    run_all(plan(case.requests, [fault], lasts=lasts), case.before, case.judge, FEW_AT_ONCE)

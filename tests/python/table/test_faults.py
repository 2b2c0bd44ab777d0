"""Every fault at every request of what changes a table.

After each: the table opens, all that it names is there, a commit that was reported is there exactly
once, one that failed is not there at all, and where the outcome is open it can be asked for.
"""

from __future__ import annotations

import datetime as dt
import io
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds
from fault_runs import (
    DISTINCT,
    ENDS_UPLOADS,
    FEW_AT_ONCE,
    LASTING,
    PASSING,
    Case,
    Operation,
    Run,
    ended,
    is_probe,
    plan,
    run_all,
    store,
)
from scripted_s3 import FAULTS, Rule, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

PATH = "t"
SCHEMA = pa.schema([("id", pa.int64()), ("noise", pa.float64())])
OPTIONS = pds.WriteOptions(compression="none", row_group_size=1000)
# Little goes in one PUT; more than a piece is a multipart upload.
LITTLE, MUCH = 20, 560_000
# Of a commit; more than a busy machine pauses for.
SHORT = 5.0


def _rows(first: int, count: int) -> pa.Table:
    noise = np.random.default_rng(first).random(count)
    return pa.table({"id": np.arange(first, first + count), "noise": noise}, schema=SCHEMA)


def _open(place: pds.Store) -> pds.Table:
    return pds.Table(place, PATH, options=OPTIONS, commit_timeout=SHORT)


def _create(place: pds.Store, *, exists_ok: bool = False) -> None:
    pds.Table.create(
        place, PATH, SCHEMA, key="id", options=OPTIONS, commit_timeout=SHORT, exists_ok=exists_ok
    )  # fmt: skip


def _create_with_rows(place: pds.Store) -> None:
    pds.write_table(
        f"{place.url}/{PATH}",
        _rows(1000, LITTLE),
        mode="append",
        key="id",
        idempotency_key="k",
        options=OPTIONS,
        storage_options=place._options,
    )


def _filled(place: pds.Store) -> None:
    """Two files, a tombstone, versions to vacuum."""
    _create(place)
    for first in (0, 100):
        _open(place).append(_rows(first, 60))
    _open(place).delete("id = 130")


def _expired(place: pds.Store) -> None:
    """Files that no version names any more."""
    _filled(place)
    _open(place).optimize.compact()
    _open(place).append(_rows(300, 10))


def _to_add(place: pds.Store) -> None:
    """Files of a dataset, where the table takes them over."""
    _filled(place)
    sink = io.BytesIO()
    pq.write_table(_rows(500, 40), sink)
    place.write(f"{PATH}/incoming/x.parquet", sink.getvalue())


def _merge(place: pds.Store) -> object:
    source = _open(place).merge(_rows(150, 20), on="id")
    return source.when_matched_update_all().when_not_matched_insert_all().execute()


OPERATIONS = {
    "create": Operation(lambda s: _create(s, exists_ok=True), lambda _: None),
    "create with rows": Operation(_create_with_rows, lambda _: None),
    "append": Operation(lambda s: _open(s).append(_rows(1000, LITTLE)), _filled),
    "append once": Operation(lambda s: _open(s).append(_rows(1000, LITTLE), idempotency_key="k"), _filled),
    "delete a range": Operation(lambda s: _open(s).delete("id BETWEEN 110 AND 140"), _filled),
    "delete rows": Operation(lambda s: _open(s).delete("noise < 0.2"), _filled),
    "delete a file": Operation(lambda s: _open(s).delete("id < 100"), _filled),
    "upsert": Operation(lambda s: _open(s).upsert(_rows(140, 40)), _filled),
    "merge": Operation(_merge, _filled),
    "overwrite": Operation(lambda s: _open(s).overwrite(_rows(0, 7)), _filled),
    "overwrite some": Operation(lambda s: _open(s).overwrite(_rows(100, 7), where="id BETWEEN 100 AND 199"), _filled),
    "compact": Operation(lambda s: _open(s).optimize.compact(), _filled),
    "sort": Operation(lambda s: _open(s).optimize.sort("noise"), _filled),
    "add a column": Operation(lambda s: _open(s).alter.add_column("more", pa.int32()), _filled),
    "rename a column": Operation(lambda s: _open(s).alter.rename_column("noise", "sound"), _filled),
    "tag": Operation(lambda s: _open(s).tags.create("now"), _filled),
    "restore": Operation(lambda s: _open(s).restore(2), _filled),
    "add files": Operation(lambda s: _open(s).add_files([f"{PATH}/incoming/x.parquet"]), _to_add),
    "vacuum": Operation(lambda s: _open(s).vacuum(dt.timedelta(0)), _expired, in_steps=True),
}
# What the gate has time for.
GATED = {"create with rows", "append", "delete rows", "upsert", "compact", "vacuum"}
LARGE = {
    "append": Operation(lambda s: _open(s).append(_rows(1000, MUCH)), _filled),
    "overwrite": Operation(lambda s: _open(s).overwrite(_rows(0, MUCH)), _filled),
}


class State(NamedTuple):
    """What a reader sees, whatever the names of the objects are."""

    rows: pa.Table
    tags: dict[str, int]
    versions: int


def _look(place: pds.Store) -> State | None:
    """The table as it is, after a look whether all that it names is there; None if there is none."""
    if not pds.Table.exists(place, PATH):
        return None
    table = _open(place)
    checked = table.check()
    assert checked.ok, checked
    rows = table.scan().to_pyarrow()
    return State(rows.sort_by("id"), dict(table.tags), len(table.history()))


def _same(one: State | None, other: State | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.rows.equals(other.rows) and one.tags == other.tags


class _Case(Case[State]):
    """An operation on the table."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation, _look)

    def judge(self, server: ScriptedS3, run: Run) -> None:
        """One run, and what is there after it."""
        error = self.run(server, run)
        place = store(server)
        # Asked first: a reader looks at the pointer only, which may have been left behind.
        is_done = self._is_done(place, error)
        found = _look(place)
        if is_done is not None:
            assert _same(found, self.new if is_done else self.old), f"{error!r}, and it is {'not ' * is_done}there"
        assert _same(found, self.new) or _same(found, self.old), f"half of it is there, after {error!r}"
        if error is not None and not run.lasts and not isinstance(error, pds.CommitStateUnknown):
            self.check_clean(server, error)
        if error is not None and run.lasts:
            self._check_left(server, error)
        self._do_it_again(place, found)

    def _check_left(self, server: ScriptedS3, error: Exception) -> None:
        """A fault that lasts hits the cleaning too, but no more than the objects of one plan are left."""
        left = sorted(key for key in server.save().keys() - self.before.keys() if not is_probe(key))
        assert len(left) <= self.written, f"{left} are left after {error!r}"

    def _is_done(self, place: pds.Store, error: Exception | None) -> bool | None:
        """Whether it happened, by what was reported; None where that was left open."""
        if error is None:
            return True
        if isinstance(error, pds.CommitStateUnknown):
            assert error.commit_id
            # Nothing is on its way any more, so the answer is final.
            return bool(pds.Table.exists(place, PATH)) and _open(place).was_committed(error.commit_id) is not None
        return None if self.operation.in_steps else False

    def _do_it_again(self, place: pds.Store, found: State | None) -> None:
        second = ended(lambda: self.operation.work(place))
        now = _look(place)
        if _same(found, self.old) and not _same(self.old, self.new):
            assert second is None, f"the second time: {second!r}"
            assert _same(now, self.new), "the second time made something else"
        else:
            assert type(second) in (self.second_error, type(None)), f"the second time: {second!r}"
            assert _same(now, self.newer) or _same(now, self.new), "the second time made something else"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in GATED else pytest.mark.soak) for name in OPERATIONS]
)
def test_one_fault(name: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, DISTINCT, lasts=False), case.before, case.judge)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["append", "compact", "vacuum"])
def test_a_fault_that_lasts(name: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, ("403", "412", "drop after"), lasts=True), case.before, case.judge)


@pytest.mark.parametrize("name", sorted(GATED - {"create with rows"}))
@pytest.mark.parametrize("fault", ["403", "500"])
def test_what_is_left_when_no_manifest_can_be_written(name: str, fault: str) -> None:
    """What was refused for certain leaves nothing; where the outcome is open, one plan's objects, for a vacuum."""
    operation = OPERATIONS[name]
    with ScriptedS3() as server:
        place = store(server)
        operation.setup(place)
        _open(place).vacuum(dt.timedelta(0))
        before = server.save().keys()
        server.add(Rule(lambda request: request.verb == "put" and "/manifest/v" in request.key, fault))
        error = ended(lambda: operation.work(place))
        left = sorted(server.save().keys() - before)
        server.restart()
        if fault == "403":
            assert isinstance(error, pds.PermissionDenied)
            assert not left
        else:
            assert isinstance(error, pds.CommitStateUnknown)
            assert _open(place).was_committed(error.commit_id or "") is None
            uploads = [key for key in left if "/data/" in key or "/tombstone/" in key]
            assert len(left) == len(uploads) == (0 if name == "vacuum" else 2 if name == "upsert" else 1)
            # What began below the floor of the next vacuum goes with it.
            _open(place).append(_rows(5000, 1))
            _open(place).vacuum(dt.timedelta(0))
        assert _open(place).check().orphans == []


@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_any_fault(name: str, fault: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, [fault], lasts=False), case.before, case.judge)


@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", LASTING)
def test_any_fault_that_lasts(name: str, fault: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, [fault], lasts=True), case.before, case.judge)


@pytest.mark.parametrize("name", LARGE)
def test_one_fault_where_an_upload_ends(name: str) -> None:
    case = _Case(LARGE[name])
    faults = ["403", "500 after", "drop after"]
    run_all(plan(case.requests, faults, lasts=False, verbs=ENDS_UPLOADS), case.before, case.judge, FEW_AT_ONCE)


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("fault", ["403", "404", "500 after", "drop after"])
def test_one_fault_of_uploads(name: str, fault: str) -> None:
    case = _Case(LARGE[name])
    run_all(plan(case.requests, [fault], lasts=False), case.before, case.judge, FEW_AT_ONCE)


@pytest.mark.parametrize("name", LARGE)
def test_a_cut_answer_of_an_upload(name: str) -> None:
    """What was answered arrives in part: a completion that landed is looked up or sent again."""
    case = _Case(LARGE[name])
    run_all(plan(case.requests, ["cut"], lasts=False), case.before, case.judge, FEW_AT_ONCE)


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("fault", FAULTS)
def test_any_fault_of_uploads(name: str, fault: str, *, lasts: bool) -> None:
    case = _Case(LARGE[name])
    run_all(plan(case.requests, [fault], lasts=lasts), case.before, case.judge, FEW_AT_ONCE)


READS: dict[str, Callable[[pds.Store], object]] = {
    "scan": lambda s: _open(s).scan().to_pyarrow().sort_by("id"),
    "filter": lambda s: _open(s).scan(["id"], where="noise < 0.5").to_pyarrow().sort_by("id"),
    "count": lambda s: _open(s).scan(where="noise < 0.5").count(),
    "changes": lambda s: _open(s).scan_changes(since=1).to_pyarrow().num_rows,
    "travel": lambda s: _open(s).as_of(3).scan().count(),
    "history": lambda s: [entry["version"] for entry in _open(s).history()],
    "check": lambda s: _open(s).check(),
    "exists": lambda s: pds.Table.exists(s, PATH),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("scan", "history") else pytest.mark.soak) for name in READS]
)
def test_one_fault_of_a_read(name: str) -> None:
    read = READS[name]
    with ScriptedS3() as server:
        _filled(store(server))
        before = server.save()
        server.restart()
        expected = read(store(server))
        requests = list(server.seen)

    def judge(server: ScriptedS3, run: Run) -> None:
        server.restart(run.faults())
        found: list[object] = []
        error = ended(lambda: found.append(read(store(server, run))))
        if error is None:
            # A 404 is an answer: there is no table then.
            same = found[0].equals(expected) if isinstance(expected, pa.Table) else found[0] == expected
            assert same or (name in ("exists", "check") and run.fault == "404"), found[0]
        else:
            assert run.fault not in PASSING, repr(error)
        server.restart()
        assert server.save() == before, "a read changed something"

    run_all(plan(requests, FAULTS, lasts=False), before, judge)


def test_what_is_unknown_is_told_later() -> None:
    """The create of the manifest lands, and nobody hears of it."""
    with ScriptedS3() as server:
        _filled(store(server))
        table = _open(store(server))
        landed = server.on("put", ".json", "drop after")
        server.stop("key", "drop", after=landed)
        with pytest.raises(pds.CommitStateUnknown) as unknown:
            table.append(_rows(1000, LITTLE))
        server.restart()
        version = _open(store(server)).was_committed(unknown.value.commit_id)
        assert version == table.version + 1
        found = _open(store(server)).scan(where="id >= 1000").to_pyarrow()
        assert pc.count_distinct(found["id"]).as_py() == found.num_rows == LITTLE

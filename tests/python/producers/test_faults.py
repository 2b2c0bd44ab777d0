"""Every fault at every request of what changes a pipeline.

After each: the pipeline opens, all that it names can be read, and it has all of the update or nothing of it; what was
reported is there, and what failed for certain is not and has left nothing.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import pds
from fault_runs import (
    DISTINCT,
    GATE_SHARE,
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
from producers.engines import RepeatingEngine, Spread
from producers.pipelines import plain_rows
from producers.words import count, split_words, texts_of_words
from scripted_s3 import FAULTS, Rule, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

PATH, TABLE = "p", "t"
INT = pa.int64()
# Of a commit; more than a busy machine pauses for.
SHORT = 5.0


def open_pipeline(
    place: pds.Store,
    function: Callable[..., Any] = split_words,
    value: pa.DataType = INT,
    version: int = 1,
    engine: RepeatingEngine | None = None,
) -> pds.Pipeline:
    pipeline = pds.Pipeline(place, PATH, commit_timeout=SHORT, engine=engine)
    pipeline.source("phrases", key=INT, value=pa.string())
    return _declare_stages(pipeline, function, value, version)


def _open_fed(place: pds.Store) -> pds.Pipeline:
    """The same, of phrases that are in a table."""
    pipeline = pds.Pipeline(place, PATH, commit_timeout=SHORT)
    table = pds.Table(place, TABLE, commit_timeout=SHORT)
    pipeline.source("phrases", table, key="id", value="phrase")
    return _declare_stages(pipeline)


def _declare_stages(
    pipeline: pds.Pipeline, function: Callable[..., Any] = split_words, value: pa.DataType = INT, version: int = 1
) -> pds.Pipeline:
    words = pipeline.producer("phrases", key=pa.string(), value=value, name="words", version=version)(function)
    pipeline.producer(words, key=INT, value=pa.string(), name="counts", descending=True)(count)
    return pipeline


def _filled(place: pds.Store) -> None:
    """So many bytes that small updates leave them to a compaction, and two of these."""
    pipeline = open_pipeline(place)
    large = [(n, f"a {n} {np.random.default_rng(n).bytes(8_000).hex()}") for n in range(100, 120)]
    pipeline.update(phrases=pds.Changes([(n, f"the {n} red") for n in range(20)] + large))
    pipeline.update(phrases=pds.Changes([(3, "blue")], [4]))
    pipeline.update(phrases=pds.Changes([(5, "blue")]))


def _update(place: pds.Store, **options: Any) -> object:
    return open_pipeline(place).update(phrases=pds.Changes([(1, "the green"), (50, "red")], [2]), **options)


def _preview(place: pds.Store) -> Any:
    return open_pipeline(place).preview(phrases=pds.Changes([(1, "the green"), (50, "red")], [2]), idempotency_key="k")


def _compacted(place: pds.Store) -> None:
    _filled(place)
    open_pipeline(place).compact(min_delta=0)


def _update_by_tasks(place: pds.Store) -> object:
    """All is computed by tasks, most of it by several."""
    engine = RepeatingEngine(task_bytes=1 << 12, repeats=False)
    rows = Spread([pa.table({"key": pa.array([1, 50, 51], INT), "value": ["the green", "red", "a red"]})])
    return open_pipeline(place, engine=engine).update(phrases=pds.Changes(rows, [2]))  # type: ignore[arg-type]


def _table(place: pds.Store) -> pds.Table:
    return pds.Table(place, TABLE, commit_timeout=SHORT)


def _attached(place: pds.Store) -> None:
    """A table of phrases, of which nothing is read."""
    schema = pa.schema([("id", INT), ("phrase", pa.string())])
    pds.Table.create(place, TABLE, schema, key="id", commit_timeout=SHORT)
    _table(place).append(pa.table({"id": range(20), "phrase": [f"the {n} red" for n in range(20)]}, schema=schema))


def _refreshed(place: pds.Store) -> None:
    """The table has changes that are not read."""
    _attached(place)
    _open_fed(place).refresh()
    _table(place).upsert(pa.table({"id": pa.array([1, 50], INT), "phrase": ["the green", "red"]}))
    _table(place).delete("id = 2")


def _restored(place: pds.Store) -> None:
    """What is not read is that the table is as it was, and that the version that was read is vacuumed."""
    _refreshed(place)
    _open_fed(place).refresh()
    _table(place).restore(2)
    _table(place).vacuum(dt.timedelta(0))


def _tagged(place: pds.Store) -> None:
    _filled(place)
    open_pipeline(place).tag("second", 2)


OPERATIONS = {
    "create": Operation(lambda s: _update(s, idempotency_key="k"), lambda _: None),
    "update": Operation(_update, _filled),
    "update once": Operation(lambda s: _update(s, idempotency_key="k"), _filled),
    "rebuild": Operation(
        lambda s: open_pipeline(s, texts_of_words, pa.string(), 2).rebuild(idempotency_key="k"), _filled
    ),
    "remove": Operation(lambda s: open_pipeline(s).remove("counts"), _filled),
    "preview": Operation(lambda s: _preview(s).commit(), _filled),
    "compaction": Operation(lambda s: open_pipeline(s).compact(min_delta=0), _filled),
    "vacuum": Operation(lambda s: open_pipeline(s).vacuum(dt.timedelta(0)), _compacted, in_steps=True),
}
# The gate has time for some of these, and for few faults of those with many requests.
SELDOM = {
    "preview of the first version": Operation(lambda s: _preview(s).commit(), lambda _: None),
    "replace": Operation(
        lambda s: open_pipeline(s).update(phrases=pds.Replace([(1, "the green"), (3, "blue"), (50, "red")])), _filled
    ),
    "update by tasks": Operation(_update_by_tasks, _filled),
    "create by tasks": Operation(_update_by_tasks, lambda _: None),
    "first refresh": Operation(lambda s: _open_fed(s).refresh(), _attached),
    "refresh from a table": Operation(lambda s: _open_fed(s).refresh(), _refreshed),
    "refresh after a vacuum": Operation(lambda s: _open_fed(s).refresh(), _restored),
    "rebuild as it is": Operation(lambda s: open_pipeline(s).rebuild("words"), _filled),
    "rename a stage": Operation(lambda s: open_pipeline(s).rename("counts", "sizes"), _filled),
    "tag": Operation(lambda s: open_pipeline(s).tag("second", 2), _filled),
    "untag": Operation(lambda s: open_pipeline(s).untag("second"), _tagged),
    "vacuum beside a tag": Operation(lambda s: open_pipeline(s).vacuum(dt.timedelta(0)), _tagged, in_steps=True),
}
ALL = OPERATIONS | SELDOM
GATED = {"refresh from a table", "rename a stage", "replace", "tag", "untag", "update by tasks"}


State = dict[str, list[Any]]
"""The rows of each table, as a reader sees them."""


def look(place: pds.Store) -> State | None:
    pipeline = open_pipeline(place)
    if pipeline.version == 0:
        return None
    tables: State = {"phrases": plain_rows(pipeline["phrases"].read()), "tags": sorted(pipeline.tags.items())}
    for name in ("words", "counts", "sizes"):
        try:
            table = pipeline[name]
        except pds.NotFound:
            continue
        tables[name] = plain_rows(table.read())
        tables[f"mappings of {name}"] = plain_rows(table.key_mappings())
    for tag, version in pipeline.tags.items():
        tables[f"words of {tag}"] = plain_rows(pipeline.as_of(version)["words"].read())
    words = {(word, key) for key, phrase in tables["phrases"] for word in phrase.split()}
    assert {(word, key) for word, key, _ in tables["words"]} == words, "the stage has what its source has"
    return tables


class PipelineCase(Case[State]):
    """An operation on the pipeline."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation, look)
        assert any(request.verb == "put" for request in self.requests), "it writes nothing"
        # What is written for tasks alone is removed in the end.
        runs = {request.key for request in self.requests if request.verb == "put" and f"{PATH}/run/" in request.key}
        self.written = max(self.written, len(runs))

    def judge(self, server: ScriptedS3, run: Run) -> None:
        """One run, and what is there after it."""
        error = self.run(server, run)
        place = store(server)
        # Asked first: a reader looks at the pointer, which may be that of the version before.
        is_done = self.is_done(place, error)
        found = look(place)
        assert found in (self.old, self.new), f"half of it is there, after {error!r}"
        if is_done is not None:
            assert found == (self.new if is_done else self.old), f"{error!r}, and it is {'not ' * is_done}there"
        if error is not None and not isinstance(error, pds.CommitStateUnknown) and not self.operation.in_steps:
            if not run.lasts:
                self.check_clean(server, error)
            left = [key for key in server.save().keys() - self.before.keys() if not is_probe(key)]
            assert len(left) <= self.written, f"{left} are left after {error!r}"
        second = ended(lambda: self.operation.work(place))
        assert type(second) in (self.second_error, type(None)), f"the second time: {second!r}"
        assert look(place) == self.new, "the second time made something else"

    def is_done(self, place: pds.Store, error: Exception | None) -> bool | None:
        """Whether it happened, by what was reported; None where that was left open."""
        if error is None:
            return True
        if isinstance(error, pds.CommitStateUnknown):
            assert error.commit_id
            pipeline = open_pipeline(place)
            # Nothing is on its way any more, so the answer is final.
            return pipeline.version > 0 and pipeline.was_committed(error.commit_id) is not None
        return None if self.operation.in_steps else False


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_fault(name: str) -> None:
    """Each request has a third of the faults; `make soak` has them all."""
    case = PipelineCase(OPERATIONS[name])
    run_all(plan(case.requests, DISTINCT, lasts=False), case.before, case.judge)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in GATED else pytest.mark.soak) for name in SELDOM]
)
def test_one_fault_of_others(name: str) -> None:
    case = PipelineCase(SELDOM[name])
    share = GATE_SHARE * max(1, len(case.requests) // 8)
    run_all(plan(case.requests, DISTINCT, lasts=False, share=share), case.before, case.judge)


@pytest.mark.soak
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fault", FAULTS)
def test_any_fault(name: str, fault: str) -> None:
    case = PipelineCase(ALL[name])
    run_all(plan(case.requests, [fault], lasts=False), case.before, case.judge)


@pytest.mark.soak
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fault", LASTING)
def test_any_fault_that_lasts(name: str, fault: str) -> None:
    case = PipelineCase(ALL[name])
    run_all(plan(case.requests, [fault], lasts=True), case.before, case.judge)


@pytest.mark.parametrize("name", ["update", "compaction", "refresh from a table", "update by tasks"])
@pytest.mark.parametrize("fault", ["403", "500"])
def test_what_is_left_when_no_manifest_can_be_written(name: str, fault: str) -> None:
    """What was refused for certain leaves nothing; where the outcome is open, a vacuum removes what is left."""
    operation = ALL[name]
    with ScriptedS3() as server:
        place = store(server)
        operation.setup(place)
        before, old = server.save().keys(), look(place)
        server.add(Rule(lambda request: request.verb == "put" and f"{PATH}/manifest/" in request.key, fault))
        error = ended(lambda: operation.work(place))
        left = {key for key in server.save().keys() - before if not is_probe(key)}
        server.restart()
        pipeline = open_pipeline(place)
        if fault == "403":
            assert isinstance(error, pds.PermissionDenied), repr(error)
            assert not left
        else:
            assert isinstance(error, pds.CommitStateUnknown), repr(error)
            assert pipeline.was_committed(error.commit_id or "") is None
            assert left
            # What began below the floor of the next vacuum goes with it.
            pipeline.tag("more", pipeline.version)
            pipeline.untag("more")
            pipeline.vacuum(dt.timedelta(0))
            assert not left & server.save().keys()
        assert look(place) == old


READS: dict[str, Callable[[pds.Pipeline], object]] = {
    "content": lambda p: plain_rows(p["words"].read()),
    "some keys": lambda p: plain_rows(p["words"].read(["the", "red"])),
    "mappings": lambda p: plain_rows(p["words"].key_mappings()),
    "changes": lambda p: plain_rows(p["counts"].changes(3)),
    "changes of a version": lambda p: plain_rows(p["words"].changes(2)),
    "lineage": lambda p: p["counts"].lineage([1]),
    "an older version": lambda p: plain_rows(p.as_of(1)["counts"].read()),
    "history": lambda p: [entry["version"] for entry in p.history()],
    "tags": lambda p: p.tags,
    "commit": lambda p: p.was_committed("0" * 32),
    "check": lambda p: p.check().ok,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("content", "changes") else pytest.mark.soak) for name in READS]
)
def test_one_fault_of_a_read(name: str) -> None:
    """It is right or an error, and changes nothing."""
    read = READS[name]
    with ScriptedS3() as server:
        _tagged(store(server))
        before = server.save()
        server.restart()
        expected = read(open_pipeline(store(server)))
        requests = list(server.seen)

    def judge(server: ScriptedS3, run: Run) -> None:
        server.restart(run.faults())
        results: list[object] = []
        error = ended(lambda: results.append(read(open_pipeline(store(server, run)))))
        server.restart()
        if error is None:
            # A 404 is an answer: there is no pipeline then, or no such version.
            is_empty = run.fault == "404" and name in ("history", "tags") and not results[0]
            assert results[0] == expected or is_empty, results[0]
        else:
            assert run.fault not in PASSING, repr(error)
        assert server.save() == before, "a read changed something"

    run_all(plan(requests, DISTINCT, lasts=False), before, judge)

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
from fault_runs import DISTINCT, LASTING, Case, Operation, Run, ended, is_probe, plan, run_all, store
from producers.pipelines import plain_rows
from producers.words import count, split_words, texts_of_words
from scripted_s3 import FAULTS, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

PATH = "p"
INT = pa.int64()
# Of a commit; more than a busy machine pauses for.
SHORT = 5.0


def _open(
    place: pds.Store, function: Callable[..., Any] = split_words, value: pa.DataType = INT, version: int = 1
) -> pds.Pipeline:
    pipeline = pds.Pipeline(place, PATH, commit_timeout=SHORT)
    phrases = pipeline.source("phrases", key=INT, value=pa.string())
    words = pipeline.producer(phrases, key=pa.string(), value=value, name="words", version=version)(function)
    pipeline.producer(words, key=INT, value=pa.string(), name="counts", descending=True)(count)
    return pipeline


def _filled(place: pds.Store) -> None:
    pipeline = _open(place)
    pipeline.update(phrases=pds.Changes([(n, f"the {n} red") for n in range(20)]))
    pipeline.update(phrases=pds.Changes([(3, "blue")], [4]))
    # Runs that no update merges with others.
    pipeline.update(
        phrases=pds.Changes([(n, f"a {n} {np.random.default_rng(n).bytes(8_000).hex()}") for n in range(100, 110)])
    )


def _update(place: pds.Store, **options: Any) -> object:
    return _open(place).update(phrases=pds.Changes([(1, "the green"), (50, "red")], [2]), **options)


def _preview(place: pds.Store) -> Any:
    return _open(place).preview(phrases=pds.Changes([(1, "the green"), (50, "red")], [2]), idempotency_key="k")


def _compacted(place: pds.Store) -> None:
    _filled(place)
    _open(place).compact(min_delta=0)


OPERATIONS = {
    "create": Operation(lambda s: _update(s, idempotency_key="k"), lambda _: None),
    "update": Operation(_update, _filled),
    "update once": Operation(lambda s: _update(s, idempotency_key="k"), _filled),
    "rebuild": Operation(lambda s: _open(s, texts_of_words, pa.string(), 2).rebuild(idempotency_key="k"), _filled),
    "remove": Operation(lambda s: _open(s).remove("counts"), _filled),
    "preview": Operation(lambda s: _preview(s).commit(), _filled),
    "compact": Operation(lambda s: _open(s).compact(min_delta=0), _filled),
    "vacuum": Operation(lambda s: _open(s).vacuum(dt.timedelta(0)), _compacted, in_steps=True),
}


State = dict[str, list[Any]]
"""The rows of each table, as a reader sees them."""


def _look(place: pds.Store) -> State | None:
    pipeline = _open(place)
    if pipeline.version == 0:
        return None
    tables: State = {"phrases": plain_rows(pipeline["phrases"].read())}
    for name in ("words", "counts"):
        try:
            table = pipeline[name]
        except pds.NotFound:
            continue
        tables[name] = plain_rows(table.read())
        tables[f"mappings of {name}"] = plain_rows(table.key_mappings())
    words = {(word, key) for key, phrase in tables["phrases"] for word in phrase.split()}
    assert {(word, key) for word, key, _ in tables["words"]} == words, "the stage has what its source has"
    return tables


class _Case(Case[State]):
    """An operation on the pipeline."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation, _look)

    def judge(self, server: ScriptedS3, run: Run) -> None:
        """One run, and what is there after it."""
        error = self.run(server, run)
        place = store(server)
        found = _look(place)
        assert found in (self.old, self.new), f"half of it is there, after {error!r}"
        if error is None:
            assert found == self.new, "what was reported is there"
        elif not isinstance(error, pds.CommitStateUnknown) and not self.operation.in_steps:
            assert found == self.old, f"what failed is not there, after {error!r}"
            if not run.lasts:
                self.check_clean(server, error)
            left = [key for key in server.save().keys() - self.before.keys() if not is_probe(key)]
            assert len(left) <= self.written, f"{left} are left after {error!r}"
        second = ended(lambda: self.operation.work(place))
        assert type(second) in (self.second_error, type(None)), f"the second time: {second!r}"
        assert _look(place) == self.new, "the second time made something else"


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_fault(name: str) -> None:
    """Each request has a third of the faults; `make soak` has them all."""
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, DISTINCT, lasts=False), case.before, case.judge)


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

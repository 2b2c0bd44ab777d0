"""Tags of pipelines, and looking for a commit."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3
from scripted_s3.faults import Rule

TEXT = pa.string()


def declare(store: pds.Store) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "p")
    pipeline.source("words", key=TEXT, value=TEXT)
    return pipeline


def words(pipeline: pds.PipelineVersion) -> dict[str, str]:
    return dict(zip(*pipeline["words"].read().to_pydict().values(), strict=True))


def test_a_tagged_version_stays(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store)
    with pytest.raises(pds.NotFound):
        pipeline.tag("first", 1)
    assert pipeline.tags == {}
    pipeline.update(words=pds.Changes([("a", "1")]))
    assert pipeline.tag("first") == 2
    pipeline.update(words=pds.Changes([("a", "2")]))
    with pytest.raises(pds.AlreadyExists):
        pipeline.tag("first")
    assert pipeline.tags == {"first": 1}
    pipeline.compact(min_delta=0)
    pipeline.vacuum(dt.timedelta(0))
    assert words(pipeline.as_of("first")) == {"a": "1"}
    with pytest.raises(pds.VersionExpired):
        pipeline.as_of(2)
    with pytest.raises(pds.NotFound, match=r"no tag 'second'; there are \['first'\]"):
        pipeline.as_of("second")
    pipeline.untag("first")
    with pytest.raises(pds.NotFound):
        pipeline.untag("first")
    pipeline.vacuum(dt.timedelta(0))
    with pytest.raises(pds.VersionExpired):
        pipeline.as_of(1)
    # A tag is no change of data: an update that was planned before it is not refused.
    version = pipeline.version
    pipeline.tag("once more")
    pipeline.update(words=pds.Changes([("b", "3")]), base_version=version)
    for bad in ("", "\n", "x" * 256):
        with pytest.raises(pds.InvalidInput):
            pipeline.tag(bad)
    with pytest.raises(pds.InvalidType):
        pipeline.tag(1)  # type: ignore[arg-type]


def test_a_commit_of_unknown_state_is_looked_for() -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/prefix", storage_options=server.options() | {"stall_timeout": "1"})
        pipeline = declare(store)
        first = pipeline.update(words=pds.Changes([("a", "1")]))
        assert pipeline.was_committed(first.commit_id) == 1
        put = server.add(Rule(lambda r: r.verb == "put" and "manifest/" in r.key, "drop after", times=1))
        server.add(Rule(lambda _: put.hit.is_set(), "403"))
        with pytest.raises(pds.CommitStateUnknown) as error:
            pipeline.update(words=pds.Changes([("a", "2")]))
        server.restart()
        assert pipeline.was_committed(error.value.commit_id) == 2
        assert words(pipeline.as_of(2)) == {"a": "2"}
        assert pipeline.was_committed("0" * 32) is None
        with pytest.raises(pds.InvalidInput):
            pipeline.was_committed("no id")

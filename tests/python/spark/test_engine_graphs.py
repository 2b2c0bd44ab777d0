"""Pipelines that Spark computes have the tables of the model: the vectors, and random graphs and updates."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

import pds
import producers.test_pipeline
from producers.model import Changes, Model
from producers.pipelines import compare, declare, to_changes
from producers.test_model import CASES, build_model
from producers.test_pipeline import SIZES, graphs, refusal_of, updates
from spark.test_engine import TINY, split_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(producers.test_pipeline)

CLUSTER = "local-cluster[2,1,1024]"


@pytest.mark.s3
@pytest.mark.parametrize("name", CASES)
def test_vectors(spark: SparkSession, s3_store: pds.Store, name: str) -> None:
    case = CASES[name]
    model = build_model(case)
    sources, stages = list(model.sources.values()), list(model.stages.values())
    pipeline = declare(s3_store, name, sources, stages, engine=split_engine(spark), **TINY)
    for update in case.updates:
        changes = {source: Changes.from_rows(rows) for source, rows in update.changes.items()}
        if update.error is not None:
            with pytest.raises(pds.InvalidInput):
                pipeline.update(to_changes(changes), base_version=update.base_version)
            continue
        result = pipeline.update(to_changes(changes), base_version=update.base_version)
        assert result.version == model.update(changes)
        assert any(stage.tasks for stage in result.stages.values()) or not any(update.changes.values())
        compare(s3_store, pipeline, model)


@pytest.mark.timeout(3600)
@pytest.mark.s3
@settings(deadline=None, max_examples=max(4, settings().max_examples // 30), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_graphs_and_updates(spark: SparkSession, s3_store: pds.Store, data: st.DataObject) -> None:
    sources, stages, kind = data.draw(graphs())
    sizes = SIZES[data.draw(st.sampled_from(sorted(SIZES)))]
    model = Model(sources, stages)
    path = f"graphs/{uuid.uuid4().hex}"
    pipeline = declare(s3_store, path, sources, stages, engine=split_engine(spark), **sizes)
    for changes in data.draw(updates(kind)):
        if refusal_of(model, changes) is None:
            assert pipeline.update(to_changes(changes)).version == model.version
            compare(s3_store, pipeline, model)
        else:
            with pytest.raises(pds.InvalidInput, match="delete"):
                pipeline.update(to_changes(changes))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.parametrize(
    ("test", "count"),
    [("test_vectors", len(CASES)), ("test_random_graphs_and_updates", 1)],
)
def test_the_same_by_executors_in_processes_of_their_own(test: str, count: int) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"{__file__}::{test}"]
    environment = os.environ | {"PDS_SPARK_MASTER": CLUSTER, "HYPOTHESIS_PROFILE": "fast"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stdout[-4000:]
    assert f"{count} passed" in run.stdout

"""Every test of pipelines runs twice: in this process, and by tasks of an engine."""

from __future__ import annotations

import pytest

import pds
from producers.engines import RepeatingEngine


@pytest.fixture(autouse=True, params=["here", "tasks"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where stages are computed. Each pipeline without an engine gets one of its own."""
    if request.param == "tasks":
        bind = pds.Pipeline._bind_engine

        def bind_tasks(pipeline: pds.Pipeline) -> object:
            pipeline._engine = pipeline._engine or RepeatingEngine(repeats=False)
            return bind(pipeline)

        monkeypatch.setattr(pds.Pipeline, "_bind_engine", bind_tasks)
    chosen: str = request.param
    return chosen

"""Tests of what stages compute run twice: in this process, and by tasks of an engine."""

from __future__ import annotations

from typing import Any

import pytest

import pds
from producers.engines import RepeatingEngine

BY_TASKS = (
    "test_aggregates",
    "test_attached",
    "test_attached_stages",
    "test_check",
    "test_count_distinct",
    "test_flatten",
    "test_joins",
    "test_ordered",
    "test_pipeline",
    "test_preview",
    "test_rebuild",
    "test_recomputed",
    "test_selections",
    "test_updates",
    "test_value_order",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.endswith(BY_TASKS):
        metafunc.parametrize("engine", ["here", "tasks"], indirect=True)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where stages are computed. By tasks, each pipeline without an engine gets one of its own."""
    chosen: str = getattr(request, "param", "here")
    if chosen == "tasks":
        bind = pds.Pipeline._bind_engine

        def bind_tasks(pipeline: pds.Pipeline, *nodes: Any) -> object:
            pipeline._engine = pipeline._engine or RepeatingEngine(task_bytes=1 << 13, repeats=False)
            return bind(pipeline, *nodes)

        monkeypatch.setattr(pds.Pipeline, "_bind_engine", bind_tasks)
    return chosen

"""The pipelines of `make bench-producers` still run, and have the results of their peers; nothing is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import producers_costs
import producers_row_mode
import producers_words
import pytest
from producers_registry import GRAPHS

import pds

if TYPE_CHECKING:
    from pathlib import Path

    from producers_graphs import Graph

ROWS = 6_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own: none of the rows are left over."""
    monkeypatch.setenv("PDS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path


def compare_peers(graph: Graph, sources: dict[str, Path], folder: Path) -> None:
    """All peers write the same rows."""
    results = []
    for name, recompute in graph.peers.items():
        (folder / name).mkdir()
        recompute(sources, folder / name)
        files = sorted((folder / name).iterdir())
        results.append({file.name: pl.read_parquet(file).rows() for file in files})
    assert results[0]
    assert all(rows for rows in results[0].values())
    assert len(results) > 1
    assert all(rows == results[0] for rows in results[1:])


@pytest.mark.parametrize("name", GRAPHS)
def test_a_pipeline_and_its_updates(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]
    pipeline = graph.build(pds.Store("memory://"), ROWS)
    for kind, change in graph.changes.items():
        for keys in (1,) if kind == "names" else (1, 100):
            changes = change(ROWS, keys, 1)
            costs = producers_costs.measured(lambda c=changes: pipeline.update(c))
            assert costs.written > 0
    assert graph.check is None or graph.check(pipeline, ROWS)
    assert pipeline.check().ok
    if graph.peers:
        assert graph.check is not None
        compare_peers(graph, graph.sources(ROWS), tmp_path)


@pytest.mark.parametrize("has_split", [False, True])
def test_word_counts(has_split: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with an error if the pipeline and its peers differ."""
    if not has_split:
        monkeypatch.setattr(producers_words, "can_split", lambda: False)
    producers_words.compare(1_000, 1)
    printed = capsys.readouterr().out
    assert ("sources have lists of words" in printed) != has_split
    assert len(printed.splitlines()) == (5 if has_split else 6)


def test_rows_of_functions_that_are_called_key_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    producers_row_mode.compare(4_000, 1)
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(producers_row_mode.CASES)

"""What `explain` says of stages, without calling a function."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pds
from pds.producers import explanation

ROOT = Path(__file__).parents[3]
INT, TEXT = pa.int64(), pa.string()


def declare(store: pds.Store) -> pds.Pipeline:
    for name, order in (("sorted", "id"), ("unsorted", ())):
        schema = pa.schema([("id", INT), ("x", INT)])
        pds.Table.create(store, name, schema, sort_by=order, exists_ok=True)
    pipeline = pds.Pipeline(store, "p")
    pipeline.source("pushed", key=INT, value=INT)
    pipeline.source("by_sorted", pds.Table(store, "sorted"), key="id", value="x")
    pipeline.source("by_unsorted", pds.Table(store, "unsorted"), key="id", value="x")

    def never(*_: Any) -> Any:
        raise AssertionError("explain calls no function")

    hook = pds.Preserve(lambda new, _earlier, _state: new)
    pipeline.producer("pushed", key=INT, value=INT, name="rows", preserve=hook)(never)
    pipeline.producer("by_sorted", "by_unsorted", key=INT, value=INT, name="batches", batch=True)(never)
    pipeline.join("pushed", "by_sorted", key=INT, value=INT, name="join")(never)
    pipeline.select("pushed", name="select")
    pipeline.aggregate("select", aggregates={"n": "count"}, name="counts")
    pipeline.aggregate(
        "select", aggregates={"n": "count", "low": ("value", "min"), "high": ("value", "max")}, name="extremes"
    )
    pipeline.select("pushed", order_by='"value"', name="ordered")
    pipeline.first("ordered", by='"value"', name="first")
    pipeline.first("ordered", by="value", descending=True, name="last")
    pipeline.aggregate("ordered", aggregates={"low": ("value", "min")}, name="ends")
    return pipeline


def test_before_and_after_the_first_update(memory_store: pds.Store) -> None:
    pipeline = declare(memory_store)
    stages = pipeline.explain().stages
    assert {name: (stage.kind, stage.cost) for name, stage in stages.items()} == {
        "pushed": ("source", "group"),
        "by_sorted": ("table", "group"),
        "by_unsorted": ("table", "group"),
        "rows": ("function", "group"),
        "batches": ("batches", "group"),
        "join": ("join", "group"),
        "select": ("select", "group"),
        "counts": ("aggregate", "changes"),
        "extremes": ("aggregate", "changes"),
        "ordered": ("select", "group"),
        "first": ("first", "changes"),
        "last": ("first", "group"),
        "ends": ("aggregate", "changes"),
    }
    assert {(stage.rows, stage.runs, stage.bytes) for stage in stages.values()} == {(0, 0, 0)}
    assert stages["batches"].feeders == ("by_sorted", "by_unsorted")
    assert "not sorted by the key" not in stages["by_sorted"].reads
    assert "reads id of all files" in stages["by_unsorted"].reads
    assert "preserve" in stages["rows"].reads
    assert stages["counts"].reads == "the rows that changed"
    assert "all rows of the key if the value leaves that is low or high" in stages["extremes"].reads
    assert "rows at the end of the key if the value leaves that is low" in stages["ends"].reads
    assert {name: stage.classes for name, stage in stages.items()} == {
        "pushed": {},
        "by_sorted": {},
        "by_unsorted": {},
        "rows": {"function": "recompute"},
        "batches": {"function": "recompute"},
        "join": {"join": "recompute"},
        "select": {"select": "recompute"},
        "counts": {"n": "invert"},
        "extremes": {"n": "invert", "low": "recompute", "high": "recompute"},
        "ordered": {"select": "recompute"},
        "first": {"first": "prefix"},
        "last": {"first": "recompute"},
        "ends": {"low": "prefix"},
    }
    assert {(stage.key_pages, stage.key_bytes) for stage in stages.values()} == {(0, 0)}


def test_what_a_distinct_costs(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("pushed", key=INT, value=INT)
    pipeline.distinct("pushed", name="distinct")
    aggregates: Any = {"n": "count", "sum": ("value", "sum"), "differ": ("value", "count_distinct")}
    pipeline.aggregate("pushed", aggregates=aggregates, name="counts")
    pipeline.join_rows("pushed", "distinct", name="joined")
    stages = pipeline.explain().stages
    assert stages["distinct"].classes == {"distinct": "recompute"}
    assert stages["counts"].classes == {"n": "invert", "sum": "invert", "differ": "recompute"}
    assert stages["counts"].class_names == "invert n, sum; recompute differ"
    assert (stages["counts"].cost, stages["counts"].reads) == ("group", "all rows of the key")
    assert (stages["joined"].classes, stages["joined"].cost) == ({"join": "pairs"}, "changes")


def test_what_is_stored(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("pushed", key=INT, value=INT)
    pipeline.aggregate("pushed", aggregates={"n": "count"}, name="counts")
    pipeline.update(pushed=pds.Changes([(1, 1), (1, 2), (2, 3)]))
    explained = pipeline.explain()
    assert {name: (stage.rows, stage.runs) for name, stage in explained.stages.items()} == {
        "pushed": (3, 1),
        "counts": (2, 1),
    }
    files = {info.path: info.size for info in memory_store.list_files("p/run", recursive=True)}
    assert sum(stage.bytes for stage in explained.stages.values()) == sum(files.values())
    header, pushed, counts = str(explained).splitlines()
    assert header.split()[:3] == ["stage", "kind", "cost"]
    assert pushed.split()[:4] == ["pushed", "source", "group", "3"]
    assert counts.endswith("the rows that changed")


def test_the_estimate_of_a_key_follows_runs_and_pages_not_the_size_of_the_data(memory_store: pds.Store) -> None:
    def estimate(rows: int, *more: int) -> dict[str, tuple[int, int, int]]:
        pipeline = pds.Pipeline(memory_store, f"p{rows}-{len(more)}")
        pipeline.source("pushed", key=INT, value=INT)
        pipeline.select("pushed", key="key % 1000", name="select")
        pipeline.aggregate("select", aggregates={"n": "count"}, name="counts")
        keys = np.random.default_rng(1).choice(2**50, rows, replace=False)
        pipeline.update(pushed=pds.Changes(pa.table({"key": keys, "value": keys})))
        for key in more:
            pipeline.update(pushed=pds.Changes([(key, 1)]))
        stages = pipeline.explain().stages
        return {name: (stage.key_pages, stage.key_bytes, stage.bytes) for name, stage in stages.items()}

    small, large, with_runs = estimate(20_000), estimate(80_000), estimate(80_000, 7)
    # What is pushed is a whole key, so the select reads its own content and mappings alone; the aggregate reads what it
    # is fed, and its groups.
    pages = {"pushed": 0, "select": 2, "counts": 2}
    for one in (small, large):
        assert {name: one[name][0] for name in one} == pages
    for name in ("select", "counts"):
        assert large[name][1] == pytest.approx(small[name][1], rel=0.2)
        assert 0 < large[name][1] < large["select"][2] / 5
    assert large["select"][2] > 3 * small["select"][2]
    assert with_runs["select"][0] > pages["select"]


def test_a_page_of_an_estimate_has_the_rows_of_a_stored_one() -> None:
    source = (ROOT / "src" / "files" / "run" / "write.rs").read_text()
    (rows,) = re.findall(r"DEFAULT_PAGE_ROWS: usize = (\d+);", source)
    assert int(rows) == explanation._PAGE_ROWS
    assert f"a page has {int(rows):,}." in str(explanation.StageExplanation.__doc__)

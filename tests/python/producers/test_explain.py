"""What `explain` says of stages, without calling a function."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import pds

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

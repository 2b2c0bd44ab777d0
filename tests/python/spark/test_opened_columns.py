"""Writes of Spark through a handle that shows older names of columns: as those of the local engine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

import pds
import pds.spark
from pds.spark import changes, stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from tests.python.spark.conftest import Target

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])


@pytest.fixture
def target(one_target: Target) -> Target:
    return one_target


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (changes, stage):
        monkeypatch.setattr(module, "TASK_SIZES", {"count": 3, "min_bytes": 1, "max_bytes": 1 << 30})


def make_table(target: Target, path: str) -> pds.Table:
    table = pds.Table.create(target.store, path, SCHEMA, key="id")
    for first in range(0, 30, 10):
        ids = list(range(first, first + 10))
        table.append(pa.table({"id": ids, "a": [i % 5 for i in ids], "b": [i % 7 for i in ids]}, SCHEMA))
    return table


def exchange(table: pds.Table) -> None:
    for column, to in (("a", "between"), ("b", "a"), ("between", "b")):
        table.alter.rename_column(column, to)


def replace(table: pds.Table) -> None:
    table.alter.drop_column("a")
    table.alter.add_column("a", pa.int64())


NEW = pa.table({"id": [3, 40], "a": [1, 1], "b": [100, 200]}, SCHEMA)
BY_A = pa.table({"a": [1], "x": [1000]})

Write = tuple["Callable[[Any, pds.Table], object]", "Callable[[pds.Table], object]"]
WRITES: dict[str, Write] = {
    "delete": (lambda s, t: pds.spark.delete(s, t, "a = 1 OR b = 6"), lambda t: t.delete("a = 1 OR b = 6")),
    "delete by pyarrow": (lambda s, t: pds.spark.delete(s, t, pc.field("a") == 1), lambda t: t.delete("a = 1")),
    "append": (lambda s, t: pds.spark.append(s.createDataFrame(NEW), t), lambda t: t.append(NEW)),
    "append with columns": (
        lambda s, t: pds.spark.append(s.createDataFrame(NEW), t, schema_mode="merge"),
        lambda t: t.append(NEW, schema_mode="merge"),
    ),
    "overwrite": (
        lambda s, t: pds.spark.overwrite(s.createDataFrame(NEW), t, "a = 1"),
        lambda t: t.overwrite(NEW, "a = 1"),
    ),
    "upsert": (lambda s, t: pds.spark.upsert(s.createDataFrame(NEW), t), lambda t: t.upsert(NEW)),
    "merge": (
        lambda s, t: (
            pds.spark.merge(s.createDataFrame(BY_A), t, "a")
            .when_matched_update({"b": "source.x + target.b"}, "target.b < 5")
            .execute()
        ),
        lambda t: t.merge(BY_A, "a").when_matched_update({"b": "source.x + target.b"}, "target.b < 5").execute(),
    ),
    "merge all": (
        lambda s, t: (
            pds.spark.merge(s.createDataFrame(NEW), t).when_matched_update_all().when_not_matched_insert_all().execute()
        ),
        lambda t: t.merge(NEW).when_matched_update_all().when_not_matched_insert_all().execute(),
    ),
}


def listed(table: pds.Table) -> list[dict[str, Any]]:
    return sorted(table.refresh().scan().to_pyarrow().to_pylist(), key=lambda row: (row["id"], str(row)))


@pytest.mark.parametrize("write", WRITES)
def test_exchanged_names(spark: SparkSession, target: Target, write: str) -> None:
    by_spark, by_engine = WRITES[write]
    ours, local = make_table(target, "ours"), make_table(target, "local")
    exchange(pds.Table(target.store, "ours"))
    by_spark(spark, ours)
    # Before the exchange.
    by_engine(local)
    exchange(local)
    assert listed(ours) == listed(local)
    assert ours.check().orphans == []


@pytest.mark.parametrize("write", WRITES)
def test_a_column_that_was_replaced(spark: SparkSession, target: Target, write: str) -> None:
    by_spark, _ = WRITES[write]
    ours = make_table(target, "ours")
    replace(pds.Table(target.store, "ours"))
    stale = ours.as_of(ours.version)
    before = [info.path for info in target.store.list_files("ours", recursive=True)]
    with pytest.raises(pds.CommitConflict, match="refresh the table and write again"):
        by_spark(spark, stale)
    assert [info.path for info in target.store.list_files("ours", recursive=True)] == before


@pytest.mark.parametrize("clause", ["matched", "by source"])
def test_clauses_over_floats_that_were_widened(spark: SparkSession, target: Target, clause: str) -> None:
    """With 64 bits, 0.1 is another number than that of 32: `target.f = 0.1` would select other rows."""
    schema = pa.schema([("id", pa.int64()), ("f", pa.float32())])
    table = pds.Table.create(target.store, "floats", schema, key="id")
    for first in range(0, 30, 10):
        table.append(pa.table({"id": range(first, first + 10), "f": [0.1] * 10}, schema))
    rows = table.scan().to_pyarrow().to_pydict()["id"]
    stale = table.as_of(table.version)
    pds.Table(target.store, "floats").alter.widen("f", pa.float64())
    merge = pds.spark.merge(spark.createDataFrame([(3, 1.0)], "id bigint, x double"), stale, "id")
    if clause == "matched":
        merge = merge.when_matched_delete("target.f = 0.1")
    else:
        merge = merge.when_not_matched_by_source_delete("target.f = 0.1")
    with pytest.raises(pds.CommitConflict, match='type of column "f"'):
        merge.execute()
    newest = pds.Table(target.store, "floats")
    assert newest.scan().to_pyarrow().to_pydict()["id"] == rows
    assert newest.check().orphans == []

"""Aggregates of values in every form that Arrow has for them."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import pds

INT = pa.int64()


def _aggregate(store: pds.Store, values: pa.Array[Any], aggregates: dict[str, Any]) -> list[Any]:
    pipeline = pds.Pipeline(store, "p")
    pipeline.source("s", key=INT, value=values.type)
    pipeline.aggregate("s", aggregates=aggregates, name="a")
    keys = pa.array([1] * len(values), INT)
    pipeline.update(s=pds.Changes(pa.table({"key": keys, "value": values})))
    return pipeline["a"].read()["value"].to_pylist()


def test_runs_of_equal_values(memory_store: pds.Store) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([5, None], INT))
    assert _aggregate(memory_store, runs, {"n": ("value", "count"), "rows": "count"}) == [{"n": 2, "rows": 3}]
    for function in ("min", "max", "sum", "mean"):
        with pytest.raises(pds.InvalidInput, match=r"run-end-encoded|is not a number"):
            _aggregate(memory_store, runs, {"x": ("value", function)})


def test_a_long_text_that_a_dictionary_names_often(memory_store: pds.Store) -> None:
    count = 8_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 280_000]))
    assert _aggregate(memory_store, texts, {"n": ("value", "count")}) == [{"n": count}]


def test_nulls_within_structs_are_the_greatest(memory_store: pds.Store) -> None:
    """As in DuckDB: in a build, and where the least and the greatest value come and leave."""
    rng = random.Random(3)
    inner = pa.struct([("c", pa.string())])
    value = pa.struct([("k", INT), ("x", pa.struct([("a", pa.float64()), ("b", inner)]))])
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=value)
    pipeline.select("s", key="value.k", name="by_k")
    pipeline.aggregate("by_k", aggregates={"low": ("x", "min"), "high": ("x", "max")}, name="ends")
    data: dict[int, Any] = {}
    for _ in range(8):
        changed = rng.sample(range(30), 12)
        for key in changed:
            of_struct = {"a": rng.choice([None, 0.0, 1.5]), "b": rng.choice([None, {"c": None}, {"c": "x"}])}
            data[key] = {"k": rng.randrange(4), "x": rng.choice([None, of_struct, of_struct])}
        deletes = [key for key in rng.sample(sorted(data), 3) if key not in changed]
        upserts = pa.table({"key": pa.array(changed, INT), "value": pa.array([data[key] for key in changed], value)})
        pipeline.update(s=pds.Changes(upserts, [key for key in deletes if data.pop(key)]))
        rows = pa.Table.from_struct_array(pa.array(list(data.values()), value))
        assert rows is not None
        expected = duckdb.sql("select k, min(x), max(x) from rows group by k order by k").fetchall()
        ends = pipeline["ends"].read().to_pylist()
        assert [(row["target_key"], row["value"]["low"], row["value"]["high"]) for row in ends] == expected
    assert pipeline.check().ok


# It takes 8 GB of memory.
@pytest.mark.slow
@pytest.mark.soak
def test_more_text_than_an_array_holds(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=pa.string())
    pipeline.aggregate("s", aggregates={"x": ("value", "max")}, name="a")
    pipeline.update(s=pds.Changes([(n, "a") for n in range(60)]))
    pipeline.update(s=pds.Changes([(n, "b" * 36_000_000) for n in range(60)]))
    lengths = [len(row["x"]) for batch in pipeline["a"].batches() for row in batch["value"].to_pylist()]
    assert lengths == [36_000_000] * 60


def test_a_feeder_may_have_null_keys_where_the_other_has_none(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("x", key=pa.field("key", INT, nullable=False), value=INT)
    pipeline.source("y", key=INT, value=INT)
    pipeline.aggregate("x", "y", aggregates={"n": "count"}, name="a")
    pipeline.update(x=pds.Changes([(1, 1)]))
    pipeline.update(y=pds.Changes([(None, 2)]))
    rows = pipeline["a"].read()
    assert list(zip(rows["target_key"].to_pylist(), rows["value"].to_pylist(), strict=True)) == [
        (None, {"n": 1}),
        (1, {"n": 1}),
    ]


def test_a_type_that_would_be_stored_as_another(memory_store: pds.Store) -> None:
    inner = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["x", "y"]))
    nested = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), inner)
    pipeline = pds.Pipeline(memory_store, "p")
    with pytest.raises(pds.InvalidInput, match='"s"'):
        pipeline.source("s", key=INT, value=nested.type)


def test_text_that_is_no_utf8(memory_store: pds.Store) -> None:
    bad = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"ok"]).buffers())
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=pa.string())
    pipeline.aggregate("s", aggregates={"x": ("value", "min")}, name="a")
    with pytest.raises(pds.InvalidInput, match="UTF-8"):
        pipeline.update(s=pds.Changes(pa.table({"key": [1, 2], "value": bad})))
    assert pipeline.version == 0
    pipeline.update(s=pds.Changes([(1, "ok")]))
    assert pipeline["a"].read()["value"].to_pylist() == [{"x": "ok"}]

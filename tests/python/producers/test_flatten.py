"""Elements of lists: against DuckDB and plain Python over the same rows, before and after random changes."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import pds

pytestmark = pytest.mark.sampled(2)

INT, TEXT = pa.int64(), pa.string()
VALUE = pa.struct([("n", INT), ("tags", pa.list_(TEXT)), ("name", TEXT)])


def _row(rng: random.Random) -> dict[str, Any] | None:
    if rng.random() < 0.1:
        return None
    tags = rng.choice([None, [], [None], ["a"], ["b", None, "é"], ["x"] * 20])
    return {"n": rng.choice([None, 1, 2]), "tags": tags, "name": rng.choice([None, "", "z"])}


def _rows(pipeline: pds.Pipeline, name: str) -> list[tuple[Any, Any]]:
    rows = pipeline[name].read().to_pylist()
    assert all(row["target_key"] == row["source_key"] for row in rows)
    return [(row["target_key"], row["value"]) for row in rows]


@pytest.mark.parametrize("seed", range(3))
def test_random_changes(memory_store: pds.Store, seed: int) -> None:
    rng = random.Random(seed)
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=VALUE, descending=True)
    pipeline.flatten("s", field="tags", name="flat")
    pipeline.select("flat", key="tags", value="n", name="by_tag")
    pipeline.aggregate("by_tag", aggregates={"n": "count"}, name="counts")
    data: dict[int, list[Any]] = {}
    for _ in range(5):
        changes = {rng.randrange(30): [_row(rng) for _ in range(rng.choice([0, 1, 1, 4]))] for _ in range(12)}
        upserts = [(key, value) for key, values in changes.items() for value in values]
        pipeline.update(s=pds.Changes(upserts, [key for key, values in changes.items() if not values and key in data]))
        data = {key: values for key, values in sorted({**data, **changes}.items(), reverse=True) if values}
        pairs = [(key, value) for key, values in data.items() for value in values if value and value["tags"]]
        assert _rows(pipeline, "flat") == [
            (key, {**value, "tags": tag}) for key, value in pairs for tag in value["tags"]
        ]
        values = pa.array([value for values in data.values() for value in values], VALUE)
        rows = pa.table({"value": values})
        assert rows.num_rows == len(values)
        counts = duckdb.sql("select unnest(value.tags) as tag, count(*) from rows group by 1 order by 1 nulls first")
        assert _rows(pipeline, "counts") == [(tag, {"n": count}) for tag, count in counts.fetchall()]
    assert pipeline.check().ok
    assert pipeline.check(sample=0.2).ok


@pytest.mark.parametrize(
    "data_type",
    [pa.list_(INT), pa.large_list(INT), pa.list_(INT, 2), pa.list_(pa.field("item", INT, nullable=False), 2)],
    ids=str,
)
def test_lists(memory_store: pds.Store, data_type: pa.DataType) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=data_type)
    pipeline.flatten("s", name="flat")
    values = pa.array([[9, 9], [1, 2], None, [3, 4]], data_type)
    pipeline.update(s=pds.Changes(pa.table({"key": [1, 2, 3], "value": values[1:]})))
    assert _rows(pipeline, "flat") == [(1, 1), (1, 2), (3, 3), (3, 4)]
    assert pipeline["flat"].read().schema.field("value").type == INT


def test_maps_and_lists_of_lists(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("m", key=INT, value=pa.map_(TEXT, INT))
    pipeline.flatten("m", name="entries")
    pipeline.select("entries", key='"value".key', value='"value"."value"', name="by_key")
    pipeline.source("l", key=INT, value=pa.list_(pa.list_(INT)))
    pipeline.flatten("l", name="lists")
    pipeline.flatten("lists", name="numbers")
    pipeline.update(
        m=pds.Changes(pa.table({"key": [1], "value": pa.array([[("a", 1), ("b", None)]], pa.map_(TEXT, INT))})),
        l=pds.Changes([(1, [[1], [], None, [2, 3]])]),
    )
    assert _rows(pipeline, "entries") == [(1, {"key": "a", "value": 1}), (1, {"key": "b", "value": None})]
    assert [row["target_key"] for row in pipeline["by_key"].read().to_pylist()] == ["a", "b"]
    assert _rows(pipeline, "lists") == [(1, [1]), (1, []), (1, None), (1, [2, 3])]
    assert _rows(pipeline, "numbers") == [(1, 1), (1, 2), (1, 3)]


def test_a_large_value_beside_many_elements(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=pa.struct([("text", TEXT), ("items", pa.list_(INT))]))
    pipeline.flatten("s", field="items", name="flat")
    pipeline.select("flat", value="items", where="length(text) = 1000000", name="items")
    pipeline.update(s=pds.Changes([(1, {"text": "x" * 1_000_000, "items": list(range(300))})]))
    assert [value for _, value in _rows(pipeline, "items")] == list(range(300))


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        (INT, None, "only lists and maps have elements"),
        (VALUE, None, "only lists and maps have elements"),
        (VALUE, "n", "only lists and maps have elements"),
        (VALUE, "nothing", "no field"),
        (pa.list_(INT), "n", "no field"),
    ],
)
def test_bad_arguments(memory_store: pds.Store, value: pa.DataType, field: str | None, message: str) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=value)
    with pytest.raises(pds.InvalidInput, match=message):
        pipeline.flatten("s", field=field, name="flat")
    with pytest.raises(pds.InvalidType, match="field"):
        pipeline.flatten("s", field=1, name="flat")  # type: ignore[arg-type]

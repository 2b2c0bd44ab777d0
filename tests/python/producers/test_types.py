"""Values and keys of all types pass through pipelines unchanged, whatever runs and dictionaries they lie in."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEM = pa.field("item", pa.string(), nullable=False)
TIMES = pa.array([1, 10**9 + 1, 86_399_999_999_999], pa.int64())

VALUES: dict[str, pa.Array[Any]] = {
    "time_ns": TIMES.cast(pa.time64("ns")),
    "times_ns": pa.array([[1, 2], None, [3]], pa.list_(pa.int64())).cast(pa.list_(pa.time64("ns"))),
    "timestamp_ns": TIMES.cast(pa.timestamp("ns", "Europe/Berlin")),
    "duration_ns": TIMES.cast(pa.duration("ns")),
    "string_view": pa.array(["", "a" * 20, "b"], pa.string_view()),
    "binary_view": pa.array([b"", b"a" * 20, b"\xff"], pa.binary_view()),
    "views": pa.array([["", "a" * 20], None, ["b"]], pa.list_(pa.string_view())),
    "dictionary": pa.array(["a", None, "b"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
    "fixed": pa.array([b"ab", b"cd", None], pa.binary(2)),
    "decimal": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.50")], pa.decimal128(9, 2)),
    "large": pa.array([["x"], [], None], pa.large_list(pa.large_string())),
    "fixed_list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2)),
    "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32())),
    "items": pa.array([["a"], [], None], pa.list_(ITEM)),
    "struct": pa.array(
        [{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}], pa.struct([("a", pa.int8()), ("b", pa.list_(ITEM))])
    ),
    "pair": pa.array(
        [{"a": 1, "b": "x"}, None, {"a": None, "b": ""}], pa.struct([("a", pa.int8()), ("b", pa.string_view())])
    ),
    "deep": pa.array([{"a": {"b": 1}}, None, {"a": None}], pa.struct([("a", pa.struct([("b", pa.int8())]))])),
    "half": pa.array([1.5, None, -0.0], pa.float16()),
    "nan": pa.array([[math.nan], [1.0], []], pa.list_(pa.float64())),
    "date": pa.array([dt.date(2020, 1, 1), None, dt.date(1969, 1, 1)], pa.date64()),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
}
LOSSY_IN_PYTHON = {"time_ns", "times_ns"}
KEYS = [
    "time_ns",
    "timestamp_ns",
    "duration_ns",
    "string_view",
    "binary_view",
    "fixed",
    "decimal",
    "pair",
    "date",
    "uint64",
]


def by_row(key: Any, values: Any) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield key, value


def by_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = pa.array(range(batch.num_rows), pa.int64())
    columns = [rows, *map(sliced, batch.columns)]
    return pa.RecordBatch.from_arrays(columns, names=["source_row", "key", "value"])


def copied(store: pds.Store, mode: str, key: pa.DataType, value: pa.DataType, **options: Any) -> pds.Pipeline:
    """Return a pipeline of a source and a stage that copies it."""
    pipeline = pds.Pipeline(store, f"copy-{mode}", **options)
    source = pipeline.source("source", key=key, value=value)
    function = by_row if mode == "row" else by_batch
    pipeline.producer(source, key=key, value=value, name="copy", batch=mode == "batch")(function)
    return pipeline


def sliced(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return the array as a slice with other values before and behind it."""
    before = array[1:] if len(array) > 1 else array
    return pa.concat_arrays([before, array, array[:2]])[len(before) : len(before) + len(array)]


def pairs_of(rows: pa.Table) -> list[str]:
    """The keys and values as text, where not-a-number is equal to itself."""
    return [str(pair) for pair in zip(rows.column(0).to_pylist(), rows.column("value").to_pylist(), strict=True)]


@pytest.mark.parametrize("mode", ["row", "batch"])
@pytest.mark.parametrize("name", VALUES)
def test_values(memory_store: pds.Store, name: str, mode: str) -> None:
    values = VALUES[name]
    keys = pa.array([1, 2, 3], pa.int64())
    pipeline = copied(memory_store, mode, keys.type, values.type)
    changes = pds.Changes(pa.table({"key": keys, "value": sliced(values)}))
    if mode == "row" and name in LOSSY_IN_PYTHON:
        with pytest.raises(pds.ProduceError, match="nanoseconds"):
            pipeline.update(source=changes)
        return
    pipeline.update(source=changes)
    for table in ("source", "copy"):
        rows = pipeline[table].read()
        assert rows.schema.field("value").type == values.type
        assert rows.column("value").combine_chunks().cast(values.type).equals(values) or pairs_of(rows) == pairs_of(
            pa.table({"key": keys, "value": values})
        )


@pytest.mark.parametrize("mode", ["row", "batch"])
@pytest.mark.parametrize("name", KEYS)
def test_keys(memory_store: pds.Store, name: str, mode: str) -> None:
    keys = VALUES[name]
    values = pa.array([10, 11, 12], pa.int32())
    pipeline = copied(memory_store, mode, keys.type, values.type)
    changes = pds.Changes(pa.table({"key": sliced(keys), "value": values}))
    if mode == "row" and name in LOSSY_IN_PYTHON:
        with pytest.raises(pds.ProduceError, match="nanoseconds"):
            pipeline.update(source=changes)
        return
    pipeline.update(source=changes)
    expected = sorted(pairs_of(pa.table({"key": keys, "value": values})))
    for table in ("source", "copy"):
        rows = pipeline[table].read()
        assert rows.schema.field(0).type == keys.type
        assert sorted(pairs_of(rows)) == expected
        one = pipeline[table].read(sliced(keys)[:1])
        assert one["value"].to_pylist() == [10]
    pipeline.update(source=pds.Changes(deletes=sliced(keys)[:2]))
    assert pipeline["copy"].read()["value"].to_pylist() == [12]


def encode(values: pa.Array[Any]) -> pa.Array[Any]:
    """As a dictionary with keys of one byte."""
    plain_values = values.to_pylist()
    distinct = list(dict.fromkeys(plain_values))
    indices = pa.array([distinct.index(value) for value in plain_values], pa.int8())
    return pa.DictionaryArray.from_arrays(indices, pa.array(distinct, values.type))


@pytest.mark.parametrize("values", [pa.string(), pa.int64(), pa.bool_(), pa.binary(4)], ids=str)
@pytest.mark.parametrize("mode", ["row", "batch"])
@pytest.mark.parametrize("nested", [False, True])
def test_dictionaries_with_more_values_than_their_keys_can_number(
    memory_store: pds.Store, mode: str, nested: bool, values: pa.DataType
) -> None:
    """Each batch has fewer than 128 values, several runs together have more."""
    encoded = pa.dictionary(pa.int8(), values)
    data_type = pa.list_(encoded) if nested else encoded
    pipeline = copied(memory_store, mode, pa.int64(), data_type)
    expected: dict[int, Any] = {}

    def plain(number: int) -> Any:
        plain_value = {"bool": number % 2 == 0, "int64": number, "string": f"{number:04}"}.get(
            str(values), b"%04d" % number
        )
        return [plain_value] if nested else plain_value

    for turn in range(6):
        numbers = range(turn, 900, 9)
        rows = pa.array([plain(n * 7 + turn) for n in numbers], pa.list_(values) if nested else values)
        encoded_rows = encode(rows.values if nested else rows)
        if nested:
            encoded_rows = pa.ListArray.from_arrays(rows.offsets, encoded_rows)
        keys = pa.array(numbers, pa.int64())
        pipeline.update(source=pds.Changes(pa.table({"key": keys, "value": encoded_rows})))
        expected |= {n: plain(n * 7 + turn) for n in numbers}
        if turn % 2:
            pipeline.compact(min_delta=0)
        for table in ("source", "copy"):
            stored = pipeline[table].read()
            values_of_keys = zip(stored.column(0).to_pylist(), stored.column("value").to_pylist(), strict=True)
            assert dict(values_of_keys) == expected


NULL_ITEMS = pa.array([["a"], [None]], pa.list_(pa.string()))


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_a_null_among_items_that_forbid_it(memory_store: pds.Store, mode: str) -> None:
    data_type = pa.list_(ITEM)
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("source", key=pa.int64(), value=pa.list_(pa.string()))
    function = by_row if mode == "row" else by_batch
    pipeline.producer(source, key=pa.int64(), value=data_type, name="copy", batch=mode == "batch")(function)
    changes = pds.Changes(pa.table({"key": [1, 2], "value": NULL_ITEMS}))
    with pytest.raises(pds.ProduceError, match="null"):
        pipeline.update(source=changes)
    assert pipeline.version == 0


def test_a_null_in_a_source_among_items_that_forbid_it(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("source", key=pa.int64(), value=pa.list_(ITEM))
    with pytest.raises(pds.InvalidInput, match="null"):
        pipeline.update(source=pds.Changes(pa.table({"key": [1, 2], "value": NULL_ITEMS})))
    assert pipeline.version == 0

"""Values and keys of all types pass through pipelines unchanged, whatever runs and dictionaries they lie in."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import pds
from hidden_values import REQUIRED_NULLS

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


def test_slices_of_keys_with_structs_in_structs(memory_store: pds.Store) -> None:
    """Of an array of keys, whatever it is passed to."""
    inner = pa.struct([("a", pa.int64())])
    keys = pa.array([{"p": {"a": n}, "q": str(n)} for n in range(4)], pa.struct([("p", inner), ("q", pa.string())]))
    pipeline = copied(memory_store, "row", keys.type, pa.int64())
    pipeline.update(source=pds.Changes(pa.table({"key": keys, "value": pa.array(range(4), pa.int64())})))
    for length in (1, 2):
        some = keys.slice(1, length)
        assert pipeline["copy"].read(some).column(0).to_pylist() == some.to_pylist()
        assert pipeline["copy"].key_mappings(some).column(0).to_pylist() == some.to_pylist()
        assert pipeline["copy"].lineage(some) == {"source": some.to_pylist()}
    pipeline.update(source=pds.Changes(deletes=keys.slice(2)))
    assert pipeline["copy"].read().column(0).to_pylist() == keys[:2].to_pylist()


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


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_structs_with_fields_that_are_not_nullable(mode: str) -> None:
    """A function may return the ones that it got, also those that are null."""
    inner = pa.struct([pa.field("b", pa.string(), nullable=False)])
    data_type = pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("s", inner, nullable=False)])
    values = pa.array([{"a": 1, "s": {"b": "x"}}, None, {"a": 2, "s": {"b": ""}}], data_type)
    numbers = pa.array([1, 2, 3], pa.int64())
    for key, value in ((numbers, values), (values, numbers)):
        pipeline = copied(pds.Store("memory://"), mode, key.type, value.type)
        rows = pa.table({"key": sliced(key), "value": sliced(value)})
        pipeline.update(source=pds.Changes(rows))
        for table in ("source", "copy"):
            stored = pipeline[table].read()
            assert sorted(pairs_of(stored)) == sorted(pairs_of(rows))
            assert stored.schema.field("value").type == value.type


# pyarrow puts a key that is not null below the nulls of these, also where the dictionary has no value.
ENCODED = pa.struct([("x", pa.dictionary(pa.int8(), pa.string()))])
REQUIRED = pa.struct([pa.field("x", pa.dictionary(pa.int8(), pa.string()), nullable=False)])
HIDDEN: dict[str, tuple[pa.DataType, Any, Any]] = {
    "struct": (ENCODED, {"x": "a"}, None),
    "required": (REQUIRED, {"x": "a"}, None),
    "list": (pa.list_(ENCODED), [{"x": "a"}, None], [None, None]),
    "large_list": (pa.large_list(ENCODED), [{"x": "a"}, None], [None, None]),
    "list_view": (pa.list_view(ENCODED), [{"x": "a"}, None], [None, None]),
    "items": (pa.list_(ENCODED, 2), [{"x": "a"}, None], [None, None]),
    "fixed_list": (pa.list_(ENCODED, 2), [{"x": "a"}, None], None),
    "map": (pa.map_(pa.string(), ENCODED), [("k", {"x": "a"})], [("k", None)]),
    "deep": (
        pa.struct([("d", pa.list_(pa.struct([("y", ENCODED)])))]),
        {"d": [{"y": {"x": "a"}}]},
        {"d": [{"y": None}, None]},
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_keys_of_dictionaries_under_nulls(memory_store: pds.Store, name: str) -> None:
    """Pushed and emitted, where rows are compared: each value comes twice, and what is there stays."""
    data_type, *both = HIDDEN[name]
    pipeline = pds.Pipeline(memory_store, "p")
    pushed = pipeline.source("pushed", key=pa.int64(), value=data_type, skip_unchanged=True)
    numbers = pipeline.source("numbers", key=pa.int64(), value=pa.int64())

    @pipeline.producer(numbers, key=pa.int64(), value=data_type, skip_unchanged=True)
    def emitted(key: int, values: Iterator[int]) -> Iterator[tuple[int, Any]]:
        for value in values:
            yield key, both[value]

    pipeline.distinct(pushed, name="of_pushed")
    pipeline.distinct(emitted, name="of_emitted")
    for number in (0, 0, 1, 1, 0, 1):
        pipeline.update(pushed=pds.Changes([(7, both[number])]), numbers=pds.Changes([(7, number)]))
        for table in ("pushed", "emitted", "of_pushed", "of_emitted"):
            assert pipeline[table].read()["value"].to_pylist() == [both[number]]
    assert pipeline.version == 6
    assert pipeline["emitted"].changes(6).num_rows == 1


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
def test_merged_dictionaries_with_keys_under_nulls(memory_store: pds.Store, nulls_first: bool, nested: bool) -> None:
    """Batches whose dictionaries have more values than rows are put in order together."""
    texts = pa.DictionaryArray.from_arrays(pa.array([3, 0], pa.int8()), pa.array([f"text {n}" for n in range(9)]))
    structs = pa.StructArray.from_arrays([texts], fields=list(ENCODED))
    data_type = pa.list_(ENCODED) if nested else ENCODED
    values = pa.ListArray.from_arrays([0, 1, 2], structs) if nested else structs
    nulls = pa.array([[None], [None, None]] if nested else [None, None], data_type)
    chunks = [pa.table({"key": [2, 4], "value": values}), pa.table({"key": [3, 1], "value": nulls})]
    rows = pa.concat_tables(reversed(chunks) if nulls_first else chunks)
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("source", key=pa.int64(), value=data_type)
    pipeline.update(source=pds.Changes(rows))
    stored = pipeline["source"].read()
    assert stored.to_pylist() == sorted(rows.to_pylist(), key=lambda row: int(row["key"]))


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_views_that_share_items(memory_store: pds.Store, view: Any) -> None:
    """A function of batches may return them; a null is refused by the key of the first row that has it."""
    lists = [[1, 2], None, [], [3]]
    data_type = view(pa.field("item", pa.int64(), nullable=False))
    at = pa.array([3, 0, 1, 0, 2, 0], pa.int64())
    keys = pa.array(range(len(at)), pa.int64())
    pipeline = pds.Pipeline(memory_store, "p")
    numbers = pipeline.source("numbers", key=pa.int64(), value=pa.int64())
    with_null = pa.array([[1], [2, None]], data_type)
    emitted: list[pa.Array[Any]] = [pa.array(lists, data_type).take(at), with_null.take(pa.array([0, 1] * 3))]

    def emit(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([batch["value"], batch["key"], emitted[0]], ["source_row", "key", "value"])

    pipeline.producer(numbers, key=pa.int64(), value=data_type, name="lists", batch=True)(emit)
    rows = pds.Changes(pa.table({"key": keys, "value": keys}))
    pipeline.update(numbers=rows)
    assert pipeline["lists"].read()["value"].to_pylist() == [lists[row] for row in at.to_pylist()]
    del emitted[0]
    with pytest.raises(pds.ProduceError, match=r"key 1 .*null in 'value', which is not nullable"):
        pipeline.update(numbers=rows)


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


@pytest.mark.parametrize("name", REQUIRED_NULLS)
def test_a_pushed_null_where_a_field_has_none(memory_store: pds.Store, name: str) -> None:
    """Also among the values of dictionaries and runs; it is refused by its path."""
    field, values, path = REQUIRED_NULLS[name]
    keys = pa.array(range(len(values)), pa.int64())
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("source", key=pa.int64(), value=field)
    pushed = pa.table([keys, values], schema=pa.schema([pa.field("key", keys.type), field.with_name("value")]))
    for change in (pds.Changes(pushed), pds.Replace(pushed)):
        for push in (pipeline.update, pipeline.preview):
            with pytest.raises(pds.InvalidInput, match=re.escape(f'null in "value{path}", which is not nullable')):
                push(source=change)
    assert pipeline.version == 0


# A function cannot emit runs, of which pyarrow takes no rows.
@pytest.mark.parametrize("name", [name for name in REQUIRED_NULLS if "of runs" not in name])
def test_an_emitted_null_where_a_field_has_none(memory_store: pds.Store, name: str) -> None:
    """It is refused by the key of its row."""
    field, values, _ = REQUIRED_NULLS[name]
    keys = pa.array(range(len(values)), pa.int64())
    pipeline = pds.Pipeline(memory_store, "p")
    numbers = pipeline.source("numbers", key=pa.int64(), value=pa.int64())

    @pipeline.producer(numbers, key=pa.int64(), value=field, batch=True)
    def emitted(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = pa.array(range(batch.num_rows), pa.int64())
        return pa.RecordBatch.from_arrays([rows, batch["key"], values], names=["source_row", "key", "value"])

    with pytest.raises(pds.ProduceError, match=r"stage 'emitted' .*null in 'value', which is not nullable"):
        pipeline.update(numbers=pds.Changes(pa.table({"key": keys, "value": keys})))
    assert pipeline.version == 0


# What a hook may return, which a reader gets as another Python value.
RETURNED: list[tuple[pa.DataType, Any]] = [
    (pa.struct([("id", pa.int64()), ("name", pa.string())]), (1, "x")),
    (pa.struct([("id", pa.int64()), ("name", pa.string())]), {"id": 1}),
    (pa.map_(pa.string(), pa.int64()), {"a": 1}),
    (pa.list_(pa.int64()), (1, 2)),
    (pa.float32(), 0.1),
    (pa.float64(), 1),
    (pa.int64(), np.int8(3)),
    (pa.binary(), np.bytes_(b"ab")),
    (pa.binary(16), uuid.UUID(int=1)),
    (pa.decimal128(9, 2), decimal.Decimal("1.5")),
    (pa.date64(), np.datetime64("2020-01-01")),
    (pa.dictionary(pa.int8(), pa.string()), np.str_("x")),
    (pa.string_view(), None),
]


@pytest.mark.parametrize(
    ("data_type", "value"), RETURNED, ids=[f"{part}-{type(new).__name__}" for part, new in RETURNED]
)
def test_an_earlier_value_is_what_a_reader_gets(memory_store: pds.Store, data_type: pa.DataType, value: Any) -> None:
    """Within one update as from the one before it, in the next batch, and if the hook changed what it got."""
    given: list[str] = []

    def keep(_: Any, earlier: Any, __: Any) -> Any:
        given.append(repr(earlier))
        if isinstance(earlier, dict | list):
            earlier.clear()
        return value

    def run(path: str, *updates: list[tuple[int, int]]) -> list[str]:
        given.clear()
        pipeline = pds.Pipeline(memory_store, path)
        source = pipeline.source("source", key=pa.int64(), value=pa.int64())
        pipeline.producer(source, key=pa.int64(), value=data_type, name="kept", preserve=pds.Preserve(keep))(
            lambda _, values: ((0, value) for _ in values)
        )
        for rows in updates:
            pipeline.update(source=pds.Changes(rows))
        stored = pipeline["kept"].read().column("value").to_pylist()
        assert given[0] == "None"
        assert set(given[1:]) == {repr(stored[0])}
        return given[:]

    rows = [(number, 0) for number in range(10_000)]
    assert len(run("one", rows)) == 10_000
    assert run("two", rows[:1], rows[1:3]) == run("three", rows[:3])


def test_a_value_that_a_hook_returned_and_no_column_stores_names_its_key(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("source", key=pa.int64(), value=pa.int64())
    hook = pds.Preserve(lambda new, _, __: new if new < 3 else "x")
    pipeline.producer(source, key=pa.int64(), value=pa.int64(), name="kept", preserve=hook)(by_row)
    for numbers in ([3], [3, 3]):
        with pytest.raises(pds.ProduceError, match=r"key 7 at .*the hook that preserves values: cannot convert 'x'"):
            pipeline.update(source=pds.Changes([(5, 1), *((7, number) for number in numbers)]))
    assert pipeline.version == 0


def test_what_is_under_a_null_is_not_seen(memory_store: pds.Store) -> None:
    """A function of batches that takes a field gets of a pushed or emitted row what a rebuild gets from a file."""
    inner = pa.StructArray.from_arrays([pa.array([1, 98, 3])], ["c"])
    values = pa.StructArray.from_arrays([inner], ["s"], mask=pa.array([False, True, False]))
    assert values.field("s").field("c").to_pylist() == [1, 98, 3]
    pipeline = pds.Pipeline(memory_store, "p")
    pushed = pipeline.source("pushed", key=pa.int64(), value=values.type)
    of_key = pipeline.source("keys", key=values.type, value=pa.int64())

    def make_batch(batch: pa.RecordBatch, key: Any, value: Any) -> pa.RecordBatch:
        rows = pa.array(range(batch.num_rows), pa.int64())
        return pa.record_batch({"source_row": rows, "key": key, "value": value})

    @pipeline.producer(pushed, key=pa.int64(), value=values.type, batch=True)
    def emitted(batch: pa.RecordBatch) -> pa.RecordBatch:
        return make_batch(batch, batch["key"], values.slice(batch["key"][0].as_py(), batch.num_rows))

    def fields(batch: pa.RecordBatch) -> pa.RecordBatch:
        return make_batch(batch, batch["key"], batch["value"].field("s").field("c"))

    for feeder in (pushed, emitted):
        pipeline.producer(feeder, key=pa.int64(), value=pa.int64(), batch=True, name=f"of {feeder.name}")(fields)

    @pipeline.producer(of_key, key=pa.int64(), value=pa.int64(), batch=True, name="of keys")
    def fields_of_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
        return make_batch(batch, batch["value"], batch["key"].field("s").field("c"))

    numbers = pa.array(range(3), pa.int64())
    pipeline.update(
        pushed=pds.Changes(pa.table({"key": numbers, "value": values})),
        keys=pds.Changes(pa.table({"key": values, "value": numbers})),
    )
    for name in ("of pushed", "of emitted", "of keys"):
        assert pipeline[name].read()["value"].to_pylist() == [1, None, 3], name
    assert pipeline.check().ok


@pytest.mark.parametrize("data_type", [pa.string(), pa.string_view(), pa.large_string()])
def test_a_null_among_the_values_of_a_pushed_dictionary(memory_store: pds.Store, data_type: pa.DataType) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None], pa.int8()), pa.array(["a", None, ""]))
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("values", key=pa.int64(), value=data_type)
    pipeline.source("keys", key=data_type, value=pa.int64())
    pipeline.source("strict", key=pa.int64(), value=pa.field("value", data_type, nullable=False))
    numbers = pa.array(range(4), pa.int64())
    table = pa.table({"key": numbers, "value": texts})
    pipeline.update(values=pds.Changes(table), keys=pds.Changes(pa.table({"key": texts, "value": numbers})))
    assert pipeline["values"].read()["value"].to_pylist() == texts.to_pylist()
    assert pipeline["keys"].read().to_pydict() == {"key": [None, None, "", "a"], "value": [1, 3, 2, 0]}
    for nullable in (True, False):
        schema = pa.schema([pa.field("key", pa.int64()), pa.field("value", texts.type, nullable=nullable)])
        with pytest.raises(pds.InvalidInput, match=r"null in .*value"):
            pipeline.update(strict=pds.Changes(pa.table([numbers[:3], texts[:3]], schema=schema)))

"""Row mode and batch mode: groups are lazy, emissions are strict, errors name stage, key and line."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import gc
import inspect
import math
import pickle
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pds.producers.batches
import pds.producers.groups
import pds.producers.rows
from pds.producers.batches import BatchFunction
from pds.producers.errors import ProduceError
from pds.producers.rows import RowFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

INT, TEXT = pa.int64(), pa.string()


def limit_rows(patch: pytest.MonkeyPatch, most: int) -> None:
    """Let chunks and batches have at most so many rows."""
    for module in (pds.producers.batches, pds.producers.groups, pds.producers.rows):
        patch.setattr(module, "MAX_ROWS", most)


def make_reader(
    pairs: Iterable[tuple[Any, Any]], key: pa.DataType = INT, value: pa.DataType = INT, rows: int = 3
) -> pa.RecordBatchReader:
    """A stream in batches of a few rows."""
    listed = list(pairs)
    columns = [pa.array([k for k, _ in listed], key), pa.array([v for _, v in listed], value)]
    batch = pa.RecordBatch.from_arrays(columns, ["key", "value"])
    slices = [batch.slice(start, rows) for start in range(0, len(listed), rows)]
    return pa.RecordBatchReader.from_batches(batch.schema, slices)


def make_keys(keys: list[Any], data_type: pa.DataType = INT) -> pa.RecordBatchReader:
    batch = pa.RecordBatch.from_arrays([pa.array(keys, data_type)], ["key"])
    return pa.RecordBatchReader.from_batches(batch.schema, [batch.slice(i, 2) for i in range(0, len(keys), 2)])


def row_function(
    function: Callable[..., Any],
    key: pa.DataType = INT,
    value: pa.DataType = INT,
    target: pa.DataType | pa.Field = INT,
    result: pa.DataType | pa.Field = INT,
    feeders: int = 1,
) -> RowFunction:
    fields = [each if isinstance(each, pa.Field) else pa.field("x", each) for each in (target, result)]
    values = [pa.field("v", value)] * feeders
    return RowFunction(
        function,
        stage="words",
        source_key=pa.field("k", key),
        source_values=values,
        target_key=fields[0],
        target_value=fields[1],
    )


def to_rows(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def emit_one(value: Any, data_type: pa.DataType | pa.Field) -> Any:
    """What a value becomes in a column of a type."""
    function = row_function(lambda key, _: [(key, value)], result=data_type)
    batch = next(function([make_reader([(1, 1)])]))
    return batch.column("value")[0]


def identity(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield key, value


def test_rows_are_in_the_order_of_emission_with_exact_types() -> None:
    def split(key: Any, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        for phrase in phrases:
            for word in phrase.split():
                yield word, key

    target = pa.field("word", TEXT, nullable=False)
    function = row_function(split, pa.int32(), TEXT, target, pa.int32())
    reader = make_reader([(1, "b a"), (1, "c"), (2, "a")], pa.int32(), TEXT)
    (batch,) = function([reader])
    assert batch.schema == pa.schema(
        [("source_key", pa.int32()), pa.field("target_key", TEXT, nullable=False), ("value", pa.int32())]
    )
    assert to_rows(iter([batch])) == [(1, "b", 1), (1, "a", 1), (1, "c", 1), (2, "a", 2)]


@pytest.mark.parametrize("result", [None, [], (), {}.items(), iter(())])
def test_a_function_may_produce_nothing(result: Any) -> None:
    assert to_rows(row_function(lambda _key, _values: result)([make_reader([(1, 1)])])) == []


def test_a_function_may_return_any_iterable_of_pairs() -> None:
    for result in ([(1, 2), [3, 4]], {1: 2, 3: 4}.items(), map(tuple, ([1, 2], [3, 4]))):
        rows = to_rows(row_function(lambda _key, _values, result=result: result)([make_reader([(0, 0)])]))
        assert rows == [(0, 1, 2), (0, 3, 4)]


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
@pytest.mark.parametrize("read", [0, 1, 4, None])
def test_groups_that_span_batches_and_are_read_in_part(rows: int, read: int | None) -> None:
    groups = {1: range(7), 2: range(1), 3: range(12), 4: range(3)}

    def take(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        for number, value in enumerate(values):
            if number == read:
                break
            yield key, value

    reader = make_reader([(key, value) for key, values in groups.items() for value in values], rows=rows)
    if read == 0:
        take = lambda key, _values: [(key, -1)]  # noqa: E731 reads nothing at all
        expected = [(key, key, -1) for key in groups]
    else:
        expected = [(key, key, value) for key, values in groups.items() for value in list(values)[:read]]
    assert to_rows(row_function(take)([reader])) == expected


def test_input_is_read_when_it_is_needed() -> None:
    batches = 0

    def stream() -> Iterator[pa.RecordBatch]:
        nonlocal batches
        for _ in range(1000):
            batches += 1
            yield pa.record_batch({"key": [1] * 10, "value": list(range(10))})

    seen = []

    def first(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        next(values)
        seen.append(batches)
        for _ in range(15):
            next(values)
        seen.append(batches)
        yield key, 1

    schema = pa.schema([("key", INT), ("value", INT)])
    assert to_rows(row_function(first)([pa.RecordBatchReader.from_batches(schema, stream())])) == [(1, 1, 1)]
    assert seen == [1, 2]
    assert batches == 1000


def test_a_large_group_is_neither_collected_nor_emitted_at_once() -> None:
    alive, batch = 0, pa.record_batch({"key": [1] * 50_000, "value": [0] * 50_000})
    reader = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(10)))
    for result in row_function(identity)([reader]):
        assert result.num_rows <= 65_536
        alive += result.num_rows
    assert alive == 500_000


def test_large_values_are_flushed_early() -> None:
    function = row_function(lambda key, values: ((key, "x" * 2**20) for _ in values), result=TEXT)
    batches = list(function([make_reader([(1, n) for n in range(40)])]))
    assert sum(batch.num_rows for batch in batches) == 40
    assert max(batch.nbytes for batch in batches) <= 18 * 2**20
    nested = row_function(lambda key, values: ((key, ["x" * 2**20]) for _ in values), result=pa.list_(TEXT))
    assert len(list(nested([make_reader([(1, n) for n in range(40)])]))) >= 2


def test_large_keys_are_counted() -> None:
    key = "k" * 2**20
    function = row_function(lambda _key, _values: [(1, 1)] * 40, key=TEXT)
    batches = list(function([make_reader([(key, 1)], TEXT)]))
    assert [batch.num_rows for batch in batches] == [16, 16, 8]


def test_values_end_with_the_call() -> None:
    kept: list[Iterator[int]] = []

    def keep(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        kept.append(values)
        if key != 1:
            list(values)
        yield key, key

    list(row_function(keep)([make_reader([(1, 1), (2, 2)])]))
    for iterator in kept:
        assert iter(iterator) is iterator
        for _ in range(2):
            with pytest.raises(RuntimeError, match="after the call for their key ended"):
                next(iterator)

    def late(key: int, values: Iterator[int]) -> list[tuple[int, int]]:
        kept.append(values)
        return [(key, next(kept[-2]))] if key == 2 else []

    with pytest.raises(ProduceError) as failure:
        list(row_function(late)([make_reader([(1, 1), (2, 2)])]))
    assert isinstance(failure.value.__cause__, RuntimeError)
    assert failure.value.key == 2


def test_values_are_for_one_pass() -> None:
    counts = row_function(lambda _key, values: [(len(list(values)), len(list(values)))])
    assert to_rows(counts([make_reader([(1, 1)] * 7)])) == [(1, 7, 0)]


def test_what_is_stored_is_the_value_at_the_yield() -> None:
    def change(key: int, values: Iterator[int]) -> Iterator[tuple[Any, Any]]:
        shared: dict[str, Any] = {"n": 0, "items": []}
        target = {"a": 0}
        pair = [target, shared]
        for value in values:
            target["a"] = shared["n"] = value
            shared["items"].append(value)
            yield pair
        shared["n"] = -1

    result = pa.struct([("n", INT), ("items", pa.list_(INT))])
    rows = to_rows(row_function(change, target=pa.struct([("a", INT)]), result=result)([make_reader([(1, 5), (1, 6)])]))
    assert rows == [(1, {"a": 5}, {"n": 5, "items": [5]}), (1, {"a": 6}, {"n": 6, "items": [5, 6]})]


def test_struct_keys_are_named_tuples_and_struct_values_dicts() -> None:
    key_type = pa.struct([("year", INT), ("not valid", TEXT), ("in", pa.struct([("x", INT)]))])

    def check(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        if key is None:
            yield (None, None)
            return
        assert hash(key) == hash(tuple(key))
        assert key._fields == ("year", "_1", "_2")
        for number, value in enumerate(values):
            as_dict = {"year": key.year, "not valid": key[1], "in": key[2]}
            yield (key, tuple(key), as_dict)[number], value

    value_type = pa.struct([("v", INT)])
    key = {"year": 1, "not valid": "a", "in": {"x": 3}}
    pairs = [(None, None), (key, {"v": 1}), (key, {"v": 2}), (key, {"v": 3})]
    function = row_function(check, key_type, value_type, key_type, value_type)
    assert to_rows(function([make_reader(pairs, key_type, value_type, rows=2)])) == [(k, k, v) for k, v in pairs]


def test_keys_are_equal_by_field_null_and_nan() -> None:
    other_nan = np.frombuffer(np.array([0x7FF8000000000001], "u8").tobytes(), "f8")[0]
    inner = pa.struct([("a", pa.float64()), ("b", TEXT)])
    keys = [None, None, {"a": None, "b": None}, {"a": math.nan, "b": "x"}, {"a": other_nan, "b": "x"}]
    keys += [{"a": math.nan, "b": "y"}, {"a": 1.0, "b": None}, {"a": 1.0, "b": None}]
    for rows in (1, 3, 8):
        count = row_function(lambda _key, values: [(1, sum(1 for _ in values))], key=inner)
        result = to_rows(count([make_reader([(key, 0) for key in keys], inner, rows=rows)]))
        assert [row[2] for row in result] == [2, 1, 2, 1, 2]


def test_times_in_the_repeated_hour_are_different_keys() -> None:
    zone = pa.timestamp("us", "Europe/Berlin")
    hours = [1572134400_000000, 1572138000_000000]  # 02:00 summer time, 02:00 winter time
    pairs = [(hour, n) for n, hour in enumerate(hours)]
    function = row_function(lambda _key, *values: [(1, sum(len(list(v)) for v in values))], key=zone, feeders=2)
    readers = [make_keys(hours, zone), make_reader(pairs, zone), make_reader(pairs[1:], zone)]
    assert [row[2] for row in to_rows(function(readers))] == [1, 2]


@pytest.mark.parametrize("rows", [1, 2, 10])
def test_joins_have_lazy_sides_in_any_order(rows: int) -> None:
    def join(key: Any, lefts: Iterator[int], rights: Iterator[int]) -> Iterator[tuple[int, int]]:
        right = list(rights)
        yield len(list(lefts)), sum(right)

    keys = [None, 1, 2, 3, 4]
    left = make_reader([(None, 1), (1, 1), (1, 2), (1, 3), (4, 1)], rows=rows)
    right = make_reader([(None, 9), (2, 1), (2, 2), (4, 7)], rows=rows)
    result = to_rows(row_function(join, feeders=2)([make_keys(keys), left, right]))
    assert result == [(None, 1, 9), (1, 3, 0), (2, 0, 3), (3, 0, 0), (4, 1, 7)]


def test_joins_with_empty_feeders() -> None:
    function = row_function(lambda _key, *sides: [(len(sides), sum(len(list(s)) for s in sides))], feeders=3)
    readers = [make_keys([1, 2]), make_reader([]), make_reader([(2, 2)]), make_reader([])]
    assert to_rows(function(readers)) == [(1, 3, 0), (2, 3, 1)]
    assert to_rows(function([make_keys([]), make_reader([]), make_reader([]), make_reader([])])) == []
    with pytest.raises(ValueError, match="needs 4 readers, got 1"):
        function([make_keys([])])
    with pytest.raises(RuntimeError, match="a key that is not listed"):
        list(function([make_keys([1]), make_reader([(2, 1)]), make_reader([]), make_reader([])]))


UTC = dt.UTC
MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123000)  # noqa: DTZ001 without a time zone on purpose
ACCEPTED: list[tuple[Any, pa.DataType, Any]] = [
    (np.int64(5), pa.int8(), 5),
    (np.uint8(5), INT, 5),
    (np.float32(0.5), pa.float64(), 0.5),
    (np.float64(0.5), pa.float64(), 0.5),
    (np.int16(3), pa.float32(), 3.0),
    (np.str_("a"), TEXT, "a"),
    (np.bytes_(b"a"), pa.binary(), b"a"),
    (np.bool_(True), pa.bool_(), True),
    (2**53, pa.float64(), 2.0**53),
    (0.1, pa.float32(), float(np.float32(0.1))),
    (math.inf, pa.float32(), math.inf),
    (0.5, pa.float16(), 0.5),
    (5, pa.decimal128(5, 2), decimal.Decimal("5.00")),
    (decimal.Decimal("1.50"), pa.decimal128(5, 1), decimal.Decimal("1.5")),
    (dt.date(2024, 2, 29), pa.date32(), dt.date(2024, 2, 29)),
    (np.datetime64("2024-02-29"), pa.date32(), dt.date(2024, 2, 29)),
    (MOMENT, pa.timestamp("ms"), MOMENT),
    (np.datetime64("2024-02-29T12:30:15.123000"), pa.timestamp("ms"), MOMENT),
    (pd.Timestamp(MOMENT), pa.timestamp("us"), MOMENT),
    (MOMENT.replace(tzinfo=UTC), pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=UTC)),
    (dt.time(1, 2, 3, 4000), pa.time32("ms"), dt.time(1, 2, 3, 4000)),
    (dt.timedelta(days=-1, milliseconds=1), pa.duration("ms"), dt.timedelta(days=-1, milliseconds=1)),
    (np.timedelta64(3, "m"), pa.duration("s"), dt.timedelta(minutes=3)),
    (uuid.UUID(int=7), pa.uuid(), uuid.UUID(int=7)),
    ("a", pa.dictionary(pa.int8(), TEXT), "a"),
    ("a", pa.large_string(), "a"),
    ("a", pa.string_view(), "a"),
    ([1, None], pa.list_(pa.int8()), [1, None]),
    ((1, 2), pa.list_(pa.int8(), 2), [1, 2]),
    ({"a": 1}, pa.map_(TEXT, INT), [("a", 1)]),
    ([("a", 1)], pa.map_(TEXT, INT), [("a", 1)]),
    ({"b": MOMENT}, pa.struct([("a", INT), ("b", pa.timestamp("s"))]), ValueError),
    ({"b": dt.time(1)}, pa.struct([("a", INT), ("b", pa.time32("s"))]), {"a": None, "b": dt.time(1)}),
    (None, pa.struct([("a", INT)]), None),
    (None, pa.null(), None),
]


@pytest.mark.parametrize(("value", "data_type", "expected"), ACCEPTED, ids=repr)
def test_lossless_values_are_stored(value: Any, data_type: pa.DataType, expected: Any) -> None:
    if expected is ValueError:
        with pytest.raises(ProduceError):
            emit_one(value, data_type)
    else:
        scalar = emit_one(value, data_type)
        assert (scalar.as_py(), scalar.type) == (expected, data_type)


REFUSED: list[tuple[Any, pa.DataType]] = [
    *((value, INT) for value in (1.0, True, "1", decimal.Decimal(1), 2**63, np.float64(1), np.bool_(True), b"1", [1])),
    *((value, pa.uint8()) for value in (-1, 256, np.int64(256))),
    *((value, pa.bool_()) for value in (1, 0.0, "true", np.int8(1))),
    *((value, TEXT) for value in (1, b"a", "\ud800", dt.date(2024, 1, 1))),
    *((value, pa.binary()) for value in ("a", bytearray(b"a"), memoryview(b"a"), 1)),
    *((value, pa.float64()) for value in (2**53 + 1, True, "1.0", decimal.Decimal(1), 10**400)),
    *((value, pa.float32()) for value in (1e300, 2**24 + 1)),
    (b"abc", pa.binary(2)),
    *((decimal.Decimal(text), pa.decimal128(4, 2)) for text in ("1.234", "100", "NaN", "Infinity")),
    *((value, pa.decimal128(4, 2)) for value in (1.0, True, "1")),
    *((value, pa.date32()) for value in (MOMENT, 5, "2024-01-01", np.datetime64("2024-01-01T01"))),
    *((value, pa.timestamp("s")) for value in (MOMENT, dt.date(2024, 1, 1), 5, np.datetime64("NaT"), pd.NaT)),
    (MOMENT.replace(tzinfo=UTC), pa.timestamp("us")),
    (MOMENT, pa.timestamp("us", "UTC")),
    (np.datetime64(0, "s"), pa.timestamp("us", "UTC")),
    (pd.Timestamp(1, unit="ns"), pa.timestamp("us")),
    (MOMENT.replace(year=9996), pa.timestamp("ns")),
    (dt.time(1, 2, 3, 4), pa.time32("ms")),
    (dt.time(1, tzinfo=UTC), pa.time64("us")),
    (dt.timedelta(microseconds=1), pa.duration("ms")),
    (0, pa.null()),
    ([1.0], pa.list_(INT)),
    ("ab", pa.list_(TEXT)),
    ([1], pa.list_(INT, 2)),
    ({"a": 1, "typo": 2}, pa.struct([("a", INT)])),
    ({"a": True}, pa.struct([("a", INT)])),
    ({}, pa.struct([pa.field("a", INT, nullable=False)])),
    ([None], pa.list_(pa.field("item", INT, nullable=False))),
    ({"a": "x"}, pa.map_(TEXT, INT)),
    (None, pa.field("x", INT, nullable=False)),
    (None, pa.field("x", pa.struct([("a", INT)]), nullable=False)),
]


def describe(value: Any) -> str:
    """An id that is the same in every process."""
    return type(value).__name__ if isinstance(value, memoryview) else repr(value)


@pytest.mark.parametrize(("value", "data_type"), REFUSED, ids=describe)
def test_lossy_values_are_refused(value: Any, data_type: pa.DataType | pa.Field) -> None:
    with pytest.raises(ProduceError, match=r"stage 'words' failed for key 1 at .*test_rows.py"):
        emit_one(value, data_type)


NUMBERS = st.one_of(st.integers(), st.integers(-300, 300), st.floats(), st.booleans(), st.decimals(), st.none())
OTHERS = st.one_of(st.text(max_size=3), st.binary(max_size=3), st.dates(), st.datetimes(), st.times(), st.timedeltas())
TYPES = [pa.int8(), pa.uint32(), INT, pa.float32(), pa.float64(), pa.bool_(), TEXT, pa.binary(), pa.binary(2)]
TYPES += [pa.decimal128(10, 2), pa.date32(), pa.time32("ms"), pa.time64("us"), pa.duration("us"), pa.timestamp("us")]
TYPES += [pa.timestamp("s"), pa.timestamp("ns"), pa.duration("ns"), pa.duration("s")]


@given(st.one_of(NUMBERS, OTHERS), st.sampled_from(TYPES))
def test_what_is_stored_is_the_same_value_for_arrow(value: Any, data_type: pa.DataType) -> None:
    try:
        scalar = emit_one(value, data_type)
    except ProduceError:
        # A value of the type that Arrow keeps is never refused.
        try:
            kept = pa.array([value], data_type, safe=True)[0].as_py()
        except (pa.ArrowException, OverflowError, ValueError, UnicodeEncodeError, TypeError):
            return
        assert type(kept) is not type(value) or kept != value
        return
    # Arrow refuses all integers above 2**53 as floats, the exact ones too.
    is_exact_float = isinstance(value, int) and pa.types.is_floating(data_type)
    expected = pa.array([float(value) if is_exact_float else value], data_type, safe=True)[0]
    assert scalar.equals(expected) or value != value  # noqa: PLR0124
    if data_type != pa.float32() and value == value and value is not None:  # noqa: PLR0124
        stored = scalar.as_py()
        assert stored == value
        assert isinstance(value, bool) == isinstance(stored, bool)


def test_the_culprit_of_a_late_conversion_is_named() -> None:
    def bad(key: int, values: Iterator[int]) -> Iterator[tuple[int, Any]]:
        for value in values:
            yield key, "x" if key == 777 else value

    with pytest.raises(ProduceError, match=r"failed for key 777 .*emitted value: cannot convert 'x' to int64") as error:
        list(row_function(bad)([make_reader([(n // 3, n) for n in range(3000)], rows=100)]))
    assert error.value.key == 777
    assert isinstance(error.value.__cause__, TypeError)


def test_errors_name_stage_key_and_line() -> None:
    def helper() -> None:
        raise LookupError("no such thing")

    def fail(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        yield key, 1
        if key == 2:
            helper()

    with pytest.raises(ProduceError) as failure:
        list(row_function(fail)([make_reader([(1, 1), (2, 2)])]))
    error = failure.value
    line = inspect.getsourcelines(helper)[1] + 1
    assert (error.stage, error.key, error.location) == ("words", 2, f"{__file__}:{line}")
    assert str(error) == f"stage 'words' failed for key 2 at {__file__}:{line}: LookupError: no such thing"
    assert isinstance(error.__cause__, LookupError)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 our own
    assert (str(copy), copy.stage, copy.key, copy.location) == (str(error), error.stage, error.key, error.location)


@pytest.mark.parametrize("pair", ["ab", (1,), (1, 2, 3), 5, {1: 2, 3: 4}, None])
def test_what_is_not_a_pair_is_refused_at_its_line(pair: Any) -> None:
    def emit(key: int, values: Iterator[int]) -> Iterator[Any]:
        yield pair

    with pytest.raises(ProduceError, match="expected a pair") as failure:
        list(row_function(emit)([make_reader([(1, 1)])]))
    assert failure.value.location == f"{__file__}:{inspect.getsourcelines(emit)[1] + 1}"


@pytest.mark.parametrize("result", ["ab", 5, {1: 2}, b"ab"])
def test_what_is_not_an_iterable_of_pairs_is_refused(result: Any) -> None:
    with pytest.raises(ProduceError, match="expected an iterable of pairs"):
        list(row_function(lambda _key, _values: result)([make_reader([(1, 1)])]))


def test_other_callables_and_wrong_signatures() -> None:
    class Producer:
        def __call__(self, _key: int, _values: Iterator[int]) -> Any:
            raise ValueError("call")

    def add(extra: int, key: int, values: Iterator[int]) -> Any:
        raise ValueError(extra)

    for function in (Producer(), functools.partial(add, 1), lambda _key: None):
        with pytest.raises(ProduceError, match=r"test_rows.py:\d+"):
            list(row_function(function)([make_reader([(1, 1)])]))
    with pytest.raises(TypeError, match="expected a function"):
        row_function(5)  # type: ignore[arg-type]


def test_long_keys_are_cut_and_struct_keys_pickle() -> None:
    def fail(key: Any, values: Iterator[int]) -> Any:
        raise ValueError

    key_type = pa.struct([("a", TEXT)])
    with pytest.raises(ProduceError) as failure:
        list(row_function(fail, key=key_type)([make_reader([({"a": "x" * 1000}, 1)], key_type)]))
    assert len(str(failure.value)) < 500 + len(__file__)
    assert pickle.loads(pickle.dumps(failure.value)).key == ("x" * 1000,)  # noqa: S301 our own


def count_what_can_be_read(key: int, *sides: Iterator[Any]) -> Iterator[tuple[int, int]]:
    """A function that takes an error of its values for their end."""
    count = 0
    for values in sides:
        try:
            for _ in values:
                count += 1
        except Exception:  # noqa: BLE001, S110 what users write
            pass
    yield key, count


@pytest.mark.parametrize("bad", range(9))
@pytest.mark.parametrize("returns_list", [False, True])
def test_an_error_of_the_values_that_the_function_catches_is_not_their_end(bad: int, *, returns_list: bool) -> None:
    """Values of a group that ends in its chunk, of one that goes on in the next ones, and of the last one."""
    times = [1 if n == bad else 1000 * n for n in range(9)]
    function: Callable[..., Any] = count_what_can_be_read
    if returns_list:
        function = lambda key, values: list(count_what_can_be_read(key, values))  # noqa: E731 in place of the other
    reader = make_reader(zip([1, 2, 2, 2, 2, 2, 3, 3, 4], times, strict=True), value=pa.time64("ns"))
    with pytest.raises(ProduceError, match="a time has nanoseconds, which") as failure:
        to_rows(row_function(function, value=pa.time64("ns"))([reader]))
    assert failure.value.key == [1, 2, 2, 2, 2, 2, 3, 3, 4][bad // 3 * 3]


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_of_a_side_of_a_join_that_the_function_catches_is_not_its_end(bad: int) -> None:
    sides = [make_reader([(1, 1000), (2, 1 if n == bad else 1000)], value=pa.time64("ns"), rows=1) for n in range(2)]
    function = row_function(count_what_can_be_read, value=pa.time64("ns"), feeders=2)
    with pytest.raises(ProduceError, match=r"failed for key 2 .*a time has nanoseconds, which"):
        to_rows(function([make_keys([1, 2]), *sides]))


def test_an_update_whose_function_catches_an_error_of_its_values_does_not_commit(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=INT, value=pa.timestamp("us"))
    pipeline.producer(source, key=INT, value=INT, name="counts")(count_what_can_be_read)
    # Of the year 12000, which Python does not have.
    times = pa.array([0, 316_516_464_000_000_000], pa.timestamp("us"))
    with pytest.raises(ProduceError, match="counts"):
        pipeline.update(s=pds.Changes(pa.table({"key": [1, 2], "value": times})))
    assert pipeline.version == 0


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_wrapped(kind: type[BaseException]) -> None:
    def stop(key: int, values: Iterator[int]) -> Any:
        raise kind

    with pytest.raises(kind):
        list(row_function(stop)([make_reader([(1, 1)])]))


def test_an_error_of_the_reader_is_not_the_function_s() -> None:
    def stream() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"key": [1], "value": [1]})
        raise OSError("the store failed")

    def swallow(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        try:
            list(values)
        except OSError:
            yield key, 1

    for function in (swallow, identity):
        reader: Any = pa.RecordBatchReader.from_batches(pa.schema([("key", INT), ("value", INT)]), stream())
        with pytest.raises(OSError, match="the store failed"):
            list(row_function(function)([reader]))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_restored(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_rows(monkeypatch, 2)
    states = []

    def watch(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        for value in values:
            states.append(gc.isenabled())
            yield key, 1 // value

    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        stream = row_function(watch)([make_reader([(1, 1)] * 9 + [(2, 0)])])
        next(stream)
        assert gc.isenabled() == enabled
        stream.close()
        assert gc.isenabled() == enabled
        with pytest.raises(ProduceError):
            list(row_function(watch)([make_reader([(1, 1)] * 9 + [(2, 0)])]))
        assert gc.isenabled() == enabled
        assert set(states) == {False}
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("keys", [1, 2])
def test_closing_the_stream_closes_the_function(monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    limit_rows(monkeypatch, 2)
    closed = []

    def endless(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        try:
            while True:
                yield key, 1
        finally:
            closed.append((key, list(values)))

    stream = row_function(endless)([make_reader([(key, 5) for key in range(keys)])])
    next(stream)
    stream.close()
    assert closed == [(0, [5])]


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 7), st.integers(1, 5), st.integers(1, 5))
def test_any_chunking_gives_the_same_rows(sizes: list[int], batch: int, chunk: int, groups: int) -> None:
    pairs = [(key, (key, n)[1]) for key, size in enumerate(sizes) for n in range(size)]
    with pytest.MonkeyPatch.context() as patch:
        limit_rows(patch, chunk)
        patch.setattr(pds.producers.groups, "MAX_GROUPS", groups)
        assert to_rows(row_function(identity)([make_reader(pairs, rows=batch)])) == [(k, k, v) for k, v in pairs]
        result = to_rows(batch_function(echo)([make_reader(pairs, rows=batch)]))
    assert result == [(k, k, v) for k, v in pairs]


def batch_function(function: Callable[..., Any], result: pa.DataType | pa.Field = INT, **options: Any) -> BatchFunction:
    value = result if isinstance(result, pa.Field) else pa.field("v", result)
    fields = {name: pa.field("x", INT) for name in ("source_key", "source_value", "target_key")}
    return BatchFunction(function, stage="words", **fields, target_value=value, **options)


def echo(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = pa.array(range(batch.num_rows), pa.int32())
    return pa.record_batch({"source_row": rows, "key": batch.column("key"), "value": batch.column("value")})


def test_batches_hold_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_rows(monkeypatch, 4)
    batches = []

    def watch(batch: pa.RecordBatch) -> pa.RecordBatch:
        batches.append(batch.column("key").to_pylist())
        return echo(batch)

    pairs = [(key, key) for key in [1, 1, 2, 3, 3, 3, 3, 3, 3, 4, 5, 6, 7]]
    assert len(to_rows(batch_function(watch)([make_reader(pairs)]))) == len(pairs)
    assert batches == [[1, 1, 2, 3, 3, 3, 3, 3, 3], [4, 5, 6, 7]]


def test_a_group_above_the_limit_is_refused_by_key() -> None:
    pairs = [(1, 1)] * 3 + [(2, 2)] * 4
    assert len(to_rows(batch_function(echo, max_group_rows=4)([make_reader(pairs)]))) == 7
    for rows in (1, 3, 10):
        with pytest.raises(ProduceError, match="max_group_rows=3") as failure:
            list(batch_function(echo, max_group_rows=3)([make_reader(pairs, rows=rows)]))
        assert failure.value.key == 2


def test_rows_of_a_source_key_are_in_row_order_and_adjacent() -> None:
    def emit(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"value": [1, 2, 3, 4], "source_row": [2, 1, 0, 2], "key": [9, 8, 7, 6]})

    rows = to_rows(batch_function(emit)([make_reader([(1, 0), (1, 0), (2, 0)])]))
    assert rows == [(1, 8, 2), (1, 7, 3), (2, 9, 1), (2, 6, 4)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_row": [5]}, "from 0 to 1"),
        ({"source_row": [-1]}, "from 0 to 1"),
        ({"source_row": pa.array([None], INT)}, "without null"),
        ({"source_row": [0.0]}, "must be integers"),
        ({"value": [1.0]}, "expected int64, got double"),
        ({"value": [True]}, "expected int64, got bool"),
        ({"value": ["1"]}, "expected int64, got string"),
        ({"value": pa.array([2**63], pa.uint64())}, "'value': "),
        ({"key": [[1]]}, "'key': "),
        ({"value": pa.array([None], INT)}, "null in"),
        ({"extra": [1]}, "expected the columns"),
        ({"key": None}, "expected the columns"),
    ],
)
def test_wrong_batches_are_refused(changes: dict[str, Any], message: str) -> None:
    def emit(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {"source_row": [1], "key": [1], "value": [1], **changes}
        return pa.record_batch({name: column for name, column in columns.items() if column is not None})

    with pytest.raises(ProduceError, match=message):
        list(batch_function(emit, pa.field("v", INT, nullable=False))([make_reader([(1, 1), (2, 2)])]))


def test_batches_are_cast_where_no_value_changes() -> None:
    def emit_value(values: pa.Array, result: pa.DataType) -> list[Any]:
        def emit(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch({"source_row": [0], "key": pa.array([1], pa.int8()), "value": values})

        return [row[2] for row in to_rows(batch_function(emit, result)([make_reader([(1, 1)])]))]

    assert emit_value(pa.array([1], pa.int8()), pa.float64()) == [1.0]
    assert (
        emit_value(
            pa.array(
                [
                    math.nan,
                ],
                pa.float32(),
            ),
            pa.float64(),
        )[0]
        != 0
    )
    assert emit_value(pa.array(["a"]), pa.large_string()) == ["a"]
    assert emit_value(pa.array([MOMENT]), pa.timestamp("ms")) == [MOMENT]
    assert emit_value(pa.array([{"a": 1}]), pa.struct([("a", pa.int8())])) == [{"a": 1}]
    for values, result in (
        (pa.array([0.1]), pa.float32()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([MOMENT]), pa.timestamp("s")),
        (pa.array([MOMENT]), pa.timestamp("us", "UTC")),
        (pa.array([MOMENT]), pa.time64("us")),
        (pa.array([{"a": 1.0}]), pa.struct([("a", INT)])),
        (pa.array([{"a": None}], pa.struct([("a", INT)])), pa.struct([pa.field("a", INT, nullable=False)])),
    ):
        with pytest.raises(ProduceError, match="column 'value'"):
            emit_value(values, result)


def test_batch_mode_errors_have_a_location() -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise LookupError("no")

    with pytest.raises(ProduceError, match=r"LookupError: no .*begins with this key") as failure:
        list(batch_function(fail)([make_reader([(1, 1)])]))
    assert failure.value.location == f"{__file__}:{inspect.getsourcelines(fail)[1] + 1}"
    with pytest.raises(ProduceError, match=r"expected a pyarrow.RecordBatch, got NoneType"):
        list(batch_function(lambda _batch: None)([make_reader([(1, 1)])]))

"""Values of Arrow as values of Python, and back: pyarrow is the oracle."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pds import _pds
from pds.producers.convert import BadValueError, ColumnBuilder
from pds.producers.groups import list_values

INT, TEXT = pa.int64(), pa.string()
RECORD = pa.struct([("a", INT), ("b", pa.struct([("c", TEXT), ("d", pa.list_(pa.float32()))])), ("t", pa.date32())])
VALUES: list[tuple[list[Any], pa.DataType]] = [
    *(([0, -1, 127, None], each) for each in (pa.int8(), pa.int16(), pa.int32(), INT)),
    *(([0, 255, None], each) for each in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    ([2**63 - 1, -(2**63)], INT),
    ([2**64 - 1], pa.uint64()),
    *(([0.1, -0.0, math.nan, -math.inf, None], each) for each in (pa.float16(), pa.float32(), pa.float64())),
    ([True, False, None], pa.bool_()),
    *((["", "é\0", "\U0001f600" * 9, None], each) for each in (TEXT, pa.large_string(), pa.string_view())),
    *(([b"", b"\xff\0", b"x" * 30, None], each) for each in (pa.binary(), pa.large_binary(), pa.binary_view())),
    ([b"ab", None], pa.binary(2)),
    ([None, None], pa.null()),
    ([decimal.Decimal("1.50"), None], pa.decimal128(9, 2)),
    ([dt.date(2024, 2, 29), None], pa.date32()),
    ([dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "Europe/Berlin")),
    ([dt.timedelta(microseconds=-1), None], pa.duration("us")),
    (["a", "b", None, "a"], pa.dictionary(pa.int8(), TEXT)),
    ([[1, None], [], None, [2, 3, 4]], pa.list_(INT)),
    ([[[1], None], None, [[2, 3], []]], pa.large_list(pa.list_(INT))),
    ([[1, None], None], pa.list_(INT, 2)),
    ([[("a", 1)], None, []], pa.map_(TEXT, INT)),
    ([{}, None, {}], pa.struct([])),
    (
        [
            {"a": 1, "b": {"c": "x", "d": [0.5, None]}, "t": dt.date(2024, 1, 1)},
            None,
            {"a": None, "b": None, "t": None},
            {"a": 2, "b": {"c": None, "d": None}, "t": None},
        ],
        RECORD,
    ),
    ([[{"a": 1, "b": None, "t": None}], None, [None]], pa.list_(RECORD)),
    ([uuid.UUID(int=7), None], pa.uuid()),
    ([{"id": uuid.UUID(int=7)}, None], pa.struct([("id", pa.uuid())])),
]


def make_array(values: list[Any], data_type: pa.DataType) -> pa.Array:
    if pa.types.is_struct(data_type) and any(isinstance(field.type, pa.BaseExtensionType) for field in data_type):
        plain = pa.struct([(field.name, field.type.storage_type) for field in data_type])
        return pa.array([v and {n: each.bytes for n, each in v.items()} for v in values], plain).cast(data_type)
    return pa.array(values, data_type)


@pytest.mark.parametrize(("values", "data_type"), VALUES, ids=lambda value: str(value)[:60])
def test_values_are_those_of_pyarrow(values: list[Any], data_type: pa.DataType) -> None:
    array = make_array(values, data_type)
    for part in (array, array[1:], array[:-1], array[:0], pa.concat_arrays([array] * 3)[2:]):
        listed = list_values(part)
        assert repr(listed) == repr(part.to_pylist())
        assert type(listed) is list


def test_fields_with_one_name_are_refused_as_by_pyarrow() -> None:
    array = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(ValueError, match="duplicate") as expected:
        array.to_pylist()
    with pytest.raises(ValueError, match="duplicate") as failure:
        list_values(array)
    assert str(failure.value) == str(expected.value)


EXACT: list[tuple[list[Any], pa.DataType]] = [
    ([1, None, -(2**63)], INT),
    ([0.1, -0.0, math.nan, None], pa.float64()),
    (["", "é\0", None], TEXT),
    ([True, None], pa.bool_()),
    ([], INT),
]


@pytest.mark.parametrize(("values", "data_type"), EXACT, ids=repr)
def test_exact_values_become_the_array_of_pyarrow(values: list[Any], data_type: pa.DataType) -> None:
    array = _pds.exact_array(values, pa.field("x", data_type))
    assert array is not None
    assert array.type == data_type
    assert repr(array.to_pylist()) == repr(values)
    required = _pds.exact_array(values, pa.field("x", data_type, nullable=False))
    assert (required is None) == (None in values)


class Integer(int):
    """Equal to a number, and no exact one."""


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        *((value, INT) for value in (True, 1.0, 2**63, Integer(1), "1")),
        *((value, pa.float64()) for value in (1, "x")),
        *((value, TEXT) for value in (b"a", "\ud800", 1)),
        (1, pa.bool_()),
        (1, pa.int32()),
        ("{}", pa.json_()),
    ],
    ids=repr,
)
def test_other_values_are_left_to_who_converts_them(value: Any, data_type: pa.DataType) -> None:
    assert _pds.exact_array([value], pa.field("x", data_type)) is None


NESTED = pa.struct(
    [("a", INT), ("f", pa.float64()), ("s", TEXT), ("b", pa.bool_()), ("l", pa.list_(pa.struct([("x", INT)])))]
)
RECORDS: list[Any] = [
    {"a": 1, "f": math.nan, "s": "\u00e9", "b": True, "l": [{"x": 1}, None, {"x": None}]},
    None,
    dict.fromkeys(NESTED.names),
    (2, -0.0, "", False, []),
    {"l": None, "b": None, "s": None, "f": 1.0, "a": -(2**63)},
]


def by_pyarrow(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """An array of values of which some are tuples, which pyarrow does not take for structs, or lack fields."""
    names = NESTED.names
    dicts = [dict(zip(names, each, strict=True)) if isinstance(each, tuple) else each for each in values]
    return pa.array([dict.fromkeys(names) | each if isinstance(each, dict) else each for each in dicts], data_type)


def build(values: list[Any], field: pa.Field) -> pa.Array:
    builder = ColumnBuilder(field)
    for value in values:
        builder.append(value)
    return builder.finish()


@pytest.mark.parametrize(
    ("values", "data_type"),
    [(RECORDS, NESTED), ([[1, None], None, []], pa.list_(INT)), ([[RECORDS[0]], None], pa.list_(NESTED))],
    ids=lambda value: str(value)[:60],
)
def test_nested_values_become_the_array_of_pyarrow(values: list[Any], data_type: pa.DataType) -> None:
    rows = _pds.NestedRows.of(pa.field("x", data_type))
    assert rows is not None
    for _ in range(2):
        assert rows.finish() is None
        assert all(map(rows.append, values))
        assert rows.size > 0
        array = rows.finish()
        assert array is not None
        array.validate(full=True)
        assert array.type == data_type
        assert repr(array.to_pylist()) == repr(by_pyarrow(values, data_type).to_pylist())


@pytest.mark.parametrize("other", [{"a": np.int64(7), "f": 7}, {"a": Integer(7)}, {}, {"s": np.str_("x")}], ids=repr)
@pytest.mark.parametrize("at", range(len(RECORDS) + 1))
def test_values_of_other_python_types_keep_their_place(other: dict[str, Any], at: int) -> None:
    values = [*RECORDS[:at], other, *RECORDS[at:]]
    expected = by_pyarrow(values, NESTED)
    builder = ColumnBuilder(pa.field("x", NESTED))
    for _ in range(2):
        for value in values:
            builder.append(value)
        assert repr(builder.finish().to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({**RECORDS[0], "a": 2**63}, "cannot convert"),
        ({**RECORDS[0], "a": True}, "expected int64, got True"),
        ({**RECORDS[0], "z": 1}, "unknown field 'z'"),
        ({**RECORDS[0], "l": [{"x": 1.0}]}, "expected int64, got 1.0"),
        ({**RECORDS[0], "s": "\ud800"}, "cannot convert"),
        ((1, 2), "a dict or tuple"),
    ],
    ids=str,
)
def test_nested_values_that_do_not_fit_are_refused(value: Any, message: str) -> None:
    with pytest.raises(BadValueError, match=message):
        build([*RECORDS, value], pa.field("x", NESTED))


def test_nulls_are_refused_where_a_nested_field_has_none() -> None:
    required = pa.struct([pa.field("a", INT, nullable=False)])
    assert build([{"a": 1}, None], pa.field("x", required)).to_pylist() == [{"a": 1}, None]
    for value, field in (({"a": None}, pa.field("x", required)), (None, pa.field("x", required, nullable=False))):
        with pytest.raises(BadValueError, match="which is not nullable"):
            build([{"a": 1}, value], field)

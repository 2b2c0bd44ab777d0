"""Conversion of what a user's function emits: values are copied and checked, and no value is changed.

A value that a column cannot store exactly is an error that names the value: no number is cut, no text becomes bytes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import struct
import sys
import uuid
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pyarrow as pa

from pds import _pds
from pds.producers.errors import abbreviate

# Strings and binaries up to this length are not counted: 65,536 of them are at most 16 MiB.
UNCOUNTED_BYTES = 256
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 the epoch of timestamps without a time zone
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "D": 86400 * 10**9}

_Value = Any
"""A Python value of a row, or what a user's function returned."""
_ArrowType = Any


class BadValueError(Exception):
    """A value that a column cannot store; `row` is its row, or None for the newest row."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.row = row


def reject(value: object, expected: object) -> NoReturn:
    """Raise a TypeError that names the value, its type and what was expected."""
    raise TypeError(f"expected {expected}, got {abbreviate(value)} of type {type(value).__name__}")


def _unbox(value: _Value) -> _Value:
    """Return the Python value of a numpy scalar; numpy's times and durations stay as they are."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic) or value.dtype.kind not in "iubf":
        return value
    number = {"b": bool, "f": float}.get(value.dtype.kind, int)(value)
    return number if number == value or value != value else value  # noqa: PLR0124 NaN differs from itself


def _to_float(value: _Value, data_type: pa.DataType) -> float:
    code = {16: "<e", 32: "<f"}.get(data_type.bit_width, "<d")
    # This rounds to the width of the column, and refuses a finite number that would become infinite.
    number: float = struct.unpack(code, struct.pack(code, value))[0]
    if isinstance(value, int) and number != value:
        raise ValueError(f"{data_type} cannot store the integer exactly")
    return number


def _to_date(value: _Value, data_type: pa.DataType) -> dt.date:
    if type(value) is dt.date:
        return value
    return _EPOCH.date() + dt.timedelta(days=_to_unit(_count_nanoseconds(value, data_type, "M"), "D"))


def _to_ticks(value: _Value, data_type: _ArrowType) -> int:
    """Return a time, timestamp or duration as an integer in the unit of the column."""
    nanoseconds = 0
    if pa.types.is_timestamp(data_type) and isinstance(value, dt.datetime):
        if (value.utcoffset() is None) != (data_type.tz is None):
            reject(value, f"{data_type}, {'without' if data_type.tz is None else 'with'} a time zone")
        span: Any = value - (_EPOCH if data_type.tz is None else _EPOCH.replace(tzinfo=dt.UTC))
        nanoseconds = getattr(value, "nanosecond", 0)  # pandas
    elif pa.types.is_duration(data_type) and isinstance(value, dt.timedelta):
        span, nanoseconds = value, getattr(value, "nanoseconds", 0)  # pandas
    elif pa.types.is_time(data_type) and isinstance(value, dt.time) and value.tzinfo is None:
        span = dt.datetime.combine(_EPOCH, value) - _EPOCH
    else:
        if pa.types.is_time(data_type) or getattr(data_type, "tz", None) is not None:
            reject(value, data_type)
        code = "m" if pa.types.is_duration(data_type) else "M"
        return _to_unit(_count_nanoseconds(value, data_type, code), data_type.unit)
    return _to_unit(span // dt.timedelta(microseconds=1) * 1000 + nanoseconds, data_type.unit)


def _count_nanoseconds(value: _Value, data_type: pa.DataType, code: str) -> int:
    """Return a datetime64 (code M) or timedelta64 (code m) of numpy in nanoseconds."""
    text = str(getattr(getattr(value, "dtype", None), "str", ""))
    if text[1:3] != f"{code}8" or text[4:-1] not in _NANOSECONDS or value != value:  # noqa: PLR0124 NaT
        reject(value, data_type)
    return int(value.view("i8")) * _NANOSECONDS[text[4:-1]]


def _to_unit(nanoseconds: int, unit: str) -> int:
    ticks, rest = divmod(nanoseconds, _NANOSECONDS[unit])
    if rest:
        raise ValueError(f"the unit of the column is {unit}, which cannot store the value exactly")
    return ticks


# Per family of types: a test of the type, the exact Python type that Arrow converts as it is (the conversion is for
# the others), all Python types that are accepted, and the conversion. None accepts what the conversion accepts.
_Conversion = Callable[[Any, pa.DataType], Any]
_FAMILIES: dict[str, tuple[Callable[[pa.DataType], bool], type | None, tuple[type, ...] | None, _Conversion]] = {
    "integer": (pa.types.is_integer, int, (int,), lambda value, _: int(value)),
    "double": (pa.types.is_float64, float, (int, float), _to_float),
    "floating": (pa.types.is_floating, None, (int, float), _to_float),
    "boolean": (pa.types.is_boolean, bool, (bool,), lambda value, _: value),
    "string": (lambda t: "string" in str(t), str, (str,), lambda value, _: str.__str__(value)),
    "binary": (
        lambda t: "binary" in str(t),
        bytes,
        (bytes, uuid.UUID),
        lambda value, _: value.bytes if isinstance(value, uuid.UUID) else bytes(memoryview(value)),
    ),
    "decimal": (pa.types.is_decimal, decimal.Decimal, (int, decimal.Decimal), lambda value, _: decimal.Decimal(value)),
    "date": (pa.types.is_date, dt.date, None, _to_date),
    "ticks": (lambda t: pa.types.is_temporal(t) and not pa.types.is_interval(t), None, None, _to_ticks),
    "null": (pa.types.is_null, None, (), reject),
}


def storage_type(data_type: _ArrowType) -> pa.DataType:
    """Return the type of the values of a dictionary or an extension type."""
    if pa.types.is_dictionary(data_type):
        return storage_type(data_type.value_type)
    return storage_type(data_type.storage_type) if isinstance(data_type, pa.BaseExtensionType) else data_type


def choose_family(data_type: pa.DataType) -> str:
    """Return the family of a flat type; raise a TypeError if it is not supported."""
    for name, (matches, *_) in () if pa.types.is_nested(data_type) else _FAMILIES.items():
        if matches(data_type):
            return name
    raise TypeError(f"a producer cannot emit values of type {data_type}")


def _make_converter(field: pa.Field[Any]) -> Callable[[Any], Any]:
    """Return a function that copies a value of a column and raises an error if the column cannot store it."""
    data_type: Any = storage_type(field.type)
    if pa.types.is_struct(data_type):
        convert = _make_struct_converter(data_type)
    elif pa.types.is_map(data_type):
        pair = pa.struct([data_type.key_field, data_type.item_field])
        convert_pair = _make_struct_converter(pair, as_tuple=True)
        convert = _make_list_converter(data_type, convert_pair)
    elif hasattr(data_type, "value_field"):
        convert = _make_list_converter(data_type, _make_converter(data_type.value_field))
    else:
        convert = _make_leaf_converter(data_type)
    nullable = field.nullable

    def convert_or_null(value: _Value) -> _Value:
        if value is not None:
            return convert(value)
        if not nullable:
            raise ValueError(f"null in {field.name!r}, which is not nullable")
        return None

    return convert_or_null


def _make_leaf_converter(data_type: pa.DataType) -> Callable[[Any], Any]:
    _, exact, accepted, convert = _FAMILIES[choose_family(data_type)]

    def convert_leaf(value: _Value) -> _Value:
        if type(value) is exact:
            return value
        value = _unbox(value)
        if accepted is not None and (
            not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted)
        ):
            reject(value, data_type)
        return convert(value, data_type)

    return convert_leaf


def _make_struct_converter(data_type: _ArrowType, *, as_tuple: bool = False) -> Callable[[Any], Any]:
    converters = {field.name: _make_converter(field) for field in data_type}
    names = tuple(converters)
    tuple_names = key_class(names)._fields

    def convert_struct(value: _Value) -> _Value:
        if isinstance(value, Mapping):
            unknown = [name for name in value if name not in converters]
            if unknown:
                raise ValueError(f"unknown field {unknown[0]!r}; {data_type} has {list(names)}")
            items = [value.get(name) for name in names]
        elif isinstance(value, tuple) and len(value) == len(names):
            if getattr(value, "_fields", tuple_names) != tuple_names:
                raise ValueError(f"{abbreviate(value)} does not have the fields {list(names)}")
            items = list(value)
        else:
            reject(value, f"a dict or tuple for {data_type}")
        copies = [convert(item) for convert, item in zip(converters.values(), items, strict=True)]
        return tuple(copies) if as_tuple else dict(zip(names, copies, strict=True))

    return convert_struct


def _make_list_converter(data_type: _ArrowType, convert_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    size = data_type.list_size if pa.types.is_fixed_size_list(data_type) else None

    def convert_list(value: _Value) -> list[Any]:
        if pa.types.is_map(data_type) and isinstance(value, Mapping):
            value = value.items()
        elif not isinstance(value, list | tuple) or (size is not None and len(value) != size):
            reject(value, data_type)
        return [convert_item(item) for item in value]

    return convert_list


def measure(value: _Value) -> int:
    """Return about how many bytes a plain Python value takes in Arrow."""
    data_type = type(value)
    if data_type is str or data_type is bytes:
        return len(value)
    if data_type is dict:
        return sum(map(measure, value.values()))
    return sum(map(measure, value)) if isinstance(value, (list, tuple)) else 8


class ColumnBuilder:
    """Builds one column. Flat values are collected as they are and converted together; others are copied at once."""

    size = 0  # bytes of large values

    def __init__(self, field: pa.Field[Any]) -> None:
        self._field = field
        self._type = field.type
        self._rows: list[Any] = []
        self._convert = _make_converter(field)
        self._is_nested = pa.types.is_nested(storage_type(field.type))
        self._exact = None if self._is_nested else _FAMILIES[choose_family(storage_type(field.type))][1]
        self._exact_types = {self._exact, type(None)} if field.nullable else {self._exact}
        self.append: Callable[[Any], None] = self._rows.append
        # For those who add values themselves that are collected as they are, and not counted.
        self.flat_rows = None if self._is_nested else self._rows
        self.nested = _pds.NestedRows.of(field) if self._is_nested else None
        self.uncounted: int | None = None
        if self._is_nested or self._exact in {str, bytes}:
            self.append = self._append_nested if self._is_nested else self._append_sized
            self.uncounted = UNCOUNTED_BYTES

    def _append_sized(self, value: _Value) -> None:
        self._rows.append(value)
        if isinstance(value, (str, bytes)) and len(value) > UNCOUNTED_BYTES:
            self.size += len(value)

    def _append_nested(self, value: _Value) -> None:
        if self.nested is not None:
            if self.nested.append(value):
                return
            # The others of this column are copied in Python, so that all stay in their order.
            self.size += self.nested.size
            array = self.nested.take_back()
            self._rows.extend([] if array is None else array.to_pylist())
        try:
            copy = self._convert(value)
        except Exception as error:
            raise BadValueError(f"cannot convert {abbreviate(value)} to {self._type}: {error}") from error
        self._rows.append(copy)
        self.size += measure(copy)

    def _build(self, rows: list[Any]) -> pa.Array[Any]:
        exact = None if self._is_nested else _pds.exact_array(rows, self._field)
        if exact is not None:
            return exact
        if not self._is_nested and not self._exact_types.issuperset(map(type, rows)):
            rows = [self._convert(value) for value in rows]
        array: pa.Array[Any] = pa.array(rows, self._type)
        return array

    def finish(self) -> pa.Array[Any]:
        """Return the column, and begin the next one."""
        nested = None if self.nested is None else self.nested.finish()
        if nested is not None:
            return nested
        try:
            array = self._build(self._rows)
        except Exception as cause:
            for row, value in enumerate(self._rows):
                try:
                    self._build([value])
                except Exception as error:
                    raise BadValueError(f"cannot convert {abbreviate(value)} to {self._type}: {error}", row) from error
            raise BadValueError(f"cannot convert values to {self._type}: {cause}", 0) from cause
        self._rows.clear()
        self.size = 0
        return array


@functools.lru_cache(maxsize=256)
def key_class(names: tuple[str, ...]) -> _Value:
    """Return the named tuple for struct keys with these fields."""
    return namedtuple("Key", names, rename=True)  # noqa: PYI024

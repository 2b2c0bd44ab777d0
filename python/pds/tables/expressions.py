"""Filters given as pyarrow expressions, as the SQL that says the same.

pyarrow tells what an expression is in the protocol buffers of Substrait (substrait.io, `ExtendedExpression`),
of which this reads what pyarrow writes. Where SQL means another thing than pyarrow (NaN in comparisons, nulls in
`isin`) the SQL says what pyarrow means.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pds.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Fields of Substrait's messages that are asked for by name.
_EXTENSION_FUNCTION = 3
_CHILD = 2
_SELECTION = 2

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 a moment without a zone
_COMPARED = {"equal": "=", "not_equal": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_BETWEEN = {"and": "AND", "or": "OR", "add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_CALLED = {"starts_with": "starts_with", "ends_with": "ends_with", "contains": "contains", "is_nan": "isnan"}
_AFTER = {"is_null": "IS NULL", "is_not_null": "IS NOT NULL"}


def to_sql(expression: pc.Expression, schema: pa.Schema) -> str:
    """The expression over a table's columns as an SQL predicate.

    Raises:
        InvalidInput: There is no such column, or the expression says what cannot be said so.
    """
    known = pa.schema([field for field in schema if _is_known(field)])
    # Where sides differ in type pyarrow casts, in a way that it cannot tell.
    wide = pa.schema([field.with_type(_widest(field.type)) for field in known])
    signed = pa.schema([field.with_type(_signed_type(field.type)) for field in wide])
    for told in (wide, signed, known):
        try:
            message = bytes(expression.to_substrait(told))
        except pa.ArrowException as error:
            refused = error
        else:
            return _Reader(message, known, str(expression)).sql()
    raise InvalidInput(f"the filter {expression} cannot be used, perhaps as SQL: {refused}") from refused


def _widest(kind: pa.DataType) -> pa.DataType:
    """The type that Python's values have where pyarrow compares them."""
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if pa.types.is_large_string(kind) else kind


def _is_known(field: pa.Field[pa.DataType]) -> bool:
    """Whether Substrait has its type."""
    try:
        pc.field(field.name).to_substrait(pa.schema([field]))
    except pa.ArrowException:
        return False
    return True


def _signed_type(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_uint64(kind) else kind


class _Message:
    """A message of protocol buffers: values by the number of their field."""

    def __init__(self, data: bytes) -> None:
        self.values: dict[int, list[Any]] = {}
        for number, value in _fields(data):
            self.values.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self.values

    def number(self, number: int) -> int:
        """A whole number; 0 where there is none."""
        value: int = self.values.get(number, [0])[-1]
        return value

    def data(self, number: int) -> bytes:
        value: bytes = self.values.get(number, [b""])[-1]
        return value

    def message(self, number: int) -> _Message:
        return _Message(self.data(number))

    def messages(self, number: int) -> list[_Message]:
        return [_Message(data) for data in self.values.get(number, [])]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def varint() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = data[at]
            at += 1
            found |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return found

    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        length = {1: 8, 5: 4}.get(kind) or varint()
        yield number, data[at : at + length]
        at += length


class _Reader:
    """Reads one `ExtendedExpression`."""

    def __init__(self, message: bytes, schema: pa.Schema, shown: str) -> None:
        self._message = _Message(message)
        self._schema = schema
        self._shown = shown
        self._functions: dict[int, str] = {}
        for extension in self._message.messages(2):
            if _EXTENSION_FUNCTION in extension:
                function = extension.message(_EXTENSION_FUNCTION)
                self._functions[function.number(2)] = function.data(3).decode()

    def sql(self) -> str:
        return self._expression(self._message.messages(3)[0].message(1))

    def _refused(self, what: str) -> InvalidInput:
        return InvalidInput(f"the filter {self._shown} cannot be used: {what}; give it as SQL")

    def _expression(self, message: _Message) -> str:
        readers: dict[int, Callable[[_Message], str]] = {
            1: self._literal,
            2: self._field,
            3: self._function,
            8: self._one_of,
            11: self._cast,
        }
        for number, read in readers.items():
            if number in message:
                return read(message.message(number))
        raise self._refused("it holds what is no comparison, function or value")

    def _place(self, message: _Message) -> pa.Field[pa.DataType]:
        segment = message.message(1).message(2)
        if _CHILD in segment:
            raise self._refused("it is about a part of a column")
        return self._schema.field(segment.number(1))

    def _field(self, message: _Message) -> str:
        name = self._place(message).name.replace('"', '""')
        return f'"{name}"'

    def _function(self, message: _Message) -> str:
        name = self._functions[message.number(1)]
        given = [argument.message(3) for argument in message.messages(4)]
        sides = [self._expression(argument) for argument in given]
        if name == "not":
            return f"(NOT {sides[0]})"
        if name in _AFTER:
            return f"({sides[0]} {_AFTER[name]})"
        if name in _BETWEEN:
            return f"({f' {_BETWEEN[name]} '.join(sides)})"
        if name in _CALLED:
            if b"CASE_INSENSITIVE" in message.data(5):
                raise self._refused("it does not tell upper from lower case")
            return f"{_CALLED[name]}({', '.join(sides)})"
        if name in _COMPARED:
            return self._compared(name, given, sides)
        raise self._refused(f"it has the function {name!r}")

    def _compared(self, name: str, given: list[_Message], sides: list[str]) -> str:
        compared = f"{sides[0]} {_COMPARED[name]} {sides[1]}"
        # A NaN is unlike anything, and SQL has it above all numbers.
        for argument, side in zip(given, sides, strict=True):
            if _SELECTION in argument and pa.types.is_floating(self._place(argument.message(_SELECTION)).type):
                compared += f" OR isnan({side})" if name == "not_equal" else f" AND NOT isnan({side})"
        return f"({compared})"

    def _one_of(self, message: _Message) -> str:
        value = self._expression(message.message(1))
        options = [self._expression(option) for option in message.messages(2)]
        found = [option for option in options if option != "NULL"]
        # A null is one of others where one of them is null, and else it is not.
        sql = f"({value} IS NOT NULL AND {value} IN ({', '.join(found)}))" if found else "FALSE"
        return f"({value} IS NULL OR {sql})" if len(found) < len(options) else sql

    def _cast(self, message: _Message) -> str:
        inner = message.message(2)
        if 1 in inner:  # of a value to the column's type: SQL does that by itself
            return self._literal(inner.message(1))
        raise self._refused("it has a cast")

    def _literal(self, message: _Message) -> str:
        readers: dict[int, Callable[[int], str]] = {
            1: lambda n: "TRUE" if message.number(n) else "FALSE",
            **dict.fromkeys((2, 3, 5, 7), lambda n: _integer(message.number(n))),
            10: lambda n: _float(struct.unpack("<f", message.data(n))[0]),
            11: lambda n: _float(struct.unpack("<d", message.data(n))[0]),
            12: lambda n: _text(message.data(n)),
            13: lambda n: f"X'{message.data(n).hex()}'",
            14: lambda n: f"TIMESTAMP '{self._moment(_signed(message.number(n)))}'",
            16: lambda n: f"DATE '{self._moment(_signed(message.number(n)) * 86_400_000_000):%Y-%m-%d}'",
            17: lambda n: f"'{self._moment(message.number(n)):%H:%M:%S.%f}'",
            24: lambda n: _decimal(message.message(n)),
            27: lambda n: f"TIMESTAMP WITH TIME ZONE '{self._moment(_signed(message.number(n)))}+00'",
            29: lambda _: "NULL",
            33: lambda n: self._own_type(message.message(n)),
        }
        for number, read in readers.items():
            if number in message:
                return read(number)
        raise self._refused("it has a value of a type that SQL does not have")

    def _own_type(self, message: _Message) -> str:
        """A value of a type that pyarrow adds: unsigned integers and large strings."""
        wrapped = message.message(2).message(2)
        value = wrapped.values.get(1, [0])[-1]
        return str(value) if isinstance(value, int) else self._literal(_Message(value))

    def _moment(self, micros: int) -> dt.datetime:
        try:
            return _EPOCH + dt.timedelta(microseconds=micros)
        except OverflowError:
            raise self._refused("it has a time that is out of bounds") from None


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _integer(number: int) -> str:
    value = _signed(number)
    return f"({value})" if value > -(1 << 63) else f"CAST('{value}' AS BIGINT)"


def _float(value: float) -> str:
    return f"CAST('{value!r}' AS DOUBLE)"


def _text(data: bytes) -> str:
    text = data.decode().replace("'", "''")
    return f"'{text}'"


def _decimal(message: _Message) -> str:
    unscaled = int.from_bytes(message.data(1), "little", signed=True)
    with decimal.localcontext() as context:
        context.prec = 80
        value = decimal.Decimal(unscaled).scaleb(-message.number(3))
    return f"CAST('{value:f}' AS DECIMAL({message.number(2)}, {message.number(3)}))"

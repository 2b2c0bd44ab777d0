"""Filters of polars as SQL of pds.

An expression of polars is taken apart with `Expr.meta.pop`, put together again by the operator that it may be, and
compared with the original. So this module depends on no format in which polars writes expressions, and whatever it does
not know is not translated.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Taking an expression apart costs time in proportion to its size, at each of its nodes.
_MAX_NODES: Final = 200
_MAX_LIST: Final = 10_000
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 a number of days or of seconds, without a time zone
_UNITS: Final = {"ms": 10**3, "us": 10**6, "ns": 10**9}

_Binary = tuple[str, "Callable[[pl.Expr, pl.Expr], pl.Expr]"]
_CONNECTIVES: Final[tuple[_Binary, ...]] = (("AND", lambda a, b: a & b), ("OR", lambda a, b: a | b))
_COMPARISONS: Final[tuple[_Binary, ...]] = (
    ("=", lambda a, b: a == b),
    ("<>", lambda a, b: a != b),
    ("<", lambda a, b: a < b),
    ("<=", lambda a, b: a <= b),
    (">", lambda a, b: a > b),
    (">=", lambda a, b: a >= b),
)
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RANGES: Final = {"both": (">=", "<="), "left": (">=", "<"), "right": (">", "<="), "none": (">", "<")}


def to_sql(predicate: pl.Expr, schema: Mapping[str, pl.DataType]) -> str | None:
    """Translate the parts of a conjunction that mean the same in SQL.

    Returns:
        A filter that holds for all rows for which the predicate holds, and maybe for more; None if no part of the
        predicate could be translated.
    """
    translator = _Translator(schema)
    parts: list[str] = []
    pending = [predicate]
    while pending:
        expression = pending.pop()
        operands = expression.meta.pop()
        conjuncts = _match(expression, operands, _CONNECTIVES[:1])
        if conjuncts is not None and translator.spend():
            pending += conjuncts[1:]
        elif (part := translator.translate(expression, operands)) is not None:
            parts.append(part)
    return " AND ".join(reversed(parts)) or None


def _match(
    expression: pl.Expr, operands: list[pl.Expr], operators: tuple[_Binary, ...]
) -> tuple[str, pl.Expr, pl.Expr] | None:
    """Return which operator an expression is, and its operands in their order."""
    if len(operands) != 2:  # noqa: PLR2004 binary
        return None
    for left, right in (operands[::-1], operands):
        for name, combine in operators:
            if expression.meta.eq(combine(left, right)):
                return name, left, right
    return None


class _Translator:
    """Translates expressions until a number of nodes is reached."""

    def __init__(self, schema: Mapping[str, pl.DataType]) -> None:
        self._schema = schema
        self._nodes = 0

    def spend(self) -> bool:
        """Count a node, and return whether the number of nodes allows it."""
        self._nodes += 1
        return self._nodes <= _MAX_NODES

    def translate(self, expression: pl.Expr, operands: list[pl.Expr] | None = None) -> str | None:
        """Return an expression as SQL with the same result, true, false or null, for all rows; else None."""
        if not self.spend():
            return None
        if expression.meta.is_column():
            return self._boolean_column(expression)
        operands = expression.meta.pop() if operands is None else operands
        if len(operands) == 1:
            return self._unary(expression, operands[0])
        if (match := _match(expression, operands, _CONNECTIVES)) is not None:
            left, right = self.translate(match[1]), self.translate(match[2])
            return None if left is None or right is None else f"({left} {match[0]} {right})"
        return self._comparison(expression, operands)

    def _boolean_column(self, expression: pl.Expr) -> str | None:
        name = expression.meta.output_name()
        return _quote(name) if self._schema.get(name) == pl.Boolean else None

    def _unary(self, expression: pl.Expr, operand: pl.Expr) -> str | None:
        if expression.meta.eq(~operand):
            inner = self.translate(operand)
            return None if inner is None else f"(NOT {inner})"
        name = self._column(operand)
        if name is None:
            return None
        if expression.meta.eq(operand.is_null()):
            return f"({_quote(name)} IS NULL)"
        if expression.meta.eq(operand.is_not_null()):
            return f"({_quote(name)} IS NOT NULL)"
        return None

    def _comparison(self, expression: pl.Expr, operands: list[pl.Expr]) -> str | None:
        columns = [operand for operand in operands if self._column(operand) is not None]
        if len(columns) != 1:
            return None
        column = columns[0]
        name = str(self._column(column))
        others = [operand for operand in operands if operand is not column][::-1]
        if (match := _match(expression, operands, _COMPARISONS)) is not None:
            operator = match[0] if match[1] is column else _MIRRORED[match[0]]
            return self._compare(name, operator, others[0])
        if len(others) == 1:
            return self._contained(expression, column, name, others[0])
        if len(others) == 2:  # noqa: PLR2004 the ends of a range
            return self._range(expression, column, name, others)
        return None

    def _compare(self, name: str, operator: str, value: pl.Expr) -> str | None:
        data_type = self._schema[name]
        # The order of a categorical is not that of its texts.
        if isinstance(data_type, pl.Categorical | pl.Enum) and operator not in ("=", "<>"):
            return None
        literal = _literal(value, data_type)
        return None if literal is None else f"({_quote(name)} {operator} {literal})"

    def _range(self, expression: pl.Expr, column: pl.Expr, name: str, ends: list[pl.Expr]) -> str | None:
        for low, high in (ends, ends[::-1]):
            for closed, operators in _RANGES.items():
                if expression.meta.eq(column.is_between(low, high, closed=closed)):  # type: ignore[arg-type]
                    parts = [self._compare(name, *part) for part in zip(operators, (low, high), strict=True)]
                    return None if None in parts else f"({parts[0]} AND {parts[1]})"
        return None

    def _contained(self, expression: pl.Expr, column: pl.Expr, name: str, other: pl.Expr) -> str | None:
        data_type = self._schema[name]
        if data_type == pl.String and expression.meta.eq(column.str.starts_with(other)):
            prefix = _literal(other, data_type)
            return None if prefix is None else f"starts_with({_quote(name)}, {prefix})"
        value = _evaluate(other) if expression.meta.eq(column.is_in(other)) else None
        if value is None or not isinstance(value.dtype, pl.List | pl.Array) or value.len() != 1 or value.null_count():
            return None
        elements = value.explode().unique()
        # In SQL, nothing but its elements is in a list with a null; polars ignores the null.
        if not 0 < elements.len() <= _MAX_LIST or elements.null_count():
            return None
        literals = [_format(element, data_type, elements.dtype) for element in _values(elements)]
        return None if None in literals else f"({_quote(name)} IN ({', '.join(map(str, literals))}))"

    def _column(self, expression: pl.Expr) -> str | None:
        if not expression.meta.is_column():
            return None
        name = expression.meta.output_name()
        return name if name in self._schema else None


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _evaluate(expression: pl.Expr) -> pl.Series | None:
    """Return the value of a literal as a series of one element."""
    literal = expression.meta.undo_aliases()
    return pl.select(literal).to_series() if literal.meta.is_literal() else None


def _literal(expression: pl.Expr, column_type: pl.DataType) -> str | None:
    value = _evaluate(expression)
    if value is None or value.len() != 1 or value.null_count():
        return None
    return _format(_values(value)[0], column_type, value.dtype)


def _values(series: pl.Series) -> list[Any]:
    """Return the values of a series; of dates and times their numbers, which are exact."""
    if isinstance(series.dtype, pl.Date | pl.Datetime):
        series = series.to_physical()
    return series.to_list()


def _format(value: Any, column_type: pl.DataType, value_type: pl.DataType) -> str | None:  # noqa: ANN401 of any type
    """Return a value as a literal of SQL, if comparisons of the column with it mean the same."""
    if column_type.is_integer():
        return str(value) if value_type.is_integer() else None
    if isinstance(column_type, pl.Decimal):
        return _format_decimal(value, column_type)
    if isinstance(column_type, pl.Categorical | pl.Enum):
        return _format_text(value) if isinstance(value, str) else None
    return _format_same_type(value, column_type) if column_type == value_type else None


def _format_same_type(value: Any, data_type: pl.DataType) -> str | None:  # noqa: ANN401, PLR0911 as above
    if isinstance(data_type, pl.Float32 | pl.Float64):
        return repr(float(value)) if math.isfinite(value) else None
    if isinstance(data_type, pl.String):
        return _format_text(value)
    if isinstance(data_type, pl.Binary):
        return f"X'{value.hex()}'"
    if isinstance(data_type, pl.Boolean):
        return str(value).lower()
    if isinstance(data_type, pl.Date):
        return _format_time(value, 86_400, None)
    if isinstance(data_type, pl.Datetime):
        return _format_time(value, 1, _UNITS[data_type.time_unit])
    return None


def _format_text(value: str) -> str | None:
    return None if "\0" in value else "'" + value.replace("'", "''") + "'"


def _format_decimal(value: object, column_type: pl.Decimal) -> str | None:
    """Return a decimal, if the column could hold it: one that it cannot hold may overflow in a comparison."""
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    # Arithmetic, also `abs`, would round to the digits of the caller's context.
    text = format(value.copy_abs(), "f")
    whole, _, fraction = text.partition(".")
    whole, fraction = whole.lstrip("0"), fraction.rstrip("0")
    if len(fraction) > column_type.scale or len(whole) > (column_type.precision or 38) - column_type.scale:
        return None
    number = f"{whole or '0'}.{fraction}" if fraction else whole or "0"
    return f"-{number}" if value.is_signed() else number


def _format_time(number: int, seconds: int, unit: int | None) -> str | None:
    """Return a number of days, or of units of a second, since 1970 in UTC."""
    whole, rest = divmod(number, unit or 1)
    try:
        moment = _EPOCH + dt.timedelta(seconds=whole * seconds)
    except OverflowError:
        # Python has the years from 1 to 9999.
        return None
    if unit is None:
        return f"DATE '{moment.date().isoformat()}'"
    fraction = f".{rest:0{len(str(unit)) - 1}}" if rest else ""
    return f"TIMESTAMP '{moment.isoformat(sep=' ', timespec='seconds')}{fraction}'"

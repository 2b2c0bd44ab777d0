"""Filters as pyarrow expressions, with pyarrow as the judge."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds

UTC = dt.UTC
f = pc.field
NAN = float("nan")
PRICES = ("0.00", "1.50", "-2.25", "999.99", None, "3", "4")


def _price(text: str | None) -> decimal.Decimal | None:
    return None if text is None else decimal.Decimal(text)


DATA = pa.table(
    {
        "id": pa.array([0, 1, 2, -3, 2**62, -(2**63), None], pa.int64()),
        "i8": pa.array([0, 1, -2, 127, -128, None, 5], pa.int8()),
        "u16": pa.array([0, 1, 2, 65535, None, 3, 4], pa.uint16()),
        "u64": pa.array([0, 1, 2, 2**64 - 1, None, 3, 4], pa.uint64()),
        "x": pa.array([0.5, -1.5, NAN, float("inf"), -float("inf"), None, 1e300], pa.float64()),
        "f32": pa.array([0.5, -1.5, NAN, 1.5, 0.1, None, 3], pa.float32()),
        "name": pa.array(["a", "it's", "", "ä\\%_", None, 'q"', "abc"], pa.string()),
        "large": pa.array(["a", "b", None, "c", "a", "b", "c"], pa.large_string()),
        "raw": pa.array([b"a", b"\x00\xff", b"", None, b"a", b"b", b"c"], pa.binary()),
        "day": pa.array([0, 1, -1, 20000, None, 3, 4], pa.int32()).cast(pa.date32()),
        "at": pa.array([0, 1, -1, 1767225600000000, None, 3, 4], pa.timestamp("us", "UTC")),
        "local": pa.array([0, 1, -1, 1767225600000000, None, 3, 4], pa.timestamp("us")),
        "price": pa.array([_price(v) for v in PRICES], pa.decimal128(8, 2)),
        "time": pa.array([0, 1, 3720000000, None, 5, 6, 7], pa.time64("us")),
        "flag": pa.array([True, False, None, True, False, None, True]),
        'Unit "Price"': pa.array(range(7), pa.int32()),
        "span": pa.array(range(7), pa.duration("s")),
        "half": pa.array(range(7), pa.float16()),
        "tags": pa.array([["a"]] * 7, pa.list_(pa.string())),
    }
)  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "id": [1, -3, 2**62, -(2**63), 2**63 - 1],
    "i8": [1, -2, 300],
    "u16": [2, 65535],
    "x": [0.5, -1.5, float("inf"), 1e-300],
    "f32": [1.5, 0.1],
    "name": ["a", "it's", "", "ä\\%_", 'q"'],
    "large": ["b"],
    "raw": [b"\x00\xff", b""],
    "day": [dt.date(1970, 1, 2), dt.date(1969, 12, 31)],
    "at": [dt.datetime(2026, 1, 1, tzinfo=UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    "local": [dt.datetime(2026, 1, 1), dt.datetime(1970, 1, 1, 0, 0, 0, 1)],  # noqa: DTZ001 it has none
    "price": [decimal.Decimal("1.50"), decimal.Decimal("-2.25")],
    "time": [dt.time(1, 2)],
    "flag": [True, False],
    'Unit "Price"': [3],
}
OTHERS = [
    (f("id") > 0) & (f("x") < 1),
    (f("id") > 0) | f("flag"),
    ~(f("id") > 0),
    f("u64") == pa.scalar(2**64 - 1, pa.uint64()),
    f("u64") < pa.scalar(2**64 - 1, pa.uint64()),
    ~f("flag"),
    f("flag"),
    f("id").is_null(),
    f("id").is_valid(),
    ~f("name").is_null(),
    f("id").isin([1, 2, -3]),
    ~f("id").isin([1, 2, -3]),
    f("name").isin(["a", "it's"]),
    f("name").isin(["a", None]),
    ~f("name").isin(["a", None]),
    f("day").isin([dt.date(1970, 1, 2)]),
    f('Unit "Price"') + 1 > 3,
    f("u16") * 2 == 4,
    f("i8") - f("u16") < 0,
    f("x") > f("f32"),
    f("x") == f("x"),
    f("x") != f("x"),
    f("x").is_nan(),
    pc.starts_with(f("name"), "a"),
    pc.ends_with(f("name"), "c"),
    pc.match_substring(f("name"), "t'"),
    pc.scalar(True),
    pc.scalar(False),
    f("id") == pa.scalar(None, pa.int64()),
    ((f("id") == 1) | (f("name") == "")) & ~((f("x") > 0) & f("flag")),
]


@pytest.fixture
def table(memory_store: pds.Store) -> pds.Table:
    table = pds.Table.create(memory_store, "t", DATA.schema)
    table.append(DATA)
    return table


def _ids(rows: pa.Table) -> list[Any]:
    return rows['Unit "Price"'].to_pylist()  # type: ignore[no-any-return]


def _same(table: pds.Table, expression: pc.Expression) -> None:
    assert _ids(table.scan(where=expression).to_pyarrow()) == _ids(DATA.filter(expression)), str(expression)


@pytest.mark.parametrize("column", VALUES)
def test_comparisons(table: pds.Table, column: str) -> None:
    operators = [pc.Expression.__eq__, pc.Expression.__ne__, pc.Expression.__lt__]
    operators += [pc.Expression.__le__, pc.Expression.__gt__, pc.Expression.__ge__]
    for operator, value in itertools.product(operators, VALUES[column]):
        _same(table, operator(f(column), value))
        _same(table, ~operator(f(column), value))
        _same(table, operator(pc.scalar(value), f(column)))


@pytest.mark.parametrize("expression", OTHERS, ids=str)
def test_expressions(table: pds.Table, expression: pc.Expression) -> None:
    _same(table, expression)


def test_rows_are_deleted_and_overwritten_by_expressions(table: pds.Table) -> None:
    table.delete(f("id") > 0)
    left = DATA.filter(~(f("id") > 0) | f("id").is_null())
    assert _ids(table.scan().to_pyarrow()) == _ids(left)
    assert "id" in table.history(1)[0]["operation"]["filter"]
    table.overwrite(DATA.slice(3, 1), f("id") < 0)
    assert _ids(table.scan().to_pyarrow()) == [0, 6, 3]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (f("nothing") == 1, "nothing"),
        (f("span") == dt.timedelta(1), "span"),
        (pc.match_like(f("name"), "a%"), "SQL"),
        (pc.utf8_upper(f("name")) == "A", "SQL"),
        (f("x").cast(pa.int64(), safe=False) > 1, "cast"),
        (pc.if_else(f("flag"), f("id"), 3) > 1, "SQL"),
        (pc.starts_with(f("name"), "A", ignore_case=True), "case"),
        (f("id") + 1, "true or false"),
        (f("name") == 1, "filter"),
    ],
)
def test_expressions_that_cannot_be_used(table: pds.Table, expression: pc.Expression, says: str) -> None:
    with pytest.raises(pds.InvalidInput, match=says):
        table.scan(where=expression)
    with pytest.raises(pds.InvalidInput, match=says):
        table.delete(expression)
    assert table.refresh().version == 2

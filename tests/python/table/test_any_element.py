"""Comparisons with the elements of lists, `ANY` and `ALL`, also where one is NULL: DuckDB is the judge."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import operator
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import pds
from filter_results import find

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIGNS = ["=", "<>", "<", "<=", ">", ">="]
FORMS = ["{}", "NOT ({})", "({}) IS NULL", "({}) IS NOT TRUE", "CASE WHEN {} THEN false ELSE true END"]
LISTS: list[list[int | None] | None] = [[1, None], [None, None], [1, 1], [1, 3], [2, 2], [3, None], [], None]
VALUES = [1, 2, 3, None]
FLOATS = [[-0.0], [0.0, None], [math.nan], [math.copysign(math.nan, -1), 1.0], [math.inf, -1.5], [None], [], None]


def make_table(rows: pa.Table) -> pds.Table:
    """A table with its rows in two files."""
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema)
    half = rows.num_rows // 2
    table.append(rows.slice(0, half))
    table.append(rows.slice(half))
    return table


def judge(rows: pa.Table, form: str, comparison: str) -> list[int]:
    """The ids of the rows. In DuckDB a list that is NULL has no elements; in PostgreSQL it has unknown ones."""
    connection = duckdb.connect()
    connection.register("data", rows)
    where = form.format(f"CASE WHEN l IS NOT NULL THEN {comparison} END")
    ids = connection.execute(f"SELECT id FROM data WHERE {where} ORDER BY id").fetchall()  # noqa: S608 our own
    return [number for (number,) in ids]


def pair(lists: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
    pairs = list(itertools.product(lists, values))
    return [left for left, _ in pairs], [right for _, right in pairs]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int32())], ids=str)
@pytest.mark.parametrize("quantifier", ["ANY", "ALL"])
def test_integers(kind: pa.DataType, quantifier: str) -> None:
    lists, values = pair(LISTS, VALUES)
    rows = pa.table({"id": range(len(lists)), "l": pa.array(lists, kind), "n": pa.array(values, pa.int64())})
    table = make_table(rows)
    selected = set()
    for sign, form, value in itertools.product(SIGNS, FORMS, ["n", "2"]):
        comparison = f"{value} {sign} {quantifier}(l)"
        expected = judge(rows, form, comparison)
        selected |= set(expected)
        assert find(table, form.format(comparison)) == expected, (form, comparison)
    assert selected == set(range(len(lists)))


@pytest.mark.parametrize("quantifier", ["ANY", "ALL"])
def test_texts(quantifier: str) -> None:
    lists, values = pair([["a", None], ["a", "c"], ["", "b"], [None], [], None], ["a", "b", "", None])
    rows = pa.table({"id": range(len(lists)), "l": pa.array(lists, pa.list_(pa.string())), "s": values})
    table = make_table(rows)
    for sign, form, value in itertools.product(SIGNS, FORMS, ["s", "'b'"]):
        comparison = f"{value} {sign} {quantifier}(l)"
        assert find(table, form.format(comparison)) == judge(rows, form, comparison), (form, comparison)


@pytest.mark.parametrize("quantifier", ["ANY", "ALL"])
def test_floats_have_one_zero_and_one_nan(quantifier: str) -> None:
    lists, values = pair(FLOATS, [0.0, -0.0, math.nan, math.copysign(math.nan, -1), 1.0, None])
    rows = pa.table({"id": range(len(lists)), "l": pa.array(lists, pa.list_(pa.float64())), "f": values})
    table = make_table(rows)
    for sign, form, value in itertools.product(SIGNS, FORMS, ["f", "CAST('NaN' AS DOUBLE)", "CAST(0 AS DOUBLE)"]):
        comparison = f"{value} {sign} {quantifier}(l)"
        assert find(table, form.format(comparison)) == judge(rows, form, comparison), (form, comparison)


def test_lists_of_one_length() -> None:
    lists, values = pair([[1, None], [1, 3], [None, None], None], VALUES)
    rows = pa.table({"id": range(len(lists)), "l": pa.array(lists, pa.list_(pa.int64(), 2)), "n": values})
    table = make_table(rows)
    plain = rows.set_column(1, "l", rows["l"].cast(pa.list_(pa.int64())))
    for form in FORMS:
        assert find(table, form.format("n = ANY(l)")) == judge(plain, form, "n = ANY(l)"), form


def test_decimals_keep_their_digits() -> None:
    large = 2**53
    columns: dict[str, Any] = {
        "id": range(3),
        "d": pa.array([[Decimal("0.1")], [Decimal("0.100000000000000006")], None], pa.list_(pa.decimal128(38, 18))),
        "n": pa.array([[large, 5], [large + 1], [None]], pa.list_(pa.int64())),
        "m": pa.array([[large, 5], [large + 1, 0], [None, None]], pa.list_(pa.int64(), 2)),
        "v": pa.array([Decimal("0.10"), Decimal("0.10"), None], pa.decimal128(5, 2)),
    }
    table = make_table(pa.table(columns))
    assert find(table, "0.1 = ANY(d)") == [0]
    assert find(table, "v = ANY(d)") == [0]
    assert find(table, "0.1 <> ALL(d)") == [1]
    for ints in ("n", "m"):
        assert find(table, f"{large}.0 = ANY({ints})") == [0]
        assert find(table, f"{large + 1}.0 = ANY({ints})") == [1]
        assert find(table, f"5.5 = ANY({ints})") == []
        # More digits after the point than a decimal of 128 bits has beside those of integers.
        for tiny in ("1e-30", "0.0000000000000000001"):
            assert find(table, f"{tiny} = ANY({ints})") == []
            assert find(table, f"{tiny} <> ALL({ints})") == [0, 1]


NUMBERS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "f": (pa.float64(), [[0.0, None], [-0.0], [0.1, 5.5], [2.0**53], [], None, [None], [16777217.0, 0.5]]),
    "g": (pa.float32(), [[0.0, None], [-0.0], [5.5], [16777216.0], [], None, [None], [0.5, 5.0]]),
    "n": (pa.int64(), [[0, None], [5], [2**53 + 1], [2**53], [], None, [None], [16777217, 1]]),
    "u": (pa.uint64(), [[0, None], [5], [2**64 - 1], [2**53], [], None, [None], [16777217, 1]]),
    "c": (pa.int8(), [[0, None], [5], [-1], [100], [], None, [None], [1, 2]]),
    "d": (pa.decimal128(38, 18), [[0, None], [5], ["0.1"], ["5.5", "0.5"], [], None, [None], ["1e-18"]]),
    "d21": (pa.decimal128(2, 1), [[0, None], [5], ["0.1"], ["5.5", "0.5"], [], None, [None], ["-1"]]),
    "d52": (pa.decimal128(5, 2), [[0, None], [5], ["0.1"], ["5.5", "0.5"], [], None, [None], ["-1"]]),
    "d32": (pa.decimal32(5, 2), [[0, None], [5], ["0.10"], ["5.50", "0.5"], [], None, [None], ["-1"]]),
    "big": (pa.decimal256(60, 20), [[0, None], [5], [2**53 + 1], ["5.5", "0.1"], [], None, [None], ["1e-20"]]),
}
SEARCHED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [0, 5, 2**53 + 1, -1, 1, None, 0, 16777217]),
    "j": (pa.uint64(), [0, 5, 2**64 - 1, 2**53, 1, 0, None, 1]),
    "x": (pa.float64(), [0.0, -0.0, 0.1, 5.5, 2.0**53, None, 1.0, 0.5]),
    "y": (pa.float32(), [0.0, 5.0, 5.5, 16777216.0, 1.0, None, 1.0, 0.5]),
    "v": (pa.decimal128(5, 2), ["0.00", "5.00", "0.10", "5.50", "0.50", None, "1.00", "-1.00"]),
}
NUMBER_LITERALS = ["0.0", "5", "5.5", "0.1", "1e-20", "9007199254740993", "9007199254740993.0", "16777217"]


def equals_number(value: Any, element: Any) -> bool:
    """As numbers are compared: as floats of 64 bits if one is a float, else by all digits."""
    if isinstance(value, float) or isinstance(element, float):
        return float(value) == float(element)
    return Fraction(value) == Fraction(element)


def any_equals(value: Any, elements: list[Any] | None, equals: Callable[[Any, Any], bool]) -> bool | None:
    if elements is None:
        return None
    results = [None if value is None or element is None else equals(value, element) for element in elements]
    if True in results:
        return True
    return None if None in results else False


def check_any_equals(
    table: pds.Table,
    compared: list[tuple[str, list[Any]]],
    lists: list[Any],
    equals: Callable[[Any, Any], bool],
) -> None:
    """Compares expressions, each with its values in the rows, with the elements of the column `l`."""
    for value, cells in compared:
        known = [any_equals(cell, elements, equals) for cell, elements in zip(cells, lists, strict=True)]
        for form in ("{} = ANY(l)", "NOT ({} <> ALL(l))", "NOT (NOT ({} = ANY(l)))"):
            expected = [row for row, holds in enumerate(known) if holds]
            assert find(table, form.format(value)) == expected, (form, value)
        for form in ("NOT ({} = ANY(l))", "NOT {} = ANY(l)", "{} <> ALL(l)", "id >= 0 AND NOT (id < 0 OR {} = ANY(l))"):
            expected = [row for row, holds in enumerate(known) if holds is False]
            assert find(table, form.format(value)) == expected, (form, value)
        expected = [row for row, holds in enumerate(known) if holds is None]
        assert find(table, f"({value} = ANY(l)) IS NULL") == expected, value


def to_cells(kind: pa.DataType, cells: list[Any]) -> list[Any]:
    is_decimal = pa.types.is_decimal(kind)
    return [None if cell is None else Decimal(cell) if is_decimal else cell for cell in cells]


@pytest.mark.parametrize("element", NUMBERS)
def test_numbers_of_other_types_are_searched_for(element: str) -> None:
    kind, lists = NUMBERS[element]
    lists = [None if cells is None else to_cells(kind, cells) for cells in lists]
    rows: dict[str, Any] = {"id": range(len(lists)), "l": pa.array(lists, pa.list_(kind))}
    compared: list[tuple[str, list[Any]]] = []
    for name, (value_kind, cells) in SEARCHED.items():
        rows[name] = pa.array(to_cells(value_kind, cells), value_kind)
        compared.append((name, to_cells(value_kind, cells)))
    compared += [(text, [Decimal(text)] * len(lists)) for text in NUMBER_LITERALS]
    compared.append(("NULL", [None] * len(lists)))
    check_any_equals(make_table(pa.table(rows)), compared, lists, equals_number)


def test_a_quotient_is_searched_for_with_more_digits_than_a_decimal() -> None:
    """1 / 3 is not 0.333333, whatever the elements are."""
    plain, pairs = pa.decimal128(10, 2), [("1", "3"), ("1", "4"), ("100000.01", "100000"), ("3", "1")]
    a, b = (pa.array([Decimal(pair[side]) for pair in pairs], plain) for side in (0, 1))
    cells = [[Decimal("0.333333")], [Decimal("0.25"), None], [Decimal(1)], [Decimal(3)]]
    for kind in (pa.decimal128(10, 6), pa.decimal64(12, 6), pa.decimal256(40, 6)):
        table = make_table(pa.table({"id": range(4), "a": a, "b": b, "l": pa.array(cells, pa.list_(kind))}))
        assert find(table, "a / b = ANY(l)") == [1, 3]
        assert find(table, "a / b <> ALL(l)") == [0, 2]
    whole = pa.array([[1], [3]], pa.list_(pa.int64()))
    table = make_table(pa.table({"id": range(2), "a": a[2:], "b": b[2:], "l": whole}))
    assert find(table, "NOT (a / b = ANY(l))") == [0]


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FAR = dt.datetime(2400, 1, 1, tzinfo=dt.UTC)


def to_moments(moments: Sequence[dt.datetime | None], kind: pa.DataType) -> list[Any]:
    """Moments as values of a type of dates or timestamps."""

    def to_kind(moment: dt.datetime) -> dt.date:
        if pa.types.is_date(kind):
            return moment.date()
        return moment if kind.tz else moment.replace(tzinfo=None)

    return [None if moment is None else to_kind(moment) for moment in moments]


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.timestamp("ms", "America/New_York"),
        pa.date32(),
    ],
    ids=str,
)
def test_points_in_time_of_other_types_are_searched_for(kind: pa.DataType) -> None:
    """Without a zone they are in UTC, and none of them is too far."""
    lists: list[list[dt.datetime | None] | None] = [[MIDNIGHT, None], [FAR], [MIDNIGHT, FAR], [], None, [None]]
    moments = [NOON, FAR, MIDNIGHT, NOON, None, MIDNIGHT]
    stored = [None if cells is None else to_moments(cells, kind) for cells in lists]
    rows: dict[str, Any] = {"id": range(len(lists)), "l": pa.array(stored, pa.list_(kind))}
    for name, own in {"m": pa.timestamp("ms"), "b": pa.timestamp("us", "Europe/Berlin")}.items():
        rows[name] = pa.array(to_moments(moments, own), own)
    compared: list[tuple[str, list[Any]]] = [("m", moments), ("b", moments)]
    for text, moment in [
        ("TIMESTAMP '2026-01-01 00:00:00'", MIDNIGHT),
        ("TIMESTAMP '2026-01-01 12:00:00'", NOON),
        ("TIMESTAMP '2026-01-01 00:00:00.5'", MIDNIGHT + dt.timedelta(milliseconds=500)),
        ("TIMESTAMP '2400-01-01 00:00:00'", FAR),
        ("DATE '2026-01-01'", MIDNIGHT),
    ]:
        compared.append((text, [moment] * len(lists)))
    check_any_equals(make_table(pa.table(rows)), compared, lists, operator.eq)


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str)
def test_times_of_other_units_are_searched_for(kind: pa.DataType) -> None:
    noon, night = dt.time(12), dt.time(23, 59, 59)
    lists: list[Any] = [[noon, None], [night], [noon, night], [], None, [None]]
    cells: list[Any] = [noon, night, None, noon, noon, night]
    times = pa.array(cells, pa.time32("ms"))
    table = make_table(pa.table({"id": range(len(lists)), "l": pa.array(lists, pa.list_(kind)), "t": times}))
    compared: list[tuple[str, list[Any]]] = [("t", cells), ("TIME '12:00:00'", [noon] * len(lists))]
    compared.append(("TIME '12:00:00.000001'", [dt.time(12, 0, 0, 1)] * len(lists)))
    check_any_equals(table, compared, lists, operator.eq)


def test_not_of_other_values_is_refused() -> None:
    table = make_table(pa.table({"id": range(2), "l": [[1], None]}))
    for where in ("NOT id", "NOT (1 = ANY(l) AND NOT id)", "NOT (1 = ANY(l)) AND NOT (id + 1)"):
        with pytest.raises(pds.InvalidInput):
            table.scan(where=where).to_pyarrow()


def test_a_deletion_leaves_what_is_unknown() -> None:
    rows = pa.table({"id": range(4), "l": [[1, None], [1, 2], [1], None]})
    table = make_table(rows)
    table.delete("NOT (2 = ANY(l))")
    assert find(table, "id >= 0") == [0, 1, 3]
    table.delete("2 = ANY(l)")
    assert find(table, "id >= 0") == [0, 3]


def test_a_list_that_is_constant() -> None:
    table = make_table(pa.table({"id": range(4), "s": ["a", "b", "c", None]}))
    listed = "s = ANY(string_to_array('a,b', ','))"
    assert find(table, listed) == [0, 1]
    assert find(table, f"NOT ({listed})") == [2]
    with_null = "s = ANY(string_to_array('a,b', ',', 'b'))"
    assert find(table, with_null) == [0]
    assert find(table, f"NOT ({with_null})") == []
    assert find(table, f"({with_null}) IS NULL") == [1, 2, 3]
    empty = "s = ANY(string_to_array('', ','))"
    assert find(table, empty) == []
    assert find(table, f"NOT ({empty})") == [0, 1, 2, 3]

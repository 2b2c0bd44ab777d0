"""Comparisons with the elements of lists, `ANY` and `ALL`, also where one is NULL: DuckDB is the judge."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import pds
from filter_results import find

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

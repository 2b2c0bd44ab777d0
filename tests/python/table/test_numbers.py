"""Numbers are compared and added up exactly, whatever their types: judged by fractions of Python."""

from __future__ import annotations

import math
import operator
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(2)

LARGE = Decimal("12345678901234567890.12")
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": lambda a, b: math.copysign(1, a) * (abs(a) % abs(b)) if isinstance(a, float) else _remainder(a, b),
}
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int64(), [2**53 + 1, -(2**53) - 1, 0, 1, -7, None]),
    "u": (pa.uint64(), [2**64 - 1, 2**53 + 1, 0, 1, 7, None]),
    "small": (pa.int8(), [127, -128, 0, 1, -7, None]),
    "d": (pa.decimal128(38, 2), [LARGE, -LARGE, Decimal("0.20"), Decimal("0.30"), Decimal("1.00"), None]),
    "p": (
        pa.decimal128(7, 2),
        [Decimal("99999.99"), Decimal("-0.01"), Decimal("0.20"), Decimal(1), Decimal(7), None],
    ),
    "d32": (pa.decimal32(9, 4), [Decimal("99999.9999"), Decimal("-0.01"), Decimal("1.1"), Decimal(1), None, None]),
    "d64": (
        pa.decimal64(18, 4),
        [Decimal("9007199254740.9931"), Decimal("-0.01"), Decimal("1.1"), Decimal(1), None, None],
    ),
    "whole": (pa.decimal32(1, 0), [Decimal(9), Decimal(-9), Decimal(0), Decimal(1), Decimal(7), None]),
    "big": (pa.decimal256(50, 2), [LARGE, -LARGE, Decimal("0.20"), Decimal("0.30"), Decimal(1), None]),
}
LITERALS = ["0.1", "0.10", "1", "1.0", "-0.01", "2.5", "7", "0.30", "9007199254740993.0", "12345678901234567890.12"]
# Floats below every normal one, which no decimal has.
SUBNORMAL = ["5e-324", "-5e-324", "-1e-310"]


def _remainder(a: Fraction, b: Fraction) -> Fraction:
    """As SQL has it: with the sign of the first."""
    return a - b * math.trunc(a / b)


def _table(store: pds.Store, columns: dict[str, tuple[pa.DataType, list[Any]]], **options: Any) -> pds.Table:
    rows = {name: pa.array(values, kind) for name, (kind, values) in columns.items()}
    data = pa.table({"id": range(len(next(iter(rows.values())))), **rows})
    table = pds.Table.create(store, "t", data.schema, **options)
    table.append(data)
    return table


def _ids(table: pds.Table, predicate: str) -> list[int]:
    found = table.scan(["id"], where=predicate).to_pyarrow()["id"].to_pylist()
    assert table.scan(["id"], where=predicate, use_stats=False).to_pyarrow()["id"].to_pylist() == found, predicate
    return list(found)


def _meant(values: list[Any], holds: Callable[[Fraction], bool]) -> list[int]:
    return [row for row, value in enumerate(values) if value is not None and holds(Fraction(value))]


@pytest.mark.parametrize("name", COLUMNS)
def test_comparisons_with_literals(memory_store: pds.Store, name: str) -> None:
    table = _table(memory_store, COLUMNS)
    values = COLUMNS[name][1]
    for literal in LITERALS + SUBNORMAL:
        for sign, compare in COMPARE.items():
            found = _ids(table, f"{name} {sign} {literal}")
            assert found == _meant(values, lambda v, c=compare, at=Fraction(literal): c(v, at)), (sign, literal)
        assert _ids(table, f"{name} IN ({literal}, 77.5)") == _meant(values, lambda v, at=Fraction(literal): v == at)


@pytest.mark.parametrize("literal", SUBNORMAL)
def test_a_float_below_every_normal_one_is_no_integer(memory_store: pds.Store, literal: str) -> None:
    for number, (sign, compare) in enumerate(COMPARE.items()):
        table = pds.Table.create(memory_store, f"t{number}", pa.schema([("x", pa.int32())]), key="x")
        table.append(pa.table({"x": pa.array([-1, 0, 1], pa.int32())}))
        table.delete(f"x {sign} {literal}")
        kept = [x for x in (-1, 0, 1) if not compare(Fraction(x), Fraction(literal))]
        assert sorted(table.scan().to_pyarrow()["x"].to_pylist()) == kept, sign


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("sign", COMPUTE)
def test_sums_and_products_with_literals(memory_store: pds.Store, name: str, sign: str) -> None:
    values = [value for value in COLUMNS[name][1] if value is None or sign != "*" or abs(value) < 10**12]
    table = _table(memory_store, {name: (COLUMNS[name][0], values)})
    for literal in LITERALS:
        if (name in {"n", "u", "small"} and "." not in literal) or (sign == "*" and len(literal) > 12):
            continue
        by = Fraction(literal)
        for value in [value for value in values if value is not None]:
            result = COMPUTE[sign](Fraction(value), by)
            exact = _as_text(result)
            expected = _meant(values, lambda v, at=result, by=by: COMPUTE[sign](v, by) == at)
            assert _ids(table, f"{name} {sign} {literal} = {exact}") == expected, (value, literal)
            expected = _meant(values, lambda v, at=result, by=by: COMPUTE[sign](v, by) > at)
            assert _ids(table, f"{name} {sign} {literal} > {exact}") == expected, (value, literal)


def _as_text(number: Fraction) -> str:
    """A fraction of tens, with all its digits."""
    scale = 0
    while (number * 10**scale).denominator != 1:
        scale += 1
    digits = str(abs((number * 10**scale).numerator)).zfill(scale + 1)
    whole, cents = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' if number < 0 else ''}{whole}.{cents or '0'}"


def test_values_of_a_merge_keep_their_digits(memory_store: pds.Store) -> None:
    columns = {
        "d": (pa.decimal128(38, 2), [LARGE, Decimal("0.20")]),
        "n": (pa.int64(), [2**53 + 1, 3]),
        "f": (pa.float64(), [0.1, 0.2]),
    }
    values = {
        "target.d + 0.01": [LARGE + Decimal("0.01"), Decimal("0.21")],
        "0.01 + target.d": [LARGE + Decimal("0.01"), Decimal("0.21")],
        "target.d - 0.12": [Decimal("12345678901234567890.00"), Decimal("0.08")],
        "target.d * 1.0": [LARGE, Decimal("0.20")],
        "12345678901234567890.12": [LARGE, LARGE],
        "-12345678901234567890.12": [-LARGE, -LARGE],
        "-(12345678901234567890.12)": [-LARGE, -LARGE],
        "CAST(12345678901234567890.12 AS DECIMAL(38, 2))": [LARGE, LARGE],
        "TRY_CAST(12345678901234567890.12 AS DECIMAL(38, 2))": [LARGE, LARGE],
        "CASE WHEN target.id = 0 THEN 12345678901234567890.12 ELSE 0.5 END": [LARGE, Decimal("0.50")],
        "CASE WHEN target.id = 0 THEN target.d ELSE 0.5 END": [LARGE, Decimal("0.50")],
        "coalesce(NULL, 12345678901234567890.12)": [LARGE, LARGE],
        "coalesce(target.d, 0.0)": [LARGE, Decimal("0.20")],
        "greatest(target.d, 0.5)": [LARGE, Decimal("0.50")],
        "least(target.d, 12345678901234567890.11)": [LARGE - Decimal("0.01"), Decimal("0.20")],
        "target.n + 0.5": [Decimal("9007199254740993.5"), Decimal("3.5")],
        "target.n * 0.1": [Decimal("900719925474099.3"), Decimal("0.3")],
    }
    for number, (value, expected) in enumerate(values.items()):
        rows = {name: pa.array(cells, kind) for name, (kind, cells) in columns.items()}
        data = pa.table({"id": [0, 1], **rows})
        table = pds.Table.create(memory_store, f"t{number}", data.schema, key="id")
        table.append(data)

        table.merge(pa.table({"id": [0, 1]})).when_matched_update({"d": value}).execute()

        changed = sorted(table.scan().to_pyarrow().to_pylist(), key=operator.itemgetter("id"))
        assert [row["d"] for row in changed] == [round(cell, 2) for cell in expected], value


def test_floats_stay_floats(memory_store: pds.Store) -> None:
    columns = {"f": (pa.float64(), [0.1 + 0.2, 0.3, 1.5, 1e100]), "n": (pa.int64(), [3, 1, 2, 0])}
    table = _table(memory_store, columns, key="id")

    assert _ids(table, "f = 0.3") == [1]
    assert _ids(table, "f * 2.0 = 0.6") == [1]
    assert _ids(table, "f * 1e10 > 1e100") == [3]
    # A quotient has no exact value: with a point it is a float, as in DuckDB.
    assert _ids(table, "n / 2.0 = 1.0") == [2]
    assert _ids(table, "n / 3000000.0 > 0") == [0, 1, 2]
    assert _ids(table, "(n + 0.5) / 3000000 > 0") == [0, 1, 2, 3]
    assert _ids(table, "power(n + 0.5, 2) = 12.25") == [0]
    table.merge(pa.table({"id": range(4)})).when_matched_update({"f": "target.n / 2.0"}).execute()
    assert sorted(table.scan().to_pyarrow()["f"].to_pylist()) == [0.0, 0.5, 1.0, 1.5]
    table.merge(pa.table({"id": range(4)})).when_matched_update({"f": "0.1234567890123456789"}).execute()
    assert set(table.scan().to_pyarrow()["f"].to_pylist()) == {0.1234567890123456789}


@pytest.mark.parametrize("name", ["d32", "d64", "whole"])
@pytest.mark.parametrize("other", ["n", "u", "small", "d", "big", "d32", "d64"])
def test_narrow_decimals_beside_other_columns(memory_store: pds.Store, name: str, other: str) -> None:
    kind, values = COLUMNS[name]
    # Each beside each.
    pairs = [(a, b) for a in values for b in COLUMNS[other][1]]
    columns = {"a": (kind, [a for a, _ in pairs]), "b": (COLUMNS[other][0], [b for _, b in pairs])}
    table = _table(memory_store, columns)

    for sign, compare in COMPARE.items():
        expected = [row for row, (a, b) in enumerate(pairs) if None not in (a, b) and compare(Fraction(a), Fraction(b))]
        assert _ids(table, f"a {sign} b") == expected, sign
    expected = [row for row, (a, b) in enumerate(pairs) if None not in (a, b) and Fraction(a) + Fraction(b) > 1]
    assert _ids(table, "a + b > 1") == expected


@pytest.mark.parametrize("kind", [pa.decimal32(9, 4), pa.decimal64(15, 4), pa.decimal128(15, 4)], ids=str)
@pytest.mark.parametrize("encoded", [False, True])
def test_narrow_decimals_prune(memory_store: pds.Store, kind: pa.DataType, encoded: bool) -> None:
    schema = pa.schema([("c", pa.dictionary(pa.int8(), kind) if encoded else kind)])
    table = pds.Table.create(memory_store, "t", schema)
    for cents in ([Decimal("1.0"), Decimal("1.1")], [Decimal("2.5"), None], [Decimal("7.25")]):
        column = pa.array(cents, kind)
        if encoded:
            column = pa.DictionaryArray.from_arrays(pa.array(range(len(cents)), pa.int8()), column)
        table.append(pa.table({"c": column}, schema=schema))

    for predicate, rows, files in (
        ("c > 2", 2, 2),
        ("c > 2.25", 2, 2),
        ("c = 1", 1, 1),
        ("c IN (1, 7.25)", 2, 2),
        ("c BETWEEN 2 AND 3", 1, 1),
        ("c IS NULL", 1, 1),
        ("c > 7.25001", 0, 0),
        ("c >= 1.00005 AND c < 2", 1, 1),
    ):
        scan = table.scan(where=predicate)
        assert (scan.count(), scan.explain().files_read) == (rows, files), predicate
        assert table.scan(where=predicate, use_stats=False).count() == rows, predicate
    assert table.delete("c = 1").rows in (1, None)
    assert sorted(c for c in table.scan().to_pyarrow()["c"].to_pylist() if c) == [
        Decimal("1.1"),
        Decimal("2.5"),
        Decimal("7.25"),
    ]


def test_narrow_decimals_as_keys_and_values_of_a_merge(memory_store: pds.Store) -> None:
    kind = pa.decimal64(15, 4)
    schema = pa.schema([("k", kind), ("v", pa.decimal32(5, 2))])
    table = pds.Table.create(memory_store, "t", schema, key="k")
    cells = [Decimal("1.0000"), Decimal("1.1000"), Decimal("2.0000")]
    table.append(pa.table([pa.array(cells, kind), pa.array(cells, pa.decimal32(5, 2))], schema=schema))

    table.delete("k > 1 AND k < 2")
    merge = table.merge(pa.table({"k": pa.array(cells, kind)}))
    merge.when_matched_update({"v": "target.v + 1"}, "target.k = 1").when_not_matched_insert({"k": "source.k"})
    merge.execute()

    rows = sorted((row["k"], row["v"]) for row in table.scan().to_pyarrow().to_pylist())
    assert rows == [(cells[0], Decimal("2.00")), (cells[1], None), (cells[2], Decimal("2.00"))]


CHOICES = {
    "f": (pa.float64(), [-0.0, 0.0, math.nan, 1.5, None]),
    "g": (pa.float64(), [0.0, 1.0, math.nan, 1.5, 2.0]),
    "n": (pa.int64(), [2**53 + 1, 0, 2**53, 3, None]),
    "d": (pa.decimal128(38, 2), [LARGE, Decimal(1), Decimal("0.20"), LARGE + Decimal("0.01"), None]),
    "c": (pa.decimal64(15, 4), [Decimal("1.1"), Decimal(1), Decimal("0.2"), Decimal(3), None]),
}


@pytest.mark.parametrize(
    ("predicate", "rows"),
    [
        ("CASE f WHEN 0 THEN true ELSE false END", [0, 1]),
        ("CASE f WHEN g THEN true ELSE false END", [0, 2, 3]),
        ("CASE f WHEN 'NaN'::double THEN true WHEN 1.5 THEN true ELSE false END", [2, 3]),
        ("CASE n WHEN 9007199254740992.0 THEN true ELSE false END", [2]),
        ("CASE n WHEN 9007199254740993.0 THEN true WHEN 3.0 THEN true END", [0, 3]),
        ("CASE n WHEN 2.5 THEN true WHEN NULL THEN true ELSE n = 3 END", [3]),
        ("CASE d WHEN 12345678901234567890.12 THEN true ELSE false END", [0]),
        ("CASE c WHEN 1 THEN true ELSE false END", [1]),
        ("CASE 1 WHEN c THEN true ELSE false END", [1]),
        ("nullif(f, 0.0) IS NULL", [0, 1, 4]),
        ("nullif(f, g) IS NULL", [0, 2, 3, 4]),
        ("nullif(n, 9007199254740992.0) IS NULL", [2, 4]),
        ("nullif(n, 9007199254740992.0) = 9007199254740993", [0]),
        ("nullif(d, 12345678901234567890.12) IS NULL", [0, 4]),
        ("nullif(c, 1) IS NULL", [1, 4]),
        ("nullif(nullif(c, 1), 3) IS NULL", [1, 3, 4]),
        ("nullif(n, NULL) = 3", [3]),
        ("greatest(d, 12345678901234567890.13) = d", [3]),
        ("least(d, 0.2) = d", [2]),
        ("greatest(c, 2) = c", [3]),
        ("coalesce(d, 12345678901234567890.12) = 12345678901234567890.12", [0, 4]),
        ("nvl(d, 12345678901234567890.12) = 12345678901234567890.12", [0, 4]),
    ],
)
def test_choices_compare_as_comparisons_do(memory_store: pds.Store, predicate: str, rows: list[int]) -> None:
    table = _table(memory_store, CHOICES, key="id")

    assert _ids(table, predicate) == rows
    table.delete(predicate)
    assert table.scan(["id"]).to_pyarrow()["id"].to_pylist() == [row for row in range(5) if row not in rows]


def test_a_choice_that_repeats_too_much_is_refused(memory_store: pds.Store) -> None:
    table = _table(memory_store, CHOICES)
    nested = "n"
    for _ in range(14):
        nested = f"nullif({nested}, 1)"

    with pytest.raises(pds.InvalidInput, match="nullif"):
        table.scan(where=f"{nested} IS NULL").count()


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_a_minus_that_overflows_is_an_error(memory_store: pds.Store, bits: int) -> None:
    kind = pa.type_for_alias(f"int{bits}")
    lowest = -(2 ** (bits - 1))
    table = _table(memory_store, {"x": (kind, [lowest, 5, None])}, key="id")

    for predicate in ("-x < 0", "-(x + 0) > 0", "abs(x) > 0", "0 - x > 0"):
        # A sum with a literal is one of 64 bits.
        if bits < 64 and predicate in {"-(x + 0) > 0", "0 - x > 0"}:
            continue
        with pytest.raises(pds.InvalidInput, match="verflow"):
            table.scan(where=predicate).count()
        with pytest.raises(pds.InvalidInput, match="verflow"):
            table.delete(predicate)
    with pytest.raises(pds.InvalidInput, match="verflow"):
        table.merge(pa.table({"id": [0, 1]})).when_matched_update({"x": "-target.x"}).execute()
    assert table.refresh().version == 2
    assert table.merge(pa.table({"id": [1, 2]})).when_matched_update({"x": "-target.x"}).execute().rows == 2
    assert table.scan(["x"]).to_pyarrow()["x"].to_pylist().count(-5) == 1


MIXED = [
    "coalesce(f, d) > 0",
    "coalesce(d, f) > 0",
    "nvl(f, d) > 0",
    "nvl2(s, f, d) > 0",
    "nullif(f, d) > 0",
    "nullif(d, f) > 0",
    "least(f, d) > 0",
    "greatest(f, d) > 1",
    "greatest(f, d, 1.5) > 1.5",
    "least(s, d) > 0",
    "coalesce(f, 0.5) > 0",
    "CASE WHEN f IS NOT NULL THEN f ELSE d END > 0",
    "CASE WHEN f > 1 THEN d WHEN f < 0 THEN 0.25 ELSE f END > 0.25",
    "CASE f WHEN d THEN true ELSE false END",
    "CASE d WHEN f THEN true ELSE false END",
    "f IN (d, 0.25)",
    "d IN (f, 7)",
    "d BETWEEN f AND 100",
    "f BETWEEN d AND 100",
    "f IS DISTINCT FROM d",
    "d IN (f, s)",
    "d IN (f, d + 1)",
    "row % 10 IN (f, d)",
    "row BETWEEN f AND d",
    "CAST(row AS DECIMAL(9, 1)) BETWEEN f AND d",
]


def test_a_value_chosen_of_floats_and_decimals_is_a_float(memory_store: pds.Store) -> None:
    """Judged by DuckDB over decimals as doubles."""
    floats = [1e-20, -1e-20, 1e20, 0.25, 1.0, 7.0, math.inf, -math.inf, None, 1e-300]
    decimals = [Decimal("1.00"), None, Decimal("0.25"), Decimal("7.00"), Decimal("-1.00")]
    pairs = [(f, d) for f in floats for d in decimals]
    rows = pa.table(
        {
            "f": pa.array([f for f, _ in pairs], pa.float64()),
            "s": pa.array([f for f, _ in pairs], pa.float32()),
            "d": pa.array([d for _, d in pairs], pa.decimal128(5, 2)),
            "row": range(len(pairs)),
        }
    )
    table = pds.Table.create(memory_store, "t", rows.schema)
    table.append(rows)
    doubles = rows.set_column(2, "d", rows["d"].cast(pa.float64()))  # noqa: F841 duckdb finds it by its name
    for predicate in MIXED:
        judged = predicate.replace("nvl2(s, f, d)", "CASE WHEN s IS NOT NULL THEN f ELSE d END").replace(
            "nvl(", "ifnull("
        )
        expected = duckdb.sql(f"SELECT row FROM doubles WHERE {judged} ORDER BY row").fetchall()  # noqa: S608 our own
        assert expected, predicate
        for use_stats in (True, False):
            found = table.scan(["row"], where=predicate, use_stats=use_stats).to_pyarrow()["row"].to_pylist()
            assert found == [row for (row,) in expected], predicate
    table.delete("coalesce(f, d) <= 0")
    assert table.scan(where="f = 1e-20").count() == len(decimals)


WIDE: dict[str, tuple[Any, list[Any]]] = {
    "a": (pa.decimal128(38, 0), ["99999999999999999999999999999999999999", "1", "0", "-5", None]),
    "b": (pa.decimal128(38, 38), ["0.99999999999999999999999999999999999999", "1e-38", "0", "-0.5", None]),
    "c": (pa.decimal128(38, 20), ["999999999999999999.00000000000000000001", "1", "-5", "0.5", None]),
    "n": (pa.int64(), [2**63 - 1, 1, 0, -5, None]),
}


@pytest.mark.parametrize(("left", "right"), [("a", "b"), ("b", "a"), ("a", "c"), ("n", "c"), ("c", "n"), ("b", "n")])
def test_numbers_that_together_have_more_than_38_digits(memory_store: pds.Store, left: str, right: str) -> None:
    def cells(name: str) -> list[Any]:
        kind, values = WIDE[name]
        if not pa.types.is_decimal(kind):
            return values
        quantum = Decimal(1).scaleb(-kind.scale)
        with localcontext(prec=50):
            return [None if value is None else Decimal(value).quantize(quantum) for value in values]

    pairs = [(x, y) for x in cells(left) for y in cells(right)]
    columns = {"x": (WIDE[left][0], [x for x, _ in pairs]), "y": (WIDE[right][0], [y for _, y in pairs])}
    table = _table(memory_store, columns)
    fractions = [None if None in pair else tuple(Fraction(cell) for cell in pair) for pair in pairs]
    for sign, compare in COMPARE.items():
        expected = [row for row, pair in enumerate(fractions) if pair is not None and compare(*pair)]
        assert _ids(table, f"x {sign} y") == expected, sign
        assert _ids(table, f"NOT (x {sign} y)") == [
            row for row, pair in enumerate(fractions) if pair is not None and row not in expected
        ]
    equal = [row for row, pair in enumerate(fractions) if pair is not None and pair[0] == pair[1]]
    assert _ids(table, "x IN (y)") == equal
    assert _ids(table, "x BETWEEN y AND y") == equal
    assert _ids(table, "x IN (y, NULL)") == equal
    half = [row for row, (x, _) in enumerate(pairs) if x is not None and Fraction(x) == Fraction(1, 2)]
    assert _ids(table, "x IN (y, 0.5)") == sorted({*equal, *half})
    assert _ids(table, "x IS NOT NULL AND y IS NOT NULL AND nullif(x, y) IS NULL") == equal


def test_quotients_of_decimals_are_compared_with_their_digits(memory_store: pds.Store) -> None:
    """Not cut four digits after those of the dividend."""
    dividends = [Decimal("1.00"), Decimal("0.30"), Decimal("-2.00"), Decimal("99999999999999999.99"), None]
    divisors = [3, 1, -7, 10**18, None]
    pairs = [(d, n) for d in dividends for n in divisors]
    columns = {
        "d": (pa.decimal128(20, 2), [d for d, _ in pairs]),
        "n": (pa.int64(), [n for _, n in pairs]),
        "e": (pa.decimal64(18, 6), [None if n is None or abs(n) > 10**9 else Decimal(n) for _, n in pairs]),
        "whole": (pa.decimal128(38, 0), [None if d is None else d.to_integral_value() for d, _ in pairs]),
    }
    table = _table(memory_store, columns)
    cells = {name: values for name, (_, values) in columns.items()}
    limits = ["0.333333", "0.3333333333333333", "0.1", "0", "1e-18"]
    for dividend, divisor in (("d", "n"), ("d", "e"), ("n", "d"), ("e", "d"), ("d", "3"), ("10", "d"), ("whole", "n")):
        rows = range(len(pairs))
        above = cells.get(dividend, [int(dividend)] * len(pairs) if dividend.isdigit() else [])
        below = cells.get(divisor, [int(divisor)] * len(pairs) if divisor.isdigit() else [])
        quotients = {
            row: Fraction(above[row]) / Fraction(below[row]) for row in rows if None not in (above[row], below[row])
        }
        for sign, compare in COMPARE.items():
            for limit in limits:
                expected = [row for row, quotient in quotients.items() if compare(quotient, Fraction(limit))]
                assert _ids(table, f"{dividend} / {divisor} {sign} {limit}") == expected, (dividend, sign, limit)
        expected = [row for row, quotient in quotients.items() if Fraction("0.3333") < quotient < Fraction("0.33334")]
        assert _ids(table, f"{dividend} / {divisor} BETWEEN 0.3333 AND 0.33334") == expected


def test_a_quotient_of_decimals_beside_a_float_is_the_nearest_float(memory_store: pds.Store) -> None:
    """As that of its own digits is, and not always that of more of them."""
    numbers = [*range(100_001, 101_000, 7)]
    columns = {
        "d": (pa.decimal128(20, 2), [Decimal(number) / 100 for number in numbers]),
        "f": (pa.float64(), [number / 10**6 for number in numbers]),
    }
    table = _table(memory_store, columns)
    every = list(range(len(numbers)))
    for predicate in ("d / 10000 = f", "f >= d / 10000", "d / 10000 BETWEEN f AND f", "d / 10000 IN (f, 7)"):
        assert _ids(table, predicate) == every, predicate
    assert _ids(table, "d / 10000 <> f") == []


@pytest.mark.parametrize("kind", [pa.decimal128(9, 3), pa.decimal128(20, 10), pa.decimal64(18, 8)], ids=str)
def test_a_quotient_of_decimals_is_rounded_where_it_is_stored(memory_store: pds.Store, kind: Any) -> None:
    """To the digits of the column, and not before. One that has more of them differs from what is stored."""
    pairs = [("1", "3"), ("-2", "3"), ("1", "4"), ("1", "2000"), ("-1", "2000"), ("10", "7"), ("0.05", "8"), ("7", "7")]
    plain = pa.decimal128(10, 2)
    a, b = ([Decimal(pair[side]) for pair in pairs] for side in (0, 1))
    table = _table(memory_store, {"a": (plain, a), "b": (plain, b), "c": (kind, [None] * len(pairs))}, key="id")
    ids = list(range(len(pairs)))
    table.merge(pa.table({"id": ids})).when_matched_update({"c": "target.a / target.b"}).execute()
    rows = table.scan().to_pyarrow().sort_by("id")
    quotients = [Fraction(above) / Fraction(below) for above, below in zip(a, b, strict=True)]
    with localcontext() as context:
        context.rounding = ROUND_HALF_UP
        context.prec = 50
        place = Decimal(1).scaleb(-kind.scale)
        stored = [(above / below).quantize(place) for above, below in zip(a, b, strict=True)]
    assert rows["c"].to_pylist() == stored
    differing = [row for row in ids if Fraction(stored[row]) != quotients[row]]
    assert sorted(_ids(table, "c <> a / b")) == differing
    connection = duckdb.connect()
    connection.register("data", rows.set_column(3, "c", rows["c"].cast(pa.decimal128(20, 10))))
    judged = connection.execute("SELECT id FROM data WHERE c <> a / b ORDER BY id").fetchall()
    assert [row for (row,) in judged] == differing
    for written in ("CAST", "TRY_CAST"):
        cast = f"{written}(a / b AS DECIMAL({kind.precision}, {kind.scale}))"
        assert sorted(_ids(table, f"c = {cast}")) == ids


@pytest.mark.parametrize("places", [30, 36])
def test_a_quotient_of_decimals_fills_its_column(memory_store: pds.Store, places: int) -> None:
    plain, kind = pa.decimal128(10, 2), pa.decimal128(38, places)
    a, b = [Decimal(1), Decimal(-2), Decimal(10), Decimal("0.05")], [Decimal(3), Decimal(3), Decimal(7), Decimal(8)]
    table = _table(memory_store, {"a": (plain, a), "b": (plain, b), "c": (kind, [None] * len(a))}, key="id")
    ids = list(range(len(a)))
    table.merge(pa.table({"id": ids})).when_matched_update({"c": "target.a / target.b"}).execute()
    with localcontext() as context:
        context.rounding = ROUND_HALF_UP
        context.prec = 60
        place = Decimal(1).scaleb(-places)
        stored = [(above / below).quantize(place) for above, below in zip(a, b, strict=True)]
    assert table.scan().to_pyarrow().sort_by("id")["c"].to_pylist() == stored
    assert sorted(_ids(table, f"c = CAST(a / b AS DECIMAL(38, {places}))")) == ids

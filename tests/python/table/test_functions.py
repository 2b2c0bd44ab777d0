"""Functions in filters at the ends of what their arguments may be: DuckDB is the judge, or integers are."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import pds
from filter_results import assert_fails, find

TEXTS = ["", "a", "héllo", "x,b,c", "ab ab", None]
FLOATS = [-2.5, 2.5, -0.0, math.nan, 1e308, -math.inf, 1234.5678, 1e-310, None]
INTEGERS = [-4, 4, 0, 8, -7, 15, 2**31, -(2**40), None]
# What DuckDB says in another way has its words after the arrow.
TEXT_PREDICATES = [
    "length(left(s, -2)) > 1",
    "left(s, 2) = 'hé'",
    "left(s, 9223372036854775807) = s -> left(s, 1000) = s",
    "left(s, -9223372036854775807) = ''",
    "right(s, -2) = 'llo'",
    "right(s, 2) = 'lo'",
    "right(s, 9223372036854775807) = s",
    "right(s, -9223372036854775807) = ''",
    "substr(s, 2, 2) = 'él'",
    "substr(s, 0, 2) = 'h'",
    "substr(s, 9223372036854775807) = '' -> substr(s, 1000) = ''",
    "substr(s, 2, 9223372036854775807) = 'éllo' -> substr(s, 2, 1000) = 'éllo'",
    "strpos(s, 'l') = 3",
    "position('l' IN s) = 3",
    "split_part(s, ',', 2) = 'b'",
    "split_part(s, ',', -1) = 'c'",
    "split_part(s, ',', 9) = ''",
    "repeat(s, -1) = ''",
    "repeat(s, 3) = 'aaa'",
    "repeat(s, id) = 'a'",
    "lpad(s, 3, '*') = '**a'",
    "rpad(s, 3, '*') = 'a**'",
    "lpad(s, -5, '*') = '' -> lpad(s, 0, '*') = ''",
    "translate(s, 'él', 'eL') = 'heLLo'",
    "translate(s, 'éh', 'e') = 'ello'",
    "reverse(s) = 'olléh'",
    "concat(s, NULL, 'x') = 'x'",
    "(s || NULL) IS NULL",
    "concat_ws('-', s, NULL, 'x') = 'a-x'",
    "ascii(s) = 97",
    "starts_with(s, 'h')",
    "contains(s, ',')",
    "replace(s, 'l', '') = 'héo'",
    "replace(s, '', 'x') = s",
    "upper(s) = 'HÉLLO'",
    "length(s) = 5",
    "bit_length(s) = 48",
    "ltrim(s, 'ab ') = ''",
    "s ILIKE 'H%'",
    "regexp_replace(s, 'l+', 'L') = 'héLo'",
    "levenshtein(s, 'ab') = 1",
]
NUMBER_PREDICATES = [
    "gcd(n, 6) = 2",
    "lcm(n, 6) = 12",
    "abs(n) = 4",
    "n % 3 = -1",
    "power(n, 2) = 16",
    "n < 16 AND n > -9 AND -n ^ 2 = 16",
    "n < 16 AND n > -9 AND 2 * -n ^ 2 - -1 = 33",
    "-2 ^ 2 = n",
    "round(n, -1) = 0",
    "round(n, -3) = 2147484000",
    "ceil(n) = n",
    "floor(n) = -7",
    "trunc(n) = n -> n = n",
    "cbrt(n) = 2",
    "round(f) = -3",
    "trunc(f) = -2",
    "ceil(f) = -2",
    "floor(f) = -3",
    "round(f, 2) > 1000",
    "round(f, 400) = f",
    "round(f, 2147483647) = f -> f = f",
    "round(f, -400) = 0",
    "round(f, -400) = f",
    "round(f, -1) = 0",
    "round(f, -2) = 1200",
    "round(f, 2) = 1234.57",
    "trunc(f, 2) = 1234.56",
    "trunc(f, 400) = f",
    "trunc(f, -1) = 0",
    "trunc(f, 4294967297) = f -> f = f",
    "trunc(f, -4294967297) = 0 -> round(f, -400) = 0",
    "trunc(f, 2) < -1",
    "greatest(f, CAST(1 AS DOUBLE)) = f",
    "least(f, CAST(1 AS DOUBLE)) = f",
]


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """A row for each text, with each number once."""
    count = len(FLOATS)
    return pa.table(
        {
            "id": range(count),
            "s": [*TEXTS, *[None] * (count - len(TEXTS))],
            "f": FLOATS,
            "n": pa.array(INTEGERS, pa.int64()),
        }
    )


def make_table(rows: pa.Table) -> pds.Table:
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema)
    table.append(rows)
    return table


@pytest.fixture(scope="module")
def table(rows: pa.Table) -> pds.Table:
    return make_table(rows)


@pytest.mark.parametrize("predicate", [*TEXT_PREDICATES, *NUMBER_PREDICATES])
def test_it_is_what_duckdb_says(table: pds.Table, rows: pa.Table, predicate: str) -> None:
    where, _, judged = predicate.partition(" -> ")
    connection = duckdb.connect()
    connection.register("data", rows)
    expected = connection.execute(f"SELECT id FROM data WHERE {judged or where} ORDER BY id").fetchall()  # noqa: S608
    assert expected, "a predicate that no row tells apart judges nothing"
    assert find(table, where) == [number for (number,) in expected]


def test_rounding_to_a_column_of_places() -> None:
    values = [(1e308, 2), (1e308, -400), (1.25, 400), (-0.0, -3), (1234.5678, 2), (None, 1), (7.5, None)]
    rows = pa.table({"id": range(7), "f": [v for v, _ in values], "p": pa.array([p for _, p in values], pa.int32())})
    table = make_table(rows)
    for where in ("round(f, p) = f", "round(f, p) = 0", "round(f, p) IS NULL", "round(f, p) = 1234.57"):
        judged = duckdb.sql(f"SELECT id FROM rows WHERE {where} ORDER BY id").fetchall()  # noqa: S608 our own
        assert judged
        assert find(table, where) == [number for (number,) in judged], where


def test_a_nan_with_a_sign_is_the_greatest_value() -> None:
    """That of 0.0 / 0.0 has one, and with it Arrow orders it before all numbers."""
    rows = pa.table({"id": range(4), "f": [0.0, 2.0, math.copysign(math.nan, -1), None]})
    table = make_table(rows)
    for nan in ("f / f", "f"):
        expected = [0, 2] if nan == "f / f" else [2]
        assert find(table, f"isnan(greatest({nan}, 1.0))") == expected
        assert set(expected) <= set(find(table, f"least({nan}, 1.0) = 1.0"))
        assert find(table, f"greatest({nan}, 1e300) > 1e301") == expected


def test_integers_that_no_float_is_equal_to() -> None:
    numbers = [2**53, 2**60, 3, None]
    table = make_table(pa.table({"id": range(4), "n": numbers, "u": pa.array(numbers, pa.uint64())}))
    longer = make_table(pa.table({"id": [0, 1], "n": [2**53 + 1, 1], "u": pa.array([2**64 - 1, 1], pa.uint64())}))
    for function in ("ceil", "floor", "trunc"):
        for name in ("n", "u"):
            assert find(table, f"{function}({name}) = {2**53}") == [0]
            assert_fails(longer, f"{function}({name}) > 0", "more digits than a float")
            assert find(longer, f"{function}(CAST({name} AS DOUBLE)) > {2**53 - 1}") == [0]
            assert find(longer, f"{function}(CAST({name} AS DOUBLE)) = 1") == [1]
    assert find(longer, f"round(n) = {2**53 + 1}") == [0]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int64(), pa.decimal128(24, 2)], ids=str)
@pytest.mark.parametrize("base", [2, 3, 5, 7, 10])
def test_the_logarithm_of_a_power_is_whole(kind: pa.DataType, base: int) -> None:
    """Not a bit less, as the quotient of two other logarithms is."""
    powers = [base**exponent for exponent in range(8)]
    table = make_table(pa.table({"id": range(9), "x": pa.array([*powers, None]).cast(kind)}))
    for exponent in range(8):
        assert find(table, f"log({base}, x) = {exponent}") == [exponent], exponent
        if base == 10:
            assert find(table, f"log(x) = {exponent}") == [exponent], exponent
    assert find(table, f"log({base}, x) IS NULL") == [8]


def test_logarithms_are_those_of_duckdb() -> None:
    values = [1000.0, 999.0, 1e22, 1e-300, math.inf, math.nan, None]
    rows = pa.table({"id": range(7), "f": values})
    table = make_table(rows)
    for where in ("log(f) = 3", "log(f) < 3", "log(f) = 22", "log(f) = log10(f)", "isnan(log(f))", "log(f) IS NULL"):
        judged = duckdb.sql(f"SELECT id FROM rows WHERE {where} ORDER BY id").fetchall()  # noqa: S608 our own
        assert judged
        assert find(table, where) == [number for (number,) in judged], where


def test_a_cast_of_a_dictionary_is_one_of_the_rows_that_need_it() -> None:
    """Not of the values of other rows, for which it fails."""
    texts = ["a", "12:30", "7", "2020-01-01", None, "7"]
    kind = pa.dictionary(pa.int32(), pa.string())
    table = make_table(pa.table({"id": range(6), "s": pa.array(texts, kind)}))
    assert find(table, "id = 1 AND CAST(s AS TIME) = TIME '12:30:00'") == [1]
    assert find(table, "id = 3 AND CAST(s AS DATE) = DATE '2020-01-01'") == [3]
    assert find(table, "s LIKE '7' AND CAST(s AS BIGINT) = 7") == [2, 5]
    assert find(table, "CASE WHEN id IN (2, 4) THEN CAST(s AS DOUBLE) END = 7") == [2]
    assert find(table, "id = 4 AND CAST(s AS BIGINT) IS NULL") == [4]
    assert find(table, "id > 3 AND s = 7") == [5]
    assert_fails(table, "CAST(s AS BIGINT) = 7", "'a'")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_long_texts_do_not_end_the_process(kind: pa.DataType) -> None:
    rows = pa.table({"id": range(3), "s": pa.array(["ab", "", None], kind), "n": [10**12, 10**12, 2**63 - 1]})
    table = make_table(rows)
    for where in ("length(repeat(s, n)) > 0", "length(repeat(s, 1000000000000)) > 0", "repeat('x', n) = s"):
        assert_fails(table, where, "repeated to at most 1048576 bytes")
    for where in ("lpad(s, n) = 'x'", "rpad('x', n) = s", "lpad(s, 1000000000000, 'x') = 'x'"):
        assert_fails(table, where, "padded to at most 65536 characters")
    long = "repeat(s, 500000)"
    for where in (
        f"length(replace({long}, 'a', repeat('y', 1000000))) > 0",
        f"replace(s, 'a', {long}) < replace({long}, s, repeat('ab', 500000))",
        f"length(regexp_replace({long}, 'a', repeat('y', 1000000), 'g')) > 0",
    ):
        assert_fails(table, where, "may have more than 1073741824 bytes")
    assert find(table, f"length({long}) = 1000000") == [0]
    assert find(table, f"length(replace({long}, 'a', 'xyz')) = 2000000") == [0]
    assert find(table, f"length(regexp_replace({long}, 'a', 'xyz', 'g')) = 2000000") == [0]
    # Without the flag g it is the first match alone.
    for flags in ("", ", 'i'"):
        assert find(table, f"length(regexp_replace({long}, 'a', repeat('y', 1000000){flags})) = 1999999") == [0]
        assert_fails(table, f"regexp_replace({long}, 'a+', repeat('\\0', 500000){flags}) = s", "may have more than")
    assert find(table, "repeat(s, -9223372036854775808) = ''") == [0, 1]
    assert find(table, "id > 0 AND repeat(s, n) = ''") == [1]


# Around 1970, in microseconds, and the same as text.
MOMENTS = [-1_500_001, -1_500_000, -1_000_000, -1, 0, 1, 999_999, 1_000_000, 253_402_300_799_500_000]
UNITS = {"seconds": 10**6, "millis": 10**3, "micros": 1}


def moment_text(micros: int) -> str:
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)  # noqa: DTZ001 without a zone
    return moment.isoformat(sep=" ", timespec="microseconds")


@pytest.fixture(scope="module")
def moments() -> pds.Table:
    texts = [*map(moment_text, MOMENTS), None]
    rows = {"id": range(len(texts)), "s": texts, "at": pa.array([*MOMENTS, None], pa.timestamp("us"))}
    return make_table(pa.table(rows))


@pytest.mark.parametrize("unit", UNITS)
def test_a_coarser_timestamp_is_the_one_before(moments: pds.Table, unit: str) -> None:
    for value in ("s", "at"):
        number = f"CAST(to_timestamp_{unit}({value}) AS BIGINT)"
        for ticks in {moment // UNITS[unit] for moment in MOMENTS}:
            expected = [row for row, moment in enumerate(MOMENTS) if moment // UNITS[unit] == ticks]
            assert find(moments, f"{number} = {ticks}") == expected, (value, ticks)
        assert find(moments, f"{number} IS NULL") == [len(MOMENTS)]
    near = f"CAST(to_timestamp_{unit}(s, '%Y-%m-%d %H:%M:%S%.f') AS BIGINT)"
    expected = [row for row, moment in enumerate(MOMENTS) if moment // UNITS[unit] == -1_500_001 // UNITS[unit]]
    assert find(moments, f"id < 8 AND {near} = {-1_500_001 // UNITS[unit]}") == expected
    constant = f"to_timestamp_{unit}('1969-12-31 23:59:59.9999995') < TIMESTAMP '1970-01-01'"
    assert find(moments, constant) == [*range(len(MOMENTS) + 1)]
    assert_fails(moments, f"to_timestamp_{unit}(concat(s, 'x')) IS NULL", "filter")


def test_seconds_since_1970_are_those_before(moments: pds.Table) -> None:
    for value in ("s", "at"):
        for second in {moment // 10**6 for moment in MOMENTS}:
            expected = [row for row, moment in enumerate(MOMENTS) if moment // 10**6 == second]
            assert find(moments, f"to_unixtime({value}) = {second}") == expected, (value, second)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("stride", ["1.5 seconds", "250 milliseconds", "1000500 microseconds", "7 seconds", "1 month"])
def test_bins_begin_where_those_of_duckdb_do(unit: str, stride: str) -> None:
    ticks = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    numbers = [n * ticks + extra for n in range(-9, 10, 3) for extra in (-1, 0, 1)]
    rows = pa.table({"id": range(len(numbers)), "at": pa.array(numbers, pa.timestamp(unit))})
    table = make_table(rows)
    origins = ["1970-01-01 00:00:00", "1970-01-01 00:00:00.5", "1970-01-02 00:00:00.000001"]
    for origin in origins if stride != "1 month" else origins[:1]:
        bucket = f"time_bucket(INTERVAL '{stride}', CAST(\"at\" AS TIMESTAMP), TIMESTAMP '{origin}')"
        bins = duckdb.sql(f"SELECT {bucket} AS bin, list(id) FROM rows GROUP BY bin").fetchall()  # noqa: S608 our own
        assert len(bins) > 1
        for begin, ids in bins:
            written = f", TIMESTAMP '{origin}'" if origin != origins[0] else ""
            where = f"date_bin(INTERVAL '{stride}', at{written}) = TIMESTAMP '{begin}'"
            assert find(table, where) == sorted(ids), where


def test_bins_of_whole_seconds_are_assigned_to_seconds() -> None:
    kind = pa.timestamp("s")
    rows = pa.table({"id": [0, 1], "at": pa.array([0, -3], kind)})
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema, key="id")
    table.append(rows)
    value = "date_bin(INTERVAL '2 seconds', target.at, TIMESTAMP '1970-01-01 00:00:01')"
    table.merge(rows.select(["id"])).when_matched_update({"at": value}).execute()
    assert table.scan().to_pyarrow().sort_by("id")["at"].cast(pa.int64()).to_pylist() == [-1, -3]


def test_bins_that_do_not_go_forwards_are_refused() -> None:
    times = pa.array([0, 10**9], pa.time64("ns"))
    table = make_table(pa.table({"id": [0, 1], "at": pa.array([-1, 1], pa.timestamp("us")), "t": times}))
    for stride in ("-1 hour", "-2 months"):
        assert_fails(table, f"date_bin(INTERVAL '{stride}', at) < at", "longer than zero")
    assert_fails(table, "date_bin(INTERVAL '15 minutes', t, TIME '00:10:00') < t", "date_bin")


def test_the_position_of_a_group_in_a_later_match_is_refused(table: pds.Table) -> None:
    assert find(table, "regexp_instr(s, '(a)(b)', 1, 1, '', 2) = 2") == [4]
    assert_fails(table, "regexp_instr(s, '(a)(b)', 1, 2, '', 2) > 0", "first match only")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("factorial(n) > 0", "negative|FACTORIAL"),
        ("abs(m) > 0", "verflow"),
        ("lcm(m, 3) > 0", "verflow"),
        ("gcd(m, m) > 0", "verflow"),
        ("round(m, -1) < 0", "verflow|range"),
        ("chr(n) = 'x'", "chr|Unicode"),
        ("power(0, n) > 1", "zero"),
        ("split_part(s, ',', 0) = ''", "zero"),
        ("substr(s, 1, n) = ''", "negative"),
    ],
)
def test_what_has_no_value_is_an_error(where: str, message: str) -> None:
    rows: dict[str, Any] = {"id": [0, 1], "s": ["a,b", "b"], "n": [-4, 25], "m": [-(2**63), 1]}
    assert_fails(make_table(pa.table(rows)), where, message)

"""Casts between dates, times and timestamps, and comparisons of those of several units: integers are the judge."""

from __future__ import annotations

import datetime as dt
import itertools
import operator as op
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import pds
from filter_results import assert_fails, find

COMPARISONS = {"<": op.lt, "<=": op.le, "=": op.eq, ">=": op.ge, ">": op.gt, "<>": op.ne}
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY = 86_400 * 10**9
EPOCH = dt.date(1970, 1, 1)
# The last and the first day of nanoseconds, and the days beyond.
DAYS = [
    dt.date(1, 1, 1),
    dt.date(1677, 9, 21),
    dt.date(1677, 9, 22),
    dt.date(1969, 12, 31),
    dt.date(1970, 1, 1),
    dt.date(2262, 4, 11),
    dt.date(2262, 4, 12),
    dt.date(9999, 12, 31),
]


def make_table(columns: dict[str, pa.Array], **options: Any) -> pds.Table:
    """A table with its rows in two files."""
    rows = pa.table({"id": range(len(next(iter(columns.values())))), **columns})
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema, **options)
    half = rows.num_rows // 2
    table.append(rows.slice(0, half))
    table.append(rows.slice(half))
    return table


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
def test_a_date_beyond_nanoseconds(kind: pa.DataType) -> None:
    """TRY_CAST has NULL for it and CAST fails; neither has another time."""
    own = [(day - EPOCH).days * DAY for day in DAYS]
    fits = [-(2**63) <= nanos < 2**63 for nanos in own]
    assert set(fits) == {True, False}
    columns = {"day": pa.array([*DAYS, None], kind), "at": pa.array([0] * 9, pa.timestamp("ns"))}
    table = make_table(columns, key="id")
    cast = "TRY_CAST(day AS TIMESTAMP)"
    beyond = [row for row, fit in enumerate(fits) if not fit]
    assert find(table, f"{cast} IS NULL") == [*beyond, 8]
    for text in ("1900-01-01", "1970-01-01", "2262-04-11", "9999-12-31"):
        limit = (dt.date.fromisoformat(text) - EPOCH).days * DAY
        for sign, compare in COMPARISONS.items():
            expected = [row for row, nanos in enumerate(own) if fits[row] and compare(nanos, limit)]
            assert find(table, f"{cast} {sign} TIMESTAMP '{text}'") == expected, (sign, text)
    assert find(table, f"CAST({cast} AS BIGINT) / {DAY} = -1") == [3]
    assert_fails(table, "extract(year FROM CAST(day AS TIMESTAMP)) > 0", "day has the value .* which")
    merge = table.merge(pa.table({"id": [0, 1]})).when_matched_update({"at": "CAST(target.day AS TIMESTAMP)"})
    with pytest.raises(pds.InvalidInput, match="day has the value"):
        merge.execute()
    table.merge(pa.table({"id": range(9)})).when_matched_update({"at": f"TRY_CAST(target.{cast[9:]}"}).execute()
    stored = table.scan().to_pyarrow().sort_by("id")["at"].cast(pa.int64()).to_pylist()
    assert stored == [*(nanos if fit else None for nanos, fit in zip(own, fits, strict=True)), None]
    table.delete(f"{cast} < TIMESTAMP '1960-01-01'")
    assert find(table, "id < 99") == [0, 1, 3, 4, 5, 6, 7, 8]


def test_a_coarser_unit_has_the_time_before() -> None:
    ticks = [-1_500_001, -1_500_000, -1_000_001, -1_000_000, -1, 0, 1, 999_999, 1_000_000, 1_999_999]
    rows = pa.table({"id": range(11), "at": pa.array([*ticks, None], pa.timestamp("us"))})
    table = make_table({"at": rows["at"].combine_chunks()})
    for function in ("CAST", "TRY_CAST"):
        for digits, per_tick in ((0, 10**6), (3, 10**3)):
            coarse = f"CAST({function}(at AS TIMESTAMP({digits})) AS BIGINT)"
            for tick in {tick // per_tick for tick in ticks}:
                expected = [row for row, own in enumerate(ticks) if own // per_tick == tick]
                assert find(table, f"{coarse} = {tick}") == expected, (function, digits, tick)
    for second in ("1969-12-31 23:59:58", "1969-12-31 23:59:59", "1970-01-01 00:00:00"):
        judged = f"SELECT id FROM rows WHERE date_trunc('second', \"at\") = TIMESTAMP '{second}'"  # noqa: S608 our own
        expected = [number for (number,) in duckdb.sql(judged).fetchall()]
        assert expected
        assert find(table, f"CAST(at AS TIMESTAMP(0)) = TIMESTAMP '{second}'") == expected
        assert find(table, f"CAST(at AS DATE) = DATE '{second[:10]}'") == [
            row for row, tick in enumerate(ticks) if (tick < 0) == (second[3] == "9")
        ]


def test_a_time_beyond_the_calendar() -> None:
    days = [100_000_000, 0, None]
    table = make_table({"day": pa.array(days, pa.int32()).cast(pa.date32())})
    far = "CAST(day AS TIMESTAMP(6))"
    for kind in ("DATE", "TIME"):
        assert find(table, f"TRY_CAST({far} AS {kind}) IS NULL") == [0, 2]
        assert_fails(table, f"CAST({far} AS {kind}) IS NULL", "which .* does not have")
    assert find(table, "TRY_CAST(day AS TIMESTAMP) IS NULL") == [0, 2]


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("kind", ["s", "ms", "us", "date32", "date64"])
def test_columns_of_other_units_beside_nanoseconds(kind: str, zone: str | None) -> None:
    """A time that has no nanoseconds is compared all the same."""
    if kind in NANOSECONDS:
        tick, storage = NANOSECONDS[kind], pa.timestamp(kind, zone)
        edge = 2**63 // tick
        numbers = [-62_135_596_800 * 10**9 // tick, -edge - 1, -edge, -1, 0, 1, edge, edge + 1]
        numbers.append(253_402_300_799 * 10**9 // tick)
        array = pa.array(numbers, storage)
    else:
        tick = DAY
        numbers = [(day - EPOCH).days for day in DAYS]
        array = pa.array(DAYS, pa.date32() if kind == "date32" else pa.date64())
    fine = [-(2**63), -1, 0, 1, tick, 2**63 - 1]
    pairs = [(row, nanos) for row in range(len(numbers)) for nanos in fine]
    a = array.take(pa.array([row for row, _ in pairs], pa.int64()))
    b = pa.array([nanos for _, nanos in pairs], pa.timestamp("ns", zone))
    table = make_table({"a": pa.concat_arrays([a, a[:1]]), "b": pa.concat_arrays([b, pa.nulls(1, b.type)])})
    for sign, compare in COMPARISONS.items():
        expected = [at for at, (row, nanos) in enumerate(pairs) if compare(numbers[row] * tick, nanos)]
        assert find(table, f"a {sign} b") == expected, sign
        expected = [at for at, (row, nanos) in enumerate(pairs) if compare(nanos, numbers[row] * tick)]
        assert find(table, f"b {sign} a") == expected, sign
    equal = [at for at, (row, nanos) in enumerate(pairs) if numbers[row] * tick == nanos]
    others = [at for at in range(len(pairs)) if at not in equal]
    below = [at for at, (row, nanos) in enumerate(pairs) if numbers[row] * tick <= nanos]
    assert find(table, "a IN (b)") == equal
    assert find(table, "b IN (a, NULL)") == equal
    assert find(table, "a NOT IN (b)") == others
    assert find(table, "a NOT IN (b, NULL)") == []
    assert find(table, "a IS NOT DISTINCT FROM b") == equal
    assert find(table, "a IS DISTINCT FROM b") == [*others, len(pairs)]
    assert find(table, "a BETWEEN a AND b") == below
    assert find(table, "NOT a <= b") == [at for at in range(len(pairs)) if at not in below]
    assert find(table, "nullif(a, b) IS NULL") == equal
    table.delete("a > b")
    assert find(table, "id >= 0") == [*below, len(pairs)]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us", "+00:00"), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC")], ids=str
)
def test_columns_of_other_units_or_zones_near_1970(kind: pa.TimestampType) -> None:
    tick = NANOSECONDS[kind.unit]
    mine, other = [-1_000_001, -1_000, -1, 0, 1, 2_000, None], [-2_000, -1, 0, 1, 2, None]
    pairs = [(a, b) for a in mine for b in other]
    table = make_table(
        {
            "a": pa.array([a for a, _ in pairs], pa.timestamp("us", "UTC")),
            "b": pa.array([b for _, b in pairs], kind),
        }
    )
    nanos = [(None if a is None else a * 1000, None if b is None else b * tick) for a, b in pairs]
    for sign, compare in COMPARISONS.items():
        expected = [at for at, (a, b) in enumerate(nanos) if a is not None and b is not None and compare(a, b)]
        assert find(table, f"a {sign} b") == expected, sign
    assert find(table, "a IS NOT DISTINCT FROM b") == [at for at, (a, b) in enumerate(nanos) if a == b]
    assert find(table, "a IS DISTINCT FROM b") == [at for at, (a, b) in enumerate(nanos) if a != b]


def test_what_needs_one_unit_says_what_to_do() -> None:
    far = dt.datetime(9999, 12, 31)  # noqa: DTZ001 without a zone
    table = make_table({"a": pa.array([far, far], pa.timestamp("us")), "b": pa.array([0, 1], pa.timestamp("ns"))})
    for where in ("greatest(a, b) = a", "coalesce(a, b) = a", "CASE WHEN id = 0 THEN a ELSE b END > b"):
        assert_fails(table, where, r"a has the value 9999-12-31.*TIMESTAMP\(6\)")
    assert find(table, "greatest(a, CAST(b AS TIMESTAMP(6))) = a") == [0, 1]


def test_nanoseconds_beside_a_far_time_say_what_to_do() -> None:
    far = dt.datetime(9999, 12, 31)  # noqa: DTZ001 without a zone
    table = make_table(
        {"a": pa.array([far, far, None], pa.timestamp("us")), "d": pa.array([1_000, -1_000, 0], pa.duration("ns"))}
    )
    advice = r"a has the value 9999-12-31.*arrow_cast\(d, 'Duration\(Microsecond\)'\)"
    for sign in ("+", "-"):
        assert_fails(table, f"a {sign} d > a", advice)
    assert find(table, "a + arrow_cast(d, 'Duration(Microsecond)') > TIMESTAMP '9999-12-31'") == [0]
    assert find(table, "a - arrow_cast(d, 'Duration(Microsecond)') > TIMESTAMP '9999-12-31'") == [1]


@pytest.mark.parametrize("unit", NANOSECONDS)
def test_a_length_of_time_is_added_with_all_its_digits(unit: str) -> None:
    ticks = [0, 0, -1, 1, None]
    lengths = [0, 500_001, 999_999, -1, 7]
    table = make_table({"at": pa.array(ticks, pa.timestamp(unit)), "lasts": pa.array(lengths, pa.duration("us"))})
    nanos = [None if tick is None else tick * NANOSECONDS[unit] for tick in ticks]
    for sign, compute in (("+", op.add), ("-", op.sub)):
        pairs = zip(nanos, lengths, strict=True)
        sums = [None if own is None else compute(own, length * 1000) for own, length in pairs]
        for text, limit in (("1970-01-01 00:00:00", 0), ("1970-01-01 00:00:00.500001", 500_001_000)):
            for comparison, compare in COMPARISONS.items():
                expected = [row for row, own in enumerate(sums) if own is not None and compare(own, limit)]
                where = f"at {sign} lasts {comparison} TIMESTAMP '{text}'"
                assert find(table, where) == expected, where


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str)
def test_an_interval_is_added_to_a_time_of_day_with_all_its_digits(kind: pa.DataType) -> None:
    ticks = 10**9 // NANOSECONDS[str(kind).partition("[")[2][:-1]]
    times = pa.array([0, ticks, 43_200 * ticks, 86_399 * ticks, None], kind)
    rows = pa.table({"id": range(5), "t": times.cast(pa.time64("us"))})
    table = make_table({"t": times}, key="id")
    matched = False
    for interval in ("500 milliseconds", "1 microsecond", "-1500 milliseconds", "2 hours", "25 hours"):
        for sign, limit in itertools.product("+-", ("00:00:00.3", "23:59:59.5")):
            for comparison in ("<", ">=", "="):
                where = f"t {sign} INTERVAL '{interval}' {comparison} TIME '{limit}'"
                judged = duckdb.sql(f"SELECT id FROM rows WHERE {where} ORDER BY id").fetchall()  # noqa: S608 our own
                assert find(table, where) == [number for (number,) in judged], where
                matched |= comparison == "=" and bool(judged)
    assert matched
    # What fits is assigned, and what does not is refused.
    table.merge(pa.table({"id": [0]})).when_matched_update({"t": "target.t + INTERVAL '2 hours'"}).execute()
    assert find(table, "t = TIME '02:00:00'") == [0]
    if kind == pa.time32("s"):
        with pytest.raises(pds.InvalidInput, match='column "t"'):
            table.merge(rows).when_matched_update({"t": "target.t + INTERVAL '500 milliseconds'"}).execute()


def test_integers_that_narrow_decimals_do_not_hold() -> None:
    table = make_table({"n": pa.array([2**32 + 1, 7, None]), "u": pa.array([2**64 - 1, 7, None], pa.uint64())})
    for name, kind in (("n", "Decimal32(5, 0)"), ("u", "Decimal32(9, 2)"), ("u", "Decimal64(18, 0)")):
        assert find(table, f"arrow_try_cast({name}, '{kind}') IS NULL") == [0, 2]
        assert find(table, f"arrow_try_cast({name}, '{kind}') = 7") == [1]
        assert_fails(table, f"arrow_cast({name}, '{kind}') > 0", "filter")
    narrow = pa.array([5, 5, 5], pa.decimal32(5, 0))
    merged = make_table({"n": pa.array([2**32 + 1, 7, None]), "d": narrow}, key="id")
    for value in ("target.n", "4294967297", "CASE WHEN target.id < 9 THEN target.n END", "target.n + 0"):
        merge = merged.merge(pa.table({"id": [0, 1, 2]})).when_matched_update({"d": value})
        with pytest.raises(pds.InvalidInput, match=r'column "d"|too large'):
            merge.execute()
    merged.merge(pa.table({"id": [1, 2]})).when_matched_update({"d": "target.n"}).execute()
    assert merged.scan().to_pyarrow().sort_by("id")["d"].to_pylist() == [5, 7, None]


def test_floats_that_narrow_ones_do_not_hold() -> None:
    values = [1e300, -1e300, float("inf"), 0.5, None]
    rows = pa.table({"id": range(5), "f": values})
    table = make_table({"f": rows["f"].combine_chunks()})
    for where in ("TRY_CAST(f AS REAL) IS NULL", "TRY_CAST(f AS REAL) > 1", "TRY_CAST(f AS REAL) < 1"):
        judged = duckdb.sql(f"SELECT id FROM rows WHERE {where} ORDER BY id").fetchall()  # noqa: S608 our own
        assert find(table, where) == [number for (number,) in judged], where


def test_a_text_of_an_integer_is_no_time_of_day() -> None:
    """Arrow reads it as ticks since midnight."""
    texts = ["1", "123456", "-5", "+5", "12:30", "12:30:45.5", "abc", "", None]
    rows = pa.table({"id": range(9), "s": texts})  # noqa: F841 duckdb finds it by its name
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = make_table({"s": pa.array(texts, kind), "t": pa.array([1] * 9, pa.time64("ns"))})
        for where in ("TRY_CAST(s AS TIME) IS NULL", "TRY_CAST(s AS TIME) < TIME '12:31:00'"):
            judged = duckdb.sql(f"SELECT id FROM rows WHERE {where} ORDER BY id").fetchall()  # noqa: S608 our own
            assert judged
            assert find(table, where) == [number for (number,) in judged], where
        numbers = "id < 4 AND "
        for where in (f"{numbers}CAST(s AS TIME) IS NULL", f"{numbers}t = s", "t = '1'", "t IN ('123456', '12:30:00')"):
            assert_fails(table, where, "not a time of day")
        assert find(table, "id IN (4, 5) AND CAST(s AS TIME) > t") == [4, 5]
        assert find(table, "t < '00:00:01'") == [*range(9)]


def test_dates_within_structs_beside_timestamps() -> None:
    far = pa.StructArray.from_arrays([pa.array([dt.date(9999, 12, 31)] * 2, pa.date64())], ["d"])
    near = pa.StructArray.from_arrays([pa.array([0, 1], pa.timestamp("ns"))], ["d"])
    table = make_table({"s": far, "r": near})
    for where in ("s = r", "s <> r", "s IS DISTINCT FROM r"):
        with pytest.raises(pds.InvalidInput):
            table.delete(where)
    assert find(table, "s.d > r.d") == [0, 1]


@pytest.mark.parametrize("length", ["day", "week", "month", "quarter", "YEAR"])
def test_times_of_every_year_are_truncated(length: str) -> None:
    texts = ["0001-01-01 00:00:00", "1582-10-15 03:00:00", "1969-12-31 23:59:59", "1970-01-01 00:00:00"]
    texts += ["2024-02-29 05:00:00", "2300-06-01 12:00:00", "2300-12-31 01:00:00", "9999-12-31 23:59:59"]
    times = pa.array([*texts, None]).cast(pa.timestamp("us"))
    kinds = [pa.timestamp("us"), pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.date32(), pa.date64()]
    columns = {f"t{number}": times.cast(kind, safe=False) for number, kind in enumerate(kinds)}
    table = make_table(columns)
    rows = pa.table({"id": range(len(times)), "t": times})  # noqa: F841 duckdb finds it by its name
    judged = duckdb.sql(f"SELECT id, CAST(date_trunc('{length}', t) AS VARCHAR) FROM rows").fetchall()  # noqa: S608 our own
    for begin in {begin for _, begin in judged if begin is not None}:
        expected = sorted(row for row, text in judged if text == begin)
        for column in columns:
            assert find(table, f"date_trunc('{length}', {column}) = TIMESTAMP '{begin}'") == expected, (column, begin)
    for column in columns:
        assert find(table, f"date_trunc('{length}', {column}) IS NULL") == [len(texts)]
        after = sorted(row for row, text in judged if text is not None and text > "2262")
        assert find(table, f"date_trunc('{length}', {column}) >= TIMESTAMP '2262-12-31'") == after


def test_times_are_truncated_to_one_length() -> None:
    """One that differs between rows is refused."""
    table = make_table({"t": pa.array([DAY, DAY], pa.timestamp("us")), "length": pa.array(["day", "year"])})
    for length in ("length", "CASE WHEN id = 0 THEN 'day' ELSE 'year' END", "NULL"):
        assert_fails(table, f"date_trunc({length}, t) = t", "must be non-null scalar")

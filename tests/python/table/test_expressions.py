"""Expressions that are easy to get wrong: DuckDB is the judge, and what has no right result is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import operator as op
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import pds
from filter_results import find

DAY = dt.datetime(2020, 1, 1)  # noqa: DTZ001 without a zone
COMPARISONS = {"<": op.lt, "<=": op.le, "=": op.eq, ">=": op.ge, ">": op.gt, "<>": op.ne}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("a", pa.timestamp("us")),
        ("b", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("lasts", pa.duration("us")),
        ("q", pa.int32()),
        ("f", pa.float64()),
        ("m", pa.decimal128(38, 0)),
        ("t", pa.string()),
    ]
)


def rows() -> pa.Table:
    spans = [0, 1, 3_600, 86_399, 86_400, 90_000, 10 * 86_400, 40 * 86_400, -90_000]
    rows: list[dict[str, Any]] = [
        {
            "id": number,
            "a": DAY + dt.timedelta(seconds=span, microseconds=number),
            "b": DAY,
            "z": dt.datetime(2020, 7, 8, 2, tzinfo=dt.UTC) + dt.timedelta(seconds=span),
            "day": dt.date(2020, 1, 1) + dt.timedelta(days=number),
            "lasts": dt.timedelta(seconds=span),
            "q": number % 4,
            "f": [0.5, 1e300, 1e-200, -2.5][number % 4],
            "m": decimal.Decimal(6 * 10**37 if number == 5 else number),
            "t": "x" * number,
        }
        for number, span in enumerate(spans)
    ]
    far = dt.datetime(9999, 12, 31)  # noqa: DTZ001 without a zone
    rows.append({"id": len(rows), "a": far, "b": DAY, "q": 0, "t": "later than 2262"})
    rows.append({"id": len(rows)})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.fixture(scope="module")
def table() -> pds.Table:
    created = pds.Table.create(pds.Store("memory://"), "t", SCHEMA)
    created.append(rows())
    return created


@pytest.mark.parametrize(
    "where",
    [
        "a - b > interval '1 day'",
        "a - b <= interval '24 hours'",
        "a - b between interval '0 days' and interval '1 day'",
        "a - b in (interval '1 second', interval '3600 seconds')",
        "a > b + interval '1 day'",
        "(z at time zone 'America/New_York') < timestamp '2020-07-08'",
        "(z at time zone 'America/New_York') between '2020-07-07 22:00:00'::timestamp and '2020-07-07 23:00:00'",
        "a = coalesce(a, timestamp '9999-12-31')",
        "coalesce(a, timestamp '2020-01-01') < timestamp '2020-01-02'",
        "a < timestamp '9999-12-31'",
        "case when q = 1 then a else timestamp '9999-12-31' end > timestamp '2262-01-01'",
        "day < timestamp '9999-12-31'",
        "f < 1e200",
        "t <> 'it''s' and f < 1e200",
        "t in ('x'', ''xx', 'xxx') and f < 1e301",
        "t = 'x'' or t = ''xx' and f < 1e301",
        "f > 1e-100 and f < 1E+90",
        "q <> 0 and 10 / q > 3",
        "q = 0 or 10 // q > 3",
        "id <> 3 and id <> 7 and length(lpad(t, q, '-')) = 1",
        "length(rpad(t, 20, ' ')) = 20",
    ],
)
def test_it_is_what_duckdb_says(table: pds.Table, where: str) -> None:
    shared = where.replace("10 / q", "10 // q")
    ids = table.scan(where=where.replace("//", "/")).to_pyarrow()["id"].to_pylist()
    assert rows().num_rows > 0
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("data", rows())
    expected = connection.execute(f"select id from data where {shared} order by id").fetchall()  # noqa: S608 own text
    assert sorted(ids) == [number for (number,) in expected]


@pytest.fixture(scope="module")
def truths() -> pds.Table:
    """All truth values and numbers with each other."""
    values = itertools.product((None, True, False), (None, True, False), (None, 1, 2), (None, 1, 2))
    columns = dict(zip("pqnm", zip(*values, strict=True), strict=True))
    data = pa.table({"id": range(81), **{name: list(column) for name, column in columns.items()}})
    created = pds.Table.create(pds.Store("memory://"), "t", data.schema, options=pds.WriteOptions(row_group_size=9))
    created.append(data)
    return created


@pytest.mark.parametrize("word", ["IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
@pytest.mark.parametrize(
    "where",
    [
        "p {} q AND n = 1",
        "p {} q OR n = 1",
        "n = 1 OR p {} q AND m = 2",
        "n = 1 AND p {} q OR m = 2",
        "NOT p {} q AND n = 1",
        "NOT n {} m OR p",
        "p {} n = 1 AND q",
        "n {} m AND p",
        "n + 1 {} m * 2 OR q IS NULL",
        "n BETWEEN 1 AND 2 AND m {} n AND p",
        "CASE WHEN n {} 1 OR m {} 2 THEN p ELSE q END AND n IS NOT NULL",
        "(p {} q OR p) {} q AND n = 2",
        "n {} NULL OR m in (1, 2) and p {} true or q",
        "p {} (q {} p) AND m = 1",
        "(p {} q) IS NOT NULL AND n = 1",
    ],
)
def test_what_follows_is_distinct_from_is_a_condition_of_its_own(truths: pds.Table, where: str, word: str) -> None:
    """The parser takes it for a part of the right side."""
    data, condition = truths.scan().to_pyarrow(), where.format(word, word)
    judged = duckdb.sql(f"SELECT id FROM data WHERE {condition} ORDER BY id").fetchall()  # noqa: S608 own text
    assert 0 < len(judged) < data.num_rows
    assert find(truths, condition) == [number for (number,) in judged]


def test_lengths_of_time_are_compared_with_intervals(table: pds.Table) -> None:
    lasts = rows()["lasts"].to_pylist()
    for text, length in [("1 day", 86_400), ("24 hours", 86_400), ("1 hour", 3_600), ("-25 hours", -90_000)]:
        limit = dt.timedelta(seconds=length)
        for sql, compare in COMPARISONS.items():
            ids = table.scan(where=f"lasts {sql} interval '{text}'").to_pyarrow()["id"].to_pylist()
            expected = [n for n, own in enumerate(lasts) if own is not None and compare(own, limit)]
            assert sorted(ids) == expected, (sql, text)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("a - b > interval '1 month'", "intervals cannot be compared"),
        ("interval '1 day' = interval '24 hours'", "intervals cannot be compared"),
        ("extract(hour from a - b) = 1", "epochs"),
        ("id << 1 > 5", "power of two"),
        ("id >> q = 1", "power of two"),
        ("to_timestamp(f) > timestamp '2020-01-01'", "floats"),
        ("a IS DISTINCT FROM b IS NULL", "brackets"),
        ("a IS DISTINCT FROM b NOTNULL", "brackets"),
        ("a IS NOT DISTINCT FROM b IS DISTINCT FROM c AND id = 1", "brackets"),
    ],
)
def test_what_has_no_right_result_is_refused(table: pds.Table, where: str, message: str) -> None:
    with pytest.raises(pds.InvalidInput, match=message):
        table.delete(where)
    assert table.version == 2


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("m + m > 0", "digits|precision|large"),
        ("cast(f as real) > 0", "range"),
        ("length(lpad(t, id * 1000000)) > 0", "padded to at most"),
        ("10 / q > 1", "zero"),
        ("10 / q > 1 and q <> 0", "zero"),
    ],
)
def test_a_row_without_a_right_result_is_an_error(table: pds.Table, where: str, message: str) -> None:
    with pytest.raises(pds.RemoteStoreError, match=message):
        table.scan(where=where).to_pyarrow()


@pytest.mark.parametrize("use_stats", [True, False])
def test_functions_of_times_have_a_value_or_fail(use_stats: bool) -> None:
    fields = {"id": pa.int64(), "at": pa.timestamp("us"), "n": pa.timestamp("ns"), "day": pa.date32()}
    schema = pa.schema(list(fields.items()))
    far = dt.datetime(9999, 12, 31)  # noqa: DTZ001 without a zone
    data = pa.table(
        {
            "id": [0, 1, 2],
            "at": pa.array([DAY, far, None], fields["at"]),
            "n": pa.array([0, 1 - 2**63, None], fields["n"]),
            "day": pa.array([0, 100_000_000, None], pa.int32()).cast(pa.date32()),
        }
    )
    created = pds.Table.create(pds.Store("memory://"), "t", schema)
    created.append(data)
    for where, function in {
        "date_bin(INTERVAL '1 day', at) IS NULL": "date_bin",
        "date_bin(INTERVAL '1 month', at) IS NULL": "date_bin",
        "NOT date_bin(INTERVAL '1 day', at) = TIMESTAMP '2020-01-01'": "date_bin",
        "date_part('year', day) IS NULL": "date_part",
        "extract(month FROM day) IS NULL": "date_part",
        "date_trunc('day', n) > TIMESTAMP '2200-01-01'": "date_trunc",
    }.items():
        with pytest.raises(pds.InvalidInput, match=f"{function} has no value for"):
            created.scan(where=where, use_stats=use_stats).to_pyarrow()
        with pytest.raises(pds.InvalidInput, match=f"{function} has no value for"):
            created.delete(where)
    assert created.scan().to_pyarrow().num_rows == 3
    for where, ids in {
        "at IS NULL AND date_bin(INTERVAL '1 day', at) IS NULL": [2],
        "at < TIMESTAMP '2262-01-01' AND date_bin(INTERVAL '1 day', at) = TIMESTAMP '2020-01-01'": [0],
        "CASE WHEN id <> 1 THEN date_part('year', day) END = 1970": [0],
        "id = 0 AND date_trunc('year', at) = TIMESTAMP '2020-01-01'": [0],
        "date_trunc('millisecond', TIMESTAMP '1969-12-31 23:59:59.9995') < TIMESTAMP '1970-01-01'": [0, 1, 2],
    }.items():
        scan = created.scan(["id"], where=where, use_stats=use_stats)
        assert scan.to_pyarrow()["id"].to_pylist() == ids, where


@pytest.mark.parametrize(("depth", "message"), [(14, "nested too deeply"), (40, "nested deeper than 16 levels")])
def test_nested_coalesce_ends(table: pds.Table, depth: int, message: str) -> None:
    text = "q"
    for number in range(depth):
        text = f"coalesce({text}, {number})"
    with pytest.raises(pds.InvalidInput, match=message):
        table.scan(where=f"{text} > 0").to_pyarrow()


def test_nested_calls(table: pds.Table) -> None:
    nested = "abs(" * 16 + "q" + ")" * 16
    assert table.scan(where=f"{nested} = 1 and ((((abs(q))))) in (1, 2)").to_pyarrow().num_rows == 2
    with pytest.raises(pds.InvalidInput, match="nested deeper than 16 levels"):
        table.scan(where=f"abs({nested}) = 1").to_pyarrow()


def test_text_that_is_no_utf8_is_refused() -> None:
    data = pa.array([b"\xff\xfe", b"ok"]).buffers()
    bad = pa.Array.from_buffers(pa.string(), 2, data)
    created = pds.Table.create(pds.Store("memory://"), "t", pa.schema([("t", pa.string())]))
    nested = pa.StructArray.from_arrays([bad], ["t"])
    for column in (bad, bad.cast(pa.string_view()), pa.DictionaryArray.from_arrays(pa.array([0, 1]), bad)):
        with pytest.raises(pds.InvalidInput, match="UTF-8"):
            created.append(pa.table({"t": column}))
    other = pds.Table.create(pds.Store("memory://"), "t", pa.schema([("s", nested.type)]))
    with pytest.raises(pds.InvalidInput, match="UTF-8"):
        other.append(pa.table({"s": nested}))
    # What is not visible may be anything.
    hidden = pa.StructArray.from_arrays([bad], ["t"], mask=pa.array([True, False]))
    other.append(pa.table({"s": hidden}))
    assert other.scan().to_pyarrow()["s"].to_pylist() == [None, {"t": "ok"}]

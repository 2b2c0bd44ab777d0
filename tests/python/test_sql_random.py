"""Random filters in `pds.sql` find what DuckDB finds in a table of its own."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pds

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
# Of each column: its type, stored values, and literals of SQL that it is compared with.
COLUMNS: dict[str, tuple[pa.DataType, list[object], list[str]]] = {
    "small": (pa.int8(), [-128, 0, 1, 127], ["0", "1", "-128", "127", "1.5", "300"]),
    "id": (pa.int64(), [-(2**63), 0, 2**53 + 1, 2**63 - 1], ["0", "9007199254740993", "-9223372036854775808", "0.5"]),
    "u": (pa.uint64(), [0, 2**53 + 1, 2**64 - 1], ["0", "18446744073709551615", "9007199254740992"]),
    "x": (
        pa.float64(),
        [-0.0, 0.1, 1e300, float("nan"), float("inf"), -float("inf")],
        ["0", "0.1", "-0.0", "'nan'::DOUBLE", "'inf'::DOUBLE", "1e300"],
    ),
    "f": (pa.float32(), [0.0, 0.5, float("nan")], ["0.5", "0.1::FLOAT", "'nan'::FLOAT", "1"]),
    "text": (pa.string(), ["", "a", "ab", "a%", "é", "it's"], ["''", "'a'", "'a%'", "'it''s'", "'z'"]),
    "kind": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], ["'a'", "'c'"]),
    "bytes": (pa.binary(), [b"", b"\xff", b"a"], [r"'\xFF'::BLOB", "'a'::BLOB"]),
    "flag": (pa.bool_(), [True, False], ["true", "false"]),
    "day": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2026, 3, 1)], ["DATE '2026-03-01'", "DATE '1900-01-01'"]),
    "utc": (
        pa.timestamp("us", "UTC"),
        [NOON, NOON + dt.timedelta(microseconds=1)],
        ["TIMESTAMPTZ '2026-03-01 12:00:00+00'", "TIMESTAMPTZ '2026-03-01 13:00:00+01'", "'2026-03-02'::TIMESTAMPTZ"],
    ),
    "local": (
        pa.timestamp("ns"),
        [NOON.replace(tzinfo=None), dt.datetime(1700, 1, 1)],  # noqa: DTZ001
        ["TIMESTAMP '2026-03-01 12:00:00'", "TIMESTAMP '1900-01-01 00:00:00'", "DATE '2026-03-01'"],
    ),
    "price": (pa.decimal128(10, 2), [Decimal("-0.01"), Decimal("3.50"), None], ["3.5", "3", "-0.01", "3.501"]),
    "clock": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999_999)], ["TIME '00:00:00'", "TIME '12:00:00'"]),
}
SCHEMA = pa.schema([("row", pa.int64())] + [(name, data_type) for name, (data_type, *_) in COLUMNS.items()])


@pytest.fixture(scope="module")
def engines() -> tuple[pds.Table, duckdb.DuckDBPyConnection]:
    """The same rows as a table of several files and row groups, and as one of DuckDB."""
    table = pds.Table.create(pds.Store("memory://"), "t", SCHEMA, options=pds.WriteOptions(row_group_size=6))
    for seed in range(6):
        chance = random.Random(seed)
        arrays: list[pa.Array] = [pa.array(range(seed * 20, seed * 20 + 20), pa.int64())]
        for data_type, values, _ in COLUMNS.values():
            chosen = chance.sample(values, min(2, len(values))) if seed % 2 else values
            storage = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
            column = pa.array([chance.choice([None, *chosen]) for _ in range(20)], storage)
            arrays.append(column.dictionary_encode().cast(data_type) if storage is not data_type else column)
        table.append(pa.Table.from_arrays(arrays, schema=SCHEMA))
    table.delete('"row" % 7 = 3')
    connection = duckdb.connect()
    connection.register("rows", table.scan().to_pyarrow())
    connection.execute("CREATE TABLE t AS FROM rows")
    return table, connection


@st.composite
def comparisons(draw: st.DrawFn) -> str:  # noqa: PLR0911 a kind of comparison each
    name = draw(st.sampled_from(list(COLUMNS)))
    literal = st.sampled_from(COLUMNS[name][2])
    column = f'"{name}"'
    kind = draw(st.sampled_from(["compare", "mirrored", "in", "between", "null", "distinct", "other"]))
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    if kind == "compare":
        return f"{column} {operator} {draw(literal)}"
    if kind == "mirrored":
        return f"{draw(literal)} {operator} {column}"
    if kind == "in":
        values = draw(st.lists(st.one_of(literal, st.just("NULL")), min_size=1, max_size=4))
        return f"{column} {draw(st.sampled_from(['', 'NOT ']))}IN ({', '.join(values)})"
    if kind == "between":
        return f"{column} BETWEEN {draw(literal)} AND {draw(literal)}"
    if kind == "distinct":
        return f"{column} IS {draw(st.sampled_from(['', 'NOT ']))}DISTINCT FROM {draw(literal)}"
    if kind == "other":
        return draw(
            st.sampled_from(
                [
                    "flag",
                    "text LIKE 'a%'",
                    "starts_with(text, 'a%')",
                    "isnan(x)",
                    "x > f",
                    "length(text) > 1",
                    "small + 1 > 1",
                ]
            )
        )
    return f"{column} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"


FILTERS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]} AND {pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]} OR {pair[1]})"),
        inner.map(lambda text: f"(NOT {text})"),
    ),
    max_leaves=5,
)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(FILTERS)
def test_random_filters(engines: tuple[pds.Table, duckdb.DuckDBPyConnection], condition: str) -> None:
    table, connection = engines
    query = f'SELECT "row" FROM t WHERE {condition} ORDER BY ALL'  # noqa: S608 ours
    results: list[object] = []
    for run in (lambda: pds.sql(query, t=table), lambda: connection.sql(query)):
        try:
            results.append(run().fetchall())
        except duckdb.Error as error:
            results.append(type(error))
    if isinstance(results[1], type):
        # Statistics may leave no row for which a value overflows.
        assert results[0] in (results[1], []), condition
    else:
        assert results[0] == results[1], condition

"""Random predicates over random tables, judged by the same predicate without statistics and by DuckDB.

A predicate is a tree of small statements about columns, which says itself in three languages: the table's SQL,
DuckDB's SQL and (some of it) as a pyarrow expression. DuckDB means something else than the engine here, and the
generator keeps to what both mean, while the comparison with `use_stats=False` covers the rest (`any_sql`):

- DuckDB rounds `CAST(5.5 AS BIGINT)`, a decimal to fewer digits and a time to a coarser unit; the engine cuts.
- DuckDB has one type of time with a zone, in microseconds, and none of time in units other than microseconds:
  columns are given to it in those, and literals have at most six digits.
- DuckDB writes floats and times as text in another way: casts to VARCHAR are of integers, decimals and days only.
- DuckDB takes a comparison of a FLOAT with a number to be one of FLOATs, the engine one of DOUBLEs: numbers that
  a FLOAT is compared with are exact in both.
- Where DuckDB compares numbers with a fraction with integers it rounds the number where the decimal type that holds
  both would be too wide; the engine compares exactly.
- The engine refuses NOT of IS DISTINCT FROM between times of different units, when it plans it.
- Division by zero is NULL in DuckDB and an error in the engine; so is an overflow. Nothing is divided here.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, note
from hypothesis import strategies as st

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 columns without a zone
FIELDS = [
    *(pa.field(name, pa.type_for_alias(name)) for name in INTEGERS),
    pa.field("float32", pa.float32()),
    pa.field("float64", pa.float64()),
    pa.field("cents", pa.decimal128(7, 2)),
    pa.field("whole", pa.decimal128(5, 0)),
    pa.field("fine", pa.decimal128(20, 10)),
    *(pa.field(f"ts_{unit}", pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
    *(pa.field(f"utc_{unit}", pa.timestamp(unit, "UTC")) for unit in ("s", "us")),
    pa.field("berlin", pa.timestamp("ms", "Europe/Berlin")),
    pa.field("day", pa.date32()),
    pa.field("t_s", pa.time32("s")),
    pa.field("t_ms", pa.time32("ms")),
    pa.field("t_us", pa.time64("us")),
    pa.field("flag", pa.bool_()),
    pa.field("name", pa.string()),
    pa.field("large", pa.large_string()),
    pa.field("bytes", pa.binary()),
]
SCHEMA = pa.schema(FIELDS)
LOW, HIGH = -3_000_000, 3_000_000
TEXTS = st.text("ab%_\\é~", max_size=3)


def _integers(data_type: pa.DataType) -> st.SearchStrategy[int]:
    signed = pa.types.is_signed_integer(data_type)
    low = -(2 ** (data_type.bit_width - 1)) if signed else 0
    high = 2 ** (data_type.bit_width - signed) - 1
    around = [low, low + 1, high - 1, high, 2**53, 2**53 + 1]
    return st.integers(max(low, -5), 5) | st.sampled_from([v for v in around if low <= v <= high])


def _values(data_type: pa.DataType) -> st.SearchStrategy[Any]:  # noqa: PLR0911 a case for each type
    """Few values, near to each other and to those of literals."""
    if pa.types.is_integer(data_type):
        return _integers(data_type)
    if pa.types.is_floating(data_type):
        return st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, -1.5, 2.0, 3.0, -3.0])
    if pa.types.is_decimal(data_type):
        steps = st.integers(-40, 40).map(lambda n: Decimal(n).scaleb(-1) if data_type.scale else Decimal(n))
        return steps | st.sampled_from([Decimal(1).scaleb(-data_type.scale), Decimal(99_999)])
    if pa.types.is_timestamp(data_type):
        ticks = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[data_type.unit]
        days = st.sampled_from([0, -86_400, 86_400]).map(lambda n: n * ticks)
        return st.builds(lambda day, n: day + n, days, st.integers(-2 * min(ticks, 10**6), 2 * min(ticks, 10**6)))
    if pa.types.is_date(data_type):
        return st.integers(-2, 2)
    if pa.types.is_time(data_type):
        ticks = {"s": 1, "ms": 1_000, "us": 1_000_000}[data_type.unit]
        return st.sampled_from([0, 1, 2, 43_200 * ticks, 43_200 * ticks + 1, 86_400 * ticks - 1])
    if pa.types.is_boolean(data_type):
        return st.booleans()
    return TEXTS.map(str.encode) if pa.types.is_binary(data_type) else TEXTS


@st.composite
def _batches(draw: st.DrawFn, fields: list[pa.Field]) -> pa.Table:
    rows = draw(st.integers(1, 12))
    columns = []
    for field in fields:
        values = draw(st.lists(st.none() | _values(field.type), min_size=rows, max_size=rows))
        columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=pa.schema(fields))


class Says(NamedTuple):
    """A predicate in the languages of the table, of DuckDB and of pyarrow."""

    ours: str
    duck: str
    arrow: pc.Expression | None


def _same(text: str, arrow: pc.Expression | None = None) -> Says:
    return Says(text, text, arrow)


class Literal(NamedTuple):
    """A constant in those languages; the scalar is None where pyarrow would compare in another way."""

    ours: str
    duck: str
    scalar: pa.Scalar | None


def _moment(micros: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros)


@st.composite
def _literals(draw: st.DrawFn, data_type: pa.DataType) -> Literal:  # noqa: C901, PLR0911 a case for each type
    """A constant to compare a column with, often finer or wider than the column's type."""
    if pa.types.is_integer(data_type) or pa.types.is_decimal(data_type):
        number = draw(_integers(pa.int64()) | st.integers(-60, 60))
        if draw(st.booleans()) or (pa.types.is_integer(data_type) and abs(number) > 100):
            scalar = pa.scalar(number) if pa.types.is_integer(data_type) else None
            return Literal(str(number), str(number), scalar)
        digits = draw(st.integers(1, 4))
        text = f"{Decimal(draw(st.integers(-600, 600))).scaleb(-digits):f}"
        # The widths that DuckDB needs to compare exactly.
        duck = f"CAST({text} AS DECIMAL(38, 10))" if pa.types.is_decimal(data_type) else f"CAST({text} AS DOUBLE)"
        return Literal(text, duck, None)
    if pa.types.is_floating(data_type):
        value = draw(_values(data_type))
        text = f"'{value}'::double" if not math.isfinite(value) else repr(value)
        return Literal(text, f"'{value}'::double", pa.scalar(value, data_type))
    if pa.types.is_timestamp(data_type):
        half = draw(st.sampled_from([0, 1, 500, 500_000, 999_999, 1_000_000, -1, -500_000, -1_000_000]))
        moment = _moment(draw(st.sampled_from([0, 0, 86_400_000_000, -86_400_000_000])) + half)
        text = f"{moment:%Y-%m-%d %H:%M:%S.%f}"
        kind = "TIMESTAMPTZ" if data_type.tz else "TIMESTAMP"
        zone = "+00" if data_type.tz else ""
        scalar = pa.scalar(moment, pa.timestamp("us", data_type.tz and "UTC"))
        if draw(st.booleans()) and moment.microsecond == 0 and moment.second == 0 and not data_type.tz:
            return Literal(f"DATE '{moment:%Y-%m-%d}'", f"TIMESTAMP '{moment:%Y-%m-%d}'", None)
        plain = f"'{text}{zone}'"
        ours = plain if draw(st.booleans()) else f"TIMESTAMP{' WITH TIME ZONE' if data_type.tz else ''} {plain}"
        return Literal(ours, f"{kind} {plain}", None if data_type.tz else scalar)
    if pa.types.is_date(data_type):
        day = EPOCH.date() + dt.timedelta(days=draw(st.integers(-2, 2)))
        if draw(st.booleans()):
            return Literal(f"DATE '{day}'", f"DATE '{day}'", pa.scalar(day))
        return Literal(f"TIMESTAMP '{day} 12:00:00'", f"TIMESTAMP '{day} 12:00:00'", None)
    if pa.types.is_time(data_type):
        text = draw(st.sampled_from(["00:00:00", "00:00:00.000001", "00:00:01.5", "12:00:00.001", "23:59:59.999"]))
        return Literal(draw(st.sampled_from([f"TIME '{text}'", f"'{text}'"])), f"TIME '{text}'", None)
    if pa.types.is_boolean(data_type):
        flag = draw(st.booleans())
        return Literal(str(flag), str(flag), pa.scalar(flag))
    text = draw(TEXTS)
    if pa.types.is_binary(data_type):
        octets = "".join(f"\\x{byte:02X}" for byte in text.encode())
        return Literal(f"X'{text.encode().hex()}'", f"'{octets}'::BLOB", pa.scalar(text.encode()))
    return Literal(f"'{text}'", f"'{text}'", pa.scalar(text, data_type))


ORDER = {"=": "__eq__", "<>": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}


@st.composite
def _leaves(draw: st.DrawFn, fields: list[pa.Field]) -> Says:  # noqa: PLR0911 a case for each form
    field = draw(st.sampled_from(fields))
    name, column = field.name, pc.field(field.name)
    form = draw(st.sampled_from(["order", "order", "order", "between", "in", "null", "like", "sum", "distinct"]))
    if form == "null":
        return draw(
            st.sampled_from(
                [_same(f"{name} IS NULL", column.is_null()), _same(f"{name} IS NOT NULL", column.is_valid())]
            )
        )
    if form == "like" and pa.types.is_string(field.type):
        pattern = draw(st.text("ab%_é~", max_size=3))
        negated = draw(st.sampled_from(["", "NOT "]))
        return _same(f"{name} {negated}LIKE '{pattern}'")
    one = draw(_literals(field.type))
    if form == "between":
        other = draw(_literals(field.type))
        # DuckDB compares all values of a BETWEEN and of a list in one type, as doubles where one is a double.
        duck = f"({name} >= {one.duck} AND {name} <= {other.duck})"
        return Says(f"{name} BETWEEN {one.ours} AND {other.ours}", duck, None)
    if form == "in":
        values = [one, *draw(st.lists(_literals(field.type), max_size=30))]
        negated = draw(st.sampled_from(["", "NOT "]))
        ours = f"{name} {negated}IN ({', '.join(value.ours for value in values)})"
        duck = f"{negated}({' OR '.join(f'{name} = {value.duck}' for value in values)})"
        return Says(ours, duck, None)
    operator = draw(st.sampled_from([*ORDER]))
    if form == "distinct" and not pa.types.is_time(field.type):
        operator = draw(st.sampled_from(["IS DISTINCT FROM", "IS NOT DISTINCT FROM"]))
        return Says(f"{name} {operator} {one.ours}", f"{name} {operator} {one.duck}", None)
    if form == "sum" and field.name in {"int8", "int16", "uint8", "uint16", "int32"}:
        value = draw(st.integers(-3, 3))
        # In a type in which nothing overflows.
        left = f"CAST({name} AS BIGINT) * {value} - 1"
        return Says(f"{left} {operator} {one.ours}", f"{left} {operator} {one.duck}", None)
    if draw(st.integers(0, 4)) == 0:
        return Says(f"{one.ours} {operator} {name}", f"{one.duck} {operator} {name}", None)
    # NaN is no number for pyarrow.
    arrow = None
    if one.scalar is not None and not pa.types.is_floating(field.type) and not pa.types.is_integer(field.type):
        arrow = getattr(column, ORDER[operator])(one.scalar)
    return Says(f"{name} {operator} {one.ours}", f"{name} {operator} {one.duck}", arrow)


def _nested(leaves: st.SearchStrategy[Says]) -> st.SearchStrategy[Says]:
    def both(a: Says, b: Says, word: str) -> Says:
        arrow = None
        if a.arrow is not None and b.arrow is not None:
            arrow = a.arrow & b.arrow if word == "AND" else a.arrow | b.arrow
        return Says(f"({a.ours}) {word} ({b.ours})", f"({a.duck}) {word} ({b.duck})", arrow)

    def negated(a: Says) -> Says:
        return Says(f"NOT ({a.ours})", f"NOT ({a.duck})", None if a.arrow is None else ~a.arrow)

    def is_null(a: Says) -> Says:
        return Says(f"({a.ours}) IS NULL", f"({a.duck}) IS NULL", None)

    def extend(inner: st.SearchStrategy[Says]) -> st.SearchStrategy[Says]:
        return st.one_of(
            st.builds(both, inner, inner, st.sampled_from(["AND", "OR"])), inner.map(negated), inner.map(is_null)
        )

    return st.recursive(leaves, extend, max_leaves=5)


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[pa.Field], list[pa.Table], list[Says]]:
    fields = draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique_by=lambda f: f.name))
    files = draw(st.lists(_batches(fields), min_size=1, max_size=3))
    return fields, files, draw(st.lists(_nested(_leaves(fields)), min_size=4, max_size=8))


def _create(store: pds.Store, fields: list[pa.Field], files: list[pa.Table], key: str | None = None) -> pds.Table:
    schema = pa.schema([pa.field("row", pa.int64()), *fields])
    table = pds.Table.create(store, "t", schema, key=key or (), options=pds.WriteOptions(row_group_size=4))
    for rows in _numbered(files):
        table.append(rows)
    return table


def _numbered(files: list[pa.Table]) -> Iterator[pa.Table]:
    at = 0
    for rows in files:
        yield rows.add_column(0, "row", pa.array(range(at, at + rows.num_rows), pa.int64()))
        at += rows.num_rows


def _for_duckdb(rows: pa.Table) -> pa.Table:
    """The rows in types that DuckDB has."""
    columns = []
    for column in rows.columns:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.tz:
            column = column.cast(pa.timestamp("us", "UTC"))  # noqa: PLW2901 the same column
        elif pa.types.is_time(kind):
            column = column.cast(pa.time64("us"))  # noqa: PLW2901
        columns.append(column)
    return pa.table(columns, rows.schema.names)


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET threads = 1")
    return connection


def _judged(rows: pa.Table, predicate: str) -> list[int]:
    _duckdb().register("numbered", _for_duckdb(rows))
    found = _duckdb().execute(f"SELECT row FROM numbered WHERE {predicate} ORDER BY row").fetchall()  # noqa: S608
    return [row for (row,) in found]


def _found(table: pds.Table, where: str | pc.Expression, *, use_stats: bool = True) -> list[int]:
    return sorted(table.scan(["row"], where=where, use_stats=use_stats).to_pyarrow()["row"].to_pylist())


@given(_tables())
def test_scans_find_what_duckdb_finds(drawn: tuple[list[pa.Field], list[pa.Table], list[Says]]) -> None:
    fields, files, predicates = drawn
    with pds.Store("memory://") as store:
        table = _create(store, fields, files)
        whole = table.scan().to_pyarrow()
        for says in predicates:
            note(f"{says.ours}\n{says.duck}\n{whole.to_pydict()}")
            expected = _judged(whole, says.duck)
            assert _found(table, says.ours, use_stats=False) == expected
            assert _found(table, says.ours) == expected
            if says.arrow is not None:
                assert _found(table, says.arrow, use_stats=False) == expected
                assert _found(table, says.arrow) == expected


@given(_tables(), st.data())
def test_deletes_and_overwrites_leave_what_duckdb_leaves(
    drawn: tuple[list[pa.Field], list[pa.Table], list[Says]], data: st.DataObject
) -> None:
    fields, files, predicates = drawn
    key = data.draw(st.sampled_from([None, fields[0].name]))
    with pds.Store("memory://") as store:
        table = _create(store, fields, files, key)
        left = table.scan().to_pyarrow()
        for says in predicates:
            note(f"{says.ours}\n{says.duck}\n{left.to_pydict()}")
            gone = set(_judged(left, says.duck))
            if data.draw(st.booleans()):
                done = table.delete(says.ours)
                assert done.rows in (None, len(gone))
                keep = [at for at, row in enumerate(left["row"].to_pylist()) if row not in gone]
                left = left.take(pa.array(keep, pa.int64()))
            else:
                # The rows for which it holds, for themselves.
                table.overwrite(left.filter(pc.is_in(left["row"], pa.array(list(gone), pa.int64()))), where=says.ours)
            found = table.scan().to_pyarrow().sort_by("row")
            assert found["row"].to_pylist() == sorted(left["row"].to_pylist())


@given(_tables())
def test_merges_decide_as_duckdb_does(drawn: tuple[list[pa.Field], list[pa.Table], list[Says]]) -> None:
    fields, files, predicates = drawn
    with pds.Store("memory://") as store:
        table = _create(store, fields, files, "row")
        whole = table.scan().to_pyarrow()
        for says in predicates[:3]:
            note(f"{says.ours}\n{says.duck}\n{whole.to_pydict()}")
            gone = set(_judged(whole, says.duck))
            # Names of the table's columns stand for themselves where the source has only the key.
            done = table.merge(whole.select(["row"])).when_matched_delete(
                predicate=says.ours.replace("row", "target.row")
            )
            done.execute()
            left = [row for row in whole["row"].to_pylist() if row not in gone]
            assert sorted(table.scan().to_pyarrow()["row"].to_pylist()) == sorted(left)
            whole = table.scan().to_pyarrow()


CASTS = [
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "TINYINT UNSIGNED", "BIGINT UNSIGNED", "REAL", "DOUBLE", "VARCHAR"),
    *("DECIMAL(4, 1)", "DECIMAL(12, 3)", "BOOLEAN", "DATE", "TIME", "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)"),
    *("TIMESTAMP(9)", "TIMESTAMP WITH TIME ZONE"),
]


@st.composite
def _cast_predicates(draw: st.DrawFn, fields: list[pa.Field]) -> str:
    """A comparison of casts, whether or not anybody else means the same by it."""
    names = st.sampled_from([field.name for field in fields])
    function = st.sampled_from(["TRY_CAST", "TRY_CAST", "CAST"])

    def casted(inner: str) -> str:
        return f"{draw(function)}({inner} AS {draw(st.sampled_from(CASTS))})"

    left = casted(draw(names))
    if draw(st.booleans()):
        left = casted(left)
    field = draw(st.sampled_from(FIELDS))
    right = draw(_literals(field.type)).ours
    if draw(st.booleans()):
        right = casted(right)
    form = draw(st.sampled_from([*ORDER, "IN", "NOT IN", "IS", "IS DISTINCT FROM", "BETWEEN"]))
    if form in ("IN", "NOT IN"):
        return f"{left} {form} ({right}, {draw(_literals(field.type)).ours})"
    if form == "IS":
        return f"({left} = {right}) IS {draw(st.sampled_from(['TRUE', 'FALSE', 'NOT TRUE', 'NULL', 'NOT NULL']))}"
    if form == "BETWEEN":
        return f"{left} BETWEEN {right} AND {draw(_literals(field.type)).ours}"
    return f"{left} {form} {right}"


@st.composite
def _cast_tables(draw: st.DrawFn) -> tuple[list[pa.Field], list[pa.Table], list[str]]:
    fields = draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=2, unique_by=lambda f: f.name))
    files = draw(st.lists(_batches(fields), min_size=1, max_size=3))
    words = st.sampled_from(["AND", "OR", "AND NOT"])
    leaves = _cast_predicates(fields)
    trees = st.builds(lambda a, word, b: f"({a}) {word} ({b})", leaves, words, leaves)
    return fields, files, draw(st.lists(leaves | trees, min_size=10, max_size=20))


@given(_cast_tables())
def test_any_sql_finds_the_same_with_and_without_statistics(
    drawn: tuple[list[pa.Field], list[pa.Table], list[str]],
) -> None:
    """What cannot be evaluated row by row may be found without an error: fewer rows are looked at."""
    fields, files, predicates = drawn
    with pds.Store("memory://") as store:
        table = _create(store, fields, files)
        for predicate in predicates:
            note(predicate)
            try:
                expected = _found(table, predicate, use_stats=False)
            except pds.InvalidInput:
                continue
            assert _found(table, predicate) == expected


ARROW_CASTS = [
    *(pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.bool_(), pa.date32()),
    *(pa.decimal128(7, 1), pa.decimal128(20, 4), pa.timestamp("s"), pa.timestamp("ns"), pa.time64("us")),
]


@st.composite
def _arrow_predicates(draw: st.DrawFn, field: pa.Field) -> pc.Expression | None:
    data_type = draw(st.sampled_from(ARROW_CASTS))
    value = draw(_values(data_type))
    try:
        literal = pa.scalar(value, data_type)
        column = pc.field(field.name).cast(data_type, safe=draw(st.booleans()))
        compared = getattr(column, ORDER[draw(st.sampled_from([*ORDER]))])(literal)
    except pa.ArrowException:
        return None
    return draw(st.sampled_from([compared, ~compared, compared.is_null(), column.isin(pa.array([value], data_type))]))


@given(st.data())
def test_any_expression_finds_the_same_with_and_without_statistics(data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(FIELDS))
    files = data.draw(st.lists(_batches([field]), min_size=1, max_size=3))
    with pds.Store("memory://") as store:
        table = _create(store, [field], files)
        for expression in data.draw(st.lists(_arrow_predicates(field), min_size=10, max_size=20)):
            if expression is None:
                continue
            try:
                expected = _found(table, expression, use_stats=False)
            except pds.InvalidInput:
                continue
            assert _found(table, expression) == expected, expression

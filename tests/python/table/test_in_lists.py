"""Long IN lists: the rows are those of a scan without pruning, and those that DuckDB finds."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import random
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(3)

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("big", pa.int64()),
        ("small", pa.int8()),
        ("natural", pa.uint64()),
        ("price", pa.decimal128(12, 2)),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("day", pa.date32()),
        ("at", pa.timestamp("ms")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("flag", pa.bool_()),
    ]
)
FILES = 12
ROWS = 60
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 the column has no time zone


VALUES: dict[str, Callable[[int], object]] = {
    "big": lambda n: n * 10**15 if n % 7 else n,
    "small": lambda n: max(-128, min(127, n // 3)),
    "natural": lambda n: 2**63 + n,
    "price": lambda n: decimal.Decimal(n) / 4,
    "x": lambda n: (float("nan"), -0.0, 0.0, float("inf"))[n % 4] if n % 9 == 0 else n / 8,
    "name": lambda n: f"n{n + 10_000:05}",
    "kind": lambda n: f"k{(n + 10_000) // 40}",
    "day": lambda n: dt.date(1970, 1, 1) + dt.timedelta(days=n),
    "at": lambda n: EPOCH + dt.timedelta(milliseconds=8_000_137 * n),
    "zoned": lambda n: (EPOCH + dt.timedelta(microseconds=1_000_003 * n)).replace(tzinfo=dt.UTC),
    "flag": lambda n: n >= 0,
}


def _value(column: str, n: int) -> object:
    """The value of a column that belongs to a number; numbers beside one another have neighbouring values."""
    return VALUES[column](n - FILES * ROWS // 2)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else " WITH TIME ZONE"
        return f"TIMESTAMP{zone} '{value.isoformat(' ')}'"
    if isinstance(value, dt.date):
        return f"DATE '{value}'"
    if isinstance(value, str):
        return f"'{value}'"
    return f"'{value}'::double" if isinstance(value, float) else str(value)


@pytest.fixture(scope="module")
def rows() -> list[pa.Table]:
    """The rows of each file, in the order of their values; some values are null, some columns all null."""
    chance = random.Random(5)
    tables = []
    for number in range(FILES):
        columns = {"row": [number * ROWS + n for n in range(ROWS)]}
        for column in SCHEMA.names[1:]:
            share = chance.choice([0, 0, 0.2, 1])
            columns[column] = [None if chance.random() < share else _value(column, n) for n in columns["row"]]
        tables.append(pa.table(columns, SCHEMA))
    return tables


@pytest.fixture(scope="module")
def table(rows: list[pa.Table]) -> pds.Table:
    options = pds.WriteOptions(row_group_size=17)
    table = pds.Table.create(pds.Store("memory://"), "t", SCHEMA, options=options)
    for part in rows:
        table.append(part)
    return table


def _predicates(chance: random.Random, column: str) -> list[str]:
    begin = chance.randrange(-50, FILES * ROWS)
    step = chance.choice([1, 1, 13])
    values = [_value(column, begin + n * step) for n in range(chance.choice([21, 33, 200]))]
    chance.shuffle(values)
    values[chance.randrange(len(values))] = chance.choice([values[0], None])
    literals = ", ".join(map(_literal, values))
    return [
        f'"{column}" IN ({literals})',
        f'"{column}" NOT IN ({literals})',
        f'NOT ("{column}" IN ({literals})) OR "row" = 5',
        f'"{column}" IN ({literals}) AND "row" % 3 = 1',
        f'("{column}" IN ({literals}) OR "{column}" IS NULL) AND "row" > 100',
        f'("{column}" IN ({literals})) IS FALSE',
    ]


@pytest.mark.parametrize("column", SCHEMA.names[1:])
def test_long_lists(table: pds.Table, rows: list[pa.Table], column: str) -> None:
    chance = random.Random(column)
    numbered = pa.concat_tables(rows)  # noqa: F841 duckdb finds it by its name
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    found = 0
    for _ in range(6):
        for predicate in _predicates(chance, column):
            ids = table.scan(["row"], where=predicate).to_pyarrow()["row"].to_pylist()
            whole = table.scan(["row"], where=predicate, use_stats=False).to_pyarrow()["row"].to_pylist()
            assert ids == whole, predicate
            judged = connection.sql(f"SELECT row FROM numbered WHERE {predicate} ORDER BY row").fetchall()  # noqa: S608
            assert ids == [row for (row,) in judged], predicate
            found += len(ids)
    assert found


@pytest.mark.parametrize(
    ("column", "cast"),
    [("big", "DECIMAL(30, 3)"), ("big", "DOUBLE"), ("small", "BIGINT"), ("price", "BIGINT"), ("at", "DATE")],
)
def test_long_lists_behind_casts(table: pds.Table, column: str, cast: str) -> None:
    chance = random.Random(cast)
    for _ in range(6):
        begin = chance.randrange(FILES * ROWS)
        values = [_value(column, begin + n) for n in range(40)]
        literals = ", ".join(f"CAST({_literal(value)} AS {cast})" for value in values)
        for predicate in (f"CAST({column} AS {cast}) IN ({literals})", f"CAST({column} AS {cast}) NOT IN ({literals})"):
            ids = table.scan(["row"], where=predicate).to_pyarrow()["row"].to_pylist()
            whole = table.scan(["row"], where=predicate, use_stats=False).to_pyarrow()["row"].to_pylist()
            assert ids == whole, predicate
            assert ids or "NOT" not in predicate


def test_numbers_between_the_values_of_a_column(table: pds.Table) -> None:
    halves = ", ".join(str(n + 0.5) for n in range(-40, 40))
    assert table.scan(where=f"small IN ({halves})").count() == 0
    assert table.scan(where=f"small IN ({halves}, 3)").count() == table.scan(where="small = 3").count()
    beyond = ", ".join(str(2**63 + n) for n in range(50))
    assert table.scan(where=f"big IN ({beyond})").count() == 0
    assert table.scan(where=f"big NOT IN ({beyond})").count() == table.scan(where="big IS NOT NULL").count()


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/Lima"])
def test_timestamps_beyond_the_range_of_nanoseconds(unit: str, zone: str | None) -> None:
    """Beside literals within it: what is compared is never converted to nanoseconds."""
    years = [1, 1582, 1676, 1969, 2026, 2263, 9999]
    naive = [dt.datetime(year, 1, 1) for year in years]  # noqa: DTZ001 as SQL reads it: UTC
    column = pa.array([*naive, None], pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
    table = pds.Table.create(pds.Store("memory://"), "t", pa.schema([("at", column.type)]))
    table.append(pa.table({"at": column}))
    literals = [*naive, *(value + dt.timedelta(milliseconds=500) for value in naive)]
    for prefix in ("TIMESTAMP ", ""):
        # Each beside itself, its neighbor, one far away and one with a half second.
        for (at, first), distance in itertools.product(enumerate(literals), (0, 1, 4, 7)):
            second = literals[(at + distance) % len(literals)]
            one, two = f"{prefix}'{first}'", f"{prefix}'{second}'"
            for where, holds in (
                (f"at = {one}", [value == first for value in naive]),
                (f"at < {two}", [value < second for value in naive]),
                (f"at IN ({one}, {two})", [value in (first, second) for value in naive]),
                (f"at NOT IN ({one}, {two})", [value not in (first, second) for value in naive]),
                (f"at BETWEEN {one} AND {two}", [first <= value <= second for value in naive]),
            ):
                for use_stats in (True, False):
                    assert table.scan(where=where, use_stats=use_stats).count() == sum(holds), where


@pytest.mark.parametrize(
    "where", ["at = TIMESTAMP '2500-01-01 00:00:00.0000005'", "at = '2500-01-01 00:00:00.0000005'"]
)
def test_a_timestamp_that_no_unit_holds_is_refused(where: str) -> None:
    table = pds.Table.create(pds.Store("memory://"), "t", pa.schema([("at", pa.timestamp("us"))]))
    table.append(pa.table({"at": pa.array([dt.datetime(2500, 1, 1)], pa.timestamp("us"))}))  # noqa: DTZ001 no zone
    with pytest.raises(pds.InvalidInput):
        table.delete(where)
    assert table.scan().count() == 1

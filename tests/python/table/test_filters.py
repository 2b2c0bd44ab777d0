"""Filters and deletes, with DuckDB as the judge."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pyarrow as pa
import pytest

import pds

pytestmark = pytest.mark.sampled(2)

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.uint8()),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("Unit Price", pa.int32()),
        ("empty", pa.int32()),
    ]
)
FILES = 4
ROWS = 300
PREDICATES = [
    "id = 5",
    "id BETWEEN 100 AND 350",
    "id < 0",
    "id > 1000000",
    "id IN (1, 299, 300, 301, 777)",
    "NOT (id >= 10)",
    "id % 7 = 3 AND x > 0.5",
    "small = 255",
    "small > 250 OR id < 3",
    "x > 0.9",
    "x = 'NaN'::double",
    "NOT (x < 0.5)",
    "x IS NULL",
    "name LIKE 'a%'",
    "name = 'b17'",
    "name IS NOT NULL AND name < 'b'",
    "name IN ('a1', 'c2')",
    "upper(name) = 'C5'",
    "length(name) = 2",
    "day = DATE '2020-02-01'",
    "day >= DATE '2020-06-01' AND day < DATE '2020-07-01'",
    "\"at\" < TIMESTAMP WITH TIME ZONE '2020-01-01 00:30:00+00'",
    "price > 3.50",
    "price BETWEEN 1.00 AND 1.10",
    "price = 2",
    "flag",
    "NOT flag AND id < 50",
    "flag IS NULL",
    '"Unit Price" > 90',
    "empty IS NULL AND id < 4",
    "empty > 3",
    "true",
    "false",
    "id = 5 OR NULL",
    "CASE WHEN id < 9 THEN flag ELSE false END",
    "id>-1",
    "id>=-5 AND id*-1<-3",
    "id<>-1",
    "x>-1.5 AND id>+7",
    "x>=-1*-0.5",
    "round(price, 1) = 1.1",
    "round(price, 1) <> 1.5",
    "ceil(price) = 2",
    "floor(price) > 3",
]


def _rows(number: int) -> pa.Table:
    chance = random.Random(number)

    def maybe(value: object) -> object:
        return None if chance.random() < 0.1 else value

    return pa.Table.from_pylist(
        [
            {
                "id": maybe(number * ROWS + n),
                "small": maybe(chance.randrange(256)),
                "x": maybe(float("nan") if n % 50 == 7 else chance.random()),
                "name": maybe(f"{'abc'[number % 3]}{n % 40}"),
                "day": maybe(dt.date(2020, 1, 1) + dt.timedelta(days=number * 60 + n % 60)),
                "at": maybe(dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number, seconds=10 * n)),
                "price": maybe(_price(chance)),
                "flag": maybe(chance.random() < 0.5),
                "Unit Price": maybe(chance.randrange(100)),
                "empty": None,
            }
            for n in range(ROWS)
        ],
        SCHEMA,
    )


def _price(chance: random.Random) -> decimal.Decimal:
    """A price in cents."""
    return decimal.Decimal(chance.randrange(500)) / 100


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    """Several files of several row groups."""
    options = pds.WriteOptions(row_group_size=70)
    table = pds.Table.create(store, "t", SCHEMA, key="id", options=options)
    for number in range(FILES):
        table.append(_rows(number))
    return table


def _judged(rows: pa.Table, predicate: str) -> list[int]:
    """The numbers of the rows that DuckDB finds."""
    numbered = rows.append_column("row", pa.array(range(rows.num_rows)))  # noqa: F841 duckdb finds it by its name
    found = duckdb.sql(f"SELECT row FROM numbered WHERE {predicate} ORDER BY row").fetchall()  # noqa: S608 our own
    return [row for (row,) in found]


def _shown(rows: pa.Table) -> list[str]:
    return [repr(row) for row in rows.to_pylist()]


def test_filters_find_what_duckdb_finds(table: pds.Table) -> None:
    whole = table.scan().to_pyarrow()
    for predicate in PREDICATES:
        expected = whole.take(pa.array(_judged(whole, predicate), pa.int64()))
        found = table.scan(where=predicate)
        assert _shown(found.to_pyarrow()) == _shown(expected), predicate
        assert found.count() == expected.num_rows, predicate
        narrow = table.scan(["name"], where=predicate, limit=3).to_pyarrow()
        assert narrow["name"].to_pylist() == expected["name"].to_pylist()[:3], predicate


@pytest.mark.parametrize("seed", range(4))
def test_what_is_left_after_deletes_is_what_duckdb_leaves(table: pds.Table, seed: int) -> None:
    chance = random.Random(seed)
    left = table.scan().to_pyarrow()
    snapshots = [(table.version, left)]
    for predicate in chance.sample([p for p in PREDICATES if p != "true"], 12):
        gone = set(_judged(left, predicate))
        done = table.delete(predicate)
        assert done.rows in (None, len(gone)), predicate
        left = left.take(pa.array([row for row in range(left.num_rows) if row not in gone], pa.int64()))
        assert _shown(table.scan().to_pyarrow()) == _shown(left), predicate
        check = chance.choice(PREDICATES)
        assert table.scan(where=check).count() == len(_judged(left, check)), (predicate, check)
        snapshots.append((table.version, left))
        if chance.random() < 0.3:
            more = _rows(100 + len(snapshots))
            table.append(more)
            left = pa.concat_tables([left, more])
    for version, rows in snapshots:
        assert _shown(table.as_of(version).scan().to_pyarrow()) == _shown(rows)
    table.delete("true")
    assert table.scan().count() == 0
    assert table.files().num_rows == 0
    table.vacuum(dt.timedelta(0))
    assert table.append(_rows(1)).rows == ROWS


def test_a_file_whose_row_groups_are_all_passed_over_stays(memory_store: pds.Store) -> None:
    options = pds.WriteOptions(row_group_size=10)
    table = pds.Table.create(memory_store, "t", pa.schema([("x", pa.int64())]), options=options)
    table.append(pa.table({"x": [*range(10), *range(100, 110)]}))
    assert table.delete("x = 50").rows == 0
    assert table.delete("x < 10").rows == 10
    assert table.delete("x = 50").rows == 0
    assert table.scan().count() == 10


def test_nothing_to_delete_is_no_commit(table: pds.Table) -> None:
    version = table.version
    done = table.delete("id = -1")
    assert (done.rows, done.attempts, table.version) == (0, 0, version)


def test_a_range_of_the_key_is_deleted_without_reading_data(s3_store: pds.Store) -> None:
    table = pds.Table.create(s3_store, "t", pa.schema([("id", pa.int64()), ("x", pa.string())]), key="id")
    table.append(pa.table({"id": range(300_000), "x": ["a value"] * 300_000}))
    s3_store.reset_metrics()
    done = table.delete("id >= 100000 AND id < 200000")
    metrics = s3_store.metrics()
    # The pointer, and that the newest manifest, which is known, is still there.
    assert (metrics["put"], metrics["get"], metrics["head"]) == (3, 1, 1)
    assert metrics["bytes_written"] < 10_000
    assert done.rows is None
    assert table.scan().count() == 200_000
    assert table.scan(where="id = 150000").count() == 0
    assert table.scan(["x"], where="id = 99999").count() == 1


def test_files_and_row_groups_without_hits_are_not_read(s3_store: pds.Store) -> None:
    options = pds.WriteOptions(row_group_size=10_000, compression="none")
    table = pds.Table.create(s3_store, "t", pa.schema([("id", pa.int64()), ("x", pa.float64())]), options=options)
    chance = random.Random(1)
    for begin in range(0, 200_000, 50_000):
        ids = range(begin, begin + 50_000)
        table.append(pa.table({"id": ids, "x": [chance.random() for _ in ids]}))
    s3_store.reset_metrics()
    assert table.scan(where="id BETWEEN 120000 AND 120010").count() == 11
    found = s3_store.metrics()
    # One footer, and one column of one row group of one file.
    assert found["get"] == 2
    assert found["bytes_read"] < 100_000 + 80_000
    s3_store.reset_metrics()
    assert table.scan(where="id < 0").to_pyarrow().num_rows == 0
    assert s3_store.metrics()["get"] == 0


def test_compaction_keeps_the_rows_and_drops_what_is_deleted(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    for number in range(6):
        table.append(_rows(number))
    table.delete("flag")
    table.delete("id BETWEEN 20 AND 330")
    before = table.scan().to_pyarrow()
    version = table.version
    done = table.optimize.compact()
    assert done is not None
    assert (done.version, done.files, done.rows) == (version + 1, 1, before.num_rows)
    assert _shown(table.scan().to_pyarrow()) == _shown(before)
    assert _shown(table.as_of(version).scan().to_pyarrow()) == _shown(before)
    assert table.optimize.compact() is None
    table.vacuum(dt.timedelta(0))
    assert len(list(store.list_files("t/data", recursive=True))) == 1
    assert not list(store.list_files("t/tombstone", recursive=True))
    assert _shown(table.scan().to_pyarrow()) == _shown(before)
    # Most of it is deleted now.
    table.delete("id > 400")
    left = table.scan().count()
    done = table.optimize.compact(1)
    assert done is not None
    assert done.rows == left
    for size in (0, -1, True, "x"):
        with pytest.raises(pds.InvalidInput):
            table.optimize.compact(size)  # type: ignore[arg-type]


def test_a_compaction_while_others_write_loses_nothing(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", pa.schema([("writer", pa.int64()), ("number", pa.int64())]))

    def write(writer: int) -> None:
        mine = pds.Table(store, "t")
        for number in range(10):
            mine.append(pa.table({"writer": [writer] * 10, "number": [number] * 10}))
            mine.delete(f"writer = {writer} AND number = {number - 1}")

    def tidy() -> None:
        mine = pds.Table(store, "t")
        for _ in range(10):
            mine.optimize.compact()

    with ThreadPoolExecutor(4) as pool:
        running = [*(pool.submit(write, writer) for writer in range(3)), pool.submit(tidy)]
        for one in running:
            one.result()
    found = table.refresh().scan().to_pyarrow()
    assert sorted(set(found["writer"].to_pylist())) == [0, 1, 2]
    assert set(found["number"].to_pylist()) == {9}
    assert found.num_rows == 30


def test_tombstones_are_small(local_store: pds.Store) -> None:
    table = pds.Table.create(local_store, "t", pa.schema([("id", pa.int64()), ("x", pa.int64())]))
    table.append(pa.table({"id": range(1_000_000), "x": [n % 1000 for n in range(1_000_000)]}))
    run = table.delete("id >= 1000 AND id < 900000")
    assert run.rows == 899_000
    assert run.bytes <= 4096
    one_percent = table.delete("x IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)")
    assert one_percent.rows == 1010
    assert table.scan().count() == 1_000_000 - 899_000 - 1010


def test_a_delete_of_a_file_that_was_replaced_is_planned_again(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": range(10)}))
    other = pds.Table(memory_store, "t")
    other.overwrite(pa.table({"id": range(5, 15)}))
    assert table.delete("id % 2 = 0").rows == 5
    assert table.scan().to_pyarrow()["id"].to_pylist() == [5, 7, 9, 11, 13]


@pytest.mark.parametrize(
    ("predicate", "says"),
    [
        ("nothing = 1", "nothing"),
        ("id", "true or false"),
        ("id =", "id ="),
        ("id>--1", "operator"),
        ("id>=--1", "operator"),
        ("", "filter"),
        ("id = 1; DROP TABLE t", "filter"),
        ("id = 'x'", "filter"),
        ("sum(id) > 3", "sum"),
        ("id IN (SELECT 1)", "filter"),
        ("frobnicate(id)", "frobnicate"),
        ("id = 1 AS a", "filter"),
        ("(" * 5000 + "true" + ")" * 5000, "filter"),
        ("+".join(["id"] * 1000) + " > 0", "nested"),
        ("id" + "::bigint" * 4000 + " > 3", "nested"),
        (" OR ".join(f"id = {i}" for i in range(20_000)), "use IN"),
        ("+".join(["id"] * 20_000) + " > 0", "use IN"),
        ("name = '\ud800'", "encoded"),
        (7, "Expression"),
        (None, "Expression"),
    ],
)
def test_filters_that_cannot_be_used(memory_store: pds.Store, predicate: object, says: str) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    table.append(_rows(0))
    with pytest.raises(pds.InvalidInput, match=says):
        table.delete(predicate)  # type: ignore[arg-type]
    if predicate is not None:
        with pytest.raises(pds.InvalidInput, match=says):
            table.scan(where=predicate).to_pyarrow()  # type: ignore[arg-type]
    assert table.refresh().version == 2


@pytest.mark.parametrize(
    "predicate",
    [
        "d < 20240101",
        "20240101 > d",
        "d <> 1.5",
        "d = id",
        "d BETWEEN 1 AND 2",
        "DATE '2026-01-01' BETWEEN 1 AND d",
        "d IN (1, 2)",
        "d IS DISTINCT FROM 1",
        "CASE d WHEN 1 THEN true ELSE false END",
        "CASE WHEN id = 1 THEN d ELSE 1 END = d",
        "coalesce(d, 1) = d",
        "nullif(d, 1) IS NULL",
        "greatest(d, id) = d",
        "(d, id) < (1, 1)",
        "ts < 1700000000",
        "ts IN (1700000000.5)",
        "t = 5",
        "t < 5.5",
        "ts - ts < 5",
    ],
)
def test_times_are_not_compared_with_numbers(memory_store: pds.Store, predicate: str) -> None:
    rows = pa.table(
        {
            "id": [1],
            "d": pa.array([dt.date(2026, 1, 1)]),
            "ts": pa.array([dt.datetime(2026, 1, 1)]),  # noqa: DTZ001
            "t": pa.array([dt.time(1)], pa.time64("us")),
        }
    )
    with pytest.raises(duckdb.Error):
        duckdb.from_arrow(rows).filter(predicate).fetchall()
    table = pds.Table.create(memory_store, "t", rows.schema)
    table.append(rows)
    with pytest.raises(pds.InvalidInput, match="no common type"):
        table.delete(predicate)
    assert table.refresh().version == 2


@pytest.mark.parametrize("float_type", [pa.float16(), pa.float32()])
@pytest.mark.parametrize("wide", [2049, 100_000, 16_777_217, -16_777_217, 2**40 + 1])
def test_integers_beside_narrow_floats(memory_store: pds.Store, float_type: pa.DataType, wide: int) -> None:
    """Python compares them exactly; DuckDB rounds the integers."""
    numbers = [2048.0, 2050.0, *([16_777_216.0, -16_777_216.0, 2.0**40] if float_type == pa.float32() else [])]
    table = pds.Table.create(
        memory_store, "t", pa.schema([("f", float_type), ("id", pa.int64()), ("small", pa.int32())])
    )
    small = wide if abs(wide) < 2**31 else 7
    rows = {"f": [*numbers, None], "id": [wide] * (len(numbers) + 1), "small": [small] * (len(numbers) + 1)}
    table.append(pa.table(rows, schema=table.schema))
    for predicate, holds in (
        (f"f = {wide}", lambda f: f == wide),
        (f"f >= {wide}", lambda f: f >= wide),
        ("f < id", lambda f: f < wide),
        ("id = f", lambda f: f == wide),
        ("f <> small", lambda f: f != small),
        (f"f IN (7, {wide})", lambda f: f in (7, wide)),
        (f"f IN ({wide}, 7)", lambda f: f in (7, wide)),
        ("id IN (f, 7)", lambda f: f == wide),
        (f"f BETWEEN {wide} AND {wide + 10}", lambda f: wide <= f <= wide + 10),
        (f"CASE f WHEN {wide} THEN true ELSE false END", lambda f: f == wide),
        (f"nullif(f, {wide}) IS NULL", lambda f: f == wide),
        (f"greatest(f, id) = {wide}", lambda f: f <= wide),
        (f"coalesce(CASE WHEN f < 0 THEN f END, id) = {wide}", lambda f: f >= 0),
    ):
        expected = [f for f in numbers if holds(f)]
        found = [f for f in table.scan(["f"], where=predicate).to_pyarrow()["f"].to_pylist() if f is not None]
        assert found == expected, predicate
        unpruned = table.scan(["f"], where=predicate, use_stats=False).to_pyarrow()["f"].to_pylist()
        assert [f for f in unpruned if f is not None] == expected, predicate


def test_long_filters(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": range(10)}))
    assert table.scan(where=" OR ".join(f"id = {i}" for i in range(5, 2000))).count() == 5
    assert table.scan(where=" AND ".join(f"id <> {i}" for i in range(5, 2000))).count() == 5
    assert table.scan(where=f"id IN ({','.join(str(-i) for i in range(20_000))})").count() == 1
    assert table.delete(" OR ".join(f"(id > {i} AND id < {i + 2})" for i in range(4, 700))).rows == 5


def test_the_history_tells_of_deletes(table: pds.Table) -> None:
    table.delete("id % 2 = 0")
    operation = table.history(1)[0]["operation"]
    assert operation["name"] == "delete"
    assert operation["filter"] == "id % 2 = 0"
    assert json.dumps(operation)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "+05:30"])
def test_moments_are_compared_whatever_the_zone(memory_store: pds.Store, zone: str) -> None:
    schema = pa.schema([("at", pa.timestamp("us", zone))])
    table = pds.Table.create(memory_store, "t", schema)
    hours = [0, 1, 2, 5_000, 400_000]
    table.append(pa.table({"at": pa.array([h * 3_600_000_000 for h in hours], pa.timestamp("us", zone))}))
    for hour in hours:
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=hour)
        for text in (f"TIMESTAMP WITH TIME ZONE '{moment:%Y-%m-%d %H:%M:%S}+00'", f"'{moment:%Y-%m-%dT%H:%M:%S}Z'"):
            assert table.scan(where=f"at < {text}").count() == hours.index(hour), text
            assert table.scan(where=f"at = {text}").count() == 1, text
            assert table.scan(where=f"at IN ({text})").count() == 1, text

"""Tables that DataFusion reads: as the same rows in its own memory, and no more of them than a query needs."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING

import datafusion
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.uint8()),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ('a "b', pa.int32()),
        ("tags", pa.list_(pa.int64())),
        ("pair", pa.struct([("left", pa.int64())])),
    ]
)
FLOATS = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 0.5, -1.5, 1e300]
NAMES = ["", "O'Neil", 'a"b', "%", "Øl", "b\\c", "x" * 300, "abc", "abx"]
EPOCH = dt.datetime(1969, 12, 30, tzinfo=dt.UTC)


def _rows(number: int, count: int = 300) -> pa.Table:
    chance = random.Random(number)

    def maybe(value: object) -> object:
        return None if chance.random() < 0.1 else value

    return pa.Table.from_pylist(
        [
            {
                "id": number * count + n,
                "small": maybe(chance.randrange(256)),
                "x": maybe(chance.choice(FLOATS)),
                "name": maybe(chance.choice(NAMES)),
                "at": maybe(EPOCH + dt.timedelta(hours=chance.randrange(72), microseconds=chance.randrange(3))),
                "local": maybe(dt.datetime(2026, 1, 1) + dt.timedelta(milliseconds=chance.randrange(9))),  # noqa: DTZ001
                "day": maybe(dt.date(1969, 12, 25) + dt.timedelta(days=chance.randrange(20))),
                "price": maybe(Decimal(chance.randrange(-500, 500)) / 100),
                "flag": maybe(chance.random() < 0.5),
                "kind": maybe(chance.choice(["one", "two"])),
                'a "b': maybe(chance.randrange(100)),
                "tags": maybe(list(range(n % 4))),
                "pair": maybe({"left": n % 7}),
            }
            for n in range(count)
        ],
        SCHEMA,
    )


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    """Several files, deleted rows, and a column that was renamed and one that came later."""
    table = pds.Table.create(store, "t", SCHEMA, key="id", options=pds.WriteOptions(row_group_size=90))
    for number in range(4):
        table.append(_rows(number))
    table.delete("id % 10 = 3 OR id BETWEEN 300 AND 420")
    table.alter.rename_column("small", "tiny")
    table.alter.add_column("late", pa.int32())
    table.append(table.scan(limit=50).to_pyarrow().set_column(0, "id", pa.array(range(9000, 9050), pa.int64())))
    return table


def _contexts(table: pds.Table) -> tuple[datafusion.SessionContext, datafusion.SessionContext]:
    """Return a context that reads the table, and one with the same rows in memory."""
    context, oracle = datafusion.SessionContext(), datafusion.SessionContext()
    context.register_table("t", table)
    oracle.register_record_batches("t", [table.scan().to_pyarrow().to_batches()])
    return context, oracle


def _shown(context: datafusion.SessionContext, query: str) -> list[str]:
    return sorted(repr(row) for row in context.sql(query).to_arrow_table().to_pylist())


def _literal(chance: random.Random, column: str) -> str:
    row = _rows(chance.randrange(4), 30)[column].drop_null()
    value = row[chance.randrange(len(row))].as_py()
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    if isinstance(value, float):
        return f"CAST('{value}' AS DOUBLE)"
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    return f"DATE '{value}'" if isinstance(value, dt.date) else str(value)


def _predicate(chance: random.Random, depth: int = 0) -> str:
    if depth < 3 and chance.random() < 0.5:
        left, right = _predicate(chance, depth + 1), _predicate(chance, depth + 1)
        return chance.choice([f"({left} AND {right})", f"({left} OR {right})", f"(NOT {left})"])
    column = chance.choice(["id", "small", "x", "name", "at", "local", "day", "price", "flag", "kind", 'a "b'])
    escaped = column.replace('"', '""')
    name = '"tiny"' if column == "small" else f'"{escaped}"'
    first, second = _literal(chance, column), _literal(chance, column)
    comparison = chance.choice(["=", "<>", "<", "<=", ">", ">="])
    return chance.choice(
        [
            f"{name} {comparison} {first}",
            f"{first} {comparison} {name}",
            f"{name} IN ({first}, {second})",
            f"{name} NOT IN ({first}, {second}, NULL)",
            f"{name} BETWEEN {first} AND {second}",
            f"{name} NOT BETWEEN {first} AND {second}",
            f"{name} IS NULL",
            f"{name} IS NOT NULL",
            "flag",
            "NOT flag",
            "name LIKE 'a%'",
            "late IS NULL",
        ]
    )


def test_datafusion_reads_all_rows_and_types(table: pds.Table) -> None:
    context, oracle = _contexts(table)
    assert context.table("t").schema().equals(table.schema)
    for query in (
        "SELECT * FROM t",
        "SELECT count(*) FROM t",
        "SELECT late, id FROM t",
        "SELECT 1 AS one FROM t",
        "SELECT tags, pair FROM t WHERE pair['left'] = 3",
        "SELECT kind, count(*), sum(price) FROM t GROUP BY kind",
        "SELECT a.id FROM t a JOIN t b ON a.id = b.id + 10 WHERE b.flag",
    ):
        assert _shown(context, query) == _shown(oracle, query), query
    assert context.sql("SELECT id FROM t LIMIT 7").count() == 7
    assert context.sql("SELECT id FROM t WHERE x > 0 LIMIT 3").count() == 3


@pytest.mark.parametrize("seed", range(4))
def test_filters_find_what_datafusion_finds_in_memory(table: pds.Table, seed: int) -> None:
    chance = random.Random(seed)
    context, oracle = _contexts(table)
    for _ in range(60):
        query = f"SELECT * FROM t WHERE {_predicate(chance)}"  # noqa: S608 made here
        assert _shown(context, query) == _shown(oracle, query), query


def test_a_table_of_datafusion_stays_at_its_version(table: pds.Table) -> None:
    context, _ = _contexts(table)
    rows = table.scan().count()
    table.delete("id < 100")
    assert context.sql("SELECT count(*) AS n FROM t").to_pydict() == {"n": [rows]}
    context.register_table("old", table.as_of(1))
    context.register_table("new", table)
    assert context.sql("SELECT count(*) AS n FROM old").to_pydict() == {"n": [0]}
    assert context.sql("SELECT count(*) AS n FROM new").to_pydict() == {"n": [table.scan().count()]}


def test_partitions_and_pruning(s3_store: pds.Store) -> None:
    options = pds.WriteOptions(row_group_size=10_000, compression="none")
    table = pds.Table.create(s3_store, "t", pa.schema([("id", pa.int64()), ("text", pa.string())]), options=options)
    for begin in range(0, 400_000, 100_000):
        ids = range(begin, begin + 100_000)
        table.append(pa.table({"id": ids, "text": [f"{n:030}" for n in ids]}))
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(3))
    context.register_table("t", table)
    # About as many as the session wants: files are not split.
    assert 2 <= context.sql("SELECT * FROM t").execution_plan().partition_count <= 4
    assert context.sql("SELECT count(DISTINCT text) AS n FROM t").to_pydict() == {"n": [400_000]}
    s3_store.reset_metrics()
    query = "SELECT text FROM t WHERE id >= 250000 AND id < 250010"
    assert context.sql(query).count() == 10
    # A footer, and two columns of one row group.
    assert s3_store.metrics()["bytes_read"] < 70_000 + 10_000 * 50
    s3_store.reset_metrics()
    assert context.sql("SELECT id FROM t WHERE id > 400000").count() == 0
    assert s3_store.metrics()["bytes_read"] == 0


def test_errors_of_reads_reach_datafusion(tmp_path: Path) -> None:
    store = pds.Store(tmp_path)
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": range(10_000)}))
    context = datafusion.SessionContext()
    context.register_table("t", table)
    (part,) = (tmp_path / "t" / path for path in table.files()["path"].to_pylist())
    content = bytearray(part.read_bytes())
    content[100] ^= 255
    part.write_bytes(content)
    with pytest.raises(Exception, match="checksum"):
        context.sql("SELECT sum(id) FROM t").collect()


def test_a_query_that_ends_early_ends_the_read(table: pds.Table) -> None:
    context, _ = _contexts(table)
    for _ in range(20):
        stream = context.sql("SELECT * FROM t").execute_stream()
        assert next(stream).to_pyarrow().num_rows
        del stream


def test_another_version_of_datafusion_is_refused(table: pds.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pds.table.datafusion.version", lambda _name: "54.1.0")
    with pytest.raises(pds.errors.CapabilityNotSupported, match=r"DataFusion 54\.1\.0 .* pip install"):
        datafusion.SessionContext().register_table("t", table)
    with pytest.raises(pds.errors.CapabilityNotSupported, match="to_pyarrow_dataset"):
        table.__datafusion_table_provider__(datafusion.SessionContext())

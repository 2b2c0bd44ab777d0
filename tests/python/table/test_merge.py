"""Merge: what a source changes, deletes and adds, with a dict of rows as the model."""

from __future__ import annotations

import datetime as dt
import math
import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds
from pds.predicate import Predicate

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("text", pa.string())])
SOURCE = pa.schema([*SCHEMA, ("op", pa.string())])


UNREACHABLE = r"{}\(\) can never apply: {}\(\) before it has no predicate"


def _rows(*rows: tuple[int, int | None, str | None]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def _all(table: pds.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in table.scan().to_pyarrow().to_pylist()), key=repr)


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    table = pds.Table.create(store, "t", SCHEMA, key="id", options=pds.WriteOptions(row_group_size=3))
    table.append(_rows(*((n, n, "old") for n in range(6))))
    table.append(_rows(*((n, n, "old") for n in range(6, 10))))
    return table


def test_update_and_insert(table: pds.Table) -> None:
    source = _rows((3, 30, "new"), (8, None, "new"), (12, 120, "new"))
    done = table.merge(source, "id").when_matched_update_all().when_not_matched_insert_all().execute()
    assert (done.version, done.rows, done.files) == (4, 3, 1)
    kept = [(n, n, "old") for n in range(10) if n not in {3, 8}]
    assert _all(table) == sorted([*kept, (3, 30, "new"), (8, None, "new"), (12, 120, "new")], key=repr)
    operation = table.history(1)[0]["operation"]
    assert operation["name"] == "merge"
    assert (operation["rows_updated"], operation["rows_inserted"], operation["rows_deleted"]) == (2, 1, 0)
    changes = table.scan_changes(3).to_pyarrow()["_change_type"].to_pylist()
    assert (changes.count("insert"), changes.count("delete")) == (3, 2)


def test_the_first_clause_that_holds_decides(table: pds.Table) -> None:
    source = pa.Table.from_pylist(
        [
            {"id": 1, "n": 10, "op": "delete"},
            {"id": 2, "n": 20, "op": "add"},
            {"id": 3, "n": 30, "op": "leave"},
            {"id": 20, "n": 5, "op": "add"},
            {"id": 21, "n": 6, "op": "leave"},
            {"id": 22, "n": 7, "op": None},
        ],
        SOURCE,
    )
    done = (
        table.merge(source)
        .when_matched_delete("source.op = 'delete'")
        .when_matched_update({"n": "target.n + source.n", "text": "upper(target.text)"}, "source.op = 'add'")
        .when_not_matched_insert({"id": "source.id", "n": "source.n * 100"}, "source.op = 'add'")
        .when_not_matched_insert({"id": "source.id"}, "source.op IS NULL")
        .when_not_matched_by_source_delete("target.id >= 8")
        .when_not_matched_by_source_update({"text": "'gone'"}, "target.id = 7")
        .execute()
    )
    assert done.rows == 4
    kept = [(n, n, "old") for n in (0, 3, 4, 5, 6)]
    expected = [*kept, (2, 22, "OLD"), (7, 7, "gone"), (20, 500, None), (22, None, None)]
    assert _all(table) == sorted(expected, key=repr)
    operation = table.history(1)[0]["operation"]
    assert (operation["rows_updated"], operation["rows_inserted"], operation["rows_deleted"]) == (2, 2, 3)


def test_a_clause_for_all_rows_is_the_last_one_for_them(table: pds.Table) -> None:
    merge = table.merge(_rows((3, 30, "new"), (12, 120, "new")), "id").when_matched_delete("source.n > 100")
    merge.when_matched_update_all().when_not_matched_insert_all().when_not_matched_by_source_delete()
    with pytest.raises(pds.InvalidInput, match="put the clauses with predicates before it"):
        merge.when_matched_delete("source.n > 10")
    # The clause that was refused is not part of it.
    merge.execute()
    assert _all(table) == [(12, 120, "new"), (3, 30, "new")]


def test_nothing_to_do_is_no_commit(table: pds.Table) -> None:
    merge = table.merge(_rows((100, 1, "x")), "id").when_matched_update_all()
    done = merge.execute()
    assert (done.attempts, done.rows, table.version) == (0, 0, 3)
    empty = table.merge(_rows()).when_matched_delete().when_not_matched_insert_all().execute()
    assert (empty.attempts, table.version) == (0, 3)
    assert table.merge(_rows()).when_not_matched_by_source_delete().execute().version == 4
    assert table.scan().count() == 0


def test_a_key_makes_a_repeat_harmless(table: pds.Table) -> None:
    def merge() -> pds.table.CommitResult:
        clause = table.merge(_rows((1, 1, "x"))).when_matched_update({"n": "target.n + 1"})
        return clause.execute(idempotency_key="job-1")

    first, second = merge(), merge()
    assert (second.version, second.replayed, second.commit_id) == (first.version, True, first.commit_id)
    assert (1, 2, "old") in _all(table)
    assert table.check().orphans == []


def test_rows_with_the_same_key_in_the_table_all_change(table: pds.Table) -> None:
    table.append(_rows((3, 33, "again"), (0, None, None)))
    table.append(pa.table({"id": pa.array([None], pa.int64()), "n": pa.array([7], pa.int32())}))
    table.merge(_rows((3, -1, None))).when_matched_update_all().execute()
    assert [row for row in _all(table) if row[0] == 3] == [(3, -1, None), (3, -1, None)]
    # A null is nobody's key.
    assert [row for row in _all(table) if row[0] is None] == [(None, 7, None)]


@pytest.mark.parametrize(
    ("clauses", "says"),
    [
        (lambda m: m, "needs a clause"),
        (lambda m: m.when_matched_update({"nothing": "1"}), "nothing"),
        (lambda m: m.when_matched_update({"n": "source.nothing"}), "nothing"),
        (lambda m: m.when_matched_update({"n": "1 +"}), "n"),
        (lambda m: m.when_matched_update({"n": "source.text"}), "cast it"),
        (lambda m: m.when_matched_update({"n": "target.n * 1000000000"}), "cannot convert"),
        (lambda m: m.when_matched_update({"n": "target.n * 0.5"}), "cast it"),
        (lambda m: m.when_matched_update({"id": "9223372036854775807 + source.id"}), "(?i)overflow"),
        (lambda m: m.when_matched_delete("source.n"), "true or false"),
        (lambda m: m.when_matched_delete("n = 1"), "(?i)ambiguous"),
        (lambda m: m.when_not_matched_insert({"n": "target.n"}), "target"),
        (lambda m: m.when_not_matched_by_source_delete("source.n = 1"), "source"),
        (lambda m: m.when_matched_update({}), "no column"),
        (lambda m: m.when_matched_update(7), "dict"),
        (lambda m: m.when_matched_update({"n": 7}), "string"),
        (lambda m: m.when_matched_delete(7), "string"),
        (
            lambda m: m.when_matched_update_all().when_matched_delete("source.n > 1"),
            UNREACHABLE.format("when_matched_delete", "when_matched_update_all"),
        ),
        (
            lambda m: m.when_matched_delete().when_not_matched_insert_all().when_matched_update({"n": "1"}),
            UNREACHABLE.format("when_matched_update", "when_matched_delete"),
        ),
        (
            lambda m: m.when_not_matched_insert({"id": "1"}).when_not_matched_insert_all(),
            UNREACHABLE.format("when_not_matched_insert_all", "when_not_matched_insert"),
        ),
        (
            lambda m: m.when_not_matched_by_source_delete().when_not_matched_by_source_update({"n": "1"}),
            UNREACHABLE.format("when_not_matched_by_source_update", "when_not_matched_by_source_delete"),
        ),
    ],
)
def test_merges_that_cannot_be_done(
    memory_store: pds.Store, clauses: Callable[[pds.table.merge.Merge], pds.table.merge.Merge], says: str
) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    table.append(_rows((1, 9, "a")))
    with pytest.raises(pds.InvalidInput, match=says):
        clauses(table.merge(_rows((1, 9, "b")))).execute()
    assert table.refresh().version == 2
    assert table.check().orphans == []


def test_sources_that_cannot_be_merged(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    keyless = pds.Table.create(memory_store, "k", SCHEMA)
    for source, on, says in [
        (_rows((1, 1, "a"), (1, 2, "b")), "id", "same id"),
        (pa.table({"id": pa.array([None], pa.int64())}), "id", "null"),
        (pa.table({"n": [1]}), "id", "missing key column 'id'"),
        (pa.table({"id": ["a"]}), "id", "cast it"),
        (_rows((1, 1, "a")), "other", "other"),
        (pa.table({"id": [1], "more": [1]}), "id", "'more'"),
    ]:
        with pytest.raises(pds.InvalidInput, match=says.replace("'", "[\"']")):
            table.merge(source, on).when_not_matched_insert_all().execute()
    with pytest.raises(pds.InvalidInput, match="no key"):
        keyless.merge(_rows((1, 1, "a"))).when_not_matched_insert_all().execute()


def test_a_column_that_may_not_be_null(memory_store: pds.Store) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    table = pds.Table.create(memory_store, "t", schema, key="id")
    table.append(pa.table({"id": [1], "n": [1]}, schema))
    source = pa.table({"id": [1, 2]})
    with pytest.raises(pds.InvalidInput, match="null"):
        table.merge(source).when_not_matched_insert_all().execute()
    table.merge(source).when_not_matched_insert({"id": "source.id", "n": "0"}).execute()
    assert table.scan().count() == 2
    assert table.check().orphans == []


@pytest.mark.parametrize("seed", range(4))
def test_random_merges_do_what_duckdb_does(memory_store: pds.Store, seed: int) -> None:
    chance = random.Random(seed)
    options = pds.WriteOptions(row_group_size=chance.choice([4, 50]))
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id", options=options)
    oracle = duckdb.connect()
    oracle.execute("CREATE TABLE target (id BIGINT, n INT, text VARCHAR)")
    for step in range(12):
        ids = chance.sample(range(60), chance.randrange(1, 20))
        source = _rows(*((i, chance.choice([None, chance.randrange(9)]), f"s{step}") for i in ids))
        limit = chance.randrange(9)
        table.merge(source).when_matched_delete(f"source.n > {limit}").when_matched_update(
            {"n": "coalesce(source.n, target.n)", "text": "target.text || source.text"}, f"target.id % 3 <> {limit % 3}"
        ).when_not_matched_insert_all(f"source.n IS NULL OR source.n < {limit}").execute()
        oracle.register("source", source)
        oracle.execute(
            f"""MERGE INTO target USING source ON target.id = source.id
            WHEN MATCHED AND source.n > {limit} THEN DELETE
            WHEN MATCHED AND target.id % 3 <> {limit % 3} THEN UPDATE SET
                n = coalesce(source.n, target.n), text = target.text || source.text
            WHEN NOT MATCHED AND (source.n IS NULL OR source.n < {limit}) THEN INSERT VALUES (id, n, text)"""
        )
        expected = sorted(oracle.execute("SELECT id, n, text FROM target").fetchall(), key=repr)
        assert _all(table) == expected, step
        if chance.random() < 0.2:
            table.optimize.compact()


def test_merges_at_once_count_every_one(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    table.append(_rows(*((n, 0, None) for n in range(5))))

    def count(_: int) -> None:
        mine = pds.Table(store, "t")
        source = pa.table({"id": range(6)})
        merge = mine.merge(source).when_matched_update({"n": "target.n + 1"})
        merge.when_not_matched_insert({"id": "source.id", "n": "1"}).execute()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(8)))
    assert _all(table.refresh()) == [(n, 8, None) for n in range(6)]
    assert table.check().orphans == []


def test_numbers_are_taken_over_as_an_append_takes_them(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    table.append(_rows((1, 9, "a")))
    for merge in (
        table.merge(pa.table({"id": [1], "n": [1.5]})).when_matched_update_all(),
        table.merge(pa.table({"id": [2], "n": [1.5]})).when_not_matched_insert_all(),
    ):
        with pytest.raises(pds.InvalidInput, match="cast it"):
            merge.execute()


@pytest.mark.parametrize(
    ("fine", "coarse", "ticks"),
    [
        (pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin"), 1000),
        (pa.timestamp("us"), pa.timestamp("s"), 10**6),
        (pa.timestamp("ns"), pa.timestamp("us"), 1000),
        (pa.duration("us"), pa.duration("ms"), 1000),
        (pa.time64("us"), pa.time32("s"), 10**6),
        (pa.time32("ms"), pa.time32("s"), 1000),
    ],
    ids=str,
)
def test_times_of_a_finer_unit_are_assigned_if_no_digit_is_lost(
    memory_store: pds.Store, fine: pa.DataType, coarse: pa.DataType, ticks: int
) -> None:
    """By safe casts of pyarrow; on both sides of 1970."""
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("at", coarse)]), key="id")
    signs = [1] if pa.types.is_time(fine) else [1, -1]
    numbers = [*(sign * ticks * number for sign in signs for number in (0, 1, 70_000)), None]
    narrow = pa.int32() if fine.bit_width == 32 else pa.int64()

    def make(numbers: list[int | None]) -> pa.Table:
        return pa.table({"id": range(len(numbers)), "x": pa.array(numbers, narrow).cast(fine)})

    source = make(numbers)
    table.merge(source).when_not_matched_insert({"id": "source.id", "at": "source.x"}).execute()
    table.merge(source).when_matched_update({"at": "source.x"}).execute()
    assigned = table.scan().to_pyarrow().sort_by("id")["at"].combine_chunks()
    assert assigned.equals(source["x"].combine_chunks().cast(coarse))
    for sign in signs:
        merge = table.merge(make([0, sign * (ticks + 1), None])).when_matched_update({"at": "source.x"})
        with pytest.raises(pds.InvalidInput, match=r'column "at": a time has digits'):
            merge.execute()
    merge = table.merge(source).when_matched_update({"at": "source.id"})
    with pytest.raises(pds.InvalidInput, match="cast it with CAST"):
        merge.execute()
    if pa.types.is_timestamp(fine):
        other = pa.timestamp(fine.unit, None if fine.tz else "UTC")
        zoned = make(numbers).set_column(1, "x", pa.array(numbers, pa.int64()).cast(other))
        with pytest.raises(pds.InvalidInput, match="cast it with CAST"):
            table.merge(zoned).when_matched_update({"at": "source.x"}).execute()
    assert table.version == 3


def test_values_that_others_have_in_wider_types_are_assigned_if_they_fit(memory_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.uint64()), ("b", pa.binary(2)), ("d", pa.date64())])
    table = pds.Table.create(memory_store, "t", schema, key="id")
    columns = {"id": "source.id", "n": "source.n", "b": "source.b", "d": "source.d"}

    def insert(n: int, b: bytes) -> None:
        wide = {"n": pa.array([Decimal(n)], pa.decimal128(20, 0)), "b": [b], "d": [dt.date(1960, 2, 29)]}
        table.merge(pa.table({"id": [1], **wide})).when_not_matched_insert(columns).execute()

    for n, b in ((-1, b"ab"), (2**64, b"ab"), (1, b"abc"), (1, b"")):
        with pytest.raises(pds.InvalidInput, match="cannot convert"):
            insert(n, b)
    insert(2**64 - 1, b"ab")
    expected = pa.table({"id": [1], "n": [2**64 - 1], "b": [b"ab"], "d": [dt.date(1960, 2, 29)]}, schema)
    assert table.scan().to_pyarrow().equals(expected)


def test_a_row_that_others_delete_meanwhile_does_not_come_back(memory_store: pds.Store) -> None:
    for seed in range(6):
        path = f"t{seed}"
        table = pds.Table.create(memory_store, path, SCHEMA, key="id")
        table.append(_rows(*((n, 0, None) for n in range(20))))

        def delete(path: str = path) -> None:
            mine = pds.Table(memory_store, path)
            for n in range(0, 20, 2):
                mine.delete(f"id = {n}" if n % 4 else f"id + 0 = {n}")

        def count(path: str = path) -> None:
            mine = pds.Table(memory_store, path)
            for _ in range(6):
                mine.merge(pa.table({"id": range(20)})).when_matched_update({"n": "target.n + 1"}).execute()

        with ThreadPoolExecutor(2) as pool:
            for running in [pool.submit(delete), pool.submit(count)]:
                running.result()
        assert _all(table.refresh()) == sorted([(n, 6, None) for n in range(1, 20, 2)], key=repr)


@pytest.mark.parametrize("change", ["merge", "upsert"])
def test_a_delete_is_planned_again_when_its_row_is_replaced(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The row is in another file now, and its old file has other rows still."""
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    table.append(_rows(*((n, 0, None) for n in range(25))))
    changed = _rows(*((n, 1, None) for n in range(20)))
    holds, calls = Predicate.holds, []

    def replace_rows() -> None:
        mine = pds.Table(memory_store, "t")
        if change == "upsert":
            mine.upsert(changed)
        else:
            mine.merge(changed).when_matched_update_all().execute()

    def overtaken(self: Predicate, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(replace_rows).result()
        return holds(self, *args)

    monkeypatch.setattr(Predicate, "holds", overtaken)
    deleted = table.delete(pc.field("id") == 2)
    assert (deleted.version, deleted.rows) == (4, 1)
    assert _all(table) == sorted([(n, int(n < 20), None) for n in range(25) if n != 2], key=repr)


def test_a_clause_is_asked_only_of_rows_that_are_open(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    table.append(_rows((1, 0, "a"), (2, 5, "a")))
    source = _rows((1, 0, "b"), (2, 5, "b"))
    merge = table.merge(source).when_matched_delete("source.n = 0").when_matched_update_all("10 / source.n > 1")
    merge.execute()
    assert _all(table) == [(2, 5, "b")]


def test_a_merge_is_carried_out_as_often_as_it_is_asked(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    table.append(_rows((1, 0, "a"), (2, 5, "a")))
    merge = table.merge(_rows((1, 1, "b")).to_reader()).when_matched_update_all().when_not_matched_by_source_delete()
    assert merge.execute().rows == 1
    merge.execute()
    assert _all(table) == [(1, 1, "b")]


@pytest.mark.parametrize(("to", "value"), [(pa.float32(), 1e300), (pa.float32(), -1e39), (pa.float16(), 70_000.0)])
def test_a_float_that_is_too_great_for_its_column_is_refused(
    memory_store: pds.Store, to: pa.DataType, value: float
) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("f", to)]), key="id")
    source = pa.table({"id": [1], "x": [value]})
    with pytest.raises(pds.InvalidInput, match=r'column "f": .* is beyond the range of Float'):
        table.merge(source).when_not_matched_insert({"id": "source.id", "f": "source.x"}).execute()
    assert table.scan().count() == 0
    # What is infinite stays so.
    source = pa.table({"id": [1], "x": [math.inf]})
    table.merge(source).when_not_matched_insert({"id": "source.id", "f": "source.x"}).execute()
    assert table.scan().to_pyarrow()["f"][0].as_py() == math.inf

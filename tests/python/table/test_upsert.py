"""Rows for other rows: upserts, and overwrites of some rows, with a dict as the judge."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sampled(2)

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("x", pa.float64()), ("name", pa.string())])
FIRST = dt.date(2026, 1, 1)


def _rows(ids: list[int], mark: str) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "day": [FIRST + dt.timedelta(n % 7) for n in ids],
            "x": [n / 3 for n in ids],
            "name": [f"{mark}{n}" for n in ids],
        },
        SCHEMA,
    )


def _names(table: pds.Table) -> dict[int, str]:
    found = table.scan(["id", "name"]).to_pyarrow()
    ids = found["id"].to_pylist()
    assert len(set(ids)) == len(ids), "a key is there twice"
    return dict(zip(ids, found["name"].to_pylist(), strict=True))


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    table.append(_rows(list(range(100)), "a"))
    table.append(_rows(list(range(100, 200)), "a"))
    return table


def test_rows_with_the_same_key_are_replaced(table: pds.Table) -> None:
    before = dict.fromkeys(table.files()["path"].to_pylist())
    done = table.upsert(_rows([5, 150, 300], "b"))
    assert (done.version, done.rows, done.files, done.attempts) == (4, 3, 1, 1)
    expected = {n: f"a{n}" for n in range(200)} | {n: f"b{n}" for n in (5, 150, 300)}
    assert _names(table) == expected
    assert before.keys() <= set(table.files()["path"].to_pylist())
    operation = table.history(1)[0]["operation"]
    assert (operation["name"], operation["rows"], operation["rows_deleted"]) == ("upsert", 3, 2)
    assert "filter" not in operation
    assert _names(table.as_of(3)) == {n: f"a{n}" for n in range(200)}
    # All of a file: it goes.
    table.upsert(_rows(list(range(100)), "c"))
    assert _names(table) == expected | {n: f"c{n}" for n in range(100)}
    assert set(table.files()["path"].to_pylist()).isdisjoint(list(before)[:1])


def test_an_upsert_of_nothing(table: pds.Table) -> None:
    assert table.upsert(_rows([], "b")).rows == 0
    assert len(_names(table)) == 200


def test_only_what_may_hold_a_key_is_read(s3_store: pds.Store) -> None:
    table = pds.Table.create(s3_store, "t", SCHEMA, key="id")
    for begin in range(0, 1000, 100):
        table.append(_rows(list(range(begin, begin + 100)), "a"))
    before = s3_store.metrics()["requests"]
    table.upsert(_rows([501, 502], "b"))
    # Twice pointer and manifest, the data file, a footer, the key, tombstones, and the commit.
    assert s3_store.metrics()["requests"] - before <= 12


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (pa.string(), ["a", "b", ""], ["b", "c"]),
        (pa.large_string(), ["a", "b"], ["b"]),
        (pa.binary(), [b"\x00", b""], [b""]),
        (pa.timestamp("ns", "UTC"), [1, 2, 3], [3, 4]),
        (pa.decimal128(10, 2), [decimal.Decimal("1.00"), decimal.Decimal("2.50")], [decimal.Decimal("2.50")]),
        (pa.date32(), [FIRST], [FIRST]),
        (pa.uint64(), [2**64 - 1, 0], [2**64 - 1]),
        (pa.bool_(), [True], [True, False]),
        (pa.float64(), [1.5, float("inf")], [float("inf")]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b"], ["b", "c"]),
        (pa.struct([("u", pa.int8())]), [{"u": 1}, {"u": 2}], [{"u": 2}]),
    ],
)
def test_keys_of_any_type(memory_store: pds.Store, kind: pa.DataType, old: list[Any], new: list[Any]) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("k", kind), ("v", pa.string())]))
    table.append(pa.table({"k": pa.array(old, kind), "v": ["old"] * len(old)}))
    table.upsert(pa.table({"k": pa.array(new, kind), "v": ["new"] * len(new)}), on="k")
    found = table.scan().to_pyarrow()
    keys = pa.array(old, kind).to_pylist(), pa.array(new, kind).to_pylist()
    expected = [(k, "old") for k in keys[0] if k not in keys[1]] + [(k, "new") for k in keys[1]]
    assert list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)) == expected


def test_keys_of_several_columns(memory_store: pds.Store) -> None:
    schema = pa.schema([("v", pa.int64()), ("b", pa.string()), ("a", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema, key=["a", "b"])
    pairs = [(a, b) for a in range(5) for b in "xyz"]
    table.append(pa.table({"v": [0] * 15, "b": [b for _, b in pairs], "a": [a for a, _ in pairs]}, schema))
    table.append(pa.table({"v": [0], "b": pa.array([None], pa.string()), "a": [3]}, schema))
    table.upsert(pa.table({"b": ["y", "w"], "v": [1, 1], "a": [3, 3]}))
    found = {(r["a"], r["b"]): r["v"] for r in table.scan().to_pyarrow().to_pylist()}
    assert found == dict.fromkeys([*pairs, (3, None)], 0) | {(3, "y"): 1, (3, "w"): 1}


@pytest.mark.parametrize("seed", range(4))
def test_any_writes_in_any_order(store: pds.Store, seed: int) -> None:
    chance = random.Random(seed)
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    model: dict[int, str] = {}
    for turn in range(30):
        what = chance.choice(["upsert", "upsert", "append", "delete", "overwrite", "compact", "restore"])
        if what == "upsert":
            ids = chance.sample(range(500), chance.randrange(1, 60))
            table.upsert(_rows(ids, f"{turn}-"))
            model |= {n: f"{turn}-{n}" for n in ids}
        elif what == "append":
            ids = [n for n in chance.sample(range(500), 40) if n not in model]
            table.append(_rows(ids, f"{turn}-"))
            model |= {n: f"{turn}-{n}" for n in ids}
        elif what == "delete":
            begin = chance.randrange(500)
            table.delete(f"id BETWEEN {begin} AND {begin + 50}")
            model = {n: v for n, v in model.items() if not begin <= n <= begin + 50}
        elif what == "overwrite":
            day = chance.randrange(7)
            ids = chance.sample(range(day, 500, 7), 10)
            table.overwrite(_rows(ids, f"{turn}-"), f"day = DATE '2026-01-0{day + 1}'")
            model = {n: v for n, v in model.items() if n % 7 != day} | {n: f"{turn}-{n}" for n in ids}
        elif what == "compact":
            table.optimize.compact()
        elif table.version > 2:
            version = chance.randrange(2, table.version)
            model = _names(table.as_of(version))
            table.restore(version)
        assert _names(table) == model


def test_writers_of_the_same_keys_come_one_after_the_other(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", SCHEMA, key="id")

    def write(writer: int) -> None:
        mine = pds.Table(store, "t")
        for turn in range(4):
            if writer == 0:
                mine.append(_rows([1000 + turn], "z"))
            elif writer == 1:
                mine.optimize.compact()
            else:
                mine.upsert(_rows(list(range(turn, turn + 20)), f"w{writer}-{turn}-"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    found = _names(table.refresh())
    assert found.keys() == {*range(23), *range(1000, 1004)}
    # Every upsert wrote all of these: the last one wrote them last.
    assert len({name.rsplit("-", 1)[0] for n, name in found.items() if 3 <= n < 20}) == 1


def test_overwrites_of_some_rows_do_not_add_up(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", SCHEMA)
    table.append(_rows(list(range(50)), "a"))

    def write(writer: int) -> None:
        ids = [n for n in range(50) if n % 7 == 3]
        pds.Table(store, "t").overwrite(_rows(ids, f"w{writer}-"), "day = DATE '2026-01-04'")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    found = _names(table.refresh())
    assert found.keys() == set(range(50))
    assert len({name.partition("-")[0] for n, name in found.items() if n % 7 == 3}) == 1


def test_the_same_key_upserts_once(table: pds.Table) -> None:
    first = table.upsert(_rows([1], "b"), idempotency_key="k")
    files = table.store.list_files("t", recursive=True)
    again = table.upsert(_rows([1], "c"), idempotency_key="k")
    assert (again.version, again.replayed) == (first.version, True)
    assert _names(table)[1] == "b1"
    assert [i.path for i in table.store.list_files("t", recursive=True)] == [i.path for i in files]


def test_what_cannot_be_matched_is_refused(table: pds.Table) -> None:
    before = [i.path for i in table.store.list_files("t", recursive=True)]
    nulls = pa.table({"id": pa.array([1, None], pa.int64())})
    calls: list[tuple[Any, str]] = [
        (lambda: table.upsert(_rows([1, 2, 1], "b")), r"same id: 1"),
        (lambda: table.upsert(nulls), "null"),
        (lambda: table.upsert(_rows([1], "b"), on="nothing"), "nothing"),
        (lambda: table.upsert(_rows([1], "b"), on=["id", "id"]), "duplicate"),
        (lambda: table.upsert(_rows([1], "b"), on=[]), "no merge key"),
        (lambda: table.upsert(_rows([1], "b"), on=7), "on"),
        (lambda: table.upsert(7), "data"),
        (lambda: table.upsert(pa.table({"y": [1]})), "y"),
        (lambda: table.overwrite(_rows([1], "b"), "id = 2"), "does not satisfy"),
        (lambda: table.overwrite(_rows([1], "b"), "id ="), "filter"),
        (lambda: table.overwrite(_rows([1], "b"), 7), "where"),  # type: ignore[arg-type]
    ]
    for call, says in calls:
        with pytest.raises(pds.InvalidInput, match=says):
            call()
    assert [i.path for i in table.store.list_files("t", recursive=True)] == before
    with pytest.raises(pds.InvalidInput, match="no merge key"):
        pds.Table.create(table.store, "u", SCHEMA).upsert(_rows([1], "b"))


def test_rows_are_not_overwritten_by_another_column_of_the_same_name(memory_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema)
    table.append(pa.table({"id": [1, 2], "x": [1, 2]}, schema))
    new = pa.table({"id": [9], "x": [1]}, schema)

    def batches() -> Iterator[pa.RecordBatch]:
        other = pds.Table(memory_store, "t")
        other.alter.rename_column("x", "y")
        other.alter.add_column("x", pa.int64())
        yield from new.to_batches()

    table.overwrite(pa.RecordBatchReader.from_batches(schema, batches()), "x = 1")
    newest = pds.Table(memory_store, "t")
    rows = sorted(newest.scan().to_pyarrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 2, "y": 2, "x": None}, {"id": 9, "y": 1, "x": None}]
    assert newest.check().orphans == []


def _overwrite_beside(store: pds.Store, change: Callable[[pds.Table], object]) -> pds.Table:
    schema = pa.schema([("x", pa.int64()), ("y", pa.int64())])
    table = pds.Table.create(store, "t", schema)
    table.append(pa.table({"x": [1, 2], "y": [2, 1]}, schema))
    new = pa.table({"x": [1], "y": [2]}, schema)

    def batches() -> Iterator[pa.RecordBatch]:
        change(pds.Table(store, "t"))
        yield from new.to_batches()

    table.overwrite(pa.RecordBatchReader.from_batches(schema, batches()), "x = 1 AND y = 2")
    return pds.Table(store, "t")


def test_an_overwrite_beside_a_new_order_of_columns_commits(memory_store: pds.Store) -> None:
    table = _overwrite_beside(memory_store, lambda other: other.alter.reorder(["y", "x"]))
    assert sorted(table.scan(["x", "y"]).to_pyarrow().to_pylist(), key=str) == [{"x": 1, "y": 2}, {"x": 2, "y": 1}]


def test_an_overwrite_beside_an_exchange_of_names_follows_its_columns(memory_store: pds.Store) -> None:
    def exchange(other: pds.Table) -> None:
        other.alter.rename_column("x", "z")
        other.alter.rename_column("y", "x")
        other.alter.rename_column("z", "y")

    table = _overwrite_beside(memory_store, exchange)
    assert sorted(table.scan(["x", "y"]).to_pyarrow().to_pylist(), key=str) == [{"x": 1, "y": 2}, {"x": 2, "y": 1}]


def test_an_overwrite_beside_another_name_of_its_column_follows_it(memory_store: pds.Store) -> None:
    table = _overwrite_beside(memory_store, lambda other: other.alter.rename_column("y", "z"))
    assert sorted(table.scan(["x", "z"]).to_pyarrow().to_pylist(), key=str) == [{"x": 1, "z": 2}, {"x": 2, "z": 1}]


def test_an_overwrite_beside_the_end_of_its_column_conflicts(memory_store: pds.Store) -> None:
    with pytest.raises(pds.CommitConflict, match="a concurrent commit changed a column"):
        _overwrite_beside(memory_store, lambda other: other.alter.drop_column("y"))
    table = pds.Table(memory_store, "t")
    assert table.scan().to_pyarrow().num_rows == 2
    assert table.check().orphans == []
    # As the caller sees the columns.
    with pytest.raises(pds.InvalidInput, match="y"):
        table.overwrite(table.scan().to_pyarrow(), "y = 2")


def test_an_upsert_beside_a_wider_key_conflicts(memory_store: pds.Store) -> None:
    schema = pa.schema([("k", pa.int8()), ("n", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema, key="k")
    table.append(pa.table({"k": [1, 2], "n": [1, 2]}, schema))
    new = pa.table({"k": [2, 3], "n": [20, 30]}, schema)

    def batches() -> Iterator[pa.RecordBatch]:
        pds.Table(memory_store, "t").alter.widen("k", pa.int64())
        yield from new.to_batches()

    with pytest.raises(pds.CommitConflict, match="a concurrent commit dropped or changed a key column"):
        table.upsert(pa.RecordBatchReader.from_batches(schema, batches()))
    newest = pds.Table(memory_store, "t")
    assert newest.check().orphans == []
    newest.upsert(new)
    assert sorted(newest.scan().to_pyarrow()["n"].to_pylist()) == [1, 20, 30]


# -- what happened --------------------------------------------------------------


def _apply(rows: dict[int, str], changes: pa.Table) -> dict[int, str]:
    """The rows after some changes; each must fit what is there."""
    rows = dict(rows)
    for change in changes.to_pylist():
        if change["_change_type"] == "delete":
            assert rows.pop(change["id"]) == change["name"]
        else:
            assert change["_change_type"] == "insert"
            assert change["id"] not in rows
            rows[change["id"]] = change["name"]
    return rows


def _do_something(table: pds.Table, chance: random.Random, turn: int) -> None:
    ids = chance.sample(range(300), 40)
    begin = chance.randrange(300)
    what: list[Callable[[], object]] = [
        lambda: table.upsert(_rows(ids, f"{turn}-")),
        lambda: table.append(_rows([n + 1000 * (turn + 1) for n in ids], f"{turn}-")),
        lambda: table.delete(f"id BETWEEN {begin} AND {begin + 60}"),
        lambda: table.delete(f"id % 5 = {begin % 5}"),
        lambda: table.overwrite(_rows(ids, f"{turn}-")),
        table.optimize.compact,
        lambda: table.restore(chance.randrange(1, table.version + 1)),
        lambda: table.alter.add_column(f"c{turn}", pa.int8()),
        lambda: table.tags.create(f"t{turn}"),
    ]
    chance.choice(what)()


@pytest.mark.parametrize("seed", range(4))
def test_changes_lead_from_any_version_to_any_later_one(store: pds.Store, seed: int) -> None:
    chance = random.Random(seed)
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    shown: dict[int, dict[int, str]] = {1: {}}
    for turn in range(14):
        _do_something(table, chance, turn)
        shown[table.version] = _names(table)
    versions = sorted(shown)
    for since, until in itertools.product(versions[::2], versions[::3]):
        if since <= until:
            changes = table.scan_changes(since, until).to_pyarrow()
            assert _apply(shown[since], changes) == shown[until]
            made = changes["_commit_version"].to_pylist()
            assert made == sorted(made)
            assert all(since < version <= until for version in made)
    assert _apply(shown[1], table.scan_changes(1).to_pyarrow()) == shown[table.version]


def test_changes_of_one_commit(table: pds.Table) -> None:
    table.upsert(_rows([5, 150, 300], "b"))
    table.alter.rename_column("name", "called")
    changes = table.scan_changes(3)
    names = [*table.schema.names, "_change_type", "_commit_version", "_commit_timestamp"]
    assert changes.schema.names == names
    found = changes.to_pyarrow()
    told = list(zip(found["_change_type"].to_pylist(), found["called"].to_pylist(), strict=True))
    assert told == [("delete", "a5"), ("delete", "a150"), ("insert", "b5"), ("insert", "b150"), ("insert", "b300")]
    assert set(found["_commit_version"].to_pylist()) == {4}
    assert set(found["_commit_timestamp"].to_pylist()) == {table.history(2)[1]["created_at"]}
    assert changes.count() == 5
    assert table.scan_changes(4).count() == 0
    assert table.scan_changes(table.version).count() == 0


def test_changes_that_cannot_be_told(table: pds.Table) -> None:
    with pytest.raises(pds.InvalidInput, match="from 3 to 2"):
        table.scan_changes(3, 2)
    with pytest.raises(pds.InvalidInput, match="no version 9"):
        table.scan_changes(1, 9)
    table.delete("id = 1")
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pds.VersionExpired, match="oldest"):
        table.scan_changes(1)
    own = pds.Table.create(table.store, "u", pa.schema([("_change_type", pa.int8())]))
    with pytest.raises(pds.InvalidInput, match="_change_type"):
        own.scan_changes(1)


def test_stored_changes_are_a_table_whose_other_columns_have_changes(table: pds.Table) -> None:
    table.upsert(_rows([5, 300], "b"))
    changes = table.scan_changes(1).to_pyarrow()
    stored = pds.Table.create(table.store, "u", changes.schema)
    stored.append(changes)
    assert stored.scan().to_pyarrow().equals(changes)
    for columns in (None, ["id", "_commit_version"]):
        with pytest.raises(pds.InvalidInput, match=r'"_c.*of the table has the name of a change column'):
            stored.scan_changes(1, columns=columns)
    names = [*table.schema.names]
    again = stored.scan_changes(1, columns=names)
    assert again.schema.names == [*names, "_change_type", "_commit_version", "_commit_timestamp"]
    assert again.to_pyarrow().select(names).equals(changes.select(names))
    assert set(again.to_pyarrow()["_change_type"].to_pylist()) == {"insert"}
    stored.alter.rename_column("_change_type", "change")
    stored.alter.rename_column("_commit_version", "version")
    with pytest.raises(pds.InvalidInput, match="_commit_timestamp"):
        stored.scan_changes(1)
    stored.alter.rename_column("_commit_timestamp", "at")
    assert stored.scan_changes(1).count() == changes.num_rows


def test_what_a_write_leaves_out_is_named(table: pds.Table) -> None:
    with pytest.raises(pds.InvalidInput, match='missing key column "id"'):
        table.upsert(pa.table({"name": ["x"]}))


def test_a_write_that_a_restore_of_other_columns_overtakes(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", pa.schema([pa.field("id", pa.int32(), nullable=False), ("x", pa.int8())]))
    table.append(pa.table({"id": pa.array([1], pa.int32()), "x": pa.array([1], pa.int8())}, table.schema))
    other = pds.Table(store, "t")
    schema = pa.schema([table.schema.field("id"), ("x", pa.int64())])

    def rows() -> Any:
        yield pa.record_batch({"id": pa.array([2], pa.int32()), "x": [1 << 40]}, schema)
        other.restore(2)

    for write in (table.append, table.overwrite, lambda data: table.upsert(data, on="id")):
        other.refresh().alter.widen("x", pa.int64())
        with pytest.raises(pds.TransactionExpired, match="restored"):
            write(pa.RecordBatchReader.from_batches(schema, rows()))
        assert table.refresh().scan().to_pyarrow().to_pylist() == [{"id": 1, "x": 1}]
        assert table.check().orphans == []


def test_changes_over_a_restore_of_a_column(store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("c", pa.int64(), nullable=False)])
    table = pds.Table.create(store, "t", schema)
    table.alter.drop_column("c")
    table.append(pa.table({"id": [1]}))
    table.restore(1)
    told = table.scan_changes(1).to_pyarrow()
    assert told["_change_type"].to_pylist() == ["insert", "delete"]
    assert told["c"].null_count == 2


LISTS = pa.dictionary(pa.int8(), pa.list_(pa.int64()))


@pytest.mark.parametrize(
    "data_type", [LISTS, pa.map_(pa.string(), LISTS), pa.struct([("x", LISTS)]), pa.list_(LISTS)], ids=str
)
def test_a_key_that_cannot_be_compared_is_refused_at_creation(memory_store: pds.Store, data_type: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("k", data_type)])
    for key in ("k", ["id", "k"]):
        with pytest.raises(pds.InvalidInput, match="a key cannot have columns of types"):
            pds.Table.create(memory_store, "t", schema, key=key)
    assert not list(memory_store.list_files("", recursive=True))
    assert pds.Table.create(memory_store, "t", schema, key="id").version == 1

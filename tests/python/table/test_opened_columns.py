"""Names in filters, keys, clauses and rows mean the columns that the handle shows, whatever others name them."""

from __future__ import annotations

import itertools
import pickle
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[int, Any]
NAMES = ["a", "b", "c", "d"]
ID = 0


class _ConflictError(Exception):
    """The model expects a conflict."""


class _RefusedError(Exception):
    """The model expects that the rows are refused."""


class Model:
    """Rows of values by the identity of columns, which no name changes."""

    def __init__(self, table: pds.Table, seed: int) -> None:
        self.chance = random.Random(seed)
        self.table = table
        self.names: dict[int, str] = {ID: "id", 1: "a", 2: "b", 3: "c"}
        self.rows: list[Row] = []
        self.last_column = 3
        self.last_row = 0
        self.add_rows(6)

    def add_rows(self, count: int) -> None:
        """Append rows through a handle that is up to date."""
        new = [self.new_row(list(self.names)) for _ in range(count)]
        self.table.append(self.to_arrow(new, self.names))
        self.rows += new

    def new_row(self, columns: list[int]) -> Row:
        self.last_row += 1
        values = {column: self.chance.choice([None, *range(6)]) for column in columns}
        return {**values, ID: self.last_row}

    @staticmethod
    def to_arrow(rows: list[Row], names: dict[int, str]) -> pa.Table:
        columns = {name: pa.array([row[column] for row in rows], pa.int64()) for column, name in names.items()}
        return pa.table(columns)

    def change_columns(self) -> None:
        """Rename, exchange, drop, add or reorder columns through a handle that is up to date."""
        alter, others = self.table.alter, [column for column in self.names if column != ID]
        free = [name for name in NAMES if name not in self.names.values()]
        kind = self.chance.choice(["rename", "exchange", "drop", "add", "reorder", "compact"])
        if kind == "rename" and others and free:
            column, name = self.chance.choice(others), self.chance.choice(free)
            alter.rename_column(self.names[column], name)
            self.names[column] = name
        elif kind == "exchange" and len(others) > 1:
            first, second = self.chance.sample(others, 2)
            alter.rename_column(self.names[first], "between")
            alter.rename_column(self.names[second], self.names[first])
            alter.rename_column("between", self.names[second])
            self.names[first], self.names[second] = self.names[second], self.names[first]
        elif kind == "drop" and len(others) > 1:
            column = self.chance.choice(others)
            alter.drop_column(self.names.pop(column))
            self.rows = [{c: value for c, value in row.items() if c != column} for row in self.rows]
        elif kind == "add" and free:
            self.last_column += 1
            self.names[self.last_column] = self.chance.choice(free)
            alter.add_column(self.names[self.last_column], pa.int64())
            self.rows = [{**row, self.last_column: None} for row in self.rows]
        elif kind == "reorder":
            self.names = dict(self.chance.sample(list(self.names.items()), len(self.names)))
            alter.reorder(list(self.names.values()))
        elif kind == "compact":
            self.table.optimize.compact()

    def expected(self) -> list[dict[str, Any]]:
        rows = [{self.names[column]: row.get(column) for column in self.names} for row in self.rows]
        return sorted(rows, key=lambda row: (row["id"], str(row)))

    def actual(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table.refresh().scan().to_pyarrow().to_pylist()
        return sorted(rows, key=lambda row: (row["id"], str(row)))

    # -- writes through a handle that shows `seen` -------------------------------

    def resolve(self, seen: dict[str, int], name: str) -> int:
        """The column that a name of the handle means."""
        column = seen[name]
        if column not in self.names:
            raise _ConflictError(name)
        return column

    def resolve_rows(self, seen: dict[str, int], names: list[str]) -> dict[int, str]:
        """The columns that names of rows mean: those that the handle does not show, too."""
        columns = {}
        now = {name: column for column, name in self.names.items()}
        for name in names:
            if name in seen:
                columns[self.resolve(seen, name)] = name
            elif name not in now:
                raise _RefusedError(name)
            elif now[name] in seen.values():
                raise _ConflictError(name)
            else:
                columns[now[name]] = name
        return columns

    def pick(self, seen: dict[str, int]) -> str:
        return self.chance.choice([name for name in seen if name != "id"])

    def delete(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        name, other = self.pick(seen), self.pick(seen)
        value, least = self.chance.randrange(6), self.chance.randrange(6)
        sql, expression = (
            f'"{name}" = {value} OR "{other}" > {least}',
            (pc.field(name) == value) | (pc.field(other) > least),
        )
        where = self.chance.choice([sql, expression])

        def after() -> list[Row]:
            first, second = self.resolve(seen, name), self.resolve(seen, other)
            return [row for row in self.rows if row[first] != value and (row[second] is None or row[second] <= least)]

        return lambda: self.check(lambda: stale.delete(where), after)

    def delete_by_key(self, stale: pds.Table, _: dict[str, int]) -> Callable[[], object]:
        most = self.chance.randrange(self.last_row + 1)
        return lambda: self.check(
            lambda: stale.delete(f"id <= {most}"), lambda: [row for row in self.rows if row[ID] > most]
        )

    def some_names(self, seen: dict[str, int], *required: str) -> list[str]:
        names = [name for name in seen if name != "id" and (name in required or self.chance.random() < 0.7)]
        return ["id", *names]

    def make_rows(self, names: list[str], values: dict[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for _ in range(2):
            self.last_row += 1
            row = {name: self.chance.choice([None, *range(6)]) for name in names}
            rows.append({**row, **values, "id": self.last_row})
        return rows

    def to_model(self, rows: list[dict[str, Any]], columns: dict[int, str]) -> list[Row]:
        return [{c: row[columns[c]] if c in columns else None for c in self.names} for row in rows]

    def append(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        names = self.some_names(seen)
        unseen = [name for name in NAMES if name not in seen]
        if unseen and self.chance.random() < 0.4:
            names.append(self.chance.choice(unseen))
        rows = self.make_rows(names, {})
        data = pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in names]))
        return lambda: self.check(
            lambda: stale.append(data), lambda: self.rows + self.to_model(rows, self.resolve_rows(seen, names))
        )

    def append_with_column(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        names = self.some_names(seen)
        rows = self.make_rows([*names, "new"], {})
        data = pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in [*names, "new"]]))

        def after() -> list[Row]:
            columns = self.resolve_rows(seen, names)
            new = self.last_column + 1
            self.last_column, self.names[new] = new, "new"
            before = [{**row, new: None} for row in self.rows]
            return before + self.to_model(rows, {**columns, new: "new"})

        def both() -> None:
            self.check(lambda: stale.append(data, schema_mode="merge"), after)
            if "new" in self.names.values():
                self.table.refresh().alter.drop_column("new")
                new = next(column for column, name in self.names.items() if name == "new")
                del self.names[new]
                self.rows = [{c: value for c, value in row.items() if c != new} for row in self.rows]

        return both

    def overwrite(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        name = self.pick(seen)
        value, names = self.chance.randrange(6), self.some_names(seen, name)
        rows = self.make_rows(names, {name: value})
        data = pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in names]))
        where = self.chance.choice([f'"{name}" = {value}', pc.field(name) == value])

        def after() -> list[Row]:
            columns = self.resolve_rows(seen, names)
            rest = [row for row in self.rows if row[seen[name]] != value]
            return rest + self.to_model(rows, columns)

        return lambda: self.check(lambda: stale.overwrite(data, where), after)

    def replace_all(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        names = self.some_names(seen)
        rows = self.make_rows(names, {})
        data = pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in names]))
        return lambda: self.check(
            lambda: stale.overwrite(data), lambda: self.to_model(rows, self.resolve_rows(seen, names))
        )

    def upsert(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        on = self.chance.choice(["id", self.pick(seen)])
        names = self.some_names(seen, on)
        rows = self.make_rows(names, {})
        for row, value in zip(rows, self.chance.sample(range(6), 2), strict=True):
            row[on] = value
        data = pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in names]))

        def after() -> list[Row]:
            columns, keys = self.resolve_rows(seen, names), {row[on] for row in rows}
            rest = [row for row in self.rows if row[seen[on]] not in keys]
            return rest + self.to_model(rows, columns)

        return lambda: self.check(lambda: stale.upsert(data, on=None if on == "id" else on), after)

    def merge(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        name, other, on = self.pick(seen), self.pick(seen), self.chance.choice(["id", self.pick(seen)])
        keys = self.chance.sample(range(1, self.last_row + 1) if on == "id" else range(6), 2)
        source = pa.table({on: pa.array(keys, pa.int64()), "x": pa.array([100, 200], pa.int64())})
        update = self.chance.random() < 0.5

        def write() -> object:
            begun = stale.merge(source, on)
            if update:
                return begun.when_matched_update({name: f'source.x + target."{other}"'}).execute()
            return begun.when_matched_delete(f'target."{name}" > 2').execute()

        def after() -> list[Row]:
            by_key = dict(zip(keys, [100, 200], strict=True))
            of = {text: self.resolve(seen, text) for text in [on, name, *([other] if update else [])]}
            rows = []
            for row in self.rows:
                matches = row[of[on]] in by_key
                if matches and update:
                    value = row[of[other]]
                    rows.append({**row, of[name]: None if value is None else by_key[row[of[on]]] + value})
                elif not matches or row[of[name]] is None or row[of[name]] <= 2:
                    rows.append(row)
            return rows

        return lambda: self.check(write, after)

    def merge_all(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        names = self.some_names(seen)
        rows = self.make_rows(names, {})
        rows[0]["id"] = 1
        data = pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in names]))

        def after() -> list[Row]:
            columns = self.resolve_rows(seen, names)
            new = {row["id"]: row for row in rows}
            matched = {row[ID] for row in self.rows}
            updated = [
                {**row, **{c: new[row[ID]][name] for c, name in columns.items()}} if row[ID] in new else row
                for row in self.rows
            ]
            return updated + self.to_model([row for row in rows if row["id"] not in matched], columns)

        write = lambda: stale.merge(data).when_matched_update_all().when_not_matched_insert_all().execute()  # noqa: E731
        return lambda: self.check(write, after)

    def drop(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        name = self.pick(seen)

        def after() -> list[Row]:
            column = self.resolve(seen, name)
            del self.names[column]
            return [{c: value for c, value in row.items() if c != column} for row in self.rows]

        return lambda: self.check(lambda: stale.alter.drop_column(name), after)

    def rename(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        name, new = self.pick(seen), self.chance.choice(NAMES)

        def after() -> list[Row]:
            column = self.resolve(seen, name)
            if new in self.names.values():
                raise _RefusedError(new)
            self.names[column] = new
            return self.rows

        return lambda: self.check(lambda: stale.alter.rename_column(name, new), after)

    def sort(self, stale: pds.Table, seen: dict[str, int]) -> Callable[[], object]:
        name = self.pick(seen)

        def both() -> None:
            self.check(lambda: stale.optimize.sort(name), lambda: self.rows if self.resolve(seen, name) else [])
            if seen[name] in self.names:
                values = self.table.refresh().scan().to_pyarrow()[self.names[seen[name]]].to_pylist()
                assert values == sorted(values, key=lambda value: (value is None, value))

        return both

    def check(self, write: Callable[[], object], after: Callable[[], list[Row]]) -> None:
        """Write, and compare with what the model says: which refuses before it changes anything."""
        before = self.table.refresh().version
        files = self.list_files()
        try:
            rows = after()
        except _ConflictError:
            with pytest.raises(pds.CommitConflict, match="refresh the table and write again"):
                write()
        except _RefusedError:
            with pytest.raises(pds.InvalidInput):
                write()
        else:
            self.rows = rows
            write()
            return
        assert self.table.refresh().version == before
        assert self.list_files() == files

    def list_files(self) -> list[str]:
        return [info.path for info in self.table.store.list_files(self.table.path, recursive=True)]


WRITES = [
    Model.delete,
    Model.delete,
    Model.delete_by_key,
    Model.append,
    Model.append_with_column,
    Model.overwrite,
    Model.replace_all,
    Model.upsert,
    Model.merge,
    Model.merge_all,
    Model.drop,
    Model.rename,
    Model.sort,
]
TURNS = 40


@pytest.mark.parametrize("seed", range(12))
def test_writes_by_the_names_of_an_older_snapshot(memory_store: pds.Store, seed: int) -> None:
    schema = pa.schema([(name, pa.int64()) for name in ["id", "a", "b", "c"]])
    model = Model(pds.Table.create(memory_store, "t", schema, key="id"), seed)
    for turn in range(TURNS):
        stale = pds.Table(memory_store, "t")
        seen = {name: column for column, name in model.names.items()}
        write = model.chance.choice(WRITES)
        commit = write(model, stale, seen)
        for _ in range(model.chance.randrange(4)):
            model.change_columns()
        commit()
        assert model.actual() == model.expected(), (turn, write.__name__)
        if len(model.names) < 3:
            model.last_column += 1
            model.names[model.last_column] = next(name for name in NAMES if name not in model.names.values())
            model.table.alter.add_column(model.names[model.last_column], pa.int64())
            model.rows = [{**row, model.last_column: None} for row in model.rows]
        if len(model.rows) < 4:
            model.add_rows(4)
    assert model.table.check().ok


def _exchange(table: pds.Table, first: str = "a", second: str = "b") -> None:
    for column, to in ((first, "between"), (second, first), ("between", second)):
        table.alter.rename_column(column, to)


def _replace_column(table: pds.Table) -> None:
    table.alter.drop_column("a")
    table.alter.add_column("a", pa.int64())


@pytest.fixture
def table(memory_store: pds.Store) -> pds.Table:
    table = pds.Table.create(memory_store, "t", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append(pa.table({"a": [1, 2], "b": [2, 1]}))
    return table


def _other(table: pds.Table) -> pds.Table:
    return pds.Table(table.store, table.path)


def test_rows_follow_their_columns(table: pds.Table) -> None:
    """The names of rows are those that the handle shows, as those of a filter are."""
    other = _other(table)
    _exchange(other)
    table.append(pa.table({"a": [7], "b": [8]}))
    assert table.schema.names == ["b", "a"]
    assert table.scan().to_pyarrow().to_pylist()[-1] == {"b": 7, "a": 8}
    # From now on it shows the newest names.
    table.append(pa.table({"a": [5], "b": [6]}))
    assert table.scan().to_pyarrow().to_pylist()[-1] == {"b": 6, "a": 5}


def test_an_older_version_shows_its_own_names(table: pds.Table) -> None:
    before = table.version
    _exchange(table)
    table.as_of(before).delete("a = 1")
    assert table.refresh().scan().to_pyarrow().to_pylist() == [{"b": 2, "a": 1}]


def test_a_handle_that_was_pickled_shows_its_own_names(local_store: pds.Store) -> None:
    table = pds.Table.create(local_store, "t", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append(pa.table({"a": [1, 2], "b": [2, 1]}))
    pickled = pickle.dumps(table)
    _exchange(table)
    stale = pickle.loads(pickled)  # noqa: S301 made here
    assert stale.delete("a = 1").rows == 1
    assert stale.scan().to_pyarrow().to_pylist() == [{"b": 2, "a": 1}]


def test_columns_that_others_have_added_have_their_names(table: pds.Table) -> None:
    _other(table).append(pa.table({"a": [3], "c": [9]}), schema_mode="merge")
    stale = table.as_of(table.version)
    assert stale.delete("c = 9 AND a = 3").rows == 1
    table.append(pa.table({"c": [4]}))
    assert table.scan(["c"]).to_pyarrow()["c"].to_pylist() == [None, None, 4]


WRITES_BY_NAME: dict[str, Callable[[pds.Table], object]] = {
    "delete": lambda t: t.delete("a = 1"),
    "delete by pyarrow": lambda t: t.delete(pc.field("a") == 1),
    "append": lambda t: t.append(pa.table({"a": [1]})),
    "append with columns": lambda t: t.append(pa.table({"a": [1]}), schema_mode="merge"),
    "overwrite": lambda t: t.overwrite(pa.table({"a": [1]})),
    "overwrite some": lambda t: t.overwrite(pa.table({"b": [1]}), "a IS NULL"),
    "upsert": lambda t: t.upsert(pa.table({"a": [1]}), on="a"),
    "merge": lambda t: t.merge(pa.table({"b": [1]}), "b").when_matched_update({"a": "7"}).execute(),
    "merge by": lambda t: t.merge(pa.table({"a": [1]}), "a").when_matched_delete().execute(),
    "merge where": lambda t: t.merge(pa.table({"b": [1]}), "b").when_matched_delete("target.a = 2").execute(),
    "merge all": lambda t: t.merge(pa.table({"a": [1], "b": [1]}), "b").when_not_matched_insert_all().execute(),
    "drop": lambda t: t.alter.drop_column("a"),
    "rename": lambda t: t.alter.rename_column("a", "z"),
    "widen": lambda t: t.alter.widen("a", pa.int64()),
    "reorder": lambda t: t.alter.reorder(["b", "a"]),
    "sort": lambda t: t.optimize.sort("a"),
    "compact": lambda t: t.optimize.compact(where="a = 1"),
    "begin": lambda t: t.begin_write(),
    "begin overwrite": lambda t: t.begin_write("overwrite", where="a = 1"),
}


@pytest.mark.parametrize("write", WRITES_BY_NAME.values(), ids=WRITES_BY_NAME)
@pytest.mark.parametrize("change", [_replace_column, lambda t: t.alter.drop_column("a")], ids=["replaced", "dropped"])
def test_a_column_that_was_dropped_is_a_conflict(
    table: pds.Table, write: Callable[[pds.Table], object], change: Callable[[pds.Table], None]
) -> None:
    other = _other(table)
    change(other)
    files = [info.path for info in table.store.list_files("t", recursive=True)]
    is_ambiguous = change is _replace_column or write is not WRITES_BY_NAME["begin"]
    if is_ambiguous:
        with pytest.raises(pds.CommitConflict, match="refresh the table and write again") as raised:
            write(table)
        assert not isinstance(raised.value, pds.TransactionExpired)
    else:
        write(table)
    assert [info.path for info in table.store.list_files("t", recursive=True)] == files
    assert other.refresh().scan().to_pyarrow().num_rows == 2


def test_a_refreshed_handle_writes_by_the_newest_names(table: pds.Table) -> None:
    _replace_column(_other(table))
    with pytest.raises(pds.CommitConflict):
        table.delete("a IS NULL")
    assert table.refresh().delete("a IS NULL").rows == 2


def test_many_commits_later(table: pds.Table) -> None:
    """The newest manifest does not list the version of the handle any more."""
    other = _other(table)
    _exchange(other)
    for number in range(70):
        other.tags.create(f"tag {number}", other.version)
    with pytest.raises(pds.CommitConflict, match="refresh"):
        table.alter.drop_column("a")
    assert table.delete("a = 1").rows == 1
    assert table.scan().to_pyarrow().to_pylist() == [{"b": 2, "a": 1}]


def test_names_that_a_vacuum_has_removed(table: pds.Table) -> None:
    """Retries of the error that was raised, which said to write again, never ended."""
    other = _other(table)
    _exchange(other)
    for number in range(70):
        other.tags.create(f"tag {number}", other.version)
        other.tags.delete(f"tag {number}")
    other.vacuum(timedelta(0))
    for write in (lambda: table.append(pa.table({"a": [7], "b": [8]})), lambda: table.delete("a = 1")):
        with pytest.raises(pds.CommitConflict, match="refresh") as raised:
            write()
        assert not isinstance(raised.value, pds.TransactionExpired)
    assert table.refresh().delete("a = 1").rows == 1


def test_a_table_that_was_created_anew_has_its_own_names(table: pds.Table) -> None:
    pds.Table.drop(table.store, "t")
    other = pds.Table.create(table.store, "t", pa.schema([("b", pa.int64()), ("a", pa.int64())]))
    other.append(pa.table({"a": [1, 2], "b": [2, 1]}))
    assert table.delete("a = 1").rows == 1
    assert table.scan().to_pyarrow().to_pylist() == [{"b": 1, "a": 2}]


def test_names_that_are_exchanged_while_a_stream_is_written(table: pds.Table) -> None:
    """The predicate and the rows follow the columns, in every attempt."""

    def rows() -> Any:
        yield pa.record_batch({"a": [1], "b": [5]})
        _exchange(_other(table))

    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    table.overwrite(pa.RecordBatchReader.from_batches(schema, rows()), "a = 1")
    assert sorted(table.scan().to_pyarrow().to_pylist(), key=str) == [{"b": 1, "a": 5}, {"b": 2, "a": 1}]


TYPES = {
    "texts": (pa.string(), pa.large_string(), ["x", "y"], "a = 'x'", True),
    "integers": (pa.int8(), pa.int32(), [1, 2], "a = 1", True),
    "decimals": (pa.decimal128(4, 2), pa.decimal128(9, 2), [1, 2], "a = 1", True),
    "lists": (pa.list_(pa.int8()), pa.large_list(pa.int16()), [[1], [2]], "a IS NOT NULL AND n = 1", True),
    "floats": (pa.float32(), pa.float64(), [0.1, 2.0], "a = 2", False),
    "signs": (pa.uint8(), pa.int16(), [1, 2], "a = 1", False),
    "nested floats": (
        pa.struct([("f", pa.float32())]),
        pa.struct([("f", pa.float64())]),
        [{"f": 0.5}, None],
        "a IS NOT NULL AND n = 1",
        False,
    ),
}


@pytest.mark.parametrize("kind", TYPES)
def test_types_that_became_wider(memory_store: pds.Store, kind: str) -> None:
    narrow, wide, values, where, is_same = TYPES[kind]
    table = pds.Table.create(memory_store, "t", pa.schema([("a", narrow), ("n", pa.int64())]))
    table.append(pa.table({"a": pa.array(values, narrow), "n": [1, 2]}))
    pds.Table(memory_store, "t").alter.widen("a", wide)
    stale = table.as_of(table.version)
    if is_same:
        assert table.delete(where).rows == 1
        return
    writes: list[Callable[[], object]] = [
        lambda: stale.delete(where),
        lambda: stale.merge(pa.table({"n": [1]}), "n").when_matched_delete("target.a IS NOT NULL").execute(),
        lambda: stale.merge(pa.table({"n": [1]}), "n").when_not_matched_by_source_update({"a": "target.a"}).execute(),
    ]
    for write in writes:
        with pytest.raises(pds.CommitConflict, match="changed the type of column"):
            write()
    # Expressions that do not read it, and rows, are as they were.
    stale.append(pa.table({"a": pa.array(values, narrow), "n": [3, 4]}))
    assert table.refresh().delete("n = 3").rows == 1
    assert table.refresh().scan().count() == 3


def test_begun_writes_have_the_newest_names(table: pds.Table) -> None:
    """Their rows are made later, when the handle shows these."""
    other = _other(table)
    other.alter.rename_column("b", "c")
    write = table.begin_write("overwrite", where="a = 1")
    assert table.schema.names == ["a", "c"]
    write.commit([write.prepare(pa.table({"a": [1], "c": [9]}))])
    assert sorted(table.scan().to_pyarrow().to_pylist(), key=str) == [{"a": 1, "c": 9}, {"a": 2, "c": 1}]
    stale = table.as_of(table.version)
    _exchange(other.refresh(), "a", "c")
    with pytest.raises(pds.CommitConflict, match="refresh"):
        stale.begin_write()
    # A begun write follows its columns.
    begun = table.refresh().begin_write("overwrite", where="a = 9")
    prepared = begun.prepare(pa.table({"a": [9], "c": [0]}))
    _exchange(other.refresh(), "a", "c")
    begun.commit([prepared])
    assert sorted(table.scan().to_pyarrow().to_pylist(), key=str) == [{"a": 0, "c": 9}, {"a": 2, "c": 1}]


def test_names_of_clauses_and_filters_in_any_order(memory_store: pds.Store) -> None:
    """Every permutation of three names, by SQL and by pyarrow."""
    names = ["a", "b", "c"]
    for number, order in enumerate(itertools.permutations(names)):
        path = f"t{number}"
        table = pds.Table.create(memory_store, path, pa.schema([(name, pa.int64()) for name in names]))
        table.append(pa.table({name: [position, 10 + position] for position, name in enumerate(names)}))
        stale = [table.as_of(table.version) for _ in range(2)]
        for name in names:
            table.alter.rename_column(name, name * 2)
        for name, new in zip(names, order, strict=True):
            table.alter.rename_column(name * 2, new)
        assert stale[0].delete("a = 0 AND b = 1 AND c = 2").rows == 1
        where = (pc.field("a") == 10) & (pc.field("b") == 11) & (pc.field("c") == 12)
        assert stale[1].delete(where).rows == 1
        assert table.refresh().scan().count() == 0

"""Writes that are committed on one version or not at all, and appends that bring columns."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

import independent_table as independent
import pds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])


def _rows(*ids: int, value: str = "x") -> pa.Table:
    return pa.table({"id": ids, "value": [value] * len(ids)}, schema=SCHEMA)


def _ids(table: pds.Table) -> list[int]:
    return sorted(table.refresh().scan().to_pyarrow()["id"].to_pylist())


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    table.append(_rows(1, 2))
    return table


WRITES: dict[str, Callable[[pds.Table, int | None], pds.table.CommitResult]] = {
    "append": lambda t, v: t.append(_rows(7), if_version=v),
    "append with a new column": lambda t, v: t.append(
        pa.table({"id": [7], "c": [1]}), schema_mode="merge", if_version=v
    ),
    "overwrite": lambda t, v: t.overwrite(_rows(7), if_version=v),
    "overwrite where": lambda t, v: t.overwrite(_rows(7), "id > 0", if_version=v),
    "upsert": lambda t, v: t.upsert(_rows(7), if_version=v),
    "merge": lambda t, v: t.merge(_rows(7)).when_not_matched_insert_all().execute(if_version=v),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_only_on_the_version_that_was_read(
    table: pds.Table, write: Callable[[pds.Table, int | None], pds.table.CommitResult]
) -> None:
    read = table.version
    other = pds.Table(table.store, "t")
    other.append(_rows(3))
    before = table.store.metrics()
    with pytest.raises(pds.CommitConflict, match="is at version 3, not at 2 as if_version says"):
        write(table, read)
    after = table.store.metrics()
    assert after["bytes_written"] == before["bytes_written"], "it is refused before anything is written"
    assert _ids(table) == [1, 2, 3]
    with pytest.raises(pds.CommitConflict):
        write(table, 99)
    result = write(table, table.refresh().version)
    assert result.version == 4
    assert 7 in _ids(table)
    assert table.check().orphans == []


@pytest.mark.parametrize(("bad", "error"), [(0, pds.InvalidInput), (-1, pds.InvalidInput), ("2", pds.InvalidType)])
def test_versions_that_cannot_be(table: pds.Table, bad: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="if_version"):
        table.append(_rows(3), if_version=bad)  # type: ignore[arg-type]


def test_a_counter_under_many_writers_loses_nothing(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("n", pa.int64())]))
    table.append(pa.table({"n": [0]}))
    conflicts = []

    def count() -> None:
        mine = pds.Table(memory_store, "t")
        done = 0
        while done < 10:
            current = mine.refresh().scan().to_pyarrow()["n"][0].as_py()
            try:
                mine.overwrite(pa.table({"n": [current + 1]}), if_version=mine.version)
                done += 1
            except pds.CommitConflict:
                conflicts.append(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.refresh().scan().to_pyarrow()["n"].to_pylist() == [40]
    assert conflicts, "otherwise nothing was tested"
    assert table.check().orphans == [], "what lost was removed"


def test_a_repeated_write_is_recognised_before_its_version(table: pds.Table) -> None:
    read = table.version
    first = table.overwrite(_rows(9), idempotency_key="once", if_version=read)
    again = table.overwrite(_rows(9), idempotency_key="once", if_version=read)
    assert (again.replayed, again.version) == (True, first.version)


def test_new_columns_come_with_their_rows(table: pds.Table) -> None:
    nested = pa.array([{"a": 1, "b": ["x"]}], pa.struct([("a", pa.int8()), pa.field("b", pa.list_(pa.string()))]))
    data = pa.table({"extra": pa.array([1.5]), "id": [3], "nested": nested})
    with pytest.raises(pds.InvalidInput, match='unknown column "extra"'):
        table.append(data)
    result = table.append(data, schema_mode="merge")
    assert result.version == 3, "one commit"
    assert table.schema.names == ["id", "value", "extra", "nested"]
    assert table.history()[0]["operation"]["columns_added"] == ["extra", "nested"]
    expected = [
        {"id": 1, "value": "x", "extra": None, "nested": None},
        {"id": 2, "value": "x", "extra": None, "nested": None},
        {"id": 3, "value": None, "extra": 1.5, "nested": {"a": 1, "b": ["x"]}},
    ]
    assert table.scan().to_pyarrow().sort_by("id").to_pylist() == expected
    assert table.scan(where="extra > 1").to_pyarrow()["id"].to_pylist() == [3]
    found = duckdb.from_arrow(table.scan().to_pyarrow()).filter("extra IS NULL").fetchall()
    assert len(found) == 2
    assert table.append(data, schema_mode="merge").version == 4
    assert "columns_added" not in table.history()[0]["operation"]
    assert table.as_of(2).schema.equals(SCHEMA)


def test_columns_without_a_type_wait_for_one(table: pds.Table) -> None:
    nothing = pa.table({"extra": pa.array([None], pa.null()), "id": [3]})
    table.append(nothing, schema_mode="merge")
    assert table.schema.equals(SCHEMA)
    table.append(pa.table({"extra": ["e"], "id": [4]}), schema_mode="merge")
    table.append(nothing, schema_mode="merge")
    assert table.scan().to_pyarrow().sort_by("id")["extra"].to_pylist() == [None, None, None, None, "e"]
    with pytest.raises(pds.InvalidInput, match="unknown column"):
        table.append(pa.table({"id": [5], "other": pa.array([None], pa.null())}))


def test_columns_that_are_not_null_may_be_where_there_are_rows_without_them(table: pds.Table) -> None:
    data = pa.table({"id": [3], "extra": ["e"]}, pa.schema([("id", pa.int64()), pa.field("extra", pa.string(), False)]))
    table.append(data, schema_mode="merge")
    assert table.schema.field("extra").nullable


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pa.table({"id": ["text"], "extra": [1]}), "type mismatch"),
        (pa.table([[1], [2]], names=["extra", "extra"]), "twice|already exists"),
    ],
)
def test_what_cannot_be_merged_is_refused_before_anything_is_written(
    table: pds.Table, data: pa.Table, message: str
) -> None:
    before = table.store.metrics()["bytes_written"]
    with pytest.raises(pds.InvalidInput, match=message):
        table.append(data, schema_mode="merge")
    assert table.store.metrics()["bytes_written"] == before
    assert table.refresh().version == 2
    with pytest.raises(pds.InvalidInput, match='schema_mode must be "strict" or "merge"'):
        table.append(_rows(3), schema_mode="overwrite")  # type: ignore[arg-type]


class _Between:
    """A stream whose first batch comes after another commit."""

    def __init__(self, data: pa.Table, commit: Callable[[], object]) -> None:
        self.data, self.commit = data, commit

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        def batches():  # type: ignore[no-untyped-def] # noqa: ANN202
            self.commit()
            yield from self.data.to_batches()

        reader = pa.RecordBatchReader.from_batches(self.data.schema, batches())
        return reader.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("other", ["other columns", "the same column", "both", "renamed", "dropped"])
def test_columns_that_another_commit_brings_meanwhile(tmp_path: Path, other: str) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    table.append(_rows(1))

    def commit() -> None:
        writer = pds.Table(store, "t")
        if other == "renamed":
            writer.alter.rename_column("value", "text")
        if other == "dropped":
            writer.alter.drop_column("value")
        if other in ("other columns", "both"):
            writer.append(pa.table({"id": [2], "b": ["two"]}), schema_mode="merge")
        if other in ("the same column", "both"):
            writer.append(pa.table({"id": [3], "a": [33]}), schema_mode="merge")

    table.append(_Between(pa.table({"id": [4], "value": ["v"], "a": [44]}), commit), schema_mode="merge")
    rows = {row["id"]: row for row in table.scan().to_pyarrow().to_pylist()}
    assert rows[4]["a"] == 44
    assert rows[1]["a"] is None
    assert "b" not in rows[4] or rows[4]["b"] is None
    assert rows[4].get("value", rows[4].get("text")) == (None if other == "dropped" else "v")
    if 2 in rows:
        assert (rows[2]["b"], rows[2]["a"]) == ("two", None)
    if 3 in rows:
        assert rows[3]["a"] == 33
    assert table.scan(where="a = 44").to_pyarrow()["id"].to_pylist() == [4]
    assert table.scan(where="a = 44 AND id = 4").count() == 1
    assert independent.check(tmp_path / "t") == []
    written = independent.newest(tmp_path / "t").rows()
    assert sorted(map(repr, written.to_pylist())) == sorted(map(repr, table.scan().to_pyarrow().to_pylist()))
    table.optimize.compact()
    after = {row["id"]: row for row in table.scan().to_pyarrow().to_pylist()}
    assert after == rows


def test_another_type_meanwhile_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", SCHEMA, key="id")

    def commit() -> None:
        pds.Table(store, "t").append(pa.table({"id": [3], "a": ["text"]}), schema_mode="merge")

    data = _Between(pa.table({"id": [4], "a": [44]}), commit)
    with pytest.raises(pds.TransactionExpired, match='column "a" was added as Utf8 by another commit'):
        table.append(data, schema_mode="merge")
    assert _ids(table) == [3]
    assert table.check().orphans == []


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_table_that_was_created_anew_is_another(
    memory_store: pds.Store, write: Callable[[pds.Table, int | None], pds.table.CommitResult]
) -> None:
    old = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    old.append(_rows(1))
    pds.Table.drop(memory_store, "t")
    new = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    new.append(_rows(2))
    assert new.version == old.version
    with pytest.raises(pds.CommitConflict, match="created again since version 2 was read"):
        write(old, old.version)
    assert _ids(new) == [2]
    write(new, new.version)


def test_columns_of_unknown_types_and_reserved_names_are_refused(table: pds.Table) -> None:
    for untyped in (pa.list_(pa.null()), pa.struct([("a", pa.int8()), ("b", pa.list_(pa.null()))])):
        data = pa.table({"id": [3], "extra": pa.array([None], untyped)})
        with pytest.raises(pds.InvalidInput, match=r'column "extra" is of type .* cast it'):
            table.append(data, schema_mode="merge")
    changes = table.scan_changes(since=1).to_pyarrow()
    with pytest.raises(pds.InvalidInput, match='"_change_type" has the name of a column of scan_changes'):
        table.append(changes, schema_mode="merge")
    with pytest.raises(pds.InvalidInput, match="must have a name"):
        table.append(pa.table({"id": [3], "": [1]}), schema_mode="merge")
    assert table.refresh().version == 2
    assert table.check().orphans == []


def test_appends_that_add_one_column_at_once(memory_store: pds.Store) -> None:
    """The metadata of nested fields, which readers of Parquet files add, makes no other type."""
    pds.Table.create(memory_store, "t", SCHEMA, key="id")
    writers = [pds.Table(memory_store, "t") for _ in range(4)]
    barrier = threading.Barrier(len(writers))

    def append(number: int) -> None:
        metadata = {b"PARQUET:field_id": b"%d" % number}
        field = pa.field("a", pa.int64(), metadata=metadata)
        nested = pa.array([{"a": number}], pa.struct([field]))
        data = pa.table({"id": [number], "extra": nested})
        barrier.wait()
        writers[number].append(data, schema_mode="merge")

    threads = [threading.Thread(target=append, args=(number,)) for number in range(len(writers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = pds.Table(memory_store, "t").scan().to_pyarrow().sort_by("id")
    assert rows["extra"].to_pylist() == [{"a": number} for number in range(len(writers))]


def test_a_column_that_got_its_name_by_a_rename_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    data = _Between(
        pa.table({"id": [3], "extra": ["e"]}), lambda: pds.Table(store, "t").alter.rename_column("value", "extra")
    )
    with pytest.raises(pds.TransactionExpired, match="got its name by another commit; write again"):
        table.append(data, schema_mode="merge")
    assert table.refresh().scan().count() == 0
    assert table.check().orphans == []

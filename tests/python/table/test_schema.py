"""Other columns: old files under a new schema, and the old schema for old versions."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import independent_table as independent
import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a", pa.int16(), metadata={"unit": "m"}),
        ("b", pa.string()),
        ("price", pa.decimal128(6, 2)),
    ],
    metadata={"owner": "tests"},
)


def _rows(begin: int, count: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    values = {
        "id": list(range(begin, begin + count)),
        "a": [None if n % 5 == 0 else n % 100 for n in range(begin, begin + count)],
        "b": [f"b{n}" for n in range(begin, begin + count)],
        "price": [decimal.Decimal(n) / 100 for n in range(begin, begin + count)],
    }
    return pa.table({name: values[name] for name in schema.names}, schema)


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    table = pds.Table.create(store, "t", SCHEMA, key="id")
    table.append(_rows(0, 10))
    return table


def test_a_column_is_added(table: pds.Table) -> None:
    done = table.alter.add_column(pa.field("new", pa.float32(), metadata={"unit": "s"}))
    assert (done.version, table.version) == (3, 3)
    assert table.schema.names == [*SCHEMA.names, "new"]
    assert table.schema.field("new").metadata == {b"unit": b"s"}
    assert table.schema.metadata == SCHEMA.metadata
    table.append(_rows(10, 5).append_column("new", pa.array([1.5] * 5, pa.float32())))
    found = table.scan().to_pyarrow()
    assert found["new"].to_pylist() == [None] * 10 + [1.5] * 5
    assert found.select(SCHEMA.names).equals(_rows(0, 15))
    assert table.scan(where="new IS NULL").count() == 10
    assert table.scan(where="new > 1").count() == 5
    assert table.as_of(2).schema.equals(SCHEMA, check_metadata=True)
    assert table.as_of(2).scan().to_pyarrow().equals(_rows(0, 10))


def test_a_dropped_column_does_not_come_back(table: pds.Table) -> None:
    table.alter.drop_column("a")
    assert table.schema.names == ["id", "b", "price"]
    table.alter.add_column("a", pa.string())
    assert table.scan(["a"]).to_pyarrow()["a"].to_pylist() == [None] * 10
    assert table.scan(where="a IS NOT NULL").count() == 0
    table.alter.add_column("c", pa.int8())
    table.append(_rows(10, 1).drop(["a"]).append_column("c", pa.array([7], pa.int8())))
    table.restore(2)
    table.alter.add_column("d", pa.int8())
    assert table.scan(["d"]).to_pyarrow()["d"].null_count == 10
    # What a writer brings that began when there was a "c" is no "d".
    table.restore(6)
    assert table.scan(["c"]).to_pyarrow()["c"].to_pylist() == [None] * 10 + [7]


def _stored_schemas(table: pds.Table) -> list[pa.Schema]:
    """What other readers see of the data files, oldest first."""
    files = [table.store.read_bytes(f"{table.path}/{file['path']}") for file in table.files().to_pylist()]
    return [pq.read_schema(pa.BufferReader(file)) for file in files]


def test_a_column_keeps_its_name_in_files(table: pds.Table) -> None:
    table.alter.rename_column("b", "B2")
    table.append(_rows(10, 5).rename_columns(["id", "a", "B2", "price"]))
    # Neither the renamed column's name nor a dropped one's is given to another column.
    table.alter.drop_column("a")
    for name in ("b", "A", "b-5", "new"):
        table.alter.add_column(name, pa.int64())
    row = {"id": [20], "B2": ["x"], "b": [1], "A": [2], "b-5": [3], "new": [4]}
    table.append(pa.table(row))
    table.alter.rename_column("B2", "b2")
    old, renamed, newest = _stored_schemas(table)
    assert old.names == renamed.names == ["id", "a", "b", "price"]
    assert newest.names == ["id", "b", "price", "b-5", "A-6", "b-5-7", "new"]
    ids = [field.metadata[b"PARQUET:field_id"] for field in newest]
    assert ids == [b"1", b"3", b"4", b"5", b"6", b"7", b"8"]
    found = table.scan(where="id >= 9").to_pyarrow()
    assert found["b2"].to_pylist() == ["b9", *(f"b{n}" for n in range(10, 15)), "x"]
    assert found.select(["b", "A", "b-5", "new"]).to_pylist()[-1] == {"b": 1, "A": 2, "b-5": 3, "new": 4}
    assert table.scan(where="b2 = 'b12'").count() == table.scan(where="b = 1").count() == 1
    table.optimize.compact()
    assert _stored_schemas(table)[0].names == newest.names
    table.alter.rename_column("b2", "b3")
    table.restore(2)
    table.alter.add_column("new", pa.int64())
    table.append(pa.table({"id": [21], "b": ["y"], "new": [1]}))
    assert _stored_schemas(table)[-1].names == ["id", "a", "b", "price", "new-9"]


NESTED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("places", pa.list_(pa.struct([("x", pa.float64()), ("names", pa.list_(pa.string()))]))),
        pa.field("by_name", pa.map_(pa.string(), pa.struct([("n", pa.int8())]))),
    ]
)


def _parquet_ids(schema: pa.Schema) -> list[int]:
    """The field ids of a Parquet schema, each before those within it."""

    def ids(field: pa.Field[Any]) -> list[int]:
        own = (field.metadata or {}).get(b"PARQUET:field_id")
        inner = field.type
        if pa.types.is_map(inner):
            fields = [inner.key_field, inner.item_field]
        else:
            fields = [inner.field(i) for i in range(inner.num_fields)]
        return [*([] if own is None else [int(own)]), *(i for one in fields for i in ids(one))]

    return [i for field in schema for i in ids(field)]


def test_nested_fields_have_ids(store: pds.Store) -> None:
    values = {
        "id": [1, 2, 3],
        "places": [[{"x": 0.5, "names": ["a", None]}], None, []],
        "by_name": [[("k", {"n": 1})], [], None],
    }
    rows = pa.table(values, NESTED)
    table = pds.Table.create(store, "t", NESTED)
    table.append(rows)
    table.alter.add_column("more", pa.list_(pa.int8()))
    table.append(rows.append_column("more", pa.array([[1], None, [None, 2]], pa.list_(pa.int8()))))
    assert table.schema.equals(NESTED.append(pa.field("more", pa.list_(pa.int8()))), check_metadata=True)
    found = table.scan().to_pyarrow()
    assert found.slice(3).drop(["more"]).equals(rows, check_metadata=True)
    assert found.slice(0, 3).drop(["more"]).equals(rows)
    assert [_parquet_ids(schema) for schema in _stored_schemas(table)] == [[*range(1, 11)], [*range(1, 13)]]
    # Who reads the file without its Arrow schema sees the same rows.
    first = table.files().to_pylist()[0]["path"]
    assert pq.read_table(pa.BufferReader(store.read_bytes(f"t/{first}"))).cast(NESTED).equals(rows)


def test_what_was_narrower_is_known(table: pds.Table) -> None:
    table.alter.widen("a", pa.int32())
    table.alter.widen("price", pa.decimal128(8, 2))
    table.alter.widen("a", pa.int64())
    newest = json.loads(table.store.read_bytes(f"t/manifest/v{table.version:08}.json"))
    widened = {column["name"]: column.get("widened") for column in newest["schema"]["columns"]}
    assert widened["a"] == [{"version": 3, "from": "Int16"}, {"version": 5, "from": "Int32"}]
    assert widened["price"] == [{"version": 4, "from": "Decimal128(6, 2)"}]
    assert widened["id"] is None


def test_names_can_be_exchanged(table: pds.Table) -> None:
    table.alter.rename_column("a", "x")
    table.alter.rename_column("b", "a")
    table.alter.rename_column("x", "b")
    table.alter.reorder(["price", "id", "b", "a"])
    expected = _rows(0, 10).rename_columns(["id", "b", "a", "price"]).select(["price", "id", "b", "a"])
    assert table.scan().to_pyarrow().equals(expected)
    assert table.schema.field("b").metadata == {b"unit": b"m"}
    assert table.scan(where="a = 'b3' AND b = 3").count() == 1
    assert table.delete("b = 3").rows == 1
    assert table.optimize.compact(1 << 20) is None or table.scan().count() == 9
    assert table.scan(["b"]).to_pyarrow()["b"].to_pylist() == [None, 1, 2, 4, None, 6, 7, 8, 9]


def test_types_become_wider(table: pds.Table) -> None:
    table.delete("id = 4")
    table.alter.widen("a", pa.int32())
    table.alter.widen("price", pa.decimal128(20, 2))
    table.alter.widen("b", pa.large_string())
    wide = {"id": [100], "a": [1 << 20], "b": ["x"], "price": [decimal.Decimal("123456789.01")]}
    more = pa.table(wide, table.schema)
    table.append(more)
    found = table.scan().to_pyarrow()
    assert found.schema.types == [pa.int64(), pa.int32(), pa.large_string(), pa.decimal128(20, 2)]
    assert found["a"].to_pylist() == [None, 1, 2, 3, None, 6, 7, 8, 9, 1 << 20]
    assert table.scan(where="a > 8 AND a < 10").count() == 1
    assert table.scan(where="a > 1000").count() == 1
    assert table.scan(where="price > 0.05").count() == 5
    assert table.scan(where="b = 'b9'").count() == 1


EXTENSION = pa.opaque(pa.int32(), "count", "acme")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.bool8(), pa.int32()),
        (EXTENSION, pa.int64()),
        (pa.uuid(), pa.binary()),
        (pa.list_(pa.bool8()), pa.list_(pa.int32())),
        (pa.list_(pa.bool8()), pa.large_list(pa.int8())),
        (pa.struct([("x", pa.list_(EXTENSION))]), pa.struct([("x", pa.list_(pa.int64()))])),
        (pa.map_(pa.string(), EXTENSION), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_extension_types_do_not_become_wider(memory_store: pds.Store, before: pa.DataType, after: pa.DataType) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("c", before)]))
    with pytest.raises(pds.InvalidInput, match="extension type"):
        table.alter.widen("c", after)
    assert table.refresh().version == 1
    assert table.schema.field("c").type == before


def test_what_is_around_an_extension_type_becomes_wider(memory_store: pds.Store) -> None:
    before, after = (pa.struct([("x", pa.bool8()), ("n", kind)]) for kind in (pa.int8(), pa.int64()))
    table = pds.Table.create(memory_store, "t", pa.schema([("c", before)]))
    table.alter.widen("c", after)
    assert table.refresh().schema.field("c").type == after


class _Count(pa.ExtensionType):
    """A type of an application, which refuses other storage types than its own."""

    def __init__(self) -> None:
        super().__init__(pa.int32(), "acme.count")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, _serialized: bytes) -> _Count:
        if storage_type != pa.int32():
            raise TypeError(f"a count is an int32, not {storage_type}")
        return cls()


# The name of the extension type, the narrow type, that with the extension, and the wide type.
WIDENED: dict[str, tuple[str, pa.DataType, pa.DataType, pa.DataType]] = {
    "bool8": ("arrow.bool8", pa.int8(), pa.bool8(), pa.int32()),
    "uuid": ("arrow.uuid", pa.binary(16), pa.uuid(), pa.binary()),
    "list": ("arrow.bool8", pa.list_(pa.int8()), pa.list_(pa.bool8()), pa.list_(pa.int32())),
    "registered": ("acme.count", pa.int32(), _Count(), pa.int64()),
}
READERS: dict[str, Callable[[pds.Table], list[Any]]] = {
    "pyarrow": lambda table: table.scan().to_pyarrow()["c"].to_pylist(),
    "stream": lambda table: table.scan().to_reader().read_all()["c"].to_pylist(),
    "dataset": lambda table: table.to_pyarrow_dataset().to_table()["c"].to_pylist(),
    "pandas": lambda table: pa.Table.from_pandas(table.scan().to_pandas())["c"].to_pylist(),
    "polars": lambda table: table.scan().to_polars()["c"].to_list(),
    "scan_polars": lambda table: table.scan_polars().collect()["c"].to_list(),
    "duckdb": lambda table: [row[0] for row in pds.sql("SELECT c FROM t", t=table).fetchall()],
    "tasks": lambda table: [value for task in table.scan_tasks() for value in task.to_pyarrow()["c"].to_pylist()],
    "changes": lambda table: table.scan_changes(1).to_pyarrow()["c"].to_pylist(),
    "sql filter": lambda table: table.scan(where="c IS NOT NULL").to_pyarrow()["c"].to_pylist(),
    "filter of pyarrow": lambda table: table.scan(where=pc.field("c").is_valid()).to_pyarrow()["c"].to_pylist(),
}


def _name_extension(field: pa.Field, name: str) -> pa.Field:
    """The field, or the items of its lists, with the name of an extension type, whatever the storage type."""
    if pa.types.is_list(field.type):
        return field.with_type(pa.list_(_name_extension(field.type.value_field, name)))
    return field.with_metadata({"ARROW:extension:name": name, "ARROW:extension:metadata": ""})


@pytest.fixture(params=WIDENED)
def widened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[pds.Table, list[Any]]]:
    """A table as earlier versions of pds left it, whose column of an extension type became wider; and its values."""
    name, narrow, extension, wide = WIDENED[request.param]
    values: list[Any] = [[1], [0], [1]] if pa.types.is_list(narrow) else [1, 0, 1]
    if pa.types.is_binary(wide):
        values = [b"%016d" % number for number in values]
    table = pds.Table.create(pds.Store(tmp_path.as_uri()), "made", pa.schema([("c", narrow)]))
    table.append(pa.table({"c": pa.array(values[:2], narrow)}))
    table.alter.widen("c", wide)
    table.append(pa.table({"c": pa.array(values[2:], wide)}))
    for path in (tmp_path / "made" / "manifest").glob("v*.json"):
        manifest = json.loads(path.read_text())
        (field,) = independent.arrow_schema(manifest)
        raw = pa.schema([_name_extension(field, name)]).serialize()
        path.write_text(json.dumps(manifest | {"arrow_schema": base64.b64encode(raw).decode()}))
    # Under another name, which nothing in this process has read.
    shutil.move(tmp_path / "made", tmp_path / "t")
    if isinstance(extension, _Count):
        pa.register_extension_type(extension)
    yield pds.Table(pds.Store(tmp_path.as_uri()), "t"), values
    if isinstance(extension, _Count):
        pa.unregister_extension_type("acme.count")


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_column_of_an_extension_type_that_became_wider_once_is_read(
    widened: tuple[pds.Table, list[Any]], read: Callable[[pds.Table], list[Any]]
) -> None:
    table, values = widened
    assert sorted(read(table)) == sorted(values)


def test_only_what_became_wider_loses_its_extension_type(widened: tuple[pds.Table, list[Any]], request: Any) -> None:
    table, values = widened
    _, _, extension, wide = WIDENED[request.node.callspec.params["widened"]]
    assert table.schema.field("c").type == wide
    before = table.as_of(2)
    assert before.schema.field("c").type == extension
    assert before.scan().to_pyarrow()["c"].type == extension
    table.append(pa.table({"c": pa.array(values[:1], wide)}))
    table.alter.add_column("n", pa.int8())
    table.optimize.compact()
    assert pds.Table(table.store, "t").scan(["c"]).to_pyarrow()["c"].to_pylist() == [*values, values[0]]


def test_a_key_becomes_wider(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", pa.schema([("k", pa.int8())]), key="k")
    table.append(pa.table({"k": pa.array(range(100), pa.int8())}))
    table.delete("k BETWEEN 10 AND 19")
    table.alter.widen("k", pa.int64())
    table.append(pa.table({"k": [1 << 40, 15]}))
    table.delete("k BETWEEN 30 AND 39")
    left = [n for n in range(100) if not 10 <= n < 20 and not 30 <= n < 40]
    assert table.scan().to_pyarrow()["k"].to_pylist() == [*left, 1 << 40, 15]


def test_writers_that_began_before_are_served(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", SCHEMA)
    other = pds.Table(store, "t")

    def rows() -> Any:
        yield _rows(0, 5).to_batches()[0]
        other.alter.rename_column("b", "c")
        other.alter.drop_column("price")
        other.alter.add_column("e", pa.int8())
        yield _rows(5, 5).to_batches()[0]

    table.append(pa.RecordBatchReader.from_batches(SCHEMA, rows()))
    found = table.refresh().scan().to_pyarrow()
    expected = _rows(0, 10).drop(["price"]).rename_columns(["id", "a", "c"])
    assert found.drop(["e"]).equals(expected)
    assert found["e"].null_count == 10


def _exchange_names(alter: Any) -> None:
    for column, to in (("x", "z"), ("y", "x"), ("z", "y")):
        alter.rename_column(column, to)


# Writes that are planned again where others have rewritten the files, and remove the two rows with x = 1.
REPLANNED: dict[str, Callable[[pds.Table], object]] = {
    "sql": lambda table: table.delete("x = 1"),
    "pyarrow": lambda table: table.delete(pc.field("x") == 1),
    "merge": lambda table: table.merge(pa.table({"x": [1]}), "x").when_matched_delete().execute(),
}


def _write_beside(write: Callable[[pds.Table], object], change: Callable[[Any], object]) -> pa.Table:
    """Another handle changes columns and rewrites the files after the write has been planned."""
    with ScriptedS3() as server:
        patient = {"stall_timeout": "60", "retry_timeout": "120"}
        ours = pds.Store("s3://bucket/p", storage_options=server.options("a") | patient)
        table = pds.Table.create(ours, "t", pa.schema([("x", pa.int64()), ("y", pa.int64())]))
        for _ in range(2):
            table.append(pa.table({"x": [1, 2], "y": [2, 1]}))
        other = pds.Table(pds.Store("s3://bucket/p", storage_options=server.options("b")), "t")
        rule = server.on("put", "v00000004.json", "pause", client="a")
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(write, table)
            rule.wait()
            change(other.alter)
            other.optimize.compact()
            rule.resume()
            try:
                written.result()
            except pds.CommitConflict:
                assert other.refresh().scan().count() == 4
                assert other.check().orphans == []
                raise
        rows = other.refresh().scan().to_pyarrow()
        assert other.check().ok
    return rows


@pytest.mark.parametrize("write", REPLANNED.values(), ids=REPLANNED)
def test_a_write_beside_the_end_of_its_column_conflicts(write: Callable[[pds.Table], object]) -> None:
    with pytest.raises(pds.CommitConflict, match=r"a concurrent commit changed a column.*write again.*x"):
        _write_beside(write, lambda alter: alter.drop_column("x"))


@pytest.mark.parametrize("write", REPLANNED.values(), ids=REPLANNED)
@pytest.mark.parametrize(
    ("change", "name"),
    [(lambda a: a.rename_column("x", "w"), "w"), (_exchange_names, "y")],
    ids=["another name", "exchanged names"],
)
def test_a_write_beside_a_change_of_names_follows_its_columns(
    write: Callable[[pds.Table], object], change: Callable[[Any], object], name: str
) -> None:
    """By the names it would delete the rows of the other column, or none."""
    assert _write_beside(write, change)[name].to_pylist() == [2, 2]


@pytest.mark.parametrize("write", REPLANNED.values(), ids=REPLANNED)
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.rename_column("y", "w"),
        lambda a: a.reorder(["y", "x"]),
        lambda a: a.add_column("z", pa.int64()),
        lambda a: a.drop_column("y"),
    ],
)
def test_a_write_beside_a_change_of_other_columns_commits(
    write: Callable[[pds.Table], object], change: Callable[[Any], object]
) -> None:
    assert _write_beside(write, change)["x"].to_pylist() == [2, 2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a.add_column("a", pa.int8()), "already"),
        (lambda a: a.add_column(pa.field("n", pa.int8(), nullable=False)), "nullable"),
        (lambda a: a.add_column("n"), "type"),
        (lambda a: a.add_column("n", "int8"), "DataType"),
        (lambda a: a.add_column(pa.field("n", pa.int8()), pa.int8()), "own"),
        (lambda a: a.add_column("n", pa.month_day_nano_interval()), "n"),
        (lambda a: a.add_column("n\0", pa.int8()), "NUL"),
        (lambda a: a.rename_column("nothing", "x"), "nothing"),
        (lambda a: a.rename_column("a", "b"), "already"),
        (lambda a: a.rename_column("a", "\ud800"), "encoded"),
        (lambda a: a.rename_column("a", 7), "string"),
        (lambda a: a.drop_column("id"), "key"),
        (lambda a: a.drop_column("nothing"), "nothing"),
        (lambda a: a.widen("a", pa.int8()), "cannot become"),
        (lambda a: a.widen("a", pa.int16()), "cannot become"),
        (lambda a: a.widen("a", pa.string()), "cannot become"),
        (lambda a: a.widen("price", pa.decimal128(20, 3)), "cannot become"),
        (lambda a: a.reorder(["id", "a", "b"]), "price"),
        (lambda a: a.reorder(["id", "a", "b", "price", "x"]), "x"),
        (lambda a: a.reorder(["id", "id", "a", "b", "price"]), "twice"),
        (lambda a: a.reorder(None), "list"),
        (lambda a: a.add_column("_change_type", pa.string()), "_change_type.* has the name of a column of scan_chan"),
        (lambda a: a.rename_column("a", "_commit_version"), "_commit_version.* has the name of a column of scan"),
        (lambda a: a.rename_column("b", "_commit_timestamp"), "has the name of a column of scan_changes"),
        (lambda a: a.rename_column("b", ""), "must have a name"),
        (lambda a: a.add_column("", pa.string()), "must have a name"),
        (lambda a: a.add_column(pa.field("", pa.string())), "must have a name"),
    ],
)
def test_changes_that_do_not_fit(table: pds.Table, change: Callable[[Any], Any], says: str) -> None:
    before = table.store.list_files("t", recursive=True)
    with pytest.raises(pds.InvalidInput, match=says):
        change(table.alter)
    assert [i.path for i in table.store.list_files("t", recursive=True)] == [i.path for i in before]


def test_a_table_with_an_empty_name_is_one_that_exists(tmp_path: Path) -> None:
    """Earlier versions of pds created some."""
    made = pds.Table.create(pds.Store(tmp_path), "made", pa.schema([("id", pa.int64()), ("x", pa.int64())]))
    made.append(pa.table({"id": [1], "x": [2]}))
    for path in (tmp_path / "made" / "manifest").glob("v*.json"):
        manifest = json.loads(path.read_text())
        manifest["schema"]["columns"][1] |= {"name": "", "stored": "x"}
        first, second = independent.arrow_schema(manifest)
        raw = pa.schema([first, second.with_name("")]).serialize()
        path.write_text(json.dumps(manifest | {"arrow_schema": base64.b64encode(raw).decode()}))
    # Under another name, which nothing in this process has read.
    shutil.move(tmp_path / "made", tmp_path / "t")
    schema = pa.schema([("id", pa.int64()), ("", pa.int64())])
    table = pds.Table.create(pds.Store(tmp_path), "t", schema, exists_ok=True)
    table.append(pa.table({"id": [3], "": [4]}))
    assert sorted(table.scan([""]).to_pyarrow()[""].to_pylist()) == [2, 4]
    with pytest.raises(pds.AlreadyExists):
        pds.Table.create(pds.Store(tmp_path), "t", schema)
    with pytest.raises(pds.InvalidInput, match="must have a name"):
        pds.Table.create(pds.Store(tmp_path), "new", schema, exists_ok=True)
    assert not (tmp_path / "new").exists()


def test_the_last_column_stays(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", pa.schema([("only", pa.int8())]))
    with pytest.raises(pds.InvalidInput, match="only"):
        table.alter.drop_column("only")


class _Game:
    """A table, and the rows it shall have."""

    KINDS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())

    def __init__(self, store: pds.Store, seed: int) -> None:
        self.chance = random.Random(seed)
        schema = pa.schema([("id", pa.int64()), ("c0", pa.int8())])
        self.table = pds.Table.create(store, "t", schema, key="id")
        self.rows: list[dict[str, Any]] = []
        self.turn = 0

    def play(self) -> None:
        self.turn += 1
        moves = [self.append, self.append, self.add, self.rename, self.drop, self.widen, self.order, self.delete]
        name = self.chance.choice([name for name in self.table.schema.names if name != "id"])
        self.chance.choice([*moves, lambda _: self.table.optimize.compact()])(name)

    def append(self, _: str) -> None:
        names = [name for name in self.table.schema.names if name != "id"]
        value = lambda: self.chance.choice([None, self.chance.randrange(100)])  # noqa: E731 read best here
        new = [{"id": self.turn * 10 + i, **{name: value() for name in names}} for i in range(4)]
        self.table.append(pa.Table.from_pylist(new, self.table.schema))
        self.rows += new

    def add(self, _: str) -> None:
        self.table.alter.add_column(f"a{self.turn}", pa.int8())
        self.rows = [{**row, f"a{self.turn}": None} for row in self.rows]

    def rename(self, name: str) -> None:
        new = f"r{self.turn}"
        self.table.alter.rename_column(name, new)
        self.rows = [{(new if n == name else n): v for n, v in row.items()} for row in self.rows]

    def drop(self, name: str) -> None:
        if len(self.table.schema.names) > 2:
            self.table.alter.drop_column(name)
            self.rows = [{n: v for n, v in row.items() if n != name} for row in self.rows]

    def widen(self, name: str) -> None:
        wider = self.KINDS.index(self.table.schema.field(name).type) + 1
        if wider < len(self.KINDS):
            self.table.alter.widen(name, self.KINDS[wider])

    def order(self, _: str) -> None:
        names = self.table.schema.names
        self.table.alter.reorder(self.chance.sample(names, len(names)))

    def delete(self, name: str) -> None:
        self.table.delete(f'"{name}" < 20')
        self.rows = [row for row in self.rows if row[name] is None or row[name] >= 20]


ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"


def _described(metadata: dict[bytes, bytes]) -> list[tuple[str, str]]:
    return [(field["name"], field["type"]) for field in json.loads(metadata[ROW_METADATA])["fields"]]


def test_the_description_of_spark_follows_the_columns(memory_store: pds.Store) -> None:
    """By it readers restore types, by the names of columns: that of a dropped one is not for a later one."""
    fields = [{"name": name, "type": f"type of {name}", "nullable": True, "metadata": {}} for name in "abc"]
    text = json.dumps({"type": "struct", "fields": fields}, indent=1).encode()
    names = pa.schema([(name, pa.string()) for name in "abc"], metadata={ROW_METADATA: text, b"owner": b"tests"})
    table = pds.Table.create(memory_store, "described", names)
    table.alter.reorder(["c", "b", "a"])
    table.alter.widen("c", pa.large_string())
    table.alter.add_column("d", pa.string())
    # Byte for byte, as long as it says the same.
    assert table.schema.metadata == names.metadata
    table.alter.drop_column("a")
    table.alter.rename_column("b", "a")
    assert _described(table.schema.metadata) == [("a", "type of b"), ("c", "type of c")]
    table.alter.add_column("b", pa.string())
    table.alter.drop_column("c")
    table.alter.rename_column("d", "c")
    assert _described(table.schema.metadata) == [("a", "type of b")]
    assert table.schema.metadata[b"owner"] == b"tests"
    table.append(pa.table({"a": ["1"], "b": ["2"], "c": ["3"]}))
    # In a file the columns have the names that they got first.
    (path,) = table.files()["path"].to_pylist()
    footer = pq.read_metadata(pa.BufferReader(memory_store.read_bytes(f"described/{path}")))
    assert footer.schema.to_arrow_schema().names == ["b", "d", "b-5"]
    assert _described(footer.metadata) == [("b", "type of b")]
    table.restore(1)
    assert table.schema.metadata == names.metadata


@pytest.mark.parametrize("seed", range(6))
def test_any_changes_in_any_order(memory_store: pds.Store, seed: int) -> None:
    """Every version shows what it showed when it was the newest."""
    game = _Game(memory_store, seed)
    table = game.table
    shown: dict[int, pa.Table] = {}
    for _ in range(60):
        game.play()
        found = table.scan().to_pyarrow().sort_by("id")
        expected = pa.Table.from_pylist(sorted(game.rows, key=lambda row: row["id"]), table.schema)
        assert found.equals(expected)
        shown[table.version] = found
    for version, expected in shown.items():
        assert table.as_of(version).scan().to_pyarrow().sort_by("id").equals(expected)
    table.vacuum(dt.timedelta(0))
    assert table.scan().to_pyarrow().sort_by("id").equals(shown[max(shown)])
    for path in table.files()["path"].to_pylist():
        stored = pq.read_schema(pa.BufferReader(memory_store.read_bytes(f"t/{path}")))
        assert all(b"PARQUET:field_id" in field.metadata for field in stored)

"""What callers pass as rows: data frames, what is no Arrow data, and streams that raise an exception."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pds
from hidden_values import REQUIRED_NULLS
from pds import odf
from pds.producers.engine import SourceRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FRAME = pd.DataFrame({"id": [1, 2, 3], "x": [0.5, 1.5, 2.5]})


def test_an_index_without_a_name_is_no_column(memory_store: pds.Store) -> None:
    filtered = FRAME[FRAME.id > 1]
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("x", pa.float64())]), key="id")
    table.append(filtered)
    table.upsert(filtered)
    table.merge(filtered, on="id").when_matched_update_all().execute()
    table.overwrite(filtered)
    write = table.begin_write()
    write.commit([write.prepare(FRAME[:1].set_axis(["a"]))])
    assert sorted(table.refresh().scan().to_pyarrow()["id"].to_pylist()) == [1, 2, 3]
    assert pds.ParquetDatasetStore(memory_store).write_dataset(filtered, "ds").row_count == 2
    assert pds.ParquetDatasetStore(memory_store).read_dataset("ds").column_names == ["id", "x"]


def test_a_new_table_has_the_columns_of_a_frame(tmp_path: Any) -> None:
    table = pds.write_table(tmp_path / "t", FRAME[FRAME.id > 1])
    assert table.schema.names == ["id", "x"]
    pd.testing.assert_frame_equal(table.scan().to_pandas(), FRAME[1:].reset_index(drop=True))


def test_an_index_with_a_name_is_a_column(tmp_path: Any) -> None:
    by_id = FRAME.set_index("id")
    table = pds.write_table(tmp_path / "t", by_id)
    assert table.schema.names == ["x", "id"]
    pd.testing.assert_frame_equal(table.scan().to_pandas(), by_id)


def test_of_an_index_of_several_levels_those_with_a_name_are_columns(tmp_path: Any) -> None:
    levels = pd.MultiIndex.from_arrays([["a", "b", "c"], [7, 8, 9]], names=[None, "k"])
    table = pds.write_table(tmp_path / "t", FRAME.set_axis(levels))
    assert table.schema.names == ["id", "x", "k"]
    assert table.scan().to_pyarrow()["k"].to_pylist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), "column 'id' is there twice"),
        (pd.DataFrame([[1, 2]], columns=[1, "1"]), "column '1' is there twice"),
        (FRAME.set_axis(pd.Index([7, 8, 9], name="id")), "the index has the name 'id'.*reset_index"),
        (FRAME.set_axis(pd.RangeIndex(3, name="id")), "the index has the name 'id'.*reset_index"),
        (pd.DataFrame({"c": [1 + 2j]}), "complex"),
        (pd.DataFrame({"c": [1, "a"]}), "column c"),
        (pd.DataFrame({"c": ["\ud800"]}), "surrogates"),
    ],
)
def test_a_frame_that_arrow_cannot_hold_is_refused(tmp_path: Any, frame: Any, says: str) -> None:
    with pytest.raises(pds.InvalidInput, match=says):
        pds.write_table(tmp_path / "t", frame)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pl.LazyFrame({"id": [1]}), r"LazyFrame.*\.collect\(\)"),
        ([{"id": 1}], r"pa\.Table\.from_pylist"),
        ([pa.record_batch({"id": [1]})], r"pa\.Table\.from_batches"),
        ([pa.table({"id": [1]})], r"pa\.concat_tables"),
        ({"id": [1]}, r"pa\.table"),
        ([], "an empty list"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_arrow_data_is_refused_with_the_call_that_converts_it(
    tmp_path: Any, data: object, says: str
) -> None:
    with pytest.raises(pds.InvalidType, match=says):
        pds.write_table(tmp_path / "t", data)
    with pytest.raises(pds.InvalidType, match=says):
        pds.write_dataset(tmp_path / "ds", data)


class SourceError(Exception):
    """An exception of the caller."""


def failing(error: BaseException, batches: int = 1) -> pa.RecordBatchReader:
    """Return a reader that raises an exception after some batches."""

    def read() -> Any:
        for i in range(batches):
            yield pa.record_batch({"id": [i]})
        raise error

    return pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), read())


WRITES: dict[str, Callable[[pds.Table, Any], object]] = {
    "append": lambda table, rows: table.append(rows),
    "upsert": lambda table, rows: table.upsert(rows, on="id"),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "overwrite where": lambda table, rows: table.overwrite(rows, where="id >= 0"),
    "merge": lambda table, rows: table.merge(rows, on="id").when_matched_delete().execute(),
    "prepare": lambda table, rows: table.begin_write().prepare(rows),
    "write_table": lambda table, rows: pds.write_table(f"{table.store.url}/new", rows),
    "write_table append": lambda table, rows: pds.write_table(f"{table.store.url}/t", rows, mode="append"),
    "write_dataset": lambda table, rows: pds.write_dataset(f"{table.store.url}/ds", rows),
    "prepare parts": lambda table, rows: pds.ParquetDatasetStore(table.store).begin_write("ds").prepare(rows),
    "ingest": lambda table, rows: odf.Dataset.create(table.store, "chain").ingest(rows),
}


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_an_exception_of_a_stream_is_the_cause_of_the_error(
    tmp_path: Any, write: Callable[[pds.Table, Any], object], batches: int
) -> None:
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1]}))
    error = SourceError("no more rows")
    with pytest.raises(pds.InvalidInput, match="reading the input failed: SourceError: no more rows") as caught:
        write(table, failing(error, batches))
    assert caught.value.__cause__ is error
    assert table.refresh().version == 1
    assert pds.list_tables(table.store) == ["t"]
    assert not (tmp_path / "ds" / "_SUCCESS").exists()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_an_error_of_pds_in_a_stream_stays_what_it_is(tmp_path: Any, write: Callable[[pds.Table, Any], object]) -> None:
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1]}))
    error = pds.BackendUnavailable("the other store is away")
    with pytest.raises(pds.BackendUnavailable, match="the other store is away") as caught:
        write(table, failing(error))
    assert caught.value is error


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_ctrl_c_in_a_stream_stays_what_it_is(tmp_path: Any, write: Callable[[pds.Table, Any], object]) -> None:
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1]}))
    with pytest.raises(KeyboardInterrupt):
        write(table, failing(KeyboardInterrupt()))


class Foreign:
    """A stream that is not of pyarrow, and so passes exceptions on as text."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._reader.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "error", [SourceError("no more rows"), pa.ArrowInvalid("no more rows"), OSError("no more rows")]
)
@pytest.mark.parametrize("name", ["append", "upsert", "merge"])
def test_an_exception_of_a_foreign_stream_is_an_error_of_pds(tmp_path: Any, name: str, error: Exception) -> None:
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1]}))
    with pytest.raises(pds.Error, match=r"reading the input failed: [\s\S]*no more rows"):
        WRITES[name](table, Foreign(failing(error)))
    assert table.refresh().version == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_program_in_a_foreign_stream_stays_what_it_is(
    memory_store: pds.Store, error: BaseException
) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))
    for write in (WRITES["append"], WRITES["merge"]):
        with pytest.raises(type(error)):
            write(table, Foreign(failing(error)))


@pytest.mark.parametrize("error", [SourceError("no more rows"), KeyboardInterrupt(), SystemExit(3)])
def test_rows_that_are_staged_raise_what_their_reader_raises(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The engine has the exception as text alone."""

    def stage(_store: object, _path: str, _target: object, rows: pa.RecordBatchReader, _threads: int | None) -> bytes:
        try:
            rows.read_all()
        except BaseException as raised:  # noqa: BLE001 as the engine does
            raise pds.Error(str(raised)) from None
        return b""

    monkeypatch.setattr("pds.producers.engine._pds.stage_source_rows", stage)
    unused: Any = None
    with pytest.raises(type(error)) as caught:
        SourceRows(memory_store, "p", unused, unused).stage(failing(error))
    assert caught.value is error


def failing_rows(error: BaseException, names: list[str]) -> pa.RecordBatchReader:
    """Return a reader of columns of one integer each, which raises an exception after a batch."""
    batches = (pa.record_batch(dict.fromkeys(names, batch.column(0))) for batch in failing(error))
    return pa.RecordBatchReader.from_batches(pa.schema(dict.fromkeys(names, pa.int64())), batches)


PUSHES: dict[str, Callable[[pds.Pipeline, Any, Any], object]] = {
    "update": lambda pipeline, rows, _: pipeline.update(s=pds.Changes(rows)),
    "deletes": lambda pipeline, _, keys: pipeline.update(s=pds.Changes(deletes=keys)),
    "replace": lambda pipeline, rows, _: pipeline.update(s=pds.Replace(rows)),
    "preview": lambda pipeline, rows, _: pipeline.preview(s=pds.Changes(rows)),
}


@pytest.mark.parametrize("error", [SourceError("no more rows"), pds.BackendUnavailable("away"), KeyboardInterrupt()])
@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES.keys())
def test_an_exception_of_a_stream_that_is_pushed_to_a_pipeline(
    memory_store: pds.Store, error: BaseException, push: Callable[[pds.Pipeline, Any, Any], object]
) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=pa.int64(), value=pa.int64())
    pipeline.select(source, key="key", value="value", name="c")
    pipeline.update(s=pds.Changes([(1, 1)]))
    expected = pds.InvalidInput if isinstance(error, SourceError) else type(error)
    with pytest.raises(expected) as caught:
        push(pipeline, failing_rows(error, ["key", "value"]), failing_rows(error, ["key"]))
    assert isinstance(error, KeyboardInterrupt) or error in (caught.value, caught.value.__cause__)
    assert pipeline["c"].read().num_rows == 1


def test_a_stream_that_cannot_begin_is_refused(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))
    rows = duckdb.sql("SELECT CAST(CASE WHEN i > 2 THEN 'x' ELSE '1' END AS BIGINT) AS id FROM range(5) r(i)")
    with pytest.raises(pds.InvalidInput, match=r"reading the input failed: ConversionException: .*'x'") as caught:
        table.append(rows)
    assert isinstance(caught.value.__cause__, duckdb.ConversionException)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize(
    "type_", [pa.int64(), pa.struct([("a", pa.struct([("b", pa.int64())]))])], ids=["flat", "nested"]
)
def test_a_stream_that_was_read_is_refused(
    tmp_path: Any, write: Callable[[pds.Table, Any], object], type_: pa.DataType
) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", type_)])
    table = pds.write_table(tmp_path / "t", schema.empty_table())
    rows = pa.table({"id": [1, 2], "x": pa.nulls(2, type_)})
    reader = rows.to_reader(max_chunksize=1)
    pds.Table.create(table.store, "other", schema).append(reader)
    with pytest.raises(pds.InvalidInput, match="RecordBatchReader were read before"):
        write(table, reader)
    assert table.refresh().version == 1
    # Not by a call of pds: what is left belongs to the caller.
    begun = rows.to_reader(max_chunksize=1)
    begun.read_next_batch()
    write(pds.write_table(tmp_path / "second" / "t", schema.empty_table()), begun)


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES.keys())
def test_a_stream_that_a_pipeline_has_read_is_refused(
    memory_store: pds.Store, push: Callable[[pds.Pipeline, Any, Any], object]
) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=pa.int64(), value=pa.int64())
    pipeline.select(source, key="key", value="value", name="c")
    rows, keys = pa.table({"key": [1], "value": [1]}).to_reader(), pa.table({"key": [1]}).to_reader()
    pairs, listed = ((n, n) for n in range(3)), iter_keys(3)
    pipeline.update(s=pds.Changes(rows))
    pipeline.update(s=pds.Changes(deletes=keys))
    pipeline.update(s=pds.Changes(pairs))
    pipeline.update(s=pds.Changes(deletes=listed))
    for read in ((rows, keys), (pairs, listed)):
        with pytest.raises(pds.InvalidInput, match="were read before"):
            push(pipeline, *read)
    assert pipeline.version == 4


def iter_keys(count: int) -> Iterator[int]:
    yield from range(count)


def test_the_retry_of_an_append_with_its_reader_is_a_replay_or_refused(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))
    reader = pa.table({"id": [1, 2]}).to_reader()
    with pytest.raises(pds.CommitConflict):
        table.append(reader, idempotency_key="k", if_version=7)
    first = table.append(reader, idempotency_key="k")
    assert table.append(reader, idempotency_key="k").version == first.version
    with pytest.raises(pds.InvalidInput, match="were read before"):
        table.append(reader, idempotency_key="another")
    assert table.refresh().scan().count() == 2


class Binary(pa.ExtensionType):
    """An extension type whose metadata is not text."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.binary")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"\xff\x00"

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: pa.DataType, _metadata: bytes) -> Binary:
        return cls()


@pytest.mark.parametrize(
    "data_type",
    [Binary(), pa.list_(Binary()), pa.struct([("x", Binary())]), pa.dictionary(pa.int8(), Binary())],
    ids=["plain", "list", "struct", "dictionary"],
)
def test_extension_types_with_binary_metadata_are_refused_by_name(
    memory_store: pds.Store, data_type: pa.DataType
) -> None:
    schema = pa.schema([("id", pa.int64()), ("other", data_type)])
    says = "'tests.binary' of column 'other' must be UTF-8 text"
    with pytest.raises(pds.InvalidInput, match=says):
        pds.Table.create(memory_store, "t", schema)
    with pytest.raises(pds.InvalidInput, match=says):
        pds.ParquetDatasetStore(memory_store).write_dataset(pa.Table.from_batches([], schema), "a")
    assert not list(memory_store.list_files("", recursive=True))


WITH_NULL_VALUE = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None, 1], pa.int8()), pa.array(["", None, "b"]))
FIVE_TEXTS = ["", None, "b", None, None]


@pytest.mark.parametrize(
    "data_type",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
    ids=str,
)
def test_nulls_among_the_values_of_a_dictionary(memory_store: pds.Store, data_type: pa.DataType) -> None:
    """Arrow casts them to empty views. They are null however rows come in, and in columns within others."""
    schema = pa.schema([("id", pa.int64()), ("text", data_type), ("in", pa.struct([("x", data_type)]))])
    table = pds.Table.create(memory_store, "t", schema, key="id")

    is_binary = "binary" in str(data_type)
    texts = WITH_NULL_VALUE
    if is_binary:
        texts = pa.DictionaryArray.from_arrays(texts.indices, texts.dictionary.cast(pa.binary()))

    def rows(first: int) -> pa.Table:
        inner = pa.StructArray.from_arrays([texts], ["x"])
        return pa.table({"id": list(range(first, first + 5)), "text": texts, "in": inner})

    table.append(rows(0))
    table.upsert(rows(5))
    merge = table.merge(rows(10), on="id")
    merge.when_not_matched_insert_all().execute()
    cast = f"CAST(source.text AS {'BYTEA' if is_binary else 'VARCHAR'})"
    table.merge(rows(10), on="id").when_matched_update({"text": cast}).execute()
    read = sorted(table.refresh().scan().to_pyarrow().to_pylist(), key=lambda row: row["id"])
    expected = [t.encode() if t is not None and is_binary else t for t in FIVE_TEXTS]
    assert [row["text"] for row in read] == expected * 3
    assert [row["in"]["x"] for row in read] == expected * 3
    assert table.scan(where="text IS NULL").count() == 9
    assert table.delete("text IS NULL").rows == 9


def test_nulls_among_the_values_of_a_dictionary_that_must_not_be_null(memory_store: pds.Store) -> None:
    for data_type in (pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        schema = pa.schema([("id", pa.int64()), pa.field("text", data_type, nullable=False)])
        table = pds.Table.create(memory_store, str(data_type).split("<", maxsplit=1)[0], schema)
        for nullable in (True, False):
            encoded = WITH_NULL_VALUE
            fields = [pa.field("id", pa.int64()), pa.field("text", encoded.type, nullable=nullable)]
            with pytest.raises(pds.InvalidInput, match="text"):
                table.append(pa.table([pa.array(range(5)), encoded], pa.schema(fields)))
        assert table.scan().count() == 0


@pytest.mark.parametrize("name", REQUIRED_NULLS)
def test_a_null_where_a_field_has_none_is_refused_by_its_path(tmp_path: Any, name: str) -> None:
    """Plain, and among the values of dictionaries and runs. Nothing is written, however the rows come in."""
    field, column, path = REQUIRED_NULLS[name]
    schema = pa.schema([pa.field("id", pa.int64()), field])
    bad = pa.table([pa.array(range(len(column)), pa.int64()), column], schema=schema)
    # The first row has none, though its items are followed by others.
    good = bad.slice(0, 0 if "fixed" in name else 1)
    table = pds.write_table(tmp_path / "t", good)
    assert table.scan().to_pyarrow().to_pylist() == good.to_pylist()

    def files() -> set[str]:
        infos = table.store.list_files("", recursive=True)
        return {str(info.path) for info in infos if str(info.path).endswith(".parquet")}

    before = files()
    streams: list[Any] = [bad.to_reader(max_chunksize=1), Foreign(bad.to_reader())]
    # Chains refuse list views, and runs within other types. Some types have no hash there.
    in_chains = "runs" not in name and "view" not in name
    ways = [(way, write, bad) for way, write in WRITES.items() if way != "ingest" or in_chains]
    ways += [("append", WRITES["append"], stream) for stream in streams]
    for way, write, rows in ways:
        refusal = re.escape(f'null in "x{path}", which is not nullable')
        match = f'{refusal}|column "x": the logical hash' if way == "ingest" else refusal
        with pytest.raises(pds.InvalidInput, match=match):
            write(table, rows)
        assert files() == before, way
        assert table.refresh().version == 1


def test_nulls_among_the_values_of_dictionaries_in_lists_are_null_items(memory_store: pds.Store) -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 2, None, 3, 3, 5], pa.int32()), WITH_NULL_VALUE)
    entries = pa.MapArray.from_arrays([0, 2, 3, 3, 3, 5], pa.array(list("abcde")), WITH_NULL_VALUE)
    for value in (pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        kind = pa.list_(value)
        schema = pa.schema([("id", pa.int64()), ("items", kind), ("map", pa.map_(pa.string(), value))])
        table = pds.Table.create(memory_store, str(value).split("<", maxsplit=1)[0], schema, key="id")
        rows = [pa.table({"id": range(n, n + 5), "items": lists, "map": entries}) for n in (0, 5, 10)]
        table.append(rows[0])
        table.upsert(rows[1])
        table.merge(rows[2], on="id").when_not_matched_insert_all().execute()
        read = sorted(table.refresh().scan().to_pyarrow().to_pylist(), key=lambda row: row["id"])
        assert [row["items"] for row in read] == lists.to_pylist() * 3
        assert [row["map"] for row in read] == entries.to_pylist() * 3

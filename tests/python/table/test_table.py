"""Tables: create, append, read, go back, name, vacuum; every bad input before anything is written."""

from __future__ import annotations

import base64
import copy
import datetime as dt
import decimal
import json
import pickle
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds
from scripted_s3 import BUCKET, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UTC = dt.UTC
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ratio", pa.float64()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("where", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("raw", pa.binary()),
        ("small", pa.uint16()),
    ],
    metadata={"owner": "tests"},
)


def rows(begin: int, count: int) -> pa.Table:
    """Rows of every kind of column, with nulls."""
    numbers = range(begin, begin + count)

    def maybe(value: Any, number: int) -> Any:
        return None if number % 7 == 3 else value

    return pa.Table.from_pylist(
        [
            {
                "id": n,
                "name": maybe(f"name {n}", n),
                "price": maybe(decimal.Decimal(n) / 100, n),
                "day": maybe(dt.date(2020, 1, 1) + dt.timedelta(n % 3000), n),
                "at": maybe(dt.datetime(2020, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=n), n),
                "ratio": maybe(n / 3, n),
                "flag": maybe(n % 2 == 0, n),
                "tags": maybe([str(n), None], n),
                "where": maybe({"x": n, "y": str(n)}, n),
                "kind": maybe("abc"[n % 3], n),
                "raw": maybe(bytes([n % 256]), n),
                "small": maybe(n % 65536, n),
            }
            for n in numbers
        ],
        SCHEMA,
    )


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    """An empty table of each kind of store in turn."""
    return pds.Table.create(store, "lake/events", SCHEMA, key="id")


def same(found: pa.Table, expected: pa.Table) -> None:
    """Equal in columns, order and values; dictionaries may differ."""
    assert found.schema.equals(expected.schema)
    assert found.to_pylist() == expected.to_pylist()


def objects(store: pds.Store, folder: str = "lake/events") -> dict[str, int]:
    return {info.path: info.size for info in store.list_files(folder, recursive=True)}


# -- rows -----------------------------------------------------------------------


def test_what_is_appended_is_read(table: pds.Table) -> None:
    assert table.version == 1
    assert table.schema.equals(SCHEMA, check_metadata=True)
    same(table.scan().to_pyarrow(), SCHEMA.empty_table())
    first = table.append(rows(0, 100))
    assert (first.version, first.rows, first.files, first.replayed) == (2, 100, 1, False)
    table.append(rows(100, 50))
    whole = rows(0, 150)
    same(table.scan().to_pyarrow(), whole)
    assert table.scan().to_pyarrow().schema.equals(SCHEMA, check_metadata=True)
    assert table.scan().count() == 150
    same(table.scan(["price", "id"]).to_pyarrow(), whole.select(["price", "id"]))
    same(table.scan(limit=120).to_pyarrow(), whole.slice(0, 120))
    assert table.scan(limit=0).count() == 0
    assert table.scan([], limit=120).count() == 120
    assert pl.DataFrame(table)["id"].to_list() == whole["id"].to_pylist()
    assert table.scan(["id"]).to_polars().height == 150
    assert table.scan(["id"]).to_pandas().shape == (150, 1)
    events = pa.RecordBatchReader.from_stream(table)  # noqa: F841 duckdb finds it by its name
    assert duckdb.sql("select sum(id) from events").fetchall() == [(sum(range(150)),)]


def test_a_stream_becomes_several_files(store: pds.Store) -> None:
    options = pds.WriteOptions(max_rows_per_file=1000, row_group_size=300)
    table = pds.Table.create(store, "t", pa.schema([("x", pa.int64())]), options=options)
    batches = (pa.record_batch({"x": range(i * 70, i * 70 + 70)}) for i in range(50))
    done = table.append(pa.RecordBatchReader.from_batches(table.schema, batches))
    assert (done.rows, done.files) == (3500, 4)
    assert table.files()["total_rows"].to_pylist() == [1000, 1000, 1000, 500]
    assert done.bytes == pc.sum(table.files()["size_bytes"]).as_py()
    assert table.scan().to_pyarrow()["x"].to_pylist() == list(range(3500))


def test_columns_are_matched_by_name_and_widened(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", pa.schema([("a", pa.int64()), ("b", pa.large_string()), ("c", pa.float64())]))
    table.append(pa.table({"b": pl.Series(["x"]).to_arrow(), "a": pa.array([1], pa.int8())}))
    table.append(pl.DataFrame({"c": [0.5], "b": ["y"]}))
    expected = [{"a": 1, "b": "x", "c": None}, {"a": None, "b": "y", "c": 0.5}]
    assert table.scan().to_pyarrow().to_pylist() == expected


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pa.table({"a": [1], "z": [1]}), '"z"'),
        (pa.table({"a": ["x"]}), '"a"'),
        (pa.table({"a": [1.5]}), '"a"'),
        (pa.table({"a": pa.array([1], pa.uint64())}), '"a"'),
        (pa.table({"b": ["x"]}), '"a"'),
        (pa.table({"a": [None], "b": ["x"]}), '"a"'),
        (pa.table([[1], [2]], ["a", "a"]), '"a"'),
        ([1, 2], "__arrow_c_stream__"),
    ],
)
def test_rows_that_do_not_fit_are_refused(memory_store: pds.Store, data: object, says: str) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    table = pds.Table.create(memory_store, "lake/events", schema)
    before = objects(memory_store)
    with pytest.raises(pds.InvalidInput, match=says):
        table.append(data)
    assert objects(memory_store) == before
    assert table.refresh().version == 1


def test_a_stream_that_breaks_leaves_nothing(store: pds.Store) -> None:
    table = pds.Table.create(store, "lake/events", pa.schema([("x", pa.int64())]))
    before = objects(store)

    def batches() -> Any:
        yield pa.record_batch({"x": range(200_000)})
        raise OSError("the source broke")

    with pytest.raises(pds.RemoteStoreError, match="the source broke"):
        table.append(pa.RecordBatchReader.from_batches(table.schema, batches()))
    assert objects(store) == before


# -- versions -------------------------------------------------------------------


def test_versions_stay_as_they_were(table: pds.Table) -> None:
    old = copy.copy(table)
    before = dt.datetime.now(UTC)
    table.append(rows(0, 10))
    between = table.history(1)[0]["created_at"]
    table.append(rows(10, 10))
    assert (old.version, old.scan().count()) == (1, 0)
    assert table.as_of(2).scan().count() == 10
    assert table.as_of(between).version == 2
    assert table.as_of(dt.datetime.now(UTC) + dt.timedelta(days=1)).version == 3
    with pytest.raises(pds.InvalidInput, match="did not exist"):
        table.as_of(before - dt.timedelta(days=1))
    assert [h["operation"]["name"] for h in table.history()] == ["append", "append", "create"]
    assert [h["version"] for h in table.history(2)] == [3, 2]
    times = [h["created_at"] for h in table.history()]
    assert times == sorted(times, reverse=True)
    assert old.refresh().version == 3
    assert pickle.loads(pickle.dumps(table.as_of(2))).version == 2  # noqa: S301 our own


def test_restore_and_overwrite(table: pds.Table) -> None:
    table.append(rows(0, 10))
    table.overwrite(rows(50, 5))
    same(table.scan().to_pyarrow(), rows(50, 5))
    assert table.restore(2).version == 4
    same(table.scan().to_pyarrow(), rows(0, 10))
    table.append(rows(10, 1))
    same(table.scan().to_pyarrow(), rows(0, 11))
    same(table.as_of(3).scan().to_pyarrow(), rows(50, 5))


def test_tags_outlive_a_vacuum(table: pds.Table, store: pds.Store) -> None:
    for i in range(4):
        table.overwrite(rows(i, 3))
    table.tags.create("second", 2)
    assert dict(table.tags) == {"second": 2}
    with pytest.raises(pds.AlreadyExists, match="second"):
        table.tags.create("second", 3)
    with pytest.raises(pds.NotFound, match="third"):
        table.as_of("third")
    planned = table.vacuum(dt.timedelta(0), dry_run=True)
    there = objects(store)
    assert all(f"lake/events/{path}" in there for path in planned.files)
    done = table.vacuum(dt.timedelta(0))
    assert sorted(done.files) == sorted(planned.files)
    assert len(done.files) == 2
    assert done.bytes > 0
    same(table.as_of("second").scan().to_pyarrow(), rows(0, 3))
    same(table.scan().to_pyarrow(), rows(3, 3))
    with pytest.raises(pds.VersionExpired, match=str(done.oldest_version)):
        table.as_of(3)
    with pytest.raises(pds.VersionExpired):
        table.restore(3)
    table.tags.delete("second")
    assert dict(table.tags) == {}
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pds.VersionExpired):
        table.as_of(2)
    assert sum(path.endswith(".parquet") for path in objects(store)) == 1


def test_a_reader_that_a_vacuum_overtakes_is_told_so(table: pds.Table) -> None:
    table.append(rows(0, 10))
    held = copy.copy(table)
    table.overwrite(rows(1, 1))
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pds.VersionExpired):
        held.scan().to_pyarrow()
    with pytest.raises(pds.VersionExpired):
        held.scan(where="id >= 0").count()
    # The manifest at hand tells the number of all rows.
    assert held.scan().count() == 10


# -- commits --------------------------------------------------------------------


def test_the_same_key_writes_once(table: pds.Table, store: pds.Store) -> None:
    first = table.append(rows(0, 10), idempotency_key="load 1")
    table.append(rows(10, 1))
    files = objects(store)
    again = table.append(rows(0, 10), idempotency_key="load 1")
    assert (again.version, again.commit_id, again.replayed) == (first.version, first.commit_id, True)
    assert (again.rows, again.files) == (0, 0)
    assert objects(store) == files
    assert table.version == 3
    assert table.was_committed(first.commit_id) == 2
    assert table.was_committed("0" * 32) is None
    with pytest.raises(pds.InvalidInput, match="32 hexadecimal"):
        table.was_committed("x")


def test_the_requests_of_an_append(s3_store: pds.Store) -> None:
    table = pds.Table.create(s3_store, "t", pa.schema([("x", pa.int64())]))
    done = table.append(pa.table({"x": range(1000)}))
    # Pointer and manifest are read; data, manifest and pointer are written.
    assert done.requests == 5


def test_create_says_what_is_wrong(store: pds.Store) -> None:
    assert not pds.Table.exists(store, "t")
    pds.Table.create(store, "t", SCHEMA)
    assert pds.Table.exists(store, "t")
    with pytest.raises(pds.AlreadyExists):
        pds.Table.create(store, "t", SCHEMA)
    assert pds.Table.create(store, "t", SCHEMA, exists_ok=True).version == 1
    with pytest.raises(pds.AlreadyExists, match="other columns"):
        pds.Table.create(store, "t", pa.schema([("x", pa.int8())]), exists_ok=True)
    with pytest.raises(pds.NotFound, match="no table"):
        pds.Table(store, "elsewhere")
    before = objects(store, "")
    bad: list[tuple[dict[str, Any], str]] = [
        ({"key": "nothing"}, "nothing"),
        ({"key": ["id", "id"]}, "duplicate"),
        ({"sort_by": "nothing"}, "nothing"),
        ({"schema": pa.schema([])}, "column"),
        ({"schema": pa.schema([("u", pa.month_day_nano_interval())])}, '"u"'),
        ({"schema": pa.schema([("id", pa.int64()), ("", pa.int64())])}, "must have a name"),
        ({"path": "../t"}, "path"),
        ({"path": "a/_latest_manifest"}, "_latest_manifest"),
    ]
    for changed, says in bad:
        arguments = {"path": "new", "schema": SCHEMA, **changed}
        with pytest.raises((pds.InvalidInput, pds.InvalidPath), match=says):
            pds.Table.create(store, **arguments)
    for value in (0, 2**60, True, "x", 1.5):
        with pytest.raises((pds.InvalidInput, pds.NotFound)):
            pds.Table(store, "t").as_of(value)  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidInput, match="no version 99"):
        pds.Table(store, "t").as_of(99)
    with pytest.raises(pds.InvalidInput, match="time zone"):
        pds.Table(store, "t").as_of(dt.datetime(2026, 1, 1))  # noqa: DTZ001 that is what is refused
    assert objects(store, "") == before


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda t: t.scan(limit=-1), "limit"),
        (lambda t: t.scan(limit=1.5), "limit"),
        (lambda t: t.scan(["id", "\ud800"]), "encoded"),
        (lambda t: t.history(-1), "limit"),
        (lambda t: t.optimize.compact(0), "target_file_size"),
        (lambda t: t.optimize.compact("1"), "target_file_size"),
        (lambda t: t.append(rows(0, 1), idempotency_key=""), "idempotency_key"),
        (lambda t: t.append(rows(0, 1), idempotency_key="x" * 1025), "1025"),
        (lambda t: t.append(rows(0, 1), idempotency_key="\ud800"), "encoded"),
        (lambda t: t.append(rows(0, 1), idempotency_key=7), "idempotency_key"),
        (lambda t: t.tags.create("\ud800"), "encoded"),
        (lambda t: t.tags.create(7), "tag"),
        (lambda t: t.was_committed("\ud800"), "encoded"),
        (lambda t: t.was_committed("x"), "commit"),
        (lambda t: t.was_committed(7), "commit_id"),
        (lambda t: t.vacuum(dt.timedelta(-1)), "retention"),
        (lambda t: t.vacuum(3), "retention"),
        (lambda t: pds.Table(t.store, "\ud800"), "encoded"),
        (lambda t: pds.Table(t.store, 7), "path"),
        (lambda t: pds.Table(t.store, "t", commit_timeout=float("nan")), "commit_timeout"),
        (lambda t: pds.Table(t.store, "t", commit_timeout=-1), "commit_timeout"),
        (lambda t: pds.Table.create(t.store, "u", SCHEMA, key=7), "key"),
        (lambda t: pds.Table.create(t.store, "u", SCHEMA, key=["\ud800"]), "encoded"),
    ],
)
def test_bad_arguments_change_nothing(table: pds.Table, call: Callable[[pds.Table], Any], says: str) -> None:
    before = objects(table.store, "")
    with pytest.raises((pds.InvalidInput, pds.InvalidPath), match=says):
        call(table)
    assert objects(table.store, "") == before


def test_large_numbers_are_no_limits(table: pds.Table) -> None:
    rows = table.scan().count()
    assert table.scan(limit=2**70).count() == rows
    assert len(table.history(2**70)) == table.version
    patient = pds.Table(table.store, table.path, commit_timeout=1e300)
    assert patient.optimize.compact(2**70) is None
    assert patient.vacuum(dt.timedelta.max, dry_run=True).files == []


def test_a_store_without_conditions_is_refused() -> None:
    with ScriptedS3() as server:
        server.bucket.ignores_conditions = True
        store = pds.Store(f"s3://{BUCKET}/p", storage_options=server.options())
        with pytest.raises(pds.UnsafeStore):
            pds.Table.create(store, "t", SCHEMA)
        assert server.bucket.objects == {}


def test_a_newer_format_is_refused(table: pds.Table, store: pds.Store) -> None:
    path = "lake/events/_latest_manifest"
    pointer = json.loads(store.read_bytes(path))
    store.write(path, json.dumps({**pointer, "format": 9}).encode(), overwrite=True)
    with pytest.raises(pds.FormatNotSupported, match="9"):
        table.refresh()
    store.write(path, b"{}", overwrite=True)
    with pytest.raises(pds.ManifestCorrupted):
        table.refresh()


# -- the format, by other means ---------------------------------------------------


def test_bounds_are_those_that_pyarrow_finds(local_store: pds.Store, tmp_path: Path) -> None:
    options = pds.WriteOptions(row_group_size=40)
    table = pds.Table.create(local_store, "t", SCHEMA, options=options)
    data = rows(5, 100)
    table.append(data)
    manifest = json.loads((tmp_path / "store/t/manifest/v00000002.json").read_bytes())
    (file,) = manifest["data_files"]
    path = tmp_path / "store/t" / file["path"]
    assert file["size_bytes"] == path.stat().st_size
    same(pq.read_table(path).cast(SCHEMA), data)
    ids = {str(column["id"]): column["name"] for column in manifest["schema"]["columns"]}
    assert {ids[i]: n for i, n in file["null_counts"].items()}["name"] == data["name"].null_count
    bounded = {ids[i] for i in file["min"]}
    assert bounded == {"id", "name", "price", "day", "at", "flag", "small"}
    for i, low in file["min"].items():
        ends = pc.min_max(data[ids[i]])
        kind = data.schema.field(ids[i]).type
        for text, end in ((low, ends["min"]), (file["max"][i], ends["max"])):
            parsed = pa.array([text]).cast(kind)[0] if isinstance(text, str) else pa.scalar(text, kind)
            assert parsed.as_py() == end.as_py(), ids[i]
    exact = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest["arrow_schema"])))
    assert exact.equals(SCHEMA, check_metadata=True)


def test_rows_that_another_engine_deleted_are_gone(store: pds.Store) -> None:
    """By the rules of docs/format.md, written here by hand."""
    options = pds.WriteOptions(row_group_size=40)
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64()), ("x", pa.string())]), key="id", options=options)
    table.append(pa.table({"id": range(100), "x": [str(i) for i in range(100)]}))
    table.append(pa.table({"id": range(100, 200), "x": [str(i) for i in range(100)]}))
    first, second = table.files()["path"].to_pylist()
    lines = [
        {"file": first, "row_group": 0, "deleted_rows": [0, 39]},
        {"file": first, "row_group": 1},
        {"file": second, "pk_min": 110, "pk_max": 119},
        {"file": second, "pk_min": 197, "pk_max": 300},
    ]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    name = f"tombstone/2026/11/21/08/b00000003-{'a' * 32}.del"
    store.write(f"t/{name}", body)
    manifest = json.loads(store.read_bytes("t/manifest/v00000003.json"))
    entry = {"path": name, "size_bytes": len(body), "files": [first, second], "deleted_rows": 55}
    manifest |= {
        "version": 4,
        "previous": 3,
        "commit_id": "b" * 32,
        "recent_commits": [manifest["commit_id"], *manifest["recent_commits"]],
        "operation": {"name": "delete"},
        "tombstones": [entry],
        "a field of tomorrow": 1,
    }
    store.write("t/manifest/v00000004.json", json.dumps(manifest).encode())
    # The pointer was not moved: whoever writes next does it for the writer.
    table.append(pa.table({"id": [1000]}))
    assert table.version == 5
    gone = {0, 39, *range(40, 80), *range(110, 120), *range(197, 200)}
    left = [i for i in range(200) if i not in gone] + [1000]
    assert table.scan(["id"]).to_pyarrow()["id"].to_pylist() == left
    assert table.scan(["x"]).to_pyarrow().num_rows == len(left)
    assert table.scan().count() == len(left)
    assert table.as_of(3).scan().count() == 200


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_seconds_that_milliseconds_do_not_hold_are_refused(store: pds.Store, zone: str | None) -> None:
    kind = pa.timestamp("s", zone)
    for values in ([1_577_836_800, 2**54], [[1], [2**54]]):
        data = pa.array(values, kind if isinstance(values[0], int) else pa.list_(kind))
        first = pa.array(values[:1], data.type)
        table = pds.Table.create(store, f"t{data.type.num_fields}", pa.schema([("k", data.type)]))
        with pytest.raises(pds.InvalidInput, match='"k"'):
            table.append(pa.table({"k": data}))
        table.append(pa.table({"k": first}))
        assert table.scan().to_pyarrow()["k"].to_pylist() == first.to_pylist()
        datasets = pds.ParquetDatasetStore(store)
        with pytest.raises(pds.InvalidInput, match='"k"'):
            datasets.write_dataset(pa.table({"k": data}), f"d{data.type.num_fields}")

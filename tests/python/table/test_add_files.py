"""Parquet files of other makers as files of a table."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("x", pa.float64()),
    ]
)


def _rows(begin: int, count: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": n,
                "name": None if n % 7 == 0 else f"n{n}",
                "price": Decimal(n) / 100,
                "day": dt.date(2026, 1, 1) + dt.timedelta(days=n),
                "x": n / 3,
            }
            for n in range(begin, begin + count)
        ],
        SCHEMA,
    )


def _parquet(rows: pa.Table, **options: object) -> bytes:
    target = io.BytesIO()
    pq.write_table(rows, target, **options)
    return target.getvalue()


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    return pds.Table.create(store, "lake/t", SCHEMA, key="id")


def test_files_elsewhere_are_copied(table: pds.Table, store: pds.Store) -> None:
    table.append(_rows(0, 10))
    for number in (1, 2):
        store.write(f"in/{number}.parquet", _parquet(_rows(number * 100, 50), row_group_size=20))
    before = store.metrics()["bytes_written"]
    done = table.add_files(["in/1.parquet", "in/2.parquet"])
    assert (done.rows, done.files, done.version) == (100, 2, 3)
    assert store.metrics()["bytes_written"] - before < 20_000
    expected = pa.concat_tables([_rows(0, 10), _rows(100, 50), _rows(200, 50)])
    assert table.scan().to_pyarrow().equals(expected)
    for number in (1, 2):
        store.delete(f"in/{number}.parquet")
    assert table.scan(where="id = 120").to_pyarrow().equals(_rows(120, 1))
    assert table.scan(where="id BETWEEN 120 AND 130").explain().row_groups_read == 1
    assert table.scan(where="price > 2.4").explain().files_read == 1
    assert table.history(1)[0]["operation"]["name"] == "add_files"
    assert table.scan_changes(2).count() == 100
    assert table.check().ok
    assert table.refresh().verify().ok


def test_files_of_the_folder_stay_where_they_are(table: pds.Table, store: pds.Store) -> None:
    store.write("lake/t/mine/a.parquet", _parquet(_rows(0, 50)))
    table.add_files("lake/t/mine/a.parquet")
    assert table.files()["path"].to_pylist() == ["mine/a.parquet"]
    with pytest.raises(pds.AlreadyExists, match="already"):
        table.add_files("lake/t/mine/a.parquet")
    table.delete("id < 20")
    table.delete("name = 'n30'")
    table.upsert(pa.table({"id": [40], "name": ["new"]}))
    assert table.scan().count() == 29
    table.optimize.compact()
    table.vacuum(dt.timedelta(0))
    assert table.scan().count() == 29
    assert store.exists("lake/t/mine/a.parquet")
    assert table.check().orphans == []


def test_columns_are_found_by_the_names_they_had(table: pds.Table, store: pds.Store) -> None:
    # Another maker's ids mean nothing here.
    fields = [field.with_metadata({"PARQUET:field_id": str(9 - n)}) for n, field in enumerate(SCHEMA)]
    rows = _rows(0, 30).cast(pa.schema(fields)).select(["x", "id", "name"])
    store.write("a.parquet", _parquet(rows))
    table.add_files("a.parquet")
    table.alter.rename_column("name", "title")
    table.alter.add_column("name", pa.string())
    table.alter.widen("price", pa.decimal128(20, 2))
    found = table.scan().to_pyarrow()
    assert found["title"].to_pylist() == rows["name"].to_pylist()
    assert found["x"].to_pylist() == rows["x"].to_pylist()
    assert found["name"].null_count == found["price"].null_count == 30
    assert table.scan(where="title = 'n5'").count() == 1
    assert table.scan(where="name IS NULL").count() == 30


def test_many_added_files_are_listed_in_segments(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("b", pa.int32())]))
    for number in range(300):
        memory_store.write(f"t/in/{number:03}.parquet", _parquet(pa.table({"b": pa.array([number], pa.int32())})))
    table.add_files([f"t/in/{number:03}.parquet" for number in range(300)])
    table.alter.rename_column("b", "c")
    assert table.scan(["c"]).to_pyarrow()["c"].to_pylist() == list(range(300))
    assert table.scan(where="c = 7").explain().files_read == 1
    with pytest.raises(pds.AlreadyExists):
        table.add_files("t/in/007.parquet")


def test_what_other_makers_write(memory_store: pds.Store, tmp_path: pytest.TempPathFactory) -> None:
    rows = _rows(0, 500)
    table = pds.Table.create(memory_store, "t", SCHEMA)
    pl.DataFrame(rows).write_parquet(f"{tmp_path}/polars.parquet", use_pyarrow=False)
    duckdb.sql(f"COPY (SELECT * FROM rows) TO '{tmp_path}/duckdb.parquet' (FORMAT parquet)")  # noqa: S608 our own
    pq.write_table(rows, f"{tmp_path}/v2.parquet", version="2.6", data_page_version="2.0", use_dictionary=False)
    pq.write_table(rows, f"{tmp_path}/v1.parquet", version="1.0", compression="gzip", write_statistics=False)
    for name in ("duckdb", "v2", "v1"):
        with open(f"{tmp_path}/{name}.parquet", "rb") as file:  # noqa: PTH123 short
            memory_store.write(f"{name}.parquet", file.read())
        table.add_files(f"{name}.parquet")
        assert table.scan(where="name = 'n250'").count() == table.file_count
        assert table.scan(where="id >= 490").count() == 10 * table.file_count
    assert table.scan().count() == 1500
    assert pl.read_parquet(f"{tmp_path}/polars.parquet").height == 500
    with open(f"{tmp_path}/polars.parquet", "rb") as file:  # noqa: PTH123 short
        memory_store.write("polars.parquet", file.read())
    wide = pds.Table.create(
        memory_store, "wide", pa.schema([f.with_type(pa.large_string()) if f.name == "name" else f for f in SCHEMA])
    )
    wide.add_files("polars.parquet")
    assert wide.scan(where="name = 'n250'").count() == 1


def test_long_texts_are_not_pruned_by_cut_bounds(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("s", pa.string())]))
    long = "z" * 500
    memory_store.write("a.parquet", _parquet(pa.table({"s": ["a", long]})))
    table.add_files("a.parquet")
    assert table.scan(where=f"s = '{long}'").count() == 1


def test_a_key_adds_files_once(table: pds.Table, store: pds.Store) -> None:
    store.write("a.parquet", _parquet(_rows(0, 5)))
    first = table.add_files("a.parquet", idempotency_key="k")
    second = table.add_files("a.parquet", idempotency_key="k")
    assert (second.replayed, second.version) == (True, first.version)
    assert table.scan().count() == 5
    assert table.check().orphans == []


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (pa.table({"id": [1], "more": [2]}), "'more'"),
        (pa.table({"id": ["1"]}), "int64 in the table|Int64 in the table"),
        (pa.table({"name": ["a"]}), "may not be null"),
        (pa.table({"id": [1, None]}), "may not be null"),
    ],
)
def test_files_that_do_not_fit(memory_store: pds.Store, rows: pa.Table, says: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    table = pds.Table.create(memory_store, "t", schema)
    memory_store.write("good.parquet", _parquet(pa.table({"id": [1]})))
    memory_store.write("bad.parquet", _parquet(rows))
    with pytest.raises(pds.InvalidInput, match=says.replace("'", "[\"']")):
        table.add_files(["good.parquet", "bad.parquet"])
    assert table.refresh().version == 1
    assert table.check().orphans == []


def test_paths_that_cannot_be_added(table: pds.Table, store: pds.Store) -> None:
    table.append(_rows(0, 5))
    own = table.files()["path"].to_pylist()[0]
    store.write("text.parquet", b"no Parquet file at all, but long enough to have a footer")
    store.write("empty.parquet", _parquet(_rows(0, 0)))
    for paths, error in [
        ([], pds.InvalidInput),
        (["text.parquet"], pds.PartCorrupted),
        (["nothing.parquet"], pds.NotFound),
        (["empty.parquet", "empty.parquet"], pds.InvalidInput),
        ([f"lake/t/{own}"], pds.InvalidInput),
        ([7], pds.InvalidInput),
        (["../a.parquet"], pds.InvalidPath),
    ]:
        with pytest.raises(error):
            table.add_files(paths)  # type: ignore[arg-type]
    assert table.refresh().version == 2
    table.add_files("empty.parquet")
    assert table.scan().count() == 5
    assert table.check().orphans == []


def test_a_file_that_left_and_came_back_is_whole(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64())]))
    for name, begin in (("x", 0), ("y", 100)):
        store.write(f"t/in/{name}.parquet", _parquet(pa.table({"id": range(begin, begin + 20)})))
    table.add_files(["t/in/x.parquet", "t/in/y.parquet"])
    assert table.delete("id % 10 = 3").rows == 4
    assert table.delete("id < 20").rows == 18
    table.add_files("t/in/x.parquet")
    assert table.scan().count() == 18 + 20
    assert table.scan(where="id < 20").count() == 20
    table.optimize.compact()
    assert table.scan().count() == 18 + 20


def test_lists_and_structs_of_other_makers(memory_store: pds.Store) -> None:
    pair = pa.struct([("a", pa.int64()), ("b", pa.string())])
    table = pds.Table.create(memory_store, "t", pa.schema([("l", pa.list_(pa.int64())), ("s", pair)]))
    rows = pa.table({"l": [[1, 2], None, []], "s": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]}, table.schema)
    narrow = pa.schema([("l", pa.list_(pa.field("element", pa.int32()))), ("s", pair)])
    for number, content in enumerate([_parquet(rows, store_schema=False), _parquet(rows.cast(narrow))]):
        memory_store.write(f"{number}.parquet", content)
        table.add_files(f"{number}.parquet")
    assert table.scan().to_pyarrow().to_pylist() == rows.to_pylist() * 2


def test_folders_that_only_look_like_the_table_s_own(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))
    memory_store.write("t/manifest_2024/x.parquet", _parquet(pa.table({"id": [1]})))
    table.add_files("t/manifest_2024/x.parquet")
    assert table.scan().count() == 1


def test_timestamps_of_96_bits_are_those_of_the_column(store: pds.Store) -> None:
    """As Spark writes them: also in years that nanoseconds do not reach."""
    zoned = pa.timestamp("us", "UTC")
    at = [dt.datetime(year, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC) for year in (1600, 2026, 9999)]
    rows = pa.table({"id": [1, 2, 3], "at": pa.array(at, zoned), "plain": pa.array(at, zoned).cast(pa.timestamp("us"))})
    file = _parquet(rows, use_deprecated_int96_timestamps=True, store_schema=False)
    store.write("lake/t/in/1.parquet", file)
    table = pds.Table.create(store, "lake/t", rows.schema)
    table.add_files("lake/t/in/1.parquet")
    assert table.scan().to_pyarrow().equals(rows)
    assert table.scan(["id"], where="at > '2000-01-01T00:00:00Z'").to_pyarrow()["id"].to_pylist() == [2, 3]
    with pytest.raises(pds.InvalidInput, match="96 bits"):
        table.export_delta()
    table.optimize.sort("id")
    assert table.scan().to_pyarrow().equals(rows)
    table.export_delta()
    nanos = pds.Table.create(store, "lake/nanos", pa.schema([("at", pa.timestamp("ns"))]))
    store.write(
        "lake/nanos/1.parquet",
        _parquet(
            rows.select(["plain"]).slice(1, 1).rename_columns(["at"]),
            use_deprecated_int96_timestamps=True,
            store_schema=False,
        ),
    )
    millis = pds.Table.create(store, "lake/millis", pa.schema([("at", pa.timestamp("ms"))]))
    store.write("lake/millis/1.parquet", store.read_bytes("lake/nanos/1.parquet"))
    for other in (nanos, millis):
        with pytest.raises(pds.InvalidInput, match="96 bits, which only microseconds hold"):
            other.add_files(f"{other.path}/1.parquet")
        assert other.refresh().version == 1

"""Pages: what one key costs, which rows come back, and that no damage of what is read goes unnoticed."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds
from fault_runs import store as scripted_store
from independent_seal import chunk_indexes
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sampled(3)

FULL_ROW_GROUP = 1 << 20
ROWS = 60_000

# -- what one key costs -----------------------------------------------------------


@pytest.fixture(scope="module")
def bucket() -> Iterator[ScriptedS3]:
    with ScriptedS3() as server:
        yield server


@pytest.fixture(scope="module")
def sorted_table(bucket: ScriptedS3) -> pds.Table:
    """A file of one row group, sorted by its key, on S3."""
    chance = np.random.default_rng(7)
    keys = np.arange(FULL_ROW_GROUP, dtype="int64") * 5 + chance.integers(0, 5, FULL_ROW_GROUP)
    rows = pa.table({"id": keys, "value": chance.random(FULL_ROW_GROUP)})
    table = pds.Table.create(scripted_store(bucket), "lake/sorted", rows.schema, key="id")
    table.append(rows)
    assert table.files()["row_group_count"].to_pylist() == [1]
    return table


def _cost(table: pds.Table, bucket: ScriptedS3, **scan: Any) -> tuple[pa.Table, int, int]:
    """The rows of a scan, its requests and the bytes of their answers."""
    store = scripted_store(bucket)
    again = pds.Table(store, table.path)
    before = store.metrics()
    rows = again.scan(**scan).to_pyarrow()
    after = store.metrics()
    return rows, after["requests"] - before["requests"], after["bytes_read"] - before["bytes_read"]


def _sizes(table: pds.Table, bucket: ScriptedS3) -> tuple[int, int]:
    """The bytes of a table's only file, and those after its chunks: indexes, checksums, seal and footer."""
    data = scripted_store(bucket).read_bytes(f"{table.path}/{table.files()['path'][0]}")
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    ends = [(c.dictionary_page_offset or c.data_page_offset) + c.total_compressed_size for c in chunks]
    return len(data), len(data) - max(ends)


@pytest.mark.defaults
@pytest.mark.parametrize("position", [0, 8_191, 8_192, 500_000, FULL_ROW_GROUP - 1])
def test_one_key_costs_a_page_of_each_column(sorted_table: pds.Table, bucket: ScriptedS3, position: int) -> None:
    key = sorted_table.scan(columns=["id"]).to_pyarrow()["id"][position].as_py()
    rows, requests, received = _cost(sorted_table, bucket, where=f"id = {key}")
    expected = sorted_table.scan(where=f"id = {key}", use_stats=False).to_pyarrow()
    assert rows.equals(expected)
    assert rows.num_rows == 1
    assert requests <= 3
    file_bytes, end_bytes = _sizes(sorted_table, bucket)
    assert received - end_bytes <= file_bytes / 100


def test_a_key_that_is_not_there_costs_the_end_of_the_file_and_a_page(
    sorted_table: pds.Table, bucket: ScriptedS3
) -> None:
    keys = sorted_table.scan(columns=["id"]).to_pyarrow()["id"].to_numpy()
    missing = next(int(key) + 1 for key, following in itertools.pairwise(keys) if following > key + 1)
    rows, requests, _ = _cost(sorted_table, bucket, where=f"id = {missing}")
    assert (rows.num_rows, requests) == (0, 2)


def test_a_delete_of_one_key_reads_a_page(sorted_table: pds.Table, bucket: ScriptedS3) -> None:
    key = sorted_table.scan(columns=["id"]).to_pyarrow()["id"][70_000].as_py()
    store = scripted_store(bucket)
    table = pds.Table(store, sorted_table.path)
    before = store.metrics()["bytes_read"]
    assert table.delete(f"id = {key} AND value >= 0").rows == 1
    file_bytes = table.files()["size_bytes"][0].as_py()
    assert store.metrics()["bytes_read"] - before < file_bytes / 20
    assert table.scan(where=f"id BETWEEN {key} AND {key}").count() == 0
    assert table.scan().count() == FULL_ROW_GROUP - 1
    sorted_table.refresh()


@pytest.mark.defaults
@pytest.mark.parametrize("limit", [1, 8_193])
def test_a_limit_costs_the_first_pages_of_each_column(sorted_table: pds.Table, bucket: ScriptedS3, limit: int) -> None:
    rows, requests, received = _cost(sorted_table, bucket, limit=limit)
    assert rows.equals(sorted_table.scan().to_pyarrow().slice(0, limit))
    length, tail = _sizes(sorted_table, bucket)
    assert requests <= 4
    assert received - tail < length / 40


# -- which rows come back ---------------------------------------------------------


def _column(values: Callable[[int], Any], data_type: pa.DataType, every: int = 11) -> pa.Array:
    """Values by row, with nulls among them, and a stretch of nulls that is longer than a page."""
    is_null = lambda n: n % every == 3 or 20_000 <= n < 38_000  # noqa: E731
    return pa.array([None if is_null(n) else values(n) for n in range(ROWS)], data_type)


def _all_types(seed: int) -> pa.Table:
    """Columns that ascend, ascend by stretches or have no order, of all types that have bounds, and of others."""
    chance = random.Random(seed)
    epoch = dt.datetime(2020, 1, 1)  # noqa: DTZ001 a column without a zone
    floats = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5]
    drawn = [chance.random() for _ in range(ROWS)]
    long = "x" * 70
    columns = {
        "id": pa.array(range(ROWS), pa.int64()),
        "small": _column(lambda n: n // 3_000 - 10, pa.int8()),
        "unsigned": _column(lambda n: 2**63 + n, pa.uint64()),
        "random": _column(lambda n: int(drawn[n] * 1_000_000), pa.int32()),
        "float": _column(lambda n: floats[n % 6] if n % 9_000 < 50 else n / 7, pa.float64()),
        "price": _column(lambda n: Decimal(n - 30_000) / 100, pa.decimal128(9, 2)),
        "wide": _column(lambda n: Decimal(n) * 10**20, pa.decimal128(38, 0)),
        "day": _column(lambda n: dt.date(2000, 1, 1) + dt.timedelta(days=n // 10), pa.date32()),
        "seen": _column(lambda n: epoch + dt.timedelta(seconds=n), pa.timestamp("us")),
        "flag": _column(lambda n: n >= 45_000, pa.bool_()),
        "name": _column(lambda n: f"n{n:08}", pa.string()),
        "long": _column(lambda n: f"{long}{n // 100:05}", pa.string()),
        "city": _column(lambda n: f"city {n // 2_000 % 13}", pa.string(), every=10**9),
        "bytes": _column(lambda n: n.to_bytes(4, "big"), pa.binary()),
        "point": pa.StructArray.from_arrays(
            [pa.array(range(ROWS)), _column(lambda n: f"p{drawn[n]}", pa.string())], ["x", "label"]
        ),
        "list": _column(lambda n: [n, None, drawn[n]][: n % 4], pa.list_(pa.float64())),
        "category": _column(lambda n: f"kind {n % 500}", pa.string()).dictionary_encode(),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return _all_types(1)


def _pyarrow_file(rows: pa.Table, **options: Any) -> bytes:
    target = io.BytesIO()
    given = {"write_page_index": True, "data_page_size": 16 << 10, "row_group_size": ROWS // 2 + 1}
    pq.write_table(rows, target, **(given | options))
    return target.getvalue()


def _polars_file(rows: pa.Table) -> bytes:
    target = io.BytesIO()
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    frame.cast({"category": pl.String}).write_parquet(target, data_page_size=16 << 10)
    return target.getvalue()


DELTAS = {
    "id": "DELTA_BINARY_PACKED",
    "random": "DELTA_BINARY_PACKED",
    "name": "DELTA_BYTE_ARRAY",
    "long": "DELTA_LENGTH_BYTE_ARRAY",
    "float": "BYTE_STREAM_SPLIT",
}
FILES: dict[str, Callable[[pa.Table], bytes]] = {
    "pyarrow": _pyarrow_file,
    "plain": lambda rows: _pyarrow_file(rows, use_dictionary=False, compression="none"),
    "version 2": lambda rows: _pyarrow_file(rows, data_page_version="2.0", compression="gzip"),
    "delta": lambda rows: _pyarrow_file(rows, use_dictionary=False, column_encoding=DELTAS),
    "no index": lambda rows: _pyarrow_file(rows, write_page_index=False),
    "large pages": lambda rows: _pyarrow_file(rows, data_page_size=1 << 20),
    "polars": _polars_file,
}
LANGUAGE_FREE = [
    "id = 31000",
    "id IN (5, 8191, 8192, 59999, 60000)",
    "id BETWEEN 8000 AND 8400 OR id > 59990",
    "id < 100 AND random > 500000",
    "random = (0 + 4)",
    "random BETWEEN 1000 AND 1100",
    "random IS NULL AND id > 40000",
    "small = 4",
    "small IS NULL AND id < 300",
    "small IS NOT NULL AND id BETWEEN 19990 AND 38010",
    "unsigned > 9223372036854835000",
    "price BETWEEN -1.5 AND 1.25",
    "price = 0.00 OR price IS NULL AND id > 59900",
    "wide = 100000000000000000000000",
    "day = DATE '2005-01-01'",
    "day <> DATE '2005-01-01' AND id < 50",
    "seen > TIMESTAMP '2020-01-01 16:30:00'",
    "flag AND id < 46000",
    "NOT flag AND id > 19000",
    "name = 'n00044999'",
    "name >= 'n0005999' OR name < 'n00000002'",
    "name LIKE 'n000459%'",
    "name NOT LIKE 'n000%'",
    "long = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx00450'",
    "long < 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx00001'",
    "city = 'city 7' AND id % 100 = 1",
    "city = 'city 99'",
    "id = 5 AND id = 6",
    "category = 'kind 7' AND id > 50000",
]
ENGINE_ONLY = [
    "float > 8000",
    "float = 0",
    "float = 'NaN'",
    "float < -1",
    "bytes = X'0000C350'",
    "point.x = 50000",
    "point.label IS NULL AND id > 45000",
]


# The fake of Google Cloud Storage takes milliseconds for each range: the shorter tests go there.
FAST_STORES = pytest.mark.parametrize(
    "store",
    ["memory", "local", pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure)],
    indirect=True,
)


def _table(rows: pa.Table, store: pds.Store, data: bytes | None) -> pds.Table:
    """A table of a file of pds, or of another maker's."""
    if data is None:
        table = pds.Table.create(store, "lake/t", rows.schema, key="id")
        table.append(rows)
    else:
        # Other makers have types of their own, such as long lists.
        table = pds.Table.create(store, "lake/t", pq.read_schema(io.BytesIO(data)).remove_metadata(), key="id")
        store.write("lake/t/foreign.parquet", data)
        table.add_files("lake/t/foreign.parquet")
    return table


def _same(left: pa.Table, right: pa.Table) -> bool:
    """Equal, whatever the types are called, with every NaN equal to every other, and -0.0 to none but itself.

    Python's text says so and is slow. Where Arrow finds values equal, they are, but for floats.
    """

    def is_same(name: str) -> bool:
        ours, theirs = left[name], right[name]
        has_floats = "float" in str(ours.type) or "double" in str(ours.type)
        if not has_floats and ours.equals(theirs):
            return True
        return repr(ours.to_pylist()) == repr(theirs.to_pylist())

    return left.column_names == right.column_names and all(map(is_same, left.column_names))


@FAST_STORES
@pytest.mark.defaults
@pytest.mark.parametrize("maker", [None, *FILES])
def test_rows_are_those_that_duckdb_finds(store: pds.Store, rows: pa.Table, maker: str | None) -> None:
    table = _table(rows, store, None if maker is None else FILES[maker](rows))
    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    engine.register("rows", rows)
    for predicate in LANGUAGE_FREE:
        expected = engine.sql(f"SELECT id FROM rows WHERE {predicate} ORDER BY id").to_arrow_table()  # noqa: S608
        selected = rows.take(expected["id"]) if expected.num_rows else rows.slice(0, 0)
        assert _same(table.scan(where=predicate).to_pyarrow(), selected), predicate
        assert table.scan(where=predicate, columns=["id"]).to_pyarrow().equals(selected.select(["id"])), predicate
        assert table.scan(where=predicate).count() == selected.num_rows, predicate
    for predicate in ENGINE_ONLY:
        expected = table.scan(where=predicate, use_stats=False).to_pyarrow()
        assert _same(table.scan(where=predicate).to_pyarrow(), expected), predicate


@FAST_STORES
@pytest.mark.defaults
@pytest.mark.parametrize("maker", [None, "pyarrow", "plain"])
@pytest.mark.parametrize("seed", range(3))
def test_random_ranges_with_deleted_rows(store: pds.Store, rows: pa.Table, maker: str | None, seed: int) -> None:
    table = _table(rows, store, None if maker is None else FILES[maker](rows))
    chance = random.Random(seed)
    alive = np.ones(ROWS, dtype=bool)
    for predicate in ["id BETWEEN 8000 AND 25000", "id % 7 = 2 AND id < 4000", "name = 'n00045001'"]:
        table.delete(predicate)
        matching = table.as_of(2).scan(columns=["id"], where=predicate).to_pyarrow()["id"].to_numpy()
        alive[matching] = False
    expected = rows.filter(pa.array(alive))
    assert table.scan().count() == expected.num_rows
    for _ in range(40):
        start, width = chance.randrange(ROWS), chance.choice([1, 5, 2_000, 30_000])
        low, high = sorted((chance.randrange(1_000_000), chance.randrange(1_000_000)))
        column = chance.choice(["id", "id", "random"])
        bounds = (start, start + width) if column == "id" else (low, min(high, low + chance.choice([3, 90_000])))
        where = f"{column} BETWEEN {bounds[0]} AND {bounds[1]}"
        mask = pc.and_(pc.greater_equal(expected[column], bounds[0]), pc.less_equal(expected[column], bounds[1]))
        projection = chance.sample(rows.column_names, chance.randint(1, len(rows.column_names)))
        selected = expected.filter(mask).select(projection)
        assert _same(table.scan(where=where, columns=projection).to_pyarrow(), selected), where


@FAST_STORES
@pytest.mark.defaults
@pytest.mark.parametrize("maker", [None, "pyarrow", "no index"])
def test_a_limit_gives_the_first_rows_of_the_whole(store: pds.Store, rows: pa.Table, maker: str | None) -> None:
    table = _table(rows, store, None if maker is None else FILES[maker](rows))
    filters = [None, "id >= 8191", "random > 500000", "id < 3 OR id > 59000", "name LIKE '%7'"]
    for delete in [None, "id % 7 = 2 AND id < 40000", "id BETWEEN 100 AND 9000"]:
        if delete is not None:
            table.delete(delete)
        for columns, where in itertools.product([["id", "list"], ["random"], ["name", "point"]], filters):
            whole = table.scan(columns, where=where).to_pyarrow()
            for limit in [1, 8_193, 20_000]:
                limited = table.scan(columns, where=where, limit=limit)
                assert limited.to_pyarrow().equals(whole.slice(0, limit)), (delete, columns, where, limit)
                assert table.scan([], where=where, limit=limit).count() == min(limit, whole.num_rows)


@pytest.mark.defaults
def test_upsert_and_merge_meet_rows_in_pages(store: pds.Store, rows: pa.Table) -> None:
    table = _table(rows, store, None)
    ids = [0, 8_191, 8_192, 31_000, ROWS - 1]
    changed = rows.take(ids).set_column(3, "random", pa.array([-1] * len(ids), pa.int32()))
    assert table.upsert(changed, on="id").rows == len(ids)
    assert table.scan(where="random = -1", columns=["id"]).to_pyarrow()["id"].to_pylist() == ids
    assert table.scan().count() == ROWS
    with_others = table.scan(where="id >= 8190 AND id < 8194").to_pyarrow().sort_by("id")
    assert with_others["random"].to_pylist()[1:3] == [-1, -1]
    merged = rows.take([5, 40_000]).set_column(3, "random", pa.array([-2] * 2, pa.int32()))
    assert table.merge(merged, on="id").when_matched_update_all().execute().rows == 2
    assert table.scan(where="random = -2", columns=["id"]).to_pyarrow()["id"].to_pylist() == [5, 40_000]
    assert table.scan().count() == ROWS


@pytest.mark.defaults
@pytest.mark.parametrize("maker", [None, "pyarrow", "plain", "version 2", "delta"])
def test_a_page_is_less_than_a_chunk(rows: pa.Table, maker: str | None) -> None:
    store = pds.Store("memory://")
    table = _table(rows, store, None if maker is None else FILES[maker](rows))
    received = []
    for use_stats in (True, False):
        store.reset_metrics()
        found = table.scan(where="id = 31000", columns=["id", "random", "wide", "name"], use_stats=use_stats)
        assert found.to_pyarrow().equals(rows.slice(31_000, 1).select(["id", "random", "wide", "name"]))
        received.append(store.metrics()["bytes_read"])
    # Other makers' dictionaries of distinct values are most of a chunk.
    assert received[0] < received[1] / (1 if maker in ("pyarrow", "version 2") else 2)


@pytest.mark.defaults
@pytest.mark.parametrize("maker", [None, "pyarrow"])
def test_pyarrow_expressions_prune_pages(rows: pa.Table, maker: str | None) -> None:
    store = pds.Store("memory://")
    table = _table(rows, store, None if maker is None else FILES[maker](rows))
    for expression in [
        pc.field("id") == 31_000,
        (pc.field("id") > 59_990) | (pc.field("small") == 4),
        pc.field("random").is_null() & (pc.field("id") < 8_200),
        pc.field("float") > 8_000,
    ]:
        expected = rows.filter(expression)
        assert _same(table.scan(where=expression).to_pyarrow(), expected), expression
    store.reset_metrics()
    assert table.scan(where=pc.field("id") == 31_000, columns=["id"]).count() == 1
    size = table.files()["size_bytes"][0].as_py()
    assert store.metrics()["bytes_read"] < size / 10


def test_damaged_indexes_of_other_makers_are_refused_or_not_used(rows: pa.Table) -> None:
    some = rows.select(["id", "random", "name"])
    good = _pyarrow_file(some, compression="none", use_dictionary=False)
    chance = random.Random(5)
    outcomes = {"same": 0, "other": 0, "refused": 0}
    for _ in range(150):
        data = bytearray(good)
        at, size = chance.choice(list(chunk_indexes(good).values()))
        for _ in range(chance.randint(1, 3)):
            data[at + chance.randrange(size)] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        table = _table(some, pds.Store("memory://"), bytes(data))
        try:
            found = table.scan(where="id BETWEEN 31000 AND 31002").to_pyarrow()
        except pds.DatasetIncomplete:
            outcomes["refused"] += 1
        else:
            # Without checksums, bounds that lie hide rows; what is found is right.
            assert set(found["id"].to_pylist()) <= {31_000, 31_001, 31_002}
            assert found.equals(some.filter(pc.is_in(pc.field("id"), found["id"].combine_chunks())))
            outcomes["same" if found.num_rows == 3 else "other"] += 1
    assert outcomes["refused"] > 0
    assert outcomes["same"] > 0


def test_a_limit_without_statistics_reads_no_index(rows: pa.Table) -> None:
    some = rows.select(["id", "random", "name"])
    data = bytearray(_pyarrow_file(some, compression="none", use_dictionary=False))
    for (*_, name), (at, size) in chunk_indexes(bytes(data)).items():
        if name == "offset":
            data[at : at + size] = b"\xff" * size
    table = _table(some, pds.Store("memory://"), bytes(data))
    with pytest.raises(pds.DatasetIncomplete, match="offset index"):
        table.scan(limit=5).to_pyarrow()
    assert table.scan(limit=5, use_stats=False).to_pyarrow().equals(some.slice(0, 5))


def test_other_makers_files_with_few_rows_are_read(store: pds.Store) -> None:
    few = pa.table({"id": range(700), "name": [f"{n:0200}" for n in range(700)]})
    data = io.BytesIO()
    pq.write_table(few, data, write_page_index=True, data_page_size=1, write_batch_size=3, use_dictionary=False)
    table = _table(few, store, data.getvalue())
    assert table.scan(where="id = 400").to_pyarrow().equals(few.slice(400, 1))


@pytest.mark.parametrize("rows", [2000, 20_000])
def test_nulls_within_lists_and_structs_are_no_rows_of_nulls(memory_store: pds.Store, rows: int) -> None:
    """Columns of one leaf, whose index counts as many nulls as there are rows."""
    columns = {
        "n": pa.array(range(rows)),
        "list": pa.array([[None]] * rows, pa.list_(pa.int64())),
        "struct": pa.array([{"x": None}] * rows, pa.struct([("x", pa.int64())])),
    }
    table = pds.Table.create(memory_store, "t", pa.table(columns).schema)
    table.append(pa.table(columns))
    for name in ("list", "struct"):
        assert table.scan(["n"], where=f"{name} IS NOT NULL").to_pyarrow().num_rows == rows
        assert table.scan(["n"], where=f"{name} IS NULL").to_pyarrow().num_rows == 0
        assert table.scan(["n"], where=f"{name} IS NOT NULL AND n = 7").to_pyarrow()["n"].to_pylist() == [7]

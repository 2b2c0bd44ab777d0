"""Files written anew: sorted, joined, fewer tombstones; commits of one process that go together."""

from __future__ import annotations

import json
import logging
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())])


def _rows(seed: int, count: int) -> pa.Table:
    chance = random.Random(seed)
    ids = [chance.randrange(1000) if chance.random() < 0.95 else None for _ in range(count)]
    names = [chance.choice(["a", "b", "c", None]) for _ in ids]
    return pa.table({"id": ids, "name": names, "x": [chance.random() for _ in ids]}, SCHEMA)


def _manifest(table: pds.Table) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(table.store.read_bytes(f"{table.path}/manifest/v{table.version:08}.json"))
    return found


def _shown(rows: pa.Table) -> list[str]:
    return [repr(row) for row in rows.to_pylist()]


# -- sorting ---------------------------------------------------------------------


@pytest.mark.parametrize("by", ["id", ["name", "id"]])
def test_sort_gives_every_file_a_range(store: pds.Store, by: str | list[str]) -> None:
    table = pds.Table.create(store, "t", SCHEMA, options=pds.WriteOptions(row_group_size=100))
    for seed in range(4):
        table.append(_rows(seed, 500))
    table.delete("id % 10 = 3")
    before = table.scan().to_pyarrow()
    version = table.version
    size = sum(table.files()["size_bytes"].to_pylist())
    done = table.optimize.sort(by, target_file_size=size // 5)
    assert done is not None
    assert (done.version, done.rows) == (version + 1, before.num_rows)
    assert 4 <= done.files <= 7
    order = [(name, "ascending") for name in ([by] if isinstance(by, str) else by)]
    # pyarrow sorts nulls last and keeps the order of what is equal, too.
    indices = pc.sort_indices(before, order)
    assert _shown(table.scan().to_pyarrow()) == _shown(before.take(indices))
    where = "id = 500" if by == "id" else "name = 'b' AND id = 500"
    assert table.scan(where=where).explain().files_read <= done.files // 2
    assert table.scan_changes(version).count() == 0
    assert _shown(table.as_of(version).scan().to_pyarrow()) == _shown(before)


def test_sort_takes_the_table_s_order_or_its_key(memory_store: pds.Store) -> None:
    rows = pa.table({"id": [3, 1, 2], "name": ["a", "c", "b"], "x": [0.0, 1.0, 2.0]}, SCHEMA)
    keyed = pds.Table.create(memory_store, "keyed", SCHEMA, key="id")
    keyed.append(rows)
    assert keyed.optimize.sort() is not None
    assert keyed.scan().to_pyarrow()["id"].to_pylist() == [1, 2, 3]
    plain = pds.Table.create(memory_store, "plain", SCHEMA)
    assert plain.optimize.sort("id") is None
    plain.append(rows)
    for by, says in [
        (None, "no sort order"),
        ([], "no sort order|name the"),
        ("nothing", "nothing"),
        (["id", "id"], "duplicate"),
    ]:
        with pytest.raises(pds.InvalidInput, match=says):
            plain.optimize.sort(by)
    with pytest.raises(pds.InvalidInput, match="target_file_size"):
        plain.optimize.sort("id", target_file_size=0)
    assert plain.refresh().version == 2


def test_a_table_with_a_sort_order_writes_sorted_files(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", SCHEMA, key="id", sort_by=["name", "id"])
    order = [("name", "ascending"), ("id", "ascending")]
    table.append(_rows(1, 400))
    table.append(_rows(2, 400))
    table.upsert(pa.table({"id": [7, 3, 5], "name": ["c", "a", "b"], "x": [1.0, 2.0, 3.0]}, SCHEMA))

    def are_sorted() -> bool:
        for path in table.files()["path"].to_pylist():
            rows = pq.read_table(pa.BufferReader(store.read_bytes(f"t/{path}")))
            if not rows.equals(rows.take(pc.sort_indices(rows, order))):
                return False
        return True

    assert are_sorted()
    before = sorted(_shown(table.scan().to_pyarrow()))
    table.optimize.compact()
    assert table.file_count == 1
    assert are_sorted()
    assert sorted(_shown(table.scan().to_pyarrow())) == before


def test_a_sort_of_more_rows_than_its_memory_holds(local_store: pds.Store) -> None:
    options = pds.WriteOptions(memory_limit=32 << 20, compression="none")
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = pds.Table.create(local_store, "t", schema, options=options)
    chance = random.Random(1)
    rows = 400_000

    def batches() -> pa.RecordBatchReader:
        def made() -> Any:
            for _ in range(40):
                ids = pa.array([chance.randrange(10**9) for _ in range(rows // 40)])
                yield pa.record_batch({"id": ids, "text": pc.binary_repeat(ids.cast(pa.string()), 10)}, schema)

        return pa.RecordBatchReader.from_batches(schema, made())

    table.append(batches())
    expected = pc.sum(table.scan(["id"]).to_pyarrow()["id"]).as_py()
    table.optimize.sort("id")
    found = table.scan(["id"]).to_pyarrow()["id"].combine_chunks()
    assert len(found) == rows
    assert pc.sum(found).as_py() == expected
    assert pc.all(pc.greater_equal(found[1:], found[:-1])).as_py()
    first = table.scan(limit=1).to_pyarrow().to_pylist()[0]
    assert first["text"] == str(first["id"]) * 10


def test_sorting_every_type(memory_store: pds.Store) -> None:
    columns = {
        "key": pa.array([3, None, 1, 2]),
        "dictionary": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        "list": pa.array([[1], None, [], [2, 3]]),
        "struct": pa.array([{"a": 1}, {"a": 2}, None, {"a": 4}]),
        "map": pa.array([[("a", 1)], None, [], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
        "view": pa.array(["x", None, "a longer text than twelve", "z"], pa.string_view()),
        "fixed": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
        "null": pa.nulls(4),
        "decimal": pa.array([1, None, 3, 4]).cast(pa.decimal128(20, 0)),
        "runs": pa.RunEndEncodedArray.from_arrays([1, 3, 4], ["r", None, "s"]),
        "list_view": pa.array([[1], None, [], [2, 3]], pa.list_view(pa.int64())),
    }
    rows = pa.table(columns)
    table = pds.Table.create(memory_store, "t", rows.schema, sort_by="key")
    table.append(rows)
    given = rows.to_pylist()
    expected = [given[place] for place in (2, 3, 0, 1)]
    assert table.scan().to_pyarrow().to_pylist() == expected
    table.append(rows.slice(0, 1))
    table.optimize.sort("key")
    assert table.scan().to_pyarrow().to_pylist() == [*expected[:3], expected[2], expected[3]]


# -- compaction ------------------------------------------------------------------


def test_compaction_makes_few_of_many_tombstones(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64()), ("n", pa.int64())]), key="id")
    for begin in (0, 10_000):
        table.append(pa.table({"id": range(begin, begin + 10_000), "n": range(10_000)}))
    for number in range(20):
        table.delete(f"id BETWEEN {number * 10} AND {number * 10 + 4}")
        table.delete(f"n = {5000 + number}")
    left = table.scan().count()
    assert len(_manifest(table)["tombstones"]) == 40
    version = table.version
    done = table.optimize.compact(1)
    assert done is not None
    assert (done.files, done.version) == (0, version + 1)
    (merged,) = _manifest(table)["tombstones"]
    lines = [json.loads(line) for line in store.read_bytes(f"t/{merged['path']}").splitlines()]
    assert (
        sorted({line["file"] for line in lines}) == sorted(merged["files"]) == sorted(table.files()["path"].to_pylist())
    )
    # Of the first file 20 ranges, of each the rows by number.
    assert len(lines) == 20 + 2
    assert table.scan().count() == left == 20_000 - 100 - 40
    assert table.scan(where="id = 12").count() == 0
    assert table.scan(where="n = 5003").count() == 0
    assert table.optimize.compact(1) is None
    assert table.scan_changes(version).count() == 0
    assert table.as_of(version).scan().count() == left
    # Ranges that meet become one.
    table.delete("id BETWEEN 5 AND 9")
    table.optimize.compact(1)
    assert len(_manifest(table)["tombstones"]) == 1
    assert table.scan().count() == left - 5
    restored = table.restore(version).version
    assert table.scan().count() == left
    table.delete("id < 10000")
    assert table.as_of(restored).scan().count() == left
    assert table.check().ok
    assert table.refresh().verify().ok


def test_deletes_while_tombstones_are_merged(store: pds.Store) -> None:
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64()), ("n", pa.int64())]), key="id")
    table.append(pa.table({"id": range(1000), "n": range(1000)}))

    def delete(worker: int) -> None:
        mine = pds.Table(store, "t")
        for number in range(worker, 60, 3):
            mine.delete(f"id = {number}" if number % 2 else f"n = {number}")

    def tidy(_: int) -> None:
        mine = pds.Table(store, "t")
        for _ in range(12):
            mine.optimize.compact(1)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(work, worker) for worker, work in enumerate([delete, delete, delete, tidy])]
        for one in running:
            one.result()
    assert table.refresh().scan().to_pyarrow()["id"].to_pylist() == list(range(60, 1000))
    assert table.check().orphans == []


def test_a_range_of_keys_is_looked_for_only_where_it_can_be(s3_store: pds.Store) -> None:
    options = pds.WriteOptions(row_group_size=10_000, compression="none")
    table = pds.Table.create(
        s3_store, "t", pa.schema([("id", pa.int64()), ("x", pa.int8())]), key="id", options=options
    )
    table.append(pa.table({"id": range(100_000), "x": pa.array([1] * 100_000, pa.int8())}))
    table.delete("id BETWEEN 20000 AND 35000")
    s3_store.reset_metrics()
    assert table.scan(["x"]).count() == 100_000 - 15_001
    # Of one row group the keys are read; one is passed over, and eight have no deleted row.
    assert s3_store.metrics()["bytes_read"] < 3 * 80_000


def test_a_handle_with_nothing_to_rewrite_shows_the_newest_version(memory_store: pds.Store) -> None:
    """As after any write that had nothing to do."""
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    stale = [pds.Table(memory_store, "t") for _ in range(5)]
    table.append(_rows(1, 10))
    table.overwrite(SCHEMA.empty_table())
    assert stale[0].optimize.compact() is None
    assert stale[1].optimize.compact(where="id = 5") is None
    assert stale[2].optimize.sort() is None
    assert stale[3].delete("id = 5").attempts == 0
    assert stale[4].vacuum().files == []
    assert [handle.version for handle in stale] == [3, 3, 3, 3, 4]


def test_only_some_files_are_compacted(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    for begin in range(0, 60, 10):
        ids = range(begin, begin + 10)
        table.append(pa.table({"id": ids, "name": ["a"] * 10, "x": [0.5] * 10}, SCHEMA))
    done = table.optimize.compact(where="id >= 30")
    assert done is not None
    assert (done.files, done.rows, table.file_count) == (1, 30, 4)
    assert table.optimize.compact(where=pc.field("id") >= 30) is None
    assert table.optimize.compact(where=pc.field("id") < 20) is not None
    assert table.file_count == 3
    with pytest.raises(pds.InvalidInput, match="nothing"):
        table.optimize.compact(where="nothing = 1")


def test_long_work_tells_how_far_it_is(memory_store: pds.Store, caplog: pytest.LogCaptureFixture) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    for seed in range(3):
        table.append(_rows(seed, 10))
    pds.enable_logging(logging.INFO)
    with caplog.at_level(logging.INFO, "pds"):
        table.optimize.compact()
    assert "1 of 1 groups of files" in caplog.text


# -- commits of one process ------------------------------------------------------


def test_appends_of_one_process_share_commits(s3_store: pds.Store) -> None:
    table = pds.Table.create(s3_store, "t", SCHEMA)
    writers, each = 8, 6
    start = threading.Barrier(writers)

    def write(writer: int) -> list[tuple[int, int]]:
        mine = pds.Table(s3_store, "t")
        start.wait()
        found = []
        for number in range(each):
            identity = writer * 100 + number
            done = mine.append(pa.table({"id": [identity], "name": ["n"], "x": [0.0]}, SCHEMA))
            assert (done.rows, done.files, done.replayed) == (1, 1, False)
            # Whoever appended sees it, with whatever came along.
            assert identity in mine.scan(["id"]).to_pyarrow()["id"].to_pylist()
            found.append((done.version, identity))
        return found

    with ThreadPoolExecutor(writers) as pool:
        done = [pair for found in pool.map(write, range(writers)) for pair in found]
    table.refresh()
    assert sorted(table.scan(["id"]).to_pyarrow()["id"].to_pylist()) == sorted(identity for _, identity in done)
    for version, identity in done:
        rows = table.as_of(version).scan(["id"]).to_pyarrow()["id"].to_pylist()
        before = table.as_of(version - 1).scan(["id"]).to_pyarrow()["id"].to_pylist()
        assert identity in rows
        assert identity not in before
    counted = [
        entry["operation"].get("appends", 1) for entry in table.history() if entry["operation"]["name"] == "append"
    ]
    assert sum(counted) == len(done)
    assert table.check().orphans == []


def test_one_append_that_does_not_fit_leaves_the_others(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    good = _rows(1, 10)
    bad = good.append_column("more", pa.array(range(10)))

    def write(number: int) -> str:
        try:
            pds.Table(memory_store, "t").append(bad if number % 3 == 0 else good)
        except pds.InvalidInput:
            return "refused"
        return "done"

    with ThreadPoolExecutor(6) as pool:
        ends = list(pool.map(write, range(30)))
    assert ends.count("refused") == 10
    assert table.refresh().scan().count() == 200

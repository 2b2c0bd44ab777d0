"""The files of a table: long lists of them, what a check finds, what a scan reads."""

from __future__ import annotations

import datetime as dt
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from table.test_table import SCHEMA, objects, rows


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    return pds.Table.create(store, "lake/events", SCHEMA, key="id")


def test_a_table_of_many_files(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("x", pa.int64())]), key="id")
    files = 1100
    for n in range(files):
        table.append(pa.table({"id": [2 * n, 2 * n + 1], "x": [n, None]}))
    manifest = json.loads(memory_store.read_bytes(f"t/manifest/v{files + 1:08}.json"))
    assert len(manifest["data_files"]) <= 256
    first, *others = manifest["segments"]
    listed = pq.read_table(pa.BufferReader(memory_store.read_bytes(f"t/{first['path']}")))
    assert listed.num_rows == first["data_files"] > 100
    assert sum(s["data_files"] for s in [first, *others]) == files - len(manifest["data_files"])
    assert (first["min"]["1"], first["max"]["1"]) == (0, 2 * listed.num_rows - 1)
    assert first["null_counts"]["2"] == listed.num_rows
    assert table.files()["path"].to_pylist()[: listed.num_rows] == listed["path"].to_pylist()
    assert table.scan(["id"]).to_pyarrow()["id"].to_pylist() == list(range(2 * files))
    before = memory_store.metrics()["requests"]
    assert table.scan(where="id >= 2190").count() == 10
    assert memory_store.metrics()["requests"] - before < 20
    assert table.delete("id BETWEEN 3 AND 9").version == files + 2
    assert table.delete("x % 2 = 0").rows == files // 2 - 2
    left = {n for n in range(2 * files) if not 3 <= n <= 9 and n % 4 != 0}
    assert set(table.scan(["id"]).to_pyarrow()["id"].to_pylist()) == left
    assert table.optimize.compact() is not None
    assert table.files().num_rows == 1
    assert set(table.scan(["id"]).to_pyarrow()["id"].to_pylist()) == left
    assert table.as_of(files + 1).scan().count() == 2 * files
    table.vacuum(dt.timedelta(0))
    # The pointer, two manifests and the data file.
    assert len(objects(memory_store, "t")) == 4


def test_a_check_finds_what_is_not_right(table: pds.Table, store: pds.Store) -> None:
    for begin in range(0, 300, 100):
        table.append(rows(begin, 100))
    table.delete("id BETWEEN 5 AND 9")
    table.optimize.compact()
    table.append(rows(300, 10))
    found = table.check()
    assert found.ok
    assert (found.version, found.missing, found.mismatched, found.orphans) == (7, [], [], [])
    newest = table.files()["path"].to_pylist()
    older = table.as_of(4).files()["path"].to_pylist()
    folder, _, name = newest[0].rpartition("/")
    orphan = f"{folder}/{name[:-12]}0000.parquet"
    store.write(f"{table.path}/{orphan}", b"left behind")
    store.write(f"{table.path}/data/mine.txt", b"a user's own")
    store.delete(f"{table.path}/{older[1]}")
    store.write(f"{table.path}/{newest[1]}", b"something else", overwrite=True)
    found = table.check()
    assert not found.ok
    assert (found.missing, found.mismatched, found.orphans) == ([older[1]], [newest[1]], [orphan])
    table.vacuum(dt.timedelta(0))
    store.delete(f"{table.path}/{newest[1]}")
    assert table.check() == pds.table.CheckResult(8, [newest[1]], [], [])


def test_a_plan_tells_what_is_read(store: pds.Store) -> None:
    options = pds.WriteOptions(row_group_size=10)
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64())]), key="id", options=options)
    for begin in range(0, 300, 100):
        table.append(pa.table({"id": range(begin, begin + 100)}))
    table.delete("id BETWEEN 120 AND 139")
    table.delete("id % 100 = 7")
    assert table.scan().explain() == pds.table.ScanPlan(3, 3, 30, 28, 280, 2)
    assert table.scan(where="id >= 105 AND id < 125").explain() == pds.table.ScanPlan(3, 1, 10, 2, 20, 2)
    assert table.scan(where="id < 0").explain() == pds.table.ScanPlan(3, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("same", [True, False])
def test_a_file_that_is_written_again_while_it_is_read(store: pds.Store, same: bool) -> None:
    options = pds.WriteOptions(row_group_size=200)
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64())]), options=options)
    # More than is read when the file is opened, and more row groups than are read ahead.
    ids = random.Random(3).sample(range(1 << 62), 20_000)
    table.append(pa.table({"id": ids}))
    (path,) = (f"t/{path}" for path in table.files()["path"].to_pylist())
    content = store.read_bytes(path)
    reader = table.scan().to_reader()
    found = [reader.read_next_batch()]
    # As by a request that was repeated and comes late.
    store.write(path, content if same else content[:-1] + b"!", overwrite=True)
    # Of a local file that is replaced the one that was opened is read on.
    if same or store.url.startswith("file"):
        found += list(reader)
        assert pa.Table.from_batches(found)["id"].to_pylist() == ids
    else:
        with pytest.raises(pds.PartCorrupted):
            list(reader)

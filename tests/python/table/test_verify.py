"""`Table.verify` names every object of a snapshot that is damaged or missing, and nothing else."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pytest

import pds
from table.test_table import objects

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("parts", pa.list_(pa.struct([("x", pa.float64())]))),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    parts = [[{"x": n / 7}] * (n % 3) for n in numbers]
    return pa.table({"id": numbers, "name": [f"name {n}" for n in numbers], "parts": parts}, SCHEMA)


def make_table(store: pds.Store, files: int = 4, path: str = "lake/t") -> pds.Table:
    table = pds.Table.create(store, path, SCHEMA, key="id", options=pds.WriteOptions(row_group_size=40))
    for number in range(files):
        table.append(rows(100 * number, 100))
    table.delete("id BETWEEN 110 AND 119")
    table.delete("id % 7 = 3")
    return table


def test_a_good_table(store: pds.Store) -> None:
    table = make_table(store)
    files = table.files()
    result = table.verify()
    assert result.ok
    assert result == pds.table.VerifyResult(
        table.version, files=4, rows=400, bytes=sum(files["size_bytes"].to_pylist()), problems=[]
    )
    table.optimize.compact()
    assert table.verify().files == 1
    assert table.as_of(result.version).verify() == result
    empty = pds.Table.create(store, "empty", SCHEMA)
    assert empty.verify() == pds.table.VerifyResult(1, files=0, rows=0, bytes=0, problems=[])


def test_every_damaged_byte_of_a_file_is_noticed(memory_store: pds.Store) -> None:
    """Wherever it is: in data, indexes, footer or seal."""
    table = make_table(memory_store)
    draw = random.Random(7)
    for path in table.files()["path"].to_pylist():
        good = memory_store.read_bytes(f"{table.path}/{path}")
        for at in {0, len(good) - 1, *(draw.randrange(len(good)) for _ in range(60))}:
            bad = bytearray(good)
            bad[at] ^= 1 << draw.randrange(8)
            memory_store.write(f"{table.path}/{path}", bytes(bad), overwrite=True)
            result = pds.Table(memory_store, table.path).verify()
            assert [problem[0] for problem in result.problems] == [path], (path, at, result)
            assert (result.files, result.rows) == (4, 300)
        memory_store.write(f"{table.path}/{path}", good, overwrite=True)
        assert table.verify().ok


def test_tombstones_are_cut_or_missing(store: pds.Store) -> None:
    """A line that is cut off would bring rows back: no reader takes it."""
    table = make_table(store)
    tombstones = [path for path in objects(store, table.path) if "/tombstone/" in path]
    assert len(tombstones) == 2
    path = tombstones[-1].removeprefix(f"{table.path}/")
    lines = store.read_bytes(f"{table.path}/{path}").splitlines(keepends=True)
    assert len(lines) > 1
    for damaged in (b"".join(lines[:-1]), b"".join(lines) + b"\n", b"", None):
        if damaged is None:
            store.delete(f"{table.path}/{path}")
        else:
            store.write(f"{table.path}/{path}", damaged, overwrite=True)
        opened = pds.Table(store, table.path)
        result = opened.verify()
        assert [problem[0] for problem in result.problems] == [path]
        assert (result.files, result.rows) == (4, 400)
        with pytest.raises((pds.ManifestCorrupted, pds.PartCorrupted)):
            opened.scan().count()
        with pytest.raises((pds.ManifestCorrupted, pds.PartCorrupted)):
            opened.scan().to_pyarrow()


@pytest.mark.parametrize("path", ["lake/t", "data"])
def test_files_that_are_missing_or_another_one(store: pds.Store, path: str) -> None:
    """Also of a table whose name begins the paths of its files."""
    table = make_table(store, path=path)
    paths = table.files()["path"].to_pylist()
    first, second = (store.read_bytes(f"{table.path}/{path}") for path in paths[:2])
    store.write(f"{table.path}/{paths[0]}", second, overwrite=True)
    store.write(f"{table.path}/{paths[1]}", first, overwrite=True)
    store.delete(f"{table.path}/{paths[3]}")
    result = table.verify()
    assert not result.ok
    assert [path for path, _ in result.problems] == sorted([paths[0], paths[1], paths[3]])
    assert (result.files, result.rows) == (4, 100)


def test_a_list_of_files_is_damaged(memory_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema, key="id")
    for number in range(300):
        table.append(pa.table({"id": [number]}, schema))
    assert table.verify().files == 300
    copy = pds.Store("memory://")
    segments = [path for path in objects(memory_store, "t") if "/segments/" in path]
    for path in objects(memory_store, "t"):
        content = b"PAR1" + bytes(1000) if path == segments[-1] else memory_store.read_bytes(path)
        # Under another name, since lists are kept in memory.
        copy.write(path.replace("t/", "other/", 1), content)
    result = pds.Table(copy, "other").verify()
    assert [path for path, _ in result.problems] == [segments[-1].removeprefix("t/")]
    assert 0 < result.files == result.rows < 300


def test_tombstones_that_tell_of_other_rows(memory_store: pds.Store) -> None:
    """Of the right length, and valid: their counts differ, or the file does not have the rows."""
    table = make_table(memory_store)
    path = max(path for path in objects(memory_store, table.path) if "/tombstone/" in path)
    good = memory_store.read_bytes(path)
    for old, new, named in (
        (b'"row_group":0,', b'"row_group":7,', "data/"),
        (b"[3,10,17,", b"[3,10,97,", "data/"),
        (b"[3,10,17,", b"[3,1,2,9,", "tombstone/"),
    ):
        memory_store.write(path, good.replace(old, new, 1), overwrite=True)
        result = pds.Table(memory_store, table.path).verify()
        assert [problem[0].startswith(named) for problem in result.problems] == [True], (new, result)
        assert result.rows == (300 if named == "data/" else 400)
    memory_store.write(path, good, overwrite=True)
    assert table.verify().ok


def test_a_version_that_was_vacuumed(store: pds.Store) -> None:
    table = make_table(store)
    table.optimize.compact()
    old = table.as_of(table.version - 1)
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pds.VersionExpired):
        old.verify()
    assert table.verify().ok

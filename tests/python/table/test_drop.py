"""Tables of a store are listed, and removed as a whole; what is not theirs stays."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

SCHEMA = pa.schema([("id", pa.int64())])


def _table(store: pds.Store, path: str, versions: int = 3) -> pds.Table:
    table = pds.Table.create(store, path, SCHEMA, key="id")
    for number in range(versions - 1):
        table.append(pa.table({"id": [number, number + 100]}), idempotency_key=f"{number}")
    return table


def _files(store: pds.Store) -> set[str]:
    return {str(info.path) for info in store.list_files(recursive=True)}


def test_a_dropped_table_leaves_nothing_and_its_place_takes_a_new_one(store: pds.Store) -> None:
    table = _table(store, "lake/orders")
    table.delete("id = 0")
    table.tags.create("first", 2)
    table.vacuum(timedelta(0))
    table.append(pa.table({"id": [7]}))
    _table(store, "lake/orders_2")
    others = {name for name in _files(store) if name.startswith("lake/orders_2/")}
    store.write("lake/orders.txt", b"not of the table")
    pds.Table.drop(store, "lake/orders")
    assert _files(store) == others | {"lake/orders.txt"}
    assert not pds.Table.exists(store, "lake/orders")
    for use in (table.refresh, lambda: table.append(pa.table({"id": [1]})), lambda: pds.Table(store, "lake/orders")):
        with pytest.raises(pds.NotFound):
            use()
    with pytest.raises(pds.NotFound, match="there is no table"):
        pds.Table.drop(store, "lake/orders")
    again = pds.Table.create(store, "lake/orders", pa.schema([("name", pa.string())]))
    assert again.append(pa.table({"name": ["new"]})).version == 2
    assert pds.Table(store, "lake/orders").scan().to_pyarrow()["name"].to_pylist() == ["new"]


def test_many_versions_lists_and_segments_are_removed(local_store: pds.Store) -> None:
    table = _table(local_store, "t", versions=300)
    assert len(table._parse_manifest()["segments"]) > 0
    assert table._parse_manifest()["older_transactions"]
    pds.Table.drop(local_store, "t")
    assert _files(local_store) == set()
    assert not local_store.exists("t"), "not even empty folders"


def test_files_that_were_added_in_place_stay(local_store: pds.Store) -> None:
    table = _table(local_store, "t")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [5]}), sink)
    local_store.write("t/landing/a.parquet", sink.getvalue().to_pybytes())
    table.add_files("t/landing/a.parquet")
    pds.Table.drop(local_store, "t")
    assert _files(local_store) == {"t/landing/a.parquet"}


@pytest.mark.parametrize("left", ["pointer", "oldest", "newest"])
def test_what_an_interrupted_removal_left_is_removed(local_store: pds.Store, left: str) -> None:
    _table(local_store, "t", versions=5)
    local_store.delete("t/_latest_manifest")
    if left == "oldest":
        local_store.delete("t/manifest/v00000001.json")
    if left == "newest":
        for version in range(1, 5):
            local_store.delete(f"t/manifest/v0000000{version}.json")
    if left == "pointer":
        assert pds.Table(local_store, "t").version == 5, "nothing had been removed yet"
    else:
        with pytest.raises(pds.ManifestCorrupted):
            pds.Table(local_store, "t")
    pds.Table.drop(local_store, "t")
    assert _files(local_store) == set()


def test_tables_are_listed_wherever_they_are(store: pds.Store) -> None:
    assert pds.list_tables(store) == []
    for path in ("b", "a/deep/er", "a/deep", "data/data/manifest"):
        _table(store, path, versions=2)
    # Neither a dataset nor other files are tables.
    pds.ParquetDatasetStore(store).write_dataset(pa.table({"id": [1]}), "set/one")
    store.write("a/file.txt", b"x")
    assert pds.list_tables(store) == ["a/deep", "a/deep/er", "b", "data/data/manifest"]
    assert pds.list_tables(store, "a") == ["a/deep", "a/deep/er"]
    assert pds.list_tables(store, "a/deep") == ["a/deep", "a/deep/er"]
    assert pds.list_tables(store, "nowhere") == []
    pds.Table.drop(store, "a/deep")
    assert pds.list_tables(store) == ["a/deep/er", "b", "data/data/manifest"]
    assert pds.Table(store, "a/deep/er").scan().count() == 2


def test_a_table_whose_pointer_is_lost_is_listed(store: pds.Store) -> None:
    _table(store, "lake/orders")
    store.delete("lake/orders/_latest_manifest")
    assert pds.list_tables(store) == ["lake/orders"]
    assert pds.Table(store, "lake/orders").version == 3


def test_a_dropped_table_has_no_short_history(store: pds.Store) -> None:
    table = _table(store, "t", versions=5)
    pds.Table.drop(store, "t")
    with pytest.raises(pds.NotFound):
        table.history()


@pytest.mark.parametrize("stray", ["of another table", "unreadable"])
def test_a_late_manifest_of_another_table_does_not_keep_this_one(store: pds.Store, stray: str) -> None:
    _table(store, "other", versions=6)
    bytes_ = store.read_bytes("other/manifest/v00000006.json") if stray == "of another table" else b"{"
    pds.Table.drop(store, "other")
    _table(store, "t")
    store.write("t/manifest/v00000006.json", bytes_)
    pds.Table.drop(store, "t")
    assert _files(store) == set()
    assert pds.list_tables(store) == []


def test_files_that_a_removal_left_without_manifests_are_removed(store: pds.Store) -> None:
    _table(store, "t")
    store.write("t/other.txt", b"not of the table")
    for name in _files(store):
        if name.startswith(("t/manifest", "t/_latest")):
            store.delete(name)
    pds.Table.drop(store, "t")
    assert _files(store) == {"t/other.txt"}


def test_listing_does_not_look_at_the_files_of_tables(memory_store: pds.Store) -> None:
    for number in range(5):
        _table(memory_store, f"lake/t{number}", versions=40)
    memory_store.reset_metrics()
    assert len(pds.list_tables(memory_store)) == 5
    assert memory_store.metrics()["requests"] <= 1 + 1 + 5


@pytest.mark.parametrize("call", [pds.list_tables, pds.Table.drop])
def test_arguments_that_cannot_be(memory_store: pds.Store, call: object) -> None:
    with pytest.raises(pds.InvalidType):
        call(memory_store, 3)  # type: ignore[operator]
    with pytest.raises(pds.InvalidPath):
        call(memory_store, "a/../b")  # type: ignore[operator]

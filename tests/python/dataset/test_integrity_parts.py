"""`read_part` gives the part that was written there, or says that it is not there."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "a"
PARTS = 4


def _rows(part: int) -> pa.Table:
    return pa.table({"n": [part * 10, part * 10 + 1]})


def _one_task(store: pds.Store) -> pds.ParquetDatasetStore:
    ds = pds.ParquetDatasetStore(store, max_rows_per_file=2)
    ds.write_dataset(pa.concat_tables([_rows(part) for part in range(PARTS)]), KEY, overwrite=True)
    return ds


def _many_tasks(store: pds.Store) -> pds.ParquetDatasetStore:
    ds = pds.ParquetDatasetStore(store)
    write = ds.begin_write(KEY, overwrite=True)
    parts = [part for task in range(PARTS) for part in write.prepare(_rows(task), task=task * 3)]
    write.publish(parts, _rows(0).schema)
    return ds


def _foreign(store: pds.Store) -> pds.ParquetDatasetStore:
    """As remote-store leaves it: parts without checksums."""
    ds = _one_task(store)
    for part in range(PARTS):
        sink = pa.BufferOutputStream()
        pq.write_table(_rows(part), sink)
        store.write(_path(part), sink.getvalue().to_pybytes(), overwrite=True)
    return ds


def _path(part: int) -> str:
    return f"{KEY}/part-{part:05}.parquet"


WRITES: dict[str, Callable[[pds.Store], pds.ParquetDatasetStore]] = {
    "one task": _one_task,
    "many tasks": _many_tasks,
    "foreign": _foreign,
}


def _read(ds: pds.ParquetDatasetStore, manifest: pds.DatasetManifest, part: int, index: Any) -> pa.Table:
    return ds.read_part(KEY, manifest, part, part_index=index).read_all()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("indexed", [False, True])
def test_every_part_is_read_by_its_position(memory_store: pds.Store, write: str, indexed: bool) -> None:
    ds = WRITES[write](memory_store)
    manifest = ds.read_manifest(KEY)
    index = pickle.loads(pickle.dumps(ds.index_parts(KEY, manifest))) if indexed else None  # noqa: S301 our own
    for part in range(PARTS):
        assert _read(ds, manifest, part, index).equals(_rows(part))
    if index is not None:
        assert len(index) == PARTS
        assert index.rows == [2] * PARTS
        assert index.sizes == [memory_store.get_file_info(_path(part)).size for part in range(PARTS)]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("write", ["one task", "many tasks"])
def test_any_order_but_the_right_one_is_noticed(memory_store: pds.Store, write: str, indexed: bool) -> None:
    ds = WRITES[write](memory_store)
    manifest = ds.read_manifest(KEY)
    index = ds.index_parts(KEY, manifest) if indexed else None
    content = [memory_store.read_bytes(_path(part)) for part in range(PARTS)]
    # Swapped and repeated parts, all of them.
    for order in itertools.product(range(PARTS), repeat=PARTS):
        for part, source in enumerate(order):
            memory_store.write(_path(part), content[source], overwrite=True)
        for part, source in enumerate(order):
            try:
                found = _read(ds, manifest, part, index)
            except pds.PartCorrupted:
                assert order != tuple(range(PARTS))
            else:
                assert source == part, order
                assert found.equals(_rows(part))


@pytest.mark.parametrize("indexed", [False, True])
def test_foreign_parts_among_ours_are_noticed(memory_store: pds.Store, indexed: bool) -> None:
    ds = _one_task(memory_store)
    manifest = ds.read_manifest(KEY)
    index = ds.index_parts(KEY, manifest) if indexed else None
    sink = pa.BufferOutputStream()
    pq.write_table(_rows(7), sink)
    memory_store.write(_path(1), sink.getvalue().to_pybytes(), overwrite=True)
    with pytest.raises(pds.PartCorrupted):
        _read(ds, manifest, 1, index)
    # The others are what they were.
    assert _read(ds, manifest, 2, index).equals(_rows(2))


def test_foreign_parts_that_change_are_noticed_by_the_index(memory_store: pds.Store) -> None:
    ds = _foreign(memory_store)
    manifest = ds.read_manifest(KEY)
    index = ds.index_parts(KEY, manifest)
    memory_store.write(_path(1), memory_store.read_bytes(_path(0)), overwrite=True)
    with pytest.raises(pds.PartCorrupted):
        _read(ds, manifest, 1, index)


def test_parts_of_another_write_are_noticed(memory_store: pds.Store) -> None:
    ds = _one_task(memory_store)
    old = memory_store.read_bytes(_path(1))
    ds.write_dataset(pa.concat_tables([_rows(part + 5) for part in range(PARTS)]), KEY, overwrite=True)
    manifest = ds.read_manifest(KEY)
    index = ds.index_parts(KEY, manifest)
    memory_store.write(_path(1), old, overwrite=True)
    for known in (None, index):
        with pytest.raises(pds.DatasetIncomplete):
            _read(ds, manifest, 1, known)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (pa.table({"n": pa.array([1, 2], pa.int32())}), 'column "n" is Int32, not Int64'),
        (pa.table([pa.array([1, 2])], pa.schema([pa.field("n", pa.int64(), nullable=False)])), "Int64 not null, not"),
        (pa.table({"m": [1, 2]}), r'column "n" \(Int64\) is missing'),
        (pa.table({"n": [1, 2], "m": [1, 2]}), r'the first part has no column "m" \(Int64\)'),
    ],
    ids=["type", "nullable", "missing", "added"],
)
def test_parts_of_other_columns_are_described(memory_store: pds.Store, other: pa.Table, says: str) -> None:
    ds = _foreign(memory_store)
    sink = pa.BufferOutputStream()
    pq.write_table(other, sink)
    memory_store.write(_path(2), sink.getvalue().to_pybytes(), overwrite=True)
    with pytest.raises(pds.DatasetIncomplete, match=says) as caught:
        ds.read_dataset(KEY)
    assert "part-00002.parquet" in str(caught.value)


def test_a_replaced_dataset_is_not_mixed_in(memory_store: pds.Store) -> None:
    ds = _one_task(memory_store)
    manifest = ds.read_manifest(KEY)
    _many_tasks(memory_store)
    with pytest.raises(pds.DatasetIncomplete, match="replaced"):
        ds.index_parts(KEY, manifest)
    with pytest.raises(pds.DatasetIncomplete, match="replaced"):
        _read(ds, manifest, 0, None)


def test_all_missing_parts_are_named(store: pds.Store) -> None:
    ds = _one_task(store)
    manifest = ds.read_manifest(KEY)
    for part in (1, 3):
        store.delete(_path(part))
    for read in (
        ds.read_dataset,
        ds.verify_dataset,
        ds.scan_dataset,
        lambda key: ds.index_parts(key, manifest),
    ):
        with pytest.raises(pds.DatasetIncomplete, match=r"part-00001\.parquet") as caught:
            read(KEY)
        assert "part-00003.parquet" in str(caught.value)
        assert "part-00002.parquet" not in str(caught.value)


def test_a_part_that_the_manifest_does_not_have(memory_store: pds.Store) -> None:
    ds = _one_task(memory_store)
    with pytest.raises(pds.errors.InvalidInput, match="no part 9"):
        ds.read_part(KEY, ds.read_manifest(KEY), 9)


def _parts_of_another_write(other: pds.DatasetWrite, _: pds.DatasetWrite) -> list[pds.StagedPart]:
    return other.prepare(_rows(1))


def _parts_of_two_schemas(_: pds.DatasetWrite, write: pds.DatasetWrite) -> list[pds.StagedPart]:
    other = _rows(1).rename_columns([f"other {name}" for name in _rows(1).column_names])
    return [*write.prepare(_rows(0)), *write.prepare(other, task=1)]


def _parts_of_two_types(_: pds.DatasetWrite, write: pds.DatasetWrite) -> list[pds.StagedPart]:
    strings = pa.table({name: ["x"] for name in _rows(1).column_names})
    return [*write.prepare(_rows(0)), *write.prepare(strings, task=1)]


WRONG_PARTS = {
    "belongs to another write": _parts_of_another_write,
    "columns of task 1 differ": _parts_of_two_schemas,
    "columns of task 1 differ from those of task 0": _parts_of_two_types,
    "prepare_empty": lambda _other, _write: [],
}


@pytest.mark.parametrize("message", WRONG_PARTS)
def test_parts_that_nobody_could_read_are_not_published(store: pds.Store, message: str) -> None:
    ds = _one_task(store)
    before = ds.read_dataset(KEY)
    other, write = ds.begin_write("elsewhere"), ds.begin_write(KEY, overwrite=True)
    parts = WRONG_PARTS[message](other, write)
    with pytest.raises(pds.InvalidInput, match=message):
        write.publish(parts, _rows(0).schema)
    assert ds.read_dataset(KEY).equals(before)
    # Those of another write are its own.
    if message.startswith("belongs"):
        other.publish(parts, _rows(0).schema)
        assert ds.read_dataset("elsewhere").equals(_rows(1))


def test_a_dataset_without_rows_is_published_by_tasks(store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(store)
    write = ds.begin_write(KEY)
    schema = _rows(0).schema
    write.publish(write.prepare(schema.empty_table()) or write.prepare_empty(schema), schema)
    assert ds.read_dataset(KEY).equals(schema.empty_table())

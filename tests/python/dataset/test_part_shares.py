"""Shares of a part: several readers read its rows, each row once, and all notice that it is another part."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

KEY = "orders"
GROUP_ROWS = 10


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"name {number % 13:030}" for number in ids]})


def write(store: pds.Store, groups: int, parts: int = 1) -> tuple[pds.ParquetDatasetStore, pds.DatasetManifest, Any]:
    """A dataset whose parts have so many row groups."""
    part_rows = groups * GROUP_ROWS
    datasets = pds.ParquetDatasetStore(
        store, compression="none", row_group_size=GROUP_ROWS, max_rows_per_file=part_rows
    )
    manifest = datasets.write_dataset(rows(0, parts * part_rows), KEY, overwrite=True)
    index = datasets.index_parts(KEY, manifest)
    assert index.row_groups == [groups] * parts
    return datasets, manifest, index


@pytest.mark.parametrize("groups", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 101])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_each_row_is_in_one_share_in_order(memory_store: pds.Store, groups: int, count: int, is_indexed: bool) -> None:
    datasets, manifest, index = write(memory_store, groups, parts=2)
    known = index if is_indexed else None
    shares = [
        datasets.read_part(KEY, manifest, part, share=(number, count), part_index=known).read_all()
        for part in range(2)
        for number in range(count)
    ]
    assert pa.concat_tables(shares).equals(rows(0, 2 * groups * GROUP_ROWS))
    empty = [share.num_rows for share in shares].count(0)
    assert empty == 0 if count <= groups // 2 else empty >= 2 * (count - groups)


def test_columns_of_a_share(memory_store: pds.Store) -> None:
    datasets, manifest, _ = write(memory_store, 7)
    read = [datasets.read_part(KEY, manifest, 0, columns, share=(6, 7)).read_all() for columns in (["name"], [])]
    assert read[0].equals(rows(60, 10).select(["name"]))
    assert read[1].num_rows == GROUP_ROWS


def test_a_part_without_rows(memory_store: pds.Store) -> None:
    datasets = pds.ParquetDatasetStore(memory_store)
    manifest = datasets.write_dataset(rows(0, 0), KEY)
    for number in range(3):
        share = datasets.read_part(KEY, manifest, 0, share=(number, 3)).read_all()
        assert share.equals(rows(0, 0))


def test_foreign_parts(memory_store: pds.Store) -> None:
    datasets, manifest, _ = write(memory_store, 7)
    sink = io.BytesIO()
    pq.write_table(rows(0, 70), sink, row_group_size=6)
    memory_store.write(f"{KEY}/{manifest.parts[0]}", sink.getvalue(), overwrite=True)
    index = datasets.index_parts(KEY, manifest)
    assert index.row_groups == [12]
    shares = [datasets.read_part(KEY, manifest, 0, share=(number, 5), part_index=index) for number in range(5)]
    assert pa.concat_tables([share.read_all() for share in shares]).equals(rows(0, 70))


def outcomes(datasets: pds.ParquetDatasetStore, manifest: pds.DatasetManifest, part: int, index: Any) -> list[bool]:
    """For each of 7 shares whether it is read."""
    results = []
    for number in range(7):
        try:
            datasets.read_part(KEY, manifest, part, share=(number, 7), part_index=index).read_all()
        except (pds.PartCorrupted, pds.DatasetIncomplete):
            results.append(False)
        else:
            results.append(True)
    return results


@pytest.mark.parametrize("groups", [1, 7])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_swapped_parts_are_noticed_by_every_share(memory_store: pds.Store, groups: int, is_indexed: bool) -> None:
    datasets, manifest, index = write(memory_store, groups, parts=3)
    paths = [f"{KEY}/{part}" for part in manifest.parts]
    contents = [memory_store.read_bytes(path) for path in paths]
    known = index if is_indexed else None
    assert outcomes(datasets, manifest, 1, known) == [True] * 7
    for source in (0, 2):
        memory_store.write(paths[1], contents[source], overwrite=True)
        assert outcomes(datasets, manifest, 1, known) == [False] * 7
    memory_store.delete(paths[1])
    assert outcomes(datasets, manifest, 1, known) == [False] * 7
    memory_store.write(paths[1], contents[1], overwrite=True)
    datasets.write_dataset(rows(0, 3 * groups * GROUP_ROWS), KEY, overwrite=True)
    assert outcomes(datasets, manifest, 1, known) == [False] * 7


@pytest.mark.parametrize("group", range(7))
def test_a_damaged_row_group_is_noticed_by_its_share(memory_store: pds.Store, group: int) -> None:
    datasets, manifest, index = write(memory_store, 7)
    path = f"{KEY}/{manifest.parts[0]}"
    content = bytearray(memory_store.read_bytes(path))
    column = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(group).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    content[start + column.total_compressed_size // 2] ^= 0xFF
    memory_store.write(path, bytes(content), overwrite=True)
    assert outcomes(datasets, manifest, 0, index) == [number != group for number in range(7)]


def test_shares_that_do_not_exist_are_refused(memory_store: pds.Store) -> None:
    datasets, manifest, _ = write(memory_store, 2)
    for share in ((3, 3), (-1, 3), (0, 0), (0, 2**31), (0, -1)):
        with pytest.raises(pds.InvalidInput, match="share must be"):
            datasets.read_part(KEY, manifest, 0, share=share)
    for bad in ("ab", 1, (1,), (0, 1, 2), (0, 2.0), (False, 2), (0, True), ("0", "2")):
        with pytest.raises(pds.InvalidType, match="share must be"):
            datasets.read_part(KEY, manifest, 0, share=bad)  # type: ignore[arg-type]

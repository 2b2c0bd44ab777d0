"""Sorts by floats: zeros are equal, NaN are equal and after all numbers, as in DuckDB, polars and pyarrow."""

from __future__ import annotations

import math
import random
import struct
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pds
from pds.table.sort_tasks import Sort

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FLOATS = [pa.float16(), pa.float32(), pa.float64()]
(SIGNALING,) = struct.unpack("<d", bytes.fromhex("010000000000f07f"))
VALUES = [None, math.nan, -math.nan, SIGNALING, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5]
BY = ["key", "second"]
OPTIONS = pds.WriteOptions(row_group_size=100)


def as_floats(values: list[Any], kind: pa.DataType) -> pa.Array:
    """With the signs of zeros and NaN."""
    numbers = np.array([0.0 if value is None else value for value in values], kind.to_pandas_dtype())
    return pa.array(numbers, kind, mask=np.array([value is None for value in values]))


def make_rows(kind: pa.DataType, count: int = 2000, seed: int = 1) -> pa.Table:
    """Rows with many equal keys, and their numbers."""
    draw = random.Random(seed)
    keys = as_floats([draw.choice(VALUES) for _ in range(count)], kind)
    second = pa.array([draw.choice([None, 1, 2, 3]) for _ in range(count)], pa.int32())
    return pa.table({"key": keys, "second": second, "n": range(count)})


def sorted_by_others(rows: pa.Table) -> list[int]:
    """The numbers of the rows in the order of other engines, which agree."""
    wide = rows.set_column(0, "key", rows["key"].cast(pa.float64()))
    order = [(name, "ascending") for name in BY]
    by_pyarrow: list[int] = rows["n"].take(pc.sort_indices(wide, order)).to_pylist()
    with duckdb.connect() as connection:
        connection.register("wide", wide)
        query = "SELECT n FROM wide ORDER BY key ASC NULLS LAST, second ASC NULLS LAST, n"
        by_duckdb = [n for (n,) in connection.sql(query).fetchall()]
    frame = pl.from_arrow(wide)
    assert isinstance(frame, pl.DataFrame)
    by_polars = frame.sort(BY, nulls_last=True, maintain_order=True)["n"].to_list()
    assert by_pyarrow == by_duckdb == by_polars
    return by_pyarrow


def bits(column: pa.ChunkedArray) -> list[int | None]:
    whole = column.combine_chunks()
    values: list[int | None] = whole.view(f"int{whole.type.bit_width}").to_pylist()
    return values


def check(table: pds.Table, rows: pa.Table) -> None:
    """The table has the rows in order, bit by bit, and filters find them."""
    expected = rows.take(pa.array(sorted_by_others(rows)))
    stored = table.scan().to_pyarrow()
    assert stored["n"].to_pylist() == expected["n"].to_pylist()
    assert bits(stored["key"]) == bits(expected["key"])
    wide = rows.set_column(0, "key", rows["key"].cast(pa.float64()))
    with duckdb.connect() as connection:
        connection.register("wide", wide)
        for where in ("key = 0", "key < 0", "key <= 0", "key > 1", "isnan(key)", "key IS NULL"):
            counted = connection.table("wide").filter(where).count("*").fetchall()
            assert [(table.scan(where=where).count(),)] == counted, where


def is_sorted(table: pds.Table) -> bool:
    """Whether each file is in order."""
    for path in table.files()["path"].to_pylist():
        rows = pq.read_table(pa.BufferReader(table.store.read_bytes(f"{table.path}/{path}")))
        numbered = rows.set_column(2, "n", pa.array(range(rows.num_rows)))
        if sorted_by_others(numbered) != list(range(rows.num_rows)):
            return False
    return True


def append_pieces(table: pds.Table, rows: pa.Table, size: int = 300) -> pds.Table:
    for begin in range(0, rows.num_rows, size):
        table.append(rows.slice(begin, size))
    return table


def sort_by_tasks(table: pds.Table, by: list[str] | None, size: int) -> int:
    """Returns the number of ranges."""
    plan = Sort(table, by, size, count=1000, min_bytes=1, max_bytes=1)
    ranges = plan.split([message for task in plan.tasks for message in task.run()])
    plan.commit([message for task in ranges for message in task.run()])
    return len(ranges)


def write_table(store: pds.Store, rows: pa.Table) -> pds.Table:
    return pds.write_table(f"{store.url}/t", rows, sort_by=BY, options=OPTIONS)


def append(store: pds.Store, rows: pa.Table) -> pds.Table:
    table = pds.Table.create(store, "t", rows.schema, sort_by=BY, options=OPTIONS)
    table.append(rows)
    return table


def overwrite(store: pds.Store, rows: pa.Table) -> pds.Table:
    table = append(store, rows.slice(0, 10))
    table.overwrite(rows)
    return table


def begin_write(store: pds.Store, rows: pa.Table) -> pds.Table:
    table = pds.Table.create(store, "t", rows.schema, sort_by=BY, options=OPTIONS)
    write = table.begin_write()
    write.commit([write.prepare(rows)])
    return table


def compact(store: pds.Store, rows: pa.Table) -> pds.Table:
    table = append_pieces(pds.Table.create(store, "t", rows.schema, sort_by=BY, options=OPTIONS), rows)
    assert is_sorted(table)
    assert table.optimize.compact() is not None
    return table


def optimize(store: pds.Store, rows: pa.Table) -> pds.Table:
    table = append_pieces(pds.Table.create(store, "t", rows.schema, options=OPTIONS), rows)
    size = sum(table.files()["size_bytes"].to_pylist()) // 5
    assert table.optimize.sort(BY, target_file_size=size) is not None
    return table


def tasks(store: pds.Store, rows: pa.Table) -> pds.Table:
    table = append_pieces(pds.Table.create(store, "t", rows.schema, options=OPTIONS), rows)
    sort_by_tasks(table, BY, 2000)
    return table


@pytest.mark.parametrize("write", [write_table, append, overwrite, begin_write, compact, optimize, tasks])
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_rows_are_in_the_order_of_other_engines(
    local_store: pds.Store, kind: pa.DataType, write: Callable[[pds.Store, pa.Table], pds.Table]
) -> None:
    rows = make_rows(kind)
    table = write(local_store, rows)
    check(table, rows)
    assert is_sorted(table)


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_ranges_of_tasks_end_among_zeros_and_nan(local_store: pds.Store, kind: pa.DataType) -> None:
    # Every 8,192nd row of a file is a sample, of which ranges are made.
    rows = make_rows(kind, 68_000)
    table = pds.Table.create(local_store, "t", rows.schema)
    for begin, length in [(0, 9000), (9000, 12_000), (21_000, 20_000), (41_000, 27_000)]:
        table.append(rows.slice(begin, length))
    assert sort_by_tasks(table, BY, sum(table.files()["size_bytes"].to_pylist()) // 8) > 4
    check(table, rows)
    assert is_sorted(table)


def test_a_sort_of_more_rows_than_its_memory_holds(local_store: pds.Store) -> None:
    rows = make_rows(pa.float64(), 300_000)
    options = pds.WriteOptions(memory_limit=32 << 20)
    table = pds.Table.create(local_store, "t", rows.schema, sort_by=BY, options=options)
    table.append(rows)
    assert table.scan().to_pyarrow()["n"].to_pylist() == sorted_by_others(rows)


def in_total_order(rows: pa.Table) -> pa.Table:
    """As versions before this one sorted tables: by the bits of floats."""
    keys = pc.if_else(
        pc.less(rows["key"].combine_chunks().view(pa.int64()), 0),
        pc.bit_wise_xor(rows["key"].combine_chunks().view(pa.int64()), (1 << 63) - 1),
        rows["key"].combine_chunks().view(pa.int64()),
    )
    order = pc.sort_indices(
        pa.table({"key": keys, "second": rows["second"]}), [("key", "ascending"), ("second", "ascending")]
    )
    return rows.take(order)


@pytest.mark.parametrize("rewrite", ["compact", "sort", "tasks"])
def test_files_in_the_order_of_earlier_versions_are_sorted(tmp_path: Path, rewrite: str) -> None:
    store = pds.Store(tmp_path.as_uri())
    old = in_total_order(make_rows(pa.float64(), 900, seed=2)).drop_columns("n")
    parts = [old, make_rows(pa.float64(), 600, seed=3).drop_columns("n"), old]
    numbered = pa.concat_tables(parts)
    rows = numbered.append_column("n", pa.array(range(numbered.num_rows)))
    table = pds.Table.create(store, "t", rows.schema, sort_by=BY, options=OPTIONS)
    for number, (begin, length) in enumerate([(0, 900), (900, 600), (1500, 900)]):
        pq.write_table(rows.slice(begin, length), tmp_path / f"{number}.parquet", row_group_size=100)
        table.add_files([f"{number}.parquet"])
    assert not is_sorted(table)
    if rewrite == "compact":
        table.optimize.compact()
    elif rewrite == "sort":
        table.optimize.sort(target_file_size=4000)
    else:
        sort_by_tasks(table, None, 2000)
    check(table.refresh(), rows)
    assert is_sorted(table)


def wrap(floats: pa.Array, kind: str) -> pa.Array:
    if kind == "struct":
        return pa.StructArray.from_arrays([floats], names=["f"], mask=floats.is_null())
    if kind == "dictionary":
        positions = pa.array(np.arange(len(floats), dtype=np.int32), mask=np.array(floats.is_null()))
        return pa.DictionaryArray.from_arrays(positions, floats.fill_null(2.5))
    if kind == "runs":
        return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(floats) + 1), pa.int32()), floats)
    return pa.ListArray.from_arrays(range(len(floats) + 1), floats)


@pytest.mark.parametrize("by_tasks", [False, True])
@pytest.mark.parametrize("kind", ["struct", "dictionary", "runs", "list"])
def test_floats_within_other_values(memory_store: pds.Store, kind: str, by_tasks: bool) -> None:
    rows = make_rows(pa.float64())
    wrapped = rows.set_column(0, "key", wrap(rows["key"].combine_chunks(), kind))
    table = append_pieces(pds.Table.create(memory_store, "t", wrapped.schema, options=OPTIONS), wrapped)
    if by_tasks:
        sort_by_tasks(table, BY, 2000)
    else:
        table.optimize.sort(BY, target_file_size=4000)
    stored = table.scan().to_pyarrow()
    assert stored["n"].to_pylist() == sorted_by_others(rows)
    keys = wrapped["key"].to_pylist()
    assert repr(stored["key"].to_pylist()) == repr([keys[n] for n in stored["n"].to_pylist()])

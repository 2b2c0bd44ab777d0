"""Rows that change a table, and the oracle: what the table and its change feed have afterwards, by pyarrow alone.

A source has a hundredth of the table's rows, at random, or all keys of a range; a tenth of it are keys that the table
does not have. Its values are those of other rows of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tables import rows

if TYPE_CHECKING:
    from tables.cases import Sizes

NEW_SHARE = 10
# A merge deletes the matched rows for which the source has so large an `r`, and updates the others.
DELETED_FROM = 5_000
CHANGE = "_change_type"
# The commits of the change feed: an upsert of random keys, and a delete of the range.
FEED_COMMITS = 2


def make_source(sizes: Sizes, kind: str) -> pa.Table:
    """The rows of an upsert or a merge. None of their keys is in the range of a delete, unless they are this range."""
    first, last = sizes.deleted
    rng = np.random.default_rng(6)
    if kind == "upsert-range":
        old = np.arange(first, last + 1)
    else:
        outside = np.concatenate([np.arange(first), np.arange(last + 1, sizes.loaded)])
        old = rng.choice(outside, max(NEW_SHARE, sizes.loaded // 100), replace=False)
    new = sizes.loaded + np.arange(len(old) // NEW_SHARE)
    keys = rng.permutation(np.concatenate([old[len(new) :], new]))
    # Copied, so that the other rows need not stay in memory.
    values = rows.load(sizes.rows, sizes.loaded + len(keys)).take(np.arange(sizes.loaded, sizes.loaded + len(keys)))
    values = values.set_column(0, "id", pa.array(keys))
    if kind == "merge":
        # All new rows stay, so that systems which delete in a commit of its own do the same.
        random = np.where(keys < sizes.loaded, values["r"].to_numpy(), values["r"].to_numpy() % DELETED_FROM)
        values = values.set_column(1, "r", pa.array(random.astype(np.int32)))
    return values.combine_chunks()


def expected_rows(sizes: Sizes, kind: str) -> pa.Table:
    """All rows of the table after a compaction, an upsert or a merge."""
    loaded = rows.load(sizes.rows, sizes.loaded)
    if kind == "compact":
        return loaded
    source = make_source(sizes, kind)
    untouched = loaded.filter(~np.isin(loaded["id"].to_numpy(), source["id"].to_numpy()))
    if kind == "merge":
        source = source.filter(pc.less(source["r"], DELETED_FROM))
    return pa.concat_tables([untouched, source])


def expected_feed(sizes: Sizes) -> pa.Table:
    """Every row that the two commits deleted or inserted; an update is both."""
    loaded, source = rows.load(sizes.rows, sizes.loaded), make_source(sizes, "upsert-random")
    keys, (first, last) = loaded["id"].to_numpy(), sizes.deleted
    deleted = loaded.filter(np.isin(keys, source["id"].to_numpy()) | ((keys >= first) & (keys <= last)))
    return pa.concat_tables([with_change(deleted, "delete"), with_change(source, "insert")])


def with_change(table: pa.Table, change: str) -> pa.Table:
    """Rows that were all inserted, or all deleted."""
    return table.append_column(CHANGE, pa.array([change]).take(np.zeros(table.num_rows, np.int8)))


def check_equal(table: pa.Table, expected: pa.Table) -> None:
    """Compares all values of all rows, in any order; RuntimeError names the first column that differs."""
    names = expected.column_names
    if table.num_rows != expected.num_rows:
        raise RuntimeError(f"{table.num_rows} rows and not {expected.num_rows}")
    pair = [_in_order(side.select(names).cast(expected.schema)) for side in (table, expected)]
    for name in names:
        if not pair[0][name].equals(pair[1][name]):
            raise RuntimeError(f"column {name} has other values than the oracle")


def _in_order(table: pa.Table) -> pa.Table:
    keys = [(name, "ascending") for name in ("id", CHANGE) if name in table.column_names]
    if len(keys) == 1:  # as fast as the keys are in order already
        return table.take(np.argsort(table["id"].to_numpy(), kind="stable"))
    return table.sort_by(keys)

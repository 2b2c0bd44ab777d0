"""What a filter selects, and that it fails, in every way of evaluating it."""

from __future__ import annotations

import pytest

import pds


def find(table: pds.Table, where: str) -> list[int]:
    """The ids of the rows, which are the same with statistics and without."""
    rows = [
        sorted(table.scan(["id"], where=where, use_stats=uses).to_pyarrow()["id"].to_pylist()) for uses in (True, False)
    ]
    assert rows[0] == rows[1], where
    return rows[0]


def assert_fails(table: pds.Table, where: str, message: str) -> None:
    """Scans and deletes fail, with statistics and without."""
    for use_stats in (True, False):
        with pytest.raises(pds.InvalidInput, match=message):
            table.scan(where=where, use_stats=use_stats).to_pyarrow()
    with pytest.raises(pds.InvalidInput, match=message):
        table.delete(where)

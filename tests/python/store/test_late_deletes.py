"""A deletion that a server carries out late hits nothing that came after it, although the names recur."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = pa.table({"id": [1, 2, 3]})


def _create(store: pds.Store) -> pds.Table:
    table = pds.Table.create(store, "t", ROWS.schema, exports=["delta", "iceberg"])
    table.append(ROWS)
    return table


def _create_again(store: pds.Store) -> None:
    pds.Table.drop(store, "t")
    _create(store)


REPLACE: dict[str, Callable[[pds.Store], object]] = {
    "table": _create_again,
    "log": lambda store: pds.Table(store, "t").export_delta(rebuild=True),
    "metadata": lambda store: pds.Table(store, "t").export_iceberg(rebuild=True),
}


@pytest.mark.parametrize(
    ("replaced", "name"),
    [
        ("table", "/_delta_log/00000000000000000002.json"),
        ("table", "/metadata/v2.metadata.json"),
        ("log", "/_delta_log/00000000000000000002.json"),
        ("metadata", "/metadata/v2.metadata.json"),
    ],
)
def test_an_export_that_is_removed_and_written_again(replaced: str, name: str) -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/p", storage_options=server.options())
        _create(store)
        late = server.on("delete", name, "late")
        REPLACE[replaced](store)
        assert late.hit.is_set()
        after = server.snapshot()
        assert f"p/t{name}" in after
        late.land()
        assert server.snapshot() == after

"""A deletion that a server carries out late hits nothing that came after it, although the names recur."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripted_s3 import Request, Rule

NOW = dt.timedelta(0)
ROWS = pa.table({"id": [1, 2, 3]})


def _create(store: pds.Store) -> pds.Table:
    table = pds.Table.create(store, "t", ROWS.schema, exports=["delta", "iceberg"])
    table.append(ROWS)
    return table


def _create_again(store: pds.Store) -> None:
    pds.Table.drop(store, "t")
    _create(store)


def _land(server: ScriptedS3, late: Rule, key: str) -> None:
    """The deletion of an object arrives when another one has its name, and does nothing."""
    after = server.snapshot()
    assert key in after
    late.land()
    assert server.snapshot() == after


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
        _land(server, late, f"p/t{name}")


def test_a_log_that_is_written_anew_twice() -> None:
    """Of the same version: only by a random part do its files have other ETags."""
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/p", storage_options=server.options())
        table = _create(store)
        table.export_delta(rebuild=True)
        name = "/_delta_log/00000000000000000002.json"
        late = server.on("delete", name, "late")
        table.export_delta(rebuild=True)
        assert late.hit.is_set()
        _land(server, late, f"p/t{name}")


def test_metadata_that_have_expired() -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/p", storage_options=server.options())
        table = _create(store)
        table.append(ROWS)
        late = server.on("delete", "/metadata/v1.metadata.json", "late")
        table.vacuum(NOW)
        assert late.hit.is_set()
        assert "p/t/metadata/v1.metadata.json" not in server.snapshot()
        _create_again(store)
        _land(server, late, "p/t/metadata/v1.metadata.json")


def test_commits_of_a_log_that_have_expired() -> None:
    name = "p/t/_delta_log/00000000000000000002.json"
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/p", storage_options=server.options())
        table = _create(store)
        # The next export sees that readers have none to begin at, and writes one of its version.
        del server.bucket.objects["p/t/_delta_log/00000000000000000001.checkpoint.parquet"]
        table.append(ROWS)
        table.vacuum(NOW)
        assert name in server.snapshot()
        for key, stored in server.save().items():
            server.bucket.objects[key] = stored._replace(written_at=stored.written_at - 2 * 86_400)
        late = server.on("delete", name, "late")
        table.vacuum(NOW)
        assert late.hit.is_set()
        assert name not in server.snapshot()
        _create_again(store)
        _land(server, late, name)


def test_a_table_that_is_created_again_while_metadata_expire() -> None:
    """What is removed follows from the table whose metadata were listed."""
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/p", storage_options=server.options())
        table = _create(store)
        table.append(ROWS)
        after: list[dict[str, bytes]] = []

        def replace(request: Request) -> None:
            is_named = any(seen.touches("put", "/version-hint.text") for seen in server.seen)
            if is_named and request.touches("list", "/metadata/") and not after:
                after.append({})
                _create_again(pds.Store("s3://bucket/p", storage_options=server.options("other")))
                after[0] = server.snapshot()
                replaced.set()

        replaced = threading.Event()
        server.restart()
        server.before = replace
        with contextlib.suppress(pds.RemoteStoreError):
            table.vacuum(NOW)
        assert replaced.wait(60)
        assert not server.failures
        assert "p/t/metadata/v1.metadata.json" in after[0]
        assert server.snapshot() == after[0]

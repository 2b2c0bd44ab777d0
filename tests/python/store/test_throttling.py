"""A store that throttles slows the work down and loses nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = pa.table({"n": range(2000)})


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with ScriptedS3() as server:
        yield server


def _store(server: ScriptedS3) -> pds.Store:
    options = {**server.options(), "max_retries": "10", "retry_timeout": "60", "publish_lease": "3"}
    return pds.Store("s3://bucket/p", storage_options=options)


@pytest.mark.parametrize("seed", range(3))
def test_bursts_while_a_dataset_is_written_and_read(server: ScriptedS3, seed: int) -> None:
    chance = random.Random(seed)
    # A request is tried 11 times, and may be alone.
    faults = {n: "503" for burst in range(0, 400, 20) for n in range(burst, burst + chance.randrange(11))}
    server.restart(faults)
    ds = pds.ParquetDatasetStore(_store(server), max_rows_per_file=100, row_group_size=50)
    ds.write_dataset(ROWS, "a")
    ds.write_dataset(ROWS.slice(1), "a", overwrite=True)
    assert ds.read_dataset("a").equals(ROWS.slice(1))
    assert ds.scan_dataset("a").read_all().equals(ROWS.slice(1))
    ds.delete_dataset("a")
    assert server.snapshot() == {}
    store = ds.store
    assert isinstance(store, pds.Store)
    refused = sum(n in faults for n in range(len(server.seen)))
    assert refused > 0
    assert store.metrics()["retries"] == refused


def test_bursts_while_a_table_is_written(server: ScriptedS3) -> None:
    table = pds.Table.create(_store(server), "t", ROWS.schema)
    server.restart({n: "503" for burst in range(0, 200, 10) for n in range(burst, burst + 5)})
    for start in range(0, 2000, 500):
        table.append(ROWS.slice(start, 500))
    assert sorted(table.scan().to_pyarrow()["n"].to_pylist()) == list(range(2000))


@pytest.mark.parametrize("name", ["t/manifest/v00000002.json", "_latest_manifest"])
def test_a_conditional_write_is_throttled_more_often_than_is_tried_without_retries(
    server: ScriptedS3, name: str
) -> None:
    table = pds.Table.create(_store(server), "t", ROWS.schema)
    server.restart()
    rule = server.on("put", name, "503", times=5)
    result = table.append(ROWS)
    assert (result.version, len(rule.requests)) == (2, 5)
    assert table.scan().to_pyarrow().equals(ROWS)


def test_a_store_that_throttles_for_good(server: ScriptedS3) -> None:
    store = pds.Store("s3://bucket/p", storage_options={**server.options(), "max_retries": "2"})
    server.restart(dict.fromkeys(range(1000), "503"))
    with pytest.raises(pds.BackendUnavailable, match=r"503|SlowDown") as caught:
        store.read_bytes("a")
    assert "retries" in str(caught.value)

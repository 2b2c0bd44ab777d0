"""Many small updates, one after another: what is written in total, and how many runs are left to read."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

import pds

ORDERS, CUSTOMERS, UPDATES, CHANGED = 20_000, 2_000, 300, 100


def some_orders(keys: np.ndarray, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    customers = pa.array(random.integers(0, CUSTOMERS, len(keys)))
    amounts = pa.array(random.integers(1, 1000, len(keys)))
    return pa.table({"key": keys, "value": pa.StructArray.from_arrays([customers, amounts], ["customer", "amount"])})


def stored_manifest(store: pds.Store, pipeline: pds.Pipeline) -> bytes:
    return store.read_bytes(f"sums/manifest/v{pipeline.version:08}.json")


def most_runs(manifest: bytes) -> int:
    return max(len(node[table]) for node in json.loads(manifest)["nodes"] for table in ("content", "mappings"))


def test_a_small_update_of_values_that_compress_well_leaves_large_runs(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "sums")
    pipeline.source("texts", key=pa.int64(), value=pa.string())

    def write(rows: range) -> int:
        texts = pa.table({"key": pa.array(rows, pa.int64()), "value": ["a text that all rows have " * 8] * len(rows)})
        return pipeline.update(texts=pds.Changes(texts)).stages["texts"].bytes_written

    built = write(range(0, 600_000, 2))
    for at in range(5):
        assert write(range(at * 100_001, at * 100_001 + 200)) < built / 10


def test_small_updates_write_little_and_leave_few_runs(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "sums")
    order = pa.struct([("customer", pa.int64()), ("amount", pa.int64())])
    pipeline.source("orders", key=pa.int64(), value=order)
    pipeline.select("orders", key="customer", value="amount", name="amounts")
    pipeline.select("amounts", key="value % 200", value="value", name="by_amount")
    pipeline.update(orders=pds.Changes(some_orders(np.arange(ORDERS), 0)))
    written, changed, runs = 0, 0, 0
    for number in range(1, UPDATES + 1):
        keys = np.sort(np.random.default_rng(number).choice(ORDERS, CHANGED, replace=False))
        changes = some_orders(keys, number)
        changed += changes.nbytes
        at = memory_store.metrics()["bytes_written"]
        pipeline.update(orders=pds.Changes(changes))
        manifest = stored_manifest(memory_store, pipeline)
        # Manifests have a bound of their own.
        written += memory_store.metrics()["bytes_written"] - at - len(manifest)
        runs = max(runs, most_runs(manifest))
    assert runs <= 5
    assert written < 30 * changed, written / changed
    amounts = pipeline["orders"].read()["value"].combine_chunks().field("amount")
    assert sorted(pipeline["by_amount"].read()["value"].to_pylist()) == sorted(amounts.to_pylist())

"""Pieces are uploaded while the row group is encoded (`tests/rust/writes.rs`), and the write can fail meanwhile."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3

# A row group of the usual size.
pytestmark = pytest.mark.defaults

# 48 MiB in one row group, of numbers that do not compress; pieces have 8 MiB.
ROWS = 1 << 17
COLUMNS = 48


def _table() -> pa.Table:
    noise = np.random.default_rng(1).integers(0, 1 << 62, ROWS)
    return pa.table({f"c{i:02d}": pa.array(noise ^ i) for i in range(COLUMNS)})


def _verbs(server: ScriptedS3) -> list[str]:
    return [r.verb for r in server.seen if r.mutates and not r.is_probe]


def test_a_refused_piece_ends_a_write_that_is_still_encoding() -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket", storage_options=server.options() | {"max_retries": "0"})
        ds = pds.ParquetDatasetStore(store, compression="none")
        server.on("piece", "", "403")
        with pytest.raises(pds.PermissionDenied):
            ds.write_dataset(_table(), "a")
        assert "complete" not in _verbs(server)
        assert not server.bucket.uploads
        assert not server.bucket.objects


def test_what_left_early_is_read_back() -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket", storage_options=server.options())
        ds = pds.ParquetDatasetStore(store, compression="none")
        table = _table()
        ds.write_dataset(table, "a")
        assert _verbs(server).count("piece") >= COLUMNS // 8
        assert ds.verify_dataset("a").rows == ROWS
        assert ds.read_dataset("a").equals(table)

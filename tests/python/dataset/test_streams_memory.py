"""`memory_limit` binds for tables and for wide, nested and view columns; reads and checks take little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20

MEASURED = """
import gc, json, sys
import numpy as np, pyarrow as pa, pds

def peak():
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

def reset():
    gc.collect()
    open("/proc/self/clear_refs", "w").write("5")
    return peak()

url, what, options = json.loads(sys.argv[1])
if what == "foreign":
    import remote_store
    from remote_store.backends import LocalBackend
    store = remote_store.Store(LocalBackend(url.removeprefix("file://")))
else:
    store = pds.Store(url)
ds = pds.ParquetDatasetStore(store, **options)
noise = np.random.default_rng(1).random(1 << 17)
if what in ("table", "foreign"):
    rows = 1 << 18
    column = np.tile(noise, rows // len(noise))
    source = pa.table({f"c{i}": column + i for i in range(200)})
elif what == "views":
    texts = pa.array([f"{value:>4000}" for value in noise[: 1 << 14]], pa.string_view())
    batch = pa.record_batch({"t": texts})
    source = pa.RecordBatchReader.from_batches(batch.schema, iter([batch] * 16))
else:
    source = None
warm = pa.table({"n": noise})
ds.write_dataset(warm, "warm", overwrite=True)
before = reset()
if source is not None:
    ds.write_dataset(source, "a", overwrite=True)
elif what == "verify":
    ds.verify_dataset("a")
elif what == "scan":
    for batch in ds.scan_dataset("a"):
        pass
print(json.dumps(peak() - before))
"""


def _grown(root: Path, what: str, **options: Any) -> int:
    argument = json.dumps([root.as_uri(), what, options])
    done = subprocess.run([sys.executable, "-c", MEASURED, argument], check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout))


@pytest.mark.slow
def test_a_wide_table_is_written_within_its_limit(tmp_path: Path) -> None:
    # 400 MiB of numbers that do not compress; a row group of all rows would hold them all.
    assert _grown(tmp_path, "table", memory_limit=64 * MIB, compression="none") < 160 * MIB
    assert pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri())).verify_dataset("a").rows == 1 << 18


@pytest.mark.slow
def test_a_long_part_is_written_to_a_store_of_remote_store_piece_by_piece(tmp_path: Path) -> None:
    # Twice what our own stores take: each piece is copied for Python. Whole, the part would be 800 MiB.
    assert _grown(tmp_path, "foreign", memory_limit=64 * MIB, compression="none") < 320 * MIB
    assert (tmp_path / "a" / "data.parquet").stat().st_size > 400 * MIB
    assert pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri())).verify_dataset("a").rows == 1 << 18


@pytest.mark.slow
def test_views_are_charged_for_their_texts(tmp_path: Path) -> None:
    assert _grown(tmp_path, "views", memory_limit=64 * MIB, compression="none") < 160 * MIB


@pytest.mark.slow
def test_verify_and_scan_of_a_large_part_take_little(tmp_path: Path) -> None:
    batch = pa.record_batch({f"c{i}": pa.array(range(1 << 17), pa.int64()) for i in range(8)})
    source = pa.RecordBatchReader.from_batches(batch.schema, iter([batch] * 64))
    ds = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()), row_group_size=1 << 17, compression="none")
    ds.write_dataset(source, "a")
    assert (tmp_path / "a" / "data.parquet").stat().st_size > 200 * MIB
    assert _grown(tmp_path, "verify") < 96 * MIB
    assert _grown(tmp_path, "scan") < 160 * MIB


@pytest.mark.defaults
def test_a_wide_stream_has_few_row_groups(tmp_path: Path) -> None:
    column = pa.array(range(1000), pa.int64())
    batch = pa.record_batch({f"c{i}": column for i in range(1100)})
    source = pa.RecordBatchReader.from_batches(batch.schema, iter([batch] * 50))
    ds = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()))
    ds.write_dataset(source, "a")
    metadata = pq.ParquetFile(tmp_path / "a" / "data.parquet").metadata
    assert metadata.num_rows == 50_000
    assert metadata.num_row_groups <= 2


@pytest.mark.defaults
@pytest.mark.parametrize("data_type", ["list", "struct"])
def test_slices_of_nested_columns_are_charged_for_their_rows_only(memory_store: pds.Store, data_type: str) -> None:
    """A batch of lists or structs is handed on in slices: charged in full each, they end row groups early."""
    rows = 1 << 20
    values = pa.array(range(rows), pa.int64())
    if data_type == "list":
        nested: Any = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), values)
    else:
        nested = pa.StructArray.from_arrays([values], ["x"])
    batch = pa.record_batch({"c": nested})
    source = pa.RecordBatchReader.from_batches(batch.schema, iter([batch]))
    ds = pds.ParquetDatasetStore(memory_store, memory_limit=64 * MIB)
    ds.write_dataset(source, "a")
    content = pa.BufferReader(memory_store.read_bytes("a/data.parquet"))
    assert pq.ParquetFile(content).metadata.num_row_groups <= 3

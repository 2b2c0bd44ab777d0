"""Streams that nobody reads, many calls at once and many parts: none of them uses up threads or descriptors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"n": list(range(100))})
MANY = 600


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 names only


def test_streams_that_nobody_reads_hold_no_thread(memory_store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(memory_store, row_group_size=10)
    ds.write_dataset(ROWS, "a")
    table = pds.Table.create(memory_store, "t", ROWS.schema)
    for start in range(0, 100, 10):
        table.append(ROWS.slice(start, 10))
    streams = [ds.scan_dataset("a") for _ in range(MANY)]
    streams += [ds.scan_dataset("a", where=pc.field("n") >= 0) for _ in range(20)]
    streams += [table.scan().to_reader() for _ in range(MANY)]
    firsts = [stream.read_next_batch() for stream in streams]
    assert all(first["n"][0].as_py() == 0 for first in firsts)
    assert _threads() < MANY // 2
    assert ds.read_dataset("a").equals(ROWS)
    assert ds.verify_dataset("a").rows == 100
    # Whoever comes back finds the rest.
    for first, stream in zip(firsts, streams, strict=True):
        rest = stream.read_all()
        assert first.num_rows + rest.num_rows == 100


def test_a_merge_of_many_streams(memory_store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(memory_store, row_group_size=10)
    ds.write_dataset(ROWS, "a")
    streams = [ds.scan_dataset("a") for _ in range(MANY)]
    for batches in zip(*streams, strict=True):
        assert all(batch.equals(batches[0]) for batch in batches)


def test_a_thousand_calls_at_once(memory_store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(memory_store, row_group_size=10)
    ds.write_dataset(ROWS, "a")
    start, done = threading.Barrier(1001), []

    def call(number: int) -> None:
        start.wait()
        if number % 10:
            done.append(ds.read_dataset("a").num_rows)
        else:
            # A write whose input is itself a read.
            done.append(ds.write_dataset(ds.scan_dataset("a"), f"copies/{number}").row_count)

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(1000)]
    for thread in threads:
        thread.start()
    start.wait()
    for thread in threads:
        thread.join(60)
    assert done == [100] * 1000


FEW_DESCRIPTORS = """
import json, resource, sys
import pyarrow as pa, pds
root, parts = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
ds = pds.ParquetDatasetStore(pds.Store(root), max_rows_per_file=1)
table = pa.table({"n": list(range(parts)), "s": [str(n) for n in range(parts)]})
ds.write_dataset(table, "a")
streams = [ds.scan_dataset("a") for _ in range(3)]
assert ds.read_dataset("a").equals(table)
assert ds.read_dataset("a", columns=["s"]).num_rows == parts
assert ds.scan_dataset("a").read_all().equals(table)
assert ds.verify_dataset("a").parts == parts
manifest = ds.read_manifest("a")
index = ds.index_parts("a", manifest)
assert ds.read_part("a", manifest, parts - 1, part_index=index).read_all()["n"].to_pylist() == [parts - 1]
assert all(stream.read_all().num_rows == parts for stream in streams)
print(len(index))
"""


@pytest.mark.parametrize("parts", [400, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.soak])])
def test_more_parts_than_descriptors(tmp_path: Path, parts: int) -> None:
    argument = json.dumps([tmp_path.as_uri(), parts])
    command = [sys.executable, "-c", FEW_DESCRIPTORS, argument]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) == parts


def test_a_dataset_that_is_replaced_while_its_files_are_not_open(tmp_path: Path) -> None:
    ds = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()), max_rows_per_file=1)
    table = pa.table({"n": list(range(200))})
    ds.write_dataset(table, "a")
    stream = ds.scan_dataset("a")
    found = [stream.read_next_batch()]
    ds.write_dataset(pa.table({"n": [-1] * 200}), "a", overwrite=True)
    with pytest.raises(pds.DatasetIncomplete, match="replaced"):
        found.extend(stream)
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(len(found)))

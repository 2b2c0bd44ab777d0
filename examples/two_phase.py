"""One dataset by many processes: each prepares parts that nobody sees, one publishes them all.

This is what ``pds.spark`` does with its tasks. A process that dies, or a part that is prepared
twice, changes nothing: only what is handed to ``publish`` becomes visible, all of it at once.
"""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
from pathlib import Path

import pyarrow as pa

import pds

SCHEMA = pa.schema([("task", pa.int64()), ("number", pa.int64())])


def prepare(write: pds.DatasetWrite, task: int) -> list[pds.StagedPart]:
    """What one process does; the parts it sends back are small, the data stays in the store."""
    numbers = range(task * 1000, task * 1000 + 1000)
    table = pa.table([[task] * 1000, numbers], schema=SCHEMA)
    return write.prepare(table, task=task)


def main() -> None:
    """Prepare in four processes, abort what is there twice, publish the rest."""
    with tempfile.TemporaryDirectory() as folder:
        datasets = pds.ParquetDatasetStore(pds.Store(Path(folder).as_uri()))
        write = datasets.begin_write("numbers", run_id="run-1")

        with multiprocessing.get_context("spawn").Pool(4) as pool:
            by_task = pool.map(functools.partial(prepare, write), range(8))
        again = prepare(write, 3)
        print(f"visible before publish: {datasets.dataset_exists('numbers')}")

        write.abort(again)
        manifest = write.publish([part for parts in by_task for part in parts], SCHEMA)
        print(f"published {manifest.row_count} rows: {manifest.parts}")
        numbers = datasets.read_dataset("numbers")["number"].to_pylist()
        print(f"in the order of the tasks: {numbers == list(range(8000))}")


if __name__ == "__main__":
    main()

"""A streaming query that is killed at any moment, and started again, delivers each row once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
COMMITS, ROWS = 16, 5

QUERY = textwrap.dedent("""
    import sys
    from pyspark.sql import SparkSession
    root = sys.argv[1]
    settings = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
                "spark.sql.warehouse.dir": root + "/warehouse", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    source = spark.readStream.format("pds").option("startingVersion", 1).option("maxFilesPerTrigger", 2)
    source = source.option("maxBytesPerTrigger", "1g")
    stream = source.load(f"file://{root}/source").writeStream.format("pds").trigger(availableNow=True)
    query = stream.option("checkpointLocation", root + "/checkpoint").start(f"file://{root}/sink")
    query.awaitTermination()
    spark.stop()
""")


@contextlib.contextmanager
def running(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The query in a process group of its own, which is killed at the end with all its processes."""
    process = subprocess.Popen([sys.executable, "-c", QUERY, str(root)], start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_query_that_is_killed_delivers_each_row_once(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    source, sink = pds.Table.create(store, "source", SCHEMA), pds.Table.create(store, "sink", SCHEMA)
    for number in range(COMMITS):
        source.append(pa.table({"id": range(number * ROWS, number * ROWS + ROWS)}, SCHEMA))

    def batches(folder: str) -> int:
        path = tmp_path / "checkpoint" / folder
        return sum(1 for file in path.iterdir() if file.name.isdecimal()) if path.exists() else 0

    # What a batch leaves one after the other; the query dies as soon as it sees one more, or a little later.
    moments: list[tuple[Callable[[], int], float]] = [
        (lambda: batches("offsets"), 0.0),
        (lambda: sink.refresh().version, 0.1),
        (lambda: batches("commits"), 0.0),
        (lambda: len(list((tmp_path / "sink" / "data").rglob("*.parquet"))), 0.0),
    ]
    killed = 0
    for count, delay in moments:
        before = count()
        with running(tmp_path) as process:
            while process.poll() is None and count() == before:
                time.sleep(0.001)
            time.sleep(delay)
            killed += process.poll() is None
        left = sink.refresh().scan(["id"]).to_pyarrow()["id"].to_pylist()
        assert sorted(left) == list(range(len(left))), "whole commits, each once"
    assert killed == len(moments), "the query ended before it was killed"
    with running(tmp_path) as process:
        assert process.wait() == 0
    assert sorted(sink.refresh().scan(["id"]).to_pyarrow()["id"].to_pylist()) == list(range(COMMITS * ROWS))
    assert sink.version <= 1 + COMMITS // 2 + 1

"""kill -9 at any moment of an overwrite.

After it the old or the new dataset is there, whole, and the next writer leaves a clean house.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers import S3Server

pytestmark = pytest.mark.sampled(2)

KEY = "a"
# After the death of a publisher others wait for half of it.
LEASE = {"publish_lease": "1.2"}
ROWS = 3000
PER_FILE = 1000
# The gate has time for few.
KILLS = 15 if "PDS_SOAK" in os.environ else 6

# Overwrites one dataset for ever, each time with the next version, and tells of each.
WRITER = """
import json, sys
import pyarrow as pa
import pds
url, options, version, rows, per_file = json.loads(sys.argv[1])
ds = pds.ParquetDatasetStore(pds.Store(url, storage_options=options), max_rows_per_file=per_file)
print("ready", flush=True)
while True:
    version += 1
    print(version, flush=True)
    table = pa.table({"version": [version] * rows, "row": list(range(rows))})
    ds.write_dataset(table, "a", overwrite=True)
"""


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def shared(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """The URL of an empty store that other processes reach too, and its options."""
    store: pds.Store = request.getfixturevalue(f"{request.param}_store")
    options = request.getfixturevalue("s3_server").options() | LEASE if request.param == "s3" else {}
    return store.url, options


def _version_of(table: pa.Table) -> int:
    """The version of a whole dataset; a mixture fails."""
    assert table["row"].to_pylist() == list(range(ROWS))
    (version,) = set(table["version"].to_pylist())
    return int(version)


def _start(url: str, options: dict[str, str], version: int, **more: Any) -> subprocess.Popen[str]:
    arguments = [url, options, version, more.get("rows", ROWS), more.get("per_file", PER_FILE)]
    process = subprocess.Popen([sys.executable, "-c", WRITER, json.dumps(arguments)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _kill(process: subprocess.Popen[str]) -> int:
    """Kill it; the version it was writing."""
    process.kill()
    assert process.stdout is not None
    told = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    return int(told[-1]) if told else 0


def _expected_files() -> set[str]:
    parts = {f"part-{number:05}.parquet" for number in range(ROWS // PER_FILE)}
    return {"manifest.json", "_SUCCESS", *parts}


def _rounds(url: str, options: dict[str, str], seed: int) -> Iterator[pds.ParquetDatasetStore]:
    """Kill writers at random moments; after each the dataset has been looked at and replaced."""
    chance = random.Random(seed)
    store = pds.Store(url, storage_options=options)
    ds = pds.ParquetDatasetStore(store, max_rows_per_file=PER_FILE)
    ds.write_dataset(pa.table({"version": [0] * ROWS, "row": list(range(ROWS))}), KEY)
    version = 0
    for _ in range(KILLS):
        process = _start(url, options, version)
        time.sleep(chance.uniform(0, 0.25))
        writing = max(_kill(process), version)
        ds.clean_dataset(KEY)
        found = _version_of(ds.read_dataset(KEY))
        assert found in {max(writing - 1, version), writing}, f"seed {seed}"
        version = writing + 1
        table = pa.table({"version": [version] * ROWS, "row": list(range(ROWS))})
        ds.write_dataset(table, KEY, overwrite=True)
        assert _version_of(ds.read_dataset(KEY)) == version
        yield ds


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_local_overwrites(tmp_path: Path, seed: int) -> None:
    for _ in _rounds((tmp_path / "store").as_uri(), {}, seed):
        files = {str(p.relative_to(tmp_path / "store")) for p in tmp_path.rglob("*") if p.is_file()}
        assert files == {f"{KEY}/{name}" for name in _expected_files()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_s3_overwrites(s3_server: S3Server, s3_prefix: str, seed: int) -> None:
    for _ in _rounds(s3_server.url(s3_prefix), s3_server.options() | LEASE, seed):
        keys = set(s3_server.keys(s3_prefix))
        assert keys == {f"{s3_prefix}/{KEY}/{name}" for name in _expected_files()}


@pytest.mark.slow
def test_a_reader_alone_sees_the_old_or_the_new_or_says_so(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    ds = pds.ParquetDatasetStore(pds.Store(url), max_rows_per_file=PER_FILE)
    ds.write_dataset(pa.table({"version": [0] * ROWS, "row": list(range(ROWS))}), KEY)
    for seed in range(KILLS):
        process = _start(url, {}, 0)
        time.sleep(random.Random(seed).uniform(0, 0.2))
        _kill(process)
        try:
            _version_of(ds.read_dataset(KEY))
        except pds.DatasetIncomplete:
            ds.clean_dataset(KEY)
            _version_of(ds.read_dataset(KEY))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["hold", "hold after"])
def test_killed_at_every_request(moment: str) -> None:
    """Where a loop of chances could miss one: each request of an overwrite in turn."""
    with ScriptedS3() as server:
        url, options = "s3://bucket/p", server.options() | LEASE
        ds = pds.ParquetDatasetStore(pds.Store(url, storage_options=options), max_rows_per_file=PER_FILE)
        old = pa.table({"version": [7] * ROWS, "row": list(range(ROWS))})
        ds.write_dataset(old, KEY)
        before = server.snapshot()
        server.restart()
        ds.write_dataset(old, KEY, overwrite=True)
        requests = [str(request) for request in server.seen]
        for number, request in enumerate(requests):
            server.restore(before)
            server.restart({number: moment})
            process = _start(url, options, 7)
            assert server.held.wait(30), request
            _kill(process)
            server.restart()
            ds.clean_dataset(KEY)
            assert _version_of(ds.read_dataset(KEY)) in {7, 8}, request
            ds.write_dataset(old, KEY, overwrite=True)
            assert ds.read_dataset(KEY).equals(old), request
            names = {key.rpartition("/")[2] for key in server.snapshot()}
            assert names == _expected_files(), request


@pytest.mark.slow
def test_a_large_write_that_was_killed(shared: tuple[str, dict[str, str]]) -> None:
    url, options = shared
    ds = pds.ParquetDatasetStore(pds.Store(url, storage_options=options))
    old = pa.table({"version": [7] * ROWS, "row": list(range(ROWS))})
    ds.write_dataset(old, KEY)
    before = sorted(info.path for info in ds.store.list_files("", recursive=True))
    for seed in range(6):
        process = _start(url, options, 7, rows=2_000_000, per_file=None)
        time.sleep(random.Random(seed).uniform(0.2, 0.8))
        _kill(process)
        ds.clean_dataset(KEY)
        found = ds.read_dataset(KEY)
        assert found.equals(old) or found.num_rows == 2_000_000
        ds.write_dataset(old, KEY, overwrite=True)
        assert sorted(info.path for info in ds.store.list_files("", recursive=True)) == before


# Prepares parts, which are uploads, and waits for its end.
PREPARER = """
import json, sys, time
import numpy as np
import pyarrow as pa
import pds
url, options = json.loads(sys.argv[1])
ds = pds.ParquetDatasetStore(pds.Store(url, storage_options=options), max_rows_per_file=100_000)
prepared = ds.begin_write("a").prepare(pa.table({"x": np.random.default_rng(1).random(300_000)}))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.s3
def test_uploads_of_a_killed_writer_are_cleaned_away(s3_server: S3Server, s3_prefix: str) -> None:
    url, options = s3_server.url(s3_prefix), s3_server.options() | LEASE
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARER, json.dumps([url, options])], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    ds = pds.ParquetDatasetStore(pds.Store(url, storage_options=options))
    assert ds.clean_dataset(KEY) == 0, "they are young"
    _kill(process)
    assert ds.clean_dataset(KEY, older_than=0) == 3
    assert ds.clean_dataset(KEY, older_than=0) == 0
    assert s3_server.keys(s3_prefix) == []


# Cleans a dataset, sparing nothing that is only old.
CLEANER = """
import sys
import pds
pds.ParquetDatasetStore(pds.Store(sys.argv[1])).clean_dataset("a", older_than=0)
"""


def test_clean_does_not_touch_a_living_writer(tmp_path: Path) -> None:
    """Another process cleans while a part waits on disk for the rows after it."""
    url = (tmp_path / "store").as_uri()
    ds = pds.ParquetDatasetStore(pds.Store(url), max_rows_per_file=PER_FILE, compression="none")
    noise = [random.Random(n).randbytes(1000) for n in range(2 * PER_FILE)]
    batches = pa.table({"noise": noise}).to_batches(max_chunksize=PER_FILE // 2)
    hidden: list[set[Path]] = []

    def staged() -> set[Path]:
        return {path for path in (tmp_path / "store").rglob("*") if "/.pds-" in str(path)}

    def stream() -> Iterator[pa.RecordBatch]:
        yield from batches[:3]
        limit = time.monotonic() + 30
        while not staged():
            assert time.monotonic() < limit, "nothing was staged"
            time.sleep(0.01)
        hidden.append(staged())
        subprocess.run([sys.executable, "-c", CLEANER, url], check=True)
        hidden.append(staged())
        yield from batches[3:]

    ds.write_dataset(pa.RecordBatchReader.from_batches(batches[0].schema, stream()), KEY)
    before, after = hidden
    assert before
    assert before <= after
    assert ds.read_dataset(KEY)["noise"].to_pylist() == noise
    assert not staged()

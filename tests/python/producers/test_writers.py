"""Many writers of one pipeline: processes that are killed while another one compacts and vacuums; a full disk."""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from independent_pipeline import IndependentPipeline
from killed_writers import environment, kill, start
from producers.pipelines import plain_rows
from producers.words import count, declare_counts, declare_fed_counts, split_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers import S3Server

PROCESSES = 3
LIVES = 3
KEYS = 20
NOW = dt.timedelta(0)

# Changes its own keys for ever: says what it begins and what was acknowledged. Every fifth write deletes its key, and
# every third one is looked at before it is committed.
WRITER = """
import json, os, sys
import pds
from producers.words import declare_counts
url, options, writer, number, keys = json.loads(sys.argv[1])
p = declare_counts(pds.Store(url, storage_options=options), commit_timeout=60.0)
def say(end):
    os.write(1, f"{end} {number}\\n".encode())  # at once: a line that was begun is a whole one
def commit_preview(changes, key):
    try:
        p.preview(phrases=changes, idempotency_key=key).commit()
    except (pds.CommitConflict, pds.VersionExpired):
        return False
    return True
while True:
    key = writer * keys + number % keys
    text = f"w{writer} n{number} the {'red' if number % 2 else 'green'}"
    changes = pds.Changes(deletes=[key]) if number % 5 == 4 else pds.Changes([(key, text)])
    say("begin")
    key = f"{writer}-{number}"
    if number % 3 or not commit_preview(changes, key):
        p.update(phrases=changes, idempotency_key=key)
    say("done")
    number += 1
"""


def phrase(writer: int, number: int) -> str | None:
    """What a write leaves of its key."""
    return None if number % 5 == 4 else f"w{writer} n{number} the {'red' if number % 2 else 'green'}"


def is_possible(found: str | None, writer: int, key: int, ends: dict[int, str]) -> bool:
    """Whether the last write of a key that was acknowledged left this, or one that was begun after it."""
    possible: list[str | None] = [None]
    for number in sorted(ends):
        if number % KEYS == key:
            possible = [phrase(writer, number)] + (possible if ends[number] == "begin" else [])
    return found in possible


def commits(pipeline: pds.Pipeline, store: pds.Store, writer: int) -> set[str]:
    """The newest idempotency keys of a writer."""
    pointer = json.loads(store.read_bytes(f"{pipeline.path}/_latest_manifest"))
    manifest = json.loads(store.read_bytes(f"{pipeline.path}/{pointer['manifest']}"))
    return {key for key in manifest["transactions"] if key.startswith(f"{writer}-")}


@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_processes_that_are_killed_lose_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, seed: int
) -> None:
    """Each life begins with the write that the last one may not have ended, by its idempotency key."""
    store: pds.Store = request.getfixturevalue(f"{place}_store")
    server: S3Server | None = request.getfixturevalue("s3_server") if place == "s3" else None
    options = server.options() if server else {}
    chance = random.Random(seed)
    pipeline = declare_counts(store)
    pipeline.update(phrases=pds.Changes([(-1, "the first")]))
    ends: dict[int, dict[int, str]] = {writer: {} for writer in range(PROCESSES)}
    numbers = dict.fromkeys(ends, 0)
    tagged: list[tuple[Any, ...]] = []
    for _ in range(LIVES):
        writers = {w: start(WRITER, store.url, options, w, numbers[w], KEYS) for w in ends}
        enough = pipeline.version + 4 * PROCESSES
        begin = time.monotonic()
        committed = {w: commits(pipeline, store, w) for w in ends}
        # However slow the machine is, each life sees some writes, and the end of one of each writer: a writer that has
        # committed twice was told of the first.
        while (
            time.monotonic() < begin + 3
            or pipeline.version < enough
            or any(len(commits(pipeline, store, w) - committed[w]) < 2 for w in ends)
        ):
            time.sleep(chance.uniform(0.1, 0.8))
            pipeline.compact(min_delta=chance.choice([0, 0.25]))
            pipeline.vacuum(NOW)
            # A version that has a tag keeps its rows until the next pass.
            if tagged:
                assert plain_rows(pipeline.as_of("kept")["counts"].read()) == tagged
                pipeline.untag("kept")
                tagged = []
            else:
                pipeline.tag("kept", pipeline.version)
                tagged = plain_rows(pipeline.as_of("kept")["counts"].read())
            assert time.monotonic() < begin + 120, "a writer is not let to its end"
            assert all(process.poll() is None for process in writers.values()), "a writer failed"
        for writer, process in writers.items():
            time.sleep(chance.uniform(0, 0.05))
            told, last = kill(process)
            ends[writer] |= told
            numbers[writer] = max(numbers[writer], last)
    # Another writer goes on where they were stopped.
    pipeline.update(phrases=pds.Changes([(-2, "the last")]))
    content = dict(plain_rows(pipeline["phrases"].read()))
    assert (content.pop(-1), content.pop(-2)) == ("the first", "the last")
    for writer, told in ends.items():
        assert sum(end == "done" for end in told.values()) >= LIVES, "the others did not let it come to its end"
        for key in range(KEYS):
            found = content.pop(writer * KEYS + key, None)
            assert is_possible(found, writer, key, told), f"{found!r} of {writer}, {key} after {told}"
    assert content == {}
    assert_computed(store, pipeline)
    if tagged:
        pipeline.untag("kept")
    pipeline.vacuum(NOW)
    pipeline.vacuum(NOW)
    assert_no_strays(store, pipeline)
    assert place != "local" or not list((tmp_path / "store").rglob(".pds-*"))


# Reads what is new in a table for ever.
REFRESHER = """
import json, os, sys
import pds
from producers.words import declare_fed_counts
url, = json.loads(sys.argv[1])
p = declare_fed_counts(pds.Store(url), commit_timeout=60.0)
number = 0
while True:
    if p.refresh() is not None:
        number += 1
        os.write(1, f"done {number}\\n".encode())
"""


@pytest.mark.slow
def test_processes_that_are_killed_while_they_refresh_miss_nothing(local_store: pds.Store, tmp_path: Path) -> None:
    """The table is appended to, changed, compacted, restored and vacuumed meanwhile."""
    chance = random.Random(1)
    schema = pa.schema([("id", pa.int64()), ("phrase", pa.string())])
    table = pds.Table.create(local_store, "phrases", schema, key="id")
    pipeline = declare_fed_counts(local_store)
    pipeline.refresh()
    refreshed = 0
    for life in range(LIVES):
        processes = [start(REFRESHER, local_store.url) for _ in range(PROCESSES)]
        # Vacuums make versions, too, which say nothing about the processes.
        begin, first, ours = time.monotonic(), pipeline.version, 0
        while time.monotonic() < begin + 2 or pipeline.version < first + ours + 6:
            keys = chance.sample(range(KEYS), 3)
            table.upsert(
                pa.table({"id": keys, "phrase": [f"the {n} {chance.choice('abc')}" for n in keys]}, schema=schema)
            )
            if chance.random() < 0.3:
                table.delete(f"id % 7 = {chance.randrange(7)}")
            if chance.random() < 0.2:
                table.restore(chance.choice([entry["version"] for entry in table.history()]))
            if chance.random() < 0.3:
                table.vacuum(NOW)
                version = pipeline.version
                pipeline.compact(min_delta=0)
                pipeline.vacuum(NOW)
                ours += pipeline.version - version
            assert time.monotonic() < begin + 120, "nothing is read"
            assert all(process.poll() is None for process in processes), f"a process failed in life {life}"
        for process in processes:
            time.sleep(chance.uniform(0, 0.05))
            refreshed += len(kill(process)[0])
    assert refreshed >= LIVES
    pipeline.refresh()
    assert pipeline.refresh() is None
    rows = table.refresh().scan(["id", "phrase"]).to_pyarrow().to_pylist()
    assert plain_rows(pipeline["phrases"].read()) == sorted((row["id"], row["phrase"]) for row in rows)
    assert_computed(local_store, pipeline)
    pipeline.vacuum(NOW)
    pipeline.vacuum(NOW)
    assert_no_strays(local_store, pipeline)
    assert not list((tmp_path / "store").rglob(".pds-*"))


def assert_computed(store: pds.Store, pipeline: pds.Pipeline) -> None:
    """The stages have what their functions make of all rows; an independent reader finds the same."""
    assert pipeline.check().ok
    words = sorted(
        (word, n) for n, text in plain_rows(pipeline["phrases"].read()) for word, n in split_words(n, [text])
    )
    assert [(word, n) for word, n, _ in plain_rows(pipeline["words"].read())] == words
    groups: dict[str, list[int]] = {}
    for word, n in words:
        groups.setdefault(word, []).append(n)
    counts = sorted(
        ((n, word) for word, keys in groups.items() for n, _ in count(word, keys)), key=lambda r: (-r[0], r[1])
    )
    found = [(n, word) for n, word, _ in plain_rows(pipeline["counts"].read())]
    assert found == counts
    independent = IndependentPipeline(lambda path: store.read_bytes(f"p/{path}"))
    for name in ("phrases", "words", "counts"):
        assert independent.content(name) == plain_rows(pipeline[name].read())


def assert_no_strays(store: pds.Store, pipeline: pds.Pipeline) -> None:
    """The files of runs are those that the newest version names, or writers left them since the last vacuum."""
    independent = IndependentPipeline(lambda path: store.read_bytes(f"p/{path}"))
    named = {
        f"p/{file['name']}"
        for node in independent.nodes.values()
        for run in [*node["content"], *node["mappings"], *filter(None, [node["update"]])]
        for file in run["files"]
    }
    there = {str(info.path) for info in store.list_files("p/run", recursive=True)}
    assert named <= there
    floor = independent.manifest["gc_floor"]
    assert [path for path in there - named if int(path.rsplit("/b", 1)[1].split("-")[0]) < floor] == []


def test_a_long_update_is_not_overtaken_for_ever(store: pds.Store) -> None:
    """Short updates that follow one another let it come to its end once it has lost to one of them."""
    plans: list[int] = []

    def slow(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
        if key < 0:
            plans.append(key)
            time.sleep(0.5)
        return split_words(key, phrases)

    def open_pipeline() -> pds.Pipeline:
        pipeline = pds.Pipeline(store, "p", commit_timeout=20.0)
        phrases = pipeline.source("phrases", key=pa.int64(), value=pa.string())
        pipeline.producer(phrases, key=pa.string(), value=pa.int64(), name="words")(slow)
        return pipeline

    open_pipeline().update(phrases=pds.Changes([(0, "the first")]))
    stop = threading.Event()

    def write(writer: int) -> int:
        mine, number = open_pipeline(), 0
        while not stop.is_set():
            number += 1
            mine.update(phrases=pds.Changes([(writer * 1000 + number, f"the word {number}")]))
        return number

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(write, writer) for writer in (1, 2)]
        try:
            time.sleep(0.2)
            open_pipeline().update(phrases=pds.Changes([(-1, "a long one")]))
            now = open_pipeline().version
            deadline = time.monotonic() + 30
            while open_pipeline().version < now + 4:
                assert time.monotonic() < deadline, "nobody goes on"
        finally:
            stop.set()
        numbers = [other.result() for other in others]
    assert len(plans) <= 3, "it lost more than one race after it held the lease"
    content = dict(plain_rows(open_pipeline()["phrases"].read()))
    assert len(content) == 2 + sum(numbers)
    assert not store.is_file("p/_update_lease")


# A file of more than so many bytes fails as on a full disk; only what is set aside is on the disk.
FULL = """
import resource, sys
import pyarrow as pa
import pds
from producers.words import declare_counts
store = pds.Store("memory://")
p = declare_counts(store, memory_limit=16 << 20)
p.update(phrases=pds.Changes([(1, "the first")]))
before = sorted(str(info.path) for info in store.list_files("", recursive=True))
ROWS = 200_000
values = [f"w{n % 1000}" + " " * 100 for n in range(ROWS)]
rows = pa.table({"key": pa.array(range(ROWS, 0, -1)), "value": values})
def update():
    if sys.argv[1] == "preview":
        p.preview(phrases=pds.Changes(rows)).commit()
    else:
        p.update(phrases=pds.Replace(rows) if sys.argv[1] == "all rows" else pds.Changes(rows))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
try:
    update()
except pds.RemoteStoreError as error:
    print(type(error).__name__, error, flush=True)
else:
    sys.exit("the disk was not used")
after = sorted(str(info.path) for info in store.list_files("", recursive=True))
assert after == before, (before, after)
assert p.version == 1 and p["phrases"].read().num_rows == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
update()
assert p["phrases"].read().num_rows == ROWS and p.check().ok
"""


@pytest.mark.parametrize("how", ["changes", "all rows", "preview"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, how: str) -> None:
    """An update that cannot set rows aside says where, changes nothing, and is done once there is room."""
    folder = tmp_path / "spilled"
    folder.mkdir()
    command, variables = [sys.executable, "-c", FULL, how], environment(TMPDIR=str(folder))
    run = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert run.returncode == 0, run.stderr
    assert f"sort spill to {folder} failed" in run.stdout, run.stdout
    assert "free disk space" in run.stdout
    assert list(folder.iterdir()) == []


# The first call of a process starts its threads. Root has as many as it wants.
NO_THREADS = """
import os, resource, sys
import pds
from producers.words import declare_counts
is_root = os.getuid() == 0
store = pds.Store("memory://")
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
if is_root:
    os.setresuid(65534, 65534, 0)
resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
try:
    store.is_file("a")
except pds.RemoteStoreError as error:
    print(type(error).__name__, error, error.hint, flush=True)
else:
    sys.exit("there were threads")
resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
if is_root:
    os.setresuid(0, 0, 0)
assert declare_counts(store).update(phrases=pds.Changes([(1, "the first")])).version == 1
"""


def test_a_process_that_gets_no_thread_says_so() -> None:
    """Then nothing was done, and the process works as soon as there are threads."""
    command = [sys.executable, "-c", NO_THREADS]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "no thread for this call" in run.stdout, run.stdout
    assert "ulimit -u" in run.stdout, run.stdout

"""What the result of an update says that each stage read, compared with what the server sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import pds
from fault_runs import PATIENT
from producers.engines import RepeatingEngine
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pds.producers.results import StageResult

INT = pa.int64()
ROWS = 20_000
# Two graphs that share nothing, in one pipeline.
GRAPHS = {"left": ("numbers", "sevens", "sums"), "right": ("others", "copies")}


class Reads(NamedTuple):
    requests: int
    bytes: int

    @classmethod
    def of(cls, stages: Iterable[StageResult]) -> Reads:
        results = list(stages)
        return cls(sum(one.read_requests for one in results), sum(one.bytes_read for one in results))


def copy_rows(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
    for value in values:
        yield key // 10, value


def declare(store: pds.Store, engine: Any = None) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "p", engine=engine)
    pipeline.source("numbers", key=INT, value=INT)
    pipeline.select("numbers", key="key % 700", name="sevens")
    pipeline.aggregate("sevens", aggregates={"sum": ("value", "sum")}, name="sums")
    pipeline.source("others", key=INT, value=INT, skip_unchanged=True)
    pipeline.producer("others", key=INT, value=INT, name="copies")(copy_rows)
    return pipeline


def some_rows(keys: Iterable[int], seed: int) -> pa.Table:
    chosen = np.array(list(keys))
    values = np.random.default_rng(seed).integers(0, 2**31, len(chosen))
    return pa.table({"key": chosen, "value": values})


def build(store: pds.Store) -> None:
    pipeline = declare(store)
    pipeline.update({name: pds.Changes(some_rows(range(ROWS), 1)) for name in ("numbers", "others")})
    pipeline.update({name: pds.Changes(some_rows(range(5, ROWS, 5000), 2)) for name in ("numbers", "others")})


def tables_of_files(pipeline: pds.Pipeline) -> dict[str, tuple[str, str]]:
    """The source or stage, and the table, of each stored file."""
    nodes = json.loads(pipeline._open().manifest())["nodes"]
    tables = {
        file["name"]: (node["name"], table)
        for node in nodes
        for table in ("content", "mappings")
        for run in node[table]
        for file in run["files"]
    }
    assert len({name for name, _ in tables.values()}) == 5
    return tables


def sent(server: ScriptedS3, is_counted: Callable[[str], bool]) -> Reads:
    """What was read of files of runs since the last restart of the server."""
    events = [event for event in server.log if event.request.method in {"GET", "HEAD"} and "/run/" in event.request.key]
    counted = [event for event in events if is_counted("run/" + event.request.key.partition("/run/")[2])]
    assert all(event.answer.is_success for event in counted)
    return Reads(len(counted), sum(len(event.answer.body) for event in counted if event.request.method == "GET"))


CHANGES = [
    pytest.param({"numbers": (3, 4000, 9001, 15_000)}, id="left"),
    pytest.param({"others": (7, 8, 12_345)}, id="right"),
    pytest.param({"numbers": (3, 4000, 9001), "others": (7, 8, 12_345)}, id="both"),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_each_stage_reads_what_the_server_sent_for_it(changed: dict[str, tuple[int, ...]]) -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/lake", server.options("builder") | PATIENT)
        build(store)
        tables = tables_of_files(declare(store))
        # A process that knows nothing of the store.
        pipeline = declare(pds.Store("s3://bucket/lake", server.options("updater") | PATIENT))
        server.restart()
        result = pipeline.update({name: pds.Changes(some_rows(keys, 3)) for name, keys in changed.items()})
        for graph in GRAPHS.values():
            expected = sent(server, lambda file, names=graph: tables[file][0] in names)
            assert Reads.of(result.stages[name] for name in graph) == expected
            assert (expected.bytes > 0) == (graph[0] in changed)
        # Nobody else reads the key mappings of a stage, or the rows of what it does not feed.
        for name in ("sevens", "copies", "sums"):
            mappings = sent(server, lambda file, name=name: tables[file] == (name, "mappings"))
            assert mappings.bytes <= result.stages[name].bytes_read
        assert result.requests > sum(stage.read_requests for stage in result.stages.values())


def test_what_is_opened_ahead_may_be_missing() -> None:
    """Rows that are there already change no key, so nothing is looked up behind their source."""
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/lake", server.options("builder") | PATIENT)
        build(store)
        missing = [file for file, (name, _) in tables_of_files(declare(store)).items() if name == "copies"]
        assert missing
        for file in missing:
            store.delete(f"p/{file}")
        pipeline = declare(pds.Store("s3://bucket/lake", server.options("updater") | PATIENT))
        result = pipeline.update(others=pds.Changes(some_rows(range(ROWS), 1).slice(7, 1)))
        assert (result.version, result.stages["others"].keys_out) == (3, 0)


def test_what_tasks_read_is_counted() -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/lake", server.options("builder") | PATIENT)
        build(store)
        engine = RepeatingEngine(task_bytes=1 << 16, repeats=False)
        pipeline = declare(pds.Store("s3://bucket/lake", server.options("updater") | PATIENT), engine)
        server.restart()
        result = pipeline.update(numbers=pds.Changes(some_rows(range(0, ROWS, 100), 3)))
        assert result.stages["sevens"].tasks > 1
        assert result.stages["sevens"].bytes_read > 0
        assert Reads.of(result.stages.values()) == sent(server, lambda _: True)


def test_local_files_are_read_without_requests(local_store: pds.Store) -> None:
    build(local_store)
    pipeline = declare(pds.Store(local_store.url))
    tables = tables_of_files(pipeline)
    sizes = {str(info.path).removeprefix("p/"): info.size for info in local_store.list_files("p/run", recursive=True)}
    read = {("others", "content"), ("copies", "content"), ("copies", "mappings")}
    stage = pipeline.rebuild("copies").stages["copies"]
    assert stage.bytes_read > 0.8 * sum(sizes[file] for file, table in tables.items() if table in read)
    assert stage.read_requests == 0

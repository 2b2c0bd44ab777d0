"""Stages that tasks of an engine compute: what they write, what is left of it, and who wins."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from pds.producers import attached
from pds.producers.engine import SourceRows
from producers.engines import RepeatingEngine, Spread
from producers.model import Changes, Model, Source, Stage
from producers.pipelines import compare, declare, plain_rows, rows_of
from producers.words import split_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pds.producers.engine import BoundEngine

pytestmark = pytest.mark.sampled(2)

INT, TEXT = pa.int64(), pa.string()
PAIR = pa.schema([("key", INT), ("value", TEXT)])


@pytest.fixture(autouse=True)
def engine() -> str:
    """Each test has an engine of its own."""
    return "own"


def words(
    store: pds.Store, engine: RepeatingEngine | None, function: Callable[..., Any] = split_words, **options: Any
) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "words", engine=engine)
    pipeline._page_rows, pipeline._file_rows = options.pop("page_rows", None), options.pop("file_rows", None)
    phrases = pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.producer(phrases, key=TEXT, value=INT, name="words", **options)(function)
    return pipeline


def count(word: str, ids: Iterator[int]) -> Iterator[tuple[int, str]]:
    yield sum(1 for _ in ids), word


def phrases(numbers: range, length: int = 8) -> pa.Table:
    texts = [" ".join(f"w{(number * step) % 97}" for step in range(1, length)) for number in numbers]
    return pa.table({"key": pa.array(numbers, INT), "value": texts})


def unnamed(store: pds.Store, path: str) -> set[str]:
    """The files that no version names."""
    handle = pds.Pipeline(store, path)
    named: set[str] = set()
    for entry in handle.history():
        snapshot: Any = handle.as_of(entry["version"])
        for node in json.loads(snapshot._handle.manifest())["nodes"]:
            runs = [*node["content"], *node["mappings"], *([node["update"]] if node["update"] else [])]
            named |= {file["name"] for run in runs for file in run["files"]}
    files = {str(info.path) for info in store.list_files(path, recursive=True)}
    return {file for file in files if "/run/" in file} - {f"{path}/{name}" for name in named}


def test_a_stage_is_computed_where_its_work_says(memory_store: pds.Store) -> None:
    engine = RepeatingEngine(local_bytes=20_000, task_bytes=20_000)
    pipeline = words(memory_store, engine)
    small = pipeline.update(phrases=pds.Changes(phrases(range(3))))
    assert (small.stages["words"].tasks, engine.jobs) == (0, [])
    large = pipeline.update(phrases=pds.Changes(phrases(range(2_000))))
    assert [stage for stage, _ in engine.jobs] == ["words", "words"]
    assert large.stages["words"].tasks == sum(tasks for _, tasks in engine.jobs) > 2
    assert large.stages["phrases"].tasks == 0
    again = pipeline.update(phrases=pds.Changes([(1, "w1")]))
    assert again.stages["words"].tasks == 0
    here = words(pds.Store("memory://"), None)
    here.update(phrases=pds.Changes(phrases(range(2_000))))
    result = here.update(phrases=pds.Changes([(1, "w1")]))
    for table in ("read", "key_mappings", "changes"):
        assert getattr(pipeline["words"], table)().equals(getattr(here["words"], table)())
    assert (large.stages["words"].rows_out, again.stages["words"].keys_out) == (14_000, result.stages["words"].keys_out)


@pytest.mark.parametrize("task_bytes", [1, 1 << 10, 1 << 14, 1 << 30])
def test_updates_leave_the_files_of_their_versions_alone(memory_store: pds.Store, task_bytes: int) -> None:
    engine = RepeatingEngine(task_bytes=task_bytes)
    pipeline = words(memory_store, engine, page_rows=16, file_rows=64)
    pipeline.producer("words", key=INT, value=TEXT, name="counts", descending=True)(count)
    pipeline.update(phrases=pds.Changes(phrases(range(500))))
    pipeline.update(phrases=pds.Changes(phrases(range(100, 130), 3), list(range(50))))
    assert max(tasks for _, tasks in engine.jobs) > 90 or task_bytes > 1 << 10
    assert min(tasks for _, tasks in engine.jobs) == 1 or task_bytes < 1 << 30
    once = RepeatingEngine(task_bytes=task_bytes, repeats=False)
    other = pds.Store("memory://")
    single = words(other, once, page_rows=16, file_rows=64)
    single.producer("words", key=INT, value=TEXT, name="counts", descending=True)(count)
    single.update(phrases=pds.Changes(phrases(range(500))))
    single.update(phrases=pds.Changes(phrases(range(100, 130), 3), list(range(50))))
    assert unnamed(other, "words") == set()
    for stage in ("words", "counts"):
        for table in ("read", "key_mappings", "changes"):
            assert getattr(single[stage], table)().equals(getattr(pipeline[stage], table)())
    # Those of attempts whose results did not count are left to a vacuum.
    assert unnamed(memory_store, "words")
    pipeline.update(phrases=pds.Changes([(10**6, "end")]))
    pipeline.vacuum(dt.timedelta(0))
    assert len(unnamed(memory_store, "words")) < 20


@pytest.mark.parametrize("scope", ["changes", "replace"])
@pytest.mark.parametrize(("page_rows", "task_bytes"), [(1, 1), (None, 1 << 20)])
def test_rows_in_parts_are_those_of_one_stream(
    memory_store: pds.Store, scope: str, page_rows: int | None, task_bytes: int
) -> None:
    generator = random.Random(5)
    source = Source("s", pa.field("key", INT), pa.field("value", TEXT))
    stage = Stage("t", ["s"], lambda _, values: [(len(v), v) for v in values], pa.field("key", INT), source.value)
    model = Model([source], [stage])
    engine = RepeatingEngine(task_bytes=task_bytes)
    pipeline = declare(memory_store, "p", [source], [stage], engine=engine, page_rows=page_rows, file_rows=page_rows)
    for _ in range(5):
        rows = [(generator.choice([None, *range(30)]), "x" * generator.randrange(5)) for _ in range(40)]
        deletes = (
            [] if scope == "replace" else sorted({generator.randrange(60) for _ in range(9)} - {k for k, _ in rows})
        )
        cuts = sorted(generator.sample(range(41), 3))
        parts = [rows[start:end] for start, end in itertools.pairwise([0, *cuts, 40])]
        spread = Spread([pa.Table.from_pylist([{"key": k, "value": v} for k, v in part], PAIR) for part in parts])
        canonical = sorted(rows, key=lambda row: (row[0] is not None, row[0] or 0, row[1]))
        if scope == "replace":
            stored = rows_of(pipeline["s"].read()) if model.version else []
            groups = {key: [v for k, v in canonical if k == key] for key, _ in canonical}
            same = {key for key in groups if [v for k, v in stored if k == key] == groups[key]}
            pipeline.update(s=pds.Replace(spread))  # type: ignore[arg-type]
            changed = [row for row in canonical if row[0] not in same]
            model.update({"s": Changes(changed, sorted({key for key, _ in stored} - groups.keys(), key=str))})
        else:
            pipeline.update(s=pds.Changes(spread, deletes))  # type: ignore[arg-type]
            model.update({"s": Changes(canonical, deletes)})
        compare(memory_store, pipeline, model)


def test_pairs_beside_rows_in_parts_stay_in_their_order(memory_store: pds.Store) -> None:
    pipeline = words(memory_store, RepeatingEngine(task_bytes=1))
    pipeline.update(phrases=pds.Changes([(1, "x"), (2, "y")]))
    deleted = Spread([pa.table({"key": [2]})])
    pipeline.update(phrases=pds.Changes([(1, "c"), (3, "z"), (1, "a"), (1, "b")], deleted))  # type: ignore[arg-type]
    assert plain_rows(pipeline["phrases"].read()) == [(1, "c"), (1, "a"), (1, "b"), (3, "z")]


def test_a_second_update_with_a_key_stages_no_parts(memory_store: pds.Store) -> None:
    engine = RepeatingEngine()
    pipeline = words(memory_store, engine)
    parts = Spread([phrases(range(5)), phrases(range(5, 9))])
    first = pipeline.update(phrases=pds.Changes(parts), idempotency_key="monday")  # type: ignore[arg-type]
    assert engine.staged_parts == 2
    pipeline.update(phrases=pds.Changes([(1, "later")]))
    for changes in (pds.Changes(parts), pds.Changes(deletes=parts), pds.Replace(parts)):  # type: ignore[arg-type]
        again = pipeline.update(phrases=changes, idempotency_key="monday")
        assert (again.version, again.commit_id, again.replayed) == (first.version, first.commit_id, True)
        assert (again.stages, again.requests > 0) == ({}, True)
    with pytest.raises(pds.InvalidInput, match="no source 'others'"):
        pipeline.update(others=pds.Changes(parts), idempotency_key="monday")  # type: ignore[arg-type]
    assert engine.staged_parts == 2
    assert pipeline.version == 2
    pipeline.update(phrases=pds.Changes(parts), idempotency_key="tuesday")  # type: ignore[arg-type]
    assert (pipeline.version, engine.staged_parts) == (3, 4)


def test_an_outdated_base_version_stages_no_parts(memory_store: pds.Store) -> None:
    engine = RepeatingEngine()
    pipeline = words(memory_store, engine)
    parts = Spread([phrases(range(5)), phrases(range(5, 9))])
    first = pipeline.update(phrases=pds.Changes(parts), base_version=0, idempotency_key="monday")  # type: ignore[arg-type]
    assert engine.staged_parts == 2
    for write in (pipeline.update, pipeline.preview):
        with pytest.raises(pds.CommitConflict, match="version 0"):
            write(phrases=pds.Changes(parts), base_version=0)  # type: ignore[arg-type]
        with pytest.raises(pds.InvalidInput, match="no version 7"):
            write(phrases=pds.Changes(parts), base_version=7)  # type: ignore[arg-type]
    assert engine.staged_parts == 2
    # A replay comes before the conflict.
    again = pipeline.update(phrases=pds.Changes(parts), base_version=0, idempotency_key="monday")  # type: ignore[arg-type]
    assert (again.commit_id, again.replayed, engine.staged_parts) == (first.commit_id, True, 2)
    assert pipeline.version == 1


def test_bad_rows_in_parts_are_refused(memory_store: pds.Store) -> None:
    pipeline = words(memory_store, RepeatingEngine(task_bytes=1, repeats=False))
    pipeline.update(phrases=pds.Changes([(1, "a b")]))
    parts = Spread([pa.table({"key": [1, 2], "value": ["a", "b"]}, schema=PAIR), phrases(range(5, 9))])
    for changes, reason in (
        (pds.Changes(parts, [3, 2]), "key 2 is both deleted and upserted"),
        (pds.Changes(parts, Spread([pa.table({"key": [7]}), pa.table({"key": [7]})])), "deleted"),  # type: ignore[arg-type]
        (pds.Changes(Spread([pa.table({"key": ["x"], "value": ["a"]})])), "key"),  # type: ignore[arg-type]
    ):
        with pytest.raises(pds.InvalidInput, match=reason):
            pipeline.update(phrases=changes)
    assert (pipeline.version, plain_rows(pipeline["words"].read())) == (1, [("a", 1, 1), ("b", 1, 1)])
    assert unnamed(memory_store, "words") == set()


def test_an_error_of_rows_in_parts_is_raised_as_it_is(memory_store: pds.Store) -> None:
    def fail() -> Iterator[pa.RecordBatch]:
        yield from phrases(range(3)).to_batches()
        raise pds.VersionExpired("vacuumed meanwhile")

    pipeline = words(memory_store, RepeatingEngine())
    parts = Spread([phrases(range(5)), pa.RecordBatchReader.from_batches(PAIR, fail())])  # type: ignore[list-item]
    with pytest.raises(pds.VersionExpired, match="vacuumed meanwhile"):
        pipeline.update(phrases=pds.Changes(parts))  # type: ignore[arg-type]


def test_an_error_of_a_function_leaves_nothing_of_its_task(memory_store: pds.Store) -> None:
    def fail(key: int, values: Iterator[str]) -> Iterator[tuple[str, int]]:
        if key == 77:
            raise ZeroDivisionError("no words")
        yield from split_words(key, values)

    pipeline = words(memory_store, RepeatingEngine(repeats=False), fail, page_rows=8, file_rows=32)
    pipeline.update(phrases=pds.Changes(phrases(range(50))))
    with pytest.raises(pds.ProduceError, match=r"'words'.*key 77.*test_tasks\.py.*no words"):
        pipeline.update(phrases=pds.Changes(phrases(range(200))))
    assert pipeline.version == 1
    assert unnamed(memory_store, "words") == set()


def test_rows_of_a_function_that_draws_lots_stand_after_the_first_job(memory_store: pds.Store) -> None:
    chance = random.Random(3)

    def draw(key: int, values: Iterator[str]) -> Iterator[tuple[str, int]]:
        yield from ((f"{chance.random():.3f}", key) for _ in values)

    pipeline = words(memory_store, RepeatingEngine(), draw, page_rows=4, file_rows=16)
    for numbers in (range(100), range(50, 120), range(60, 70)):
        pipeline.update(phrases=pds.Changes(phrases(numbers)))
        pairs = [row[:2] for row in plain_rows(pipeline["words"].read())]
        mappings = [row[::-1] for row in plain_rows(pipeline["words"].key_mappings())]
        assert sorted(pairs) == sorted(mappings)
        assert len({key for _, key in pairs}) == len(pairs)


def test_another_update_between_the_jobs_is_not_lost(memory_store: pds.Store) -> None:
    rivals = [words(memory_store, None) for _ in range(3)]

    class Interrupted(RepeatingEngine):
        def bind(self, *arguments: Any) -> BoundEngine:
            bound = super().bind(*arguments)

            def run_tasks(stage: str, job: bytes, tasks: int) -> list[bytes | Exception]:
                results = bound.run_tasks(stage, job, tasks)
                if len(self.jobs) % 2 == 1 and rivals:
                    rival = rivals.pop()
                    rival.update(phrases=pds.Changes([(1000 + len(rivals), "rival")]))
                return results

            return bound._replace(run_tasks=run_tasks)

    pipeline = words(memory_store, Interrupted())
    spread = Spread([phrases(range(30)), phrases(range(30, 60))])
    pipeline.update(phrases=pds.Changes(spread))  # type: ignore[arg-type]
    assert not rivals
    expected = words(pds.Store("memory://"), None)
    expected.update(phrases=pds.Changes([(1000 + n, "rival") for n in range(3)]))
    expected.update(phrases=pds.Changes(phrases(range(60))))
    assert pipeline["words"].read().equals(expected["words"].read())
    assert pipeline["words"].key_mappings().equals(expected["words"].key_mappings())


class Vacuumed(RepeatingEngine):
    """After its first job, or each of several, a rival updates, compacts and vacuums the pipeline."""

    def __init__(self, rival: pds.Pipeline, jobs: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.rivals = [rival] * jobs

    def bind(self, *arguments: Any) -> BoundEngine:
        bound = super().bind(*arguments)

        def run_tasks(stage: str, job: bytes, tasks: int) -> list[bytes | Exception]:
            results = bound.run_tasks(stage, job, tasks)
            if self.rivals:
                rival = self.rivals.pop()
                rival.update(phrases=pds.Changes([(1000 + len(self.rivals), "rival")]))
                rival.compact(min_delta=0)
                rival.vacuum(dt.timedelta(0))
            return results

        return bound._replace(run_tasks=run_tasks)


@pytest.mark.parametrize("is_tagged", [False, True])
def test_a_vacuum_between_the_jobs_makes_the_plan_begin_again(memory_store: pds.Store, is_tagged: bool) -> None:
    rival = words(memory_store, None)
    rival.update(phrases=pds.Changes(phrases(range(20, 40))))
    if is_tagged:
        rival.tag("first", 1)
    pipeline = words(memory_store, Vacuumed(rival))
    pipeline.update(phrases=pds.Changes(phrases(range(30))))
    expected = words(pds.Store("memory://"), None)
    expected.update(phrases=pds.Changes([(1000, "rival")]))
    expected.update(phrases=pds.Changes(phrases(range(40))))
    assert pipeline["words"].read().equals(expected["words"].read())


@pytest.mark.parametrize("is_tagged", [False, True])
def test_a_vacuum_between_the_jobs_makes_a_preview_begin_again(memory_store: pds.Store, is_tagged: bool) -> None:
    """From the rows that it has, which a stream gives once."""
    rival = words(memory_store, None)
    rival.update(phrases=pds.Changes(phrases(range(20, 40))))
    if is_tagged:
        rival.tag("first", 1)
    pipeline = words(memory_store, Vacuumed(rival, repeats=False))
    expected = words(pds.Store("memory://"), None)
    expected.update(phrases=pds.Changes([(1000, "rival")]))
    expected.update(phrases=pds.Changes(phrases(range(40))))
    with pipeline.preview(phrases=pds.Changes(phrases(range(30)).to_reader())) as preview:
        assert preview.version == rival.version + 1
        assert preview["words"].read().equals(expected["words"].read())
        assert preview.counts["phrases"].keys_added == 20
        preview.commit()
    assert pipeline["words"].read().equals(expected["words"].read())
    # What the first plan wrote is removed; the tag has files of its own.
    assert is_tagged or unnamed(memory_store, "words") == set()


def test_a_preview_does_not_begin_again_for_ever(memory_store: pds.Store) -> None:
    rival = words(memory_store, None)
    rival.update(phrases=pds.Changes(phrases(range(20, 40))))
    engine = Vacuumed(rival, 1000, repeats=False)
    pipeline = words(memory_store, engine)
    with pytest.raises(pds.VersionExpired):
        pipeline.preview(phrases=pds.Changes(phrases(range(30))))
    assert engine.rivals
    assert unnamed(memory_store, "words") == set()


def test_staged_rows_that_a_vacuum_removed_are_to_be_pushed_again(memory_store: pds.Store) -> None:
    rival = words(memory_store, None)
    rival.update(phrases=pds.Changes(phrases(range(20, 40))))
    pipeline = words(memory_store, Vacuumed(rival))
    spread = pds.Changes(Spread([phrases(range(30))]))  # type: ignore[arg-type]
    with pytest.raises(pds.TransactionExpired, match="push them again"):
        pipeline.update(phrases=spread)
    pipeline.update(phrases=spread)
    expected = words(pds.Store("memory://"), None)
    expected.update(phrases=pds.Changes([(1000, "rival")]))
    expected.update(phrases=pds.Changes(phrases(range(40))))
    assert pipeline["words"].read().equals(expected["words"].read())


class VacuumedLater(RepeatingEngine):
    """Another process makes versions after rows were staged, and vacuums when the first job begins."""

    def __init__(self, rival: pds.Pipeline) -> None:
        super().__init__()
        self.rivals = [rival]

    def stage(self, target: Any, rows: Any) -> list[bytes]:
        messages = super().stage(target, rows)
        for rival in self.rivals:
            rival.update(phrases=pds.Changes([(1000, "rival")]))
            rival.update(phrases=pds.Changes([(1001, "rival")]))
        return messages

    def bind(self, *arguments: Any) -> BoundEngine:
        bound = super().bind(*arguments)

        def run_tasks(stage: str, job: bytes, tasks: int) -> list[bytes | Exception]:
            if self.rivals:
                self.rivals.pop().vacuum(dt.timedelta(0))
            return bound.run_tasks(stage, job, tasks)

        return bound._replace(run_tasks=run_tasks)


def test_staged_rows_that_are_older_than_the_plan(memory_store: pds.Store) -> None:
    """A vacuum removed them, and nothing is damaged."""
    rival = words(memory_store, None)
    rival.update(phrases=pds.Changes(phrases(range(20, 40))))
    pipeline = words(memory_store, VacuumedLater(rival))
    spread = pds.Changes(Spread([phrases(range(30))]))  # type: ignore[arg-type]
    with pytest.raises(pds.TransactionExpired, match="push them again"):
        pipeline.update(phrases=spread)
    pipeline.update(phrases=spread)
    expected = words(pds.Store("memory://"), None)
    expected.update(phrases=pds.Changes([(1000, "rival"), (1001, "rival")]))
    expected.update(phrases=pds.Changes(phrases(range(40))))
    assert pipeline["words"].read().equals(expected["words"].read())


def test_a_first_update_beside_another_and_its_vacuum(memory_store: pds.Store) -> None:
    pipeline = words(memory_store, Vacuumed(words(memory_store, None)))
    pipeline.update(phrases=pds.Changes(phrases(range(30))))
    expected = words(pds.Store("memory://"), None)
    expected.update(phrases=pds.Changes([(1000, "rival")]))
    expected.update(phrases=pds.Changes(phrases(range(30))))
    assert pipeline["words"].read().equals(expected["words"].read())


def test_deletes_of_keys_that_are_not_there_are_no_data(memory_store: pds.Store) -> None:
    pipeline = words(memory_store, RepeatingEngine())
    pipeline.update(phrases=pds.Changes(None, [1, 2]))
    pipeline.update(phrases=pds.Changes([(1, "a")]), base_version=0)
    staged = words(pds.Store("memory://"), RepeatingEngine())
    staged.update(phrases=pds.Changes(None, Spread([pa.table({"key": [1, 2]})])))  # type: ignore[arg-type]
    staged.update(phrases=pds.Changes([(1, "a")]), base_version=0)
    assert plain_rows(pipeline["words"].read()) == plain_rows(staged["words"].read()) == [("a", 1, 1)]


def test_few_keys_with_much_work_are_several_tasks(memory_store: pds.Store) -> None:
    """Of a join: a changed row of a dimension has many facts."""
    engine = RepeatingEngine(local_bytes=1 << 14, task_bytes=1 << 14)
    pipeline = pds.Pipeline(memory_store, "p", engine=engine)
    pipeline._page_rows, pipeline._file_rows = 64, 512
    facts = pipeline.source("facts", key=INT, value=TEXT)
    names = pipeline.source("names", key=INT, value=TEXT)
    pipeline.join_rows(facts, names, name="named")
    rows = [(n % 50, random.Random(n).randbytes(20).hex()) for n in range(10_000)]
    pipeline.update(facts=pds.Changes(rows), names=pds.Changes([(n, "a") for n in range(50)]))
    engine.jobs.clear()
    pipeline.update(names=pds.Changes([(n, "b") for n in range(20, 40)]))
    assert engine.jobs[0][1] > 5
    assert {row[2]["names"] for row in plain_rows(pipeline["named"].read()) if 20 <= row[0] < 40} == {"b"}


def test_a_hook_sees_all_rows_in_one_task(memory_store: pds.Store) -> None:
    def number(new: int, earlier: int | None, state: dict[str, Any]) -> int:
        state["next"] += 1
        return state["next"] if earlier is None else earlier

    engine = RepeatingEngine(task_bytes=1)
    results = []
    for each in (engine, None):
        store = pds.Store("memory://")
        pipeline = words(store, each, preserve=pds.Preserve(number, {"next": 0}), page_rows=8)
        pipeline.update(phrases=pds.Changes(phrases(range(60))))
        pipeline.update(phrases=pds.Changes(phrases(range(20, 80), 5), [1, 2]))
        results.append([pipeline["words"].read(), pipeline["words"].changes()])
    assert results[0] == results[1]
    assert {tasks for _, tasks in engine.jobs[1::2]} == {1}
    assert max(tasks for _, tasks in engine.jobs[0::2]) > 1


def fed_by(table: pds.Table, path: str, engine: RepeatingEngine | None) -> pds.Pipeline:
    pipeline = pds.Pipeline(table.store, path, engine=engine)
    rows = pipeline.source("rows", table, key="id", value=["name", "n"])
    pipeline.aggregate(rows, aggregates={"sum": ("n", "sum"), "least": ("name", "min")}, name="sums")
    return pipeline


def split_to_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are read by several tasks, too."""
    scan_tasks = functools.partialmethod(pds.Table.scan_tasks, min_bytes=1, max_bytes=1)
    monkeypatch.setattr(pds.Table, "scan_tasks", scan_tasks)


@pytest.mark.parametrize(("few", "held"), [(0, 1 << 20), (10_000, 1 << 20), (10_000, 0), (10_000, 200)])
def test_large_changes_of_a_table_are_read_by_tasks(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch, few: int, held: int
) -> None:
    """Whether their keys are listed or not, and whether the driver holds them or not."""
    monkeypatch.setattr(attached, "_FEW_KEYS", few)
    monkeypatch.setattr(attached, "_MAX_HELD_BYTES", held)
    split_to_files(monkeypatch)
    table = pds.Table.create(memory_store, "t", pa.schema([("id", INT), ("name", TEXT), ("n", INT)]))

    def numbered(ids: range) -> pa.Table:
        return pa.table({"id": pa.array(ids, INT), "name": [f"n{number % 7}" for number in ids], "n": ids})

    for first in range(0, 400, 100):
        table.append(numbered(range(first, first + 100)))
    engine = RepeatingEngine(task_bytes=1000, local_bytes=300, repeats=False)
    pipelines = fed_by(table, "tasks", engine), fed_by(table, "here", None)
    steps: list[tuple[Callable[[], object], bool]] = [
        (lambda: None, True),
        (lambda: table.delete("id = 7"), False),
        (lambda: table.append(numbered(range(0, 500, 2))), True),
        (lambda: table.delete("id % 3 = 1"), True),
        (lambda: table.append(pa.table({"id": pa.array([None], INT), "name": ["x"], "n": [1]})), False),
    ]
    for change, is_large in steps:
        change()
        before = engine.staged_parts
        for pipeline in pipelines:
            pipeline.refresh()
        assert (engine.staged_parts > before + 1) == is_large
        for name in ("rows", "sums"):
            assert pipelines[0][name].read().equals(pipelines[1][name].read())
    assert unnamed(memory_store, "tasks") == set()


def test_an_error_after_changes_of_a_table_were_staged_leaves_nothing(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_to_files(monkeypatch)
    table = pds.Table.create(memory_store, "t", pa.schema([("id", INT), ("name", TEXT), ("n", INT)]))
    table.append(pa.table({"id": range(50), "name": ["x"] * 50, "n": range(50)}))
    engine = RepeatingEngine(repeats=False)
    pipeline = fed_by(table, "p", engine)
    pipeline.refresh()
    table.append(pa.table({"id": range(30), "name": ["y"] * 30, "n": range(30)}))
    stage = SourceRows.stage

    def fail(target: SourceRows, *arguments: Any) -> bytes:
        if target.is_keys:
            raise pds.PermissionDenied("not now")
        return stage(target, *arguments)

    monkeypatch.setattr(SourceRows, "stage", fail)
    with pytest.raises(pds.PermissionDenied, match="not now"):
        pipeline.refresh()
    assert engine.staged_parts > 1
    assert (pipeline.version, unnamed(memory_store, "p")) == (1, set())


def test_a_table_is_read_whole_by_tasks(memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", INT), ("name", TEXT), ("n", INT)]))
    generator = random.Random(2)
    for _ in range(4):
        rows = [(generator.randrange(40), f"n{generator.randrange(5)}", generator.randrange(3)) for _ in range(50)]
        table.append(pa.table(dict(zip(("id", "name", "n"), zip(*rows, strict=True), strict=True))))

    engine = RepeatingEngine(task_bytes=100, repeats=False)
    by_tasks, here = fed_by(table, "tasks", engine), fed_by(table, "here", None)
    for change in (lambda: None, lambda: table.delete("id = 7"), lambda: table.append(table.scan().to_pyarrow())):
        change()
        by_tasks.refresh()
        here.refresh()
        for name in ("rows", "sums"):
            assert by_tasks[name].read().equals(here[name].read())
    # A small table is one part, which is no less work by a task.
    assert engine.staged_parts == 0
    split_to_files(monkeypatch)
    parts = fed_by(table, "parts", engine)
    parts.refresh()
    assert engine.staged_parts > 1
    for name in ("rows", "sums"):
        assert parts[name].read().equals(here[name].read())
    assert unnamed(memory_store, "parts") == set()

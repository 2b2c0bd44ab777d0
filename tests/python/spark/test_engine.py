"""Pipelines whose stages Spark computes have the tables of the model, whatever happens to the tasks."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle

import pds
import pds.spark
from pds.spark import engine as module
from pds.spark import tasks
from producers.model import Changes, Model, Source, Stage
from producers.pipelines import compare, declare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

INT, TEXT = pa.int64(), pa.string()
TINY = {"page_rows": 2, "file_rows": 4}


def split_engine(spark: SparkSession) -> pds.spark.SparkEngine:
    """One whose stages are computed by as many tasks as there can be."""
    return pds.spark.SparkEngine(spark, local_bytes=1, task_bytes=1000)


def spread(key: int, values: Iterator[str]) -> Iterator[tuple[str, int]]:
    for value in values:
        for word in value.split(" "):
            yield word, key


def total(word: str, keys: Iterator[int]) -> Iterator[tuple[int, str]]:
    yield sum(1 for _ in keys), word


def words(store: pds.Store, path: str, engine: Any, function: Any = spread) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, path, engine=engine)
    phrases = pipeline.source("phrases", key=INT, value=TEXT)
    stage = pipeline.producer(phrases, key=TEXT, value=INT, name="words")(function)
    pipeline.producer(stage, key=INT, value=TEXT, name="counts", descending=True)(total)
    ones = pipeline.select(stage, key="key", value={"one": "1", "id": "value"}, name="ones")
    pipeline.aggregate(ones, aggregates={"n": ("one", "sum"), "last": ("id", "max")}, name="sums")
    return pipeline


def assert_same(one: pds.Pipeline, other: pds.Pipeline) -> None:
    for name in ("phrases", "words", "counts", "ones", "sums"):
        assert one[name].read().equals(other[name].read()), name
    for name in ("words", "counts", "ones", "sums"):
        for table in ("key_mappings", "changes"):
            assert getattr(one[name], table)().equals(getattr(other[name], table)()), (name, table)


def fail_first(batches: Any) -> Any:
    """Two tasks of each job fail twice after they have written."""
    messages = list(batches)
    context = TaskContext.get()
    if context.partitionId() in (1, 2) and context.attemptNumber() < 2:
        raise RuntimeError("lost after writing")
    yield from messages


def test_data_frames_are_updates(spark: SparkSession, target: Target) -> None:
    engine = pds.spark.SparkEngine(spark, local_bytes=1, task_bytes=12_000)
    by_spark, here = words(target.store, "spark", engine), words(target.store, "here", None)
    rows = phrases(spark, 1500)
    changed = spark.range(100, 1500, 7, 3).selectExpr("id AS key", "concat('w', id % 5) AS value")
    deleted = spark.range(0, 100, 1, 3).selectExpr("id AS key")
    for changes in (pds.Changes(rows), pds.Changes(changed, deleted), pds.Replace(changed.union(rows))):
        result = by_spark.update(phrases=changes)
        assert min(stage.tasks for stage in result.stages.values()) > 0
        assert result.stages["phrases"].keys_out == result.stages["phrases"].keys_in > 0
        update_here(here, changes)
        assert_same(by_spark, here)
    # A small one is the driver's.
    small = words(target.store, "spark", pds.spark.SparkEngine(spark))
    for each in (small, here):
        result = each.update(phrases=pds.Changes([(7, "x y")]))
        assert {stage.tasks for stage in result.stages.values()} == {0}
    assert_same(small, here)


def test_types_that_spark_does_not_have(spark: SparkSession, target: Target) -> None:
    value = pa.struct([("at", pa.timestamp("ms", "UTC")), ("n", pa.uint8())])
    pipeline = pds.Pipeline(target.store, "narrow", engine=split_engine(spark))
    source = pipeline.source("times", key=pa.uint32(), value=value)
    pipeline.select(source, key="key", value="n", name="numbers")
    row = "named_struct('at', TIMESTAMP'2026-01-01 00:00:00.001Z', 'n', 255S) AS value"
    pipeline.update(times=pds.Changes(spark.sql(f"SELECT 4000000000L AS key, {row}")))
    numbers = pipeline["numbers"].read()
    assert (numbers["target_key"].to_pylist(), numbers["value"].to_pylist()) == ([4_000_000_000], [255])
    with pytest.raises(pds.InvalidType, match="not in range"):
        pipeline.update(times=pds.Changes(spark.sql(f"SELECT -1L AS key, {row}")))
    pipeline.update(times=pds.Changes(None, spark.sql("SELECT 4000000000L AS key")))
    assert pipeline["numbers"].read().num_rows == 0


@dataclasses.dataclass(frozen=True)
class Threads:
    """Stands for what tasks do. Their result is the number of threads."""

    source = types.SimpleNamespace(fields=pa.schema([]))

    def run(self, number: int, threads: int) -> bytes:
        return f"{number} {threads}".encode()

    def stage(self, rows: Any, threads: int | None = None) -> bytes:
        return f"{sum(len(batch) for batch in getattr(rows, 'to_batches', lambda: rows)())} {threads}".encode()

    def open(self) -> pa.RecordBatchReader:
        return pa.table({"key": [1, 2]}).to_reader()


def test_a_task_uses_the_processors_that_spark_assigned_to_it(spark: SparkSession) -> None:
    engine, threads = pds.spark.SparkEngine(spark), Threads()
    pickled = module.PickledStage(cloudpickle.dumps(threads), {})
    assert engine._run_numbers(module.RunTasks(pickled), 2) == [b"0 1", b"1 1"]
    target: Any = threads
    assert engine.stage_parts(target, [threads]) == [b"2 1"]
    assert engine.stage(target, spark.range(0, 6, 1, 2)) == [b"3 1", b"3 1"]


def test_tasks_that_are_lost_after_writing_change_nothing(
    spark: SparkSession, s3_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = module._collect
    monkeypatch.setattr(module, "_collect", lambda plan: collect(plan.mapInArrow(fail_first, module._DDL)))
    engine = pds.spark.SparkEngine(spark, local_bytes=1, task_bytes=3_000)
    by_spark, here = words(s3_target.store, "spark", engine), words(s3_target.store, "here", None)
    changes = pds.Changes(phrases(spark, 1000))
    counts = [stage.tasks for stage in by_spark.update(phrases=changes).stages.values()]
    assert max(counts) > 5
    update_here(here, changes)
    assert_same(by_spark, here)


def phrases(spark: SparkSession, count: int) -> DataFrame:
    text = "concat('w', id % 97, ' w', id % 89, ' ', CAST(id AS string)) AS value"
    return spark.range(0, count, 1, 5).selectExpr("id DIV 2 AS key", text)


def update_here(pipeline: pds.Pipeline, changes: Any) -> None:
    """The same update by this process."""
    if isinstance(changes, pds.Replace):
        pipeline.update(phrases=pds.Replace(canonical(changes.rows)))
        return
    deletes = None if changes.deletes is None else changes.deletes.toArrow()
    pipeline.update(phrases=pds.Changes(canonical(changes.upserts), deletes))


def canonical(rows: Any) -> pa.Table:
    """The rows of a DataFrame, those of a key in the order of their values."""
    return rows.toArrow().sort_by([("key", "ascending"), ("value", "ascending")])


def test_an_error_of_a_function_is_raised_as_it_is(spark: SparkSession, local_target: Target, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def fail(key: int, values: Iterator[str]) -> Iterator[tuple[str, int]]:
        if key == 77:
            with calls.open("a") as file:
                file.write("x")
            raise ZeroDivisionError("no words")
        yield from ((value, key) for value in values)

    pipeline = words(local_target.store, "p", split_engine(spark), fail)
    rows = spark.range(0, 100, 1, 3).selectExpr("id AS key", "'a' AS value")
    with pytest.raises(pds.ProduceError, match=r"'words'.*key 77.*test_engine\.py.*no words") as failure:
        pipeline.update(phrases=pds.Changes(rows))
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert "in fail" in str(failure.value.__cause__.__cause__)
    assert (pipeline.version, calls.read_text()) == (0, "x")
    with pytest.raises(pds.InvalidInput, match="value"):
        pipeline.update(phrases=pds.Changes(rows.select("key")))
    with pytest.raises(pds.InvalidInput, match="both deleted and upserted"):
        pipeline.update(phrases=pds.Changes(rows, rows.select("key").limit(1)))
    with pytest.raises(pds.InvalidType, match="Arrow stream or pairs"):
        words(local_target.store, "q", None).update(phrases=pds.Changes(3))  # type: ignore[arg-type]


def test_modules_beside_a_script_are_sent(
    spark: SparkSession, local_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "STEP = 3\ndef double(n):\n    return STEP * n\ndef produce(key, values):\n    yield double(key), key\n"
    (tmp_path / "beside_a_script.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    beside = importlib.import_module("beside_a_script")
    pipeline = pds.Pipeline(local_target.store, "p", engine=split_engine(spark))
    numbers = pipeline.source("numbers", key=INT, value=TEXT)
    pipeline.producer(numbers, key=INT, value=INT, name="triples")(beside.produce)
    pipeline.update(numbers=pds.Changes(spark.range(0, 50, 1, 3).selectExpr("id AS key", "'a' AS value")))
    assert pipeline["triples"].read()["target_key"].to_pylist() == [3 * n for n in range(50)]


def test_a_module_that_workers_have_loaded_before(
    spark: SparkSession, local_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be sent, because of its lock; after an edit the workers still have the old one."""
    text = (
        "import threading\nLOCK = threading.Lock()\ndef produce(key, values):\n    with LOCK:\n        yield key, {}\n"
    )
    file = tmp_path / "with_a_lock.py"
    file.write_text(text.format("'old'"))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("with_a_lock")

    def declare(version: int) -> pds.Pipeline:
        pipeline = pds.Pipeline(local_target.store, "p", engine=split_engine(spark))
        numbers = pipeline.source("numbers", key=INT, value=TEXT)
        pipeline.producer(numbers, key=INT, value=TEXT, name="words", version=version)(module.produce)
        return pipeline

    with monkeypatch.context() as path:
        path.setenv("PYTHONPATH", str(tmp_path))
        spark_path = spark.sparkContext.environment.get("PYTHONPATH", "")
        spark.sparkContext.environment["PYTHONPATH"] = f"{tmp_path}:{spark_path}"
        try:
            frame = spark.range(0, 50, 1, 3).selectExpr("id AS key", "'a' AS value")
            declare(1).update(numbers=pds.Changes(frame))
            assert set(declare(1)["words"].read()["value"].to_pylist()) == {"old"}
            file.write_text(text.format("'newer'"))
            importlib.reload(module)
            with pytest.raises(pds.InvalidInput, match="another version of the module 'with_a_lock'"):
                declare(2).rebuild()
        finally:
            spark.sparkContext.environment["PYTHONPATH"] = spark_path
    assert set(declare(1)["words"].read()["value"].to_pylist()) == {"old"}


def test_what_cannot_be_sent_is_refused(spark: SparkSession, local_target: Target) -> None:
    with pytest.raises(pds.InvalidInput, match="memory"):
        words(pds.Store("memory://"), "p", split_engine(spark)).update(phrases=pds.Changes([(1, "a")]))
    lock = threading.Lock()
    pipeline = words(local_target.store, "p", split_engine(spark), lambda key, _: [(str(lock), key)])
    with pytest.raises(pds.InvalidInput, match=r"stage 'words' cannot be pickled.*lock"):
        pipeline.update(phrases=pds.Changes([(1, "a")]))


@pytest.mark.parametrize("most_bytes", [1 << 20, 1], ids=["listed", "sent"])
def test_keys_of_a_table_that_is_read_by_tasks(
    spark: SparkSession, local_target: Target, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(tasks, "_MAX_LIST_BYTES", most_bytes)
    store = local_target.store
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("who", TEXT), ("n", pa.decimal128(9, 2))])
    table = pds.Table.create(store, "t", schema)
    for start in range(3):
        frame = spark.range(start * 500, start * 500 + 900, 1, 2).selectExpr(
            "timestamp_seconds(id % 300) AS at",
            "if(id % 7 = 0, NULL, concat('p', id % 11)) AS who",
            "CAST(id AS decimal(9, 2)) AS n",
        )
        pds.spark.append(frame, table)
    read = pds.Table.scan_tasks

    def scan_small_tasks(self: pds.Table, *arguments: Any, **options: Any) -> Any:
        return read(self, *arguments, **{**options, "min_bytes": 1, "max_bytes": 1})

    monkeypatch.setattr(pds.Table, "scan_tasks", scan_small_tasks)
    pipelines = []
    for path, engine in (("spark", split_engine(spark)), ("here", None)):
        pipeline = pds.Pipeline(store, path, engine=engine)
        rows = pipeline.source("rows", table, key=["at", "who"], value="n")
        pipeline.aggregate(rows, aggregates={"sum": ("value", "sum")}, name="sums")
        pipeline.refresh()
        pipelines.append(pipeline)
    by_spark, here = pipelines
    staged: list[int] = []
    stage_parts = pds.spark.SparkEngine.stage_parts

    def count_parts(self: pds.spark.SparkEngine, target: Any, parts: Any) -> list[bytes]:
        staged.append(len(parts))
        return stage_parts(self, target, parts)

    monkeypatch.setattr(pds.spark.SparkEngine, "stage_parts", count_parts)
    for change in (lambda: None, lambda: table.delete("n < 400 AND n > 250")):
        change()
        for pipeline in pipelines:
            pipeline.refresh()
        assert by_spark["rows"].read().equals(here["rows"].read())
        assert by_spark["sums"].read().equals(here["sums"].read())
        assert by_spark["sums"].read().num_rows > 300
    assert len(staged) == 1


def test_two_feeders_of_structs(spark: SparkSession, local_target: Target) -> None:
    """A join and a merge of sources of which one is a DataFrame."""
    key = pa.field("key", pa.struct([("a", INT), ("b", TEXT)]))
    sources = [Source(name, key, pa.field("value", INT)) for name in ("s", "t")]
    stages = [
        Stage("both", ["s", "t"], lambda k, v: [(k, n) for n in v], key, pa.field("value", INT), descending=True),
        Stage(
            "pairs",
            ["s", "t"],
            lambda _, v, w: [(len(list(w)), n) for n in v],
            pa.field("key", INT),
            pa.field("value", INT),
            join=True,
        ),
    ]
    model = Model(sources, stages)
    pipeline = declare(local_target.store, "p", sources, stages, engine=split_engine(spark), **TINY)
    rows = [({"a": n % 3 if n % 5 else None, "b": f"b{n % 4}"}, n) for n in range(40)]
    frame = spark.createDataFrame(
        [(tuple(k.values()), n) for k, n in rows], "key struct<a: bigint, b: string>, value bigint"
    )
    order = lambda row: (row[0]["a"] is not None, row[0]["a"] or 0, row[0]["b"], row[1])  # noqa: E731
    pipeline.update(s=pds.Changes(frame), t=pds.Changes(rows[:7]))
    model.update({"s": Changes(sorted(rows, key=order)), "t": Changes(rows[:7])})
    compare(local_target.store, pipeline, model)

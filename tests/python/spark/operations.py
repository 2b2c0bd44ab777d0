"""What Spark does to tables, datasets, chains and pipelines, and what is there afterwards, computed by plain Python."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import sys
import unittest.mock
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import pds
import pds.spark
from pds import odf
from pds.spark import changes, maintenance, source, stage, stream
from spark.relay import READS, REMOVALS, WRITES, Relay, Way

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("score", pa.float64())])
FILES, ROWS = 4, 100
TINY = {"count": 4, "min_bytes": 1, "max_bytes": 1 << 30}
NO_TIME = dt.timedelta(0)

Row = tuple[Any, ...]


class Place(NamedTuple):
    """Where an operation works: by the way of the relay, and directly."""

    spark: SparkSession
    by_relay: pds.Store
    direct: pds.Store
    options: dict[str, str]
    """Those of the store by the way of the relay."""
    folder: Path
    """An empty folder on this machine."""

    @property
    def table(self) -> pds.Table:
        return pds.Table(self.by_relay, "table")

    @property
    def url(self) -> str:
        return f"{self.by_relay.url}/table"

    @property
    def storage(self) -> dict[str, str]:
        return {f"storage.{name}": value for name, value in self.options.items()}

    def frame(self, first: int, last: int, name: str = "new") -> DataFrame:
        """Rows in four partitions."""
        numbers = self.spark.range(first, last, 1, numPartitions=FILES)
        return numbers.selectExpr("id", f"concat('{name} ', id) AS name", "CAST(id AS double) / 8 AS score")


class Operation(NamedTuple):
    """One thing that Spark does."""

    name: str
    prepare: Callable[[Place], object]
    """Makes what is there before."""
    work: Callable[[Place], object]
    check: Callable[[Place], None]
    """Fails if the rows are not what the operation makes of them once, or an object is missing."""
    version: Callable[[Place], int]
    new_version: int
    """The version to which the operation leads."""
    vacuum: Callable[[Place], object] | None = None
    """Removes what nothing names, unless others might need it."""
    strays: Callable[[Place], list[str]] = lambda _: []
    """What nothing names."""
    check_before: Callable[[Place], None] = lambda _: None
    """Fails if the rows are others than before the operation."""
    first_job: int = FILES
    """How many requests of the tasks of the first job can be struck."""
    has_two_jobs: bool = False
    what: re.Pattern[str] = WRITES
    """The requests that can be struck."""

    def __str__(self) -> str:
        return self.name


def rows(first: int, last: int, name: str) -> list[Row]:
    return [(number, f"{name} {number}", number / 8) for number in range(first, last)]


BEFORE = {row[0]: row for row in rows(0, FILES * ROWS, "old") if row[0] % 10 != 3}


def _make_table(place: Place) -> None:
    """A table of four files with deleted rows, at version 6."""
    options = pds.WriteOptions(row_group_size=32)
    table = pds.Table.create(place.direct, "table", SCHEMA, key="id", options=options)
    for number in range(FILES):
        columns = zip(*rows(number * ROWS, number * ROWS + ROWS, "old"), strict=True)
        table.append(pa.table(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA))
    table.delete("id % 10 = 3")


VERSION = FILES + 2
# Compaction joins files two by two, and commits each two by themselves.
PAIRS = FILES // 2


def _has(expected: Callable[[], dict[int, Row]]) -> Callable[[Place], None]:
    def check(place: Place) -> None:
        table = pds.Table(place.direct, "table")
        read = sorted(tuple(row.values()) for row in table.scan().to_pyarrow().to_pylist())
        assert read == sorted(expected().values())
        assert table.check().ok
        assert table.verify().ok

    return check


def _version(place: Place) -> int:
    return pds.Table(place.direct, "table").version


def _vacuum(place: Place) -> None:
    pds.Table(place.direct, "table").vacuum(NO_TIME)


def _orphans(place: Place) -> list[str]:
    return pds.Table(place.direct, "table").check().orphans


def _on_table(
    name: str,
    work: Callable[[Place], object],
    expected: Callable[[], dict[int, Row]],
    **others: Any,
) -> Operation:
    options: dict[str, Any] = {"prepare": _make_table, "new_version": VERSION + 1, **others}
    options |= {"vacuum": _vacuum, "strays": _orphans, "check_before": _has(lambda: BEFORE)}
    return Operation(name, work=work, check=_has(expected), version=_version, **options)


def _by_id(*parts: Sequence[Row]) -> dict[int, Row]:
    return {row[0]: row for part in parts for row in part}


def _merge(place: Place) -> None:
    merge = pds.spark.merge(place.frame(200, 600), place.table)
    merge.when_matched_delete("source.id % 4 = 0").when_matched_update_all().when_not_matched_insert_all().execute()


def _merged() -> dict[int, Row]:
    after = dict(BEFORE)
    for row in rows(200, 600, "new"):
        if row[0] in BEFORE and row[0] % 4 == 0:
            del after[row[0]]
        else:
            after[row[0]] = row
    return after


def _synchronize(place: Place) -> None:
    merge = pds.spark.merge(place.frame(200, 600), place.table)
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    merge = merge.when_not_matched_by_source_delete("target.id % 4 = 0")
    merge.when_not_matched_by_source_update({"name": "concat('not ', target.name)"}, "target.id % 4 = 1").execute()


def _synchronized() -> dict[int, Row]:
    stay = [(key, f"not {row[1]}" if key % 4 == 1 else row[1], row[2]) for key, row in BEFORE.items() if key % 4]
    return _by_id(stay, rows(200, 600, "new"))


def _make_vacuumable(place: Place) -> None:
    """A table with the same rows in other files, and many objects of older versions."""
    _make_table(place)
    pds.Table(place.direct, "table").optimize.compact()


def _compact(place: Place) -> None:
    table = place.table
    # Room for two files. One of more than half of it would stay.
    pds.spark.compact(place.spark, table, sum(table.files()["size_bytes"].to_pylist()[:2]) * 5 // 4)


def _sort(place: Place) -> None:
    table = place.table
    pds.spark.sort(place.spark, table, "name", target_file_size=table.files()["size_bytes"][0].as_py())


def _save(mode: str, first: int, last: int, **options: str) -> Callable[[Place], None]:
    def work(place: Place) -> None:
        writer = place.frame(first, last).write.format("pds").mode(mode)
        writer.options(**options, **place.storage).save(place.url)

    return work


def _make_stream(place: Place) -> None:
    _make_table(place)
    feed = pds.Table.create(place.direct, "feed", SCHEMA)
    for number in range(FILES):
        columns = zip(*rows(1000 + number * 10, 1010 + number * 10, "new"), strict=True)
        feed.append(pa.table(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA))


def _stream(place: Place) -> None:
    feed = place.spark.readStream.format("pds").options(startingVersion=1, **place.storage)
    writer = feed.load(f"{place.by_relay.url}/feed").writeStream.format("pds").options(**place.storage)
    checkpoint = place.folder / "checkpoint"
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(place.url).awaitTermination()


def _make_chain(place: Place) -> None:
    odf.Dataset.create(place.direct, "chain")


def _blocks_of_rows(place: Place) -> int:
    return sum(block.event.kind == "AddData" for block in odf.Dataset(place.direct, "chain").log())


def _ingest(place: Place) -> None:
    pds.spark.ingest(place.frame(0, 400), odf.Dataset(place.by_relay, "chain"), slice_bytes=1)


def _check_chain(place: Place) -> None:
    chain = odf.Dataset(place.direct, "chain")
    read = chain.scan(["offset", "id", "name", "score"]).to_pyarrow().to_pylist()
    assert [tuple(row.values()) for row in read] == [(row[0], *row) for row in rows(0, 400, "new")]
    assert chain.verify().rows == 400
    folders = {str(file.path).split("/")[1] for file in place.direct.list_files("chain", recursive=True)}
    assert folders == {"blocks", "data", "refs"}


def _make_dataset(place: Place) -> None:
    pds.ParquetDatasetStore(place.direct).write_dataset(pa.table({"id": range(9)}), "dataset")


def _write_dataset(place: Place) -> None:
    pds.spark.write_dataset(place.frame(0, 400), place.by_relay, "dataset", overwrite=True)


def _check_dataset(place: Place) -> None:
    datasets = pds.ParquetDatasetStore(place.direct)
    read = datasets.read_dataset("dataset").to_pylist()
    assert [tuple(row.values()) for row in read] == rows(0, 400, "new")
    assert datasets.verify_dataset("dataset").rows == 400
    parts = [f"part-{number:05d}.parquet" for number in range(FILES)]
    files = sorted(str(file.path) for file in place.direct.list_files("dataset", recursive=True))
    assert files == sorted(f"dataset/{name}" for name in ["_SUCCESS", "manifest.json", *parts])


def _words(key: int, texts: Iterator[str]) -> Iterator[tuple[str, int]]:
    for text in texts:
        for word in text.split(" "):
            yield word, key


def _pipeline(store: pds.Store, engine: Any = None) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "pipeline", engine=engine)
    texts = pipeline.source("texts", key=pa.int64(), value=pa.string())
    words = pipeline.producer(texts, key=pa.string(), value=pa.int64(), name="words")(_words)
    pipeline.aggregate(words, aggregates={"n": ("value", "count"), "total": ("value", "sum")}, name="sums")
    return pipeline


def _texts(first: int, last: int, modulus: int) -> list[tuple[int, str]]:
    return [(number, f"w{number % modulus} t{number // 50}") for number in range(first, last)]


CHANGED = dict(_texts(100, 130, 7))
DELETED = range(0, 500, 50)


def _build_pipeline(place: Place) -> None:
    _pipeline(place.direct).update(texts=pds.Changes(_texts(0, 500, 13)))


def _update_by_tasks(changes: Callable[[SparkSession], pds.Changes]) -> Callable[[Place], None]:
    def work(place: Place) -> None:
        engine = pds.spark.SparkEngine(place.spark, local_bytes=1, task_bytes=4000)
        _pipeline(place.by_relay, engine).update(texts=changes(place.spark))

    return work


def _frame_of_texts(spark: SparkSession, first: int, last: int, modulus: int) -> DataFrame:
    numbers = spark.range(first, last, 1, numPartitions=FILES)
    return numbers.selectExpr("id AS key", f"concat('w', id % {modulus}, ' t', CAST(id / 50 AS bigint)) AS value")


def _all_texts(spark: SparkSession) -> pds.Changes:
    return pds.Changes(_frame_of_texts(spark, 0, 500, 13))


def _some_texts(spark: SparkSession) -> pds.Changes:
    deleted = spark.range(0, 500, 50, numPartitions=2).selectExpr("id AS key")
    return pds.Changes(_frame_of_texts(spark, 100, 130, 7).where("key % 50 != 0"), deleted)


def _has_words(texts: Callable[[], dict[int, str]]) -> Callable[[Place], None]:
    def check(place: Place) -> None:
        pipeline = _pipeline(place.direct)
        expected = sorted((word, key) for key, text in texts().items() for word in text.split(" "))
        words = pipeline["words"].read().to_pylist()
        assert sorted((row["target_key"], row["value"]) for row in words) == expected
        sums = {row["target_key"]: tuple(row["value"].values()) for row in pipeline["sums"].read().to_pylist()}
        by_word: dict[str, list[int]] = {}
        for word, key in expected:
            by_word.setdefault(word, []).append(key)
        assert sums == {word: (len(keys), sum(keys)) for word, keys in by_word.items()}

    return check


def _updated() -> dict[int, str]:
    after = dict(_texts(0, 500, 13)) | CHANGED
    return {key: text for key, text in after.items() if key not in DELETED}


def _pipeline_version(place: Place) -> int:
    version: int = _pipeline(place.direct).history(1)[0]["version"]
    return version


def _vacuum_pipeline(place: Place) -> None:
    _pipeline(place.direct).vacuum(NO_TIME)


def _strays_of_pipeline(place: Place) -> list[str]:
    return _pipeline(place.direct).vacuum(NO_TIME, dry_run=True).files


OPERATIONS = [
    _on_table(
        "append",
        lambda place: pds.spark.append(place.frame(400, 800), place.table),
        lambda: _by_id([*BEFORE.values(), *rows(400, 800, "new")]),
    ),
    _on_table(
        "overwrite",
        lambda place: pds.spark.overwrite(place.frame(200, 300), place.table, where="id >= 200"),
        lambda: _by_id([row for row in BEFORE.values() if row[0] < 200], rows(200, 300, "new")),
    ),
    _on_table(
        "upsert",
        lambda place: pds.spark.upsert(place.frame(200, 600), place.table),
        lambda: _by_id(list(BEFORE.values()), rows(200, 600, "new")),
    ),
    _on_table("merge", _merge, _merged, has_two_jobs=True),
    _on_table("merge by source", _synchronize, _synchronized, has_two_jobs=True),
    _on_table(
        "delete",
        lambda place: pds.spark.delete(place.spark, place.table, "name LIKE '%7'"),
        lambda: {key: row for key, row in BEFORE.items() if key % 10 != 7},
        what=READS,
    ),
    _on_table(
        "vacuum",
        lambda place: pds.spark.vacuum(place.spark, place.table, NO_TIME),
        lambda: BEFORE,
        prepare=_make_vacuumable,
        new_version=VERSION + 2,
        what=REMOVALS,
    ),
    _on_table("compact", _compact, lambda: BEFORE, new_version=VERSION + PAIRS, first_job=PAIRS),
    _on_table("sort", _sort, lambda: BEFORE, has_two_jobs=True),
    _on_table("save", _save("append", 400, 800), lambda: _by_id([*BEFORE.values(), *rows(400, 800, "new")])),
    _on_table(
        "replace",
        _save("overwrite", 200, 300, replaceWhere="id >= 200"),
        lambda: _by_id([row for row in BEFORE.values() if row[0] < 200], rows(200, 300, "new")),
    ),
    _on_table(
        "stream",
        _stream,
        lambda: _by_id([*BEFORE.values(), *rows(1000, 1000 + FILES * 10, "new")]),
        prepare=_make_stream,
    ),
    Operation("dataset", _make_dataset, _write_dataset, _check_dataset, lambda _: 1, 1),
    Operation("ingest", _make_chain, _ingest, _check_chain, _blocks_of_rows, FILES, has_two_jobs=True),
    Operation(
        "build",
        lambda _: None,
        _update_by_tasks(_all_texts),
        _has_words(lambda: dict(_texts(0, 500, 13))),
        _pipeline_version,
        1,
        _vacuum_pipeline,
        _strays_of_pipeline,
        has_two_jobs=True,
    ),
    Operation(
        "update",
        _build_pipeline,
        _update_by_tasks(_some_texts),
        _has_words(_updated),
        _pipeline_version,
        2,
        _vacuum_pipeline,
        _strays_of_pipeline,
        _has_words(lambda: dict(_texts(0, 500, 13))),
        has_two_jobs=True,
    ),
]


@contextlib.contextmanager
def many_tasks(spark: SparkSession) -> Iterator[None]:
    """Every operation on little data takes several tasks."""
    settings = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": str(FILES)}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        with contextlib.ExitStack() as stack:
            for module in (changes, maintenance, source, stage, stream):
                stack.enter_context(unittest.mock.patch.object(module, "TASK_SIZES", TINY))
            stack.enter_context(unittest.mock.patch.object(changes, "_MAX_SOURCE_ROWS", 1))
            stack.enter_context(unittest.mock.patch.object(maintenance, "_SORT_SIZES", TINY))
            removals = {"objects": 1, "max_tasks": FILES}
            stack.enter_context(unittest.mock.patch.object(maintenance, "_REMOVALS", removals))
            yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def run_struck(
    operation: Operation, place: Place, relay: Relay, way: Way, numbers: Sequence[int], enough: int = 0
) -> list[str]:
    """Run an operation while requests of its workers are struck, and check what is there; the requests."""
    operation.prepare(place)
    with relay.striking(way, numbers, what=operation.what, enough=enough), many_tasks(place.spark):
        operation.work(place)
        struck = list(relay.struck)
    assert operation.version(place) == operation.new_version
    operation.check(place)
    # Once before what is late has come, and once after.
    for _ in range(2):
        if operation.vacuum is not None:
            operation.vacuum(place)
            assert operation.strays(place) == []
            operation.check(place)
        relay.release()
        operation.check(place)
    return struck


def run_beside_vacuum(operation: Operation, place: Place, relay: Relay, number: int) -> None:
    """Run an operation while a vacuum without retention removes what tasks have written, until it is done.

    The first run has to fail if anything that it needs was removed, and then it has changed no row.
    """
    assert operation.vacuum is not None
    operation.prepare(place)
    version, failures = operation.version(place), list[str]()
    vacuum = functools.partial(operation.vacuum, place)
    with relay.striking(Way.DELAYED, [number], what=operation.what, meanwhile=vacuum), many_tasks(place.spark):
        try:
            operation.work(place)
        except (pds.TransactionExpired, PySparkException) as error:
            failures.append(repr(error))
        assert len(relay.struck) == 1
    if failures:
        assert "TransactionExpired" in failures[0]
        assert operation.version(place) == version + 1
        operation.check_before(place)
        with many_tasks(place.spark):
            operation.work(place)
    # The vacuum is a commit, too.
    assert operation.version(place) == operation.new_version + 1
    operation.check(place)
    operation.vacuum(place)
    assert operation.strays(place) == []
    operation.check(place)

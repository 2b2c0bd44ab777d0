"""`format("pds")` without a session, as in the processes in which Spark plans: what is read, written and refused."""

from __future__ import annotations

import ast
import datetime as dt
import importlib
import itertools
import json
import pkgutil
import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

import pds
import pds.spark
from pds.by_url import open_parent
from pds.spark import sink, stream
from pds.spark import source as table_source
from pds.spark.options import TablePlace, parse_bytes
from pds.spark.schema import fit_to_table, frame_schema, worker_schema
from pyspark_pds import DefaultSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Task:
    """The only task of a job."""

    def partitionId(self) -> int:  # noqa: N802 as Spark names it
        return 0

    def cpus(self) -> int:
        return 1

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 as Spark names it
        return f"value of {name}"


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "task_context", Task)
    monkeypatch.setattr(stream, "task_context", Task)


def source(url: str, **options: str) -> DefaultSource:
    return DefaultSource(CaseInsensitiveDict({"path": url, **options}))


def read(url: str, schema: t.StructType | None = None, **options: str) -> tuple[t.StructType, pa.Table]:
    """The schema and the rows that Spark gets, checked as its workers check them."""
    planned = source(url, **options)
    asked = planned.schema() if schema is None else schema
    planned = cloudpickle.loads(cloudpickle.dumps(planned))
    reader: Any = planned.reader(asked)
    partitions = reader.partitions() or [InputPartition(None)]
    reader = cloudpickle.loads(cloudpickle.dumps(reader))

    def batches() -> Iterator[pa.RecordBatch]:
        for partition in partitions:
            yield from records_to_arrow_batches(reader.read(partition), 10_000, asked, planned)

    return asked, pa.Table.from_batches(batches(), worker_schema(asked))


def write(url: str, rows: pa.Table, schema: t.StructType, mode: str = "append", **options: str) -> None:
    """Write rows as Spark hands them over, with times in the zone of a session."""
    writer: Any = source(url, **options).writer(schema, overwrite=mode == "overwrite")
    sent: Any = cloudpickle.loads(cloudpickle.dumps(writer))
    handed = rows.cast(to_arrow_schema(schema, timezone="America/St_Johns"))
    writer.commit([cloudpickle.loads(cloudpickle.dumps(sent.write(iter(handed.to_batches()))))])


def struct(*fields: tuple[str, t.DataType, bool]) -> t.StructType:
    return t.StructType([t.StructField(name, data_type, nullable) for name, data_type, nullable in fields])


ROWS = pa.table({"id": [1, 2], "name": ["a", None]})
SCHEMA = struct(("id", t.LongType(), False), ("name", t.StringType(), True))


@pytest.mark.parametrize("name", ["orders", "my orders", "täble", "100%25", "a+b&c=d", "a#b"])
def test_a_url_names_the_table_that_pds_opens(tmp_path: Path, name: str) -> None:
    """A file:// URL is encoded, so a name with a space has %20 in it."""
    pds.write_table(tmp_path / name, ROWS)
    for url in ((tmp_path / name).as_uri(), f"{(tmp_path / name).as_uri()}/", str(tmp_path / name)):
        table, place = pds.open_table(url), TablePlace.parse({"path": url})
        assert (place.open().store.url, place.path) == (table.store.url, table.path)
        assert read(url)[1].num_rows == pds.open_table(url).scan().count()
        write(url, ROWS, SCHEMA)
        assert read(url)[1].num_rows == pds.open_table(url).scan().count()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3a://bucket/lake/orders", {}),
        ("abfss://container@account.dfs.core.windows.net/lake/orders", {}),
        ("gcs://bucket/orders/", {}),
        ("az://container/lake/my orders", {"azure_storage_account_name": "account"}),
    ],
)
def test_a_url_of_another_tool(url: str, options: dict[str, str]) -> None:
    store, path = TablePlace.parse({"path": url, **{f"storage.{n}": v for n, v in options.items()}}).split()
    parent, name = open_parent(url, options, None)
    assert (store.url, path) == (parent.url, name)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("orders", "absolute path"),
        ("file:/lake/orders", "absolute path"),
        ("s3://bucket", "must name a folder"),
        ("s3://bucket/orders?sig=secret", "must not have a query"),
        ("memory://name/orders", "executors"),
    ],
)
def test_a_place_that_is_not_valid(url: str, message: str) -> None:
    with pytest.raises(pds.InvalidInput, match=message) as raised:
        TablePlace.parse({"path": url})
    assert "secret" not in str(raised.value)


def test_a_large_file_is_read_by_several_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = pds.WriteOptions(row_group_size=10)
    table = pds.Table.create(pds.Store(tmp_path.as_uri()), "t", ROWS.schema, options=options)
    table.append(pa.table({"id": range(400), "name": [f"name {number}" for number in range(400)]}))
    table.delete("id % 9 = 2")
    counts = []
    for count in (1, 8, 100):
        sizes = {"count": count, "min_bytes": 1, "max_bytes": 1 << 30}
        for module in (table_source, stream):
            monkeypatch.setattr(module, "TASK_SIZES", sizes)
        expected = table.scan().to_pyarrow().to_pylist()
        _, read_rows = read(str(tmp_path / "t"))
        assert read_rows.to_pylist() == expected
        planned = source(str(tmp_path / "t"))
        asked = planned.schema()
        counts.append(len(planned.reader(asked).partitions()))
        reader: Any = planned.streamReader(asked)
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        batches = [batch for part in parts for batch in reader.read(part)]
        assert pa.Table.from_batches(batches).to_pylist() == expected
        counts.append(len(parts))
    assert counts == [1, 1, 8, 8, 40, 40]


def test_a_write_that_is_refused_makes_no_table(tmp_path: Path) -> None:
    url = (tmp_path / "none").as_uri()
    for mode, options, message in [
        ("append", {"ifVersion": "first"}, "must be a number"),
        ("append", {"replaceWhere": "id = 1"}, "needs mode"),
        ("append", {"idempotencyKey": ""}, "1 to 1024 bytes"),
        ("append", {"mergeSchema": "true"}, "no option"),
        ("overwrite", {"replaceWhere": "other = 1"}, "other"),
        ("overwrite", {"replaceWhere": "id >"}, "id >"),
        ("overwrite", {"replaceWhere": "now() > TIMESTAMP '2020-01-01'"}, "now"),
    ]:
        with pytest.raises(pds.InvalidInput, match=message):
            write(url, ROWS, SCHEMA, mode, **options)
    with pytest.raises(pds.NotFound):
        write(url, ROWS, SCHEMA, "overwrite", ifVersion="3")
    with pytest.raises(pds.InvalidType, match="'months'"):
        write(url, ROWS, struct(("months", t.YearMonthIntervalType(), True)))
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_a_write_makes_takes_nulls(tmp_path: Path) -> None:
    """Whatever the plan of the first DataFrame knows of its values, as in tables that Spark makes."""
    url = (tmp_path / "made").as_uri()
    inner = struct(("x", t.LongType(), False))

    def schema(*, nullable: bool) -> t.StructType:
        return struct(
            ("id", t.LongType(), nullable),
            ("list", t.ArrayType(t.LongType(), nullable), nullable),
            ("map", t.MapType(t.StringType(), t.LongType(), nullable), nullable),
            ("struct", inner.toNullable() if nullable else inner, nullable),
        )

    full = {"id": 1, "list": [1], "map": [("a", 1)], "struct": {"x": 1}}
    partial = {"id": None, "list": [None], "map": [("a", None)], "struct": {"x": None}}
    empty = dict.fromkeys(full)
    arrow = worker_schema(schema(nullable=True))
    first, then = pa.Table.from_pylist([full], arrow), pa.Table.from_pylist([partial, empty], arrow)
    write(url, first, schema(nullable=False))
    write(url, then, schema(nullable=True))
    seen, rows = read(url)
    assert seen == schema(nullable=True)
    assert rows.to_pylist() == [full, partial, empty]


def test_names_of_columns_are_matched_as_spark_resolves_them(tmp_path: Path) -> None:
    def columns(*names: str) -> t.StructType:
        return struct(*((name, t.LongType(), True) for name in names))

    def data(*names: str) -> pa.Table:
        return pa.table([[1]] * len(names), names=list(names))

    url = (tmp_path / "orders").as_uri()
    table = pds.write_table(url, data("id", "Amount"))
    write(url, data("AMOUNT", "ID"), columns("AMOUNT", "ID"))
    assert table.refresh().scan().to_pyarrow().to_pylist() == [{"id": 1, "Amount": 1}] * 2
    for names, message in [(("id", "ID"), 'unknown column "ID"'), (("Id", "ID"), "occurs twice")]:
        with pytest.raises(pds.InvalidInput, match=message):
            write(url, data(*names), columns(*names))
    both = pds.write_table(tmp_path / "both", pa.table({"a": [1], "A": [2]}))
    url = f"{both.store.url}/both"
    write(url, data("A"), columns("A"))
    assert both.refresh().scan().to_pyarrow().to_pylist() == [{"a": 1, "A": 2}, {"a": None, "A": 1}]
    write(url, data("a", "A"), columns("a", "A"))
    three = pds.write_table(tmp_path / "three", pa.table({"ab": [1], "aB": [2]}))
    with pytest.raises(pds.InvalidInput, match='unknown column "AB"'):
        write(f"{three.store.url}/three", data("AB"), columns("AB"))


def test_a_key_that_was_used_before_the_columns_changed(tmp_path: Path) -> None:
    url = (tmp_path / "orders").as_uri()
    for _ in range(2):
        write(url, ROWS, SCHEMA, idempotencyKey="load 1")
    table = pds.open_table(url)
    table.alter.rename_column("name", "title")
    version = table.version
    write(url, ROWS, SCHEMA, idempotencyKey="load 1")
    assert table.refresh().version == version
    assert table.scan().count() == 2


def test_a_schema_that_differs_in_nulls_and_comments(tmp_path: Path) -> None:
    """A schema in DDL has nulls everywhere."""
    url = (tmp_path / "orders").as_uri()
    part = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    stored = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("list", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
            pa.field("deep", pa.list_(pa.field("element", part, nullable=False))),
            pa.field("map", pa.map_(pa.string(), pa.field("value", part, nullable=False))),
        ]
    )
    rows = pa.Table.from_pylist([{"id": 1, "list": [1, 2], "deep": [{"x": 3}], "map": [("k", {"x": 4})]}], stored)
    pds.write_table(url, rows)
    own, expected = read(url)
    asked = own.toNullable()
    assert asked != own
    asked.fields[2].dataType.elementType.fields[0].metadata["comment"] = "a number"
    assert read(url, asked)[1].to_pylist() == expected.to_pylist() == rows.to_pylist()
    for name, bad, message in [
        ("id", t.StringType(), "is bigint, not string"),
        ("list", t.ArrayType(t.IntegerType()), "is array<bigint>, not array<int>"),
        ("deep", t.ArrayType(struct(("y", t.LongType(), True))), "x:bigint>>, not array<struct<y"),
    ]:
        with pytest.raises(pds.InvalidInput, match=message):
            read(url, struct((name, bad, True)))
    nullable = pds.write_table(tmp_path / "nullable", pa.table({"list": [[1, None]]}))
    with pytest.raises(pds.InvalidInput, match="leave NOT NULL out"):
        read(f"{nullable.store.url}/nullable", struct(("list", t.ArrayType(t.LongType(), containsNull=False), True)))


# Values of types that Spark does not have, and one of Spark's that does not fit.
UTC = dt.UTC
NARROW: dict[str, tuple[pa.Array, Any]] = {
    "uint8": (pa.array([255, None], pa.uint8()), 256),
    "uint16": (pa.array([65535], pa.uint16()), -1),
    "uint32": (pa.array([2**32 - 1], pa.uint32()), 2**32),
    "uint64": (pa.array([2**64 - 1, None], pa.uint64()), Decimal(-1)),
    "seconds": (pa.array([60], pa.timestamp("s")), dt.datetime(2026, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001 that is NTZ
    "milliseconds": (pa.array([1], pa.timestamp("ms", "UTC")), dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    "nanoseconds": (pa.array([1000], pa.timestamp("ns", "UTC")), dt.datetime(9999, 1, 1, tzinfo=UTC)),
    "duration": (pa.array([1], pa.duration("ms")), dt.timedelta(microseconds=1)),
    "time32": (pa.array([1_000], pa.time32("ms")), dt.time(0, 0, 0, 1)),
    "fixed": (pa.array([b"abc", None], pa.binary(3)), b"abcd"),
    "list": (pa.array([[1, None], None], pa.list_(pa.uint8())), [256]),
    "fixed list": (pa.array([[1, 2], None], pa.list_(pa.uint16(), 2)), [1]),
    "date64": (pa.array([dt.date(2026, 1, 1)], pa.date64()), None),
    "uuid": (pa.array([bytes(16), None], pa.uuid()), bytes(15)),
    "map": (pa.array([[(1, 2)], None], pa.map_(pa.uint8(), pa.uint16())), [(1, -1)]),
    "struct": (pa.array([{"x": 1}], pa.struct([("x", pa.uint32())])), {"x": -1}),
}


@pytest.mark.parametrize("case", NARROW)
def test_what_spark_reads_can_be_written_back(tmp_path: Path, case: str) -> None:
    values, bad = NARROW[case]
    url = (tmp_path / "narrow").as_uri()
    table = pds.write_table(url, pa.table({"id": range(len(values)), "value": values}))
    before = table.scan().to_pyarrow()
    schema, rows = read(url)
    write(url, rows, schema)
    assert table.refresh().scan().to_pyarrow().equals(pa.concat_tables([before, before]))
    if bad is None:
        return
    column = schema["value"].dataType
    wrong = pa.table({"value": pa.array([bad], worker_schema(struct(("value", column, True))).field(0).type)})
    with pytest.raises(pds.RemoteStoreError, match="value"):
        write(url, wrong, struct(("value", column, True)))
    assert table.refresh().check().orphans == []
    assert table.scan().count() == 2 * len(values)


@pytest.mark.parametrize("version", ["4.0", "4.1", "newest"])
def test_a_stream_writes_back_what_spark_reads(
    tmp_path: Path, version: str, become_older: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch once, however often it is run."""
    if version != "newest":
        become_older(version)
        monkeypatch.setattr(importlib.import_module("pds.spark.stream"), "task_context", Task)
    url = (tmp_path / "narrow").as_uri()
    values = pa.table({"id": pa.array([1, 2**32 - 1], pa.uint32())})
    table = pds.write_table(url, values)
    schema, rows = read(url)

    def run(batch: int) -> None:
        writer: Any = source(url).streamWriter(schema, overwrite=False)
        assert isinstance(writer, DataSourceStreamWriter)
        # For 4.0, which knows the writers of batch queries only, this is what gets Arrow.
        assert isinstance(writer, DataSourceArrowWriter) == (version == "4.0")
        sent: Any = cloudpickle.loads(cloudpickle.dumps(writer))
        message = cloudpickle.loads(cloudpickle.dumps(sent.write(iter(rows.to_batches()))))
        # Spark makes another one for the commit.
        committing: Any = source(url).streamWriter(schema, overwrite=False)
        committing.commit([message], batch)

    for batch, copies in ((0, 2), (0, 2), (1, 3)):
        run(batch)
        assert table.refresh().scan().to_pyarrow().equals(pa.concat_tables([values] * copies))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_commit_without_what_a_task_has_staged_is_refused(tmp_path: Path, mode: str) -> None:
    url = (tmp_path / "orders").as_uri()
    table = pds.write_table(url, ROWS)
    batches = ROWS.cast(to_arrow_schema(SCHEMA)).to_batches()
    for is_stream in (False, True):
        make = getattr(source(url), "streamWriter" if is_stream else "writer")
        writer: Any = make(SCHEMA, overwrite=mode == "overwrite")
        sent: Any = cloudpickle.loads(cloudpickle.dumps(writer))
        message = sent.write(iter(batches))
        batch = [7] if is_stream else []
        for messages in ([None], [message, None], [None, message], [message, "another"]):
            with pytest.raises(pds.RemoteStoreError, match=rf"1 of {len(messages)} tasks .* run the write anew"):
                writer.commit(messages, *batch)
        writer.abort([message, None], *batch)
    assert table.refresh().version == 1
    assert table.check().orphans == []


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_batch_without_tasks(tmp_path: Path, mode: str) -> None:
    """In mode complete it has all rows of the result: none."""
    url = (tmp_path / "orders").as_uri()
    table = pds.write_table(url, ROWS)
    for batch in (0, 0, 1):
        writer: Any = source(url).streamWriter(SCHEMA, overwrite=mode == "overwrite")
        writer.commit([], batch)
        assert table.refresh().scan().to_pyarrow().equals(ROWS.slice(0, 0) if mode == "overwrite" else ROWS)


def test_a_sink_that_gets_rows_and_no_batches(tmp_path: Path) -> None:
    url = (tmp_path / "orders").as_uri()
    table = pds.write_table(url, ROWS)
    writer: Any = source(url).streamWriter(SCHEMA, overwrite=False)
    sent: Any = cloudpickle.loads(cloudpickle.dumps(writer))
    with pytest.raises(pds.CapabilityNotSupported, match=r"Spark 4\.1 or newer"):
        sent.write(iter([t.Row(id=1, name="a")]))
    assert table.refresh().version == 1


@pytest.mark.parametrize("version", ["4.0", "4.1"])
@pytest.mark.parametrize("option", ["maxFilesPerTrigger", "maxBytesPerTrigger"])
def test_an_older_spark_has_no_limits_of_batches(
    tmp_path: Path, version: str, option: str, become_older: Callable[[str], None]
) -> None:
    url = (tmp_path / "orders").as_uri()
    pds.write_table(url, ROWS)
    become_older(version)
    with pytest.raises(pds.CapabilityNotSupported, match=rf"{option} .* Spark 4\.2"):
        source(url, **{option: "1"}).schema()


def make_versions(url: str) -> pds.Table:
    """A table whose commits have files of many sizes, and say it or not."""

    def some(first: int, count: int) -> pa.Table:
        return pa.table({"id": range(first, first + count), "name": [str(i) * (i % 40) for i in range(count)]})

    table = pds.write_table(url, some(0, 500))
    for first, count in ((500, 10), (510, 3000), (3510, 1), (3511, 700)):
        table.append(some(first, count))
    table.upsert(some(100, 900), on="id")
    table.merge(some(3000, 1500), on="id").when_matched_update_all().when_not_matched_insert_all().execute()
    table.delete("id % 100 = 7")
    table.overwrite(some(200, 50), where="id BETWEEN 200 AND 299")
    table.optimize.compact()
    table.append(some(9000, 20), idempotency_key="k")
    table.overwrite(some(0, 4000))
    for first in range(5000, 5400, 40):
        table.append(some(first, 40))
    return table


def split_greedily(sizes: list[tuple[int, int]], files: int | None, size: int | None) -> list[int]:
    """How many pieces of some files and bytes each batch has."""
    batches: list[list[tuple[int, int]]] = []
    for piece in sizes:
        batch = [*(batches[-1] if batches else []), piece]
        fits = (files is None or sum(count for count, _ in batch) <= files) and (
            size is None or sum(length for _, length in batch) <= size
        )
        if batches and fits:
            batches[-1] = batch
        else:
            batches.append([piece])
    return [len(batch) for batch in batches]


LIMITS = [(None, 1), (None, 2000), (None, 20_000), (None, 1 << 30), (3, None), (3, 20_000), (1, 1 << 30)]


@pytest.mark.parametrize("is_feed", [False, True])
@pytest.mark.parametrize(("files", "size"), LIMITS)
def test_batches_are_as_large_as_is_allowed(tmp_path: Path, files: int | None, size: int | None, is_feed: bool) -> None:
    """Of a table as it is, file by file, and of its commits one by one, by what the lists of files say."""
    url = (tmp_path / "orders").as_uri()
    table = make_versions(url)
    options = {"readChangeFeed": "true"} if is_feed else {"skipChangeCommits": "true"}
    options |= {} if files is None else {"maxFilesPerTrigger": str(files)}
    options |= {} if size is None else {"maxBytesPerTrigger": str(size)}

    def offsets(**more: str) -> list[Any]:
        made = [start_stream(url, **options, **more).initialOffset()]
        while len(made) < 100:
            # A query that is started again after each batch.
            reader = start_stream(url, **options, **more)
            end = json.loads(json.dumps(reader.latestOffset(made[-1], reader.getDefaultReadLimit())))
            if end == made[-1]:
                return made
            made.append(end)
        raise AssertionError(made[-1])

    sizes = [(1, size_bytes) for size_bytes in table.files()["size_bytes"].to_pylist()]
    begins = [offset.get("files", len(sizes)) for offset in offsets()[1:]]
    assert [b - a for a, b in itertools.pairwise([0, *begins])] == split_greedily(sizes, files, size)
    added: list[tuple[int, int]] = []
    for entry in reversed(table.history()):
        known = {} if entry["version"] == 1 else file_sizes(table.as_of(entry["version"] - 1))
        new = {p: n for p, n in file_sizes(table.as_of(entry["version"])).items() if p not in known}
        # The rows of files that were rewritten are no news.
        is_rewrite = entry["operation"]["name"] == "compact"
        added.append((0, 0) if is_rewrite else (len(new), sum(new.values())))
    versions = [offset["version"] for offset in offsets(startingVersion="1")]
    assert [b - a for a, b in itertools.pairwise(versions)] == split_greedily(added, files, size)


def file_sizes(table: pds.Table) -> dict[str, int]:
    listed = table.files()
    return dict(zip(listed["path"].to_pylist(), listed["size_bytes"].to_pylist(), strict=True))


def test_a_query_may_want_all_that_is_there(tmp_path: Path) -> None:
    """Whatever the limits are: `trigger(once=True)`."""
    url = (tmp_path / "orders").as_uri()
    table = make_versions(url)
    reader = start_stream(url, maxBytesPerTrigger="1", maxFilesPerTrigger="1")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert (end["version"], "files" in end) == (table.version, False)
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxFiles)
    assert isinstance(start_stream(url, maxBytesPerTrigger="1").getDefaultReadLimit(), ReadMaxBytes)
    assert isinstance(start_stream(url).getDefaultReadLimit(), ReadAllAvailable)


def test_sizes_are_as_spark_writes_them() -> None:
    sizes = {"1": 1, "12b": 12, "3k": 3 << 10, "3KB": 3 << 10, " 512m ": 512 << 20, "10g": 10 << 30, "1tb": 1 << 40}
    for text, size in (sizes | {"8191P": 8191 << 50, "0010": 10}).items():
        assert parse_bytes({"maxBytesPerTrigger": text}, "maxBytesPerTrigger") == size
    assert parse_bytes({}, "maxBytesPerTrigger") is None
    for text in ("0", "0g", "", "-1", "1.5g", "g", "1 g", "1gib", "1x", "\u0661", "8192p"):
        with pytest.raises(pds.InvalidInput, match="maxBytesPerTrigger must be a number of bytes, or a size"):
            parse_bytes({"maxBytesPerTrigger": text}, "maxBytesPerTrigger")


def test_modules_import_in_an_older_spark() -> None:
    """All but the one that is imported where Spark has limits of batches."""
    code = """if True:
        import importlib, pkgutil, sys
        import pyspark.sql
        from pyspark.sql import datasource, types
        del datasource.DataSourceStreamArrowWriter, types.TimeType
        sys.modules["pyspark.sql.streaming.datasource"] = None
        import pds.spark
        names = {module.name for module in pkgutil.iter_modules(pds.spark.__path__)}
        for name in names - {"admission"}:
            importlib.import_module(f"pds.spark.{name}")
        try:
            importlib.import_module("pds.spark.admission")
        except ImportError:
            print(len(names))
    """
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(printed) > 10


def read_stream(reader: Any, start: Any, end: Any) -> list[int]:
    sent = cloudpickle.loads(cloudpickle.dumps(reader))
    batches = [batch for partition in reader.partitions(start, end) for batch in sent.read(partition)]
    return sorted(number for batch in batches for number in batch["id"].to_pylist())


def start_stream(url: str, **options: str) -> Any:
    planned = source(url, **options)
    return planned.streamReader(planned.schema())


def test_a_checkpoint_moves_between_versions_of_spark(tmp_path: Path, become_older: Callable[[str], None]) -> None:
    """Also one that has some of the files with which the query began."""
    url = (tmp_path / "orders").as_uri()
    table = pds.write_table(url, ROWS.slice(0, 1))
    for number in range(2, 5):
        table.append(pa.table({"id": [number], "name": ["a"]}))
    newer = start_stream(url, maxFilesPerTrigger="3")
    start = newer.initialOffset()
    part = newer.latestOffset(start, newer.getDefaultReadLimit())
    first = read_stream(newer, start, part)
    assert len(first) == 3
    table.append(pa.table({"id": [5], "name": ["a"]}))
    become_older("4.1")
    older = start_stream(url)
    assert older.partitions(part, part) == []
    end = older.latestOffset()
    assert sorted(first + read_stream(older, part, end)) == [1, 2, 3, 4, 5]
    assert older.latestOffset() == end
    table.append(pa.table({"id": [6], "name": ["a"]}))
    again = newer.latestOffset(end, newer.getDefaultReadLimit())
    assert read_stream(newer, end, again) == [6]


@pytest.mark.parametrize("versions", [1, 2, 5])
def test_an_older_spark_notices_a_table_that_was_made_anew(
    tmp_path: Path, versions: int, become_older: Callable[[str], None]
) -> None:
    """Whether it has fewer versions than the query has read, as many or more."""
    become_older("4.1")
    url = (tmp_path / "orders").as_uri()
    pds.write_table(url, ROWS).append(ROWS)
    start = start_stream(url).latestOffset()
    assert start["version"] == 2
    pds.Table.drop(*TablePlace.parse({"path": url}).split())
    again = pds.write_table(url, ROWS)
    for _ in range(versions - 1):
        again.append(ROWS)
    reader = start_stream(url)
    with pytest.raises(pds.InvalidInput, match="created again"):
        reader.partitions(start, reader.latestOffset())


# Spark's own types: values as pyarrow has them in Spark's layout.
TYPES: dict[str, tuple[t.DataType, list[Any]]] = {
    "boolean": (t.BooleanType(), [True]),
    "byte": (t.ByteType(), [-128]),
    "float": (t.FloatType(), [1.5, float("-inf"), -0.0]),
    "decimal": (t.DecimalType(38, 0), [Decimal("9" * 38), Decimal(-1)]),
    "fraction": (t.DecimalType(38, 38), [Decimal("1E-38")]),
    "string": (t.StringType(), ["", "ü\0x"]),
    "collated": (t.StringType("UTF8_LCASE"), ["A", "a"]),
    "binary": (t.BinaryType(), [b"", b"\0\xff"]),
    "date": (t.DateType(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (t.TimestampType(), [dt.datetime(2026, 3, 8, 2, 30, 0, 123456, tzinfo=UTC)]),
    "ntz": (t.TimestampNTZType(), [dt.datetime(2026, 3, 29, 2, 30, 0, 1)]),  # noqa: DTZ001 that is NTZ
    "interval": (t.DayTimeIntervalType(), [dt.timedelta(-1, 2, 3)]),
    "hours": (t.DayTimeIntervalType(1, 1), [dt.timedelta(hours=5)]),
    "time": (t.TimeType(6), [dt.time(23, 59, 59, 999999)]),
    "void": (t.NullType(), []),
    "variant": (t.VariantType(), [{"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}]),
    "vector": (VectorUDT(), [{"type": 1, "size": None, "indices": None, "values": [1.0, 2.0]}]),
    "voids": (t.ArrayType(t.NullType()), [[], [None]]),
    "list": (t.ArrayType(t.LongType(), containsNull=False), [[1, 2], []]),
    "map": (t.MapType(t.StringType(), t.DecimalType(10, 2)), [[("a", Decimal("1.50")), ("b", None)], []]),
    "deep": (
        t.MapType(t.StringType(), t.ArrayType(struct(("at", t.TimestampType(), False)))),
        [[("k", [{"at": dt.datetime(2026, 1, 1, tzinfo=UTC)}, None])]],
    ),
}


@pytest.mark.parametrize("case", TYPES)
def test_a_type_of_spark_comes_back(tmp_path: Path, case: str) -> None:
    data_type, values = TYPES[case]
    schema = struct(("n", t.IntegerType(), False), ("c", data_type, True))
    arrow = worker_schema(schema)
    numbers = pa.array(range(len(values) + 1), pa.int32())
    rows = pa.Table.from_arrays([numbers, pa.array([*values, None], arrow.field("c").type)], schema=arrow)
    url = (tmp_path / "typed").as_uri()
    write(url, rows, schema)
    write(url, rows, schema)
    seen, found = read(url)
    assert seen == schema.toNullable()
    assert found.to_pylist() == [*rows.to_pylist(), *rows.to_pylist()]
    assert frame_schema(pds.open_table(url).schema) == seen


def test_an_empty_partition(tmp_path: Path) -> None:
    url = (tmp_path / "made").as_uri()
    write(url, ROWS.slice(0, 0), SCHEMA)
    assert read(url)[1].num_rows == 0
    write(url, ROWS, SCHEMA)
    assert read(url)[1].num_rows == 2
    assert read(url, where="id > 7")[1].num_rows == 0
    write(url, ROWS.slice(0, 0), SCHEMA, "overwrite")
    assert read(url)[1].num_rows == 0


def test_times_stay_as_they_are_if_a_column_holds_them() -> None:
    """The clauses of merges compute with them, and the engine converts them."""
    for unit, zone, fitting in [("us", "Europe/Berlin", "us"), ("ns", "UTC", "us"), ("ms", "Europe/Berlin", "ms")]:
        rows, stored, fitted = pa.timestamp("us", "UTC"), pa.timestamp(unit, zone), pa.timestamp(fitting, "UTC")
        schema = fit_to_table(
            pa.schema([("at", rows), ("list", pa.list_(rows))]),
            pa.schema([("at", stored), ("list", pa.list_(stored))]),
            case_sensitive=True,
        )
        assert schema.types == [fitted, pa.list_(fitted)]


def test_planning_imports_what_it_needs() -> None:
    """Every process that plans or runs a task imports the source anew."""
    code = "import sys, pds.spark.source; print([name for name in sys.modules if name.startswith('pds.')])"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pds.spark.source" in modules
    others = ("pds.odf", "pds.producers", "pds.spark.changes", "pds.spark.engine")
    assert not [name for name in others if name in modules]


def test_names_of_functions_are_not_those_of_modules() -> None:
    """An import of such a module, or an unpickling of what is in it, would put the module in place of the function."""
    modules = {module.name for module in pkgutil.iter_modules(pds.spark.__path__)}
    assert "session" in modules
    assert not modules.intersection(pds.spark.__all__)
    for turn in ("", "[::-1]"):
        code = f"import pds; print({{name: getattr(pds.spark, name).__name__ for name in dir(pds.spark){turn}}})"
        names = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert ast.literal_eval(names) == {name: name for name in pds.spark.__all__}

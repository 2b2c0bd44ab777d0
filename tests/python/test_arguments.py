"""Arguments of a wrong type or value: each is refused by an error of pds that names it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds
from pds import odf, testing

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = pa.table({"id": [1]})
INT = pa.int64()


@pytest.fixture
def lake(memory_store: pds.Store) -> SimpleNamespace:
    table = pds.Table.create(memory_store, "t", ROWS.schema, key="id")
    table.append(ROWS)
    datasets = pds.ParquetDatasetStore(memory_store)
    manifest = datasets.write_dataset(ROWS, "n")
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("s", key=INT, value=INT)
    stage = pipeline.select(source, key="key", value="value", name="c")
    produce = pipeline.producer(source, key=INT, value=INT, name="f")(lambda key, values: [(key, sum(values))])
    pipeline.update(s=pds.Changes([(1, 2)]))
    chain = odf.Dataset.create(memory_store, "chain")
    chain.ingest(ROWS)
    return SimpleNamespace(
        store=memory_store,
        t=table,
        ds=datasets,
        m=manifest,
        p=pipeline,
        s=source,
        c=stage,
        f=produce,
        chain=chain,
        write=datasets.begin_write("k"),
    )


def declare(lake: Any, **options: Any) -> object:
    return lake.p.producer(lake.s, key=INT, value=INT, name="z", **options)(lambda rows: rows)


CASES: dict[str, list[Callable[[Any], object]]] = {
    "use_stats must be True or False, not 'no'": [lambda o: o.t.scan(use_stats="no")],
    "dry_run must be True or False, not 'no'": [
        lambda o: o.t.vacuum(dry_run="no"),
        lambda o: o.p.vacuum(dry_run="no"),
        lambda o: o.chain.vacuum(dry_run="no"),
    ],
    "hive_partitioning must be True or False, not 'yes'": [lambda o: o.t.add_files("x", hive_partitioning="yes")],
    "exists_ok must be True or False, not 'no'": [
        lambda o: pds.Table.create(o.store, "t", ROWS.schema, key="id", exists_ok="no"),  # type: ignore[arg-type]
        lambda o: pds.Table.create(o.store, "u", ROWS.schema, exists_ok="no"),  # type: ignore[arg-type]
    ],
    "raw_arrow must be True or False, not 'x'": [
        lambda o: o.chain.set_schema(ROWS.schema, raw_arrow="x"),
        lambda _: odf.SetDataSchema.of_arrow(ROWS.schema, raw_arrow="x"),  # type: ignore[arg-type]
    ],
    "older_than must be a number (seconds), not 'x'": [lambda o: o.ds.clean_dataset("n", older_than="x")],
    "older_than must be a number (seconds), not datetime.timedelta(days=1)": [
        lambda o: o.ds.clean_dataset("n", older_than=timedelta(1))
    ],
    "older_than must be a non-negative number of seconds, not -1": [
        lambda o: o.ds.clean_dataset("n", older_than=-1),
    ],
    "older_than must be a non-negative number of seconds, not nan": [
        lambda o: o.ds.clean_dataset("n", older_than=float("nan")),
    ],
    "parts must be a list of the results of prepare": [
        lambda o: o.write.publish(None, ROWS.schema),
        lambda o: o.write.publish([1], ROWS.schema),
        lambda o: o.write.publish("x", ROWS.schema),
        lambda o: o.write.publish([[]], ROWS.schema),
        lambda o: o.write.abort(None),
        lambda o: o.write.abort([1]),
    ],
    "schema must be a pyarrow.Schema, not str": [
        lambda o: o.write.publish([], "x"),
        lambda o: o.write.prepare_empty("x"),
    ],
    "task must be a number of a task up to 9223372036854775807, not": [lambda o: o.write.prepare(ROWS, 10**30)],
    "take_over must be True or False, not 'no'": [
        lambda _: pds.import_delta("nowhere", take_over="no"),  # type: ignore[arg-type]
    ],
    "mode must be a string, not Expression": [
        lambda o: o.t.begin_write(pc.field("id") > 0),
        lambda _: pds.write_table("t", ROWS, mode=pc.field("id") > 0),  # type: ignore[arg-type]
    ],
    "schema_mode must be a string, not Expression": [
        lambda o: o.t.append(ROWS, schema_mode=pc.field("id") > 0),
        lambda _: pds.write_table("t", ROWS, schema_mode=pc.field("id") > 0),  # type: ignore[arg-type]
    ],
    "t must be a pds.Table, a chain, a scan": [
        lambda _: pds.sql("FROM t", t=None),
        lambda _: pds.sql("FROM t", t={1}),
        lambda _: pds.sql("FROM t", t=iter([ROWS])),
    ],
    "the hash of a block must be a string, not int": [
        lambda o: o.chain.block(5),
        lambda o: o.chain.schema(5),
        lambda o: o.chain.scan(as_of=5),
        lambda o: o.chain.verify(at=5),
        lambda _: odf.Block("2026-01-01T00:00:00Z", 5, 1, odf.SetInfo("x")),  # type: ignore[arg-type]
    ],
    "identity must be a string, not int": [
        lambda o: odf.Dataset.create(o.store, "other", identity=5),  # type: ignore[arg-type]
    ],
    "source_state must be a dict, not str": [lambda o: o.chain.ingest(ROWS, source_state="x")],
    "an event cannot contain a value of type bytes": [
        lambda o: o.chain.ingest(ROWS, source_state={"sourceName": "a", "kind": "b", "value": b"x"}),
        lambda o: o.chain.append({"kind": "SetInfo", "description": b"x"}),
        lambda _: odf.Block("2026-01-01T00:00:00Z", None, 0, {"kind": "SetInfo", "description": b"x"}),
    ],
    "a name in an event must be a string, not int": [
        lambda o: o.chain.append({"kind": "SetInfo", 1: "x"}),
        lambda o: o.chain.append(odf.AddData(new_watermark="2030-01-01T00:00:00Z", extra={1: "x"})),
        lambda o: o.chain.ingest(ROWS, source_state={1: "x"}),
    ],
    "the fields of an event must be a dict, not list": [lambda _: odf.Event.of([])],  # type: ignore[arg-type]
    "data must be bytes, not str": [lambda _: odf.Multihash.sha3_256("x")],  # type: ignore[arg-type]
    "filename must be a string, not PosixPath": [lambda _: pds.partition_path(Path("x"))],  # type: ignore[arg-type]
    "filename must be a string, not int": [lambda _: pds.partition_path(5)],  # type: ignore[arg-type]
    "the partition value of 'day' must be a string or an integer, not None": [
        lambda _: pds.partition_path("x", day=None),  # type: ignore[arg-type]
    ],
    "the partition value of 'day' must be a string or an integer, not b'1'": [
        lambda _: pds.partition_path("x", day=b"1"),  # type: ignore[arg-type]
    ],
    "level must be an integer, such as logging.DEBUG, not 'DEBUG'": [
        lambda _: pds.enable_logging("DEBUG"),  # type: ignore[arg-type]
    ],
    "threads must be a positive integer, not 'x'": [lambda o: o.write.prepare(ROWS, threads="x")],
    "threads must be a positive integer, not -1": [lambda o: o.write.prepare(ROWS, threads=-1)],
    "messages must be a list of the results of prepare, not NoneType": [lambda o: o.t.begin_write().commit(None)],
    "index must be a non-negative integer, not '0'": [lambda o: o.ds.read_part("n", o.m, "0")],
    "index must be a non-negative integer, not -1": [lambda o: o.ds.read_part("n", o.m, -1)],
    "index must be a non-negative integer, not False": [lambda o: o.ds.read_part("n", o.m, False)],
    "manifest must be a pds.DatasetManifest, not NoneType": [
        lambda o: o.ds.read_part("n", None, 0),
        lambda o: o.ds.index_parts("n", None),
    ],
    "share must be its number from 0 and the number of shares, such as (0, 2), not 'x'": [
        lambda o: o.ds.read_part("n", o.m, 0, share="x"),
    ],
    "part_index must be the result of index_parts, not str": [
        lambda o: o.ds.read_part("n", o.m, 0, part_index="x"),
    ],
    "rows must be a dict of the values of each key, not list": [lambda o: testing.run(o.f, [(7, 1)])],  # type: ignore[arg-type]
    "rows must be a dict of the values of each key, not NoneType": [lambda o: testing.run(o.f, None)],  # type: ignore[arg-type]
    "rows[7] must be a list of values, not int": [lambda o: testing.run(o.f, {7: 1})],  # type: ignore[dict-item]
    "rows[7] must be a list of values, not str": [lambda o: testing.run(o.f, {7: "ab"})],
    "the name of a source or stage must be a string, not int": [
        lambda o: o.p[5],
        lambda o: o.p.as_of(1)[5],
    ],
    "overwrite must be True or False, not 'no'": [
        lambda o: o.store.write("x", b"", overwrite="no"),
        lambda o: o.store.move("a", "b", overwrite="no"),
        lambda o: o.store.copy("a", "b", overwrite="no"),
    ],
    "missing_ok must be True or False, not 'no'": [
        lambda o: o.store.delete("t/x", missing_ok="no"),
        lambda o: o.store.delete_folder("zz", missing_ok="no"),
    ],
    "recursive must be True or False, not 'no'": [
        lambda o: o.store.delete_folder("t", recursive="no"),
        lambda o: o.store.list_files("", recursive="no"),
    ],
    "batch of 'z' must be True or False, not 'x'": [lambda o: declare(o, batch="x")],
    "max_group_rows of 'z' must be positive, not 0": [
        lambda o: declare(o, batch=True, max_group_rows=0),
        lambda o: declare(o, max_group_rows=0),
    ],
    "max_group_rows of 'z' must be an integer (rows), not 'x'": [lambda o: declare(o, batch=True, max_group_rows="x")],
}


@pytest.mark.parametrize(
    ("says", "call"),
    [pytest.param(says, call, id=f"{says} {i}") for says, calls in CASES.items() for i, call in enumerate(calls)],
)
def test_a_wrong_argument_is_named(lake: Any, says: str, call: Callable[[Any], object]) -> None:
    before = {file.path for file in lake.store.list_files(recursive=True)}
    with pytest.raises(pds.InvalidInput, match=re.escape(says)) as caught:
        call(lake)
    assert isinstance(caught.value, pds.InvalidType) != says.endswith(("-1", "nan", "not 0", ", not"))
    assert {file.path for file in lake.store.list_files(recursive=True)} == before


# What is refused because of its value, or of a text that is not UTF-8.
LATEST = datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))
SURROGATE = "\ud800"
VALUES: list[tuple[str, Callable[[Any], object]]] = [
    ("compression cannot be encoded", lambda _: pds.WriteOptions(SURROGATE)),
    ("option aws_region cannot be encoded", lambda _: pds.Store("s3://bucket", aws_region=SURROGATE)),
    ("the hash of a block cannot be encoded", lambda o: o.chain.schema(SURROGATE)),
    ("identity cannot be encoded", lambda o: odf.Dataset.create(o.store, "other", identity=SURROGATE)),
    ("a time cannot be encoded", lambda o: o.chain.ingest(ROWS, watermark=SURROGATE)),
    ("a text of an event cannot be encoded", lambda o: o.chain.append(odf.SetInfo(SURROGATE))),
    ("after the year 9999 in UTC", lambda o: o.chain.ingest(ROWS, watermark=LATEST)),
    ("after the year 9999 in UTC", lambda o: odf.Dataset.create(o.store, "other", system_time=LATEST)),
    ("SetLicense needs the field 'shortName'", lambda _: odf.Event.of({"kind": "SetLicense", "name": "x"})),
    ("a value is not of type int64.*1.5", lambda o: testing.run(o.f, {7: [1.5]})),
    ("a key is not of type int64.*1.5", lambda o: testing.run(o.f, {1.5: [1]})),
    ("a value is not of type int64", lambda o: testing.run(o.f, {7: [SURROGATE]})),
    ("an expression of 'z' cannot be encoded", lambda o: o.p.select(o.s, where=SURROGATE, name="z")),
    ("an expression of 'z' cannot be encoded", lambda o: declare(o, order_by=SURROGATE)),
    (
        "column of the aggregate 'n' cannot be",
        lambda o: o.p.aggregate(o.s, aggregates={"n": (SURROGATE, "sum")}, name="z"),
    ),
    ("the suffix of 'z' cannot be encoded", lambda o: o.p.join_rows(o.s, o.c, how="left", suffix=SURROGATE, name="z")),
]


@pytest.mark.parametrize(("says", "call"), VALUES)
def test_a_wrong_value_is_named(lake: Any, says: str, call: Callable[[Any], object]) -> None:
    before = {file.path for file in lake.store.list_files(recursive=True)}
    with pytest.raises(pds.InvalidInput, match=says):
        call(lake)
    assert {file.path for file in lake.store.list_files(recursive=True)} == before


def test_a_target_size_beyond_any_file_is_no_limit(lake: Any) -> None:
    lake.chain.ingest(ROWS)
    assert lake.chain.compact(target_bytes=10**30) is not None


@pytest.mark.parametrize("name", ["compression_level", "row_group_size", "max_rows_per_file", "memory_limit"])
@pytest.mark.parametrize("value", [10**30, -(10**30)])
def test_a_number_beyond_those_of_the_engine_is_named(name: str, value: int) -> None:
    with pytest.raises(pds.InvalidInput, match=f"{name} is out of range: {value}"):
        pds.WriteOptions(**{name: value})  # type: ignore[arg-type]


def test_large_positions_and_numbers_of_threads(lake: Any) -> None:
    with pytest.raises(pds.InvalidInput, match=r"there is no part .*; the dataset has 1 parts"):
        lake.ds.read_part("n", lake.m, 10**30)
    parts = lake.write.prepare(ROWS, threads=10**30)
    assert lake.write.publish(parts, ROWS.schema).row_count == 1


def test_any_number_that_is_not_negative_is_a_number_of_seconds(lake: Any) -> None:
    assert lake.ds.clean_dataset("n", older_than=0) == 0
    assert lake.ds.clean_dataset("n", older_than=0.5) == 0

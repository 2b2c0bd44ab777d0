"""Chains: schemas that change while rows are written, values that no file may hold, what is left behind."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from odf_blocks import append_unchecked
from pds import odf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

V = pa.schema([("v", pa.int64())])
DAY = dt.timedelta(days=1)


def _rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"v": list(values)}, V)


def _while_writing(batch: pa.RecordBatch, work: Callable[[], object]) -> pa.RecordBatchReader:
    """A stream in the middle of which something else happens."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch
        work()

    return pa.RecordBatchReader.from_batches(batch.schema, batches())


def _slices(dataset: odf.Dataset) -> list[str]:
    return [info.path for info in dataset.store.list_files(f"{dataset.path}/data", recursive=True)]


def _columns_of_newest(dataset: odf.Dataset) -> list[str]:
    block: Any = next(block.event for block in dataset.log() if block.event.kind == "AddData")
    raw = dataset.store.read_bytes(f"{dataset.path}/data/{block.new_data['physicalHash']}")
    names: list[str] = pq.read_schema(pa.BufferReader(raw)).names
    return names


@pytest.fixture
def dataset(store: pds.Store) -> odf.Dataset:
    return odf.Dataset.create(store, "lake/d")


# -- a schema that changes while rows are written ---------------------------------------


@pytest.mark.parametrize("raw_arrow", [False, True])
def test_a_slice_has_the_columns_of_the_schema_before_it(dataset: odf.Dataset, raw_arrow: bool) -> None:
    dataset.ingest(_rows(1))
    other = odf.Dataset(dataset.store, dataset.path)
    wider = dataset.schema().append(pa.field("w", pa.string()))
    wider = pa.schema([wider.field(name) for name in [*wider.names[:4], "w", "v"]])
    result = dataset.ingest(_while_writing(_rows(2, 3), lambda: other.set_schema(wider, raw_arrow=raw_arrow)))
    assert (result.first_offset, result.last_offset, result.attempts) == (1, 2, 2)
    assert _columns_of_newest(dataset) == wider.names
    assert dataset.scan(["offset", "v", "w"]).to_pyarrow().to_pylist() == [
        {"offset": n, "v": n + 1, "w": None} for n in range(3)
    ]
    assert dataset.verify().rows == 3
    # The slice that was written first is not left behind.
    assert len(_slices(dataset)) == 2


def test_rows_that_do_not_fit_a_schema_that_came_meanwhile_are_refused(dataset: odf.Dataset) -> None:
    dataset.ingest(_rows(1))
    other = odf.Dataset(dataset.store, dataset.path)
    retyped = dataset.schema().set(4, pa.field("v", pa.string()))
    event = odf.SetDataSchema.of_arrow(retyped, raw_arrow=True)
    with pytest.raises(pds.InvalidInput, match=r"string|Utf8"):
        dataset.ingest(_while_writing(_rows(2), lambda: append_unchecked(other, event)))
    assert dataset.last_offset == 0
    assert len(_slices(dataset)) == 1


def test_other_events_meanwhile_cost_no_rewrite(dataset: odf.Dataset) -> None:
    dataset.ingest(_rows(1))
    other = odf.Dataset(dataset.store, dataset.path)
    result = dataset.ingest(_while_writing(_rows(2), lambda: other.append(odf.SetInfo("x"))))
    assert (result.attempts, len(_slices(dataset)), dataset.verify().rows) == (2, 2, 2)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([("v", pa.int64()), ("w", pa.int64())], "columns"),
        ([("v", pa.string())], "string|Utf8"),
    ],
)
def test_verify_finds_a_slice_with_other_columns(
    memory_store: pds.Store, fields: list[tuple[str, pa.DataType]], says: str
) -> None:
    """A chain as a writer makes it that looks at the schema only before it writes."""
    dataset = odf.Dataset.create(memory_store, "d")
    dataset.ingest(_rows(1))
    assert dataset.verify().rows == 1
    system = [dataset.schema().field(n) for n in range(4)]
    schema = pa.schema([*system, *(pa.field(*field) for field in fields)])
    dataset = append_unchecked(dataset, odf.SetDataSchema.of_arrow(schema, raw_arrow=True))
    slice_ = dict(next(b.event for b in dataset.log() if b.event.kind == "AddData").to_dict())
    raw = memory_store.read_bytes(f"d/data/{slice_['newData']['physicalHash']}")
    # The same file once more, with the numbers that follow.
    table = pq.read_table(pa.BufferReader(raw))
    table = table.set_column(0, table.schema.field(0), pa.array([1], pa.int64()))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    raw = sink.getvalue().to_pybytes()
    physical = pds._pds.sha3_256(raw)
    memory_store.write(f"d/data/{physical}", raw)
    slice_["prevOffset"] = 0
    slice_["newData"] = {
        **slice_["newData"],
        "physicalHash": physical,
        "offsetInterval": {"start": 1, "end": 1},
        "size": len(raw),
    }
    dataset.append(slice_)
    with pytest.raises(pds.VerificationFailed, match=says) as caught:
        dataset.verify()
    assert [path for path, _ in caught.value.problems] == [f"d/data/{physical}"]


# -- values that no file may hold ---------------------------------------------------------


def _beyond(kind: pa.DataType) -> pa.Array:
    """A decimal with one digit more than its type, as pyarrow makes them without complaint."""
    width = kind.bit_width // 8
    numbers = [7, 10**kind.precision]
    raw = b"".join(number.to_bytes(width, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(raw)])


KINDS = [pa.decimal32(4, 2), pa.decimal64(9, 2), pa.decimal128(5, 2), pa.decimal128(20, 0), pa.decimal256(39, 3)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("within", ["plain", "struct", "list", "dictionary"])
def test_decimals_with_too_many_digits_are_refused(memory_store: pds.Store, kind: pa.DataType, within: str) -> None:
    column: pa.Array = _beyond(kind)
    if within == "struct":
        column = pa.StructArray.from_arrays([column], ["x"])
    elif within == "list":
        column = pa.ListArray.from_arrays([0, 1, 2], column)
    elif within == "dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), column)
    bad = pa.table({"d": column})
    good = bad.slice(0, 1).combine_chunks()
    if within == "dictionary":
        good = pa.table({"d": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), _beyond(kind).slice(0, 1))})
    datasets = pds.ParquetDatasetStore(memory_store)
    says = rf"\"d\": .*{10**kind.precision // 10**kind.scale}.* more digits"
    with pytest.raises(pds.InvalidInput, match=says):
        datasets.write_dataset(bad, "key")
    assert datasets.list_datasets() == []
    table = pds.Table.create(memory_store, "t", bad.schema)
    with pytest.raises(pds.InvalidInput, match=says):
        table.append(bad)
    assert table.refresh().version == 1
    assert table.check().orphans == []
    datasets.write_dataset(good, "key")
    table.append(good)
    assert table.scan().to_pyarrow()["d"].to_pylist() == good["d"].to_pylist()
    if within == "dictionary":
        return
    chain = odf.Dataset.create(memory_store, "c")
    with pytest.raises(pds.InvalidInput, match="more digits"):
        chain.ingest(bad)
    assert chain.last_offset is None
    assert _slices(chain) == []
    chain.ingest(good)
    assert chain.verify().rows == 1


def test_decimals_under_nulls_may_be_anything(memory_store: pds.Store) -> None:
    kind = pa.decimal128(5, 2)
    whole = _beyond(kind)
    column = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x01"), whole.buffers()[1]])
    listed = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), whole, mask=pa.array([False, True]))
    data = pa.table({"d": column, "l": listed})
    chain = odf.Dataset.create(memory_store, "c")
    chain.ingest(data)
    chain.verify()
    small = decimal.Decimal("0.07")
    assert chain.scan(["d", "l"]).to_pyarrow().to_pylist() == [{"d": small, "l": [small]}, {"d": None, "l": None}]


def test_dates_in_milliseconds_count_only_where_days_are_written(memory_store: pds.Store) -> None:
    """Part of a day is lost where a column becomes days, and nowhere else."""
    noon = pa.array([12 * 3600 * 1000], pa.int64()).view(pa.date64())
    datasets = pds.ParquetDatasetStore(memory_store)
    with pytest.raises(pds.InvalidInput, match="whole day"):
        datasets.write_dataset(pa.table({"d": noon}), "d")
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), noon)
    with pytest.raises(pds.InvalidInput, match="whole day"):
        datasets.write_dataset(pa.table({"d": dictionary}), "d")
    chain = odf.Dataset.create(memory_store, "c")
    chain.ingest(pa.table({"v": [1], "at": noon}), event_time="at")
    assert chain.scan(["event_time"]).to_pyarrow()["event_time"].to_pylist() == [
        dt.datetime(1970, 1, 1, 12, tzinfo=dt.UTC)
    ]


def test_keys_under_a_null_list_may_be_anything(memory_store: pds.Store) -> None:
    keys = pa.array([0, 99, 1], pa.int32())
    items = pa.DictionaryArray.from_arrays(keys, pa.array(["a", "b"]), safe=False)
    kind = pa.list_(pa.field("item", items.type, nullable=False))
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), items, type=kind, mask=pa.array([False, True, False])
    )
    want = [["a"], None, ["b"]]
    chain = odf.Dataset.create(memory_store, "c")
    chain.ingest(pa.table({"l": lists}))
    chain.verify()
    assert chain.scan(["l"]).to_pyarrow()["l"].to_pylist() == want
    datasets = pds.ParquetDatasetStore(memory_store)
    datasets.write_dataset(pa.table({"l": lists}), "d")
    assert datasets.read_dataset("d")["l"].to_pylist() == want


# -- metadata --------------------------------------------------------------------------


def test_numbers_and_nested_attributes_come_back_from_bytes_and_text(dataset: odf.Dataset) -> None:
    nested: Any = "deep"
    for level in range(60):
        nested = {f"k{level}": nested} if level % 2 else [nested]
    extra = {
        "big": 444444444444444444444444444444444444444444.0,
        "third": 1 / 3,
        "least": 5e-324,
        "most": 1.7976931348623157e308,
        "nested": nested,
    }
    dataset.append(odf.SetVocab())
    event = odf.AddData(new_watermark=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), extra=extra)
    block = dataset.append(event)
    for found in (odf.Block.from_bytes(block.to_bytes()), odf.Block.from_yaml(block.to_yaml()), dataset.log(1)[0]):
        made: Any = found.event
        assert json.dumps(made.extra, sort_keys=True) == json.dumps(extra, sort_keys=True)
        assert found.hash == block.hash


def test_an_interrupt_in_a_stream_stays_one(dataset: odf.Dataset) -> None:
    def interrupted(kind: type[BaseException]) -> pa.RecordBatchReader:
        def work() -> None:
            raise kind

        return _while_writing(_rows(1), work)

    table = pds.Table.create(dataset.store, "t", V)
    datasets = pds.ParquetDatasetStore(dataset.store)
    for kind in (KeyboardInterrupt, SystemExit):
        for write in (dataset.ingest, table.append, lambda data: datasets.write_dataset(data, "d")):
            with pytest.raises(kind):
                write(interrupted(kind))
    assert _slices(dataset) == []


# -- what is left behind ---------------------------------------------------------------


def _age(store_root: Path, days: float) -> None:
    """Makes all objects older."""
    moment = (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).timestamp()
    for path in store_root.rglob("*"):
        if path.is_file():
            os.utime(path, (moment, moment))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def local(folder: Path) -> odf.Dataset:
    return odf.Dataset.create(pds.Store(f"file://{folder}"), "d")


def test_vacuum_removes_what_no_reference_leads_to(local: odf.Dataset, folder: Path) -> None:
    for number in range(3):
        local.ingest(_rows(number))
    orphans = [f"d/data/{pds._pds.sha3_256(b'x')}", f"d/blocks/{pds._pds.sha3_256(b'y')}"]
    for path in orphans:
        local.store.write(path, b"x")
    local.store.write("d/data/notes.txt", b"of somebody else")
    needed = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()} - {type(folder)(p) for p in orphans}
    # They are young: a write may still come to them.
    assert local.vacuum().files == []
    _age(folder, 8)
    names = sorted(path.removeprefix("d/") for path in orphans)
    assert local.vacuum(dry_run=True).files == names
    assert local.vacuum(older_than=9 * DAY).files == []
    result = local.vacuum()
    assert (result.files, result.bytes) == (names, 2)
    assert {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()} == needed
    assert local.verify().rows == 3
    assert local.vacuum().files == []


def test_a_compaction_names_no_block_that_another_left_behind(tmp_path: Path) -> None:
    rows = _rows(1, 2, 3)
    dataset = odf.Dataset.create(pds.Store((tmp_path / "once").as_uri()), "d")
    dataset.ingest(rows)
    dataset.append(odf.SetInfo("between"))
    dataset.ingest(rows)
    shutil.copytree(tmp_path / "once", tmp_path / "again")
    moved: list[odf.Block] = []
    for name in ("once", "again"):
        dataset = odf.Dataset(pds.Store((tmp_path / name).as_uri()), "d")
        assert dataset.compact() is not None
        moved += [block for block in dataset.log() if isinstance(block.event, odf.SetInfo)]
        assert dataset.verify().rows == 6
        # A compaction that failed before it moved the head left this: a vacuum may be about to remove it.
        left = f"d/blocks/{moved[0].hash}"
        if name == "once":
            shutil.copy(tmp_path / "once" / left, tmp_path / "again" / left)
    assert moved[0].event == moved[1].event
    assert moved[0].hash != moved[1].hash
    assert moved[0].system_time <= moved[1].system_time


def test_vacuum_keeps_what_a_compaction_replaced_for_a_while(local: odf.Dataset, folder: Path) -> None:
    for number in range(4):
        local.ingest(_rows(number))
    moment = local.log(2)[1].system_time
    before = local.head
    _age(folder, 30)
    done = local.compact()
    assert done is not None
    # The slices are old, and the compaction is not: whoever reads the chain as it was can go on.
    assert local.vacuum().files == []
    assert local.verify(at=before).rows == 4
    assert local.scan(as_of=moment).count() == 3
    _age(folder, 30)
    removed = local.vacuum().files
    assert sum(path.startswith("data/") for path in removed) == 4
    assert local.verify().rows == 4
    # What was there then cannot be told any more, and is not told wrongly.
    fresh = odf.Dataset(local.store, "d")
    with pytest.raises(pds.VersionExpired, match="merged"):
        fresh.scan(as_of=moment).count()
    assert fresh.scan().count() == 4


def test_what_a_vacuum_took_from_a_scan_has_expired(local: odf.Dataset, folder: Path) -> None:
    for number in range(3):
        local.ingest(_rows(number))
    before = local.head
    held, filtered = local.scan(), local.scan(where="v >= 0", as_of=before)
    assert local.compact() is not None
    _age(folder, 30)
    assert sum(path.startswith("data/") for path in local.vacuum().files) == 3
    for read in (held.to_pyarrow, held.to_ledger, filtered.count, filtered.to_pyarrow):
        with pytest.raises(pds.VersionExpired, match=r"has been vacuumed.*scan the dataset again"):
            read()
    fresh = odf.Dataset(local.store, "d")
    with pytest.raises(pds.VersionExpired, match="scan the newest block") as caught:
        fresh.scan(as_of=before)
    assert before in str(caught.value)
    assert fresh.scan().to_pyarrow()["v"].to_pylist() == [0, 1, 2]


def test_what_a_vacuum_took_from_other_engines_has_expired(local: odf.Dataset, folder: Path) -> None:
    for number in range(3):
        local.ingest(_rows(number))
    lazy = pds.scan_polars((folder / "d").as_uri())
    relations = [pds.sql("SELECT v FROM d WHERE v >= 0", d=local), pds.sql(f"SELECT count(*) FROM '{folder}/d'")]  # noqa: S608 ours
    assert local.compact() is not None
    _age(folder, 30)
    assert sum(path.startswith("data/") for path in local.vacuum().files) == 3
    for query in (lazy, lazy.select("v").filter(pl.col("v") > 0), lazy.head(1), lazy.select(pl.len())):
        with pytest.raises(pds.VersionExpired, match=r"has been vacuumed.*scan the dataset again"):
            query.collect()
    for relation in relations:
        with pytest.raises(duckdb.Error, match=r"VersionExpired.*has been vacuumed"):
            relation.fetchall()
    assert pds.scan_polars((folder / "d").as_uri()).collect()["v"].to_list() == [0, 1, 2]
    assert pds.sql("SELECT v FROM d ORDER BY v", d=local).fetchall() == [(0,), (1,), (2,)]


def test_a_slice_that_the_newest_block_names_has_not_expired(local: odf.Dataset) -> None:
    first = local.ingest(_rows(1))
    old = local.scan()
    local.ingest(_rows(2))
    local.store.delete(f"d/data/{first.physical_hash}")
    for scan in (old, local.scan()):
        with pytest.raises(pds.PartCorrupted, match="missing"):
            scan.to_pyarrow()
    # Nor has a block that is damaged, or that the newest one follows.
    middle = local.log()[1].hash
    local.store.write(f"d/blocks/{middle}", b"damaged", overwrite=True)
    with pytest.raises(pds.BlockCorrupted):
        odf.Dataset(local.store, "d").scan(as_of=middle)
    local.store.delete(f"d/blocks/{middle}")
    with pytest.raises(pds.BlockCorrupted):
        odf.Dataset(local.store, "d").scan(as_of=middle)


def test_vacuum_keeps_what_any_reference_leads_to(local: odf.Dataset, folder: Path) -> None:
    local.ingest(_rows(1))
    branch = local.head
    local.store.write("d/refs/older", branch.encode())
    # Somebody moves the head back to the first block.
    seed = local.log()[-1].hash
    local.store.write("d/refs/head", seed.encode(), overwrite=True)
    _age(folder, 8)
    assert local.vacuum().files == []
    local.store.write("d/refs/older", b"no hash", overwrite=True)
    with pytest.raises(pds.BlockCorrupted):
        local.vacuum()
    local.store.delete("d/refs/older")
    assert len(local.vacuum().files) == 3


def test_vacuum_leaves_a_broken_chain_alone(local: odf.Dataset, folder: Path) -> None:
    local.ingest(_rows(1))
    orphan = f"d/data/{pds._pds.sha3_256(b'x')}"
    local.store.write(orphan, b"x")
    _age(folder, 8)
    local.store.delete(f"d/blocks/{local.log()[1].hash}")
    with pytest.raises(pds.BlockCorrupted):
        local.vacuum()
    assert local.store.exists(orphan)


def test_vacuum_takes_no_age_at_which_writes_are_under_way(local: odf.Dataset) -> None:
    with pytest.raises(pds.InvalidInput, match="2 days"):
        local.vacuum(older_than=DAY)
    with pytest.raises(pds.InvalidType):
        local.vacuum(older_than=5)  # type: ignore[arg-type]


def test_a_folder_has_a_chain_or_versions_or_a_dataset(store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64())])
    rows, datasets = pa.table({"id": [1]}), pds.ParquetDatasetStore(store)

    def update(name: str) -> None:
        pipeline = pds.Pipeline(store, name)
        pipeline.source("s", key=pa.int64(), value=pa.int64())
        pipeline.update(s=pds.Changes([(1, 1)]))

    makers: dict[str, Callable[[str], object]] = {
        "chain": lambda name: odf.Dataset.create(store, name),
        "table": lambda name: pds.Table.create(store, name, schema),
        "pipeline": update,
        "dataset": lambda name: datasets.write_dataset(rows, name),
    }
    for name, make in makers.items():
        make(name)
    calls = {
        (name, other): lambda name=name, make=make: make(name)
        for name in makers
        for other, make in makers.items()
        if name != other and {name, other} != {"table", "pipeline"}
    }
    calls["chain", "overwrite"] = lambda: datasets.write_dataset(rows, "chain", overwrite=True)
    before = sorted(file.path for file in store.list_files("", recursive=True))
    for names, call in calls.items():
        with pytest.raises(pds.InvalidPath, match="needs a folder of its own"):
            call()
        assert sorted(file.path for file in store.list_files("", recursive=True)) == before, names

"""Datasets of the Open Data Fabric: what a user does with them, and what another reader finds."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import independent_odf
import pds
from pds import cli, odf
from scripted_s3 import BUCKET, ScriptedS3

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3Server

UTC = dt.UTC
SYSTEM = ["offset", "op", "system_time", "event_time"]


def weather(first: int, rows: int, *, step: str = "ms") -> pa.Table:
    """Rows with their own column of times."""
    start = dt.datetime(2026, 1, 1, tzinfo=UTC)
    times = [start + dt.timedelta(minutes=first + index) for index in range(rows)]
    return pa.table(
        {
            "at": pa.array(times, pa.timestamp(step, "UTC")),
            "city": pa.array([["Riga", "Oslo", None][(first + index) % 3] for index in range(rows)], pa.string()),
            "celsius": pa.array([(first + index) / 2 for index in range(rows)], pa.float64()),
        }
    )


def kinds(blocks: list[odf.Block]) -> list[str]:
    return [block.event.kind for block in blocks]


def raw_of(store: pds.Store, path: str) -> bytes:
    return store.read_bytes(path)


@pytest.fixture
def dataset(store: pds.Store) -> odf.Dataset:
    return odf.Dataset.create(store, "lake/weather")


def test_the_first_rows_bring_the_schema(dataset: odf.Dataset) -> None:
    rows = weather(0, 10)
    began = dt.datetime.now(UTC)
    began = began.replace(microsecond=began.microsecond // 1000 * 1000)
    result = dataset.ingest(rows, event_time="at")
    assert (result.rows, result.first_offset, result.last_offset) == (10, 0, 9)
    assert kinds(dataset.log()) == ["AddData", "SetDataSchema", "Seed"]
    schema = dataset.schema()
    assert schema.names == [*SYSTEM, "city", "celsius"]
    assert schema.field("offset").type == pa.int64()
    assert schema.field("op").type == pa.int32()
    assert schema.field("system_time").type == pa.timestamp("ms", "UTC")
    assert schema.field("event_time").type == pa.timestamp("ms", "UTC")
    found = dataset.scan().to_pyarrow()
    assert found.schema == schema
    assert found["offset"].to_pylist() == list(range(10))
    assert found["op"].to_pylist() == [0] * 10
    assert found["event_time"].to_pylist() == rows["at"].to_pylist()
    assert found["celsius"].to_pylist() == rows["celsius"].to_pylist()
    assert dataset.watermark == rows["at"].to_pylist()[-1]
    block = dataset.log(1)[0]
    # They are those of when writing began, and the block was appended after it.
    assert len(set(found["system_time"].to_pylist())) == 1
    milliseconds = block.system_time.replace(microsecond=block.system_time.microsecond // 1000 * 1000)
    assert began <= found["system_time"].to_pylist()[0] <= milliseconds
    checked = dataset.verify()
    assert (checked.blocks, checked.slices, checked.rows) == (3, 1, 10)


def test_rows_go_on_where_the_last_ended(dataset: odf.Dataset) -> None:
    dataset.ingest(weather(0, 4), event_time="at")
    dataset.ingest(weather(4, 3), event_time="at")
    later = dt.datetime(2027, 1, 1, tzinfo=UTC)
    dataset.ingest(weather(7, 1), event_time="at", watermark=later)
    assert dataset.watermark == later
    assert dataset.scan(["offset"]).to_pyarrow()["offset"].to_pylist() == list(range(8))
    assert dataset.scan(["celsius"], where='"offset" BETWEEN 3 AND 4').to_pyarrow()["celsius"].to_pylist() == [1.5, 2.0]
    assert dataset.scan(where=pc.field("celsius") > 3).count() == 1
    plan = dataset.scan(where='"offset" = 5').explain()
    assert (plan.files, plan.files_read) == (3, 1)
    with pytest.raises(pds.InvalidAppend) as caught:
        dataset.ingest(weather(8, 1), event_time="at", watermark=later - dt.timedelta(days=1))
    assert caught.value.rule == "WatermarkIsNotMonotonic"
    # Nothing of it is left.
    assert dataset.verify().rows == 8
    assert len(list(dataset.store.list_files("lake/weather/data"))) == 3


def test_progress_without_rows(dataset: odf.Dataset) -> None:
    none = weather(0, 0)
    assert kinds(dataset.ingest(none, event_time="at").blocks) == ["SetDataSchema"]
    assert dataset.ingest(none, event_time="at").blocks == []
    moment = dt.datetime(2026, 5, 1, tzinfo=UTC)
    assert kinds(dataset.ingest(none, event_time="at", watermark=moment).blocks) == ["AddData"]
    state = {"sourceName": "station", "kind": "odf/etag", "value": "abc"}
    assert kinds(dataset.ingest(none, event_time="at", source_state=state).blocks) == ["AddData"]
    assert dataset.watermark == moment
    with pytest.raises(pds.InvalidAppend, match="Event neither has data"):
        dataset.append(odf.AddData(new_watermark=moment, new_source_state=state))
    assert dataset.scan().to_pyarrow().num_rows == 0
    assert dataset.last_offset is None


def test_times_that_are_missing_are_those_of_writing(dataset: odf.Dataset) -> None:
    rows = pa.table({"event_time": pa.array([None, 1_577_836_800_000_000], pa.timestamp("us")), "v": [1, 2]})
    dataset.ingest(rows)
    found = dataset.scan().to_pyarrow()
    times = found["event_time"].to_pylist()
    assert times[0] == found["system_time"].to_pylist()[0]
    assert times[1] == dt.datetime(2020, 1, 1, tzinfo=UTC)
    dataset.ingest(pa.table({"v": [3]}))
    last = dataset.scan(where="v = 3").to_pyarrow()
    assert last["event_time"].to_pylist() == last["system_time"].to_pylist()


def test_a_vocabulary_names_the_system_columns(dataset: odf.Dataset) -> None:
    dataset.append(odf.SetVocab(offset_column="nr", event_time_column="at"))
    dataset.ingest(weather(0, 3), event_time="at")
    assert dataset.schema().names == ["nr", "op", "system_time", "at", "city", "celsius"]
    assert dataset.scan(["nr"]).to_pyarrow()["nr"].to_pylist() == [0, 1, 2]
    dataset.ingest(weather(3, 3))
    assert dataset.verify().rows == 6


def test_retractions_and_corrections(dataset: odf.Dataset) -> None:
    dataset.ingest(weather(0, 5), event_time="at")
    changed = weather(0, 5)
    fixed = changed.slice(2, 1).set_column(2, "celsius", pa.array([99.0]))
    changes = pa.concat_tables([changed.slice(1, 1), changed.slice(2, 1), fixed])
    dataset.ingest(changes.append_column("op", pa.array([1, 2, 3], pa.int8())), event_time="at")
    ledger = dataset.scan().to_ledger().to_pyarrow()
    assert ledger["celsius"].to_pylist() == [0.0, 1.5, 2.0, 99.0]
    assert "op" not in ledger.column_names
    assert dataset.scan(["celsius"], where="celsius > 50").to_ledger().to_pyarrow().to_pydict() == {"celsius": [99.0]}
    assert dataset.scan(["celsius", "op"]).to_ledger().to_pyarrow()["op"].to_pylist() == [0, 0, 0, 3]
    assert dataset.scan().count() == 8
    dataset.ingest(weather(40, 1).append_column("op", pa.array([1])), event_time="at")
    with pytest.raises(pds.InvalidInput, match="retracts a row that does not exist"):
        dataset.scan().to_ledger()


@pytest.mark.parametrize(
    ("operations", "match"),
    [([2, 0], "correct-to"), ([3, 0], "correct-to"), ([0, 2], "without the correct-to"), ([0, 7], "unknown operation")],
)
def test_operations_that_are_none_are_refused(dataset: odf.Dataset, operations: list[int], match: str) -> None:
    with pytest.raises(pds.InvalidInput, match=match):
        dataset.ingest(weather(0, 2).append_column("op", pa.array(operations)), event_time="at")
    assert kinds(dataset.log()) == ["Seed"]
    assert list(dataset.store.list_files("lake/weather/data")) == []


@pytest.mark.parametrize(
    ("columns", "event_time", "match"),
    [
        ({"offset": [1]}, None, "SetVocab"),
        ({"system_time": [1]}, None, "SetVocab"),
        ({"event_time": ["soon"]}, None, "timestamp or a date"),
        ({"v": [1]}, "at", "unknown column ['\"]at['\"]"),
        ({"op": ["+"]}, None, "whole number"),
        ({"v": pa.array([{"a": 1}], pa.map_(pa.string(), pa.int64()))}, None, "logical hash"),
        ({"v": pa.array([1], pa.duration("s"))}, None, "logical hash"),
    ],
)
def test_columns_that_cannot_be_ingested(
    dataset: odf.Dataset, columns: dict[str, Any], event_time: str | None, match: str
) -> None:
    with pytest.raises(pds.InvalidInput, match=match):
        dataset.ingest(pa.table(columns), event_time=event_time)
    assert kinds(dataset.log()) == ["Seed"]


def test_rows_that_do_not_fit_the_schema_are_refused(dataset: odf.Dataset) -> None:
    dataset.ingest(weather(0, 2), event_time="at")
    with pytest.raises(pds.InvalidInput, match="humidity"):
        dataset.ingest(weather(2, 1).append_column("humidity", pa.array([1])), event_time="at")
    with pytest.raises(pds.InvalidInput, match="celsius"):
        dataset.ingest(weather(2, 1).set_column(2, "celsius", pa.array(["warm"])), event_time="at")
    dataset.ingest(weather(2, 1).drop_columns(["celsius"]), event_time="at")
    assert dataset.scan(["celsius"]).to_pyarrow()["celsius"].to_pylist() == [0.0, 0.5, None]


def test_a_schema_evolves_and_time_travel_shows_the_old_one(dataset: odf.Dataset) -> None:
    dataset.ingest(weather(0, 2), event_time="at")
    before, then = dataset.schema(), dataset.head
    wider = before.append(pa.field("humidity", pa.float32()))
    dataset.set_schema(wider)
    dataset.ingest(weather(2, 1).append_column("humidity", pa.array([0.5], pa.float32())), event_time="at")
    assert dataset.schema() == wider
    assert dataset.schema(at=then) == before
    assert dataset.scan(["humidity"]).to_pyarrow()["humidity"].to_pylist() == [None, None, 0.5]
    old = dataset.scan(as_of=then).to_pyarrow()
    assert (old.num_rows, old.schema) == (2, before)
    moment = dataset.block(then).system_time
    assert dataset.scan(as_of=moment).count() == 2
    with pytest.raises(pds.NotFound, match="begins after"):
        dataset.scan(as_of=dt.datetime(2000, 1, 1, tzinfo=UTC))
    for worse in (
        before.remove(before.get_field_index("city")),
        before.set(4, pa.field("town", pa.string())),
        before.set(4, pa.field("city", pa.int64())),
        before.append(pa.field("needed", pa.int64(), nullable=False)),
    ):
        with pytest.raises(pds.InvalidAppend, match="New schema is not compatible"):
            dataset.set_schema(worse)
    with pytest.raises(pds.InvalidAppend, match="New schema is identical"):
        dataset.set_schema(wider)


def test_a_schema_can_be_set_before_there_are_rows(dataset: odf.Dataset) -> None:
    dataset.set_schema(pa.schema([("city", pa.large_string()), ("celsius", pa.float64())]))
    assert dataset.schema().names == [*SYSTEM, "city", "celsius"]
    dataset.ingest(weather(0, 3), event_time="at")
    found = dataset.scan().to_pyarrow()
    assert found.schema.field("city").type == pa.large_string()
    assert found["city"].to_pylist() == ["Riga", "Oslo", None]


def test_a_schema_in_arrows_own_form(dataset: odf.Dataset) -> None:
    schema = pa.schema([("offset", pa.int64()), ("op", pa.int32()), ("v", pa.list_(pa.int16()))])
    block = dataset.set_schema(schema, raw_arrow=True)
    event: Any = block.event
    assert event.schema is None
    plain = independent_odf.raw_schema(event.to_dict())
    assert plain == dataset.schema() == event.to_arrow()
    assert set(plain.names) == {*SYSTEM, "v"}
    dataset.ingest(pa.table({"v": pa.array([[1, None], None], pa.list_(pa.int16()))}))
    assert dataset.scan(["v"]).to_pyarrow()["v"].to_pylist() == [[1, None], None]
    # From the older form to the newer one, what may be null may change.
    dataset.set_schema(pa.schema([pa.field("offset", pa.int64(), nullable=False), *list(plain)[1:]]))


def test_a_chain_without_a_schema_has_that_of_its_newest_file(store: pds.Store) -> None:
    dataset = odf.Dataset.create(store, "d")
    dataset.ingest(weather(0, 2), event_time="at")
    dataset.ingest(weather(2, 2), event_time="at")
    # As older tools wrote: the same data, and nothing that says its columns.
    seed, _, *data = reversed(dataset.log())
    other = odf.Dataset.create(store, "old", identity=dataset.identity)
    files = list(store.list_files("d/data"))
    for file in files:
        store.write(f"old/data/{file.path.split('/')[-1]}", raw_of(store, str(file.path)))
    previous = other.log()[0]
    for number, block in enumerate(data, 1):
        event: Any = block.event
        made = odf.Block(dt.datetime.now(UTC), previous.hash, number, event)
        store.write(f"old/blocks/{made.hash}", made.to_bytes())
        previous = made
    store.write("old/refs/head", previous.hash.encode(), overwrite=True)
    old = odf.Dataset(store, "old")
    assert old.schema() == dataset.schema()
    assert old.scan().to_pyarrow() == dataset.scan().to_pyarrow()
    assert seed.event.kind == "Seed"
    with pytest.raises(pds.VerificationFailed, match="SetDataSchema event must be present"):
        old.verify()


HASH = odf.Multihash.sha3_256(b"x").value
OTHER = odf.Identity.generate().id
EVERYTHING: list[odf.Event] = [
    odf.SetInfo('What\nit is: "äöü" # no comment', ["a", "true", "1e3", "- x"]),
    odf.SetInfo(keywords=[]),
    odf.SetLicense("CC0", "Creative Commons Zero", "https://example.com/cc0", "CC0-1.0"),
    odf.SetVocab(event_time_column="when"),
    odf.SetAttachments({"kind": "Embedded", "items": [{"path": "README.md", "content": "# Hi\n\n  there \t\n"}]}),
    odf.SetTransform(
        [{"datasetRef": OTHER, "alias": "a"}],
        {
            "kind": "Sql",
            "engine": "flink",
            "version": "1.16",
            "queries": [{"alias": "b", "query": "SELECT 1"}, {"query": "SELECT *\nFROM b"}],
            "temporalTables": [{"name": "t", "primaryKey": ["id"]}],
        },
    ),
    odf.SetPollingSource(
        fetch={
            "kind": "Url",
            "url": "https://example.com/data.zip",
            "eventTime": {"kind": "FromPath", "pattern": "(\\d+)", "timestampFormat": "%Y"},
            "cache": {"kind": "Forever"},
            "headers": [{"name": "A", "value": "b"}],
        },
        prepare=[{"kind": "Decompress", "format": "Zip", "subPath": "*.csv"}, {"kind": "Pipe", "command": ["jq", "."]}],
        read={"kind": "Csv", "separator": ";", "header": False, "inferSchema": True},
        preprocess={"kind": "Sql", "engine": "datafusion", "queries": [{"query": "select 1"}]},
        merge={"kind": "Snapshot", "primaryKey": ["id"], "compareColumns": ["a", "b"]},
    ),
    odf.DisablePollingSource(),
    odf.DisablePushSource("default"),
    odf.SetDataSchema.of_arrow(
        pa.schema(
            [
                pa.field("offset", pa.int64(), nullable=False),
                ("d", pa.decimal128(10, 3)),
                ("t", pa.timestamp("ns", "Europe/Riga")),
                ("s", pa.struct([("a", pa.list_(pa.large_string())), ("b", pa.time64("us"))])),
                ("m", pa.map_(pa.string(), pa.int8())),
                ("f", pa.binary(7)),
                ("l", pa.list_(pa.float32(), 3)),
                ("n", pa.null()),
            ]
        )
    ),
    odf.AddData(
        new_watermark="2026-01-01T00:00:00.000000001Z",
        extra={"example.com/b": [1, {"z": 1, "a": None}], "example.com/a": "x"},
    ),
    odf.AddData(
        new_data={"logicalHash": HASH, "physicalHash": HASH, "offsetInterval": {"start": 0, "end": 2**63}, "size": 0},
        new_checkpoint={"physicalHash": HASH, "size": 5},
        new_watermark="2026-01-01T00:00:00.000000001Z",
        new_source_state={"sourceName": "default", "kind": "odf/etag", "value": ""},
    ),
    odf.ExecuteTransform(
        [{"datasetId": OTHER, "newBlockHash": HASH, "newOffset": 0}],
        prev_checkpoint=HASH,
        prev_offset=2**63,
        new_checkpoint={"physicalHash": HASH, "size": 5},
        new_watermark="2026-01-02T00:00:00.5Z",
    ),
]


def test_every_kind_of_event_is_read_by_another_reader(dataset: odf.Dataset) -> None:
    push = odf.AddPushSource(
        "default",
        {
            "kind": "NdJson",
            "schema": {"fields": [{"name": "a", "type": {"kind": "Option", "inner": {"kind": "UInt8"}}}]},
        },
        {"kind": "Ledger", "primaryKey": ["id"]},
    )
    previous = dataset.log()[0]
    blocks = [previous]
    # A push source does not go with a polling source in one chain: it is encoded all the same.
    for event in [*EVERYTHING, push]:
        previous = odf.Block("2026-11-22T01:02:03.000456Z", previous.hash, previous.sequence_number + 1, event)
        blocks.append(previous)
    before = None
    for block in blocks:
        found = independent_odf.read_block(block.to_bytes())
        assert independent_odf.sha3(block.to_bytes()) == block.hash
        assert found["prevBlockHash"] == before
        assert found["sequenceNumber"] == block.sequence_number
        assert found["version"] == 3
        assert found["event"] == block.event.to_dict()
        assert odf.Block.from_bytes(block.to_bytes()).encode() == block.to_bytes()
        again = odf.Block.from_yaml(block.to_yaml())
        assert again == block, block.to_yaml()
        before = block.hash
    for block in blocks[1:-1]:
        dataset.append(block.event)
    assert len(dataset.verify(data=False).__dict__) == 3
    assert kinds(dataset.log())[::-1] == [block.event.kind for block in blocks[:-1]]


def test_files_and_folders_are_those_of_the_specification(dataset: odf.Dataset) -> None:
    result = dataset.ingest(weather(0, 3), event_time="at")
    store = dataset.store
    head = raw_of(store, "lake/weather/refs/head")
    assert head.decode() == dataset.head
    for block in dataset.log():
        raw = raw_of(store, f"lake/weather/blocks/{block.hash}")
        assert independent_odf.sha3(raw) == block.hash
    raw = raw_of(store, f"lake/weather/data/{result.physical_hash}")
    assert independent_odf.sha3(raw) == result.physical_hash
    assert result.logical_hash is not None
    assert result.logical_hash.startswith("f9680c00120")
    assert len(raw) == result.bytes
    assert pq.read_table(io.BytesIO(raw)).equals(dataset.scan().to_pyarrow())
    assert {str(file.path).split("/")[2] for file in store.list_files("lake/weather", recursive=True)} == {
        "blocks",
        "data",
        "refs",
    }


def test_blocks_are_values(dataset: odf.Dataset) -> None:
    block = dataset.log()[0]
    assert pickle.loads(pickle.dumps(block)) == block  # noqa: S301 our own
    assert {block, odf.Block.from_bytes(block.to_bytes())} == {block}
    assert dataset.block(block.hash) == block
    assert str(dataset.identity) == dataset.identity.id
    if "memory" not in repr(dataset):
        assert pickle.loads(pickle.dumps(dataset)).head == dataset.head  # noqa: S301 our own
    for raw in (b"", b"nothing", block.to_bytes()[:-3]):
        with pytest.raises(pds.BlockCorrupted):
            odf.Block.from_bytes(raw)
    with pytest.raises(pds.InvalidType):
        odf.Block.from_bytes("text")  # type: ignore[arg-type]
    now = dt.datetime.now(UTC)
    for number in (-1, 2**64):
        with pytest.raises(pds.InvalidInput, match="sequence_number"):
            odf.Block(now, block.hash, number, odf.SetInfo("about"))
    with pytest.raises(pds.InvalidType, match="sequence_number"):
        odf.Block(now, block.hash, "1", odf.SetInfo("about"))  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidType, match="data"):
        dataset.verify(data="all")  # type: ignore[arg-type]


def test_rows_that_are_not_what_their_schema_says_are_refused(dataset: odf.Dataset) -> None:
    required = pa.schema([pa.field("city", pa.string(), nullable=False)])
    rows = pa.table({"city": pa.array(["Riga", None])}, schema=required)
    with pytest.raises(pds.InvalidInput, match="city"):
        dataset.ingest(rows)
    assert len(dataset.log()) == 1


_ITEM = pa.field("item", pa.int32(), nullable=False)
_WHOLE = pa.struct([pa.field("text", pa.string(), nullable=False)])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, None], [3]], pa.list_(_ITEM)),
        pa.FixedSizeListArray.from_arrays(pa.array([1, None, 2, 3], pa.int32()), type=pa.list_(_ITEM, 2)),
        pa.array([{"text": "a"}, {"text": None}], _WHOLE),
        pa.array([[{"text": None}], []], pa.list_(_WHOLE)),
        pa.StructArray.from_arrays([pa.array([86_400_007, 0], pa.int64()).view(pa.date64())], ["day"]),
        pa.ListArray.from_arrays([0, 1, 2], pa.array([86_400_007, 0], pa.int64()).view(pa.date64())),
    ],
    ids=["list", "fixed", "struct", "struct in list", "day in struct", "day in list"],
)
def test_what_parquet_cannot_hold_within_a_column_is_refused(store: pds.Store, column: pa.Array) -> None:
    dataset = odf.Dataset.create(store, "lake/other")
    with pytest.raises(pds.InvalidInput, match="found"):
        dataset.ingest(pa.table({"found": column}))
    assert len(dataset.log()) == 1
    assert not [file for file in store.list_files("lake/other", recursive=True) if "data" in str(file.path)]
    with pytest.raises(pds.InvalidInput, match="found"):
        pds.ParquetDatasetStore(store).write_dataset(pa.table({"found": column}), "lake/plain")


_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"v": [1, 2]}, None], pa.struct([pa.field("v", pa.list_(_ITEM, 2))])),
        pa.array([{"v": [1, 2]}, {"v": None}], pa.struct([pa.field("v", pa.list_(_ITEM, 2))])),
        pa.array([{"v": "a"}, None], pa.struct([pa.field("v", pa.string(), nullable=False)])),
        pa.StructArray.from_arrays([_TEXT], ["t"]),
        pa.array([[1], None, [2, 3]], pa.list_(_ITEM)).slice(1),
    ],
    ids=["fixed in null", "null fixed", "required in null", "not text under a null", "sliced list"],
)
def test_what_is_hidden_under_nulls_does_not_matter(dataset: odf.Dataset, column: pa.Array) -> None:
    dataset.ingest(pa.table({"found": column}))
    assert dataset.verify().slices == 1
    assert dataset.scan().to_pyarrow()["found"].to_pylist() == column.to_pylist()


def test_long_views_are_hashed_in_pieces(dataset: odf.Dataset) -> None:
    texts = pa.array(["x" * 100_000, "", "y" * 13] * 40, pa.string_view())
    dataset.ingest(pa.table({"text": texts}))
    assert dataset.verify().rows == len(texts)


def test_events_of_a_later_release_are_kept(dataset: odf.Dataset) -> None:
    seed = dataset.log()[0]
    # The event's number is beyond those that are known.
    known = odf.Block(dt.datetime.now(UTC), seed.hash, 1, odf.DisablePollingSource()).to_bytes()
    places = [at for at in range(len(known)) if known[at] == 13]
    candidates = [known[:at] + bytes([14]) + known[at + 1 :] for at in places]
    readable = []
    for raw in candidates:
        try:
            block = odf.Block.from_bytes(raw)
        except pds.RemoteStoreError:
            continue
        if block.event.kind == "Unknown":
            readable.append(block)
    (block,) = readable
    assert isinstance(block.event, odf.UnknownEvent)
    assert block.event.fields["tag"] == 14
    dataset.append(block)
    assert dataset.log()[0].to_bytes() == block.to_bytes()
    assert odf.Block.from_yaml(block.to_yaml()) == block
    with pytest.raises(pds.FormatNotSupported):
        block.encode()
    dataset.append(odf.SetInfo("after"))
    assert kinds(dataset.log()) == ["SetInfo", "Unknown", "Seed"]
    dataset.verify()


def test_what_cannot_be_appended(dataset: odf.Dataset) -> None:
    for wrong in (odf.SetLicense("a", "b", None), {"kind": "SetInfo", "descriptions": "x"}, {"kind": "No"}, {}):  # type: ignore[arg-type]
        with pytest.raises(pds.InvalidInput):
            dataset.append(wrong)  # type: ignore[arg-type]
    for nothing in ([], "text", [1]):
        with pytest.raises(pds.InvalidInput):
            dataset.append(nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        dataset.append(odf.SetInfo(object))  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidAppend) as caught:
        dataset.append([odf.SetInfo("x"), odf.SetInfo("x")])
    assert caught.value.rule == "NoOpEvent"
    assert kinds(dataset.log()) == ["Seed"]
    stale = dataset.head
    dataset.append(odf.SetInfo("y"))
    with pytest.raises(pds.CommitConflict, match="the head is"):
        dataset.append(odf.Block(dt.datetime.now(UTC), stale, 1, odf.SetInfo("z")))
    with pytest.raises(pds.AlreadyExists):
        odf.Dataset.create(dataset.store, dataset.path)
    with pytest.raises(pds.NotFound):
        odf.Dataset(dataset.store, "elsewhere")
    assert not odf.Dataset.exists(dataset.store, "elsewhere")
    with pytest.raises(pds.InvalidInput, match="time zone"):
        dataset.scan(as_of=dt.datetime(2026, 1, 1))  # noqa: DTZ001 that is the point


def test_what_is_missing_is_told(dataset: odf.Dataset) -> None:
    with pytest.raises(pds.NotFound, match="no schema"):
        dataset.schema()
    with pytest.raises(pds.NotFound, match="no schema"):
        dataset.scan()
    result = dataset.ingest(weather(0, 3), event_time="at")
    with pytest.raises(pds.InvalidInput, match="unknown column"):
        dataset.scan(["nothing"])
    dataset.store.delete(f"lake/weather/data/{result.physical_hash}")
    with pytest.raises(pds.VerificationFailed, match="missing") as caught:
        dataset.verify()
    assert [path for path, _ in caught.value.problems] == [f"lake/weather/data/{result.physical_hash}"]
    assert dataset.verify(data=False).blocks == 3


def test_the_logical_hash_is_that_of_the_rows(store: pds.Store) -> None:
    types = {
        "b": pa.array([True, None, False]),
        "i": pa.array([1, None, -3], pa.int16()),
        "f": pa.array([1.5, None, float("nan")], pa.float32()),
        "s": pa.array(["a", None, ""], pa.large_string()),
        "x": pa.array([b"a", None, b""], pa.binary()),
        "z": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "d": pa.array([1, None, 3], pa.date32()),
        "t": pa.array([1, None, 3], pa.time32("ms")),
        "n": pa.array([1, None, 3], pa.timestamp("ns")),
        "q": pa.array([1, None, 3], pa.int64()).cast(pa.decimal128(20, 0)),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "w": pa.array(
            [{"a": 1, "b": None}, None, {"a": None, "b": "x"}], pa.struct([("a", pa.int8()), ("b", pa.string())])
        ),
        "c": pa.array(["a", None, "a"]).dictionary_encode(),
    }
    hashes = set()
    for options in (pds.WriteOptions(), pds.WriteOptions(compression="snappy", row_group_size=1)):
        dataset = odf.Dataset.create(store, f"d{len(hashes)}", options=options)
        moment = pa.array([1_767_225_600_000] * 3, pa.timestamp("ms"))
        dataset.ingest(pa.table({"event_time": moment, **types}))
        dataset.verify()
        found = dataset.scan().to_pyarrow()
        for name, column in types.items():
            plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            assert str(found[name].to_pylist()) == str(plain.to_pylist()), name
        hashes.add(len(hashes))


def test_threads_that_race_lose_nothing(store: pds.Store) -> None:
    odf.Dataset.create(store, "race")

    def write(writer: int) -> None:
        mine = odf.Dataset(store, "race")
        for number in range(4):
            mine.ingest(pa.table({"writer": [writer] * 3, "number": [number] * 3}))
            mine.append(odf.SetInfo(f"{writer}/{number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    dataset = odf.Dataset(store, "race")
    assert dataset.verify().rows == 48
    rows = dataset.scan(["writer", "number"]).to_pyarrow().to_pylist()
    assert len({(row["writer"], row["number"]) for row in rows}) == 16
    infos: list[Any] = [block.event for block in dataset.log() if block.event.kind == "SetInfo"]
    assert len({event.description for event in infos}) == 16


WRITER = """
import json, sys
import pyarrow as pa
import pds
url, options, writer, rounds = json.loads(sys.argv[1])
dataset = pds.odf.Dataset(pds.Store(url, storage_options=options), "race")
for number in range(rounds):
    dataset.ingest(pa.table({"writer": [writer], "number": [number]}))
    dataset.append(pds.odf.SetInfo(f"{writer}/{number}"))
"""


def test_processes_that_race_on_s3_lose_no_block(s3_server: S3Server, s3_prefix: str) -> None:
    url, options = s3_server.url(s3_prefix), s3_server.options()
    store = pds.Store(url, storage_options=options)
    odf.Dataset.create(store, "race")
    rounds = 8
    arguments = [json.dumps([url, options, writer, rounds]) for writer in range(2)]
    running = [subprocess.Popen([sys.executable, "-c", WRITER, argument]) for argument in arguments]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    dataset = odf.Dataset(store, "race")
    checked = dataset.verify()
    assert (checked.rows, checked.slices) == (2 * rounds, 2 * rounds)
    assert checked.blocks == 2 + 4 * rounds
    assert len(list(store.list_files("race/data"))) == 2 * rounds


def test_a_store_that_ignores_conditions_is_refused() -> None:
    with ScriptedS3() as server:
        server.bucket.ignores_conditions = True
        store = pds.Store(f"s3://{BUCKET}/p", storage_options=server.options())
        with pytest.raises(pds.UnsafeStore):
            odf.Dataset.create(store, "d")
        assert server.bucket.objects == {}


def test_compaction_merges_slices_and_keeps_the_history(dataset: odf.Dataset) -> None:
    for number in range(6):
        dataset.ingest(weather(number * 3, 3), event_time="at")
        if number in {1, 3}:
            dataset.append(odf.SetInfo(f"after {number}"))
    dataset.set_schema(dataset.schema().append(pa.field("humidity", pa.float32())))
    state = {"sourceName": "station", "kind": "odf/etag", "value": "x"}
    for number in range(6, 9):
        dataset.ingest(weather(number * 3, 3), event_time="at", source_state=state)
    before, rows, watermark = dataset.head, dataset.scan().to_pyarrow(), dataset.watermark
    done = dataset.compact()
    assert done is not None
    assert (done.before, done.after) == (before, dataset.head)
    assert (done.slices_before, done.slices_after) == (9, 2)
    assert dataset.scan().to_pyarrow() == rows
    assert (dataset.watermark, dataset.last_offset) == (watermark, 26)
    log = dataset.log()
    expected = ["AddData", "SetDataSchema", "AddData", "SetInfo", "SetInfo", "SetDataSchema", "Seed"]
    assert kinds(log) == expected
    merged: Any = log[0].event
    assert merged.extra == {"pds/compactedFrom": before}
    assert merged.new_source_state == state
    checked = dataset.verify()
    assert (checked.slices, checked.rows) == (2, 27)
    old = dataset.verify(at=before)
    assert (old.slices, old.rows) == (9, 27)
    assert dataset.scan(as_of=before).to_pyarrow() == rows
    # What was merged once stays.
    assert dataset.compact() is None
    dataset.ingest(weather(40, 2), event_time="at")
    assert dataset.verify().rows == 29


def test_compaction_checks_what_it_merges(dataset: odf.Dataset) -> None:
    first = dataset.ingest(weather(0, 3), event_time="at")
    second = dataset.ingest(weather(3, 3), event_time="at")
    head, store = dataset.head, dataset.store
    path = "lake/weather/data/"
    # The right bytes under the wrong name.
    swapped = raw_of(store, f"{path}{first.physical_hash}")
    store.write(f"{path}{second.physical_hash}", swapped, overwrite=True)
    with pytest.raises(pds.PartCorrupted):
        dataset.compact()
    assert dataset.head == head
    for target in (0, -1, 1.5, True):
        with pytest.raises(pds.InvalidInput):
            dataset.compact(target_bytes=target)  # type: ignore[arg-type]


def test_a_chain_without_a_schema_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = odf.Dataset.create(pds.Store(f"file://{tmp_path}"), "new")
    assert cli.main(["show", f"file://{tmp_path}/new", "--output", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["id"], shown["head"], shown["columns"]) == (dataset.identity.id, dataset.head, {})
    assert cli.main(["show", f"file://{tmp_path}/new"]) == 0
    assert dataset.head in capsys.readouterr().out


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/weather"
    dataset = odf.Dataset.create(pds.Store(f"file://{tmp_path}"), "weather")
    first = dataset.ingest(weather(0, 3), event_time="at")
    dataset.append(odf.SetInfo("of a station"))
    assert cli.main(["odf", "log", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == ["SetInfo", "AddData", "SetDataSchema", "Seed"]
    assert lines[0].split()[3] == dataset.head
    assert cli.main(["odf", "show", url]) == 0
    assert odf.Block.from_yaml(capsys.readouterr().out) == dataset.log()[0]
    assert cli.main(["odf", "show", url, first.blocks[0].hash]) == 0
    assert odf.Block.from_yaml(capsys.readouterr().out) == first.blocks[0]
    assert cli.main(["odf", "schema", url]) == 0
    assert "celsius: double" in capsys.readouterr().out
    assert cli.main(["odf", "verify", url]) == 0
    assert "4 blocks, 1 slices, 3 rows" in capsys.readouterr().out
    part = tmp_path / "weather" / "data" / str(first.physical_hash)
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert cli.main(["odf", "verify", url]) == 1
    assert str(first.physical_hash) in capsys.readouterr().err
    assert cli.main(["odf", "log", f"file://{tmp_path}/nothing"]) == 1
    assert cli.main(["odf", "log", "memory://"]) == 2


def test_structs_that_are_null_have_a_hash_of_their_own(store: pds.Store) -> None:
    kinds = [pa.int32(), pa.float64(), pa.date32(), pa.timestamp("ms"), pa.binary(3), pa.string(), pa.bool_()]
    values: dict[pa.DataType, Any] = dict(
        zip(kinds, [7, 1.5, dt.date(2026, 1, 2), dt.datetime(2026, 1, 2), b"abc", "x", True], strict=True)  # noqa: DTZ001
    )
    for number, (kind, value) in enumerate(values.items()):
        for order in ([None, {"a": value}, {"a": None}], [{"a": None}, None, {"a": value}], [{"a": value}, None, None]):
            inner = pa.struct([("a", kind)])
            rows = pa.table({"s": pa.array(order, inner), "n": pa.array([{"s": one} for one in order])})
            dataset = odf.Dataset.create(store, f"d{number}{order.index(None)}{len(str(order))}")
            dataset.ingest(rows)
            dataset.ingest(rows.slice(1))
            dataset.verify()
            dataset.compact()
            assert dataset.verify().rows == 5
            assert dataset.scan(["s"]).to_pyarrow()["s"].to_pylist() == order + order[1:]


def test_items_of_lists_keep_their_types(dataset: odf.Dataset) -> None:
    kinds = {
        "t": pa.list_(pa.timestamp("us")),
        "s": pa.list_(pa.large_string()),
        "n": pa.list_(pa.list_(pa.timestamp("ns"))),
        "f": pa.list_(pa.large_binary(), 2),
    }
    values: list[Any] = [[[0]], [["a"]], [[[1]]], [[b"a", b"b"]]]
    rows = pa.table({name: pa.array(v, kind) for (name, kind), v in zip(kinds.items(), values, strict=True)})
    dataset.ingest(rows)
    dataset.ingest(rows)
    assert {name: dataset.schema().field(name).type for name in kinds} == kinds
    dataset.verify()


def test_a_ledger_of_views_and_of_the_moment_it_was_asked_for(dataset: odf.Dataset) -> None:
    moment = pa.array([1000], pa.timestamp("ms"))
    rows = pa.table({"event_time": moment, "a": pa.array(["x"], pa.string_view())})
    dataset.ingest(rows)
    scan = dataset.scan()
    dataset.ingest(rows.append_column("op", pa.array([1])))
    assert len(scan.to_ledger()) == scan.count() == 1
    assert len(dataset.scan().to_ledger()) == 0
    assert scan.to_ledger().to_pyarrow()["a"].type == pa.string_view()


def test_time_travel_looks_behind_a_compaction(dataset: odf.Dataset) -> None:
    moments = []
    for number in range(3):
        dataset.ingest(pa.table({"a": [number]}))
        moments.append(dataset.log(1)[0].system_time)
        dataset.append(odf.SetInfo(str(number)))
        if number == 1:
            dataset.compact()
    dataset.compact()
    assert dataset.verify().slices == 1
    for number, moment in enumerate(moments):
        assert dataset.scan(["a"], as_of=moment).to_pyarrow()["a"].to_pylist() == list(range(number + 1))


def test_schemas_that_cannot_be_used_are_refused(dataset: odf.Dataset) -> None:
    dataset.ingest(pa.table({"s": [{"p": 1}], "d": pa.array(["x"]).dictionary_encode()}))
    schema = dataset.schema()
    place = schema.get_field_index("s")
    wider = schema.set(place, pa.field("s", pa.struct([("p", pa.int64()), ("q", pa.string())])))
    with pytest.raises(pds.InvalidAppend, match=r"s\.q"):
        dataset.set_schema(wider)
    with pytest.raises(pds.InvalidAppend, match="same name"):
        dataset.append(odf.SetDataSchema.of_arrow(pa.schema([*schema, schema.field("d")])))
    with pytest.raises(pds.InvalidInput, match="allowed"):
        dataset.append(odf.SetInfo("x" * 20_000_000))
    raw = pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))])
    assert odf.SetDataSchema.of_arrow(raw, raw_arrow=True).to_arrow() == raw
    # System columns may stand anywhere.
    dataset.append(odf.SetDataSchema.of_arrow(pa.schema([*list(schema)[4:], *list(schema)[:4]])))
    dataset.ingest(pa.table({"s": [{"p": 2}]}))
    assert dataset.verify().rows == 2
    with pytest.raises(pds.InvalidInput, match="cannot be the event time"):
        dataset.ingest(pa.table({"s": [{"p": 2}], "d": ["x"]}), event_time="d")


def test_numbers_that_others_wrote(dataset: odf.Dataset) -> None:
    dataset.set_schema(pa.schema([("a", pa.int64())]))
    slice_ = {"logicalHash": HASH, "physicalHash": HASH, "offsetInterval": {"start": 0, "end": 2**64 - 1}, "size": 1}
    dataset.append(odf.AddData(new_data=slice_))
    with pytest.raises(pds.VerificationFailed):
        dataset.verify()
    with pytest.raises(pds.InvalidInput, match="offset overflow"):
        dataset.ingest(pa.table({"a": [1]}))
    with pytest.raises(pds.RemoteStoreError):
        dataset.scan().to_pyarrow()


def test_times_before_1970_go_towards_the_past(dataset: odf.Dataset) -> None:
    for unit, values in {"us": [-1, -1000, 1999], "ns": [-1, -1_000_000, 1_999_999]}.items():
        dataset.ingest(pa.table({"event_time": pa.array(values, pa.timestamp(unit))}))
    times = dataset.scan(["event_time"]).to_pyarrow()["event_time"].cast(pa.int64()).to_pylist()
    assert times == [-1, -1, 1] * 2
    with pytest.raises(pds.InvalidInput, match="years"):
        dataset.ingest(pa.table({"event_time": pa.array([2**60], pa.timestamp("us"))}))
    state = {"sourceName": "a", "kind": "odf/etag", "value": "1"}
    none = pa.table({"event_time": pa.array([], pa.timestamp("ms"))})
    assert len(dataset.ingest(none, source_state=state).blocks) == 1
    assert dataset.ingest(none, source_state=state).blocks == []


def test_a_dataset_that_is_there_is_left_alone(dataset: odf.Dataset) -> None:
    before = sorted(str(file.path) for file in dataset.store.list_files("", recursive=True))
    with pytest.raises(pds.AlreadyExists):
        odf.Dataset.create(dataset.store, dataset.path)
    assert sorted(str(file.path) for file in dataset.store.list_files("", recursive=True)) == before


@pytest.mark.parametrize("path", ["", "/", "a//b", "../a", "a/_latest_manifest/b", "a/"])
def test_places_that_are_none(memory_store: pds.Store, path: str) -> None:
    with pytest.raises(pds.InvalidPath):
        odf.Dataset.create(memory_store, path)
    assert list(memory_store.list_files("", recursive=True)) == []


def test_a_ledger_has_the_columns_that_are_asked_for(dataset: odf.Dataset) -> None:
    dataset.ingest(weather(0, 3), event_time="at")
    for columns in (["offset"], ["celsius", "offset", "op"], ["city"], []):
        ledger = dataset.scan(columns).to_ledger().to_pyarrow()
        assert ledger.column_names == columns
        assert ledger.num_rows == 3


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
def test_a_timeout_that_is_none_is_named(memory_store: pds.Store, timeout: object) -> None:
    with pytest.raises((pds.InvalidInput, pds.errors.InvalidType), match=r"^timeout"):
        pds.odf.Dataset.create(memory_store, "d", timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[1, 1, 2, None], ["a", "a", None, "b"], [[1], [1], [], None]], ids=str)
def test_runs_are_ingested_as_their_values(memory_store: pds.Store, values: list[Any]) -> None:
    plain = pa.table({"id": [1, 2, 3, 4], "x": values})
    ends = pa.array([1, 2, 3, 4], pa.int32())
    runs = pa.RunEndEncodedArray.from_arrays(ends, plain["x"].combine_chunks())
    encoded = plain.set_column(1, "x", runs)
    dataset = odf.Dataset.create(memory_store, "runs")
    for rows in (encoded, encoded.to_reader(), encoded.slice(1, 2), plain):
        dataset.ingest(rows)
    assert dataset.scan(["x"]).to_pyarrow()["x"].to_pylist() == values + values + values[1:3] + values


def test_runs_within_other_types_are_refused_before_anything_is_written(memory_store: pds.Store) -> None:
    runs = pa.run_end_encoded(pa.int32(), pa.int64())
    rows = pa.Table.from_batches([], pa.schema([("id", pa.int64()), ("x", pa.list_(runs))]))
    dataset = odf.Dataset.create(memory_store, "runs")
    before = [file.path for file in memory_store.list_files("", recursive=True)]
    with pytest.raises(pds.InvalidType, match="'x' has the type list"):
        dataset.ingest(rows)
    assert [file.path for file in memory_store.list_files("", recursive=True)] == before

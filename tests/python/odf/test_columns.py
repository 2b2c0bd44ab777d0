"""The columns of chains: what is hashed, what a system column holds, which names and schemas stay readable."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from odf_blocks import append_unchecked
from pds import odf

if TYPE_CHECKING:
    from collections.abc import Callable

UTC = dt.UTC
SYSTEM = ["offset", "op", "system_time", "event_time"]
NOON = dt.datetime(2020, 1, 1, 12, 30, tzinfo=UTC)
FINE = dt.datetime(2020, 1, 1, 12, 30, 0, 123_456, tzinfo=UTC)
MILLISECONDS = pa.timestamp("ms", "UTC")


@pytest.fixture
def dataset(memory_store: pds.Store) -> odf.Dataset:
    return odf.Dataset.create(memory_store, "lake/d")


# -- the logical hash ----------------------------------------------------------------------


def _plain_type(kind: Any) -> bytes:
    """The bytes of a type, written from RFC-002."""
    if pa.types.is_integer(kind):
        return struct.pack("<HBQ", 1, 1, kind.bit_width)
    unit = ["s", "ms", "us", "ns"].index(kind.unit)
    if pa.types.is_time(kind):
        return struct.pack("<HQH", 8, kind.bit_width, unit)
    zone = b"\0" if kind.tz is None else struct.pack("<Q", len(kind.tz)) + kind.tz.encode()
    return struct.pack("<HH", 9, unit) + zone


def logical_hash(rows: pa.Table) -> str:
    """The arrow-digest of columns of numbers and times without nulls."""
    names, columns = hashlib.sha3_256(), []
    for field in rows.schema:
        names.update(struct.pack("<Q", len(field.name)) + field.name.encode() + struct.pack("<Q", 0))
        width = field.type.bit_width // 8
        numbers: list[Any] = rows[field.name].cast(pa.int64() if width == 8 else pa.int32()).to_pylist()
        raw = b"".join(number.to_bytes(width, "little", signed=True) for number in numbers)
        columns.append(hashlib.sha3_256(_plain_type(field.type) + raw).digest())
    for digest in columns:
        names.update(digest)
    return "f9680c00120" + names.hexdigest()


def as_stored(raw: bytes) -> pa.Table:
    """The rows as a reader has them that goes by the columns of the file."""
    file = pq.ParquetFile(io.BytesIO(raw))
    return file.read()


@pytest.mark.parametrize("is_set_before", [False, True])
def test_times_in_seconds_have_the_hash_of_what_the_file_has(dataset: odf.Dataset, is_set_before: bool) -> None:
    rows = pa.table({"t": pa.array([5, 6], pa.timestamp("s", "UTC")), "h": pa.array([7, 8], pa.time32("s"))})
    if is_set_before:
        dataset.set_schema(rows.schema)
    result = dataset.ingest(rows)
    raw = dataset.store.read_bytes(f"lake/d/data/{result.physical_hash}")
    stored = as_stored(raw)
    assert stored.schema.field("t").type == MILLISECONDS
    assert stored.schema.field("h").type == pa.time32("ms")
    assert result.logical_hash == logical_hash(stored)
    dataset.verify()
    unit = "s" if is_set_before else "ms"
    assert dataset.scan(["t", "h"]).to_pyarrow() == rows.cast(
        pa.schema([("t", pa.timestamp(unit, "UTC")), ("h", pa.time32(unit))])
    )
    # A merged slice has the hash of its own columns, too.
    dataset.ingest(rows)
    assert dataset.compact() is not None
    merged: Any = dataset.log(1)[0].event
    raw = dataset.store.read_bytes(f"lake/d/data/{merged.new_data['physicalHash']}")
    assert merged.new_data["logicalHash"] == logical_hash(as_stored(raw))
    assert dataset.verify().rows == 4


def test_seconds_within_columns_become_milliseconds(dataset: odf.Dataset) -> None:
    seconds, milliseconds = pa.timestamp("s"), pa.timestamp("ms")
    columns: dict[str, Any] = {
        "l": pa.array([[1, None], None], pa.list_(seconds)),
        "s": pa.array([{"t": 1}, None], pa.struct([("t", seconds)])),
        "f": pa.array([[1, 2], None], pa.list_(seconds, 2)),
    }
    dataset.ingest(pa.table(columns))
    schema = dataset.schema()
    assert schema.field("l").type.value_type == milliseconds
    assert schema.field("s").type.field("t").type == milliseconds
    assert schema.field("f").type.value_type == milliseconds
    dataset.verify()
    for name, column in columns.items():
        assert dataset.scan([name]).to_pyarrow()[name].to_pylist() == column.to_pylist()


def test_a_slice_with_seconds_may_have_either_hash(memory_store: pds.Store) -> None:
    """Older releases hashed seconds; other tools hash the milliseconds that they read from the same file."""
    dataset = odf.Dataset.create(memory_store, "d")
    dataset.set_schema(pa.schema([pa.field("t", pa.timestamp("s", "+02:00"))]))
    schema = pa.schema([*list(dataset.schema())[:4], pa.field("t", pa.timestamp("s", "+02:00"))])
    hashed: dict[str, Any] = {
        "seconds": pa.timestamp("s", "+02:00"),
        "milliseconds": MILLISECONDS,
        "other": pa.timestamp("us", "UTC"),
    }
    for number, (name, kind) in enumerate(hashed.items()):
        numbers = [number, 0, 0, 0, 5]
        rows = pa.table([pa.array([n], field.type) for n, field in zip(numbers, schema, strict=True)], schema=schema)
        sink = io.BytesIO()
        pq.write_table(rows, sink)
        raw = sink.getvalue()
        physical = pds._pds.sha3_256(raw)
        memory_store.write(f"d/data/{physical}", raw)
        new_data = {
            "logicalHash": logical_hash(rows.set_column(4, pa.field("t", kind), rows["t"].cast(kind))),
            "physicalHash": physical,
            "offsetInterval": {"start": number, "end": number},
            "size": len(raw),
        }
        event = {"kind": "AddData", "newData": new_data}
        dataset.append(event if number == 0 else {**event, "prevOffset": number - 1})
        if name == "other":
            with pytest.raises(pds.VerificationFailed, match="logical hash"):
                dataset.verify()
        else:
            assert dataset.verify().slices == number + 1


# -- system columns ------------------------------------------------------------------------


def _with_event_time(dataset: odf.Dataset, kind: pa.DataType) -> None:
    dataset.set_schema(pa.schema([pa.field("event_time", kind, nullable=False), pa.field("v", pa.int64())]))


def _at(*times: dt.datetime | None) -> pa.Table:
    return pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "v": [1] * len(times)})


@pytest.mark.parametrize(
    ("kind", "time", "stored"),
    [
        (pa.timestamp("us", "UTC"), FINE, FINE),
        (pa.timestamp("ns", "UTC"), FINE, FINE),
        (pa.timestamp("ms", "Europe/Riga"), NOON, NOON),
        (pa.timestamp("us"), FINE, FINE.replace(tzinfo=None)),
        (pa.timestamp("s", "UTC"), NOON, NOON),
        (pa.date32(), NOON.replace(hour=0, minute=0), NOON.date()),
        (pa.date64(), NOON.replace(hour=0, minute=0), NOON.date()),
        # The format's own type keeps milliseconds.
        (MILLISECONDS, FINE, FINE.replace(microsecond=123_000)),
    ],
    ids=str,
)
def test_an_event_time_is_kept_in_the_type_of_its_column(
    dataset: odf.Dataset, kind: pa.DataType, time: dt.datetime, stored: object
) -> None:
    _with_event_time(dataset, kind)
    dataset.ingest(_at(time), event_time="at")
    rows = dataset.scan().to_pyarrow()
    assert rows.schema.field("event_time").type == kind
    value = rows["event_time"].cast(pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.date32())
    assert value.to_pylist() == [stored]
    # The watermark is that of what is stored.
    watermark = dataset.watermark
    assert watermark == (time if kind != MILLISECONDS else stored)
    dataset.verify()
    # Without a time it is that of writing, in the unit of the column.
    dataset.ingest(pa.table({"v": [2]}), watermark=watermark)
    assert dataset.scan(["event_time"]).to_pyarrow()["event_time"].null_count == 0
    dataset.ingest(_at(time, None), event_time="at", watermark=watermark)
    assert dataset.verify().rows == 4


@pytest.mark.parametrize(
    ("kind", "time"),
    [(pa.date32(), NOON), (pa.date64(), NOON), (pa.timestamp("s", "UTC"), FINE)],
    ids=str,
)
def test_an_event_time_that_would_be_cut_is_refused(dataset: odf.Dataset, kind: pa.DataType, time: dt.datetime) -> None:
    _with_event_time(dataset, kind)
    with pytest.raises(pds.InvalidInput, match=r"event_time.*cannot be kept"):
        dataset.ingest(_at(time), event_time="at")
    assert dataset.last_offset is None
    assert list(dataset.store.list_files("lake/d/data")) == []


def test_nanoseconds_that_microseconds_cannot_hold_are_refused(dataset: odf.Dataset) -> None:
    _with_event_time(dataset, pa.timestamp("us", "UTC"))
    with pytest.raises(pds.InvalidInput, match="cannot be kept"):
        dataset.ingest(pa.table({"event_time": pa.array([1], pa.timestamp("ns", "UTC")), "v": [1]}))
    dataset.ingest(pa.table({"event_time": pa.array([-1000], pa.timestamp("ns", "UTC")), "v": [1]}))
    expected = dt.datetime(1970, 1, 1, tzinfo=UTC) - dt.timedelta(microseconds=1)
    assert dataset.scan(["event_time"]).to_pyarrow()["event_time"].to_pylist() == [expected]


BAD_TYPES = [
    ("offset", pa.string()),
    ("offset", pa.float64()),
    ("offset", pa.int32()),
    ("op", pa.bool_()),
    ("op", pa.string()),
    ("system_time", pa.int64()),
    ("event_time", pa.string()),
    ("event_time", pa.time64("us")),
]


@pytest.mark.parametrize(("name", "kind"), BAD_TYPES, ids=str)
@pytest.mark.parametrize("raw_arrow", [False, True])
def test_types_that_hold_no_system_column_are_refused(
    dataset: odf.Dataset, name: str, kind: pa.DataType, raw_arrow: bool
) -> None:
    with pytest.raises(pds.InvalidAppend, match=f'system column "{name}" must be') as caught:
        dataset.set_schema(
            pa.schema([pa.field(name, kind, nullable=False), pa.field("v", pa.int64())]), raw_arrow=raw_arrow
        )
    assert caught.value.rule == "InvalidEvent"
    # Nor can a column become one.
    dataset.set_schema(pa.schema([pa.field("x", kind), pa.field("v", pa.int64())]), raw_arrow=raw_arrow)
    keyword = {"offset": "offset_column", "op": "operation_type_column"}.get(name, f"{name}_column")
    with pytest.raises(pds.InvalidAppend, match='system column "x" must be'):
        dataset.append(odf.SetVocab(**{keyword: "x"}))


@pytest.mark.parametrize(("offset", "op"), [(pa.uint64(), pa.uint8()), (pa.int64(), pa.int64())], ids=str)
def test_other_whole_numbers_hold_offsets_and_operations(
    dataset: odf.Dataset, offset: pa.DataType, op: pa.DataType
) -> None:
    fields = [pa.field("offset", offset, nullable=False), pa.field("op", op, nullable=False), pa.field("v", pa.int64())]
    dataset.set_schema(pa.schema(fields))
    dataset.ingest(pa.table({"v": [7, 8], "op": [0, 0], "event_time": pa.array([1, 1], MILLISECONDS)}))
    moment = pa.array([1, 1], MILLISECONDS)
    dataset.ingest(pa.table({"v": [7, 9], "op": [2, 3], "event_time": moment}))
    assert dataset.scan(["v"]).to_ledger().to_pyarrow()["v"].to_pylist() == [8, 9]
    assert dataset.scan(["offset", "op"]).to_pyarrow().to_pydict() == {"offset": [0, 1, 2, 3], "op": [0, 0, 2, 3]}
    dataset.verify()


def test_a_table_may_have_any_columns_under_the_names_of_system_columns(store: pds.Store) -> None:
    fields: list[pa.Field[Any]] = [
        pa.field("offset", pa.string()),
        pa.field("op", pa.bool_()),
        pa.field("event_time", pa.int64()),
    ]
    schema = pa.schema(fields)
    table = pds.Table.create(store, "lake/t", schema)
    assert odf.attach(table).schema() == schema


# -- names and schemas ---------------------------------------------------------------------


def test_names_of_system_columns_stay_after_the_first_rows(dataset: odf.Dataset) -> None:
    dataset.append(odf.SetVocab(offset_column="n"))
    dataset.ingest(pa.table({"a": [1]}))
    for vocabulary in (odf.SetVocab(offset_column="n", operation_type_column="o"), odf.SetVocab()):
        with pytest.raises(pds.InvalidAppend, match="after the first rows"):
            dataset.append(vocabulary)
    # The same names in other words change nothing.
    dataset.append(odf.SetVocab(offset_column="n", operation_type_column="op"))
    dataset.ingest(pa.table({"a": [2]}))
    assert dataset.verify().rows == 2


def test_names_that_an_older_release_changed_can_be_set_back(dataset: odf.Dataset) -> None:
    dataset.append(odf.SetVocab(offset_column="n"))
    dataset.ingest(pa.table({"a": [1]}))
    changed = append_unchecked(dataset, odf.SetVocab())
    with pytest.raises(pds.InvalidInput, match='no column "offset"'):
        changed.ingest(pa.table({"a": [2]}))
    changed.append(odf.SetVocab(offset_column="n"))
    changed.ingest(pa.table({"a": [2]}))
    assert changed.verify().rows == 2


def test_narrow_offsets_of_an_older_release_go_on(dataset: odf.Dataset) -> None:
    dataset.ingest(pa.table({"a": [1]}))
    schema = dataset.schema()
    narrow = schema.set(0, schema.field(0).with_type(pa.int32()))
    older = append_unchecked(dataset, odf.SetDataSchema.of_arrow(narrow))
    older.ingest(pa.table({"a": [2]}))
    assert older.scan(["offset", "a"]).to_pyarrow().to_pydict() == {"offset": [0, 1], "a": [1, 2]}


def test_a_ledger_over_renamed_operations_is_refused(memory_store: pds.Store) -> None:
    dataset = odf.Dataset.create(memory_store, "d")
    moment = pa.array([1, 1], MILLISECONDS)
    dataset.ingest(pa.table({"a": [1, 1], "op": [0, 1], "event_time": moment}))
    wider = dataset.schema().append(pa.field("o2", pa.int32())).append(pa.field("n2", pa.int64()))
    renamed = append_unchecked(
        dataset,
        odf.SetDataSchema.of_arrow(wider),
        odf.SetVocab(operation_type_column="o2", offset_column="n2"),
    )
    with pytest.raises(pds.FormatNotSupported, match="SetVocab"):
        renamed.scan(["a"]).to_ledger()
    # The old rows have no number under the new name.
    assert renamed.scan(where="n2 is null").count() == 2
    assert renamed.scan(where='"offset" = 1').count() == 1
    assert renamed.scan(["a"], as_of=dataset.log()[2]).to_ledger().to_pyarrow().num_rows == 0


def test_a_column_with_nulls_does_not_become_required(dataset: odf.Dataset) -> None:
    dataset.set_schema(pa.schema([pa.field("v", pa.int64())]), raw_arrow=True)
    schema = dataset.schema()
    required = schema.set(schema.get_field_index("v"), pa.field("v", pa.int64(), nullable=False))
    dataset.ingest(pa.table({"v": [1, None]}))
    with pytest.raises(pds.InvalidAppend, match="v become required") as caught:
        dataset.set_schema(required)
    assert caught.value.rule == "InvalidEvent"
    assert dataset.scan(["v"]).to_pyarrow()["v"].to_pylist() == [1, None]


def test_nulls_of_a_column_that_became_required_are_read(memory_store: pds.Store) -> None:
    dataset = odf.Dataset.create(memory_store, "d")
    dataset.set_schema(pa.schema([pa.field("v", pa.int64())]), raw_arrow=True)
    dataset.ingest(pa.table({"v": [1, None]}))
    schema = dataset.schema()
    required = schema.set(schema.get_field_index("v"), pa.field("v", pa.int64(), nullable=False))
    dataset = append_unchecked(dataset, odf.SetDataSchema.of_arrow(required))
    assert not dataset.schema().field("v").nullable
    assert dataset.scan(["v"]).to_pyarrow()["v"].to_pylist() == [1, None]
    assert dataset.scan(where="v is null").count() == 1
    with pytest.raises(pds.InvalidInput, match="non-nullable"):
        dataset.ingest(pa.table({"v": pa.array([None], pa.int64())}))
    dataset.ingest(pa.table({"v": [2]}))
    assert dataset.verify().rows == 3


# -- chains without a schema ---------------------------------------------------------------


@pytest.fixture
def old(memory_store: pds.Store) -> odf.Dataset:
    """A chain as older tools wrote it: two slices, and nothing that says their columns."""
    new = odf.Dataset.create(memory_store, "new")
    for number in range(2):
        new.ingest(pa.table({"a": [2 * number, 2 * number + 1], "b": ["x", "y"]}))
    old = odf.Dataset.create(memory_store, "old", identity=new.identity)
    for file in list(memory_store.list_files("new/data")):
        memory_store.write(f"old/data/{file.name}", memory_store.read_bytes(str(file.path)))
    return append_unchecked(old, *(block.event for block in reversed(new.log()) if block.event.kind == "AddData"))


def test_rows_for_a_chain_without_a_schema_get_the_columns_that_it_has(old: odf.Dataset) -> None:
    before = old.schema()
    result = old.ingest(pa.table({"a": [4]}))
    assert [block.event.kind for block in result.blocks] == ["SetDataSchema", "AddData"]
    assert old.schema() == before
    assert old.scan(["a", "b"]).to_pyarrow().to_pydict() == {"a": [0, 1, 2, 3, 4], "b": [*"xyxy", None]}
    with pytest.raises(pds.InvalidInput, match="unknown column"):
        old.ingest(pa.table({"c": [1]}))


def test_columns_that_a_chain_without_a_schema_does_not_have_are_refused(old: odf.Dataset) -> None:
    with pytest.raises(pds.InvalidInput, match="unknown column"):
        old.ingest(pa.table({"c": [1]}))
    with pytest.raises(pds.InvalidInput, match="type mismatch"):
        old.ingest(pa.table({"a": ["text"]}))
    assert old.last_offset == 3


def test_slices_before_the_first_schema_do_not_block_a_compaction(old: odf.Dataset) -> None:
    assert old.compact() is None
    before = old.scan().to_pyarrow()
    old.append(odf.SetDataSchema.of_arrow(old.schema()))
    assert old.compact() is None
    for number in (4, 5):
        old.ingest(pa.table({"a": [number], "b": ["z"]}))
    done = old.compact()
    assert done is not None
    assert (done.slices_before, done.slices_after) == (4, 3)
    assert old.scan(where="a < 4").to_pyarrow() == before
    assert old.scan(["a"]).to_pyarrow()["a"].to_pylist() == list(range(6))


# -- what is missing -----------------------------------------------------------------------


def test_a_schema_that_only_a_removed_slice_has_is_expired(old: odf.Dataset) -> None:
    newest, before = old.log(2)
    slices = [block.event.new_data["physicalHash"] for block in (newest, before)]
    assert old.schema(at=newest).names[-2:] == ["a", "b"]
    # Somebody moves the head back, and a vacuum removes what the newest block alone names.
    old.store.write("old/refs/head", before.hash.encode(), overwrite=True)
    old.store.delete(f"old/data/{slices[0]}")
    for read in (old.schema, lambda at: old.scan(as_of=at)):
        with pytest.raises(pds.VersionExpired, match="has been vacuumed"):
            read(newest)
    # That of the head is damage.
    old.store.delete(f"old/data/{slices[1]}")
    for read in (old.schema, old.scan):
        with pytest.raises(pds.PartCorrupted, match="missing"):
            read()


@pytest.mark.parametrize(
    "read",
    [
        lambda dataset: dataset.scan().to_pyarrow(),
        lambda dataset: dataset.scan().to_ledger(),
        lambda dataset: dataset.compact(),
    ],
    ids=["scan", "ledger", "compact"],
)
def test_a_missing_slice_is_named(dataset: odf.Dataset, read: Callable[[odf.Dataset], object]) -> None:
    first = dataset.ingest(pa.table({"a": [1]}))
    dataset.ingest(pa.table({"a": [2]}))
    dataset.store.delete(f"lake/d/data/{first.physical_hash}")
    with pytest.raises(pds.PartCorrupted, match="missing") as caught:
        read(dataset)
    assert str(first.physical_hash) in f"{caught.value} {caught.value.path}"


def test_a_log_with_a_limit_reads_about_as_many_blocks(memory_store: pds.Store) -> None:
    dataset = odf.Dataset.create(memory_store, "d")
    for number in range(100):
        dataset.append(odf.SetInfo(str(number)))
    expected = dataset.log()
    assert len(expected) == 101
    for limit in (15, 16, 20, 60):
        fresh = odf.Dataset(memory_store, "d")
        memory_store.reset_metrics()
        assert fresh.log(limit) == expected[:limit]
        assert memory_store.metrics()["requests"] <= limit + 3
    fresh = odf.Dataset(memory_store, "d")
    memory_store.reset_metrics()
    assert fresh.log() == expected
    assert memory_store.metrics()["requests"] <= 101 + 3


def test_a_log_reads_no_blocks_of_the_chain_before_a_compaction(memory_store: pds.Store) -> None:
    dataset = odf.Dataset.create(memory_store, "d")
    for number in range(60):
        dataset.ingest(pa.table({"a": [number]}))
    assert dataset.compact() is not None
    for number in range(20):
        dataset.append(odf.SetInfo(str(number)))
    expected = dataset.log()
    assert len(expected) == 23
    fresh = odf.Dataset(memory_store, "d")
    memory_store.reset_metrics()
    assert fresh.log() == expected
    assert memory_store.metrics()["requests"] <= 40


def test_blocks_whose_times_say_nothing_are_read(memory_store: pds.Store) -> None:
    dataset = odf.Dataset.create(memory_store, "d")
    for number in range(80):
        dataset.append(odf.SetInfo(str(number)))
    expected = dataset.log()
    # A copy that begins with the newest block.
    for block in expected:
        memory_store.write(f"copy/blocks/{block.hash}", block.to_bytes())
    memory_store.write("copy/refs/head", dataset.head.encode())
    for limit in (None, 9, 30, 70):
        copied = odf.Dataset(memory_store, "copy")
        assert copied.log(limit) == expected[:limit]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.float64(), pa.int32()),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("us"), pa.date32()),
        (pa.decimal128(9, 3), pa.decimal128(9, 2)),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.bool_()),
    ],
    ids=str,
)
def test_a_raw_schema_does_not_change_values(dataset: odf.Dataset, before: pa.DataType, after: pa.DataType) -> None:
    """Scans showed rounded and cut values, and filters found them."""
    dataset.set_schema(pa.schema([pa.field("v", before)]))
    retyped = pa.schema([pa.field("v", after)])
    dataset.ingest(pa.table({"v": pa.array([None], before)}))
    with pytest.raises(pds.InvalidAppend, match=r'column "v" changes .* add a column'):
        dataset.set_schema(retyped, raw_arrow=True)
    assert dataset.scan(["v"]).to_pyarrow().schema.field("v").type == before


def test_a_raw_schema_makes_columns_wider(dataset: odf.Dataset) -> None:
    dataset.set_schema(pa.schema([("v", pa.int32()), ("t", pa.string())]), raw_arrow=True)
    dataset.ingest(pa.table({"v": pa.array([1], pa.int32()), "t": ["a"]}))
    dataset.set_schema(pa.schema([("v", pa.int64()), ("t", pa.large_string())]), raw_arrow=True)
    assert dataset.scan(["v", "t"]).to_pyarrow().to_pylist() == [{"v": 1, "t": "a"}]


def test_older_rows_have_nulls_in_a_required_column_that_a_raw_schema_adds(dataset: odf.Dataset) -> None:
    dataset.set_schema(pa.schema([("v", pa.int64())]), raw_arrow=True)
    dataset.ingest(pa.table({"v": [1]}))
    schema = pa.schema([pa.field("v", pa.int64()), pa.field("w", pa.int64(), nullable=False)])
    dataset.set_schema(schema, raw_arrow=True)
    assert dataset.scan(["v", "w"]).to_pyarrow().to_pylist() == [{"v": 1, "w": None}]
    assert dataset.scan(where="w is null").count() == 1
    dataset.ingest(pa.table({"v": [2], "w": [3]}, schema))
    assert dataset.scan(["v", "w"]).to_pyarrow().to_pylist() == [{"v": 1, "w": None}, {"v": 2, "w": 3}]
    assert dataset.verify().rows == 2

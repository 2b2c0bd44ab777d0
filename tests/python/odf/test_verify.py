"""What a verification refuses and what it does not: schemas and slices of other writers, made without pds."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import io
import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import independent_odf
import pds
from pds import odf

UTC = dt.UTC
MILLISECONDS = pa.timestamp("ms", "UTC")
SYSTEM: list[pa.Field[Any]] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("op", pa.int32(), nullable=False),
    pa.field("system_time", MILLISECONDS, nullable=False),
    pa.field("event_time", MILLISECONDS, nullable=False),
]
WHOLE = pa.field("v", pa.int64(), nullable=False)


@pytest.fixture
def dataset(memory_store: pds.Store) -> odf.Dataset:
    return odf.Dataset.create(memory_store, "d")


def _append_unchecked(dataset: odf.Dataset, *blocks: odf.Event | dict[str, Any] | bytes) -> odf.Dataset:
    """Appends events, or the bytes of blocks, as a tool that checks no rules."""
    store, path = dataset.store, dataset.path
    for item in blocks:
        last = odf.Dataset(store, path).log(1)[0]
        number = last.sequence_number + 1
        raw = item if isinstance(item, bytes) else odf.Block(dt.datetime.now(UTC), last.hash, number, item).to_bytes()
        block_hash = independent_odf.sha3(raw)
        store.write(f"{path}/blocks/{block_hash}", raw)
        store.write(f"{path}/refs/head", block_hash.encode(), overwrite=True)
    return odf.Dataset(store, path)


def _hash_column(kind: Any, column: pa.ChunkedArray[Any]) -> bytes:
    """The digest of a column of whole numbers, times or lists of them, written from RFC-002."""

    def of_type(kind: Any) -> bytes:
        if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            return struct.pack("<H", 11) + of_type(kind.value_type)
        if pa.types.is_timestamp(kind):
            unit = ["s", "ms", "us", "ns"].index(kind.unit)
            zone = b"\0" if kind.tz is None else struct.pack("<Q", len(kind.tz)) + kind.tz.encode()
            return struct.pack("<HH", 9, unit) + zone
        return struct.pack("<HBQ", 1, 1, kind.bit_width)

    def of_value(kind: Any, value: Any) -> bytes:
        if value is None:
            return b"\0"
        if isinstance(value, list):
            return struct.pack("<Q", len(value)) + b"".join(of_value(kind.value_type, item) for item in value)
        return int(value).to_bytes(kind.bit_width // 8, "little", signed=True)

    numbers = column.cast(pa.int64()) if pa.types.is_timestamp(kind) else column
    values = [of_value(kind, value) for value in numbers.to_pylist()]
    return hashlib.sha3_256(of_type(kind) + b"".join(values)).digest()


def _logical_hash(rows: pa.Table) -> str:
    names = hashlib.sha3_256()
    for field in rows.schema:
        names.update(struct.pack("<Q", len(field.name)) + field.name.encode() + struct.pack("<Q", 0))
    for field in rows.schema:
        names.update(_hash_column(field.type, rows[field.name]))
    return "f9680c00120" + names.hexdigest()


def _slice_event(dataset: odf.Dataset, rows: pa.Table) -> dict[str, Any]:
    """Writes a slice by pyarrow, with the hashes that it has, and returns the event that names it."""
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    raw = sink.getvalue()
    physical = independent_odf.sha3(raw)
    dataset.store.write(f"{dataset.path}/data/{physical}", raw)
    offsets = rows["offset"].to_pylist()
    new_data = {
        "logicalHash": _logical_hash(rows),
        "physicalHash": physical,
        "offsetInterval": {"start": offsets[0], "end": offsets[-1]},
        "size": len(raw),
    }
    event = {"kind": "AddData", "newData": new_data}
    return {**event, "prevOffset": offsets[0] - 1} if offsets[0] else event


def _rows(column: pa.Array, *, ops: list[int | None] | None = None, first: int = 0) -> pa.Table:
    """Rows of other writers, whose files say of no column that it has no nulls."""
    count = len(column)
    times = pa.array([0] * count, MILLISECONDS)
    columns = [
        pa.array(range(first, first + count), pa.int64()),
        pa.array(ops or [0] * count, pa.int32()),
        times,
        times,
    ]
    return pa.table([*columns, column], names=[*(field.name for field in SYSTEM), "v"])


# -- schemas -------------------------------------------------------------------------------


def _fields(time: dict[str, Any]) -> list[dict[str, Any]]:
    """System columns and others of types whose units and zones have defaults."""
    timestamp = {"kind": "Timestamp", **time}
    unit = {name: value for name, value in time.items() if name == "unit"}
    return [
        {"name": "offset", "type": {"kind": "Int64"}},
        {"name": "op", "type": {"kind": "Int32"}},
        {"name": "system_time", "type": timestamp},
        {"name": "event_time", "type": timestamp},
        {"name": "hour", "type": {"kind": "Option", "inner": {"kind": "Time", **unit}}},
        {"name": "hours", "type": {"kind": "List", "itemType": {"kind": "Time", **unit}}},
        {"name": "s", "type": {"kind": "Struct", "fields": [{"name": "t", "type": timestamp}]}},
        # An attribute is no type.
        {"name": "n", "type": {"kind": "Int64"}, "extra": {"example.com/type": {"kind": "Timestamp"}}},
    ]


MORE = {"name": "more", "type": {"kind": "Option", "inner": {"kind": "String"}}}
EXPLICIT = {"unit": "Millisecond", "timezone": "UTC"}


@pytest.mark.parametrize(("before", "after"), [(EXPLICIT, {}), ({}, EXPLICIT)], ids=["left out", "written"])
def test_a_default_of_the_specification_may_be_left_out(
    dataset: odf.Dataset, before: dict[str, str], after: dict[str, str]
) -> None:
    dataset.append(odf.SetDataSchema({"fields": _fields(before)}))
    columns = dataset.schema()
    with pytest.raises(pds.InvalidAppend, match="identical"):
        dataset.append(odf.SetDataSchema({"fields": _fields(after)}))
    dataset.append(odf.SetDataSchema({"fields": [*_fields(after), MORE]}))
    assert list(dataset.schema())[:-1] == list(columns)
    assert dataset.verify().blocks == 3
    other = {"unit": "Microsecond", "timezone": "UTC"}
    for worse in (other, {**EXPLICIT, "timezone": "Europe/Riga"}):
        with pytest.raises(pds.InvalidAppend, match="changes its type"):
            dataset.append(odf.SetDataSchema({"fields": [*_fields(worse), MORE]}))


def _with_raw_schema(block: bytes, raw: bytes) -> bytes:
    """The bytes of a block with a `SetDataSchema` of logical types, with Arrow's own schema beside them.

    A new table of the event comes after the content, and after that a copy of the content, since offsets lead forward.
    """

    def follow(buffer: bytes | bytearray, at: int) -> int:
        return int(at + struct.unpack_from("<I", buffer, at)[0])

    def slot(buffer: bytes | bytearray, table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", buffer, table)[0]
        return int(table + struct.unpack_from("<H", buffer, vtable + 4 + 2 * number)[0])

    vector = follow(block, slot(block, follow(block, 0), 2))
    length = struct.unpack_from("<I", block, vector)[0]
    old = block[vector + 4 : vector + 4 + length]
    old += b"\0" * (-len(old) % 8)
    event_slot = slot(old, follow(old, 0), 4)
    schema = follow(old, slot(old, follow(old, event_slot), 1))
    table = len(old) + 8
    raw_vector = table + 12 + 4
    copy = raw_vector + 4 + len(raw)
    copy += -copy % 8
    content = bytearray(old + struct.pack("<HHHH", 8, 12, 4, 8))
    content += struct.pack("<iII", 8, raw_vector - (table + 4), copy + schema - (table + 8)) + bytes(4)
    content += struct.pack("<I", len(raw)) + raw
    content += bytes(copy - len(content)) + old
    struct.pack_into("<I", content, event_slot, table - event_slot)
    return block[:vector] + struct.pack("<I", len(content)) + bytes(content)


def test_a_schema_in_both_forms_is_refused(dataset: odf.Dataset) -> None:
    last = dataset.log(1)[0]
    columns = [pa.schema([*SYSTEM, pa.field("v", kind)]) for kind in (pa.int64(), pa.string())]
    logical = odf.Block(dt.datetime.now(UTC), last.hash, 1, odf.SetDataSchema.of_arrow(columns[0]))
    raw_schema = odf.SetDataSchema.of_arrow(columns[1], raw_arrow=True).raw_arrow_schema or ""
    raw = _with_raw_schema(logical.to_bytes(), base64.b64decode(raw_schema))
    found = independent_odf.read_block(raw)["event"]
    assert (found["schema"], found["rawArrowSchema"]) == (logical.event.to_dict()["schema"], raw_schema)
    with pytest.raises(pds.InvalidAppend, match="both"):
        dataset.append(odf.Block.from_bytes(raw))
    other = _append_unchecked(dataset, raw)
    with pytest.raises(pds.VerificationFailed, match="both"):
        other.verify(data=False)
    # Which of them the rows have, nobody knows.
    for read in (other.schema, other.scan, lambda: other.ingest(pa.table({"v": [1]}))):
        with pytest.raises(pds.BlockCorrupted, match="both"):
            read()


def test_a_schema_that_nobody_can_read_is_a_problem_of_its_block(dataset: odf.Dataset) -> None:
    garbage = odf.SetDataSchema(raw_arrow_schema=base64.b64encode(b"garbage!" * 4).decode())
    other = _append_unchecked(dataset, garbage, _slice_event(dataset, _rows(pa.array([1]))))
    with pytest.raises(pds.VerificationFailed, match="rawArrowSchema cannot be read") as caught:
        other.verify()
    assert [path for path, _ in caught.value.problems] == [f"d/blocks/{other.log(2)[1].hash}"]


# -- rows ----------------------------------------------------------------------------------


def test_rows_of_another_writer_verify(dataset: odf.Dataset) -> None:
    dataset.append(odf.SetDataSchema.of_arrow(pa.schema([*SYSTEM, WHOLE])))
    values = pa.array([1, 1, 2, 3], pa.int64())
    other = _append_unchecked(dataset, _slice_event(dataset, _rows(values, ops=[0, 2, 3, 0])))
    assert other.verify().rows == 4
    assert other.scan(["v"]).to_pyarrow()["v"].to_pylist() == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("ops", "says"),
    [
        ([0, 7, 0], "row 1: unknown operation code 7"),
        ([0, -1, 0], "unknown operation code -1"),
        ([0, None, 0], "no operation"),
        ([2, 0, 0], "must directly follow"),
        ([0, 3, 0], "must directly follow"),
        ([2, 2, 3], "must directly follow"),
    ],
    ids=str,
)
def test_operations_that_are_none_are_noticed(dataset: odf.Dataset, ops: list[int | None], says: str) -> None:
    dataset.append(odf.SetDataSchema.of_arrow(pa.schema([*SYSTEM, WHOLE])))
    other = _append_unchecked(dataset, _slice_event(dataset, _rows(pa.array([1, 1, 2]), ops=ops)))
    path = f"d/data/{other.log(1)[0].event.to_dict()['newData']['physicalHash']}"
    with pytest.raises(pds.VerificationFailed, match=says) as caught:
        other.verify()
    assert [problem for problem, _ in caught.value.problems] == [path]


def test_a_correction_may_go_on_in_the_next_slice(dataset: odf.Dataset) -> None:
    dataset.append(odf.SetDataSchema.of_arrow(pa.schema([*SYSTEM, WHOLE])))
    for first, ops in ((0, [0, 2]), (2, [3, 0])):
        dataset.append(_slice_event(dataset, _rows(pa.array([1, first]), ops=[*ops], first=first)))
    assert dataset.verify().rows == 4


_PAIR = pa.list_(pa.int64(), 2)
_WHOLE_ITEMS = pa.list_(pa.field("item", pa.int64(), nullable=False))


@pytest.mark.parametrize(
    ("field", "column", "says"),
    [
        (WHOLE, pa.array([1, None, 3], pa.int64()), "null in"),
        (pa.field("v", _PAIR), pa.array([[1, 2], [3]], pa.list_(pa.int64())), "FixedSizeList"),
        (pa.field("v", _WHOLE_ITEMS), pa.array([[1, None]], pa.list_(pa.int64())), "null in"),
    ],
    ids=["null", "length", "item"],
)
def test_values_that_the_schema_does_not_have_are_noticed(
    dataset: odf.Dataset, field: pa.Field[Any], column: pa.Array, says: str
) -> None:
    """The scan of them fails, and so does the verification."""
    dataset.append(odf.SetDataSchema.of_arrow(pa.schema([*SYSTEM, field])))
    other = _append_unchecked(dataset, _slice_event(dataset, _rows(column)))
    with pytest.raises(pds.RemoteStoreError):
        other.scan().to_pyarrow()
    with pytest.raises(pds.VerificationFailed, match=says):
        other.verify()


def test_nulls_are_read_after_a_raw_schema_without_them(dataset: odf.Dataset) -> None:
    """What a raw schema says about nulls is what an engine took for granted (RFC-016), and binds no rows."""
    dataset.set_schema(pa.schema([*SYSTEM, WHOLE]), raw_arrow=True)
    events = (_slice_event(dataset, _rows(pa.array([n, None], pa.int64()), first=n)) for n in (0, 2))
    other = _append_unchecked(dataset, *events)
    assert other.verify().rows == 4
    assert other.scan(["v"]).to_pyarrow()["v"].to_pylist() == [0, None, 2, None]
    assert other.scan(where="v is null").count() == 2
    assert other.compact() is not None
    assert other.scan(["v"]).to_pyarrow()["v"].to_pylist() == [0, None, 2, None]
    assert other.verify().rows == 4
    # Those of pds do have what its schema says.
    with pytest.raises(pds.InvalidInput, match="non-nullable"):
        other.ingest(pa.table({"v": pa.array([None], pa.int64())}))

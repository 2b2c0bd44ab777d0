"""A second reader of ODF blocks, on `struct` and `hashlib` alone; pyarrow for Arrow's own schema.

Written from the specification's tables, and not from the engine: what both read alike, the bytes say.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import struct
from typing import Any

import pyarrow as pa

Spec = list[tuple[str, Any]]

_UNIT = ["Second", "Millisecond", "Microsecond", "Nanosecond"]
_TYPES = [
    "Binary",
    "Bool",
    "Date",
    "Decimal",
    "Duration",
    "Float16",
    "Float32",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "List",
    "Map",
    "Null",
    "Option",
    "Struct",
    "Time",
    "Timestamp",
    "String",
]


def _types() -> dict[str, Spec]:
    unit: Spec = [("unit", ("enum16", _UNIT))]
    inner = ("union", "DataType")
    return {
        "Binary": [("fixedLength", "u64?")],
        "Decimal": [("precision", "u32"), ("scale", "i32")],
        "Duration": unit,
        "Time": unit,
        "Timestamp": [*unit, ("timezone", "text")],
        "List": [("itemType", inner), ("fixedLength", "u64?")],
        "Map": [("keyType", inner), ("valueType", inner), ("keysSorted", "bool?")],
        "Option": [("inner", inner)],
        "Struct": [("fields", ("tables", "DataField"))],
    }


TABLES: dict[str, Spec] = {
    "OffsetInterval": [("start", "u64"), ("end", "u64")],
    "DataSlice": [
        ("logicalHash", "hash"),
        ("physicalHash", "hash"),
        ("offsetInterval", ("table", "OffsetInterval")),
        ("size", "u64"),
    ],
    "Checkpoint": [("physicalHash", "hash"), ("size", "u64")],
    "SourceState": [("sourceName", "text"), ("kind", "text"), ("value", "text")],
    "DataField": [("name", "text"), ("type", ("union", "DataType")), ("extra", "json")],
    "DataSchema": [("fields", ("tables", "DataField")), ("extra", "json")],
    "AddData": [
        ("prevCheckpoint", "hash"),
        ("prevOffset", "u64?"),
        ("newData", ("table", "DataSlice")),
        ("newCheckpoint", ("table", "Checkpoint")),
        ("newWatermark", "time"),
        ("newSourceState", ("table", "SourceState")),
        ("extra", "json"),
    ],
    "ExecuteTransformInput": [
        ("datasetId", "did"),
        ("prevBlockHash", "hash"),
        ("newBlockHash", "hash"),
        ("prevOffset", "u64?"),
        ("newOffset", "u64?"),
    ],
    "ExecuteTransform": [
        ("queryInputs", ("tables", "ExecuteTransformInput")),
        ("prevCheckpoint", "hash"),
        ("prevOffset", "u64?"),
        ("newData", ("table", "DataSlice")),
        ("newCheckpoint", ("table", "Checkpoint")),
        ("newWatermark", "time"),
    ],
    "Seed": [("datasetId", "did"), ("datasetKind", ("enum32", ["Root", "Derivative"]))],
    "SetVocab": [
        ("offsetColumn", "text"),
        ("operationTypeColumn", "text"),
        ("systemTimeColumn", "text"),
        ("eventTimeColumn", "text"),
    ],
    "SetInfo": [("description", "text"), ("keywords", "texts")],
    "SetLicense": [("shortName", "text"), ("name", "text"), ("spdxId", "text"), ("websiteUrl", "text")],
    "AttachmentEmbedded": [("path", "text"), ("content", "text")],
    "Embedded": [("items", ("tables", "AttachmentEmbedded"))],
    "SetAttachments": [("attachments", ("union", "Attachments"))],
    "SetDataSchema": [("rawArrowSchema", "bytes"), ("schema", ("table", "DataSchema"))],
    "TransformInput": [("datasetRef", "text"), ("alias", "text")],
    "SqlQueryStep": [("alias", "text"), ("query", "text")],
    "TemporalTable": [("name", "text"), ("primaryKey", "texts")],
    "Sql": [
        ("engine", "text"),
        ("version", "text"),
        ("query", "text"),
        ("queries", ("tables", "SqlQueryStep")),
        ("temporalTables", ("tables", "TemporalTable")),
    ],
    "SetTransform": [("inputs", ("tables", "TransformInput")), ("transform", ("union", "Transform"))],
    "RequestHeader": [("name", "text"), ("value", "text")],
    "Url": [
        ("url", "text"),
        ("eventTime", ("union", "EventTimeSource")),
        ("cache", ("union", "SourceCaching")),
        ("headers", ("tables", "RequestHeader")),
    ],
    "FromPath": [("pattern", "text"), ("timestampFormat", "text")],
    "Decompress": [("format", ("enum32", ["Gzip", "Zip"])), ("subPath", "text")],
    "Pipe": [("command", "texts")],
    "Csv": [
        ("ddlSchema", "texts"),
        ("separator", "text"),
        ("encoding", "text"),
        ("quote", "text"),
        ("escape", "text"),
        ("header", "bool?"),
        ("inferSchema", "bool?"),
        ("nullValue", "text"),
        ("dateFormat", "text"),
        ("timestampFormat", "text"),
        ("schema", ("table", "DataSchema")),
    ],
    "NdJson": [
        ("ddlSchema", "texts"),
        ("dateFormat", "text"),
        ("encoding", "text"),
        ("timestampFormat", "text"),
        ("schema", ("table", "DataSchema")),
    ],
    "Ledger": [("primaryKey", "texts")],
    "Snapshot": [("primaryKey", "texts"), ("compareColumns", "texts")],
    "SetPollingSource": [
        ("fetch", ("union", "FetchStep")),
        ("prepare", ("unions", "PrepStep")),
        ("read", ("union", "ReadStep")),
        ("preprocess", ("union", "Transform")),
        ("merge", ("union", "MergeStrategy")),
    ],
    "AddPushSource": [
        ("sourceName", "text"),
        ("read", ("union", "ReadStep")),
        ("preprocess", ("union", "Transform")),
        ("merge", ("union", "MergeStrategy")),
    ],
    "DisablePushSource": [("sourceName", "text")],
    "DisablePollingSource": [],
    **_types(),
}
UNIONS = {
    "Event": [
        "AddData",
        "ExecuteTransform",
        "Seed",
        "SetPollingSource",
        "SetTransform",
        "SetVocab",
        "SetAttachments",
        "SetInfo",
        "SetLicense",
        "SetDataSchema",
        "AddPushSource",
        "DisablePushSource",
        "DisablePollingSource",
    ],
    "DataType": _TYPES,
    "Attachments": ["Embedded"],
    "Transform": ["Sql"],
    "FetchStep": ["Url", "FilesGlob", "Container", "Mqtt", "EthereumLogs"],
    "EventTimeSource": ["FromMetadata", "FromPath", "FromSystemTime"],
    "SourceCaching": ["Forever"],
    "PrepStep": ["Decompress", "Pipe"],
    "ReadStep": ["Csv", "GeoJson", "EsriShapefile", "Parquet", "Json", "NdJson", "NdGeoJson"],
    "MergeStrategy": ["Append", "Ledger", "Snapshot", "ChangelogStream", "UpsertStream"],
}
_NUMBERS = {"u64": "<Q", "u32": "<I", "i32": "<i", "i64": "<q", "bool": "<?"}


def hash_text(raw: bytes) -> str:
    """A multihash as the specification writes it."""
    return "f" + raw.hex()


def sha3(raw: bytes) -> str:
    """The SHA3-256 of bytes as a multihash."""
    return "f1620" + hashlib.sha3_256(raw).hexdigest()


class Reader:
    """Tables of a flatbuffer."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def number(self, at: int, kind: str) -> Any:
        """A number at a place."""
        return struct.unpack_from(_NUMBERS[kind], self.raw, at)[0]

    def offset(self, at: int) -> int:
        """Where an offset leads."""
        return int(at + struct.unpack_from("<I", self.raw, at)[0])

    def slots(self, table: int) -> list[int]:
        """Where the values of a table are; 0 for those that are not there."""
        vtable = table - struct.unpack_from("<i", self.raw, table)[0]
        length = struct.unpack_from("<H", self.raw, vtable)[0]
        offsets = struct.unpack_from(f"<{(length - 4) // 2}H", self.raw, vtable + 4)
        return [table + offset if offset else 0 for offset in offsets]

    def vector(self, at: int) -> tuple[int, int]:
        """The first element and their number."""
        start = self.offset(at)
        return start + 4, struct.unpack_from("<I", self.raw, start)[0]

    def blob(self, at: int) -> bytes:
        """A vector of bytes."""
        start, count = self.vector(at)
        return self.raw[start : start + count]

    def time(self, at: int) -> str:
        """A timestamp, to the nanosecond."""
        year, day, zero, seconds, nanos = struct.unpack_from("<iHHII", self.raw, at)
        assert zero == 0
        moment = dt.datetime(year, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=day - 1, seconds=seconds)
        digits = f"{nanos:09d}"
        for length in (3, 6, 9):
            if not nanos or set(digits[length:]) <= {"0"}:
                return moment.replace(tzinfo=None).isoformat() + (f".{digits[:length]}" if nanos else "") + "Z"
        raise AssertionError(digits)

    def union(self, tag: int, table: int, union: str) -> dict[str, Any]:
        """A union's table, named."""
        name = UNIONS[union][tag - 1]
        return {"kind": name, **self.table(table, TABLES.get(name, []))}

    def table(self, table: int, spec: Spec) -> dict[str, Any]:
        """All fields of a table."""
        slots = self.slots(table)
        found: dict[str, Any] = {}
        slot = 0
        for name, kind in spec:
            is_union = isinstance(kind, tuple) and kind[0] == "union"
            at = slots[slot] if slot < len(slots) else 0
            if is_union:
                value_at = slots[slot + 1] if slot + 1 < len(slots) else 0
                if value_at:
                    found[name] = self.union(self.raw[at], self.offset(value_at), kind[1])
                slot += 2
                continue
            slot += 1
            value = self.value(at, kind)
            if value is not None:
                found[name] = value
        assert slot >= len(slots), "slots that the specification does not have"
        return found

    def value(self, at: int, kind: Any) -> Any:
        """A field's value; None where it is not there."""
        if isinstance(kind, str) and kind in _NUMBERS:
            return self.number(at, kind) if at else 0
        if isinstance(kind, tuple) and kind[0] == "enum32":
            return kind[1][self.number(at, "i32") if at else 0]
        if not at:
            return None
        if isinstance(kind, tuple):
            return self.nested(at, *kind)
        simple = {
            "hash": lambda: hash_text(self.blob(at)),
            "did": lambda: "did:odf:f" + self.blob(at).hex(),
            "bytes": lambda: base64.b64encode(self.blob(at)).decode(),
            "text": lambda: self.blob(at).decode(),
            "time": lambda: self.time(at),
            "json": lambda: json.loads(self.blob(self.slots(self.offset(at))[0])),
            "u64?": lambda: self.number(at, "u64"),
            "bool?": lambda: self.number(at, "bool"),
            "texts": lambda: [self.blob(place).decode() for place in self.places(at)],
        }
        return simple[kind]()

    def places(self, at: int) -> list[int]:
        """Where the elements of a vector of offsets are."""
        start, count = self.vector(at)
        return [start + 4 * index for index in range(count)]

    def nested(self, at: int, what: str, name: Any) -> Any:
        """A table, tables, or a small enumeration."""
        if what == "enum16":
            return name[struct.unpack_from("<h", self.raw, at)[0]]
        if what == "table":
            return self.table(self.offset(at), TABLES[name])
        if what == "tables":
            return [self.table(self.offset(place), TABLES[name]) for place in self.places(at)]
        wrapped = [self.slots(self.offset(place)) for place in self.places(at)]
        return [self.union(self.raw[tag], self.offset(value), name) for tag, value in wrapped]


def read_block(raw: bytes) -> dict[str, Any]:
    """A block of a file, as the YAML of it says."""
    manifest = Reader(raw)
    kind, version, content = manifest.slots(manifest.offset(0))
    assert manifest.number(kind, "i64") == 0x400000
    block = Reader(manifest.blob(content))
    slots = block.slots(block.offset(0))
    time, previous, number, tag, event = slots
    return {
        "version": manifest.number(version, "i32"),
        "systemTime": block.time(time),
        "prevBlockHash": hash_text(block.blob(previous)) if previous else None,
        "sequenceNumber": block.number(number, "u64") if number else 0,
        "event": block.union(block.raw[tag], block.offset(event), "Event"),
    }


def raw_schema(event: dict[str, Any]) -> pa.Schema:
    """Arrow's own schema of a `SetDataSchema`, which has no message around it."""
    body = base64.b64decode(event["rawArrowSchema"])
    return pa.ipc.read_schema(pa.py_buffer(_message(body)))


def _message(schema: bytes) -> bytes:
    """An IPC message whose header is a schema: a table of version, header's type and header."""
    root = struct.unpack_from("<I", schema)[0]
    # Table at 16 with its vtable at 4: version i16, type u8, header offset, length i64.
    vtable = struct.pack("<HHHHHH", 12, 24, 4, 6, 8, 16)
    header_at = 4 + 12 + 24
    body_at = header_at
    header = body_at + root - (16 + 8)
    table = struct.pack("<ihBxIiq", 12, 4, 1, header, 0, 0)
    message = struct.pack("<I", 16) + vtable + table + schema
    padded = message + b"\0" * (-len(message) % 8)
    return struct.pack("<iI", -1, len(padded)) + padded

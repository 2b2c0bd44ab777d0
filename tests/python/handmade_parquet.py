"""Parquet files made by hand, byte by byte, with what no library writes: a file of one column `x`.

Thrift's compact protocol, pages of version 1 and the footer are those of the Parquet format.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED = 0, 2, 3, 4
DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 5, 6, 7, 8, 9
UNCOMPRESSED, SNAPPY, GZIP, BROTLI, LZ4 = 0, 1, 2, 4, 5
OPTIONAL, REPEATED = 1, 2
UTF8, LIST_OF, DECIMAL, JSON, INTERVAL = 0, 3, 5, 19, 21


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _value(kind: int, value: Any) -> bytes:
    if kind in (I32, I64):
        return zigzag(value)
    if kind == BINARY:
        return varint(len(value)) + value
    if kind == LIST:
        element, items = value
        return bytes([0xF0 | element]) + varint(len(items)) + b"".join(_value(element, item) for item in items)
    return value


def thrift(*fields: tuple[int, int, Any]) -> bytes:
    """A struct of fields: their ids, types and values; those that are None are left out."""
    out, last = b"", 0
    for number, kind, value in fields:
        if value is not None:
            out += bytes([(number - last) << 4 | kind]) + _value(kind, value)
            last = number
    return out + b"\0"


def runs(level: int, count: int, width: int = 1) -> bytes:
    """A level or an index, `count` times."""
    return varint(count << 1) + level.to_bytes((width + 7) // 8, "little")


def levels(encoded: bytes) -> bytes:
    return struct.pack("<I", len(encoded)) + encoded


def plain_strings(*strings: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


def deltas(first: int, second: int) -> bytes:
    """Two delta-encoded numbers, which need no bits beyond their step."""
    return varint(128) + varint(4) + varint(2) + zigzag(first) + zigzag(second - first) + bytes(4)


def page(count: int, encoding: int, body: bytes, *, stored: bytes | None = None, claimed: int | None = None) -> bytes:
    """A data page of version 1; `stored` is the compressed body, `claimed` the length that its header states."""
    stored = body if stored is None else stored
    kind = thrift((1, I32, count), (2, I32, encoding), (3, I32, RLE), (4, I32, RLE))
    length = len(body) if claimed is None else claimed
    return thrift((1, I32, 0), (2, I32, length), (3, I32, len(stored)), (5, STRUCT, kind)) + stored


def dictionary_page(count: int, body: bytes) -> bytes:
    kind = thrift((1, I32, count), (2, I32, PLAIN))
    return thrift((1, I32, 2), (2, I32, len(body)), (3, I32, len(body)), (7, STRUCT, kind)) + body


@dataclass
class Column:
    """A column chunk and its type; `dictionary_offset` is what the footer states."""

    physical: int
    pages: bytes
    rows: int
    converted: int | None = None
    length: int | None = None
    scale: int | None = None
    precision: int | None = None
    codec: int = UNCOMPRESSED
    encodings: list[int] = field(default_factory=lambda: [PLAIN, RLE])
    dictionary_offset: int | None = None
    is_list: bool = False


def _schema(column: Column) -> list[bytes]:
    root = thrift((4, BINARY, b"schema"), (5, I32, 1))
    name = b"element" if column.is_list else b"x"
    leaf = thrift(
        (1, I32, column.physical),
        (2, I32, column.length),
        (3, I32, OPTIONAL),
        (4, BINARY, name),
        (6, I32, column.converted),
        (7, I32, column.scale),
        (8, I32, column.precision),
    )
    if not column.is_list:
        return [root, leaf]
    outer = thrift((3, I32, OPTIONAL), (4, BINARY, b"x"), (5, I32, 1), (6, I32, LIST_OF))
    middle = thrift((3, I32, REPEATED), (4, BINARY, b"list"), (5, I32, 1))
    return [root, outer, middle, leaf]


def file(column: Column, arrow_schema: pa.Schema | None = None) -> bytes:
    path = [b"x", b"list", b"element"] if column.is_list else [b"x"]
    size = len(column.pages)
    chunk = thrift(
        (1, I32, column.physical),
        (2, LIST, (I32, column.encodings)),
        (3, LIST, (BINARY, path)),
        (4, I32, column.codec),
        (5, I64, column.rows),
        (6, I64, size),
        (7, I64, size),
        (9, I64, 4),
        (11, I64, column.dictionary_offset),
    )
    columns = [thrift((2, I64, 4), (3, STRUCT, chunk))]
    group = thrift((1, LIST, (STRUCT, columns)), (2, I64, size), (3, I64, column.rows))
    key_values = None
    if arrow_schema is not None:
        encoded = base64.b64encode(arrow_schema.serialize().to_pybytes())
        key_values = (STRUCT, [thrift((1, BINARY, b"ARROW:schema"), (2, BINARY, encoded))])
    footer = thrift(
        (1, I32, 2),
        (2, LIST, (STRUCT, _schema(column))),
        (3, I64, column.rows),
        (4, LIST, (STRUCT, [group])),
        (5, LIST, key_values),
        (6, BINARY, b"by hand"),
    )
    return b"PAR1" + column.pages + footer + struct.pack("<I", len(footer)) + b"PAR1"

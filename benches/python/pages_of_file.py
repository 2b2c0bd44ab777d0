"""The compressed pages of a Parquet file, by the headers before them (Thrift's compact protocol)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# Fields of PageHeader, and of DataPageHeaderV2 within it, whose levels come before what is compressed.
PLAIN_SIZE, SIZE, V2 = 2, 3, 8
LEVELS = (5, 6)


@dataclasses.dataclass(frozen=True)
class Page:
    """What of a page is compressed, and how long it is without that."""

    body: memoryview
    plain_size: int


def chunks(path: Path, columns: Sequence[str] | None) -> list[tuple[int, int]]:
    """Offset and length of the column chunks of all columns, or of some."""
    footer = pq.read_metadata(path)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    found = [group.column(number) for group in groups for number in range(group.num_columns)]
    return [
        (c.dictionary_page_offset or c.data_page_offset, c.total_compressed_size)
        for c in found
        if columns is None or c.path_in_schema in columns
    ]


def pages(path: Path, offset: int, size: int) -> Iterator[Page]:
    """The pages of a chunk; those that are not compressed are left out."""
    with path.open("rb") as file:
        file.seek(offset)
        chunk = memoryview(file.read(size))
    at = 0
    while at < size:
        header, at = _struct(chunk, at)
        levels = sum(header.get(V2, {}).get(field, 0) for field in LEVELS)
        body = chunk[at + levels : at + header[SIZE]]
        plain_size = header[PLAIN_SIZE] - levels
        if plain_size > 0 and body[:4] == b"\x28\xb5\x2f\xfd":  # how a frame of zstd begins
            yield Page(body, plain_size)
        at += header[SIZE]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _struct(data: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """Fields by their number; of those that are not needed, some value."""
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        kind, delta = data[at] & 0x0F, data[at] >> 4
        at += 1
        if delta:
            number += delta
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, kind)
    return fields, at + 1


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _value(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:  # a boolean is in the kind
            return kind == 1, at
        case 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _integer(data, at)
        case 7:
            return None, at + 8
        case 8:
            size, at = _varint(data, at)
            return None, at + size
        case 12:
            return _struct(data, at)
    raise ValueError(f"a page header has a field of kind {kind}")

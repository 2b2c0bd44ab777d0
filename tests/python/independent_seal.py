"""Another reader of seals: what docs/format.md says (rule 5), and nothing of pds, in plain Python.

`check_file` compares every checksum of a file with its bytes and gives the seal. Where pages are, it reads itself
from the Thrift structs of the footer and the offset indexes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from independent_xxh3 import xxh3_64

MAGIC = b"PDSSEAL1"


@dataclass
class Seal:
    """A seal as it stands in a file."""

    length: int = 0
    version: int = 1
    write_id: bytes = b""
    chunks: list[list[int]] = field(default_factory=list)
    index_hash: int = 0
    footer_hash: int = 0
    pages: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        self.at += count
        assert self.at <= len(self.data), "the bytes end too early"
        return self.data[self.at - count : self.at]

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def zigzag(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def thrift(self, kind: int) -> Any:
        """A value of Thrift's compact protocol; a struct is a dict by field id."""
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind == 12:
            return self._struct()
        if kind == 9:
            head = self.take(1)[0]
            count = self.varint() if head >> 4 == 15 else head >> 4
            element = head & 15
            return [self.take(1) if element in (1, 2) else self.thrift(element) for _ in range(count)]
        sizes = {1: 0, 2: 0, 3: 1, 7: 8}
        return self.take(sizes[kind] if kind in sizes else self.varint())

    def _struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        last = 0
        while head := self.take(1)[0]:
            last = last + (head >> 4) if head >> 4 else self.zigzag()
            fields[last] = self.thrift(head & 15)
        return fields


def _parse(data: bytes, end: int) -> Seal:
    """The seal that ends before the footer."""
    (length,) = struct.unpack_from("<I", data, end - 20)
    (own_hash,) = struct.unpack_from("<Q", data, end - 16)
    raw = data[end - length : end]
    assert raw[:8] == raw[-8:] == MAGIC
    assert own_hash == xxh3_64(raw[:-16])
    reader = _Bytes(raw[8:-20])
    seal = Seal(length=length, write_id=reader.take(16))
    reader.take(8 + 8 + 1)
    reader.take(*reader.numbers("I"))
    groups, columns = reader.numbers("II")
    seal.chunks = [list(reader.numbers(f"{columns}Q")) for _ in range(groups)]
    seal.index_hash, seal.footer_hash = reader.numbers("QQ")
    for _ in range(*reader.numbers("I")):
        reader.take(4)
        reader.take(*reader.numbers("I"))
    if reader.at < len(reader.data):
        (seal.version,) = reader.numbers("I")
        for _ in range(*reader.numbers("I")):
            group, leaf, pages, column_index, offset_index = reader.numbers("IIIQQ")
            seal.pages[group, leaf] = (pages, column_index, offset_index)
        assert reader.at == len(reader.data)
        assert list(seal.pages) == sorted(seal.pages)
    return seal


def _part(data: bytes, chunk: dict[int, Any], offset: int, length: int) -> bytes:
    return data[chunk[offset] : chunk[offset] + chunk[length]] if offset in chunk else b""


def _check_pages(data: bytes, chunk: dict[int, Any], entry: tuple[int, int, int], checksums: bytes) -> None:
    """The pages of a chunk; fields of Parquet by their ids."""
    count, column_index_hash, offset_index_hash = entry
    assert xxh3_64(_part(data, chunk, 6, 7)) == column_index_hash
    offset_index = _part(data, chunk, 4, 5)
    assert xxh3_64(offset_index + checksums) == offset_index_hash
    meta = chunk[3]
    pages = [(page[1], page[2]) for page in _Bytes(offset_index).thrift(12)[1]]
    assert len(pages) > 1
    if 11 in meta:
        pages.insert(0, (meta[11], pages[0][0] - meta[11]))
    assert len(pages) == count
    expected = struct.unpack(f"<{count}Q", checksums)
    assert [xxh3_64(data[at : at + size]) for at, size in pages] == list(expected)


def _chunks(data: bytes) -> dict[tuple[int, int], dict[int, Any]]:
    (footer_length,) = struct.unpack_from("<I", data, len(data) - 8)
    footer = _Bytes(data[len(data) - 8 - footer_length : -8]).thrift(12)
    groups = enumerate(footer[4])
    return {(number, leaf): chunk for number, group in groups for leaf, chunk in enumerate(group[1])}


def chunk_indexes(data: bytes) -> dict[tuple[int, int, str], tuple[int, int]]:
    """The offset and the length of each column index and offset index, by row group and column."""
    names = {"offset": (4, 5), "column": (6, 7)}
    chunks = _chunks(data).items()
    return {(*key, name): (chunk[at], chunk[size]) for key, chunk in chunks for name, (at, size) in names.items()}


def data_pages(data: bytes) -> dict[tuple[int, int, int], tuple[int, int]]:
    """The offset and the length of each data page, by row group, column and number."""
    pages = {}
    for (group, leaf), chunk in _chunks(data).items():
        locations = _Bytes(_part(data, chunk, 4, 5)).thrift(12)[1]
        pages.update({(group, leaf, i): (page[1], page[2]) for i, page in enumerate(locations)})
    return pages


def check_file(data: bytes) -> Seal:
    """The seal of a file of pds, of which every checksum fits."""
    assert data[:4] == data[-4:] == b"PAR1"
    (footer_length,) = struct.unpack_from("<I", data, len(data) - 8)
    footer_at = len(data) - 8 - footer_length
    seal = _parse(data, footer_at)
    assert xxh3_64(data[footer_at:]) == seal.footer_hash
    footer = _Bytes(data[footer_at:-8]).thrift(12)
    ends = [4]
    several: list[tuple[int, int]] = []
    checksums_at = footer_at - seal.length - 8 * sum(pages for pages, _, _ in seal.pages.values())
    for number, group in enumerate(footer.get(4, [])):
        for leaf, chunk in enumerate(group[1]):
            meta = chunk[3]
            start = meta.get(11, meta[9])
            ends.append(start + meta[7])
            assert xxh3_64(data[start : ends[-1]]) == seal.chunks[number][leaf]
            if len(_Bytes(_part(data, chunk, 4, 5)).thrift(12)[1]) > 1:
                several.append((number, leaf))
            if (number, leaf) in seal.pages:
                entry = seal.pages[number, leaf]
                _check_pages(data, chunk, entry, data[checksums_at : checksums_at + 8 * entry[0]])
                checksums_at += 8 * entry[0]
    assert seal.version == 1 or several == list(seal.pages)
    assert xxh3_64(data[max(ends) : footer_at - seal.length]) == seal.index_hash
    return seal

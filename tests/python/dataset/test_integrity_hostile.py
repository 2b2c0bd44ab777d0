"""Bytes that were made to harm: an exception says what is wrong with them, and little memory is taken."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from handmade_parquet import (
    BROTLI,
    BYTE_ARRAY,
    BYTE_STREAM_SPLIT,
    DELTA_BINARY_PACKED,
    DELTA_BYTE_ARRAY,
    DELTA_LENGTH_BYTE_ARRAY,
    FIXED,
    GZIP,
    INT32,
    LZ4,
    PLAIN,
    RLE_DICTIONARY,
    UTF8,
    Column,
    dictionary_page,
    file,
    levels,
    page,
    plain_strings,
    runs,
    varint,
    zigzag,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.sampled(2)

# Reads with 2 GiB of address space beyond what the process has at the start, so that room made for what a
# footer claims is noticed.
READ = """
import json, resource, sys
import pds
root = json.loads(sys.argv[1])
ds = pds.ParquetDatasetStore(pds.Store(root))
size = int(open("/proc/self/statm").read().split()[0]) * 4096
ds.dataset_exists("a")
resource.setrlimit(resource.RLIMIT_AS, (size + (6 << 30), size + (6 << 30)))
found = []
for read in (ds.read_dataset, lambda key: ds.scan_dataset(key).read_all(), ds.verify_dataset):
    try:
        read("a")
        found.append("read")
    except pds.RemoteStoreError as error:
        found.append(type(error).__name__)
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1]
print(json.dumps([found, int(peak)]))
"""
MANIFEST = {
    "dataset_key": "a",
    "parts": ["data.parquet"],
    "row_count": 0,
    "schema_hash": "0" * 16,
    "compression": "none",
    "created_at_utc": "2026-11-21T00:00:00.000001+00:00",
}


def _write(root: Path, content: bytes, rows: int) -> None:
    folder = root / "a"
    folder.mkdir()
    (folder / "data.parquet").write_bytes(content)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | {"row_count": rows}))
    (folder / "_SUCCESS").touch()


def _outcome(root: Path, content: bytes, rows: int = 0) -> tuple[list[str], int]:
    _write(root, content, rows)
    command = [sys.executable, "-c", READ, json.dumps(root.as_uri())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found, peak = json.loads(done.stdout)
    return found, peak


def _file(footer: bytes, before: bytes = b"") -> bytes:
    return b"PAR1" + before + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _refused(outcome: tuple[list[str], int]) -> None:
    found, peak_kib = outcome
    assert found == ["PartCorrupted"] * 3
    assert peak_kib < 400 << 10


ROOT = b"\x15\x02\x19\x1c\x48\x06schema\x15\x00\x00\x16\x00"


def test_a_footer_that_claims_two_billion_row_groups(tmp_path: Path) -> None:
    _refused(_outcome(tmp_path, _file(ROOT + b"\x19\xfc\xff\xff\xff\xff\x07")))


def test_a_footer_whose_structs_are_nested_without_end(tmp_path: Path) -> None:
    _refused(_outcome(tmp_path, _file(ROOT + b"\x1c" * 1_000_000)))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_a_schema_that_is_nested_a_hundred_thousand_times(tmp_path: Path) -> None:
    levels = 100_000
    group = b"\x35\x02\x18\x01a\x15\x02\x00"
    leaf = b"\x15\x02\x25\x02\x18\x01a\x00"
    schema = b"\x15\x02\x19\xfc" + _varint(levels + 1) + group * levels + leaf + b"\x16\x00\x19\x0c\x00"
    _refused(_outcome(tmp_path, _file(schema)))


@pytest.mark.parametrize("rows", [2**40, 2**62])
@pytest.mark.parametrize("data_type", [pa.int64(), pa.string(), pa.list_(pa.int8())], ids=str)
def test_a_footer_that_claims_more_rows_than_there_are(tmp_path: Path, rows: int, data_type: pa.DataType) -> None:
    # The number of rows that stands for itself, in as many bytes as the one that is put in its place.
    sink = io.BytesIO()
    table = pa.table({"c": pa.array([None] * 70_001, data_type)})
    pq.write_table(table, sink, write_statistics=False)
    content = sink.getvalue()
    length = struct.unpack("<I", content[-8:-4])[0]
    footer = content[-8 - length : -8]
    for field in (b"\x16", b"\x26"):
        footer = footer.replace(field + _varint(140_002), field + _varint(2 * rows))
    content = content[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"
    assert pq.ParquetFile(io.BytesIO(content)).metadata.num_rows == rows
    _refused(_outcome(tmp_path, content, rows))


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while content[at] >= 0x80:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | content[at] << shift, at + 1


def _changed(table: pa.Table, change: Callable[[bytes], bytes], **options: object) -> bytes:
    """A file of one column chunk that was changed, at the end of the file, and may be longer then."""
    sink = io.BytesIO()
    pq.write_table(table, sink, write_statistics=False, **options)
    content = sink.getvalue()
    column = pq.ParquetFile(sink).metadata.row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    end = start + column.total_compressed_size
    chunk = change(content[start:end])
    length = struct.unpack("<I", content[-8:-4])[0]
    footer = content[-8 - length : -8]
    # The one length of the chunk, or both where they are the same.
    footer = footer.replace(b"\x16" + _varint(2 * (end - start)), b"\x16" + _varint(2 * len(chunk)))
    return content[:start] + chunk + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _with_lengths(chunk: bytes, uncompressed: int, change: Callable[[bytes], bytes] = lambda rest: rest) -> bytes:
    """The first page, a data page, with another length; `change` has what follows its lengths."""
    assert chunk.startswith(b"\x15\x00\x15")
    _, at = _number(chunk, 3)
    compressed, end = _number(chunk, at + 1)
    rest = change(chunk[end:])
    longer = compressed // 2 + len(rest) - len(chunk[end:])
    return b"\x15\x00\x15" + _varint(2 * (uncompressed or longer)) + b"\x15" + _varint(2 * longer) + rest


@pytest.mark.parametrize("compression", ["snappy", "gzip", "lz4", "zstd", "brotli"])
def test_page_headers_that_claim_two_gigabytes(tmp_path: Path, compression: str) -> None:
    table = pa.table({"c": pa.array(range(300), pa.int64())})
    change = lambda chunk: _with_lengths(chunk, 2**31 - 1)  # noqa: E731
    _refused(_outcome(tmp_path, _changed(table, change, use_dictionary=False, compression=compression), 300))


@pytest.mark.parametrize(
    "data_type", [pa.int32(), pa.int64(), pa.string(), pa.binary(5), pa.list_(pa.string())], ids=str
)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_dictionaries_that_claim_two_billion_values(tmp_path: Path, data_type: pa.DataType, compression: str) -> None:
    def change(chunk: bytes) -> bytes:
        # The struct of a dictionary page, and the number of its values.
        at = chunk.index(b"\x4c\x15") + 2
        _, end = _number(chunk, at)
        return chunk[:at] + _varint(2 * (2**31 - 1)) + chunk[end:]

    values = pa.array([f"{n % 9:05}" for n in range(300)])
    if pa.types.is_integer(data_type):
        values = values.cast(pa.int64())
    elif pa.types.is_list(data_type):
        values = pa.array([[value] for value in values.to_pylist()])
    table = pa.table({"c": values.cast(data_type)})
    content = _changed(table, change, compression=compression, data_page_version="1.0")
    _refused(_outcome(tmp_path, content, 300))


@pytest.mark.parametrize("claimed", [2**20, 2**32, 2**36, 2**62], ids=["1m", "4g", "64g", "2^62"])
@pytest.mark.parametrize("encoding", ["DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "list"])
def test_deltas_that_claim_more_values_than_there_are(
    tmp_path: Path, encoding: str, claimed: int, nested: bool
) -> None:
    block = b"\x80\x02\x04" if encoding == "DELTA_BINARY_PACKED" else b"\x80\x01\x04"

    def change(rest: bytes) -> bytes:
        assert rest.count(block + _varint(300)) == (2 if encoding == "DELTA_BYTE_ARRAY" else 1)
        return rest.replace(block + _varint(300), block + _varint(claimed))

    values = pa.array(range(300), pa.int64())
    if encoding != "DELTA_BINARY_PACKED":
        values = values.cast(pa.string())
    if nested:
        values = pa.ListArray.from_arrays(range(301), values)
    options = {"compression": "none", "use_dictionary": False, "column_encoding": encoding}
    content = _changed(pa.table({"c": values}), lambda chunk: _with_lengths(chunk, 0, change), **options)
    if encoding == "DELTA_BINARY_PACKED":
        # No room is made for those, and the values are all there.
        assert _outcome(tmp_path, content, 300)[0] == ["read"] * 3
    else:
        _refused(_outcome(tmp_path, content, 300))


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "list"])
def test_a_footer_that_claims_no_values_hides_no_page(tmp_path: Path, *, nested: bool) -> None:
    values = pa.array(range(300), pa.int64())
    table = pa.table({"c": pa.ListArray.from_arrays(range(301), values) if nested else values})
    change = lambda chunk: _with_lengths(chunk, 2**31 - 1)  # noqa: E731
    content = _changed(table, change, use_dictionary=False, compression="snappy")
    # The number of values of the column stands before its lengths.
    claimed = b"\x16" + _varint(600) + b"\x16"
    assert content.count(claimed) == 1
    length = struct.unpack("<I", content[-8:-4])[0]
    footer = content[-8 - length : -8].replace(claimed, b"\x16\x00\x16")
    content = content[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"
    _refused(_outcome(tmp_path, content, 300))


def test_a_page_and_its_deltas_claim_the_same(tmp_path: Path) -> None:
    """Two thousand million texts, in a file of 300 rows."""

    def change(rest: bytes) -> bytes:
        # The values of the page, and of the deltas.
        page, deltas = b"\x2c\x15" + _varint(600), b"\x80\x01\x04" + _varint(300)
        assert (rest.count(page), rest.count(deltas)) == (1, 1)
        rest = rest.replace(deltas, b"\x80\x01\x04" + _varint(2**31 - 1))
        return rest.replace(page, b"\x2c\x15" + _varint(2 * (2**31 - 1)))

    def grown(chunk: bytes) -> bytes:
        # What is longer in the header is no part of the page.
        longer = len(_varint(2 * (2**31 - 1))) - len(_varint(600))
        _, at = _number(chunk, 3)
        size = _number(chunk, at + 1)[0] // 2
        changed = _with_lengths(chunk, 0, change)
        wrong = size + len(_varint(2**31 - 1)) - len(_varint(300)) + longer
        right = wrong - longer
        old = b"\x15" + _varint(2 * wrong) + b"\x15" + _varint(2 * wrong)
        return changed.replace(old, b"\x15" + _varint(2 * right) + b"\x15" + _varint(2 * right), 1)

    table = pa.table({"c": pa.array([f"{n}" for n in range(300)])})
    options = {"compression": "none", "use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"}
    _refused(_outcome(tmp_path, _changed(table, grown, **options), 300))


def _zeros(codec: int, count: int) -> bytes:
    """Zeros by the codec, more than fit in memory where that is cheap."""
    if codec == GZIP:
        # Members of a gzip file may follow one another.
        return pa.compress(bytes(count >> 6), "gzip", asbytes=True) * 64
    return pa.compress(bytes(count), {BROTLI: "brotli", LZ4: "lz4"}[codec], asbytes=True)


@pytest.mark.parametrize("codec", [GZIP, BROTLI, LZ4], ids=["gzip", "brotli", "lz4"])
@pytest.mark.parametrize("encoding", [PLAIN, DELTA_LENGTH_BYTE_ARRAY])
@pytest.mark.parametrize("is_list", [False, True], ids=["flat", "list"])
def test_pages_that_become_longer_than_they_claim(tmp_path: Path, codec: int, encoding: int, *, is_list: bool) -> None:
    stored = _zeros(codec, 1 << 30)
    body = (levels(runs(0, 3)) if is_list else b"") + levels(runs(1, 3))
    pages = page(3, encoding, body, stored=stored, claimed=1 << 20)
    physical = INT32 if encoding == PLAIN else BYTE_ARRAY
    column = Column(physical, pages, 3, codec=codec, is_list=is_list, converted=None if encoding == PLAIN else UTF8)
    _refused(_outcome(tmp_path, file(column), 3))


def _equal_steps(count: int, first: int = 0, step: int = 0) -> bytes:
    """Delta-encoded numbers in one block, which take no bits beyond their step."""
    step = step << 1 if step >= 0 else (-step << 1) - 1
    return varint(1 << 31) + varint(4) + varint(count) + varint(first << 1) + varint(step) + bytes(4)


MANY = 2**31 - 1


@pytest.mark.parametrize("encoding", [DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY], ids=["prefixes", "lengths"])
@pytest.mark.parametrize("is_list", [False, True], ids=["flat", "list"])
def test_two_billion_empty_texts_in_a_few_bytes(tmp_path: Path, encoding: int, *, is_list: bool) -> None:
    """All numbers of the file agree, so nothing but the length of the page speaks against them."""
    level_bytes = (levels(runs(0, MANY)) + levels(runs(3, MANY, 2))) if is_list else levels(runs(1, MANY))
    body = level_bytes + _equal_steps(MANY) * (2 if encoding == DELTA_BYTE_ARRAY else 1)
    column = Column(BYTE_ARRAY, page(MANY, encoding, body), MANY, converted=UTF8, is_list=is_list)
    _refused(_outcome(tmp_path, file(column), MANY))


@pytest.mark.parametrize("encoding", [DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY], ids=["prefixes", "lengths"])
def test_a_million_texts_in_a_few_bytes_are_read(memory_store: pds.Store, encoding: int) -> None:
    """Blocks of deltas may be long, and equal lengths take no bytes."""
    rows = 1 << 20
    lengths = [_equal_steps(rows)] if encoding == DELTA_LENGTH_BYTE_ARRAY else [_equal_steps(rows), _equal_steps(rows)]
    body = levels(runs(1, rows)) + b"".join(lengths)
    content = file(Column(BYTE_ARRAY, page(rows, encoding, body), rows, converted=UTF8))
    expected = pq.read_table(io.BytesIO(content))
    memory_store.write("t/new.parquet", content)
    table = pds.Table.create(memory_store, "t", expected.schema)
    table.add_files(["t/new.parquet"])
    assert table.scan().to_pyarrow().equals(expected)


THREE = levels(runs(1, 3))
CLAIMS = {
    "plain": Column(INT32, page(MANY, PLAIN, THREE + bytes(12)), 3),
    "deltas": Column(INT32, page(MANY, DELTA_BINARY_PACKED, THREE + _equal_steps(MANY)), 3),
    "split": Column(INT32, page(MANY, BYTE_STREAM_SPLIT, THREE + bytes(12)), 3),
    "indices": Column(
        BYTE_ARRAY,
        dictionary_page(1, plain_strings(b"a"))
        + page(MANY, RLE_DICTIONARY, levels(runs(1, MANY)) + b"\1" + runs(0, MANY)),
        3,
        converted=UTF8,
    ),
    "texts": Column(BYTE_ARRAY, page(MANY, PLAIN, THREE + plain_strings(b"a", b"b", b"c")), 3, converted=UTF8),
    "nulls": Column(INT32, page(MANY, PLAIN, levels(runs(0, MANY))), 3),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_page_of_more_values_than_rows(tmp_path: Path, name: str) -> None:
    _refused(_outcome(tmp_path, file(CLAIMS[name]), 3))


# The rows of the first batch, and the memory in KiB that it took at most.
FIRST_BATCH = """
import resource, sys
import pds
ds = pds.ParquetDatasetStore(pds.Store(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
batch = ds.scan_dataset("a").read_next_batch()
assert batch.column(0)[0].as_py() == bytes(1 << 20)
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1]
print(batch.num_rows, peak)
"""


def test_batches_of_long_nulls_are_short(tmp_path: Path) -> None:
    """One value of a mebibyte, and nulls that take 64 GiB as values of that length."""
    width, rows = 1 << 20, 1 << 16
    body = levels(runs(1, 1) + runs(0, rows - 1)) + bytes(width)
    _write(tmp_path, file(Column(FIXED, page(rows, PLAIN, body), rows, length=width)), rows)
    command = [sys.executable, "-c", FIRST_BATCH, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    batch_rows, peak_kib = map(int, done.stdout.split())
    assert 0 < batch_rows < 1000
    assert peak_kib < 400 << 10


@pytest.mark.parametrize("claimed", [2**62, -(2**63)])
def test_a_chunk_that_claims_too_many_bytes_is_not_read_row_by_row(memory_store: pds.Store, claimed: int) -> None:
    rows = 50_000
    numbers = page(rows, PLAIN, levels(runs(1, rows)) + struct.pack(f"<{rows}i", *range(rows)))
    content = file(Column(INT32, numbers, rows))
    sizes = b"\x16" + zigzag(len(numbers))
    length = struct.unpack("<I", content[-8:-4])[0]
    footer = content[-8 - length : -8]
    assert footer.count(sizes * 2) == 1
    footer = footer.replace(sizes * 2, b"\x16" + zigzag(claimed) + sizes)
    memory_store.write("t/new.parquet", content[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    table = pds.Table.create(memory_store, "t", pa.schema([("x", pa.int32())]))
    table.add_files(["t/new.parquet"])
    result = table.scan().to_pyarrow()
    assert result["x"].to_pylist() == list(range(rows))
    assert result["x"].num_chunks < 100


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "lz4", "zstd", "brotli"])
@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", None], ids=str)
def test_what_is_sound_is_read(memory_store: pds.Store, version: str, compression: str, encoding: str | None) -> None:
    """Texts that compress to nothing, share their beginnings, are null, empty, long or in lists."""
    rows = 5000
    texts = {
        "same": ["x" * 2000] * rows,
        "shared": [f"{'prefix' * (n % 7)}{n:06}" for n in range(rows)],
        "nulls": [None if n % 3 else "" for n in range(rows)],
        "long": ["y" * 300_000 if n == 77 else "z" for n in range(rows)],
        "none": pa.nulls(rows, pa.string()),
    }
    lists = [None if n % 11 == 0 else [None, "a" * (n % 5)] * (n % 4) for n in range(rows)]
    table = pa.table({**texts, "lists": lists})
    sink = io.BytesIO()
    options = {"use_dictionary": False, "column_encoding": encoding} if encoding else {}
    pq.write_table(table, sink, compression=compression, data_page_version=version, data_page_size=4000, **options)
    memory_store.write("t/new.parquet", sink.getvalue())
    found = pds.Table.create(memory_store, "t", table.schema)
    found.add_files(["t/new.parquet"])
    assert found.scan().to_pyarrow().equals(table)
    middle = found.scan(where="shared LIKE '%002%'").to_pyarrow()
    assert middle.num_rows == sum("002" in text for text in texts["shared"])


def test_what_was_changed_is_not_decoded(memory_store: pds.Store) -> None:
    """The checksum of a footer is compared first: the decoder never sees a footer that was changed."""
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(pa.table({"n": [1, 2, 3]}), "a")
    content = memory_store.read_bytes("a/data.parquet")
    length = struct.unpack("<I", content[-8:-4])[0]
    for position in range(len(content) - 8 - length, len(content) - 8):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        memory_store.write("a/data.parquet", bytes(damaged), overwrite=True)
        with pytest.raises(pds.PartCorrupted, match="footer does not match its checksum"):
            ds.read_dataset("a")

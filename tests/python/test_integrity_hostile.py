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

if TYPE_CHECKING:
    from pathlib import Path

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


def _outcome(root: Path, content: bytes, rows: int = 0) -> tuple[list[str], int]:
    folder = root / "a"
    folder.mkdir()
    (folder / "data.parquet").write_bytes(content)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | {"row_count": rows}))
    (folder / "_SUCCESS").touch()
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


def test_page_headers_that_claim_two_gigabytes(tmp_path: Path) -> None:
    sink = io.BytesIO()
    table = pa.table({"c": pa.array(range(300), pa.int64())})
    pq.write_table(table, sink, use_dictionary=False, compression="zstd", write_statistics=False)
    content = sink.getvalue()
    start = pq.ParquetFile(sink).metadata.row_group(0).column(0).data_page_offset
    # A data page: the uncompressed size is the second field, a number of seven bits a byte.
    header = content[start : start + 20]
    assert header.startswith(b"\x15\x00\x15")
    end = 4 + next(i for i, byte in enumerate(header[3:]) if byte < 0x80)
    grown = b"\x15\x00\x15" + _varint(2 * (2**31 - 1))
    patched = content[:start] + grown + content[start + end :]
    shift = len(grown) - end
    length = struct.unpack("<I", patched[-8:-4])[0]
    metadata = pq.ParquetFile(sink).metadata.row_group(0).column(0)
    old = _varint(2 * metadata.total_compressed_size)
    new = _varint(2 * (metadata.total_compressed_size + shift))
    footer = patched[-8 - length : -8].replace(b"\x16" + old, b"\x16" + new)
    patched = patched[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"
    _refused(_outcome(tmp_path, patched, 300))


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
        with pytest.raises(pds.PartCorrupted, match="footer was changed"):
            ds.read_dataset("a")

"""Files of other makers with a column whose encoding or codec pds does not know: the other columns are read."""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

# Numbers of an encoding and of a codec that no format has yet.
ENCODING, CODEC = 10, 9
ROWS = pa.table({"id": range(5000), "x": [n % 7 for n in range(5000)], "name": [f"n{n}" for n in range(5000)]})


def _changed(name: str, encoding: int | None = None, codec: int | None = None) -> bytes:
    """A file whose column `name` says, in the footer and in its pages, to have another encoding or codec."""
    sink = io.BytesIO()
    column = {name: "DELTA_BINARY_PACKED"}
    pq.write_table(ROWS, sink, use_dictionary=False, column_encoding=column, compression="none", write_page_index=True)
    content = sink.getvalue()
    length = struct.unpack("<I", content[-8:-4])[0]
    pages, footer = content[: -8 - length], content[-8 - length : -8]
    # Numbers of the compact protocol: those of 32 bits have the type 5, and their double as value.
    path = b"\x18" + bytes([len(name)]) + name.encode() + b"\x15"
    assert footer.count(path + b"\x00") == 1
    if codec is not None:
        footer = footer.replace(path + b"\x00", path + bytes([2 * codec]))
    if encoding is not None:
        number = bytes([2 * encoding])
        assert (footer.count(b"\x25\x06\x0a"), footer.count(b"\x15\x00\x15\x0a")) == (1, 1)
        footer = footer.replace(b"\x25\x06\x0a", b"\x25\x06" + number)
        footer = footer.replace(b"\x15\x00\x15\x0a", b"\x15\x00\x15" + number)
    return pages + footer + content[-8:]


FORMATS = {"encoding 10": {"encoding": ENCODING}, "codec 9": {"codec": CODEC}}


@pytest.fixture(params=FORMATS)
def unknown(request: pytest.FixtureRequest, memory_store: pds.Store) -> tuple[pds.Table, str]:
    """A table of one file with a column `x` of an unknown format, and that format."""
    memory_store.write("lake/a.parquet", _changed("x", **FORMATS[request.param]))
    table = pds.Table.create(memory_store, "t", ROWS.schema)
    table.add_files("lake/a.parquet")
    return table, request.param


def test_the_other_columns_are_read(unknown: tuple[pds.Table, str]) -> None:
    table, _ = unknown
    others = ["name", "id"]
    expected = ROWS.select(others)
    assert table.scan(columns=others).to_pyarrow().equals(expected)
    assert table.scan(columns=others, where="id = 4321").to_pyarrow().equals(expected.slice(4321, 1))
    assert table.scan(columns=["name"], where="id % 2 = 0").to_pyarrow().num_rows == 2500
    assert table.scan(columns=others, limit=10).to_pyarrow().equals(expected.slice(0, 10))
    assert table.scan().count() == 5000


def test_the_column_is_refused_by_its_name(unknown: tuple[pds.Table, str]) -> None:
    table, name = unknown
    for read in (
        lambda: table.scan().to_pyarrow(),
        lambda: table.scan(columns=["x"]).to_pyarrow(),
        lambda: table.scan(columns=["id"], where="x = 3").to_reader().read_all(),
        lambda: table.scan(columns=["x"], where="id = 4321").to_pyarrow(),
    ):
        with pytest.raises(pds.PartCorrupted, match=f'column "x" has the {name}') as refused:
            read()
        assert ".parquet" in str(refused.value)
        assert "other columns" in (refused.value.hint or "")
    [(path, reason)] = table.verify().problems
    assert path.endswith(".parquet")
    assert f'column "x" has the {name}' in reason


def test_a_dataset_is_read_without_the_column(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "data.parquet").write_bytes(_changed("x", encoding=ENCODING))
    manifest = {
        "dataset_key": "a",
        "parts": ["data.parquet"],
        "row_count": 5000,
        "schema_hash": "0" * 16,
        "compression": "none",
        "created_at_utc": "2026-11-21T00:00:00.000001+00:00",
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "_SUCCESS").touch()
    ds = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()))
    assert ds.read_dataset("a", columns=["name"]).equals(ROWS.select(["name"]))
    assert ds.scan_dataset("a", columns=["id"], where="id < 3").read_all()["id"].to_pylist() == [0, 1, 2]
    with pytest.raises(pds.PartCorrupted, match='column "x" has the encoding 10'):
        ds.read_dataset("a")

"""Pages that no library writes: what pyarrow reads is read alike, and damage is an error, never an abort."""

from __future__ import annotations

import io
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from handmade_parquet import (
    BIT_PACKED,
    BYTE_ARRAY,
    BYTE_STREAM_SPLIT,
    DECIMAL,
    DELTA_BYTE_ARRAY,
    DELTA_LENGTH_BYTE_ARRAY,
    FIXED,
    INT32,
    INT96,
    JSON,
    PLAIN,
    RLE,
    RLE_DICTIONARY,
    SNAPPY,
    UTF8,
    Column,
    deltas,
    dictionary_page,
    file,
    levels,
    page,
    plain_strings,
    runs,
)

HUGE = 2**31 - 1
ALL = levels(runs(1, 3))
NONE = levels(runs(0, 3))
NUMBERS = page(3, PLAIN, ALL + struct.pack("<3i", 1, 2, 3))
TWO = levels(runs(1, 2))
STRINGS = dictionary_page(2, plain_strings(b"a", b"b"))
NULL_STRINGS = STRINGS + page(3, RLE_DICTIONARY, NONE)
LIST_NULLS = levels(runs(0, 3)) + levels(runs(0, 3, 2))


def _schema(data_type: pa.DataType) -> pa.Schema:
    return pa.schema([("x", data_type)])


def _of_strings(pages: bytes, **options: int) -> Column:
    return Column(BYTE_ARRAY, pages, 3, **{"converted": UTF8, **options})


CATEGORIES = pa.dictionary(pa.int32(), pa.string())
INTEGER_OFFSETS = {"zero": 0, "negative": -1, "behind": 60}
READ: dict[str, bytes] = {
    "nulls-of-strings": file(_of_strings(NULL_STRINGS)),
    "nulls-of-categories": file(_of_strings(NULL_STRINGS), _schema(CATEGORIES)),
    "nulls-of-views": file(_of_strings(NULL_STRINGS), _schema(pa.string_view())),
    "nulls-of-fixed": file(
        Column(FIXED, dictionary_page(1, b"abc") + page(3, RLE_DICTIONARY, NONE), 3, length=3),
    ),
    "nulls-of-int96": file(Column(INT96, dictionary_page(1, bytes(12)) + page(3, RLE_DICTIONARY, NONE), 3)),
    "nulls-of-lists": file(
        Column(INT32, dictionary_page(1, bytes(4)) + page(3, RLE_DICTIONARY, LIST_NULLS), 3, is_list=True),
    ),
    "garbage-behind": file(Column(INT32, NUMBERS + b"\xff" * 7, 3)),
    "zeros-behind": file(Column(INT32, NUMBERS + bytes(7), 3)),
    "bit-packed-listed": file(Column(INT32, NUMBERS, 3, encodings=[PLAIN, RLE, BIT_PACKED])),
    "truth-over-numbers": file(Column(INT32, NUMBERS, 3), _schema(pa.bool_())),
    "another-scale": file(
        Column(INT32, NUMBERS, 3, converted=DECIMAL, precision=9, scale=2), _schema(pa.decimal32(9, 4))
    ),
    **{
        f"dictionary-{name}": file(Column(INT32, NUMBERS, 3, dictionary_offset=offset))
        for name, offset in INTEGER_OFFSETS.items()
    },
}


def _table(store: pds.Store, content: bytes, data_type: pa.DataType) -> pds.Table:
    store.write("lake/a.parquet", content)
    table = pds.Table.create(store, "t", _schema(data_type))
    table.add_files("lake/a.parquet")
    return table


@pytest.mark.parametrize("name", READ)
def test_what_pyarrow_reads_is_read(memory_store: pds.Store, name: str) -> None:
    expected = pq.read_table(io.BytesIO(READ[name]))["x"]
    # Timestamps of 96 bits are read as microseconds, which hold them all.
    is_int96 = name == "nulls-of-int96"
    table = _table(memory_store, READ[name], pa.timestamp("us") if is_int96 else expected.type)
    result = table.scan().to_pyarrow()
    result.validate(full=True)
    assert result["x"].to_pylist() == expected.to_pylist()
    assert table.scan(where="x IS NULL").count() == expected.null_count


def _deltas(*lengths: tuple[int, int], strings: bytes) -> bytes:
    return TWO + b"".join(deltas(*pair) for pair in lengths) + strings


NOT_TEXT = page(2, PLAIN, TWO + plain_strings(b"ok", b"\xf0\x9f"))
SPLIT = page(2, DELTA_LENGTH_BYTE_ARRAY, _deltas((1, 1), strings="é".encode()))
SHORT = ALL + struct.pack("<i", 7)
HALF = TWO + bytes(6)
# The file, and the type of the table.
REFUSED: dict[str, tuple[bytes, pa.DataType]] = {
    "split-character": (file(Column(BYTE_ARRAY, SPLIT, 2, converted=UTF8)), pa.string()),
    "split-character-view": (
        file(Column(BYTE_ARRAY, SPLIT, 2, converted=UTF8), _schema(pa.string_view())),
        pa.string(),
    ),
    "json": (file(Column(BYTE_ARRAY, NOT_TEXT, 2, converted=JSON)), pa.string()),
    "arrow-string": (file(Column(BYTE_ARRAY, NOT_TEXT, 2), _schema(pa.string())), pa.string()),
    "arrow-view": (file(Column(BYTE_ARRAY, NOT_TEXT, 2), _schema(pa.string_view())), pa.string()),
    "arrow-category": (file(Column(BYTE_ARRAY, NOT_TEXT, 2), _schema(CATEGORIES)), pa.string()),
    "prefix-beyond": (
        file(
            Column(BYTE_ARRAY, page(2, DELTA_BYTE_ARRAY, _deltas((0, 9), (3, 1), strings=b"abcd")), 2, converted=UTF8)
        ),
        pa.string(),
    ),
    "prefix-negative": (
        file(
            Column(BYTE_ARRAY, page(2, DELTA_BYTE_ARRAY, _deltas((0, -2), (3, 1), strings=b"abcd")), 2, converted=UTF8)
        ),
        pa.string(),
    ),
    "level-of-two": (
        file(Column(INT32, page(3, PLAIN, levels(runs(2, 3)) + struct.pack("<3i", 1, 2, 3)), 3)),
        pa.int32(),
    ),
    "half-a-value": (file(Column(INT32, page(2, BYTE_STREAM_SPLIT, HALF), 2)), pa.int32()),
    "snappy-short": (
        file(
            Column(
                INT32,
                page(3, PLAIN, SHORT, stored=pa.compress(SHORT, "snappy", asbytes=True), claimed=len(SHORT) + 8),
                3,
                codec=SNAPPY,
            )
        ),
        pa.int32(),
    ),
    "huge-fixed": (file(Column(FIXED, page(3, PLAIN, NONE), 3, length=HUGE)), pa.binary(HUGE)),
}


def _add_and_scan(table: pds.Table, where: str | None) -> pa.Table:
    table.add_files("lake/a.parquet")
    return table.scan(where=where).to_pyarrow()


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("where", [None, "x IS NOT NULL", "x IS NULL"])
def test_damage_is_refused(memory_store: pds.Store, name: str, where: str | None) -> None:
    content, data_type = REFUSED[name]
    memory_store.write("lake/a.parquet", content)
    table = pds.Table.create(memory_store, "t", _schema(data_type))
    with pytest.raises(pds.PartCorrupted, match='column "x"') as refused:
        _add_and_scan(table, where)
    assert ".parquet" in str(refused.value)


def test_declared_categories_are_filtered(memory_store: pds.Store) -> None:
    content = file(Column(BYTE_ARRAY, page(2, PLAIN, TWO + plain_strings(b"ok", b"no")), 2), _schema(CATEGORIES))
    table = _table(memory_store, content, CATEGORIES)
    assert table.scan(where="x = 'ok'").to_pyarrow()["x"].to_pylist() == ["ok"]


# More rows than fit in a chunk that is read as a whole.
STEPS = 1_000_000


@pytest.mark.parametrize("step", [1 << 26, 100_000_007, -(1 << 27)])
def test_equal_steps_that_wrap_are_skipped(memory_store: pds.Store, step: int) -> None:
    ids = np.arange(STEPS)
    rows = pa.table({"id": ids, "p": (ids * step & 0xFFFFFFFF).astype("uint32").view("int32")})
    target = io.BytesIO()
    encodings = {"id": "PLAIN", "p": "DELTA_BINARY_PACKED"}
    options = {"compression": "none", "use_dictionary": False, "write_page_index": True}
    pq.write_table(rows, target, column_encoding=encodings, **options)
    memory_store.write("lake/a.parquet", target.getvalue())
    table = pds.Table.create(memory_store, "t", rows.schema)
    table.add_files("lake/a.parquet")
    for row in (1, 777_777, STEPS - 1):
        result = table.scan(where=f"id = {row}").to_pyarrow()
        assert result.equals(rows.slice(row, 1))

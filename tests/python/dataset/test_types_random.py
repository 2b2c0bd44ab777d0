"""Tables of random types, values, slices and options survive a round trip (PDS-004)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "-03:30"])
UNITS = ["s", "ms", "us", "ns"]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


def _decimal_type(digits: int, scale: int) -> pa.DataType:
    scale = min(scale, digits)
    for largest, make in ((9, pa.decimal32), (18, pa.decimal64), (38, pa.decimal128)):
        if digits <= largest:
            return make(digits, scale)
    return pa.decimal256(digits, scale)


FIXED = st.sampled_from(
    [pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32()]
    + [pa.type_for_alias(name) for name in INTEGERS]
    + [pa.string(), pa.large_string(), pa.string_view()]
    + [pa.binary(), pa.large_binary(), pa.binary_view()]
    + [pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
)
SIZED = st.one_of(
    st.builds(pa.binary, st.integers(1, 20)),
    st.builds(_decimal_type, st.integers(1, 76), st.integers(0, 76)),
)
DICTIONARIES = st.builds(
    pa.dictionary,
    st.sampled_from([pa.type_for_alias(name) for name in INTEGERS]),
    st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.int64()]),
)


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    items = st.builds(pa.field, NAMES, inner)
    fields = st.lists(items, min_size=1, max_size=3, unique_by=lambda field: field.name)
    keys = st.sampled_from([pa.string(), pa.int32(), pa.binary()])
    return st.one_of(
        st.builds(pa.list_, items),
        st.builds(pa.large_list, items),
        st.builds(pa.list_, items, st.integers(1, 3)),
        st.builds(pa.struct, fields),
        st.builds(pa.map_, keys, inner),
    )


def _types(units: list[str]) -> st.SearchStrategy[pa.DataType]:
    unit = st.sampled_from(units)
    times = st.builds(pa.timestamp, unit, ZONES) | st.builds(pa.duration, unit)
    return st.recursive(st.one_of(FIXED, SIZED, times, DICTIONARIES), _nested, max_leaves=4)


def _integer(kind: pa.DataType) -> st.SearchStrategy[int]:
    bits = kind.bit_width
    if pa.types.is_unsigned_integer(kind):
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimal(kind: Any) -> st.SearchStrategy[Any]:
    bound = 10**kind.precision - 1
    return st.decimals(allow_nan=False, allow_infinity=False, places=kind.scale).filter(
        lambda value: abs(value.scaleb(kind.scale)) <= bound
    ) | st.just(0)


def _time(kind: Any) -> st.SearchStrategy[int]:
    per_second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    return st.integers(0, 86_400 * per_second - 1)


def _fixed_binary(kind: Any) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)


def _instant(kind: Any) -> st.SearchStrategy[int]:
    # Seconds are kept as milliseconds, which must fit.
    bound = 2**63 // (1000 if kind.unit == "s" else 1) - 1
    return st.integers(-bound, bound)


STRINGS = st.text(st.characters(exclude_categories=["Cs"]))
# The first that fits a type makes its values.
MAKERS: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], st.SearchStrategy[Any]]]] = [
    (pa.types.is_null, lambda _: st.none()),
    (pa.types.is_boolean, lambda _: st.booleans()),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, lambda kind: st.floats(width=kind.bit_width)),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_fixed_size_binary, _fixed_binary),
    (pa.types.is_string, lambda _: STRINGS),
    (pa.types.is_large_string, lambda _: STRINGS),
    (pa.types.is_string_view, lambda _: STRINGS),
    (pa.types.is_date, lambda _: st.integers(-700_000, 2_900_000)),
    (pa.types.is_time, _time),
    (pa.types.is_temporal, _instant),
    (lambda _: True, lambda _: st.binary()),
]


def _leaf(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return next(make(kind) for fits, make in MAKERS if fits(kind))


def _value(kind: pa.DataType) -> st.SearchStrategy[Any]:
    is_ = pa.types
    if is_.is_dictionary(kind):
        return _value(kind.value_type)
    if is_.is_map(kind):
        entry = st.tuples(_leaf(kind.key_type), _nullable(kind.item_type))
        return st.lists(entry, max_size=3, unique_by=lambda pair: pair[0])
    if is_.is_fixed_size_list(kind):
        size = kind.list_size
        return st.lists(_nullable(kind.value_type), min_size=size, max_size=size)
    if is_.is_list(kind) or is_.is_large_list(kind):
        return st.lists(_nullable(kind.value_type), max_size=3)
    if is_.is_struct(kind):
        return st.fixed_dictionaries({field.name: _nullable(field.type) for field in kind})
    return _leaf(kind)


def _nullable(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.none() | _value(kind)


@st.composite
def columns(draw: st.DrawFn, rows: int, units: list[str]) -> pa.ChunkedArray:
    kind = draw(_types(units))
    chunks = []
    left = rows
    while left or not chunks:
        size = draw(st.integers(0, left)) if len(chunks) < 3 else left
        # Two rows more on either side, cut off again, so that offsets are not zero.
        values = draw(st.lists(_nullable(kind), min_size=size + 2, max_size=size + 2))
        chunks.append(pa.array(values, kind).slice(1, size))
        left -= size
    return pa.chunked_array(chunks, kind)


@st.composite
def tables(draw: st.DrawFn, units: list[str]) -> pa.Table:
    rows = draw(st.integers(0, 8))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return pa.table({name: draw(columns(rows, units)) for name in names})


OPTIONS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["zstd", "snappy", "none", "gzip", "lz4", "brotli"]),
        "row_group_size": st.sampled_from([None, 1, 3]),
        "max_rows_per_file": st.sampled_from([None, 1, 3, 100]),
    }
)


def _plain(array: pa.Array) -> list[Any]:
    """Values that can be compared: times as counts, floats by their bits, codes resolved."""
    kind = array.type
    is_ = pa.types
    if is_.is_dictionary(kind):
        # Below a null row pyarrow leaves codes that stand for nothing.
        values = dict(enumerate(_plain(array.dictionary)))
        return [values.get(code) for code in array.indices.to_pylist()]
    if is_.is_temporal(kind) or is_.is_floating(kind):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[kind.bit_width]
        return array.view(bits).to_pylist()
    if is_.is_struct(kind):
        fields = [_plain(array.field(index)) for index in range(kind.num_fields)]
        rows = zip(array.is_valid().to_pylist(), *fields, strict=True)
        return [row[1:] if row[0] else None for row in rows]
    if is_.is_nested(kind):
        return [_plain(item.values) if item.is_valid else None for item in array]
    return array.to_pylist()


def _rows(column: pa.ChunkedArray) -> list[Any]:
    return [row for chunk in column.chunks for row in _plain(chunk)]


def _same(left: pa.Table, right: pa.Table) -> None:
    assert left.schema.equals(right.schema, check_metadata=True)
    assert left.num_rows == right.num_rows
    for ours, theirs in zip(left.columns, right.columns, strict=True):
        assert _rows(ours) == _rows(theirs)


@given(tables(UNITS), OPTIONS)
def test_any_table_round_trips(table: pa.Table, options: dict[str, Any]) -> None:
    datasets = pds.ParquetDatasetStore(pds.Store("memory://"), **options)

    manifest = datasets.write_dataset(table, "ds")

    result = datasets.read_dataset("ds")
    result.validate(full=True)
    assert manifest.row_count == table.num_rows
    _same(result, table)
    _same(pa.Table.from_batches(datasets.scan_dataset("ds"), table.schema), table)
    for name in table.column_names:
        _same(datasets.read_dataset("ds", columns=[name]), table.select([name]))
    assert datasets.verify_dataset("ds").rows == table.num_rows


# Parquet has no seconds, and pyarrow does not turn the milliseconds back.
@given(tables(UNITS[1:]), OPTIONS)
def test_pyarrow_reads_any_table_alike(table: pa.Table, options: dict[str, Any]) -> None:
    datasets = pds.ParquetDatasetStore(pds.Store("memory://"), **options)

    manifest = datasets.write_dataset(table, "ds")

    parts = [pq.read_table(pa.BufferReader(datasets.store.read_bytes(f"ds/{part}"))) for part in manifest.parts]
    for index, name in enumerate(table.column_names):
        columns = [part.column(index) for part in parts]
        rows = [row for column in columns for row in _rows(column)]
        assert rows == _rows(table.column(index)), name

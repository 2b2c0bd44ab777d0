"""Rows of other types than a table's columns: taken where every value has its equal, refused elsewhere."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL, LARGE = pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())
MOMENT = dt.datetime(2024, 2, 29, 23, 59, 59, 123_000)  # noqa: DTZ001 of any zone, or none
UNITS = ("s", "ms", "us", "ns")
FINER = [(a, b) for a, b in itertools.combinations(UNITS, 2)]
TIMES = {"s": pa.time32("s"), "ms": pa.time32("ms"), "us": pa.time64("us"), "ns": pa.time64("ns")}


def _integers(of: pa.DataType) -> pa.Array:
    bits = of.bit_width
    ends = [0, 2**bits - 1] if pa.types.is_unsigned_integer(of) else [-(2 ** (bits - 1)), -1, 2 ** (bits - 1) - 1]
    return pa.array([*ends, None], of)


def _decimals(of: pa.DataType) -> pa.Array:
    ends = [decimal.Decimal((sign, (9,) * of.precision, -of.scale)) for sign in (0, 1)]
    return pa.array([*ends, None], of)


WRITES: dict[str, Callable[[pds.Table, pa.Table], object]] = {
    "append": lambda table, rows: table.append(rows),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "upsert": lambda table, rows: table.upsert(rows),
    "merge": lambda table, rows: table.merge(rows).when_not_matched_insert_all().execute(),
}
TEXTS = pa.array(["b", None, "a", "b"])
KEPT = [
    (TEXTS.cast(SMALL), LARGE),
    (TEXTS, SMALL),
    (TEXTS, LARGE),
    (TEXTS.cast(LARGE), SMALL),
    (TEXTS.cast(LARGE), pa.string()),
    (pa.array([3, None, 3], pa.int16()), pa.dictionary(pa.int32(), pa.int64())),
    (pa.array([None, None]), SMALL),
    *((pa.array([0, -1, 10**9, None], pa.timestamp(a)), pa.timestamp(b)) for a, b in FINER),
    *((pa.array([0, -1, 10**9, None], pa.timestamp(a, "UTC")), pa.timestamp(b, "UTC")) for a, b in FINER),
    *((pa.array([0, -1, 10**9, None], pa.duration(a)), pa.duration(b)) for a, b in FINER),
    *((pa.array([0, 86_399, None], TIMES[a]), TIMES[b]) for a, b in FINER),
    *(
        (pa.array([MOMENT, None], pa.timestamp("us", zone)), pa.timestamp("us", "UTC"))
        for zone in ("Etc/UTC", "+00:00", "Europe/Berlin", "-09:30")
    ),
    *(
        (_integers(of), pa.float64())
        for of in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32())
    ),
    *((_integers(of), pa.float32()) for of in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16())),
    (_decimals(pa.decimal128(6, 2)), pa.decimal128(8, 4)),
    (_decimals(pa.decimal128(38, 2)), pa.decimal256(76, 40)),
    (_decimals(pa.decimal32(7, 2)), pa.decimal128(12, 7)),
    (_decimals(pa.decimal128(5, 2)), pa.decimal64(18, 3)),
    (_decimals(pa.decimal128(3, 0)), pa.decimal128(6, 3)),
    (pa.array([[1, None], None, []], pa.list_(pa.int32())), pa.list_(pa.float64())),
    (pa.array([["a", None], None, []], pa.large_list(pa.large_string())), pa.list_(pa.string())),
    (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2)), pa.list_(pa.int64())),
    (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2)), pa.large_list(pa.float32())),
    (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2)), pa.list_(pa.float32(), 2)),
    (
        pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": None}], pa.struct([("x", pa.int8()), ("y", pa.string())])),
        pa.struct([("x", pa.float32()), ("y", pa.large_string())]),
    ),
]
LOST = [
    (_integers(pa.int64()), pa.float64()),
    (_integers(pa.int32()), pa.float32()),
    (pa.array([1.0]), pa.int64()),
    (pa.array([1.0]), pa.float32()),
    (pa.array([MOMENT], pa.timestamp("us")), pa.timestamp("ms")),
    (pa.array([MOMENT], pa.timestamp("us")), pa.timestamp("us", "UTC")),
    (pa.array([MOMENT], pa.timestamp("us", "UTC")), pa.timestamp("us")),
    (pa.array([MOMENT.date()]), pa.timestamp("us")),
    (_decimals(pa.decimal128(6, 2)), pa.decimal128(8, 5)),
    (_decimals(pa.decimal128(6, 2)), pa.decimal128(12, 1)),
    (pa.array([1], pa.int64()), pa.dictionary(pa.int32(), pa.string())),
    (TEXTS, pa.dictionary(pa.int8(), pa.int64())),
    (pa.array([1], pa.duration("us")), pa.int64()),
    (pa.array([1], pa.int64()), pa.timestamp("us")),
    (pa.array([[1]], pa.list_(pa.int64())), pa.list_(pa.float64())),
    (pa.array([[1, 2]], pa.list_(pa.int64())), pa.list_(pa.int64(), 2)),
    (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), pa.list_(pa.int64(), 3)),
]
OUT_OF_RANGE = [
    (pa.array([2**40], pa.timestamp("s")), pa.timestamp("ns")),
    (pa.array([-(2**62)], pa.duration("us")), pa.duration("ns")),
    (pa.array([f"{n}" for n in range(200)]), SMALL),
]


def _named(pairs: list[tuple[pa.Array, pa.DataType]]) -> list[object]:
    return [pytest.param(values, to, id=f"{values.type} to {to}") for values, to in pairs]


def _may_be_key(values: pa.Array, to: pa.DataType) -> bool:
    return not (pa.types.is_nested(to) or pa.types.is_floating(to) or values.null_count == len(values))


def _plain(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _empty(store: pds.Store, to: pa.DataType) -> pds.Table:
    return pds.Table.create(store, "t", pa.schema([("id", pa.int64()), ("c", to)]), key="id")


def _rows(values: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values))), "c": values})


@pytest.mark.parametrize(("values", "to"), _named(KEPT))
@pytest.mark.parametrize("by", WRITES)
def test_every_value_has_its_equal(memory_store: pds.Store, values: pa.Array, to: pa.DataType, by: str) -> None:
    table = _empty(memory_store, to)
    rows = _rows(values)
    WRITES[by](table, rows)
    found = table.scan().to_pyarrow().sort_by("id")["c"]
    assert found.type == to
    wanted = _plain(values).cast(to.value_type if pa.types.is_dictionary(to) else to)
    assert _plain(found).to_pylist() == wanted.to_pylist()
    assert table.check().ok


@pytest.mark.parametrize(("values", "to"), _named([(values, to) for values, to in KEPT if _may_be_key(values, to)]))
def test_values_match_as_keys(memory_store: pds.Store, values: pa.Array, to: pa.DataType) -> None:
    """An upsert by the column finds what an append brought."""
    table = pds.Table.create(memory_store, "t", pa.schema([("c", to), ("n", pa.int64())]), key="c")
    plain = _plain(values)
    distinct = pa.array(dict.fromkeys(plain.drop_null().to_pylist()), plain.type).cast(values.type)
    first = pa.table({"c": distinct, "n": pa.array([0] * len(distinct))})
    table.append(first)
    table.upsert(first.set_column(1, "n", pa.array([1] * len(distinct))))
    assert table.scan(["n"]).to_pyarrow()["n"].to_pylist() == [1] * len(distinct)


@pytest.mark.parametrize(("values", "to"), _named([*LOST, *OUT_OF_RANGE]))
@pytest.mark.parametrize("by", WRITES)
def test_what_could_lose_is_refused(memory_store: pds.Store, values: pa.Array, to: pa.DataType, by: str) -> None:
    table = _empty(memory_store, to)
    before = {info.path for info in memory_store.list_files("t", recursive=True)}
    with pytest.raises(pds.InvalidInput, match='"c"'):
        WRITES[by](table, _rows(values))
    assert table.refresh().version == 1
    assert {info.path for info in memory_store.list_files("t", recursive=True)} == before


def test_pandas_categories_are_appended(memory_store: pds.Store) -> None:
    import pandas as pd  # noqa: PLC0415

    table = _empty(memory_store, pa.dictionary(pa.int32(), pa.string()))
    frame = pd.DataFrame({"id": [1, 2, 3], "c": pd.Categorical(["x", None, "y"], categories=["y", "x", "unused"])})
    table.append(pa.Table.from_pandas(frame, preserve_index=False))
    assert _plain(table.scan().to_pyarrow()["c"]).to_pylist() == ["x", None, "y"]


def test_polars_frames_are_appended(memory_store: pds.Store) -> None:
    """Its texts and lists have other layouts, its categories another key."""
    import polars as pl  # noqa: PLC0415

    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("kind", pa.dictionary(pa.int32(), pa.string())),
            ("inner", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))])),
            ("raw", pa.binary()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    table = pds.Table.create(memory_store, "t", schema, key="id")
    rows = {
        "id": [1, 2, 3],
        "text": ["a", None, "c" * 40],
        "tags": [["x", None], None, []],
        "kind": ["red", "green", "red"],
        "inner": [{"a": 1, "b": [0.5]}, None, {"a": None, "b": None}],
        "raw": [b"\x00", None, b""],
        "at": [MOMENT.replace(tzinfo=dt.UTC), None, None],
    }
    frame = pl.DataFrame(rows, schema_overrides={"kind": pl.Categorical, "at": pl.Datetime("ms", "Europe/Paris")})
    table.append(frame)
    table.upsert(frame.head(1))
    found = table.scan().to_pyarrow().sort_by("id")
    assert found.schema.types == schema.types
    assert found.to_pylist() == [{name: values[row] for name, values in rows.items()} for row in range(3)]

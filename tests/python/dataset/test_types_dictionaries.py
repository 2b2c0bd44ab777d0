"""Dictionaries of every type come back as they were written, wherever they are, however often they are rewritten."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.sampled(3)

DAY = 86_400_000
UNITS = ["s", "ms", "us", "ns"]
POINT = pa.struct([("x", pa.timestamp("s")), ("y", pa.bool_())])


def _values() -> dict[str, pa.Array]:
    """Two different values of every type that a dictionary may have."""
    values = {
        "bool": pa.array([True, False]),
        "date32": pa.array([0, 20_000], pa.date32()),
        "date64": pa.array([0, 20_000 * DAY], pa.date64()),
        "time32-s": pa.array([0, 86_399], pa.time32("s")),
        "time32-ms": pa.array([0, 86_399_999], pa.time32("ms")),
        "time64-us": pa.array([0, 86_399_999_999], pa.time64("us")),
        "time64-ns": pa.array([0, 86_399_999_999_000], pa.time64("ns")),
        "string": pa.array(["a", ""]),
        "large_string": pa.array(["a", ""], pa.large_string()),
        "string_view": pa.array(["a", "longer than what a view holds"], pa.string_view()),
        "binary": pa.array([b"a", b""]),
        "large_binary": pa.array([b"a", b""], pa.large_binary()),
        "binary_view": pa.array([b"a", b"longer than what a view holds"], pa.binary_view()),
        "binary-3": pa.array([b"abc", b"\0\0\0"], pa.binary(3)),
        "decimal32": pa.array([Decimal("1.25"), Decimal("-9999999.99")], pa.decimal32(9, 2)),
        "decimal32-1": pa.array([Decimal(1), Decimal(-9)], pa.decimal32(1, 0)),
        "decimal64": pa.array([Decimal("1.25"), Decimal("-1.5")], pa.decimal64(18, 2)),
        "decimal128": pa.array([Decimal("1.25"), Decimal("-1.5")], pa.decimal128(38, 2)),
        "decimal256": pa.array([Decimal("1.25"), Decimal("-1.5")], pa.decimal256(76, 2)),
        "struct": pa.array([{"x": 1, "y": True}, {"x": 2, "y": None}], POINT),
        "list": pa.array([[1, None], []], pa.list_(pa.timestamp("s"))),
        "large_list": pa.array([[True], []], pa.large_list(pa.bool_())),
        "fixed_size_list": pa.array([[1, 2], [3, None]], pa.list_(pa.duration("s"), 2)),
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.timestamp("s"))),
    }
    for name in ("float16", "float32", "float64"):
        values[name] = pa.array([0.5, -0.0], getattr(pa, name)())
    for bits in (8, 16, 32, 64):
        values[f"int{bits}"] = pa.array([1, -(2 ** (bits - 1))], f"int{bits}")
        values[f"uint{bits}"] = pa.array([1, 2**bits - 1], f"uint{bits}")
    for unit in UNITS:
        values[f"duration-{unit}"] = pa.array([1, -1], pa.duration(unit))
        for zone in (None, "UTC", "Europe/Berlin"):
            values[f"timestamp-{unit}-{zone}"] = pa.array([1, -1], pa.timestamp(unit, zone))
    return values


VALUES = _values()
ROWS = [1, None, 0, 0, 1, None]


def _encoded(values: pa.Array, key: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(ROWS, key), values)


def _plain(values: pa.Array) -> pa.Array:
    """The rows without a dictionary: what has to come back."""
    found = values.to_pylist()
    return pa.array([None if row is None else found[row] for row in ROWS], values.type)


NESTED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "itself": lambda column: column,
    "struct": lambda column: pa.StructArray.from_arrays([column], ["d"], mask=pa.array([False] * 5 + [True])),
    "list": lambda column: pa.ListArray.from_arrays(pa.array([0, 2, None, 6], pa.int32()), column),
    "large_list": lambda column: pa.LargeListArray.from_arrays(pa.array([0, 2, None, 6], pa.int64()), column),
    "fixed_size_list": lambda column: pa.FixedSizeListArray.from_arrays(column, 3),
    "map": lambda column: pa.MapArray.from_arrays([0, 2, 2, 6], pa.array(list("abcdef")), column),
    "struct in list": lambda column: pa.ListArray.from_arrays(
        pa.array([0, 1, 6], pa.int32()), pa.StructArray.from_arrays([column], ["d"])
    ),
    "list in struct": lambda column: pa.StructArray.from_arrays(
        [pa.ListArray.from_arrays(pa.array([0, 2, 2, 6], pa.int32()), column)], ["l"]
    ),
}


@pytest.mark.parametrize("where", NESTED)
@pytest.mark.parametrize("name", VALUES)
def test_a_table_keeps_them(memory_store: pds.Store, name: str, where: str) -> None:
    column = NESTED[where](_encoded(VALUES[name], pa.int8()))
    rows = pa.table({"c": column})
    expected = NESTED[where](_plain(VALUES[name])).to_pylist()
    table = pds.Table.create(memory_store, "t", rows.schema)

    table.append(rows)
    first = table.scan().to_pyarrow()
    table.append(rows.slice(1))
    table.optimize.compact()
    table.append(rows)
    table.optimize.compact()
    result = table.scan().to_pyarrow()

    result.validate(full=True)
    assert result.schema.equals(rows.schema)
    assert first["c"].to_pylist() == expected
    assert result["c"].to_pylist() == expected + expected[1:] + expected


@pytest.mark.parametrize("where", NESTED)
@pytest.mark.parametrize("name", VALUES)
def test_a_dataset_keeps_them(tmp_path: Path, name: str, where: str) -> None:
    column = NESTED[where](_encoded(VALUES[name], pa.int16()))
    rows = pa.table({"c": column})
    expected = NESTED[where](_plain(VALUES[name])).to_pylist()
    datasets = pds.ParquetDatasetStore(pds.Store(f"file://{tmp_path}"))

    datasets.write_dataset(rows, "ds")
    result = datasets.read_dataset("ds")

    result.validate(full=True)
    assert result.schema.equals(rows.schema)
    assert result["c"].to_pylist() == expected
    assert datasets.scan_dataset("ds").read_all()["c"].to_pylist() == expected


@pytest.mark.parametrize("key", ["int8", "uint8", "int16", "int32", "uint64"])
@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.duration("ms"), pa.list_(pa.int16())], ids=str)
def test_more_values_than_keys(memory_store: pds.Store, kind: pa.DataType, key: str) -> None:
    values = [[n] if pa.types.is_list(kind) else n for n in range(100)]
    schema = pa.schema({"c": pa.dictionary(pa.type_for_alias(key), kind)})
    table = pds.Table.create(memory_store, "t", schema)
    chunks = [pa.array(values, kind)] * 3
    if not pa.types.is_list(kind):
        chunks = [pa.array([value + 100 * chunk for value in values], kind) for chunk in range(3)]
    index = pa.array(range(100), pa.type_for_alias(key))
    for chunk in chunks:
        table.append(pa.table({"c": pa.DictionaryArray.from_arrays(index, chunk)}))

    table.optimize.compact()

    result = table.scan().to_pyarrow()["c"]
    assert result.to_pylist() == [value for chunk in chunks for value in chunk.to_pylist()]


def test_categories_of_pandas(memory_store: pds.Store) -> None:
    frame = pd.DataFrame(
        {
            "bool": pd.Categorical([True, False, None], categories=[False, True]),
            "delta": pd.Categorical(pd.to_timedelta([2, 1, None], unit="s")),
            "second": pd.Categorical(pd.to_datetime([2, 1, None], unit="s").as_unit("s")),
        }
    )
    rows = pa.Table.from_pandas(frame)
    table = pds.Table.create(memory_store, "t", rows.schema)

    table.append(rows)

    pd.testing.assert_frame_equal(table.scan().to_pyarrow().to_pandas(), frame)


def test_runs_of_a_dictionary(memory_store: pds.Store) -> None:
    seconds = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array([5, 7], pa.timestamp("s")))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), seconds)
    rows = pa.table({"c": runs})
    datasets = pds.ParquetDatasetStore(memory_store)

    datasets.write_dataset(rows, "ds")

    assert datasets.read_dataset("ds")["c"].to_pylist() == rows["c"].to_pylist()


def test_filters_see_the_values(memory_store: pds.Store) -> None:
    for name in ("timestamp-s-None", "timestamp-s-UTC", "time32-s", "date64", "bool", "decimal32-1"):
        encoded = pa.table({"id": range(len(ROWS)), "c": _encoded(VALUES[name], pa.int8())})
        table = pds.Table.create(memory_store, name, encoded.schema)
        table.append(encoded)
        literal = {
            "timestamp-s-None": "TIMESTAMP '1970-01-01 00:00:01'",
            "timestamp-s-UTC": "TIMESTAMPTZ '1970-01-01 00:00:01Z'",
            "time32-s": "TIME '00:00:00'",
            "date64": "DATE '1970-01-01'",
            "bool": "true",
            "decimal32-1": "1",
        }[name]

        assert table.scan(["id"], where=f"c = {literal}").to_pyarrow()["id"].to_pylist() == [2, 3], name
        assert table.scan(["id"], where="c IS NULL").to_pyarrow()["id"].to_pylist() == [1, 5], name

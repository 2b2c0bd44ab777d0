"""Every Arrow type pyarrow can make: kept as it was, read alike by others, or refused by name."""

from __future__ import annotations

import datetime as dt
import functools
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled(2)

UNITS = ["s", "ms", "us", "ns"]
ZONES = [None, "UTC", "Europe/Berlin", "+05:30", "America/St_Johns"]
STRINGS = ["a", None, "", "ü\0x", "long enough not to be inlined anywhere", "a"]
BYTES = [b"a", None, b"", b"\0\xff", b"long enough not to be inlined anywhere", b"a"]
LISTS = [[1, None, 3], None, [], [4], [5, 6], []]


def _decimals(kind: Any, precision: int, scale: int) -> pa.Array:
    nines = (9,) * precision
    values = [
        Decimal((0, nines, -scale)),
        None,
        Decimal((1, nines, -scale)),
        Decimal(0),
        Decimal((0, (1,), -scale)),
    ]
    return pa.array(values, kind(precision, scale))


def _dictionary(values: list[Any], index: pa.DataType, *, ordered: bool = False) -> pa.Array:
    indices = pa.array([2, 0, None, 1, 0], index)
    return pa.DictionaryArray.from_arrays(indices, pa.array(values), ordered=ordered)


def _extension(kind: Any, storage: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(storage, kind.storage_type))


def _floats(kind: pa.DataType) -> pa.Array:
    return pa.array([0.5, None, -0.0, float("inf"), float("-inf"), -1.25], kind)


def _integers() -> dict[str, pa.Array]:
    cases = {}
    for bits in (8, 16, 32, 64):
        top = 2 ** (bits - 1)
        cases[f"int{bits}"] = pa.array([0, None, top - 1, -top, -1], f"int{bits}")
        cases[f"uint{bits}"] = pa.array([0, None, 2 * top - 1, top], f"uint{bits}")
    return cases


def _times() -> dict[str, pa.Array]:
    # Whole days: what pyarrow itself asks of a date64.
    day = 86_400_000
    cases = {
        "date32": pa.array([0, None, 20_000, -1], pa.date32()),
        "date64": pa.array([0, None, 20_000 * day, -day], pa.date64()),
        "time32-s": pa.array([0, None, 86_399], pa.time32("s")),
        "time32-ms": pa.array([0, None, 86_399_999], pa.time32("ms")),
        "time64-us": pa.array([0, None, 86_399_999_999], pa.time64("us")),
        "time64-ns": pa.array([0, None, 86_399_999_999_000], pa.time64("ns")),
    }
    for unit in UNITS:
        values = [0, None, 1_700_000_000, -1, 1]
        cases[f"duration-{unit}"] = pa.array(values, pa.duration(unit))
        for zone in ZONES:
            cases[f"timestamp-{unit}-{zone}"] = pa.array(values, pa.timestamp(unit, zone))
    return cases


def _strings() -> dict[str, pa.Array]:
    return {
        "string": pa.array(STRINGS, pa.string()),
        "large_string": pa.array(STRINGS, pa.large_string()),
        "string_view": pa.array(STRINGS, pa.string_view()),
        "binary": pa.array(BYTES, pa.binary()),
        "large_binary": pa.array(BYTES, pa.large_binary()),
        "binary_view": pa.array(BYTES, pa.binary_view()),
        "binary-3": pa.array([b"abc", None, b"\0\0\0"], pa.binary(3)),
    }


def _decimal_cases() -> dict[str, pa.Array]:
    return {
        "decimal32": _decimals(pa.decimal32, 9, 2),
        "decimal32-0": _decimals(pa.decimal32, 1, 0),
        "decimal64": _decimals(pa.decimal64, 18, 6),
        "decimal128": _decimals(pa.decimal128, 38, 10),
        "decimal128-5": _decimals(pa.decimal128, 5, 5),
        "decimal256": _decimals(pa.decimal256, 76, 38),
        "decimal256-5": _decimals(pa.decimal256, 5, 2),
    }


def _dictionaries() -> dict[str, pa.Array]:
    cases = {
        f"dictionary-{bits}": _dictionary(["x", "y", "z", "unused"], getattr(pa, bits)())
        for bits in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    }
    cases["dictionary-ordered"] = _dictionary(["z", "y", "x"], pa.int8(), ordered=True)
    cases["dictionary-of-ints"] = _dictionary([10, 20, 30], pa.int32())
    cases["dictionary-of-dates"] = _dictionary([dt.date(2026, 1, n) for n in (3, 1, 2)], pa.int8())
    cases["dictionary-of-bytes"] = _dictionary([b"z", b"", b"x"], pa.int32())
    return cases


def _nested() -> dict[str, pa.Array]:
    point = pa.struct([("x", pa.int32()), pa.field("y", pa.string(), nullable=False)])
    points = [{"x": 1, "y": "a"}, None, {"x": None, "y": ""}]
    deep = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(point)))]))
    return {
        "list": pa.array(LISTS, pa.list_(pa.int64())),
        "large_list": pa.array(LISTS, pa.large_list(pa.int64())),
        "list_view": pa.array(LISTS, pa.list_view(pa.int64())),
        "large_list_view": pa.array(LISTS, pa.large_list_view(pa.int64())),
        "fixed_size_list": pa.array([[1, 2], None, [None, 4]], pa.list_(pa.int64(), 2)),
        "list-required": pa.array([[1], None, []], pa.list_(pa.field("e", pa.int8(), nullable=False))),
        "struct": pa.array(points, point),
        "map": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        "list-of-dictionary": pa.array([["a"], ["b", "a"], None], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        "deep": pa.array([[{"m": [("k", points)]}, {"m": None}], None, [], [None]], deep),
        "list-of-list": pa.array([[[1], []], None, [None, [2]]], pa.list_(pa.list_(pa.int8()))),
    }


def _extensions() -> dict[str, pa.Array]:
    tensor = pa.fixed_shape_tensor(pa.int32(), [2, 1], dim_names=["a", "b"])
    return {
        "uuid": _extension(pa.uuid(), [b"0123456789abcdef", None]),
        "json": _extension(pa.json_(), ['{"a": 1}', None]),
        "bool8": _extension(pa.bool8(), [1, 0, None]),
        "tensor": _extension(tensor, [[1, 2], None]),
        "opaque": _extension(pa.opaque(pa.binary(), "geometry", "postgis"), [b"x", None]),
    }


CASES: dict[str, pa.Array] = {
    "null": pa.nulls(3),
    "bool": pa.array([True, None, False]),
    **_integers(),
    "float16": _floats(pa.float16()),
    "float32": _floats(pa.float32()),
    "float64": _floats(pa.float64()),
    **_decimal_cases(),
    **_times(),
    **_strings(),
    **_dictionaries(),
    **_nested(),
    **_extensions(),
    "run_end_encoded": pa.array([1, 1, 2, None], pa.run_end_encoded(pa.int32(), pa.int64())),
    "run_end_encoded-16": pa.array(STRINGS, pa.run_end_encoded(pa.int16(), pa.string())),
}

INTERVALS = pa.array([(1, 2, 3), None], pa.month_day_nano_interval())
SPARSE = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
DENSE = pa.UnionArray.from_dense(
    pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])]
)
REFUSED: dict[str, pa.Array] = {
    "interval": INTERVALS,
    "sparse-union": SPARSE,
    "dense-union": DENSE,
    "negative-scale": pa.array([Decimal(100), None], pa.decimal128(5, -2)),
    "fixed-size-list-0": pa.array([[], []], pa.list_(pa.int8(), 0)),
    "fixed-size-binary-0": pa.array([b"", b""], pa.binary(0)),
    "too-deep": pa.nulls(1, functools.reduce(lambda kind, _: pa.list_(kind), range(70), pa.int8())),
    "empty-struct": pa.array([{}, None], pa.struct([])),
    "list-of-union": pa.ListArray.from_arrays([0, 1, 2], DENSE),
    "struct-of-interval": pa.StructArray.from_arrays([INTERVALS], ["inner"]),
    "no-rows": INTERVALS.slice(0, 0),
}


# Codes of a dictionary within another type are numbered as its values occur.
NESTED_DICTIONARIES = {"list-of-dictionary"}


def _values(column: pa.ChunkedArray) -> list[Any]:
    return column.to_pylist()


@pytest.fixture
def datasets(tmp_path: Path) -> pds.ParquetDatasetStore:
    return pds.ParquetDatasetStore(pds.Store(f"file://{tmp_path}"))


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "ds" / "data.parquet"


@pytest.mark.parametrize("name", CASES)
def test_round_trip(datasets: pds.ParquetDatasetStore, name: str) -> None:
    table = pa.table({"column": CASES[name]})

    datasets.write_dataset(table, "ds")
    result = datasets.read_dataset("ds")

    result.validate(full=True)
    assert result.schema.equals(table.schema, check_metadata=True)
    assert _values(result["column"]) == _values(table["column"])
    assert name in NESTED_DICTIONARIES or result["column"].equals(table["column"])


@pytest.mark.parametrize("name", CASES)
def test_round_trip_without_nulls_and_of_nulls_only(datasets: pds.ParquetDatasetStore, name: str) -> None:
    array = CASES[name]
    valid = [array.slice(n, 1) for n in range(len(array)) if array[n].is_valid]
    kept = pa.concat_arrays(valid or [array.slice(0, 0)])
    tables = [
        pa.table({"c": kept}),
        pa.table({"c": pa.nulls(3, array.type)}),
        pa.table({"c": array.slice(0, 0)}),
    ]
    for table in tables:
        datasets.write_dataset(table, "ds", overwrite=True)
        result = datasets.read_dataset("ds")
        assert result.schema.equals(table.schema, check_metadata=True)
        assert _values(result["c"]) == _values(table["c"])


@pytest.mark.parametrize("name", CASES)
def test_sliced_and_chunked(datasets: pds.ParquetDatasetStore, name: str) -> None:
    array = CASES[name]
    chunks = [array.slice(1), array.slice(0, 0), array.slice(2, 1), array.slice(0, 2), array]
    table = pa.table({"c": pa.chunked_array(chunks)})

    datasets.write_dataset(table.slice(1), "ds")

    result = datasets.read_dataset("ds")
    assert result.schema.equals(table.schema, check_metadata=True)
    assert _values(result["c"]) == _values(table["c"])[1:]


@pytest.mark.parametrize("name", CASES)
def test_pyarrow_reads_the_same(datasets: pds.ParquetDatasetStore, part: Path, name: str) -> None:
    table = pa.table({"column": CASES[name]})

    datasets.write_dataset(table, "ds")

    assert _values(pq.read_table(part)["column"]) == _values(table["column"])


# Types these readers have no form for: left out of the comparison with them, and only there.
VIEWS = {"list_view", "large_list_view", "run_end_encoded", "run_end_encoded-16"}
OFFSETS = {f"timestamp-{unit}-+05:30" for unit in UNITS}
NOT_IN_POLARS = {"decimal256", "decimal256-5"} | VIEWS | OFFSETS
NOT_IN_DUCKDB = {"decimal256", "decimal256-5"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_IN_POLARS])
def test_polars_reads_the_same(datasets: pds.ParquetDatasetStore, part: Path, name: str) -> None:
    table = pa.table({"column": CASES[name]})

    datasets.write_dataset(table, "ds")

    expected = pl.from_arrow(table)
    assert isinstance(expected, pl.DataFrame)
    assert pl.read_parquet(part)["column"].to_list() == expected["column"].to_list()


def _as_duckdb_sees(table: pa.Table) -> pa.Table:
    """Durations are numbers in Parquet; half floats DuckDB takes from Parquet alone."""
    kind = table["column"].type
    if pa.types.is_duration(kind):
        return table.cast(pa.schema({"column": pa.int64()}))
    return table.cast(pa.schema({"column": pa.float32()})) if kind == pa.float16() else table


def _lists(rows: list[Any]) -> list[Any]:
    """DuckDB gives arrays of a fixed size as tuples, lists as lists."""
    return [tuple(list(v) if isinstance(v, tuple) else v for v in row) for row in rows]


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_IN_DUCKDB])
def test_duckdb_reads_the_same(datasets: pds.ParquetDatasetStore, part: Path, name: str) -> None:
    table = pa.table({"column": CASES[name]})

    datasets.write_dataset(table, "ds")

    expected = duckdb.from_arrow(_as_duckdb_sees(table)).fetchall()
    assert _lists(duckdb.read_parquet(str(part)).fetchall()) == _lists(expected)


@pytest.mark.parametrize("name", REFUSED)
def test_what_parquet_cannot_hold_is_refused_by_name(memory_store: pds.Store, name: str) -> None:
    table = pa.table({"fine": pa.nulls(len(REFUSED[name]), pa.int8()), "odd": REFUSED[name]})
    datasets = pds.ParquetDatasetStore(memory_store)
    memory_store.reset_metrics()

    with pytest.raises(pds.InvalidInput, match="odd") as caught:
        datasets.write_dataset(table, "ds")

    assert "fine" not in str(caught.value)
    assert memory_store.metrics()["requests"] == 0


def test_float_bits_survive(datasets: pds.ParquetDatasetStore) -> None:
    bits = [0x7FF8000000000001, 0xFFF0000000000000, 0x8000000000000000, 1, 0x7FF0000000000BAD]
    floats = pa.array(bits, pa.uint64()).view(pa.float64())

    datasets.write_dataset(pa.table({"f": floats}), "ds")

    chunk = datasets.read_dataset("ds")["f"].combine_chunks()
    assert chunk.view(pa.uint64()).to_pylist() == bits


@pytest.mark.parametrize("ordered", [True, False])
def test_a_categorical_keeps_its_categories(datasets: pds.ParquetDatasetStore, ordered: bool) -> None:
    categories = ["low", "mid", "high", "never"]
    values = ["high", None, "low", "high", "mid", "low"]
    frame = pd.DataFrame({"c": pd.Categorical(values, categories, ordered=ordered)})
    few = pds.ParquetDatasetStore(datasets.store, row_group_size=2)

    few.write_dataset(pa.Table.from_pandas(frame), "ds")

    result = few.read_dataset("ds").to_pandas()
    pd.testing.assert_frame_equal(result, frame)
    assert list(result["c"].cat.categories) == categories
    streamed = few.scan_dataset("ds").read_all().to_pandas()
    pd.testing.assert_frame_equal(streamed, frame)


def test_codes_under_nulls_may_be_anything(datasets: pds.ParquetDatasetStore) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array([], pa.int64()), safe=False)
    struct = pa.StructArray.from_arrays([codes], ["c"], mask=pa.array([True, True]))
    lists = pa.ListArray.from_arrays([0, 1, 2], struct)
    table = pa.table({"struct": struct, "list": lists})

    datasets.write_dataset(table, "ds")

    assert datasets.read_dataset("ds").to_pylist() == table.to_pylist()


def test_row_groups_may_have_dictionaries_of_their_own(datasets: pds.ParquetDatasetStore) -> None:
    chunks = [pa.array([0, 1], pa.int8()), pa.array([1, 0], pa.int8())]
    values = [pa.array(["b", "a"]), pa.array(["x", "y"])]
    arrays = [pa.DictionaryArray.from_arrays(c, v) for c, v in zip(chunks, values, strict=True)]
    table = pa.table({"c": pa.chunked_array(arrays)})

    datasets.write_dataset(table, "ds")

    assert _values(datasets.read_dataset("ds")["c"]) == ["b", "a", "y", "x"]


@pytest.mark.parametrize("name", ["struct", "fixed", "fixed in fixed", "list", "large list", "struct in list"])
def test_codes_under_nulls_of_lists_may_be_anything(datasets: pds.ParquetDatasetStore, name: str) -> None:
    empty = pa.DictionaryArray.from_arrays(pa.array([0, 7, 1, 2], pa.uint8()), pa.array([], pa.string()), safe=False)
    hidden = pa.array([True])
    fixed = pa.FixedSizeListArray.from_arrays
    inner = {
        "struct": lambda: pa.StructArray.from_arrays([empty], ["d"]).slice(3),
        "fixed": lambda: fixed(empty, 4),
        "fixed in fixed": lambda: fixed(fixed(empty, 2), 2),
        "list": lambda: pa.ListArray.from_arrays(pa.array([0, 4], pa.int32()), empty),
        "large list": lambda: pa.LargeListArray.from_arrays(pa.array([0, 4], pa.int64()), empty),
        "struct in list": lambda: pa.ListArray.from_arrays(
            pa.array([1, 3], pa.int32()), pa.StructArray.from_arrays([empty], ["d"])
        ),
    }[name]()
    # The decimal is what has the struct converted.
    narrow = pa.array([None], pa.decimal32(3, 1))
    table = pa.table({"c": pa.StructArray.from_arrays([inner, narrow], ["inner", "narrow"], mask=hidden)})

    datasets.write_dataset(table, "ds")
    result = datasets.read_dataset("ds")

    result.validate(full=True)
    assert result.schema.equals(table.schema)
    assert _values(result["c"]) == [None]


def test_codes_of_rows_that_are_elsewhere_may_be_anything(datasets: pds.ParquetDatasetStore) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 100], pa.int8()), pa.array(["a", "b"]), safe=False)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), codes, mask=pa.array([False, True]))
    table = pa.table({"c": lists.slice(0, 1), "d": pa.array([[1]], pa.list_(pa.decimal32(3, 1)))})

    datasets.write_dataset(table, "ds")

    assert _values(datasets.read_dataset("ds")["c"]) == [["a"]]


def test_a_large_dictionary_is_not_kept(datasets: pds.ParquetDatasetStore, part: Path) -> None:
    values = pa.array([f"{n:0100d}" for n in range(20_000)])
    table = pa.table({"c": pa.DictionaryArray.from_arrays(pa.array([19_999, 0, 7], pa.int32()), values)})

    datasets.write_dataset(table, "ds")

    assert part.stat().st_size < 100_000
    assert _values(datasets.read_dataset("ds")["c"]) == _values(table["c"])


def test_metadata_of_schema_and_fields_survives(datasets: pds.ParquetDatasetStore) -> None:
    inner = pa.field("inner", pa.int8(), nullable=False, metadata={"unit": "m"})
    fields = [
        pa.field("a", pa.struct([inner]), metadata={"k": "v", "PARQUET:field_id": "7"}),
        pa.field("b", pa.list_(pa.field("element name", pa.string(), metadata={"x": "y"}))),
        pa.field("c", pa.int32(), metadata={"": ""}),
    ]
    schema = pa.schema(fields, metadata={"owner": "ü", "ARROW:extension:name": "mine"})
    table = schema.empty_table()

    datasets.write_dataset(table, "ds")

    assert datasets.read_dataset("ds").schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize("where", ["schema", "field"])
def test_metadata_that_is_no_text_is_refused(datasets: pds.ParquetDatasetStore, where: str) -> None:
    metadata = {b"k": b"\xff"}
    field = pa.field("c", pa.int32(), metadata=metadata if where == "field" else None)
    schema = pa.schema([field], metadata=metadata if where == "schema" else None)

    with pytest.raises(pds.InvalidInput, match="metadata"):
        datasets.write_dataset(schema.empty_table(), "ds")


def test_an_unknown_extension_type_keeps_its_metadata(
    datasets: pds.ParquetDatasetStore,
) -> None:
    metadata = {"ARROW:extension:name": "made.up", "ARROW:extension:metadata": '{"a": 1}'}
    schema = pa.schema([pa.field("c", pa.int32(), metadata=metadata)])
    table = pa.table([pa.array([1, None], pa.int32())], schema=schema)

    datasets.write_dataset(table, "ds")

    result = datasets.read_dataset("ds")
    assert result.schema.equals(schema, check_metadata=True)
    assert result.equals(table)


def test_no_columns(datasets: pds.ParquetDatasetStore) -> None:
    table = pa.table({})

    manifest = datasets.write_dataset(table, "ds")

    assert manifest.row_count == 0
    assert datasets.read_dataset("ds").equals(table)


def test_rows_without_columns_are_refused(datasets: pds.ParquetDatasetStore) -> None:
    table = pa.table({"gone": [1, 2, 3]}).select([])
    with pytest.raises(pds.InvalidInput, match="without columns"):
        datasets.write_dataset(table, "ds")


def test_one_table_of_all_types(datasets: pds.ParquetDatasetStore) -> None:
    names = [name for name, array in CASES.items() if len(array) >= 3]
    table = pa.table({name: CASES[name].slice(0, 3) for name in names})

    datasets.write_dataset(table, "ds")

    result = datasets.read_dataset("ds")
    assert result.schema.equals(table.schema, check_metadata=True)
    for name in names:
        assert _values(result[name]) == _values(table[name]), name
        part = datasets.read_dataset("ds", columns=[name])
        assert _values(part[name]) == _values(table[name]), name

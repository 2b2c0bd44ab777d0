"""Files of other makers whose Arrow schema has other types than the table, and files that are encrypted."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

import pds
from delta_readers import read_delta_rs

if TYPE_CHECKING:
    from pathlib import Path

NESTED = [[{"x": [1, None]}], None, [None]]
ITEM = pa.struct([("x", pa.list_(pa.int64()))])
LARGE_ITEM = pa.struct([("x", pa.large_list(pa.int64()))])
PRICES = [Decimal("-1.25"), None, Decimal("99999.99")]
TIMES = [dt.time(0, 0, 1), None, dt.time(23, 59, 59)]
MOMENTS = [dt.datetime(2026, 1, 2, 3, 4, 5, 678000), None, dt.datetime(1970, 1, 1)]  # noqa: DTZ001 of any zone, or none
WHOLE = [at and at.replace(microsecond=0) for at in MOMENTS]
NAMES = pa.array(["a", None, "a"])


def _parquet(rows: pa.Table, **options: object) -> bytes:
    target = io.BytesIO()
    pq.write_table(rows, target, **options)
    return target.getvalue()


def _moments(unit: str, zone: str | None = None) -> pa.Array:
    return pa.array(MOMENTS, pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone))


# The file's column, the table's type, and how pyarrow writes the file.
TAKEN: dict[str, tuple[pa.Array, pa.DataType, dict[str, object]]] = {
    "large_list": (pa.array([[1, None], None, []], pa.large_list(pa.int64())), pa.list_(pa.int64()), {}),
    "large_list-wider": (pa.array([[1, None], None, []], pa.large_list(pa.int32())), pa.list_(pa.int64()), {}),
    "fixed_size_list": (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2)), pa.list_(pa.int64()), {}),
    "nested": (pa.array(NESTED, pa.large_list(LARGE_ITEM)), pa.list_(ITEM), {}),
    "decimal32": (pa.array(PRICES, pa.decimal32(7, 2)), pa.decimal128(7, 2), {}),
    "decimal64": (pa.array(PRICES, pa.decimal64(12, 2)), pa.decimal128(12, 2), {}),
    "decimal64-integer": (
        pa.array(PRICES, pa.decimal64(12, 2)),
        pa.decimal128(14, 2),
        {"store_decimal_as_integer": True},
    ),
    "time32": (pa.array(TIMES, pa.time32("s")), pa.time32("ms"), {}),
    "seconds": (pa.array(WHOLE, pa.timestamp("s")), pa.timestamp("ms"), {}),
    "coerced-us": (_moments("ns"), pa.timestamp("us"), {"coerce_timestamps": "us"}),
    "coerced-ms": (_moments("ns"), pa.timestamp("ms"), {"coerce_timestamps": "ms"}),
    "coerced-zone": (_moments("ns", "Asia/Tokyo"), pa.timestamp("us", "Asia/Tokyo"), {"coerce_timestamps": "us"}),
    "version-2.4": (_moments("ns"), pa.timestamp("us"), {"version": "2.4"}),
    "refined-s": (pa.array(WHOLE, pa.timestamp("s")), pa.timestamp("us"), {"coerce_timestamps": "us"}),
    "refined-ms": (_moments("ms"), pa.timestamp("us"), {"coerce_timestamps": "us"}),
    "refined-zone": (_moments("ms", "Asia/Tokyo"), pa.timestamp("us", "Asia/Tokyo"), {"coerce_timestamps": "us"}),
    "coerced-in-list": (
        pa.array([[1_000], None, []], pa.large_list(pa.timestamp("ns"))),
        pa.list_(pa.timestamp("us")),
        {"coerce_timestamps": "us"},
    ),
    "dictionary": (NAMES.dictionary_encode(), pa.large_string(), {}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_parquet_stores_alike_is_taken(memory_store: pds.Store, name: str) -> None:
    column, to, options = TAKEN[name]
    content = _parquet(pa.table({"id": range(3), "c": column}), **options)
    expected = pq.read_table(io.BytesIO(content))["c"].cast(to).to_pylist()
    memory_store.write("lake/a.parquet", content)
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("c", to)]))
    table.add_files("lake/a.parquet")
    for _ in ("of the file", "of the table"):
        result = table.scan().to_pyarrow()
        result.validate(full=True)
        assert result["c"].type == to
        assert result["c"].to_pylist() == expected
        assert table.scan(where="c IS NULL").count() == 1
        assert table.scan(["c"], where="c IS NOT NULL").count() == 2
        assert table.check().ok
        assert table.verify().ok
        table.optimize.compact()


@pytest.mark.parametrize("unit", ["ns", "us"])
def test_coerced_timestamps_are_filtered_by_their_values(memory_store: pds.Store, unit: str) -> None:
    content = _parquet(pa.table({"at": _moments("ns")}), coerce_timestamps="us")
    memory_store.write("lake/a.parquet", content)
    table = pds.Table.create(memory_store, "t", pa.schema([("at", pa.timestamp(unit))]))
    table.add_files("lake/a.parquet")
    for where, count in [("at = '2026-01-02T03:04:05.678'", 1), ("at < '2000-01-01'", 1), ("at > '2027-01-01'", 0)]:
        assert table.scan(where=where).count() == count
    assert table.scan().to_pyarrow()["at"].to_pylist() == _moments(unit).to_pylist()


def test_files_of_polars_are_taken(memory_store: pds.Store, tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [1, 2, 3], "l": [[1, None], None, []], "c": ["a", None, "b"], "s": ["x", "", None]})
    frame = frame.with_columns(pl.col("c").cast(pl.Categorical))
    frame.write_parquet(tmp_path / "a.parquet", use_pyarrow=False)
    memory_store.write("lake/a.parquet", (tmp_path / "a.parquet").read_bytes())
    schema = pa.schema([("id", pa.int64()), ("l", pa.list_(pa.int64())), ("c", pa.large_string()), ("s", pa.string())])
    table = pds.Table.create(memory_store, "t", schema)
    table.add_files("lake/a.parquet")
    assert table.scan().to_pyarrow().schema.equals(schema)
    assert table.scan().to_pyarrow().to_pylist() == frame.to_dicts()


def _as_arrow_rs(rows: pa.Table) -> bytes:
    """A file with seconds and `date64` as arrow-rs writes them: numbers without a unit, beside the Arrow schema."""
    numbers = rows
    for at, field in enumerate(rows.schema):
        if pa.types.is_temporal(field.type):
            number = pa.int32() if pa.types.is_time(field.type) else pa.int64()
            numbers = numbers.set_column(at, field.name, rows[field.name].cast(number))
    target = io.BytesIO()
    with pq.ParquetWriter(target, numbers.schema, store_schema=False) as writer:
        writer.write_table(numbers)
        schema = base64.b64encode(rows.schema.serialize().to_pybytes())
        writer.add_key_value_metadata({"ARROW:schema": schema.decode()})
    return target.getvalue()


SECONDS = pa.table(
    [[1_700_000_000, 1_700_000_001], [1, 86_399], [1, 2]],
    pa.schema([pa.field("at", pa.timestamp("s"), nullable=False), ("time", pa.time32("s")), ("n", pa.int64())]),
)


def _list_bounds_of_1970(folder: Path, version: int) -> None:
    """As earlier versions listed the file: its seconds were read as milliseconds."""
    path = folder / "manifest" / f"v{version:08}.json"
    manifest = json.loads(path.read_text())
    (file,) = manifest["data_files"]
    assert set(file["min"]) == {"3"}
    file["min"].update({"1": "1970-01-20T16:13:20", "2": "00:00:00.001"})
    file["max"].update({"1": "1970-01-20T16:13:20.001", "2": "00:01:26.399"})
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("is_old", [False, True])
def test_seconds_of_arrow_rs_are_seconds(tmp_path: Path, *, is_old: bool) -> None:
    store = pds.Store(tmp_path)
    store.write("lake/a.parquet", _as_arrow_rs(SECONDS))
    table = pds.Table.create(store, "new", SECONDS.schema, key="at")
    table.add_files("lake/a.parquet")
    if is_old:
        _list_bounds_of_1970(tmp_path / "new", table.refresh().version)
    (tmp_path / "new").rename(tmp_path / "t")
    table = pds.Table(store, "t")
    assert table.scan().to_pyarrow().equals(SECONDS)
    for where, ids in [
        ("at >= '2023-11-14T22:13:21'", [2]),
        ("at < '2000-01-01'", []),
        (pc.field("time") > pa.scalar(43_200, pa.time32("s")), [2]),
        (pc.field("time") == pa.scalar(1, pa.time32("s")), [1]),
    ]:
        assert table.scan(where=where).to_pyarrow()["n"].to_pylist() == ids
    assert table.verify().ok
    changed = SECONDS.slice(0, 1).set_column(2, "n", pa.array([3]))
    table.upsert(changed)
    assert sorted(table.scan().to_pyarrow()["n"].to_pylist()) == [2, 3]
    table.delete("at >= '2023-11-14T22:13:21'")
    assert table.scan().to_pyarrow().equals(changed)
    assert table.verify().ok


# The file's column, the table's type, and how the file has it, as readers see that do not look at its Arrow schema.
EXPORTED: dict[str, tuple[pa.Array, pa.DataType, str]] = {
    "list": (pa.array([[1, None], None, []], pa.list_(pa.int32())), pa.list_(pa.int64()), "List.*Int32"),
    "large_list": (pa.array([[1, None], None, []], pa.large_list(pa.int32())), pa.list_(pa.int64()), "List.*Int32"),
    "decimal64": (pa.array(PRICES, pa.decimal64(12, 2)), pa.decimal128(14, 2), "Decimal128.12, 2."),
    "seconds": (pa.array(WHOLE, pa.timestamp("s")), pa.timestamp("s"), "Int64"),
    "date64": (pa.array([dt.date(2026, 1, 2), None, dt.date(1969, 1, 1)], pa.date64()), pa.date64(), "Int64"),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_exports_look_at_what_parquet_stores(tmp_path: Path, name: str) -> None:
    column, to, seen = EXPORTED[name]
    rows = pa.table({"id": range(3), "c": column})
    store = pds.Store(tmp_path)
    is_plain = seen == "Int64"
    content = _as_arrow_rs(rows) if is_plain else _parquet(rows, store_decimal_as_integer=True)
    store.write("lake/a.parquet", content)
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64()), ("c", to)]))
    table.add_files("lake/a.parquet")
    with pytest.raises(pds.InvalidInput, match=f"it has column .c. as {seen}"):
        table.export_delta()
    if to not in (pa.decimal128(14, 2), pa.timestamp("s")):
        with pytest.raises(pds.InvalidInput, match=f"it has column .c. as {seen}"):
            table.export_iceberg()
    table.optimize.sort(["id"])
    table.export_delta()
    exported = read_delta_rs(tmp_path / "t").sort_by("id")["c"]
    assert exported.cast(to).to_pylist() == table.scan().to_pyarrow()["c"].to_pylist() == column.cast(to).to_pylist()


REFUSED = {
    "list of texts": (pa.array([["a"]], pa.large_list(pa.string())), pa.list_(pa.int64())),
    "scale": (pa.array(PRICES, pa.decimal64(12, 2)), pa.decimal128(14, 3)),
    "fewer digits": (pa.array(PRICES, pa.decimal64(12, 2)), pa.decimal128(11, 2)),
    "finer": (pa.array(MOMENTS, pa.timestamp("us")), pa.timestamp("ms")),
    "not coerced": (_moments("ns"), pa.timestamp("us")),
    "zone": (pa.array(MOMENTS, pa.timestamp("us")), pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_types_are_refused(memory_store: pds.Store, name: str) -> None:
    column, to = REFUSED[name]
    memory_store.write("lake/a.parquet", _parquet(pa.table({"c": column})))
    table = pds.Table.create(memory_store, "t", pa.schema([("c", to)]))
    with pytest.raises(pds.InvalidInput, match="rewrite the file"):
        table.add_files("lake/a.parquet")
    assert table.refresh().version == 1


class _Keys(encryption.KmsClient):
    """Keys that are kept in the open."""

    def __init__(self, _config: encryption.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, _master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def _encrypted(path: Path, rows: pa.Table, columns: list[str], *, plaintext_footer: bool) -> bytes:
    config = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": columns}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(_Keys)
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, rows.schema, encryption_properties=keys) as writer:
        writer.write_table(rows)
    return path.read_bytes()


@pytest.mark.parametrize("leaf", ["c", "s.x"])
def test_encrypted_columns_are_refused(memory_store: pds.Store, tmp_path: Path, leaf: str) -> None:
    rows = pa.table({"id": [1, 2], "c": ["a", "b"], "s": [{"x": 1}, None]})
    content = _encrypted(tmp_path / "a.parquet", rows, [leaf], plaintext_footer=True)
    assert content[-4:] == b"PAR1"
    memory_store.write("lake/good.parquet", _parquet(rows))
    memory_store.write("lake/a.parquet", content)
    table = pds.Table.create(memory_store, "t", rows.schema)
    with pytest.raises(pds.InvalidInput, match=f"column [\"']{leaf}[\"'] is encrypted") as caught:
        table.add_files(["lake/good.parquet", "lake/a.parquet"])
    assert caught.value.path == "lake/a.parquet"
    assert table.refresh().version == 1
    assert table.check().orphans == []


def test_encrypted_footers_are_called_encrypted(memory_store: pds.Store, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "c": ["a", "b"]})
    content = _encrypted(tmp_path / "a.parquet", rows, ["c"], plaintext_footer=False)
    assert content[-4:] == b"PARE"
    memory_store.write("lake/a.parquet", content)
    table = pds.Table.create(memory_store, "t", rows.schema)
    with pytest.raises(pds.InvalidInput, match="the file is encrypted") as caught:
        table.add_files("lake/a.parquet")
    assert caught.value.path == "lake/a.parquet"
    assert table.refresh().version == 1

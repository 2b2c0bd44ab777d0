"""Tables as Iceberg tables: every version that was exported has the rows of the table's, as other systems read it."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.table import StaticTable

import pds
from exported_tables import SCHEMA, change_at_random, make_rows, rows_of
from iceberg_readers import metadata_files, read_duckdb, read_metadata, read_polars, read_pyiceberg, snapshots

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3Server

pytestmark = pytest.mark.sampled(2)


@pytest.fixture
def table(tmp_path: Path) -> pds.Table:
    return pds.Table.create(pds.Store(tmp_path.as_uri()), "t", SCHEMA, key=["id"], sort_by=["id"])


def expected_rows(table: pds.Table, where: str = "true", leave_out: str | None = None) -> list[tuple[Any, ...]]:
    columns = [name for name in table.schema.names if name != leave_out]
    return rows_of(table.scan(columns, where=None if where == "true" else where).to_pyarrow())


def newest_metadata(folder: Path) -> Path:
    return list(metadata_files(folder).values())[-1]


def alter_at_random(table: pds.Table, rng: random.Random, number: int) -> None:
    small = str(table.schema.field("small").type)
    if rng.random() < 0.5:
        table.alter.add_column(pa.field(f"extra {number}", pa.string()))
    elif small != "int64":
        table.alter.widen("small", pa.int64() if small == "int32" else pa.int32())


@pytest.mark.parametrize("seed", range(6))
def test_every_exported_version_has_the_rows_of_the_table(table: pds.Table, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    # Only without a nested column do readers leave out files by bounds.
    left_out = "nested" if seed % 2 else None
    leave_out = [left_out] if left_out else None
    ids = [0]
    folder = tmp_path / "t"
    for number in range(25):
        change_at_random(table, rng, ids)
        if rng.random() < 0.15:
            alter_at_random(table, rng, number)
        if rng.random() < 0.4:
            exported = table.export_iceberg(leave_out=leave_out)
            assert exported.version == table.version
    last = table.export_iceberg(leave_out=leave_out)
    assert table.export_iceberg() == pds.table.IcebergExportResult(last.version, 0, 0, last.metadata_location)
    files = metadata_files(folder)
    assert snapshots(files[table.version]).keys() == files.keys()
    where = f"id >= {ids[0] // 3} AND price < {ids[0] // 6}"
    orders: list[tuple[Path, int | None, str]] = []
    expected: list[list[tuple[Any, ...]]] = []
    for version, path in files.items():
        for filter_by in ("true", where):
            rows = expected_rows(table.as_of(version), filter_by, left_out)
            assert rows_of(read_pyiceberg(path, filter_by)) == rows, version
            assert rows_of(read_polars(path, filter_by)) == rows, version
            orders.append((path, None, filter_by))
            expected.append(rows)
        snapshot = snapshots(files[table.version])[version]
        rows = expected_rows(table.as_of(version), leave_out=left_out)
        assert rows_of(read_pyiceberg(files[table.version], snapshot=snapshot)) == rows, version
        orders.append((files[table.version], snapshot, "true"))
        expected.append(rows)
    assert rows_of(read_polars(files[table.version], native=False)) == expected_rows(table, leave_out=left_out)
    for order, read, rows in zip(orders, read_duckdb(orders, tmp_path), expected, strict=True):
        assert rows_of(read) == rows, order


@pytest.mark.parametrize("nested", [False, True])
def test_filters(tmp_path: Path, *, nested: bool) -> None:
    """DuckDB 1.4 and polars look at bounds and counts, of files with deleted rows too."""
    rows = pa.table({"id": range(5), "s": ["a", None, "b", None, "c"], "x": [1.5, None, 0.5, None, None]})
    filters = ["id IS NOT NULL", "id >= 2", "s > 'b'", "x > 1"]
    if nested:
        rows = rows.append_column("n", pa.array([{"u": 1}, None, {"u": 2}, None, {"u": None}]))
    table = pds.write_table(tmp_path / "t", rows)
    table.alter.add_column(pa.field("added", pa.string()))
    filters += [f"{name} IS {no}NULL" for name in table.schema.names for no in ("", "NOT ")]

    def append(first: int, count: int) -> None:
        values = {"id": [*range(first, first + count)], "s": ["q"] * count, "added": [None, *["z"] * (count - 1)]}
        table.append(pa.Table.from_pylist(pa.table(values).to_pylist(), table.schema))

    append(5, 1)
    append(6, 1)
    append(7, 3)
    table.delete("id = 0")
    table.delete("id in (5, 8)")
    table.export_iceberg()
    path = newest_metadata(tmp_path / "t")
    reads = read_duckdb([(path, None, where) for where in filters], tmp_path)
    for where, read in zip(filters, reads, strict=True):
        expected = str(expected_rows(table, where))
        assert str(rows_of(read)) == expected, where
        assert str(rows_of(read_pyiceberg(path, where))) == expected, where
        assert str(rows_of(read_polars(path, where))) == expected, where
    bounds = [task.file.lower_bounds for task in StaticTable.from_metadata(str(path)).scan().plan_files()]
    assert any(bounds) is not nested


@pytest.mark.parametrize(("precision", "scale"), [(9, 2), (18, 3), (19, 2), (20, 2), (38, 0), (38, 10)])
def test_filters_of_decimals(tmp_path: Path, precision: int, scale: int) -> None:
    """DuckDB 1.4 decodes short bounds of long decimals wrongly."""
    schema = pa.schema([("id", pa.int64()), ("d", pa.decimal128(precision, scale))])
    table = pds.write_table(tmp_path / "t", schema.empty_table())
    for number, chunk in enumerate([[5, 5], [7, 7], [-1, -1], [0, None]]):
        decimals = [None if value is None else Decimal(value) for value in chunk]
        table.append(pa.table([[2 * number, 2 * number + 1], decimals], schema))
    table.export_iceberg()
    path = newest_metadata(tmp_path / "t")
    filters = ["d = 5", "d <= 7", "d < 1", "d >= -1", "d > 5", "d IS NULL"]
    reads = read_duckdb([(path, None, where) for where in filters], tmp_path)
    for where, read in zip(filters, reads, strict=True):
        assert read.num_rows == table.scan(where=where).count(), where


@pytest.mark.parametrize("how", ["left out", "dropped", "dropped and added again"])
def test_columns_of_files_without_ids_that_are_not_exported(tmp_path: Path, how: str) -> None:
    """Readers refuse a file that has a column without a name in the mapping."""
    (tmp_path / "t" / "old").mkdir(parents=True)
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1], "b": ["x"]}))
    pq.write_table(pa.table({"id": [2, 3], "b": ["y", "z"]}), tmp_path / "t" / "old" / "1.parquet")
    table.add_files(["t/old/1.parquet"])
    if how != "left out":
        table.alter.drop_column("b")
    if how == "dropped and added again":
        table.alter.add_column(pa.field("b", pa.string()))
    table.export_iceberg(leave_out=["b"] if how == "left out" else None)
    path = newest_metadata(tmp_path / "t")
    expected = table.scan(["id"] if how == "left out" else None).to_pyarrow()
    (read,) = read_duckdb([(path, None, "true")], tmp_path)
    for rows in (read, read_pyiceberg(path), read_polars(path)):
        assert str(rows_of(rows)) == str(rows_of(expected))


def test_a_vacuum_stops_where_a_catalog_goes_on_from_an_export(table: pds.Table, tmp_path: Path) -> None:
    """It would remove files that the metadata of the catalog names."""
    table.append(make_rows(range(10)))
    table.export_iceberg()
    theirs = tmp_path / "t" / "metadata" / "00001-6a51.metadata.json"
    theirs.write_bytes(newest_metadata(tmp_path / "t").read_bytes())
    table.optimize.compact()
    with pytest.raises(pds.ExportConflict, match="nothing was removed"):
        table.vacuum(dt.timedelta(0))


def test_readers_find_the_newest_version(table: pds.Table, tmp_path: Path) -> None:
    """By the folder of the table, or by the location that an export returns."""
    for number in range(3):
        table.append(make_rows(range(10 * number, 10 * number + 10)))
        exported = table.export_iceberg()
    assert exported.metadata_location == f"file://{tmp_path}/t/metadata/v{table.version}.metadata.json"
    assert rows_of(read_pyiceberg(exported.metadata_location)) == expected_rows(table)
    assert rows_of(read_pyiceberg(tmp_path / "t")) == expected_rows(table)
    (read,) = read_duckdb([(tmp_path / "t", None, "true")], tmp_path)
    assert rows_of(read) == expected_rows(table)


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", SCHEMA, key=["id"], sort_by=["id"])
    for number in range(70):
        table.append(make_rows(range(10 * number, 10 * number + 10)))
    table.delete("small % 3 = 1")
    table.export_iceberg()

    def objects() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "t" / "metadata").rglob("*.*")}

    before = objects()
    table.append(make_rows(range(1000, 1010)))
    written = table.export_iceberg().bytes
    after = objects()
    changed = [name for name, time in after.items() if before.get(name) != time]
    kinds = sorted(name.split("-")[0].split(".")[0] for name in changed)
    assert kinds in (
        ["data", "snap", f"v{table.version}", "version"],
        ["data", "deletes", "snap", f"v{table.version}", "version"],
    )
    sizes = [path.stat().st_size for path in (tmp_path / "t" / "metadata" / "manifests").glob("data-*")]
    assert written < 30_000
    assert len(sizes) > 3
    assert rows_of(read_pyiceberg(newest_metadata(tmp_path / "t"))) == expected_rows(table)


def test_metadata_say_what_the_table_is(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_iceberg()
    table.tags.create("first", table.version)
    table.tags.create("main", table.version)
    table.append(make_rows(range(10, 20)))
    table.delete("id < 5")
    table.alter.drop_column("nested")
    table.export_iceberg()
    static = StaticTable.from_metadata(str(newest_metadata(tmp_path / "t")))
    metadata = static.metadata
    assert metadata.format_version == 2
    ids = {field.field_id for schema in metadata.schemas for field in schema.fields}
    assert metadata.last_column_id > max(ids)
    assert metadata.last_sequence_number == table.version
    assert metadata.current_snapshot().timestamp_ms == int(table.history()[0]["created_at"].timestamp() * 1000)
    assert static.schema().identifier_field_names() == {"id"}
    assert rows_of(static.scan(snapshot_id=metadata.refs["first"].snapshot_id).to_arrow()) == expected_rows(
        table.as_of("first")
    )
    assert metadata.refs["main"].snapshot_id == metadata.current_snapshot_id
    # What keeps other systems from writing, and from removing files.
    assert metadata.properties["gc.enabled"] == "false"
    assert metadata.properties["write.format.default"] == "pds-read-only"
    assert metadata.properties["write.metadata.path"]
    tasks = list(static.scan().plan_files())
    assert sum(len(task.delete_files) for task in tasks) == 1
    assert sum(task.file.record_count for task in tasks) == 20
    assert metadata.current_snapshot().summary["total-position-deletes"] == "5"


def test_types_and_names(tmp_path: Path) -> None:
    """Types, odd names, required and nested fields; what Iceberg lacks is refused by name, or left out."""
    fields: list[tuple[pa.DataType, list[Any]]] = [
        (pa.int8(), [-128, None, 127]),
        (pa.float32(), [float("-inf"), None, 1.5]),
        (pa.float64(), [float("nan"), None, 1.5]),
        (pa.bool_(), [True, None, False]),
        (pa.large_string(), ["", None, "ä" * 100]),
        (pa.binary(), [b"", None, b"\x00\xff"]),
        (pa.binary(3), [b"abc", None, b"\x00\xff\x01"]),
        (pa.decimal128(38, 10), [Decimal("-1.0000000001"), None, Decimal(10) ** 20]),
        (pa.decimal128(9, 2), [Decimal("-1.28"), None, Decimal("1.28")]),
        (pa.timestamp("us", "UTC"), [-(2**40), None, 2**41]),
        (pa.timestamp("us"), [-62_135_596_800_000_000, None, 253_402_300_799_999_999]),
        (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b"]),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
        # pyiceberg 0.12 reads null lists of structs as empty ones.
        (pa.list_(pa.struct([pa.field("x", pa.int64(), nullable=False)])), [[{"x": 1}], [], []]),
        (pa.large_list(pa.list_(pa.int32())), [[[1], None], None, []]),
    ]
    names = ["id", *(f"c{number}, with a = “name”; {data_type}"[:40] for number, (data_type, _) in enumerate(fields))]
    arrays = [pa.array(range(3), pa.int64()), *(pa.array(values, data_type) for data_type, values in fields)]
    rows = pa.table(arrays, names=names)
    unknown = rows.append_column("small", pa.array([1, 2, 3], pa.uint8()))
    unknown = unknown.append_column("ms", pa.array([1, 2, 3], pa.timestamp("ms")))
    table = pds.write_table(tmp_path / "t", unknown)
    for leave_out in (None, ["small"], "ms"):
        with pytest.raises(pds.InvalidInput, match=r"cannot be exported to Iceberg.*leave_out"):
            table.export_iceberg(leave_out=leave_out)
    assert not (tmp_path / "t" / "metadata").exists()
    with pytest.raises(pds.InvalidInput, match=r"unknown column .nothing."):
        table.export_iceberg(leave_out=["nothing"])
    table.export_iceberg(leave_out=["ms", "small"])
    table.append(unknown.set_column(0, "id", pa.array(range(3, 6), pa.int64())))
    table.alter.rename_column("ms", "milliseconds")
    table.export_iceberg()
    with pytest.raises(pds.InvalidInput, match="rebuild=True"):
        table.export_iceberg(leave_out=["milliseconds"])
    path = newest_metadata(tmp_path / "t")
    expected = str(rows_of(table.scan(rows.column_names).to_pyarrow()))
    (read,) = read_duckdb([(path, None, "true")], tmp_path)
    assert str(rows_of(read)) == expected
    assert str(rows_of(read_pyiceberg(path))) == expected


@pytest.mark.parametrize(
    "data_type",
    [
        pa.uint32(),
        pa.float16(),
        pa.timestamp("ns"),
        pa.timestamp("s", "UTC"),
        pa.time64("us"),
        pa.duration("us"),
        pa.decimal256(50, 2),
        pa.list_(pa.int64(), 2),
        pa.list_(pa.uint8()),
    ],
    ids=str,
)
def test_types_that_are_refused(tmp_path: Path, data_type: pa.DataType) -> None:
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1], "x": pa.nulls(1, data_type)}))
    with pytest.raises(pds.InvalidInput, match=r"column .x. .* cannot be exported to Iceberg.*leave_out"):
        table.export_iceberg()


def test_names_that_differ_in_case_are_refused(tmp_path: Path) -> None:
    table = pds.write_table(tmp_path / "t", pa.table({"id": [1], "A": [1], "a": [2]}))
    with pytest.raises(pds.InvalidInput, match="only in case"):
        table.export_iceberg()
    table.export_iceberg(leave_out=["A"])
    assert read_pyiceberg(newest_metadata(tmp_path / "t")).column_names == ["id", "a"]


def test_widened_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("x", pa.float32()), ("d", pa.decimal128(5, 2))])
    rows = pa.table({"id": [1, 2], "n": [2**31 - 1, None], "x": [1.5, None], "d": [Decimal("-3.25"), None]}, schema)
    table = pds.write_table(tmp_path / "t", rows)
    table.export_iceberg()
    table.alter.widen("n", pa.int64())
    table.alter.widen("x", pa.float64())
    table.alter.widen("d", pa.decimal128(20, 2))
    wide = pa.table({"id": [3], "n": [2**40], "x": [0.1], "d": [Decimal("123456789012.25")]}, table.schema)
    table.append(wide)
    table.export_iceberg()
    path = newest_metadata(tmp_path / "t")
    reads = read_duckdb([(path, None, "true"), (path, None, "n > 5 AND d < 0")], tmp_path)
    assert rows_of(reads[0]) == expected_rows(table) == rows_of(read_pyiceberg(path)) == rows_of(read_polars(path))
    assert (
        rows_of(reads[1]) == expected_rows(table, "n > 5 AND d < 0") == rows_of(read_pyiceberg(path, "n > 5 and d < 0"))
    )
    first = next(iter(snapshots(path).values()))
    assert rows_of(read_pyiceberg(path, snapshot=first)) == rows_of(rows)


def test_files_without_ids(table: pds.Table, tmp_path: Path) -> None:
    """Their columns are found by name; files that would be read wrongly are refused."""
    folder = tmp_path / "t"
    pq.write_table(make_rows(range(10)), folder / "plain.parquet", row_group_size=5)
    table.add_files(["t/plain.parquet"])
    table.append(make_rows(range(10, 20)))
    table.delete("id between 3 and 12")
    table.alter.rename_column("name", "title")
    table.export_iceberg()
    path = newest_metadata(folder)
    (read,) = read_duckdb([(path, None, "true")], tmp_path)
    assert rows_of(read) == expected_rows(table) == rows_of(read_pyiceberg(path)) == rows_of(read_polars(path))
    before = metadata_files(folder)
    pq.write_table(make_rows(range(20, 30)).rename_columns(table.schema.names), folder / "renamed.parquet")
    table.add_files(["t/renamed.parquet"])
    with pytest.raises(pds.InvalidInput, match=r"renamed.parquet.*under the name .title.*optimize.sort"):
        table.export_iceberg()
    with pytest.raises(pds.InvalidInput, match=r"renamed.parquet"):
        table.export_iceberg(rebuild=True)
    assert metadata_files(folder) == before
    table.optimize.sort(["id"])
    table.export_iceberg()
    assert rows_of(read_pyiceberg(newest_metadata(folder))) == expected_rows(table)
    # The files of the first snapshot are still found by name.
    assert rows_of(read_pyiceberg(newest_metadata(folder), snapshot=snapshots(path)[min(snapshots(path))])) == rows_of(
        read
    )


def test_other_files_that_would_be_read_wrongly_are_refused(table: pds.Table, tmp_path: Path) -> None:
    """With field ids of another table, values in the path, or a name that readers do not agree about."""
    folder = tmp_path / "t"
    rows = make_rows(range(10))
    ids = [field.with_metadata({"PARQUET:field_id": str(50 + at)}) for at, field in enumerate(rows.schema)]
    pq.write_table(rows.cast(pa.schema(ids)), folder / "ids.parquet")
    pq.write_table(rows, folder / "100%.parquet")
    (folder / "kind=x").mkdir()
    pq.write_table(rows, folder / "kind=x" / "a.parquet")
    table.alter.add_column(pa.field("kind", pa.string()))
    version = table.version
    for path, hive, reason in (
        ("ids.parquet", False, "field ids of another table"),
        ("100%.parquet", False, "characters"),
        ("kind=x/a.parquet", True, "does not hold the values of column .kind."),
    ):
        table.add_files([f"t/{path}"], hive_partitioning=hive)
        with pytest.raises(pds.InvalidInput, match=f"{path}.*{reason}"):
            table.export_iceberg()
        table.restore(version)
    table.export_iceberg()


def test_a_vacuum_brings_the_metadata_up_to_date(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(100)))
    table.export_iceberg()
    table.tags.create("old")
    table.export_iceberg()
    tagged = table.version - 1
    table.append(make_rows(range(100, 200)))
    table.optimize.compact()
    table.export_iceberg()
    table.vacuum(dt.timedelta(0))
    files = metadata_files(tmp_path / "t")
    # A vacuum leaves the version before it.
    assert files.keys() == {tagged, table.version - 1, table.version}
    assert snapshots(files[table.version]).keys() == files.keys()
    assert (tmp_path / "t" / "metadata" / "version-hint.text").read_text() == str(table.version)
    for version, snapshot in snapshots(files[table.version]).items():
        read = read_pyiceberg(files[table.version], snapshot=snapshot)
        assert rows_of(read) == expected_rows(table.as_of(version))


def test_a_vacuum_that_cannot_export_removes_nothing(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_iceberg()
    table.optimize.sort()
    table.alter.add_column(pa.field("small2", pa.uint8()))
    before = set((tmp_path / "t" / "data").rglob("*"))
    with pytest.raises(pds.InvalidInput, match=r"small2.*leave_out.*nothing was removed|nothing was removed.*small2"):
        table.vacuum(dt.timedelta(0))
    assert set((tmp_path / "t" / "data").rglob("*")) == before
    assert rows_of(read_pyiceberg(newest_metadata(tmp_path / "t"))) == rows_of(make_rows(range(10)))
    table.export_iceberg(leave_out=["small2"])
    table.vacuum(dt.timedelta(0))
    assert rows_of(read_pyiceberg(newest_metadata(tmp_path / "t"))) == rows_of(make_rows(range(10)))


def test_a_drop_removes_the_metadata_and_nothing_else(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(3000)))
    table.delete("small % 3 = 1")
    table.export_iceberg()
    (mine := tmp_path / "t" / "metadata" / "mine.txt").write_text("x")
    pds.Table.drop(pds.Store(tmp_path.as_uri()), "t")
    assert [path for path in (tmp_path / "t").rglob("*") if path.is_file()] == [mine]


def test_metadata_of_another_system_are_left_alone(table: pds.Table, tmp_path: Path) -> None:
    """A commit of Spark takes over the properties of ours; one of a catalog has a name of its own."""
    table.append(make_rows(range(10)))
    table.export_iceberg()
    folder = tmp_path / "t" / "metadata"
    content = read_metadata(newest_metadata(tmp_path / "t"))
    for name in (f"v{table.version + 1}.metadata.json", f"v{table.version}.gz.metadata.json", "00001-x.metadata.json"):
        (folder / name).write_text(json.dumps(content))
        before = sorted(tmp_path.rglob("*"))
        for rebuild in (False, True):
            with pytest.raises(pds.ExportConflict, match="another system"):
                table.export_iceberg(rebuild=rebuild)
        assert sorted(tmp_path.rglob("*")) == before
        (folder / name).unlink()
    table.append(make_rows(range(10, 20)))
    table.export_iceberg()
    assert rows_of(read_pyiceberg(newest_metadata(tmp_path / "t"))) == expected_rows(table)


def test_metadata_of_a_table_that_was_here_before(table: pds.Table, tmp_path: Path) -> None:
    """A late request of an export of a table that was dropped."""
    table.append(make_rows(range(10)))
    table.export_iceberg()
    late = newest_metadata(tmp_path / "t")
    content = late.read_bytes()
    store = pds.Store(tmp_path.as_uri())
    pds.Table.drop(store, "t")
    table = pds.Table.create(store, "t", SCHEMA)
    late.parent.mkdir(exist_ok=True)
    late.write_bytes(content)
    (late.parent / "version-hint.text").write_text("2")
    for _ in range(2):
        with pytest.raises(pds.ExportConflict, match=r"another table.*rebuild=True"):
            table.export_iceberg()
        table.append(make_rows(range(5)))
    table.export_iceberg(rebuild=True)
    assert rows_of(read_pyiceberg(tmp_path / "t")) == expected_rows(table)


def test_a_hint_that_comes_late(table: pds.Table, tmp_path: Path) -> None:
    """It names an older version, or one of a table that was here before."""
    table.append(make_rows(range(10)))
    table.export_iceberg()
    for late in ("1", "99", "x", ""):
        (tmp_path / "t" / "metadata" / "version-hint.text").write_text(late)
        table.export_iceberg()
        assert rows_of(read_pyiceberg(tmp_path / "t")) == expected_rows(table)


def test_a_table_that_was_copied(table: pds.Table, tmp_path: Path) -> None:
    """Its metadata name the files of the first one until they are written anew."""
    table.append(make_rows(range(10)))
    table.delete("id = 3")
    table.export_iceberg()
    shutil.copytree(tmp_path / "t", tmp_path / "u")
    copy = pds.Table(pds.Store(tmp_path.as_uri()), "u")
    copy.append(make_rows(range(10, 20)))
    with pytest.raises(pds.InvalidInput, match="rebuild=True"):
        copy.export_iceberg()
    copy.export_iceberg(rebuild=True)
    shutil.rmtree(tmp_path / "t")
    assert rows_of(read_pyiceberg(tmp_path / "u")) == expected_rows(copy)


def test_a_location_that_is_given(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    for wrong in ("", "t", "s3://", "/a b", "file:///a%20b", "://a"):
        with pytest.raises(pds.InvalidInput, match="location must be"):
            table.export_iceberg(wrong)
    with pytest.raises(pds.InvalidType, match="location"):
        table.export_iceberg(3)  # type: ignore[arg-type]
    exported = table.export_iceberg(f"{tmp_path}/t/")
    assert exported.metadata_location == f"{tmp_path}/t/metadata/v2.metadata.json"
    table.append(make_rows(range(10, 20)))
    assert table.export_iceberg().metadata_location == f"{tmp_path}/t/metadata/v3.metadata.json"
    with pytest.raises(pds.InvalidInput, match="rebuild=True"):
        table.export_iceberg("s3://bucket/t")
    table.vacuum(dt.timedelta(0))
    assert rows_of(read_pyiceberg(tmp_path / "t")) == expected_rows(table)


def test_both_formats_at_once(table: pds.Table, tmp_path: Path) -> None:
    table.append(make_rows(range(10)))
    table.export_delta()
    table.export_iceberg()
    table.optimize.sort()
    table.vacuum(dt.timedelta(0))
    # Of the sorted version, which a vacuum without a retention keeps, and of its own; not of those that expired.
    versions = [table.version - 1, table.version]
    assert list(metadata_files(tmp_path / "t")) == versions
    for version in versions:
        assert (tmp_path / "t" / "_delta_log" / f"{version:020}.json").exists()
    pds.Table.drop(pds.Store(tmp_path.as_uri()), "t")
    assert not [path for path in (tmp_path / "t").rglob("*") if path.is_file()]


@pytest.mark.s3
def test_a_table_on_s3(s3_server: S3Server, s3_store: pds.Store, s3_prefix: str) -> None:
    table = pds.Table.create(s3_store, "t", SCHEMA, key=["id"], sort_by=["id"])
    table.append(make_rows(range(3000)))
    table.delete("small % 3 = 1")
    table.export_iceberg()
    table.append(make_rows(range(3000, 3100)))
    table.delete("id BETWEEN 100 AND 200")
    exported = table.export_iceberg()
    options = s3_server.options()
    names = {
        "endpoint": "s3.endpoint",
        "access_key_id": "s3.access-key-id",
        "secret_access_key": "s3.secret-access-key",
    }
    settings = {name: value for key, value in options.items() for part, name in names.items() if part in key.lower()}
    read = read_pyiceberg(exported.metadata_location, options={**settings, "s3.region": "us-east-1"})
    assert rows_of(read) == expected_rows(table)


def test_entries_of_manifests_have_a_snapshot(table: pds.Table, tmp_path: Path) -> None:
    """The format demands it of existing entries: https://iceberg.apache.org/spec/#manifest-entry-fields."""
    table.append(make_rows(range(10)))
    table.delete("id = 3")
    table.export_iceberg()
    files = [*(tmp_path / "t" / "metadata" / "manifests").glob("d*.avro")]
    assert len(files) == 2
    for file in files:
        # As it is in the file: manifests that are read through a snapshot have its id where none is.
        with AvroFile[ManifestEntry](
            PyArrowFileIO().new_input(str(file)),
            MANIFEST_ENTRY_SCHEMAS[2],
            read_types={-1: ManifestEntry, 2: DataFile},
            read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        ) as entries:
            assert [entry.snapshot_id is not None for entry in entries] == [True]

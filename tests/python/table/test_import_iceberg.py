"""Iceberg tables that become tables where they are: the rows are those that pyiceberg reads, and no file is lost."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
import struct
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform, MonthTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DecimalType, FixedType, IcebergType, LongType, NestedField, UUIDType

import pds
from exported_tables import SCHEMA, change_at_random, make_rows, rows_of
from pds.imports.iceberg import _Deletes
from pds.imports.plan import ImportPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyiceberg.table import Table as IcebergTable


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse.as_uri())
    catalog.create_namespace("ns")
    yield catalog
    catalog.engine.dispose()


def create(catalog: SqlCatalog, rows: pa.Table, **options: Any) -> IcebergTable:
    iceberg = catalog.create_table("ns.t", rows.schema, **options)
    iceberg.append(rows)
    return iceberg


def read(iceberg: IcebergTable, where: str = "true") -> list[tuple[Any, ...]]:
    filtered = iceberg.scan() if where == "true" else iceberg.scan(where)
    return rows_of(filtered.to_arrow())


def import_quietly(source: Any) -> pds.Table:
    with pytest.warns(UserWarning, match="expire snapshots") as warned:
        table = pds.import_iceberg(source)
    assert [warning.filename for warning in warned] == [__file__]
    return table


def folder_of(iceberg: IcebergTable) -> str:
    return iceberg.location().removeprefix("file://")


def append(catalog: SqlCatalog) -> IcebergTable:
    iceberg = create(catalog, make_rows(range(50)))
    iceberg.append(make_rows(range(50, 55)))
    return iceberg


def delete(catalog: SqlCatalog) -> IcebergTable:
    iceberg = append(catalog)
    iceberg.delete("id < 7")
    iceberg.overwrite(make_rows(range(100, 110)), overwrite_filter=EqualTo("id", 9))
    return iceberg


def partition(catalog: SqlCatalog) -> IcebergTable:
    rows = make_rows(range(40)).append_column("part", pa.array(["a b", "x/y=%z&ü", None, ""] * 10))
    iceberg = catalog.create_table("ns.t", rows.schema)
    with iceberg.update_spec() as spec:
        spec.add_field("part", IdentityTransform())
        spec.add_field("small", IdentityTransform())
    iceberg.append(rows)
    iceberg.delete("small = 3")
    return iceberg


def partition_by_transforms(catalog: SqlCatalog) -> IcebergTable:
    """The files hold the columns themselves."""
    iceberg = catalog.create_table("ns.t", make_rows(range(0)).schema)
    with iceberg.update_spec() as spec:
        spec.add_field("day", MonthTransform())
        spec.add_field("small", TruncateTransform(100))
    folder = folder_of(iceberg)
    pds.Store(folder).write("data/x", b"")
    for month in range(3):
        path = f"{folder}/data/{month}.parquet"
        pq.write_table(make_rows(range(31 * month, 31 * month + 20)), path)
        iceberg.add_files([f"file://{path}"])
    return iceberg


def evolve(catalog: SqlCatalog) -> IcebergTable:
    """Two columns swap their names, one is widened, one goes and comes back, and one is added in front."""
    iceberg = create(
        catalog,
        make_rows(range(10))
        .select(["id", "name", "small", "price", "day"])
        .cast(
            pa.schema(
                [
                    pa.field("id", pa.int64(), nullable=False),
                    ("name", pa.string()),
                    ("small", pa.int32()),
                    ("price", pa.decimal128(12, 2)),
                    ("day", pa.date32()),
                ]
            )
        ),
    )
    with iceberg.update_schema() as update:
        update.rename_column("name", "old")
        update.update_column("small", LongType())
        update.delete_column("price")
    with iceberg.update_schema() as update:
        update.add_column("name", LongType())
        update.add_column("price", LongType())
        update.move_first("price")
    schema = iceberg.schema().as_arrow()
    values = {
        "id": [100, 101],
        "old": ["o", None],
        "name": [7, None],
        "small": [2**40, 1],
        "price": [5, 6],
        "day": [dt.date(2026, 1, 1), None],
    }
    iceberg.append(pa.table(values, schema=pa.schema([schema.field(name) for name in values])).select(schema.names))
    return iceberg


def without_snapshot(catalog: SqlCatalog) -> IcebergTable:
    return catalog.create_table("ns.t", make_rows(range(0)).schema)


def with_types(catalog: SqlCatalog) -> IcebergTable:
    at = dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=dt.UTC)
    return create(
        catalog,
        pa.table(
            {
                "id": pa.array([1, 2], pa.int64()),
                "boolean": [True, None],
                "int": pa.array([1, None], pa.int32()),
                "float": pa.array([1.5, None], pa.float32()),
                "double": [1.5, None],
                "date": [at.date(), None],
                "time": pa.array([at.time(), None], pa.time64("us")),
                "timestamp": pa.array([at.replace(tzinfo=None), None], pa.timestamp("us")),
                "zoned": pa.array([at, None], pa.timestamp("us", "UTC")),
                "string": ["ä", None],
                "binary": [b"\x00\xff", None],
                "fixed": pa.array([b"1234", None], pa.binary(4)),
                "list": pa.array([[1, None], None], pa.list_(pa.int64())),
                "structs": pa.array([[{"a": 1, "b": ["x"]}], None]),
                "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            }
        ),
    )


def with_names(catalog: SqlCatalog) -> IcebergTable:
    """Files without ids, which a table finds by its mapping of names; a column was renamed since."""
    rows = make_rows(range(10)).select(["id", "name", "day"])
    iceberg = catalog.create_table("ns.t", rows.schema)
    path = f"{folder_of(iceberg)}/data/foreign.parquet"
    pds.Store(folder_of(iceberg)).write("data/x", b"")
    pq.write_table(rows, path)
    iceberg.add_files([f"file://{path}"])
    with iceberg.update_schema() as update:
        update.rename_column("name", "title")
    iceberg.append(pa.table({"id": [50], "title": ["t"], "day": [None]}, schema=iceberg.schema().as_arrow()))
    return iceberg


CASES: dict[str, Callable[[SqlCatalog], IcebergTable]] = {
    maker.__name__: maker
    for maker in (append, delete, partition, partition_by_transforms, evolve, without_snapshot, with_types, with_names)
}


@pytest.mark.parametrize("case", CASES)
def test_the_rows_are_those_of_pyiceberg(catalog: SqlCatalog, case: str) -> None:
    iceberg = CASES[case](catalog)
    expected = read(iceberg)
    table = import_quietly(iceberg)
    assert rows_of(table.scan().to_pyarrow()) == expected
    assert table.schema.names == [field.name for field in iceberg.schema().fields]
    (entry,) = table.history()
    assert (entry["operation"]["name"], entry["operation"]["rows"]) == ("import", len(expected))
    assert not table.verify().problems


@pytest.mark.parametrize("case", ["delete", "partition", "evolve", "with_names"])
def test_what_pds_does_afterwards_loses_no_row_and_no_file(catalog: SqlCatalog, case: str) -> None:
    iceberg = CASES[case](catalog)
    expected = read(iceberg)
    table = import_quietly(iceberg)
    table.optimize.compact()
    table.optimize.sort("id")
    table.vacuum(dt.timedelta(0))
    assert rows_of(table.scan().to_pyarrow()) == expected
    with pytest.raises(pds.ExportConflict):
        table.export_iceberg()
    pds.Table.drop(pds.Store(folder_of(iceberg).rsplit("/", 1)[0]), "t")
    assert read(catalog.load_table("ns.t")) == expected


def test_filters_see_what_pyiceberg_sees(catalog: SqlCatalog) -> None:
    iceberg = partition(catalog)
    table = import_quietly(iceberg)
    for where in ("part = 'a b'", "part is null", "small > 20", "id < 9"):
        assert rows_of(table.scan(where=where).to_pyarrow()) == read(iceberg, where)


def test_deletion_vectors_in_puffin_files_are_read(catalog: SqlCatalog, tmp_path: Path) -> None:
    """Their data are those of Delta, which an export writes; no writer here makes such a file."""
    source = pds.write_table(tmp_path / "source", make_rows(range(5000)))
    source.delete("id % 7 = 3 or id between 1000 and 1300 or small % 11 = 5")
    source.export_delta()
    (vector,) = (tmp_path / "source" / "_dv").iterdir()
    blob = vector.read_bytes()[1:]
    iceberg = create(catalog, make_rows(range(5000)))
    (task,) = iceberg.scan().plan_files()
    blobs = {
        "type": "deletion-vector-v1",
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": len(blob),
        "properties": {"referenced-data-file": task.file.file_path, "cardinality": "1"},
    }
    footer = json.dumps({"blobs": [blobs]}).encode()
    puffin = b"PFA1" + blob + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
    pds.Store(folder_of(iceberg)).write("data/deletes.puffin", puffin)
    delete_file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"{iceberg.location()}/data/deletes.puffin",
        file_format=FileFormat.PUFFIN,
    )
    packed = _Deletes(iceberg).positions(task.file.file_path, [delete_file])
    positions = set(struct.unpack(f"<{len(packed) // 8}Q", packed))
    left = source.scan(["id"]).to_pyarrow()["id"].to_pylist()
    assert positions == set(range(5000)) - set(left)


def test_a_metadata_file_is_a_source(catalog: SqlCatalog) -> None:
    iceberg = append(catalog)
    table = import_quietly(iceberg.metadata_location)
    assert rows_of(table.scan().to_pyarrow()) == read(iceberg)
    with pytest.raises(pds.AlreadyExists):
        pds.import_iceberg(iceberg)
    with pytest.raises(pds.NotFound):
        pds.import_iceberg(folder_of(iceberg))


@pytest.mark.parametrize("seed", range(4))
def test_an_exported_table_comes_back(tmp_path: Path, seed: int) -> None:
    """With position deletes, which pyiceberg does not write."""
    rng = random.Random(seed)
    source = pds.Table.create(pds.Store(tmp_path), "source", SCHEMA, key="id")
    ids = [0]
    for _ in range(12):
        change_at_random(source, rng, ids)
    copy = tmp_path / "copy"
    try:
        source.export_iceberg(copy.as_uri())
    except pds.InvalidInput:
        source.optimize.sort("id")
        source.export_iceberg(copy.as_uri())
    shutil.copytree(
        tmp_path / "source", copy, ignore=shutil.ignore_patterns("_latest_manifest", "manifest", "tombstone")
    )
    expected = rows_of(source.scan().to_pyarrow())
    table = import_quietly(copy)
    assert rows_of(table.scan().to_pyarrow()) == expected
    assert rows_of(StaticTable.from_metadata(copy.as_uri()).scan().to_arrow()) == expected
    table.optimize.sort("id")
    # The files have names of pds, so they are in its hands; but the metadata are of the first table.
    with pytest.raises(pds.ExportConflict, match="another table"):
        table.vacuum(dt.timedelta(0))
    table.export_iceberg(copy.as_uri(), rebuild=True)
    table.vacuum(dt.timedelta(0))
    assert rows_of(table.scan().to_pyarrow()) == expected
    assert rows_of(StaticTable.from_metadata(copy.as_uri()).scan().to_arrow()) == expected


def files_of(iceberg: IcebergTable) -> set[str]:
    return {file.path for file in pds.Store(folder_of(iceberg)).list_files(recursive=True)}


def refuse(iceberg: IcebergTable, message: str) -> None:
    before = files_of(iceberg)
    with pytest.raises(pds.InvalidInput, match=message):
        pds.import_iceberg(iceberg)
    assert files_of(iceberg) == before


def test_files_outside_of_the_folder_are_refused(catalog: SqlCatalog, tmp_path: Path) -> None:
    elsewhere = {"write.data.path": (tmp_path / "elsewhere").as_uri()}
    refuse(create(catalog, make_rows(range(5)), properties=elsewhere), "not in the folder")


def test_deletes_by_equality_are_refused(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    iceberg = append(catalog)
    scan = iceberg.scan()
    tasks = list(scan.plan_files())
    delete_file = tasks[0].file
    monkeypatch.setattr(type(delete_file), "content", DataFileContent.EQUALITY_DELETES)
    tasks[0].delete_files.add(delete_file)
    monkeypatch.setattr(type(scan), "plan_files", lambda _: tasks)
    refuse(iceberg, "deletes by equality")


def test_a_nested_rename_is_refused(catalog: SqlCatalog) -> None:
    iceberg = append(catalog)
    with iceberg.update_schema() as update:
        update.rename_column("nested.u", "w")
    refuse(iceberg, "nested")


def test_swapped_nested_names_are_refused(catalog: SqlCatalog) -> None:
    rows = pa.table({"id": [1], "s": pa.array([{"a": 1, "b": 2}])})
    iceberg = create(catalog, rows)
    for old, new in (("s.a", "c"), ("s.b", "a"), ("s.c", "b")):
        with iceberg.update_schema() as update:
            update.rename_column(old, new)
    with iceberg.update_schema() as update:
        update.move_first("s.a")
    assert read(iceberg) == [(1, {"a": 2, "b": 1})]
    refuse(iceberg, "nested")


def test_an_initial_default_is_refused(catalog: SqlCatalog) -> None:
    iceberg = append(catalog)
    metadata = json.loads(pds.Store(folder_of(iceberg)).read_bytes(_relative(iceberg)))
    metadata["schemas"][-1]["fields"][1]["initial-default"] = "x"
    metadata["format-version"], metadata["next-row-id"] = 3, 0
    pds.Store(folder_of(iceberg)).write("metadata/x.metadata.json", json.dumps(metadata).encode())
    changed = StaticTable.from_metadata(f"{iceberg.location()}/metadata/x.metadata.json")
    refuse(changed, "initial default")


def _relative(iceberg: IcebergTable) -> str:
    return iceberg.metadata_location.removeprefix(iceberg.location() + "/")


def test_files_without_ids_need_a_mapping_of_names(catalog: SqlCatalog) -> None:
    iceberg = with_names(catalog)
    with iceberg.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    refuse(iceberg, "has no field ids")


def test_a_spec_that_was_replaced_is_no_obstacle(catalog: SqlCatalog) -> None:
    iceberg = catalog.create_table("ns.t", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    with iceberg.update_spec() as update:
        update.add_field("id", IdentityTransform(), "part")
    iceberg.append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    with iceberg.update_spec() as update:
        update.remove_field("part")
    iceberg.append(pa.table({"id": [3], "v": ["c"]}))
    table = import_quietly(iceberg)
    assert rows_of(table.scan().to_pyarrow()) == read(iceberg) == [(1, "a"), (2, "b"), (3, "c")]


def add_without_partition_column(catalog: SqlCatalog, data_type: IcebergType, value: object) -> IcebergTable:
    """A file that lacks the column whose values are its partition."""
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "p", data_type, required=False))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    iceberg = catalog.create_table("ns.t", schema, partition_spec=spec)
    pds.Store(folder_of(iceberg)).write("data/x", b"")
    path = f"{folder_of(iceberg)}/data/x.parquet"
    id_field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table({"id": [1, 2]}, schema=pa.schema([id_field])), path)
    maps = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(value),
        record_count=2,
        file_size_in_bytes=len(pds.Store(folder_of(iceberg)).read_bytes("data/x.parquet")),
        **{name: {} for name in maps},
    )
    data_file.spec_id = 0
    with iceberg.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(data_file)
    return catalog.load_table("ns.t")


@pytest.mark.parametrize("value", [b"ab", b"\xff\x00", b""])
@pytest.mark.parametrize("make", ["binary", "fixed", "uuid"])
def test_partitions_of_bytes_need_the_column_in_files(catalog: SqlCatalog, make: str, value: bytes) -> None:
    types: dict[str, tuple[IcebergType, object]] = {
        "binary": (BinaryType(), value),
        "fixed": (FixedType(4), value.ljust(4, b"x")),
        "uuid": (UUIDType(), uuid.UUID(bytes=value.ljust(16, b"\x01"))),
    }
    refuse(add_without_partition_column(catalog, *types[make]), "lacks the partition column 'p'")


@pytest.mark.parametrize("text", ["0E-10", "1E-10", "-0.0000001000", "9999999999.0123456789"])
def test_decimals_of_partitions_keep_all_digits(catalog: SqlCatalog, text: str) -> None:
    iceberg = add_without_partition_column(catalog, DecimalType(20, 10), Decimal(text))
    table = import_quietly(iceberg)
    assert rows_of(table.scan().to_pyarrow()) == read(iceberg) == [(1, Decimal(text)), (2, Decimal(text))]


def test_partitions_of_bytes_that_files_hold_are_imported(catalog: SqlCatalog) -> None:
    rows = pa.table({"id": [1, 2, 3], "p": pa.array([b"a", b"\xff", None], pa.binary())})
    iceberg = catalog.create_table("ns.t", rows.schema)
    with iceberg.update_spec() as update:
        update.add_identity("p")
    iceberg.append(rows)
    assert rows_of(import_quietly(iceberg).scan().to_pyarrow()) == read(iceberg) == rows_of(rows)


def test_the_newest_snapshot_of_the_catalog_is_imported(catalog: SqlCatalog) -> None:
    stale = append(catalog)
    catalog.load_table("ns.t").append(make_rows(range(200, 210)))
    table = import_quietly(stale)
    assert rows_of(table.scan().to_pyarrow()) == read(catalog.load_table("ns.t"))
    assert table.scan().count() == 65


def test_a_commit_during_the_import_is_imported(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    iceberg = append(catalog)
    prepare, commits = ImportPlan.prepare, iter([1, 2])

    def prepare_while_another_writes(*arguments: Any) -> Any:
        prepared = prepare(*arguments)
        if next(commits, None):
            catalog.load_table("ns.t").append(make_rows(range(200, 210)))
        return prepared

    monkeypatch.setattr(ImportPlan, "prepare", prepare_while_another_writes)
    table = import_quietly(iceberg)
    assert table.scan().count() == 75
    assert rows_of(table.scan().to_pyarrow()) == read(catalog.load_table("ns.t"))


def test_a_table_that_the_catalog_lost_or_replaced_is_refused(catalog: SqlCatalog) -> None:
    iceberg = append(catalog)
    catalog.drop_table("ns.t")
    with pytest.raises(pds.NotFound, match="newest metadata file"):
        pds.import_iceberg(iceberg)
    catalog.create_table("ns.t", make_rows(range(0)).schema)
    refuse(iceberg, "another Iceberg table")


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("name", ["lake", "50% of it", "50%25 x"])
def test_locations_are_spelled_as_pyiceberg_spells_them(tmp_path: Path, scheme: str, name: str) -> None:
    """With one slash or three, and with signs that a URL has encoded."""
    (tmp_path / name).mkdir()
    warehouse = f"{scheme}{tmp_path}/{name}"
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse)
    catalog.create_namespace("ns")
    iceberg = append(catalog)
    folder = tmp_path / name / "ns" / "t"
    path = folder / "metadata" / iceberg.metadata_location.rsplit("/", 1)[1]
    for source in (iceberg.metadata_location, path, iceberg):
        table = import_quietly(source)
        assert rows_of(table.scan().to_pyarrow()) == read(iceberg)
        assert (folder / "manifest").is_dir()
        pds.Table.drop(pds.Store(folder.parent), "t")
    catalog.engine.dispose()


def test_lists_of_a_fixed_size_are_lists(catalog: SqlCatalog) -> None:
    iceberg = catalog.create_table("ns.t", pa.schema([("c", pa.list_(pa.int64()))]))
    pds.Store(folder_of(iceberg)).write("data/y", b"")
    path = f"{folder_of(iceberg)}/data/x.parquet"
    lists = [[1, 2], None, [None, 3]]
    pq.write_table(pa.table({"c": pa.array(lists, pa.list_(pa.int64(), 2))}), path)
    iceberg.add_files([f"file://{path}"])
    column = import_quietly(iceberg).scan().to_pyarrow()["c"]
    assert column.type.value_type == pa.int64()
    assert pa.types.is_list(column.type)
    assert column.to_pylist() == iceberg.scan().to_arrow()["c"].to_pylist() == lists

"""Delta tables that become tables where they are: the rows are those that readers of Delta see, and no file is lost."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
import warnings
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import DeltaError

import pds
from delta_logs import edit_log
from delta_readers import read_delta_rs, read_polars
from exported_tables import SCHEMA, change_at_random, make_rows, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GUARDED = "pds-readOnly"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "delta"


def files_of(folder: Path) -> dict[str, bytes]:
    """What is in a Delta table's folder, without pds's own objects."""
    own = ("manifest/", "tombstone/", "_latest_manifest")
    paths = [path for path in folder.rglob("*") if path.is_file()]
    names = {path: str(path.relative_to(folder)) for path in paths}
    return {name: path.read_bytes() for path, name in names.items() if not name.startswith(own)}


def import_quietly(folder: Path) -> pds.Table:
    with pytest.warns(UserWarning, match="take_over"):
        return pds.import_delta(folder, partition_time_zone="UTC")


def all_types() -> pa.Table:
    """A row of values, one of nulls, and one of ends, with a column for each type of Delta."""
    at = dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "byte": pa.array([1, None, -128], pa.int8()),
            "short": pa.array([1, None, 2**15 - 1], pa.int16()),
            "integer": pa.array([1, None, -(2**31)], pa.int32()),
            "float": pa.array([1.5, None, float("inf")], pa.float32()),
            "double": pa.array([1.5, None, float("nan")], pa.float64()),
            "boolean": pa.array([True, None, False]),
            "string": pa.array(["ä", None, ""]),
            "binary": pa.array([b"\x00\xff", None, b""]),
            "date": pa.array([at.date(), None, dt.date(1, 1, 1)]),
            "timestamp": pa.array([at, None, dt.datetime(1600, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
            "ntz": pa.array([at.replace(tzinfo=None), None, dt.datetime(9999, 1, 1)], pa.timestamp("us")),  # noqa: DTZ001
            "decimal": pa.array([Decimal("1.23"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
            "wide": pa.array([Decimal(1), None, Decimal(10**37)], pa.decimal128(38, 0)),
            "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
            "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        }
    )


def append_small(folder: Path) -> None:
    deltalake.write_deltalake(folder, make_rows(range(10)))


def append_many(folder: Path) -> None:
    for first in range(0, 120, 10):
        deltalake.write_deltalake(folder, make_rows(range(first, first + 10)), mode="append")
    deltalake.DeltaTable(folder).create_checkpoint()
    deltalake.write_deltalake(folder, make_rows(range(500, 600)), mode="append")


def change(folder: Path) -> None:
    append_many(folder)
    table = deltalake.DeltaTable(folder)
    table.delete("id % 7 = 3")
    table.update(updates={"name": "'new'"}, predicate="id % 5 = 1")
    source = make_rows(range(590, 610))
    merge = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def evolve(folder: Path) -> None:
    deltalake.write_deltalake(folder, pa.table({"id": [1, 2], "b": ["x", None]}))
    deltalake.write_deltalake(folder, pa.table({"id": [3], "c": [1.5]}), mode="append", schema_mode="merge")


def partition(folder: Path) -> None:
    rows = make_rows(range(40)).append_column("part", pa.array(["a b", "x/y=%z&ü", None, "'"] * 10))
    deltalake.write_deltalake(folder, rows, partition_by=["part", "day"])
    deltalake.DeltaTable(folder).delete("part = 'a b' and id > 20")


def partition_by_types(folder: Path) -> None:
    types = ["byte", "integer", "boolean", "string", "date", "timestamp", "decimal", "wide"]
    rows = all_types().filter(pa.array([True, True, False])).drop_columns(["ntz", "double", "float"])
    deltalake.write_deltalake(folder, rows, partition_by=types)


def empty(folder: Path) -> None:
    deltalake.DeltaTable.create(folder, make_rows(range(0)).schema)


def write_types(folder: Path) -> None:
    deltalake.write_deltalake(folder, all_types())


CASES: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (append_small, append_many, change, evolve, partition, partition_by_types, empty, write_types)
}


@pytest.mark.parametrize("case", CASES)
def test_the_rows_are_those_of_delta_rs_and_polars(folder: Path, case: str) -> None:
    CASES[case](folder)
    before = files_of(folder)
    expected = rows_of(read_delta_rs(folder))
    table = import_quietly(folder)
    assert str(rows_of(table.scan().to_pyarrow())) == str(expected)
    assert str(rows_of(read_polars(folder))) == str(expected)
    assert files_of(folder) == before
    assert table.version == 1
    (entry,) = table.history()
    assert entry["operation"]["name"] == "import"
    source = {"format": "delta", "version": str(deltalake.DeltaTable(folder).version()), "location": folder.as_uri()}
    assert entry["operation"]["source"] == source
    assert entry["operation"]["rows"] == len(expected)
    assert not table.verify().problems


def test_filters_see_the_values_of_partitions(folder: Path) -> None:
    partition(folder)
    table = import_quietly(folder)
    for where in ("part = 'a b'", "part is null and id > 3", "day > '2026-01-20'", "part = 'x/y=%z&ü'"):
        expected = read_delta_rs(folder, where=where)
        assert rows_of(table.scan(where=where).to_pyarrow()) == rows_of(expected)


@pytest.mark.parametrize("case", ["change", "partition"])
def test_what_pds_does_afterwards_loses_no_row_and_no_file(folder: Path, case: str) -> None:
    CASES[case](folder)
    before = files_of(folder)
    expected = rows_of(read_delta_rs(folder))
    table = import_quietly(folder)
    table.optimize.compact()
    table.optimize.sort("id")
    table.vacuum(dt.timedelta(0))
    assert rows_of(table.scan().to_pyarrow()) == expected
    assert before.items() <= files_of(folder).items()
    assert rows_of(read_delta_rs(folder)) == expected
    for version in (0, 1):
        with pytest.raises((pds.InvalidInput, pds.VersionExpired)):
            table.as_of(version)
    with pytest.raises(pds.ExportConflict, match="move the folder"):
        table.export_delta()
    pds.Table.drop(*_place(folder))
    assert files_of(folder) == before


def _place(folder: Path) -> tuple[pds.Store, str]:
    return pds.Store(folder.parent.as_uri()), folder.name


def test_deletes_and_appends_go_on(folder: Path) -> None:
    append_small(folder)
    table = import_quietly(folder)
    table.delete("id < 3")
    table.append(make_rows(range(20, 25)))
    assert table.scan(["id"]).to_pyarrow()["id"].to_pylist() == [*range(3, 10), *range(20, 25)]
    assert len(read_delta_rs(folder)) == 10


def test_a_table_is_imported_once(folder: Path) -> None:
    append_small(folder)
    import_quietly(folder)
    with pytest.raises(pds.AlreadyExists):
        pds.import_delta(folder)
    with pytest.raises(pds.AlreadyExists):
        pds.import_delta(folder, take_over=True)
    assert GUARDED not in (deltalake.DeltaTable(folder).protocol().writer_features or ())


@pytest.mark.parametrize("seed", range(4))
def test_an_exported_table_comes_back(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    source = pds.Table.create(pds.Store(tmp_path), "source", SCHEMA, key="id")
    ids = [0]
    for _ in range(12):
        change_at_random(source, rng, ids)
    try:
        source.export_delta()
    except pds.InvalidInput:
        source.optimize.sort("id")
        source.export_delta()
    copy = tmp_path / "copy"
    shutil.copytree(
        tmp_path / "source", copy, ignore=shutil.ignore_patterns("_latest_manifest", "manifest", "tombstone")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # It is read-only already.
        table = pds.import_delta(copy)
    expected = rows_of(source.scan().to_pyarrow())
    assert rows_of(table.scan().to_pyarrow()) == expected
    assert table.schema.names == source.schema.names
    table.optimize.sort("id")
    # The files have names of pds, so they are in its hands; but the log is of the first table.
    with pytest.raises(pds.ExportConflict, match="another table"):
        table.vacuum(dt.timedelta(0))
    assert rows_of(read_delta_rs(copy)) == expected
    table.export_delta(rebuild=True)
    table.vacuum(dt.timedelta(0))
    assert rows_of(table.scan().to_pyarrow()) == rows_of(read_delta_rs(copy)) == expected


def test_positions_are_of_row_groups(tmp_path: Path) -> None:
    """Many row groups, of which some are deleted as a whole, and a file without rows that are left."""
    options = pds.WriteOptions(row_group_size=100)
    source = pds.Table.create(pds.Store(tmp_path), "source", SCHEMA, key="id", options=options)
    source.append(make_rows(range(1000)))
    source.append(make_rows(range(1000, 1010)))
    source.delete("id between 200 and 299 or id % 97 = 0 or id between 555 and 666 or small = 3")
    source.delete("id >= 1000 and small < 5")
    source.export_delta()
    copy = tmp_path / "copy"
    shutil.copytree(
        tmp_path / "source", copy, ignore=shutil.ignore_patterns("_latest_manifest", "manifest", "tombstone")
    )
    table = pds.import_delta(copy)
    expected = rows_of(read_delta_rs(copy))
    assert rows_of(table.scan().to_pyarrow()) == expected == rows_of(source.scan().to_pyarrow())
    assert table.scan().count() == len(expected)


def test_a_timestamp_of_96_bits_is_read_whatever_its_year(folder: Path) -> None:
    """As Spark writes them."""
    append_types = all_types().select(["id", "timestamp"])
    deltalake.write_deltalake(folder, append_types)
    (path,) = folder.glob("*.parquet")
    pq.write_table(append_types, path, use_deprecated_int96_timestamps=True, store_schema=False)
    assert pq.ParquetFile(path).schema.column(1).physical_type == "INT96"
    _set_size(folder, path)
    table = import_quietly(folder)
    assert table.scan().to_pyarrow()["timestamp"].to_pylist() == append_types["timestamp"].to_pylist()
    where = "timestamp < '2000-01-01T00:00:00Z'"
    assert table.scan(["id"], where=where).to_pyarrow()["id"].to_pylist() == [3]
    table.optimize.sort("id")
    assert table.scan().to_pyarrow()["timestamp"].to_pylist() == append_types["timestamp"].to_pylist()


def _set_size(folder: Path, path: Path) -> None:
    def edit(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["size"] = path.stat().st_size
            action["add"]["stats"] = None

    edit_log(folder, edit)


def test_taking_over_makes_the_delta_table_read_only(folder: Path) -> None:
    change(folder)
    expected = rows_of(read_delta_rs(folder))
    data = set(folder.glob("*.parquet"))
    version = deltalake.DeltaTable(folder).version()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = pds.import_delta(folder, take_over=True)
    delta = deltalake.DeltaTable(folder)
    assert (delta.version(), delta.protocol().min_reader_version) == (version + 1, 1)
    assert GUARDED in (delta.protocol().writer_features or ())
    for write in (
        lambda: deltalake.write_deltalake(folder, make_rows(range(3)), mode="append"),
        lambda: delta.delete("id = 1"),
        lambda: delta.vacuum(0, dry_run=False, enforce_retention_duration=False),
    ):
        with pytest.raises(DeltaError):
            write()
        assert set(folder.glob("*.parquet")) == data
    assert rows_of(read_delta_rs(folder)) == rows_of(read_polars(folder)) == expected
    assert rows_of(table.scan().to_pyarrow()) == expected


def test_a_table_that_was_taken_over_but_not_imported_is_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_small(folder)
    with monkeypatch.context() as patch:
        patch.setattr("pds.imports.plan.ImportPlan.commit", _fail)
        with pytest.raises(RuntimeError):
            pds.import_delta(folder, take_over=True)
    assert pds.import_delta(folder, take_over=True).scan().count() == 10
    assert deltalake.DeltaTable(folder).version() == 1


def _fail(*_: object) -> None:
    raise RuntimeError


def test_a_commit_between_plan_and_take_over_is_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_small(folder)
    write, commits = pds.Store.write, iter([1, 2])

    def write_after_another(store: pds.Store, path: str, content: bytes, *, overwrite: bool = False) -> None:
        if next(commits, None):
            deltalake.write_deltalake(folder, make_rows(range(100, 105)), mode="append")
        write(store, path, content, overwrite=overwrite)

    monkeypatch.setattr(pds.Store, "write", write_after_another)
    table = pds.import_delta(folder, take_over=True)
    assert table.scan().count() == 20
    assert rows_of(table.scan().to_pyarrow()) == rows_of(read_delta_rs(folder))


def test_features_by_versions_get_names(folder: Path) -> None:
    config = {"delta.appendOnly": "false", "delta.enableChangeDataFeed": "true"}
    deltalake.write_deltalake(folder, make_rows(range(3)), configuration=config)
    legacy = deltalake.DeltaTable(folder).protocol()
    assert legacy.min_writer_version < 7
    pds.import_delta(folder, take_over=True)
    features = set(deltalake.DeltaTable(folder).protocol().writer_features or ())
    assert {"appendOnly", "invariants", "changeDataFeed", GUARDED} <= features


def refuse_other_folder(action: dict[str, Any]) -> None:
    if "add" in action:
        action["add"]["path"] = "s3://other/place/a.parquet"


def refuse_feature(action: dict[str, Any]) -> None:
    if "protocol" in action:
        action["protocol"] = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["fromTheFuture"],
            "writerFeatures": ["fromTheFuture"],
        }


def refuse_empty_partition(action: dict[str, Any]) -> None:
    if "metaData" in action:
        action["metaData"]["partitionColumns"] = ["name"]
    if "add" in action:
        action["add"]["partitionValues"] = {"name": ""}


def refuse_nested_name(action: dict[str, Any]) -> None:
    if "metaData" in action:
        schema = json.loads(action["metaData"]["schemaString"])
        numbers = iter(range(1, 100))

        def number(fields: list[dict[str, Any]], prefix: str) -> None:
            for field in fields:
                name = {"delta.columnMapping.physicalName": prefix + field["name"]}
                field["metadata"] = {"delta.columnMapping.id": next(numbers), **name}
                if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
                    number(field["type"]["fields"], "col-")

        number(schema["fields"], "")
        action["metaData"]["schemaString"] = json.dumps(schema)
        action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    if "protocol" in action:
        action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}


def refuse_narrower(action: dict[str, Any]) -> None:
    if "metaData" in action:
        text = action["metaData"]["schemaString"].replace('"short"', '"double"')
        action["metaData"]["schemaString"] = text


REFUSALS = {
    "not in the folder": refuse_other_folder,
    "fromTheFuture": refuse_feature,
    "empty text": refuse_empty_partition,
    "nested field 'u'": refuse_nested_name,
    '"small" is Float64 in the table and Int16': refuse_narrower,
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_cannot_be_imported_is_refused_before_anything_is_written(folder: Path, message: str) -> None:
    append_small(folder)
    edit_log(folder, REFUSALS[message])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises((pds.InvalidInput, pds.FormatNotSupported), match=message):
        pds.import_delta(folder, take_over=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_missing_file_is_refused(folder: Path) -> None:
    append_small(folder)
    (path,) = folder.glob("*.parquet")
    path.unlink()
    with pytest.raises(pds.NotFound, match=path.name):
        pds.import_delta(folder, take_over=True)
    assert deltalake.DeltaTable(folder).version() == 0


def test_there_has_to_be_a_delta_table(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(pds.NotFound):
        pds.import_delta(folder)


def test_a_physical_name_is_where_a_column_is(tmp_path: Path) -> None:
    source = pds.write_table(tmp_path / "source", pa.table({"id": [1, 2, 3], "a": ["x", "y", "z"]}))
    source.alter.rename_column("a", "b")
    source.append(pa.table({"id": [4], "b": ["w"]}))
    source.alter.drop_column("id")
    source.alter.add_column("id", pa.int64())
    source.append(pa.table({"b": ["v"], "id": [5]}))
    source.export_delta()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "source", copy, ignore=shutil.ignore_patterns("_latest_manifest", "manifest"))
    table = pds.import_delta(copy)
    frame = pl.from_arrow(table.scan(["b", "id"]).to_pyarrow())
    assert isinstance(frame, pl.DataFrame)
    expected = pl.from_arrow(read_delta_rs(copy))
    assert isinstance(expected, pl.DataFrame)
    assert frame.sort("b").rows() == expected.select("b", "id").sort("b").rows()

"""Delta tables whose logs hold what deltalake does not write: their rows are imported, or they are refused."""

from __future__ import annotations

import datetime as dt
import json
import operator
import shutil
import warnings
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from delta_logs import edit_log
from delta_readers import read_delta_rs
from exported_tables import make_rows, rows_of
from pds.imports.plan import ImportPlan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "delta"


def import_quietly(folder: Path) -> pds.Table:
    with pytest.warns(UserWarning, match="take_over"):
        return pds.import_delta(folder)


def set_protocol(folder: Path, features: Sequence[str]) -> None:
    named = {"readerFeatures": [*features], "writerFeatures": [*features]}

    def edit(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **named}

    edit_log(folder, edit)


def add_partition(folder: Path, data_type: str, texts: list[str | None]) -> None:
    """Write a table of one file for each value of the partition `p`."""
    deltalake.write_deltalake(folder, pa.table({"id": [1, 2]}))
    (path,) = folder.glob("*.parquet")
    log = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    for action in actions:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"].append({"name": "p", "type": data_type, "nullable": True, "metadata": {}})
            action["metaData"].update(schemaString=json.dumps(schema), partitionColumns=["p"])
    actions = [action for action in actions if "add" not in action]
    for number, text in enumerate(texts):
        shutil.copy(path, folder / f"{number}.parquet")
        actions.append({"add": add | {"path": f"{number}.parquet", "partitionValues": {"p": text}}})
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize(
    ("data_type", "texts"),
    [
        ("decimal(18,8)", ["0.00000000", "0.00000001", "-0.00000001", "1.00000000", "-9999999999.99999999", None]),
        ("decimal(20,10)", ["0.0000000000", "0.0000001000", "1234567890.0123456789"]),
        ("decimal(38,0)", ["99999999999999999999999999999999999999", "100", "-1"]),
    ],
)
def test_decimals_of_partitions_keep_all_digits(folder: Path, data_type: str, texts: list[str | None]) -> None:
    add_partition(folder, data_type, texts)
    expected = rows_of(read_delta_rs(folder))
    table = import_quietly(folder)
    assert rows_of(table.scan().to_pyarrow()) == expected
    assert {value for _, value in expected} == {None if text is None else Decimal(text) for text in texts}
    for value in {value for _, value in expected if value is not None}:
        for sign, compare in (("=", operator.eq), ("<", operator.lt)):
            filtered = rows_of(table.scan(where=f"p {sign} {value:f}").to_pyarrow())
            assert filtered == [row for row in expected if row[1] is not None and compare(row[1], value)]
    table.optimize.sort("id")
    assert rows_of(table.scan().to_pyarrow()) == expected


@pytest.mark.parametrize("texts", [["2026-07-01 00:00:00"], ["2026-07-01T00:00:00Z", None, "2026-07-02 00:00:00.5"]])
def test_timestamps_of_partitions_need_a_zone(folder: Path, texts: list[str | None]) -> None:
    add_partition(folder, "timestamp", texts)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(pds.InvalidInput, match=f"column 'p' .* such as '{texts[-1]}'.*partition_time_zone"):
        pds.import_delta(folder, take_over=True)
    for zone in ("Mars/Olympus", "", "../UTC", "+99:00"):
        with pytest.raises(pds.InvalidInput, match="not a time zone"):
            pds.import_delta(folder, take_over=True, partition_time_zone=zone)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


ZONED = {
    "2026-07-01T00:00:00Z": "2026-07-01T00:00:00+00:00",
    "2026-07-01T00:00:00.123456Z": "2026-07-01T00:00:00.123456+00:00",
    "2026-07-01T02:30:00+02:00": "2026-07-01T00:30:00+00:00",
}


def moments_of(table: pds.Table) -> set[str | None]:
    return {row["p"] and row["p"].isoformat() for row in table.scan().to_pyarrow().to_pylist()}


def test_timestamps_of_partitions_with_a_zone_are_read_as_they_are(folder: Path) -> None:
    add_partition(folder, "timestamp", [*ZONED, None])
    assert moments_of(import_quietly(folder)) == {*ZONED.values(), None}


# Of the hour that occurs twice it is the first; the one that is skipped is an hour later.
LOCAL = {
    "UTC": ["2026-01-31T12:00:00", "2026-07-01T00:00:00.500000", "2026-10-25T02:30:00", "2026-03-29T02:30:00"],
    "+05:30": ["2026-01-31T06:30:00", "2026-06-30T18:30:00.500000", "2026-10-24T21:00:00", "2026-03-28T21:00:00"],
    "Europe/Berlin": [
        "2026-01-31T11:00:00",
        "2026-06-30T22:00:00.500000",
        "2026-10-25T00:30:00",
        "2026-03-29T01:30:00",
    ],
}


@pytest.mark.parametrize("zone", LOCAL)
def test_timestamps_of_partitions_without_a_zone_are_in_that_of_the_writer(folder: Path, zone: str) -> None:
    texts = ["2026-01-31 12:00:00", "2026-07-01 00:00:00.5", "2026-10-25 02:30:00", "2026-03-29 02:30:00"]
    add_partition(folder, "timestamp", [*texts, *ZONED, None])
    with pytest.warns(UserWarning, match="take_over"):
        table = pds.import_delta(folder, partition_time_zone=zone)
    assert moments_of(table) == {*(f"{moment}+00:00" for moment in LOCAL[zone]), *ZONED.values(), None}
    assert table.scan(where=f"p = TIMESTAMP '{LOCAL[zone][0]}'").count() == 2


def test_a_timestamp_with_and_without_a_zone_is_not_told_apart(folder: Path) -> None:
    add_partition(folder, "timestamp", ["2026-07-01 00:00:00", "2026-07-01T00:00:00Z"])
    with pytest.raises(pds.InvalidInput, match=r"'p' has '2026-07-01 00:00:00' with the zone UTC and without"):
        pds.import_delta(folder, take_over=True, partition_time_zone="Europe/Berlin")
    with pytest.warns(UserWarning, match="take_over"):
        assert pds.import_delta(folder, partition_time_zone="UTC").scan(where="p > '2026-06-30'").count() == 4


def test_timestamps_of_partitions_that_are_local_need_no_zone(folder: Path) -> None:
    add_partition(folder, "timestamp_ntz", ["2026-07-01 00:00:00", None])
    set_protocol(folder, ["timestampNtz"])
    assert import_quietly(folder).scan(where="p = TIMESTAMP '2026-07-01 00:00:00'").count() == 2


def test_a_timestamp_of_a_renamed_partition_needs_a_zone(folder: Path) -> None:
    add_partition(folder, "timestamp", ["2026-07-01 00:00:00"])

    def rename(action: dict[str, Any]) -> None:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"]):
                name = {"delta.columnMapping.physicalName": "p0" if field["name"] == "p" else field["name"]}
                field["metadata"] = {"delta.columnMapping.id": number + 1, **name}
            action["metaData"].update(schemaString=json.dumps(schema))
            action["metaData"]["configuration"] = {
                "delta.columnMapping.mode": "name",
                "delta.columnMapping.maxColumnId": "2",
            }
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "add" in action:
            action["add"]["partitionValues"] = {"p0": action["add"]["partitionValues"]["p"]}

    edit_log(folder, rename)
    with pytest.raises(pds.InvalidInput, match="column 'p' has timestamps without"):
        pds.import_delta(folder)
    with pytest.warns(UserWarning, match="take_over"):
        table = pds.import_delta(folder, partition_time_zone="-01:00")
    assert moments_of(table) == {"2026-07-01T01:00:00+00:00"}


def make_vector(folder: Path) -> dict[str, Any]:
    """A deletion vector within the log, as an export writes it: of a third of 100 rows."""
    source = pds.write_table(folder, pa.table({"id": range(100)}))
    source.delete("id % 3 = 0")
    source.export_delta()
    lines = [line for log in (folder / "_delta_log").glob("*.json") for line in log.read_text().splitlines()]
    adds = (json.loads(line).get("add", {}) for line in lines)
    vector: dict[str, Any] = next(add["deletionVector"] for add in adds if add.get("deletionVector"))
    return vector


def write_with_vector(folder: Path, name: str, *, stats: str | None = '{"numRecords":100}', prefix: str = "") -> None:
    vector = make_vector(folder.parent / "source")
    deltalake.write_deltalake(folder, pa.table({"id": range(100)}))
    (path,) = folder.glob("*.parquet")
    path.rename(folder / name)
    set_protocol(folder, ["deletionVectors"])

    def edit(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"].update(path=prefix + quote(name), deletionVector=vector, stats=stats)

    edit_log(folder, edit)


@pytest.mark.parametrize(("name", "other"), [("a b.parquet", "a%20b.parquet"), ("a%20b.parquet", "a b.parquet")])
def test_a_deletion_vector_is_of_the_file_that_its_encoded_name_means(folder: Path, name: str, other: str) -> None:
    write_with_vector(folder, name)
    pq.write_table(pa.table({"id": range(1000, 1100)}), folder / other)
    add = {"path": quote(other), "partitionValues": {}, "size": (folder / other).stat().st_size}
    action = {"add": add | {"modificationTime": 0, "dataChange": True, "stats": '{"numRecords":100}'}}
    log = folder / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text() + json.dumps(action) + "\n")
    expected = [(n,) for n in range(100) if n % 3] + [(n,) for n in range(1000, 1100)]
    assert rows_of(read_delta_rs(folder)) == expected
    assert rows_of(import_quietly(folder).scan().to_pyarrow()) == expected


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_paths_of_files_have_one_slash_or_three(folder: Path, prefix: str) -> None:
    write_with_vector(folder, "x y.parquet", prefix=f"{prefix}{folder}/")
    expected = rows_of(read_delta_rs(folder))
    assert len(expected) == 66
    assert rows_of(import_quietly(folder).scan().to_pyarrow()) == expected


def test_a_deletion_vector_needs_the_number_of_rows(folder: Path) -> None:
    write_with_vector(folder, "x.parquet", stats=None)
    with pytest.raises(pds.InvalidInput, match="numRecords"):
        pds.import_delta(folder, take_over=True)
    assert deltalake.DeltaTable(folder).version() == 0


@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("features", [["typeWidening"], ["vacuumProtocolCheck", "v2Checkpoint"]])
def test_features_are_no_obstacle_that_do_not_concern_the_rows(
    folder: Path, features: list[str], *, take_over: bool
) -> None:
    """Of these deltalake reads the log, and not the rows."""
    rows = make_rows(range(20))
    deltalake.write_deltalake(folder, rows)
    set_protocol(folder, features)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if not take_over else "error")
        table = pds.import_delta(folder, take_over=take_over)
    assert rows_of(table.scan().to_pyarrow()) == rows_of(rows)


def test_a_feature_that_deltalake_cannot_read_is_named(folder: Path) -> None:
    deltalake.write_deltalake(folder, make_rows(range(20)))
    set_protocol(folder, ["typeWidening", "deletionVectors"])
    before = sorted(folder.rglob("*"))
    with pytest.raises(pds.FormatNotSupported, match="TypeWidening"):
        pds.import_delta(folder, take_over=True)
    assert sorted(folder.rglob("*")) == before


def test_a_commit_during_the_import_is_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake.write_deltalake(folder, make_rows(range(10)))
    prepare, commits = ImportPlan.prepare, iter([1, 2])

    def prepare_while_another_writes(*arguments: Any) -> Any:
        prepared = prepare(*arguments)
        if next(commits, None):
            deltalake.write_deltalake(folder, make_rows(range(100, 105)), mode="append")
        return prepared

    monkeypatch.setattr(ImportPlan, "prepare", prepare_while_another_writes)
    with pytest.warns(UserWarning, match="take_over") as warned:
        table = pds.import_delta(folder)
    assert len(warned) == 1
    assert table.scan().count() == 20
    assert rows_of(table.scan().to_pyarrow()) == rows_of(read_delta_rs(folder))


def test_writers_that_never_pause_are_a_conflict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake.write_deltalake(folder, make_rows(range(10)))
    prepare = ImportPlan.prepare

    def prepare_while_another_writes(*arguments: Any) -> Any:
        deltalake.write_deltalake(folder, make_rows(range(3)), mode="append")
        return prepare(*arguments)

    monkeypatch.setattr(ImportPlan, "prepare", prepare_while_another_writes)
    with warnings.catch_warnings(action="ignore"), pytest.raises(pds.CommitConflict):
        pds.import_delta(folder)
    assert not (folder / "manifest").exists()


def test_rules_that_the_new_table_lacks_are_named(folder: Path) -> None:
    deltalake.write_deltalake(folder, make_rows(range(10)))
    deltalake.DeltaTable(folder).alter.add_constraint({"positive": "id >= 0"})
    keys = {
        "name": {"CURRENT_DEFAULT": "'x'"},
        "small": {"delta.generationExpression": "id % 7"},
        "price": {"delta.identity.start": 1, "delta.identity.step": 1},
    }

    def edit(action: dict[str, Any]) -> None:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for field in schema["fields"]:
                field["metadata"] = keys.get(field["name"], {})
            action["metaData"]["schemaString"] = json.dumps(schema)

    for log in (folder / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            edit(action)
        log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    with pytest.warns(UserWarning, match="rules") as warned:
        pds.import_delta(folder, take_over=True)
    (warning,) = warned
    for rule in (
        "the CHECK constraint 'positive'",
        "the default value of column 'name'",
        "the generation expression of column 'small'",
        "the identity values of column 'price'",
    ):
        assert rule in str(warning.message)
    assert warning.filename == __file__


AT = pa.array([dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC)])


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (pa.table({"c": AT.cast(pa.timestamp("ns", "UTC"))}), {}),
        (pa.table({"c": pa.array([1], pa.uint32())}), {}),
        (
            pa.table({"c": pa.StructArray.from_arrays([AT], ["at"])}),
            {"use_deprecated_int96_timestamps": True, "store_schema": False},
        ),
    ],
    ids=["nanoseconds", "unsigned", "96 bits within a struct"],
)
def test_files_with_other_types_than_the_log_are_refused(folder: Path, rows: pa.Table, options: dict[str, Any]) -> None:
    folder.mkdir()
    pq.write_table(rows, folder / "x.parquet", **options)
    deltalake.convert_to_deltalake(folder)
    with pytest.raises(pds.InvalidInput, match='column "c" is'):
        pds.import_delta(folder, take_over=True)
    assert deltalake.DeltaTable(folder).version() == 0

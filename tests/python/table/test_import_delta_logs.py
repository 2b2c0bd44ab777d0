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

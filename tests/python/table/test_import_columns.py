"""Files of imported tables in which a reader may look for a column in more than one way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path


def write_delta(folder: Path, file_columns: dict[str, int | None], *, by_id: bool) -> None:
    """A Delta table with the integer columns `a` and `b`, and one file, whose columns have these field ids."""
    folder.mkdir()
    fields = [
        pa.field(name, pa.int64(), metadata=None if number is None else {"PARQUET:field_id": str(number)})
        for name, number in file_columns.items()
    ]
    pq.write_table(pa.table([pa.array([1])] * len(fields), schema=pa.schema(fields)), folder / "x.parquet")
    columns = [
        {"name": name, "type": "long", "nullable": True}
        | {"metadata": {"delta.columnMapping.id": at, "delta.columnMapping.physicalName": name} if by_id else {}}
        for at, name in enumerate(("a", "b"), start=1)
    ]
    mapping = {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "2"}
    versions = (
        {"minReaderVersion": 2, "minWriterVersion": 5} if by_id else {"minReaderVersion": 1, "minWriterVersion": 2}
    )
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": [],
        "configuration": mapping if by_id else {},
    }
    size = (folder / "x.parquet").stat().st_size
    file = {"path": "x.parquet", "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    actions = [{"protocol": versions}, {"metaData": metadata}, {"add": file | {"stats": '{"numRecords":1}'}}]
    (folder / "_delta_log").mkdir()
    log = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / "_delta_log" / f"{0:020}.json").write_text(log)


def test_columns_are_looked_for_by_id(tmp_path: Path) -> None:
    write_delta(tmp_path / "t", {"a": 1, "other": 2}, by_id=True)
    with pytest.warns(UserWarning, match="vacuum|VACUUM"):
        table = pds.import_delta(tmp_path / "t")
    assert table.scan().to_pyarrow().to_pylist() == [{"a": 1, "b": 1}]


@pytest.mark.parametrize("by_id", [True, False])
def test_a_column_that_is_missing_is_null(tmp_path: Path, *, by_id: bool) -> None:
    write_delta(tmp_path / "t", {"a": 1 if by_id else None}, by_id=by_id)
    with pytest.warns(UserWarning, match="vacuum|VACUUM"):
        table = pds.import_delta(tmp_path / "t")
    assert table.scan().to_pyarrow().to_pylist() == [{"a": 1, "b": None}]


@pytest.mark.parametrize(
    ("columns", "by_id"),
    [
        # Readers that look for names where there is no id see values, others nulls.
        ({"a": 1, "b": None}, True),
        ({"a": 1, "B": None}, True),
        # Delta's names are the same in any case.
        ({"a": None, "B": None}, False),
    ],
)
def test_a_column_that_readers_may_see_or_not_is_refused(
    tmp_path: Path, columns: dict[str, int | None], *, by_id: bool
) -> None:
    write_delta(tmp_path / "t", columns, by_id=by_id)
    with pytest.raises(pds.InvalidInput, match='column "b" is not in the file'):
        pds.import_delta(tmp_path / "t")
    assert not pds.Table.exists(pds.Store(tmp_path), "t")

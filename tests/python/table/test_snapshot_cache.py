"""A process that knows the newest manifest does not read it again, and never takes its own for another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64())])


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def _ids(table: pds.Table) -> list[int]:
    return sorted(table.scan().to_pyarrow()["id"].to_pylist())


def test_an_append_after_another_reads_no_manifest() -> None:
    with ScriptedS3() as server:
        table = pds.Table.create(pds.Store("s3://bucket/p", storage_options=server.options("a")), "t", SCHEMA)
        table.append(_rows(1))
        sent = len(server.seen)
        table.append(_rows(2))
        seen = [(request.verb, request.keys[0].rpartition("/")[2][:9]) for request in server.seen[sent:]]
        assert sorted(seen[:2]) == [("get", "_latest_m"), ("head", "v00000002")]
        assert seen[2:] == [("put", "b00000002"), ("put", "v00000003"), ("put", "_latest_m")]
        sent = len(server.seen)
        pds.Table(table.store, "t")
        assert sorted(request.verb for request in server.seen[sent:]) == ["get", "head"]
        assert _ids(table) == [1, 2]


def test_the_commits_of_others_are_seen(tmp_path: Path) -> None:
    ours = pds.Table.create(pds.Store(tmp_path.as_uri()), "t", SCHEMA)
    theirs = pds.Table(pds.Store(tmp_path.as_uri()), "t")
    for number in range(0, 20, 2):
        ours.append(_rows(number))
        theirs.append(_rows(number + 1))
        assert _ids(pds.Table(ours.store, "t")) == list(range(number + 2))
    theirs.delete("id < 15")
    ours.append(_rows(20))
    assert _ids(ours) == [*range(15, 21)]


def test_a_table_that_was_created_anew_is_another(tmp_path: Path) -> None:
    ours = pds.Table.create(pds.Store(tmp_path.as_uri()), "t", SCHEMA)
    ours.append(_rows(1))
    others = pds.Store(tmp_path.as_uri())
    pds.Table.drop(others, "t")
    with pytest.raises(pds.NotFound):
        ours.append(_rows(2))
    # Of as many versions as the dropped one had.
    pds.Table.create(others, "t", SCHEMA).append(_rows(3))
    ours.append(_rows(4))
    assert _ids(ours) == _ids(pds.Table(others, "t")) == [3, 4]


def test_more_tables_than_are_remembered(memory_store: pds.Store) -> None:
    tables = [pds.Table.create(memory_store, f"t{number}", SCHEMA) for number in range(20)]
    for round_number in range(3):
        for number, table in enumerate(tables):
            table.append(_rows(100 * number + round_number))
    for number, table in enumerate(tables):
        assert _ids(table) == _ids(pds.Table(memory_store, f"t{number}")) == [100 * number + n for n in range(3)]

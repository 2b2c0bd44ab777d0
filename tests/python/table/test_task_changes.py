"""Upserts and merges by tasks: the files that each of them opens, and the same rows as the local engine."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from pds.table.merge import MergeClause
from pds.table.staged import StagedWrite
from pds.table.task_changes import (
    MergePart,
    MergeTask,
    StagedSource,
    TaskChange,
    UpsertTask,
    commit_options,
    stages_source,
)
from pds.table.tasks import ScanTask

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
FILES = 80
SIZES = {"count": 128, "min_bytes": 1, "max_bytes": 1 << 30}
REPLACE = [MergeClause("matched", None, []), MergeClause("not_matched", None, [])]


class Search:
    """Tasks that search a table for the rows of some parts."""

    def __init__(
        self,
        table: pds.Table,
        *parts: pa.Table,
        on: list[str] | None = None,
        clauses: list[MergeClause] | None = None,
        max_tasks: int = 512,
    ) -> None:
        self.table, self.clauses = table, clauses
        self.write, _ = StagedWrite.begin(table, overwrite=False, where=None, idempotency_key=None, if_version=None)
        if clauses is not None:
            self.write = stages_source(self.write, table, parts[0].schema)
        self.lists = [[self.write.stage(part.to_reader())] for part in parts]
        self.on = on
        self.split(max_tasks)

    def split(self, max_tasks: int = 512) -> None:
        """Begin to search the newest version."""
        self.change = TaskChange(self.table.refresh(), commit_options(self.table))
        reads_all = any(clause.rows == "not_matched_by_source" for clause in self.clauses or ())
        source = StagedSource(self.write.task, self.lists, self.on, self.clauses is not None, reads_all)
        self.targets = self.change.split(source, SIZES, max_tasks)

    def rows(self) -> list[list[int]]:
        """How many rows of the table the targets of each part have."""
        store, path = self.table.store, self.table.path
        return [[ScanTask(store, path, None, None, task).count() for task in part] for part in self.targets]

    def run(self) -> list[bytes]:
        messages: list[bytes] = []
        store, path = self.table.store, self.table.path
        for lists, targets in zip(self.lists, self.targets, strict=True):
            parts = [
                MergePart(target, self.write.task, lists, self.on, self.clauses or [], 0, self.write.options)
                for target in targets
            ]
            if self.clauses is None:
                messages += [message for part in parts for message in UpsertTask(store, path, part).run()]
                continue
            tasks = [MergeTask(store, path, part, has_all_files=len(parts) == 1) for part in parts]
            of_part = [message for task in tasks for message in task.run()]
            if len(tasks) > 1:
                of_part += tasks[0].to_insert(of_part).run()
            messages += of_part
        return messages

    def commit(self) -> pds.table.CommitResult:
        return self.change.commit(self.run())


def rows(first: int, last: int, name: str = "old") -> pa.Table:
    return pa.table({"id": range(first, last), "name": [f"{name} {i}" for i in range(first, last)]}, SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> pds.Table:
    """Files with 100 keys each, some of them in a segment, with deleted rows."""
    table = pds.Table.create(pds.Store(tmp_path.as_uri()), "t", SCHEMA, key="id")
    for number in range(FILES):
        table.append(rows(number * 100, number * 100 + 100))
    table.delete("id % 50 = 3")
    assert table._parse_manifest()["segments"]
    return table


def hide_others(table: pds.Table, folder: Path, *ids: int) -> list[Path]:
    """Take away the files of 100 rows with none of these keys."""
    hidden = []
    for path in (folder / "t").rglob("*.parquet"):
        keys = pq.read_table(path, columns=["id"])["id"].to_pylist() if "data" in path.parts else []
        if len(keys) == 100 and not set(ids) & set(keys):
            hidden.append(path.rename(path.with_suffix(".hidden")))
    return hidden


@pytest.mark.parametrize("clauses", [None, REPLACE])
def test_files_that_cannot_have_a_key_are_not_opened(
    table: pds.Table, tmp_path: Path, clauses: list[MergeClause] | None
) -> None:
    source = pa.table({"id": [5, 1250, 100_000], "name": ["a", "b", "c"]}, SCHEMA)
    hidden = hide_others(table, tmp_path, 5, 1250)
    assert len(hidden) == FILES - 2
    # Within the bounds of all files between them: the tasks look at the keys themselves.
    search = Search(table, source, clauses=clauses)
    assert search.commit().version == table.version
    for path in hidden:
        path.rename(path.with_suffix(".parquet"))
    changed = table.scan(where="name NOT LIKE 'old%'").to_pyarrow().sort_by("id")
    assert changed.equals(source)
    assert table.scan().count() == FILES * 98 + 1


def test_each_part_has_the_files_of_its_keys(table: pds.Table) -> None:
    ranges = [(0, 150), (150, 220), (50_000, 50_010), (5_900, 5_950)]
    parts = [rows(first, last, "new") for first, last in ranges]
    search = Search(table, *parts)
    assert search.rows() == [[98, 98], [98, 98], [0], [98]]
    # Parts share what they have in common.
    assert search.targets[0][1] is search.targets[1][0]
    assert len({id(target) for part in search.targets for target in part}) == 5
    few = Search(table, *parts, max_tasks=3)
    assert few.rows() == [[4 * 98], [4 * 98], [0], [4 * 98]]
    assert few.commit().rows == 280
    table.refresh()
    old = [i for i in range(FILES * 100) if i % 50 != 3 and not (i < 220 or 5_900 <= i < 5_950)]
    assert table.scan(["id"], where="name LIKE 'old%'").to_pyarrow().sort_by("id")["id"].to_pylist() == old
    by_source = [MergeClause("not_matched_by_source", "target.id < 10", None)]
    assert sum(Search(table, rows(0, 1), clauses=by_source).rows()[0]) == table.scan().count()


NAN = float("nan")
UTC = dt.UTC
# Keys in an order in which neighbors go to one file.
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), list(range(-30, 30))),
    "float": (pa.float64(), [float(i) for i in range(-29, 29)] + [float("inf"), NAN]),
    "text": (pa.string(), sorted(["", "é", "\U0001f600"] + [f"k{i:03}" for i in range(57)])),
    "long text": (pa.string(), [f"{'x' * 200}{i:03}" for i in range(60)]),
    "words": (pa.dictionary(pa.int32(), pa.string()), [f"k{i:03}" for i in range(60)]),
    "bytes": (pa.binary(), [bytes([i]) for i in range(60)]),
    "decimal": (pa.decimal128(12, 2), [Decimal(i) / 4 for i in range(-30, 30)]),
    "date": (pa.date32(), [dt.date(1969, 12, 1) + dt.timedelta(days=i) for i in range(60)]),
    "time": (
        pa.timestamp("us", "Europe/Berlin"),
        [dt.datetime(1969, 12, 31, 23, 59, tzinfo=UTC) + dt.timedelta(seconds=i, microseconds=i) for i in range(60)],
    ),
}


@pytest.mark.parametrize("clauses", [None, REPLACE], ids=["upsert", "merge"])
@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_those_of_the_local_engine(tmp_path: Path, kind: str, clauses: list[MergeClause] | None) -> None:
    """For keys of all kinds, also where a table has nulls in them."""
    choose = random.Random(kind)
    data_type, keys = KEYS[kind]
    schema = pa.schema([("key", data_type), ("more", pa.int16()), ("value", pa.string())])

    def make(chosen: list[Any], value: str) -> pa.Table:
        more = [number % 2 for number in range(len(chosen))]
        columns = [pa.array(chosen, schema.field("key").type), pa.array(more, pa.int16())]
        return pa.table([*columns, pa.array([f"{value} {key}" for key in chosen])], schema)

    store = pds.Store(tmp_path.as_uri())
    tables = [pds.Table.create(store, name, schema, key="key") for name in ("ours", "local")]
    files = [make([*keys[first : first + 5], None], "old") for first in range(0, 50, 5)]
    choose.shuffle(files)
    for table in tables:
        for data in files:
            table.append(data)
        table.append(make([None, None], "none"))
    indices = sorted(choose.sample(range(60), 20))
    parts = [make([keys[index] for index in indices[at::3]], "new") for at in range(3)]
    ours, local = tables
    Search(ours, *parts, clauses=clauses).commit()
    local.upsert(pa.concat_tables(parts))
    listed = [sorted(map(str, table.scan().to_pyarrow().to_pylist())) for table in tables]
    assert listed[0] == listed[1]
    # By two columns.
    for on in (["key", "more"], ["more", "key"]):
        part = make([keys[index] for index in indices[:7]], f"newer {on}")
        Search(ours, part, on=on, clauses=clauses).commit()
        local.upsert(part, on=on)
        listed = [sorted(map(str, table.scan().to_pyarrow().to_pylist())) for table in tables]
        assert listed[0] == listed[1]


def test_a_part_without_files_refuses_what_others_do(table: pds.Table, tmp_path: Path) -> None:
    twice = pa.concat_tables([rows(50_000, 50_002), rows(50_001, 50_003)])
    for clauses in (None, REPLACE):
        search = Search(table, twice, clauses=clauses)
        assert search.rows() == [[0]]
        with pytest.raises(pds.InvalidInput, match="two rows have the same id"):
            search.run()
    nullable = pds.Table.create(pds.Store(tmp_path.as_uri()), "nulls", pa.schema([("id", pa.int64())]), key="id")
    with pytest.raises(pds.InvalidInput, match="null in key column"):
        Search(nullable, pa.table({"id": pa.array([None], pa.int64())})).run()


def test_keys_that_were_widened_and_renamed(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int32()), ("value", pa.string())]), key="id")
    for first in range(0, 50, 10):
        table.append(pa.table({"id": pa.array(range(first, first + 10), pa.int32()), "value": ["old"] * 10}))
    table.alter.widen("id", pa.int64())
    table.append(pa.table({"id": [1 << 40], "value": ["old"]}))
    source = pa.table({"id": [7, 1 << 40], "value": ["new", "new"]})
    search = Search(table, source)
    # Its columns are those of the version for which it was staged, by their ids.
    table.alter.rename_column("id", "key")
    table.append(pa.table({"key": [60], "value": ["old"]}))
    search.split()
    search.commit()
    changed = table.scan(where="value = 'new'").to_pyarrow()["key"].to_pylist()
    assert sorted(changed) == [7, 1 << 40]
    assert table.scan().count() == 52


def test_files_that_others_add_are_searched_too(table: pds.Table) -> None:
    search = Search(table, rows(50_000, 50_001, "new"))
    messages = search.run()
    pds.Table(table.store, table.path).append(rows(50_000, 50_001))
    with pytest.raises(pds.CommitConflict):
        search.change.commit(messages)
    search.split()
    assert search.rows() == [[1]]
    search.commit()
    assert table.scan(where="id = 50000").to_pyarrow()["name"].to_pylist() == ["new 50000"]


def test_a_message_that_is_lost(table: pds.Table) -> None:
    search = Search(table, rows(0, 250), rows(250, 300))
    messages = search.run()
    assert len(messages) == 4
    for some in (messages[1:], [*messages, messages[0]]):
        with pytest.raises(pds.RemoteStoreError, match="searches"):
            search.change.commit(some)
    assert search.change.commit(messages).rows == 300

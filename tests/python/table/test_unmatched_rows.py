"""Merges by tasks of which none has the whole source: rows that it does not have are as in a merge by one process."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from pds.table.merge import MergeClause
from pds.table.staged import StagedWrite
from pds.table.task_changes import (
    MergePart,
    MergeTask,
    StagedSource,
    TaskChange,
    UnmatchedTask,
    commit_options,
    stages_source,
)

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
SIZES = {"count": 128, "min_bytes": 1, "max_bytes": 1}
BY_SOURCE = "not_matched_by_source"
CLAUSES: list[list[MergeClause]] = [
    [MergeClause(BY_SOURCE, None, None)],
    [MergeClause("matched", None, []), MergeClause("not_matched", None, []), MergeClause(BY_SOURCE, None, None)],
    [
        MergeClause("matched", "source.id % 5 = 0", None),
        MergeClause(BY_SOURCE, "target.id % 3 = 0", [("name", "concat(target.name, '!')")]),
        MergeClause(BY_SOURCE, "target.id % 3 = 1", None),
    ],
]


def rows(ids: list[int], name: str) -> pa.Table:
    return pa.table({"id": ids, "name": [f"{name} {i}" for i in ids]}, SCHEMA)


class Parts:
    """A merge of a source in parts into a table."""

    def __init__(self, table: pds.Table, parts: list[pa.Table], clauses: list[MergeClause]) -> None:
        self.table = table
        write, _ = StagedWrite.begin(table, overwrite=False, where=None, idempotency_key=None, if_version=None)
        self.write = stages_source(write, table, SCHEMA)
        self.lists = [[self.write.stage(part.to_reader())] for part in parts]
        self.matching = [clause for clause in clauses if clause.rows != BY_SOURCE]
        self.by_source = [clause for clause in clauses if clause.rows == BY_SOURCE]
        self.change = TaskChange(table.refresh(), commit_options(table))

    def part(self, target: bytes, lists: list[bytes], clauses: list[MergeClause]) -> MergePart:
        return MergePart(target, self.write.task, lists, None, clauses, 0, self.write.options)

    def match(self) -> list[bytes]:
        """The messages of the tasks that have parts of the source."""
        source = StagedSource(self.write.task, self.lists, None, is_merge=True, reads_all=False)
        place, messages = (self.table.store, self.table.path), list[bytes]()
        for lists, targets in zip(self.lists, self.change.split(source, SIZES, 512), strict=True):
            tasks = [
                MergeTask(*place, self.part(target, lists, self.matching), len(targets) == 1, reports_matches=True)
                for target in targets
            ]
            of_part = [message for task in tasks for message in run(task)]
            messages += of_part
            if len(tasks) > 1:
                messages += run(tasks[0].to_insert(of_part))
        return messages

    def change_others(self, messages: list[bytes]) -> list[bytes]:
        """The messages of the tasks for the rows that no part has."""
        return [
            message
            for target, matched in self.change.split_all(SIZES, 512, messages)
            for message in run(
                UnmatchedTask(self.table.store, self.table.path, self.part(target, [], self.by_source), matched)
            )
        ]


def run(task: Any) -> list[bytes]:
    """As another process does."""
    messages: list[bytes] = pickle.loads(pickle.dumps(task)).run(1)  # noqa: S301 our own
    return messages


def listed(table: pds.Table) -> list[tuple[int, str]]:
    newest = pds.Table(table.store, table.path).scan().to_pyarrow()
    return sorted(zip(newest["id"].to_pylist(), newest["name"].to_pylist(), strict=True))


@pytest.fixture
def twins(tmp_path: Path) -> list[pds.Table]:
    store = pds.Store(tmp_path.as_uri())
    options = pds.WriteOptions(row_group_size=16)
    tables = [pds.Table.create(store, name, SCHEMA, key="id", options=options) for name in ("ours", "local")]
    for table in tables:
        for first in range(0, 400, 50):
            table.append(rows(list(range(first, first + 50)), "old"))
        table.delete("id % 11 = 4")
    return tables


@pytest.mark.parametrize("clauses", CLAUSES)
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_one_process(twins: list[pds.Table], clauses: list[MergeClause], seed: int) -> None:
    ours, local = twins
    choose = random.Random(seed)
    # Some of them have no row in the table, or all the rows of a file or of a row group.
    ids = {*choose.sample(range(500), choose.choice([0, 3, 200])), *range(100, 100 + choose.choice([0, 16, 60]))}
    cuts = [0, *sorted(choose.sample(range(500), 3)), 500]
    parts = [rows([i for i in sorted(ids) if low <= i < high], "new") for low, high in itertools.pairwise(cuts)]
    merge = Parts(ours, parts, clauses)
    messages = merge.match()
    result = merge.change.commit(messages + merge.change_others(messages))
    merge.write.discard([staged for lists in merge.lists for staged in lists])
    one = local.merge(pa.concat_tables(parts))
    one._clauses = clauses
    expected = one.execute()
    assert listed(ours) == listed(local)
    assert (result.version, result.rows) == (expected.version, expected.rows)
    counts = [
        {name: table.history(1)[0]["operation"].get(name) for name in ("name", "rows_updated", "rows_deleted", "rows")}
        for table in twins
    ]
    assert counts[0] == counts[1]
    # Whole files leave, as in a merge by one process.
    assert len(ours.files()) - result.files == len(local.files()) - expected.files
    assert ours.check() == pds.table.CheckResult(ours.version, [], [], [])


def test_all_searches_are_there(twins: list[pds.Table]) -> None:
    ours, _ = twins
    before = listed(ours)
    merge = Parts(ours, [rows([1, 2], "new"), rows([300], "new")], CLAUSES[1])
    messages = merge.match()
    others = merge.change_others(messages)
    for some in (messages, messages + others[1:], others, messages[1:] + others):
        with pytest.raises(pds.RemoteStoreError, match="searches"):
            merge.change.commit(some)
    assert listed(ours) == before
    merge.change.commit(messages + others)
    assert listed(ours) == [(1, "new 1"), (2, "new 2"), (300, "new 300")]


def test_files_are_split_for_the_source_first(twins: list[pds.Table]) -> None:
    change = TaskChange(twins[0], commit_options(twins[0]))
    with pytest.raises(pds.InvalidInput, match="after those"):
        change.split_all(SIZES, 512, [])

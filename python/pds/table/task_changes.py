"""Deletes, upserts and merges whose rows other processes find and one commits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pds import _pds
from pds.predicate import to_predicate
from pds.store import native_handle
from pds.table.options import CommitOptions

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from pds.options import WriteOptions
    from pds.store import Store
    from pds.table.merge import MergeClause
    from pds.table.results import CommitResult
    from pds.table.staged import StagedWrite
    from pds.table.table import Table
    from pds.table.tasks import ScanTask

    Where = str | pc.Expression


@dataclass(frozen=True)
class DeleteTask:
    """A task of a scan whose rows are to be deleted, to be pickled and sent to another process."""

    task: ScanTask

    def run(self, _threads: int | None = None) -> list[bytes]:
        """Find the rows, and return messages for `TaskChange.commit`."""
        return [self.task.find_rows()]


class MergePart(NamedTuple):
    """A part of a table's files, and a part of the rows that are merged into it. The engine reads the fields."""

    # The table's files, as a task of a scan.
    target: bytes
    # The columns of the source, as a task without files, and lists of its files.
    source: bytes
    lists: list[bytes]
    on: list[str] | None
    clauses: list[MergeClause]
    # The time of `now()` in microseconds since 1970.
    now: int
    options: WriteOptions


class StagedSource(NamedTuple):
    """Rows that were staged to be upserted or merged. The engine reads the fields."""

    # The task by which they were staged: the columns, and the version that they are for.
    task: bytes
    # Lists of the staged files of each part. Rows with the same key are in the same part.
    parts: list[list[bytes]]
    on: list[str] | None
    # Whether the rows are merged, and have columns of their own; else they are upserted, and have the table's.
    is_merge: bool
    # Whether rows that the source does not have are changed, too.
    reads_all: bool


@dataclass(frozen=True)
class UpsertTask:
    """A part of an upsert, to be pickled and sent to another process."""

    store: Store
    path: str
    part: MergePart

    def run(self, _threads: int | None = None) -> list[bytes]:
        """Find the rows that are replaced, and return messages for `TaskChange.commit`."""
        return [_pds.find_upserts(native_handle(self.store), self.path, self.part)]


@dataclass(frozen=True)
class MergeTask:
    """A part of a merge, to be pickled and sent to another process."""

    store: Store
    path: str
    part: MergePart
    # Whether the part has all files that may have its keys, so that rows without a match are inserted at once.
    has_all_files: bool

    def run(self, threads: int | None = None) -> list[bytes]:
        """Merge the rows that match, and return messages for `TaskChange.commit`."""
        messages = [_pds.merge_task(native_handle(self.store), self.path, self.part, threads)]
        if self.has_all_files:
            messages += self.to_insert(messages).run(threads)
        return messages

    def to_insert(self, messages: list[bytes]) -> InsertTask:
        """Return the task that inserts the rows that matched in none of the parts with the same source."""
        return InsertTask(self.store, self.path, self.part, _pds.matched_source_rows(messages))


@dataclass(frozen=True)
class InsertTask:
    """The rows of a part of a merge's source, of which those without a match are inserted."""

    store: Store
    path: str
    part: MergePart
    matched: bytes

    def run(self, threads: int | None = None) -> list[bytes]:
        """Insert the rows, and return messages for `TaskChange.commit`."""
        return [_pds.insert_task(native_handle(self.store), self.path, self.part, self.matched, threads)]


class TaskChange:
    """A change of one snapshot of a table, of which tasks make parts.

    Attributes:
        snapshot: The snapshot that the tasks have to search.

    Args:
        table: The table, whose snapshot that is. After the commit it shows the new version.
        options: The options of the commit.
        where: The filter of a delete. An upsert or a merge has none, and begins with `split`.
    """

    def __init__(
        self,
        table: Table,
        options: CommitOptions,
        *,
        where: Where | None = None,
    ) -> None:
        self._table = table
        self._base = table._handle  # noqa: SLF001 of the same package
        # Of its own, since other threads may move the table on.
        self.snapshot = table._from_handle(table._location, self._base)  # noqa: SLF001 as above
        self._predicate = None if where is None else to_predicate(where, self.snapshot.schema)
        self._source: StagedSource | None = None
        # How many files the tasks have; None for those of a scan with the filter.
        self._searches: int | None = None
        self._options = options

    def split(self, source: StagedSource, sizes: dict[str, int], max_tasks: int) -> list[list[bytes]]:
        """Split the files that may have keys of the source into targets, and return those of each of its parts.

        A part has one target at least, which may have no files. Targets are larger than the sizes say where there would
        be more than `max_tasks` of them, counted once for each part.
        """
        self._source = source
        split = _pds.split_targets(self._base, source, max_tasks=max_tasks, **sizes)
        self._searches = split["searches"]
        # The same object for all parts, so that it is pickled once.
        return [[split["tasks"][number] for number in numbers] for numbers in split["parts"]]

    def commit(self, messages: list[bytes]) -> CommitResult:
        """Commit what the tasks returned in their messages, which are those of all tasks.

        Raises:
            CommitConflict: As for `Table.append`; or another commit has changed what the tasks have searched.
            TransactionExpired: As for `StagedWrite.commit`.
        """
        location = self._table._location  # noqa: SLF001 of the same package
        return self._table._commit_with(  # noqa: SLF001 as above
            lambda _: _pds.commit_changes(
                self._base,
                self._predicate,
                self._source,
                messages,
                self._searches,
                location.options,
                self._options,
            )
        )

    def discard(self, messages: list[bytes]) -> None:
        """Remove the files that tasks wrote, if they are not to be committed."""
        _pds.discard_changes(native_handle(self._table.store), self._table.path, messages)


def deletes_by_key(table: Table, where: Where) -> bool:
    """Return whether `Table.delete` reads no row to delete these: they are a range of the key."""
    return _pds.is_key_range(table._handle, to_predicate(where, table.schema))  # noqa: SLF001 of the same package


def key_columns(table: Table) -> list[str]:
    """Return the names of the columns of the key."""
    return table._get_column_names("key")  # noqa: SLF001 of the same package


def commit_options(table: Table, idempotency_key: str | None = None, if_version: int | None = None) -> CommitOptions:
    """Return the options of a commit, checked."""
    return CommitOptions.checked(idempotency_key, if_version, table._location.timeout)  # noqa: SLF001 as above


def stages_source(write: StagedWrite, table: Table, schema: pa.Schema) -> StagedWrite:
    """Return a write that stages rows with the columns of a merge's source instead of the table's."""
    return replace(write, task=_pds.source_task(table._handle, schema))  # noqa: SLF001 as above


def staged_sizes(lists: list[bytes]) -> list[tuple[int, int]]:
    """Return how many rows and bytes each list of staged files has."""
    return [(size["rows"], size["bytes"]) for size in _pds.staged_sizes(lists)]

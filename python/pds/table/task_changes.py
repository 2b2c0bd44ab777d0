"""Deletes, upserts and merges whose rows other processes find and one commits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pds import _pds
from pds.errors import InvalidInput
from pds.predicate import to_predicate
from pds.store import native_handle
from pds.table.options import CommitOptions
from pds.table.staged import ReplacedRows
from pds.table.tasks import split_search
from pds.telemetry import run_traced

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


class ReplacedSearch:
    """A search of the snapshot that a table shows, for the rows that an overwrite with a filter replaces.

    Attributes:
        tasks: Those that find the rows.

    Args:
        table: The table.
        where: The filter.
        sizes: The sizes of tasks, as for `Table.scan_tasks`.
    """

    def __init__(self, table: Table, where: Where, **sizes: int) -> None:
        # Of its own, since other threads may move the table on.
        self._snapshot = table._pin()  # noqa: SLF001 of the same package
        self.tasks = [DeleteTask(task) for task in split_search(self._snapshot, where, **sizes)]

    def end(self, messages: list[bytes]) -> ReplacedRows:
        """Return what was found, by the messages of all tasks, for `StagedWrite.commit`."""
        return ReplacedRows(self._snapshot._handle, messages)  # noqa: SLF001 as above


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
    # Whether `UnmatchedTask`s follow, for rows that no part of the source has; else the part has the whole source.
    reports_matches: bool = False

    def run(self, threads: int | None = None) -> list[bytes]:
        """Merge the rows that match, and return messages for `TaskChange.commit`."""
        store = native_handle(self.store)
        messages = [_pds.merge_task(store, self.path, self.part, self.reports_matches, threads)]
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


@dataclass(frozen=True)
class UnmatchedTask:
    """A part of a table's files, of whose rows those that no part of a merge's source has are changed."""

    store: Store
    path: str
    part: MergePart
    # The rows that some part has.
    matched: bytes

    def run(self, threads: int | None = None) -> list[bytes]:
        """Change the rows, and return messages for `TaskChange.commit`."""
        return [_pds.unmatched_task(native_handle(self.store), self.path, self.part, self.matched, threads)]


class TaskChange:
    """A change of one snapshot of a table, of which tasks make parts.

    Attributes:
        snapshot: The snapshot that the tasks have to search.

    Args:
        table: The table, whose snapshot that is. After the commit it shows the new version.
        options: The options of the commit.
        opened: The snapshot by whose names columns go; see `opened_columns`. Defaults to that of the table.
        where: The filter of a delete. An upsert or a merge has none, and begins with `split`.

    Raises:
        CommitConflict: A column of the filter was dropped since then.
    """

    def __init__(
        self,
        table: Table,
        options: CommitOptions,
        opened: _pds.TableHandle | None = None,
        *,
        where: Where | None = None,
    ) -> None:
        self._table = table
        newest = table._handle  # noqa: SLF001 of the same package
        opened = opened or newest
        self._predicate = None if where is None else to_predicate(where, opened.schema)
        self._base = _pds.name_columns(newest, opened, self._predicate)
        # Of its own, since other threads may move the table on.
        self.snapshot = table._from_handle(table._location, self._base)  # noqa: SLF001 as above
        self._source: StagedSource | None = None
        # How many files the tasks have; None for those of a scan with the filter.
        self._searches: int | None = None
        self._options = options

    def split(self, source: StagedSource, sizes: dict[str, int], max_tasks: int) -> list[list[bytes]]:
        """Split the files that may have keys of the source into targets, and return those of each of its parts.

        A part has one target at least, which may have no files. Targets are larger than the sizes say where there would
        be more than `max_tasks` of them, counted once for each part. All targets are to be searched, also those of an
        earlier call.
        """
        self._source = source
        split = _pds.split_targets(self._base, source, max_tasks=max_tasks, **sizes)
        self._searches = (self._searches or 0) + split["searches"]
        # The same object for all parts, so that it is pickled once.
        return [[split["tasks"][number] for number in numbers] for numbers in split["parts"]]

    def split_all(self, sizes: dict[str, int], max_tasks: int, messages: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Split all files into targets, after the tasks of `split` have returned messages.

        Returns:
            Each target with the rows of it that match a row of the source.
        """
        if self._source is None:
            raise InvalidInput("all files are split after those that may have keys of the source")
        [targets] = self.split(self._source._replace(parts=[[]], reads_all=True), sizes, max_tasks)
        return list(zip(targets, _pds.matched_table_rows(messages, targets), strict=True))

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

    def delete(self) -> CommitResult:
        """Delete the rows that match the filter without tasks. Errors are those of `Table.delete`."""
        location, predicate = self._table._location, self._predicate  # noqa: SLF001 of the same package
        if predicate is None:
            raise InvalidInput("internal error: a change without a filter deletes nothing")
        return run_traced(
            "pds.table.delete",
            location.url,
            lambda: self._table._commit_with(  # noqa: SLF001 as above
                lambda _: self._base.delete(predicate, location.timeout)
            ),
        )

    def discard(self, messages: list[bytes]) -> None:
        """Remove the files that tasks wrote, if they are not to be committed."""
        _pds.discard_changes(native_handle(self._table.store), self._table.path, messages)


def deletes_by_key(table: Table, where: Where) -> bool:
    """Return whether `Table.delete` reads no row to delete these: they are a range of the key."""
    return _pds.is_key_range(table._handle, to_predicate(where, table.schema))  # noqa: SLF001 of the same package


def opened_columns(table: Table) -> _pds.TableHandle:
    """Return the snapshot of a table, by whose names a caller means columns."""
    return table._handle  # noqa: SLF001 of the same package


def with_opened_names(table: Table, opened: _pds.TableHandle) -> Table:
    """Return the snapshot of a table, with its columns under the names that they had in another one."""
    named = _pds.name_columns(table._handle, opened, None)  # noqa: SLF001 of the same package
    return table._from_handle(table._location, named)  # noqa: SLF001 as above


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

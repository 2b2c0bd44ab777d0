"""Streams of ``format("pds")``: a source of the rows that commits add, and a sink that commits each batch once.

The source begins with the rows of the newest version, unless ``startingVersion`` or ``startingTimestamp`` names the
first version whose rows it reads, or ``"latest"``. A commit that deletes or replaces rows ends the query, unless
``ignoreDeletes`` is true and it only deletes, or ``skipChangeCommits`` is true, which leaves out all its rows.
``maxFilesPerTrigger`` and ``maxBytesPerTrigger``, from Spark 4.2 on, limit the data files of a batch and their bytes:
those of the version with which the query begins, which is read to its end before any later one, and those of commits,
of which a batch has one at least. With ``readChangeFeed`` it reads the inserts and deletes of every commit, as of
``Table.scan_changes``; the rows with which it begins are inserts. Other options are ``path``, ``columns`` and
``storage.<name>`` as in `pds.spark.source`. Offsets are versions with the ids of their commits.

The sink appends, or in the output mode ``complete`` replaces all rows. The ids of the query and of the batch are the
idempotency key of a commit: a batch that Spark runs again changes nothing. The table must exist: one that was dropped
has lost batches that the checkpoint calls done.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition, WriterCommitMessage

from pds.errors import CapabilityNotSupported, InvalidInput, RemoteStoreError
from pds.readers import make_reader, unfold
from pds.spark.change_feed import REWRITES
from pds.spark.options import (
    FEED,
    START_OPTIONS,
    STREAM_OPTIONS,
    TASK_SIZES,
    FixedVersion,
    TablePlace,
    check_commit,
    check_options,
    find_start,
    parse_flag,
)
from pds.spark.schema import align_to_schema, check_columns, dataset_schema, fit_to_table, worker_schema
from pds.spark.tasks import check_messages, freeze_worker_gc, task_context, warn_of_exports
from pds.spark.versions import StreamArrowWriter, check_batches, spark_version
from pds.table.scan import CHANGE_COLUMNS
from pds.table.staged import StagedWrite
from pds.table.tasks import split_files, with_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql.types import StructType

    from pds import Table
    from pds.table.tasks import ScanTask

__all__ = [
    "Offset",
    "TableStreamReader",
    "TableStreamWriter",
    "check_offset",
    "is_in_snapshot",
    "offset_of",
    "warn_of_other_rows",
]

# Those that Spark adds.
_SINK_OPTIONS: Final = ("checkpointLocation", "queryName", "useTempCheckpointLocation", "recoverFromCheckpointLocation")
# Partitions of a batch that has the rows of many commits.
_MOST_PARTITIONS: Final = 128


class Offset(TypedDict):
    """The last version whose rows were read, and its commit; 0 before all.

    `since` is where the batch began that ended here: a query that did not survive its first batch begins elsewhere.
    `files` is how many files were read of the version with which the query begins, unless these are all.
    """

    version: int
    commit: str
    since: NotRequired[list[Any]]
    files: NotRequired[int]


# Of a stream that begins with all rows, and of one that begins with the changes of version 1.
_BEFORE_ALL: Final[Offset] = {"version": 0, "commit": ""}
_BEFORE_FIRST: Final[Offset] = {"version": 0, "commit": "none"}


class _Range(NamedTuple):
    """Versions whose rows a task reads."""

    first: int
    last: int
    # The end of the batch, from which they are told apart from those of another table.
    end: Offset
    # The rows that these insert may have been read before.
    restores: list[int]
    # The rows of these are those of the versions before.
    rewrites: list[int]


class _Snapshot(NamedTuple):
    """Files whose rows a task reads as inserts of a version."""

    task: ScanTask
    version: int
    created_at: datetime


class TableStreamReader(DataSourceStreamReader):
    """Reads the rows that commits add to a table, all that are new in a batch: Spark before 4.2 asks for no limit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, version: FixedVersion | None) -> None:
        check_options(options, STREAM_OPTIONS)
        if version is None:
            raise InvalidInput("a stream takes no schema; name columns by the option columns")
        self._place = TablePlace.parse(options)
        self._start = {name: options[name] for name in START_OPTIONS if name in options}
        self._is_feed = parse_flag(options, FEED)
        self._ignore_deletes = parse_flag(options, "ignoreDeletes")
        self._skip_changes = parse_flag(options, "skipChangeCommits")
        self._columns = version.columns
        if self._is_feed and (self._ignore_deletes or self._skip_changes):
            raise InvalidInput("a change feed has all changes; leave out ignoreDeletes and skipChangeCommits")
        self._names = schema.names[: -len(CHANGE_COLUMNS)] if self._is_feed else schema.names
        self._schema = worker_schema(schema)
        self._initial: Offset | None = None

    def initialOffset(self) -> Offset:  # type: ignore[override] # noqa: N802 as Spark names it
        """Return the offset before the first batch of a new query: always the same, for Spark asks again."""
        if self._initial is None:
            self._initial = self._find_initial()
        return self._initial

    def _find_initial(self) -> Offset:
        if not self._start:
            return _BEFORE_ALL
        table = self._place.open()
        start = find_start(self._start, table)
        first = table.as_of(max(1, (start or 1) - 1))
        return _BEFORE_FIRST if start == 1 else offset_of(first)

    def latestOffset(self) -> Offset:  # type: ignore[override] # noqa: N802 as Spark names it
        """Return the newest version. Spark does not say where the batch begins."""
        since: list[Any] | None = None
        if self._start.get("startingVersion", "").lower() == "latest":
            # A query that is started again begins elsewhere; other options name the same version every time.
            initial = self.initialOffset()
            since = [initial["version"], initial["commit"]]
        end = offset_of(self._place.open())
        if since is not None:
            end["since"] = since
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:  # type: ignore[override]
        """Return tasks of the snapshot, or ranges of versions."""
        if "since" in end and "since" not in start:
            # A query that did not survive its first batch may begin elsewhere now.
            version, commit = end["since"]
            start = {"version": version, "commit": commit}
        first, last = start["version"] + 1, end["version"]
        if start == end or (first > last and start["commit"] == end["commit"] and not is_in_snapshot(start)):
            return []
        table = self._place.open()
        check_offset(table, start)
        check_offset(table, end)
        tasks: list[InputPartition] = []
        if is_in_snapshot(start):
            # Without limits the batch after some of the files has the others, and what was committed meanwhile.
            snapshot = start["version"] or last
            tasks = self._split_snapshot(table.as_of(snapshot), (start.get("files", 0), end.get("files")))
            first = snapshot + 1
        if first > last:
            return tasks
        entries = table.as_of(last).history(last - first + 1)
        operations = [(entry["operation"]["name"], entry["version"]) for entry in entries]
        restores = [version for name, version in operations if name == "restore"]
        rewrites = [version for name, version in operations if name in REWRITES]
        step = -(-(last - first + 1) // _MOST_PARTITIONS)
        begins = range(first, last + 1, step)
        ranges = [_Range(begin, min(begin + step - 1, last), end, restores, rewrites) for begin in begins]
        return [*tasks, *map(InputPartition, ranges)]

    def _split_snapshot(self, version: Table, files: tuple[int, int | None]) -> list[InputPartition]:
        """Return tasks of some files of a version."""
        snapshot = with_columns(version, self._columns)
        # Raises, before the first batch, what would end the second one.
        snapshot.scan_changes(snapshot.version, columns=self._names)
        tasks = split_files(snapshot, self._names, files, **TASK_SIZES)
        if not self._is_feed:
            return [InputPartition(task) for task in tasks]
        created_at = snapshot.history(1)[0]["created_at"]
        return [InputPartition(_Snapshot(task, snapshot.version, created_at)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition."""
        freeze_worker_gc()
        batches: Iterable[pa.RecordBatch]
        if isinstance(partition.value, _Range):
            changes = self._read_changes(partition.value)
            batches = changes if self._is_feed else self._find_inserts(changes, partition.value)
        elif isinstance(partition.value, _Snapshot):
            batches = _as_inserts(partition.value)
        else:
            batches = partition.value.to_reader()
        return self._check_nulls(align_to_schema(batches, self._schema))

    def _check_nulls(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fail at a null in a column without nulls, for which Spark does not look."""
        for batch in batches:
            for field, column in zip(batch.schema, batch.columns, strict=True):
                if not field.nullable and column.null_count:
                    raise InvalidInput(
                        f"column {field.name!r} has nulls, since the table was altered after it was loaded; load it "
                        "again"
                    )
            yield batch

    def _read_changes(self, versions_to_read: _Range) -> Iterator[pa.RecordBatch]:
        """The rows that some versions deleted and inserted."""
        table = self._place.open()
        check_offset(table, versions_to_read.end)
        until = with_columns(table.as_of(versions_to_read.last), self._columns)
        changes = until.scan_changes(versions_to_read.first - 1, columns=self._names)
        yield from map(unfold, changes.to_reader())

    def _find_inserts(self, changes: Iterable[pa.RecordBatch], read: _Range) -> Iterator[pa.RecordBatch]:
        """The rows that are new. Those that a version deleted come before its own."""
        changed = set(read.restores)
        rewrites = pa.array(read.rewrites, pa.int64())
        for change in changes:
            # A compaction gives other rows if a column was dropped before.
            batch = change.filter(pc.invert(pc.is_in(change["_commit_version"], value_set=rewrites)))
            versions: Any = batch["_commit_version"]
            is_insert = pc.equal(batch["_change_type"], pa.scalar("insert"))
            changed.update(pc.unique(versions.filter(pc.invert(is_insert))).to_pylist())
            if changed and not self._ignore_deletes and not self._skip_changes:
                raise InvalidInput(
                    f"version {min(changed)} of the table deleted rows, which a stream cannot take back; set "
                    "ignoreDeletes or skipChangeCommits, or read the changes with Table.scan_changes"
                )
            is_changed = pc.is_in(versions, value_set=pa.array(sorted(changed), versions.type))
            replaced = pc.and_(is_insert, is_changed)
            if not self._skip_changes and pc.any(replaced).as_py():
                raise InvalidInput(
                    f"version {versions.filter(replaced)[0]} of the table replaced rows, which a stream cannot take "
                    "back; set skipChangeCommits, or read the changes with Table.scan_changes"
                )
            yield batch.select(self._names).filter(pc.and_not(is_insert, is_changed))

    def commit(self, end: Offset) -> None:  # type: ignore[override]
        """Do nothing: the offsets of a query are in its checkpoint."""

    def stop(self) -> None:
        """Do nothing: there is nothing to be closed."""


def _as_inserts(snapshot: _Snapshot) -> Iterator[pa.RecordBatch]:
    """The rows of a snapshot, with the columns that describe a change."""
    change: dict[str, Any] = {
        "_change_type": pa.scalar("insert"),
        "_commit_version": pa.scalar(snapshot.version, pa.int64()),
        "_commit_timestamp": pa.scalar(snapshot.created_at, pa.timestamp("us", "UTC")),
    }
    for batch in snapshot.task.to_reader():
        described = [pa.repeat(change[name], batch.num_rows) for name in CHANGE_COLUMNS]
        names = [*batch.schema.names, *CHANGE_COLUMNS]
        yield pa.RecordBatch.from_arrays([*batch.columns, *described], names=names)


def offset_of(table: Table) -> Offset:
    """Return the offset after a version."""
    return {"version": table.version, "commit": table.history(1)[0]["commit_id"]}


def _is_before_all(offset: Offset) -> bool:
    return offset["version"] == 0 and offset["commit"] == _BEFORE_ALL["commit"]


def is_in_snapshot(offset: Offset) -> bool:
    """Return whether files are still to be read of the version with which the query begins."""
    return "files" in offset or _is_before_all(offset)


def check_offset(table: Table, offset: Offset) -> None:
    """Check that an offset is one of the table, as `check_commit` does."""
    if offset["version"] > 0:
        check_commit(table, offset["version"], offset["commit"])


@dataclass
class _StagedBatch(WriterCommitMessage):
    """What a task has staged."""

    task: int
    files: bytes
    rows: int
    write: StagedWrite
    query: str


class TableStreamWriter(StreamArrowWriter):
    """Commits each batch of a query once. Spark makes one for the tasks of a batch, and another for its commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        check_options(options, _SINK_OPTIONS)
        self._place = TablePlace.parse(options)
        self._schema = dataset_schema(schema, case_sensitive=True)
        self._overwrite = overwrite
        self._write: StagedWrite | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Begin the write of a batch: only the writer that goes to its tasks is pickled."""
        if self._write is None:
            table = self._place.open()
            write = self._begin(table)
            # As in `TableWriter`.
            self._schema = fit_to_table(self._schema, write.schema, case_sensitive=False)
            check_columns(write, self._schema)
            self._write = write
        return self.__dict__

    def _begin(self, table: Table) -> StagedWrite:
        write, _ = StagedWrite.begin(
            table, overwrite=self._overwrite, where=None, idempotency_key=None, if_version=None
        )
        return write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Stage the rows of a partition."""
        freeze_worker_gc()
        context = task_context()
        query = context.getLocalProperty("sql.streaming.queryId")
        if self._write is None or query is None:
            raise CapabilityNotSupported(
                f"Spark {spark_version} does not run streams as versions 4.0 to 4.3 do, so that a batch could be "
                "written twice; use one of these, or pds.spark.append with an idempotency key in foreachBatch"
            )
        batches = check_batches(iterator)
        rows = 0

        def count() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in align_to_schema(batches, self._schema):
                rows += batch.num_rows
                yield batch

        files = self._write.stage(make_reader(self._schema, count()), context.cpus())
        return _StagedBatch(context.partitionId(), files, rows, self._write, query)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 as Spark names it
        """Commit what all partitions have staged, unless the batch was committed before.

        Raises:
            RemoteStoreError: A task has no message; see `check_messages`.
        """
        staged = sorted(check_messages(messages, _StagedBatch), key=lambda batch: batch.task)
        if not staged:
            # No task has said which query it is of, so a repeated batch deletes what is deleted.
            if self._overwrite:
                table = self._place.open()
                warn_of_exports(self._begin(table).commit(table, []))
            return
        write = staged[0].write.with_key(f"spark {staged[0].query} {batchId}")
        if any(batch.write.task != write.task for batch in staged):
            msg = "the tasks of a batch began at different versions"
            raise RuntimeError(msg)
        table = self._place.open()
        result = write.commit(table, [batch.files for batch in staged])
        warn_of_exports(result)
        if result.replayed:
            warn_of_other_rows(table, result.version, sum(batch.rows for batch in staged), batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803 as Spark names it
        """Remove what the tasks that ended have staged, if others failed; see `TableWriter.abort`."""
        for batch in messages if None in messages else ():
            if isinstance(batch, _StagedBatch):
                with contextlib.suppress(RemoteStoreError):
                    batch.write.discard([batch.files])


def warn_of_other_rows(table: Table, version: int, rows: int, batch: int) -> None:
    """Warn if a batch that was committed before had another number of rows: after a restore of an older checkpoint."""
    # The commit stands, whether or not it can be looked up.
    with contextlib.suppress(RemoteStoreError):
        committed = table.as_of(version).history(1)[0]["operation"].get("rows")
        if committed is not None and committed != rows:
            warnings.warn(
                f"batch {batch} of the query was committed before as version {version}, with {committed} rows, and has "
                f"{rows} rows now, which are not written; if the checkpoint is older than the table, rows are lost: "
                "restore the table to the time of the checkpoint, or begin with a new checkpoint",
                stacklevel=2,
            )

"""Reads ``format("pds")``: Spark plans in processes without a session, and each task opens its own data files.

Options: ``path``; ``version`` or ``versionAsOf``, ``timestamp`` or ``timestampAsOf`` (ISO 8601 with a time zone);
``columns``, separated by commas or as a JSON list; ``where``, SQL as for ``Table.scan``; ``storage.<name>`` for those
of the store. Spark tells a Python data source neither the columns nor the limit of a query: name columns by the
option or by a schema, or read by ``pds.spark.read_table``.

With ``readChangeFeed`` the rows are the changes of versions, as of ``Table.scan_changes``: ``startingVersion`` or
``startingTimestamp``, whose changes are included; ``endingVersion`` or ``endingTimestamp``, likewise; ``columns``.

Filters are not pushed down: Spark 4.3 keeps the partitions of the last planned query of a DataFrame for its next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from pds.errors import InvalidInput
from pds.spark.change_feed import split_changes
from pds.spark.options import (
    FEED,
    FEED_OPTIONS,
    READ_OPTIONS,
    STREAM_OPTIONS,
    TASK_SIZES,
    FixedVersion,
    TablePlace,
    check_commit,
    check_options,
    find_end,
    find_snapshot,
    find_start,
    parse_columns,
    parse_flag,
)
from pds.spark.schema import align_to_schema, frame_schema, worker_schema
from pds.spark.tasks import freeze_worker_gc
from pds.spark.versions import check_limits
from pds.table.scan import CHANGE_COLUMNS
from pds.table.tasks import pack_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from pds.spark.change_feed import ChangesTask
    from pds.table.tasks import ScanTask

__all__ = ["FeedReader", "TableReader", "fix_version"]


def fix_version(options: Mapping[str, str]) -> tuple[FixedVersion, StructType]:
    """Return the version that options of a query or a stream name, and the columns that they select."""
    names = parse_columns(options.get("columns"))
    check_limits(options)
    if parse_flag(options, FEED):
        check_options(options, (*FEED_OPTIONS, *STREAM_OPTIONS))
        snapshot = find_end(options)
        schema = snapshot.scan_changes(snapshot.version, columns=names).schema
    else:
        check_options(options, (*READ_OPTIONS, *STREAM_OPTIONS))
        snapshot = find_snapshot(options)
        schema = snapshot.scan(names, where=options.get("where")).schema
    commit_id = snapshot.history(1)[0]["commit_id"]
    return FixedVersion(snapshot.version, commit_id, pack_columns(snapshot)), frame_schema(schema)


class TableReader(DataSourceReader):
    """Reads a version of a table. If the user gave a schema no version was fixed before."""

    def __init__(self, options: Mapping[str, str], schema: StructType, version: FixedVersion | None) -> None:
        check_options(options, READ_OPTIONS)
        if version is None:
            self._snapshot = find_snapshot(options)
        else:
            newest = TablePlace.parse(options).open()
            check_commit(newest, version.version, version.commit_id)
            self._snapshot = newest.as_of(version.version)
        if parse_columns(options.get("columns")) not in (None, schema.names):
            raise InvalidInput("the option columns and a schema name the columns twice; leave one out")
        self._where = options.get("where")
        self._columns = schema.names
        self._schema = worker_schema(schema)
        _check_schema(frame_schema(self._snapshot.scan(self._columns, where=self._where).schema), schema)

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need, which open no table."""
        return {"_schema": self._schema}

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each task of the scan."""
        tasks = self._snapshot.scan_tasks(self._columns, where=self._where, **TASK_SIZES)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task."""
        freeze_worker_gc()
        # Spark adds a partition of None to an empty list.
        task: ScanTask | None = partition.value
        return iter(()) if task is None else align_to_schema(task.to_reader(), self._schema)


class FeedReader(DataSourceReader):
    """Reads the changes of the versions that options name."""

    def __init__(self, options: Mapping[str, str], schema: StructType, version: FixedVersion | None) -> None:
        check_options(options, FEED_OPTIONS)
        if version is None:
            raise InvalidInput("a change feed takes no schema; name columns by the option columns")
        newest = TablePlace.parse(options).open()
        check_commit(newest, version.version, version.commit_id)
        self._until = newest.as_of(version.version)
        start = find_start(options, self._until)
        if start is None:
            raise InvalidInput("a change feed needs the option startingVersion or startingTimestamp")
        self._since = start - 1
        self._names = schema.names[: -len(CHANGE_COLUMNS)]
        self._schema = worker_schema(schema)

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need, which open no table."""
        return {"_schema": self._schema}

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each version, or for several of many."""
        return [InputPartition(task) for task in split_changes(self._until, self._since, self._names)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of a task."""
        freeze_worker_gc()
        # As in `TableReader`.
        task: ChangesTask | None = partition.value
        return iter(()) if task is None else align_to_schema(task.to_reader(), self._schema)


def _check_schema(own: StructType, requested: StructType) -> None:
    """Check that a schema that the user gave is that of the table: a cast by Arrow is not one by Spark."""
    for column, requested_column in zip(own, requested, strict=True):
        # As text they are without comments, and without what may have nulls.
        types = column.dataType.simpleString(), requested_column.dataType.simpleString()
        if types[0] != types[1]:
            raise InvalidInput(
                f"column {column.name!r} of the table is {types[0]}, not {types[1]} as in the schema; leave the schema "
                "out, or cast afterwards"
            )
        nullable = zip(_list_nullable(column), _list_nullable(requested_column), strict=True)
        if any(has_nulls and not may_have_nulls for has_nulls, may_have_nulls in nullable):
            raise InvalidInput(
                f"column {column.name!r} of the table may have nulls, or its values may; leave NOT NULL out of the "
                "schema"
            )


def _list_nullable(field: StructField) -> Iterator[bool]:
    """Whether a column may have nulls, and then the elements, values and fields in it."""
    yield field.nullable
    data_type = field.dataType
    parts: Iterable[StructField] = ()
    if isinstance(data_type, ArrayType):
        parts = [StructField("element", data_type.elementType, data_type.containsNull)]
    elif isinstance(data_type, MapType):
        parts = [
            StructField("key", data_type.keyType, nullable=False),
            StructField("value", data_type.valueType, data_type.valueContainsNull),
        ]
    elif isinstance(data_type, StructType):
        parts = data_type.fields
    for part in parts:
        yield from _list_nullable(part)

"""Writes ``format("pds")``: the tasks stage data files, and the driver commits them by one commit.

Options: ``path``; for ``mode("overwrite")`` ``replaceWhere``, SQL as for ``Table.overwrite``; ``idempotencyKey`` and
``ifVersion`` as for ``Table.append``; ``storage.<name>`` for the options of the store. A table that does not exist is
created, unless ``ifVersion`` names a version of it. All its columns may have nulls, as those of tables that Spark
creates: that a DataFrame has none is a conclusion of its plan, and may not hold for the next one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pds import Store, Table
from pds.errors import AlreadyExists, InvalidInput, NotFound
from pds.readers import make_reader
from pds.spark.options import TablePlace, check_options, parse_positive
from pds.spark.schema import align_to_schema, check_columns, dataset_schema, fit_to_table
from pds.spark.tasks import check_messages, freeze_worker_gc, task_context, warn_of_exports
from pds.table.staged import StagedWrite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StagedFiles", "TableWriter"]

_OPTIONS: Final = ("replaceWhere", "idempotencyKey", "ifVersion")


@dataclass
class StagedFiles(WriterCommitMessage):
    """What a task has staged."""

    task: int
    files: bytes


class TableWriter(DataSourceArrowWriter):
    """Appends to a table or replaces its rows. Spark makes one, and sends it to the tasks and to the commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        check_options(options, _OPTIONS)
        where = options.get("replaceWhere")
        if where is not None and not overwrite:
            raise InvalidInput('replaceWhere needs mode("overwrite")')
        if_version = parse_positive(options, "ifVersion")
        place = TablePlace.parse(options)
        key = options.get("idempotencyKey")
        begin = functools.partial(StagedWrite.begin, overwrite=overwrite, where=where, idempotency_key=key)
        try:
            table = place.open()
        except NotFound:
            if if_version is not None:
                raise
            columns = dataset_schema(schema.toNullable(), case_sensitive=True)
            # Raises what is wrong with the options and the columns while there is no table.
            begin(Table.create(Store("memory://"), "table", columns), if_version=None)
            table = _create(place, columns)
        self._write, replay = begin(table, if_version=if_version)
        self._is_replayed = replay is not None
        written = dataset_schema(schema, case_sensitive=True)
        # A process that plans does not know the session; by default it is not case-sensitive.
        self._schema = fit_to_table(written, self._write.schema, case_sensitive=False)
        if not self._is_replayed:
            check_columns(self._write, self._schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Stage the rows of a partition."""
        freeze_worker_gc()
        context = task_context()
        if self._is_replayed:
            return StagedFiles(context.partitionId(), b"")
        reader = make_reader(self._schema, align_to_schema(iterator, self._schema))
        return StagedFiles(context.partitionId(), self._write.stage(reader, context.cpus()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit what all partitions have staged, in their order.

        Raises:
            RemoteStoreError: A task has no message; see `check_messages`.
        """
        if not self._is_replayed:
            staged = sorted(check_messages(messages, StagedFiles), key=lambda staged: staged.task)
            table = Table(self._write.store, self._write.path)
            warn_of_exports(self._write.commit_once(table, [each.files for each in staged]))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what the tasks that ended have staged, if others failed.

        Spark calls this after a commit that failed, too, whose outcome may be unknown.
        """
        if None in messages and not self._is_replayed:
            self._write.discard([staged.files for staged in messages if isinstance(staged, StagedFiles)])


def _create(place: TablePlace, schema: pa.Schema) -> Table:
    store, path = place.split()
    try:
        return Table.create(store, path, schema)
    except AlreadyExists:
        return Table(store, path)

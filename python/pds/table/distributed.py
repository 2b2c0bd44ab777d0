"""Writes of many processes that one commit makes visible, for engines such as Dask, Ray and Daft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds.arguments import arrow_stream
from pds.errors import InvalidType
from pds.table.checks import check_size
from pds.table.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pds.arguments import ArrowStream
    from pds.table.results import CommitResult
    from pds.table.staged import StagedWrite


class TableWrite:
    """An append or an overwrite in two steps: any process prepares files, and one process commits them. Can be pickled.

    `Table.begin_write` makes it. Pickled, it has the options of the store, credentials that were passed among them.

    Attributes:
        committed: The result of an earlier commit with the idempotency key, or None. If it is not None, there is
            nothing left to prepare, and `commit` returns this result.
    """

    def __init__(self, write: StagedWrite, table: Table | None, committed: CommitResult | None) -> None:
        self._write = write
        self._table = table
        self.committed = committed

    def __reduce__(self) -> tuple[Any, ...]:
        # Other processes need no snapshot, which a vacuum may remove meanwhile.
        return TableWrite, (self._write, None, self.committed)

    def __repr__(self) -> str:
        return f"TableWrite({self._write.store!r}, {self._write.path!r})"

    def prepare(self, data: ArrowStream, *, threads: int | None = None) -> bytes:
        """Write rows as data files, which no reader sees before `commit`.

        Args:
            data: As for `Table.append`. A stream is written in bounded memory.
            threads: The number of threads that encode. Defaults to one for each processor.

        Returns:
            A message for `commit`, which lists the files. A vacuum removes files whose message was lost.

        Raises:
            InvalidInput: A column does not exist in the table, has a type whose values could be lost, or has a null and
                is not nullable; or a row does not match the filter of the overwrite.
            InvalidType: An argument has an invalid type.
        """
        count = None if threads is None else check_size("threads", threads, "threads")
        rows = arrow_stream(data)
        return self._write.stage(rows.to_reader() if isinstance(rows, pa.Table) else rows, count)

    def commit(self, messages: Iterable[bytes]) -> CommitResult:
        """Commit prepared files as one version, in the order of the messages.

        The same call again, also by another process that has the write, changes nothing and returns the first result
        with `replayed=True`. So repeat it after CommitStateUnknown. Files stay after an error; `abort` removes them.

        Args:
            messages: The results of `prepare`, of one attempt of each task. A message that is there twice counts once.

        Raises:
            InvalidInput, InvalidType: A message is not the result of `prepare`.
            CommitConflict, CommitStateUnknown: As for `Table.append`.
            TransactionExpired: As for `Table.append`; or the version at which the write began has been vacuumed, or the
                table was dropped and created again since then. Nothing was committed.
        """
        lists = _check_messages(messages)
        if self.committed is not None:
            return self.committed
        if self._table is None:
            self._table = Table(self._write.store, self._write.path)
        return self._write.commit(self._table, lists)

    def abort(self, messages: Iterable[bytes]) -> None:
        """Remove prepared files.

        Call it only if `commit` was not called, or if it raised another error than CommitStateUnknown.

        Raises:
            InvalidInput, InvalidType: A message is not the result of `prepare`.
        """
        self._write.discard(_check_messages(messages))


def _check_messages(messages: Iterable[bytes]) -> list[bytes]:
    if isinstance(messages, bytes | str):
        raise InvalidType("messages must be a list of the results of prepare, not one of them")
    lists = list(dict.fromkeys(messages))
    for message in lists:
        if not isinstance(message, bytes):
            raise InvalidType(f"messages must be results of prepare, not {type(message).__name__}")
    return lists

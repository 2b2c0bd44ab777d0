"""Writes of many processes that one commit makes visible, for engines such as Dask, Ray and Daft."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pds.errors import InvalidInput, InvalidType
from pds.streams import read_stream
from pds.table.checks import check_size
from pds.table.table import Table

if TYPE_CHECKING:
    from pds.streams import ArrowStream
    from pds.table.results import CommitResult
    from pds.table.staged import StagedWrite


# The length of the id of a write, with which each of its messages begins.
_ID_BYTES: Final = 16


class TableWrite:
    """An append or an overwrite in two steps: any process prepares files, and one process commits them. Can be pickled.

    `Table.begin_write` makes it. Pickled, it has the options of the store, credentials that were passed among them.

    Attributes:
        committed: The result of an earlier commit with the idempotency key, or None. If it is not None, there is
            nothing left to prepare, and `commit` returns this result.
    """

    def __init__(
        self, write: StagedWrite, table: Table | None, committed: CommitResult | None, *, write_id: bytes, own_key: bool
    ) -> None:
        self._write = write
        self._table = table
        self._id = write_id
        # Whether the caller gave the idempotency key.
        self._own_key = own_key
        self._lists: list[bytes] = []
        self.committed = committed

    def __getstate__(self) -> dict[str, Any]:
        # Other processes need no snapshot, which a vacuum may remove meanwhile.
        return {**self.__dict__, "_table": None}

    def __repr__(self) -> str:
        return f"TableWrite({self._write.store!r}, {self._write.path!r})"

    def prepare(self, data: ArrowStream, *, threads: int | None = None) -> bytes:
        """Write rows as data files, which no reader sees before `commit`.

        Args:
            data: As for `Table.append`. A stream is written in bounded memory.
            threads: The number of threads that encode. Defaults to one for each processor.

        Returns:
            A message for `commit` of this write, which lists the files. A vacuum removes files that were not committed.

        Raises:
            InvalidInput: A column does not exist in the table, has a type whose values could be lost, or has a null and
                is not nullable; or a row does not match the filter of the overwrite.
            InvalidType: An argument has an invalid type.
        """
        count = None if threads is None else check_size("threads", threads, "threads")
        with read_stream(data) as rows:
            return self._id + self._write.stage(rows.to_reader() if isinstance(rows, pa.Table) else rows, count)

    def commit(self, messages: Iterable[bytes]) -> CommitResult:
        """Commit prepared files as one version, in the order of the messages.

        The same call again, also by another process that has the write, changes nothing and returns the first result
        with `replayed=True`. So repeat it after CommitStateUnknown. Further messages of the write are a further commit,
        unless an idempotency key was given to `begin_write`: then only the first commit counts. A message belongs in
        one commit. After an error, files stay until a vacuum removes them: an earlier call may have committed them.

        Args:
            messages: The results of `prepare` of this write, of one attempt of each task. A message that is there twice
                counts once.

        Raises:
            InvalidInput: A message is of another write, or was committed together with others.
            InvalidType: A message is not the result of `prepare`.
            CommitConflict, CommitStateUnknown: As for `Table.append`.
            TransactionExpired: As for `Table.append`; or the version at which the write began has been vacuumed, or the
                table was dropped and created again since then. Nothing was committed.
        """
        lists = self._check_messages(messages)
        if self.committed is not None:
            return self.committed
        write = self._write
        if not self._own_key:
            if set(lists) != set(self._lists) and not set(lists).isdisjoint(self._lists):
                raise InvalidInput("some of these messages were committed before; pass the same ones, or further ones")
            digests = sorted(hashlib.sha256(message).digest() for message in lists)
            digest = hashlib.sha256(b"".join(digests)).hexdigest()
            write = write.with_key(f"{write.commit_options.idempotency_key} {digest}")
        if self._table is None:
            self._table = Table(write.store, write.path)
        result = write.commit(self._table, lists)
        self._lists = lists
        return result

    def _check_messages(self, messages: Iterable[bytes]) -> list[bytes]:
        """Return the lists of files of messages, each once."""
        if isinstance(messages, bytes | str):
            raise InvalidType("messages must be a list of the results of prepare, not one of them")
        if not isinstance(messages, Iterable):
            raise InvalidType(f"messages must be a list of the results of prepare, not {type(messages).__name__}")
        lists = list(messages)
        for message in lists:
            if not isinstance(message, bytes):
                raise InvalidType(f"messages must be results of prepare, not {type(message).__name__}")
            if message[:_ID_BYTES] != self._id:
                raise InvalidInput("a message is not of this write: pass the results of its own prepare")
        return [message[_ID_BYTES:] for message in dict.fromkeys(lists)]

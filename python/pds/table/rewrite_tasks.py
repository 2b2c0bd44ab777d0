"""Compaction by many processes: one chooses groups of files, others rewrite a group each, one commits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pds import _pds
from pds.errors import InvalidInput
from pds.predicate import to_predicate
from pds.store import native_handle
from pds.table.checks import check_size

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from pds.options import WriteOptions
    from pds.store import Store
    from pds.table.results import CommitResult
    from pds.table.table import Table

    Where = str | pc.Expression


@dataclass(frozen=True)
class RewriteTask:
    """A group of files to rewrite, to be pickled and sent to another process."""

    store: Store
    path: str
    options: WriteOptions
    files: bytes

    def run(self, threads: int | None = None) -> list[bytes]:
        """Write new files, and return messages for `Rewrite.commit`."""
        return [_pds.rewrite_task(native_handle(self.store), self.path, self.files, self.options, threads)]


class Rewrite:
    """A compaction of the snapshot that a table shows.

    Attributes:
        tasks: The groups of files that `Optimize.compact` would rewrite.

    Args:
        table: The table. After each commit it shows the new version.
        target_file_size: As for `Optimize.compact`.
        where: As for `Optimize.compact`.
    """

    def __init__(self, table: Table, target_file_size: int, where: Where | None) -> None:
        size = check_size("target_file_size", target_file_size)
        predicate = None if where is None else to_predicate(where, table.schema)
        location, self._table = table._location, table  # noqa: SLF001 of the same package
        self._base = table._handle  # noqa: SLF001 as above
        self._is_committed = False
        groups = _pds.plan_rewrites(self._base, size, predicate)
        self.tasks = [RewriteTask(table.store, table.path, location.options, files) for files in groups]

    def commit(self, messages: list[bytes]) -> CommitResult | None:
        """Commit the groups of messages, each by a commit of its own.

        It removes files that it cannot commit, so it can be called once, with one message of each task.

        Returns:
            As `Optimize.compact`.

        Raises:
            InvalidInput: It was called before, or there is a message twice. Nothing is removed.
            CommitConflict: As `Optimize.compact`: others have changed the files of all groups.
        """
        if self._is_committed or len(set(messages)) < len(messages):
            raise InvalidInput("the messages of rewritten files were given to commit before; plan the rewrite again")
        self._is_committed = True
        return self._table._rewrite(  # noqa: SLF001 as above
            lambda _, options, timeout: _pds.commit_rewrites(self._base, messages, options, timeout)
        )

"""A sort by many processes: they sort groups of files, then write ranges of keys; one process commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pds import _pds
from pds.errors import InvalidInput
from pds.store import native_handle
from pds.table.checks import check_names, check_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pds.options import WriteOptions
    from pds.store import Store
    from pds.table.results import CommitResult
    from pds.table.table import Table


@dataclass(frozen=True)
class SortTask:
    """A group of files to sort, to be pickled and sent to another process."""

    store: Store
    path: str
    options: WriteOptions
    files: bytes
    by: list[int]

    def run(self, threads: int | None = None) -> list[bytes]:
        """Write the rows in sorted order, and return a message for `Sort.split`."""
        store = native_handle(self.store)
        return [_pds.sort_task(store, self.path, self.files, self.by, self.options, threads)]


@dataclass(frozen=True)
class RangeTask:
    """A range of keys to write, to be pickled and sent to another process."""

    store: Store
    path: str
    options: WriteOptions
    files: bytes
    key_range: bytes
    by: list[int]

    def run(self, threads: int | None = None) -> list[bytes]:
        """Write the rows of the range, and return a message for `Sort.commit`."""
        task = (self.files, self.key_range, self.by)
        return [_pds.range_task(native_handle(self.store), self.path, task, self.options, threads)]


class Sort:
    """A sort of the snapshot that a table shows.

    First the `tasks` are run, then those of `split`, then `commit` is called; or `discard`, if something failed.

    Attributes:
        tasks: The groups of files; a group alone is not worth the second round.

    Args:
        table: The table. After the commit it shows the new version.
        by: As for `Optimize.sort`.
        target_file_size: As for `Optimize.sort`.
        count: The number of groups, unless their sizes would be beyond the limits.
        min_bytes: The least size of a group, in bytes.
        max_bytes: The most bytes of a group of more than one file.
    """

    def __init__(
        self,
        table: Table,
        by: str | Sequence[str] | None,
        target_file_size: int,
        *,
        count: int,
        min_bytes: int,
        max_bytes: int,
    ) -> None:
        self._size = check_size("target_file_size", target_file_size)
        names = None if by is None else check_names("by", by)
        location, self._table = table._location, table  # noqa: SLF001 of the same package
        self._base = table._handle  # noqa: SLF001 as above
        plan = _pds.plan_sort(self._base, names, count, min_bytes, max_bytes)
        self._by = plan["by"]
        self._place = (table.store, table.path, location.options)
        self._runs: list[bytes] | None = None
        self._is_ended = False
        self.tasks = [SortTask(*self._place, files, self._by) for files in plan["tasks"]]

    def split(self, messages: list[bytes]) -> list[RangeTask]:
        """Return the tasks of the second round, for one message of each task of the first."""
        self._runs = messages
        plan = _pds.plan_ranges(self._base, self._by, messages, self._size)
        runs = plan["runs"]
        return [RangeTask(*self._place, runs, key_range, self._by) for key_range in plan["ranges"]]

    def commit(self, messages: list[bytes]) -> CommitResult | None:
        """Commit what the tasks of the second round have written, in their order.

        It can be called once, because it removes files: those of the first round, and all others that it cannot commit.

        Returns:
            As `Optimize.sort`.

        Raises:
            InvalidInput: The sort has ended, or there is not one message of each task. Then nothing is removed.
            CommitConflict: Others have changed the files or their deletions.
        """
        if self._runs is None or self._is_ended:
            raise InvalidInput("a sort is committed once, after both rounds; plan it again")
        runs = self._runs
        try:
            result = self._table._rewrite(  # noqa: SLF001 of the same package
                lambda _, options, timeout: _pds.commit_sort(self._base, runs, messages, options, timeout)
            )
        except InvalidInput:
            raise
        except BaseException:
            self._is_ended = True
            raise
        self._is_ended = True
        return result

    def discard(self) -> None:
        """Remove what the first round has written."""
        if self._runs is not None and not self._is_ended:
            self._is_ended = True
            _pds.discard_runs(self._base, self._runs)

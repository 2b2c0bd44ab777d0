"""A vacuum by many processes: one commits and decides what goes, others remove it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pds import _pds
from pds.arguments import require_timedelta
from pds.store import native_handle
from pds.table.results import VacuumResult

if TYPE_CHECKING:
    from datetime import timedelta

    from pds.store import Store
    from pds.table.table import Table


@dataclass(frozen=True)
class RemoveTask:
    """Some objects to remove, to be pickled and sent to another process.

    It may run late, or more than once: the names of files do not recur, and manifests go by their ETags. A table that
    was dropped meanwhile, created anew or brought back from a copy is left alone, and so is that of another store,
    which a worker that does not share the file system may see.
    """

    store: Store
    path: str
    # The version and the commit of the vacuum.
    vacuum: tuple[int, str]
    files: list[str]
    manifests: list[tuple[str, str | None]]

    def run(self, _threads: int | None = None) -> list[bytes]:
        """Remove the objects; there is nothing to report.

        Raises:
            TransactionExpired, NotFound: The table that this process sees is not the one of the vacuum.
            InvalidPath: A folder of the table is a symbolic link here.
        """
        _pds.remove_expired(native_handle(self.store), self.path, self.vacuum, self.files, self.manifests)
        return []


class Vacuum:
    """A vacuum that is committed: no version names what the `tasks` remove, and none will. Then `end` is called.

    Attributes:
        tasks: What is to be removed, in parts.
        result: As of `Table.vacuum`.

    Args:
        table: The table.
        retention: As for `Table.vacuum`.
        objects: The most objects of a task, unless there would be more than `max_tasks`.
        max_tasks: The most tasks.

    Raises:
        InvalidInput, InvalidType, InvalidPath, CommitConflict, CommitStateUnknown, ExportConflict: As `Table.vacuum`.
    """

    def __init__(self, table: Table, retention: timedelta, *, objects: int, max_tasks: int) -> None:
        self._seconds = require_timedelta("retention", retention)
        self._table = table
        timeout = table._location.timeout  # noqa: SLF001 of the same package
        expired = _pds.begin_vacuum(table._handle, self._seconds, timeout)  # noqa: SLF001 as above
        files, manifests = expired["files"], list(zip(expired["manifests"], expired["e_tags"], strict=True))
        self.result = VacuumResult(expired["oldest_version"], files, expired["manifests"], expired["bytes"])
        total = len(files) + len(manifests)
        step = max(objects, math.ceil(total / max_tasks))
        # As if the manifests came after the files in one list.
        self.tasks = [
            RemoveTask(
                table.store,
                table.path,
                (expired["version"], expired["commit_id"]),
                files[first : first + step],
                manifests[max(0, first - len(files)) : max(0, first + step - len(files))],
            )
            for first in range(0, total, step)
        ]

    def end(self) -> None:
        """Remove what exports have no more use for, and show the newest version."""
        _pds.end_vacuum(self._table._handle, self._seconds)  # noqa: SLF001 of the same package
        self._table._show_vacuumed()  # noqa: SLF001 as above

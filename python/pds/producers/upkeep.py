"""Upkeep of pipelines: what is stored is removed, renamed, tagged, compacted and vacuumed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pds import _pds
from pds.arguments import require_text, require_timedelta
from pds.defaults import RETENTION
from pds.errors import InvalidInput, InvalidType
from pds.flags import require_bool
from pds.producers.declarations import Declarations
from pds.producers.graph import UpdateArguments
from pds.producers.results import CompactResult
from pds.progress import ProgressArgument, reported
from pds.table.checks import check_idempotency_key, check_limit, check_version
from pds.table.results import History, VacuumResult, make_history_entry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from pds.producers.engine import BoundEngine, Engine
    from pds.producers.graph import Node


class Upkeep(Declarations):
    """What a process declares of a pipeline, with methods for what is stored of it."""

    _memory_limit: int
    _engine: Engine | None
    _page_rows: int | None
    _file_rows: int | None

    @property
    def path(self) -> str:
        """The folder of the pipeline."""
        return self._location.path

    def remove(self, *names: str) -> int:
        """Remove sources and stages from the stored pipeline, with their rows; older versions have them until a vacuum.

        A process that still declares them is refused. A stage may come back with a higher version, or by `rebuild`; a
        source by another name only. Idempotency keys of updates that pushed its rows stay used.

        Args:
            names: Their names.

        Returns:
            The new version.

        Raises:
            NotFound: The pipeline has no version yet, or no such source or stage.
            InvalidInput: A stage that stays is fed by one of them, or there is no name.
            InvalidType: A name is not a text.
        """
        if not names:
            raise InvalidInput("name the sources and stages to remove")
        checked = [require_text("a name", name) for name in names]
        location = self._location
        return _pds.remove_from_pipeline(location.handle, self.path, checked, location.timeout)

    def rename(self, old: str, new: str) -> int:
        """Give a source or stage of the stored pipeline another name. Declare it by that name from then on.

        In a `join_rows` a value that is no struct is a field with the name of its feeder. If that gets another name, so
        does the field: updates ask for a `rebuild` of the join, which makes new tables for it.

        Returns:
            The new version.

        Raises:
            NotFound: The pipeline has no version yet, or no such source or stage.
            InvalidInput: The new name is taken, or cannot be a name.
            InvalidType: A name is not a text.
        """
        names = require_text("old", old), require_text("new", new)
        location = self._location
        return _pds.rename_in_pipeline(location.handle, self.path, *names, location.timeout)

    def was_committed(self, commit_id: str) -> int | None:
        """Return the version that a commit made, or None if it was not committed. Use it after CommitStateUnknown.

        Raises:
            VersionExpired: No version that is left is of this commit, and one that has been vacuumed may be.
        """
        return _pds.find_pipeline_commit(self._location.handle, self.path, require_text("commit_id", commit_id))

    @property
    def tags(self) -> dict[str, int]:
        """The tagged versions of the newest version, by tag. A vacuum keeps them."""
        handle = self._open()
        return {} if handle is None else json.loads(handle.manifest())["tags"]

    def tag(self, name: str, version: int | None = None) -> int:
        """Tag a version: a vacuum keeps it, and `as_of` takes the tag.

        Args:
            name: The tag, up to 255 bytes.
            version: The version. Defaults to the newest one.

        Returns:
            The new version of the pipeline, in which no row is another.

        Raises:
            NotFound: The pipeline has no version yet.
            AlreadyExists: The tag names another version.
            VersionExpired: The version does not exist, or a vacuum removed it.
            InvalidInput, InvalidType: The name or the version is not valid.
        """
        location, name = self._location, require_text("the name of a tag", name)
        version = self.version if version is None else check_version(version)
        return _pds.tag_pipeline(location.handle, self.path, name, version, location.timeout)

    def untag(self, name: str) -> int:
        """Remove a tag. The version stays until a vacuum removes it.

        Returns:
            The new version of the pipeline.

        Raises:
            NotFound: There is no such tag, or the pipeline has no version yet.
            InvalidType: The name is not a text.
        """
        location = self._location
        return _pds.tag_pipeline(
            location.handle, self.path, require_text("the name of a tag", name), None, location.timeout
        )

    @property
    def version(self) -> int:
        """The newest version; 0 before the first update."""
        handle = self._open()
        return 0 if handle is None else handle.version

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the commits, newest first, without those that a vacuum removed.

        Args:
            limit: The maximum number of versions. Defaults to all versions.

        Returns:
            A dict for each version: `version`, `created_at`, `commit_id` and `operation` (a name and counts).
        """
        checked_limit = check_limit(limit)
        handle = self._open()
        if handle is None:
            return History()
        entries = handle.history(handle.version if checked_limit is None else checked_limit)
        return History(make_history_entry(json.loads(entry)) for entry in entries)

    def compact(self, *, min_delta: float = 0.25, progress: ProgressArgument = False) -> CompactResult:
        """Merge the runs of each table into fewer. No row changes, and no update conflicts with it.

        Args:
            min_delta: The newer runs of a table are merged into one. If they have at least this fraction of the bytes
                of the oldest one, that is rewritten too, and the table has one run. 0 merges all runs of all tables.
            progress: As for `Table.append`. Files and bytes are those that are written.

        Raises:
            InvalidInput: The fraction is negative.
            InvalidType: The fraction is not a number.
            NotFound: The pipeline has no version yet.
        """
        if isinstance(min_delta, bool) or not isinstance(min_delta, int | float):
            raise InvalidType(f"min_delta must be a number, not {min_delta!r}")
        if not min_delta >= 0:
            raise InvalidInput(f"min_delta must not be negative, not {min_delta}")
        arguments = self._make_arguments()
        with reported("compact", progress):
            fields = _pds.compact_pipeline(self._location.handle, self.path, float(min_delta), arguments)
        return CompactResult(**fields)

    def vacuum(
        self,
        retention: timedelta = RETENTION,
        *,
        dry_run: bool = False,
        progress: ProgressArgument = False,
    ) -> VacuumResult:
        """Remove versions that were replaced more than `retention` ago, and the files that only they reference.

        Args:
            retention: How long a replaced version can be read. Files of updates that run longer are removed, and such
                an update begins again.
            dry_run: Whether to report what would be removed, and remove nothing.
            progress: As for `Table.vacuum`.

        Raises:
            InvalidInput: The retention is negative.
            InvalidType: An argument has an invalid type.
            InvalidPath: A folder of the pipeline is a symbolic link of local files. Nothing was removed.
            NotFound: The pipeline has no version yet.
        """
        seconds = require_timedelta("retention", retention)
        require_bool("dry_run", dry_run)
        location = self._location
        with reported("vacuum", progress):
            fields = _pds.vacuum_pipeline(location.handle, self.path, seconds, dry_run, location.timeout)
        return VacuumResult(**fields)

    def _make_arguments(
        self,
        base_version: int | None = None,
        idempotency_key: str | None = None,
        nodes: Sequence[Node] | None = None,
    ) -> UpdateArguments:
        if base_version is not None and (base_version != 0 or isinstance(base_version, bool)):
            check_version(base_version, "base_version")
        return UpdateArguments(
            base_version=base_version,
            idempotency_key=check_idempotency_key(idempotency_key),
            memory_limit=self._memory_limit,
            page_rows=self._page_rows,
            file_rows=self._file_rows,
            commit_timeout=self._location.timeout,
            rebuilt=[],
            rebuilds_changed=False,
            engine=self._bind_engine(nodes),
        )

    def _bind_engine(self, nodes: Sequence[Node] | None = None) -> BoundEngine | None:
        if self._engine is None:
            return None
        declared = list(self._nodes.values()) if nodes is None else nodes
        return self._engine.bind(self._location.store, self.path, declared)

    def _open(self) -> _pds.PipelineHandle | None:
        return _pds.PipelineHandle.open(self._location.handle, self.path, None)

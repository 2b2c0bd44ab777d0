"""What commits and vacuums tell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommitResult:
    """What a commit did.

    Args:
        version: The version it made.
        commit_id: Its identity; `Table.was_committed` finds it again.
        rows: Rows written or deleted; None where a delete did not count them.
        files: Data files written.
        bytes: Bytes of what was written beside manifest and pointer.
        requests: Requests of the store while it ran, those of other threads included.
        attempts: How often the commit was tried.
        waited: Seconds it waited for other writers.
        replayed: It had been committed before, under the same idempotency key.
    """

    version: int
    commit_id: str
    rows: int | None
    files: int
    bytes: int
    requests: int
    attempts: int
    waited: float
    replayed: bool


@dataclass(frozen=True)
class CheckResult:
    """What a check of a table found. Paths are relative to the table.

    Args:
        version: The newest version, whose sizes were compared.
        missing: Objects that a version names and that are not there.
        mismatched: Objects of the newest version with another length than it says.
        orphans: Data files, tombstones and lists of files that no version names: of writes that failed
            or are under way. A vacuum removes them.
    """

    version: int
    missing: list[str]
    mismatched: list[str]
    orphans: list[str]

    @property
    def ok(self) -> bool:
        """Whether everything is there; orphans do no harm."""
        return not self.missing and not self.mismatched


@dataclass(frozen=True)
class ScanPlan:
    """What a scan reads. What it passes over it knows from statistics.

    Args:
        files: Data files of the snapshot.
        files_read: Those that may hold rows.
        row_groups: Row groups of the files that are read.
        row_groups_read: Those that may hold rows.
        rows_read: Rows of these, deleted ones included.
        tombstones_read: Files that say what is deleted of the files that are read.
    """

    files: int
    files_read: int
    row_groups: int
    row_groups_read: int
    rows_read: int
    tombstones_read: int


@dataclass(frozen=True)
class VacuumResult:
    """What a vacuum removed, or would remove.

    Args:
        oldest_version: The oldest version there is now.
        files: Data and tombstone files, relative to the table.
        manifests: Manifests, relative to the table.
        bytes: Bytes of all of them.
    """

    oldest_version: int
    files: list[str]
    manifests: list[str]
    bytes: int

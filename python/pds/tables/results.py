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

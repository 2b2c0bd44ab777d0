"""What commits and vacuums tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

if TYPE_CHECKING:
    from pds._pds import _Outcome


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

    @classmethod
    def of(cls, outcome: _Outcome, requests: int) -> Self:
        """What the engine tells."""
        version, commit_id, attempts, waited, replayed, rows, files, size = outcome
        return cls(version, commit_id, rows, files, size, requests, attempts, waited, replayed)


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


def files_of(files: list[tuple[str, int, int, int]]) -> pa.Table:
    """A snapshot's data files."""
    counts = ("size_bytes", "row_group_count", "total_rows")
    fields: dict[str, pa.DataType] = {"path": pa.string(), **dict.fromkeys(counts, pa.uint64())}
    schema = pa.schema(fields)
    columns = zip(*files, strict=True) if files else [()] * len(schema)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def entry_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """A version in a table's history."""
    return {
        "version": manifest["version"],
        "created_at": datetime.fromisoformat(manifest["created_at"]),
        "commit_id": manifest["commit_id"],
        "operation": manifest["operation"],
    }

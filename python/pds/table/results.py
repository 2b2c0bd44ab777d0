"""The results of operations on tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from pds.display import Listing, Result, Summarized, Summary, list_columns
from pds.table.charts import Bar, Chart, format_count

if TYPE_CHECKING:
    from pds.engine_types import CommitFields
    from pds.errors import RemoteStoreError


@dataclass(frozen=True, repr=False)
class CommitResult(Result):
    """The result of a commit.

    Args:
        version: The new version of the table.
        commit_id: The identifier of the commit, for `Table.was_committed`.
        rows: The number of rows written or deleted. None if a delete did not count them.
        files: The number of data files written.
        bytes: The number of bytes written, without the manifest and the pointer.
        requests: The number of requests to the store during the commit, including those of other threads.
        attempts: The number of attempts to commit.
        waited: The time spent waiting for other writers, in seconds.
        replayed: Whether a commit with the same idempotency key existed already, so that nothing was committed.
        exports: What became of the exports after the commit (`Table.exports`): for each format its result, or the error
            because of which it was not exported. The commit stands, and the next export writes all versions since.
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
    exports: dict[str, ExportResult | RemoteStoreError] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, commit: CommitFields, requests: int, exports: dict[str, ExportResult | RemoteStoreError]) -> Self:
        """Return the result for the commit that the engine reports, the number of requests, and its exports."""
        return cls(requests=requests, exports=exports, **commit)

    @classmethod
    def nothing(cls, version: int, requests: int) -> Self:
        """Return the result of an operation that had nothing to commit."""
        return cls(version, "", rows=0, files=0, bytes=0, requests=requests, attempts=0, waited=0.0, replayed=False)


@dataclass(frozen=True, repr=False)
class CheckResult(Result):
    """The result of a check of a table. Paths are relative to the table.

    Args:
        version: The newest version, whose file sizes were compared.
        missing: Objects that a version references and that do not exist.
        mismatched: Objects of the newest version whose size differs from the size in its metadata.
        orphans: Data files, tombstones and lists of files that no version references. They belong to writes that
            failed or are running. A vacuum removes them.
    """

    version: int
    missing: list[str]
    mismatched: list[str]
    orphans: list[str]

    @property
    def ok(self) -> bool:
        """Whether no object is missing or has a wrong size. Orphans do no harm."""
        return not self.missing and not self.mismatched


@dataclass(frozen=True, repr=False)
class VerifyResult(Result):
    """The result of a verification of a snapshot.

    Args:
        version: The version of the snapshot.
        files: The number of data files.
        rows: The number of rows in the files without damage, including deleted rows.
        bytes: The size of the files without damage, in bytes.
        problems: The objects that are missing or damaged, sorted: the path, relative to the table, and the reason. The
            files of a damaged list of files are not verified.
    """

    version: int
    files: int
    rows: int
    bytes: int
    problems: list[tuple[str, str]]

    @property
    def ok(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not self.problems


@dataclass(frozen=True, repr=False)
class ScanPlan(Result):
    """The files and row groups that a scan reads. Statistics prune the others.

    Args:
        files: The number of data files in the snapshot.
        files_read: The number of data files that may have matching rows.
        row_groups: The number of row groups in the files that are read.
        row_groups_read: The number of row groups that may have matching rows.
        rows_read: The number of rows in these row groups, including deleted rows.
        tombstones_read: The number of tombstone files for the files that are read.
    """

    files: int
    files_read: int
    row_groups: int
    row_groups_read: int
    rows_read: int
    tombstones_read: int

    def plot(self) -> Chart:
        """Return a chart of what is read and what is pruned: `print` it, or show it in a notebook."""
        counts = (
            ("files", self.files_read, self.files),
            ("row groups", self.row_groups_read, self.row_groups),
        )
        bars = tuple(
            Bar(label, 0.0 if read else None, read / total if read else 0.0, f"{read:,} of {total:,} read")
            for label, read, total in counts
        )
        rows, tombstones = format_count(self.rows_read, "row"), format_count(self.tombstones_read, "tombstone file")
        return Chart(f"{rows} and {tombstones} read", bars)


@dataclass(frozen=True, repr=False)
class ExportResult(Result):
    """The result of an export.

    Args:
        version: The newest version of the table that the export has.
        versions: The number of versions that were written.
        bytes: The number of bytes written.
    """

    version: int
    versions: int
    bytes: int


@dataclass(frozen=True, repr=False)
class IcebergExportResult(ExportResult):
    """The result of an export to Iceberg.

    Args:
        version: The newest version of the table that the export has.
        versions: The number of versions that were written: 0 or 1.
        bytes: The number of bytes written.
        metadata_location: The URL of the newest metadata, as catalogs register it.
    """

    metadata_location: str


@dataclass(frozen=True, repr=False)
class VacuumResult(Result):
    """The objects that a vacuum removed, or would remove. Paths are relative to the table.

    Args:
        oldest_version: The oldest version that remains.
        files: The paths of data and tombstone files.
        manifests: The paths of manifests.
        bytes: The size of all these objects, in bytes.
    """

    oldest_version: int
    files: list[str]
    manifests: list[str]
    bytes: int


def make_files_table(files: dict[str, list[Any]]) -> pa.Table:
    """Return the data files of a snapshot as a pyarrow Table."""
    counts = ("size_bytes", "row_group_count", "total_rows")
    fields: dict[str, pa.DataType] = {"path": pa.string(), **dict.fromkeys(counts, pa.uint64())}
    return pa.table(files, schema=pa.schema(fields))


def plot_entries(entries: list[dict[str, Any]]) -> Chart:
    """Return a chart of the rows that versions wrote or deleted, newest first."""
    rows = [entry["operation"].get("rows") or 0 for entry in entries]
    most = max(rows, default=0)
    bars = []
    for entry, count in zip(entries, rows, strict=True):
        operation = entry["operation"]
        counts = [
            format_count(operation[name], noun) + suffix
            for name, noun, suffix in (
                ("rows", "row", ""),
                ("rows_deleted", "row", " deleted"),
                ("files", "file", ""),
                ("files_removed", "file", " removed"),
            )
            if operation.get(name)
        ]
        label = f"{entry['version']} {operation['name']}"
        note = ", ".join([f"{entry['created_at']:%Y-%m-%d %H:%M:%S}", *counts])
        is_marked = operation["name"] in ("delete", "vacuum", "drop_column")
        bars.append(Bar(label, 0.0 if count else None, count / most if count else 0.0, note, is_marked=is_marked))
    return Chart(f"{format_count(len(entries), 'version')}, newest first", tuple(bars))


class History(list[dict[str, Any]], Summarized):
    """The versions of a table or a pipeline, newest first: a list, which `print` and notebooks show as a table."""

    def _summarize(self) -> Summary:
        rows = (
            (
                entry["version"],
                f"{entry['created_at']:%Y-%m-%d %H:%M:%S}",
                entry["operation"]["name"],
                ", ".join(
                    f"{name} {count:,}"
                    for name, count in entry["operation"].items()
                    if isinstance(count, int) and not isinstance(count, bool)
                ),
            )
            for entry in self
        )
        listing = Listing(("version", "created at", "operation", "counts"), rows, len(self), "versions")
        return Summary(f"{format_count(len(self), 'version')}, newest first", {}, (listing,))

    def __str__(self) -> str:
        return self._summarize().to_text()


def summarize_snapshot(title: str, manifest: dict[str, Any], schema: pa.Schema) -> Summary:
    """Return the summary of a snapshot, made of its manifest and schema alone."""
    entries = [*manifest["segments"], *manifest["data_files"]]
    rows = sum(entry["total_rows"] for entry in entries)
    names = {column["id"]: column["name"] for column in manifest["schema"]["columns"]}
    properties = {
        "created": manifest["created_at"],
        "by": manifest["operation"]["name"],
        "key": ", ".join(names[column_id] for column_id in manifest["key"]) or None,
        "sorted by": ", ".join(names[column_id] for column_id in manifest["sort_by"]) or None,
        "rows": f"{rows:,} before deletes" if manifest["tombstones"] else f"about {rows:,}",
        "tags": ", ".join(sorted(manifest["tags"])) or None,
    }
    return Summary(title, properties, (list_columns(schema),))


def make_history_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a version in the history of a table, from its JSON."""
    return entry | {"created_at": datetime.fromisoformat(entry["created_at"])}

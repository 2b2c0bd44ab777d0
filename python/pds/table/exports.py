"""Exports of tables to Delta and Iceberg."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pds import _pds
from pds.arguments import require_text
from pds.errors import InvalidType
from pds.progress import reported
from pds.table.checks import check_names
from pds.table.export_calls import check_exports, export_delta, export_iceberg, export_to
from pds.table.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pds.progress import ProgressArgument
    from pds.table.results import CommitResult, ExportResult, IcebergExportResult


class Exports(Writes):
    """A snapshot with methods that export the table, so that readers of other formats read it."""

    @property
    def exports(self) -> tuple[str, ...]:
        """The formats to which every commit is exported, by whichever process makes it: `"delta"`, `"iceberg"`.

        The export follows the commit, which stands whatever becomes of it: an error is in `CommitResult.exports`, and
        is logged as a warning. The next export writes all versions since. The time of an export is not limited by
        `commit_timeout`; a write that is interrupted during it was committed. Set by `create` and `alter.exports`.
        """
        return tuple(self._handle.exports)

    def export_delta(
        self,
        *,
        leave_out: Sequence[str] | None = None,
        rebuild: bool = False,
        progress: ProgressArgument = False,
    ) -> ExportResult:
        """Write a Delta log beside the table, so that whatever reads Delta reads the table. No data is copied.

        Version 124 of the Delta table is version 124 of this table. The first export writes the newest version; each
        later one writes all versions since the last. Deleted rows become deletion vectors, renamed columns are mapped
        by name. Other systems cannot write: the log demands a feature that none of them has. After the first export,
        `vacuum` exports too, before it removes files.

        Args:
            leave_out: Columns that the Delta table does not have, such as those whose types Delta lacks. Defaults to
                those of the last export.
            rebuild: Whether to remove the log and write a new one. Readers find no table in between.
            progress: As for `append`. Bytes are those that are written.

        Returns:
            The newest version in the log, and what was written.

        Raises:
            InvalidInput: Delta has no type for a column, or readers of Delta would read a file wrongly: for example one
                that was added with other names. Nothing is written.
            InvalidType: An argument has an invalid type.
            ExportConflict: Another system, or another table, has written into `_delta_log`.

        The format is that of `PROTOCOL.md` of delta-io/delta. docs/delta.md lists what each reader can do.
        """
        names = _check_export(leave_out, rebuild)
        with reported("export_delta", progress):
            return export_delta(self._handle, names, rebuild=rebuild)

    def export_iceberg(
        self,
        location: str | None = None,
        *,
        leave_out: Sequence[str] | None = None,
        rebuild: bool = False,
        progress: ProgressArgument = False,
    ) -> IcebergExportResult:
        """Write Iceberg metadata beside the table, so that whatever reads Iceberg reads the table. No data is copied.

        `metadata/v124.metadata.json` is version 124 of this table, in Iceberg's format version 2. Each export writes
        the newest version; snapshots of earlier exports stay until a vacuum removes their versions. Deleted rows
        become position deletes. The metadata tells other systems not to write and not to remove files. After the
        first export, `vacuum` exports too, before it removes files.

        Args:
            location: Where readers find the table's folder: a URL, or an absolute path. Iceberg's paths are absolute,
                so a table that was copied or moved must be exported again with `rebuild`. Defaults to that of the
                last export, and for the first one and a rebuild to the URL of the table.
            leave_out: Columns that the Iceberg table does not have, such as those whose types Iceberg lacks. Defaults
                to those of the last export.
            rebuild: Whether to remove the metadata and write it anew. Readers find no table in between.
            progress: As for `append`. Bytes are those that are written.

        Returns:
            The newest version that is exported, where its metadata is, and what was written.

        Raises:
            InvalidInput: Iceberg has no type for a column, or readers of Iceberg would read a file wrongly: for
                example one that was added with other names. Or the location differs from that of the last export.
                No metadata is written.
            InvalidType: An argument has an invalid type.
            ExportConflict: Another system, or another table, has written into `metadata`.

        docs/iceberg.md lists what each reader can do.
        """
        names = _check_export(leave_out, rebuild)
        url = None if location is None else require_text("location", location)
        with reported("export_iceberg", progress):
            return export_iceberg(self._handle, self._location, url, names, rebuild=rebuild)

    def _set_exports(self, formats: str | Sequence[str]) -> CommitResult:
        names = check_exports(formats)
        for name in names:
            # Refuses what cannot be exported.
            export_to(name, self._location, self._handle)
        return self._commit(lambda handle, timeout: _pds.set_exports(handle, names, timeout))


def _check_export(leave_out: Sequence[str] | None, rebuild: object) -> list[str] | None:
    if not isinstance(rebuild, bool):
        raise InvalidType(f"rebuild must be a bool, not {rebuild!r}")
    return None if leave_out is None else check_names("leave_out", leave_out)

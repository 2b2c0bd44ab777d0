"""Maintenance of tables: vacuum, check and verification."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pds import _pds
from pds.arguments import require_timedelta
from pds.defaults import RETENTION
from pds.errors import RemoteStoreError
from pds.flags import require_bool
from pds.progress import reported
from pds.table.exports import Exports
from pds.table.results import CheckResult, VacuumResult, VerifyResult

if TYPE_CHECKING:
    from datetime import timedelta

    from pds.progress import ProgressArgument

_logger = logging.getLogger(__name__)


class Maintenance(Exports):
    """A snapshot with methods that remove and check what the table consists of."""

    def vacuum(
        self,
        retention: timedelta = RETENTION,
        *,
        dry_run: bool = False,
        progress: ProgressArgument = False,
    ) -> VacuumResult:
        """Remove versions that were replaced longer ago than `retention`, and the objects that only they reference.

        Tagged versions stay. A write that began before the oldest remaining version fails with TransactionExpired, so
        `retention` should be longer than the longest write.

        Args:
            retention: The minimum age, by the clock of the store. Defaults to 7 days.
            dry_run: Whether to list the objects and remove nothing.
            progress: As for `append`. Files are the objects that are removed, manifests among them.

        Raises:
            InvalidInput: The retention is negative; or the table is exported, and the export cannot be brought up to
                date, as for `export_delta` and `export_iceberg`. Nothing was removed then.
            InvalidType: The retention is not a timedelta, or `dry_run` is not a bool.
            InvalidPath: A folder of the table is a symbolic link of local files. Nothing was removed.
            CommitConflict, CommitStateUnknown: As for `append`.
            ExportConflict: As for `export_delta` and `export_iceberg`. Nothing was removed.
        """
        seconds = require_timedelta("retention", retention)
        require_bool("dry_run", dry_run)
        with reported("vacuum", progress):
            result = VacuumResult(**self._handle.vacuum(seconds, dry_run, self._location.timeout))
        if not dry_run:
            self._show_vacuumed()
        return result

    def _show_vacuumed(self) -> None:
        """Show the newest version after a vacuum."""
        try:
            self.refresh()
        except RemoteStoreError as error:
            # What was removed counts more.
            _logger.warning("%s was vacuumed, and its newest snapshot could not be read: %s", self.path, error)

    def check(self, *, progress: ProgressArgument = False) -> CheckResult:
        """Check that the objects of the newest version and of the versions before it exist, without reading data.

        The sizes of the objects of the newest version are compared too. The check is of the current state of the
        table, and not of the snapshot of this object.

        Args:
            progress: As for `append`. Files and bytes are those of all objects that are listed.
        """
        with reported("check", progress):
            return CheckResult(**self._handle.check())

    def verify(self, *, progress: ProgressArgument = False) -> VerifyResult:
        """Read every byte of this snapshot: the lists of files, the tombstones and all data files.

        Data files are compared with their checksums, and their sizes, numbers of rows and statistics with the list of
        files; all columns are decoded, of which few are in memory at a time. Lists and tombstones have no checksums:
        they are compared with what the manifest says of them.

        Args:
            progress: As for `append`.

        Returns:
            What was read, and the objects that are missing or damaged. Damage does not raise an error.

        Raises:
            VersionExpired: A vacuum removed the version.
        """
        with reported("verify", progress):
            return VerifyResult(**_pds.verify_table(self._handle))

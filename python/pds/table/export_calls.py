"""Exports of a table to other formats, on demand and after commits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pds import _pds
from pds.errors import InvalidInput, RemoteStoreError
from pds.table.checks import check_names
from pds.table.results import ExportResult, IcebergExportResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pds.table.location import TableLocation

EXPORT_FORMATS = ("delta", "iceberg")
_logger = logging.getLogger("pds")


def export_delta(handle: _pds.TableHandle, leave_out: list[str] | None, *, rebuild: bool) -> ExportResult:
    """Export a table to Delta, as `Table.export_delta` says."""
    return ExportResult(**_pds.export_delta(handle, leave_out, rebuild))


def export_iceberg(
    handle: _pds.TableHandle,
    location: TableLocation,
    url: str | None,
    leave_out: list[str] | None,
    *,
    rebuild: bool,
) -> IcebergExportResult:
    """Export a table to Iceberg, as `Table.export_iceberg` says."""
    url, origin = (location.url(), "store") if url is None else (url, "given")
    return IcebergExportResult(**_pds.export_iceberg(handle, url, origin, leave_out, rebuild))


def check_exports(formats: str | Sequence[str], *, new_at: TableLocation | None = None) -> list[str]:
    """Return the formats to which a table is to be exported after each commit.

    Args:
        formats: The argument of a public function.
        new_at: The location of a table that is to be created.

    Raises:
        InvalidInput: A format is not known, or readers of it cannot find a table at the location.
        InvalidType: The argument has an invalid type.
    """
    names = check_names("exports", formats)
    for name in names:
        if name not in EXPORT_FORMATS:
            raise InvalidInput(f"exports must be some of {', '.join(map(repr, EXPORT_FORMATS))}, not {name!r}")
    if new_at is not None and "iceberg" in names:
        _pds.check_iceberg_location(new_at.url())
    return names


def export_to(export_format: str, location: TableLocation, handle: _pds.TableHandle) -> ExportResult:
    """Export a table to a format as the last export to it did, also where this process reaches it by another URL."""
    if export_format == "delta":
        return export_delta(handle, None, rebuild=False)
    return IcebergExportResult(**_pds.export_iceberg(handle, location.url(), "first", None, rebuild=False))


def export_committed(location: TableLocation, handle: _pds.TableHandle) -> dict[str, ExportResult | RemoteStoreError]:
    """Export a table to its formats after a commit, which stands whatever becomes of them.

    Returns:
        For each format the result, or the error, which is logged as well.
    """
    formats = [name for name in handle.exports if name in EXPORT_FORMATS]
    outcomes: dict[str, ExportResult | RemoteStoreError] = {}
    for name in formats:
        try:
            outcomes[name] = export_to(name, location, handle)
        except RemoteStoreError as error:
            _logger.warning("%s was committed and not exported to %s: %s", location.path, name, error)
            outcomes[name] = error
    return outcomes

"""Tables, datasets and chains for other engines: polars and DuckDB, by URL."""

from __future__ import annotations

__all__ = ["scan_polars"]

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import polars as pl

    from pds.by_url import Url
    from pds.store import CredentialProvider


def scan_polars(
    url: Url,
    *,
    as_of: int | str | datetime | None = None,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> pl.LazyFrame:
    """Return the rows of a table, a dataset or a chain as a lazy frame of polars, as `Table.scan_polars` does.

    The frame stays at what is there now: if a dataset is replaced later, reads raise DatasetIncomplete. The rows of a
    chain are those that were appended, retractions and corrections among them.

    Args:
        url: The folder, as for `open_table`.
        as_of: A version, a time with a time zone, or a tag of a table; a time or the hash of a block of a chain.
            Defaults to the newest one.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.

    Raises:
        NotFound: The folder is neither, or there is no such tag or block.
        VersionExpired: A vacuum removed the version.
        InvalidInput: The URL, the version or an option is not valid; or the folder is a pipeline; or `as_of` is for a
            dataset, which has one version.
        InvalidType: An argument has an invalid type.
        ModuleNotFoundError: polars is not installed.
        CapabilityNotSupported: polars has no type for a column.
    """
    from pds.engines.sources import open_source  # noqa: PLC0415 few need it
    from pds.table.polars import scan_polars as scan_source  # noqa: PLC0415 an optional dependency

    return scan_source(open_source(url, as_of, storage_options, credential_provider))

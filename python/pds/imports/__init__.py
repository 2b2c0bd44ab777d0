"""Tables of other systems that become tables of pds where they are: Delta and Iceberg."""

from __future__ import annotations

__all__ = ["import_delta", "import_iceberg"]

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table import Table as IcebergTable

    from pds.by_url import Url
    from pds.table.table import Table


def import_delta(
    url: Url,
    *,
    take_over: bool = False,
    partition_time_zone: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Table:
    """Make a table of a Delta table, in its folder, over the same data files. No data is copied.

    The first version of the table has the rows of the newest version of the Delta table. Later versions of the two
    have nothing to do with each other. The data files and the log of the Delta table stay as they are: no vacuum of
    pds, and no `Table.drop`, removes them. Files that a pds table wrote before, such as those of a copy of its export,
    are taken for this table's own.

    Args:
        url: The folder of the Delta table, as for `open_table`.
        take_over: Whether to make the Delta table read-only first: a commit to its log demands a feature
            (`pds-readOnly`) that no other system has, so its writers and its VACUUM refuse. Other systems cannot undo
            this. Without it there is a warning, because a VACUUM of the Delta table may remove files that this table
            needs.
        partition_time_zone: The time zone of the system that wrote the Delta table, such as `UTC` or `Europe/Berlin`.
            Values of a partition column of timestamps that have no zone are in it, as Delta says; Spark writes them
            in the zone of its session, and deltalake in UTC. Of an hour that occurs twice they are the first, as Spark
            reads them.
        storage_options: As for `Store`; `deltalake` gets them, too.

    Returns:
        The table.

    Raises:
        NotFound: There is no Delta table in the folder.
        AlreadyExists: There is a table of pds in the folder already.
        InvalidType: `take_over` is not a bool, or another argument has an invalid type.
        InvalidInput: The Delta table has something that cannot be imported without rewriting it: a type that pds does
            not have, a renamed nested field, a file outside its folder, or a file whose columns have other types. Or
            it has timestamps without a zone as values of a partition, and there is no `partition_time_zone`; or this
            is no zone. The message names it. Nothing is written.
        FormatNotSupported: The Delta table demands a feature that is not known, or that `deltalake` does not read; or
            nobody could read its log after `take_over`. Nothing is written.
        CommitConflict: Other writers committed to the Delta table during every attempt to import it.
        UnsafeStore: The store does not honor conditional writes.
        deltalake.exceptions.DeltaError: The log cannot be read for another reason.
        ModuleNotFoundError: `deltalake` is not installed.

    Warns:
        UserWarning: The Delta table can still be written and vacuumed by other systems; or it has constraints, or
            generated, identity or default columns, which the new table does not have.
    """
    from pds.flags import require_bool  # noqa: PLC0415 few need it
    from pds.imports.delta import import_table  # noqa: PLC0415 an optional dependency

    require_bool("take_over", take_over)
    return import_table(
        url, take_over=take_over, partition_time_zone=partition_time_zone, storage_options=storage_options
    )


def import_iceberg(source: Url | IcebergTable, *, storage_options: Mapping[str, object] | None = None) -> Table:
    """Make a table of an Iceberg table, in its folder, over the same data files. No data is copied.

    The first version of the table has the rows of the newest snapshot. Later versions of the two have nothing to do
    with each other. The data files and the metadata of the Iceberg table stay as they are: no vacuum of pds, and no
    `Table.drop`, removes them. Files that a pds table wrote before are taken for this table's own.

    Args:
        source: A table of a catalog of pyiceberg, which is loaded again; or the URL or path of a metadata file, which
            has to be the newest one; or the folder of a table with `metadata/version-hint.text`.
        storage_options: As for `Store`. Where pyiceberg opens the table, it gets the keys, the region and the endpoint
            of S3; for other stores pass a table that a catalog has loaded.

    Returns:
        The table.

    Raises:
        NotFound: There is no such metadata file, the catalog does not have the table, or a data file is missing.
        AlreadyExists: There is a table of pds in the folder already.
        InvalidInput: The Iceberg table has something that cannot be imported without rewriting it: deletes by
            equality, a type that pds does not have, a column with an initial default, files that are not Parquet or not
            in the folder of the table, a file that lacks a partition column of bytes, or a file whose columns have
            other types. The message names it. Nothing is written.
        CommitConflict: Other writers committed to the Iceberg table during every attempt to import it.
        UnsafeStore: The store does not honor conditional writes.
        ModuleNotFoundError: `pyiceberg` is not installed.

    Warns:
        UserWarning: The Iceberg table can still be written, and its files be removed, by other systems.
    """
    from pds.imports.iceberg import import_table  # noqa: PLC0415 an optional dependency

    return import_table(source, storage_options)

"""The first run of an asset, which creates its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds import Store, Table
from pds.errors import AlreadyExists, CommitConflict
from pds.streams import read_stream
from pds.table.existing import check_is_no_dataset
from pds.table.results import CommitResult

if TYPE_CHECKING:
    from pds.table.options import NewRows, NewTable


def create_table(
    store: Store, path: str, new: NewTable, rows: NewRows, *, is_upsert: bool, has_partitions: bool
) -> tuple[Table, CommitResult | None]:
    """Create a table together with its rows, so that a run that fails leaves no table.

    Some streams are left for a second commit: their keys cannot be checked before they are written; or runs of other
    partitions are likely to create the table meanwhile, and a stream is read only once.

    Args:
        store: The store of the table.
        path: The folder of the table.
        new: The columns, the key and the sort order.
        rows: The rows.
        is_upsert: Whether a key must not occur twice.
        has_partitions: Whether other runs write other partitions.

    Returns:
        The table and the commit of the rows, or None for rows that are still to be written.

    Raises:
        AlreadyExists: The folder is a dataset.
        InvalidInput: The rows do not fit the table, or a key is null or occurs twice.
        CommitConflict: Another run has created the table meanwhile, and the rows are a stream.
    """
    check_is_no_dataset(store, path)
    if isinstance(rows.data, pa.RecordBatchReader):
        if is_upsert or has_partitions:
            return _create_empty(store, path, new), None
    elif is_upsert:
        _check_keys(new, rows.data)
    try:
        with read_stream(rows.data) as data:
            table = Table._create_with_rows(store, path, new, rows._replace(data=data), None)  # noqa: SLF001 of the package
    except AlreadyExists as error:
        if isinstance(rows.data, pa.RecordBatchReader):
            message = "another run created the table meanwhile, and the stream is consumed; run it again"
            raise CommitConflict(message, path=path) from error
        return Table(store, path), None
    return table, _describe_commit(table)


def _create_empty(store: Store, path: str, new: NewTable) -> Table:
    try:
        return Table.create(store, path, new.schema, key=new.key, sort_by=new.sort_by)
    except AlreadyExists:
        return Table(store, path)


def _check_keys(new: NewTable, rows: pa.Table) -> None:
    """Refuse the keys that an upsert refuses, by an upsert into a table in memory."""
    fields = [field for field in new.schema if field.name in new.key]
    keys = Table.create(Store("memory://"), "keys", pa.schema(fields), key=new.key)
    keys.upsert(rows.select([field.name for field in fields]))


def _describe_commit(table: Table) -> CommitResult:
    """Return the result of the commit that created a table."""
    (entry,) = table.history(1)
    sizes: list[Any] = table.files()["size_bytes"].to_pylist()
    return CommitResult(
        version=table.version,
        commit_id=entry["commit_id"],
        rows=entry["operation"]["rows"],
        files=len(sizes),
        bytes=sum(sizes),
        requests=0,
        attempts=1,
        waited=0.0,
        replayed=False,
    )

"""Tables, datasets, pipelines and chains by their URLs, without a `Store`."""

from __future__ import annotations

__all__ = [
    "Entry",
    "list",
    "open_chain",
    "open_pipeline",
    "open_table",
    "read_dataset",
    "scan_dataset",
    "write_dataset",
    "write_table",
]

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from pds.arguments import check_schema_mode, require_text
from pds.dataset import ParquetDatasetStore
from pds.errors import (
    AlreadyExists,
    CommitConflict,
    DatasetIncomplete,
    InvalidInput,
    InvalidPath,
    NotFound,
    RemoteStoreError,
    add_hint,
)
from pds.kinds import find_kind, inspect_folder
from pds.options import WriteOptions, resolve_options
from pds.progress import reported
from pds.store import Store
from pds.streams import is_in_memory, read_stream
from pds.urls import join_url, leads_through_file, merge_options, split_url

if TYPE_CHECKING:
    import builtins
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow.compute as pc

    from pds.manifest import DatasetManifest
    from pds.odf import Dataset
    from pds.producers.pipeline import Pipeline
    from pds.progress import ProgressArgument
    from pds.store import CredentialProvider
    from pds.streams import ArrowStream
    from pds.table.options import NewRows
    from pds.table.table import Table

    Url = str | os.PathLike[str]
    Mode = Literal["error", "append", "overwrite", "ignore"]

_OPEN_CALLS = {
    "table": "pds.open_table(url)",
    "dataset": "pds.read_dataset(url)",
    "pipeline": "pds.open_pipeline(url)",
    "chain": "pds.open_chain(url)",
}
_MODES = ("error", "append", "overwrite", "ignore")
_LISTINGS_AT_ONCE = 16


def open_table(
    url: Url,
    *,
    as_of: int | str | datetime | None = None,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> Table:
    """Open a table.

    Args:
        url: The folder of the table: a URL, such as `s3://bucket/lake/events`, or a path of the local file system.
        as_of: A version, a time with a time zone, or a tag. Defaults to the newest version.
        options: The options of data files that are written.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.

    Raises:
        NotFound: There is no table, or no such tag.
        VersionExpired: A vacuum removed the version.
        InvalidInput: The URL, the version or an option is not valid.
        InvalidPath: The name of the folder has a backslash. So it is for all functions that take a URL of a folder.
        InvalidType: An argument has an invalid type.
    """
    from pds.table.table import Table  # noqa: PLC0415 who reads a dataset needs none

    store, path = open_parent(url, storage_options, credential_provider)
    with _hint_of_folder(store, path):
        table = Table(store, path, options=options)
    return table if as_of is None else table.as_of(as_of)


def write_table(  # noqa: PLR0913 what a table is made of
    url: Url,
    data: ArrowStream,
    *,
    mode: Mode = "error",
    key: str | Sequence[str] | None = None,
    sort_by: str | Sequence[str] | None = None,
    exports: str | Sequence[str] | None = None,
    schema_mode: Literal["strict", "merge"] = "strict",
    idempotency_key: str | None = None,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
    progress: ProgressArgument = False,
) -> Table:
    """Write rows to a table, which is created if it does not exist.

    A new table appears together with its rows, by one commit, and has the columns of `data`; text and bytes are stored
    as `string` and `binary` where they come as views.

    Args:
        url: As for `open_table`.
        data: Any object with `__arrow_c_stream__`: tables and streams of pyarrow, polars, pandas, DuckDB. A stream is
            written in bounded memory. A reader that a call of pds has read is refused; one that others have emptied
            has 0 rows. The index of a data frame of pandas is a column if it has a name. Columns of a new table have
            the names that `Table.create` takes.
        mode: What to do if the table exists: `"error"` refuses, `"append"` adds the rows, `"overwrite"` replaces all
            rows (older versions keep theirs), `"ignore"` writes nothing.
        key: The names of the columns that identify a row. Of an existing table it must be the same.
        sort_by: The names of the columns that files are sorted by. Of an existing table it must be the same.
        exports: The formats to which every commit is exported: `"delta"`, `"iceberg"`; see `Table.exports`. Of an
            existing table they must be the same.
        schema_mode: As for `Table.append`.
        idempotency_key: As for `Table.append`: a second write with the same key changes nothing. For the modes
            `"append"` and `"overwrite"`.
        options: The options of data files.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.
        progress: As for `Table.append`.

    Returns:
        The table, at the version that was written, or at the newest one if nothing was.

    Raises:
        AlreadyExists: The table exists and `mode` is `"error"`; or the folder is a dataset.
        InvalidInput: The URL or an option is not valid; or the rows do not fit the table; or its key, sort order or
            exports are others.
        InvalidType: An argument has an invalid type.
        UnsafeStore: The store does not honor conditional writes, so writers would overwrite each other.
        CommitConflict, CommitStateUnknown: As for `Table.append`.
    """
    from pds.table.checks import check_names  # noqa: PLC0415 who reads a dataset needs none
    from pds.table.options import NewRows  # noqa: PLC0415

    _check_mode(mode, schema_mode, idempotency_key)
    properties = {
        name: None if values is None else check_names(name, values)
        for name, values in (("key", key), ("sort_by", sort_by), ("exports", exports))
    }
    store, path = open_parent(url, storage_options, credential_provider)
    with read_stream(data) as stream, reported("write_table", progress, data):
        rows = NewRows(stream, is_in_memory(data), idempotency_key)
        return _write_rows(store, path, rows, _WritePlan(mode, properties, schema_mode, options))


class _WritePlan(NamedTuple):
    """What `write_table` is told."""

    mode: Mode
    properties: dict[str, builtins.list[str] | None]
    schema_mode: Literal["strict", "merge"]
    options: WriteOptions | None


def _write_rows(store: Store, path: str, rows: NewRows, plan: _WritePlan) -> Table:
    from pds.table.existing import check_is_no_dataset, find_table  # noqa: PLC0415 who reads a dataset needs none
    from pds.table.options import NewTable  # noqa: PLC0415
    from pds.table.table import Table  # noqa: PLC0415

    mode, properties, schema_mode, options = plan
    table = find_table(store, path, options)
    if table is None:
        check_is_no_dataset(store, path)
        try:
            return Table._create_with_rows(store, path, NewTable.of(rows.data.schema, **properties), rows, options)  # noqa: SLF001 of the package
        except AlreadyExists as error:
            if mode == "error":
                raise
            if not isinstance(rows.data, pa.Table) and mode != "ignore":
                message = "another writer created the table meanwhile, and the stream is consumed; repeat the write"
                raise CommitConflict(message, path=path) from error
        table = Table(store, path, options=options)
    elif mode == "error":
        message = f'a table already exists at {path!r}; pass mode="append" or mode="overwrite" to write to it'
        raise AlreadyExists(message, path=path)
    _check_properties(table, properties)
    if mode == "append":
        table.append(rows.data, schema_mode=schema_mode, idempotency_key=rows.idempotency_key)
    elif mode == "overwrite":
        table.overwrite(rows.data, idempotency_key=rows.idempotency_key)
    return table


def _check_mode(mode: str, schema_mode: str, idempotency_key: object) -> None:
    if require_text("mode", mode) not in _MODES:
        raise InvalidInput(f"mode must be one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    check_schema_mode(schema_mode)
    if mode == "overwrite" and schema_mode != "strict":
        raise InvalidInput('schema_mode="merge" is for mode="append"; change the columns with table.alter')
    if idempotency_key is not None and mode in ("error", "ignore"):
        raise InvalidInput(f'a write with an idempotency key may be repeated; pass mode="append", not mode={mode!r}')


def _check_properties(table: Table, properties: dict[str, builtins.list[str] | None]) -> None:
    """Refuse a table with another key or sort order, or other exports, than those that were asked for."""
    for name, requested in properties.items():
        if name == "exports":
            existing, is_same = [*table.exports], set(requested or ()) == set(table.exports)
        else:
            existing = table._get_column_names(name)  # noqa: SLF001 of the package
            is_same = existing == requested
        if requested is not None and not is_same:
            raise InvalidInput(f"the table has {name}={existing}, not {name}={requested}")


def read_dataset(
    url: Url,
    columns: Sequence[str] | None = None,
    *,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> pa.Table:
    """Read a dataset into memory. Only the bytes of `columns` are fetched.

    Args:
        url: The folder of the dataset, as for `open_table`.
        columns: As for `ParquetDatasetStore.read_dataset`.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.

    Raises:
        InvalidInput: The URL or an option is not valid.
        DatasetIncomplete, PartCorrupted, ManifestCorrupted, NotFound, InvalidType: As for
            `ParquetDatasetStore.read_dataset`.
    """
    store, path = open_parent(url, storage_options, credential_provider)
    with _hint_of_folder(store, path):
        return ParquetDatasetStore(store).read_dataset(path, columns=columns)


def scan_dataset(
    url: Url,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    *,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> pa.RecordBatchReader:
    """Read a dataset as a stream of batches, in bounded memory.

    Args:
        url: The folder of the dataset, as for `open_table`.
        columns: As for `ParquetDatasetStore.scan_dataset`.
        where: As for `ParquetDatasetStore.scan_dataset`.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.

    The errors are those of `read_dataset`. The stream raises the errors of the data while it is read.
    """
    store, path = open_parent(url, storage_options, credential_provider)
    with _hint_of_folder(store, path):
        return ParquetDatasetStore(store).scan_dataset(path, columns=columns, where=where)


def write_dataset(  # noqa: PLR0913 the arguments of ParquetDatasetStore.write_dataset
    url: Url,
    data: ArrowStream,
    *,
    overwrite: bool = False,
    run_id: str | None = None,
    metadata: dict[str, str] | None = None,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
    progress: ProgressArgument = False,
) -> DatasetManifest:
    """Write a table or stream as a dataset: readers see all of it or none.

    Args:
        url: The folder of the dataset, as for `open_table`.
        data: As for `write_table`.
        overwrite: Whether to replace an existing dataset.
        run_id: The identifier of the run, for the manifest.
        metadata: Key-value pairs of strings, for the manifest.
        options: The options of the Parquet files.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.
        progress: As for `Table.append`.

    Returns:
        The manifest of the new dataset.

    Raises:
        InvalidInput: The URL or an option is not valid.
        InvalidPath: As for `open_table`; or a file is in the place of a folder; or a table or a pipeline is in the
            folder.
        AlreadyExists, InvalidType, ResourceLocked: As for `ParquetDatasetStore.write_dataset`.
    """
    store, path = open_parent(url, storage_options, credential_provider)
    checked = resolve_options(options)
    datasets = ParquetDatasetStore(
        store,
        compression=checked.compression,
        row_group_size=checked.row_group_size,
        max_rows_per_file=checked.max_rows_per_file,
        compression_level=checked.compression_level,
        memory_limit=checked.memory_limit,
    )
    try:
        return datasets.write_dataset(
            data, path, overwrite=overwrite, run_id=run_id, metadata=metadata, progress=progress
        )
    except NotFound as error:
        if not leads_through_file(url):
            raise
        raise InvalidPath("a file is in the place of a folder of this path", path=path) from error


def open_pipeline(
    url: Url,
    *,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
    **options: Any,  # noqa: ANN401 as for Pipeline
) -> Pipeline:
    """Return a pipeline, whose sources and stages are to be declared. It need not exist: the first update creates it.

    Args:
        url: The folder of the pipeline, as for `open_table`.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.
        options: As for `Pipeline`: `memory_limit`, `commit_timeout`, `engine`.

    Raises:
        InvalidInput: The URL or an option is not valid.
        InvalidType: An argument has an invalid type.
    """
    from pds.producers.pipeline import Pipeline  # noqa: PLC0415 who opens a table needs none

    store, path = open_parent(url, storage_options, credential_provider)
    return Pipeline(store, path, **options)


def open_chain(
    url: Url,
    *,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> Dataset:
    """Open a dataset of the Open Data Fabric.

    Args:
        url: The folder of the dataset, as for `open_table`.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.

    Raises:
        NotFound: There is none.
        InvalidInput: The URL or an option is not valid.
        InvalidType: An argument has an invalid type.
    """
    from pds.odf import Dataset  # noqa: PLC0415 who opens a table needs none

    store, path = open_parent(url, storage_options, credential_provider)
    with _hint_of_folder(store, path):
        return Dataset(store, path)


@dataclass(frozen=True)
class Entry:
    """Something that lies in a store.

    Args:
        kind: `"table"`, `"dataset"`, `"pipeline"`, or `"chain"` for a dataset of the Open Data Fabric.
        path: The folder, relative to the URL that was listed.
        url: The URL of the folder.
    """

    kind: Literal["table", "dataset", "pipeline", "chain"]
    path: str
    url: str


def list(  # noqa: A001 `pds.list` is meant to be read with its module
    url: Url,
    *,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> builtins.list[Entry]:
    """Return the tables, datasets, pipelines and chains below a URL, sorted by path. Their own folders are not listed.

    Args:
        url: A folder or a whole store, as for `open_table`.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.

    Raises:
        InvalidInput: The URL or an option is not valid.
        InvalidType: An argument has an invalid type.
        PermissionDenied, BackendUnavailable: As for `Store`.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 who opens a table needs none

    store = Store(url, storage_options, credential_provider=credential_provider)
    entries: builtins.list[Entry] = []
    with ThreadPoolExecutor(_LISTINGS_AT_ONCE) as pool:
        level = [""]
        while level:
            below = []
            for folder, (kind, folders) in zip(level, pool.map(lambda f: inspect_folder(store, f), level), strict=True):
                if kind is None:
                    below += folders
                else:
                    entries.append(Entry(kind, folder, join_url(store.url, folder)))
            level = below
    return sorted(entries, key=lambda entry: entry.path)


def open_parent(
    url: object, storage_options: Mapping[str, object] | None, credential_provider: CredentialProvider | None
) -> tuple[Store, str]:
    """Return the store of the folder above, and the name in it."""
    parent, path, implied = split_url(url)
    return Store(parent, merge_options(implied, storage_options), credential_provider=credential_provider), path


@contextmanager
def _hint_of_folder(store: Store, path: str) -> Iterator[None]:
    """Add to an error about what is missing what the folder is instead."""
    try:
        yield
    except (NotFound, DatasetIncomplete) as error:
        try:
            kind = find_kind(store, path)
        except RemoteStoreError:
            raise error from None
        if kind in _OPEN_CALLS:
            add_hint(error, f"the folder is a {kind}: {_OPEN_CALLS[kind]} opens it")
        elif kind is None and error.hint is None:
            add_hint(error, "pds.list(url) of a folder above it lists what is there")
        raise

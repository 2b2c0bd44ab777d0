"""Parquet datasets with the API of RFC-0008: a write is atomic, and a read returns one complete dataset."""

from __future__ import annotations

__all__ = ["DatasetWrite", "ParquetDatasetStore", "VerifyReport"]

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pds import _pds
from pds.arguments import (
    check_column_paths,
    check_filter,
    check_manifest_fields,
    check_schema,
    check_seconds,
    check_task,
    check_where,
    hash_schema,
    make_empty,
    require_schema,
    resolve_key,
)
from pds.capability import Capability
from pds.dataset_arguments import check_manifest, check_part, check_parts, check_threads
from pds.display import Result, Summarized, Summary
from pds.manifest import DatasetManifest
from pds.options import NewWrite, TaskOptions, WriteOptions
from pds.paths import normalize_folder_path
from pds.predicate import to_predicate
from pds.progress import reported
from pds.readers import make_reader, read_scan
from pds.store import Store, native_handle, require_capability
from pds.streams import ArrowStream, is_in_memory, read_stream
from pds.telemetry import traces

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import remote_store

    from pds._pds import PartIndex, StagedPart
    from pds.progress import ProgressArgument

_DAY_SECONDS = 86_400.0
# Data of this size stays in memory until it is published, however badly it compresses.
_SMALL_BYTES = 128 << 10


@dataclasses.dataclass(frozen=True, repr=False)
class VerifyReport(Result):
    """The result of `verify_dataset`.

    Args:
        rows: The number of rows in all parts.
        bytes: The size of all parts, in bytes.
        parts: The number of parts.
        checksummed_parts: The number of parts that have checksums. pds did not write the other parts.
    """

    rows: int
    bytes: int
    parts: int
    checksummed_parts: int


@traces("pds.dataset", "write_dataset", "read_dataset", "delete_dataset", "verify_dataset", "clean_dataset")
class ParquetDatasetStore(Summarized):
    """Writes, reads and manages the datasets in a store.

    A dataset is a folder with parts, `manifest.json` and the marker `_SUCCESS`. The constructor sends no request.

    Args:
        store: A `pds.Store`, or a `remote_store.Store`, whose methods then read and write the bytes.
        compression: The codec: zstd, snappy, gzip, brotli, lz4 or none. Defaults to zstd.
        row_group_size: The maximum number of rows in a row group. Defaults to 1,048,576.
        max_rows_per_file: The maximum number of rows in a part. Parts are then named `part-00000.parquet` and so
            on. Defaults to one part with all rows, `data.parquet`.
        compression_level: The level of the codec. Defaults to the default level of the codec.
        memory_limit: The memory of encoders and uploads of one write together, in bytes. Defaults to 512 MiB.

    Raises:
        InvalidInput: An option has an invalid value.
        InvalidType: An option has an invalid type.
    """

    def __init__(
        self,
        store: Store | remote_store.Store,
        *,
        compression: str = "zstd",
        row_group_size: int | None = None,
        max_rows_per_file: int | None = None,
        compression_level: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        self._store = store
        self._options = WriteOptions(compression, compression_level, row_group_size, max_rows_per_file, memory_limit)
        _pds.check_options(self._options)
        self._handle = native_handle(store)

    @property
    def store(self) -> Store | remote_store.Store:
        """The store of the datasets."""
        return self._store

    @property
    def compression(self) -> str:
        """The codec of new parts."""
        return self._options.compression

    @property
    def row_group_size(self) -> int | None:
        """The maximum number of rows in a row group."""
        return self._options.row_group_size

    @property
    def max_rows_per_file(self) -> int | None:
        """The maximum number of rows in a part."""
        return self._options.max_rows_per_file

    @property
    def options(self) -> WriteOptions:
        """The options of all writes."""
        return self._options

    def __repr__(self) -> str:
        return f"ParquetDatasetStore({self._store!r}, {self._options!r})"

    def _summarize(self) -> Summary:
        options = {name: value for name, value in vars(self._options).items() if value is not None}
        return Summary("ParquetDatasetStore", {"store": repr(self._store), **options})

    def __getstate__(self) -> dict[str, object]:
        return {"_store": self._store, "_options": self._options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._handle = native_handle(self._store)

    # -- writing ---------------------------------------------------------------

    def write_dataset(
        self,
        table: ArrowStream,
        dataset_key: str | None = None,
        *,
        overwrite: bool = False,
        run_id: str | None = None,
        metadata: dict[str, str] | None = None,
        key: str | None = None,
        progress: ProgressArgument = False,
    ) -> DatasetManifest:
        """Write a table or stream as the dataset `dataset_key`.

        Readers see the old dataset until the new dataset is complete. After an error before that point, the old
        dataset is unchanged.

        Args:
            table: A pyarrow Table, or any object with `__arrow_c_stream__`. A stream of any length is written in
                bounded memory.
            dataset_key: The folder of the dataset, relative to the store. `/a//b/` and `./a/b` mean `a/b`.
            overwrite: Whether to replace an existing dataset.
            run_id: The identifier of the run, for the manifest.
            metadata: Key-value pairs of strings, for the manifest.
            key: An alias of `dataset_key`.
            progress: As for `Table.append`.

        Returns:
            The manifest of the new dataset.

        Raises:
            AlreadyExists: The dataset exists and `overwrite` is not set.
            CapabilityNotSupported: The store cannot write atomically, or cannot delete and `overwrite` is set.
            InvalidPath: The key is not valid, or a table or a pipeline is in the folder.
            InvalidInput: Parquet cannot store a column, which the message names, or an argument is not valid.
            InvalidType: An argument has an invalid type.
            ResourceLocked: The write timed out waiting for another process that is publishing to the dataset.
        """
        with read_stream(table) as source, reported("write_dataset", progress, table):
            check_schema(source.schema)
            folder = self._check_arguments(resolve_key(dataset_key, key), overwrite, run_id, metadata)
            write = NewWrite(folder, overwrite, run_id, metadata, self._options)
            is_small = isinstance(source, pa.Table) and source.nbytes <= _SMALL_BYTES
            digest = hash_schema(source.schema)
            fields = _pds.write_dataset(self._handle, write, is_in_memory(table), is_small, source, digest)
        return DatasetManifest(**fields)

    def begin_write(
        self,
        key: str,
        *,
        overwrite: bool = False,
        run_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> DatasetWrite:
        """Begin a write whose parts are prepared by several tasks or processes. Nothing is written yet.

        Arguments and errors are those of `write_dataset`.
        """
        pairs = dict(metadata) if isinstance(metadata, Mapping) else metadata
        folder = self._check_arguments(resolve_key(key, None), overwrite, run_id, pairs)
        begun = _pds.begin_write(self._handle, folder, overwrite, self._options)
        return DatasetWrite(self, folder, overwrite, run_id, pairs, **begun)

    def _check_arguments(
        self,
        key: str,
        overwrite: bool,  # noqa: FBT001 the flag of the caller
        run_id: str | None,
        metadata: dict[str, str] | None,
    ) -> str:
        check_manifest_fields(overwrite, run_id, metadata)
        _pds.check_key(key)
        require_capability(self._store, Capability.ATOMIC_WRITE, "write_dataset", key)
        if overwrite:
            require_capability(self._store, Capability.DELETE, "write_dataset with overwrite=True", key)
        return key

    # -- reading ---------------------------------------------------------------

    def read_dataset(
        self,
        dataset_key: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        key: str | None = None,
    ) -> pa.Table:
        """Read a dataset into memory. Only the bytes of `columns` are fetched.

        Args:
            dataset_key: The folder of the dataset, relative to the store.
            columns: The names of the columns, in the order of the result, with possible duplicates. A field of
                a struct has a path with dots and becomes a column: `s.x` becomes `x`. Defaults to all columns.
            key: An alias of `dataset_key`.

        Raises:
            DatasetIncomplete: The marker `_SUCCESS` or a part is missing.
            PartCorrupted: A part is not the part that was written.
            ManifestCorrupted: The manifest is not valid.
            NotFound: The marker exists and the manifest is missing.
            InvalidInput: A column does not exist. The message lists the existing columns.
        """
        folder = resolve_key(dataset_key, key)
        table: pa.Table = _pds.read_dataset(self._handle, folder, check_column_paths(columns))
        return table

    def scan_dataset(
        self,
        dataset_key: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        key: str | None = None,
    ) -> pa.RecordBatchReader:
        """Read a dataset as a stream of batches, in bounded memory.

        The stream reads the dataset that exists at the time of the call. If the dataset is replaced before the
        end of the stream, the stream raises DatasetIncomplete.

        Args:
            dataset_key: The folder of the dataset, relative to the store.
            columns: As for `read_dataset`.
            where: A filter for the rows: an SQL predicate or a `pyarrow.compute.Expression`, with the rules of
                `Table.scan`. It may use columns that are not in `columns`. Only the columns of `columns` and of the
                filter are fetched, and only row groups that may have matching rows by their statistics. Defaults to
                all rows.
            key: An alias of `dataset_key`.

        The errors are those of `read_dataset`. The stream raises the errors of the data while it is read, and after an
        error or Ctrl-C InvalidInput: begin a new one.
        """
        paths = check_column_paths(columns)
        check_where(where)
        dataset = _pds.open_dataset(self._handle, resolve_key(dataset_key, key))
        if where is None:
            return _make_reader(dataset.scan(paths))
        if not isinstance(where, str):
            check_filter(dataset.schema, where)
        return _make_reader(dataset.scan(paths, to_predicate(where, dataset.schema)))

    def read_part(
        self,
        key: str,
        manifest: DatasetManifest,
        index: int,
        columns: Sequence[str] | None = None,
        *,
        share: tuple[int, int] | None = None,
        part_index: PartIndex | None = None,
    ) -> pa.RecordBatchReader:
        """Read one part of the dataset that `manifest` describes, as a stream of batches.

        Args:
            key: The folder of the dataset, relative to the store.
            manifest: The manifest of the dataset. A read of another dataset at the key fails.
            index: The position of the part in the manifest, from 0.
            columns: As for `read_dataset`.
            share: Of a large part the rows that one of several readers reads: `(0, 3)` is the first of three shares.
                A part is split between row groups, by bytes. The rows of all shares, one after the other, are those of
                the part; a share may have none. Defaults to all rows.
            part_index: The result of `index_parts` for the manifest. Without it, the footers of all parts are
                read if the part itself does not prove its position. Pass it when you read many parts of a
                dataset one by one.

        Raises:
            DatasetIncomplete: The dataset was replaced, or a part is missing.
            PartCorrupted: The part is not the part that was written at this position.
            InvalidInput, NotFound: As for `read_dataset`.
        """
        json, part, known = check_part(manifest, index, share, part_index)
        paths = check_column_paths(columns)
        scan = _pds.scan_part(self._handle, resolve_key(key, None), json, part, paths, known)
        return _make_reader(scan)

    def index_parts(self, key: str, manifest: DatasetManifest) -> PartIndex:
        """Index all parts of the dataset that `manifest` describes, for `read_part`. The index can be pickled.

        Raises:
            DatasetIncomplete: The dataset was replaced, or a part is missing.
            PartCorrupted: A part is not the part that was written.
        """
        return _pds.index_parts(self._handle, resolve_key(key, None), check_manifest(manifest).to_json())

    def read_manifest(self, dataset_key: str | None = None, *, key: str | None = None) -> DatasetManifest:
        """Read the manifest of a dataset.

        Raises:
            NotFound: The manifest does not exist.
            ManifestCorrupted: The manifest is not valid.
        """
        return DatasetManifest(**_pds.read_manifest(self._handle, resolve_key(dataset_key, key)))

    def dataset_exists(self, dataset_key: str | None = None, *, key: str | None = None) -> bool:
        """Return whether a complete dataset exists: one with the marker `_SUCCESS`."""
        return _pds.dataset_exists(self._handle, resolve_key(dataset_key, key))

    def delete_dataset(self, dataset_key: str | None = None, *, key: str | None = None) -> None:
        """Delete the folder of a dataset with all files in it.

        Datasets in folders below and files of others are deleted, too, which `pds drop` does only with `--recursive`.

        Raises:
            NotFound: The folder does not exist.
            InvalidPath: A table, a pipeline or a chain is in the folder; or the folder is a symbolic link, or a file.
                Nothing is deleted.
            CapabilityNotSupported: The store cannot delete.
            ResourceLocked: The call timed out waiting for another process that is publishing to the dataset.
        """
        folder = resolve_key(dataset_key, key)
        if isinstance(self._store, Store):
            _pds.delete_dataset(self._handle, folder)
        else:
            from pds import foreign_folders  # noqa: PLC0415 only other stores need it

            foreign_folders.delete_dataset(self._handle, self._store, folder)

    def verify_dataset(
        self, dataset_key: str | None = None, *, key: str | None = None, progress: ProgressArgument = False
    ) -> VerifyReport:
        """Read every byte of a dataset, and check the parts against the manifest and against their checksums.

        Args:
            dataset_key: The folder of the dataset, relative to the store.
            key: An alias of `dataset_key`.
            progress: As for `Table.append`.

        Raises:
            DatasetIncomplete, PartCorrupted, ManifestCorrupted, NotFound: As for `read_dataset`, for the first problem.
        """
        folder = resolve_key(dataset_key, key)
        with reported("verify_dataset", progress):
            return VerifyReport(**_pds.verify_dataset(self._handle, folder))

    def list_datasets(self, prefix: str = "") -> list[str]:
        """Return the sorted keys of the complete datasets below the folder `prefix`. Defaults to the whole store."""
        return _pds.list_datasets(self._handle, normalize_folder_path(prefix))

    def clean_dataset(
        self,
        dataset_key: str | None = None,
        *,
        key: str | None = None,
        older_than: float = _DAY_SECONDS,
    ) -> int:
        """Finish an interrupted publish, and remove the files and uploads that killed writers left.

        Incomplete multipart uploads are aborted where the store can list them. On S3 this needs the permission
        ``s3:ListBucketMultipartUploads``, and some compatible servers cannot list uploads. Use a lifecycle rule of
        the bucket for uploads that cannot be listed.

        Args:
            dataset_key: The folder of the dataset, relative to the store.
            key: An alias of `dataset_key`.
            older_than: The minimum age, in seconds by the clock of the store, of removed uploads and of removed
                hidden files of this process and of unknown ones. It must be longer than any write: a write whose
                upload or file is removed fails. Defaults to one day.

        Returns:
            The number of removed files and aborted uploads.

        Raises:
            ResourceLocked: The call timed out waiting for another process that is publishing to the dataset.
        """
        return _pds.clean_dataset(self._handle, resolve_key(dataset_key, key), check_seconds("older_than", older_than))


@dataclasses.dataclass(frozen=True)
class DatasetWrite:
    """A write in two steps: any process prepares parts, and one process publishes them. Can be pickled.

    Args:
        datasets: The datasets of the store that the write belongs to.
        key: The key of the dataset.
        overwrite: Whether to replace an existing dataset.
        run_id: The identifier of the run, for the manifest.
        metadata: Key-value pairs of strings, for the manifest.
        write_id: The random identifier of the write.
        created_at: The time at which the write began, for the manifest.
    """

    datasets: ParquetDatasetStore
    key: str
    overwrite: bool
    run_id: str | None
    metadata: dict[str, str] | None
    write_id: int
    created_at: str

    @property
    def options(self) -> WriteOptions:
        """The options of the write."""
        return self.datasets.options

    def prepare(self, data: ArrowStream, task: int = 0, *, threads: int | None = None) -> list[StagedPart]:
        """Encode and upload parts. Readers do not see them before `publish`.

        Args:
            data: Any object with `__arrow_c_stream__`.
            task: The number of the task, from 0, which orders the parts of several tasks.
            threads: The number of threads that encode. Defaults to one for each processor.

        Returns:
            The parts; an empty list for a stream without rows.

        Raises:
            InvalidInput: Parquet cannot store a column, or `task` is not valid.
            InvalidType: The data cannot be read as Arrow data.
        """
        check_task(task)
        options = TaskOptions(number=task, threads=check_threads(threads), keep_empty=False, shared=True)
        with read_stream(data) as source:
            check_schema(source.schema)
            return _pds.prepare(self.datasets._handle, self, options, source)  # noqa: SLF001 one module

    def prepare_empty(self, schema: pa.Schema) -> list[StagedPart]:
        """Encode and upload one part without rows, for a dataset without rows."""
        options = TaskOptions(keep_empty=True, shared=True)
        return _pds.prepare(self.datasets._handle, self, options, make_empty(require_schema(schema)))  # noqa: SLF001 one module

    def publish(self, parts: Iterable[StagedPart], schema: pa.Schema) -> DatasetManifest:
        """Publish the parts as the dataset, ordered by task and sequence, and return its manifest.

        Args:
            parts: The parts that `prepare` returned, of one attempt for each task.
            schema: The schema of the data, for the manifest.

        Raises:
            InvalidInput: A part is missing, repeated or of another write, or columns differ; an existing dataset stays.
            AlreadyExists: The dataset exists and `overwrite` is not set.
            ResourceLocked: The call timed out waiting for another process that is publishing to the dataset.
        """
        fields = _pds.publish(self.datasets._handle, self, check_parts(parts), hash_schema(schema))  # noqa: SLF001 one module
        return DatasetManifest(**fields)

    def abort(self, parts: Iterable[StagedPart]) -> None:
        """Remove parts that will not be published.

        If a `publish` of this write was interrupted, the parts stay, because the recovery of that publish may need
        them. The recovery removes those that the dataset does not use.
        """
        _pds.abort(self.datasets._handle, self, check_parts(parts))  # noqa: SLF001 one module

    def abort_all(self) -> None:
        """Remove the hidden files of all tasks, as `abort` does. `clean_dataset` aborts uploads of unknown parts."""
        _pds.abort_all(self.datasets._handle, self)  # noqa: SLF001 one module


def _make_reader(scan: _pds.Scan) -> pa.RecordBatchReader:
    return make_reader(scan.schema, read_scan(scan))

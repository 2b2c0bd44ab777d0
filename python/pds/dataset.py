"""Parquet datasets by the API of RFC-0008: written all or nothing, read whole or not at all."""

from __future__ import annotations

__all__ = ["DatasetWrite", "ParquetDatasetStore", "VerifyReport"]

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pds import _pds
from pds.arguments import (
    ArrowStream,
    arrow_stream,
    check_filter,
    check_schema,
    check_task,
    check_text,
    check_where,
    column_paths,
    is_in_memory,
    one_key,
    schema_hash,
)
from pds.capability import Capability
from pds.errors import DirectoryNotEmpty
from pds.manifest import DatasetManifest
from pds.options import NewWrite, TaskOptions, WriteOptions
from pds.paths import folder_path
from pds.predicate import Predicate
from pds.store import Store, handle_of, require

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import remote_store

    from pds._pds import PartIndex, StagedPart

_DAY_SECONDS = 86_400.0
# So much data stays in memory until it is published, however badly it compresses.
_SMALL_BYTES = 128 << 10


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What `verify_dataset` looked at.

    Args:
        rows: Rows of all parts.
        bytes: Bytes of all parts.
        parts: Number of parts.
        checksummed_parts: Parts that carry checksums; the others were written by something else.
    """

    rows: int
    bytes: int
    parts: int
    checksummed_parts: int


class ParquetDatasetStore:
    """Datasets in a store.

    A dataset is a folder: parts, `manifest.json`, `_SUCCESS`. Construction does no I/O.

    Args:
        store: A `pds.Store`, or a `remote_store.Store`, whose own methods then move the bytes.
        compression: zstd, snappy, gzip, brotli, lz4 or none.
        row_group_size: Rows of a row group, at most. None is 1,048,576.
        max_rows_per_file: Rows of a part, at most; parts are then named `part-00000.parquet` and on.
            None writes one `data.parquet`.
        compression_level: The codec's level. None is the codec's default.
        memory_limit: Bytes that encoders and uploads of one write take together. None is 512 MiB.

    Raises:
        InvalidInput: An option has a value that cannot be used.
        InvalidType: An option has a type that cannot be used.
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
        self._handle = handle_of(store)

    @property
    def store(self) -> Store | remote_store.Store:
        """The store."""
        return self._store

    @property
    def compression(self) -> str:
        """The codec."""
        return self._options.compression

    @property
    def row_group_size(self) -> int | None:
        """Rows of a row group, at most."""
        return self._options.row_group_size

    @property
    def max_rows_per_file(self) -> int | None:
        """Rows of a part, at most."""
        return self._options.max_rows_per_file

    @property
    def options(self) -> WriteOptions:
        """All options of writes."""
        return self._options

    def __repr__(self) -> str:
        return f"ParquetDatasetStore({self._store!r}, {self._options!r})"

    def __getstate__(self) -> dict[str, object]:
        return {"_store": self._store, "_options": self._options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._handle = handle_of(self._store)

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
    ) -> DatasetManifest:
        """Write a table or stream as the dataset `dataset_key`.

        Readers see the old dataset until the new one is whole. An error before that leaves the old
        one as it was.

        Args:
            table: A pyarrow Table, or any object with `__arrow_c_stream__`; a stream of any length is
                written in bounded memory.
            dataset_key: The folder, relative to the store; `/a//b/` and `./a/b` are `a/b`.
            overwrite: Replace a dataset that is there.
            run_id: The run that writes, for the manifest.
            metadata: Pairs of strings, for the manifest.
            key: Another name of `dataset_key`.

        Returns:
            The manifest that was written.

        Raises:
            AlreadyExists: The dataset is there and `overwrite` is not set.
            CapabilityNotSupported: The store cannot write atomically, or for `overwrite` not delete.
            InvalidPath: The key cannot be used.
            InvalidInput: The data has a column that Parquet cannot hold, by name, or a value cannot be used.
            InvalidType: An argument has a type that cannot be used.
        """
        source = arrow_stream(table)
        check_schema(source.schema)
        checked = self._check(one_key(dataset_key, key), overwrite, run_id, metadata)
        write = NewWrite(checked, overwrite, run_id, metadata, self._options)
        small = isinstance(source, pa.Table) and source.nbytes <= _SMALL_BYTES
        fields = _pds.write_dataset(self._handle, write, is_in_memory(table), small, source, schema_hash(source.schema))
        return DatasetManifest(*fields)

    def begin_write(
        self,
        key: str,
        *,
        overwrite: bool = False,
        run_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> DatasetWrite:
        """Begin a write whose parts are prepared by several tasks or processes.

        Arguments and errors are those of `write_dataset`. Nothing is written yet.
        """
        pairs = dict(metadata) if isinstance(metadata, Mapping) else metadata
        checked = self._check(one_key(key, None), overwrite, run_id, pairs)
        write_id, created_at = _pds.begin_write(self._handle, checked, overwrite, self._options)
        return DatasetWrite(self, checked, overwrite, run_id, pairs, write_id, created_at)

    def _check(self, key: str, overwrite: bool, run_id: str | None, metadata: dict[str, str] | None) -> str:  # noqa: FBT001 passed on
        check_text(overwrite, run_id, metadata)
        _pds.check_key(key)
        require(self._store, Capability.ATOMIC_WRITE, "write_dataset", key)
        if overwrite:
            require(self._store, Capability.DELETE, "write_dataset with overwrite=True", key)
        return key

    # -- reading ---------------------------------------------------------------

    def read_dataset(
        self,
        dataset_key: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        key: str | None = None,
    ) -> pa.Table:
        """Read a dataset into memory; only the bytes of `columns` are fetched.

        Args:
            dataset_key: The folder.
            columns: Names of columns, in the order wanted; a name may be given twice. A field of a struct
                is named by dots and comes as a column of its own name: `s.x` as `x`. Defaults to all.
            key: Another name of `dataset_key`.

        Raises:
            DatasetIncomplete: The marker or a part is missing.
            PartCorrupted: A part is not what was written.
            ManifestCorrupted: The manifest cannot be used.
            NotFound: There is a marker but no manifest.
            InvalidInput: There is no such column; the error lists those there are.
        """
        table: pa.Table = _pds.read_dataset(self._handle, one_key(dataset_key, key), column_paths(columns))
        return table

    def scan_dataset(
        self,
        dataset_key: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        key: str | None = None,
    ) -> pa.RecordBatchReader:
        """Read a dataset as a stream of batches, in bounded memory.

        The dataset is the one that was there at the beginning; if it is replaced before the end,
        the stream raises DatasetIncomplete.

        Args:
            dataset_key: The folder.
            columns: As for `read_dataset`.
            where: Keep the rows for which this holds; it may use columns that are not in `columns`. Only
                the columns that are asked for or filtered on are fetched.
            key: Another name of `dataset_key`.

        Raises:
            The errors of `read_dataset`; those of the data while the stream is read.
        """
        wanted = column_paths(columns)
        check_where(where)
        opened = _pds.open_dataset(self._handle, one_key(dataset_key, key))
        if where is None:
            return _reader(opened.scan(wanted))
        return _filtered(opened, wanted, where)

    def read_part(
        self,
        key: str,
        manifest: DatasetManifest,
        index: int,
        columns: Sequence[str] | None = None,
        *,
        part_index: PartIndex | None = None,
    ) -> pa.RecordBatchReader:
        """Read one part of the dataset that `manifest` describes, as a stream.

        Args:
            key: The folder.
            manifest: The manifest as it was read; another dataset at the key is refused.
            index: The part's position in the manifest.
            columns: Names of columns, fields of structs by dots. Defaults to all.
            part_index: What `index_parts` gave for the manifest. Without it the footers of all parts are
                read where the part alone does not show which of them it is; give it where many parts of
                a dataset are read one by one.

        Raises:
            The errors of `read_dataset`; DatasetIncomplete if the dataset was replaced; PartCorrupted if
                the part is another one than the one written there.
        """
        paths = column_paths(columns)
        scan = _pds.scan_part(self._handle, one_key(key, None), manifest.to_json(), index, paths, part_index)
        return _reader(scan)

    def index_parts(self, key: str, manifest: DatasetManifest) -> PartIndex:
        """Look at all parts of the dataset that `manifest` describes, for `read_part`. Can be pickled.

        Raises:
            The errors of `read_dataset`; DatasetIncomplete if the dataset was replaced.
        """
        return _pds.index_parts(self._handle, one_key(key, None), manifest.to_json())

    def read_manifest(self, dataset_key: str | None = None, *, key: str | None = None) -> DatasetManifest:
        """Read a dataset's manifest.

        Raises:
            NotFound: There is none.
            ManifestCorrupted: It cannot be used.
        """
        return DatasetManifest(*_pds.read_manifest(self._handle, one_key(dataset_key, key)))

    def dataset_exists(self, dataset_key: str | None = None, *, key: str | None = None) -> bool:
        """Whether a complete dataset is there."""
        return _pds.dataset_exists(self._handle, one_key(dataset_key, key))

    # -- keeping ---------------------------------------------------------------

    def delete_dataset(self, dataset_key: str | None = None, *, key: str | None = None) -> None:
        """Delete the whole folder.

        Raises:
            NotFound: There is none.
        """
        folder = one_key(dataset_key, key)
        _pds.delete_dataset(self._handle, folder)
        if not isinstance(self._store, Store):
            _remove_empty_folders(self._store, folder)

    def verify_dataset(self, dataset_key: str | None = None, *, key: str | None = None) -> VerifyReport:
        """Read every byte of a dataset and check all there is to check.

        Raises:
            The errors of `read_dataset`, for the first damage found.
        """
        return VerifyReport(*_pds.verify_dataset(self._handle, one_key(dataset_key, key)))

    def list_datasets(self, prefix: str = "") -> list[str]:
        """The keys of the complete datasets below a folder."""
        return _pds.list_datasets(self._handle, folder_path(prefix))

    def clean_dataset(
        self,
        dataset_key: str | None = None,
        *,
        key: str | None = None,
        older_than: float = _DAY_SECONDS,
    ) -> int:
        """Finish an interrupted publish and remove what killed writers left.

        Uncompleted multipart uploads are aborted where they can be listed: on S3 this takes the permission
        ``s3:ListBucketMultipartUploads``, and some compatible servers have no such list. A lifecycle rule of the
        bucket ends the others.

        Args:
            dataset_key: The folder.
            key: Another name of `dataset_key`.
            older_than: Hidden files of unknown processes, and uploads, are removed when they are older than so many
                seconds by the store's clock. Make it longer than any write takes: an upload that is aborted too
                early fails its write.

        Returns:
            The number of files and uploads removed.
        """
        return _pds.clean_dataset(self._handle, one_key(dataset_key, key), older_than)


@dataclasses.dataclass(frozen=True)
class DatasetWrite:
    """A write under way: parts are prepared anywhere and published once. Can be pickled.

    Args:
        datasets: Where it writes.
        key: The dataset's key.
        overwrite: Whether a dataset that is there is replaced.
        run_id: For the manifest.
        metadata: For the manifest.
        write_id: Identifies the write.
        created_at: For the manifest.
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
        """How parts are written."""
        return self.datasets.options

    def prepare(self, data: ArrowStream, task: int = 0, *, threads: int | None = None) -> list[StagedPart]:
        """Encode and upload parts where no reader sees them.

        Args:
            data: Any object with `__arrow_c_stream__`.
            task: Orders the parts of different tasks.
            threads: Threads that encode. None is one for each processor.

        Returns:
            The parts, none for a stream without rows.
        """
        check_task(task)
        options = TaskOptions(number=task, threads=threads, keep_empty=False, shared=True)
        source = arrow_stream(data)
        check_schema(source.schema)
        return _pds.prepare(self.datasets._handle, self, options, source)  # noqa: SLF001 one module

    def prepare_empty(self, schema: pa.Schema) -> list[StagedPart]:
        """One part without rows."""
        options = TaskOptions(keep_empty=True, shared=True)
        return _pds.prepare(self.datasets._handle, self, options, schema.empty_table())  # noqa: SLF001 one module

    def publish(self, parts: Iterable[StagedPart], schema: pa.Schema) -> DatasetManifest:
        """Make the parts the dataset, ordered by task and sequence.

        Args:
            parts: Those that `prepare` gave, of one attempt for each task.
            schema: The schema of the data, for the manifest.

        Raises:
            AlreadyExists: The dataset is there by now and `overwrite` is not set.
        """
        fields = _pds.publish(self.datasets._handle, self, list(parts), schema_hash(schema))  # noqa: SLF001 one module
        return DatasetManifest(*fields)

    def abort(self, parts: Iterable[StagedPart]) -> None:
        """Remove parts that will not be published.

        Where a `publish` of this write was interrupted, whoever finishes it may need them: they stay, and go with it.
        """
        _pds.abort(self.datasets._handle, self, list(parts))  # noqa: SLF001 one module

    def abort_all(self) -> None:
        """Remove the hidden files of all tasks, as `abort` does. Uploads whose parts are not known go with a clean."""
        _pds.abort_all(self.datasets._handle, self)  # noqa: SLF001 one module


def _remove_empty_folders(store: remote_store.Store, folder: str) -> None:
    """Remove the folders that a dataset's files were in, and nothing that was written there meanwhile."""
    for entry in list(store.list_folders(folder)):
        _remove_empty_folders(store, str(entry.path))
    with contextlib.suppress(DirectoryNotEmpty):
        store.delete_folder(folder, missing_ok=True)


def _reader(scan: _pds.Scan) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        try:
            while (batch := scan.next_batch()) is not None:
                yield batch
        finally:
            scan.close()

    return pa.RecordBatchReader.from_batches(scan.schema, batches())


def _filtered(opened: _pds.OpenDataset, columns: list[str] | None, where: pc.Expression) -> pa.RecordBatchReader:
    schema = opened.schema
    check_filter(schema, where)
    wanted = schema.names if columns is None else columns
    predicate = Predicate(where, schema)
    # What is asked for comes first, then what is filtered on.
    scan = opened.scan([*wanted, *predicate.columns])
    outputs = pa.schema(list(scan.schema)[: len(wanted)]).with_metadata(scan.schema.metadata)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            while (batch := scan.next_batch()) is not None:
                filtered_on = pa.RecordBatch.from_arrays(batch.columns[len(wanted) :], predicate.columns)
                kept = batch.filter(predicate.holds([filtered_on], batch.num_rows))
                if kept.num_rows:
                    yield kept.select(list(range(len(wanted))))
        finally:
            scan.close()

    return pa.RecordBatchReader.from_batches(outputs, batches())

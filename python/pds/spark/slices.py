"""Appends a DataFrame to a dataset of the Open Data Fabric, by tasks that write the slices.

The tasks of a first job write the rows to temporary files and count them, exactly once even if tasks fail. So the
driver knows the offset at which each slice begins. The tasks of a second job read their files, number and hash the
rows, and write a slice each; the driver appends the blocks of all slices by one move of the head. Only counts, sizes
and hashes come to the driver.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
import uuid
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pds import ParquetDatasetStore, StagedPart
from pds.errors import CommitConflict, InvalidInput, InvalidType, NotFound, RemoteStoreError
from pds.odf import Dataset
from pds.odf.shared_ingest import SharedIngest
from pds.readers import make_reader
from pds.spark.jobs import flatten, run_tasks
from pds.spark.schema import align_to_schema, fit_to_table
from pds.spark.tasks import choose_attempts
from pds.spark.write import check_frame, prepare_parts, publish, require_shippable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pds import DatasetManifest
    from pds._pds import PartIndex
    from pds.odf import IngestResult
    from pds.odf.shared_ingest import SliceTask

__all__ = ["ingest"]

_SLICE_BYTES: Final = 128 << 20
# It follows its correct-from in the same slice.
_CORRECT_TO: Final = 3
# Temporary rows have folders of such names. Those of a driver that was killed go when they are older than any ingest.
_PREFIX: Final = "_ingest-"
_ABANDONED: Final = dt.timedelta(days=7)
# The timeout is for waiting, not for working: it leaves out the time of so many jobs.
_MAX_UNTIMED_JOBS: Final = 8


def ingest(
    df: DataFrame,
    dataset: Dataset,
    *,
    event_time: str | None = None,
    watermark: dt.datetime | str | None = None,
    source_state: dict[str, str] | None = None,
    slice_bytes: int = _SLICE_BYTES,
) -> IngestResult:
    """Append the rows of a DataFrame to a dataset, in the order of its partitions, all or none.

    The chain is the same as if `Dataset.ingest` were called for each slice. A slice has the rows of one partition, or
    of several that are small. The plan runs once. Rows are written twice: to temporary files, which are removed at the
    end, also after an error, and to the slices. If another writer appends rows meanwhile, the slices are written again
    from the temporary files. Slices of tasks whose job failed are in no block, and a vacuum removes them. Temporary
    files of a driver that was killed are removed by an ingest after a week.

    Args:
        df: A batch DataFrame of a classic or a Connect session.
        dataset: The dataset. The executors must be able to reach its store. The store's options, including credentials
            that were passed, are sent to the executors.
        event_time: As for `Dataset.ingest`.
        watermark: As for `Dataset.ingest`; it is that of the last slice.
        source_state: As for `Dataset.ingest`; it is that of the last slice.
        slice_bytes: Neighboring partitions are one slice if their temporary files have up to so many bytes together.

    Returns:
        The appended blocks; with several slices, each has the hashes of its slice.

    Raises:
        InvalidInput: As for `Dataset.ingest`, or the store cannot be sent to the executors. What the columns show is
            raised before the first job.
        InvalidType: An argument has an invalid type, or columns have types that cannot be written. As above.
        InvalidAppend, CommitConflict, CommitStateUnknown, TransactionExpired: As for `Dataset.ingest`. The timeout of
            the dataset does not include the first eight jobs that write slices.
        pyspark.errors.PySparkException: A job failed. The dataset is unchanged.
    """
    schema = check_frame(df)
    if not isinstance(dataset, Dataset):
        raise InvalidType(f"dataset must be a pds.odf.Dataset, not {type(dataset).__name__}")
    if isinstance(slice_bytes, bool) or not isinstance(slice_bytes, int):
        raise InvalidType(f"slice_bytes must be an integer, not {slice_bytes!r}")
    if slice_bytes < 1:
        raise InvalidInput(f"slice_bytes must be positive, not {slice_bytes}")
    require_shippable(dataset.store, dataset.store)
    options: dict[str, Any] = {"event_time": event_time, "watermark": watermark, "source_state": source_state}
    schema = _fit_to_dataset(schema, dataset)
    # Raises what is wrong with the arguments and the columns.
    shared = SharedIngest.begin(dataset, schema, **options)
    datasets = ParquetDatasetStore(dataset.store)
    _remove_abandoned(dataset, datasets)
    key = f"{dataset.path}/{_PREFIX}{uuid.uuid4().hex}"
    try:
        rows = _write_rows(df, datasets, key, schema)
        groups = rows.group(slice_bytes)
        if shared.operation in schema.names:
            groups = _keep_corrections(df, rows.with_column(shared.operation), groups)
        result = _append(df, dataset, rows, groups, options)
    except BaseException:
        # Tasks of a failed job leave hidden files and uploads.
        _remove_rows(datasets, key, has_failed=True)
        raise
    _remove_rows(datasets, key, has_failed=False)
    return result


def _fit_to_dataset(schema: pa.Schema, dataset: Dataset) -> pa.Schema:
    """Give rows the types of the columns of a dataset that Spark does not have; event times are cut to theirs later."""
    try:
        own = dataset.schema()
    except NotFound:
        # It has no schema yet; or it does not exist, which the ingest says.
        return schema
    system_columns = dataset._handle.facts(None, None)["system_columns"]  # noqa: SLF001 as `SharedIngest` does
    columns = pa.schema([field for field in own if field.name not in system_columns])
    return fit_to_table(schema, columns, case_sensitive=True)


def _remove_rows(datasets: ParquetDatasetStore, key: str, *, has_failed: bool) -> None:
    try:
        with contextlib.suppress(NotFound):
            datasets.delete_dataset(key)
        if has_failed:
            datasets.clean_dataset(key, older_than=0.0)
    except RemoteStoreError as error:
        message = f"the temporary rows of an ingest at {key!r} could not be removed, delete them: {error}"
        warnings.warn(message, stacklevel=3)


def _remove_abandoned(dataset: Dataset, datasets: ParquetDatasetStore) -> None:
    """Remove the temporary rows that a driver which was killed has left, because a vacuum does not know them."""
    with contextlib.suppress(RemoteStoreError):
        for folder in dataset.store.list_folders(dataset.path):
            if not folder.name.startswith(_PREFIX):
                continue
            files = dataset.store.list_files(folder.path, recursive=True)
            newest = max((file.modified_at for file in files), default=None)
            if newest is None:
                # In its first job an ingest has hidden files only.
                datasets.clean_dataset(folder.path, older_than=_ABANDONED.total_seconds())
            elif dt.datetime.now(dt.UTC) - newest > _ABANDONED:
                _remove_rows(datasets, folder.path, has_failed=True)


@dataclass(frozen=True)
class _CountedRows:
    """The rows as a temporary dataset, and how many each of its parts has."""

    datasets: ParquetDatasetStore
    key: str
    manifest: DatasetManifest
    part_index: PartIndex
    counts: tuple[int, ...]
    schema: pa.Schema
    columns: tuple[str, ...] | None = None

    def with_column(self, name: str) -> _CountedRows:
        """Return these rows with one column only."""
        return replace(self, schema=pa.schema([self.schema.field(name)]), columns=(name,))

    def group(self, slice_bytes: int) -> list[range]:
        """Group neighboring parts; the list is empty without rows."""
        groups: list[range] = []
        size = slice_bytes
        for part, part_bytes in enumerate(self.part_index.sizes):
            if size + part_bytes > slice_bytes:
                groups.append(range(part, part))
                size = 0
            groups[-1] = range(groups[-1].start, part + 1)
            size += part_bytes
        return groups if sum(self.counts) else []

    def count(self, parts: range) -> int:
        """Return how many rows parts have."""
        return sum(self.counts[part] for part in parts)

    def read(self, parts: range) -> pa.RecordBatchReader:
        """Return the rows of parts."""
        readers = (
            self.datasets.read_part(self.key, self.manifest, part, self.columns, part_index=self.part_index)
            for part in parts
        )
        batches = (batch for reader in readers for batch in align_to_schema(reader, self.schema))
        return make_reader(self.schema, batches)


def _write_rows(df: DataFrame, datasets: ParquetDatasetStore, key: str, schema: pa.Schema) -> _CountedRows:
    """Write the rows of each partition as a part of a temporary dataset."""
    write = datasets.begin_write(key)
    messages = prepare_parts(df, write, schema)
    parts, _ = choose_attempts((m.task, m.attempt, StagedPart.from_bytes(bytes(m.part))) for m in messages)
    manifest = publish(write, messages, schema)
    counts = tuple(part.rows for part in parts) or (0,)
    return _CountedRows(datasets, key, manifest, datasets.index_parts(key, manifest), counts, schema)


@dataclass(frozen=True)
class _FirstOperation:
    """Tells whether the first row of a part is a correct-to."""

    rows: _CountedRows
    part: int

    def run(self, threads: int | None = None) -> list[bytes]:  # noqa: ARG002 as other tasks
        batch = next(batch for batch in self.rows.read(range(self.part, self.part + 1)) if batch.num_rows)
        return [b"to"] if batch.column(0)[0].as_py() == _CORRECT_TO else []


def _keep_corrections(df: DataFrame, operations: _CountedRows, groups: list[range]) -> list[range]:
    """Join groups of parts between which a correction would be split."""
    firsts = run_tasks(df.sparkSession, [_FirstOperation(operations, group.start) for group in groups])
    joined: list[range] = []
    for group, is_correct_to in zip(groups, firsts, strict=True):
        if is_correct_to and joined:
            joined[-1] = range(joined[-1].start, group.stop)
        else:
            joined.append(group)
    return joined


@dataclass(frozen=True)
class _WriteSlice:
    """Writes the rows of parts as a slice."""

    task: SliceTask
    rows: _CountedRows
    parts: range

    def run(self, threads: int | None = None) -> list[bytes]:
        return self.task.write(self.rows.read(self.parts), threads or 1)


def _append(
    df: DataFrame, dataset: Dataset, rows: _CountedRows, groups: list[range], options: dict[str, Any]
) -> IngestResult:
    """Write the slices and append their blocks; anew after other writers have appended rows."""
    untimed_seconds = 0.0
    begun_at = time.monotonic()
    attempts = 0
    while True:
        shared = SharedIngest.begin(dataset, rows.schema, **options)
        tasks: list[_WriteSlice] = []
        rows_before = 0
        for parts in groups:
            tasks.append(_WriteSlice(shared.task(rows_before), rows, parts))
            rows_before += rows.count(parts)
        started_at = time.monotonic()
        messages = flatten(run_tasks(df.sparkSession, tasks))
        if attempts < _MAX_UNTIMED_JOBS:
            untimed_seconds += time.monotonic() - started_at
        result = shared.commit(messages, rows_before)
        attempts += 1
        if result is not None:
            return replace(result, attempts=result.attempts + attempts - 1)
        if time.monotonic() - begun_at - untimed_seconds > shared.timeout:
            message = f"gave up after {attempts} jobs: other writers appended rows while the tasks of each wrote slices"
            raise CommitConflict(f"{message}; nothing was appended, try again", path=dataset.path)

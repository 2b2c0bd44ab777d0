"""Writes a DataFrame as a dataset: the tasks prepare parts, and the driver publishes them.

Each task streams its partition into unpublished parts and returns a message for each part. The driver collects only
these messages. It publishes the parts of one attempt of each task, in the order of the partitions, in one atomic
step. Nothing is renamed or copied. A task that is retried, runs twice or is lost with its executor does not change
the result.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from pds import ParquetDatasetStore, StagedPart, Store
from pds.errors import InvalidInput, InvalidType, RemoteStoreError
from pds.spark.schema import dataset_schema
from pds.spark.settings import batch_limit_settings, batch_limits
from pds.spark.tasks import MESSAGE_DDL, PrepareParts, choose_attempts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
    import remote_store
    from pyspark.sql import Row

    from pds import DatasetManifest, DatasetWrite

__all__ = [
    "check_frame",
    "is_case_sensitive",
    "message_plan",
    "prepare_parts",
    "publish",
    "require_shippable",
    "write_dataset",
]

_CASE_SENSITIVE: Final = "spark.sql.caseSensitive"


def write_dataset(  # noqa: PLR0913 keyword options of the writer and of the write
    df: DataFrame,
    store: Store | remote_store.Store,
    key: str,
    *,
    overwrite: bool = False,
    run_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    compression: str = "zstd",
    row_group_size: int | None = None,
    max_rows_per_file: int | None = None,
) -> DatasetManifest:
    """Write ``df`` as one dataset. Readers see the complete dataset or nothing.

    Every non-empty partition becomes one part, or several parts with up to ``max_rows_per_file`` rows. Parts are
    numbered in the order of the partitions. A DataFrame without rows becomes one part without rows. The plan runs
    once.

    Args:
        df: A batch DataFrame of a classic or a Connect session.
        store: The store. The executors must be able to reach it. Its options, including credentials that were
            passed, are sent to the executors.
        key: The key of the dataset.
        overwrite: Whether to replace an existing dataset.
        run_id: As for ``ParquetDatasetStore.write_dataset``.
        metadata: As for ``ParquetDatasetStore.write_dataset``.
        compression: As for ``ParquetDatasetStore``.
        row_group_size: As for ``ParquetDatasetStore``.
        max_rows_per_file: As for ``ParquetDatasetStore``, within each partition.

    Returns:
        The manifest of the new dataset.

    Raises:
        AlreadyExists: The dataset exists and ``overwrite`` is not set.
        InvalidInput: An argument, a column name or the store is not valid. This error, InvalidPath and
            CapabilityNotSupported are raised before the job starts.
        InvalidType: Columns have types that cannot be written. The message names all of them. Raised before the job
            starts.
        pyspark.errors.PySparkException: The job failed. The dataset is unchanged.
    """
    schema = check_frame(df)
    datasets = ParquetDatasetStore(
        store,
        compression=compression,
        row_group_size=row_group_size,
        max_rows_per_file=max_rows_per_file,
    )
    require_shippable(datasets.store, datasets)
    write = datasets.begin_write(key, overwrite=overwrite, run_id=run_id, metadata=metadata)
    return publish(write, prepare_parts(df, write, schema), schema)


def prepare_parts(df: DataFrame, write: DatasetWrite, schema: pa.Schema) -> list[Row]:
    """Run the job that prepares the parts, and return its messages."""
    try:
        with batch_limit_settings(df.sparkSession, batch_limits(df.schema)):
            return message_plan(df, write, schema).collect()
    except BaseException:
        # The messages of the finished tasks are lost, so their parts are removed by their names.
        with contextlib.suppress(RemoteStoreError):
            write.abort_all()
        raise


def message_plan(df: DataFrame, write: DatasetWrite, schema: pa.Schema) -> DataFrame:
    """Return the plan that prepares the parts. Its only useful action is ``collect``."""
    # Columns are renamed to their positions, because mapInArrow splits names at dots and fails on backticks.
    renamed = df.toDF(*(f"c{position}" for position in range(len(schema))))
    return renamed.mapInArrow(PrepareParts(write, schema), MESSAGE_DDL)


def publish(write: DatasetWrite, messages: Iterable[Row], schema: pa.Schema) -> DatasetManifest:
    """Publish the parts of one attempt of each task, and remove the parts of the other attempts."""
    published, duplicates = choose_attempts(
        (message.task, message.attempt, StagedPart.from_bytes(bytes(message.part))) for message in messages
    )
    if duplicates:
        with contextlib.suppress(RemoteStoreError):
            write.abort(duplicates)
    return write.publish(published or write.prepare_empty(schema), schema)


def require_shippable(store: Store | remote_store.Store, sent: object) -> None:
    """Check that what is sent to the executors can be, and that its store is the same there.

    Raises:
        InvalidInput: The store cannot be pickled, or is in the memory of this process.
    """
    if isinstance(store, Store) and urlsplit(store.url).scheme == "memory":
        msg = "Spark executors cannot reach a memory:// store of this process; use a store that they can reach"
        raise InvalidInput(msg)
    try:
        cloudpickle.dumps(sent)  # type: ignore[no-untyped-call]
    except Exception as error:
        msg = f"the store cannot be pickled for the Spark executors: {error}"
        raise InvalidInput(msg) from error


def check_frame(df: DataFrame) -> pa.Schema:
    """Check that a DataFrame can be written, and return its Arrow schema."""
    if not isinstance(df, DataFrame):
        msg = f"expected a Spark DataFrame, got {type(df).__module__}.{type(df).__name__}"
        raise InvalidType(msg)
    if df.isStreaming:
        msg = "streaming DataFrames are not supported; write each batch of foreachBatch as a dataset"
        raise InvalidInput(msg)
    return dataset_schema(df.schema, case_sensitive=is_case_sensitive(df))


def is_case_sensitive(df: DataFrame) -> bool:
    """Return whether names that differ only in case are different columns in the session of a DataFrame."""
    return str(df.sparkSession.conf.get(_CASE_SENSITIVE)).lower() == "true"

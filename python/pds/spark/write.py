"""A DataFrame as a dataset: parts are prepared by the tasks, published by the driver.

Each task streams its partition into parts that no reader can see and sends back a message for
each part. Those messages are all that the driver collects; it publishes the parts of one attempt
per task, in the order of the partitions, as the one visible step. Nothing is renamed or copied,
and a task that is tried again, runs twice or is lost with its executor leaves no trace in the
result.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from pds import ParquetDatasetStore, StagedPart, Store
from pds.errors import InvalidInput, InvalidType, RemoteStoreError
from pds.spark.schema import dataset_schema
from pds.spark.settings import batch_limit_settings, batch_limits
from pds.spark.tasks import MESSAGE_DDL, PrepareParts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
    import remote_store
    from pyspark.sql import Row

    from pds import DatasetManifest, DatasetWrite

__all__ = ["message_plan", "publish", "require_shippable", "write_dataset"]

_CASE_SENSITIVE: Final = "spark.sql.caseSensitive"


def write_dataset(  # noqa: PLR0913 the options of the RFC's writer and of its write, all by name
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
    """Write ``df`` as one dataset, visible as a whole or not at all.

    Every non-empty partition becomes one part, or several of ``max_rows_per_file`` rows; they
    are numbered in the order of the partitions. A DataFrame without rows becomes one part
    without rows. The plan runs once.

    Args:
        df: What to write; a batch DataFrame, of a classic or a Connect session.
        store: Where to; executors must reach it too. It travels to them with its options,
            credentials that were passed in among them.
        key: The key of the dataset.
        overwrite: Replace the dataset that is there.
        run_id: As for ``ParquetDatasetStore.write_dataset``.
        metadata: As for ``ParquetDatasetStore.write_dataset``.
        compression: As for ``ParquetDatasetStore``.
        row_group_size: As for ``ParquetDatasetStore``.
        max_rows_per_file: As for ``ParquetDatasetStore``, within each partition.

    Returns:
        The manifest that was published.

    Raises:
        AlreadyExists: The dataset is there and ``overwrite`` is not set.
        InvalidInput: An argument, a column name or the store cannot be used; raised, like
            InvalidPath and CapabilityNotSupported, before the job starts.
        InvalidType: Columns of types that cannot be written, by name; before the job starts.
        pyspark.errors.PySparkException: The job failed. The dataset is as it was.
    """
    schema = _check(df)
    datasets = ParquetDatasetStore(
        store,
        compression=compression,
        row_group_size=row_group_size,
        max_rows_per_file=max_rows_per_file,
    )
    require_shippable(datasets)
    write = datasets.begin_write(key, overwrite=overwrite, run_id=run_id, metadata=metadata)
    try:
        with batch_limit_settings(df.sparkSession, batch_limits(df.schema)):
            messages = message_plan(df, write, schema).collect()
    except BaseException:
        # The messages of the tasks that did finish are lost with the job.
        with contextlib.suppress(RemoteStoreError):
            write.abort_all()
        raise
    return publish(write, messages, schema)


def message_plan(df: DataFrame, write: DatasetWrite, schema: pa.Schema) -> DataFrame:
    """The plan that prepares the parts; its only fit action is ``collect``."""
    # Under their positions: mapInArrow takes names apart at dots and stumbles over backticks.
    renamed = df.toDF(*(f"c{position}" for position in range(len(schema))))
    return renamed.mapInArrow(PrepareParts(write, schema), MESSAGE_DDL)


def publish(write: DatasetWrite, messages: Iterable[Row], schema: pa.Schema) -> DatasetManifest:
    """Publish the parts of one attempt per task; those of other attempts are aborted."""
    attempts: defaultdict[int, defaultdict[int, list[StagedPart]]]
    attempts = defaultdict(lambda: defaultdict(list))
    for message in messages:
        part = StagedPart.from_bytes(bytes(message.part))
        attempts[message.task][message.attempt].append(part)
    chosen: list[StagedPart] = []
    lost: list[StagedPart] = []
    for by_attempt in attempts.values():
        first = min(by_attempt)
        for attempt, parts in by_attempt.items():
            (chosen if attempt == first else lost).extend(parts)
    if lost:
        with contextlib.suppress(RemoteStoreError):
            write.abort(lost)
    return write.publish(chosen or write.prepare_empty(schema), schema)


def require_shippable(datasets: ParquetDatasetStore) -> None:
    """Check that ``datasets`` can be sent to the executors and means the same there.

    Raises:
        InvalidInput: If not.
    """
    store = datasets.store
    if isinstance(store, Store) and urlsplit(store.url).scheme == "memory":
        msg = "Spark's executors cannot reach a store in the memory of this process"
        raise InvalidInput(msg)
    try:
        cloudpickle.dumps(datasets)  # type: ignore[no-untyped-call]
    except Exception as error:
        msg = f"the store cannot be sent to Spark's executors: {error}"
        raise InvalidInput(msg) from error


def _check(df: DataFrame) -> pa.Schema:
    """The Arrow schema of a DataFrame that can be written."""
    if not isinstance(df, DataFrame):
        msg = f"expected a Spark DataFrame, got {type(df).__module__}.{type(df).__name__}"
        raise InvalidType(msg)
    if df.isStreaming:
        msg = "a streaming DataFrame has no end: write each batch of foreachBatch as a dataset"
        raise InvalidInput(msg)
    case_sensitive = str(df.sparkSession.conf.get(_CASE_SENSITIVE)).lower() == "true"
    return dataset_schema(df.schema, case_sensitive=case_sensitive)

"""A DataFrame into a dataset of the Open Data Fabric, as one slice.

The tasks write a dataset of parts, exactly once whatever happens to them; the driver then streams the
parts, in the order of the partitions, into the slice, numbers and hashes the rows, and moves the head.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from pds import ParquetDatasetStore
from pds.errors import RemoteStoreError
from pds.spark.write import write_dataset

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame

    from pds.odf import Dataset, IngestResult

__all__ = ["ingest"]


def ingest(
    df: DataFrame,
    dataset: Dataset,
    *,
    event_time: str | None = None,
    watermark: dt.datetime | str | None = None,
    source_state: dict[str, str] | None = None,
) -> IngestResult:
    """Append a DataFrame's rows to a dataset, as `Dataset.ingest` does with a table.

    The plan runs once. Memory of the driver is bounded; rows are written twice, once by the tasks and once,
    numbered and hashed, by the driver. What the tasks write is removed whatever happens.

    Args:
        df: What to append; a batch DataFrame, of a classic or a Connect session.
        dataset: Where to; executors must reach its store too.
        event_time: As for `Dataset.ingest`.
        watermark: As for `Dataset.ingest`.
        source_state: As for `Dataset.ingest`.

    Raises:
        InvalidInput: As for `write_dataset` and `Dataset.ingest`.
        InvalidAppend: A rule of the chain.
        CommitConflict: Other writers came first until the dataset's timeout.
        pyspark.errors.PySparkException: The job failed. The dataset is as it was.
    """
    parts = ParquetDatasetStore(dataset.store)
    key = f"{dataset.path}/_ingest-{uuid.uuid4().hex}"
    try:
        write_dataset(df, dataset.store, key)
        rows = parts.scan_dataset(key)
        return dataset.ingest(rows, event_time=event_time, watermark=watermark, source_state=source_state)
    finally:
        with contextlib.suppress(RemoteStoreError):
            parts.delete_dataset(key)

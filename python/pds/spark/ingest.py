"""Appends a DataFrame to a dataset of the Open Data Fabric, as one slice.

The tasks write a temporary dataset of parts, exactly once even if tasks fail. The driver then streams the parts, in
the order of the partitions, into the slice, assigns offsets, hashes the rows, and moves the head.
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
    """Append the rows of a DataFrame to a dataset, as `Dataset.ingest` does for a table.

    The plan runs once. The memory of the driver is bounded. Rows are written twice: by the tasks to temporary files,
    and by the driver, with offsets and hashes, to the slice. The temporary files are removed at the end, also after
    an error.

    Args:
        df: A batch DataFrame of a classic or a Connect session.
        dataset: The dataset. The executors must be able to reach its store.
        event_time: As for `Dataset.ingest`.
        watermark: As for `Dataset.ingest`.
        source_state: As for `Dataset.ingest`.

    Returns:
        The appended blocks and the slice.

    Raises:
        InvalidInput, InvalidType: As for `write_dataset` and `Dataset.ingest`.
        InvalidAppend, CommitConflict, CommitStateUnknown, TransactionExpired: As for `Dataset.ingest`.
        pyspark.errors.PySparkException: The job failed. The dataset is unchanged.
    """
    datasets = ParquetDatasetStore(dataset.store)
    key = f"{dataset.path}/_ingest-{uuid.uuid4().hex}"
    try:
        write_dataset(df, dataset.store, key)
        rows = datasets.scan_dataset(key)
        return dataset.ingest(rows, event_time=event_time, watermark=watermark, source_state=source_state)
    finally:
        with contextlib.suppress(RemoteStoreError):
            datasets.delete_dataset(key)

"""A dataset as a DataFrame: every task opens its own parts.

The driver reads the manifest and the footers of the parts, no data, and tells the tasks which parts
they have to find. The DataFrame is of the dataset as it was when this function ran: if it is
replaced, an action on the DataFrame fails and says so, it never returns a mixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pds import ParquetDatasetStore
from pds.spark.schema import frame_schema, worker_schema
from pds.spark.tasks import ReadParts
from pds.spark.write import require_shippable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import remote_store
    from pyspark.sql import DataFrame, SparkSession

    from pds import Store

__all__ = ["read_dataset"]

# Enough tasks to spread a dataset over a cluster, none so small that starting it costs more.
_TASKS: Final = 128
_MIN_TASK_BYTES: Final = 16 << 20
_MAX_TASK_BYTES: Final = 128 << 20


def read_dataset(
    spark: SparkSession,
    store: Store | remote_store.Store,
    key: str,
    *,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Read the dataset at ``key`` as a DataFrame.

    Rows come in the order of the dataset. What ``pds.spark`` wrote comes back with Spark's own
    types; other datasets with the types that hold every value of theirs.

    Args:
        spark: A classic or a Connect session.
        store: Where from; executors must reach it too. It travels to them with its options,
            credentials that were passed in among them.
        key: The key of the dataset.
        columns: Only these are fetched, in this order. Name them here rather than in a
            ``select``: Spark does not tell its sources what a query leaves out.

    Returns:
        A DataFrame that reads the dataset anew with every action.

    Raises:
        NotFound: There is no dataset.
        DatasetIncomplete: The dataset lacks its marker or a part.
        ManifestCorrupted: The manifest cannot be used.
        InvalidInput: No such column, or the store cannot be sent to the executors.
        InvalidType: Columns of types that Spark does not have, by name.
    """
    datasets = ParquetDatasetStore(store)
    require_shippable(datasets)
    manifest = datasets.read_manifest(key)
    part_index = datasets.index_parts(key, manifest)
    names = None if columns is None else tuple(columns)
    first = datasets.read_part(key, manifest, 0, names, part_index=part_index)
    schema = frame_schema(first.schema)
    tasks = _tasks(part_index.sizes)
    read = ReadParts(datasets, key, manifest, part_index, names, worker_schema(schema), tasks)
    numbers = spark.range(0, len(tasks), 1, numPartitions=len(tasks))
    return numbers.mapInArrow(read, schema)


def _tasks(sizes_bytes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Join neighbouring small parts, so that tasks are of about one size."""
    limit = min(max(sum(sizes_bytes) // _TASKS, _MIN_TASK_BYTES), _MAX_TASK_BYTES)
    tasks: list[tuple[int, ...]] = []
    joined: list[int] = []
    joined_bytes = 0
    for part, size in enumerate(sizes_bytes):
        if joined and joined_bytes + size > limit:
            tasks.append(tuple(joined))
            joined, joined_bytes = [], 0
        joined.append(part)
        joined_bytes += size
    tasks.append(tuple(joined))
    return tuple(tasks)

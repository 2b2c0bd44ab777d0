"""Reads a dataset as a DataFrame: every task opens its own parts.

The driver reads the manifest and the footers of the parts, and assigns parts to tasks; a part that is much larger than
a task is read by several, each its share of the row groups. The DataFrame has the dataset
that existed when `read_dataset` ran. If the dataset is replaced, an action on the DataFrame fails and never returns
rows of two datasets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pds import ParquetDatasetStore
from pds.dataset_arguments import PartSelection
from pds.spark.schema import frame_schema, worker_schema
from pds.spark.tasks import ReadParts
from pds.spark.write import require_shippable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import remote_store
    from pyspark.sql import DataFrame, SparkSession

    from pds import Store

__all__ = ["read_dataset"]

# A dataset has about this many tasks, unless they would be so small that their start costs more than the read.
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

    Rows are in the order of the dataset. A dataset that ``pds.spark`` wrote is read with its Spark types. Any other
    dataset is read with Spark types that hold all values of its Arrow types.

    Args:
        spark: A classic or a Connect session.
        store: The store. The executors must be able to reach it. Its options, including credentials that were
            passed, are sent to the executors.
        key: The key of the dataset.
        columns: The names of the columns to fetch, in the order of the result. Name them here and not in a
            ``select``, because Spark does not push a ``select`` down to this source. Defaults to all columns.

    Returns:
        A DataFrame. Every action reads the dataset again.

    Raises:
        NotFound: The dataset does not exist.
        DatasetIncomplete: The marker ``_SUCCESS`` or a part is missing.
        ManifestCorrupted: The manifest is not valid.
        InvalidInput: A column does not exist, or the store cannot be sent to the executors.
        InvalidType: Columns have types that Spark does not have. The message names all of them.
    """
    datasets = ParquetDatasetStore(store)
    require_shippable(datasets.store, datasets)
    manifest = datasets.read_manifest(key)
    part_index = datasets.index_parts(key, manifest)
    names = None if columns is None else tuple(columns)
    first_part = datasets.read_part(key, manifest, 0, names, part_index=part_index)
    schema = frame_schema(first_part.schema)
    tasks = _group_parts(part_index.sizes, part_index.row_groups)
    read = ReadParts(datasets, key, manifest, part_index, names, worker_schema(schema), tasks)
    numbers = spark.range(0, len(tasks), 1, numPartitions=len(tasks))
    return numbers.mapInArrow(read, schema)


def _group_parts(sizes_bytes: Sequence[int], row_groups: Sequence[int]) -> tuple[tuple[PartSelection, ...], ...]:
    """Group neighboring parts, and shares of large ones, into tasks of about the same size."""
    limit_bytes = min(max(sum(sizes_bytes) // _TASKS, _MIN_TASK_BYTES), _MAX_TASK_BYTES)
    tasks: list[tuple[PartSelection, ...]] = []
    group: list[PartSelection] = []
    group_bytes = 0
    for part, part_bytes in enumerate(sizes_bytes):
        count = max(1, min((part_bytes + limit_bytes // 2) // limit_bytes, row_groups[part]))
        share_bytes = -(-part_bytes // count)
        for number in range(count):
            if group and group_bytes + share_bytes > limit_bytes:
                tasks.append(tuple(group))
                group, group_bytes = [], 0
            group.append(PartSelection(part, (number, count) if count > 1 else None))
            group_bytes += share_bytes
    tasks.append(tuple(group))
    return tuple(tasks)

"""Dagster IO manager: assets and op outputs as Parquet datasets.

``dagster_io_manager(store)`` stores every output as one dataset. A new run replaces the dataset atomically.

Keys: the key of a dataset has the segments of the asset key, and then the partition key as one segment. The output of
an op has the key ``run id/step key/output name``. Characters that a store path cannot have, and names that datasets
reserve, are escaped as ``%XX``. The partition ``b`` of the asset ``a`` and the asset ``a/b`` have the same key. The
manifest has the owner of a dataset, and reads and writes of the other asset fail with ``AlreadyExists``. Rename one of
the assets, or use separate stores.

Outputs: any object with ``__arrow_c_stream__`` (pyarrow, polars, pandas, duckdb, a record batch reader). A run over
several partitions returns a mapping with one value for each partition key. A retried run replaces the output of the
first attempt.

Inputs: the type annotation selects the type: ``pyarrow.Table`` (the default), ``pyarrow.RecordBatchReader`` (a
stream), ``polars.DataFrame``, ``pandas.DataFrame``, or a ``dict[str, …]`` of one of them by partition key. Several
partitions are always loaded as a mapping, and no partition as ``None``. Input metadata: ``columns`` is a list of
column names; ``allow_missing_partitions`` skips missing partitions, as in the IO managers of Dagster. A read waits for
a partition that is being written.

Example:
    ```python
    from dagster import Definitions
    from pds.dagster import dagster_io_manager

    defs = Definitions(
        assets=[orders],
        resources={"io_manager": dagster_io_manager(pds.Store("s3://bucket/silver"))},
    )
    ```
"""

from __future__ import annotations

__all__ = [
    "DatasetIOManager",
    "PdsResource",
    "PdsTableIOManager",
    "dagster_io_manager",
    "pipeline_assets",
    "pipeline_checks",
    "table_sensor",
    "verify_checks",
]

from pds.dagster.checks import verify_checks
from pds.dagster.datasets import DatasetIOManager, dagster_io_manager
from pds.dagster.pipelines import pipeline_assets, pipeline_checks
from pds.dagster.resource import PdsResource
from pds.dagster.sensors import table_sensor
from pds.dagster.tables import PdsTableIOManager

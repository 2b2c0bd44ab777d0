"""Datasets from and to Spark DataFrames.

``write_dataset`` publishes a DataFrame as one dataset, exactly once whatever happens to tasks
and executors; ``read_dataset`` is the way back;
``ingest`` appends a DataFrame to a dataset of the Open Data Fabric. All use the DataFrame API only, so they work in
classic and in Connect sessions. The wheel must be installed where the executors run.

Example:
    ```python
    import pds.spark

    manifest = pds.spark.write_dataset(df, pds.Store("s3://bucket/silver"), "orders")
    again = pds.spark.read_dataset(spark, pds.Store("s3://bucket/silver"), "orders")
    ```

A function of your own in ``mapInArrow`` can call ``pds.ParquetDatasetStore`` as well, for
example to write one dataset for each value of a column.

It refuses streaming DataFrames (write each batch of ``foreachBatch``), stores that live in one
process, and types that Parquet cannot hold.
"""

from __future__ import annotations

from pds.spark.ingest import ingest
from pds.spark.read import read_dataset
from pds.spark.write import write_dataset

__all__ = ["ingest", "read_dataset", "write_dataset"]

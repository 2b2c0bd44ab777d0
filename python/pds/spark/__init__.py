"""Writes and reads of datasets and tables with Spark DataFrames.

``write_dataset`` publishes a DataFrame as one dataset, exactly once, even if tasks or executors fail.
``read_dataset`` reads a dataset as a DataFrame. ``append``, ``overwrite``, ``upsert`` and ``merge`` commit a DataFrame
to a table, once in the same way; ``delete`` deletes rows of a table, ``compact`` and ``sort`` rewrite its files,
``vacuum`` removes what no version needs, ``verify`` reads every byte of it, and ``read_table`` and ``scan_changes``
read its rows. ``SparkEngine`` computes the stages of a pipeline. ``ingest`` appends a DataFrame to a dataset of the
Open Data Fabric. ``enable`` sets what makes ``format("pds")`` fast in a session.
All use only the DataFrame API, so they work in classic and in Connect sessions. The wheel must be installed on the
executors. Tables are a data source of Spark, too: ``format("pds")``, described in ``docs/spark.md``.

Example:
    ```python
    import pds.spark

    manifest = pds.spark.write_dataset(df, pds.Store("s3://bucket/silver"), "orders")
    orders = pds.spark.read_dataset(spark, pds.Store("s3://bucket/silver"), "orders")
    ```

A function for ``mapInArrow`` can call ``pds.ParquetDatasetStore`` too, for example to write one dataset for each value
of a column.

Not supported are streaming DataFrames (write each batch of ``foreachBatch``), stores in the memory of one process, and
types that Parquet cannot store.

A module is imported when one of its names is first used: Spark plans ``format("pds")`` in new processes.
"""

from __future__ import annotations

__all__ = [
    "EnabledSettings",
    "SparkEngine",
    "append",
    "compact",
    "delete",
    "enable",
    "ingest",
    "merge",
    "overwrite",
    "read_dataset",
    "read_table",
    "scan_changes",
    "sort",
    "upsert",
    "vacuum",
    "verify",
    "write_dataset",
]

from typing import TYPE_CHECKING

# Where it is missing, `pds.spark` says so.
import pyspark  # noqa: F401

from pds.lazy_names import import_name

if TYPE_CHECKING:
    from pds.spark.change_feed import scan_changes
    from pds.spark.changes import delete, merge, upsert
    from pds.spark.engine import SparkEngine
    from pds.spark.maintenance import compact, sort, vacuum, verify
    from pds.spark.read import read_dataset
    from pds.spark.session import EnabledSettings, enable
    from pds.spark.slices import ingest
    from pds.spark.stage import append, overwrite
    from pds.spark.table import read_table
    from pds.spark.write import write_dataset

# No module has the name of a function: an import of it would hide the function.
_MODULE_OF = {
    "EnabledSettings": "pds.spark.session",
    "SparkEngine": "pds.spark.engine",
    "append": "pds.spark.stage",
    "compact": "pds.spark.maintenance",
    "delete": "pds.spark.changes",
    "enable": "pds.spark.session",
    "ingest": "pds.spark.slices",
    "merge": "pds.spark.changes",
    "overwrite": "pds.spark.stage",
    "read_dataset": "pds.spark.read",
    "read_table": "pds.spark.table",
    "scan_changes": "pds.spark.change_feed",
    "sort": "pds.spark.maintenance",
    "upsert": "pds.spark.changes",
    "vacuum": "pds.spark.maintenance",
    "verify": "pds.spark.maintenance",
    "write_dataset": "pds.spark.write",
}


def __getattr__(name: str) -> object:
    return import_name(__name__, _MODULE_OF, name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Dagster: assets as tables, datasets and pipelines.

- ``PdsTableIOManager`` stores each asset as one table, and its partitions as rows.
- ``dagster_io_manager(store)`` stores each asset, or each partition of it, as one dataset.
- ``pipeline_assets`` makes assets of the stages of a pipeline.
- ``verify_checks`` and ``pipeline_checks`` make asset checks, and ``table_sensor`` makes a sensor for new versions.
- ``PdsResource`` opens tables, datasets and pipelines in assets.
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

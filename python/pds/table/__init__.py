"""Tables: append, delete, upsert, scan and time travel on a folder of Parquet files, with atomic commits.

    table = pds.Table.create(store, "events", schema, key="id")
    table.append(rows)
    table.scan(where="amount > 10", columns=["id"]).to_pyarrow()

A module is imported when one of its names is first used.
"""

from __future__ import annotations

__all__ = [
    "Chart",
    "CheckResult",
    "CommitResult",
    "ExportResult",
    "History",
    "IcebergExportResult",
    "Layout",
    "ScanPlan",
    "ScanTask",
    "Table",
    "TableChanges",
    "TableScan",
    "TableWrite",
    "Tags",
    "VacuumResult",
    "VerifyResult",
    "list_tables",
]

from typing import TYPE_CHECKING

from pds.lazy_names import import_name

if TYPE_CHECKING:
    from pds.table.charts import Chart
    from pds.table.distributed import TableWrite
    from pds.table.layout import Layout
    from pds.table.results import (
        CheckResult,
        CommitResult,
        ExportResult,
        History,
        IcebergExportResult,
        ScanPlan,
        VacuumResult,
        VerifyResult,
    )
    from pds.table.scan import TableChanges, TableScan
    from pds.table.table import Table, list_tables
    from pds.table.tags import Tags
    from pds.table.tasks import ScanTask

_MODULE_OF = {
    "Chart": "pds.table.charts",
    "CheckResult": "pds.table.results",
    "CommitResult": "pds.table.results",
    "ExportResult": "pds.table.results",
    "History": "pds.table.results",
    "IcebergExportResult": "pds.table.results",
    "Layout": "pds.table.layout",
    "ScanPlan": "pds.table.results",
    "ScanTask": "pds.table.tasks",
    "Table": "pds.table.table",
    "TableChanges": "pds.table.scan",
    "TableScan": "pds.table.scan",
    "TableWrite": "pds.table.distributed",
    "Tags": "pds.table.tags",
    "VacuumResult": "pds.table.results",
    "VerifyResult": "pds.table.results",
    "list_tables": "pds.table.table",
}


def __getattr__(name: str) -> object:
    return import_name(__name__, _MODULE_OF, name)


def __dir__() -> list[str]:
    return sorted(__all__)

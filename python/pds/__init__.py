"""Parquet datasets and tables on object stores: atomic writes, no server.

Importing `pds` imports none of its modules. A module is imported when one of its names is first used.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "BackendUnavailable",
    "BlockCorrupted",
    "Capability",
    "CapabilityNotSupported",
    "Changes",
    "CommitConflict",
    "CommitResult",
    "CommitStateUnknown",
    "DatasetIncomplete",
    "DatasetManifest",
    "DatasetWrite",
    "DefinitionChanged",
    "DirectoryNotEmpty",
    "Entry",
    "Error",
    "ExportConflict",
    "FileChanged",
    "FileInfo",
    "FolderEntry",
    "FormatNotSupported",
    "InvalidAppend",
    "InvalidInput",
    "InvalidPath",
    "InvalidType",
    "ManifestCorrupted",
    "NotFound",
    "ParquetDatasetStore",
    "PartCorrupted",
    "PermissionDenied",
    "Pipeline",
    "Preserve",
    "ProduceError",
    "Progress",
    "RemoteStoreError",
    "Replace",
    "ResourceLocked",
    "StagedPart",
    "Store",
    "Table",
    "TableScan",
    "TransactionExpired",
    "UnsafeStore",
    "UpdateResult",
    "VacuumResult",
    "VerificationFailed",
    "VerifyReport",
    "VersionExpired",
    "WriteOptions",
    "__version__",
    "enable_logging",
    "errors",
    "import_delta",
    "import_iceberg",
    "list_tables",
    "odf",
    "open_chain",
    "open_pipeline",
    "open_table",
    "partition_path",
    "read_dataset",
    "scan_dataset",
    "scan_polars",
    "sql",
    "testing",
    "write_dataset",
    "write_table",
]

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pds import dagster as dagster
    from pds import doctor as doctor
    from pds import errors, odf, testing
    from pds import spark as spark
    from pds._pds import StagedPart, __version__
    from pds.by_url import (
        Entry,
        open_chain,
        open_pipeline,
        open_table,
        read_dataset,
        scan_dataset,
        write_dataset,
        write_table,
    )
    from pds.by_url import list as list  # noqa: A004 it is read with the name of the package
    from pds.capability import Capability
    from pds.dataset import DatasetWrite, ParquetDatasetStore, VerifyReport
    from pds.engines import scan_polars, sql
    from pds.errors import (
        AlreadyExists,
        BackendUnavailable,
        BlockCorrupted,
        CapabilityNotSupported,
        CommitConflict,
        CommitStateUnknown,
        DatasetIncomplete,
        DefinitionChanged,
        DirectoryNotEmpty,
        Error,
        ExportConflict,
        FileChanged,
        FormatNotSupported,
        InvalidAppend,
        InvalidInput,
        InvalidPath,
        InvalidType,
        ManifestCorrupted,
        NotFound,
        PartCorrupted,
        PermissionDenied,
        RemoteStoreError,
        ResourceLocked,
        TransactionExpired,
        UnsafeStore,
        VerificationFailed,
        VersionExpired,
    )
    from pds.imports import import_delta, import_iceberg
    from pds.logs import enable_logging
    from pds.manifest import DatasetManifest
    from pds.options import WriteOptions
    from pds.partition import partition_path
    from pds.producers.changes import Changes, Replace
    from pds.producers.errors import ProduceError
    from pds.producers.pipeline import Pipeline
    from pds.producers.preserve import Preserve
    from pds.producers.results import UpdateResult
    from pds.progress import Progress
    from pds.store import FileInfo, FolderEntry, Store
    from pds.table.results import CommitResult, VacuumResult
    from pds.table.scan import TableScan
    from pds.table.table import Table, list_tables

_MODULE_OF = {
    "Capability": "pds.capability",
    "Changes": "pds.producers.changes",
    "CommitResult": "pds.table.results",
    "DatasetManifest": "pds.manifest",
    "DatasetWrite": "pds.dataset",
    "Entry": "pds.by_url",
    "FileInfo": "pds.store",
    "FolderEntry": "pds.store",
    "ParquetDatasetStore": "pds.dataset",
    "Pipeline": "pds.producers.pipeline",
    "Preserve": "pds.producers.preserve",
    "ProduceError": "pds.producers.errors",
    "Progress": "pds.progress",
    "Replace": "pds.producers.changes",
    "StagedPart": "pds._pds",
    "Store": "pds.store",
    "Table": "pds.table.table",
    "TableScan": "pds.table.scan",
    "UpdateResult": "pds.producers.results",
    "VacuumResult": "pds.table.results",
    "VerifyReport": "pds.dataset",
    "WriteOptions": "pds.options",
    "__version__": "pds._pds",
    "enable_logging": "pds.logs",
    "import_delta": "pds.imports",
    "import_iceberg": "pds.imports",
    "list": "pds.by_url",
    "list_tables": "pds.table.table",
    "open_chain": "pds.by_url",
    "open_pipeline": "pds.by_url",
    "open_table": "pds.by_url",
    "partition_path": "pds.partition",
    "read_dataset": "pds.by_url",
    "scan_dataset": "pds.by_url",
    "scan_polars": "pds.engines",
    "sql": "pds.engines",
    "write_dataset": "pds.by_url",
    "write_table": "pds.by_url",
}


# Modules, and the packages that some of them need.
_MODULES = {"dagster": "dagster", "doctor": "", "errors": "", "odf": "", "spark": "pyspark", "testing": ""}
# `from pds import *` leaves alone what would hide a name of Python, and the modules that need other packages.
_NOT_EXPORTED = {"dagster", "doctor", "list", "spark"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        try:
            return importlib.import_module(f"pds.{name}")
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if package != _MODULES[name]:
                raise
            message = f"pds.{name} needs the package {package}: pip install 'pds[{name}]'"
            raise ModuleNotFoundError(message, name=package) from error
    if name not in __all__ and name not in _NOT_EXPORTED:
        raise AttributeError(f"module 'pds' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF.get(name, "pds.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> Sequence[str]:
    return sorted({*__all__, *_NOT_EXPORTED})

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
    "list_tables",
    "odf",
    "partition_path",
    "testing",
]

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pds import errors, odf, testing
    from pds._pds import StagedPart, __version__
    from pds.capability import Capability
    from pds.dataset import DatasetWrite, ParquetDatasetStore, VerifyReport
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
    from pds.logs import enable_logging
    from pds.manifest import DatasetManifest
    from pds.options import WriteOptions
    from pds.partition import partition_path
    from pds.producers.changes import Changes, Replace
    from pds.producers.errors import ProduceError
    from pds.producers.pipeline import Pipeline
    from pds.producers.preserve import Preserve
    from pds.producers.results import UpdateResult
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
    "FileInfo": "pds.store",
    "FolderEntry": "pds.store",
    "ParquetDatasetStore": "pds.dataset",
    "Pipeline": "pds.producers.pipeline",
    "Preserve": "pds.producers.preserve",
    "ProduceError": "pds.producers.errors",
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
    "list_tables": "pds.table.table",
    "partition_path": "pds.partition",
}


def __getattr__(name: str) -> object:
    if name in {"errors", "odf", "testing"}:
        return importlib.import_module(f"pds.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'pds' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF.get(name, "pds.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

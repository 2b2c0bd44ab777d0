"""Parquet datasets on object stores: published all or nothing, read whole or not at all.

Nothing is loaded or started before it is used.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "BackendUnavailable",
    "Capability",
    "CapabilityNotSupported",
    "DatasetIncomplete",
    "DatasetManifest",
    "DatasetWrite",
    "DirectoryNotEmpty",
    "FileInfo",
    "InvalidInput",
    "InvalidPath",
    "InvalidType",
    "ManifestCorrupted",
    "NotFound",
    "ParquetDatasetStore",
    "PartCorrupted",
    "PermissionDenied",
    "RemoteStoreError",
    "ResourceLocked",
    "StagedPart",
    "Store",
    "VerifyReport",
    "__version__",
    "enable_logging",
    "errors",
    "partition_path",
]

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pds import errors
    from pds._pds import StagedPart, __version__
    from pds.capability import Capability
    from pds.dataset import DatasetWrite, ParquetDatasetStore, VerifyReport
    from pds.errors import (
        AlreadyExists,
        BackendUnavailable,
        CapabilityNotSupported,
        DatasetIncomplete,
        DirectoryNotEmpty,
        InvalidInput,
        InvalidPath,
        InvalidType,
        ManifestCorrupted,
        NotFound,
        PartCorrupted,
        PermissionDenied,
        RemoteStoreError,
        ResourceLocked,
    )
    from pds.logs import enable_logging
    from pds.manifest import DatasetManifest
    from pds.partition import partition_path
    from pds.store import FileInfo, Store

_HOMES = {
    "Capability": "pds.capability",
    "DatasetManifest": "pds.manifest",
    "DatasetWrite": "pds.dataset",
    "FileInfo": "pds.store",
    "ParquetDatasetStore": "pds.dataset",
    "StagedPart": "pds._pds",
    "Store": "pds.store",
    "VerifyReport": "pds.dataset",
    "__version__": "pds._pds",
    "enable_logging": "pds.logs",
    "partition_path": "pds.partition",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("pds.errors")
    if name not in __all__:
        raise AttributeError(f"module 'pds' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOMES.get(name, "pds.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

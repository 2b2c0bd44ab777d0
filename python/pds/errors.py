"""The errors of pds.

Where remote-store is installed, the classes it has are used themselves, those of
`remote_store.ext.parquet` included, so that `except` clauses written for one catch the errors of the
other.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "BackendUnavailable",
    "BlockCorrupted",
    "CapabilityNotSupported",
    "CommitConflict",
    "CommitStateUnknown",
    "DatasetIncomplete",
    "DirectoryNotEmpty",
    "FileChanged",
    "FormatNotSupported",
    "InvalidAppend",
    "InvalidInput",
    "InvalidPath",
    "InvalidType",
    "ManifestCorrupted",
    "NotFound",
    "PartCorrupted",
    "PermissionDenied",
    "RemoteStoreError",
    "ResourceLocked",
    "TransactionExpired",
    "UnsafeStore",
    "VerificationFailed",
    "VersionExpired",
]

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pds._dataset_errors import DatasetIncomplete, ManifestCorrupted, PartCorrupted
    from pds._errors import (
        AlreadyExists,
        BackendUnavailable,
        CapabilityNotSupported,
        DirectoryNotEmpty,
        InvalidPath,
        NotFound,
        PermissionDenied,
        RemoteStoreError,
        ResourceLocked,
    )
else:
    try:
        from remote_store import (
            AlreadyExists,
            BackendUnavailable,
            CapabilityNotSupported,
            DirectoryNotEmpty,
            InvalidPath,
            NotFound,
            PermissionDenied,
            RemoteStoreError,
            ResourceLocked,
        )
    except ImportError:
        from pds._errors import (
            AlreadyExists,
            BackendUnavailable,
            CapabilityNotSupported,
            DirectoryNotEmpty,
            InvalidPath,
            NotFound,
            PermissionDenied,
            RemoteStoreError,
            ResourceLocked,
        )


class FileChanged(RemoteStoreError):
    """The file was replaced while it was read; open it again."""


class InvalidInput(RemoteStoreError, ValueError):
    """An argument has a value that cannot be used."""


class InvalidType(InvalidInput, TypeError):
    """An argument has a type that cannot be used."""


class CommitConflict(RemoteStoreError):
    """Another commit came first and this one does not fit any more; nothing was committed."""


class CommitStateUnknown(RemoteStoreError):
    """It is not known whether a commit happened.

    Of a table `Table.was_committed(error.commit_id)` tells later; of an Open Data Fabric dataset its log,
    with the block whose hash is `commit_id`.

    Args:
        message: What happened.
        path: The table.
        backend: The store's name.
        commit_id: The commit.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        backend: str | None = None,
        commit_id: str = "",
    ) -> None:
        self.commit_id = commit_id
        super().__init__(message, path=path, backend=backend)


class TransactionExpired(CommitConflict):
    """A vacuum removed what began as early as this write; nothing was committed, write again."""


class VersionExpired(NotFound):
    """The version of a table has been vacuumed."""


class UnsafeStore(CapabilityNotSupported):
    """The store does not keep conditional writes, so it cannot hold a table."""


class FormatNotSupported(RemoteStoreError):
    """A newer version of pds wrote this; upgrade."""


class BlockCorrupted(RemoteStoreError):
    """A block of metadata, or the reference to the newest, is missing or not what was written."""


class InvalidAppend(InvalidInput):
    """A chain of metadata does not take this event; nothing was appended.

    Args:
        message: What is wrong, in the words of the Open Data Fabric.
        path: The dataset.
        backend: The store's name.
        rule: Which rule: `FirstBlockMustBeSeed`, `AppendingSeedBlockToNonEmptyChain`, `PrevBlockNotFound`,
            `SequenceIntegrity`, `SystemTimeIsNotMonotonic`, `WatermarkIsNotMonotonic`,
            `OffsetsAreNotSequential`, `NoOpEvent` or `InvalidEvent`.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        backend: str | None = None,
        rule: str = "",
    ) -> None:
        self.rule = rule
        super().__init__(message, path=path, backend=backend)

    def __str__(self) -> str:
        return f"{super().__str__()} | rule={self.rule!r}" if self.rule else super().__str__()


class VerificationFailed(BlockCorrupted):
    """A chain or its data is not what was written.

    Args:
        message: The first of what is wrong.
        path: The dataset.
        backend: The store's name.
        problems: The objects and what is wrong with them.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        backend: str | None = None,
        problems: list[tuple[str, str]] | None = None,
    ) -> None:
        self.problems = problems or []
        super().__init__(message, path=path, backend=backend)


_OF_DATASETS = frozenset({"DatasetIncomplete", "ManifestCorrupted", "PartCorrupted"})


def __getattr__(name: str) -> object:
    if name not in _OF_DATASETS:
        raise AttributeError(f"module 'pds.errors' has no attribute {name!r}")
    module = importlib.import_module("pds._dataset_errors")
    for each in _OF_DATASETS:
        globals()[each] = getattr(module, each)
    return globals()[name]

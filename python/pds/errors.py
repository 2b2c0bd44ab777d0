"""The errors of pds.

Where remote-store is installed, the classes it has are used themselves, so that `except` clauses
written for one catch the errors of the other.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "BackendUnavailable",
    "CapabilityNotSupported",
    "CommitConflict",
    "CommitStateUnknown",
    "DatasetIncomplete",
    "DirectoryNotEmpty",
    "FormatNotSupported",
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
    "VersionExpired",
]

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


class DatasetIncomplete(RemoteStoreError):
    """The dataset is not in a readable state: its marker or a part is missing."""


class PartCorrupted(DatasetIncomplete):
    """A part is not what was written: changed, truncated, swapped, or no Parquet file."""


class ManifestCorrupted(RemoteStoreError):
    """The manifest cannot be parsed, or a field of it cannot be used.

    Args:
        message: What is wrong.
        path: The manifest's path.
        backend: The store's name.
        reason: The field and what it should be, or the parser's complaint.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        backend: str | None = None,
        reason: str = "",
    ) -> None:
        self.reason = reason
        super().__init__(message, path=path, backend=backend)

    def __str__(self) -> str:
        text = super().__str__()
        if not self.reason:
            return text
        shown = f"reason={self.reason!r}"
        return f"{text} | {shown}" if text else shown

    def __repr__(self) -> str:
        text = super().__repr__()
        return f"{text[:-1]}, reason={self.reason!r})" if self.reason else text


class InvalidInput(RemoteStoreError, ValueError):
    """An argument has a value that cannot be used."""


class InvalidType(InvalidInput, TypeError):
    """An argument has a type that cannot be used."""


class CommitConflict(RemoteStoreError):
    """Another commit came first and this one does not fit any more; nothing was committed."""


class CommitStateUnknown(RemoteStoreError):
    """It is not known whether a commit happened; `Table.was_committed(error.commit_id)` tells later.

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

"""The errors of pds.

Where remote-store is installed, the classes it has are used themselves, so that `except` clauses
written for one catch the errors of the other.
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

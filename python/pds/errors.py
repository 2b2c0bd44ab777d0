"""The errors of pds.

Every error has `hint`, what to do next (None where that is not known), and `retryable`, whether the same call may
succeed when it is repeated. The message ends with the hint.

Where remote-store is installed, pds uses the error classes of remote-store and of `remote_store.ext.parquet`,
so an `except` clause that is written for one library catches the errors of the other.
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
    "DefinitionChanged",
    "DirectoryNotEmpty",
    "Error",
    "ExportConflict",
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


if not hasattr(RemoteStoreError, "hint"):  # that of remote-store
    RemoteStoreError.hint = None
    RemoteStoreError.retryable = False
BackendUnavailable.retryable = ResourceLocked.retryable = True

Error = RemoteStoreError
"""The base class of all errors of pds, by the name that users look for."""


def add_hint(error: RemoteStoreError, hint: str) -> None:
    """Set the hint of an error, and end its message with it."""
    error.hint = hint
    message, *others = error.args or ("",)
    error.args = (f"{message}; hint: {hint}", *others)


class FileChanged(RemoteStoreError):
    """The file was replaced while it was being read. Open the file again."""

    retryable = True


class InvalidInput(RemoteStoreError, ValueError):
    """An argument has an invalid value."""


class InvalidType(InvalidInput, TypeError):
    """An argument has an invalid type."""


class CommitConflict(RemoteStoreError):
    """A concurrent commit conflicts with this commit. Nothing was committed."""

    retryable = True


class CommitStateUnknown(RemoteStoreError):
    """The commit is in an unknown state: the store did not confirm it, and it may have been committed.

    For a table, check later with `Table.was_committed(error.commit_id)`. For an Open Data Fabric dataset,
    check later whether `Dataset.log` has a block whose hash is `commit_id`.

    Args:
        message: What failed.
        path: The path of the table or dataset.
        backend: The name of the store.
        commit_id: The identifier of the commit, or the hash of the block.
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
    """The files of this write expired before its commit. Nothing was committed. Repeat the write.

    A vacuum may have removed the files, or a restore has changed the columns.
    """


class VersionExpired(NotFound):
    """A vacuum removed this version of the table or dataset, or the table was dropped and created again."""


class DefinitionChanged(InvalidInput):
    """A source or stage of a pipeline is declared otherwise than it is stored, or is stored and not declared."""


class UnsafeStore(CapabilityNotSupported):
    """The store does not honor the conditions of conditional writes, so it cannot hold tables."""


class ExportConflict(RemoteStoreError):
    """Another system, or another table, has written into the metadata of an export. Nothing was written."""


class FormatNotSupported(RemoteStoreError):
    """The object has a format that this version of pds cannot read. Upgrade pds if a newer version wrote the object."""


class BlockCorrupted(RemoteStoreError):
    """A metadata block, or the reference to the newest block, is missing or corrupted."""


class InvalidAppend(InvalidInput):
    """An event violates a rule of the metadata chain. Nothing was appended.

    Args:
        message: What is wrong, in the words of the Open Data Fabric specification.
        path: The path of the dataset.
        backend: The name of the store.
        rule: The violated rule: `FirstBlockMustBeSeed`, `AppendingSeedBlockToNonEmptyChain`, `PrevBlockNotFound`,
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
    """The verification of a metadata chain and its data found problems.

    Args:
        message: The first problems.
        path: The path of the dataset.
        backend: The name of the store.
        problems: All problems, as pairs of the path of an object and a message.
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


_DATASET_ERRORS = frozenset({"DatasetIncomplete", "ManifestCorrupted", "PartCorrupted"})


def __getattr__(name: str) -> object:
    if name not in _DATASET_ERRORS:
        raise AttributeError(f"module 'pds.errors' has no attribute {name!r}")
    module = importlib.import_module("pds._dataset_errors")
    for class_name in _DATASET_ERRORS:
        globals()[class_name] = getattr(module, class_name)
    return globals()[name]

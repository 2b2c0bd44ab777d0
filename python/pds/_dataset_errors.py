"""The errors of datasets: the classes of remote-store where it is installed.

`pds.errors` imports this module at the first use of one of them, because remote-store's module imports pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pds.errors import RemoteStoreError


class DatasetIncomplete(RemoteStoreError):
    """The dataset cannot be read: the `_SUCCESS` marker or a part is missing."""


class ManifestCorrupted(RemoteStoreError):
    """The manifest cannot be parsed, or one of its fields is invalid.

    Args:
        message: What failed.
        path: The path of the manifest.
        backend: The name of the store.
        reason: The field and its expected value, or the message of the parser.
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
        reason = f"reason={self.reason!r}"
        return f"{text} | {reason}" if text else reason

    def __repr__(self) -> str:
        text = super().__repr__()
        return f"{text[:-1]}, reason={self.reason!r})" if self.reason else text


if not TYPE_CHECKING:
    try:
        from remote_store.ext.parquet import DatasetIncomplete, ManifestCorrupted
    except ImportError:
        DatasetIncomplete.__module__ = ManifestCorrupted.__module__ = "pds.errors"


class PartCorrupted(DatasetIncomplete):
    """A part is not the part that was written: it is changed, truncated, swapped, or not a Parquet file."""


PartCorrupted.__module__ = "pds.errors"

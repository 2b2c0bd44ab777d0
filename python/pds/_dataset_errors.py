"""The errors of datasets: remote-store's own where it is installed.

Loaded when one of them is asked for, because remote-store's module imports pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pds.errors import RemoteStoreError


class DatasetIncomplete(RemoteStoreError):
    """The dataset is not in a readable state: its marker or a part is missing."""


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


if not TYPE_CHECKING:
    try:
        from remote_store.ext.parquet import DatasetIncomplete, ManifestCorrupted
    except ImportError:
        DatasetIncomplete.__module__ = ManifestCorrupted.__module__ = "pds.errors"


class PartCorrupted(DatasetIncomplete):
    """A part is not what was written: changed, truncated, swapped, or no Parquet file."""


PartCorrupted.__module__ = "pds.errors"

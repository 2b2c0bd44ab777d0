"""A table's place and how it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pds import _pds
from pds.arguments import require_text
from pds.errors import InvalidType, UnsafeStore
from pds.options import WriteOptions
from pds.store import Store, handle_of, is_foreign
from pds.table.checks import check_seconds


@dataclass(frozen=True)
class TableLocation:
    """A table's place and how it is written."""

    store: Store
    path: str
    options: WriteOptions
    timeout: float
    handle: _pds.StoreHandle

    @classmethod
    def of(cls, store: Store, path: str, options: WriteOptions | None, commit_timeout: float) -> Self:
        """Check what a user gives."""
        require_text("path", path)
        if options is None:
            options = WriteOptions()
        if not isinstance(options, WriteOptions):
            raise InvalidType(f"options must be a WriteOptions, not {type(options).__name__}")
        _pds.check_options(options)
        if not isinstance(store, Store) and is_foreign(store):
            raise UnsafeStore(
                "a remote_store.Store has no conditional writes; open the place as a pds.Store", path=path
            )
        return cls(store, path, options, check_seconds("commit_timeout", commit_timeout), handle_of(store))

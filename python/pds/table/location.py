"""The location of a table in a store, and the options of its writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

from pds import _pds
from pds.arguments import check_seconds, require_text
from pds.errors import UnsafeStore
from pds.options import WriteOptions, resolve_options
from pds.store import Store, is_remote_store, native_handle
from pds.urls import join_url


@dataclass(frozen=True)
class TableLocation:
    """The location of a table or an Open Data Fabric dataset in a store, and the options of its writes."""

    store: Store
    path: str
    options: WriteOptions
    timeout: float
    handle: _pds.StoreHandle

    @classmethod
    def from_arguments(cls, store: Store, path: str, options: WriteOptions | None, **timeout: float) -> Self:
        """Return the location for the arguments of a public function; its timeout has that function's name for it.

        Raises:
            InvalidInput: An argument has an invalid value.
            InvalidType: An argument has an invalid type.
            UnsafeStore: The store is a `remote_store.Store`, which has no conditional writes.
        """
        require_text("path", path)
        options = resolve_options(options)
        _pds.check_options(options)
        if not isinstance(store, Store) and is_remote_store(store):
            raise UnsafeStore(
                "a remote_store.Store has no conditional writes; open the same location with pds.Store", path=path
            )
        ((name, value),) = timeout.items()
        return cls(store, path, options, check_seconds(name, value), native_handle(store))

    def url(self) -> str:
        """Return the URL of the table; of a local one with its path as it is, without escapes."""
        url = join_url(self.store.url, self.path)
        return unquote(url) if url.startswith("file:") else url

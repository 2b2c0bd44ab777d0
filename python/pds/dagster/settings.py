"""The settings of what Dagster opens by URL."""

from __future__ import annotations

from pydantic import BaseModel, Field, PrivateAttr

from pds import Store


class StoreSettings(BaseModel):
    """The settings of a store, which is opened when it is first used."""

    url: str = Field(description="URL or path of the store, such as s3://bucket/lake.")
    storage_options: dict[str, str] = Field(default={}, description="Options of the store, as for pds.Store.")
    _store: Store | None = PrivateAttr(default=None)

    @property
    def store(self) -> Store:
        """The store."""
        if self._store is None:
            self._store = Store(self.url, self.storage_options)
        return self._store

"""A Dagster resource for stores, tables, datasets and pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import ConfigurableResource

from pds import ParquetDatasetStore, Pipeline, Table
from pds.dagster.settings import StoreSettings

if TYPE_CHECKING:
    from datetime import datetime


class PdsResource(StoreSettings, ConfigurableResource[Any]):
    """The tables, datasets and pipelines below a URL. `store` is the `pds.Store` itself.

    ```python
    @dg.asset
    def report(pds: PdsResource) -> None:
        orders = pds.open_table("silver/orders").scan(where="amount > 100").to_pyarrow()

    defs = dg.Definitions(assets=[report], resources={"pds": PdsResource(url="s3://bucket/lake")})
    ```

    Args:
        url: The URL or path of a store, as for `pds.Store`.
        storage_options: The options of the store, as for `pds.Store`. Values may be `dagster.EnvVar`.
    """

    @property
    def datasets(self) -> ParquetDatasetStore:
        """The datasets of the store."""
        return ParquetDatasetStore(self.store)

    def open_table(self, path: str, *, as_of: int | str | datetime | None = None) -> Table:
        """Open a table.

        Args:
            path: The folder of the table, relative to the URL.
            as_of: A version, a time with a time zone, or a tag. Defaults to the newest version.

        Raises:
            NotFound: The table or the tag does not exist.
            VersionExpired: A vacuum removed the version.
            InvalidInput: The version is not valid.
        """
        table = Table(self.store, path)
        return table if as_of is None else table.as_of(as_of)

    def open_pipeline(self, path: str, **options: Any) -> Pipeline:  # noqa: ANN401 as for Pipeline
        """Return a pipeline, whose sources and stages are to be declared.

        Args:
            path: The folder of the pipeline, relative to the URL.
            options: As for `pds.Pipeline`: `memory_limit`, `commit_timeout`, `engine`.
        """
        return Pipeline(self.store, path, **options)

"""What engines read, by its URL: a snapshot of a table, a dataset, or a chain up to a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds import _pds
from pds.arguments import check_column_names
from pds.by_url import open_parent
from pds.errors import DatasetIncomplete, InvalidInput, InvalidPath, NotFound
from pds.kinds import find_kind
from pds.manifest import DatasetManifest
from pds.predicate import to_predicate
from pds.store import native_handle
from pds.table.checks import check_limit
from pds.table.scan import Rows
from pds.table.snapshot import Snapshot
from pds.table.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow.compute as pc

    from pds import odf
    from pds.by_url import Url
    from pds.odf.scan import Scan
    from pds.predicate import Predicate
    from pds.store import CredentialProvider, Store
    from pds.table.scan import Source, TableScan

    Where = str | pc.Expression


def open_source(
    url: Url,
    as_of: int | str | datetime | None = None,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> Source:
    """Open the table, the dataset or the chain at a URL.

    Raises:
        NotFound: The folder is not a table, dataset or chain, or the tag or block does not exist.
        VersionExpired: A vacuum removed the version.
        InvalidInput: The URL, the version or an option is not valid; or the folder is a pipeline; or `as_of` is for a
            dataset, which has one version.
        InvalidType: An argument has an invalid type.
    """
    store, path = open_parent(url, storage_options, credential_provider)
    try:
        table = Table(store, path)
    except (NotFound, InvalidPath):
        # It may be something else, or a pipeline.
        kind = find_kind(store, path)
    else:
        return table if as_of is None else table.as_of(as_of)
    if kind == "dataset":
        if as_of is not None:
            raise InvalidInput("as_of is for tables and chains: a dataset has one version")
        return DatasetSource(store, path)
    if kind == "chain":
        from pds.odf import Dataset  # noqa: PLC0415 few need it

        return ChainSource(Dataset(store, path), as_of)
    if kind == "pipeline":
        raise InvalidInput(f"{path!r} is a pipeline; read one of its stages with pds.open_pipeline(url)[stage]")
    raise NotFound("the folder is neither a table nor a dataset nor a chain", path=path)


class DatasetSource:
    """A dataset as it was at first. Reads fail once it has been replaced."""

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path
        self._manifest = self._read_manifest()
        self.schema = self.open().schema

    def _read_manifest(self) -> DatasetManifest:
        return DatasetManifest(**_pds.read_manifest(native_handle(self._store), self._path))

    def open(self) -> _pds.OpenDataset:
        """Open the dataset for one read.

        Raises:
            DatasetIncomplete: The dataset was replaced.
        """
        dataset = _pds.open_dataset(native_handle(self._store), self._path)
        if self._read_manifest() != self._manifest:
            raise DatasetIncomplete("the dataset was replaced after it was opened; open it again", path=self._path)
        return dataset

    def scan(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, limit: int | None = None
    ) -> Rows:
        """Return a scan, as `Table.scan` does."""
        predicate = None if where is None else to_predicate(where, self.schema)
        return _DatasetScan(self, check_column_names(columns), predicate, check_limit(limit))

    def __repr__(self) -> str:
        return f"DatasetSource({self._store!r}, {self._path!r})"


class _DatasetScan(Rows):
    def __init__(
        self, source: DatasetSource, columns: list[str] | None, predicate: str | Predicate | None, limit: int | None
    ) -> None:
        self._source, self._columns, self._predicate, self._limit = source, columns, predicate, limit

    @property
    def schema(self) -> pa.Schema:
        schema = self._source.schema
        return schema if self._columns is None else pa.schema([schema.field(name) for name in self._columns])

    def _open_scan(self) -> _pds.Scan:
        return self._source.open().scan(self._columns, self._predicate)

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        rows_left = self._limit
        scan = self._open_scan()
        try:
            while (rows_left is None or rows_left > 0) and (batch := scan.next_batch()) is not None:
                if rows_left is not None:
                    batch = batch.slice(0, rows_left)
                    rows_left -= batch.num_rows
                yield batch
        finally:
            scan.close()


class ChainSource(Snapshot):
    """The rows of a chain up to a block, as they were appended."""

    def __init__(self, dataset: odf.Dataset, as_of: int | str | datetime | None) -> None:
        if isinstance(as_of, int):
            raise InvalidInput(f"as_of of a chain is the hash of a block or a time, not {as_of}")
        scan = dataset.scan(as_of=as_of)
        self._dataset, self._block = dataset, scan._block  # noqa: SLF001 of the package
        self._location, self._handle = dataset._location, scan._handle  # noqa: SLF001 of the package

    def _adapt_scan(self, scan: TableScan) -> Scan:
        """Return a scan whose reads raise VersionExpired where a vacuum removed a slice."""
        from pds.odf.scan import Scan  # noqa: PLC0415 few need it

        return Scan(self._dataset._handle, self._block, scan)  # noqa: SLF001 of the package

    def __reduce__(self) -> tuple[Any, ...]:
        return ChainSource, (self._dataset, self._block)

    def __repr__(self) -> str:
        return f"ChainSource({self._dataset!r}, {self._block!r})"

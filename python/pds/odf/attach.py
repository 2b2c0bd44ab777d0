"""Metadata chains for tables and datasets: the history of their schemas, readable without their data files."""

from __future__ import annotations

from typing import Any, overload

from pds import _pds
from pds.dataset import ParquetDatasetStore
from pds.defaults import COMMIT_TIMEOUT_SECONDS
from pds.errors import InvalidType
from pds.odf.dataset import Dataset
from pds.table.location import TableLocation
from pds.table.table import Table

_FOLDER = "_odf"


@overload
def attach(target: Table) -> Dataset: ...
@overload
def attach(target: ParquetDatasetStore, key: str) -> Dataset: ...


def attach(target: Table | ParquetDatasetStore, key: str | None = None) -> Dataset:
    """Record the schema history of a table or a dataset in a metadata chain, and return the chain.

    The first call creates the chain, in the folder `_odf` of the table or in `_odf/<key>` of the store of datasets.
    Every call records the changes of the schema since the last call, all or none. A change has the time of the table's
    version or of the dataset's manifest, so `attach(table).schema(at=time)` is the schema at that time; it has the time
    of the newest block if that is later. Schemas are recorded as Arrow flatbuffers (RFC-010), which can describe every
    type and every change that a table allows. After the schema of a table comes its version, as the state of the source
    `pds/table`: the number and the id of the commit. After many versions without another schema the version comes
    alone. A table that was dropped and created anew is recorded from its first version on. The chain has no rows.

    Versions that a vacuum has removed are not recorded. Several callers can attach at the same time.

    Args:
        target: A table, or a store of datasets.
        key: The key of the dataset, if `target` is a store of datasets.

    Raises:
        NotFound: The table or the dataset does not exist.
        UnsafeStore: The store does not honor conditional writes.
        InvalidType: The arguments are neither a table nor a store of datasets and a key.
        CommitConflict: Other writers appended to the chain first until the timeout of 2 minutes.
        TransactionExpired: The process was suspended for more than a day. Nothing was appended.
        CommitStateUnknown: The store did not confirm the commit. Attach again, which records nothing twice.
    """
    if isinstance(target, Table) and key is None:
        location = _locate(target, f"{target.path}/{_FOLDER}")
        handle = _pds.attach_table(target._handle, COMMIT_TIMEOUT_SECONDS)  # noqa: SLF001 a class of this package
    elif isinstance(target, ParquetDatasetStore) and isinstance(key, str):
        location = _locate(target, f"{_FOLDER}/{key}")
        handle = _pds.attach_dataset(location.handle, key, COMMIT_TIMEOUT_SECONDS)
    else:
        raise InvalidType("pass a pds.Table, or a pds.ParquetDatasetStore and the key of a dataset")
    return Dataset._from_handle(location, handle)  # noqa: SLF001 a class of this package


def _locate(target: Table | ParquetDatasetStore, path: str) -> TableLocation:
    store: Any = target.store
    return TableLocation.from_arguments(store, path, None, timeout=COMMIT_TIMEOUT_SECONDS)

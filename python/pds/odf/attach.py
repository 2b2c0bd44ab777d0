"""Metadata chains for tables and datasets: the history of their schemas, readable without their data files."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, overload

from pds.dataset import ParquetDatasetStore
from pds.errors import AlreadyExists, CommitConflict, InvalidType, NotFound
from pds.odf.block import Block
from pds.odf.dataset import Dataset
from pds.odf.events import SetDataSchema
from pds.table.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from pds.store import Store

_FOLDER = "_odf"
# An attempt fails if another writer appends to the chain first.
_ATTEMPTS = 20


@overload
def attach(target: Table) -> Dataset: ...
@overload
def attach(target: ParquetDatasetStore, key: str) -> Dataset: ...


def attach(target: Table | ParquetDatasetStore, key: str | None = None) -> Dataset:
    """Record the schema history of a table or a dataset in a metadata chain, and return the chain.

    The first call creates the chain, in the folder `_odf` of the table or in `_odf/<key>` of the store of datasets.
    Every call records the changes of the schema since the last call. A change has the time of the table's version or
    of the dataset's manifest, so `attach(table).schema(at=time)` is the schema at that time. Schemas are recorded as
    Arrow flatbuffers (RFC-010), which can describe every type and every change that a table allows. The chain has no
    rows.

    Args:
        target: A table, or a store of datasets.
        key: The key of the dataset, if `target` is a store of datasets.

    Raises:
        NotFound: The dataset does not exist.
        UnsafeStore: The store does not honor conditional writes.
        InvalidType: The arguments are neither a table nor a store of datasets and a key.
        CommitConflict: Other writers appended to the chain first in all attempts.
    """
    store: Any
    if isinstance(target, Table) and key is None:
        store, path = target.store, f"{target.path}/{_FOLDER}"
    elif isinstance(target, ParquetDatasetStore) and key is not None:
        store, path = target.store, f"{_FOLDER}/{key}"
    else:
        raise InvalidType("pass a pds.Table, or a pds.ParquetDatasetStore and the key of a dataset")
    for _ in range(_ATTEMPTS):
        try:
            chain = Dataset(store, path) if Dataset.exists(store, path) else None
            if isinstance(target, Table):
                schemas = _read_table_schemas(target, chain)
            else:
                schemas = _read_dataset_schema(target, key or "")
            return _record_schemas(store, path, chain, schemas)
        except (AlreadyExists, CommitConflict):
            continue
    raise CommitConflict(
        f"gave up after {_ATTEMPTS} attempts: concurrent writers appended to the chain first; try again", path=path
    )


def _read_table_schemas(table: Table, chain: Dataset | None) -> Iterator[tuple[dt.datetime, pa.Schema]]:
    """Return the times and schemas of the versions that the chain does not have yet, oldest first."""
    newest = Table(table.store, table.path)
    last_time = None if chain is None else _find_last_schema_time(chain)
    entries = [entry for entry in newest.history() if last_time is None or entry["created_at"] > last_time]
    for entry in reversed(entries):
        yield entry["created_at"], newest.as_of(entry["version"]).schema


def _read_dataset_schema(datasets: ParquetDatasetStore, key: str) -> Iterator[tuple[dt.datetime, pa.Schema]]:
    manifest = datasets.read_manifest(key)
    yield dt.datetime.fromisoformat(manifest.created_at_utc), datasets.scan_dataset(key).schema


def _find_last_schema_time(chain: Dataset) -> dt.datetime | None:
    blocks = [block for block in chain.log() if isinstance(block.event, SetDataSchema)]
    return blocks[0].system_time if blocks else None


def _record_schemas(
    store: Store, path: str, chain: Dataset | None, schemas: Iterator[tuple[dt.datetime, pa.Schema]]
) -> Dataset:
    recorded = chain.schema() if chain is not None and _find_last_schema_time(chain) else None
    head = None if chain is None else chain.log(1)[0]
    for time, schema in schemas:
        if recorded is not None and schema.equals(recorded, check_metadata=True):
            continue
        if chain is None or head is None:
            # The times of a chain never go back, so the first block has the time of the first schema.
            chain = Dataset.create(store, path, system_time=time)
            head = chain.log(1)[0]
        event = SetDataSchema.of_arrow(schema, raw_arrow=True)
        # The clocks of the writers of a dataset may differ.
        head = chain.append(Block(max(time, head.system_time), head.hash, head.sequence_number + 1, event))
        recorded = schema
    if chain is None:
        raise NotFound("no schema to record: the history of the table is empty", path=path)
    return chain

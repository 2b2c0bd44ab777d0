"""Chains beside tables and datasets: the history of their columns, readable without opening a file."""

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
# Each of them means that somebody else noted a change first.
_ATTEMPTS = 20


@overload
def attach(target: Table) -> Dataset: ...
@overload
def attach(target: ParquetDatasetStore, key: str) -> Dataset: ...


def attach(target: Table | ParquetDatasetStore, key: str | None = None) -> Dataset:
    """The chain that notes the columns of a table or a dataset, with all changes until now.

    The first call begins the chain, in `_odf` in the table's folder or under `_odf/<key>` beside datasets;
    every call notes the changes since the last. A change has the time of the table's version or of the
    dataset's manifest, so `attach(table).schema(at=moment)` is the schema of that time. Columns are noted
    in Arrow's own form (RFC-010), which can tell every change that a table can make, and every type. Rows
    stay where they are; the chain has none.

    Args:
        target: A table, or a store of datasets.
        key: Which dataset.

    Raises:
        NotFound: There is no such dataset.
        UnsafeStore: The store does not keep conditional writes.
    """
    store: Any
    if isinstance(target, Table) and key is None:
        store, path = target.store, f"{target.path}/{_FOLDER}"
    elif isinstance(target, ParquetDatasetStore) and key is not None:
        store, path = target.store, f"{_FOLDER}/{key}"
    else:
        raise InvalidType("give a pds.Table, or a pds.ParquetDatasetStore and a dataset's key")
    for _ in range(_ATTEMPTS):
        try:
            chain = Dataset(store, path) if Dataset.exists(store, path) else None
            changes = _of_table(target, chain) if isinstance(target, Table) else _of_dataset(target, key or "")
            return _noted(store, path, chain, changes)
        except (AlreadyExists, CommitConflict):
            continue
    raise CommitConflict("others noted changes in every attempt; try again", path=path)


def _of_table(table: Table, chain: Dataset | None) -> Iterator[tuple[dt.datetime, pa.Schema]]:
    """Versions that are not noted yet, oldest first."""
    newest = Table(table.store, table.path)
    last = None if chain is None else _last_noted(chain)
    entries = [entry for entry in newest.history() if last is None or entry["created_at"] > last]
    for entry in reversed(entries):
        yield entry["created_at"], newest.as_of(entry["version"]).schema


def _of_dataset(datasets: ParquetDatasetStore, key: str) -> Iterator[tuple[dt.datetime, pa.Schema]]:
    manifest = datasets.read_manifest(key)
    yield dt.datetime.fromisoformat(manifest.created_at_utc), datasets.scan_dataset(key).schema


def _last_noted(chain: Dataset) -> dt.datetime | None:
    noted = [block for block in chain.log() if isinstance(block.event, SetDataSchema)]
    return noted[0].system_time if noted else None


def _noted(
    store: Store, path: str, chain: Dataset | None, versions: Iterator[tuple[dt.datetime, pa.Schema]]
) -> Dataset:
    known = chain.schema() if chain is not None and _last_noted(chain) else None
    newest = None if chain is None else chain.log(1)[0]
    for moment, schema in versions:
        if known is not None and schema.equals(known, check_metadata=True):
            continue
        if chain is None or newest is None:
            # A chain's times do not go back, so it is as old as what it tells of.
            chain = Dataset.create(store, path, system_time=moment)
            newest = chain.log(1)[0]
        event = SetDataSchema.of_arrow(schema, raw_arrow=True)
        # Clocks of those who write datasets may differ.
        newest = chain.append(Block(max(moment, newest.system_time), newest.hash, newest.sequence_number + 1, event))
        known = schema
    if chain is None:
        raise NotFound("there is nothing to tell of", path=path)
    return chain

"""Blocks of ODF chains that pds does not append."""

from __future__ import annotations

import datetime as dt
from datetime import UTC

from pds import odf


def append_unchecked(dataset: odf.Dataset, *events: odf.Event) -> odf.Dataset:
    """Appends blocks as another tool does, which checks other rules."""
    store, path = dataset.store, dataset.path
    for event in events:
        last = dataset.log(1)[0]
        block = odf.Block(dt.datetime.now(UTC), last.hash, last.sequence_number + 1, event)
        store.write(f"{path}/blocks/{block.hash}", block.to_bytes())
        store.write(f"{path}/refs/head", block.hash.encode(), overwrite=True)
    return odf.Dataset(store, path)

"""Surrogate ids: a hook gives each name a number when it comes first, and keeps it as long as the name is there.

python examples/surrogate_ids.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator


def keep_or_count(_: int, earlier: int | None, state: dict[str, Any]) -> int:
    """Return the id that the name has, or the next one. The state commits with the version."""
    if earlier is not None:
        return earlier
    state["last"] += 1
    return int(state["last"])


def declare(store: pds.Store) -> pds.Pipeline:
    """Declare the graph."""
    p = pds.Pipeline(store, "ids")
    events = p.source("events", key=pa.int64(), value=pa.string())

    @p.producer(events, key=pa.string(), value=pa.int64(), preserve=pds.Preserve(keep_or_count, {"last": 0}))
    def ids(_: int, names: Iterator[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            yield name, 0  # the hook gives the id

    return p


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        p = declare(pds.Store(Path(folder).as_uri()))

        def show(text: str) -> None:
            print(f"{text:22}", {row["target_key"]: row["value"] for row in p["ids"].read().to_pylist()})

        p.update(events=pds.Changes([(1, "pear"), (2, "fig")]))
        show("two names:")
        p.update(events=pds.Changes([(3, "apple"), (4, "fig")]))
        show("one more, one again:")
        p.update(events=pds.Changes(deletes=[2]))
        show("an event less:")
        p.update(events=pds.Changes(deletes=[1]))
        p.update(events=pds.Changes([(5, "pear")]))
        show("gone and come back:")


if __name__ == "__main__":
    main()

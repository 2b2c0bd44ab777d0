"""One measured build, update or recompute in a process of its own; started by ``producers_costs.py``, not by hand.

The argument is a JSON object: ``graph`` and ``rows``, what is done (``op``: ``build``, ``update``, or a peer's name),
and of an update ``changed`` (a kind of changes), ``keys`` and ``seed``; ``url`` and ``options`` of the store, or the
``folder`` for a peer's results. With ``opened`` the pipeline's newest version is read before the clock runs. The last
line of the output is a JSON object with the costs. Memory is the peak above the level just before the work.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from producers_costs import measured
from producers_registry import GRAPHS

import pds

if TYPE_CHECKING:
    from collections.abc import Callable


def _warm_up() -> None:
    """What libraries load late: an update and a read of a few rows in memory."""
    pipeline = pds.Pipeline(pds.Store("memory://"), "warm")
    pipeline.source("rows", key=pa.int64(), value=pa.int64())
    pipeline.select("rows", key="key % 2", name="halves")
    for _ in range(2):
        pipeline.update(rows=pds.Changes([(key, key) for key in range(8)]))
    pipeline["halves"].read()


def _work(order: dict[str, Any]) -> tuple[Callable[[], object], pds.Store | None]:
    graph, rows, op = GRAPHS[order["graph"]], order["rows"], order["op"]
    if op in graph.peers:
        recompute, sources, folder = graph.peers[op], graph.sources(rows), Path(order["folder"])
        return (lambda: recompute(sources, folder)), None
    store = pds.Store(order["url"], order.get("options"))
    pipeline = graph.open(store, rows)
    if order.get("opened"):
        _ = pipeline.version
    if op == "build":
        changes = graph.all_rows(rows)
    else:
        changes = graph.changes[order["changed"]](rows, order["keys"], order["seed"])
    return (lambda: pipeline.update(changes)), store


def main() -> None:
    """Reads the order, prints the costs."""
    order = json.loads(sys.argv[1])
    _warm_up()
    work, store = _work(order)
    print(json.dumps(measured(work, store)._asdict()), flush=True)
    os._exit(0)  # what libraries do at the end of a process, some of them badly, is not compared


if __name__ == "__main__":
    main()

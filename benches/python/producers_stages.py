"""The size of the manifest of pipelines with many stages, and with which every commit is written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from producers_costs import Table
from producers_graphs import choose
from producers_updates import most_runs_of, read_manifest

import pds

INT = pa.int64()
AT_MOST_KB = {20: 60, 200: 600}
UPDATES = 40
CHANGED = 100


def compare(rows: int) -> None:
    """Prints the sizes: after the build, the largest after some updates, and after a compaction."""
    table = Table(
        "stages", "rows", "KB after the build", f"the largest after {UPDATES} updates of {CHANGED} keys",
        "most runs of a table", "after a compaction", "to reach",
    )  # fmt: skip
    for stages, at_most in AT_MOST_KB.items():
        store = pds.Store("memory://")
        pipeline = _declare(store, stages, rows)
        sizes, most_runs = [], 0
        for number in range(UPDATES + 1):
            keys = np.arange(rows) if not number else choose(rows, CHANGED, number)
            values = np.random.default_rng(number).integers(0, 10**9, len(keys))
            pipeline.update(rows=pds.Changes(pa.table({"key": keys, "value": values})))
            manifest = read_manifest(store, pipeline)
            sizes.append(len(manifest) / 1000)
            most_runs = max(most_runs, most_runs_of(manifest))
        pipeline.compact(min_delta=0)
        compacted = len(read_manifest(store, pipeline)) / 1000
        figures = [f"{size:.0f}" for size in (sizes[0], max(sizes))]
        table.add(stages, f"{rows:,}", *figures, most_runs, f"{compacted:.0f}", f"under {at_most}")


def _declare(store: pds.Store, stages: int, rows: int) -> pds.Pipeline:
    """A tree: each stage feeds ten others, and gives its rows other keys."""
    pipeline = pds.Pipeline(store, "bench")
    names = ["rows"]
    pipeline.source("rows", key=INT, value=INT)
    for number in range(stages):
        names.append(f"stage {number}")
        pipeline.select(names[number // 10], key=f"(key * 7919 + {number}) % {rows}", name=names[-1])
    return pipeline

"""Many long values, of one key or in many stages: builds and updates take little more memory than their limit."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
LIMIT_BYTES = 64 * MIB
ALLOWED_BYTES = LIMIT_BYTES + 200 * MIB
ROWS = 2_000_000
# The texts alone are more than what is allowed.
TEXT_BYTES = 160
# Stages that are written at the same time, which have more texts together.
COPIES = [f"copy{number}" for number in range(8)]
ROWS_OF_COPIES = ROWS // 4

# Builds the pipeline or updates it; prints by how much the peak grew over the level with the pipeline open.
MEASURED = """
import gc, json, sys
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pds

url, stage, what, rows, text_bytes, limit_bytes, names_of_copies = json.loads(sys.argv[1])
INT = pa.int64()
VALUE = pa.struct([("n", INT), ("text", pa.string())])

def peak():
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

def to_batch(keys, numbers):
    digits = pc.utf8_lpad(pc.cast(numbers, pa.string()), text_bytes, "x")
    value = pa.StructArray.from_arrays([numbers, digits], fields=list(VALUE))
    return pa.record_batch({"key": keys, "value": value})

def all_rows():
    for start in range(0, rows, 1 << 14):
        keys = np.arange(start, min(rows, start + (1 << 14)))
        yield to_batch(pa.array(keys), pa.array(keys[::-1].copy()))

def declare(store):
    pipeline = pds.Pipeline(store, "p", memory_limit=limit_bytes)
    pipeline.source("rows", key=INT, value=VALUE)
    if stage == "copies":
        for name in names_of_copies:
            pipeline.select("rows", key="n", name=name)
        return pipeline
    pipeline.select("rows", key="1", order_by="n" if stage == "ordered" else None, name="one")
    if stage == "aggregate":
        aggregates = {"count": "count", "sum": ("n", "sum"), "greatest": ("text", "max")}
        pipeline.aggregate("one", aggregates=aggregates, name="totals")
    elif stage == "join_rows":
        pipeline.source("names", key=INT, value=pa.string())
        pipeline.join_rows("one", "names", name="joined")
    return pipeline

def changes(rows, name):
    changes = {"rows": pds.Changes(rows)}
    return changes | ({"names": pds.Changes([(1, name)])} if stage == "join_rows" else {})

some = to_batch(pa.array([7, 8]), pa.array([-1, -2]))
declare(pds.Store("memory://")).update(changes(some, "first"))  # what is loaded late
pipeline = declare(pds.Store(url))
pipeline.version
stream = pa.RecordBatchReader.from_batches(some.schema, all_rows())
pushed = changes(stream if what == "build" else some, what)
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
before = peak()
pipeline.update(pushed)
print(peak() - before)
"""


def grown_by(root: Path, stage: str, what: str, rows: int = ROWS) -> int:
    argument = json.dumps([root.as_uri(), stage, what, rows, TEXT_BYTES, LIMIT_BYTES, COPIES])
    done = subprocess.run([sys.executable, "-c", MEASURED, argument], check=True, capture_output=True, text=True)
    return int(done.stdout)


def numbers_of(pipeline: pds.Pipeline, name: str) -> np.ndarray:
    batches = pipeline[name].batches()
    return np.concatenate([batch.column("value").field("n").to_numpy() for batch in batches])


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("stage", ["aggregate", "ordered", "join_rows"])
def test_a_key_with_two_million_long_values(tmp_path: Path, stage: str) -> None:
    """An update changes two of them; of the join the other side too, and with it all rows."""
    grown = {what: grown_by(tmp_path, stage, what) for what in ("build", "update")}
    assert max(grown.values()) < ALLOWED_BYTES, {what: f"{size / MIB:.0f} MiB" for what, size in grown.items()}
    pipeline = pds.Pipeline(pds.Store(tmp_path.as_uri()), "p")
    numbers = np.sort(numbers_of(pipeline, "rows"))
    assert (len(numbers), numbers[0]) == (ROWS, -2)
    if stage == "aggregate":
        (totals,) = pipeline["totals"].read()["value"].to_pylist()
        texts = (str(n).rjust(TEXT_BYTES, "x") for n in numbers[:100])
        assert totals == {"count": ROWS, "sum": int(numbers.sum()), "greatest": max(texts)}
    elif stage == "ordered":
        assert np.array_equal(numbers_of(pipeline, "one"), numbers)
    else:
        assert np.array_equal(np.sort(numbers_of(pipeline, "joined")), numbers)
        names = {
            name for batch in pipeline["joined"].batches() for name in batch.column("value").field("names").unique()
        }
        assert {name.as_py() for name in names} == {"update"}


@pytest.mark.slow
def test_many_stages_that_are_written_at_the_same_time(tmp_path: Path) -> None:
    grown = {what: grown_by(tmp_path, "copies", what, ROWS_OF_COPIES) for what in ("build", "update")}
    assert max(grown.values()) < ALLOWED_BYTES, {what: f"{size / MIB:.0f} MiB" for what, size in grown.items()}
    pipeline = pds.Pipeline(pds.Store(tmp_path.as_uri()), "p")
    numbers = np.sort(numbers_of(pipeline, "rows"))
    assert (len(numbers), numbers[0]) == (ROWS_OF_COPIES, -2)
    for name in COPIES:
        assert np.array_equal(np.sort(numbers_of(pipeline, name)), numbers)

"""What an update of some keys reads: no rows that it replaces, and all rows of its keys that it does not."""

from __future__ import annotations

import json
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import pds

INT = pa.int64()
ROWS = 20_000


def remove_runs(store: pds.Store, pipeline: pds.Pipeline, name: str, table: str) -> None:
    """Remove the files of a table, so that an update that reads one of them fails."""
    manifest = json.loads(pipeline._open().manifest())
    (node,) = (node for node in manifest["nodes"] if node["name"] == name)
    files = [file["name"] for run in node[table] for file in run["files"]]
    assert files
    for file in files:
        store.delete(f"{pipeline.path}/{file}")


def read_values(pipeline: pds.Pipeline, name: str) -> list[tuple[Any, ...]]:
    table = pipeline[name].read()
    return sorted(zip(*(table[column].to_pylist() for column in table.schema.names), strict=True))


def to_table(rows: dict[int, list[int]]) -> pa.Table:
    pairs = [(key, value) for key, values in rows.items() for value in values]
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    return pa.table({"key": pa.array(keys, INT), "value": pa.array(values, INT)})


def test_rows_of_a_source_that_an_update_replaces_are_not_read(memory_store: pds.Store) -> None:
    rng = random.Random(1)
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("numbers", key=INT, value=INT)
    pipeline.select("numbers", key="key % 7", name="sevens")
    rows = {key: rng.randrange(2**60) for key in range(ROWS)}
    pipeline.update(numbers=pds.Changes(pa.table({"key": list(rows), "value": list(rows.values())})))
    remove_runs(memory_store, pipeline, "numbers", "content")
    changed = {key: rng.randrange(2**60) for key in rng.sample(range(ROWS + 100), 50)}
    deleted = [key for key in (7, 8, 19_999) if key not in changed]
    pipeline.update(numbers=pds.Changes(list(changed.items()), deleted))
    rows = {key: value for key, value in (rows | changed).items() if key not in deleted}
    assert read_values(pipeline, "sevens") == sorted((key % 7, key, value) for key, value in rows.items())


def test_key_mappings_of_groups_are_not_read(memory_store: pds.Store) -> None:
    """Their content says the same. They are as they were where no group comes or goes."""
    rng = random.Random(2)
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("orders", key=INT, value=INT)
    pipeline.select("orders", key="key / 4", name="amounts")
    pipeline.aggregate("amounts", aggregates={"sum": ("value", "sum")}, name="sums")
    rows = {key: rng.randrange(1000) for key in range(4 * ROWS)}
    pipeline.update(orders=pds.Changes(pa.table({"key": list(rows), "value": list(rows.values())})))
    remove_runs(memory_store, pipeline, "sums", "mappings")
    changed = {key: rng.randrange(1000) for key in rng.sample(range(4 * ROWS), 20)}
    pipeline.update(orders=pds.Changes(list(changed.items())))
    rows |= changed
    sums = {group: sum(rows[key] for key in range(4 * group, 4 * group + 4)) for group in range(ROWS)}
    assert read_values(pipeline, "sums") == [(group, group, {"sum": total}) for group, total in sums.items()]


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_two_feeders_that_change_apart(memory_store: pds.Store, seed: int) -> None:
    """Keys of one feeder's update are read in the other, whether its own has other keys, the same results or none."""
    rng = random.Random(seed)
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline._page_rows, pipeline._file_rows = rng.choice([(None, None), (2, 8)])
    for name in ("x", "y"):
        pipeline.source(name, key=INT, value=INT)
        aggregates = {"n": "count", "total": ("value", "sum")}
        pipeline.aggregate(name, aggregates=aggregates, name=f"{name} sums", skip_unchanged=rng.random() < 0.5)
    pipeline.select("x sums", "y sums", key="n", value="total", name="both")
    pipeline.aggregate("both", aggregates={"n": "count", "total": ("value", "sum")}, name="totals")
    stored: dict[str, dict[int, list[int]]] = {"x": {}, "y": {}}
    for _ in range(8):
        changes = {}
        for name in rng.choice([["x"], ["y"], ["x", "y"]]):
            keys = rng.sample(range(12), rng.randrange(1, 6))
            deletes = [key for key in keys if rng.random() < 0.3]
            # Few values, so that a group often has the result that it had.
            new = {k: [rng.randrange(2) for _ in range(rng.randrange(1, 4))] for k in keys if k not in deletes}
            changes[name] = pds.Changes([(key, value) for key, values in new.items() for value in values], deletes)
            stored[name] = {key: values for key, values in (stored[name] | new).items() if key not in deletes}
        pipeline.update(changes)
        x, y = to_table(stored["x"]), to_table(stored["y"])
        expected = duckdb.sql(
            "SELECT n, count(*), sum(total) FROM (SELECT count(*) n, sum(value) total FROM x GROUP BY key UNION ALL "
            "SELECT count(*) n, sum(value) total FROM y GROUP BY key) GROUP BY n ORDER BY n"
        ).fetchall()
        found = [(key, value["n"], value["total"]) for key, _, value in read_values(pipeline, "totals")]
        assert found == expected, (x.num_rows, y.num_rows)
    assert pipeline.check().ok

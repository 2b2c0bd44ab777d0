"""What a process has beside its input, such as its time zone or the seed of its hashes, changes no table."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import pds

if TYPE_CHECKING:
    from pathlib import Path

WORDS = """
import random, sys
import pyarrow as pa
import pds

INT, TEXT = pa.int64(), pa.string()
pipeline = pds.Pipeline(pds.Store(sys.argv[1]), "p")
phrases = pipeline.source("phrases", key=INT, value=TEXT)

@pipeline.producer(phrases, key=TEXT, value=INT)
def words(key, texts):
    seen = {}
    for text in texts:
        for word in text.split():
            seen[word] = seen.get(word, 0) + 1
    for word in seen:
        yield word, seen[word]

@pipeline.producer(words, key=INT, value=TEXT, batch=True)
def by_count(batch):
    counts = {}
    for word in batch["key"].to_pylist():
        counts[word] = counts.get(word, 0) + 1
    first = [batch["key"].to_pylist().index(word) for word in counts]
    columns = [pa.array(first, INT), pa.array(counts.values(), INT), pa.array(counts, TEXT)]
    return pa.RecordBatch.from_arrays(columns, ["source_row", "key", "value"])

aggregates = {"n": "count"} | {name: ("value", name) for name in ("list", "count_distinct", "min")}
pipeline.aggregate("words", aggregates=aggregates, name="results")
pipeline.distinct("by_count", name="texts")
pipeline.first("words", by="value", rows=2, descending=True, name="most")
for step in map(int, sys.argv[2:]):
    rng = random.Random(step)
    keys = rng.sample(range(30), 12)
    upserts = [(key, " ".join(rng.choices("abcdefgh", k=rng.randrange(9)))) for key in keys]
    pipeline.update(phrases=pds.Changes(upserts))
print(pipeline["phrases"].read().to_pydict())
for name in ("words", "by_count", "results", "texts", "most"):
    print(name, pipeline[name].read().to_pydict(), pipeline[name].changes(pipeline.version).to_pydict())
for name in ("words", "by_count", "results"):
    print(name, pipeline[name].key_mappings().to_pydict())
"""

TIMES = """
import json, sys
import pyarrow as pa
import pds

INT, TEXT = pa.int64(), pa.string()
times = json.loads(sys.argv[2])
columns = {"plain": pa.timestamp("us"), "utc": pa.timestamp("us", "UTC"), "vienna": pa.timestamp("us", "Europe/Vienna")}
value = pa.struct(list(columns.items()))
pipeline = pds.Pipeline(pds.Store(sys.argv[1]), "p")
pipeline.source("times", key=INT, value=value)
selected = {}
for column in columns:
    selected[column + "_day"] = "date_trunc('day', " + column + ")"
    selected[column + "_hour"] = "extract(hour from " + column + ")"
    selected[column + "_text"] = "cast(" + column + " as varchar)"
    selected[column + "_date"] = "cast(" + column + " as date)"
    selected[column + "_since"] = column + " >= '2024-03-31 01:30:00'"
pipeline.select("times", value=selected, name="fields")
pipeline.select("fields", key="plain_day", value="utc_hour", name="by_day")
pipeline.aggregate("by_day", aggregates={"n": "count", "hours": ("value", "list")}, name="days")
arrays = [pa.array(times, INT).cast(data_type) for data_type in columns.values()]
rows = pa.StructArray.from_arrays(arrays, fields=list(value))
pipeline.update(times=pds.Changes(pa.table({"key": pa.array(range(len(times)), INT), "value": rows})))
for name in ("times", "fields", "by_day", "days"):
    print(name, pipeline[name].read().to_pydict())
"""


def run(code: str, folder: Path, *args: str, **environment: str) -> str:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", code, folder.as_uri(), *args]
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_seeds_of_hashes(tmp_path: Path) -> None:
    steps = ["1", "2", "3"]
    tables = {seed: run(WORDS, tmp_path / seed, *steps, PYTHONHASHSEED=seed) for seed in ("0", "1", "4242")}
    assert len(set(tables.values())) == 1
    # Each update of one pipeline by a process with another seed.
    for step, seed in zip(steps, tables, strict=True):
        last = run(WORDS, tmp_path / "shared", step, PYTHONHASHSEED=seed)
    assert last == tables["0"]
    assert "'target_key': ['a', " in last


def test_time_zones(tmp_path: Path) -> None:
    """Around the changes to and from summer time, and midnights."""
    days = [dt.datetime(2024, *day, tzinfo=dt.UTC) for day in ((1, 1), (3, 10), (3, 31), (10, 27), (11, 3))]
    shifts = [dt.timedelta(minutes=minutes) for minutes in (-601, -1, 0, 59, 61, 90, 125, 840)]
    times = [round((day + shift).timestamp() * 1e6) for day, shift in itertools.product(days, shifts)]
    zones = ("UTC", "America/New_York", "Asia/Kathmandu")
    tables = {zone: run(TIMES, tmp_path / zone.replace("/", "-"), json.dumps(times), TZ=zone) for zone in zones}
    assert len(set(tables.values())) == 1
    pipeline = pds.Pipeline(pds.Store((tmp_path / "Asia-Kathmandu").as_uri()), "p")
    fields = pipeline["fields"].read()["value"].combine_chunks()
    for column, zone in (("plain", None), ("utc", "UTC"), ("vienna", "Europe/Vienna")):
        values = pa.array(times, pa.int64()).cast(pa.timestamp("us", zone))
        assert fields.field(f"{column}_day").to_pylist() == pc.floor_temporal(values, unit="day").to_pylist()
        assert fields.field(f"{column}_hour").to_pylist() == pc.hour(values).to_pylist()
        assert fields.field(f"{column}_date").to_pylist() == [value.date() for value in values.to_pylist()]
        since = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC).timestamp() * 1e6
        assert fields.field(f"{column}_since").to_pylist() == [time >= since for time in times]

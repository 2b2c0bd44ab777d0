"""What the pipelines of ``make bench-producers`` are made of: rows in the cache, changes of them, results of peers.

The rows are Parquet files that are made once and kept in the cache; pipelines and peers read the same ones. A peer
computes all results anew from these files and writes them as Parquet, sorted by their keys, since that is what a
pipeline has in the end. Everything is seeded.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import data
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VERSION = 1
BATCH_ROWS = 65_536
GROUP_ROWS = 131_072


@dataclasses.dataclass(frozen=True)
class Graph:
    """A pipeline: what it declares for so many rows, the files of its sources, changes by what changes, and peers."""

    title: str
    declare: Callable[[pds.Pipeline, int], None]
    sources: Callable[[int], dict[str, Path]]
    changes: dict[str, Callable[[int, int, int], dict[str, pds.Changes]]]
    """Made of the rows, the number of keys and a seed."""
    peers: dict[str, Callable[[dict[str, Path], Path], object]] = dataclasses.field(default_factory=dict)
    check: Callable[[pds.Pipeline, int], bool] | None = None

    def open(self, store: pds.Store, rows: int) -> pds.Pipeline:
        """The declared pipeline."""
        pipeline = pds.Pipeline(store, "bench")
        self.declare(pipeline, rows)
        return pipeline

    def build(self, store: pds.Store, rows: int) -> pds.Pipeline:
        """The pipeline with all rows, by one update."""
        pipeline = self.open(store, rows)
        pipeline.update(self.all_rows(rows))
        return pipeline

    def all_rows(self, rows: int) -> dict[str, pds.Changes]:
        """The rows of all sources, as streams."""
        return {name: pds.Changes(read_rows(path)) for name, path in self.sources(rows).items()}


def cached(name: str, make: Callable[[Path], object]) -> Path:
    """A file of rows, made on the first call."""
    target = data.folder() / f"producers-{name}-v{VERSION}.parquet"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=data.folder()) as scratch:
            part = Path(scratch) / "rows.parquet"
            make(part)
            shutil.move(part, target)
    return target


def cached_table(name: str, make: Callable[[], pa.Table]) -> Path:
    """The same, of a table. Elements of lists keep their name."""

    def write(path: Path) -> None:
        pq.write_table(make(), path, row_group_size=GROUP_ROWS, use_compliant_nested_type=False)

    return cached(name, write)


def read_rows(path: Path) -> pa.RecordBatchReader:
    """The rows of a file as a stream, of which little is in memory at a time."""
    file = pq.ParquetFile(path)
    return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(BATCH_ROWS))


def choose(total: int, keys: int, seed: int) -> np.ndarray:
    """Some of so many keys, in order."""
    return np.sort(np.random.default_rng(seed).choice(total, keys, replace=False))


def write_by_duckdb(sources: Mapping[str, Path], queries: Mapping[str, str], folder: Path) -> None:
    """Has DuckDB write the results of queries over sources and over what earlier queries wrote."""
    with duckdb.connect() as connection:
        for name, path in sources.items():
            connection.read_parquet(str(path)).create_view(name)
        for name, query in queries.items():
            target = str(folder / f"{name}.parquet")
            connection.sql(query).write_parquet(target, compression="zstd")
            connection.read_parquet(target).create_view(name)


def query(pipeline: pds.Pipeline, text: str, *parameters: object, names: Sequence[str]) -> list[tuple[object, ...]]:
    """What DuckDB answers over the rows of some sources and stages."""
    with duckdb.connect() as connection:
        for name in names:
            connection.register(name, pipeline[name].read())
        return connection.execute(text, [*parameters] or None).fetchall()

"""`format("pds")` as source and as sink of Spark's declarative pipelines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import pds

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])

DEFINITIONS = textwrap.dedent("""
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    dp.create_sink("even_orders", "pds", {{"path": "{lake}/sink"}})

    @dp.append_flow(target="even_orders")
    def new_orders():
        return spark.readStream.format("pds").load("{lake}/source").where("id % 2 = 0")

    @dp.materialized_view
    def names():
        return spark.read.format("pds").load("{lake}/source").groupBy("name").count().coalesce(1).sort("name")
""")
SPECIFICATION = textwrap.dedent("""
    name: orders
    storage: {folder}/storage
    libraries:
      - glob:
          include: transformations/**
""")


@pytest.mark.slow
@pytest.mark.spark
def test_a_pipeline_appends_what_is_new(tmp_path: Path) -> None:
    store = pds.Store(f"{tmp_path.as_uri()}/lake")
    source, sink = pds.Table.create(store, "source", SCHEMA), pds.Table.create(store, "sink", SCHEMA)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "orders.py").write_text(DEFINITIONS.format(lake=store.url))
    specification = tmp_path / "spark-pipeline.yml"
    specification.write_text(SPECIFICATION.format(folder=tmp_path.as_uri()))
    command = [Path(pyspark.__file__).parent / "bin" / "spark-pipelines", "run", "--spec", specification]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for number in range(2):
        source.append(pa.table({"id": range(10 * number, 10 * number + 10), "name": ["a", "b"] * 5}, SCHEMA))
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
        written = sink.refresh().scan().to_pyarrow()
        assert sorted(written["id"].to_pylist()) == list(range(0, 10 * number + 10, 2))
        # The catalog of a session without a metastore is forgotten, its folder is not.
        warehouse = tmp_path / "spark-warehouse"
        assert pq.read_table(warehouse / "names").to_pydict() == {"name": ["a", "b"], "count": [5 * number + 5] * 2}
        shutil.rmtree(warehouse)

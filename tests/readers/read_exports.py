"""Reads exports with systems that have an environment of their own: run by it, not by that of the tests.

Takes the folder of jars as argument, and jobs as JSON lines: a `reader`, its `query`, and the `target` of an Arrow
file. Writes a JSON line for each: the error, or null.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Readers:
    """Systems that are started when they are first asked."""

    def __init__(self, jars: str) -> None:
        self._jars = jars
        self._session: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        from pyspark.sql import SparkSession  # noqa: PLC0415 started when it is needed

        if self._session is None:
            catalog = "spark.sql.catalog"
            options = {
                "spark.driver.extraClassPath": f"{self._jars}/*",
                "spark.driver.memory": "2g",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.shuffle.partitions": "2",
                "spark.ui.enabled": "false",
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                f"{catalog}.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                f"{catalog}.folder": "org.apache.iceberg.spark.SparkCatalog",
                f"{catalog}.folder.type": "hadoop",
            }
            builder = SparkSession.builder.master("local[2]")
            for name, value in options.items():
                builder = builder.config(name, value)
            self._session = builder.getOrCreate()
            self._session.sparkContext.setLogLevel("ERROR")
        return self._session

    def read(self, job: dict[str, str]) -> pa.Table:
        """The rows of a query."""
        if job["reader"] == "chdb":
            import chdb  # noqa: PLC0415 as above

            settings = " SETTINGS session_timezone = 'UTC', output_format_arrow_string_as_string = 1"
            result = chdb.query(job["query"] + settings, "Arrow")
            return pa.ipc.open_file(pa.py_buffer(result.bytes())).read_all()
        if warehouse := job.get("warehouse"):
            self.spark.conf.set("spark.sql.catalog.folder.warehouse", warehouse)
        if path := job.get("iceberg"):
            reader = self.spark.read.format("iceberg")
            if snapshot := job.get("snapshot"):
                reader = reader.option("versionAsOf", snapshot)
            reader.load(path).createOrReplaceTempView("exported")
        return self.spark.sql(job["query"]).toArrow()


def main() -> None:
    """Answer jobs until there are no more."""
    readers = Readers(sys.argv[1])
    for line in sys.stdin:
        job = json.loads(line)
        try:
            rows = readers.read(job)
            with pa.ipc.new_file(job["target"], rows.schema) as writer:
                writer.write_table(rows)
        except Exception as error:  # noqa: BLE001 what a reader raises is an answer
            answer = f"{type(error).__name__}: {error}"[:2000]
        else:
            answer = None
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

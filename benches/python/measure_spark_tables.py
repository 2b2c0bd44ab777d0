"""One session's operations on a table, for one system: ``measure_spark_tables.py pds|delta|parquet ORDER``.

ORDER is JSON: the folder, the number of rows, the folder of the peers' jars. Prints as JSON seconds by operation, and
seconds of processor time of Python, the JVM and Spark's workers. What an operation leaves is checked by counts, outside
of the time. Each system runs in a session of its own with the same cores, memory and codec; pds with the settings that
docs/spark.md names, the others with Spark's own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from process_tree import cpu_seconds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Callable

COMMON = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    "spark.log.level": "ERROR",
}
OF_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
}
# The rows are appended by so many writes.
APPENDS = 6


def _session(system: str, folder: Path, jars: str) -> SparkSession:
    settings = {**COMMON, "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    if system == "delta":
        settings |= {**OF_DELTA, "spark.jars": ",".join(map(str, Path(jars).glob("*.jar")))}
    if system == "pds":
        settings["spark.python.unix.domain.socket.enabled"] = "true"
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _rows(spark: SparkSession, first: int, last: int, step: int = 1, salt: int = 0) -> DataFrame:
    """Sixteen columns, generated: the id, integers, decimals as floats, names, dates."""
    number = f.col("id")

    def hashed(column: int) -> Column:
        return f.abs(f.xxhash64(number, f.lit(column + salt)))

    columns = [number, (hashed(0) % 1_000_000).alias("amount")]
    columns += [(hashed(c) % 50_000).cast("int").alias(f"i{c}") for c in range(1, 5)]
    columns += [(hashed(c) % 1_000_000 / 100).alias(f"d{c}") for c in range(5, 10)]
    columns += [f.concat(f.lit("name-"), hashed(c) % 1_000).alias(f"s{c}") for c in range(10, 14)]
    columns.append(f.date_add(f.lit("2020-01-01"), (hashed(14) % 2_000).cast("int")).alias("day"))
    return spark.range(first, last, step, numPartitions=os.cpu_count()).select(*columns)


class Pds:
    """A table of pds."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        import pds  # noqa: PLC0415 not loaded in a run without it
        import pds.spark  # noqa: PLC0415

        self.spark, self.pds, self.url = spark, pds, folder.as_uri()
        self.store = pds.Store(self.url)

    def create(self, rows: DataFrame) -> None:
        """Make an empty table for such rows."""
        schema = rows.limit(0).toArrow().schema
        self.table = self.pds.Table.create(self.store, "table", schema, key="id")

    def append(self, rows: DataFrame) -> None:
        """Append rows."""
        self.pds.spark.append(rows, self.table)

    def read(self) -> int:
        """Read two columns by a filter of one in a hundred; a checksum."""
        frame = self.pds.spark.read_table(self.spark, self.table, columns=["id", "amount"], where="amount < 10000")
        return int(frame.selectExpr("sum(id + amount) % 1000003").first()[0])

    def read_source(self) -> int:
        """Read as `read` does, by the data source."""
        options = {"columns": "id,amount", "where": "amount < 10000"}
        frame = self.spark.read.format("pds").options(**options).load(f"{self.url}/table")
        return int(frame.selectExpr("sum(id + amount) % 1000003").first()[0])

    def delete(self) -> None:
        """Delete one row in a hundred."""
        self.pds.spark.delete(self.spark, self.table, "amount BETWEEN 500000 AND 509999")

    def merge(self, rows: DataFrame) -> None:
        """Replace rows with the same id, insert the others."""
        self.pds.spark.merge(rows, self.table).when_matched_update_all().when_not_matched_insert_all().execute()

    def upsert(self, rows: DataFrame) -> None:
        """Do what `merge` does."""
        self.pds.spark.upsert(rows, self.table)

    def count(self) -> int:
        """Return the number of rows."""
        return int(self.table.scan().count())


class Delta:
    """A table of Delta with deletion vectors."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.path = spark, f"{folder}/table"

    def create(self, rows: DataFrame) -> None:
        """Make an empty table for such rows."""
        rows.limit(0).write.format("delta").save(self.path)

    def append(self, rows: DataFrame) -> None:
        """Append rows."""
        rows.write.format("delta").mode("append").save(self.path)

    def read(self) -> int:
        """Read two columns by a filter of one in a hundred; a checksum."""
        frame = self.spark.read.format("delta").load(self.path).where("amount < 10000")
        return int(frame.selectExpr("sum(id + amount) % 1000003").first()[0])

    def delete(self) -> None:
        """Delete one row in a hundred."""
        self.spark.sql(f"DELETE FROM delta.`{self.path}` WHERE amount BETWEEN 500000 AND 509999")  # noqa: S608 our own path

    def merge(self, rows: DataFrame) -> None:
        """Replace rows with the same id, insert the others."""
        rows.createOrReplaceTempView("changes")
        self.spark.sql(
            f"MERGE INTO delta.`{self.path}` AS target USING changes AS source ON target.id = source.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    upsert = merge

    def count(self) -> int:
        """Return the number of rows."""
        return self.spark.read.format("delta").load(self.path).count()


class Parquet:
    """A folder of Parquet files, which can only be appended to and read."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.path = spark, f"{folder}/table"

    def create(self, rows: DataFrame) -> None:
        """Make an empty table for such rows."""

    def append(self, rows: DataFrame) -> None:
        """Append rows."""
        rows.write.mode("append").parquet(self.path)

    def read(self) -> int:
        """Read two columns by a filter of one in a hundred; a checksum."""
        frame = self.spark.read.parquet(self.path).where("amount < 10000")
        return int(frame.selectExpr("sum(id + amount) % 1000003").first()[0])

    def count(self) -> int:
        """Return the number of rows."""
        return self.spark.read.parquet(self.path).count()


SYSTEMS: dict[str, type[Pds | Delta | Parquet]] = {"pds": Pds, "delta": Delta, "parquet": Parquet}


def main() -> None:
    """Prints the figures as JSON."""
    system, order = sys.argv[1], json.loads(sys.argv[2])
    folder, total = Path(order["folder"]), order["rows"]
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder.mkdir(parents=True)
    spark = _session(system, folder, order["jars"])
    table = SYSTEMS[system](spark, folder)
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    seen: dict[str, Any] = {}

    def timed(name: str, operation: Callable[[], object]) -> None:
        before, start = cpu_seconds(), time.perf_counter()
        seen[name] = operation()
        seconds[name] = time.perf_counter() - start
        cpu[name] = cpu_seconds() - before

    # The session is warm, not the system.
    spark.range(1000).selectExpr("sum(id)").collect()
    table.create(_rows(spark, 0, 1))
    size = total // APPENDS
    for number in range(APPENDS):
        first = number * size
        name = "append, first" if number == 0 else "append, last" if number == APPENDS - 1 else f"append {number}"
        timed(name, lambda first=first: table.append(_rows(spark, first, first + size)))
    for name in ("read, first", "read, second"):
        timed(name, table.read)
    if isinstance(table, Pds):
        timed("read, by format", table.read_source)
    if not isinstance(table, Parquet):
        timed("delete", table.delete)
        seen["rows after delete"] = table.count()
        # Each hundredth row, and as many new ones as a tenth of these.
        timed("merge", lambda: table.merge(_rows(spark, 0, total + total // 10, 100, salt=100)))
        seen["rows after merge"] = table.count()
        timed("upsert", lambda: table.upsert(_rows(spark, 1, total, 100, salt=200)))
        seen["read after upsert"] = table.read()
        seen["rows after upsert"] = table.count()
    print(json.dumps({"seconds": seconds, "cpu": cpu, "seen": seen}))


if __name__ == "__main__":
    main()

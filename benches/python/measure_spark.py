"""One write from Spark in a session of its own: ``measure_spark.py pds|spark FOLDER``.

Ten million generated rows of four columns in as many partitions as there are cores, zstd level 1.
The first write of a session compiles the plan and starts the workers; it is not measured, the
second is.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ROWS = 10_000_000


def _session() -> SparkSession:
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.hadoop.parquet.compression.codec.zstd.level": "1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _rows(spark: SparkSession) -> DataFrame:
    number = f.col("id")
    return spark.range(0, ROWS, 1, numPartitions=os.cpu_count()).select(
        number,
        (f.xxhash64(number) % 50_000).cast("int").alias("customer"),
        (f.abs(f.xxhash64(number, f.lit(1))) % 1_000_000 / 100).alias("price"),
        f.concat(f.lit("city-"), f.abs(f.xxhash64(number, f.lit(2))) % 1_000).alias("city"),
    )


def _write(system: str, rows: DataFrame, folder: Path) -> None:
    if system == "spark":
        rows.write.parquet(str(folder))
        return
    import pds  # noqa: PLC0415 not loaded in a run without it
    import pds.spark  # noqa: PLC0415

    store = pds.Store(folder.parent.as_uri())
    pds.spark.write_dataset(rows, store, folder.name, compression="zstd")


def main() -> None:
    """Prints the figures as JSON."""
    system, folder = sys.argv[1], Path(sys.argv[2])
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder.mkdir(parents=True)
    spark = _session()
    rows = _rows(spark)
    _write(system, rows, folder / "first")
    shutil.rmtree(folder / "first")
    os.sync()
    start = time.perf_counter()
    _write(system, rows, folder / "second")
    wall = time.perf_counter() - start
    written = spark.read.parquet(*map(str, sorted((folder / "second").glob("*.parquet"))))
    if written.count() != ROWS:
        raise RuntimeError(f"{system} wrote {written.count()} rows")
    size = sum(p.stat().st_size for p in (folder / "second").glob("*.parquet"))
    spark.stop()
    print(json.dumps({"wall": wall, "file_bytes": size}))


if __name__ == "__main__":
    main()

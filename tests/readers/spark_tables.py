"""Tables of pds in an older Spark: run by the environment of `make test-readers`, not by that of the tests.

Takes a folder with the table `source`; writes the tables `copied`, `appended` and `streamed`, and prints as JSON the
ids that each way of reading has and the error of what this Spark does not have.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

import pds
import pds.spark


def start() -> SparkSession:
    """A session whose tasks see this environment."""
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def ids(df: DataFrame) -> list[int]:
    """The ids of the rows, sorted."""
    return sorted(row["id"] for row in df.select("id").collect())


def main(root: str) -> None:
    """Read, write and stream."""
    spark, source = start(), f"{root}/source"
    table = pds.open_table(source)
    answers: dict[str, object] = {"version": pyspark.__version__}
    df = spark.read.format("pds").load(source)
    answers["format"] = ids(df)
    answers["filtered"] = ids(spark.read.format("pds").option("where", "id > 2").load(source))
    answers["task function"] = ids(pds.spark.read_table(spark, table, columns=["id"]))
    feed = spark.read.format("pds").option("readChangeFeed", True).option("startingVersion", 1).load(source)
    answers["feed"] = ids(feed)
    df.write.format("pds").mode("append").save(f"{root}/copied")
    df.write.format("pds").mode("overwrite").save(f"{root}/copied")
    pds.spark.append(df, pds.open_table(f"{root}/appended"))

    def run(**options: str) -> int:
        """Run the stream to its end; the number of commits."""
        before = pds.open_table(f"{root}/streamed").version
        stream = spark.readStream.format("pds").options(**options).load(source).writeStream.format("pds")
        stream = stream.option("checkpointLocation", f"{root}/checkpoint").trigger(availableNow=True)
        stream.start(f"{root}/streamed").awaitTermination()
        return pds.open_table(f"{root}/streamed").version - before

    commits = [run()]
    for number in (100, 101):
        table.append(pa.table({"id": [number], "name": ["later"]}, table.schema))
    # The second finds nothing new.
    commits += [run(), run()]
    answers["commits"] = commits
    try:
        run(maxFilesPerTrigger="1")
    except Exception as error:  # noqa: BLE001 what Spark makes of an error is an answer
        answers["limited"] = str(error)
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

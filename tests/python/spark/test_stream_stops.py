"""A query from a table to a table that is stopped at every point, and started again: each row arrives once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import pds
from pds.spark.stream import TableStreamReader, TableStreamWriter
from pyspark_pds import DefaultSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.python.spark.conftest import Target

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def make_source(control: Path) -> type[DefaultSource]:  # noqa: C901 all points
    """The data source of pds, which dies before or after the call of which the number is in a file.

    From then on every call fails, as if the driver were gone. The classes go to Spark's processes as they are here.
    """

    def reach(point: str) -> None:
        with (control / "reached").open("a") as reached:
            reached.write(f"{point}\n")
        number = len((control / "reached").read_text().splitlines())
        if number >= int((control / "stop").read_text()):
            raise RuntimeError(f"stopped at {point}")

    class Reader(TableStreamReader):
        def initialOffset(self) -> Any:  # noqa: N802
            reach("initialOffset")
            return super().initialOffset()

        def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802
            reach("before latestOffset")
            found = super().latestOffset(start, limit)
            reach("after latestOffset")
            return found

        def partitions(self, start: Any, end: Any) -> Any:
            reach("partitions")
            return super().partitions(start, end)

        def read(self, partition: Any) -> Iterator[Any]:
            reach("before read")
            yield from super().read(partition)
            reach("after read")

        def commit(self, end: Any) -> None:
            reach("commit of the source")
            super().commit(end)

    class Writer(TableStreamWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            reach("before write")
            message = super().write(iterator)
            reach("after write")
            return message

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
            reach("before commit")
            super().commit(messages, batchId)
            reach("after commit")

        def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
            reach("before abort")
            super().abort(messages, batchId)

    class Stopping(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "stopping"

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            reader = super().streamReader(schema)
            reader.__class__ = Reader
            return reader

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            writer.__class__ = Writer
            return writer

    return Stopping


@pytest.mark.slow
def test_a_query_that_is_stopped_at_every_point(spark: SparkSession, local_target: Target, tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.mkdir()
    spark.dataSource.register(make_source(control))
    store = local_target.store
    source, sink = (pds.Table.create(store, name, SCHEMA) for name in ("source", "sink"))

    def run(stop: int) -> list[str]:
        """Run a query until all is written, or it is stopped; the points that it has reached."""
        (control / "stop").write_text(str(stop))
        (control / "reached").write_text("")
        rows = spark.readStream.format("stopping").load(f"{store.url}/source")
        written = rows.writeStream.format("stopping").option("checkpointLocation", str(tmp_path / "checkpoint"))
        written.trigger(availableNow=True).start(f"{store.url}/sink").awaitTermination()
        return (control / "reached").read_text().splitlines()

    stopped_at = set[str]()
    for stop in itertools.count(1):
        source.append(pa.table({"id": [2 * stop]}, SCHEMA))
        source.append(pa.table({"id": [2 * stop + 1]}, SCHEMA))
        try:
            run(stop)
            break
        except PySparkException:
            stopped_at.add((control / "reached").read_text().splitlines()[stop - 1])
        if stop % 3 == 0:
            # Others write and clean up before it is started again.
            source.optimize.compact()
            sink.append(pa.table({"id": []}, SCHEMA))
            sink.optimize.compact()
        if stop % 4 == 0:
            # And it is stopped while it makes up for the batch.
            with pytest.raises(PySparkException, match="stopped at"):
                run(4)
        run(1 << 20)
        expected = sorted(source.scan().to_pyarrow()["id"].to_pylist())
        assert sorted(sink.refresh().scan().to_pyarrow()["id"].to_pylist()) == expected, stop
    assert sorted(sink.refresh().scan().to_pyarrow()["id"].to_pylist()) == list(range(2, 2 * stop + 2))
    assert stopped_at >= {
        "initialOffset",
        "before latestOffset",
        "after latestOffset",
        "partitions",
        "before read",
        "after read",
        "before write",
        "after write",
        "before commit",
        "after commit",
    }
    assert sink.check().missing == []

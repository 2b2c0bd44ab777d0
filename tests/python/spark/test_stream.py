"""`readStream` and `writeStream` of `format("pds")`: each row once, however often a query is stopped and started."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

import pds
from pds.spark.stream import TableStreamReader, warn_of_other_rows
from pyspark_pds import DefaultSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from tests.python.spark.conftest import Target

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{number}" for number in ids]}, SCHEMA)


# A session takes seconds for each test: only these run on S3, too.
BOTH_PLACES = pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])


@pytest.fixture
def target(one_target: Target) -> Target:
    return one_target


@pytest.fixture
def source(target: Target) -> pds.Table:
    table = pds.Table.create(target.store, "source", SCHEMA)
    table.append(rows(0, 1))
    table.append(rows(2))
    return table


class Streams:
    """Queries from one table to another."""

    def __init__(self, spark: SparkSession, target: Target, checkpoint: Path) -> None:
        self._spark, self._target, self.checkpoint = spark, target, checkpoint
        self._storage = {f"storage.{name}": value for name, value in target.options.items()}

    def read(self, schema: str | None = None, **options: Any) -> DataFrame:
        stream = self._spark.readStream.format("pds").options(**self._storage, **options)
        given = stream if schema is None else stream.schema(schema)
        return given.load(f"{self._target.store.url}/source")

    def reader(self, **options: Any) -> TableStreamReader:
        """Without Spark around it."""
        source = DefaultSource({"path": f"{self._target.store.url}/source", **self._storage, **options})
        found = source.streamReader(source.schema())
        assert isinstance(found, TableStreamReader)
        return found

    def start(self, df: DataFrame, trigger: dict[str, Any], path: str = "sink", mode: str = "append") -> StreamingQuery:
        stream = df.writeStream.format("pds").options(**self._storage).outputMode(mode).trigger(**trigger)
        stream = stream.queryName(f"query {path}").option("checkpointLocation", str(self.checkpoint))
        return stream.start(f"{self._target.store.url}/{path}")

    def run(self, df: DataFrame, path: str = "sink", mode: str = "append") -> int:
        """Run until all that is there is written; the number of batches with rows."""
        query = self.start(df, {"availableNow": True}, path, mode)
        query.awaitTermination()
        return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)

    def forget_last_commit(self) -> None:
        """As if the driver had died after the commit to the table, before Spark wrote it down."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink()


@pytest.fixture(autouse=True)
def sink(target: Target) -> pds.Table:
    return pds.Table.create(target.store, "sink", SCHEMA)


@pytest.fixture
def streams(spark: SparkSession, target: Target, tmp_path: Path) -> Streams:
    return Streams(spark, target, tmp_path / "checkpoint")


def ids(target: Target, path: str = "sink") -> list[int]:
    found: list[int] = pds.Table(target.store, path).scan(["id"]).to_pyarrow()["id"].to_pylist()
    return sorted(found)


@BOTH_PLACES
def test_each_row_is_delivered_once(streams: Streams, source: pds.Table, target: Target, place: str) -> None:
    assert streams.run(streams.read()) == 1
    assert ids(target) == [0, 1, 2]
    assert streams.run(streams.read()) == 0
    source.append(rows(3))
    source.append(rows(4, 5))
    source.optimize.compact()
    source.append(rows(6))
    streams.run(streams.read())
    assert ids(target) == [0, 1, 2, 3, 4, 5, 6]
    versions = pds.Table(target.store, "sink").version
    streams.run(streams.read())
    assert pds.Table(target.store, "sink").version == versions, "a query without new rows commits nothing"


@BOTH_PLACES
def test_a_batch_that_is_run_again_changes_nothing(
    streams: Streams, source: pds.Table, target: Target, place: str
) -> None:
    for number in range(10, 14):
        streams.run(streams.read())
        streams.forget_last_commit()
        before = pds.Table(target.store, "sink").version
        streams.run(streams.read())
        sink = pds.Table(target.store, "sink")
        assert sink.version == before
        assert ids(target) == ids(target, "source")
        source.append(rows(number))
        # The sink may have changed since the query began.
        sink.append(rows())


def test_a_batch_has_no_more_files_than_allowed(streams: Streams, source: pds.Table, target: Target) -> None:
    assert streams.run(streams.read(maxFilesPerTrigger=1)) == 2
    for number in range(10, 17):
        source.append(rows(number))
    assert streams.run(streams.read(maxFilesPerTrigger=3)) == 3
    assert ids(target) == ids(target, "source")


@BOTH_PLACES
def test_a_batch_has_no_more_bytes_than_allowed(
    streams: Streams, source: pds.Table, target: Target, sink: pds.Table, place: str
) -> None:
    """Each row once, though the query is stopped and started with other limits, and a batch is run again."""
    size = max(source.files()["size_bytes"].to_pylist())
    assert streams.run(streams.read(maxBytesPerTrigger=1)) == 2
    for number in range(10, 16):
        source.append(rows(number))
    assert streams.run(streams.read(maxBytesPerTrigger=f"{size * 7 // 2}b")) == 2
    streams.forget_last_commit()
    before = sink.refresh().version
    streams.run(streams.read(maxBytesPerTrigger=size))
    assert sink.refresh().version == before, "the batch that Spark runs again has the rows that it had"
    for number in range(20, 26):
        source.append(rows(number))
    assert streams.run(streams.read(maxBytesPerTrigger="1g", maxFilesPerTrigger=4)) == 2
    assert ids(target) == ids(target, "source")


@pytest.mark.parametrize("feed", ["false", "true"])
def test_the_rows_with_which_a_stream_begins_come_in_batches(
    streams: Streams, source: pds.Table, target: Target, feed: str
) -> None:
    """All of one version, whatever is committed meanwhile, and also if the query is started again in between."""
    for number in range(10, 15):
        source.append(rows(number))
    source.delete("id = 1")
    expected = source.scan(["id"]).to_pyarrow()["id"].to_pylist()
    assert (source.file_count, len(expected)) == (7, 7)
    options = {"readChangeFeed": feed}
    offsets = [streams.reader(**options).initialOffset()]
    batches: list[list[int]] = []
    by_bytes = {"maxBytesPerTrigger": str(sum(source.files()["size_bytes"].to_pylist()[3:5]))}
    for more in ({"maxFilesPerTrigger": "3"}, by_bytes, {}, {}):
        reader = streams.reader(**options, **more)
        end = json.loads(json.dumps(reader.latestOffset(offsets[-1], reader.getDefaultReadLimit())))
        # Before a query goes on, Spark asks for the rows from its last offset to the same one.
        assert reader.partitions(offsets[-1], offsets[-1]) == []
        partitions = reader.partitions(offsets[-1], end)
        batches.append([row for task in partitions for batch in reader.read(task) for row in batch["id"].to_pylist()])
        offsets.append(end)
        source.append(rows(100 + len(batches)))
        source.optimize.compact()
    *first, later = batches
    assert [len(batch) for batch in first] == [3, 2, 2]
    assert [number for batch in first for number in batch] == expected
    assert later == [101, 102, 103]


def test_where_a_stream_begins(streams: Streams, source: pds.Table, target: Target, tmp_path: Path) -> None:
    for start, expected in (("latest", []), ("4", []), ("3", [2]), ("2", [0, 1, 2]), ("1", [0, 1, 2])):
        streams.checkpoint = tmp_path / f"from {start}"
        pds.Table.create(target.store, f"sink {start}", SCHEMA)
        streams.run(streams.read(startingVersion=start), f"sink {start}")
        assert ids(target, f"sink {start}") == expected
    source.append(rows(9))
    streams.checkpoint = tmp_path / "from latest"
    streams.run(streams.read(startingVersion="latest"), "sink latest")
    assert ids(target, "sink latest") == [9]
    streams.checkpoint = tmp_path / "from 99"
    with pytest.raises(PySparkException, match="startingVersion"):
        streams.run(streams.read(startingVersion="99"))


def test_a_stream_from_the_first_version(streams: Streams, target: Target) -> None:
    place = {"storage_options": target.options} if target.options else {}
    source = pds.write_table(f"{target.store.url}/source", rows(1, 2), **place)
    source.append(rows(3))
    streams.run(streams.read(startingVersion=1, maxFilesPerTrigger=1))
    assert ids(target) == [1, 2, 3]
    source.append(rows(4))
    streams.run(streams.read(startingVersion=1))
    assert ids(target) == [1, 2, 3, 4]
    source.delete("id = 1")
    streams.checkpoint = streams.checkpoint.with_name("another")
    with pytest.raises(PySparkException, match="deleted rows"):
        streams.run(streams.read(startingVersion=1))


@pytest.mark.parametrize(("mode", "committed"), [("append", 3), ("complete", 1)])
def test_a_batch_that_was_committed_with_other_rows(
    streams: Streams, source: pds.Table, sink: pds.Table, mode: str, committed: int, recwarn: pytest.WarningsRecorder
) -> None:
    """As after a checkpoint was set back. Spark's process for commits warns on its standard error."""
    df = streams.read()
    streams.run(df if mode == "append" else df.groupBy().count().withColumnRenamed("count", "id"), mode=mode)
    sink.refresh()
    warn_of_other_rows(sink, sink.version, committed, 0)
    assert not recwarn
    with pytest.warns(UserWarning, match=rf"batch 0 .* committed before .* with {committed} rows, and has 5 rows now"):
        warn_of_other_rows(sink, sink.version, 5, 0)


def test_what_a_stream_cannot_take_back(streams: Streams, source: pds.Table, target: Target) -> None:
    streams.run(streams.read())
    source.append(rows(3))
    source.delete("id = 1")
    with pytest.raises(PySparkException, match="deleted rows"):
        streams.run(streams.read())
    assert streams.run(streams.read(ignoreDeletes=True)) == 1
    assert ids(target) == [0, 1, 2, 3]
    source.upsert(rows(3, 4), on="id")
    with pytest.raises(PySparkException, match="replaced rows"):
        streams.run(streams.read(ignoreDeletes=True))
    source.append(rows(5))
    streams.run(streams.read(skipChangeCommits=True))
    assert ids(target) == [0, 1, 2, 3, 5]


def test_a_restore_is_not_taken_for_new_rows(streams: Streams, source: pds.Table, target: Target) -> None:
    streams.run(streams.read())
    source.delete("id = 1")
    source.restore(3)
    source.append(rows(3))
    with pytest.raises(PySparkException, match="replaced rows"):
        streams.run(streams.read(ignoreDeletes=True))
    streams.run(streams.read(skipChangeCommits=True))
    assert ids(target) == [0, 1, 2, 3]


def test_a_first_batch_that_is_run_again_begins_where_it_began(
    streams: Streams, source: pds.Table, target: Target
) -> None:
    """Although "latest" is another version by then."""
    reader = streams.reader(startingVersion="latest")
    start = reader.initialOffset()
    source.append(rows(3))
    end = reader.latestOffset(start, ReadAllAvailable())
    source.append(rows(4))
    again = streams.reader(startingVersion="latest")
    found = [row for partition in again.partitions(again.initialOffset(), end) for row in again.read(partition)]
    assert pa.Table.from_batches(found)["id"].to_pylist() == [3]


def test_a_table_that_is_made_anew_before_its_tasks_run(streams: Streams, source: pds.Table, target: Target) -> None:
    source.append(rows(3))
    reader = streams.reader()
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    source.append(rows(4))
    (partition,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    pds.Table.drop(target.store, "source")
    again = pds.Table.create(target.store, "source", SCHEMA)
    for number in range(6):
        again.append(rows(100 + number))
    with pytest.raises(pds.InvalidInput, match="created again"):
        list(reader.read(partition))


def test_a_column_without_nulls_that_was_dropped(streams: Streams, source: pds.Table, target: Target) -> None:
    pds.Table.drop(target.store, "source")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    again = pds.Table.create(target.store, "source", schema)
    again.append(pa.table({"id": [1], "n": [1]}, schema))
    reader = streams.reader()
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    again.alter.drop_column("n")
    again.append(pa.table({"id": [2]}, pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    *_, last = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    with pytest.raises(pds.InvalidInput, match="column 'n' has nulls"):
        list(reader.read(last))


def test_a_vacuumed_source_is_not_passed_over(streams: Streams, source: pds.Table, target: Target) -> None:
    streams.run(streams.read())
    source.append(rows(3))
    source.append(rows(4))
    source.vacuum(dt.timedelta(0))
    with pytest.raises(PySparkException, match="vacuumed"):
        streams.run(streams.read())
    assert ids(target) == [0, 1, 2]


def test_complete_results_replace_all_rows(streams: Streams, source: pds.Table, target: Target) -> None:
    for number in range(3):
        counted = streams.read().groupBy().count().withColumnRenamed("count", "id")
        streams.run(counted, mode="complete")
        assert ids(target) == [3 + number]
        source.append(rows(10 + number))


def test_a_source_that_was_made_anew_is_noticed(streams: Streams, source: pds.Table, target: Target) -> None:
    streams.run(streams.read())
    for versions in (1, 2, 5):
        pds.Table.drop(target.store, "source")
        again = pds.Table.create(target.store, "source", SCHEMA)
        for number in range(versions):
            again.append(rows(100 + number))
        with pytest.raises(PySparkException, match="created again"):
            streams.run(streams.read())
    assert ids(target) == [0, 1, 2]


def test_a_sink_that_was_dropped_is_noticed(streams: Streams, source: pds.Table, target: Target) -> None:
    streams.run(streams.read())
    pds.Table.drop(target.store, "sink")
    source.append(rows(3))
    with pytest.raises(PySparkException, match=r"NotFound|no table"):
        streams.run(streams.read())
    assert not target.store.exists("sink")


def test_columns_that_change_in_the_middle_of_a_stream(streams: Streams, source: pds.Table, target: Target) -> None:
    """Rows are those that a scan of the newest version shows, in the columns with which the query was started."""
    streams.run(streams.read())
    source.append(rows(3))
    source.alter.drop_column("name")
    source.alter.add_column("name", pa.string())
    source.append(pa.table({"id": [4], "name": ["new"]}, SCHEMA))
    source.alter.add_column("more", pa.int64())
    streams.run(streams.read(columns="id,name"))
    found = pds.Table(target.store, "sink").scan().to_pyarrow().to_pylist()
    by_id = {row["id"]: row["name"] for row in found}
    assert by_id == {0: "n0", 1: "n1", 2: "n2", 3: None, 4: "new"}
    # The batch is run again, by a query that knows a column that its versions have not.
    streams.forget_last_commit()
    streams.run(streams.read(columns="id,name"))
    assert pds.Table(target.store, "sink").scan().count() == 5


def test_a_compaction_after_a_column_was_dropped(streams: Streams, source: pds.Table, target: Target) -> None:
    """It has no new rows, in the middle of a batch as well as at its end."""
    streams.run(streams.read())
    source.alter.drop_column("name")
    for number in (3, 4):
        source.append(pa.table({"id": [number]}, SCHEMA.remove(1)))
        source.optimize.compact()
    source.alter.add_column("name", pa.string())
    streams.run(streams.read())
    assert ids(target) == [0, 1, 2, 3, 4]


def test_a_long_query_survives_vacuums_of_its_sink(
    streams: Streams, source: pds.Table, target: Target, sink: pds.Table
) -> None:
    """Each batch begins at the newest version of the table that it writes."""
    query = streams.start(streams.read(), {"processingTime": "0 seconds"})
    try:
        for number in range(10, 13):
            source.append(rows(number))
            query.processAllAvailable()
            sink.append(rows(1000 + number))
            sink.vacuum(dt.timedelta(0))
    finally:
        query.stop()
    assert ids(target) == [0, 1, 2, 10, 11, 12, 1010, 1011, 1012]


def test_what_is_not_valid_is_refused(streams: Streams, source: pds.Table, target: Target) -> None:
    for options in (
        {"maxFilesPerTrigger": "0"},
        {"maxBytesPerTrigger": "many"},
        {"ignoreDeletes": "maybe"},
        {"where": "id = 1"},
        {"versions": "1"},
        {"versionAsOf": "2"},
        {"timestamp": "2030-01-01T00:00:00Z"},
    ):
        with pytest.raises(PySparkException, match="option"):
            streams.run(streams.read(**options))
    with pytest.raises(PySparkException, match="takes no schema"):
        streams.run(streams.read(schema="id bigint"))
    pds.Table.create(target.store, "other", pa.schema([("different", pa.int64())]))
    with pytest.raises(PySparkException, match="unknown column"):
        streams.run(streams.read(), "other")

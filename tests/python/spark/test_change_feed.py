"""`readChangeFeed` of `format("pds")`: the changes of `Table.scan_changes`, in batches and streams."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import pds
from pyspark_pds import DefaultSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
CHANGES = ["_change_type", "_commit_version", "_commit_timestamp"]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{number}" for number in ids]}, SCHEMA)


@pytest.fixture
def target(one_target: Target) -> Target:
    return one_target


@pytest.fixture
def table(target: Target) -> pds.Table:
    table = pds.Table.create(target.store, "source", SCHEMA, key="id")
    table.append(rows(*range(10)))
    table.delete("id % 4 = 1")
    table.upsert(rows(2, 20, 21))
    table.optimize.compact()
    table.append(rows(30))
    return table


class Feeds:
    """Change feeds of a table."""

    def __init__(self, spark: SparkSession, target: Target) -> None:
        self._spark, self._url = spark, f"{target.store.url}/source"
        self._storage = {f"storage.{name}": value for name, value in target.options.items()}

    def read(self, **options: Any) -> DataFrame:
        reader = self._spark.read.format("pds").option("readChangeFeed", True)
        return reader.options(**self._storage, **options).load(self._url)

    def source(self, **options: str) -> DefaultSource:
        """Without Spark around it."""
        return DefaultSource({"path": self._url, **self._storage, "readChangeFeed": "true", **options})

    def stream(self, checkpoint: Path, **options: Any) -> Counter[tuple[Any, ...]]:
        """The rows that a query gets that goes on from a checkpoint."""
        found: Counter[tuple[Any, ...]] = Counter()

        def take(batch: DataFrame, _number: int) -> None:
            found.update(listed(batch.toArrow()))

        stream = self._spark.readStream.format("pds").option("readChangeFeed", True)
        stream = stream.options(**self._storage, **options)
        writer = stream.load(self._url).writeStream.foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
        return found


@pytest.fixture
def feeds(spark: SparkSession, target: Target) -> Feeds:
    return Feeds(spark, target)


def listed(found: pa.Table) -> Counter[tuple[Any, ...]]:
    times = found["_commit_timestamp"].cast(pa.timestamp("us", "UTC"))
    place = found.schema.get_field_index("_commit_timestamp")
    return Counter(zip(*(column.to_pylist() for column in found.set_column(place, "at", times)), strict=True))


def expected(table: pds.Table, since: int, until: int, columns: list[str] | None = None) -> Counter[tuple[Any, ...]]:
    return listed(table.scan_changes(since, until, columns=columns).to_pyarrow())


@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_changes_of_versions(feeds: Feeds, table: pds.Table, place: str) -> None:
    end = table.version
    assert feeds.read(startingVersion=1).columns == ["id", "name", *CHANGES]
    assert listed(feeds.read(startingVersion=1).toArrow()) == expected(table, 1, end)
    assert listed(feeds.read(startingVersion=3, endingVersion=4).toArrow()) == expected(table, 2, 4)
    by_name = feeds.read(startingVersion=2, columns="name")
    assert by_name.columns == ["name", *CHANGES]
    assert listed(by_name.toArrow()) == expected(table, 1, end, ["name"])
    assert feeds.read(startingVersion="latest").count() == 0
    # A query that was made has its versions.
    df = feeds.read(startingVersion=1)
    table.append(rows(99))
    assert listed(df.toArrow()) == expected(table, 1, end)
    nothing = feeds.read(startingVersion="LATEST")
    table.append(rows(100))
    assert nothing.count() == 0


def test_changes_by_time(feeds: Feeds, table: pds.Table) -> None:
    times = {entry["version"]: entry["created_at"] for entry in table.history()}
    step = dt.timedelta(microseconds=1)
    for start, end, since, until in (
        (times[3], times[4], 2, 4),
        (times[3] + step, times[4] + step, 3, 4),
        (times[1] - dt.timedelta(days=1), times[2], 1, 2),
        (times[table.version], times[table.version] + step, table.version - 1, table.version),
    ):
        found = feeds.read(startingTimestamp=start.isoformat(), endingTimestamp=end.isoformat())
        assert listed(found.toArrow()) == expected(table, since, until), (start, end)


def test_a_mirror_that_a_stream_keeps(feeds: Feeds, table: pds.Table, tmp_path: Path) -> None:
    mirror: Counter[tuple[Any, ...]] = Counter()
    read: Counter[tuple[Any, ...]] = Counter()
    for turn in range(3):
        changes = feeds.stream(tmp_path / "checkpoint", maxFilesPerTrigger=1)
        read += changes
        for (number, name, change, *_), count in changes.items():
            mirror[number, name] += count if change == "insert" else -count
        assert +mirror == Counter((row["id"], row["name"]) for row in table.refresh().scan().to_pyarrow().to_pylist())
        assert min(mirror.values()) >= 0
        version = table.version
        table.upsert(rows(2, 40 + turn))
        table.optimize.compact()
        table.restore(version)
        table.delete(f"id = {4 + turn}")
    begun = {version for *_, version, _ in read if version <= 6}
    assert begun == {6}, "the rows with which it begins are inserts of the version at which it began"


def test_where_a_stream_begins(feeds: Feeds, table: pds.Table, tmp_path: Path) -> None:
    times = {entry["version"]: entry["created_at"] for entry in table.history()}
    for number, (options, since) in enumerate(
        (
            ({"startingVersion": "1"}, 1),
            ({"startingVersion": "4"}, 3),
            ({"startingVersion": "latest"}, table.version),
            ({"startingTimestamp": times[3].isoformat()}, 2),
        )
    ):
        found = feeds.stream(tmp_path / str(number), **options)
        assert found == expected(table, since, table.version), options
    found = feeds.stream(tmp_path / "name", startingVersion=2, columns="name")
    assert found == expected(table, 1, table.version, ["name"])


def test_the_rows_of_the_first_version(feeds: Feeds, target: Target, tmp_path: Path) -> None:
    """A table that was created together with its rows, as `pds.write_table` and imports do."""
    place = {"storage_options": target.options} if target.options else {}
    table = pds.write_table(f"{target.store.url}/source", rows(1, 2, 3), key="id", **place)
    table.delete("id = 2")
    table.append(rows(4))
    everything = expected(table, 0, table.version)
    assert sum(everything.values()) == 5
    before = table.history()[-1]["created_at"] - dt.timedelta(days=1)
    assert listed(feeds.read(startingVersion=1).toArrow()) == everything
    assert listed(feeds.read(startingTimestamp=before.isoformat()).toArrow()) == everything
    first = feeds.read(startingVersion=1, endingVersion=1, columns="id").toArrow()
    assert listed(first) == expected(table, 0, 1, ["id"])
    for number, options in enumerate(({}, {"maxFilesPerTrigger": 1})):
        found = feeds.stream(tmp_path / str(number), startingVersion=1, **options)
        assert found == everything, options
        table.append(rows(5 + number))
        found += feeds.stream(tmp_path / str(number), startingVersion=1, **options)
        everything = expected(table, 0, table.version)
        assert found == everything, options


def test_a_compaction_while_a_column_was_dropped(feeds: Feeds, table: pds.Table, tmp_path: Path) -> None:
    """It takes the values of the column: in the middle of a batch, at its end and in a batch of its own."""
    begin = table.version
    values = feeds.stream(tmp_path / "whole") + feeds.stream(tmp_path / "by version")
    assert sum(values.values()) == 2 * table.scan().count()
    table.alter.drop_column("name")
    table.append(pa.table({"id": [50]}, SCHEMA.remove(1)))
    table.optimize.compact()
    compacted = table.version
    table.delete("id = 50")
    table.restore(begin)
    end = table.version
    changes = expected(table, begin, end)
    assert {None, "n2"} <= {name for _, name, _, version, _ in changes if version == compacted}
    assert feeds.stream(tmp_path / "whole") == changes
    assert feeds.stream(tmp_path / "by version", maxFilesPerTrigger=1) == changes
    for until in range(begin, end + 1):
        found = feeds.read(startingVersion=begin + 1, endingVersion=until, columns="id").toArrow()
        assert listed(found) == expected(table, begin, until, ["id"]), until
    assert listed(feeds.read(startingVersion=begin + 1).toArrow()) == changes


def test_a_first_batch_that_is_run_again(feeds: Feeds, table: pds.Table) -> None:
    """It has its rows, wherever a new query would begin."""
    source = feeds.source(startingVersion="latest")
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    table.append(rows(60))
    end = reader.latestOffset(start, ReadAllAvailable())
    again = source.streamReader(source.schema())
    assert again.initialOffset() != start
    for begin in (start, again.initialOffset()):
        parts = again.partitions(begin, end)
        found = pa.Table.from_batches([batch for part in parts for batch in again.read(part)])
        assert listed(found) == expected(table, table.version - 1, table.version)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "startingVersion or startingTimestamp"),
        ({"startingVersion": "0"}, "from 1 to 7"),
        ({"startingVersion": "8"}, "from 1 to 7"),
        ({"startingVersion": "two"}, 'must be "latest" or a number'),
        ({"startingVersion": "6", "endingVersion": "4"}, "from 1 to 5"),
        ({"startingTimestamp": "2999-01-01T00:00:00Z"}, "is after version 6, which was committed at"),
        ({"startingVersion": "1", "endingTimestamp": "2999-01-01T00:00:00"}, "endingTimestamp has no time zone"),
        ({"startingVersion": "1", "endingVersion": "9"}, "there is no version 9"),
        ({"startingVersion": "1", "startingTimestamp": "2026-01-01T00:00:00Z"}, "twice"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "no time zone"),
        ({"startingTimestamp": "yesterday"}, "must be a time such as"),
        ({"startingVersion": "1", "where": "id > 1"}, "no option 'where'"),
        ({"startingVersion": "1", "columns": "nothing"}, "nothing"),
    ],
)
def test_what_is_not_valid_is_refused(feeds: Feeds, table: pds.Table, options: dict[str, str], message: str) -> None:
    assert table.version == 6
    source = feeds.source(**options)
    with pytest.raises(pds.InvalidInput, match=message):
        source.reader(source.schema())


def test_a_feed_that_is_switched_off(feeds: Feeds, table: pds.Table) -> None:
    assert feeds.read(readChangeFeed=False).count() == table.scan().count()


def test_a_table_with_a_column_of_a_feed(feeds: Feeds, target: Target, table: pds.Table) -> None:
    """It is refused before the first batch, not after it."""
    pds.Table.drop(target.store, "source")
    again = pds.Table.create(target.store, "source", pa.schema([("_change_type", pa.string())]))
    again.append(pa.table({"_change_type": ["insert"]}))
    source = feeds.source(readChangeFeed="false")
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    with pytest.raises(pds.InvalidInput, match="name of a change column; rename it"):
        reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert table.version == 6


def test_what_a_stream_refuses(feeds: Feeds, table: pds.Table) -> None:
    for options, message in (
        ({"ignoreDeletes": "true"}, "leave out ignoreDeletes"),
        ({"skipChangeCommits": "true"}, "leave out ignoreDeletes"),
        ({"endingVersion": "2"}, "has no option 'endingVersion'"),
    ):
        source = feeds.source(**options)
        with pytest.raises(pds.InvalidInput, match=message):
            source.streamReader(source.schema())
    assert table.version == 6

"""A stream without Spark around it: whatever happens to the table and to the query, its rows are those of the table."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict

import pds
from pyspark_pds import DefaultSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pds.spark.stream import TableStreamReader

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
Row = tuple[int, int]


class Model:
    """A table, a query that reads it batch by batch, and what its sink has."""

    def __init__(self, root: Path, choose: random.Random, *, is_feed: bool, has_limits: bool = True) -> None:
        store = pds.Store(root.as_uri(), durability="none")
        self.choose, self.is_feed, self._has_limits = choose, is_feed, has_limits
        self.table = pds.Table.create(store, "source", SCHEMA, key="id")
        self._next_id = 0
        for _ in range(choose.randrange(4)):
            self.append()
        start = choose.choice([{}, {"startingVersion": "1"}, {"startingVersion": "latest"}])
        limits: list[dict[str, str]] = [
            {},
            {"maxFilesPerTrigger": "1"},
            {"maxFilesPerTrigger": "2"},
            {"maxBytesPerTrigger": "1"},
            {"maxBytesPerTrigger": "3k"},
            {"maxBytesPerTrigger": "4k", "maxFilesPerTrigger": "2"},
        ]
        limit = choose.choice(limits)
        limit = limit if has_limits else {}
        feed = {"readChangeFeed": "true"} if is_feed else {}
        self._options = {"path": f"{root.as_uri()}/source", **start, **limit, **feed}
        self._begin()
        self._last: list[tuple[Any, ...]] = []
        self._is_vacuumed = False

    def _begin(self) -> None:
        self._reader = self._start()
        # As in a checkpoint: the offset before the first batch, and those at the ends of batches.
        self._offsets: list[Any] = [json.loads(json.dumps(self._reader.initialOffset()))]
        self.sink = self.rows() if "latest" in self._options.values() else Counter[Row]()

    def rows(self) -> Counter[Row]:
        """The rows of the table."""
        found = self.table.refresh().scan().to_pyarrow().to_pylist()
        return Counter((row["id"], row["value"]) for row in found)

    def _values(self, ids: list[int]) -> pa.Table:
        return pa.table({"id": ids, "value": [self.choose.randrange(100) for _ in ids]}, SCHEMA)

    def _some_ids(self) -> list[int]:
        ids = self.choose.sample(range(self._next_id + 3), 3)
        self._next_id = max(self._next_id, *(number + 1 for number in ids))
        return ids

    def append(self) -> None:
        count = self.choose.randrange(4)
        self.table.append(self._values(list(range(self._next_id, self._next_id + count))))
        self._next_id += count

    def delete(self) -> None:
        self.table.delete(f"id % {self.choose.randrange(2, 5)} = 0")

    def upsert(self) -> None:
        self.table.upsert(self._values(self._some_ids()))

    def merge(self) -> None:
        merge = self.table.merge(self._values(self._some_ids()))
        merge = merge.when_matched_delete("source.value < 50").when_matched_update_all()
        merge.when_not_matched_insert_all().execute()

    def restore(self) -> None:
        oldest = self.table.refresh().history()[-1]["version"]
        self.table.restore(self.choose.randrange(oldest, self.table.version + 1))

    def compact(self) -> None:
        self.table.optimize.compact()

    def sort(self) -> None:
        self.table.optimize.sort("value")

    def vacuum(self) -> None:
        """Of versions that were read; a batch that may be run again needs them."""
        if self._offsets[-1]["version"] == self.table.refresh().version:
            self.table.vacuum(dt.timedelta(0))
            self._is_vacuumed = True

    def _start(self) -> TableStreamReader:
        source = DefaultSource(CaseInsensitiveDict(self._options))
        schema = source.schema()
        reader: TableStreamReader = cloudpickle.loads(cloudpickle.dumps(source)).streamReader(schema)
        return reader

    def restart(self) -> None:
        if len(self._offsets) == 1:
            # There is no checkpoint yet.
            self._begin()
            return
        self._reader = self._start()
        # So Spark tells the reader where its query is.
        assert self._reader.partitions(self._offsets[-1], self._offsets[-1]) == []

    def _read(self, start: Any, end: Any) -> list[tuple[Any, ...]]:
        """As tasks read it: each in a process of its own."""
        found: list[tuple[Any, ...]] = []
        for partition in self._reader.partitions(start, end):
            task, sent = cloudpickle.loads(cloudpickle.dumps((partition, self._reader)))
            for batch in sent.read(task):
                found += [tuple(row.values()) for row in batch.to_pylist()]
        return found

    def batch(self) -> bool:
        """Run the next batch, and say whether there was one."""
        start = self._offsets[-1]
        reader: Any = self._reader
        latest = reader.latestOffset(start, reader.getDefaultReadLimit()) if self._has_limits else reader.latestOffset()
        end = json.loads(json.dumps(latest))
        if end == start:
            return False
        self._last, self._is_vacuumed = self._read(start, end), False
        self._offsets.append(end)
        for number, value, *change in self._last:
            self.sink[number, value] += -1 if change and change[0] == "delete" else 1
        return True

    def batch_again(self) -> None:
        """After the query died before it wrote down that the batch is done."""
        if len(self._offsets) > 1 and not self._is_vacuumed:
            self.restart()
            before = self._reader.initialOffset() if len(self._offsets) == 2 else self._offsets[-2]
            again = self._read(before, self._offsets[-1])
            assert sorted(map(str, again)) == sorted(map(str, self._last))

    def steps(self) -> list[Callable[[], object]]:
        common = [self.append, self.append, self.batch, self.batch, self.batch_again, self.restart]
        common += [self.compact, self.sort, self.vacuum]
        return [*common, self.delete, self.upsert, self.merge, self.restore] if self.is_feed else common


@pytest.mark.parametrize("version", ["4.1", "newest"])
@pytest.mark.parametrize("is_feed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_rows_of_a_stream_are_those_of_the_table(
    tmp_path: Path, seed: int, is_feed: bool, version: str, become_older: Callable[[str], None]
) -> None:
    has_limits = version == "newest"
    if not has_limits:
        become_older(version)
    model = Model(tmp_path, random.Random(f"{seed} {is_feed}"), is_feed=is_feed, has_limits=has_limits)
    done: list[str] = []
    for _ in range(model.choose.randrange(5, 25)):
        step = model.choose.choice(model.steps())
        done.append(step.__name__)
        step()
    model.restart()
    while model.batch():
        pass
    assert +model.sink == model.rows(), done
    assert min(model.sink.values(), default=0) >= 0, done

"""Ingests of which many processes write the slices: the chain is that of one ingest for each slice."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from pds import odf
from pds.odf.shared_ingest import SharedIngest

if TYPE_CHECKING:
    from collections.abc import Sequence

UTC = dt.UTC
# Later than the clock, so it is the time of every block and row.
TIME = dt.datetime(2126, 1, 1, tzinfo=UTC)
IDENTITY = odf.Identity.generate()
STATE = {"sourceName": "files", "kind": "odf/etag", "value": "5"}


def _rows(first: int, count: int) -> pa.Table:
    """Rows whose times go up and down, with nulls, and corrections at the end."""
    ids = list(range(first, first + count))
    ops = [0] * count
    ops[-2:] = [2, 3] if count > 1 else [0]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([None if n % 5 == 4 else 60_000 * (n * 37 % 101) for n in ids], pa.timestamp("ms", "UTC")),
            "op": pa.array(ops, pa.int32()),
            "text": pa.array([None if n % 3 == 0 else "x" * (n % 7) for n in ids], pa.string()),
        }
    )


def _create(store: pds.Store, path: str) -> odf.Dataset:
    return odf.Dataset.create(store, path, identity=IDENTITY, system_time=TIME)


def _write(shared: SharedIngest, slices: Sequence[pa.Table]) -> list[bytes]:
    """Write the slices by tasks that travelled, the last one first."""
    ends = [sum(rows.num_rows for rows in slices[:number]) for number in range(len(slices))]
    messages: list[bytes] = []
    for rows, before in reversed(list(zip(slices, ends, strict=True))):
        task = pickle.loads(pickle.dumps(shared.task(before)))  # noqa: S301 it was just made
        messages = task.write(rows.to_reader(), 1) + messages
    return messages


def _count(slices: Sequence[pa.Table]) -> int:
    return sum(rows.num_rows for rows in slices)


def _events(dataset: odf.Dataset) -> list[dict[str, Any]]:
    """All events, without what depends on the random identity in a file."""
    events = [block.event.to_dict() for block in reversed(dataset.log())]
    for event in events:
        for name in ("physicalHash", "size"):
            event.get("newData", {}).pop(name, None)
    return events


@pytest.mark.parametrize(
    ("options", "last_options"),
    [
        ({}, {}),
        ({}, {"watermark": dt.datetime(2030, 1, 1, tzinfo=UTC)}),
        ({}, {"source_state": STATE}),
        ({"event_time": "at"}, {}),
        ({"event_time": "at"}, {"watermark": dt.datetime(2030, 1, 1, tzinfo=UTC), "source_state": STATE}),
    ],
)
def test_the_chain_is_that_of_one_ingest_for_each_slice(
    options: dict[str, Any], last_options: dict[str, Any], local_store: pds.Store
) -> None:
    """So the logical hashes are the same, which cover offsets, operations, times and values."""
    shared_chain, other = _create(local_store, "shared"), _create(local_store, "other")
    # An explicit watermark or state is that of the last slice; the watermark of those before is what it was.
    before = {"watermark": dt.datetime(2029, 1, 1, tzinfo=UTC)} if "watermark" in last_options else {}
    for chain in (shared_chain, other):
        chain.ingest(_rows(0, 3), **options, **before)
    for first in (3, 40):
        slices = [_rows(first, 2), _rows(first + 2, 20), _rows(first + 22, 1)]
        shared = SharedIngest.begin(shared_chain, slices[0].schema, **options, **last_options)
        result = shared.commit(_write(shared, slices), _count(slices))
        assert result is not None
        expected = [other.ingest(rows, **options, **before) for rows in slices[:-1]]
        expected.append(other.ingest(slices[-1], **options, **last_options))
        assert (result.rows, result.first_offset, result.last_offset) == (
            23,
            expected[0].first_offset,
            expected[-1].last_offset,
        )
        assert (result.logical_hash, result.physical_hash) == (None, None)
        assert len(result.blocks) == 3
        before = {name: last_options[name] for name in before}
    assert _events(shared_chain) == _events(other)
    assert shared_chain.scan().to_pyarrow().equals(other.scan().to_pyarrow())
    assert shared_chain.verify().rows == other.verify().rows == 49


def test_the_first_rows_set_the_schema_and_one_slice_has_its_hashes(local_store: pds.Store) -> None:
    shared_chain, other = _create(local_store, "shared"), _create(local_store, "other")
    rows = _rows(0, 7)
    shared = SharedIngest.begin(shared_chain, rows.schema, event_time="at")
    result = shared.commit(_write(shared, [rows]), rows.num_rows)
    expected = other.ingest(rows, event_time="at")
    assert result is not None
    assert result.logical_hash == expected.logical_hash
    assert local_store.exists(f"shared/data/{result.physical_hash}")
    assert [block.event.kind for block in result.blocks] == ["SetDataSchema", "AddData"]
    assert _events(shared_chain) == _events(other)


def test_without_rows_the_source_may_advance(local_store: pds.Store) -> None:
    chain = _create(local_store, "chain")
    rows = _rows(0, 2)
    chain.ingest(rows)
    shared = SharedIngest.begin(chain, rows.schema)
    assert _write(shared, [rows.slice(0, 0)]) == []
    result = shared.commit([], 0)
    assert result is not None
    assert (result.rows, result.blocks) == (0, [])
    advanced = SharedIngest.begin(chain, rows.schema, source_state=STATE).commit([], 0)
    assert advanced is not None
    assert [block.event.kind for block in advanced.blocks] == ["AddData"]


def test_other_rows_and_columns_make_the_slices_invalid(local_store: pds.Store) -> None:
    chain = _create(local_store, "chain")
    slices = [_rows(0, 4), _rows(4, 4)]
    changes: list[Any] = [
        lambda: chain.ingest(_rows(0, 1)),
        lambda: chain.ingest(_rows(0, 1)),
        lambda: chain.set_schema(pa.schema([*chain.schema(), pa.field("more", pa.int64())])),
    ]
    for change in changes:
        shared = SharedIngest.begin(chain, slices[0].schema)
        messages = _write(shared, slices)
        change()
        files = {str(file.path) for file in local_store.list_files("chain/data")}
        head = chain.head
        assert shared.commit(messages, 8) is None
        assert chain.head == head
        assert len(files - {str(file.path) for file in local_store.list_files("chain/data")}) == 2
    shared = SharedIngest.begin(chain, slices[0].schema)
    result = shared.commit(_write(shared, slices), _count(slices))
    assert result is not None
    assert chain.verify().rows == 10


def test_events_that_change_neither_are_followed(local_store: pds.Store) -> None:
    chain = _create(local_store, "chain")
    rows = _rows(0, 4)
    shared = SharedIngest.begin(chain, rows.schema)
    messages = _write(shared, [rows])
    chain.append(odf.SetInfo(description="d"))
    result = shared.commit(messages, 4)
    assert result is not None
    assert result.attempts == 2
    assert [block.event.kind for block in reversed(chain.log())] == ["Seed", "SetInfo", "SetDataSchema", "AddData"]
    assert chain.verify().rows == 4


def test_slices_must_be_those_of_all_tasks(local_store: pds.Store) -> None:
    chain = _create(local_store, "chain")
    slices = [_rows(0, 4), _rows(4, 4)]
    for choose in (
        lambda messages: messages[1:],
        lambda messages: messages[::-1],
        lambda messages: messages * 2,
        lambda messages: messages[:-1],
        lambda _messages: [],
    ):
        shared = SharedIngest.begin(chain, slices[0].schema)
        messages = _write(shared, slices)
        with pytest.raises(pds.InvalidInput, match=r"do not follow one another|rows together, not 8"):
            shared.commit(choose(messages), 8)
    assert [block.event.kind for block in chain.log()] == ["Seed"]


def test_a_commit_that_is_tried_again_removes_nothing(local_store: pds.Store) -> None:
    chain = _create(local_store, "chain")
    rows = _rows(0, 4)
    shared = SharedIngest.begin(chain, rows.schema)
    messages = _write(shared, [rows])
    assert shared.commit(messages, 4) is not None
    with pytest.raises(pds.InvalidInput, match="was committed before"):
        shared.commit(messages, 4)
    with pytest.raises(pds.InvalidInput, match="do not follow one another"):
        SharedIngest.begin(chain, rows.schema).commit(messages, 4)
    assert chain.verify().rows == 4


def test_event_times_that_no_block_can_name_are_refused(local_store: pds.Store) -> None:
    chain = _create(local_store, "chain")
    far = pa.table({"id": [1], "at": pa.array([400_000_000_000_000], pa.timestamp("ms", "UTC"))})
    for options in ({}, {"watermark": dt.datetime(2030, 1, 1, tzinfo=UTC)}):
        with pytest.raises(pds.InvalidInput):
            chain.ingest(far, event_time="at", **options)
    assert [block.event.kind for block in chain.log()] == ["Seed"]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"id": pa.int64()}, {"event_time": "when"}, "unknown column"),
        ({"id": pa.int64()}, {"event_time": "id"}, "must be a timestamp or a date"),
        ({"offset": pa.int64()}, {}, "system column"),
        ({"id": pa.int64(), "op": pa.string()}, {}, "must be a whole number"),
    ],
)
def test_columns_are_refused_before_a_task_runs(
    columns: dict[str, pa.DataType], options: dict[str, Any], message: str, local_store: pds.Store
) -> None:
    chain = _create(local_store, "chain")
    schema = pa.schema(list(columns.items()))
    with pytest.raises(pds.InvalidInput, match=message) as raised:
        SharedIngest.begin(chain, schema, **options)
    with pytest.raises(pds.InvalidInput) as expected:
        chain.ingest(schema.empty_table(), **options)
    assert str(raised.value) == str(expected.value)

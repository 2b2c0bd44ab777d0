"""Python values that are pushed: a source stores them as they are, or refuses them before anything is written."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import pds

STRUCT = pa.struct([("x", pa.int64())])
AT = dt.datetime(2020, 1, 1, 0, 0, 0, 5)  # noqa: DTZ001 without a zone


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.int64(), 1.9),
        (pa.timestamp("s"), AT),
        (pa.timestamp("us"), AT.replace(tzinfo=dt.UTC)),
        (pa.timestamp("us", "UTC"), AT),
        (pa.time32("s"), AT.time()),
        (pa.duration("s"), dt.timedelta(microseconds=5)),
        (pa.date32(), AT),
        (pa.float32(), 1e300),
        (pa.string(), b"a"),
        (pa.binary(), "a"),
        (STRUCT, {"X": 1}),
        (pa.list_(pa.int32()), [1.5]),
    ],
)
def test_a_value_that_would_change_is_refused(memory_store: pds.Store, data_type: pa.DataType, value: object) -> None:
    p = pds.Pipeline(memory_store, "p")
    p.source("values", key=pa.int64(), value=data_type)
    changes: list[dict[str, Any]] = [{"values": pds.Changes([(1, value)])}]
    if not pa.types.is_list(data_type):
        p.source("keys", key=data_type, value=pa.int64())
        changes += [
            {"keys": pds.Changes([(value, 1)])},
            {"keys": pds.Changes(deletes=[value])},
            {"keys": pds.Replace([(value, 1)])},
        ]
    for change in changes:
        with pytest.raises(pds.InvalidInput, match=r"is not of type"):
            p.update(change)


def test_a_key_that_would_change_is_not_read(memory_store: pds.Store) -> None:
    p = pds.Pipeline(memory_store, "p")
    p.source("s", key=pa.timestamp("s"), value=pa.int64())
    p.update(s=pds.Changes([(AT.replace(microsecond=0), 1)]))
    assert p["s"].read(keys=[AT.replace(microsecond=0)]).num_rows == 1
    with pytest.raises(pds.InvalidInput, match=r"is not of type timestamp"):
        p["s"].read(keys=[AT])


def test_changes_of_a_source_are_given_once(memory_store: pds.Store) -> None:
    p = pds.Pipeline(memory_store, "p")
    p.source("s", key=pa.int64(), value=pa.int64())
    bad: Any = [("s", pds.Changes([(5, 50)]))]
    for call in (p.update, p.preview):
        with pytest.raises(pds.InvalidType, match="changes must be a dict"):
            call(bad)
        with pytest.raises(pds.InvalidInput, match="'s' are given twice"):
            call({"s": pds.Changes([(5, 50)])}, s=pds.Changes([(6, 60)]))


@pytest.mark.parametrize(
    ("version", "error"),
    [(-1, pds.InvalidInput), (2**70, pds.InvalidInput), ("1", pds.InvalidType), (True, pds.InvalidType)],
)
def test_changes_of_no_version(memory_store: pds.Store, version: Any, error: type[Exception]) -> None:
    p = pds.Pipeline(memory_store, "p")
    p.source("s", key=pa.int64(), value=pa.int64())
    p.select("s", name="t")
    p.update(s=pds.Changes([(1, 1)]))
    with pytest.raises(error):
        p["t"].changes(version)


def test_a_batch_may_have_nulls_without_a_type(memory_store: pds.Store) -> None:
    p = pds.Pipeline(memory_store, "p")
    p.source("s", key=pa.int64(), value=pa.int64())

    @p.producer("s", key=pa.int64(), value=pa.int64(), batch=True)
    def nothing(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = pa.array(range(batch.num_rows))
        return pa.record_batch({"source_row": rows, "key": batch["key"], "value": pa.nulls(batch.num_rows)})

    @p.producer("s", key=pa.int64(), value=pa.int64(), batch=True)
    def empty(_batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({name: pa.array([]) for name in ("source_row", "key", "value")})

    p.update(s=pds.Changes([(1, 1)]))
    assert p["nothing"].read()["value"].to_pylist() == [None]
    assert p["empty"].read().num_rows == 0


def test_an_error_without_a_text_names_the_stage(memory_store: pds.Store) -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ValueError

    p = pds.Pipeline(memory_store, "p")
    p.source("s", key=pa.int64(), value=pa.int64())

    @p.producer("s", key=pa.int64(), value=pa.int64())
    def fails(_key: int, _values: object) -> object:
        raise SilentError

    with pytest.raises(
        pds.ProduceError, match=r"stage 'fails' failed for key 1 .*SilentError, whose text cannot be made"
    ):
        p.update(s=pds.Changes([(1, 1)]))

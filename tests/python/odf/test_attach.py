"""Chains beside tables and datasets: the history of their columns."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import independent_odf
import pds
from pds import odf

if TYPE_CHECKING:
    from typing import Any

SCHEMA = pa.schema([("id", pa.int32()), ("tags", pa.map_(pa.string(), pa.int64()))])


def test_a_tables_schema_history_is_readable_without_a_file(store: pds.Store) -> None:
    table = pds.Table.create(store, "lake/t", SCHEMA)
    moments, schemas = [table.history()[0]["created_at"]], [table.schema]
    chain = odf.attach(table)
    assert chain.schema() == SCHEMA
    table.append(pa.table({"id": pa.array([1], pa.int32())}))
    for change in (
        lambda: table.alter.add_column("name", pa.string()),
        lambda: table.alter.rename_column("name", "label"),
        lambda: table.alter.widen("id", pa.int64()),
        lambda: table.alter.drop_column("tags"),
    ):
        change()
        moments.append(table.history()[0]["created_at"])
        schemas.append(table.schema)
    table.append(pa.table({"id": pa.array([2])}))
    chain = odf.attach(pds.Table(store, "lake/t"))
    assert [chain.schema(at=moment) for moment in moments] == schemas
    # Every schema is followed by the version that has it.
    kinds = [block.event.kind for block in chain.log()]
    assert kinds == ["AddData", "SetDataSchema"] * len(schemas) + ["Seed"]
    events: list[Any] = [block.event for block in chain.log()]
    recorded = [event.new_source_state["value"].split("/") for event in events[:-1:2]]
    assert [number for number, _ in recorded] == ["6", "5", "4", "3", "1"]
    commits = {str(entry["version"]): entry["commit_id"] for entry in table.history()}
    assert all(commits[number] == commit for number, commit in recorded)
    event = events[1]
    assert independent_odf.raw_schema(event.to_dict()) == table.schema
    chain.verify()
    assert odf.attach(table).head == chain.head
    # The table does not mind.
    assert table.check().orphans == []
    assert table.refresh().scan().count() == 2


def test_a_version_made_while_the_chains_clock_was_ahead_is_recorded(store: pds.Store) -> None:
    table = pds.Table.create(store, "lake/t", SCHEMA)
    chain = odf.attach(table)
    head = chain.log(1)[0]
    ahead = head.system_time + dt.timedelta(hours=1)
    chain.append(odf.Block(ahead, head.hash, head.sequence_number + 1, odf.SetInfo("events")))
    for name in ("a", "b"):
        table.alter.add_column(name, pa.string())
        assert odf.attach(table).schema() == table.schema


def test_a_table_that_was_created_anew_is_recorded_anew(store: pds.Store) -> None:
    plain, other = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.string())])
    table = pds.Table.create(store, "lake/t", plain)
    table.alter.add_column("x", pa.int8())
    odf.attach(table)
    pds.Table.drop(store, "lake/t")
    table = pds.Table.create(store, "lake/t", other)
    moment = table.history()[0]["created_at"]
    table.append(pa.table({"b": ["x"]}))
    table.alter.rename_column("b", "c")
    chain = odf.attach(table)
    assert chain.schema() == table.schema
    assert chain.schema(at=moment) == other
    assert odf.attach(table).head == chain.head
    # The columns of the new table may be those of the old one.
    before, blocks = table.schema, len(chain.log())
    pds.Table.drop(store, "lake/t")
    table = pds.Table.create(store, "lake/t", before)
    noted = odf.attach(table)
    assert noted.schema() == before
    assert len(noted.log()) == blocks + 1
    assert odf.attach(table).head == noted.head
    table.alter.add_column("d", pa.int8())
    assert odf.attach(table).schema() == table.schema
    noted.verify()


def test_versions_without_another_schema_are_not_read_again_and_again(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("a", pa.int64())]))
    odf.attach(table)
    requests, blocks = [], []
    for _ in range(3):
        for number in range(40):
            table.append(pa.table({"a": [number]}))
        odf.attach(pds.Table(memory_store, "t"))
        memory_store.reset_metrics()
        chain = odf.attach(pds.Table(memory_store, "t"))
        requests.append(memory_store.metrics()["requests"])
        blocks.append(len(chain.log()))
    assert blocks == [4, 5, 6]
    assert max(requests) < 30
    chain.verify()


def test_a_datasets_schema_history(store: pds.Store) -> None:
    datasets = pds.ParquetDatasetStore(store)
    first, second = pa.table({"a": [1]}), pa.table({"a": ["x"], "b": [None]})
    datasets.write_dataset(first, "silver/orders")
    chain = odf.attach(datasets, "silver/orders")
    noted = chain.head
    assert odf.attach(datasets, "silver/orders").head == noted
    datasets.write_dataset(second, "silver/orders", overwrite=True)
    chain = odf.attach(datasets, "silver/orders")
    assert chain.schema() == second.schema
    assert chain.schema(at=noted) == first.schema
    assert datasets.list_datasets() == ["silver/orders"]
    chain.verify()


def test_what_nothing_can_be_attached_to(store: pds.Store) -> None:
    datasets = pds.ParquetDatasetStore(store)
    with pytest.raises(pds.NotFound):
        odf.attach(datasets, "nothing")
    for wrong in ((datasets,), (store, "key"), ("lake",)):
        with pytest.raises(pds.InvalidType):
            odf.attach(*wrong)  # type: ignore[call-overload]

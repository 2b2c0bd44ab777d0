"""Sources that are fed by tables: after every refresh they have the rows of the table, whatever was done to it."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pds
from pds.producers import attached
from producers.pipelines import plain_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sampled(2)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.float64())])
Row = tuple[int, str | None, float | None]


def total(customer: str | None, amounts: Iterator[float | None]) -> Iterator[tuple[str | None, float]]:
    yield customer, math.fsum(amount for amount in amounts if amount is not None)


def rows(*listed: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in listed], SCHEMA)


def open_pipeline(table: pds.Table, function: Callable[..., Any] = total) -> pds.Pipeline:
    pipeline = pds.Pipeline(table.store, "totals")
    pipeline.source("orders", table, key="customer", value="amount")
    pipeline.producer("orders", key=pa.string(), value=pa.float64(), name="totals")(function)
    return pipeline


def check(pipeline: pds.Pipeline, table: pds.Table) -> None:
    """The source has the rows of the table, in canonical order, and the stage their sums."""
    listed = table.refresh().scan(["customer", "amount"]).to_pyarrow().to_pylist()

    def place(value: Any) -> tuple[bool, Any]:
        return value is not None, value

    def last(value: Any) -> tuple[bool, Any]:
        return value is None, value or 0

    pairs = sorted(((row["customer"], row["amount"]) for row in listed), key=lambda r: (place(r[0]), last(r[1])))
    assert plain_rows(pipeline["orders"].read()) == pairs
    sums: dict[str | None, list[float]] = {}
    for customer, amount in pairs:
        sums.setdefault(customer, []).extend([] if amount is None else [amount])
    expected = [(customer, customer, math.fsum(amounts)) for customer, amounts in sums.items()]
    assert plain_rows(pipeline["totals"].read()) == expected


@pytest.fixture
def table(memory_store: pds.Store) -> pds.Table:
    table = pds.Table.create(memory_store, "orders", SCHEMA, key="id")
    table.append(rows((1, "a", 1.0), (2, "a", 2.0), (3, "b", 4.0), (4, None, 8.0)))
    return table


CUSTOMERS = st.sampled_from([None, "", "a", "b", "é"])
AMOUNTS = st.sampled_from([None, 0.5, 1.0, 3.0, -2.0])
LISTED = st.dictionaries(st.integers(0, 9), st.tuples(CUSTOMERS, AMOUNTS), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["append", "upsert"]), LISTED),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.sampled_from(["compact", "refresh", "vacuum", "restore", "overwrite"]), st.none()),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(STEPS)
def test_any_changes_of_a_table(steps: list[tuple[str, Any]]) -> None:
    table = pds.Table.create(pds.Store("memory://"), "orders", SCHEMA, key="id")
    pipeline = open_pipeline(table)
    for name, what in [*steps, ("refresh", None)]:
        listed = [(key, *row) for key, row in what.items()] if isinstance(what, dict) else []
        if name == "append":
            table.append(rows(*((key + 100 * table.version, *row) for key, *row in listed)))
        elif name == "upsert" and listed:
            table.upsert(rows(*listed))
        elif name == "delete":
            table.delete(f"id % 10 = {what}")
        elif name == "compact":
            table.optimize.compact()
        elif name == "vacuum":
            table.vacuum(dt.timedelta(0))
        elif name == "restore":
            table.restore(max(table.version - 2, json_oldest(table)))
        elif name == "overwrite":
            table.overwrite(rows((7, "b", 0.5)))
        elif name == "refresh":
            pipeline.refresh()
            check(pipeline, table)
            assert pipeline.refresh() is None


def json_oldest(table: pds.Table) -> int:
    """The oldest version that can be read."""
    return min(entry["version"] for entry in table.history())


def test_only_keys_that_changed_are_called_for(table: pds.Table) -> None:
    calls: list[str | None] = []

    def counted(customer: str | None, amounts: Iterator[float | None]) -> Iterator[tuple[str | None, float]]:
        calls.append(customer)
        return total(customer, amounts)

    pipeline = open_pipeline(table, counted)
    first = pipeline.refresh()
    assert first is not None
    assert calls == [None, "a", "b"]
    calls.clear()
    table.upsert(rows((2, "b", 2.0)))
    pipeline.refresh()
    assert calls == ["a", "b"]
    check(pipeline, table)
    calls.clear()
    # The same row again, another column, a compaction: no key has other rows.
    table.upsert(rows((1, "a", 1.0)))
    table.optimize.compact()
    pipeline.refresh()
    assert calls == []
    assert plain_rows(pipeline["orders"].read()) == [(None, 8.0), ("a", 1.0), ("b", 2.0), ("b", 4.0)]


def test_a_table_that_was_vacuumed_is_compared_as_a_whole(table: pds.Table) -> None:
    pipeline = open_pipeline(table)
    pipeline.refresh()
    table.append(rows((5, "c", 1.0)))
    table.delete("id = 3")
    table.vacuum(dt.timedelta(0))
    result = pipeline.refresh()
    assert result is not None
    assert result.stages["orders"].keys_out == 2
    check(pipeline, table)


@pytest.mark.parametrize("appends", range(5))
def test_a_table_that_was_made_anew_is_compared_as_a_whole(table: pds.Table, appends: int) -> None:
    """Whether its version is below, at or above the one that was read."""
    pipeline = open_pipeline(table)
    pipeline.refresh()
    pds.Table.drop(table.store, "orders")
    with pytest.raises(pds.NotFound):
        pipeline.refresh()
    other = pds.Table.create(table.store, "orders", SCHEMA, key="id")
    for number in range(appends):
        other.append(rows((number, "z", 1.0)))
    pipeline.refresh()
    check(pipeline, other)


def test_structs_of_columns_and_floats_as_keys(memory_store: pds.Store) -> None:
    schema = pa.schema([("x", pa.float64()), ("n", pa.int32()), ("t", pa.list_(pa.string()))])
    table = pds.Table.create(memory_store, "t", schema)
    table.append(pa.table({"x": [0.0, math.nan, 1.0], "n": [1, 2, None], "t": [["a"], None, []]}, schema))
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("by_x", table, key="x", value=["n", "t"])
    pipeline.source("by_pair", table, key=["n", "x"])
    pipeline.refresh()
    table.append(pa.table({"x": [-0.0, -math.nan], "n": [3, 4], "t": [["b"], ["c"]]}, schema))
    pipeline.refresh()
    by_x = plain_rows(pipeline["by_x"].read())
    assert [(str(x), value["n"]) for x, value in by_x] == [
        ("0.0", 1),
        ("0.0", 3),
        ("1.0", None),
        ("nan", 2),
        ("nan", 4),
    ]
    whole = {"x": 1.0, "n": None, "t": []}
    assert plain_rows(pipeline["by_pair"].read())[0] == ({"n": None, "x": 1.0}, whole)
    assert pipeline["by_pair"].read().schema.field("key").nullable is False
    table.delete("n = 3 OR n IS NULL")
    pipeline.refresh()
    assert [(str(x), value["n"]) for x, value in plain_rows(pipeline["by_x"].read())] == [
        ("0.0", 1),
        ("nan", 2),
        ("nan", 4),
    ]


def test_a_key_that_a_restore_made_narrower(memory_store: pds.Store) -> None:
    schema = pa.schema([("k", pa.int32()), ("v", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema, key="k")
    pipeline = pds.Pipeline(memory_store, "p")
    source = pipeline.source("rows", table, key="k", value="v")
    pipeline.aggregate(source, aggregates={"sum": ("value", "sum")}, name="sums")
    table.append(pa.table({"k": [1, 2], "v": [1, 2]}).cast(schema))
    pipeline.refresh()
    begin = table.version
    table.alter.widen("k", pa.int64())
    table.append(pa.table({"k": [5, 1 << 40], "v": [5, 7]}))
    table.delete("k BETWEEN 5 AND 1099511627776")
    table.restore(begin)
    table.append(pa.table({"k": [9], "v": [9]}).cast(schema))
    pipeline.refresh()
    assert pipeline["sums"].read()["target_key"].to_pylist() == [1, 2, 9]


@pytest.mark.parametrize("columns", ["g", ["g", "id"]])
def test_a_restore_brings_back_a_key_column_without_nulls(memory_store: pds.Store, columns: str | list[str]) -> None:
    """The rows that were appended while it was dropped have no key."""
    schema = pa.schema([("id", pa.int64()), pa.field("g", pa.int64(), nullable=False), ("v", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema)

    def fed(path: str) -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, path)
        source = pipeline.source("rows", table, key=columns, value="v")
        pipeline.aggregate(source, aggregates={"sum": ("value", "sum")}, name="sums")
        pipeline.refresh()
        return pipeline

    table.append(pa.table({"id": [1, 2], "g": [1, 2], "v": [10, 20]}, schema=schema))
    pipeline, begin = fed("p"), table.version
    table.alter.drop_column("g")
    table.append(pa.table({"id": [3], "v": [30]}))
    table.restore(begin)
    table.append(pa.table({"id": [1], "g": [5], "v": [50]}, schema=schema))
    pipeline.refresh()
    for name in ("rows", "sums"):
        assert pipeline[name].read().equals(fed("anew")[name].read())


@pytest.mark.parametrize("held", [0, 1_000, 1 << 20])
@pytest.mark.parametrize("few", [10_000, 1_000, 1])
def test_many_keys_change_at_once(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch, few: int, held: int
) -> None:
    """Whether they are listed, because they are few or the rows many, or not; and whether they are held."""
    monkeypatch.setattr(attached, "_MAX_HELD_BYTES", held)
    monkeypatch.setattr(attached, "_FEW_KEYS", few)
    monkeypatch.setattr(attached, "_MIN_ROWS_OF_LISTED_KEY", few // 1_000)
    monkeypatch.setattr(attached, "_MAX_LISTED_KEYS", few * 10)
    table = pds.Table.create(memory_store, "orders", SCHEMA, key="id")
    count = 5_000
    table.append(rows(*((n, f"c{n % (count // 2)}", float(n)) for n in range(count))))
    pipeline = open_pipeline(table)
    pipeline.refresh()
    table.upsert(rows(*((n, f"c{n % (count // 2)}", -1.0) for n in range(0, count, 2)), (count, None, None)))
    pipeline.refresh()
    check(pipeline, table)


def test_of_scattered_keys_only_pages_with_one_are_read(memory_store: pds.Store) -> None:
    fields = [pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.string())]
    count = 100_000
    noise = np.random.default_rng(1).bytes(count * 60).hex()
    names = [f"c{number:06}" for number in range(count)]
    amounts = [noise[120 * number : 120 * (number + 1)] for number in range(count)]
    table = pds.Table.create(memory_store, "orders", pa.schema(fields), key="id", sort_by="customer")
    table.append(pa.table([range(count), names, amounts], pa.schema(fields)))
    pipeline = pds.Pipeline(memory_store, "copy")
    pipeline.source("orders", table, key="customer", value="amount")
    pipeline.refresh()
    # The first keys and the last ones: between the least and the greatest are all.
    for each in (501, 3_001):
        scattered = [*range(each), *range(count - each, count)]
        changed = [scattered, [names[n] for n in scattered], [f"new {each}"] * len(scattered)]
        table.upsert(pa.table(changed, pa.schema(fields)))
        before = memory_store.metrics()["bytes_read"]
        result = pipeline.refresh()
        assert result is not None
        assert result.stages["orders"].keys_out == len(scattered)
        assert memory_store.metrics()["bytes_read"] - before < count * 60 / 3
    read = dict(plain_rows(pipeline["orders"].read()))
    assert read == {**dict(zip(names, amounts, strict=True)), **{names[n]: "new 3001" for n in scattered}}


def test_two_processes_refresh_at_once(table: pds.Table) -> None:
    barrier = threading.Barrier(2)
    results: list[Any] = []

    def waits(customer: str | None, amounts: Iterator[float | None]) -> Iterator[tuple[str | None, float]]:
        if not barrier.broken and customer is None:
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(5)
            barrier.abort()
        return total(customer, amounts)

    threads = [threading.Thread(target=lambda: results.append(open_pipeline(table, waits).refresh())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipeline = open_pipeline(table)
    assert sorted(result is None for result in results) == [False, True]
    assert pipeline.version == 1
    check(pipeline, table)


def test_a_table_that_feeds_two_sources_is_read_at_one_version(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema)
    other = pds.Table.create(memory_store, "other", schema)
    table.append(pa.table({"id": [1], "v": [1]}))
    pipeline = pds.Pipeline(memory_store, "p")
    for name, feeding in (("a", table), ("b", pds.Table(memory_store, "t")), ("c", other)):
        pipeline.source(name, feeding, key="id", value="v")
    pipeline.join_rows("a", "b", name="both", how="full")
    read, read_sources = attached.AttachedTable.read, []

    def append_after(self: Any, source: str, *arguments: Any) -> Any:
        new = read(self, source, *arguments)
        read_sources.append(source)
        number = 1 + len(read_sources)
        for feeding in ("t", "other"):
            pds.Table(memory_store, feeding).append(pa.table({"id": [number], "v": [number]}))
        return new

    monkeypatch.setattr(attached.AttachedTable, "read", append_after)
    pipeline.refresh()
    assert read_sources == ["a", "b", "c"]
    assert plain_rows(pipeline["a"].read()) == plain_rows(pipeline["b"].read()) == [(1, 1)]
    # Another table is read as it is when its turn comes.
    assert plain_rows(pipeline["c"].read()) == [(2, 2), (3, 3)]
    # The next refresh looks anew.
    monkeypatch.undo()
    pipeline.refresh()
    numbers = [1, 2, 3, 4]
    assert plain_rows(pipeline["a"].read()) == plain_rows(pipeline["b"].read()) == [(n, n) for n in numbers]
    assert [row["value"] for row in pipeline["both"].read().to_pylist()] == [{"a": n, "b": n} for n in numbers]


def test_pushed_and_attached_sources_commit_together(table: pds.Table) -> None:
    pipeline = open_pipeline(table)
    pipeline.source("names", key=pa.string(), value=pa.string())

    def named(customer: str, totals: Iterator[float], names: Iterator[str]) -> Iterator[tuple[str, float]]:
        name = next(names, customer)
        for amount in totals:
            yield name, amount

    pipeline.join("totals", "names", key=pa.string(), value=pa.float64(), name="named")(named)
    pipeline.update(names=pds.Changes([("a", "Ann")]))
    assert plain_rows(pipeline["named"].read()) == []
    assert pipeline.refresh() is not None
    assert plain_rows(pipeline["named"].read()) == [(None, None, 8.0), ("Ann", "a", 3.0), ("b", "b", 4.0)]
    pipeline.update(names=pds.Changes([("b", "Bob")]))
    assert pipeline.refresh() is None
    assert ("Bob", "b", 4.0) in plain_rows(pipeline["named"].read())


def test_what_cannot_feed_a_source_is_refused(table: pds.Table) -> None:
    pipeline = pds.Pipeline(table.store, "p")
    with pytest.raises(pds.InvalidInput, match="columns of the table"):
        pipeline.source("orders", table, key="nothing")
    with pytest.raises(pds.InvalidInput, match="each once"):
        pipeline.source("orders", table, key="id", value=["amount", "amount"])
    with pytest.raises(pds.InvalidInput, match="columns of the table"):
        pipeline.source("orders", table, key=[])
    with pytest.raises(pds.InvalidType, match="name of a column"):
        pipeline.source("orders", table, key=pa.int64())
    with pytest.raises(pds.InvalidType, match=r"pds\.Table"):
        pipeline.source("orders", table.scan(), key="id")  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidType, match="value must be"):
        pipeline.source("orders", key=pa.int64())
    pipeline.source("orders", table, key="customer")
    with pytest.raises(pds.InvalidInput, match="fed by a table"):
        pipeline.update(orders=pds.Changes([("a", None)]))
    assert pds.Pipeline(table.store, "other").refresh() is None


def test_columns_that_take_the_place_of_others_are_read_as_a_whole(memory_store: pds.Store) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("c", pa.string()), ("d", pa.string()), ("a", pa.float64()), ("b", pa.float64())]
    )
    table = pds.Table.create(memory_store, "t", schema, key="id")
    table.append(pa.table({"id": [1, 2], "c": ["x", "y"], "d": ["X", "Y"], "a": [1.0, 2.0], "b": [10.0, 20.0]}, schema))

    def pairs(pipeline: pds.Pipeline) -> list[Any]:
        pipeline.refresh()
        assert pipeline.refresh() is None
        return plain_rows(pipeline["s"].read())

    def declared(key: str = "c", value: str = "a") -> pds.Pipeline:
        pipeline = pds.Pipeline(memory_store, "p")
        pipeline.source("s", table, key=key, value=value)
        return pipeline

    pipeline = declared()
    assert pairs(pipeline) == [("x", 1.0), ("y", 2.0)]
    table.alter.rename_column("a", "z")
    table.alter.rename_column("b", "a")
    assert pairs(pipeline) == [("x", 10.0), ("y", 20.0)]
    table.alter.rename_column("c", "w")
    table.alter.rename_column("d", "c")
    assert pairs(pipeline) == [("X", 10.0), ("Y", 20.0)]
    before = table.version
    table.alter.drop_column("a")
    table.alter.add_column("a", pa.float64())
    assert pairs(pipeline) == [("X", None), ("Y", None)]
    table.restore(before)
    assert pairs(pipeline) == [("X", 10.0), ("Y", 20.0)]
    # A process that reads other columns of the same types.
    assert pairs(declared(value="z")) == [("X", 1.0), ("Y", 2.0)]
    assert pairs(declared(key="w", value="z")) == [("x", 1.0), ("y", 2.0)]
    table.alter.drop_column("w")
    declared_before = pds.Pipeline(memory_store, "p")
    declared_before.source("s", table.as_of(before), key="w", value="z")
    with pytest.raises(pds.DefinitionChanged, match=r"column 'w'.*does not exist"):
        declared_before.refresh()


@pytest.mark.filterwarnings("ignore:the function of stage")
@pytest.mark.parametrize("column", ["customer", "amount"])
def test_a_source_is_declared_with_the_new_name_of_a_column(table: pds.Table, column: str) -> None:
    """The columns are the same ones, so that only keys of rows that changed are called for."""
    calls: list[str | None] = []

    def counted(customer: str | None, amounts: Iterator[float | None]) -> Iterator[tuple[str | None, float]]:
        calls.append(customer)
        return total(customer, amounts)

    open_pipeline(table).refresh()
    table.upsert(rows((2, "b", 3.0)))
    table.alter.rename_column(column, "renamed")
    names = {"customer": "customer", "amount": "amount", column: "renamed"}
    pipeline = pds.Pipeline(table.store, "totals")
    pipeline.source("orders", table.refresh(), key=names["customer"], value=names["amount"])
    pipeline.producer("orders", key=pa.string(), value=pa.float64(), name="totals")(counted)
    pipeline.refresh()
    assert calls == ["a", "b"]
    assert plain_rows(pipeline["orders"].read()) == [(None, 8.0), ("a", 1.0), ("b", 3.0), ("b", 4.0)]
    assert pipeline.refresh() is None


def test_other_types_of_columns_are_noticed_by_a_process_that_runs(table: pds.Table) -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.float32())])
    other = pds.Table.create(table.store, "other", schema, key="id")
    other.append(pa.table({"id": [1], "a": [0.5]}, schema))
    pipeline = pds.Pipeline(table.store, "p")
    pipeline.source("s", other, key="id", value="a")
    pipeline.refresh()
    other.alter.widen("a", pa.float64())
    with pytest.raises(pds.DefinitionChanged, match="'a' of the table that feeds 's' is double now, not float"):
        pipeline.refresh()


@pytest.mark.parametrize("view", [pa.string_view(), pa.binary_view(), pa.list_(pa.string_view())], ids=str)
def test_views_in_values(memory_store: pds.Store, view: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", view)])
    table = pds.Table.create(memory_store, "t", schema, key="id")
    values = pa.array([["a"], ["b"]] if pa.types.is_list(view) else ["a", "b"]).cast(view)
    table.append(pa.table([pa.array([1, 2]), values], schema=schema))
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", table, key="id")
    pipeline.refresh()
    table.upsert(pa.table([pa.array([2, 3]), values], schema=schema))
    pipeline.refresh()
    assert [row["v"] for _, row in plain_rows(pipeline["s"].read())] == [values[0].as_py(), *values.to_pylist()]


def test_rows_that_another_process_pushes_go(table: pds.Table) -> None:
    pipeline = open_pipeline(table)
    pipeline.refresh()
    other = pds.Pipeline(table.store, "totals")
    other.source("orders", key=pa.string(), value=pa.float64())
    other.producer("orders", key=pa.string(), value=pa.float64(), name="totals")(total)
    other.update(orders=pds.Changes([("a", 99.0), ("q", 1.0)]))
    pipeline.refresh()
    check(pipeline, table)


def test_a_refresh_fills_new_stages_and_notices_changed_ones(table: pds.Table) -> None:
    open_pipeline(table).refresh()
    pipeline = open_pipeline(table)
    pipeline.producer("totals", key=pa.string(), value=pa.float64(), name="more")(total)
    assert pipeline.refresh() is not None
    assert pipeline["more"].read().num_rows == 3
    assert pipeline.refresh() is None
    changed = pds.Pipeline(table.store, "totals")
    changed.source("orders", table, key="customer", value="amount")
    for feeder, name in (("orders", "totals"), ("totals", "more")):
        changed.producer(feeder, key=pa.string(), value=pa.float64(), name=name, version=2)(total)
    with pytest.raises(pds.DefinitionChanged):
        changed.refresh()


@pytest.mark.filterwarnings("ignore:the function of stage")
def test_a_refresh_lands_beside_pushes_that_never_stop(table: pds.Table) -> None:
    pipeline = open_pipeline(table)
    pipeline.source("names", key=pa.int64(), value=pa.string())
    calls = 0

    def slow(customer: str | None, amounts: Iterator[float | None]) -> Iterator[tuple[str | None, float]]:
        nonlocal calls
        calls += 1
        if calls <= 3:
            pushing = pds.Pipeline(table.store, "totals")
            pushing.source("orders", table, key="customer", value="amount")
            pushing.producer("orders", key=pa.string(), value=pa.float64(), name="totals")(total)
            pushing.source("names", key=pa.int64(), value=pa.string())
            pushing.producer("orders", key=pa.string(), value=pa.float64(), name="slow")(total)
            # As another process: a function cannot update its own pipeline.
            with ThreadPoolExecutor(1) as other:
                other.submit(pushing.update, names=pds.Changes([(calls, "x")])).result()
        return total(customer, amounts)

    pipeline.update(names=pds.Changes([(0, "x")]))
    pipeline.producer("orders", key=pa.string(), value=pa.float64(), name="slow")(slow)
    pipeline.refresh()
    check(pipeline, table)
    assert pipeline["names"].read().num_rows == 4


@pytest.mark.parametrize("drops", [False, True])
def test_a_table_that_is_vacuumed_or_dropped_while_it_is_read(
    table: pds.Table, monkeypatch: pytest.MonkeyPatch, drops: bool
) -> None:
    pipeline = open_pipeline(table)
    pipeline.refresh()
    table.append(rows((5, "c", 1.0)))
    scan, scans = pds.Table.scan, 0

    def scan_after_another(self: pds.Table, *arguments: Any, **options: Any) -> Any:
        nonlocal scans
        scans += 1
        if scans == 1:
            other = pds.Table(table.store, "orders")
            other.overwrite(rows((6, "d", 2.0)))
            other.vacuum(dt.timedelta(0))
            if drops:
                pds.Table.drop(table.store, "orders")
        return scan(self, *arguments, **options)

    monkeypatch.setattr(pds.Table, "scan", scan_after_another)
    if drops:
        with pytest.raises(pds.NotFound):
            pipeline.refresh()
        return
    pipeline.refresh()
    monkeypatch.undo()
    check(pipeline, table)


@pytest.mark.parametrize("error", [pds.BackendUnavailable, pds.VersionExpired])
def test_an_error_of_an_earlier_pass_is_forgotten(
    table: pds.Table, monkeypatch: pytest.MonkeyPatch, error: type[pds.Error]
) -> None:
    other = pds.Table.create(table.store, "others", SCHEMA, key="id")
    other.append(rows((1, "a", 1.0)))
    pipeline = pds.Pipeline(table.store, "p", commit_timeout=2)
    pipeline.source("orders", table, key="customer", value="amount")
    pipeline.source("others", other, key="customer", value="amount")
    scan = pds.Table.scan

    def fail_and_drop(self: pds.Table, *arguments: Any, **options: Any) -> Any:
        if self.path == "orders":
            return scan(self, *arguments, **options)
        pds.Table.drop(table.store, "orders")
        raise error("the first pass fails", path=self.path)

    monkeypatch.setattr(pds.Table, "scan", fail_and_drop)
    # Only a version that expired lets the same refresh read the tables again.
    if error is not pds.VersionExpired:
        with pytest.raises(error, match="the first pass fails"):
            pipeline.refresh()
    with pytest.raises(pds.NotFound) as caught:
        pipeline.refresh()
    assert caught.value.path == "orders"


def test_a_table_with_the_columns_of_changes_is_refused(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("_change_type", pa.string())]))
    with pytest.raises(pds.InvalidInput, match="rename the column"):
        pds.Pipeline(memory_store, "p").source("s", table, key="id")


def test_other_types_of_columns_are_another_definition(table: pds.Table) -> None:
    open_pipeline(table).refresh()
    table.alter.drop_column("amount")
    table.alter.add_column("amount", pa.int64())
    table.append(pa.table({"id": [9], "customer": ["x"], "amount": [1]}))
    other = pds.Pipeline(table.store, "totals")
    other.source("orders", table.refresh(), key="customer", value="amount")
    with pytest.raises(pds.DefinitionChanged):
        other.refresh()

"""Partitions of assets as rows of tables, under Dagster."""

import datetime as dt
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pds
from pds.dagster import PdsTableIOManager
from pds.dagster.partitions import Dimension, Partitions

pytestmark = [
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning"),
    pytest.mark.sampled(2),
]

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-08")
REGIONS = dg.StaticPartitionsDefinition(["eu", "o'hara", "us"])
DAYS_AND_REGIONS = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
BY_DAY = {"pds/partition_expr": "day"}
BY_DAY_AND_REGION = {"pds/partition_expr": {"day": "day", "region": "region"}}
SINGLE_RUN = dg.BackfillPolicy.single_run()


@pytest.fixture
def lake(tmp_path: Path) -> pds.Store:
    return pds.Store(tmp_path / "lake")


@pytest.fixture
def run(lake: pds.Store, instance: dg.DagsterInstance) -> Callable[..., dg.ExecuteInProcessResult]:
    def run(*assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
        if "keys" in options:
            first, last = options.pop("keys")
            options["tags"] = {
                "dagster/asset_partition_range_start": first,
                "dagster/asset_partition_range_end": last,
            }
        resources = {"io_manager": PdsTableIOManager(url=lake.url)}
        return dg.materialize(list(assets), instance=instance, resources=resources, **options)

    return run


def _rows(*days: int, n: int = 2, region: str = "eu") -> pa.Table:
    dates = [dt.date(2026, 1, day) for day in days for _ in range(n)]
    return pa.table({"day": dates, "region": [region] * len(dates), "n": range(len(dates))})


def _content(lake: pds.Store, name: str = "orders") -> list[dict[str, Any]]:
    return sorted(pds.Table(lake, name).scan().to_pyarrow().to_pylist(), key=str)


def _as_content(*tables: pa.Table) -> list[dict[str, Any]]:
    return sorted(pa.concat_tables(tables).to_pylist(), key=str)


def _error(result: dg.ExecuteInProcessResult, name: str = "orders") -> Any:
    assert not result.success
    return result.failure_data_for_node(name).error.cause


def _make_asset(
    definition: dg.PartitionsDefinition[Any], metadata: dict[str, Any], value: Callable[..., Any]
) -> dg.AssetsDefinition:
    @dg.asset(partitions_def=definition, metadata=metadata, backfill_policy=SINGLE_RUN)
    def orders(context: dg.AssetExecutionContext) -> Any:
        return value(*context.partition_keys)

    return orders


def test_a_run_replaces_the_rows_of_its_partition(run: Callable[..., Any], lake: pds.Store) -> None:
    sizes = iter([2, 2, 3])
    orders = _make_asset(DAYS, BY_DAY, lambda key: _rows(int(key[-2:]), n=next(sizes)))

    for day in (1, 2, 1):
        (event,) = run(orders, partition_key=f"2026-01-0{day}").asset_materializations_for_node("orders")

    assert _content(lake) == _as_content(_rows(1, n=3), _rows(2, n=2))
    assert event.metadata["dagster/partition_row_count"].value == 3
    assert event.metadata["rows"].value == 3
    assert event.tags["dagster/data_version"] == pds.Table(lake, "orders").history(1)[0]["commit_id"]


def test_several_partitions_are_one_commit(run: Callable[..., Any], lake: pds.Store) -> None:
    def make(*keys: str) -> pa.Table:
        return pa.concat_tables([_rows(int(key[-2:]), n=len(keys)) for key in keys])

    orders = _make_asset(DAYS, BY_DAY, make)
    run(orders, keys=("2026-01-01", "2026-01-04"))
    before = pds.Table(lake, "orders").version
    events = run(orders, keys=("2026-01-02", "2026-01-03")).asset_materializations_for_node("orders")

    assert pds.Table(lake, "orders").version == before + 1
    assert _content(lake) == _as_content(*(_rows(day, n=n) for day, n in ((1, 4), (2, 2), (3, 2), (4, 4))))
    assert [event.partition for event in events] == ["2026-01-02", "2026-01-03"]
    assert len({event.tags["dagster/data_version"] for event in events}) == 1


def test_a_partition_without_rows_becomes_empty(run: Callable[..., Any], lake: pds.Store) -> None:
    """Also if the rows have no columns, as those of an empty frame."""
    for empty in (_rows(1).schema.empty_table(), pl.DataFrame(), pa.table({"day": []})):
        values = {"2026-01-01": iter([_rows(1), empty]), "2026-01-02": iter([_rows(2)])}
        orders = _make_asset(DAYS, BY_DAY, lambda key, values=values: next(values[key]))
        for key in ("2026-01-01", "2026-01-02", "2026-01-01"):
            (event,) = run(orders, partition_key=key).asset_materializations_for_node("orders")
        assert _content(lake) == _as_content(_rows(2))
        assert event.metadata["dagster/partition_row_count"].value == 0


def test_static_and_dynamic_partitions(run: Callable[..., Any], lake: pds.Store, instance: dg.DagsterInstance) -> None:
    dynamic = dg.DynamicPartitionsDefinition(name="regions")
    instance.add_dynamic_partitions("regions", ["o'hara", 'a "b" c', "\\"])
    for definition in (REGIONS, dynamic):
        orders = _make_asset(definition, {"pds/partition_expr": "region"}, lambda key: _rows(1, region=key))
        keys = definition.get_partition_keys(dynamic_partitions_store=instance)
        for key in [*keys, keys[0]]:
            run(orders, partition_key=key)
        assert _content(lake) == _as_content(*(_rows(1, region=key) for key in keys))
        pds.Table.drop(lake, "orders")


def test_two_dimensions(run: Callable[..., Any], lake: pds.Store) -> None:
    def make(key: dg.MultiPartitionKey) -> pa.Table:
        return _rows(int(key.keys_by_dimension["day"][-2:]), region=key.keys_by_dimension["region"])

    orders = _make_asset(DAYS_AND_REGIONS, BY_DAY_AND_REGION, make)
    cells = [(day, region) for day in (1, 2) for region in ("eu", "o'hara")]
    for day, region in [*cells, cells[1]]:
        run(orders, partition_key=dg.MultiPartitionKey({"day": f"2026-01-0{day}", "region": region}))

    assert _content(lake) == _as_content(*(_rows(day, region=region) for day, region in cells))


def test_cells_of_two_dimensions_by_text_and_by_range(run: Callable[..., Any], lake: pds.Store) -> None:
    def make(*keys: str) -> pa.Table:
        parts = [DAYS_AND_REGIONS.get_partition_key_from_str(key).keys_by_dimension for key in keys]
        return pa.concat_tables([_rows(int(part["day"][-2:]), n=len(keys), region=part["region"]) for part in parts])

    orders = _make_asset(DAYS_AND_REGIONS, BY_DAY_AND_REGION, make)
    run(orders, keys=("2026-01-01|eu", "2026-01-02|o'hara"))
    run(orders, partition_key="2026-01-02|eu")
    assert _content(lake) == _as_content(
        _rows(1, n=4), _rows(1, n=4, region="o'hara"), _rows(2, n=1), _rows(2, n=4, region="o'hara")
    )


@pytest.mark.parametrize("mode", ["overwrite", "append", "upsert"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("day", [2, None])
def test_rows_outside_the_partition_are_refused(
    run: Callable[..., Any], lake: pds.Store, mode: str, stream: bool, day: int | None
) -> None:
    """Before anything is committed, and the table is not even created for rows in memory."""
    inside = _rows(1)
    others = _rows(2) if day else inside.set_column(0, "day", pa.nulls(2, pa.date32()))
    mixed = pa.concat_tables([inside, others])
    values = iter([mixed, inside, mixed])
    metadata = {**BY_DAY, "pds/mode": mode, "pds/key": "n"}
    orders = _make_asset(
        DAYS, metadata, lambda _key: next(values).to_reader(max_chunksize=1) if stream else next(values)
    )

    def materialize() -> Any:
        return run(orders, partition_key="2026-01-01", raise_on_error=False)

    cause = _error(materialize())
    assert cause.cls_name == "InvalidInput"
    assert "partition 2026-01-01 of asset orders" in cause.message
    assert pds.Table.exists(lake, "orders") == stream
    assert materialize().success
    version = pds.Table(lake, "orders").version
    assert _error(materialize()).cls_name == "InvalidInput"
    table = pds.Table(lake, "orders")
    assert table.version == version
    assert table.check().orphans == []
    assert _content(lake) == _as_content(inside)


def test_appends_and_upserts_leave_the_other_rows_of_the_partition(run: Callable[..., Any], lake: pds.Store) -> None:
    for mode, expected in (("append", 4), ("upsert", 2)):
        orders = _make_asset(DAYS, {**BY_DAY, "pds/mode": mode, "pds/key": "n"}, lambda _key: _rows(1))
        for _ in range(2):
            run(orders, partition_key="2026-01-01")
        assert len(_content(lake)) == expected
        pds.Table.drop(lake, "orders")


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.date32(), dt.date(2026, 3, 29)),
        (pa.date64(), dt.date(2026, 3, 29)),
        (pa.string(), "2026-03-29"),
        (pa.large_string(), "2026-03-29"),
        (pa.dictionary(pa.int32(), pa.string()), "2026-03-29"),
        *(
            (pa.timestamp(unit, zone), value)
            for unit in ("s", "ms", "us", "ns")
            for zone, value in (
                ("UTC", dt.datetime(2026, 3, 28, 23, 0, tzinfo=dt.UTC)),
                ("America/New_York", dt.datetime(2026, 3, 28, 23, 0, tzinfo=dt.UTC)),
                (None, dt.datetime(2026, 3, 29)),  # noqa: DTZ001 a column without a time zone
            )
        ),
    ],
    ids=str,
)
def test_a_day_of_a_time_zone_in_columns_of_every_type(
    run: Callable[..., Any], lake: pds.Store, data_type: pa.DataType, value: Any
) -> None:
    """A day that has 23 hours. The first row is at its beginning, the others at that of the next and of the last."""
    days = dg.DailyPartitionsDefinition(start_date="2026-03-28", timezone="Europe/Berlin")
    if isinstance(value, dt.datetime):
        hours = 24 if value.tzinfo is None else 23
        others = [value - dt.timedelta(seconds=1), value + dt.timedelta(hours=hours)]
        inside = [value, value + dt.timedelta(hours=hours, seconds=-1)]
    else:
        others = [dt.date(2026, 3, 28), dt.date(2026, 3, 30)]
        others = [str(day) for day in others] if isinstance(value, str) else others
        inside = [value, value]

    def make(values: list[Any], n: int) -> pa.Table:
        plain = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
        return pa.table({"day": pa.array(values, plain).cast(data_type), "n": pa.array([n] * len(values), pa.int64())})

    pds.Table.create(lake, "orders", make([], 0).schema).append(make([*others, *inside], 0))
    for key in ("2026-03-29", "2026-03-29"):
        assert run(_make_asset(days, BY_DAY, lambda _key: make(inside, 1)), partition_key=key).success
    for other in others:
        result = run(
            _make_asset(days, BY_DAY, lambda _key, other=other: make([other], 1)),
            partition_key="2026-03-29",
            raise_on_error=False,
        )
        assert _error(result).cls_name == "InvalidInput"

    expected = pa.concat_tables([make(others, 0), make(inside, 1)])
    assert _content(lake) == _as_content(expected)


@pytest.mark.parametrize(
    ("data_type", "key"), [(pa.int64(), "2026"), (pa.uint8(), "7"), (pa.bool_(), "true"), (pa.date32(), "2026-01-01")]
)
def test_static_keys_in_columns_of_other_types(
    run: Callable[..., Any], lake: pds.Store, data_type: pa.DataType, key: str
) -> None:
    rows = pa.table({"key": pa.array([key]).cast(data_type)})
    orders = _make_asset(dg.StaticPartitionsDefinition([key]), {"pds/partition_expr": "key"}, lambda _key: rows)
    for _ in range(2):
        run(orders, partition_key=key)
    assert pds.Table(lake, "orders").scan().to_pyarrow().equals(rows)


@pytest.mark.parametrize(
    ("data_type", "key"),
    [(pa.int64(), "007"), (pa.int8(), "300"), (pa.date32(), "today"), (pa.float64(), "1"), (pa.binary(), "a")],
    ids=str,
)
def test_static_keys_that_are_not_the_text_of_a_value(
    run: Callable[..., Any], lake: pds.Store, data_type: pa.DataType, key: str
) -> None:
    rows = pa.table({"key": pa.nulls(1, data_type)})
    orders = _make_asset(dg.StaticPartitionsDefinition([key]), {"pds/partition_expr": "key"}, lambda _key: rows)
    cause = _error(run(orders, partition_key=key, raise_on_error=False))
    assert cause.cls_name == "InvalidInput"
    assert repr(key) in cause.message
    assert pds.list_tables(lake) == []


@pytest.mark.parametrize(
    ("definition", "metadata"),
    [
        (DAYS, {}),
        (DAYS, {"pds/partition_expr": "no such column"}),
        (DAYS, {"pds/partition_expr": "n"}),
        (DAYS, {"pds/partition_expr": {"day": "day"}}),
        (DAYS_AND_REGIONS, BY_DAY),
        (DAYS_AND_REGIONS, {"pds/partition_expr": {"day": "day"}}),
        (DAYS_AND_REGIONS, {"pds/partition_expr": {"day": "day", "region": 7}}),
        (dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-02-00:00"), BY_DAY),
    ],
    ids=str,
)
def test_a_partition_expr_that_does_not_fit_is_refused(
    run: Callable[..., Any], lake: pds.Store, definition: dg.PartitionsDefinition[Any], metadata: dict[str, Any]
) -> None:
    orders = _make_asset(definition, metadata, lambda _key: _rows(1))
    result = run(orders, partition_key=definition.get_partition_keys()[0], raise_on_error=False)
    assert _error(result).cls_name == "InvalidInput"
    assert pds.list_tables(lake) == []


# -- inputs ------------------------------------------------------------------------


def test_an_input_has_the_rows_of_its_partitions(run: Callable[..., Any]) -> None:
    seen: dict[str, Any] = {}
    orders = _make_asset(DAYS, BY_DAY, lambda *keys: _rows(*(int(key[-2:]) for key in keys)))

    @dg.asset(partitions_def=DAYS)
    def same(orders: pa.Table) -> None:
        seen["same"] = orders

    @dg.asset(partitions_def=DAYS)
    def lazy(orders: pl.LazyFrame) -> None:
        seen["lazy"] = orders.collect().to_arrow()

    window = dg.TimeWindowPartitionMapping(start_offset=-1)

    @dg.asset(partitions_def=DAYS, ins={"orders": dg.AssetIn(partition_mapping=window)})
    def two_days(orders: pds.TableScan) -> None:
        seen["two_days"] = orders.to_pyarrow()

    @dg.asset
    def everything(orders: pa.RecordBatchReader) -> None:
        seen["everything"] = orders.read_all()

    @dg.asset(partitions_def=DAYS)
    def table(orders: pds.Table) -> None:
        seen["table"] = orders.scan().to_pyarrow()

    run(orders, keys=("2026-01-01", "2026-01-07"))
    assets = [same, lazy, two_days, table]
    run(orders, *assets, partition_key="2026-01-03", selection=assets)
    run(orders, everything, selection=[everything])

    days = {name: sorted({day.day for day in rows["day"].to_pylist()}) for name, rows in seen.items()}
    assert days == {
        "same": [3],
        "lazy": [3],
        "two_days": [2, 3],
        "everything": [*range(1, 8)],
        "table": [*range(1, 8)],
    }
    assert seen["same"].num_rows == _rows(3).num_rows


@pytest.mark.parametrize("key", [None, "2026-01-03"])
def test_a_lazy_input_keeps_rows_with_nan(run: Callable[..., Any], key: str | None) -> None:
    """Polars has NaN above all numbers, and pyarrow has not."""
    seen: list[Any] = []
    days = [dt.date(2026, 1, 3)] * 3
    rows = pa.table({"day": days, "x": [1.0, float("nan"), 2.0]})
    orders = _make_asset(DAYS, BY_DAY, lambda _key: rows)

    @dg.asset(partitions_def=DAYS if key else None)
    def lazy(orders: pl.LazyFrame) -> None:
        seen.append(orders.filter(pl.col("x") > 1).select("x").collect()["x"].to_list())

    run(orders, partition_key="2026-01-03")
    run(orders, lazy, selection=[lazy], **({"partition_key": key} if key else {}))
    assert repr(seen) == "[[nan, 2.0]]"


def test_an_input_without_partitions_has_no_rows(run: Callable[..., Any]) -> None:
    seen: list[Any] = []
    orders = _make_asset(DAYS, BY_DAY, lambda key: _rows(int(key[-2:])))
    before = dg.TimeWindowPartitionMapping(-1, -1, allow_nonexistent_upstream_partitions=True)

    @dg.asset(partitions_def=DAYS, ins={"orders": dg.AssetIn(partition_mapping=before)})
    def consumer(orders: pa.Table) -> None:
        seen.append(orders)

    run(orders, partition_key="2026-01-01")
    run(orders, consumer, partition_key="2026-01-01", selection=[consumer])
    (rows,) = seen
    assert rows.equals(_rows(1).slice(0, 0))


# -- the filters -------------------------------------------------------------------


@given(st.sets(st.integers(0, 40)))
def test_hours_of_a_night_that_has_one_twice(hours: set[int]) -> None:
    """Against a comparison of each row with each window."""
    definition = dg.HourlyPartitionsDefinition(
        start_date="2026-10-24-12:00", end_date="2026-10-26-12:00", timezone="Europe/Berlin"
    )
    keys = [definition.get_partition_keys()[hour] for hour in sorted(hours)]
    first = dt.datetime(2026, 10, 24, 10, tzinfo=dt.UTC)
    moments = [first + dt.timedelta(minutes=20 * index) for index in range(-6, 150)]
    rows = pa.table({"at": pa.array(moments, pa.timestamp("us", "Europe/Berlin"))})
    windows = [definition.time_window_for_partition_key(key) for key in keys]
    expected = [
        moment
        for moment in moments
        if any(w.start.timestamp() <= moment.timestamp() < w.end.timestamp() for w in windows)
    ]

    partitions = Partitions("asset a", [Dimension("at", definition)], [(key,) for key in keys])
    matching = rows.filter(partitions.to_expression(rows.schema))["at"].to_pylist()
    assert [moment.timestamp() for moment in matching] == [moment.timestamp() for moment in expected]


def test_bounds_that_are_ambiguous_without_a_time_zone_are_refused() -> None:
    """Of the hours before, in and after the one that a night has twice, those that begin or end with it."""
    definition = dg.HourlyPartitionsDefinition(start_date="2026-10-25-00:00", timezone="Europe/Berlin")
    refused = []
    for key in definition.get_partition_keys()[:6]:
        try:
            partitions = Partitions("asset a", [Dimension("at", definition)], [(key,)])
            partitions.to_expression(pa.schema([("at", pa.timestamp("us"))]))
        except pds.InvalidInput as error:
            refused.append((key, "ambiguous" in str(error)))
    assert refused == [(f"2026-10-25-{hour}", True) for hour in ("01:00", "02:00", "02:00+0100")]


@given(st.sets(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))))
def test_any_set_of_cells_of_two_dimensions(cells: set[tuple[str, str]]) -> None:
    definition = dg.StaticPartitionsDefinition([*"abcxyz"])
    rows = pa.table({"left": [*"abc"] * 3, "right": [c for c in "xyz" for _ in range(3)]})
    dimensions = [Dimension("left", definition), Dimension("right", definition)]
    where = Partitions("asset a", dimensions, sorted(cells)).to_expression(rows.schema)
    matching = rows.filter(where)
    assert set(zip(matching["left"].to_pylist(), matching["right"].to_pylist(), strict=True)) == cells


def test_many_partitions_that_are_not_neighbours(lake: pds.Store) -> None:
    definition = dg.HourlyPartitionsDefinition(start_date="2025-12-01-00:00", end_date="2026-01-01-00:00")
    keys = definition.get_partition_keys()[::2]
    start = dt.datetime(2025, 12, 1, tzinfo=dt.UTC)
    hours = [start + dt.timedelta(hours=hour) for hour in range(24 * 31)]
    table = pds.Table.create(lake, "t", pa.schema([("at", pa.timestamp("us", "UTC"))]))
    table.append(pa.table({"at": pa.array(hours, pa.timestamp("us", "UTC"))}))
    partitions = Partitions("asset a", [Dimension("at", definition)], [(key,) for key in keys])
    assert table.scan(where=partitions.to_expression(table.schema)).to_pyarrow()["at"].to_pylist() == hours[::2]
    assert "and 369 more" in str(partitions)


# -- at once -----------------------------------------------------------------------


def test_partitions_are_materialized_at_once(lake: pds.Store) -> None:
    """The first runs of an asset, which create its table, and the next ones, which replace rows."""
    orders = _make_asset(DAYS, BY_DAY, lambda key: _rows(int(key[-2:])))
    keys = DAYS.get_partition_keys()[:4]

    def materialize(key: str) -> dg.ExecuteInProcessResult:
        with dg.DagsterInstance.ephemeral() as instance:
            resources = {"io_manager": PdsTableIOManager(url=lake.url)}
            return dg.materialize([orders], instance=instance, resources=resources, partition_key=key)

    for _ in range(2):
        with ThreadPoolExecutor(len(keys)) as pool:
            results = list(pool.map(materialize, keys))
        assert all(result.success for result in results)

    assert _content(lake) == _as_content(*(_rows(int(key[-2:])) for key in keys))
    assert pds.Table(lake, "orders").scan(where=pc.field("n") == 0).count() == len(keys)


def test_a_run_without_a_partition_is_refused(tmp_path: Path) -> None:
    """It would replace the rows of all partitions."""
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")

    @dg.asset(partitions_def=days, metadata={"pds/partition_expr": "day"})
    def orders() -> pa.Table:
        return pa.table({"day": [dt.date(2026, 1, 1)], "n": [1]})

    resources = {"io_manager": PdsTableIOManager(url=str(tmp_path))}
    assert dg.materialize([orders], partition_key="2026-01-01", resources=resources).success
    with pytest.raises(pds.InvalidInput, match="run it with a partition key"):
        dg.materialize([orders], resources=resources)
    assert pds.open_table(tmp_path / "orders").version == 1

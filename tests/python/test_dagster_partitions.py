"""Partitioned assets under the Dagster IO manager (PDS-009)."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pds
from pds.dagster import dagster_io_manager
from pds.dagster.names import escape

pytestmark = [pytest.mark.filterwarnings("ignore::dagster.BetaWarning"), pytest.mark.sampled(2)]

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-08")
ODD_KEYS = ["eu/west", "50%", "a\\b", "..", ".", "_SUCCESS", "manifest.json", "ü x", ".pds-1"]


@pytest.fixture
def datasets(store: pds.Store) -> pds.ParquetDatasetStore:
    return pds.ParquetDatasetStore(store)


@pytest.fixture
def run(store: pds.Store, instance: dg.DagsterInstance) -> Callable[..., Any]:
    def run(*assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
        resources = {"io_manager": dagster_io_manager(store)}
        return dg.materialize(list(assets), instance=instance, resources=resources, **options)

    return run


@dg.asset(partitions_def=DAYS, key_prefix="bronze")
def events(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({"day": [context.partition_key], "n": [int(context.partition_key[-2:])]})


def _fill(run: Callable[..., Any], asset: dg.AssetsDefinition, keys: list[str]) -> None:
    for key in keys:
        run(asset, partition_key=key)


def _days(first: int, last: int) -> list[str]:
    return [f"2026-01-{day:02}" for day in range(first, last + 1)]


def test_a_time_window_is_a_dataset(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    _fill(run, events, _days(1, 2))

    assert datasets.list_datasets() == [
        "bronze/events/2026-01-01",
        "bronze/events/2026-01-02",
    ]
    assert datasets.read_dataset("bronze/events/2026-01-02")["n"].to_pylist() == [2]


def test_dimensions_are_one_key(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    regions = dg.StaticPartitionsDefinition(["eu", "us"])
    both = dg.MultiPartitionsDefinition({"day": DAYS, "region": regions})
    seen: list[pa.Table] = []

    @dg.asset(partitions_def=both)
    def sales(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"key": [str(context.partition_key)]})

    @dg.asset(partitions_def=both)
    def report(sales: pa.Table) -> None:
        seen.append(sales)

    key = dg.MultiPartitionKey({"region": "eu", "day": "2026-01-03"})
    run(sales, report, partition_key=key)

    assert datasets.list_datasets() == ["sales/2026-01-03|eu"]
    assert seen[0]["key"].to_pylist() == ["2026-01-03|eu"]


@pytest.mark.parametrize("key", ODD_KEYS)
def test_any_partition_key_is_a_store_path(
    run: Callable[..., Any], datasets: pds.ParquetDatasetStore, key: str
) -> None:
    seen: list[pa.Table] = []
    keys = dg.StaticPartitionsDefinition(ODD_KEYS)

    @dg.asset(partitions_def=keys)
    def source(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"key": [context.partition_key]})

    @dg.asset(partitions_def=keys)
    def consumer(source: pa.Table) -> None:
        seen.append(source)

    run(source, consumer, partition_key=key)

    assert seen[0]["key"].to_pylist() == [key]
    (found,) = datasets.list_datasets()
    assert found.startswith("source/")
    assert found.count("/") == 1


def test_plain_keys_stay_as_they_are() -> None:
    for key in ["2026-01-01", "2026-01-01-00:00", "a|b", "ü", "year=2026", "part-00000.parquet"]:
        assert escape(key) == key


@given(st.text(), st.text())
def test_different_segments_never_meet(left: str, right: str) -> None:
    assert (escape(left) == escape(right)) == (left == right)


@given(st.text(st.characters()))
def test_an_escaped_segment_is_a_segment(text: str) -> None:
    segment = escape(text)
    segment.encode()
    assert segment not in {"", ".", "..", "_SUCCESS", "manifest.json", "_publish.json"}
    assert not {"/", "\\", "\0", "\n", "\x7f"} & set(segment)


def test_several_partitions_are_a_mapping(run: Callable[..., Any]) -> None:
    seen: dict[str, Any] = {}
    window = dg.TimeWindowPartitionMapping(start_offset=-2)

    @dg.asset(
        partitions_def=DAYS,
        ins={"events": dg.AssetIn(["bronze", "events"], partition_mapping=window)},
    )
    def trailing(events: dict[str, pl.DataFrame]) -> None:
        seen.update(events)

    _fill(run, events, _days(1, 5))
    run(events, trailing, selection=["trailing"], partition_key="2026-01-05")

    assert sorted(seen) == _days(3, 5)
    assert [frame["n"].to_list() for _, frame in sorted(seen.items())] == [[3], [4], [5]]
    assert all(isinstance(frame, pl.DataFrame) for frame in seen.values())


def test_all_partitions_without_an_annotation(run: Callable[..., Any]) -> None:
    seen: dict[str, pa.Table] = {}

    @dg.asset(ins={"events": dg.AssetIn(["bronze", "events"])})
    def total(events) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        seen.update(events)

    _fill(run, events, _days(1, 7))
    run(events, total, selection=["total"])

    assert sorted(seen) == _days(1, 7)
    assert pa.concat_tables(seen.values())["n"].to_pylist() == [1, 2, 3, 4, 5, 6, 7]


def test_one_partition_is_a_mapping_where_one_is_annotated(run: Callable[..., Any]) -> None:
    seen: dict[str, pa.Table] = {}

    @dg.asset(partitions_def=DAYS, ins={"events": dg.AssetIn(["bronze", "events"])})
    def copy(events: dict[str, pa.Table]) -> None:
        seen.update(events)

    run(events, copy, partition_key="2026-01-04")

    assert list(seen) == ["2026-01-04"]


def test_no_partition_at_all_is_none(run: Callable[..., Any]) -> None:
    seen: list[Any] = []
    yesterday = dg.TimeWindowPartitionMapping(
        start_offset=-1, end_offset=-1, allow_nonexistent_upstream_partitions=True
    )

    @dg.asset(
        partitions_def=DAYS,
        ins={"events": dg.AssetIn(["bronze", "events"], partition_mapping=yesterday)},
    )
    def late(events: pa.Table | None) -> None:
        seen.append(events)

    run(events, late, partition_key="2026-01-01")
    run(events, late, partition_key="2026-01-02")

    assert seen[0] is None
    assert seen[1]["n"].to_pylist() == [1]


def test_a_single_table_cannot_hold_several_partitions(run: Callable[..., Any]) -> None:
    @dg.asset(ins={"events": dg.AssetIn(["bronze", "events"])})
    def total(events: pl.DataFrame) -> None:
        raise AssertionError(events)

    _fill(run, events, _days(1, 2))
    result = run(events, total, selection=["total"], raise_on_error=False)

    message = result.failure_data_for_node("total").error.to_string()
    assert "dict[str, polars.DataFrame]" in message


def test_a_mapping_of_an_asset_without_partitions_is_refused(run: Callable[..., Any]) -> None:
    @dg.asset
    def plain() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset
    def consumer(plain: dict[str, pa.Table]) -> None:
        raise AssertionError(plain)

    result = run(plain, consumer, raise_on_error=False)

    assert "no partitions" in result.failure_data_for_node("consumer").error.to_string()


def test_missing_partitions_fail_unless_allowed(run: Callable[..., Any]) -> None:
    seen: dict[str, pa.Table] = {}

    @dg.asset(ins={"events": dg.AssetIn(["bronze", "events"])})
    def strict(events: dict[str, pa.Table]) -> None:
        raise AssertionError(events)

    @dg.asset(ins={"events": dg.AssetIn(["bronze", "events"], metadata={"allow_missing_partitions": True})})
    def lenient(events: dict[str, pa.Table]) -> None:
        seen.update(events)

    whole: list[Any] = []

    # One that is left of many is still a mapping.
    @dg.asset(ins={"events": dg.AssetIn(["bronze", "events"], metadata={"allow_missing_partitions": True})})
    def untyped(events) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        whole.append(events)

    _fill(run, events, ["2026-01-02"])
    failed = run(events, strict, selection=["strict"], raise_on_error=False)
    run(events, lenient, selection=["lenient"])
    run(events, untyped, selection=["untyped"])

    assert isinstance(whole[0], dict)
    assert "DatasetIncomplete" in failed.failure_data_for_node("strict").error.to_string()
    assert sorted(seen) == ["2026-01-02"]


def test_a_partition_that_is_being_written_is_waited_for(
    run: Callable[..., Any], datasets: pds.ParquetDatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no marker meanwhile, and is not missing."""
    seen: dict[str, pa.Table] = {}

    @dg.asset(ins={"events": dg.AssetIn(["bronze", "events"], metadata={"allow_missing_partitions": True})})
    def lenient(events: dict[str, pa.Table]) -> None:
        seen.update(events)

    _fill(run, events, ["2026-01-02", "2026-01-03"])
    store, place = datasets.store, "bronze/events/2026-01-02"
    assert isinstance(store, pds.Store)
    # Where a writer is between its intent and its marker; the read is what would wait for it.
    store.delete(f"{place}/_SUCCESS")
    store.write(f"{place}/_publish.json", b"{}")
    read = pds.ParquetDatasetStore.read_dataset
    waited: list[str] = []

    def finish(self: pds.ParquetDatasetStore, key: str, **options: Any) -> pa.Table:
        if key == place:
            waited.append(key)
            store.write(f"{place}/_SUCCESS", b"")
            store.delete(f"{place}/_publish.json")
        return read(self, key, **options)

    monkeypatch.setattr(pds.ParquetDatasetStore, "read_dataset", finish)
    run(events, lenient, selection=["lenient"])
    assert waited == [place]
    assert sorted(seen) == ["2026-01-02", "2026-01-03"]


def test_a_writer_that_ends_without_a_dataset_leaves_a_missing_partition(
    run: Callable[..., Any], datasets: pds.ParquetDatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, pa.Table] = {}

    @dg.asset(ins={"events": dg.AssetIn(["bronze", "events"], metadata={"allow_missing_partitions": True})})
    def lenient(events: dict[str, pa.Table]) -> None:
        seen.update(events)

    _fill(run, events, ["2026-01-03"])
    store, place = datasets.store, "bronze/events/2026-01-02"
    assert isinstance(store, pds.Store)
    store.write(f"{place}/_publish.json", b"{}")
    read = pds.ParquetDatasetStore.read_dataset

    def give_up(self: pds.ParquetDatasetStore, key: str, **options: Any) -> pa.Table:
        store.delete(f"{place}/_publish.json", missing_ok=True)
        return read(self, key, **options)

    monkeypatch.setattr(pds.ParquetDatasetStore, "read_dataset", give_up)
    run(events, lenient, selection=["lenient"])
    assert sorted(seen) == ["2026-01-03"]


def test_two_keys_of_one_place(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    """A partition of an asset, and an asset below that asset's key: who comes first has it."""
    parts = dg.StaticPartitionsDefinition(["b"])

    @dg.asset(key=["a"], partitions_def=parts)
    def partitioned() -> pa.Table:
        return pa.table({"of": ["a, partition b"]})

    @dg.asset(key=["a", "b"])
    def plain() -> pa.Table:
        return pa.table({"of": ["a/b"]})

    @dg.asset(ins={"found": dg.AssetIn(["a", "b"])})
    def consumer(found: pa.Table) -> None:
        raise AssertionError(found)

    run(partitioned, partition_key="b")
    for asset in (plain, consumer):
        failed = run(plain, consumer, selection=[asset], raise_on_error=False)
        message = failed.all_node_events[-1].event_specific_data.error.to_string()
        assert "AlreadyExists" in message
        assert "partition 'b' of asset" in message
    assert datasets.read_dataset("a/b")["of"].to_pylist() == ["a, partition b"]
    run(partitioned, partition_key="b")
    datasets.delete_dataset("a/b")
    run(plain)
    assert not run(partitioned, partition_key="b", raise_on_error=False).success


def _range_tags(first: str, last: str) -> dict[str, str]:
    return {
        "dagster/asset_partition_range_start": first,
        "dagster/asset_partition_range_end": last,
    }


def test_one_run_writes_several_partitions(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    @dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def ranged(context: dg.AssetExecutionContext) -> Any:
        return {key: pa.table({"day": [key]}) for key in context.partition_keys}

    result = run(ranged, tags=_range_tags("2026-01-02", "2026-01-04"))

    assert result.success
    assert datasets.list_datasets() == [f"ranged/{day}" for day in _days(2, 4)]
    assert datasets.read_dataset("ranged/2026-01-03")["day"].to_pylist() == ["2026-01-03"]


@pytest.mark.parametrize(
    "value",
    [
        pa.table({"n": [1]}),
        {"2026-01-02": pa.table({"n": [1]})},
        {"2026-01-02": pa.table({"n": [1]}), "2026-01-03": 7},
    ],
    ids=["one table", "one missing", "not arrow"],
)
def test_several_partitions_need_all_their_values(
    run: Callable[..., Any], datasets: pds.ParquetDatasetStore, value: Any
) -> None:
    @dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def broken() -> Any:
        return value

    result = run(broken, tags=_range_tags("2026-01-02", "2026-01-03"), raise_on_error=False)

    assert not result.success
    assert datasets.list_datasets() == []

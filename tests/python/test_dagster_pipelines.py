"""Pipelines as assets, and the resource, under Dagster."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pyarrow as pa
import pytest

import pds
from pds.dagster import PdsResource, PdsTableIOManager, pipeline_assets, pipeline_checks

STAGES = {"doubled": ["orders"], "by_customer": ["doubled"], "by_region": ["orders"]}
FACTOR = {0: 2}


def declare(lake: PdsResource) -> pds.Pipeline:
    p = lake.open_pipeline("sales")
    orders = p.source("orders", lake.open_table("orders"), key="customer", value="amount")
    regions = p.source("regions", lake.open_table("orders"), key="region", value="amount")

    @p.producer(orders, key=pa.string(), value=pa.int64())
    def doubled(customer: str, amounts: Iterator[int]) -> Iterator[tuple[str, int]]:
        for amount in amounts:
            yield customer, FACTOR[0] * amount

    p.aggregate(doubled, aggregates={"amount": ("value", "sum")}, name="by_customer")
    p.aggregate(regions, aggregates={"amount": ("value", "sum")}, name="by_region", skip_unchanged=True)
    return p


def _orders(*rows: tuple[str, str, int]) -> pa.Table:
    names = ("customer", "region", "amount")
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})


@pytest.fixture
def lake(tmp_path: Path) -> PdsResource:
    return PdsResource(url=str(tmp_path / "lake"))


def _data_versions(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    return {
        event.asset_key.path[-1]: event.tags["dagster/data_version"]
        for event in result.asset_materializations_for_node("sales")
    }


def test_stages_are_assets_that_follow_a_table(lake: PdsResource, instance: dg.DagsterInstance) -> None:
    values = iter([_orders(("a", "x", 1), ("b", "y", 2)), _orders(("a", "x", 5), ("b", "y", 2)), _orders()])

    @dg.asset(metadata={"pds/mode": "append"})
    def orders() -> pa.Table:
        return next(values).cast(pa.schema({"customer": pa.string(), "region": pa.string(), "amount": pa.int64()}))

    sales = pipeline_assets(declare, name="sales", stages=STAGES, group_name="gold")
    assert sales.keys == {dg.AssetKey(["sales", stage]) for stage in STAGES}
    specs = {spec.key.path[-1]: {dep.asset_key.to_user_string() for dep in spec.deps} for spec in sales.specs}
    assert specs == {"doubled": {"orders"}, "by_customer": {"sales/doubled"}, "by_region": {"orders"}}
    assert {spec.group_name for spec in sales.specs} == {"gold"}

    resources = {"io_manager": PdsTableIOManager(url=lake.url), "pds": lake}
    for _ in range(3):
        result = dg.materialize([orders, sales], instance=instance, resources=resources)
        table = lake.open_table("orders").scan().to_pyarrow()
        p = declare(lake)
        for stage, key, factor in (("by_customer", "customer", 2), ("by_region", "region", 1)):
            sums = duckdb.from_arrow(table).aggregate(f"{key}, {factor} * sum(amount)::BIGINT").fetchall()
            rows = p[stage].read().to_pylist()
            assert [(row["target_key"], row["value"]["amount"]) for row in rows] == sorted(sums)
        events = {e.asset_key.path[-1]: e for e in result.asset_materializations_for_node("sales")}
        assert {event.metadata["version"].value for event in events.values()} == {p.version}


def test_metadata_and_data_versions_are_those_of_each_stage(lake: PdsResource, instance: dg.DagsterInstance) -> None:
    """An update of one stage leaves the data versions of the others."""
    table = pds.Table.create(lake.store, "orders", _orders(("", "", 0)).schema)
    table.append(_orders(("a", "x", 1), ("b", "y", 2)))
    sales = pipeline_assets(declare, name="sales", stages=STAGES)

    def materialize() -> dg.ExecuteInProcessResult:
        return dg.materialize([sales], instance=instance, resources={"pds": lake})

    first = materialize()
    p = declare(lake)
    events = {event.asset_key.path[-1]: event for event in first.asset_materializations_for_node("sales")}
    commit_id = p.history(1)[0]["commit_id"]
    assert _data_versions(first) == dict.fromkeys(STAGES, commit_id)
    assert events["doubled"].metadata["rows_out"].value == 2
    assert events["by_region"].metadata["keys_out"].value == 2
    assert events["by_region"].metadata["bytes"].value > 0
    assert events["by_region"].metadata["commit_id"].value == commit_id

    assert _data_versions(materialize()) == _data_versions(first)
    assert p.version == 1

    table.append(_orders(("c", "x", 0)))
    result = materialize()
    (keys_in,) = (
        event.metadata["keys_in"].value
        for event in result.asset_materializations_for_node("sales")
        if event.asset_key.path == ["sales", "doubled"]
    )
    assert keys_in == 1
    third = _data_versions(result)
    assert third["doubled"] == p.history(1)[0]["commit_id"] == third["by_customer"]
    assert third["by_region"] == commit_id

    # Another process updates the pipeline, and may have changed any stage.
    table.append(_orders(("d", "x", 1)))
    p.refresh()
    assert _data_versions(materialize()) == dict.fromkeys(STAGES, p.history(1)[0]["commit_id"])


@pytest.mark.parametrize("failures", [0, 1])
def test_changes_are_pushed_once_by_the_retries_of_a_step(
    lake: PdsResource, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    def declare_words(lake: PdsResource) -> pds.Pipeline:
        p = lake.open_pipeline("words")
        lines = p.source("lines", key=pa.int64(), value=pa.string())

        @p.producer(lines, key=pa.string(), value=pa.int64())
        def ids(line: int, texts: Iterator[str]) -> Iterator[tuple[str, int]]:
            for text in texts:
                for word in text.split():
                    yield word, line

        return p

    calls: list[Any] = []

    def make_changes(context: dg.AssetExecutionContext) -> Mapping[str, pds.Changes]:
        calls.append(context.run.run_id)
        return {"lines": pds.Changes([(1, "the blue sea")])}

    update = pds.Pipeline.update

    def lose_answer(self: pds.Pipeline, *args: Any, **options: Any) -> Any:
        result = update(self, *args, **options)
        if len(calls) <= failures:
            message = "lost after the commit"
            raise dg.RetryRequested(max_retries=1) from RuntimeError(message)
        return result

    monkeypatch.setattr(pds.Pipeline, "update", lose_answer)
    words = pipeline_assets(declare_words, name="words", stages=["ids"], changes=make_changes)
    result = dg.materialize([words], instance=instance, resources={"pds": lake})

    (event,) = result.asset_materializations_for_node("words")
    p = declare_words(lake)
    assert len(calls) == failures + 1
    assert p.version == 1
    assert event.metadata["replayed"].value == bool(failures)
    assert event.tags["dagster/data_version"] == p.history(1)[0]["commit_id"]
    assert p["ids"].read().num_rows == 3
    dg.materialize([words], instance=instance, resources={"pds": lake})
    assert p.version == 2


def test_a_stage_that_the_pipeline_lacks_is_refused(lake: PdsResource, instance: dg.DagsterInstance) -> None:
    pds.Table.create(lake.store, "orders", _orders(("", "", 0)).schema)
    sales = pipeline_assets(declare, name="sales", stages=["doubled", "by_month"])
    result = dg.materialize([sales], instance=instance, resources={"pds": lake}, raise_on_error=False)
    cause = result.failure_data_for_node("sales").error.cause
    assert cause.cls_name == "InvalidInput"
    assert "by_month" in cause.message
    assert declare(lake).version == 0
    for stages, text in (([], "stages"), ("doubled", "stages"), (["by customer"], "'by customer'")):
        for make in (pipeline_assets, pipeline_checks):
            with pytest.raises(pds.InvalidInput, match=text):
                make(declare, name="sales", stages=stages)


def test_stages_are_computed_anew_by_checks(
    lake: PdsResource, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pds.Table.create(lake.store, "orders", _orders(("", "", 0)).schema)
    table.append(_orders(("a", "x", 1), ("b", "y", 2)))
    sales = pipeline_assets(declare, name="sales", stages=STAGES)
    checks = pipeline_checks(declare, name="sales", stages=STAGES)

    def evaluate() -> dict[str, bool]:
        result = dg.materialize(
            [sales, *checks],
            instance=instance,
            resources={"pds": lake},
            selection=dg.AssetSelection.checks(*checks),
        )
        return {e.asset_key.path[-1]: e.passed for e in result.get_asset_check_evaluations()}

    assert evaluate() == dict.fromkeys(STAGES, False)
    dg.materialize([sales], instance=instance, resources={"pds": lake})
    assert evaluate() == dict.fromkeys(STAGES, True)
    # The function has changed, and its version has not.
    monkeypatch.setitem(FACTOR, 0, 3)
    assert evaluate() == {"doubled": False, "by_customer": True, "by_region": True}


def test_the_resource_opens_what_lies_in_the_store(lake: PdsResource, instance: dg.DagsterInstance) -> None:
    rows = _orders(("a", "x", 1))
    table = pds.Table.create(lake.store, "orders", rows.schema)
    table.append(rows)
    seen: dict[str, Any] = {}

    @dg.asset
    def report(pds: PdsResource) -> None:
        seen["rows"] = pds.open_table("orders").scan().to_pyarrow()
        seen["before"] = pds.open_table("orders", as_of=1).scan().count()
        pds.datasets.write_dataset(rows, "reports/today")
        seen["pipeline"] = pds.open_pipeline("sales").version

    dg.materialize([report], instance=instance, resources={"pds": lake})

    assert seen["rows"].equals(rows)
    assert seen["before"] == 0
    assert seen["pipeline"] == 0
    assert pds.ParquetDatasetStore(lake.store).read_dataset("reports/today").equals(rows)

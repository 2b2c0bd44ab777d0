"""Dagster with tables: partitions as rows, a pipeline as an asset, checks, and a sensor.

    python examples/dagster_tables.py       runs the assets once
    dagster dev -f examples/dagster_tables.py

Needs `pip install 'pds[dagster]'`. The lake is `./lake`, or the URL in LAKE.
"""

# Annotations that are text are unknown to Dagster, so there is no `from __future__ import annotations`.
import os
import tempfile
from datetime import date

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

import pds
from pds.dagster import PdsResource, PdsTableIOManager, pipeline_assets, pipeline_checks, table_sensor, verify_checks

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-08")


@dg.asset(partitions_def=DAYS, metadata={"pds/partition_expr": "day"})
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    """The orders of a day. A run replaces the rows of its partition, by one commit."""
    day = date.fromisoformat(context.partition_key)
    return pa.table({"day": [day] * 3, "country": ["DE", "FR", "DE"], "cents": [50, 100 * day.day, 700]})


@dg.asset(partitions_def=DAYS, metadata={"pds/partition_expr": "day"})
def large_orders(orders: pa.Table) -> pa.Table:
    """The orders of a day above 2 euros: the input has the rows of the same partition."""
    return orders.filter(pc.field("cents") > 200)


def declare(lake: PdsResource) -> pds.Pipeline:
    """The pipeline that follows the table of orders: each update reads what is new, and costs what it changes."""
    p = lake.open_pipeline("revenue")
    rows = p.source("orders", lake.open_table("orders"), key="country", value="cents")
    p.aggregate(rows, aggregates={"cents": ("value", "sum")}, name="by_country")
    return p


STAGES = {"by_country": ["orders"]}
revenue = pipeline_assets(declare, name="revenue", stages=STAGES)
checks = [*verify_checks(orders, large_orders), *pipeline_checks(declare, name="revenue", stages=STAGES)]
update_revenue = dg.define_asset_job("update_revenue", selection=dg.AssetSelection.assets(revenue))


def make_resources(url: str) -> dict[str, object]:
    """Return the IO manager and the resource of a lake. Options of the store may be environment variables."""
    return {"io_manager": PdsTableIOManager(url=url), "pds": PdsResource(url=url)}


defs = dg.Definitions(
    assets=[orders, large_orders, revenue],
    asset_checks=checks,
    jobs=[update_revenue],
    sensors=[table_sensor("orders", target=update_revenue)],
    resources=make_resources(os.environ.get("LAKE", "lake")),
)


def main() -> None:
    """Materialize three days, one of them twice, and then the pipeline and the checks."""
    with tempfile.TemporaryDirectory() as url, dg.DagsterInstance.ephemeral() as instance:
        quiet = {"loggers": {"console": {"config": {"log_level": "WARNING"}}}}
        options = {"instance": instance, "resources": make_resources(url), "run_config": quiet}
        for key in ("2026-01-01", "2026-01-02", "2026-01-03", "2026-01-02"):
            result = dg.materialize([orders, large_orders], partition_key=key, **options)
            (event,) = result.asset_materializations_for_node("orders")
            print(f"{key}: {event.metadata['rows'].value} rows in version {event.metadata['version'].value}")
        selection = dg.AssetSelection.assets(revenue) | dg.AssetSelection.checks(*checks)
        result = dg.materialize([orders, large_orders, revenue, *checks], selection=selection, **options)
        for evaluation in result.get_asset_check_evaluations():
            print(f"{evaluation.asset_key.to_user_string()}: {evaluation.check_name} passed: {evaluation.passed}")
        print(pds.open_table(f"{url}/large_orders").scan().count(), "large orders")
        print(declare(PdsResource(url=url))["by_country"].read().to_pylist())


if __name__ == "__main__":
    main()

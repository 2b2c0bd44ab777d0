"""Asset checks and sensors of tables and datasets, under Dagster."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import pds
from pds.dagster import PdsResource, PdsTableIOManager, dagster_io_manager, table_sensor, verify_checks

ROWS = pa.table({"id": [1, 2, 3]})
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-04")


@pytest.fixture
def lake(tmp_path: Path) -> pds.Store:
    return pds.Store(tmp_path / "lake")


@dg.asset
def orders() -> pa.Table:
    return ROWS


@dg.asset(partitions_def=DAYS)
def days() -> pa.Table:
    return ROWS


@dg.asset(key=["days", "x"])
def below() -> pa.Table:
    return ROWS


def _damage(folder: Path, pattern: str, position: int) -> Path:
    """Change one byte of the first file."""
    path = min(folder.rglob(pattern))
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    return path


def _evaluate(checks: list[dg.AssetChecksDefinition], manager: Any, instance: dg.DagsterInstance) -> Any:
    result = dg.materialize(
        checks,
        instance=instance,
        resources={"io_manager": manager},
        selection=dg.AssetSelection.checks(*checks),
    )
    assert result.success
    (evaluation,) = result.get_asset_check_evaluations()
    return evaluation


@pytest.mark.parametrize("read_data", [True, False])
def test_a_table_is_verified(lake: pds.Store, instance: dg.DagsterInstance, tmp_path: Path, read_data: bool) -> None:
    manager = PdsTableIOManager(url=lake.url)
    checks = verify_checks(orders, read_data=read_data)
    assert not _evaluate(checks, manager, instance).passed

    dg.materialize([orders], instance=instance, resources={"io_manager": manager})
    evaluation = _evaluate(checks, manager, instance)
    assert evaluation.passed
    assert evaluation.asset_key == dg.AssetKey("orders")
    assert evaluation.metadata["version"].value == pds.Table(lake, "orders").version
    if read_data:
        assert evaluation.metadata["rows"].value == ROWS.num_rows

    damaged = _damage(tmp_path / "lake/orders/data", "*.parquet", 10)
    evaluation = _evaluate(checks, manager, instance)
    assert evaluation.passed != read_data
    damaged.unlink()
    evaluation = _evaluate(checks, manager, instance)
    assert not evaluation.passed
    ((path, _),) = evaluation.metadata["problems"].value
    assert path == damaged.relative_to(tmp_path / "lake/orders").as_posix()
    assert path in evaluation.description


def test_the_datasets_of_an_asset_are_verified(lake: pds.Store, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """Those of its partitions, and not those of another asset below its key."""
    manager = dagster_io_manager(lake)
    checks = verify_checks(days)
    assert not _evaluate(checks, manager, instance).passed

    resources = {"io_manager": manager}
    for key in ("2026-01-01", "2026-01-02"):
        dg.materialize([days], instance=instance, resources=resources, partition_key=key)
    dg.materialize([below], instance=instance, resources=resources)
    _damage(tmp_path / "lake/days/x", "*.parquet", 10)
    evaluation = _evaluate(checks, manager, instance)
    assert evaluation.passed
    assert {name: evaluation.metadata[name].value for name in ("datasets", "rows")} == {"datasets": 2, "rows": 6}

    _damage(tmp_path / "lake/days/2026-01-02", "*.parquet", 10)
    evaluation = _evaluate(checks, manager, instance)
    assert not evaluation.passed
    assert [path for path, _ in evaluation.metadata["problems"].value] == ["days/2026-01-02"]


def test_a_blocking_check_stops_what_is_downstream(lake: pds.Store, instance: dg.DagsterInstance) -> None:
    seen = []

    class Damages(PdsTableIOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            super().handle_output(context, obj)
            _damage(Path(self.url), "*.parquet", 10)

    @dg.asset(deps=[orders])
    def consumer() -> None:
        seen.append(1)

    result = dg.materialize(
        [orders, consumer, *verify_checks("orders", blocking=True)],
        instance=instance,
        resources={"io_manager": Damages(url=lake.url.removeprefix("file://"))},
        raise_on_error=False,
    )
    assert not result.success
    assert seen == []


def test_the_keys_of_checks() -> None:
    @dg.multi_asset(specs=[dg.AssetSpec("a"), dg.AssetSpec(["b", "c"])])
    def both() -> Iterator[dg.MaterializeResult[None]]:
        yield dg.MaterializeResult(asset_key="a")

    checks = verify_checks(both, "b/d", dg.AssetKey(["e"]), dg.AssetSpec("f"))
    keys = [key.asset_key.to_user_string() for check in checks for key in check.check_keys]
    assert keys == ["a", "b/c", "b/d", "e", "f"]
    with pytest.raises(pds.InvalidType, match="int"):
        verify_checks(7)  # type: ignore[arg-type]


# -- sensors -----------------------------------------------------------------------


@pytest.fixture
def evaluate(lake: pds.Store, instance: dg.DagsterInstance) -> Callable[[], list[dg.RunRequest]]:
    """One evaluation of a sensor after the other, each with the cursor of the one before."""
    watch = table_sensor("silver/orders", target="downstream")
    cursors: list[str | None] = [None]

    def evaluate() -> list[dg.RunRequest]:
        context = dg.build_sensor_context(
            instance=instance, cursor=cursors[-1], resources={"pds": PdsResource(url=lake.url)}
        )
        data = watch.evaluate_tick(context)
        cursors.append(data.cursor)
        assert data.run_requests or data.skip_message
        return list(data.run_requests or [])

    return evaluate


def test_a_sensor_requests_a_run_for_a_new_version(
    lake: pds.Store, evaluate: Callable[[], list[dg.RunRequest]]
) -> None:
    assert evaluate() == []
    table = pds.Table.create(lake, "silver/orders", ROWS.schema)
    table.append(ROWS)
    ticks = [evaluate(), evaluate()]
    table.append(ROWS)
    table.append(ROWS)
    ticks += [evaluate(), evaluate()]

    assert [len(requests) for requests in ticks] == [1, 0, 1, 0]
    keys = [request.run_key for requests in ticks for request in requests]
    history = {entry["version"]: entry["commit_id"] for entry in table.history()}
    assert keys == [f"{version} {history[version]}" for version in (2, 4)]
    assert ticks[2][0].tags["pds/version"] == "4"
    assert ticks[2][0].tags["pds/table"] == "silver/orders"


def test_commits_that_change_no_row_start_no_run(lake: pds.Store, evaluate: Callable[[], list[dg.RunRequest]]) -> None:
    table = pds.Table.create(lake, "silver/orders", ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    assert len(evaluate()) == 1
    table.optimize.compact()
    table.tags.create("a", 2)
    table.tags.delete("a")
    table.optimize.sort("id")
    table.vacuum(timedelta(days=7))
    assert evaluate() == []
    assert evaluate() == []
    table.tags.create("b", table.version)
    table.delete("id = 1")
    table.vacuum(timedelta(0))  # The history before it is not there any more.
    assert len(evaluate()) == 1


@pytest.mark.parametrize("cursor", ["", "1", "x", "99 abc", "2 abc"])
def test_a_cursor_that_the_sensor_has_not_set_is_an_old_one(
    lake: pds.Store, instance: dg.DagsterInstance, cursor: str
) -> None:
    pds.Table.create(lake, "orders", ROWS.schema).append(ROWS)
    context = dg.build_sensor_context(instance=instance, cursor=cursor, resources={"pds": PdsResource(url=lake.url)})
    assert table_sensor("orders", target="downstream").evaluate_tick(context).run_requests


def test_a_table_that_was_created_anew_is_a_new_one(
    lake: pds.Store, evaluate: Callable[[], list[dg.RunRequest]]
) -> None:
    keys = set()
    for _ in range(3):
        pds.Table.create(lake, "silver/orders", ROWS.schema).append(ROWS)
        (request,) = evaluate()
        keys.add(request.run_key)
        pds.Table.drop(lake, "silver/orders")
    assert len(keys) == 3

"""The code of docs/orchestration.md runs as it stands there; stand-ins replace the decorators of Airflow, and dbt."""

import datetime as dt
import re
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

DOCUMENT = Path(__file__).parents[2] / "docs/orchestration.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
DAY = dt.date(2026, 1, 5)


def _run_block(block: str, lake: str, monkeypatch: pytest.MonkeyPatch, **modules: types.ModuleType) -> dict[str, Any]:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name.replace("__", "."), module)
    names: dict[str, Any] = {}
    exec(compile(block.replace("s3://bucket/lake", lake), str(DOCUMENT), "exec"), names)  # noqa: S102 it is ours
    return names


# -- Airflow -----------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> pds.Store:
    return pds.Store(tmp_path / "lake")


class Dag:
    """What the DAG of the recipe calls, with the templates filled in: the tasks run one after the other."""

    def __init__(self) -> None:
        self.run_id = ""
        self.function: Any = None

    def make_module(self) -> types.ModuleType:
        module = types.ModuleType("airflow.sdk")
        module.dag = self.dag  # type: ignore[attr-defined]
        module.task = self.task  # type: ignore[attr-defined]
        return module

    def dag(self, **options: Any) -> Any:
        assert options["default_args"]["retries"] > 0

        def decorate(function: Any) -> Any:
            self.function = function
            return lambda: None

        return decorate

    def task(self, function: Any) -> Any:
        # Airflow has these names for itself.
        assert not {"run_id", "ds", "task", "ti"} & set(function.__code__.co_varnames[: function.__code__.co_argcount])
        templates = {"{{ ds }}": DAY.isoformat(), "{{ run_id }}": self.run_id}
        return lambda *values: function(*(templates.get(value, value) for value in values))


@pytest.fixture
def airflow(lake: pds.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Dag, dict[str, Any]]:
    others = pa.table({"day": [dt.date(2026, 1, 4)], "id": [0], "amount": [7]})
    pds.Table.create(lake, "orders", others.schema).append(others)
    pds.Table.create(lake, "totals", others.select(["day", "amount"]).schema)
    dag = Dag()
    names = _run_block(BLOCKS[0], str(tmp_path / "lake"), monkeypatch, airflow__sdk=dag.make_module())
    return dag, names


def test_a_dag_run_that_is_repeated_changes_nothing(airflow: tuple[Dag, dict[str, Any]], lake: pds.Store) -> None:
    dag, names = airflow
    expected = names["read_orders"](DAY.isoformat())
    total = {"day": DAY, "amount": sum(expected["amount"].to_pylist())}
    for run_id, count in (("scheduled__1", 1), ("scheduled__1", 1), ("manual__2", 2)):
        dag.run_id = run_id
        dag.function()
        orders = pds.Table(lake, "orders")
        assert orders.scan(where=f"day = DATE '{DAY}'").to_pyarrow().equals(expected)
        assert orders.scan().count() == expected.num_rows + 1
        assert pds.Table(lake, "totals").scan().to_pyarrow().to_pylist() == [total] * count


def test_the_total_is_of_the_version_that_was_handed_on(airflow: tuple[Dag, dict[str, Any]], lake: pds.Store) -> None:
    names = airflow[1]
    version = names["replace_orders"](DAY.isoformat())
    pds.Table(lake, "orders").delete("true")
    names["append_total"]("manual__1", DAY.isoformat(), version)
    expected = sum(names["read_orders"](DAY.isoformat())["amount"].to_pylist())
    assert pds.Table(lake, "totals").scan().to_pyarrow()["amount"].to_pylist() == [expected]


def test_a_damaged_table_fails_its_task(airflow: tuple[Dag, dict[str, Any]], lake: pds.Store, tmp_path: Path) -> None:
    dag, names = airflow
    dag.function()
    (path,) = (tmp_path / "lake/totals/data").rglob("*.parquet")
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match=path.name):
        names["verify"](pds.Table(lake, "totals").version)


# -- dbt ---------------------------------------------------------------------------


class SourceConfig:
    """A source as dbt-duckdb describes it."""

    def __init__(self, identifier: str, **meta: Any) -> None:
        self.identifier = identifier
        self.get = meta.get


def _make_plugin(lake: pds.Store, monkeypatch: pytest.MonkeyPatch, run_id: str = "") -> Any:
    module = types.ModuleType("dbt.adapters.duckdb.plugins")
    module.BasePlugin = object  # type: ignore[attr-defined]
    names = _run_block(BLOCKS[1], "", monkeypatch, dbt__adapters__duckdb__plugins=module)
    plugin = names["Plugin"]()
    plugin.initialize({"url": lake.url, "run_id": run_id})
    return plugin


def _make_target(tmp_path: Path, rows: pa.Table, **config: Any) -> Any:
    pq.write_table(rows, tmp_path / "totals.parquet")
    return types.SimpleNamespace(
        relation=types.SimpleNamespace(identifier="totals"),
        location=types.SimpleNamespace(path=str(tmp_path / "totals.parquet")),
        config=config,
    )


ROWS = pa.table({"day": [DAY, DAY], "amount": [1, None]})


def test_a_source_is_read_by_duckdb(lake: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb  # noqa: PLC0415 only here

    table = pds.Table.create(lake, "silver/orders", ROWS.schema)
    table.append(ROWS)
    plugin = _make_plugin(lake, monkeypatch)
    dataset = plugin.load(SourceConfig("orders", path="silver/orders"))
    assert duckdb.from_arrow(dataset).aggregate("count(*), sum(amount)").fetchall() == [(2, 1)]
    before = plugin.load(SourceConfig("orders", path="silver/orders", as_of=1))
    assert duckdb.from_arrow(before).aggregate("count(*)").fetchall() == [(0,)]


def test_a_model_is_written_to_a_table(lake: pds.Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugin = _make_plugin(lake, monkeypatch, "r1")
    for rows in (ROWS, ROWS.slice(1)):
        plugin.store(_make_target(tmp_path, rows))
        assert pds.Table(lake, "totals").scan().to_pyarrow().equals(rows)
    # This is how dbt-duckdb writes a model without rows.
    plugin.store(_make_target(tmp_path, pa.table({name: pa.nulls(1, t) for name, t in zip(*_fields(), strict=True)})))
    assert pds.Table(lake, "totals").scan().count() == 0
    assert plugin.default_materialization() == "view"


def _fields() -> tuple[list[str], list[pa.DataType]]:
    return ROWS.schema.names, ROWS.schema.types


def test_a_model_is_appended_once_by_a_run(lake: pds.Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for run_id, count in (("r1", 1), ("r1", 1), ("r2", 2), ("", 3), ("", 4)):
        plugin = _make_plugin(lake, monkeypatch, run_id)
        plugin.store(_make_target(tmp_path, ROWS, write_mode="append", path="gold/totals"))
        assert pds.Table(lake, "gold/totals").scan().count() == count * ROWS.num_rows

"""The Dagster IO manager for tables, run by Dagster itself."""

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pds
from pds.dagster import PdsTableIOManager

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "ü"], "day": [dt.date(2026, 1, 1)] * 3})


@pytest.fixture
def lake(tmp_path: Path) -> pds.Store:
    return pds.Store(tmp_path / "lake")


@pytest.fixture
def run(lake: pds.Store, instance: dg.DagsterInstance) -> Callable[..., dg.ExecuteInProcessResult]:
    def run(*assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
        manager = options.pop("manager", None) or PdsTableIOManager(url=lake.url)
        return dg.materialize(list(assets), instance=instance, resources={"io_manager": manager}, **options)

    return run


def _error(result: dg.ExecuteInProcessResult, name: str) -> Any:
    assert not result.success
    return result.failure_data_for_node(name).error.cause


def _asset(value: Any, metadata: dict[str, Any] | None = None) -> dg.AssetsDefinition:
    """An asset `orders` of the value, or of the next one of an iterator."""

    @dg.asset(metadata=metadata)
    def orders() -> Any:
        return next(value) if hasattr(value, "__next__") else value

    return orders


def test_an_asset_is_a_table_of_its_key(run: Callable[..., Any], lake: pds.Store) -> None:
    @dg.multi_asset(outs={"orders": dg.AssetOut(key=["silver", "50%", "orders"])})
    def orders() -> pa.Table:
        return ROWS

    run(orders)

    assert pds.list_tables(lake) == ["silver/50%25/orders"]
    assert pds.Table(lake, "silver/50%25/orders").scan().to_pyarrow().equals(ROWS)


def test_output_metadata_and_data_version(
    run: Callable[..., Any], lake: pds.Store, instance: dg.DagsterInstance
) -> None:
    (event,) = run(_asset(ROWS)).asset_materializations_for_node("orders")

    table = pds.Table(lake, "orders")
    (commit,) = table.history(1)
    metadata = {name: value.value for name, value in event.metadata.items()}
    columns = metadata.pop("dagster/column_schema").columns
    assert metadata == {
        "rows": table.scan().count(),
        "bytes": sum(table.files()["size_bytes"].to_pylist()),
        "files": table.file_count,
        "version": table.version,
        "commit_id": commit["commit_id"],
        "replayed": False,
        "dagster/uri": f"{lake.url}/orders",
    }
    assert [(column.name, column.type) for column in columns] == [(f.name, str(f.type)) for f in table.schema]
    assert event.tags["dagster/data_version"] == commit["commit_id"]
    record = instance.get_latest_data_version_record(dg.AssetKey("orders"))
    assert record.asset_materialization.tags["dagster/data_version"] == commit["commit_id"]


def test_the_data_version_of_an_input_is_recorded(run: Callable[..., Any], lake: pds.Store) -> None:
    @dg.asset
    def totals(orders: pa.Table) -> pa.Table:
        return orders.group_by([]).aggregate([("id", "sum")])

    (event,) = run(_asset(ROWS), totals).asset_materializations_for_node("totals")

    commit = pds.Table(lake, "orders").history(1)[0]
    assert event.tags["dagster/input_data_version/orders"] == commit["commit_id"]
    assert pds.Table(lake, "totals").scan().to_pyarrow()["id_sum"].to_pylist() == [sum(ROWS["id"].to_pylist())]


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_metadata_of_the_asset_itself_stays(run: Callable[..., Any], lake: pds.Store) -> None:
    @dg.asset
    def orders() -> dg.Output[pa.Table]:
        return dg.Output(ROWS, metadata={"rows": -1}, data_version=dg.DataVersion("mine"))

    (event,) = run(orders).asset_materializations_for_node("orders")

    assert event.metadata["rows"].value == -1
    assert event.metadata["version"].value == pds.Table(lake, "orders").version
    assert event.tags["dagster/data_version"] == "mine"


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS,
        ROWS.to_reader,
        lambda: pl.from_arrow(ROWS),
        lambda: pl.from_arrow(ROWS).lazy(),  # type: ignore[union-attr]
        ROWS.to_pandas,
        lambda: duckdb.from_arrow(ROWS),
    ],
    ids=["table", "reader", "polars", "lazy", "pandas", "duckdb"],
)
def test_anything_with_an_arrow_stream_is_written(run: Callable[..., Any], lake: pds.Store, make: Any) -> None:
    for _ in range(2):
        run(_asset(iter([make()])))
    assert pds.Table(lake, "orders").scan().to_pyarrow().to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("value", [None, [1, 2], {"id": ROWS}, 7], ids=str)
def test_what_is_not_arrow_is_refused_by_name(run: Callable[..., Any], lake: pds.Store, value: Any) -> None:
    cause = _error(run(_asset(value), raise_on_error=False), "orders")

    assert cause.cls_name == "InvalidType"
    assert type(value).__name__ in cause.message
    assert pds.list_tables(lake) == []


def test_inputs_are_loaded_as_annotated(run: Callable[..., Any]) -> None:
    seen: dict[str, Any] = {}

    @dg.asset
    def plain(orders) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        seen["plain"] = orders

    @dg.asset
    def stream(orders: pa.RecordBatchReader) -> None:
        seen["stream"] = orders.read_all()

    @dg.asset
    def frame(orders: pl.DataFrame) -> None:
        seen["polars"] = orders

    @dg.asset
    def lazy(orders: pl.LazyFrame) -> None:
        seen["lazy"] = orders

    @dg.asset
    def pandas_frame(orders: pd.DataFrame) -> None:
        seen["pandas"] = orders

    @dg.asset
    def scan(orders: pds.TableScan) -> None:
        seen["scan"] = orders

    @dg.asset
    def table(orders: pds.Table) -> None:
        seen["table"] = orders

    run(_asset(ROWS), plain, stream, frame, lazy, pandas_frame, scan, table)

    assert seen["plain"].equals(ROWS)
    assert seen["stream"].equals(ROWS)
    assert seen["polars"].equals(pl.from_arrow(ROWS))
    assert isinstance(seen["lazy"], pl.LazyFrame)
    assert seen["lazy"].filter(pl.col("id") > 1).collect().equals(pl.from_arrow(ROWS.slice(1)))
    pd.testing.assert_frame_equal(seen["pandas"], ROWS.to_pandas())
    assert isinstance(seen["scan"], pds.TableScan)
    assert seen["scan"].count() == ROWS.num_rows
    assert isinstance(seen["table"], pds.Table)
    assert seen["table"].scan(where="id = 2").to_pyarrow().equals(ROWS.slice(1, 1))


@pytest.mark.parametrize("annotation", [set[int], dict[str, pa.Table]])
def test_an_annotation_it_cannot_load_is_refused(run: Callable[..., Any], annotation: Any) -> None:
    def consumer(orders):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        raise AssertionError(orders)

    consumer.__annotations__ = {"orders": annotation, "return": None}
    error = run(_asset(ROWS), dg.asset(consumer), raise_on_error=False).failure_data_for_node("consumer").error
    assert error.cause.cls_name == "InvalidType"


def test_columns_by_input_metadata(run: Callable[..., Any]) -> None:
    seen: list[Any] = []

    @dg.asset(ins={"orders": dg.AssetIn(metadata={"columns": ["name", "id"]})})
    def consumer(orders: pa.Table) -> None:
        seen.append(orders)

    @dg.asset(ins={"orders": dg.AssetIn(metadata={"columns": ["name", "id"]})})
    def lazy(orders: pl.LazyFrame) -> None:
        seen.append(orders.collect().to_arrow())

    run(_asset(ROWS), consumer, lazy)

    assert [rows.column_names for rows in seen] == [["name", "id"]] * 2


def test_an_upstream_asset_of_another_run_is_loaded(run: Callable[..., Any]) -> None:
    seen: list[Any] = []
    orders = _asset(ROWS)

    @dg.asset
    def consumer(orders: pa.Table) -> None:
        seen.append(orders)

    run(orders)
    run(dg.AssetSpec("orders"), consumer)
    run(orders, consumer, selection=["consumer"])

    assert all(rows.equals(ROWS) for rows in seen)
    assert len(seen) == 2


# -- the first run ---------------------------------------------------------------


def _broken_stream() -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        raise OSError("the source broke")

    return pa.RecordBatchReader.from_batches(ROWS.schema, batches())


FAILURES: dict[str, tuple[Callable[[], Any], dict[str, Any], str, str]] = {
    "stream": (_broken_stream, {}, "InvalidInput", "OSError: the source broke"),
    "stream to append": (_broken_stream, {"pds/mode": "append"}, "InvalidInput", "OSError: the source broke"),
    "null in the key": (
        lambda: pa.table({"id": pa.array([None, 1], pa.int64())}),
        {"pds/mode": "upsert", "pds/key": "id"},
        "InvalidInput",
        "null in key column",
    ),
    "key twice": (
        lambda: pl.DataFrame({"x": [0.0, 1.0, -0.0], "y": [None, 1, 2]}),
        {"pds/mode": "upsert", "pds/key": ["x"]},
        "InvalidInput",
        "two rows have the same x",
    ),
    "no type": (lambda: pd.DataFrame({"id": [1, "x"]}), {}, "InvalidType", "column id"),
    "column twice": (lambda: pd.DataFrame([[1, 2]], columns=["id", "id"]), {}, "InvalidInput", "'id' is there twice"),
}


@pytest.mark.parametrize(("make", "metadata", "error", "text"), FAILURES.values(), ids=FAILURES.keys())
def test_a_first_run_that_fails_leaves_no_table(
    run: Callable[..., Any], tmp_path: Path, make: Any, metadata: Any, error: str, text: str
) -> None:
    cause = _error(run(_asset(iter([make()]), metadata), raise_on_error=False), "orders")
    assert cause.cls_name == error
    assert text in cause.message
    assert [path for path in tmp_path.rglob("lake/**/*") if path.is_file()] == []
    other = pa.table({"other": ["columns"]})
    assert run(_asset(other)).success
    assert pds.open_table(tmp_path / "lake/orders").scan().to_pyarrow().equals(other)


@pytest.mark.parametrize("mode", ["overwrite", "append", "upsert"])
@pytest.mark.parametrize("stream", [False, True])
def test_another_run_creates_the_table_meanwhile(
    run: Callable[..., Any], lake: pds.Store, monkeypatch: pytest.MonkeyPatch, mode: str, stream: bool
) -> None:
    """Rows in memory are written to its table. A stream that may have been read is not."""
    metadata = {"pds/mode": mode, "pds/key": "id"}
    check = pds.dagster.new_tables.check_is_no_dataset

    def create(store: pds.Store, path: str) -> None:
        check(store, path)
        pds.Table.create(store, path, ROWS.schema, key="id").append(ROWS.slice(0, 1))

    monkeypatch.setattr(pds.dagster.new_tables, "check_is_no_dataset", create)
    rows = ROWS.slice(1)
    values = iter([rows.to_reader() if stream else rows])
    result = run(_asset(values, metadata), raise_on_error=False)
    expected = [2, 3] if mode == "overwrite" else [1, 2, 3]
    if stream and mode != "upsert":
        assert _error(result, "orders").cls_name == "CommitConflict"
        expected = [1]
    assert sorted(pds.Table(lake, "orders").scan().to_pyarrow()["id"].to_pylist()) == expected


def test_a_reader_of_an_earlier_run_is_refused(run: Callable[..., Any], lake: pds.Store) -> None:
    orders = _asset(iter([ROWS.to_reader()] * 2))
    assert run(orders).success
    cause = _error(run(orders, raise_on_error=False), "orders")
    assert cause.cls_name == "InvalidInput"
    assert "were read before" in cause.message
    assert pds.Table(lake, "orders").scan().count() == ROWS.num_rows


# -- modes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, [2, 3]),
        ({"pds/mode": "append"}, [1, 2, 2, 3]),
        ({"pds/mode": "upsert", "pds/key": "id"}, [1, 2, 3]),
        ({"pds/mode": "upsert", "pds/key": ["id", "name"]}, [1, 2, 2, 3]),
    ],
    ids=["overwrite", "append", "upsert", "upsert by two"],
)
def test_modes(run: Callable[..., Any], lake: pds.Store, metadata: dict[str, Any], expected: list[int]) -> None:
    first = pa.table({"id": [1, 2], "name": ["a", "b"]})
    second = pa.table({"id": [2, 3], "name": ["x", "y"]})
    orders = _asset(iter([first, second]), metadata)

    run(orders)
    (event,) = run(orders).asset_materializations_for_node("orders")

    assert sorted(pds.Table(lake, "orders").scan().to_pyarrow()["id"].to_pylist()) == expected
    assert event.metadata["rows"].value == second.num_rows


def test_the_default_mode_is_that_of_the_manager(run: Callable[..., Any], lake: pds.Store) -> None:
    for _ in range(2):
        run(_asset(ROWS), manager=PdsTableIOManager(url=lake.url, mode="append"))
    assert pds.Table(lake, "orders").scan().count() == 2 * ROWS.num_rows


def test_a_new_table_has_the_sort_order_and_the_key(run: Callable[..., Any], lake: pds.Store) -> None:
    metadata = {"pds/key": "id", "pds/sort_by": ["day", "id"]}
    run(_asset(ROWS, metadata))
    expected = pds.Table.create(lake, "expected", ROWS.schema, key="id", sort_by=["day", "id"])
    orders = pds.Table(lake, "orders")
    for role in ("key", "sort_by"):
        assert orders._get_column_names(role) == expected._get_column_names(role)
    assert run(_asset(ROWS, metadata)).success


def test_new_columns_are_merged_where_the_metadata_says_so(run: Callable[..., Any], lake: pds.Store) -> None:
    wide = ROWS.append_column("amount", pa.array([1.5, 2.5, 3.5]))
    run(_asset(ROWS))
    assert _error(run(_asset(wide), raise_on_error=False), "orders").cls_name == "InvalidInput"
    run(_asset(wide, {"pds/mode": "append", "pds/schema_mode": "merge"}))
    assert pds.Table(lake, "orders").schema.names == wide.schema.names


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"pds/mod": "append"}, "pds/mod"),
        ({"pds/mode": "replace"}, "'overwrite', 'append', 'upsert'"),
        ({"pds/mode": "upsert"}, "pds/key"),
        ({"pds/key": 7}, "pds/key"),
        ({"pds/key": "no such column"}, "no such column"),
        ({"pds/schema_mode": "merge"}, "append"),
    ],
    ids=str,
)
def test_bad_metadata_is_refused_before_anything_is_written(
    run: Callable[..., Any], lake: pds.Store, metadata: dict[str, Any], text: str
) -> None:
    cause = _error(run(_asset(ROWS, metadata), raise_on_error=False), "orders")
    assert cause.cls_name in ("InvalidInput", "InvalidType")
    assert text in cause.message
    assert pds.list_tables(lake) == []


def test_another_key_than_that_of_the_table_is_refused(run: Callable[..., Any], lake: pds.Store) -> None:
    run(_asset(ROWS, {"pds/key": "id"}))
    cause = _error(run(_asset(ROWS, {"pds/key": "name"}), raise_on_error=False), "orders")
    assert "key=['id']" in cause.message
    assert pds.Table(lake, "orders").version == 1


def test_a_folder_that_is_a_dataset_is_refused(run: Callable[..., Any], lake: pds.Store) -> None:
    pds.ParquetDatasetStore(lake).write_dataset(ROWS, "orders")
    assert _error(run(_asset(ROWS), raise_on_error=False), "orders").cls_name == "AlreadyExists"


def test_ops_have_a_table_by_run_step_and_output(lake: pds.Store) -> None:
    @dg.op(out={"left": dg.Out(), "right": dg.Out()})
    def produce() -> tuple[pa.Table, pa.Table]:
        return ROWS.slice(0, 1), ROWS.slice(1)

    @dg.op
    def join(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.concat_tables([left, right])

    @dg.job
    def work() -> None:
        join(*produce())

    result = work.execute_in_process(resources={"io_manager": PdsTableIOManager(url=lake.url)})

    names = [f"{result.run_id}/{name}" for name in ("join/result", "produce/left", "produce/right")]
    assert pds.list_tables(lake) == names
    assert pds.Table(lake, names[0]).scan().to_pyarrow().equals(ROWS)


def test_options_may_be_environment_variables(
    lake: pds.Store, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_URL", lake.url)
    monkeypatch.setenv("LAKE_DURABILITY", "none")
    manager = PdsTableIOManager(url=dg.EnvVar("LAKE_URL"), storage_options={"durability": dg.EnvVar("LAKE_DURABILITY")})
    dg.materialize([_asset(ROWS)], instance=instance, resources={"io_manager": manager})
    assert pds.Table(lake, "orders").scan().to_pyarrow().equals(ROWS)


def test_a_context_without_a_run(lake: pds.Store) -> None:
    """As unit tests of IO managers make it: every call is a write of its own."""
    manager = PdsTableIOManager(url=lake.url)
    for _ in range(2):
        context = dg.build_output_context(asset_key="orders", definition_metadata={"pds/mode": "append"})
        manager.handle_output(context, ROWS)
    assert manager.open_table(dg.AssetKey("orders")).scan().count() == 2 * ROWS.num_rows
    loaded = manager.load_input(
        dg.build_input_context(asset_key="orders", dagster_type=dg.PythonObjectDagsterType(pa.Table))
    )
    assert loaded.num_rows == 2 * ROWS.num_rows


def test_an_input_without_a_table(run: Callable[..., Any]) -> None:
    @dg.asset
    def consumer(orders: pa.Table) -> None:
        raise AssertionError(orders)

    result = run(dg.AssetSpec("orders"), consumer, raise_on_error=False)
    assert result.failure_data_for_node("consumer").error.cause.cls_name == "NotFound"

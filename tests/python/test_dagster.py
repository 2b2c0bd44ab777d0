"""The Dagster IO manager (PDS-009), run by Dagster itself."""

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pds
from pds.dagster import DatasetIOManager, dagster_io_manager

pytestmark = pytest.mark.sampled(2)

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "ü"], "when": [dt.date(2026, 1, 1)] * 3})


@pytest.fixture
def datasets(store: pds.Store) -> pds.ParquetDatasetStore:
    return pds.ParquetDatasetStore(store)


@pytest.fixture
def run(store: pds.Store, instance: dg.DagsterInstance) -> Callable[..., Any]:
    """Materialize assets with the manager over every kind of store."""

    def run(*assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
        manager = options.pop("manager", None) or dagster_io_manager(store)
        return dg.materialize(list(assets), instance=instance, resources={"io_manager": manager}, **options)

    return run


def _metadata(result: dg.ExecuteInProcessResult, name: str) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node(name)
    return dict(event.metadata)


def test_an_asset_is_a_dataset_of_its_key(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    @dg.asset(key_prefix=["silver", "sales"])
    def orders() -> pa.Table:
        return ROWS

    result = run(orders)

    assert datasets.list_datasets() == ["silver/sales/orders"]
    assert datasets.read_dataset("silver/sales/orders").equals(ROWS)
    assert datasets.read_manifest("silver/sales/orders").run_id == result.run_id


def test_output_metadata(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    @dg.asset
    def orders() -> pa.Table:
        return ROWS

    metadata = _metadata(run(orders), "orders")

    manifest = datasets.read_manifest("orders")
    size = sum(datasets.store.get_file_info(f"orders/{part}").size for part in manifest.parts)
    assert metadata["rows"].value == 3
    assert metadata["dagster/row_count"].value == 3
    assert metadata["bytes"].value == size
    assert metadata["schema"].text == ROWS.schema.to_string()
    assert metadata["version"].value == manifest.created_at_utc
    assert metadata["dataset_key"].value == "orders"
    columns = metadata["dagster/column_schema"].value.columns
    assert [(column.name, column.type) for column in columns] == [
        ("id", "int64"),
        ("name", "string"),
        ("when", "date32[day]"),
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS,
        lambda: ROWS.to_batches()[0],
        ROWS.to_reader,
        lambda: pl.from_arrow(ROWS),
        lambda: pd.DataFrame({"id": [1, 2, 3], "name": ["a", None, "ü"]}),
        ROWS.schema.empty_table,
    ],
    ids=["table", "batch", "reader", "polars", "pandas", "empty"],
)
def test_anything_with_an_arrow_stream_is_written(
    run: Callable[..., Any], datasets: pds.ParquetDatasetStore, make: Callable[[], Any]
) -> None:
    @dg.asset
    def orders() -> Any:
        return make()

    run(orders)

    expected = pa.RecordBatchReader.from_stream(make()).read_all()
    # pandas itself writes in its metadata how many rows the frame has.
    is_pandas = isinstance(make(), pd.DataFrame)
    assert datasets.read_dataset("orders").equals(expected, check_metadata=not is_pandas)


@pytest.mark.parametrize("value", [None, [1, 2], {"id": [1]}, 7])
def test_what_is_not_arrow_is_refused_by_name(
    run: Callable[..., Any], datasets: pds.ParquetDatasetStore, value: Any
) -> None:
    @dg.asset
    def orders() -> Any:
        return value

    result = run(orders, raise_on_error=False)

    assert not result.success
    cause = result.failure_data_for_node("orders").error.cause
    assert cause.cls_name == "InvalidType"
    assert type(value).__name__ in cause.message
    assert datasets.list_datasets() == []


def test_inputs_are_loaded_as_annotated(run: Callable[..., Any]) -> None:
    seen: dict[str, Any] = {}

    @dg.asset
    def orders() -> pa.Table:
        return ROWS

    @dg.asset
    def consumer(orders: pa.Table) -> None:
        seen["table"] = orders

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
    def pandas_frame(orders: pd.DataFrame) -> None:
        seen["pandas"] = orders

    run(orders, consumer, plain, stream, frame, pandas_frame)

    assert seen["table"].equals(ROWS)
    assert seen["plain"].equals(ROWS)
    assert seen["stream"].equals(ROWS)
    assert isinstance(seen["polars"], pl.DataFrame)
    assert seen["polars"].equals(pl.from_arrow(ROWS))
    pd.testing.assert_frame_equal(seen["pandas"], ROWS.to_pandas())


def test_a_pandas_index_survives(run: Callable[..., Any]) -> None:
    by_key = pd.DataFrame({"n": [1.5, 2.5]}, index=pd.Index(["x", "y"], name="key"))
    for frame in (by_key, by_key.set_axis(pd.RangeIndex(5, 7, name="key"))):
        _check_round_trip(run, frame, frame)


def test_an_index_without_a_name_is_left_out(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    frame = pd.DataFrame({"n": [1, 2, 3]}).query("n != 2")
    _check_round_trip(run, frame, frame.reset_index(drop=True))
    assert datasets.read_dataset("source").column_names == ["n"]


def _check_round_trip(run: Callable[..., Any], frame: pd.DataFrame, expected: pd.DataFrame) -> None:
    seen: list[pd.DataFrame] = []

    @dg.asset
    def source() -> pd.DataFrame:
        return frame

    @dg.asset
    def consumer(source: pd.DataFrame) -> None:
        seen.append(source)

    run(source, consumer)

    pd.testing.assert_frame_equal(seen[0], expected)


def _failing_reader() -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        raise OSError("the source broke")

    return pa.RecordBatchReader.from_batches(ROWS.schema, batches())


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "InvalidInput", "'a' is there twice"),
        (lambda: pd.DataFrame({"a": [1, "x"]}), "InvalidType", "column a"),
        (_failing_reader, "InvalidInput", "OSError: the source broke"),
    ],
    ids=["column twice", "no type", "reader"],
)
def test_values_that_cannot_be_written(
    run: Callable[..., Any], datasets: pds.ParquetDatasetStore, make: Callable[[], Any], error: str, text: str
) -> None:
    @dg.asset
    def orders() -> Any:
        return make()

    cause = run(orders, raise_on_error=False).failure_data_for_node("orders").error.cause
    assert cause.cls_name == error
    assert text in cause.message
    assert datasets.list_datasets() == []


def test_a_reader_of_an_earlier_run_is_refused(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    reader = ROWS.to_reader()

    @dg.asset
    def orders() -> Any:
        return reader

    assert run(orders).success
    cause = run(orders, raise_on_error=False).failure_data_for_node("orders").error.cause
    assert cause.cls_name == "InvalidInput"
    assert datasets.read_dataset("orders").equals(ROWS)


def test_an_annotation_it_cannot_load_is_refused(run: Callable[..., Any]) -> None:
    @dg.asset
    def orders() -> pa.Table:
        return ROWS

    @dg.asset
    def consumer(orders: set[int]) -> None:
        raise AssertionError(orders)

    result = run(orders, consumer, raise_on_error=False)

    message = result.failure_data_for_node("consumer").error.to_string()
    assert "InvalidType" in message
    assert "polars.DataFrame" in message


def test_columns_by_input_metadata(store: pds.Store, run: Callable[..., Any]) -> None:
    wide = pa.table({f"c{index:02}": range(index, 20_000 + index) for index in range(20)})
    seen: list[list[str]] = []

    @dg.asset
    def source() -> pa.Table:
        return wide

    @dg.asset(ins={"source": dg.AssetIn(metadata={"columns": ["c03", "c01"]})})
    def table(source: pa.Table) -> None:
        seen.append(source.column_names)

    @dg.asset(ins={"source": dg.AssetIn(metadata={"columns": ["c07"]})})
    def stream(source: pa.RecordBatchReader) -> None:
        seen.append(source.schema.names)

    run(source)
    store.reset_metrics()
    run(source, table, stream, selection=["table", "stream"])

    assert sorted(seen) == [["c03", "c01"], ["c07"]]
    whole = sum(info.size for info in store.list_files("source"))
    assert store.metrics()["bytes_read"] < whole


@pytest.mark.parametrize("columns", ["id", 3, ["id", 7]])
def test_columns_of_a_wrong_type_are_refused(run: Callable[..., Any], columns: Any) -> None:
    @dg.asset
    def orders() -> pa.Table:
        return ROWS

    @dg.asset(ins={"orders": dg.AssetIn(metadata={"columns": columns})})
    def consumer(orders: pa.Table) -> None:
        raise AssertionError(orders)

    result = run(orders, consumer, raise_on_error=False)

    assert "'columns'" in result.failure_data_for_node("consumer").error.to_string()


def test_ops_are_kept_by_run_step_and_output(store: pds.Store, datasets: pds.ParquetDatasetStore) -> None:
    @dg.op(out={"left": dg.Out(), "right": dg.Out()})
    def produce() -> tuple[pa.Table, pa.Table]:
        return ROWS.slice(0, 1), ROWS.slice(1)

    @dg.op
    def join(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.concat_tables([left, right])

    @dg.job
    def work() -> None:
        join(*produce())

    result = work.execute_in_process(resources={"io_manager": dagster_io_manager(store)})

    run_id = result.run_id
    assert datasets.list_datasets() == sorted(
        [f"{run_id}/produce/left", f"{run_id}/produce/right", f"{run_id}/join/result"]
    )
    assert datasets.read_dataset(f"{run_id}/join/result").equals(ROWS)
    assert datasets.read_manifest(f"{run_id}/join/result").run_id == run_id


def test_dynamic_outputs_have_a_key_each(store: pds.Store, datasets: pds.ParquetDatasetStore) -> None:
    @dg.op(out=dg.DynamicOut())
    def split() -> Iterator[dg.DynamicOutput[Any]]:
        for index in range(3):
            yield dg.DynamicOutput(ROWS.slice(index, 1), mapping_key=f"n{index}")

    @dg.op
    def identity(rows: pa.Table) -> pa.Table:
        return rows

    @dg.op
    def collect(tables: list[Any]) -> pa.Table:
        return pa.concat_tables(tables)

    @dg.job
    def work() -> None:
        collect(split().map(identity).collect())

    result = work.execute_in_process(resources={"io_manager": dagster_io_manager(store)})

    assert datasets.read_dataset(f"{result.run_id}/collect/result").equals(ROWS)
    assert len(datasets.list_datasets(result.run_id)) == 7


def test_a_retry_replaces_what_the_first_try_wrote(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    tries: list[int] = []

    class FailsAfterWriting(DatasetIOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            super().handle_output(context, obj)
            if len(tries) == 1:
                msg = "lost after the write"
                raise RuntimeError(msg)

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
    def orders() -> pa.Table:
        tries.append(1)
        return ROWS.slice(0, len(tries))

    result = run(orders, manager=FailsAfterWriting(datasets))

    assert result.success
    assert len(tries) == 2
    assert datasets.read_dataset("orders").num_rows == 2
    assert datasets.read_manifest("orders").run_id == result.run_id


def test_materializing_again_replaces(run: Callable[..., Any], datasets: pds.ParquetDatasetStore) -> None:
    sizes = iter([3, 1])

    @dg.asset
    def orders() -> pa.Table:
        return ROWS.slice(0, next(sizes))

    first, second = run(orders), run(orders)

    assert first.run_id != second.run_id
    assert datasets.read_manifest("orders").run_id == second.run_id
    assert datasets.read_dataset("orders").num_rows == 1


def test_options_reach_the_dataset(run: Callable[..., Any], store: pds.Store) -> None:
    @dg.asset
    def orders() -> pa.Table:
        return ROWS

    run(orders, manager=dagster_io_manager(store, "parquet-dataset", max_rows_per_file=2))

    parts = [info.name for info in store.list_files("orders")]
    assert {"part-00000.parquet", "part-00001.parquet"} <= set(parts)


@pytest.mark.parametrize(
    "options",
    [{"serializer": "pickle"}, {"compression": "rar"}, {"max_rows_per_file": 0}],
    ids=str,
)
def test_bad_options_are_refused_at_once(store: pds.Store, options: dict[str, Any]) -> None:
    store.reset_metrics()
    with pytest.raises(pds.InvalidInput, match=next(iter(options))):
        dagster_io_manager(store, **options)
    assert store.metrics()["requests"] == 0


def test_a_failed_write_leaves_nothing(local_store: pds.Store, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """Not even hidden files: the parts of the batches before the failure are removed."""

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(20):
            yield pa.record_batch({"n": np.random.default_rng(1).random(200_000)})
        raise RuntimeError("the source broke")

    @dg.asset
    def broken() -> Any:
        return pa.RecordBatchReader.from_batches(pa.schema([("n", pa.float64())]), batches())

    resources = {"io_manager": dagster_io_manager(local_store, max_rows_per_file=100_000)}
    result = dg.materialize([broken], instance=instance, resources=resources, raise_on_error=False)
    assert "the source broke" in result.failure_data_for_node("broken").error.to_string()
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []

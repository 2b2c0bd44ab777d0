"""Retries and re-executions under Dagster: which rows a table has after them."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import pds
from pds.dagster import PdsTableIOManager

pytestmark = pytest.mark.sampled(2)

MODES = ("append", "upsert", "overwrite")


@pytest.fixture
def lake(tmp_path: Path) -> pds.Store:
    return pds.Store(tmp_path / "lake")


class LosesAnswers(PdsTableIOManager):
    """The first writes are committed, and then the step fails."""

    failures: int = 1

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        super().handle_output(context, obj)
        attempts = Path(self.url) / "attempts"
        count = len(attempts.read_text()) if attempts.exists() else 0
        attempts.write_text("x" * (count + 1))
        if count < self.failures:
            message = "lost after the commit"
            raise RuntimeError(message)


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids})


def _ids(lake: pds.Store) -> list[int]:
    return sorted(pds.Table(lake, "orders").scan().to_pyarrow()["id"].to_pylist())


def _make_asset(mode: str, make: Callable[[], Any], retries: int = 1) -> dg.AssetsDefinition:
    @dg.asset(
        metadata={"pds/mode": mode, "pds/key": "id"},
        retry_policy=dg.RetryPolicy(max_retries=retries) if retries else None,
    )
    def orders() -> Any:
        return make()

    return orders


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_with_the_same_rows_commits_nothing(
    lake: pds.Store, instance: dg.DagsterInstance, tmp_path: Path, mode: str
) -> None:
    manager = LosesAnswers(url=str(tmp_path / "lake"))
    result = dg.materialize(
        [_make_asset(mode, lambda: _rows(1, 2))], instance=instance, resources={"io_manager": manager}
    )

    (event,) = result.asset_materializations_for_node("orders")
    (commit,) = pds.Table(lake, "orders").history(1)
    assert _ids(lake) == [1, 2]
    assert commit["version"] == 1
    assert event.metadata["replayed"].value
    assert event.metadata["rows"].value == 2
    assert event.metadata["commit_id"].value == commit["commit_id"]
    assert event.tags["dagster/data_version"] == commit["commit_id"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("mode", "expected"), [("append", [1, 2]), ("upsert", [1, 2, 3]), ("overwrite", [3])])
def test_a_retry_with_other_rows(
    lake: pds.Store, instance: dg.DagsterInstance, tmp_path: Path, mode: str, expected: list[int], stream: bool
) -> None:
    """An append is committed once; the modes that replace rows have those of the last attempt."""
    values = iter([_rows(1, 2), _rows(3)])
    orders = _make_asset(mode, lambda: next(values).to_reader() if stream else next(values))
    manager = LosesAnswers(url=str(tmp_path / "lake"))
    result = dg.materialize([orders], instance=instance, resources={"io_manager": manager})

    (event,) = result.asset_materializations_for_node("orders")
    assert _ids(lake) == expected
    assert event.metadata["rows"].value == (2 if mode == "append" else 1)
    assert event.metadata["replayed"].value == (mode == "append")


def test_an_attempt_whose_rows_were_replaced_is_written_again(
    lake: pds.Store, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """The rows are those of the last attempt, also if they are those of an earlier one."""
    values = iter([_rows(1), _rows(2), _rows(1)])
    manager = LosesAnswers(url=str(tmp_path / "lake"), failures=2)
    orders = _make_asset("overwrite", lambda: next(values), retries=2)
    result = dg.materialize([orders], instance=instance, resources={"io_manager": manager})

    (event,) = result.asset_materializations_for_node("orders")
    (commit,) = pds.Table(lake, "orders").history(1)
    assert _ids(lake) == [1]
    assert event.metadata["commit_id"].value == commit["commit_id"]


@pytest.mark.parametrize(("mode", "expected"), [("append", [1, 1]), ("upsert", [1]), ("overwrite", [1])])
def test_a_new_run_writes_anew(
    lake: pds.Store, instance: dg.DagsterInstance, tmp_path: Path, mode: str, expected: list[int]
) -> None:
    for version in (1, 2):
        resources = {"io_manager": PdsTableIOManager(url=str(tmp_path / "lake"))}
        assert dg.materialize([_make_asset(mode, lambda: _rows(1))], instance=instance, resources=resources).success
        assert pds.Table(lake, "orders").version == version
    assert _ids(lake) == expected


def test_partitions_and_outputs_of_one_run_are_writes_of_their_own(
    lake: pds.Store, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    metadata = {"pds/mode": "append"}

    @dg.multi_asset(outs={"a": dg.AssetOut(metadata=metadata), "b": dg.AssetOut(metadata=metadata)})
    def both() -> tuple[pa.Table, pa.Table]:
        return _rows(1), _rows(1)

    resources = {"io_manager": PdsTableIOManager(url=str(tmp_path / "lake"))}
    dg.materialize([both], instance=instance, resources=resources)
    assert [pds.Table(lake, name).scan().count() for name in ("a", "b")] == [1, 1]


# -- re-execution ------------------------------------------------------------------


def define_job() -> dg.JobDefinition:
    """For processes that are started and killed: `LAKE` is the store, `KILLED` a file that the killed one leaves."""

    class DiesAfterTheCommit(PdsTableIOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            super().handle_output(context, obj)
            mark = Path(os.environ["KILLED"])
            if not mark.exists() and context.asset_key.path == ["orders"]:
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    @dg.asset(metadata={"pds/mode": os.environ["MODE"], "pds/key": "id"})
    def customers() -> pa.Table:
        return _rows(7)

    @dg.asset(deps=[customers], metadata={"pds/mode": os.environ["MODE"], "pds/key": "id"})
    def orders() -> pa.Table:
        return _rows(1, 2)

    manager = DiesAfterTheCommit(url=os.environ["LAKE"])
    defs = dg.Definitions(
        assets=[customers, orders],
        jobs=[dg.define_asset_job("load", executor_def=dg.in_process_executor)],
        resources={"io_manager": manager},
    )
    return defs.resolve_job_def("load")


def _execute(home: str, parent: str | None = None, strategy: str = "all steps") -> None:
    with dg.DagsterInstance.from_config(home) as instance:
        options = None
        if parent is not None and strategy == "from failure":
            options = dg.ReexecutionOptions.from_failure(parent, instance)
        elif parent is not None:
            options = dg.ReexecutionOptions(parent_run_id=parent)
        # The daemon of Dagster sets the tag.
        tags = {"dagster/retry_number": "1"} if strategy == "automatic" else None
        job = dg.reconstructable(define_job)
        dg.execute_job(job, instance, tags=tags, reexecution_options=options, raise_on_error=True)


def _run_process(*arguments: Any) -> int | None:
    """Execute the job in a process of its own, which has none of the definitions that others have loaded."""
    process = multiprocessing.get_context("fork").Process(target=_execute, args=arguments)
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture
def killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a run that was killed after it appended to `orders`."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    values = {"LAKE": tmp_path / "lake", "KILLED": tmp_path / "killed", "MODE": "append", "DAGSTER_HOME": home}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    assert _run_process(str(home)) == -signal.SIGKILL
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (run,) = instance.get_runs()
    return str(run.run_id)


def test_a_run_is_re_executed_twice(lake: pds.Store, tmp_path: Path, killed_run: str) -> None:
    """The first re-execution completes the append of the run; the second, which a person starts, appends anew."""
    home = str(tmp_path / "home")
    assert _run_process(home, killed_run) == 0
    assert _ids(lake) == [1, 2]
    assert _run_process(home, killed_run) == 0
    assert _ids(lake) == [1, 1, 2, 2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", ["from failure", "all steps", "automatic"])
def test_a_killed_run_is_re_executed(
    lake: pds.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, strategy: str
) -> None:
    """The append of the step that was killed is not repeated.

    That of the step which had succeeded is repeated if a person re-executes it.
    """
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    for name, value in {
        "LAKE": str(tmp_path / "lake"),
        "KILLED": str(tmp_path / "killed"),
        "MODE": mode,
        "DAGSTER_HOME": str(home),
    }.items():
        monkeypatch.setenv(name, value)
    assert _run_process(str(home)) == -signal.SIGKILL
    assert _ids(lake) == [1, 2]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (run,) = instance.get_runs()
        instance.report_run_failed(run)

    assert _run_process(str(home), run.run_id, strategy) == 0
    assert _ids(lake) == [1, 2]
    customers = pds.Table(lake, "customers")
    is_append = mode == "append"
    assert customers.version == (1 if strategy == "from failure" or (strategy == "automatic" and is_append) else 2)
    assert customers.scan().count() == (2 if strategy == "all steps" and is_append else 1)
    # Another re-execution is of a run in which the step has succeeded.
    with dg.DagsterInstance.from_config(str(home)) as instance:
        newest = instance.get_runs(limit=1)[0].run_id
    assert _run_process(str(home), newest) == 0
    assert _ids(lake) == ([1, 1, 2, 2] if is_append else [1, 2])

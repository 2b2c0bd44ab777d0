"""Tasks that are tried again, executors that die, attempts that race: nothing shows of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyspark
import pytest
from pyspark import TaskContext, cloudpickle

import pds
import pds.spark
from pds.spark import write
from pds.spark.tasks import MESSAGE_DDL
from servers.process import free_port
from spark.operations import OPERATIONS
from spark.relay import Way

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from tests.python.spark.conftest import Target

    from servers import S3Server

pytestmark = pytest.mark.sampled(2)

# The workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

JOBS = Path(__file__).with_name("jobs.py")
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.log.level": "OFF",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
JOB_SECONDS = 600


def _files_of(key: str, count: int) -> list[str]:
    parts = [f"part-{number:05d}.parquet" for number in range(count)]
    return sorted(f"{key}/{name}" for name in ["_SUCCESS", "manifest.json", *parts])


def _wide(spark: SparkSession) -> DataFrame:
    numbers = spark.range(0, 20_000, 1, numPartitions=4)
    return numbers.selectExpr("id", "sha2(CAST(id AS string), 512) AS name")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_task_that_fails_after_writing_is_tried_again(
    overwrite: bool, spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch, lose_tasks: Any
) -> None:
    if overwrite:
        pds.spark.write_dataset(spark.range(10), target.store, "orders")
    plan = write.message_plan
    monkeypatch.setattr(write, "message_plan", lambda *args: plan(*args).mapInArrow(lose_tasks, MESSAGE_DDL))

    manifest = pds.spark.write_dataset(
        _wide(spark), target.store, "orders", overwrite=overwrite, max_rows_per_file=2500
    )

    assert manifest.row_count == 20_000
    assert target.files() == _files_of("orders", 8)
    assert target.datasets.read_dataset("orders")["id"].to_pylist() == list(range(20_000))
    assert target.datasets.verify_dataset("orders").rows == 20_000


def test_a_task_that_fails_too_often_fails_the_job(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(batches: Any) -> Any:
        messages = list(batches)
        if TaskContext.get().partitionId() == 3:
            raise RuntimeError("lost after writing")
        yield from messages

    plan = write.message_plan
    monkeypatch.setattr(write, "message_plan", lambda *args: plan(*args).mapInArrow(always, MESSAGE_DDL))

    with pytest.raises(Exception, match="lost after writing"):
        pds.spark.write_dataset(_wide(spark), target.store, "orders")

    assert target.files() == []
    assert not target.datasets.dataset_exists("orders")
    monkeypatch.undo()
    assert pds.spark.write_dataset(_wide(spark), target.store, "orders").row_count == 20_000
    assert target.files() == _files_of("orders", 4)


def test_of_two_attempts_of_a_task_one_is_published(spark: SparkSession, target: Target) -> None:
    df = _wide(spark)
    job = target.datasets.begin_write("orders")
    schema = write.check_frame(df)
    first = write.message_plan(df, job, schema).collect()
    second = write.message_plan(df, job, schema).collect()
    later = [row.__class__(**{**row.asDict(), "attempt": 1}) for row in second]

    manifest = write.publish(job, [*later[2:], *first, *later[:2]], schema)

    assert manifest.row_count == 20_000
    assert target.files() == _files_of("orders", 4)
    assert target.datasets.read_dataset("orders")["id"].to_pylist() == list(range(20_000))


# --- sessions of their own ---------------------------------------------------


@pytest.fixture(scope="module")
def places(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, str]]]:
    """URL and options of a folder and of a prefix on the S3 server."""
    root = tmp_path_factory.mktemp("places")
    return {
        "local": (root.as_uri(), {}),
        "s3": (s3_server.url(f"faults-{root.name}"), s3_server.options()),
    }


Run = tuple[str, str, list[int], int]


def _run(
    scene: str,
    master: str,
    places: dict[str, tuple[str, dict[str, str]]],
    operations: Sequence[Run] = (),
    **conf: str,
) -> dict[str, Any]:
    """What a job in a process of its own has seen: by target and key, and how many requests of each operation."""
    own = {target: (f"{url}/{scene}", options) for target, (url, options) in places.items()}
    config = json.dumps({"targets": own, "conf": {**SETTINGS, **conf}, "operations": operations})
    modules = os.pathsep.join([str(JOBS.parents[1]), os.environ.get("PYTHONPATH", "")])
    job = subprocess.run(
        [sys.executable, str(JOBS), scene, master, config],
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": modules},
    )
    assert job.returncode == 0, job.stderr[-4000:]
    seen: dict[str, Any] = json.loads(job.stdout.splitlines()[-1])
    assert 0 not in seen["operations"], job.stderr[-4000:]
    assert len(seen.pop("operations")) == len(operations)
    return seen


def _check(
    seen: dict[str, Any],
    scene: str,
    places: dict[str, tuple[str, dict[str, str]]],
    s3_server: S3Server,
) -> None:
    """Every dataset has each row once, in order, and nothing lies beside it."""
    keys = sorted({key for by_key in seen.values() for key in by_key})
    for by_key in seen.values():
        for result in by_key.values():
            assert result["parts"] == [f"part-{number:05d}.parquet" for number in range(6)]
            assert result["row_count"] == result["verified"] == 60_000
            assert result["exact"]
    expected = sorted(name for key in keys for name in _files_of(key, 6))
    root = Path(places["local"][0].removeprefix("file://")) / scene
    found = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    assert sorted(found) == expected
    prefix = places["s3"][0].removeprefix(s3_server.url()).strip("/") + f"/{scene}/"
    names = [key.removeprefix(prefix) for key in s3_server.keys(prefix)]
    assert [name for name in names if not name.startswith("pipelines/")] == expected
    for result in seen["s3"].values():
        pipeline = result["pipeline"]
        assert (pipeline["same"], pipeline["rows"]) == (True, 2 * 59_500)
        by_spark, here = pipeline["tasks"][:2], pipeline["tasks"][2:]
        assert min(by_spark[0]) > 2
        assert min(by_spark[1]) > 0
        assert {count for tasks in here for count in tasks} == {0}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.spark
def test_executors_are_processes_of_their_own_and_may_be_killed(
    places: dict[str, tuple[str, dict[str, str]]], s3_server: S3Server
) -> None:
    seen = _run("cluster", "local-cluster[2,1,1024]", places)

    _check(seen, "cluster", places, s3_server)


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[str]:
    """A standalone master with a worker on each of two addresses, as Spark asks for speculation."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    own = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_daemon([f"{deploy}.master.Master", *own], "127.0.0.1", tmp_path))
        for host in ("127.0.0.2", "127.0.0.3"):
            limits = ["--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / host)]
            worker = [f"{deploy}.worker.Worker", "--host", host, "--webui-port", "0", *limits]
            stack.enter_context(_daemon([*worker, master], host, tmp_path))
        yield master


@contextlib.contextmanager
def _daemon(arguments: list[str], host: str, folder: Path) -> Iterator[None]:
    """One of Spark's servers, ended with all its children."""
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"}
    with (folder / f"{arguments[0]}-{host}.log").open("wb") as log:
        process = psutil.Popen(
            [str(script), *arguments],
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield
    finally:
        family = [process, *process.children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=10)


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.task.duration.threshold": "1s",
}


def _racing() -> list[Run]:
    """Operations of which a task runs twice: both attempts write, or the first one after the commit."""
    runs: list[Run] = []
    for operation in OPERATIONS:
        of_job = operation.first_job
        runs += [(operation.name, Way.TWICE.value, [1], of_job + 1), (operation.name, Way.STALLED.value, [1], 0)]
        if operation.has_two_jobs:
            # The other attempt of the first job writes, too.
            runs.append((operation.name, Way.STALLED.value, [of_job + 1], 0))
    return runs


@pytest.mark.slow
@pytest.mark.spark
def test_of_two_racing_attempts_one_is_published(
    two_hosts: str, places: dict[str, tuple[str, dict[str, str]]], s3_server: S3Server
) -> None:
    seen = _run("standalone", two_hosts, places, **SPECULATION)

    _check(seen, "standalone", places, s3_server)
    for by_key in seen.values():
        # Without another attempt it would have lagged longer.
        assert by_key["speculated"]["seconds"] < 100


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.spark
def test_of_two_racing_attempts_of_any_operation_one_counts(
    two_hosts: str, places: dict[str, tuple[str, dict[str, str]]]
) -> None:
    _run("operations", two_hosts, places, _racing(), **SPECULATION)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("way", [Way.FAILED, Way.KILLED, Way.EXECUTOR_KILLED, Way.LATE], ids=lambda way: way.value)
def test_executors_that_are_killed_in_any_operation_change_nothing(
    places: dict[str, tuple[str, dict[str, str]]], way: Way
) -> None:
    runs: list[Run] = []
    for operation in OPERATIONS:
        numbers = [1, operation.first_job + 2] if operation.has_two_jobs else [1]
        runs.append((operation.name, way.value, numbers, 0))
    _run("operations", "local-cluster[2,1,1024]", places, runs)


@pytest.mark.slow
@pytest.mark.spark
def test_connect_sessions_write_and_read(places: dict[str, tuple[str, dict[str, str]]], s3_server: S3Server) -> None:
    seen = _run("connect", "local[2,4]", places)

    _check(seen, "connect", places, s3_server)

"""One Spark session for the run, and the places its jobs write to."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pytest
import remote_store
from pyspark import TaskContext
from pyspark.sql import SparkSession, datasource
from remote_store.backends import LocalBackend, S3PyArrowBackend

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from servers import S3Server

LOOPBACK = "127.0.0.1"
# They look for what Spark has when they are imported.
ASKING = ("versions", "source", "stream", "admission")


@pytest.fixture(scope="session", autouse=True)
def spark_environment() -> None:
    """What the JVM and the workers it starts need to know."""
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores that tries a task up to four times, in a zone that is not UTC.

    The variable PDS_SPARK_MASTER names another master.
    """
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.local.dir": f"{folder}/local",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "America/St_Johns",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.timeType.enabled": "true",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(os.environ.get("PDS_SPARK_MASTER", "local[2,4]")).appName("pds tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # Tasks that are made to fail would fill the log.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def become_older(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that hides what an older version of Spark does not have: 4.0 or 4.1."""

    def hide(version: str) -> None:
        # So that there is something to restore.
        for name in ASKING:
            importlib.import_module(f"pds.spark.{name}")
        for name in ASKING:
            monkeypatch.delitem(sys.modules, f"pds.spark.{name}")
            monkeypatch.delattr(pds.spark, name)
        monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
        for name in ("getDefaultReadLimit", "reportLatestOffset"):
            monkeypatch.delattr(datasource.DataSourceStreamReader, name)
        if version == "4.0":
            monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")

    return hide


@dataclasses.dataclass(frozen=True)
class Target:
    """An empty place, and how each reader gets to it."""

    store: pds.Store
    remote: remote_store.Store
    arrow: pyarrow.fs.FileSystem
    files: Callable[[], list[str]]
    """Everything that lies there, whatever its name, sorted."""
    options: dict[str, str] = dataclasses.field(default_factory=dict)
    """The options of the store."""

    @property
    def datasets(self) -> pds.ParquetDatasetStore:
        return pds.ParquetDatasetStore(self.store)

    def by_arrow(self, key: str) -> pa.Table:
        """The dataset as pyarrow alone reads it, in the order of its parts."""
        parts = [f"{key}/{part}" for part in self.datasets.read_manifest(key).parts]
        dataset = pyarrow.dataset.dataset(parts, format="parquet", filesystem=self.arrow)
        return dataset.to_table()


def _local_files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.fixture
def local_target(tmp_path: Path) -> Iterator[Target]:
    """A folder."""
    root = tmp_path / "target"
    root.mkdir()
    arrow = pyarrow.fs.SubTreeFileSystem(str(root), pyarrow.fs.LocalFileSystem())
    remote = remote_store.Store(LocalBackend(str(root)))
    with pds.Store(root.as_uri()) as store, remote:
        yield Target(store, remote, arrow, lambda: _local_files(root))


@pytest.fixture
def s3_target(s3_server: S3Server, s3_prefix: str, s3_store: pds.Store) -> Iterator[Target]:
    """A prefix on the S3 server."""
    base = f"{s3_server.bucket}/{s3_prefix}"
    arrow = pyarrow.fs.SubTreeFileSystem(base, s3_server.arrow_filesystem())
    strip = len(s3_prefix) + 1

    def files() -> list[str]:
        return [key[strip:] for key in s3_server.keys(f"{s3_prefix}/")]

    backend = S3PyArrowBackend(**s3_server.remote_store_options())
    with remote_store.Store(backend, root_path=s3_prefix) as remote:
        yield Target(s3_store, remote, arrow, files, s3_server.options())


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def target(request: pytest.FixtureRequest) -> Target:
    """An empty place of each kind in turn."""
    chosen: Target = request.getfixturevalue(f"{request.param}_target")
    return chosen


@pytest.fixture
def one_target(request: pytest.FixtureRequest) -> Target:
    """An empty folder; a prefix on the S3 server for a test with that marker."""
    kind = "s3" if request.node.get_closest_marker("s3") else "local"
    chosen: Target = request.getfixturevalue(f"{kind}_target")
    return chosen


@pytest.fixture
def lose_tasks() -> Callable[[Any], Iterator[Any]]:
    """A function for `mapInArrow`: two tasks fail three times each after they have written."""

    # The workers cannot import this module: a function within one is sent whole.
    def lose(batches: Any) -> Iterator[Any]:
        messages = list(batches)
        context = TaskContext.get()
        if context.partitionId() in (1, 2) and context.attemptNumber() < 3:
            raise RuntimeError("lost after writing")
        yield from messages

    return lose

"""`pds.spark.enable`: what it sets in a session, what it leaves, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types

import pds.spark
from pds.spark.settings import BatchLimits, batch_limit_settings, batch_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from tests.python.spark.conftest import Target

ARROW = "spark.sql.execution.arrow.pyspark.enabled"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
SOCKETS = "spark.python.unix.domain.socket.enabled"
REUSE = "spark.python.worker.reuse"
UNLIMITED = "2147483647"


@pytest.fixture(autouse=True)
def unset(spark: SparkSession) -> Iterator[None]:
    yield
    for name in (ARROW, RECORDS, BYTES):
        spark.conf.unset(name)


class Conf:
    """The settings of a session that was started with these."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802 as PySpark names it
        return dict(self.values)

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value


class Session:
    """A session of which only the settings count."""

    def __init__(self, **values: str) -> None:
        self.conf = Conf(values)


def _sizes(batches):  # noqa: ANN001, ANN202 the worker gets this function by value, types and all
    import pyarrow as pa  # noqa: PLC0415 as above

    for batch in batches:
        yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int32())})


def test_what_it_says_is_what_it_set(spark: SparkSession) -> None:
    before = spark.conf.getAll
    result = pds.spark.enable(spark)
    after = spark.conf.getAll
    assert {name: after[name] for name in result.changed} == {name: new for name, (_, new) in result.changed.items()}
    assert {name: before.get(name) for name in result.changed} == {
        name: old for name, (old, _) in result.changed.items()
    }
    assert {name for name in after if after[name] != before.get(name)} == set(result.changed)
    assert {RECORDS, BYTES} <= set(result.changed)
    assert all(spark.conf.isModifiable(name) for name in result.changed)
    # The session of the tests was started with what counts only then.
    assert result.at_start == {}
    for name, (_, new) in result.changed.items():
        assert f"{name}={new}" in str(result)


def test_batches_are_as_it_says(spark: SparkSession) -> None:
    sizes = spark.range(0, 10_000, 1, numPartitions=1).mapInArrow(_sizes, "rows int")
    pds.spark.enable(spark, max_row_bytes=64 << 10)
    assert [row.rows for row in sizes.collect()] == [1024] * 9 + [784]
    pds.spark.enable(spark, max_row_bytes=1)
    assert [row.rows for row in sizes.collect()] == [10_000]
    assert spark.conf.get(RECORDS) == "100000"


def test_again_it_changes_nothing(spark: SparkSession) -> None:
    pds.spark.enable(spark)
    result = pds.spark.enable(spark)
    assert (result.changed, result.kept) == ({}, {})


def test_what_the_user_set_is_kept(spark: SparkSession) -> None:
    spark.conf.set(BYTES, "8m")
    spark.conf.set(ARROW, "false")
    result = pds.spark.enable(spark)
    assert result.kept == {BYTES: "8m", ARROW: "false"}
    # Without the limit of bytes that of rows would have no reason.
    assert result.changed == {}
    assert (spark.conf.get(BYTES), spark.conf.get(ARROW)) == ("8m", "false")
    assert "8m" in str(result)


def test_rows_of_unknown_width_keep_the_limit_of_spark(spark: SparkSession) -> None:
    pds.spark.enable(spark)
    wide = batch_limits(types.StructType.fromDDL("b binary"))
    with batch_limit_settings(spark, wide):
        assert spark.conf.get(BYTES) == str(64 << 20)
        assert spark.conf.get(RECORDS) == "10000"
    assert spark.conf.get(BYTES) == UNLIMITED
    # Known to be narrow, a batch has more rows than for those of any frame.
    with batch_limit_settings(spark, BatchLimits(100_000, int(UNLIMITED))):
        assert spark.conf.get(RECORDS) == "100000"
    spark.conf.set(BYTES, "8m")
    with batch_limit_settings(spark, wide):
        assert spark.conf.get(BYTES) == "8m"


def test_what_counts_only_at_the_start_is_named() -> None:
    session: Any = Session(**{REUSE: "false"})
    result = pds.spark.enable(session)
    assert result.at_start == {SOCKETS: "true", REUSE: "true"}
    assert session.conf.values[REUSE] == "false"
    assert SOCKETS not in session.conf.values
    assert f"{SOCKETS}=true" in str(result)
    assert f"{REUSE}=true" in str(result)


def test_beside_a_running_action_it_counts_afterwards(spark: SparkSession) -> None:
    with batch_limit_settings(spark, BatchLimits(7, 64 << 20)):
        result = pds.spark.enable(spark)
        assert spark.conf.get(RECORDS) == "7"
        assert result.changed[RECORDS] == (None, "4096")
        assert result.kept == {}
    assert (spark.conf.get(RECORDS), spark.conf.get(BYTES)) == ("4096", UNLIMITED)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "1"])
def test_a_size_must_be_a_positive_number(size: Any, spark: SparkSession) -> None:
    with pytest.raises((pds.InvalidInput, pds.InvalidType), match="max_row_bytes"):
        pds.spark.enable(spark, max_row_bytes=size)


def test_only_a_session_has_settings() -> None:
    nothing: Any = None
    with pytest.raises(pds.InvalidType, match="SparkSession"):
        pds.spark.enable(nothing)


def test_the_format_writes_and_reads_the_same_rows(spark: SparkSession, target: Target) -> None:
    df = spark.range(0, 30_000, 1, numPartitions=3).selectExpr("id", "repeat('x', cast(id % 50 AS int)) AS text")
    storage = {f"storage.{name}": value for name, value in target.options.items()}
    pds.spark.enable(spark)
    url = f"{target.store.url}/table"
    df.write.format("pds").options(**storage).mode("append").save(url)
    rows = spark.read.format("pds").options(**storage).load(url).orderBy("id")
    found = rows.toArrow()
    # The table that the format makes takes nulls.
    assert found.equals(df.toArrow().cast(found.schema))

"""The session settings around an action: what they are set to, and that they are put back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

import pds.spark
from pds.spark.settings import BatchLimits, batch_limit_settings, batch_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from tests.python.spark.conftest import Target

RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNLIMITED = 2147483647
DEFAULTS = BatchLimits(10_000, 64 << 20)


@pytest.fixture(autouse=True)
def unset(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(RECORDS)
    spark.conf.unset(BYTES)


def _settings(spark: SparkSession) -> tuple[str | None, str | None]:
    explicit = spark.conf.getAll
    return explicit.get(RECORDS), explicit.get(BYTES)


@pytest.mark.parametrize(
    ("ddl", "limits"),
    [
        ("a int", BatchLimits(100_000, UNLIMITED)),
        (", ".join(f"c{n} double" for n in range(200)), BatchLimits(41_943, UNLIMITED)),
        ("a struct<x: decimal(10,2), y: timestamp>", BatchLimits(100_000, UNLIMITED)),
        ("a bigint, s string", BatchLimits(3_853, UNLIMITED)),
        (", ".join(f"c{n} string" for n in range(5)), BatchLimits(3_120, UNLIMITED)),
        ("a bigint, b binary", DEFAULTS),
        ("a array<int>", DEFAULTS),
        ("a struct<m: map<string, int>>", DEFAULTS),
        ("a variant", DEFAULTS),
        ("", BatchLimits(100_000, UNLIMITED)),
    ],
)
def test_limits_follow_the_width_of_a_row(ddl: str, limits: BatchLimits) -> None:
    assert batch_limits(StructType.fromDDL(ddl) if ddl else StructType()) == limits


def test_an_action_runs_under_them(spark: SparkSession, local_target: Target) -> None:
    numbers = spark.range(0, 300_000, 1, numPartitions=1)
    sizes = numbers.mapInArrow(_sizes, "rows int")

    with batch_limit_settings(spark, batch_limits(numbers.schema)):
        assert [row.rows for row in sizes.collect()] == [100_000] * 3
    assert {row.rows for row in sizes.collect()} == {10_000}


def _sizes(batches):  # noqa: ANN001, ANN202 the worker gets this function by value, types and all
    import pyarrow as pa  # noqa: PLC0415 as above

    for batch in batches:
        yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int32())})


@pytest.mark.parametrize("before", [(None, None), ("123", None), ("500000", "8m"), ("0", "1k")])
def test_settings_are_put_back(
    before: tuple[str | None, str | None], spark: SparkSession, local_target: Target
) -> None:
    for name, value in zip((RECORDS, BYTES), before, strict=True):
        if value is not None:
            spark.conf.set(name, value)

    pds.spark.write_dataset(spark.range(10), local_target.store, "numbers")
    assert _settings(spark) == before

    broken = spark.range(10).select(f.raise_error(f.lit("broken on purpose")).alias("x"))
    with pytest.raises(Exception, match="broken on purpose"):
        pds.spark.write_dataset(broken, local_target.store, "broken")
    assert _settings(spark) == before


@pytest.mark.parametrize(
    ("before", "within"),
    [
        ((None, None), ("100000", str(UNLIMITED))),
        (("123", None), ("123", str(UNLIMITED))),
        (("500000", "8m"), ("100000", "8m")),
        (("0", None), ("100000", str(UNLIMITED))),
    ],
)
def test_what_the_user_set_stays_a_bound(
    before: tuple[str | None, str | None], within: tuple[str, str], spark: SparkSession
) -> None:
    for name, value in zip((RECORDS, BYTES), before, strict=True):
        if value is not None:
            spark.conf.set(name, value)

    with batch_limit_settings(spark, BatchLimits(100_000, UNLIMITED)):
        assert _settings(spark) == within


def test_actions_of_two_threads_share_the_least(spark: SparkSession) -> None:
    inside, done = threading.Event(), threading.Event()

    def narrow() -> None:
        with batch_limit_settings(spark, DEFAULTS):
            inside.set()
            assert done.wait(30)

    with ThreadPoolExecutor(1) as pool:
        with batch_limit_settings(spark, BatchLimits(100_000, UNLIMITED)):
            thread = pool.submit(narrow)
            assert inside.wait(30)
            assert _settings(spark) == ("10000", str(64 << 20))
        assert _settings(spark) == ("10000", str(64 << 20))
        done.set()
        thread.result()
    assert _settings(spark) == (None, None)


class _Session:
    """A session whose server fails at a setting."""

    def __init__(self) -> None:
        self.conf = self
        self.values: dict[str, object] = {}
        self.broken: str | None = None

    @property
    def getAll(self) -> dict[str, object]:  # noqa: N802 as Spark names it
        return dict(self.values)

    def set(self, name: str, value: object) -> None:
        if name == self.broken:
            raise OSError(name)
        self.values[name] = value

    def unset(self, name: str) -> None:
        if name == self.broken:
            raise OSError(name)
        self.values.pop(name, None)


@pytest.mark.parametrize("broken", [RECORDS, BYTES])
def test_a_setting_that_fails_leaves_nothing_behind(broken: str) -> None:
    session: Any = _Session()
    session.broken = broken
    with pytest.raises(OSError, match=broken), batch_limit_settings(session, DEFAULTS):
        pytest.fail("the action runs without its limits")
    session.broken = None
    with batch_limit_settings(session, BatchLimits(7, UNLIMITED)):
        assert session.values == {RECORDS: 7, BYTES: UNLIMITED}
    assert session.values == {}


@pytest.mark.parametrize("broken", [RECORDS, BYTES])
def test_one_setting_is_put_back_if_the_other_fails(broken: str) -> None:
    session: Any = _Session()
    with pytest.raises(OSError, match=broken), batch_limit_settings(session, DEFAULTS):
        session.broken = broken
    assert list(session.values) == [broken]

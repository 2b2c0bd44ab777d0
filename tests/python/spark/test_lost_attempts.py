"""Attempts of tasks that end, or whose requests are late, after they have written: each operation is done once.

What was written for an attempt that does not count is in no version, whenever it comes, and a vacuum removes it and
nothing else. Attempts that run side by side need two hosts, and executors that are killed a cluster: `jobs.py`.
"""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

import pytest

import pds
from spark.operations import OPERATIONS, Operation, Place, run_beside_vacuum, run_struck
from spark.relay import Relay, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from servers import S3Server

WAYS = (Way.FAILED, Way.KILLED, Way.LATE)
# Every operation with one of the ways, and every way with some of the operations.
CASES = list(zip(OPERATIONS, itertools.cycle(WAYS), strict=False))
ALL_CASES = list(itertools.product(OPERATIONS, WAYS))


def _name(case: tuple[Operation, Way]) -> str:
    return f"{case[0].name}, {case[1].value}"


@pytest.fixture(scope="module")
def relay(s3_server: S3Server) -> Iterator[Relay]:
    with Relay(s3_server.endpoint) as relay:
        yield relay


@pytest.fixture
def new_place(s3_server: S3Server, relay: Relay, spark: SparkSession, tmp_path: Path) -> Callable[[], Place]:
    def make() -> Place:
        name = f"test-{uuid.uuid4().hex}"
        url, options = s3_server.url(name), s3_server.at(relay.endpoint).options()
        by_relay = pds.Store(url, storage_options=options)
        direct = pds.Store(url, storage_options=s3_server.options())
        folder = tmp_path / name
        folder.mkdir()
        return Place(spark, by_relay, direct, options, folder)

    return make


@pytest.mark.s3
@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_some_attempts_are_lost(case: tuple[Operation, Way], new_place: Callable[[], Place], relay: Relay) -> None:
    operation, way = case
    # Of a job, and of a later one if there are two. A task may be tried four times.
    numbers = (1, operation.first_job + 2) if operation.has_two_jobs else (1,)
    assert len(run_struck(operation, new_place(), relay, way, numbers)) == len(numbers)


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("case", ALL_CASES, ids=_name)
def test_any_attempt_is_lost(case: tuple[Operation, Way], new_place: Callable[[], Place], relay: Relay) -> None:
    operation, way = case
    for number in itertools.count(1):
        if not run_struck(operation, new_place(), relay, way, [number]):
            break
    assert number > operation.first_job


@pytest.mark.s3
@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.vacuum and each.name != "build"], ids=str)
def test_a_vacuum_removes_nothing_of_an_operation(
    operation: Operation, new_place: Callable[[], Place], relay: Relay
) -> None:
    # When tasks have written, and others have not yet.
    run_beside_vacuum(operation, new_place(), relay, 2)

"""How often an update waits for the store: requests that are sent without waiting for an answer are one wave."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import pds
from fault_runs import PATIENT
from scripted_s3 import Request, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

INT = pa.int64()
ORDER = pa.struct([("customer", INT), ("amount", INT)])
ORDERS, CUSTOMERS, COUNTRIES = 60_000, 12_000, 300
# So long no request comes before a wave counts as complete.
QUIET_SECONDS = 0.3


class Waves:
    """Holds back each request until no more come; then those that wait are let through together."""

    def __init__(self, server: ScriptedS3) -> None:
        self.waves: list[list[str]] = []
        self._server = server
        self._lock = threading.Lock()
        self._last = 0.0
        self._held: list[str] = []
        self._released = threading.Event()

    def __enter__(self) -> list[list[str]]:
        self._server.before = self.hold
        return self.waves

    def __exit__(self, *_error: object) -> None:
        self._server.before = None
        assert not self._server.failures

    def hold(self, request: Request) -> None:
        with self._lock:
            is_first = not self._held
            self._held.append(str(request))
            self._last = time.monotonic()
            released = self._released
        if is_first:
            self._wait_until_quiet()
            with self._lock:
                self.waves.append(self._held)
                self._held, self._released = [], threading.Event()
            released.set()
        released.wait()

    def _wait_until_quiet(self) -> None:
        while True:
            with self._lock:
                left = self._last + QUIET_SECONDS - time.monotonic()
            if left <= 0:
                return
            time.sleep(left)


def some_ids(count: int, seed: int) -> np.ndarray:
    """Ids in order, of which no page compresses to nothing."""
    return np.sort(np.random.default_rng(seed).choice(2**55, count, replace=False))


ORDER_IDS, CUSTOMER_IDS = some_ids(ORDERS, 1), some_ids(CUSTOMERS, 2)


def some_orders(positions: Iterable[int], seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    keys = ORDER_IDS[list(positions)]
    customers = pa.array(chance.choice(CUSTOMER_IDS, len(keys)))
    amounts = pa.array(chance.integers(1, 10**12, len(keys)))
    return pa.table({"key": keys, "value": pa.StructArray.from_arrays([customers, amounts], ["customer", "amount"])})


def declare_functions(pipeline: pds.Pipeline) -> None:
    orders = pipeline.source("orders", key=INT, value=ORDER)

    @pipeline.producer(orders, key=INT, value=INT)
    def amounts(_: int, values: Iterable[dict[str, int]]) -> Iterator[tuple[int, int]]:
        for order in values:
            yield order["customer"], order["amount"]

    @pipeline.producer(amounts, key=INT, value=INT)
    def by_country(customer: int, values: Iterable[int]) -> Iterator[tuple[int, int]]:
        yield customer % COUNTRIES, sum(values)

    @pipeline.producer(by_country, key=INT, value=INT)
    def by_total(country: int, values: Iterable[int]) -> Iterator[tuple[int, int]]:
        yield sum(values) % 1000, country


def declare_expressions(pipeline: pds.Pipeline) -> None:
    pipeline.source("orders", key=INT, value=ORDER)
    pipeline.select("orders", key="customer", value="amount", name="amounts")
    pipeline.aggregate("amounts", aggregates={"sum": ("value", "sum")}, name="sums")
    pipeline.select("sums", key=f"key % {COUNTRIES}", value="sum", name="by_country")


def open_pipeline(server: ScriptedS3, client: str, declare: Callable[[pds.Pipeline], None]) -> pds.Pipeline:
    """As a process that knows nothing of the store: what is kept of it is kept by each `Store`."""
    pipeline = pds.Pipeline(pds.Store("s3://bucket/lake", server.options(client) | PATIENT), "p")
    declare(pipeline)
    return pipeline


def check_sums(pipeline: pds.Pipeline) -> None:
    value = pipeline["orders"].read()["value"].combine_chunks()
    assert len(value) == ORDERS
    countries = pa.array(value.field("customer").to_numpy() % COUNTRIES)
    orders = pa.table({"country": countries, "amount": value.field("amount")})
    expected = orders.group_by("country").aggregate([("amount", "sum")]).sort_by("country")
    stored = pipeline["by_country"].read().group_by("target_key").aggregate([("value", "sum")]).sort_by("target_key")
    assert stored["target_key"].equals(expected["country"])
    assert stored["value_sum"].equals(expected["amount_sum"])


def count(waves: list[list[str]]) -> int:
    """Without the look for a newer version before the commit, which an update has that took two seconds to here."""
    looks = ("get lake/p/_latest_manifest", "head lake/p/manifest/")
    return sum(n == 0 or not all(request.startswith(looks) for request in wave) for n, wave in enumerate(waves))


# The most waves of a process that has made updates before, and of a new one.
CASES = [
    pytest.param(declare_functions, 7, 9, id="functions"),
    pytest.param(declare_expressions, 8, 10, id="expressions"),
]


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("declare", "most_warm", "most_cold"), CASES)
def test_how_often_an_update_of_one_key_waits(
    declare: Callable[[pds.Pipeline], None], most_warm: int, most_cold: int
) -> None:
    """Of tables whose files are longer than what is read at once to open them.

    Where the machine is so slow that a request comes late, its wave counts as two: the better of two updates is taken.
    """
    with ScriptedS3() as server:
        builder = open_pipeline(server, "builder", declare)
        builder.update(orders=pds.Changes(some_orders(range(ORDERS), 0)))
        warm = open_pipeline(server, "warm", declare)
        # Their runs are about keys on both sides of those that are counted.
        warm.update(orders=pds.Changes(some_orders([10, ORDERS - 10], 1)))
        warm.update(orders=pds.Changes(some_orders([1000, ORDERS - 1000], 2)))

        def waves_of(pipeline: pds.Pipeline, number: int) -> list[list[str]]:
            with Waves(server) as waves:
                pipeline.update(orders=pds.Changes(some_orders([ORDERS // number], number)))
            return waves

        of_warm = min((waves_of(warm, number) for number in (3, 4)), key=count)
        assert count(of_warm) <= most_warm, of_warm
        cold = (open_pipeline(server, f"cold{number}", declare) for number in (5, 6))
        of_cold = min((waves_of(pipeline, number) for number, pipeline in enumerate(cold, 5)), key=count)
        assert count(of_cold) <= most_cold, of_cold
        check_sums(builder)

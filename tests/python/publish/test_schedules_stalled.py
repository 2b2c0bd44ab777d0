"""A writer stands still while others go on, and then goes on itself."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import pds
from publish.harness import INTENT, KEY, LEASE, MANIFEST, MARKER, SIZES, Call, wait_until, world
from scripted_s3 import CLASS_A, CLASS_B

if TYPE_CHECKING:
    from collections.abc import Callable

    from publish.children import Children
    from publish.harness import World

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]

PATIENT = {"stall_timeout": "60", "retry_timeout": "120"}
# Parts of the dataset that is there (0: none), of the stopped write, and of the one that comes between.
LAYOUTS = {"create": (0, 2, 1), "one file": (1, 1, 1), "growing": (1, 2, 2), "shrinking": (3, 2, 1)}
# Worlds of their own that wait most of the time.
AT_ONCE = 8
COMBINATIONS = [
    pytest.param(CLASS_A, "inline", id="A-inline"),
    pytest.param(CLASS_A, "staged", id="A-staged", marks=pytest.mark.soak),
    pytest.param(CLASS_B, "inline", id="B-inline", marks=pytest.mark.soak),
    pytest.param(CLASS_B, "staged", id="B-staged", marks=pytest.mark.soak),
]


def _each(ignores: frozenset[str], size: str, layout: str, schedule: Callable[[World, int], None]) -> None:
    """A schedule for each request of a write, in worlds of their own."""
    old, parts, _ = LAYOUTS[layout]
    with world(ignores, size) as place:
        if old:
            place.write("b", 1, old)
        sent = place.requests_of(lambda: place.write("a", 2, parts), "a")

    claims = next(number for number, request in enumerate(sent) if request.endswith(INTENT))

    def run(number: int) -> list[str]:
        with world(ignores, size) as place:
            place.first_claim, place.sent = claims, sent
            try:
                if old:
                    place.write("b", 1, old)
                schedule(place, number)
            except AssertionError as failure:
                return [f"request {number}, {sent[number]}: {failure}"]
            return []

    with ThreadPoolExecutor(AT_ONCE) as pool:
        failures = [failure for found in pool.map(run, range(len(sent))) for failure in found]
    assert not failures, f"{len(failures)} of {len(sent)}:\n" + "\n\n".join(failures)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("ignores", "size"), COMBINATIONS)
@pytest.mark.parametrize("other", ["overwrite", "read", "delete"])
def test_stopped_before_each_request(
    children: Children, ignores: frozenset[str], size: str, layout: str, other: str
) -> None:
    """The answer to the request before is there when it wakes; so is another dataset."""
    old, parts, between = LAYOUTS[layout]

    def schedule(place: World, number: int) -> None:
        answered = place.pause_at("a", max(0, number - 1), "pause after" if number else "pause")
        child = place.child(children, "a", "write", 2, parts, options=PATIENT)
        answered.wait()
        place.wait_for_parts_beside(answered)
        child.stop()
        answered.resume()
        if other == "overwrite":
            place.write("b", 3, between)
        elif other == "read":
            Call(lambda: place.read("b")).wait()
        else:
            Call(lambda: place.datasets("b").delete_dataset(KEY)).wait()
        child.go_on()
        ended = child.wait()
        assert ended.error is None or issubclass(getattr(pds, ended.error), pds.RemoteStoreError), ended
        if other == "overwrite":
            # Before its claim it is a write like any other, which comes last.
            began_late = number <= place.first_claim
            place.check(*((2, 3) if began_late and ended.error is None else (3,)))
        elif other == "read" and not old and ended.error is not None and not place.datasets("z").dataset_exists(KEY):
            # The reader dropped the claim of a write that had shown nothing.
            place.check_absent()
        elif other == "read":
            place.check(*([2] if ended.error is None else [1, 2] if old else [2]))
        elif place.datasets("z").dataset_exists(KEY):
            place.check(2)
        else:
            place.check_absent()

    _each(ignores, size, layout, schedule)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
def test_stopped_between_the_check_and_the_send(children: Children, size: str, layout: str) -> None:
    """One request of it lands when another has published; it sees so, and heals what it did."""
    _, parts, between = LAYOUTS[layout]

    def schedule(place: World, number: int) -> None:
        # What happens until it heals is no whole dataset.
        place.server.watch = None
        late = place.pause_at("a", number)
        child = place.child(children, "a", "write", 2, parts, options=PATIENT)
        late.wait()
        child.stop()
        place.write("b", 3, between)
        late.resume()
        request = late.requests[0]
        wait_until(lambda: any(event.request is request for event in place.server.log))
        child.go_on()
        child.wait()
        # A part that was not there may be put beside a smaller dataset; readers do not see it.
        stray = request.touches("put|complete", ".parquet")
        first = place.read()
        assert first == 3 or number <= place.first_claim, place.story()
        place.check(2, 3, leftovers=stray)

    _each(CLASS_A, size, layout, schedule)


@pytest.mark.parametrize("layout", ["growing", "shrinking"])
def test_a_marker_removed_too_late_comes_back(children: Children, layout: str) -> None:
    _, parts, between = LAYOUTS[layout]
    with world(CLASS_A) as place:
        place.write("b", 1, LAYOUTS[layout][0])
        late = place.server.on("delete", MARKER, "pause", client="a")
        child = place.child(children, "a", "write", 2, parts, options=PATIENT)
        late.wait()
        child.stop()
        place.write("b", 3, between)
        place.server.watch = None
        late.resume()
        wait_until(lambda: not place.has(MARKER), 10)
        child.go_on()
        ended = child.wait()
        assert ended.error is not None, "it was replaced, and says so"
        place.check(3)


@pytest.mark.parametrize(("ignores", "size"), COMBINATIONS)
def test_a_silent_owner_is_replaced_and_hears_of_it(ignores: frozenset[str], size: str) -> None:
    """In one process: nothing of it reaches the server for long, then everything."""
    with world(ignores, size) as place:
        place.write("b", 1, 2)
        marker = place.server.on("delete", MARKER, "", client="a")
        silent = place.server.stop("a", after=marker)
        write = place.start("a", 2, 2, **PATIENT)
        marker.wait()
        place.write("b", 3, 2)
        silent.drop()
        write.wait()
        assert place.read() == 3
        place.check(3)


@pytest.mark.parametrize("ignores", [CLASS_A, CLASS_B], ids=["A", "B"])
@pytest.mark.parametrize("reader", ["read", "scan", "verify", "clean"])
def test_a_complete_of_minutes_keeps_its_lease(ignores: frozenset[str], reader: str) -> None:
    """S3 may take minutes to put a large object together; readers wait for it."""
    reads: dict[str, Callable[[pds.ParquetDatasetStore], object]] = {
        "read": lambda ds: ds.read_dataset(KEY),
        "scan": lambda ds: ds.scan_dataset(KEY).read_all(),
        "verify": lambda ds: ds.verify_dataset(KEY),
        "clean": lambda ds: ds.clean_dataset(KEY),
    }
    with world(ignores, "staged") as place:
        place.write("b", 1, 3)
        count = len(place.server.seen)
        complete = place.server.on("complete", ".parquet", "pause", client="a")
        write = place.start("a", 2, 2, **PATIENT)
        complete.wait()
        waiting = Call(lambda: reads[reader](place.datasets("b")))
        time.sleep(2.5 * LEASE)
        assert waiting.is_running or reader in ("scan", "verify", "read"), repr(waiting.error)
        renewed = [r for r in place.server.seen if r.client == "a" and r.touches("put", INTENT)]
        assert len(renewed) > 5, place.story()
        sent = [r for r in place.server.seen[count:] if r.client == "b" and not r.is_probe]
        assert not [r for r in sent if r.touches("complete|abort", "")]
        complete.resume()
        write.check()
        waiting.wait()
        # A reader may have given up waiting, and says why.
        assert waiting.error is None or isinstance(waiting.error, pds.DatasetIncomplete), repr(waiting.error)
        completes = [r.query["uploadId"] for r in place.server.seen if r.verb == "complete" and not r.is_probe]
        assert len(completes) == len(set(completes)), place.story()
        place.check(2)


@pytest.mark.parametrize("name", [MANIFEST, "part-00001.parquet", MARKER])
def test_heartbeats_go_on_beside_any_request(name: str) -> None:
    """A request that takes longer than the lease; whether it is sent again, nobody takes over."""
    with world(CLASS_A) as place:
        place.write("b", 1, 3)
        slow = place.server.on("put", name, "pause", client="a")
        write = place.start("a", 2, 2, **PATIENT)
        slow.wait()
        other = place.start("b", 3, 1)
        time.sleep(1.5 * LEASE)
        done = [(event.client, str(event.request)) for event in place.server.log if event.answer.is_success]
        writes = [at for at, event in enumerate(done) if event == ("b", f"put p/{KEY}/{MANIFEST}")]
        # The marker's PUT is cut off before that, and sent again.
        assert not writes[1:] or ("a", f"delete p/{KEY}/{INTENT}") in done[: writes[1]], place.story()
        slow.resume()
        write.check()
        other.check()
        place.check(3)

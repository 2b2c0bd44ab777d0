"""A process is killed at each request of what it does; then somebody else comes."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pytest

import pds
from publish.harness import CLASSES, KEY, SIZES, UNDISTURBED, Call, drop_uploads, world
from scripted_s3.faults import Rule

if TYPE_CHECKING:
    from publish.children import Children
    from publish.harness import World

pytestmark = pytest.mark.sampled(3)

AT_ONCE = 16


class Operation(NamedTuple):
    """What the killed process does: on a dataset of so many parts (0: none), of so many itself (0: a delete)."""

    old: int
    new: int


OPERATIONS = {
    "create": Operation(0, 1),
    "create of two": Operation(0, 2),
    "one file": Operation(1, 1),
    "growing": Operation(1, 2),
    "shrinking": Operation(3, 2),
    "delete": Operation(2, 0),
}
AFTER = ("read", "clean", "overwrite", "delete")


def _begin(place: World, operation: Operation, children: Children | None = None) -> None:
    if children is not None and operation.new:
        # A request that it repeats would be counted as the next one.
        place.child(children, "a", "write", 2, operation.new, options=UNDISTURBED)
    elif children is not None:
        place.child(children, "a", "delete", options=UNDISTURBED)
    elif operation.new:
        place.write("a", 2, operation.new)
    else:
        place.datasets("a").delete_dataset(KEY)


def _kill_and_go_on(place: World, children: Children, operation: Operation, schedule: tuple[int, str, str]) -> None:
    number, moment, after = schedule
    if operation.old:
        place.write("b", 1, operation.old)
    _go_on(place, children, operation, place.pause_at("a", number, moment), after)


def _go_on(place: World, children: Children, operation: Operation, rule: Rule, after: str) -> None:
    _begin(place, operation, children)
    rule.wait()
    place.children[0].kill()
    rule.drop()
    if place.intent() is None and after != "clean":
        # Uploads that no intent names yet go by a clean, or by the bucket's rule.
        drop_uploads(place.server)
    before = {1} if operation.old else set()
    if after == "overwrite":
        place.write("c", 3, 2)
        place.check(3)
        return
    if after == "delete":
        deleted = Call(lambda: place.datasets("c").delete_dataset(KEY)).wait()
        assert deleted.error is None or isinstance(deleted.error, pds.NotFound), repr(deleted.error)
        place.check_absent()
        return
    if after == "read":
        read = Call(lambda: place.read("c")).wait()
        if read.error is None:
            assert read.value in before | {2}
        else:
            assert not before or not operation.new, repr(read.error)
    place.datasets("c").clean_dataset(KEY, older_than=0)
    assert not [u for u in place.server.bucket.uploads.values() if u.pieces], place.story()
    if place.datasets("z").dataset_exists(KEY):
        place.check(*(before | ({2} if operation.new else set())))
    else:
        assert not before or not operation.new, place.story()
        place.check_absent()


def _run(ignores: frozenset[str], size: str, operation: Operation, afters: tuple[str, ...], children: Children) -> None:
    with world(ignores, size) as place:
        if operation.old:
            place.write("b", 1, operation.old)
        sent = place.requests_of(lambda: _begin(place, operation), "a")
    schedules = list(itertools.product(range(len(sent)), ("pause", "pause after"), afters))

    def run(schedule: tuple[int, str, str]) -> list[str]:
        with world(ignores, size) as place:
            try:
                _kill_and_go_on(place, children, operation, schedule)
            except (AssertionError, pds.RemoteStoreError) as failure:
                number, moment, after = schedule
                when = "after" if moment.endswith("after") else "before"
                return [f"killed {when} request {number}, {sent[number]}, then {after}: {failure!r}"]
            return []

    with ThreadPoolExecutor(AT_ONCE) as pool:
        failures = [failure for found in pool.map(run, schedules) for failure in found]
    assert not failures, f"{len(failures)} of {len(schedules)}:\n" + "\n\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("after", AFTER)
def test_killed_at_each_request(children: Children, name: str, after: str) -> None:
    _run(CLASSES["A"], "inline", OPERATIONS[name], (after,), children)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_at_each_request_of_uploads(children: Children, name: str) -> None:
    _run(CLASSES["A"], "staged", OPERATIONS[name], ("clean", "overwrite"), children)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stores", CLASSES)
def test_killed_at_each_request_everywhere(children: Children, name: str, size: str, stores: str) -> None:
    _run(CLASSES[stores], size, OPERATIONS[name], AFTER, children)


@pytest.mark.slow
@pytest.mark.parametrize("after", AFTER)
def test_killed_while_it_finds_out_what_the_server_can_do(children: Children, after: str) -> None:
    with world() as place:
        count = len(place.server.seen)
        place.write("a", 1, 1)
        probes = sum(request.is_probe for request in place.server.seen[count:])
    assert probes > 5

    def run(number: int) -> None:
        with world() as place:
            rule = place.server.add(Rule(lambda r: r.client == "a" and r.is_probe, "pause after", number, 1))
            _go_on(place, children, Operation(0, 1), rule, after)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run, range(probes)))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stores", CLASSES)
@pytest.mark.parametrize("next_call", ["overwrite", "overwrite of as many", "delete"])
def test_a_denied_object_does_not_block_the_key(children: Children, size: str, stores: str, next_call: str) -> None:
    """Nobody may write the second part any more; the dataset cannot be finished, and can be replaced."""
    with world(CLASSES[stores], size) as place:
        place.write("b", 1, 1)
        part = place.server.on("put|complete", "part-00001.parquet", "pause", client="a")
        child = place.child(children, "a", "write", 2, 2)
        part.wait()
        child.kill()
        part.drop()
        denied = place.server.on("put|complete|copy", "part-00001.parquet", "403", times=1000)
        for call in (lambda ds: ds.read_dataset(KEY), lambda ds: ds.clean_dataset(KEY)):
            with pytest.raises((pds.DatasetIncomplete, pds.PermissionDenied)) as failure:
                call(place.datasets("c"))
            assert "part-00001.parquet" in str(failure.value) or KEY in str(failure.value)
        assert place.intent() is not None
        if next_call == "overwrite":
            place.write("c", 3, 1)
            denied.drop()
            place.check(3)
        elif next_call == "delete":
            place.datasets("c").delete_dataset(KEY)
            denied.drop()
            place.check_absent()
        else:
            write = place.start("c", 3, 2).wait()
            assert isinstance(write.error, pds.PermissionDenied), repr(write.error)
            denied.drop()
            place.datasets("c").clean_dataset(KEY)
            place.write("c", 4, 2)
            place.check(4)


def test_an_intent_that_nobody_can_read_blocks_only_readers(children: Children) -> None:
    """Cut off, or of no format there is."""

    def check(content: bytes) -> None:
        with world() as place:
            place.write("b", 1, 2)
            place.server.bucket.put_object(f"p/{KEY}/_publish.json", content)
            assert place.read() == 1
            place.write("c", 2, 2)
            place.check(2)

    # They wait most of the time.
    with ThreadPoolExecutor() as pool:
        list(pool.map(check, [b"", b"{}", b'{"format": 1', b"null"]))


def test_an_intent_of_a_later_version_is_left_alone() -> None:
    """Another program may know what to do with it."""
    with world() as place:
        place.write("b", 1, 2)
        place.server.bucket.put_object(f"p/{KEY}/_publish.json", b'{"format": 999, "later": true}')
        assert place.read() == 1
        with pytest.raises(pds.ResourceLocked):
            place.write("c", 2, 2)
        assert place.intent() == {"format": 999, "later": True}
        place.datasets("c").delete_dataset(KEY)
        place.check_absent()

"""Requests that land after their answer was lost, twice, or after their sender died."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import pds
from publish.harness import INTENT, KEY, LATEST, MANIFEST, MARKER, Call, wait_until

if TYPE_CHECKING:
    from publish.children import Children
    from publish.harness import World
    from scripted_s3 import Rule

pytestmark = pytest.mark.sampled(4)

# When a request that nobody waits for lands: after its sender has looked what became of it.
LATE = LATEST * 0.6
# A heartbeat is not to take the place of what a schedule waits for.
PATIENT = {"stall_timeout": "60", "retry_timeout": "120"}


def _land(rule: Rule) -> None:
    rule.wait_closed()
    time.sleep(LATE)
    rule.land()


@pytest.mark.parametrize("parts", [2, 1])
@pytest.mark.parametrize("fault", ["late", "late 500", "late drop"])
def test_the_owner_waits_for_its_own_delete_of_the_marker(place: World, parts: int, fault: str) -> None:
    """The marker of the new dataset must not go with a request that was for the old one's."""
    place.write("b", 1, 3)
    late = place.server.on("delete", MARKER, fault, client="a")
    write = place.start("a", 2, parts)
    late.wait()
    if fault == "late":
        late.wait_closed()
    time.sleep(LATE)
    late.land()
    write.check()
    place.check(2)


@pytest.mark.parametrize("fault", ["late", "late 500", "late drop"])
def test_the_owner_waits_for_its_own_marker(place: World, fault: str) -> None:
    """Another deletes the dataset at once; the first marker must not land then."""
    late = place.server.on("put", MARKER, fault, client="a")
    write = place.start("a", 1, 2)
    late.wait()
    if fault == "late":
        late.wait_closed()
    time.sleep(LATE)
    late.land()
    write.check()
    place.datasets("b").delete_dataset(KEY)
    place.check_absent()


@pytest.mark.parametrize("name", ["part-00001.parquet", MANIFEST, INTENT])
@pytest.mark.parametrize("old", [None, 1], ids=["create", "overwrite"])
def test_the_owner_waits_for_any_request_of_its_own(place: World, name: str, old: int | None) -> None:
    if old is not None:
        place.write("b", old, 3)
    late = place.server.on("put|complete", name, "late", client="a")
    write = place.start("a", 2, 2)
    _land(late)
    write.check()
    place.write("b", 3, 1)
    place.check(3)


@pytest.mark.parametrize("old", [None, 1], ids=["create", "overwrite"])
def test_the_owner_waits_for_its_own_release(place: World, old: int | None) -> None:
    if old is not None:
        place.write("b", old, 3)
    late = place.server.on("delete", INTENT, "late", client="a")
    write = place.start("a", 2, 2)
    late.wait_closed()
    other = place.start("b", 3, 1)
    time.sleep(LATE)
    late.land()
    write.check()
    other.check()
    place.check(2, 3)


@pytest.mark.parametrize("fault", ["500 after", "503 after", "drop after"])
def test_a_release_is_not_sent_again_over_the_next_writers_intent(place: World, children: Children, fault: str) -> None:
    """The next writer waits, begins at once, and is killed: its intent is what brings it back."""
    place.write("b", 1, 3)
    release = place.server.on("delete", INTENT, "pause after", client="a")
    write = place.start("a", 2, 2, **PATIENT)
    release.wait()
    removed = place.server.on("delete", MARKER, "pause after", client="b")
    child = place.child(children, "b", "write", 3, 1)
    removed.wait()
    # Only now does the first one hear of its release, and not that it is done.
    release.resume(fault)
    write.check()
    assert place.has(INTENT), place.story()
    child.kill()
    removed.resume()
    assert place.read() in (2, 3)
    place.check(2, 3)


@pytest.mark.parametrize("old", [None, 1], ids=["create", "overwrite"])
def test_a_claim_that_is_only_delayed(place: World, old: int | None) -> None:
    if old is not None:
        place.write("b", old, 2)
    late = place.server.on("put", INTENT, "pause", client="a")
    write = place.start("a", 2, 2, **PATIENT)
    late.wait()
    time.sleep(LATE)
    late.resume()
    write.check()
    place.check(2)


@pytest.mark.parametrize("lost", ["reads too", "the answer only"])
@pytest.mark.parametrize("after", ["nothing", "clean", "overwrite", "delete"])
def test_a_claim_whose_outcome_is_unknown_lands_later(place: World, lost: str, after: str) -> None:
    """Whoever comes next finds either nothing or a claim that can be carried out or dropped."""
    place.write("b", 1, 2)
    late = place.server.on("put", INTENT, "late", client="a")
    # Until the claim was sent it hears everything.
    deaf = place.server.stop("a", "drop", after=late) if lost == "reads too" else None
    write = place.start("a", 2, 2)
    late.wait_closed()
    if lost == "reads too":
        write.wait()
        assert isinstance(write.error, pds.BackendUnavailable), repr(write.error)
    late.land()
    if deaf is not None:
        deaf.drop()
    write.wait()
    if after == "clean":
        place.datasets("b").clean_dataset(KEY)
    elif after == "overwrite":
        place.write("b", 3, 1)
    elif after == "delete":
        place.datasets("b").delete_dataset(KEY)
        place.check_absent()
        return
    assert place.read() in ({3} if after == "overwrite" else {1, 2})
    place.datasets("c").clean_dataset(KEY)
    place.check(*({3} if after == "overwrite" else {1, 2}))


@pytest.mark.parametrize("layout", [(2, 2), (1, 1), (2, 1)], ids=["numbered", "one file", "shrinking"])
@pytest.mark.parametrize("after", ["release", "overwrite", "overwrite twice"])
def test_a_claim_lands_once_more_after_the_release(place: World, layout: tuple[int, int], after: str) -> None:
    """It is the redo log of a write that is long done: nothing newer may go back to it."""
    old, new = layout
    place.write("b", 1, old)
    twice = place.server.on("put", INTENT, "duplicate", client="a")
    place.write("a", 2, new)
    expected = 2
    for version in {"release": [], "overwrite": [3], "overwrite twice": [3, 4]}[after]:
        place.write("b", version, old)
        expected = version
    twice.land()
    assert place.has(INTENT)
    assert place.read() == expected
    place.datasets("c").clean_dataset(KEY)
    assert place.read() == expected
    place.check(expected)


@pytest.mark.parametrize("overwrite", [False, True], ids=["create", "overwrite"])
def test_a_claim_lands_once_more_after_a_delete(place: World, *, overwrite: bool) -> None:
    twice = place.server.on("put", INTENT, "duplicate", client="a")
    place.write("a", 1, 2, overwrite=overwrite)
    place.datasets("b").delete_dataset(KEY)
    twice.land()
    assert not place.datasets("z").dataset_exists(KEY)
    place.datasets("c").clean_dataset(KEY)
    place.check_absent()


def test_a_claim_of_a_delete_lands_once_more_after_a_write(place: World) -> None:
    place.write("b", 1, 2)
    twice = place.server.on("put", INTENT, "duplicate", client="a")
    place.datasets("a").delete_dataset(KEY)
    place.write("b", 2, 2)
    twice.land()
    assert place.read() == 2
    place.datasets("c").clean_dataset(KEY)
    place.check(2)


@pytest.mark.parametrize("phase", ["activation", "heartbeat"])
def test_a_later_version_of_the_intent_lands_once_more(place: World, phase: str) -> None:
    """Whatever replaces an intent names the version it replaces, which never comes back."""
    place.write("b", 1, 3)
    if phase == "heartbeat":
        slow = place.server.on("put", MANIFEST, "pause", client="a")
    twice = place.server.on("put", INTENT, "duplicate", client="a", skip=1)
    write = place.start("a", 2, 2, **PATIENT)
    if phase == "heartbeat":
        slow.wait()
        twice.wait()
        slow.resume()
    write.check()
    place.write("b", 3, 2)
    if twice.hit.is_set():
        answers = [answer.status for answer in twice.land()]
        assert all(status in (404, 412) for status in answers), answers
    place.check(3)


@pytest.mark.parametrize("between", ["overwrite", "delete"])
def test_both_sendings_of_a_claim_land_with_a_takeover_between(place: World, between: str) -> None:
    """The first is thought lost and sent again; when it lands, others have been there."""
    place.write("b", 1, 2)
    first = place.server.on("put", INTENT, "late 500", client="a")
    listed = place.server.on("list", "", "pause", client="a")
    write = place.start("a", 2, 2, **PATIENT)
    listed.wait()
    silent = place.server.stop("a")
    if between == "overwrite":
        place.write("b", 3, 2)
    else:
        place.datasets("b").delete_dataset(KEY)
    first.land()
    listed.resume()
    silent.resume()
    write.wait()
    # Of the first sending nobody may be left to see to it.
    place.datasets("c").clean_dataset(KEY)
    if between == "delete" and write.error is not None:
        place.check_absent()
    else:
        place.check(2 if write.error is None else 3)


@pytest.mark.parametrize("how", ["overwrite", "delete"])
def test_a_part_lands_after_the_dataset_shrank(place: World, children: Children, how: str) -> None:
    """Its sender is dead; who comes after waits until nothing of it can land any more."""
    place.write("b", 1, 1)
    late = place.server.on("put|complete", "part-00001.parquet", "late", client="a")
    child = place.child(children, "a", "write", 2, 2, options=PATIENT)
    late.wait()
    child.kill()
    other = place.start("b", 3, 1) if how == "overwrite" else None
    _land(late)
    if other is None:
        place.datasets("b").delete_dataset(KEY)
        place.check_absent()
    else:
        other.check()
        place.check(3)


def test_an_owner_gave_up_and_its_part_lands_after_the_dataset_shrank(place: World) -> None:
    """As above in one process: the writer gets an error and the user writes something else."""
    place.write("b", 1, 1)
    late = place.server.on("put|complete", "part-00001.parquet", "late", client="a")
    silent = place.server.stop("a", "drop", after=late)
    write = place.start("a", 2, 2)
    late.wait_closed()
    closed_at = time.monotonic()
    write.wait()
    assert write.error is not None
    silent.drop()
    other = place.start("b", 3, 1)
    time.sleep(max(0, closed_at + LATE - time.monotonic()))
    late.land()
    other.check()
    place.check(3)


def test_a_delete_waits_for_a_late_marker(place: World, children: Children) -> None:
    late = place.server.on("put", MARKER, "late", client="a")
    child = place.child(children, "a", "write", 1, 2, options=PATIENT)
    late.wait()
    child.kill()
    delete = Call(lambda: place.datasets("b").delete_dataset(KEY))
    _land(late)
    delete.check()
    place.check_absent()


def test_a_marker_later_than_anything_may_be_blocks_nothing(place: World, children: Children) -> None:
    """A lone marker is no dataset; the key takes the next one, and a delete removes it."""
    late = place.server.on("put", MARKER, "late", client="a")
    child = place.child(children, "a", "write", 1, 2, options=PATIENT)
    late.wait()
    child.kill()
    place.datasets("b").delete_dataset(KEY)
    place.server.watch = None
    late.land()
    assert place.files() == [MARKER]
    with pytest.raises((pds.DatasetIncomplete, pds.NotFound)):
        place.read()
    place.write("c", 2, 2)
    assert place.read() == 2
    place.datasets("c").delete_dataset(KEY)
    assert place.files() == []


@pytest.mark.parametrize("order", [(3, 1), (1, 3)], ids=["fewer", "more"])
@pytest.mark.parametrize("overwrite", [False, True], ids=["create", "overwrite"])
def test_a_part_of_a_dropped_create_lands_under_another_intent(
    place: World, children: Children, order: tuple[int, int], *, overwrite: bool
) -> None:
    """Two creates of different layouts; the first one dies with a part under way."""
    first, second = order
    late = place.server.on("put|complete", ".parquet", "late", client="a")
    child = place.child(children, "a", "write", 1, first, options=PATIENT, overwrite=False)
    late.wait()
    child.kill()
    other = place.start("b", 2, second, overwrite=overwrite)
    _land(late)
    other.wait()
    if other.error is None:
        place.check(2)
    else:
        # The first was carried on by the second, which then found a dataset there.
        assert isinstance(other.error, pds.AlreadyExists), repr(other.error)
        place.check(1)


def test_two_creates_at_once_end_in_one(place: World) -> None:
    calls = [
        place.start(client, version, parts, overwrite=False)
        for client, version, parts in (("a", 1, 3), ("b", 2, 1), ("c", 3, 2))
    ]
    errors = [call.wait().error for call in calls]
    (winner,) = [number + 1 for number, error in enumerate(errors) if error is None]
    assert all(error is None or isinstance(error, pds.AlreadyExists) for error in errors), errors
    wait_until(lambda: not place.has(INTENT))
    place.check(winner)

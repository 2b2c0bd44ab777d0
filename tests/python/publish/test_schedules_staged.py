"""Parts that wait to be published are gone, or are published twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import pds
from publish.harness import CLASSES, KEY, MARKER, Call, drop_uploads, wait_until, world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from publish.children import Children
    from publish.harness import World

pytestmark = pytest.mark.sampled(3)


@pytest.fixture
def staged(store_class: frozenset[str]) -> Iterator[World]:
    """A world whose parts are uploads."""
    with world(store_class, "staged") as found:
        yield found


@pytest.mark.parametrize("parts", [1, 2])
def test_uploads_gone_before_publish_leave_the_old_dataset(staged: World, parts: int) -> None:
    staged.write("b", 1, parts)
    ds = staged.datasets("a", parts)
    write = ds.begin_write(KEY, overwrite=True)
    prepared = write.prepare(staged.table(2, parts))
    drop_uploads(staged.server)
    with pytest.raises(pds.DatasetIncomplete):
        write.publish(prepared, staged.table(2).schema)
    assert staged.read() == 1
    staged.datasets("b").clean_dataset(KEY)
    staged.check(1)


def test_one_upload_gone_before_publish_leaves_the_old_dataset(staged: World) -> None:
    staged.write("b", 1, 2)
    write = staged.datasets("a", 2).begin_write(KEY, overwrite=True)
    prepared = write.prepare(staged.table(2, 2))
    # The part that is made visible last.
    del staged.server.bucket.uploads[list(staged.server.bucket.uploads)[-1]]
    with pytest.raises(pds.DatasetIncomplete):
        write.publish(prepared, staged.table(2).schema)
    staged.check(1)


@pytest.mark.parametrize("parts", [1, 2])
def test_uploads_gone_before_a_create_is_published(staged: World, parts: int) -> None:
    write = staged.datasets("a", parts).begin_write(KEY)
    prepared = write.prepare(staged.table(2, parts))
    drop_uploads(staged.server)
    with pytest.raises(pds.DatasetIncomplete):
        write.publish(prepared, staged.table(2).schema)
    staged.check_absent()


def test_parts_given_twice_leave_the_old_dataset(place: World) -> None:
    place.write("b", 1, 2)
    write = place.datasets("a", 2).begin_write(KEY, overwrite=True)
    prepared = write.prepare(place.table(2, 2))
    with pytest.raises(pds.RemoteStoreError):
        write.publish([*prepared, *prepared], place.table(2).schema)
    place.check(1)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("verb", ["read", "clean", "write"])
def test_uploads_gone_before_a_takeover_leave_the_old_dataset(
    staged: World, children: Children, parts: int, verb: str
) -> None:
    """The writer is killed before anything was changed, and its uploads go before others come."""
    staged.write("b", 1, parts)
    first_change = staged.server.on("delete|complete", "", "pause", client="a")
    child = staged.child(children, "a", "write", 2, parts)
    first_change.wait()
    child.kill()
    first_change.drop()
    drop_uploads(staged.server)
    if verb == "write":
        staged.write("b", 3, parts)
        staged.check(3)
        return
    getattr(staged.datasets("b", parts), f"{verb}_dataset")(KEY)
    assert staged.read() == 1
    # A reader that finds the dataset whole leaves the rest to others.
    staged.datasets("c").clean_dataset(KEY)
    staged.check(1)


@pytest.mark.parametrize("parts", [1, 2])
def test_uploads_gone_after_the_marker_bring_the_old_dataset_back(staged: World, parts: int) -> None:
    """They vanish while the dataset is being replaced, before a part was."""
    staged.write("b", 1, 2 if parts == 1 else 3)
    marker = staged.server.on("delete", MARKER, "pause after", client="a")
    write = staged.start("a", 2, parts, stall_timeout="60")
    marker.wait()
    drop_uploads(staged.server)
    marker.resume()
    write.wait()
    assert isinstance(write.error, pds.DatasetIncomplete), repr(write.error)
    assert staged.read() == 1
    staged.check(1)


@pytest.mark.parametrize("verb", ["read", "clean", "write"])
def test_uploads_gone_after_the_marker_and_the_writer_killed(staged: World, children: Children, verb: str) -> None:
    """Somebody else has to bring the old dataset back."""
    staged.write("b", 1, 3)
    marker = staged.server.on("delete", MARKER, "pause after", client="a")
    child = staged.child(children, "a", "write", 2, 2)
    marker.wait()
    child.kill()
    marker.drop()
    drop_uploads(staged.server)
    if verb == "write":
        staged.write("b", 3, 2)
        staged.check(3)
    else:
        getattr(staged.datasets("b"), f"{verb}_dataset")(KEY)
        assert staged.read() == 1
        staged.check(1)


def test_an_upload_gone_halfway_blocks_nothing(staged: World, children: Children) -> None:
    """One old part was replaced, so neither dataset can be had; the key takes the next."""
    staged.write("b", 1, 2)
    second = staged.server.on("complete", "part-00001.parquet", "pause", client="a")
    child = staged.child(children, "a", "write", 2, 2)
    second.wait()
    wait_until(lambda: any(event.request.touches("complete", "part-00000.parquet") for event in staged.server.log))
    child.kill()
    second.drop()
    drop_uploads(staged.server)
    with pytest.raises(pds.DatasetIncomplete):
        staged.read()
    with pytest.raises(pds.DatasetIncomplete):
        staged.datasets("b").clean_dataset(KEY)
    staged.write("b", 3, 2)
    staged.check(3)


def test_publish_twice_is_one_publish(place: World) -> None:
    write = place.datasets("a", 2).begin_write(KEY, overwrite=True)
    prepared = write.prepare(place.table(1, 2))
    first = write.publish(prepared, place.table(1).schema)
    assert write.publish(prepared, place.table(1).schema) == first
    place.check(1)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("old", [None, 1], ids=["create", "overwrite"])
def test_publish_twice_with_another_overwrite_between(place: World, parts: int, old: int | None) -> None:
    if old is not None:
        place.write("b", old, parts)
    write = place.datasets("a", parts).begin_write(KEY, overwrite=True)
    prepared = write.prepare(place.table(2, parts))
    write.publish(prepared, place.table(2).schema)
    place.write("b", 3, parts)
    with pytest.raises(pds.RemoteStoreError):
        write.publish(prepared, place.table(2).schema)
    place.check(3)


def test_publish_twice_with_a_delete_between(place: World) -> None:
    """The second is a write of its own where all its parts are still there; never half of one."""
    write = place.datasets("a", 2).begin_write(KEY, overwrite=True)
    prepared = write.prepare(place.table(2, 2))
    write.publish(prepared, place.table(2).schema)
    place.datasets("b").delete_dataset(KEY)
    again = Call(lambda: write.publish(prepared, place.table(2).schema)).wait()
    if again.error is None:
        place.check(2)
    else:
        place.check_absent()


@pytest.mark.parametrize("name", CLASSES)
def test_two_threads_publish_the_same_write(name: str) -> None:
    with world(CLASSES[name], "staged") as place:
        place.write("b", 1, 2)
        write = place.datasets("a", 2).begin_write(KEY, overwrite=True)
        prepared = write.prepare(place.table(2, 2))
        calls = [Call(lambda: write.publish(prepared, place.table(2).schema)) for _ in range(2)]
        ended = [call.wait().error for call in calls]
        assert None in ended, ended
        place.check(2)

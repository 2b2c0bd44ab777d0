"""A publish that failed half way is called again, aborted, or given up, while the store is still busy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import pds
from publish.harness import INTENT, KEY, LEASE, MARKER, Call, World, version_of, world

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sampled(2)


@pytest.fixture
def half(store_class: frozenset[str]) -> Iterator[World]:
    """A world whose parts are uploads, and one write of two was made."""
    with world(store_class, "staged") as found:
        found.write("b", 1, 2)
        yield found


@pytest.mark.parametrize("then", ["publish", "abort", "abort all", "another process", "malformed"])
def test_what_an_open_intent_names_stays(half: World, then: str) -> None:
    ds = half.datasets("a", 2)
    write = ds.begin_write(KEY, overwrite=True)
    rows = half.table(2, 2)
    parts = write.prepare(rows)
    busy = half.server.on("complete", "part-00001.parquet", "503", times=1000)
    with pytest.raises(pds.BackendUnavailable):
        write.publish(parts, rows.schema)
    assert half.intent() is not None
    if then == "publish":
        with pytest.raises(pds.BackendUnavailable):
            write.publish(parts, rows.schema)
    elif then == "malformed":
        with pytest.raises(pds.InvalidInput):
            write.publish(parts[:1], rows.schema)
    elif then == "abort":
        write.abort(parts)
    elif then == "abort all":
        write.abort_all()
    else:
        import pickle  # noqa: PLC0415

        other = pickle.loads(pickle.dumps(write))  # noqa: S301 our own
        with pytest.raises(pds.BackendUnavailable):
            other.publish(pickle.loads(pickle.dumps(parts)), rows.schema)  # noqa: S301 our own
    busy.times = 0
    # Whoever comes finishes it: the old dataset's part is gone already.
    assert half.read("c") == 2
    half.check(2)


def test_parts_of_a_write_that_was_never_published_are_removed(half: World) -> None:
    write = half.datasets("a", 2).begin_write(KEY, overwrite=True)
    parts = write.prepare(half.table(2, 2))
    assert half.server.bucket.uploads
    write.abort(parts)
    assert not half.uploads()
    half.check(1)


def test_a_second_root_waits_for_a_living_publisher(half: World) -> None:
    """Its intent names paths that cannot be read there."""
    # Longer than others wait for one that is dead.
    paused = half.server.on("complete", "part-00001.parquet", "pause", client="a")
    patient = {"stall_timeout": "30"}
    writing = half.start("a", 2, 2, **patient)
    paused.wait()
    other = pds.ParquetDatasetStore(pds.Store("s3://bucket", storage_options=half.options("c")))
    overwrite = Call(lambda: other.write_dataset(half.table(3), f"p/{KEY}", overwrite=True))
    time.sleep(1.5 * LEASE)
    assert overwrite.is_running, "a living publisher's intent was replaced"
    paused.resume()
    writing.check()
    overwrite.check()
    half.check(3)


@pytest.mark.parametrize("then", ["read", "overwrite", "clean"])
def test_a_refusal_before_anything_was_replaced_puts_the_old_dataset_back(half: World, then: str) -> None:
    for name in ("part-00000.parquet", "part-00001.parquet"):
        half.server.on("complete", name, "400", times=1000)
    with pytest.raises(pds.RemoteStoreError, match="interrupted"):
        half.write("a", 2, 2)
    assert not half.has(MARKER)
    if then == "overwrite":
        with pytest.raises(pds.RemoteStoreError, match="interrupted"):
            half.write("c", 3, 2)
    elif then == "clean":
        half.datasets("c").clean_dataset(KEY)
        assert half.intent() is None
    assert half.read("c") == 1
    assert half.intent() is None
    half.server.restart()
    half.check(1)


def refuse(half: World, *parts: int) -> None:
    """No upload of these parts can be completed, and that does not pass."""
    for part in parts:
        half.server.on("complete", f"part-{part:05}.parquet", "400", times=1000)


def test_nothing_is_put_back_while_an_upload_cannot_be_aborted(half: World) -> None:
    """It could be completed yet, over a part of the dataset that is shown again."""
    refuse(half, 0, 1)
    stays = half.server.on("abort", "part-00001.parquet", "403", times=1000)
    with pytest.raises(pds.RemoteStoreError, match="interrupted"):
        half.write("a", 2, 2)
    for _ in range(2):
        with pytest.raises(pds.RemoteStoreError):
            half.read("c")
        assert half.intent() is not None
        assert not half.has(MARKER)
    stays.times = 0
    assert half.read("c") == 1
    assert half.intent() is None
    half.server.restart()
    half.check(1)


@pytest.mark.parametrize("lands", ["before", "after", "never"])
def test_a_complete_on_its_way_beside_one_that_is_refused(half: World, lands: str) -> None:
    """The first part's is not answered, and no other will be done."""
    late = half.server.on("complete", "part-00000.parquet", "late", client="a")
    refuse(half, 0, 1)
    # Not to be sent again by its own writer.
    half.server.stop("a", "503", after=late)
    writing = half.start("a", 2, 2)
    late.wait()
    if lands == "before":
        late.land()
    writing.wait()
    assert writing.error is not None
    time.sleep(1.2 * LEASE)
    if lands == "before":
        # A part of the old dataset is gone, and one of the new cannot come: that is said, and healed by a new write.
        with pytest.raises(pds.DatasetIncomplete):
            half.read("c")
    else:
        assert half.read("c") == 1
        assert half.intent() is None
    if lands == "after":
        assert [answer.status for answer in late.land()] == [404]
    half.server.restart()
    half.check(2 if lands == "before" else 1)


def test_parts_that_are_sent_whole_are_not_put_back(store_class: frozenset[str]) -> None:
    """A part that is sent late would land on the old dataset; what the intent carries can be finished at any time."""
    with world(store_class, "inline") as found:
        found.write("b", 1, 2)
        late = found.server.on("put", "part-00000.parquet", "late", client="a")
        refused = [found.server.on("put", f"part-{part:05}.parquet", "400", times=1000) for part in range(2)]
        # Not to be sent again by its own writer.
        found.server.stop("a", "503", after=late)
        writing = found.start("a", 2, 2)
        late.wait()
        writing.wait()
        assert writing.error is not None
        with pytest.raises(pds.RemoteStoreError):
            found.read("c")
        assert not found.has(MARKER)
        late.land()
        for rule in refused:
            rule.times = 0
        assert found.read("c") == 2
        found.check(2)


def test_a_reader_between_two_publishes_waits_for_the_second(half: World) -> None:
    """It looks for the intent when the first has ended, and for the marker when the second has removed it."""
    patient = {"stall_timeout": "30", "retry_timeout": "60"}
    first = half.server.on("put", MARKER, "pause", client="a")
    writer = half.start("a", 2, 2, **patient)
    first.wait()
    look = half.server.on("head", INTENT, "pause", client="c")
    reader = Call(lambda: half.datasets("c", **patient).read_dataset(KEY))
    look.wait()
    first.resume()
    writer.check()
    marker = half.server.on("head", MARKER, "pause", client="c")
    look.resume()
    marker.wait()
    second = half.server.on("put", MARKER, "pause", client="a")
    writer = half.start("a", 3, 2, **patient)
    second.wait()
    marker.resume()
    reader._thread.join(0.5)
    second.resume()
    writer.check()
    assert version_of(reader.check()) == 3
    half.check(3)

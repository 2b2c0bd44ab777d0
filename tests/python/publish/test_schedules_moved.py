"""Parts of tasks after an empty one take another name than their upload was begun for.

The requests of a move are stopped, delayed, repeated and lost while another write takes over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from publish.harness import KEY, Call, World, table, version_of, wait_until, world

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sampled(3)

# The last takes the name part-00002.
TASKS = (0, 1, 3)
SOURCE, TARGET = "part-00003.parquet", "part-00002.parquet"


@pytest.fixture
def moved(store_class: frozenset[str]) -> Iterator[World]:
    """A world whose writes have parts of several tasks."""
    with world(store_class, "staged") as found:
        _write(found, "b", 1, range(2))
        found.acknowledged.append(1)
        yield found


def _rows(version: int, task: int) -> pa.Table:
    return table(version * 10 + task, "staged").set_column(
        0, "version", pa.array([version] * table(0, "staged").num_rows)
    )


def _write(place: World, client: str, version: int, tasks: range | tuple[int, ...]) -> None:
    ds = place.datasets(client)
    write = ds.begin_write(KEY, overwrite=True)
    parts = [part for task in tasks for part in write.prepare(_rows(version, task), task=task)]
    write.publish(parts, _rows(version, 0).schema)


def _check(place: World, version: int, tasks: range | tuple[int, ...]) -> None:
    place.check_watched()
    found = place.datasets("z").read_dataset(KEY)
    assert version_of(found) == version, place.story()
    expected = pa.concat_tables([_rows(version, task) for task in tasks])
    assert found.sort_by("noise").equals(expected.sort_by("noise"))
    place.check_clean()


def test_parts_move_up(moved: World) -> None:
    _write(moved, "a", 2, TASKS)
    _check(moved, 2, TASKS)
    _write(moved, "a", 3, (5, 6, 7, 9))
    _check(moved, 3, (5, 6, 7, 9))


@pytest.mark.parametrize("fault", ["pause", "pause after", "late", "late drop", "duplicate"])
@pytest.mark.parametrize(("verb", "name"), [("copy", TARGET), ("delete", SOURCE), ("complete", SOURCE)])
def test_a_late_request_of_a_move_hits_no_later_dataset(moved: World, verb: str, name: str, fault: str) -> None:
    if verb == "delete" and "delete if-match" in moved.server.bucket.ignores:
        # It has no condition there, and is sent so that it cannot come so late.
        return
    late = moved.server.on(verb, name, fault, client="a")
    gone = moved.server.stop("a", "drop", after=late)
    first = Call(lambda: _write(moved, "a", 2, TASKS))
    late.wait()
    Call(lambda: _write(moved, "c", 3, range(4))).check()
    # However late it comes: after the other write.
    late.resume()
    late.land()
    gone.drop()
    first.wait()
    _check(moved, 3, range(4))


@pytest.mark.parametrize(
    ("verb", "name", "fault"),
    [
        (verb, name, fault)
        for verb, name in (("copy", TARGET), ("delete", SOURCE))
        for fault in ("503", "500 after", "drop", "drop after", "error body")
        if (verb, fault) != ("delete", "error body")
    ],
)
def test_a_fault_of_a_move_leaves_no_second_copy(moved: World, verb: str, name: str, fault: str) -> None:
    hit = moved.server.on(verb, name, fault, client="a", times=3)
    Call(lambda: _write(moved, "a", 2, TASKS)).wait()
    assert hit.hit.is_set()
    found = moved.datasets("b").read_dataset(KEY)
    assert version_of(found) == 2, moved.story()
    _check(moved, 2, TASKS)


def test_a_copy_that_is_refused_for_good_leaves_the_key_usable(moved: World) -> None:
    """Such as one of more than 5 GB."""
    refused = moved.server.on("copy", TARGET, "400", client="a", times=100)
    with pytest.raises(pds.RemoteStoreError, match="interrupted"):
        _write(moved, "a", 2, TASKS)
    assert refused.hit.is_set()
    still = moved.server.on("copy", TARGET, "400", times=100)
    with pytest.raises(pds.DatasetIncomplete, match="400"):
        moved.datasets("b").read_dataset(KEY)
    with pytest.raises(pds.DatasetIncomplete):
        moved.datasets("b").clean_dataset(KEY)
    assert still.hit.is_set()
    _write(moved, "c", 3, range(3))
    _check(moved, 3, range(3))
    moved.datasets("c").delete_dataset(KEY)
    moved.check_absent()


def test_the_same_write_again_after_a_refusal_keeps_its_parts(moved: World) -> None:
    write = moved.datasets("a").begin_write(KEY, overwrite=True)
    parts = [part for task in TASKS for part in write.prepare(_rows(2, task), task=task)]
    refused = moved.server.on("copy", TARGET, "400", times=100)
    for _ in range(2):
        with pytest.raises(pds.RemoteStoreError):
            write.publish(parts, _rows(2, 0).schema)
    write.abort(parts)
    refused.resume()
    refused.times = 0
    write.publish(parts, _rows(2, 0).schema)
    wait_until(lambda: moved.intent() is None)
    _check(moved, 2, TASKS)


def test_a_copy_is_encrypted_as_everything_else() -> None:
    with world(size="staged") as place:
        kms = {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "the-key"}
        store = pds.Store("s3://bucket/p", storage_options=place.options("a") | kms)
        write = pds.ParquetDatasetStore(store).begin_write(KEY)
        parts = [part for task in TASKS for part in write.prepare(_rows(1, task), task=task)]
        write.publish(parts, _rows(1, 0).schema)
        verbs = {"begin", "copy", "put"}
        headers = [r.headers for r in place.server.seen if r.verb in verbs and r.touches(r.verb, ".parquet")]
        assert len(headers) == len(TASKS) + 1
        assert {h["x-amz-server-side-encryption-aws-kms-key-id"] for h in headers} == {"the-key"}

"""Servers that ignore conditions, budgets of requests, and what is seen after each of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import pds
from publish.harness import INTENT, KEY, MANIFEST, MARKER, SIZES, Call, version_of, wait_until, world
from scripted_s3 import CLASS_A, CONDITIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from publish.harness import World

pytestmark = pytest.mark.sampled(2)

# Without these nobody can be kept out.
NEEDED = ("put if-none-match", "put if-match")


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("size", SIZES)
def test_a_server_that_ignores_one_condition(condition: str, size: str) -> None:
    with world(frozenset([condition]), size) as place:
        if condition in NEEDED:
            with pytest.raises(pds.CapabilityNotSupported):
                place.write("a", 1, 2)
            assert place.server.snapshot() == {}
            assert not place.server.bucket.uploads
            return
        calls = [place.start(client, n, n, overwrite=False) for n, client in enumerate("abc", 1)]
        errors = [call.wait().error for call in calls]
        (winner,) = [n for n, error in enumerate(errors, 1) if error is None]
        assert all(error is None or isinstance(error, pds.AlreadyExists) for error in errors), errors
        assert place.read() == winner
        for call in [place.start(client, n + 3, n) for n, client in enumerate("abc", 1)]:
            call.check()
        place.check(4, 5, 6)


@pytest.mark.parametrize("status", [204, 404, 412])
def test_a_conditional_delete_of_nothing(status: int, size: str) -> None:
    """Servers differ in what they answer."""
    with world(CLASS_A, size) as place:
        place.server.bucket.absent_delete_status = status
        place.write("a", 1, 3)
        lost = place.server.on("delete", INTENT, "drop after", client="a")
        place.write("a", 2, 2)
        assert lost.hit.is_set()
        place.check(2)


@pytest.mark.parametrize(
    "answer", [(501, "NotImplemented"), (400, "UnsupportedHeader"), (405, "MethodNotAllowed"), (500, "InternalError")]
)
def test_a_server_that_refuses_conditional_completes(answer: tuple[int, str], size: str) -> None:
    """Its uploads are completed without a condition, as on servers that ignore it."""
    with world(CLASS_A, size) as place:
        place.server.bucket.conditional_complete_error = answer
        place.write("a", 1, 3)
        place.write("b", 2, 2)
        place.check(2)


def test_writers_and_readers_at_once(place: World) -> None:
    """Nobody is in trouble; after each request there is a whole dataset or no marker."""
    place.write("b", 1, 2)
    ended = threading.Event()

    def read(client: str) -> None:
        while not ended.is_set():
            place.read(client)

    readers = [Call(lambda c=client: read(c)) for client in ("r", "s")]
    for turn in range(3):
        writers = [place.start(client, 10 * turn + n, n) for n, client in enumerate("abc", 2)]
        for call in writers:
            call.check()
    ended.set()
    for reader in readers:
        reader.check()
    place.check(22, 23, 24)


OTHERS: dict[str, Callable[[World, pds.ParquetDatasetStore, str], Any]] = {
    "read": lambda _, ds, key: version_of(ds.read_dataset(key)),
    "create": lambda place, ds, key: ds.write_dataset(place.table(3), key),
    "overwrite": lambda place, ds, key: ds.write_dataset(place.table(3), key, overwrite=True),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("other", OTHERS)
def test_a_store_opened_at_another_folder_waits_for_a_publish(size: str, other: str) -> None:
    """What the writer staged has paths that are none of its own."""
    root, _, key = f"p/{KEY}".rpartition("/")
    with world(CLASS_A, size) as place:
        place.write("b", 1, 2)
        marker = place.server.on("put", MARKER, "pause", client="a")
        writer = place.start("a", 2, 2)
        assert marker.hit.wait(60)
        ds = pds.ParquetDatasetStore(pds.Store(f"s3://bucket/{root}", storage_options=place.options("z")))
        count = len(place.server.seen)
        call = Call(lambda: OTHERS[other](place, ds, key))
        wait_until(lambda: sum(r.client == "z" for r in place.server.seen[count:]) > 8 or not call.is_running)
        marker.resume()
        writer.check()
        call.wait()
        if other == "create":
            assert isinstance(call.error, pds.AlreadyExists), repr(call.error)
        else:
            assert call.check() == 2 or other == "overwrite"
        place.check(3 if other == "overwrite" else 2)


def test_writers_and_deletes_at_once(place: World) -> None:
    for turn in range(3):
        writers = [place.start(client, 10 * turn + n, n) for n, client in enumerate("ab", 1)]
        delete = Call(lambda: place.datasets("c").delete_dataset(KEY)).wait()
        assert delete.error is None or isinstance(delete.error, pds.NotFound), repr(delete.error)
        for call in writers:
            call.check()
    if place.datasets("z").dataset_exists(KEY):
        place.check(21, 22)
    else:
        place.check_absent()


def _kinds(requests: list[str]) -> list[str]:
    return [request.replace(f"p/{KEY}/", "") for request in requests]


def test_requests_of_a_small_dataset() -> None:
    """What a user pays for and waits for."""
    with world() as place:
        # What the server can do is found out once.
        place.write("b", 1, 1)
        place.datasets("b").delete_dataset(KEY)
        ds = place.datasets("a")
        ds.write_dataset(place.table(1), "other")

        def sent(version: int, *, overwrite: bool) -> list[str]:
            count = len(place.server.seen)
            ds.write_dataset(place.table(version), KEY, overwrite=overwrite)
            return _kinds([str(r) for r in place.server.seen[count:]])

        create = sent(1, overwrite=False)
        assert len(create) == 6, create
        replaced = sent(2, overwrite=True)
        assert len(replaced) == 6, replaced
        assert f"delete {MARKER}" not in replaced
        assert replaced[0] == create[0] == f"put {INTENT}"
        assert create[-3:] == [f"put {MANIFEST}", f"put {MARKER}", f"delete {INTENT}"]
        count = len(place.server.seen)
        with pytest.raises(pds.AlreadyExists):
            ds.write_dataset(place.table(3), KEY)
        assert len(place.server.seen) - count == 3


def test_requests_of_other_overwrites() -> None:
    with world() as place:
        ds = place.datasets("a", 2)
        ds.write_dataset(place.table(1, 2), KEY)
        count = len(place.server.seen)
        ds.write_dataset(place.table(2, 2), KEY, overwrite=True)
        sent = _kinds([str(r) for r in place.server.seen[count:]])
        # Eight, and one more for the second part.
        assert len(sent) == 9, sent
        assert sent.index(f"delete {MARKER}") < sent.index("put part-00000.parquet") < sent.index(f"put {MANIFEST}")


@pytest.mark.parametrize("size", SIZES)
def test_every_change_names_what_it_changes(size: str) -> None:
    """Where the server keeps conditions, nothing is replaced or removed unseen but the marker."""
    with world(CLASS_A, size) as place:
        place.write("a", 1, 3)
        count = len(place.server.seen)
        place.write("a", 2, 2)
        for request in place.server.seen[count:]:
            is_change = request.verb in ("put", "complete", "delete", "copy") and not request.is_probe
            if is_change and not request.touches("delete", MARKER):
                named = request.headers.keys() & {"if-match", "if-none-match"}
                assert named, f"{request} has no condition"
                assert request.key, f"{request} is a bulk delete, whose conditions not all keep"


def test_equal_intents_never_recur() -> None:
    """Each version of an intent has an ETag of its own, whoever sends it and however often."""
    with world() as place:
        for version in (1, 2):
            place.server.on("put", INTENT, "500", client="a", skip=version - 1)
            place.write("a", 1, 2)
        bodies = [r.body for r in place.server.seen if r.touches("put", INTENT)]
        assert len(bodies) == len(set(bodies)), "the same bytes were sent twice"

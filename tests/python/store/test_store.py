"""What a store does with files, on every kind of store; compared with remote-store in test_remote_store_paths."""

from __future__ import annotations

import io
import os
import pickle
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(2)

LARGE = bytes(range(256)) * (16 << 10)


def _content(store: pds.Store) -> dict[str, bytes]:
    return {info.path: store.read_bytes(info.path) for info in store.list_files(recursive=True)}


@pytest.mark.parametrize("same", ["a/b", "/a//b/", "./a/b", "a\\b"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("method", ["move", "copy"])
def test_a_file_onto_itself(store: pds.Store, method: str, overwrite: bool, same: str) -> None:
    store.write("a/b", b"x")
    getattr(store, method)("a/b", same, overwrite=overwrite)
    assert _content(store) == {"a/b": b"x"}


@pytest.mark.parametrize("method", ["move", "copy"])
def test_nothing_onto_itself(store: pds.Store, method: str) -> None:
    store.write("a/b", b"x")
    with pytest.raises(pds.NotFound):
        getattr(store, method)("ghost", "ghost", overwrite=True)
    with pytest.raises(pds.InvalidPath):
        getattr(store, method)("a", "a", overwrite=True)


@pytest.mark.parametrize("method", ["move", "copy"])
def test_to_another_place(store: pds.Store, method: str) -> None:
    store.write("a", b"new")
    store.write("old", b"old")
    with pytest.raises(pds.AlreadyExists, match="old"):
        getattr(store, method)("a", "old")
    assert _content(store) == {"a": b"new", "old": b"old"}
    getattr(store, method)("a", "b/c")
    getattr(store, method)("b/c", "old", overwrite=True)
    left = {"a": b"new", "b/c": b"new"} if method == "copy" else {}
    assert _content(store) == {"old": b"new", **left}
    with pytest.raises(pds.NotFound, match="ghost"):
        getattr(store, method)("ghost", "old", overwrite=True)
    assert store.read_bytes("old") == b"new"


def test_a_file_that_is_replaced_while_it_is_read(store: pds.Store) -> None:
    """No mixture of two versions: a typed error."""
    store.write("a", LARGE)
    with store.read("a") as file:
        assert file.read(1000) == LARGE[:1000]
        store.write("a", LARGE[::-1], overwrite=True)
        file.seek(2 << 20)
        with pytest.raises(pds.FileChanged):
            file.read(10)
    with store.read("a") as file:
        assert file.read() == LARGE[::-1]


def test_a_file_that_is_deleted_while_it_is_read(store: pds.Store) -> None:
    store.write("a", LARGE)
    with store.read("a") as file:
        file.seek(1 << 20)
        store.delete("a")
        # Azure says that the condition does not hold.
        with pytest.raises((pds.NotFound, pds.FileChanged)):
            file.read(10)


def test_ranges(store: pds.Store) -> None:
    store.write("a", LARGE)
    with store.read_seekable("a") as file:
        assert file.seek(-10, io.SEEK_END) == len(LARGE) - 10
        assert file.read() == LARGE[-10:]
        assert file.read() == b""
        file.seek(100)
        assert file.read(7) == LARGE[100:107]
    store.write("empty", b"")
    assert store.read("empty").read() == b""


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, io.BytesIO])
def test_contents(store: pds.Store, make: Callable[[bytes], bytes]) -> None:
    store.write("a", make(b"x"))
    assert store.read_bytes("a") == b"x"


def test_what_is_given_may_change_afterwards(store: pds.Store) -> None:
    content = bytearray(b"before")
    store.write("a", content)
    content[:] = b"after!"
    assert store.read_bytes("a") == b"before"


def test_folders(store: pds.Store) -> None:
    store.write("a/b/c", b"x")
    (entry,) = store.list_folders("a")
    assert (entry, entry.name, entry.path) == ("b", "b", "a/b")
    again = pickle.loads(pickle.dumps(entry))  # noqa: S301 made right here
    assert (again, again.path) == (entry, entry.path)
    assert [f.path for f in store.child("a").list_folders()] == ["b"]


@pytest.mark.parametrize("call", ["read", "read_bytes", "get_file_info", "delete"])
def test_a_folder_is_no_file(store: pds.Store, call: str) -> None:
    store.write("a/b", b"x")
    with pytest.raises(pds.InvalidPath, match="directory"):
        getattr(store, call)("a")
    with pytest.raises(pds.NotFound):
        getattr(store, call)("b")
    assert _content(store) == {"a/b": b"x"}


def test_hidden_files_are_not_listed(local_store: pds.Store, tmp_path: Path) -> None:
    local_store.write("a/b", b"x")
    (tmp_path / "store" / "a" / ".pds-1.tmp").write_bytes(b"half")
    assert [info.name for info in local_store.list_files(recursive=True)] == ["b"]
    local_store.delete_folder("a", recursive=True)
    assert not local_store.exists("a")


def test_a_store_reads_no_file_before_its_first_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO that nobody writes to would stop the constructor."""
    credentials = tmp_path / "credentials"
    os.mkfifo(credentials)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert pds.Store("s3://bucket", aws_region="r").url == "s3://bucket"
    assert pds.Store("s3://bucket", aws_region="r", aws_profile="p").url == "s3://bucket"


def test_counters_outlive_the_connections(store: pds.Store) -> None:
    store.write("a", b"x" * 1000)
    store.close()
    store.read_bytes("a")
    counted = store.metrics()
    assert counted["put"] >= 1
    assert counted["get"] >= 1
    assert counted["bytes_written"] >= 1000
    assert counted["bytes_read"] >= 1000
    kinds = ["get", "put", "head", "list", "delete", "copy", "post"]
    assert sum(counted[kind] for kind in kinds) == counted["requests"]
    moved = sum(counted[f"{kind}_bytes"] for kind in kinds)
    assert moved == counted["bytes_read"] + counted["bytes_written"]
    assert min(counted["get_bytes"], counted["put_bytes"]) >= 1000
    store.reset_metrics()
    assert set(store.metrics().values()) == {0}


@pytest.mark.parametrize("content", [7, "text", None, io.StringIO("text")])
def test_content_that_is_not_bytes_is_refused(store: pds.Store, content: object) -> None:
    with pytest.raises(pds.InvalidType, match="content must be bytes or a binary file"):
        store.write("a", content)  # type: ignore[arg-type]
    assert not store.exists("a")


def test_bytes_that_can_be_read_are_bytes(store: pds.Store) -> None:
    class Both(bytes):
        def read(self) -> bytes:
            return b"other"

    store.write("a", Both(b"own"))
    assert store.read_bytes("a") == b"own"


def test_a_file_that_another_program_rewrites_exists_all_the_time(local_store: pds.Store) -> None:
    """Whether it is there does not depend on what is in it."""
    local_store.write("written.txt", b"x" * 100_000)
    path = Path(urlsplit(local_store.url).path) / "written.txt"
    ended = threading.Event()

    def rewrite() -> None:
        while not ended.is_set():
            path.write_bytes(b"x" * 100_000)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        assert all(local_store.exists("written.txt") for _ in range(3_000))
    finally:
        ended.set()
        thread.join()

"""What a store does with files, on every kind of store; compared with remote-store in test_remote_store_paths."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import pds
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripted_s3 import Answer, Request

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


# Without conditional deletions, which a server of S3 may lack, a window stays: test_conditional_sends has S3's steps.
@pytest.mark.parametrize(
    "store", ["memory", "local", "gcs", pytest.param("azure", marks=pytest.mark.azure)], indirect=True
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_is_written_while_it_is_moved_is_not_lost(store: pds.Store, overwrite: bool) -> None:
    for number in range(20):
        for path in ("a", "b"):
            store.delete(path, missing_ok=True)
        store.write("a", b"old" * 500_000)

        def write(number: int = number) -> None:
            time.sleep(0.0005 * number)
            store.write("a", b"new", overwrite=True)

        thread = threading.Thread(target=write)
        thread.start()
        with contextlib.suppress(pds.FileChanged):
            store.move("a", "b", overwrite=overwrite)
        thread.join()
        contents = [store.read_bytes(path) for path in ("a", "b") if store.is_file(path)]
        assert b"new" in contents, f"round {number}"


def test_a_folder_is_not_moved(store: pds.Store) -> None:
    store.write("a/b", b"x")
    for overwrite in (False, True):
        with pytest.raises(pds.InvalidPath, match="directory"):
            store.move("a", "c", overwrite=overwrite)
    assert _content(store) == {"a/b": b"x"}


def test_a_link_that_moves_takes_its_content(local_store: pds.Store, tmp_path: Path) -> None:
    local_store.write("a/file", b"x")
    (tmp_path / "store" / "a" / "link").symlink_to("file")
    local_store.move("a/link", "b/moved")
    assert _content(local_store) == {"a/file": b"x", "b/moved": b"x"}


LOOK_AT_A_FOLDER = """
import os, sys, pds
store = pds.Store(sys.argv[1], durability="none")
datasets = pds.ParquetDatasetStore(store)
list(store.list_files(""))
if os.geteuid() == 0:
    # Root may look at all files.
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
calls = {
    "list": lambda: list(store.list_files("folder")),
    "list all": lambda: list(store.list_files("", recursive=True)),
    "list datasets": datasets.list_datasets,
    "delete": lambda: datasets.delete_dataset("folder"),
}
for name, call in calls.items():
    try:
        print(name, call())
    except pds.PermissionDenied:
        pass
"""


def test_a_file_that_may_not_be_looked_at_is_not_left_out() -> None:
    """What a listing leaves out counts as missing."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        pds.Store(root, durability="none").write("folder/_SUCCESS", b"")
        root.chmod(0o755)
        (root / "folder").chmod(0o444)
        command = [sys.executable, "-c", LOOK_AT_A_FOLDER, name]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        (root / "folder").chmod(0o755)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_an_object_of_a_folder_itself_is_no_file() -> None:
    """The consoles of S3 and GCS create one, whose key ends with a slash."""
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket", server.options())
        objects = {"sales": b"file", "sales/": b"", "sales/x": b"1", "sales/sub/": b"", "other/": b""}
        server.restore(objects)
        assert _content(store) == {"sales": b"file", "sales/x": b"1"}
        assert [info.path for info in store.list_files("sales")] == ["sales/x"]
        assert [info.path for info in store.child("sales").list_files(recursive=True)] == ["x"]
        assert list(store.list_folders("sales")) == ["sub"]
        assert sorted(store.list_folders()) == ["other", "sales"]
        store.delete_folder("sales", recursive=True)
        assert server.snapshot() == {"sales": b"file", "other/": b""}
        with pytest.raises(pds.InvalidPath, match="not a directory"):
            store.delete_folder("sales", recursive=True)
        store.delete_folder("other", missing_ok=True)
        assert server.snapshot() == {"sales": b"file"}


@pytest.mark.parametrize("page_size", [1000, 1])
def test_a_key_that_is_no_path_hides_no_others(page_size: int, caplog: pytest.LogCaptureFixture) -> None:
    pds.enable_logging(logging.WARNING)
    with ScriptedS3() as server:
        server.bucket.page_size = page_size
        store = pds.Store("s3://bucket", server.options())
        odd = {"d//x": b"", "d/../y": b"", "d/a\\b": b"", "/z": b"", "only//x": b""}
        server.restore({"d/a": b"1", "d/b/c": b"2", **odd})
        with caplog.at_level(logging.WARNING):
            assert _content(store) == {"d/a": b"1", "d/b/c": b"2"}
        assert "5 keys that are not valid paths" in caplog.text
        assert ([info.path for info in store.list_files("d")], list(store.list_folders("d"))) == (["d/a"], ["b"])
        with pytest.raises(pds.InvalidPath, match="3 objects stay"):
            store.delete_folder("d", recursive=True)
        assert server.snapshot() == odd
        for missing_ok in (False, True):
            with pytest.raises(pds.InvalidPath, match="only//x"):
                store.delete_folder("only", recursive=True, missing_ok=missing_ok)


def test_a_folder_with_objects_of_folders_is_not_empty() -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket", server.options())
        objects = {"sales/": b"", "sales/2024/": b"", "sales/2025/": b"notes", "other/": b""}
        server.restore(objects)
        with pytest.raises(pds.DirectoryNotEmpty):
            store.delete_folder("sales")
        assert server.snapshot() == objects
        # What has content is no object of a folder.
        with pytest.raises(pds.InvalidPath, match="1 objects stay"):
            store.delete_folder("sales", recursive=True)
        store.delete_folder("other")
        assert server.snapshot() == {"sales/2025/": b"notes"}


def test_who_pays_is_said_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket", server.options() | {"aws_request_payer": "true"})
        store.write("d/x", b"1")
        handle, payers = server.bucket.handle, []

        def watch(request: Request) -> Answer:
            payers.append(request.headers.get("x-amz-request-payer"))
            return handle(request)

        monkeypatch.setattr(server.bucket, "handle", watch)
        server.restart()
        assert _content(store) == {"d/x": b"1"}
        store.move("d/x", "d/y")
        assert payers
        assert set(payers) == {"requester"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_move_to_another_device(tmp_path: Path, overwrite: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        store = pds.Store("/")
        source, target = f"{tmp_path}/x"[1:], f"{other}/a/y"[1:]
        for content in (b"1", b"2"):
            store.write(source, content)
            if content == b"2" and not overwrite:
                with pytest.raises(pds.AlreadyExists):
                    store.move(source, target)
                assert (store.read_bytes(source), store.read_bytes(target)) == (b"2", b"1")
                continue
            store.move(source, target, overwrite=overwrite)
            assert store.read_bytes(target) == content
            assert list(tmp_path.iterdir()) == []
            assert [path.name for path in (Path(other) / "a").iterdir()] == ["y"]


def test_names_that_are_too_long_for_the_file_system(tmp_path: Path) -> None:
    name = "x" * 300
    with pytest.raises(pds.InvalidPath, match="too long") as caught:
        pds.list(tmp_path / name)
    # The path of the store itself is an empty one.
    assert str(tmp_path / name) in str(caught.value)
    with pytest.raises(pds.InvalidPath, match="longer than 255 bytes") as caught:
        pds.Store(tmp_path).write(name, b"")
    assert caught.value.path == name

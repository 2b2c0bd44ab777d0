"""Stores, datasets, writes and errors travel to other processes, secrets only where given."""

from __future__ import annotations

import functools
import importlib
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import remote_store
from remote_store.ext import parquet

import pds
from pds.handles import open_handle

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"n": [1, 2, 3]})
SECRET = "wJalrXUtnFEMI"
THEIRS = [
    "RemoteStoreError",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "InvalidPath",
    "CapabilityNotSupported",
    "DirectoryNotEmpty",
    "BackendUnavailable",
    "ResourceLocked",
]
OURS = ["DatasetIncomplete", "ManifestCorrupted", "PartCorrupted", "InvalidInput", "InvalidType"]


def _again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 made right here


def test_a_store(store: pds.Store) -> None:
    store.write("a", b"x")
    again = _again(store)
    assert again.url == store.url
    assert again.read_bytes("a") == b"x"


def test_a_child_store(store: pds.Store) -> None:
    store.write("a/b/c", b"x")
    assert _again(store.child("a/b")).read_bytes("c") == b"x"


def _requests(store: pds.Store) -> int:
    return store.metrics()["requests"]


def _credentials() -> dict[str, str]:
    return {"access_key_id": "id", "secret_access_key": "secret"}


def test_unpickled_stores_share_connections(s3_store: pds.Store) -> None:
    """Each task of an engine unpickles its store; a client of its own would fetch the credentials of its role again."""
    s3_store.write("a/b", b"x")
    first, second, child = _again(s3_store), _again(s3_store), _again(s3_store.child("a"))
    before = _requests(first)
    assert first.read_bytes("a/b") == second.read_bytes("a/b") == child.read_bytes("b") == b"x"
    assert _requests(first) == _requests(second) == _requests(child) == before + 3
    first.close()
    assert second.read_bytes("a/b") == b"x"


def test_stores_that_differ_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"aws_region": "eu"}
    plain = open_handle("s3://bucket", options, None)
    others = [
        open_handle("s3://other", options, None),
        open_handle("s3://bucket", {"aws_region": "us"}, None),
        open_handle("s3://bucket", options, _credentials),
        open_handle("s3://bucket", options, functools.partial(_credentials)),
    ]
    assert open_handle("s3://bucket", options, None) is plain
    assert open_handle("s3://bucket", options, _credentials) is others[2]
    monkeypatch.setenv("AWS_PROFILE", "other")
    others.append(open_handle("s3://bucket", options, None))
    assert len({id(handle) for handle in [plain, *others]}) == 6


def test_datasets_in_another_process(local_store: pds.Store, tmp_path: Path) -> None:
    ds = pds.ParquetDatasetStore(local_store, compression="snappy", max_rows_per_file=2)
    file = tmp_path / "pickle"
    file.write_bytes(pickle.dumps((ds, ds.begin_write("b", run_id="r"), ROWS)))
    program = """
import pickle, sys
ds, write, rows = pickle.load(open(sys.argv[1], "rb"))
ds.write_dataset(rows, "a")
write.publish(write.prepare(rows), rows.schema)
"""
    subprocess.run([sys.executable, "-c", program, file], check=True)
    assert ds.read_dataset("a").equals(ROWS)
    manifest = ds.read_manifest("b")
    assert (manifest.run_id, manifest.compression, len(manifest.parts)) == ("r", "snappy", 2)


def test_secrets_given_travel_and_do_not_show() -> None:
    store = pds.Store("s3://bucket", aws_access_key_id="id", aws_secret_access_key=SECRET, aws_region="eu")
    assert SECRET.encode() in pickle.dumps(store)
    for text in (repr(store), str(store), store.url, repr(pds.ParquetDatasetStore(store))):
        assert SECRET not in text


def test_secrets_of_the_environment_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    store = pds.Store("s3://bucket", aws_region="eu")
    assert SECRET.encode() not in pickle.dumps(pds.ParquetDatasetStore(store))
    assert SECRET not in repr(store)


@pytest.mark.parametrize("name", THEIRS + OURS)
def test_errors(name: str) -> None:
    kind = getattr(pds.errors, name)
    error = kind("what happened", path="a/b", backend="s3")
    again = _again(error)
    assert type(again) is kind
    assert getattr(pds, name) is kind
    assert (str(again), repr(again)) == (str(error), repr(error))
    assert (again.path, again.backend) == ("a/b", "s3")


def test_errors_keep_what_is_special_to_them() -> None:
    assert _again(pds.ManifestCorrupted("m", path="a", reason="why")).reason == "why"
    error = pds.CapabilityNotSupported("m", path="a", capability="atomic_write")
    assert _again(error).capability == "atomic_write"


@pytest.mark.parametrize("name", THEIRS)
def test_errors_are_remote_stores(name: str) -> None:
    assert issubclass(getattr(pds.errors, name), getattr(remote_store, name))


def test_the_family_of_errors() -> None:
    assert pds.DatasetIncomplete.__bases__ == (pds.RemoteStoreError,)
    assert pds.ManifestCorrupted.__bases__ == (pds.RemoteStoreError,)
    assert issubclass(pds.PartCorrupted, pds.DatasetIncomplete)
    assert issubclass(pds.InvalidInput, ValueError)
    assert issubclass(pds.InvalidType, TypeError)


def test_errors_that_were_raised(memory_store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(memory_store)
    ds.write_dataset(ROWS, "a")
    memory_store.write("bad/manifest.json", b"{}")
    calls = [
        lambda: ds.write_dataset(ROWS, "a"),
        lambda: ds.read_dataset("ghost"),
        lambda: ds.read_manifest("bad"),
        lambda: ds.delete_dataset("ghost"),
        lambda: ds.read_dataset("a", columns=["x"]),
        lambda: memory_store.read_bytes("../x"),
    ]
    for call in calls:
        with pytest.raises(pds.RemoteStoreError) as caught:
            call()
        again = _again(caught.value)
        assert type(again) is type(caught.value)
        assert vars(again) == vars(caught.value)
        assert str(again) == str(caught.value)


@pytest.mark.parametrize("name", [*THEIRS, *OURS, "FileChanged"])
def test_errors_say_where_they_come_from(name: str) -> None:
    kind = getattr(pds, name)
    assert getattr(importlib.import_module(kind.__module__), name) is kind
    # What remote-store has is its own; so is what its extension for Parquet has.
    theirs = name in THEIRS or name in {"DatasetIncomplete", "ManifestCorrupted"}
    assert kind.__module__.partition(".")[0] == ("remote_store" if theirs else "pds")


def test_errors_of_remote_stores_datasets() -> None:
    assert pds.DatasetIncomplete is parquet.DatasetIncomplete
    assert pds.ManifestCorrupted is parquet.ManifestCorrupted


def test_without_remote_store(tmp_path: Path) -> None:
    """The errors stand on their own where remote-store is not installed."""
    program = """
import sys
sys.modules["remote_store"] = None
import pickle, pds
store = pds.Store("memory://")
try:
    store.read_bytes("ghost")
except pds.NotFound as error:
    again = pickle.loads(pickle.dumps(error))
    assert again.path == "ghost" and type(again) is pds.NotFound, again
else:
    raise AssertionError
assert pds.NotFound.__module__.startswith("pds.")
for kind in (pds.DatasetIncomplete, pds.ManifestCorrupted, pds.PartCorrupted):
    assert kind.__module__ == "pds.errors" and issubclass(kind, pds.RemoteStoreError)
    assert type(pickle.loads(pickle.dumps(kind("m", path="a")))) is kind
assert pds.Capability.ATOMIC_WRITE.value == "atomic_write"
assert store.supports(pds.Capability.ATOMIC_WRITE)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_import_is_cheap_and_starts_nothing() -> None:
    program = """
import sys, threading
import pds
assert threading.active_count() == 1
loaded = {"pyarrow", "remote_store", "dagster", "pyspark", "polars", "pandas"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_does_not_pickle(memory_store: pds.Store) -> None:
    """As the README says: a scan of a table that is sent is made there, or is one of `scan_tasks`."""
    table = pds.Table.create(memory_store, "t", ROWS.schema)
    table.append(ROWS)
    pipeline = pds.Pipeline(memory_store, "p")
    for handle in (table.scan(), table.scan_changes(0), pipeline):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(handle)

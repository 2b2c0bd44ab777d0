"""Every spelling of a path and of a key names here what it names in remote-store."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import pyarrow as pa
import pytest
import remote_store
from remote_store.backends import MemoryBackend
from remote_store.ext import parquet as theirs

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(2)

FILES = {"c": b"C", "a/b": b"AB", "a/d/e": b"ADE", ".../a": b"dots", "x y/%41": b"percent"}
ROWS = pa.table({"n": [1, 2, 3]})
OLD = pa.table({"n": [0]})

SEGMENTS = ["a", "b", "c", "d", "e", "x y", "%41", "...", "..b", "ü", "", ".", "..", "a\0", "new"]
SEPARATORS = ["/", "/", "/", "//", "\\", "/./", "\\\\"]


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Paths of up to five segments, some of which say nothing, joined in several ways."""
    path = draw(st.sampled_from(["", "", "", "/", "./", "\\", "."]))
    for number, segment in enumerate(draw(st.lists(st.sampled_from(SEGMENTS), max_size=5))):
        path += (draw(st.sampled_from(SEPARATORS)) if number else "") + segment
    return path + draw(st.sampled_from(["", "", "", "/", "/.", "\\"]))


def spelled(path: str) -> st.SearchStrategy[str]:
    """Spellings of one path."""
    separators = st.sampled_from(["/", "//", "\\", "/./"])
    ends = st.tuples(st.sampled_from(["", "/", "./", ".\\"]), st.sampled_from(["", "/", "/.", "\\"]))
    pieces = path.split("/")
    return st.tuples(ends, st.lists(separators, min_size=len(pieces), max_size=len(pieces))).map(
        lambda drawn: (
            drawn[0][0]
            + "".join(piece + mark for piece, mark in zip(pieces, drawn[1], strict=True))[: -len(drawn[1][-1])]
            + drawn[0][1]
        )
    )


PATHS = st.one_of(spellings(), *map(spelled, [*FILES, "a", "a/d", "c/new", "new/new"]))


TARGETS = st.one_of(*map(spelled, ["new", "a/new", "a/b", "new/new"]), st.sampled_from(["", ".", "/", ".."]))


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except remote_store.RemoteStoreError as error:
        return type(error)


def _listed(infos: Any) -> list[tuple[str, str, int]]:
    return sorted((str(info.path), info.name, info.size) for info in infos)


def _content(store: Any) -> dict[str, bytes]:
    return {str(info.path): store.read_bytes(str(info.path)) for info in store.list_files("", recursive=True)}


READS: dict[str, Callable[[Any, str], Any]] = {
    "read_bytes": lambda s, p: s.read_bytes(p),
    "read": lambda s, p: s.read(p).read(),
    "read_seekable": lambda s, p: s.read_seekable(p).read(),
    "exists": lambda s, p: s.exists(p),
    "is_file": lambda s, p: s.is_file(p),
    "is_folder": lambda s, p: s.is_folder(p),
    "get_file_info": lambda s, p: _listed([s.get_file_info(p)]),
    "list_files": lambda s, p: _listed(s.list_files(p)),
    "list_files recursive": lambda s, p: _listed(s.list_files(p, recursive=True)),
    "list_files pattern": lambda s, p: _listed(s.list_files(p, recursive=True, pattern="[a-c]")),
    "list_folders": lambda s, p: sorted((f.name, str(f.path)) for f in s.list_folders(p)),
    "child": lambda s, p: _content(s.child(p)),
    "child of child": lambda s, p: _content(s.child("a").child(p)),
    "read below a child": lambda s, p: s.child("a").read_bytes(p),
}
DELETES: dict[str, Callable[[Any, str], Any]] = {
    "delete": lambda s, p: s.delete(p),
    "delete missing_ok": lambda s, p: s.delete(p, missing_ok=True),
    "delete_folder": lambda s, p: s.delete_folder(p),
    "delete_folder recursive": lambda s, p: s.delete_folder(p, recursive=True),
    "delete_folder missing_ok": lambda s, p: s.delete_folder(p, recursive=True, missing_ok=True),
    "move away": lambda s, p: s.move(p, "other"),
    "copy away": lambda s, p: s.copy(p, "other"),
    "move onto itself": lambda s, p: s.move(p, p),
    "copy onto itself": lambda s, p: s.copy(p, p, overwrite=True),
    "move onto another spelling": lambda s, p: s.move(p, f"./{p}/", overwrite=True),
}
# Where remote-store's stores with folders refuse a file in the place of a folder, object stores hold both.
WRITES: dict[str, Callable[[Any, str], Any]] = {
    "write": lambda s, p: s.write(p, b"w") and None,
    "write_atomic": lambda s, p: s.write_atomic(p, b"w") and None,
    "write over": lambda s, p: s.write(p, b"w", overwrite=True) and None,
    "move in": lambda s, p: s.move("c", p),
    "copy in": lambda s, p: s.copy("c", p),
    "move over": lambda s, p: s.move("c", p, overwrite=True),
    "copy over": lambda s, p: s.copy("c", p, overwrite=True),
}


def _compare(ours: pds.Store, method: Callable[[Any, str], Any], path: str) -> None:
    reference = remote_store.Store(MemoryBackend())
    for name, content in FILES.items():
        reference.write(name, content)
        ours.write(name, content, overwrite=True)
    expected = _outcome(lambda: method(reference, path))
    hypothesis.note(f"expected: {expected}")
    assert _outcome(lambda: method(ours, path)) == expected
    assert _content(ours) == _content(reference)


@pytest.mark.parametrize("name", [*READS, *DELETES])
@hypothesis.given(path=PATHS)
def test_methods_of_stores(name: str, path: str) -> None:
    with pds.Store("memory://") as ours:
        _compare(ours, {**READS, **DELETES}[name], path)


@pytest.mark.parametrize("name", [*READS, *DELETES, *WRITES])
@hypothesis.given(path=PATHS)
def test_methods_of_local_stores(name: str, path: str) -> None:
    with tempfile.TemporaryDirectory() as root, pds.Store(Path(root).as_uri()) as ours:
        _compare(ours, {**READS, **DELETES, **WRITES}[name], path)


@pytest.mark.parametrize("name", WRITES)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    path=st.one_of(*map(spelled, ["new", "a/new", "a/b", "new/new"]), st.sampled_from(["", ".", "/", ".."]))
)
def test_writes(store: pds.Store, name: str, path: str) -> None:
    _compare(store.child(uuid.uuid4().hex), WRITES[name], path)


@pytest.mark.parametrize("control", ["\n", "\x01", "\x1f", "\x7f", "\x85"])
@pytest.mark.parametrize("name", [*READS, *DELETES, *WRITES])
def test_control_characters_are_refused(memory_store: pds.Store, name: str, control: str) -> None:
    with pytest.raises(pds.InvalidPath):
        {**READS, **DELETES, **WRITES}[name](memory_store, f"a{control}b")


def test_the_local_root_may_be_missing(tmp_path: Path) -> None:
    with pds.Store((tmp_path / "none").as_uri()) as ours:
        assert (ours.exists(""), ours.is_folder("."), list(ours.list_files("."))) == (True, True, [])


DATASETS: dict[str, Callable[[Any, str], Any]] = {
    "write_dataset": lambda ds, key: ds.write_dataset(ROWS, key).row_count,
    "overwrite": lambda ds, key: ds.write_dataset(ROWS, key, overwrite=True).row_count,
    "read_dataset": lambda ds, key: ds.read_dataset(key).to_pydict(),
    "read_manifest": lambda ds, key: ds.read_manifest(key).row_count,
    "dataset_exists": lambda ds, key: ds.dataset_exists(key),
    "delete_dataset": lambda ds, key: ds.delete_dataset(key),
}
KEYS = st.one_of(spellings(), *map(spelled, ["a/b", "x y/%41", "..."]))


def _is_root(key: str) -> bool:
    return not key.replace("\\", "/").replace(".", "").replace("/", "") and ".." not in key


@pytest.mark.parametrize("name", DATASETS)
@hypothesis.given(key=KEYS)
def test_methods_of_datasets(name: str, key: str) -> None:
    # remote-store keeps a dataset in the root; here the root is the place of all of them.
    hypothesis.assume(not _is_root(key))
    reference = theirs.ParquetDatasetStore(remote_store.Store(MemoryBackend()))
    ours = pds.ParquetDatasetStore(pds.Store("memory://"))
    for ds in (reference, ours):
        for old in ("a/b", "x y/%41", "..."):
            ds.write_dataset(OLD, old)
    expected = _outcome(lambda: DATASETS[name](reference, key))
    hypothesis.note(f"expected: {expected}")
    assert _outcome(lambda: DATASETS[name](ours, key)) == expected
    assert sorted(_content(ours.store)) == sorted(_content(reference.store))


OURS: dict[str, Callable[[pds.ParquetDatasetStore, str], Any]] = {
    "scan_dataset": lambda ds, key: ds.scan_dataset(key).read_all().to_pydict(),
    "read_part": lambda ds, key: ds.read_part(key, ds.read_manifest("a/b"), 0).read_all().to_pydict(),
    "verify_dataset": lambda ds, key: ds.verify_dataset(key).rows,
    "clean_dataset": lambda ds, key: ds.clean_dataset(key),
    "list_datasets": lambda ds, key: ds.list_datasets(key),
    "begin_write": lambda ds, key: ds.begin_write(key, overwrite=True).key,
    "key=": lambda ds, key: ds.read_dataset(key=key).to_pydict(),
    "dataset_key": lambda ds, key: ds.write_dataset(ROWS, key, overwrite=True).dataset_key,
}


@pytest.mark.parametrize("name", OURS)
@hypothesis.given(key=spelled("a/b"))
def test_methods_of_datasets_that_remote_store_has_not(name: str, key: str) -> None:
    ours = pds.ParquetDatasetStore(pds.Store("memory://"))
    ours.write_dataset(OLD, "a/b")
    expected = OURS[name](ours, "a/b")
    assert OURS[name](ours, key) == expected
    for bad in (f"{key}/..", f"{key}\0", f"{key}\n/x"):
        with pytest.raises(pds.InvalidPath):
            OURS[name](ours, bad)


@pytest.mark.parametrize("root", ["", ".", "/", "./", "\\"])
@pytest.mark.parametrize("name", [*DATASETS, *(name for name in OURS if name != "list_datasets")])
def test_the_root_is_no_dataset(memory_store: pds.Store, name: str, root: str) -> None:
    ours = pds.ParquetDatasetStore(memory_store)
    ours.write_dataset(OLD, "a/b")
    with pytest.raises(pds.InvalidPath):
        {**DATASETS, **OURS}[name](ours, root)

"""The same calls on remote-store's ParquetDatasetStore and on ours: the same results, or errors of the same class.

Where the RFC asks for something else than its published implementation does, the RFC holds; what is
known of that is tested at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import remote_store
from remote_store.backends import LocalBackend, MemoryBackend
from remote_store.ext import parquet as theirs

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = pa.table(
    {
        "n": [1, 2, 3, 4, 5],
        "s": ["a", None, "c", "d", "e"],
        "t": [{"x": 1, "y": "p"}, {"x": 2, "y": None}, {"x": 3, "y": "q"}, None, {"x": 5, "y": "r"}],
        "l": [[1], [], None, [2, 3], [4]],
    }
).replace_schema_metadata({"of": "table"})
KINDS = ["memory", "local", "ours over theirs"]


class _Pair:
    """A dataset store of each, over stores of the same kind."""

    def __init__(self, kind: str, tmp_path: Path, **options: Any) -> None:
        folders = [tmp_path / "theirs", tmp_path / "ours"]
        for folder in folders:
            folder.mkdir()
        memory = kind == "memory"
        backends = [MemoryBackend() if memory else LocalBackend(str(folder)) for folder in folders]
        self.theirs = theirs.ParquetDatasetStore(remote_store.Store(backends[0]), **options)
        ours: Any = pds.Store("memory://") if memory else pds.Store(folders[1].as_uri())
        if kind == "ours over theirs":
            ours = remote_store.Store(backends[1])
        self.ours = pds.ParquetDatasetStore(ours, **options)

    def both(self, call: Callable[[Any], Any]) -> Any:
        """The outcome, which is the same."""
        expected, found = _outcome(lambda: call(self.theirs)), _outcome(lambda: call(self.ours))
        assert found == expected
        assert self.files(self.ours) == self.files(self.theirs)
        return found

    @staticmethod
    def files(ds: Any) -> dict[str, Any]:
        """Names, and what is comparable of the content."""
        found: dict[str, Any] = {}
        for info in ds.store.list_files("", recursive=True):
            content = ds.store.read_bytes(str(info.path))
            if info.name == "manifest.json":
                try:
                    parsed = json.loads(content)
                    parsed.pop("created_at_utc", None)
                    content = parsed
                except (ValueError, AttributeError, TypeError):
                    pass
            elif info.name.endswith(".parquet"):
                content = content[:4]
            found[str(info.path)] = content
        return found


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        result = call()
    except remote_store.RemoteStoreError as error:
        return type(error)
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = dataclasses.asdict(result)
        assert isinstance(fields.pop("created_at_utc"), str)
        return fields
    return result


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> _Pair:
    return _Pair(request.param, tmp_path)


OPTIONS: list[dict[str, Any]] = [{}, {"max_rows_per_file": 2}, {"compression": "snappy", "row_group_size": 2}]


@pytest.mark.defaults
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_are_shown_alike(options: dict[str, Any], tmp_path: Path) -> None:
    pair = _Pair("memory", tmp_path, **options)
    for name in ("compression", "row_group_size", "max_rows_per_file"):
        assert getattr(pair.ours, name) == getattr(pair.theirs, name)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_life(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    pair = _Pair(kind, tmp_path, **options)
    calls: list[Callable[[Any], Any]] = [
        lambda ds: ds.dataset_exists("a/b"),
        lambda ds: ds.read_dataset("a/b"),
        lambda ds: ds.read_manifest("a/b"),
        lambda ds: ds.delete_dataset("a/b"),
        lambda ds: ds.write_dataset(ROWS, "a/b", run_id="r", metadata={"k": "v", "ü": "日"}),
        lambda ds: ds.dataset_exists("a/b"),
        lambda ds: ds.read_dataset("a/b").schema.metadata,
        lambda ds: ds.read_dataset("a/b"),
        lambda ds: ds.read_manifest("a/b"),
        lambda ds: ds.write_dataset(ROWS, "a/b"),
        lambda ds: ds.write_dataset(ROWS.slice(0, 4), "a/b", overwrite=True),
        lambda ds: ds.read_dataset("a/b"),
        lambda ds: ds.write_dataset(ROWS.slice(2), "a/b/nested"),
        lambda ds: ds.read_dataset("a/b", columns=["s", "n"]),
        lambda ds: ds.delete_dataset("a/b"),
        lambda ds: ds.dataset_exists("a/b/nested"),
        lambda ds: ds.dataset_exists("a"),
    ]
    for call in calls:
        pair.both(call)


@pytest.mark.parametrize(
    "columns",
    [["n"], ["l", "n"], ["n", "n"], ["t.x"], ["t.y", "n"], ["t.y", "t.x"], ["t", "t.x"], ["n", "s", "n"], ["l", "t"]],
    ids=str,
)
@pytest.mark.parametrize("parts", [None, 2])
def test_columns(tmp_path: Path, parts: int | None, columns: list[str]) -> None:
    pair = _Pair("memory", tmp_path, max_rows_per_file=parts)
    pair.both(lambda ds: ds.write_dataset(ROWS, "a"))
    found = pair.both(lambda ds: ds.read_dataset("a", columns=columns))
    assert found.num_rows == 5
    assert pair.ours.scan_dataset("a", columns=columns).read_all().equals(found)


@pytest.mark.parametrize("gone", ["_SUCCESS", "manifest.json", "part-00001.parquet", "part-00000.parquet"])
def test_a_file_is_missing(tmp_path: Path, gone: str) -> None:
    pair = _Pair("memory", tmp_path, max_rows_per_file=2)
    pair.both(lambda ds: ds.write_dataset(ROWS, "a"))
    pair.both(lambda ds: ds.store.delete(f"a/{gone}"))
    for method in ("read_dataset", "read_manifest", "dataset_exists", "delete_dataset"):
        pair.both(lambda ds, method=method: getattr(ds, method)("a"))


def test_all_missing_parts_are_named(tmp_path: Path) -> None:
    pair = _Pair("memory", tmp_path, max_rows_per_file=1)
    for ds in (pair.theirs, pair.ours):
        ds.write_dataset(ROWS, "a")
        for number in (1, 3, 4):
            ds.store.delete(f"a/part-0000{number}.parquet")
        with pytest.raises(theirs.DatasetIncomplete) as caught:
            ds.read_dataset("a")
        assert [f"part-0000{number}.parquet" in str(caught.value) for number in range(5)] == [0, 1, 0, 1, 1]
        assert caught.value.path == "a"


METHODS: dict[str, Callable[[Any, str], Any]] = {
    "write_dataset": lambda ds, key: ds.write_dataset(ROWS, key),
    "overwrite": lambda ds, key: ds.write_dataset(ROWS, key, overwrite=True),
    "read_dataset": lambda ds, key: ds.read_dataset(key),
    "read_manifest": lambda ds, key: ds.read_manifest(key),
    "dataset_exists": lambda ds, key: ds.dataset_exists(key),
    "delete_dataset": lambda ds, key: ds.delete_dataset(key),
}


@pytest.mark.parametrize("kind", ["local", "ours over theirs"])
@pytest.mark.parametrize("key", ["a", "a/b"])
@pytest.mark.parametrize("method", METHODS)
def test_a_file_is_in_the_place_of_a_folder(tmp_path: Path, kind: str, key: str, method: str) -> None:
    pair = _Pair(kind, tmp_path)
    pair.both(lambda ds: ds.store.write("a", b"mine") and None)
    outcome = pair.both(lambda ds: METHODS[method](ds, key))
    if "write" in method or (key, method) == ("a", "delete_dataset"):
        assert outcome is remote_store.InvalidPath


@pytest.mark.parametrize("kind", ["local", "ours over theirs"])
def test_a_folder_without_files(tmp_path: Path, kind: str) -> None:
    pair = _Pair(kind, tmp_path)
    for side in ("theirs", "ours"):
        (tmp_path / side / "a" / "b").mkdir(parents=True)
    assert pair.both(lambda ds: ds.delete_dataset("a")) is None
    assert not (tmp_path / "ours" / "a").exists()
    assert pair.both(lambda ds: ds.delete_dataset("a")) is remote_store.NotFound


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.text(max_size=3),
    *map(st.just, [[], ["data.parquet"], {}, {"k": "v"}, {"k": 1}, [1]]),
)
FIELDS = [field.name for field in dataclasses.fields(theirs.DatasetManifest)]


@hypothesis.settings(max_examples=300)
@hypothesis.given(st.data())
def test_manifests(data: st.DataObject) -> None:
    """What theirs takes, ours takes; and the other way round, but for rows that cannot be."""
    good = theirs.DatasetManifest("k", ["data.parquet"], 1, "h", "zstd", "2026-01-01T00:00:00+00:00", "r", {"a": "b"})
    fields: dict[str, Any] = dataclasses.asdict(good)
    for name in data.draw(st.lists(st.sampled_from([*FIELDS, "more"]), max_size=3)):
        fields[name] = data.draw(VALUES)
    for name in data.draw(st.lists(st.sampled_from(FIELDS), max_size=2)):
        fields.pop(name, None)
    hypothesis.assume(not isinstance(fields.get("row_count"), int) or fields["row_count"] >= 0)
    text = json.dumps(fields)
    expected = _outcome(lambda: dataclasses.astuple(theirs.DatasetManifest.from_json(text)))
    assert _outcome(lambda: dataclasses.astuple(pds.DatasetManifest.from_json(text))) == expected
    if isinstance(expected, tuple):
        assert pds.DatasetManifest.from_json(text).to_json() == theirs.DatasetManifest.from_json(text).to_json()


@pytest.mark.parametrize("text", ["", "x", "[]", "null", "1", '"a"', "{", "{}", '{"parts": 1}'])
def test_what_is_no_manifest(tmp_path: Path, text: str) -> None:
    pair = _Pair("memory", tmp_path)
    assert pair.both(lambda _: None) is None
    for ds in (pair.theirs, pair.ours):
        ds.store.write("a/manifest.json", text.encode())
        ds.store.write("a/_SUCCESS", b"")
    assert pair.both(lambda ds: ds.read_manifest("a")) is theirs.ManifestCorrupted
    assert pair.both(lambda ds: ds.read_dataset("a")) is theirs.ManifestCorrupted


def test_capabilities(tmp_path: Path) -> None:
    for missing in (remote_store.Capability.ATOMIC_WRITE, remote_store.Capability.DELETE):

        class Without(MemoryBackend):
            CAPABILITIES = remote_store.CapabilitySet(set(MemoryBackend.CAPABILITIES) - {missing})

        reference = theirs.ParquetDatasetStore(remote_store.Store(Without()))
        ours = pds.ParquetDatasetStore(remote_store.Store(Without()))
        for overwrite in (False, True):
            if missing is remote_store.Capability.DELETE and not overwrite:
                continue
            errors = []
            for ds in (reference, ours):
                with pytest.raises(remote_store.CapabilityNotSupported) as caught:
                    ds.write_dataset(ROWS, "a", overwrite=overwrite)
                errors.append((caught.value.capability, caught.value.path))
            assert errors[0] == errors[1] == (missing.value, "a")


def test_schema_hashes_and_keyword_arguments(tmp_path: Path) -> None:
    pair = _Pair("memory", tmp_path)
    pair.both(lambda ds: ds.write_dataset(table=ROWS, key="a"))
    pair.both(lambda ds: ds.read_dataset(key="a"))
    pair.both(lambda ds: ds.read_manifest(key="a"))
    pair.both(lambda ds: ds.dataset_exists(key="a"))
    pair.both(lambda ds: ds.delete_dataset(key="a"))


# -- where the RFC says something else -------------------------------------------


def test_one_part_of_a_split_dataset_is_numbered(tmp_path: Path) -> None:
    assert _Pair("memory", tmp_path, max_rows_per_file=9).ours.write_dataset(ROWS, "a").parts == ["part-00000.parquet"]


@pytest.mark.parametrize("columns", [["none"], ["t.none"], ["n.x"], ["n", "none"]], ids=str)
def test_an_unknown_column_is_named_with_those_there_are(tmp_path: Path, columns: list[str]) -> None:
    ours = _Pair("memory", tmp_path).ours
    ours.write_dataset(ROWS, "a")
    for call in (ours.read_dataset, ours.scan_dataset):
        with pytest.raises(pds.InvalidInput, match=r"none|n\.x") as caught:
            call("a", columns=columns)
        assert "'s'" in str(caught.value) or '"s"' in str(caught.value)


LONGEST_KEY = "/".join(["k" * 100] * 10) + "k"


@pytest.mark.parametrize("key", [LONGEST_KEY + "k", "k" * 256, "a\nb", "a\x01", "a/\x7f"], ids=ascii)
@pytest.mark.parametrize("method", METHODS)
def test_keys_that_no_object_store_takes(tmp_path: Path, key: str, method: str) -> None:
    pair = _Pair("memory", tmp_path)
    pair.theirs.write_dataset(ROWS, key)
    assert pair.theirs.read_dataset(key).equals(ROWS)
    with pytest.raises(pds.InvalidPath):
        METHODS[method](pair.ours, key)
    assert pair.files(pair.ours) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_key(tmp_path: Path, kind: str) -> None:
    """Its `_publish.json` has 1024 bytes."""
    assert len(LONGEST_KEY) == 1010
    pair = _Pair(kind, tmp_path)
    pair.ours.begin_write(LONGEST_KEY)
    pair.both(lambda ds: ds.write_dataset(ROWS, LONGEST_KEY))
    pair.both(lambda ds: ds.read_dataset(LONGEST_KEY))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_the_name_of_a_part(tmp_path: Path, kind: str) -> None:
    pair = _Pair(kind, tmp_path)
    for ds in (pair.theirs, pair.ours):
        ds.store.write("a/data.parquet", b"somebody's")
    pair.theirs.write_dataset(ROWS, "a")
    if kind != "ours over theirs":
        with pytest.raises(pds.AlreadyExists, match="does not belong to a dataset"):
            pair.ours.write_dataset(ROWS, "a")
        assert pair.files(pair.ours) == {"a/data.parquet": b"some"}
    pair.ours.write_dataset(ROWS, "a", overwrite=kind != "ours over theirs")
    assert pair.ours.read_dataset("a").equals(pair.theirs.read_dataset("a"))


# -- a delete ----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["read_dataset", "scan_dataset", "verify_dataset"])
def test_a_reader_waits_for_a_publish_of_another_store(tmp_path: Path, method: str) -> None:
    """A `pds.Store` publishes; a `remote_store.Store` of the same folder cannot see its lock."""
    writer = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()), max_rows_per_file=2)
    reader = pds.ParquetDatasetStore(remote_store.Store(LocalBackend(str(tmp_path))))
    writer.write_dataset(ROWS, "a")
    # As it is between the removal of the marker and the new one.
    marker, intent = tmp_path / "a" / "_SUCCESS", tmp_path / "a" / "_publish.json"
    intent.write_bytes(b"{}")
    marker.unlink()

    def publish() -> None:
        marker.touch()
        intent.unlink()

    timer = threading.Timer(0.5, publish)
    timer.start()
    try:
        found = getattr(reader, method)("a")
    finally:
        timer.join()
    rows = found.read_all() if method == "scan_dataset" else found
    assert rows.rows == 5 if method == "verify_dataset" else rows.equals(ROWS)


@pytest.mark.parametrize("backend", ["memory", "local"])
def test_a_delete_leaves_what_is_published_meanwhile(tmp_path: Path, backend: str) -> None:
    """Between the delete of the files and that of the folder another process may write."""
    store = remote_store.Store(MemoryBackend() if backend == "memory" else LocalBackend(str(tmp_path)))
    ours = pds.ParquetDatasetStore(store)
    other = pds.ParquetDatasetStore(store)
    ours.write_dataset(ROWS, "a")
    ours.write_dataset(ROWS, "a/below")
    delete_folder = store.delete_folder
    published: list[str] = []

    def late(path: str, **options: Any) -> None:
        if not published:
            published.append("a")
            other.write_dataset(ROWS.slice(1), "a")
        delete_folder(path, **options)

    store.delete_folder = late  # type: ignore[method-assign]
    ours.delete_dataset("a")
    assert published
    assert other.read_dataset("a").equals(ROWS.slice(1))
    assert not store.exists("a/below")


# -- long parts --------------------------------------------------------------------


def _noise(batches: int, *, fails: bool = False) -> pa.RecordBatchReader:
    """Numbers that do not compress, 8 MiB a batch."""
    schema = pa.schema([("n", pa.float64())])

    def generate() -> Iterator[pa.RecordBatch]:
        for seed in range(batches):
            yield pa.record_batch([np.random.default_rng(seed).random(1 << 20)], schema)
        if fails:
            message = "no more rows"
            raise ValueError(message)

    return pa.RecordBatchReader.from_batches(schema, generate())


@pytest.mark.defaults
@pytest.mark.parametrize("backend", ["memory", "local"])
def test_a_part_of_many_pieces(tmp_path: Path, backend: str) -> None:
    store = remote_store.Store(MemoryBackend() if backend == "memory" else LocalBackend(str(tmp_path)))
    ds = pds.ParquetDatasetStore(store, compression="none", memory_limit=64 << 20)
    ds.write_dataset(_noise(5), "a")
    assert len(store.read_bytes("a/data.parquet")) > 5 * (8 << 20)
    assert ds.read_dataset("a").equals(_noise(5).read_all())
    assert theirs.ParquetDatasetStore(store).read_dataset("a").equals(_noise(5).read_all())


@pytest.mark.defaults
@pytest.mark.parametrize("backend", ["memory", "local"])
def test_a_long_write_that_fails_leaves_nothing(tmp_path: Path, backend: str) -> None:
    store = remote_store.Store(MemoryBackend() if backend == "memory" else LocalBackend(str(tmp_path)))
    ds = pds.ParquetDatasetStore(store, compression="none", row_group_size=1 << 20)
    with pytest.raises(pds.RemoteStoreError, match="no more rows"):
        ds.write_dataset(_noise(4, fails=True), "a")
    assert [str(file.path) for file in store.list_files("", recursive=True)] == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.defaults
def test_a_store_without_writers_takes_a_file_beyond_the_memory_limit(tmp_path: Path) -> None:
    """All of it is held in memory then; it waited for ever for memory that it held itself."""

    class Whole(LocalBackend):
        def open_atomic(self, path: str, *, overwrite: bool = False) -> Any:  # noqa: ARG002 the backend's signature
            raise remote_store.CapabilityNotSupported("no writers", capability="open_atomic", path=path)

    ds = pds.ParquetDatasetStore(remote_store.Store(Whole(str(tmp_path))), compression="none", memory_limit=32 << 20)
    ds.write_dataset(_noise(5), "a")
    assert ds.read_dataset("a").equals(_noise(5).read_all())


@pytest.mark.defaults
def test_a_store_that_takes_no_more_bytes(tmp_path: Path) -> None:
    """The error of the third piece is the write's, and nothing is left."""

    class Full(LocalBackend):
        @contextlib.contextmanager
        def open_atomic(self, path: str, *, overwrite: bool = False) -> Iterator[Any]:
            with super().open_atomic(path, overwrite=overwrite) as file:
                yield _Full(file)

    ds = pds.ParquetDatasetStore(remote_store.Store(Full(str(tmp_path))), compression="none")
    with pytest.raises(OSError, match="No space left"):
        ds.write_dataset(_noise(5), "a")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class _Full:
    """A file that takes half of what it is given at once, and two pieces in all."""

    def __init__(self, file: Any) -> None:
        self.file, self.taken = file, 0

    def write(self, content: bytes) -> int:
        if self.taken >= 2 * (8 << 20):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        some = content[: max(1, len(content) // 2)]
        self.taken += len(some)
        self.file.write(some)
        return len(some)

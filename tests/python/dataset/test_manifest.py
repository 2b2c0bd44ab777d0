"""``DatasetManifest``: its JSON, and manifests made to do harm (PDS-004, PDS-008, PDS-012)."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_store.ext.parquet import DatasetManifest as TheirManifest

import pds

if TYPE_CHECKING:
    from pathlib import Path

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FIELDS: dict[str, Any] = {
    "dataset_key": "a",
    "parts": ["data.parquet"],
    "row_count": 3,
    "schema_hash": "0123456789abcdef",
    "compression": "zstd",
    "created_at_utc": "2026-01-01T00:00:00+00:00",
}
ROWS = pa.table({"n": [1, 2, 3]})
NAMES = st.from_regex(r"[a-z0-9_-]{1,20}\.parquet", fullmatch=True)
MANIFESTS = st.fixed_dictionaries(
    {
        "dataset_key": TEXT,
        "parts": st.lists(NAMES, unique=True),
        "row_count": st.integers(0, 2**53),
        "schema_hash": TEXT,
        "compression": TEXT,
        "created_at_utc": TEXT,
        "run_id": st.none() | TEXT,
        "metadata": st.none() | st.dictionaries(TEXT, TEXT),
    }
)


def _json(**changes: Any) -> str:
    return json.dumps({**FIELDS, **changes})


@pytest.fixture
def ds(store: pds.Store) -> pds.ParquetDatasetStore:
    """A store with one good dataset under ``a``."""
    ds = pds.ParquetDatasetStore(store)
    ds.write_dataset(ROWS, "a")
    return ds


def _plant(ds: pds.ParquetDatasetStore, manifest: str | bytes) -> None:
    content = manifest.encode() if isinstance(manifest, str) else manifest
    ds.store.write("a/manifest.json", content, overwrite=True)


def _change(ds: pds.ParquetDatasetStore, **changes: Any) -> None:
    _plant(ds, json.dumps({**json.loads(ds.read_manifest("a").to_json()), **changes}))


class TestJson:
    """The text is the one remote-store makes, and each reads the other's."""

    @given(MANIFESTS)
    def test_the_same_text_as_theirs(self, fields: dict[str, Any]) -> None:
        ours, theirs = pds.DatasetManifest(**fields), TheirManifest(**fields)
        assert ours.to_json() == theirs.to_json()
        assert pds.DatasetManifest.from_json(theirs.to_json()) == ours
        assert TheirManifest.from_json(ours.to_json()) == theirs

    def test_none_is_left_out_and_empty_is_kept(self) -> None:
        text = pds.DatasetManifest(**FIELDS, run_id=None, metadata={}).to_json()
        assert "run_id" not in text
        assert json.loads(text)["metadata"] == {}
        assert pds.DatasetManifest.from_json(text).metadata == {}

    def test_null_is_none(self) -> None:
        manifest = pds.DatasetManifest.from_json(_json(run_id=None, metadata=None))
        assert (manifest.run_id, manifest.metadata) == (None, None)

    def test_unknown_keys_are_ignored(self) -> None:
        manifest = pds.DatasetManifest.from_json(_json(later={"deep": [1, 2.5, None]}))
        assert manifest == pds.DatasetManifest(**FIELDS)

    def test_sorted_and_indented(self) -> None:
        text = pds.DatasetManifest(**FIELDS).to_json()
        assert text == json.dumps(FIELDS, sort_keys=True, indent=2)

    def test_frozen_and_picklable(self) -> None:
        manifest = pds.DatasetManifest(**FIELDS, metadata={"k": "v"})
        assert pickle.loads(pickle.dumps(manifest)) == manifest  # noqa: S301 made right here
        with pytest.raises(dataclasses.FrozenInstanceError):
            manifest.row_count = 4  # type: ignore[misc]


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "manifest"),
    "not JSON": ("{{garbage", "JSON"),
    "cut off": (_json()[:40], "JSON"),
    "more after it": (_json() + "x", "JSON"),
    "not UTF-8": (b'{"dataset_key": "\xff"}', "UTF-8"),
    "UTF-16": (_json().encode("utf-16"), "UTF-8"),
    "NUL bytes": (b"\0" * 64, "JSON"),
    "an array": ("[1, 2]", "object"),
    "a number": ("7", "object"),
    "null": ("null", "object"),
    "deep arrays": ('{"x": ' + "[" * 200_000 + "]" * 200_000 + "}", "manifest"),
    "deep objects": ('{"a":' * 200_000 + "1" + "}" * 200_000, "manifest"),
    "deep metadata": (_json(metadata={}).replace("{}", "[" * 5000 + "]" * 5000), "manifest"),
    "huge number": (_json().replace("3", "9" * 100_000, 1), "row_count"),
    "huge exponent": (_json().replace("3", "1e999999999", 1), "row_count"),
    "NaN": (_json(row_count=float("nan")), "manifest"),
    "above 64 bits": (_json(row_count=2**64), "row_count"),
    "bool": (_json(row_count=True), "row_count"),
    "float": (_json(row_count=3.0), "row_count"),
    "negative": (_json(row_count=-1), "row_count"),
    "text": (_json(row_count="3"), "row_count"),
    "null count": (_json(row_count=None), "row_count"),
    "parts no list": (_json(parts="data.parquet"), "parts"),
    "parts of numbers": (_json(parts=[1]), "parts"),
    "parts of lists": (_json(parts=[["data.parquet"]]), "parts"),
    "duplicate part": (_json(parts=["data.parquet", "data.parquet"]), "data.parquet"),
    "key no text": (_json(dataset_key=1), "dataset_key"),
    "hash no text": (_json(schema_hash=None), "schema_hash"),
    "codec no text": (_json(compression=["zstd"]), "compression"),
    "time no text": (_json(created_at_utc=1.5), "created_at_utc"),
    "run no text": (_json(run_id=42), "run_id"),
    "metadata no object": (_json(metadata="x"), "metadata"),
    "metadata of numbers": (_json(metadata={"k": 1}), "metadata"),
    "metadata of nulls": (_json(metadata={"k": None}), "metadata"),
    **{f"without {name}": (json.dumps({k: v for k, v in FIELDS.items() if k != name}), name) for name in FIELDS},
}

PARTS = [
    "../x.parquet",
    "..",
    ".",
    "",
    "/abs.parquet",
    "/etc/passwd",
    "b/c.parquet",
    "./data.parquet",
    "a\\b.parquet",
    "..\\x.parquet",
    "s3://bucket/x.parquet",
    "file:///etc/passwd",
    "https://host/x.parquet",
    "nul\0.parquet",
    "line\n.parquet",
    "\x7f.parquet",
    "manifest.json",
    "_SUCCESS",
    "_publish.json",
    ".pds-staged",
    "x" * 300,
    "%2e%2e/x.parquet",
    "data.parquet/",
]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_manifest_is_refused(ds: pds.ParquetDatasetStore, name: str) -> None:
    content, word = BROKEN[name]
    _plant(ds, content)

    for read in (ds.read_manifest, ds.read_dataset, ds.scan_dataset, ds.verify_dataset):
        with pytest.raises(pds.ManifestCorrupted) as caught:
            read("a")
        assert word.lower() in str(caught.value).lower()
        assert caught.value.reason
        assert caught.value.path is not None
        assert caught.value.path.startswith("a")
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("name", [name for name in BROKEN if "UTF" not in name and "duplicate" not in name])
def test_from_json_refuses_it_too(name: str) -> None:
    content, word = BROKEN[name]
    text = content.decode() if isinstance(content, bytes) else content
    with pytest.raises(pds.ManifestCorrupted, match=f"(?i){word}") as caught:
        pds.DatasetManifest.from_json(text)
    assert caught.value.reason


@pytest.mark.parametrize("part", PARTS)
def test_nothing_outside_is_opened_or_deleted(store: pds.Store, part: str) -> None:
    ds = pds.ParquetDatasetStore(store)
    for key in ["a", "b", "a/b"]:
        ds.write_dataset(ROWS, key)
    for name in ["x.parquet", "b/c.parquet", "a/b/c.parquet", "abs.parquet"]:
        store.write(name, b"precious")
    _plant(ds, _json(parts=["data.parquet", part]))
    before = {info.path: info.size for info in store.list_files("", recursive=True)}

    store.reset_metrics()
    for read in (ds.read_manifest, ds.read_dataset, ds.verify_dataset):
        with pytest.raises(pds.ManifestCorrupted):
            read("a")
    # The marker and the manifest, and no byte of a part.
    assert store.metrics()["bytes_read"] < 4 * before["a/manifest.json"] + 1000

    ds.write_dataset(ROWS.slice(1), "a", overwrite=True)
    assert ds.read_dataset("a").equals(ROWS.slice(1))
    after = {info.path: info.size for info in store.list_files("", recursive=True)}
    outside = {path for path in before if not path.startswith("a/") or path.startswith("a/b/")}
    assert {path: after.get(path) for path in outside} == {path: before[path] for path in outside}


def test_files_outside_the_store_stay(tmp_path: Path) -> None:
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"precious")
    ds = pds.ParquetDatasetStore(pds.Store(f"file://{tmp_path}/store"))
    ds.write_dataset(ROWS, "a")
    for part in ["../../outside.parquet", str(outside), outside.as_uri()]:
        _plant(ds, _json(parts=[part]))
        with pytest.raises(pds.ManifestCorrupted):
            ds.read_dataset("a")
        ds.write_dataset(ROWS, "a", overwrite=True)
        _plant(ds, _json(parts=[part]))
    ds.delete_dataset("a")
    assert outside.read_bytes() == b"precious"


def test_a_part_that_is_a_link_outside_is_not_followed(tmp_path: Path) -> None:
    ds = pds.ParquetDatasetStore(pds.Store(f"file://{tmp_path}/store"))
    other = pds.ParquetDatasetStore(pds.Store(f"file://{tmp_path}/other"))
    ds.write_dataset(ROWS, "a")
    other.write_dataset(ROWS, "secret")
    part = tmp_path / "store" / "a" / "data.parquet"
    part.unlink()
    part.symlink_to(tmp_path / "other" / "secret" / "data.parquet")

    with pytest.raises(pds.RemoteStoreError):
        ds.read_dataset("a")
    ds.delete_dataset("a")
    assert other.read_dataset("secret").equals(ROWS)


def test_a_huge_manifest_is_refused_unread(local_store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(local_store)
    ds.write_dataset(ROWS, "a")
    path = local_store.url.removeprefix("file://") + "/a/manifest.json"
    with open(path, "wb") as file:  # noqa: PTH123 a path from a URL
        file.truncate(8 << 30)

    local_store.reset_metrics()
    with pytest.raises(pds.ManifestCorrupted, match="manifest"):
        ds.read_dataset("a")
    assert local_store.metrics()["bytes_read"] < 1 << 28


def test_many_parts_are_fine(memory_store: pds.Store) -> None:
    ds = pds.ParquetDatasetStore(memory_store, max_rows_per_file=1)
    table = pa.table({"n": list(range(1500))})
    assert len(ds.write_dataset(table, "a").parts) == 1500
    assert ds.read_dataset("a").equals(table)


@pytest.mark.parametrize("count", [0, 2, 4, 2**53])
def test_a_wrong_row_count_is_noticed(ds: pds.ParquetDatasetStore, count: int) -> None:
    _change(ds, row_count=count)
    for read in (ds.read_dataset, ds.verify_dataset, lambda key: ds.scan_dataset(key).read_all()):
        with pytest.raises(pds.DatasetIncomplete, match="row"):
            read("a")


@pytest.mark.parametrize("digest", ["", "0" * 16, "not a hash at all"])
def test_another_schema_hash_never_refuses(ds: pds.ParquetDatasetStore, digest: str) -> None:
    _change(ds, schema_hash=digest)
    assert ds.read_dataset("a").equals(ROWS)
    assert ds.verify_dataset("a").rows == 3


def test_another_key_or_codec_never_refuses(ds: pds.ParquetDatasetStore) -> None:
    # A folder that was moved by hand still reads.
    _change(ds, dataset_key="elsewhere", compression="??", run_id="other", metadata={})
    assert ds.read_dataset("a").equals(ROWS)


def test_a_byte_order_mark(ds: pds.ParquetDatasetStore) -> None:
    _plant(ds, b"\xef\xbb\xbf" + _json().encode())
    with pytest.raises(pds.ManifestCorrupted):
        ds.read_manifest("a")


def test_a_repeated_field(ds: pds.ParquetDatasetStore) -> None:
    _plant(ds, _json().replace('"row_count": 3', '"row_count": 3, "row_count": 4'))
    with pytest.raises(pds.ManifestCorrupted, match="row_count"):
        ds.read_manifest("a")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(content: bytes) -> None:
    store = pds.Store("memory://")
    store.write("a/manifest.json", content)
    with pytest.raises(pds.ManifestCorrupted):
        pds.ParquetDatasetStore(store).read_manifest("a")

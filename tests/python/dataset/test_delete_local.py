"""Deletions on a local disk, by a `pds.Store` and by a `remote_store.Store`: links, files in the way, empty folders."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
import remote_store
from remote_store.backends import LocalBackend

import pds

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture(params=["ours", "theirs"])
def ds(request: pytest.FixtureRequest, root: Path) -> pds.ParquetDatasetStore:
    if request.param == "ours":
        return pds.ParquetDatasetStore(pds.Store(root))
    return pds.ParquetDatasetStore(remote_store.Store(LocalBackend(str(root))))


def _content(folder: Path) -> dict[str, object]:
    """All that is in a folder, without following links."""
    content: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            content[name] = path.readlink()
        else:
            content[name] = path.read_bytes() if path.is_file() else "folder"
    return content


@pytest.mark.parametrize("key", ["k", "a/k"])
@pytest.mark.parametrize("target", ["store/real", "store/a", "store/real/data.parquet", "store/nowhere", "outside"])
def test_a_link_is_refused(ds: pds.ParquetDatasetStore, root: Path, key: str, target: str) -> None:
    ds.write_dataset(ROWS, "real")
    ds.write_dataset(ROWS, "real/below")
    (root / "a" / "b").mkdir(parents=True)
    (root.parent / "outside").mkdir()
    (root.parent / "outside" / "data.parquet").write_bytes(b"mine")
    (root / key).symlink_to(root.parent / target)
    before = _content(root.parent)
    with pytest.raises(pds.InvalidPath, match="symbolic link") as caught:
        ds.delete_dataset(key)
    assert caught.value.path == key
    assert _content(root.parent) == before


def test_links_in_the_folder_are_removed_and_not_followed(ds: pds.ParquetDatasetStore, root: Path) -> None:
    ds.write_dataset(ROWS, "other")
    (root / "other" / "empty").mkdir()
    ds.write_dataset(ROWS, "k")
    before = _content(root / "other")
    for name, target in {"folder": "../other", "file": "../other/data.parquet", "loop": "."}.items():
        (root / "k" / name).symlink_to(target)
    ds.delete_dataset("k")
    assert not os.path.lexists(root / "k")
    assert _content(root / "other") == before


@pytest.mark.parametrize("within", ["k", "k/below/empty"])
@pytest.mark.parametrize("target", ["outside", "outside/data.parquet", "store/nowhere", "nowhere"])
def test_links_that_lead_out_of_the_store_or_nowhere_are_removed(
    ds: pds.ParquetDatasetStore, root: Path, within: str, target: str
) -> None:
    (root.parent / "outside").mkdir()
    (root.parent / "outside" / "data.parquet").write_bytes(b"mine")
    before = _content(root.parent / "outside")
    ds.write_dataset(ROWS, "k")
    (root / within).mkdir(parents=True, exist_ok=True)
    (root / within / "link").symlink_to(root.parent / target)
    ds.delete_dataset("k")
    assert _content(root) == {}
    assert _content(root.parent / "outside") == before


def test_a_link_that_cannot_be_removed_is_an_error_of_pds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = pds.ParquetDatasetStore(remote_store.Store(backend=LocalBackend(str(root))))
    ds.write_dataset(ROWS, "k")
    (root / "k" / "link").symlink_to(root / "nowhere")

    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path.is_symlink():
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(pds.PermissionDenied, match=r"a link in 'k' cannot be removed: .*Permission denied"):
        ds.delete_dataset("k")
    assert (root / "k" / "link").is_symlink()


def test_a_folder_that_is_refused_keeps_its_links(ds: pds.ParquetDatasetStore, root: Path) -> None:
    pds.Table.create(pds.Store(root), "k/table", ROWS.schema)
    (root / "k" / "link").symlink_to(root.parent / "nowhere")
    before = _content(root)
    with pytest.raises(pds.InvalidPath, match="holds a table"):
        ds.delete_dataset("k")
    assert _content(root) == before


def test_below_a_link_only_the_dataset_is_deleted(ds: pds.ParquetDatasetStore, root: Path) -> None:
    """As reads and writes do, a deletion follows the links above the dataset's folder that stay in the store."""
    for key in ("real/k", "real/other"):
        ds.write_dataset(ROWS, key)
    (root / "x").symlink_to("real")
    ds.delete_dataset("x/k")
    assert not ds.dataset_exists("real/k")
    assert ds.read_dataset("real/other").equals(ROWS)
    assert (root / "x").is_symlink()


def test_a_file_is_no_folder_to_delete(ds: pds.ParquetDatasetStore, root: Path) -> None:
    (root / "a").write_bytes(b"mine")
    with pytest.raises(pds.InvalidPath, match='a file is in the place of a folder of the dataset "a": "a"'):
        ds.delete_dataset("a")
    assert _content(root) == {"a": b"mine"}


@pytest.mark.parametrize("key", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("size", [10, 4 << 20])
def test_a_write_names_the_file_in_its_way(root: Path, key: str, overwrite: bool, size: int) -> None:
    (root / "a").write_bytes(b"mine")
    rows = pa.table({"b": [os.urandom(size)]})
    with pytest.raises(pds.InvalidPath, match=f'dataset "{key}": "a"') as caught:
        pds.ParquetDatasetStore(pds.Store(root)).write_dataset(rows, key, overwrite=overwrite)
    assert caught.value.path == "a"
    assert _content(root) == {"a": b"mine"}


def test_an_empty_folder_is_deleted(ds: pds.ParquetDatasetStore, root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    ds.delete_dataset("a")
    assert _content(root) == {}
    with pytest.raises(pds.NotFound):
        ds.delete_dataset("a")


# -- what else deletes folders -----------------------------------------------------


@pytest.mark.parametrize("target", ["store/real", "store/real/x", "store/nowhere", "outside"])
@pytest.mark.parametrize("options", [{}, {"recursive": True}, {"recursive": True, "missing_ok": True}], ids=str)
def test_delete_folder_refuses_a_link(root: Path, target: str, options: dict[str, bool]) -> None:
    store = pds.Store(root)
    store.write("real/x", b"mine")
    (root / "real" / "empty").mkdir()
    (root.parent / "outside").mkdir()
    (root / "k").symlink_to(root.parent / target)
    before = _content(root.parent)
    with pytest.raises(pds.InvalidPath, match="symbolic link"):
        store.delete_folder("k", **options)
    assert _content(root.parent) == before


def test_delete_folder_leaves_what_links_lead_to(root: Path) -> None:
    store = pds.Store(root)
    store.write("real/x", b"mine")
    store.write("k/x", b"")
    (root / "k" / "link").symlink_to("../real")
    store.delete_folder("k", recursive=True)
    assert _content(root) == {"real": "folder", "real/x": b"mine"}


def test_a_table_is_not_dropped_through_a_link(root: Path) -> None:
    store = pds.Store(root)
    table = pds.Table.create(store, "t", ROWS.schema)
    table.append(ROWS)
    table.export_delta()
    (root / "k").symlink_to("t")
    before = _content(root)
    with pytest.raises(pds.InvalidPath, match="symbolic link"):
        pds.Table.drop(store, "k")
    assert _content(root) == before
    pds.Table.drop(store, "t")

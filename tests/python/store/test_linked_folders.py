"""A vacuum and a drop remove nothing where a folder is a symbolic link: other data may be where it leads."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from pds import odf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = pa.table({"id": [1, 2, 3], "x": ["a", "b", "c"]})
NOW = dt.timedelta(0)
# The longest that a vacuum of a chain spares.
DAYS = dt.timedelta(days=30)


def _make_table(store: pds.Store) -> pds.Table:
    """With something to remove in every folder."""
    table = pds.Table.create(store, "t", ROWS.schema, key="id", exports=["delta", "iceberg"])
    table.append(ROWS)
    table.delete("id = 1")
    table.overwrite(ROWS)
    table.delete("id = 2")
    return table


def _content(folder: Path) -> dict[str, object]:
    """All that is in a folder, without following links."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.is_dir() or path.read_bytes()
        for path in folder.rglob("*")
    }


def _link(root: Path, folder: str) -> None:
    """Moves a folder away and puts a link in its place."""
    moved = root / "elsewhere"
    # Few deletions are within Delta's log, without a folder of their own.
    (root / folder).mkdir(exist_ok=True)
    (root / folder).rename(moved)
    (root / folder).symlink_to(moved)


def _age(root: Path) -> None:
    moment = (dt.datetime.now(dt.UTC) - 2 * DAYS).timestamp()
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (moment, moment))


TABLE_FOLDERS = ["data", "tombstone", "manifest", "_delta_log", "_dv", "metadata", "metadata/manifests"]


@pytest.mark.parametrize("folder", TABLE_FOLDERS)
@pytest.mark.parametrize("verb", ["vacuum", "dry run", "drop"])
def test_a_folder_of_a_table(tmp_path: Path, folder: str, verb: str) -> None:
    store = pds.Store(tmp_path)
    table = _make_table(store)
    _link(tmp_path, f"t/{folder}")
    before = _content(tmp_path)
    removals: dict[str, Callable[[], object]] = {
        "vacuum": lambda: table.vacuum(NOW),
        "dry run": lambda: table.vacuum(NOW, dry_run=True),
        "drop": lambda: pds.Table.drop(store, "t"),
    }
    with pytest.raises(pds.InvalidPath, match="symbolic link") as caught:
        removals[verb]()
    assert caught.value.path == f"t/{folder}"
    assert _content(tmp_path) == before


@pytest.mark.parametrize("folder", ["_delta_log", "_dv", "metadata"])
@pytest.mark.parametrize("is_inside", [True, False])
def test_a_link_with_the_name_of_an_export_that_a_table_never_had(
    tmp_path: Path, folder: str, *, is_inside: bool
) -> None:
    root = tmp_path / "root"
    target = (root if is_inside else tmp_path) / "elsewhere"
    (target / "manifests").mkdir(parents=True)
    root.mkdir(exist_ok=True)
    files = ["notes.txt", "manifests/deletion_vector_1.bin", "deletion_vector_00000000-0000-0000-0000-000000000000.bin"]
    for name in files:
        (target / name).write_text("of another tool")
    store = pds.Store(root)
    table = pds.Table.create(store, "t", ROWS.schema)
    for _ in range(3):
        table.overwrite(ROWS)
    (root / "t" / folder).symlink_to(target)
    before = _content(target)
    assert table.vacuum(NOW).files
    assert table.scan().to_pyarrow().equals(ROWS)
    pds.Table.drop(store, "t")
    assert _content(target) == before
    assert _content(root / "t") == {folder: target}


def test_another_tables_files_stay(tmp_path: Path) -> None:
    """Why: those that only the other table lists would be removed as files that no version lists."""
    store = pds.Store(tmp_path)
    other = pds.Table.create(store, "other", ROWS.schema)
    other.append(ROWS)
    table = pds.Table.create(store, "t", ROWS.schema)
    for _ in range(3):
        table.overwrite(ROWS)
    shutil.copytree(tmp_path / "t" / "data", tmp_path / "other" / "data", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "t" / "data")
    (tmp_path / "t" / "data").symlink_to("../other/data")
    removals: list[Callable[[], object]] = [lambda: table.vacuum(NOW), lambda: pds.Table.drop(store, "t")]
    for remove in removals:
        with pytest.raises(pds.InvalidPath, match="symbolic link"):
            remove()
        assert other.scan().to_pyarrow().equals(ROWS)
        assert table.scan().to_pyarrow().equals(ROWS)


def test_a_table_without_versions(tmp_path: Path) -> None:
    """What a killed writer left is removed by a drop, but not through a link."""
    store = pds.Store(tmp_path)
    _make_table(store)
    for name in ("_delta_log", "metadata", "manifest"):
        (tmp_path / "t" / name).rename(tmp_path / f"gone{name}")
    (tmp_path / "t" / "_latest_manifest").unlink()
    _link(tmp_path, "t/data")
    _age(tmp_path)
    before = _content(tmp_path)
    with pytest.raises(pds.InvalidPath, match="symbolic link"):
        pds.Table.drop(store, "t")
    assert _content(tmp_path) == before


@pytest.mark.parametrize("folder", ["run", "manifest"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_folder_of_a_pipeline(tmp_path: Path, folder: str, *, dry_run: bool) -> None:
    pipeline = pds.Pipeline(pds.Store(tmp_path), "p")
    pipeline.source("words", key=pa.string(), value=pa.string())
    for value in ("1", "2"):
        pipeline.update(words=pds.Changes([("a", value)]))
    pipeline.compact(min_delta=0)
    _link(tmp_path, f"p/{folder}")
    before = _content(tmp_path)
    with pytest.raises(pds.InvalidPath, match="symbolic link") as caught:
        pipeline.vacuum(NOW, dry_run=dry_run)
    assert caught.value.path == f"p/{folder}"
    assert _content(tmp_path) == before


@pytest.mark.parametrize("folder", ["data", "blocks", "refs"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_folder_of_a_chain(tmp_path: Path, folder: str, *, dry_run: bool) -> None:
    chain = odf.Dataset.create(pds.Store(tmp_path), "d")
    times = pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], pa.timestamp("ms", "UTC"))
    chain.ingest(pa.table({"event_time": times, "x": [1]}))
    (tmp_path / "d" / "data" / next((tmp_path / "d" / "blocks").iterdir()).name).write_bytes(b"of another dataset")
    _age(tmp_path)
    _link(tmp_path, f"d/{folder}")
    before = _content(tmp_path)
    with pytest.raises(pds.InvalidPath, match="symbolic link") as caught:
        chain.vacuum(DAYS, dry_run=dry_run)
    assert caught.value.path == f"d/{folder}"
    assert _content(tmp_path) == before


def test_a_link_above_a_table_is_followed(tmp_path: Path) -> None:
    """What is removed is the table's own: all of it is behind the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = pds.Store(tmp_path)
    pds.Table.create(store, "link/t", ROWS.schema)
    table = pds.Table(store, "link/t")
    for _ in range(2):
        table.overwrite(ROWS)
    assert table.vacuum(NOW).files
    assert table.scan().to_pyarrow().equals(ROWS)
    pds.Table.drop(store, "link/t")
    assert pds.list_tables(store, "") == []

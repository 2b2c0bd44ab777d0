"""Interrupted publishes of local files: obstacles that stay, and intents of other users."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_USER = 12_001


@contextlib.contextmanager
def _another_user() -> Iterator[None]:
    """Root may write everything; others not what they may only read, be it theirs."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(user)


def _rows(count: int) -> pa.Table:
    return pa.table({"n": range(count)})


def _interrupt(root: Path) -> pds.ParquetDatasetStore:
    """Have an overwrite of 2 parts by 3 there that something under the third part's name has stopped."""
    ds = pds.ParquetDatasetStore(pds.Store(root.as_uri()), max_rows_per_file=10)
    ds.write_dataset(_rows(20), "a")
    (root / "a" / "part-00002.parquet").mkdir()
    with pytest.raises(pds.RemoteStoreError, match="interrupted"):
        ds.write_dataset(_rows(30), "a", overwrite=True)
    assert (root / "a" / "_publish.json").exists()
    return ds


def test_an_obstacle_that_goes_is_no_harm(tmp_path: Path) -> None:
    ds = _interrupt(tmp_path)
    (tmp_path / "a" / "part-00002.parquet").rmdir()
    assert ds.read_dataset("a").equals(_rows(30))


@pytest.mark.parametrize("verb", ["overwrite", "delete"])
def test_an_obstacle_that_stays_blocks_no_overwrite_and_no_delete(tmp_path: Path, verb: str) -> None:
    ds = _interrupt(tmp_path)
    with pytest.raises(pds.DatasetIncomplete, match="directory"):
        ds.read_dataset("a")
    if verb == "delete":
        ds.delete_dataset("a")
        assert not ds.dataset_exists("a")
        return
    ds.write_dataset(_rows(5), "a", overwrite=True)
    assert ds.read_dataset("a").equals(_rows(5))


@pytest.mark.parametrize("then", ["publish", "abort"])
def test_parts_of_an_interrupted_publish_stay(tmp_path: Path, then: str) -> None:
    ds = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()), max_rows_per_file=10)
    ds.write_dataset(_rows(20), "a")
    write = ds.begin_write("a", overwrite=True)
    parts = write.prepare(_rows(30))
    (tmp_path / "a" / "part-00002.parquet").mkdir()
    with pytest.raises(pds.RemoteStoreError):
        write.publish(parts, _rows(0).schema)
    if then == "abort":
        write.abort(parts)
    else:
        with pytest.raises(pds.DatasetIncomplete):
            write.publish(parts, _rows(0).schema)
    (tmp_path / "a" / "part-00002.parquet").rmdir()
    assert ds.read_dataset("a").equals(_rows(30))


@pytest.mark.parametrize("verb", ["overwrite", "delete"])
def test_an_intent_that_another_user_cannot_write_is_settled_by_him(verb: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ds = _interrupt(root)
        (root / "a" / "part-00002.parquet").rmdir()
        for place in (root, root / "a"):
            place.chmod(0o777)
        (root / "a" / "_publish.json").chmod(0o444)
        with _another_user():
            if verb == "delete":
                ds.delete_dataset("a")
                assert not ds.dataset_exists("a")
            else:
                ds.write_dataset(_rows(5), "a", overwrite=True)
                assert ds.read_dataset("a").equals(_rows(5))

"""A whole dataset beside which a write left its intent, read through a store that cannot finish it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import remote_store
from remote_store.backends import LocalBackend

import pds

if TYPE_CHECKING:
    from pathlib import Path


def test_a_mistake_of_the_caller_is_said(tmp_path: Path) -> None:
    """The read waited for a lease, and then said that the dataset was incomplete."""
    ours = pds.ParquetDatasetStore(pds.Store(tmp_path.as_uri()))
    ours.write_dataset(pa.table({"x": [1, 2, 3]}), "a")
    (tmp_path / "a" / "_publish.json").write_text("{}")
    foreign = pds.ParquetDatasetStore(remote_store.Store(LocalBackend(str(tmp_path))))
    assert foreign.read_dataset("a").num_rows == 3
    with pytest.raises(pds.InvalidInput, match="zz"):
        foreign.read_dataset("a", columns=["zz"])

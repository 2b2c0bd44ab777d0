"""The demo's comparison sees what it has to see; `make examples` runs the demo itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

EXPECTED = pa.table({"id": [1, 2, 2], "name": ["a", None, "b"], "share": [0.5, None, 0.25]})


@pytest.fixture(scope="module")
def demo() -> Any:
    path = Path(__file__).parents[3] / "examples" / "demo.py"
    spec = importlib.util.spec_from_file_location("pds_demo", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pds_demo"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.spark
@pytest.mark.parametrize(
    "found",
    [
        EXPECTED,
        EXPECTED.take([2, 0, 1]),
        EXPECTED.cast(pa.schema([("id", pa.int8()), ("name", pa.large_string()), ("share", "f8")])),
    ],
)
def test_the_same_rows_are_no_difference(demo: Any, found: pa.Table) -> None:
    assert demo.difference(found, EXPECTED) is None


@pytest.mark.spark
@pytest.mark.parametrize(
    ("found", "difference"),
    [
        (EXPECTED.select(["name", "id", "share"]), "columns"),
        (EXPECTED.slice(1), "2 rows instead of 3"),
        (EXPECTED.take([0, 1, 1]), "values differ"),
        (EXPECTED.set_column(1, "name", [["a", "", "b"]]), "values differ"),
        (EXPECTED.set_column(2, "share", [[0.5, float("nan"), 0.25]]), "values differ"),
        (EXPECTED.set_column(0, "id", [[1.5, 2, 2]]), "values differ"),
        (EXPECTED.slice(0, 0), "0 rows"),
    ],
)
def test_anything_else_is(demo: Any, found: pa.Table, difference: str) -> None:
    assert difference in demo.difference(found, EXPECTED)


@pytest.mark.spark
def test_batches_are_cut_where_the_month_changes(demo: Any) -> None:
    batch = pa.record_batch({"year": [2012, 2013, 2013, 2013], "month": [1, 1, 1, 2]})

    cut = [(month, piece.num_rows) for month, piece in demo.by_month(batch)]

    assert cut == [((2012, 1), 1), ((2013, 1), 2), ((2013, 2), 1)]
    assert list(demo.by_month(batch.slice(0, 0))) == []

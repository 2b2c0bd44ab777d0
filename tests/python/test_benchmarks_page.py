"""New figures of some lines leave the other lines of docs/benchmarks.md alone."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
NAMES = re.findall(r"<!-- (.*) begin -->", PAGE)


@pytest.fixture(scope="module")
def sections() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sections", ROOT / "benches" / "python" / "sections.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(name: str) -> list[str]:
    match = re.search(f"<!-- {name} begin -->\n(.*?)<!-- {name} end", PAGE, re.DOTALL)
    assert match
    return match[1].strip().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_figures_or_none_change_nothing(sections: ModuleType, name: str) -> None:
    assert sections.filled(PAGE, name, body(name)) == PAGE
    assert sections.filled(PAGE, name, []) == PAGE


def test_rows_take_the_place_of_those_of_the_same_name(sections: ModuleType) -> None:
    head = ["| operation | store | lance |", "| --- | --- | ---: |"]
    old = [*head, "| append | local disk | **1.00** |", "| append | S3 server | **2.00** |"]
    page = "\n".join(["before", "<!-- x begin -->", "", "### Time", "", *old, "", "<!-- x end -->", "after"])
    new = ["### Time", "", *head, "| scan | S3 server | **4.00** |", "| append | S3 server | **3.00** |"]
    rows = sections.filled(page, "x", new).splitlines()
    assert rows[6:-3] == [old[1], old[2], "| append | S3 server | **3.00** |", "| scan | S3 server | **4.00** |"]
    assert (rows[0], rows[-1]) == ("before", "after")


def test_what_was_measured_again_leaves_its_old_run(sections: ModuleType) -> None:
    old = ["2 cores", "", "- `make a`, 2026-11-21, 5 rounds:", "  wide/read, wide/write"]
    page = "\n".join(["<!-- x begin -->", "", *old, "", "<!-- x end -->"])
    new = ["2 cores", "", "- `make b`, 2026-11-29, 3 rounds:", "  wide/write"]
    assert sections.filled(page, "x", new).splitlines()[4:-2] == [old[2], "  wide/read", *new[2:]]


def test_a_section_that_is_missing_is_an_error(sections: ModuleType) -> None:
    with pytest.raises(ValueError, match="0 sections 'other'"):
        sections.filled(PAGE, "other", [])

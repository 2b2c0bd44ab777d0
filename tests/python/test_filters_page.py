"""What docs/howto/filters.md lists is what filters know."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import pds

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "filters.md").read_text()
CODE = re.compile(r"`([^`]+)`")
UNKNOWN = ["array_length(l)", "array_has(l, 1)", "sha256(s)", "count(i)"]


def listed(heading: str) -> list[str]:
    """The code in the tables below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.replace(r"\|", "\0") for line in section.splitlines() if line.startswith("|")]
    return [code.replace("\0", "|") for line in lines for code in CODE.findall(line)]


@pytest.fixture(scope="module")
def table() -> pds.Table:
    rows = pa.table(
        {
            "i": [1, 2],
            "f": [0.5, None],
            "s": ["Riga", None],
            "d": [date(2026, 1, 1), None],
            "t": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "r": [{"x": 1}, None],
            "l": [[1, 2], None],
        }
    )
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema)
    table.append(rows)
    return table


@pytest.mark.parametrize("where", listed("Operators"))
def test_operators(table: pds.Table, where: str) -> None:
    assert table.scan(where=where).count() <= 2


@pytest.mark.parametrize("call", listed("Functions"))
def test_functions(table: pds.Table, call: str) -> None:
    assert table.scan(where=f"({call}) IS NOT NULL").count() >= 1


@pytest.mark.parametrize("call", UNKNOWN)
def test_what_the_page_says_is_missing(table: pds.Table, call: str) -> None:
    with pytest.raises(pds.InvalidInput, match="Invalid function"):
        table.scan(where=f"({call}) IS NOT NULL")

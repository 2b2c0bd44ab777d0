"""What a terminal gets: tables by rich where it is installed; a pipe gets the same bytes as ever."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from pds import cli

if TYPE_CHECKING:
    from pathlib import Path

    from tests.python.conftest import Run

ROWS = pa.table({"id": [1, 22], "name": ["[bold]a[/bold]", "日本\x1b[2K"], "long": ["x" * 300, None]})
COLORS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pds.Table:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return pds.write_table("t", ROWS)


def show(monkeypatch: pytest.MonkeyPatch, *argv: str) -> str:
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert cli.main(argv) == 0
    return terminal.getvalue()


def test_a_terminal_gets_a_table_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = show(monkeypatch, "head", "t")
    lines = COLORS.sub("", shown).splitlines()
    assert COLORS.search(shown)
    assert lines[0].split() == ["id", "name", "long"]
    assert set(lines[1].strip()) == {"─"}
    assert lines[2].split()[:2] == ["1", "[bold]a[/bold]"], "data is no markup"
    assert lines[3].split()[:2] == ["22", "日本\\x1b[2K"], "data does not move the cursor"
    assert all(len(line) <= 60 for line in lines)
    assert "…" in lines[2]


def test_no_color_is_honored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", show(monkeypatch, "show", "t"))


@pytest.mark.parametrize("argv", [["head", "t"], ["show", "t"], ["history", "t"], ["ls", "."], ["health", "t"]])
def test_without_rich_a_terminal_gets_what_a_pipe_gets(
    run: Run, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    piped = run(*argv)[1]
    for name in ("rich", "rich.console"):
        monkeypatch.setitem(sys.modules, name, None)
    shown = show(monkeypatch, *argv)
    assert shown == (piped if argv[0] != "head" else piped.replace("x" * 300, "x" * 79 + "…"))


@pytest.mark.parametrize("output", ["json", "ndjson", "csv"])
def test_a_format_is_the_same_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    assert show(monkeypatch, "scan", "t", "-o", output) == run("scan", "t", "-o", output)[1]


def test_a_pipe_does_not_load_rich(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    assert run("head", "t")[1].splitlines()[0].split() == ["id", "name", "long"]
    assert "rich" not in sys.modules


def test_more_columns_than_fit_are_plain_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pds.write_table("wide", pa.table({f"column{number}": [number] for number in range(30)}))
    assert show(monkeypatch, "head", "wide") == run("head", "wide")[1]


def test_blocks_have_one_header(monkeypatch: pytest.MonkeyPatch) -> None:
    pds.write_table("big", pa.table({"number": range(2500)}))
    lines = COLORS.sub("", show(monkeypatch, "scan", "big")).split()
    assert [line for line in lines if "─" not in line] == ["number", *map(str, range(2500))]


def test_fields_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long values are continued and not cut."""
    pds.write_dataset("d", ROWS, metadata={"note": "y" * 200})
    shown = COLORS.sub("", show(monkeypatch, "show", "d"))
    assert shown.count("y") == 200 + sum(name.count("y") for name in ("compression", "binary")) - 1

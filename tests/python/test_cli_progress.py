"""`--progress`: what a command shows on stderr while it works, and where it does not."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from pds import cli, odf
from pds.cli import progress as cli_progress
from pds.cli.parser import build_parser

if TYPE_CHECKING:
    from pathlib import Path

    from tests.python.conftest import Run

ROWS = pa.table({"id": range(1000)})
# The operation that each command reports, by its arguments.
COMMANDS = {
    ("check", "t"): "check",
    ("verify", "t"): "verify",
    ("optimize", "t"): "compact",
    ("optimize", "t", "--sort"): "sort",
    ("vacuum", "t", "--dry-run"): "vacuum",
    ("verify", "d"): "verify_dataset",
    ("optimize", "p"): "compact",
    ("vacuum", "p", "--dry-run"): "vacuum",
    ("verify", "c"): "verify",
    ("optimize", "c"): "compact",
    ("vacuum", "c", "--dry-run"): "vacuum",
    ("export", "t"): "export_delta",
    ("dataset", "verify", "."): "verify_dataset",
    ("odf", "verify", "c"): "verify",
}
EACH_COMMAND = pytest.mark.parametrize(("argv", "operation"), COMMANDS.items(), ids=map(" ".join, COMMANDS))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, a dataset, a pipeline and a chain."""
    monkeypatch.chdir(tmp_path)
    pds.write_table("t", ROWS, key="id")
    pds.write_dataset("d", ROWS)
    store = pds.Store(tmp_path.as_uri())
    pipeline = pds.Pipeline(store, "p")
    pipeline.source("numbers", key=pa.int64(), value=pa.int64())
    pipeline.update(numbers=pds.Changes([(1, 2)]))
    odf.Dataset.create(store, "c").ingest(ROWS)


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What stderr is from now on; not in a fixture, after which pytest puts its own there."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


@pytest.fixture
def no_command_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the calls, which come every 0.2 s and once at the end, is late enough."""
    monkeypatch.setattr(cli_progress, "_SHORT_SECONDS", 0.0)
    monkeypatch.setattr("pds.progress._INTERVAL_SECONDS", 0.0)


@EACH_COMMAND
def test_a_terminal_gets_a_bar(
    no_command_is_short: None, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], operation: str
) -> None:
    pytest.importorskip("rich")
    terminal = open_terminal(monkeypatch)
    assert cli.main(argv) == 0
    assert "━" in terminal.getvalue()
    assert operation in terminal.getvalue()


@EACH_COMMAND
def test_what_is_asked_for_is_shown_in_a_pipe(run: Run, argv: tuple[str, ...], operation: str) -> None:
    silent = run(*argv, "--no-progress")
    code, out, err = run(*argv, "--progress")
    assert silent[0] == code == 0
    assert silent[2] == ""
    assert err.splitlines()[-1].startswith(f"{operation}: ")
    # A second optimization or export has nothing to do.
    assert argv[0] in ("optimize", "export") or out == silent[1]


@EACH_COMMAND
def test_a_pipe_gets_nothing_by_itself(
    no_command_is_short: None, run: Run, argv: tuple[str, ...], operation: str
) -> None:
    code, _, err = run(*argv)
    assert (code, err) == (0, "")


@EACH_COMMAND
def test_a_terminal_gets_nothing_if_that_is_asked_for(
    no_command_is_short: None, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], operation: str
) -> None:
    terminal = open_terminal(monkeypatch)
    assert cli.main([*argv, "--no-progress"]) == 0
    assert terminal.getvalue() == ""


def test_a_display_comes_when_an_operation_is_long_and_sees_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    for last in (0.9, 1.5):
        show = cli_progress._LateDisplay()
        for tenths in range(round(last * 10)):
            show(pds.Progress("sort", "sort", 0, None, 0, None, 0, tenths / 10, is_last=False))
        show(pds.Progress("sort", "commit", 3, None, 5, 5, 0, last, is_last=True))
    assert capsys.readouterr().err == "sort: 5 of 5 rows, 3 files, 1.5 s\n"


def test_nobody_sees_a_closed_stream(no_command_is_short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["verify", "t"]) == 0
    assert cli.main(["verify", "t", "--progress"]) == 0


def test_the_help_says_when_it_is_shown(run: Run) -> None:
    assert run("vacuum", "--help")[1].count("--progress, --no-progress") == 1
    assert build_parser().parse_args(["vacuum", "t"]).progress is None

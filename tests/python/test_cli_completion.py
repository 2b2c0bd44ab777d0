"""`pds completion`: scripts that know each command and option, and start no process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pds.cli import completion
from pds.cli.parser import SHELLS, build_parser

if TYPE_CHECKING:
    from pathlib import Path

    from tests.python.conftest import Run

LINES = {
    "pds he": {"head", "health"},
    "pds hist": {"history"},
    "pds show x -o ": {"text", "json", "ndjson", "csv"},
    "pds export x --to d": {"delta"},
    "pds show x --a": {"--as-of"},
    "pds vacuum x --d": {"--dry-run"},
    "pds dataset ": {"list", "show", "verify", "clean", "delete"},
    "pds dataset sh": {"show"},
    "pds dataset clean --y": {"--yes"},
    "pds odf v": {"verify", "vacuum"},
    "pds completion ": {"bash", "zsh", "fish"},
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no file whose name could be completed."""
    monkeypatch.chdir(tmp_path)


def script_of(run: Run, shell: str) -> str:
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_option(run: Run, shell: str) -> None:
    script = script_of(run, shell)
    for command in completion._walk(completion._read_parser("", build_parser())):
        assert command.name.split()[-1] in script
        for option in command.options:
            for name in option.names:
                assert name.lstrip("-") in script


def test_bash_completes(run: Run) -> None:
    lines = [
        script_of(run, "bash"),
        'try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _pds; echo "${COMPREPLY[*]}"; }',
        "PATH=",
    ]
    for line in LINES:
        words = line.split(" ")
        lines.append("try " + " ".join(f"'{word}'" for word in words))
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert [set(line.split()) for line in done.stdout.splitlines()] == list(LINES.values())


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(run: Run) -> None:
    lines = [script_of(run, "fish")]
    lines += [f"complete -C '{line}' | string split -f1 \\t | string join ' '" for line in LINES]
    command = ["fish", "--no-config", "-c", "\n".join(lines)]
    # `string join` of one word is 1.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert [set(line.split()) for line in done.stdout.splitlines()] == list(LINES.values())


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_parses_the_script(run: Run) -> None:
    subprocess.run(["zsh", "-f", "-n", "-c", script_of(run, "zsh")], check=True)


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["scan", "--help"], ["completion", "bash"], ["nothing"]])
def test_what_needs_no_store_imports_nothing_heavy(argv: list[str]) -> None:
    program = f"""
import sys
from pds import cli
try:
    cli.main({argv!r})
except SystemExit:
    pass
heavy = {{"pyarrow", "rich", "numpy", "pandas", "pds.table", "asyncio"}} & sys.modules.keys()
print(*heavy, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == ""


def test_an_unknown_shell_is_refused(run: Run) -> None:
    assert run("completion", "tcsh")[:2] == (2, "")

"""The code of the README runs as it stands there, one block after the other, and prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pds import cli

if TYPE_CHECKING:
    import pytest

CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def _run_console_blocks(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands print what stands below them, if anything does."""
    commands = 0
    for block in CONSOLE.findall(text):
        for command, expected in COMMAND.findall(block):
            capfd.readouterr()
            program, *arguments = shlex.split(command)
            assert (program, cli.main(arguments)) == ("pds", 0), command
            printed = capfd.readouterr().out
            assert printed == expected or (printed and not expected), command
            commands += 1
    assert commands >= 3


def test_the_code_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Blocks go on from what those before them made. Relative paths are in an empty folder; so is the one S3 store."""
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    blocks = [(text[: found.start()].count("\n") + 1, *found.groups()) for found in BLOCK.finditer(text)]
    assert len(blocks) >= 5
    store = ('"s3://bucket/lake", aws_region="eu-west-1"', repr((tmp_path / "bucket").as_uri()))
    names: dict[str, Any] = {}
    for line, block, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # With the line numbers of the README in tracebacks.
            exec(compile("\n" * line + block.replace(*store), str(README), "exec"), names)  # noqa: S102 the README is ours
        assert printed.getvalue() == (expected or ""), f"line {line}"
    _run_console_blocks(text, capfd)
    assert names["words_by_count"].name == "words_by_count"
    assert sum(expected is not None for _, _, expected in blocks) >= 2

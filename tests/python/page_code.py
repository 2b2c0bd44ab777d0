"""The code of Markdown pages, run as it stands there: one block after the other, and what each prints."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pds import cli

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

# A console block is run where one stands; what a block of Python prints stands in the text block right after it.
_BLOCK = re.compile(
    r"^```(?P<language>python|console)\n(?P<code>.*?)^```$(?:\n\n^```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code, its line in the page, and what it prints; None if the page does not say."""

    language: str
    line: int
    code: str
    printed: str | None

    def compiled(self, page: Path) -> Any:
        """The code, with the line numbers of the page in tracebacks."""
        return compile("\n" * self.line + self.code, str(page), "exec")


def find_blocks(text: str) -> list[Block]:
    """The blocks of a page in their order."""
    return [
        Block(found["language"], text[: found.start()].count("\n") + 1, found["code"], found["printed"])
        for found in _BLOCK.finditer(text)
    ]


def run_page(
    page: Path, substitutes: Mapping[str, str], capfd: pytest.CaptureFixture[str], blocks: list[Block] | None = None
) -> dict[str, Any]:
    """Run the blocks of a page, with some texts replaced, and return the names that its Python has defined."""
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in find_blocks(page.read_text()) if blocks is None else blocks:
        code = block.code
        for text, substitute in substitutes.items():
            code = code.replace(text, substitute)
        if block.language == "console":
            _run_commands(replace(block, code=code), page, capfd)
        else:
            _run_python(replace(block, code=code), page, names)
    return names


def _run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block.compiled(page), names)  # noqa: S102 the pages are ours
    assert printed.getvalue() == (block.printed or ""), f"{page.name}, line {block.line}"


def _run_commands(block: Block, page: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands print what stands below them, if anything does."""
    for command, expected in _COMMAND.findall(block.code):
        capfd.readouterr()
        program, *arguments = shlex.split(command)
        assert (program, cli.main(arguments)) == ("pds", 0), f"{page.name}: {command}"
        printed = capfd.readouterr().out
        assert printed == expected or (printed and not expected), f"{page.name}: {command}\n{printed}"

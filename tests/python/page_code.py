"""The code of Markdown pages, run as it stands there: one block after the other, and what each prints."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pds
from pds import cli

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# What a block of Python prints stands in the text block right after it.
_BLOCK = re.compile(
    r"^```(?P<language>python|console)\n(?P<code>.*?)^```$(?:\n\n^```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
CLOUDS = ("s3://", "s3a://", "az://", "gs://")


@dataclass(frozen=True)
class Block:
    """A block of code, its line in the page, and what it prints; None if the page does not say."""

    language: str
    line: int
    code: str
    printed: str | None

    def compiled(self, page: Path) -> Any:
        """The code, with the line numbers of the page in tracebacks."""
        return compile("\n" * self.line + self.code, str(page), "exec", dont_inherit=True)


def find_blocks(page: Path) -> list[Block]:
    """The blocks of a page in their order."""
    text = page.read_text()
    return [
        Block(found["language"], text[: found.start()].count("\n") + 1, found["code"], found["printed"])
        for found in _BLOCK.finditer(text)
    ]


def keep_clouds_on_disk(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put folders in the place of buckets and containers, once URL and options are checked as those of a cloud."""
    plain = pds.Store.__init__

    def with_folders(self: pds.Store, url: Any, storage_options: Any = None, **options: Any) -> None:
        plain(self, url, storage_options, **options)
        scheme, _, path = self.url.partition("://")
        if f"{scheme}://" in CLOUDS:
            plain(self, (folder / scheme / path).as_uri())

    patch.setattr(pds.Store, "__init__", with_folders)


def run_page(page: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the blocks of a page, and return the names that its Python has defined."""
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in find_blocks(page):
        if block.language == "console":
            _run_commands(block, page, capfd)
        else:
            _run_python(block, page, names)
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

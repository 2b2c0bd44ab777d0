"""The pages of the documentation: their code runs, their links lead somewhere, and nothing is left out of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pds
from page_code import CLOUDS, find_blocks, keep_clouds_on_disk, run_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in {"design", "_build"})
BY_NAME = {str(page.relative_to(DOCS)): page for page in PAGES}
# What a page says of its own code. Any other page runs as it stands there.
ONLY_COMPILED = re.compile(r"^> Needs .*: the tests compile the code of this page and do not run it\.$", re.MULTILINE)
ON_DISK = "> The tests run this code with the options checked, and a local folder in place of the bucket."

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", [name for name, page in BY_NAME.items() if find_blocks(page)])
def test_the_code_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Blocks go on from what those before them made, in an empty folder, and print what stands below them."""
    page = BY_NAME[name]
    text = page.read_text()
    if ONLY_COMPILED.search(text):
        assert all(block.compiled(page) for block in find_blocks(page) if block.language == "python")
        return
    uses_cloud = any(cloud in block.code for block in find_blocks(page) for cloud in CLOUDS)
    assert uses_cloud == (ON_DISK in text), "a page whose code names a cloud says how it is tested"
    monkeypatch.chdir(tmp_path)
    keep_clouds_on_disk(monkeypatch, tmp_path / "clouds")
    run_page(page, capfd)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = _FENCED.sub("", page.read_text())
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(text))
    return {title.replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", BY_NAME)
def test_links_lead_to_a_file_and_a_heading(name: str) -> None:
    page = BY_NAME[name]
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), f"{name}: {link}"
        assert not anchor or anchor in _anchors(target), f"{name}: {link}"


def test_every_page_is_in_the_navigation_once() -> None:
    entries = []
    for page in PAGES:
        for toctree in _TOCTREE.findall(page.read_text()):
            lines = [line for line in toctree.splitlines() if line and not line.startswith(":") and "*" not in line]
            entries += [(page.parent / f"{line}.md").resolve().relative_to(DOCS.resolve()) for line in lines]
    assert sorted(map(str, entries)) == sorted(BY_NAME.keys() - {"index.md"})


def test_every_error_has_an_anchor() -> None:
    classes = set(_HEADING.findall((DOCS / "errors.md").read_text())) & {*pds.errors.__all__, "ProduceError"}
    assert classes == {*pds.errors.__all__, "ProduceError"}


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    modules = {"errors", "odf", "testing", "__version__"}
    names = {*pds.__all__, "list"} - modules - set(pds.errors.__all__)
    assert {name for name in names if f":: pds.{name}\n" not in text} == set()
    assert {name for name in pds.odf.__all__ if f":: pds.odf.{name}\n" not in text} == set()

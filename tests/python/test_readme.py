"""The code of the README runs as it stands there, one block after the other, and prints what stands below it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from page_code import find_blocks, keep_clouds_on_disk, run_page

if TYPE_CHECKING:
    import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_code_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Blocks go on from what those before them made. Relative paths are in an empty folder; so is the one S3 store."""
    monkeypatch.chdir(tmp_path)
    keep_clouds_on_disk(monkeypatch, tmp_path / "clouds")
    blocks = find_blocks(README)
    names = run_page(README, capfd)
    assert names["words_by_count"].name == "words_by_count"
    assert sum(block.language == "python" for block in blocks) >= 5
    assert sum(block.code.count("$ pds ") for block in blocks if block.language == "console") >= 3
    assert sum(block.printed is not None for block in blocks) >= 2

"""The code of the README runs as it stands there, one block after the other, with a folder in place of its stores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    """Blocks go on from what those before them made."""
    text = README.read_text()
    blocks = [(text[: found.start()].count("\n") + 1, found[1]) for found in BLOCK.finditer(text)]
    assert len(blocks) >= 4
    stores = {
        '"file:///data/lake"': repr((tmp_path / "local").as_uri()),
        '"s3://bucket/lake", aws_region="eu-west-1"': repr((tmp_path / "bucket").as_uri()),
    }
    names: dict[str, Any] = {}
    for line, block in blocks:
        code = block
        for written, used in stores.items():
            code = code.replace(written, used)
        # With the line numbers of the README in tracebacks.
        exec(compile("\n" * line + code, str(README), "exec"), names)  # noqa: S102 the README is ours
    assert names["words_by_count"].name == "words_by_count"

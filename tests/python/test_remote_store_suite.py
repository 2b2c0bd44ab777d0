"""The tests that remote-store has of its Parquet extension, run against pds.

They come from its source distribution, fetched by `make setup`; only the imports (and, the
second time, the stores) are swapped. Nothing of them is kept here.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# Of tests/ext/test_parquet.py in remote-store 0.33.0.
SHA256 = "ada0980e0d675b45d2278fbb8f22eed4f5c257fd821a5a55c7fb7dda42fa66b3"
TESTS = 70
# Test name: why it is left out.
LEFT_OUT: dict[str, str] = {}

# What is replaced, by what, and how often it must be found.
IMPORTS = [("from remote_store.ext.parquet import ", "from pds import ", 1)]
STORES = [
    ("Store(MemoryBackend())", '__import__("pds").Store("memory://")', 2),
    ("Store(LocalBackend(str(tmp_path)))", '__import__("pds").Store(f"file://{tmp_path}")', 2),
]
CONFIG = """\
[pytest]
markers =
    spec: the rules a test is for
    os_sensitive: depends on the operating system
xfail_strict = true
filterwarnings = error
"""


@pytest.fixture(scope="session")
def upstream(remote_store_sdist: Path) -> str:
    """The text of the upstream module."""
    content = (remote_store_sdist / "tests" / "ext" / "test_parquet.py").read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    return content.decode()


@pytest.mark.parametrize("swaps", [IMPORTS, IMPORTS + STORES], ids=["remote-store stores", "pds stores"])
def test_upstream_suite(upstream: str, tmp_path: Path, swaps: list[tuple[str, str, int]]) -> None:
    for old, new, count in swaps:
        assert upstream.count(old) == count, old
        upstream = upstream.replace(old, new)
    (tmp_path / "test_upstream.py").write_text(upstream)
    (tmp_path / "pytest.ini").write_text(CONFIG)
    report = tmp_path / "report.xml"

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--junitxml", report),
            *(f"--deselect=test_upstream.py::{name}" for name in LEFT_OUT),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert report.exists(), done.stdout + done.stderr
    suite = ET.parse(report).getroot()[0]
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {
        "tests": TESTS - len(LEFT_OUT),
        "failures": 0,
        "errors": 0,
        "skipped": 0,
    }, done.stdout

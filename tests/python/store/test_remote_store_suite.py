"""The tests that remote-store has of its Parquet extension and of its stores, run against pds.

They come from its source distribution, fetched by `make setup`; only the imports (and, where it
says so, the stores) are swapped. Nothing of them is kept here.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# What is replaced, by what, and how often it must be found.
IMPORTS = [("from remote_store.ext.parquet import ", "from pds import ", 1)]
STORES = [
    ("Store(MemoryBackend())", '__import__("pds").Store("memory://")', 2),
    ("Store(LocalBackend(str(tmp_path)))", '__import__("pds").Store(f"file://{tmp_path}")', 2),
]
# A store of ours in the place of one of theirs over any backend.
SHIM = """\
import pds


def Store(backend=None, root_path=""):
    store = pds.Store("memory://")
    return store.child(root_path) if root_path else store
"""
CONFIG = """\
[pytest]
markers =
    spec: the rules a test is for
    os_sensitive: depends on the operating system
xfail_strict = true
filterwarnings = error
pythonpath = .
"""
METHODS = "a method that stores here have not"
CLASSES = "asks for remote-store's own class, attribute or backend"


@dataclass(frozen=True)
class Module:
    """An upstream module, and how many of its tests are run: of remote-store 0.33.0."""

    path: str
    sha256: str
    tests: int
    swaps: list[tuple[str, str, int]]
    # Beginnings of names of tests, and why they are left out.
    left_out: dict[str, str] = field(default_factory=dict)


PARQUET = ("ext/test_parquet.py", "ada0980e0d675b45d2278fbb8f22eed4f5c257fd821a5a55c7fb7dda42fa66b3", 70)
MODULES = {
    "datasets on remote-store stores": Module(*PARQUET, IMPORTS),
    "datasets on pds stores": Module(*PARQUET, IMPORTS + STORES),
    "partition paths": Module(
        "ext/test_partition.py",
        "52179cb8cd114bd2c317d12bc8750ee9b8f765d8ae12556f2a58f835e5385396",
        28,
        [
            (
                "import ParsedPartition, parse_partition, partition_path",
                "import ParsedPartition, parse_partition\nfrom pds import partition_path",
                1,
            )
        ],
    ),
    "stores": Module(
        "test_store.py",
        "6296ab6f011271565e36dcca4f1d4ea7b2106b785d018fc760bb727405ecae44",
        66,
        [
            ("from remote_store._store import Store", "from shim import Store", 1),
            ("from .conftest import make_restricted_store", "make_restricted_store = None", 1),
        ],
        {
            **{
                f"TestStoreBasics::test_file_targeted_methods_reject_root[{name}": METHODS
                for name in ("read_text", "write_text", "open_atomic", "head")
            },
            "TestStoreBasics::test_root_rejection_happens_before_backend_dispatch": CLASSES,
            "TestStoreBasics::test_supports_atomic_move": CLASSES,
            "TestStoreFullAPI::test_open_atomic": METHODS,
            "TestStoreFullAPI::test_list_files": CLASSES,
            "TestStoreFullAPI::test_list_folders": CLASSES,
            "TestStoreFullAPI::test_get_file_info": CLASSES,
            "TestStoreFullAPI::test_get_folder_info": METHODS,
            "TestStoreDelegatedRaises::test_delegated_raise[get_folder_info": METHODS,
            "TestStoreIterChildren": METHODS,
            "TestStoreRoundTrip::test_get_file_info": CLASSES,
            "TestStoreRoundTrip::test_get_folder_info": METHODS,
            "TestGetFolderInfoRoot": METHODS,
            "TestStoreToKey": METHODS,
            "TestStoreUnwrap": METHODS,
            "TestStoreNativePath": METHODS,
            "TestStoreReadText": METHODS,
            "TestStoreWriteText": METHODS,
            "TestWriteReturnsResult": CLASSES,
            "TestStoreHead": METHODS,
            "TestMetadataGate": METHODS,
            "TestStoreEquality": CLASSES,
            "TestStoreCapabilityGates": CLASSES,
        },
    ),
    "children of stores": Module(
        "test_store_child.py",
        "e9c977ad806e8bfb0e4d2fe95fdfe7e06809640be613deb21027344cfb026cf3",
        12,
        [("from remote_store._store import Store", "from shim import Store", 1)],
        {
            "TestChildBasics::test_child_returns_store": CLASSES,
            "TestChildBasics::test_child_root_composition": CLASSES,
            "TestChildEqualityAndRepr::test_child_equals_direct_construction": CLASSES,
        },
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_upstream_suite(remote_store_sdist: Path, tmp_path: Path, name: str) -> None:
    module = MODULES[name]
    content = (remote_store_sdist / "tests" / module.path).read_bytes()
    assert hashlib.sha256(content).hexdigest() == module.sha256
    text = content.decode()
    for old, new, count in module.swaps:
        assert text.count(old) == count, old
        text = text.replace(old, new)
    (tmp_path / "test_upstream.py").write_text(text)
    (tmp_path / "shim.py").write_text(SHIM)
    (tmp_path / "pytest.ini").write_text(CONFIG)
    report = tmp_path / "report.xml"

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--junitxml", report),
            *(f"--deselect=test_upstream.py::{test}" for test in module.left_out),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert report.exists(), done.stdout + done.stderr
    suite = ET.parse(report).getroot()[0]
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": module.tests, "failures": 0, "errors": 0, "skipped": 0}, done.stdout

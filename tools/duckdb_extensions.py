"""A DuckDB with extensions, in a folder of the cache.

DuckDB fetches extensions from a site of its own, at run time. PyPI has some of them as packages, for one version of
DuckDB, which is another one than the environment of the tests has: a process that is to see it puts the folder before
the others on its module path.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from servers.process import cache_dir

VERSION = "1.4.4"
EXTENSIONS = ("httpfs", "delta", "avro", "iceberg")
PINNED = (f"duckdb=={VERSION}", *(f"duckdb-ext-{name}=={VERSION}.20260205" for name in EXTENSIONS))


def installed() -> Path:
    """The folder to put before the others on the module path, filled on the first call."""
    target = cache_dir() / "bench" / f"duckdb-{VERSION}-{'-'.join(EXTENSIONS)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
            subprocess.run([*command, "--target", f"{scratch}/new", *PINNED], check=True)
            try:
                Path(scratch, "new").rename(target)
            except OSError:
                # Another process was faster.
                if not target.exists():
                    raise
    return target


def extension_directory() -> Path:
    """Where DuckDB finds the extensions."""
    return installed() / "duckdb_ext" / "extensions"

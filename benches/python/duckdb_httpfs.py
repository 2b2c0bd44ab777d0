"""DuckDB's own S3 client, for the comparisons on S3.

DuckDB fetches extensions from a site of its own, at run time. PyPI has the ``httpfs`` extension as
a package, for one version of DuckDB; both are installed into a folder of the cache that only the
measured process of a DuckDB run on S3 sees.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from servers.process import cache_dir

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3Server

VERSION = "1.4.4"
PINNED = (f"duckdb=={VERSION}", f"duckdb-ext-httpfs=={VERSION}.20260205")


def installed() -> Path:
    """The folder to put before the others on the module path, filled on the first call."""
    target = cache_dir() / "bench" / f"duckdb-{VERSION}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
            subprocess.run([*command, "--target", f"{scratch}/new", *PINNED], check=True)
            shutil.move(f"{scratch}/new", target)
    return target


def statements(server: S3Server) -> list[str]:
    """What makes a connection of the folder's DuckDB speak to a server."""
    extensions = installed() / "duckdb_ext" / "extensions"
    secret = {
        "TYPE": "s3",
        "KEY_ID": f"'{server.access_key}'",
        "SECRET": f"'{server.secret_key}'",
        "REGION": f"'{server.region}'",
        "ENDPOINT": f"'{urlsplit(server.endpoint).netloc}'",
        "URL_STYLE": "'path'",
        "USE_SSL": "false",
    }
    options = ", ".join(f"{name} {value}" for name, value in secret.items())
    return [
        f"SET extension_directory = '{extensions}'",
        "LOAD httpfs",
        f"CREATE SECRET ({options})",
    ]

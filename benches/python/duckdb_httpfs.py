"""DuckDB's own S3 client, for the comparisons on S3: only the measured process of a DuckDB run on S3 sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from duckdb_extensions import VERSION, extension_directory, installed

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3Server

__all__ = ["VERSION", "modules", "statements"]


def modules(system: str, server: S3Server | None) -> Path | None:
    """The folder that a process needs first on its module path, if it is one of DuckDB on S3."""
    return installed() if server and system.startswith("duckdb") else None


def statements(server: S3Server) -> list[str]:
    """What makes a connection of the folder's DuckDB speak to a server."""
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
        f"SET extension_directory = '{extension_directory()}'",
        "LOAD httpfs",
        f"CREATE SECRET ({options})",
    ]

"""The options of ``format("pds")``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from pds import Store, Table
from pds.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "READ_OPTIONS",
    "STREAM_OPTIONS",
    "TASK_SIZES",
    "FixedVersion",
    "TablePlace",
    "check_commit",
    "check_options",
    "find_snapshot",
    "parse_columns",
    "parse_flag",
    "parse_positive",
]

READ_OPTIONS: Final = ("version", "versionAsOf", "timestamp", "timestampAsOf", "columns", "where")
STREAM_OPTIONS: Final = ("startingVersion", "ignoreDeletes", "skipChangeCommits", "maxFilesPerTrigger", "columns")
# Fewer and smaller tasks would cost more to start than to run.
TASK_SIZES: Final = {"count": 128, "min_bytes": 16 << 20, "max_bytes": 128 << 20}

_STORAGE: Final = "storage."
# Each option of a kind under the name that users of Delta know, too.
_VERSION: Final = ("version", "versionAsOf")
_TIMESTAMP: Final = ("timestamp", "timestampAsOf")


class FixedVersion(NamedTuple):
    """The version whose columns a query has; what a batch query reads."""

    version: int
    commit_id: str
    # As `pds.table.tasks.with_columns` takes them.
    columns: bytes


@dataclass(frozen=True)
class TablePlace:
    """Where a table is."""

    root: str
    path: str
    # Some may be secrets.
    storage_options: dict[str, str] = field(repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TablePlace:
        """Return the place that options name.

        Raises:
            InvalidInput: They name none, or one that depends on the folder of a process.
        """
        url = options.get("path", "").rstrip("/")
        root, _, path = url.rpartition("/")
        if url.startswith("/"):
            # The URL of a folder is encoded, a path in a store is not.
            root = Path(root or "/").as_uri()
        parts = urlsplit(root)
        is_bucket = parts.scheme == "file" or bool(parts.netloc)
        if not parts.scheme or not path or not is_bucket:
            raise InvalidInput(
                f'the table {url!r} must be a URL or an absolute path, such as load("s3://bucket/folder/table")'
            )
        if parts.scheme == "memory":
            raise InvalidInput("Spark executors cannot reach a memory:// store; use a store that they can reach")
        prefix = len(_STORAGE)
        storage = {name[prefix:]: value for name, value in options.items() if name.lower().startswith(_STORAGE)}
        return cls(f"{root}/" if root == "file://" else root, path, storage)

    def split(self) -> tuple[Store, str]:
        """Return the store and the path of the table in it."""
        return Store(self.root, storage_options=self.storage_options or None), self.path

    def open(self) -> Table:
        """Open the newest version of the table."""
        return Table(*self.split())


def check_options(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Refuse options other than the path, those of the store and those in `known`.

    Raises:
        InvalidInput: There is another one.
    """
    names = {name.lower() for name in (*known, "path")}
    for name in options:
        if name.lower() not in names and not name.lower().startswith(_STORAGE):
            raise InvalidInput(
                f'the format "pds" has no option {name!r} here; it has {", ".join(known)}, and {_STORAGE}<name> for '
                "those of the store"
            )


def find_snapshot(options: Mapping[str, str]) -> Table:
    """Open the version that options name; the newest without one.

    Raises:
        InvalidInput: They name it twice or in a way that is not valid.
    """
    named = [name for name in (*_VERSION, *_TIMESTAMP) if name in options]
    if len(named) > 1:
        raise InvalidInput(f"the options {' and '.join(named)} name the version twice; leave one out")
    table = TablePlace.parse(options).open()
    if not named:
        return table
    value = options[named[0]]
    try:
        when = int(value) if named[0] in _VERSION else datetime.fromisoformat(value)
    except ValueError as error:
        expected = "a number" if named[0] in _VERSION else 'a time such as "2026-01-31T12:00:00Z"'
        raise InvalidInput(f"the option {named[0]} must be {expected}, not {value!r}") from error
    return table.as_of(when)


def check_commit(table: Table, version: int, commit_id: str) -> None:
    """Check that a version is still that of the table: one that was created anew begins with version 1 again.

    Raises:
        InvalidInput: It is not.
        VersionExpired: It has been vacuumed.
    """
    if version > table.version or table.as_of(version).history(1)[0]["commit_id"] != commit_id:
        raise InvalidInput(
            f"the table was dropped and created again since version {version} was read; load it again, and start a "
            "stream with a new checkpoint"
        )


def parse_columns(text: str | None) -> list[str] | None:
    """Return names that are separated by commas, or are a JSON list.

    Raises:
        InvalidInput: They are neither.
    """
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return [name.strip() for name in text.split(",")]
    try:
        names = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"the columns {text!r} are not a JSON list: {error}") from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"the columns {text!r} are not a list of names")
    return list(names)


def parse_flag(options: Mapping[str, str], name: str) -> bool:
    """Return an option that is ``true`` or ``false``, which is the default.

    Raises:
        InvalidInput: It is neither.
    """
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidInput(f"the option {name} must be true or false, not {options[name]!r}")
    return value == "true"


def parse_positive(options: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a number above 0; None without it.

    Raises:
        InvalidInput: It is not.
    """
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise InvalidInput(f"the option {name} must be a number above 0, not {value!r}")
    return int(value)

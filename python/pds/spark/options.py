"""The options of ``format("pds")``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pds import Store, Table
from pds.errors import InvalidInput
from pds.urls import merge_options, split_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "FEED",
    "FEED_OPTIONS",
    "LIMIT_OPTIONS",
    "READ_OPTIONS",
    "START_OPTIONS",
    "STREAM_OPTIONS",
    "TASK_SIZES",
    "FixedVersion",
    "TablePlace",
    "check_commit",
    "check_options",
    "find_end",
    "find_snapshot",
    "find_start",
    "parse_bytes",
    "parse_columns",
    "parse_flag",
    "parse_positive",
]

FEED: Final = "readChangeFeed"
READ_OPTIONS: Final = ("version", "versionAsOf", "timestamp", "timestampAsOf", "columns", "where", FEED)
# Each under the number of a version, and by a time.
START_OPTIONS: Final = ("startingVersion", "startingTimestamp")
_END: Final = ("endingVersion", "endingTimestamp")
FEED_OPTIONS: Final = (FEED, *START_OPTIONS, *_END, "columns")
# Those of a batch of a stream.
LIMIT_OPTIONS: Final = ("maxFilesPerTrigger", "maxBytesPerTrigger")
STREAM_OPTIONS: Final = (*START_OPTIONS, FEED, "ignoreDeletes", "skipChangeCommits", *LIMIT_OPTIONS, "columns")
# Fewer and smaller tasks would cost more to start than to run.
TASK_SIZES: Final = {"count": 128, "min_bytes": 16 << 20, "max_bytes": 128 << 20}

# As Spark writes sizes.
_UNITS: Final = {unit: 1 << 10 * power for power, unit in enumerate("bkmgtp")}
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
    storage_options: dict[str, object] = field(repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TablePlace:
        """Return the place that options name: for a URL that of `pds.open_table`.

        Raises:
            InvalidInput: They name none, or one that depends on the folder of a process.
            InvalidPath: As for `pds.open_table`.
        """
        url = options.get("path", "")
        if not url.startswith("/") and "://" not in url:
            raise InvalidInput(
                f'the table {url!r} must be a URL or an absolute path, such as load("s3://bucket/folder/table")'
            )
        try:
            root, path, implied = split_url(url)
        except InvalidInput as error:
            # Without the URL, which may hold a secret.
            raise InvalidInput(f"the path of the table is not valid: {error}") from error
        if root.startswith("memory:"):
            raise InvalidInput("Spark executors cannot reach a memory:// store; use a store that they can reach")
        prefix = len(_STORAGE)
        storage = {name[prefix:]: value for name, value in options.items() if name.lower().startswith(_STORAGE)}
        return cls(root, path, merge_options(implied, storage))

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
                f'the format "pds" has no option {name!r} here; it has {", ".join(dict.fromkeys(known))}, and '
                f"{_STORAGE}<name> for those of the store"
            )


def find_snapshot(options: Mapping[str, str]) -> Table:
    """Open the version that options name; the newest without one.

    Raises:
        InvalidInput: They name it twice or in a way that is not valid.
    """
    table = TablePlace.parse(options).open()
    named = _find_named(options, (*_VERSION, *_TIMESTAMP))
    return table if named is None else table.as_of(_parse_when(options, named))


def find_end(options: Mapping[str, str]) -> Table:
    """Open the last version whose changes options of a change feed name; the newest without one.

    Raises:
        InvalidInput: They name it twice or in a way that is not valid, or it does not exist.
    """
    table = TablePlace.parse(options).open()
    named = _find_named(options, _END)
    return table if named is None else table.as_of(_parse_when(options, named))


def find_start(options: Mapping[str, str], table: Table) -> int | None:
    """Return the first version whose rows options of a stream or a change feed name; None without one.

    It may be the one after that of `table`.

    Raises:
        InvalidInput: They name it twice or in a way that is not valid, or the time is after that version.
        VersionExpired: The time is before the oldest version that is left.
    """
    named = _find_named(options, START_OPTIONS)
    if named is None:
        return None
    next_version = table.version + 1
    if named == "startingVersion" and options[named].lower() == "latest":
        return next_version
    when = _parse_when(options, named)
    if not isinstance(when, datetime):
        if not 1 <= when <= next_version:
            raise InvalidInput(f'startingVersion must be "latest" or from 1 to {next_version}, not {when}')
        return when
    newest: datetime = table.history(1)[0]["created_at"]
    if when > newest:
        raise InvalidInput(
            f"startingTimestamp {options[named]} is after version {table.version}, which was committed at "
            f"{newest.isoformat()}; for what is committed later set startingVersion to latest"
        )
    try:
        entry: dict[str, Any] = table.as_of(when).history(1)[0]
    except InvalidInput:
        # There was no table yet.
        return 1
    is_before: bool = entry["created_at"] < when
    return int(entry["version"]) + is_before


def _find_named(options: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The option of some that stand for the same."""
    named = [name for name in names if name in options]
    if len(named) > 1:
        raise InvalidInput(f"the options {' and '.join(named)} name the version twice; leave one out")
    return named[0] if named else None


def _parse_when(options: Mapping[str, str], name: str) -> int | datetime:
    """A version, or a time where the name of the option says so."""
    value = options[name]
    is_time = "timestamp" in name.lower()
    try:
        when = datetime.fromisoformat(value) if is_time else int(value)
    except ValueError as error:
        latest = '"latest" or ' if name == "startingVersion" else ""
        expected = 'a time such as "2026-01-31T12:00:00Z"' if is_time else f"{latest}a number"
        raise InvalidInput(f"the option {name} must be {expected}, not {value!r}") from error
    if isinstance(when, datetime) and when.tzinfo is None:
        raise InvalidInput(f"the option {name} has no time zone: {value!r}; add one, such as Z")
    return when


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


def parse_bytes(options: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a number of bytes above 0, or a size in Spark's notation; None without it.

    Raises:
        InvalidInput: It is not.
    """
    value = options.get(name)
    if value is None:
        return None
    size = re.fullmatch(r"([0-9]+)(?:(b)|([kmgtp])b?)?", value.strip().lower())
    count = 0 if size is None else int(size[1]) * _UNITS[size[3] or "b"]
    if not 0 < count < 1 << 63:
        raise InvalidInput(f"the option {name} must be a number of bytes, or a size such as 512m or 10g, not {value!r}")
    return count

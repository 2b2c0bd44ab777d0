"""Checks of what users pass to tables."""

from __future__ import annotations

from collections.abc import Sequence

from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType

_LAST = 2**53
# A century: clocks can be added to it.
_LONGEST_SECONDS = 100 * 365 * 86400


def check_version(version: object) -> int:
    """A version's number."""
    if isinstance(version, bool) or not isinstance(version, int):
        raise InvalidType(f"a version is a whole number, not {version!r}")
    if not 1 <= version <= _LAST:
        raise InvalidInput(f"versions begin at 1; there is no version {version}")
    return version


def check_limit(limit: object) -> int | None:
    """How many rows or versions are wanted at most."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidType(f"limit must be a whole number, not {limit!r}")
    if limit < 0:
        raise InvalidInput(f"limit must not be negative, and is {limit}")
    return min(limit, _LAST)


def check_size(what: str, size: object) -> int:
    """A number of bytes."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise InvalidType(f"{what} must be a whole number of bytes, not {size!r}")
    if size <= 0:
        raise InvalidInput(f"{what} must be positive, not {size}")
    return min(size, _LAST)


def check_seconds(what: str, value: object) -> float:
    """A number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{what} must be a number of seconds, not {value!r}")
    if not value >= 0:
        raise InvalidInput(f"{what} must be a number of seconds that is not negative, not {value}")
    return float(min(value, _LONGEST_SECONDS))


def check_key(key: object) -> str | None:
    """An idempotency key."""
    return None if key is None else require_text("idempotency_key", key)


def names_of(what: str, names: object) -> list[str]:
    """Names of columns."""
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, Sequence):
        raise InvalidType(f"{what} must be a column's name or a list of names, not {names!r}")
    return [require_text(f"a name in {what}", name) for name in names]

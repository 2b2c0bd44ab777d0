"""Checks of what users pass to tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAST = 2**53


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
    return limit


def check_seconds(what: str, value: object) -> float:
    """A number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{what} must be a number of seconds, not {value!r}")
    return float(value)


def check_filter(where: object) -> str:
    """An SQL predicate."""
    if not isinstance(where, str):
        raise InvalidType(f"where must be an SQL predicate as a string, not {type(where).__name__}")
    return where


def check_path(path: object) -> str:
    """A table's folder."""
    if not isinstance(path, str):
        raise InvalidType(f"path must be a string, not {type(path).__name__}")
    return path


def check_key(key: object) -> str | None:
    """An idempotency key."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise InvalidType(f"idempotency_key must be a string, not {type(key).__name__}")
    if not key:
        raise InvalidInput("idempotency_key is empty")
    return key


def names_of(what: str, names: str | Sequence[str]) -> list[str]:
    """Names of columns."""
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        if not isinstance(name, str):
            raise InvalidType(f"{what} must name columns; {name!r} is no string")
    return found

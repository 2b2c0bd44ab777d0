"""Validation of the arguments of tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType

# The largest number of a version. Larger limits and sizes are reduced to it.
_MAX_INTEGER = 2**53
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def check_version(version: object, label: str = "version") -> int:
    """Return `version` if it can be the number of a version; `label` names it in errors."""
    if isinstance(version, bool) or not isinstance(version, int):
        raise InvalidType(f"{label} must be an integer, not {version!r}")
    if not 1 <= version <= _MAX_INTEGER:
        raise InvalidInput(f"{label} {version} does not exist; versions begin at 1")
    return version


def check_limit(limit: object) -> int | None:
    """Return `limit` if it is None or a valid maximum number of rows or versions."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidType(f"limit must be an integer, not {limit!r}")
    if limit < 0:
        raise InvalidInput(f"limit must not be negative, not {limit}")
    return min(limit, _MAX_INTEGER)


def check_size(label: str, size: object, unit: str = "bytes") -> int:
    """Return `size` if it is a valid size in `unit`; `label` names it in errors."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise InvalidType(f"{label} must be an integer ({unit}), not {size!r}")
    if size <= 0:
        raise InvalidInput(f"{label} must be positive, not {size}")
    return min(size, _MAX_INTEGER)


def to_micros(time: datetime) -> int:
    """Return a time in microseconds since 1970, rounded down.

    Raises:
        InvalidInput: The time has no time zone.
    """
    if time.tzinfo is None:
        raise InvalidInput(f"{time!r} has no time zone; add one, for example tzinfo=datetime.UTC")
    return (time - _EPOCH) // _MICROSECOND


def check_idempotency_key(key: object) -> str | None:
    """Return `key` if it is None or text."""
    return None if key is None else require_text("idempotency_key", key)


def check_names(label: str, names: object) -> list[str]:
    """Return one string or several strings as a list; `label` names the argument in errors."""
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, Sequence):
        raise InvalidType(f"{label} must be a string or a list of strings, not {names!r}")
    return [require_text(f"an item of {label}", name) for name in names]

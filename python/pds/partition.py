"""Hive-style partition keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from collections.abc import Mapping


def partition_path(filename: str, /, **partitions: str | int) -> str:
    """Return the key of one partition: `partition_path("orders", year=2026)` returns `year=2026/orders`.

    Args:
        filename: The last segment of the path.
        **partitions: The partition columns and their values, in order.

    Returns:
        The path.

    Raises:
        InvalidInput: A segment is empty or contains `/` or a backslash, a name or value contains `=`, or the filename
            is `.` or `..`. Stores read the path as another one then.
        InvalidType: The filename is not a string, or a value is None or bytes.
    """
    _check_types(filename, partitions)
    if not filename:
        raise InvalidInput("filename must be non-empty")
    if filename in (".", ".."):
        raise InvalidInput(f"filename must be a name: {filename!r}")
    for character in "/\\":
        if character in filename:
            raise InvalidInput(f"filename must not contain {character!r}: {filename!r}")
    segments = []
    for name, value in partitions.items():
        text = str(value)
        for label, part in (("partition key", name), (f"partition value of {name!r}", text)):
            if not part:
                raise InvalidInput(f"the {label} must be non-empty")
            for character in "=/\\":
                if character in part:
                    raise InvalidInput(f"the {label} must not contain {character!r}: {part!r}")
        segments.append(f"{name}={text}")
    return "/".join([*segments, filename])


def _check_types(filename: object, partitions: Mapping[str, object]) -> None:
    if not isinstance(filename, str):
        raise InvalidType(f"filename must be a string, not {type(filename).__name__}")
    for name, value in partitions.items():
        if value is None or isinstance(value, bytes):
            raise InvalidType(f"the partition value of {name!r} must be a string or an integer, not {value!r}")

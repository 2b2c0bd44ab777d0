"""Hive-style partition keys."""

from __future__ import annotations

from pds.errors import InvalidInput


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
    """
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

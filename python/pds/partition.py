"""Hive-style keys."""

from __future__ import annotations

from pds.errors import InvalidInput


def partition_path(filename: str, /, **partitions: str | int) -> str:
    """The key of one partition: `partition_path("orders", year=2026)` is `year=2026/orders`.

    Args:
        filename: The last piece.
        **partitions: The columns and their values, in order.

    Returns:
        The path.

    Raises:
        InvalidInput: If a piece is empty or holds `/`, or a name or value holds `=`.
    """
    if not filename:
        raise InvalidInput("the file name must be non-empty")
    if "/" in filename:
        raise InvalidInput(f"the file name must not contain '/': {filename!r}")
    pieces = []
    for name, value in partitions.items():
        text = str(value)
        for what, piece in (("partition key", name), (f"partition value of {name!r}", text)):
            if not piece:
                raise InvalidInput(f"the {what} must be non-empty")
            for mark in "=/":
                if mark in piece:
                    raise InvalidInput(f"the {what} must not contain {mark!r}: {piece!r}")
        pieces.append(f"{name}={text}")
    return "/".join([*pieces, filename])

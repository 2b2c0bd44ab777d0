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
    if not filename or "/" in filename:
        raise InvalidInput(f"the file name must be one piece of a path, not {filename!r}")
    pieces = []
    for name, value in partitions.items():
        text = str(value)
        if not text or any(mark in piece for piece in (name, text) for mark in "=/"):
            raise InvalidInput(
                f"a partition's name and value must not be empty nor hold '=' or '/': {name!r}, {text!r}"
            )
        pieces.append(f"{name}={text}")
    return "/".join([*pieces, filename])

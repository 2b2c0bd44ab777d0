"""Log records of the engine, handed to the `logging` module of Python under the logger `pds`."""

from __future__ import annotations

import logging

from pds import _pds
from pds.errors import InvalidType


def enable_logging(level: int = logging.INFO) -> None:
    """Send log records of the engine with at least this level to the logger `pds` and its child loggers.

    Without a call of this function, records with at least the level `logging.INFO` are sent.

    Args:
        level: A level of the `logging` module. Defaults to `logging.INFO`.

    Raises:
        InvalidType: The level is not an integer.
    """
    if isinstance(level, bool) or not isinstance(level, int):
        raise InvalidType(f"level must be an integer, such as logging.DEBUG, not {level!r}")
    _pds.enable_logging(max(0, min(level, 50)))

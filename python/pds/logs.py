"""The engine's log records in Python's `logging`, under the logger `pds`."""

from __future__ import annotations

import logging

from pds import _pds


def enable_logging(level: int = logging.INFO) -> None:
    """Send the engine's records from `level` up to the logger `pds` and those below it.

    Without a call those from `logging.INFO` up go there.

    Args:
        level: One of the levels of `logging`.
    """
    _pds.enable_logging(max(0, min(level, 50)))

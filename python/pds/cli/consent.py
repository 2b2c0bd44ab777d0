"""What is asked before something is deleted, and how old it must be."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from pds.errors import InvalidInput, RemoteStoreError

if TYPE_CHECKING:
    import argparse


def require_consent(args: argparse.Namespace, what: str) -> None:
    """Ask at a terminal whether to go on; elsewhere `--yes` is needed."""
    if args.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidInput(f"to {what} needs --yes")
    sys.stderr.write(f"{what}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RemoteStoreError("nothing was done")


def to_age(days: float) -> timedelta:
    """Return the days of `--older-than`.

    Raises:
        InvalidInput: They are out of range.
    """
    try:
        age = timedelta(days=days)
    except (OverflowError, ValueError) as error:
        raise InvalidInput(f"--older-than is out of range: {days} days") from error
    if days < 0:
        raise InvalidInput(f"--older-than is negative: {days:g} days")
    return age

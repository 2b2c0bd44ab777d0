"""Whether a command shows its progress, on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from pds.progress import make_display

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pds.progress import Progress, ProgressArgument

_SHORT_SECONDS: Final = 1.0
"""A command that ends sooner shows no progress, unless it was asked for."""


def choose_progress(args: argparse.Namespace) -> ProgressArgument:
    """Return the argument `progress` of an operation: by `--progress`, or else for a person at a terminal."""
    if args.progress is not None:
        return bool(args.progress)
    return _LateDisplay() if sys.stderr is not None and sys.stderr.isatty() else False


class _LateDisplay:
    """A display that appears when an operation turns out to be long."""

    def __init__(self) -> None:
        self._display: Callable[[Progress], object] | None = None

    def __call__(self, progress: Progress) -> None:
        if self._display is None and progress.elapsed >= _SHORT_SECONDS and not progress.is_last:
            self._display = make_display()
        if self._display is not None:
            self._display(progress)

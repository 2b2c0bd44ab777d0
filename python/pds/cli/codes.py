"""The exit codes of the ``pds`` command."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
CONFLICT: Final = 3
UNKNOWN: Final = 4
INTERRUPTED: Final = 130

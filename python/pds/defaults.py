"""Defaults that tables, pipelines and chains share."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

COMMIT_TIMEOUT_SECONDS: Final = 120.0
"""How long a commit is attempted again after conflicts with other writers."""
RETENTION: Final = timedelta(days=7)
"""How long a vacuum keeps a version that was replaced, and an object that nothing names any more."""

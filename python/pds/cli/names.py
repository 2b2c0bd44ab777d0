"""Names on the command line."""

from __future__ import annotations

import csv

from pds.errors import InvalidInput


def parse_names(option: str, text: str | None) -> list[str] | None:
    """Return the names in a line of CSV, or None for None; `option` names the option in errors."""
    if text is None:
        return None
    names = [name for line in csv.reader([text]) for name in line]
    if not names or "" in names or len(set(names)) < len(names):
        raise InvalidInput(f"{option} takes names, each once, separated by commas, not {text!r}")
    return names

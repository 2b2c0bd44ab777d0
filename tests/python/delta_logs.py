"""Logs of Delta tables as other systems than deltalake write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def edit_log(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the actions of the first commit."""
    log = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        edit(action)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))

"""The processor time of a process with all that it has started, as Spark is Python, the JVM and its workers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int | None = None) -> float:
    """Of this process or another and its descendants; those that have ended count if their parents waited for them."""
    parents, ticks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            # The name of a program, in parentheses, may have spaces.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)], ticks[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    members = {pid or os.getpid()}
    while grown := {child for child, parent in parents.items() if parent in members} - members:
        members |= grown
    return sum(ticks.get(member, 0) for member in members) / TICKS

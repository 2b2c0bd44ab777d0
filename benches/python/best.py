"""Of each line the best peer, as a row of a table: the fastest, and the one that takes the least processor time."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEAD = ["fastest peer", "its time", "its CPU time", "least CPU time of a peer"]


def cells(ratios: Callable[[str, str], list[float]], titles: Mapping[str, str]) -> list[str]:
    """Medians of the ratios of a line, by peer and figure; empty if no peer was measured."""
    wall, cpu = (
        {peer: statistics.median(values) for peer in titles if (values := ratios(peer, figure))}
        for figure in ("wall", "cpu")
    )
    if not wall or not cpu:
        return []
    fastest, least = min(wall, key=wall.__getitem__), min(cpu, key=cpu.__getitem__)
    of_fastest = f"{cpu[fastest]:.2f}" if fastest in cpu else "-"
    return [titles[fastest], f"**{wall[fastest]:.2f}**", of_fastest, f"{cpu[least]:.2f}, {titles[least]}"]

"""Drawings of pipelines: text for terminals, SVG for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 180, 44, 60, 18


@dataclass(frozen=True)
class Box:
    """A source or a stage in a drawing.

    Args:
        name: The name.
        feeders: The names of its feeders, which are drawn before it.
        rows: The number of stored rows, with those that newer runs replace; None before the first update.
        runs: The number of runs.
    """

    name: str
    feeders: tuple[str, ...]
    rows: int | None
    runs: int

    @property
    def summary(self) -> str:
        """The rows and runs, for people."""
        if self.rows is None:
            return "no data"
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'}, {self.runs} run{'' if self.runs == 1 else 's'}"


class Drawing:
    """A graph of sources and stages: its text is for terminals, and notebooks show it as SVG."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = tuple(boxes)

    def __str__(self) -> str:
        lines = []
        width = max((len(box.name) for box in self.boxes), default=0)
        for box in self.boxes:
            fed = f" <- {', '.join(box.feeders)}" if box.feeders else ""
            lines.append(f"{box.name:{width}}  {box.summary}{fed}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        columns: dict[str, int] = {}
        places: dict[str, tuple[int, int]] = {}
        heights: dict[int, int] = {}
        for box in self.boxes:
            column = columns[box.name] = 1 + max((columns[name] for name in box.feeders), default=-1)
            row = heights.get(column, 0)
            heights[column] = row + 1
            places[box.name] = (10 + column * (_WIDTH + _GAP_X), 10 + row * (_HEIGHT + _GAP_Y))
        parts = []
        for box in self.boxes:
            x, y = places[box.name]
            for feeder in box.feeders:
                from_x, from_y = places[feeder]
                start, end = (from_x + _WIDTH, from_y + _HEIGHT // 2), (x, y + _HEIGHT // 2)
                parts.append(f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="gray"/>')
            fill = "#eef6ff" if box.feeders else "#fff7e6"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" stroke="gray"/>'
                f'<text x="{x + 8}" y="{y + 18}" font-weight="bold">{escape(box.name)}</text>'
                f'<text x="{x + 8}" y="{y + 35}">{escape(box.summary)}</text>'
            )
        width = 20 + (max(heights, default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X
        height = 20 + max(heights.values(), default=1) * (_HEIGHT + _GAP_Y) - _GAP_Y
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>'
        )

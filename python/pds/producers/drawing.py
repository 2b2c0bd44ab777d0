"""Drawings of pipelines: text for terminals, SVG for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 180, 44, 120, 18


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
        return f"{self.row_count}, {self.runs} run{'' if self.runs == 1 else 's'}"

    @property
    def row_count(self) -> str:
        """The rows that a stage which it feeds can read, for people; empty before the first update."""
        if self.rows is None:
            return ""
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'}"


class Drawing:
    """A graph of sources and stages: its text is for terminals, and notebooks show it as SVG.

    Each edge has the number of rows of the feeder that it begins at.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = tuple(boxes)
        self._row_counts = {box.name: box.row_count for box in boxes}

    def __str__(self) -> str:
        lines = []
        width = max((len(box.name) for box in self.boxes), default=0)
        for box in self.boxes:
            feeders = (f"{name} ({count})" if (count := self._row_counts[name]) else name for name in box.feeders)
            fed = f" <- {', '.join(feeders)}" if box.feeders else ""
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
        edges = [
            self._draw_edge(feeder, places[feeder], places[box.name]) for box in self.boxes for feeder in box.feeders
        ]
        boxes = [_draw_box(box, places[box.name]) for box in self.boxes]
        width = 20 + (max(heights, default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X
        height = 20 + max(heights.values(), default=1) * (_HEIGHT + _GAP_Y) - _GAP_Y
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="12">{"".join(edges + boxes)}</svg>'
        )

    def _draw_edge(self, feeder: str, source: tuple[int, int], target: tuple[int, int]) -> str:
        start_x, start_y = source[0] + _WIDTH, source[1] + _HEIGHT // 2
        end_x, end_y = target[0], target[1] + _HEIGHT // 2
        line = f'<line x1="{start_x}" y1="{start_y}" x2="{end_x}" y2="{end_y}" stroke="gray"/>'
        count = self._row_counts[feeder]
        if not count:
            return line
        # Not in the middle, where edges cross.
        x = start_x + _GAP_X // 3
        y = start_y + (end_y - start_y) * (x - start_x) // (end_x - start_x) - 3
        return (
            f'{line}<text x="{x}" y="{y}" text-anchor="middle" font-size="10" class="rows" stroke="white" '
            f'stroke-width="3" paint-order="stroke">{escape(count)}</text>'
        )


def _draw_box(box: Box, place: tuple[int, int]) -> str:
    x, y = place
    fill = "#eef6ff" if box.feeders else "#fff7e6"
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" stroke="gray"/>'
        f'<text x="{x + 8}" y="{y + 18}" font-weight="bold">{escape(box.name)}</text>'
        f'<text x="{x + 8}" y="{y + 35}">{escape(box.summary)}</text>'
    )

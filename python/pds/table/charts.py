"""Charts of horizontal bars: text for terminals, SVG for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

_TEXT_WIDTH: Final = 40
_MAX_BARS: Final = 200
_LABEL, _WIDTH, _NOTE, _STEP = 130, 420, 330, 20


@dataclass(frozen=True)
class Bar:
    """A bar of a chart.

    Args:
        label: The text before the bar.
        start: Where the bar begins, from 0 to 1; None for no bar.
        end: Where the bar ends, from `start` to 1. A bar is never narrower than one character.
        note: The text behind the bar.
        is_marked: Whether the bar has another color.
    """

    label: str
    start: float | None
    end: float
    note: str
    is_marked: bool = False


@dataclass(frozen=True)
class Chart:
    """Bars below each other: `print` shows them as text, and notebooks show them as SVG.

    Args:
        title: The first line.
        bars: The bars. Of more than 200, the first ones are shown.
    """

    title: str
    bars: tuple[Bar, ...]

    def __str__(self) -> str:
        width = max((len(bar.label) for bar in self.bars[:_MAX_BARS]), default=0)
        lines = (f"{bar.label:>{width}} |{_draw(bar):{_TEXT_WIDTH}}| {bar.note}" for bar in self.bars[:_MAX_BARS])
        return "\n".join([self.title, *lines, *self._rest()])

    def _rest(self) -> list[str]:
        more = len(self.bars) - _MAX_BARS
        return [f"and {more:,} more"] if more > 0 else []

    def _repr_svg_(self) -> str:
        parts = [f'<text x="0" y="14" font-weight="bold">{escape(self.title, quote=False)}</text>']
        y = 24
        for bar in self.bars[:_MAX_BARS]:
            parts.append(
                f'<text x="{_LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(bar.label, quote=False)}</text>'
                f'<text x="{_LABEL + _WIDTH + 8}" y="{y + 13}">{escape(bar.note, quote=False)}</text>'
            )
            if bar.start is not None:
                x = _LABEL + bar.start * _WIDTH
                width = max((bar.end - bar.start) * _WIDTH, 2)
                fill = "#f0ad4e" if bar.is_marked else "#5b8def"
                parts.append(f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_STEP - 6}" fill="{fill}"/>')
            y += _STEP
        parts += [f'<text x="0" y="{y + 13}">{escape(line, quote=False)}</text>' for line in self._rest()]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL + _WIDTH + _NOTE}" height="{y + _STEP}" '
            f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>'
        )


def _draw(bar: Bar) -> str:
    if bar.start is None:
        return ""
    start = min(int(bar.start * _TEXT_WIDTH), _TEXT_WIDTH - 1)
    length = max(round(bar.end * _TEXT_WIDTH) - start, 1)
    return " " * start + ("▒" if bar.is_marked else "█") * length


def format_count(count: int, noun: str) -> str:
    """Return a number of things, for people: `1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

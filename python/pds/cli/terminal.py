"""Tables for a terminal, where rich is installed (`pip install "pds[cli]"`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

_NARROWEST: Final = 8
"""The characters that a long value needs to be of use."""
_GAP: Final = 3
"""The characters between two columns."""


def open_console() -> Console | None:
    """Return the terminal that stdout is; None if it is none, or if rich is not installed."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console  # noqa: PLC0415 an optional dependency
    except ModuleNotFoundError:
        return None
    # Data is no markup. Where `NO_COLOR` is set or the terminal is dumb, rich writes no colors.
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def fit_widths(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int] | None:
    """Return the widths of columns that fit side by side, the widest of them cut; None if there are too many."""
    from rich.cells import cell_len  # noqa: PLC0415 an optional dependency

    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    left = console.width - _GAP * (len(widths) - 1)
    fitted = dict.fromkeys(range(len(widths)), 0)
    # Each column gets what it needs, or its share of what the narrower ones leave.
    for rank, column in enumerate(sorted(fitted, key=lambda column: widths[column])):
        fitted[column] = min(widths[column], max(left, 0) // (len(widths) - rank))
        left -= fitted[column]
    is_readable = all(fitted[column] >= min(widths[column], _NARROWEST) for column in fitted)
    return [fitted[column] for column in range(len(widths))] if is_readable else None


def print_table(
    console: Console,
    header: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    numeric: Sequence[bool],
) -> None:
    """Print rows of cells, which have no control characters, below a header, if there is one."""
    from rich import box  # noqa: PLC0415 an optional dependency
    from rich.table import Table  # noqa: PLC0415 as above
    from rich.text import Text  # noqa: PLC0415 as above

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=header is not None)
    for index, (width, is_number) in enumerate(zip(widths, numeric, strict=True)):
        table.add_column(
            Text(header[index] if header is not None else ""),
            justify="right" if is_number else "left",
            width=width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def print_grid(console: Console, fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values; long values are continued below their beginning."""
    from rich.table import Table  # noqa: PLC0415 an optional dependency
    from rich.text import Text  # noqa: PLC0415 as above

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in fields:
        grid.add_row(Text(name), Text(value))
    console.print(grid)

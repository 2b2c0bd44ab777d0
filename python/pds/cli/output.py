"""What the ``pds`` command prints: rows as text, JSON, JSON lines or CSV."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
import math
import re
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from pds.cli.terminal import fit_widths, open_console, print_grid, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

FORMATS: Final = ("text", "json", "ndjson", "csv")
_WIDEST: Final = 80
"""The most characters of a value that a terminal gets."""
_BLOCK_ROWS: Final = 1000
"""The rows that are in memory as Python values; those of a text have common widths of columns."""
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SPECIAL: Final = re.compile(r'[,"\r\n]')


def print_line(text: str) -> None:
    """Print a line to stdout."""
    sys.stdout.write(f"{text}\n")


def print_error(problem: object, code: int) -> int:
    """Print a problem as one line to stderr, and return the exit code."""
    if sys.stderr is not None:
        sys.stderr.write(f"pds: {_escape(' '.join(str(problem).split()))}\n")
    return code


def print_batches(names: Sequence[str], batches: Iterable[pa.RecordBatch], output: str) -> None:
    """Print rows that come as batches. A terminal gets the beginnings of long values."""
    from pds.cli.values import to_rows  # noqa: PLC0415 for what prints rows

    rows = (row for batch in batches for row in to_rows(batch, _BLOCK_ROWS))
    print_rows(names, rows, output, widest=_WIDEST if sys.stdout.isatty() else None)


def print_rows(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    output: str,
    *,
    has_header: bool = True,
    widest: int | None = None,
) -> None:
    """Print rows: as a text with columns, as a JSON array, as a JSON object a line, or as CSV."""
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates and output != "text":
        from pds.errors import InvalidInput  # noqa: PLC0415 help does without

        raise InvalidInput(f"columns {duplicates} occur more than once; select others with --columns")
    if output == "text":
        _print_text(names, iter(rows), sys.stdout, has_header, widest)
    elif output == "csv":
        _print_csv(names, iter(rows), sys.stdout, has_header)
    else:
        printers: dict[str, Callable[[Sequence[str], Iterator[Sequence[Any]], TextIO], None]] = {
            "json": _print_json,
            "ndjson": _print_json_lines,
        }
        printers[output](names, iter(rows), sys.stdout)


def print_problems(names: Sequence[str], problems: Sequence[Sequence[Any]], output: str) -> None:
    """Print problems as rows; a text without any is `ok`."""
    if output == "text" and not problems:
        print_line("ok")
    else:
        print_rows(names, problems, output)


def print_fields(fields: dict[str, Any], output: str) -> None:
    """Print one thing: a field a line, or an object."""
    if output == "text":
        texts = {name: _escape(to_words(value)) for name, value in fields.items()}
        console = open_console()
        if console is not None:
            print_grid(console, list(texts.items()))
            return
        width = max(map(len, texts))
        for name, text in texts.items():
            print_line(f"{name:{width}}  {text}".rstrip())
    elif output == "json":
        print_line(json.dumps(_to_json(fields), ensure_ascii=False, indent=2))
    else:
        print_rows(list(fields), [list(fields.values())], output)


def _print_text(
    names: Sequence[str],
    rows: Iterator[Sequence[Any]],
    out: TextIO,
    has_header: bool,  # noqa: FBT001 of this module
    widest: int | None,
) -> None:
    header = [_escape(name) for name in names]
    widths: list[int] = []
    fitted: list[int] | None = None
    # Rows that continue a table are printed as plain lines.
    console = open_console() if has_header else None
    while block := list(itertools.islice(rows, _BLOCK_ROWS)):
        cells = [[_shorten(_escape(to_text(value)), widest) for value in row] for row in block]
        numeric = [all(_is_number(row[at]) for row in block) for at in range(len(names))]
        is_first = not widths
        if is_first:
            widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(header)]
            fitted = None if console is None else fit_widths(console, header, cells)
        if console is not None and fitted is not None:
            print_table(console, header if is_first else None, cells, fitted, numeric)
            continue
        if is_first and has_header:
            _write_line(out, header, widths, [False] * len(names))
        for row in cells:
            _write_line(out, row, widths, numeric)
    if not widths and has_header:
        out.write("  ".join(header) + "\n")


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float | decimal.Decimal)


def _write_line(out: TextIO, cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> None:
    aligned = (
        f"{cell:>{width}}" if is_number else f"{cell:{width}}"
        for cell, width, is_number in zip(cells, widths, numeric, strict=True)
    )
    out.write("  ".join(aligned).rstrip() + "\n")


def _print_json(names: Sequence[str], rows: Iterator[Sequence[Any]], out: TextIO) -> None:
    separator = "["
    for row in rows:
        out.write(f"{separator}\n  {_dump(names, row)}")
        separator = ","
    out.write("[]\n" if separator == "[" else "\n]\n")


def _print_json_lines(names: Sequence[str], rows: Iterator[Sequence[Any]], out: TextIO) -> None:
    out.writelines(_dump(names, row) + "\n" for row in rows)


def _print_csv(names: Sequence[str], rows: Iterator[Sequence[Any]], out: TextIO, has_header: bool) -> None:  # noqa: FBT001 of this module
    if has_header:
        out.write(",".join(map(_quote, names)) + "\n")
    out.writelines(",".join("" if value is None else _quote(to_text(value)) for value in row) + "\n" for row in rows)


def _quote(text: str) -> str:
    """A field of CSV. An empty text has quotes, which a null has not."""
    if text and not _SPECIAL.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _dump(names: Sequence[str], row: Sequence[Any]) -> str:
    return json.dumps(_to_json(dict(zip(names, row, strict=True))), ensure_ascii=False)


def _to_json(value: Any) -> Any:  # noqa: ANN401 any value of a column
    """What JSON has for a value; what it lacks is a text."""
    if isinstance(value, dict):
        return {str(name): _to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return to_text(value)


def to_text(value: Any) -> str:  # noqa: ANN401 any value of a column
    """A value as one text: bytes as hexadecimal digits, times as ISO 8601, nested values as JSON."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict | list | tuple):
        return json.dumps(_to_json(value), ensure_ascii=False)
    return str(value)


def to_words(value: Any) -> str:  # noqa: ANN401 as above
    """A value of the metadata for a person, such as `files 1, rows 2`."""
    if isinstance(value, dict):
        words = ((name, to_words(item), isinstance(item, dict)) for name, item in value.items() if item is not None)
        return ", ".join(f"{name} ({text})" if is_nested else f"{name} {text}" for name, text, is_nested in words)
    if isinstance(value, list | tuple):
        return ", ".join(map(to_words, value))
    return to_text(value)


def _escape(text: str) -> str:
    """A text without what moves the cursor of a terminal, or changes the order in which it shows characters."""
    return _CONTROLS.sub(lambda control: repr(control[0])[1:-1], text)


def _shorten(line: str, widest: int | None) -> str:
    return line if widest is None or len(line) <= widest else line[: widest - 1] + "…"

"""What the ``pds`` command prints: rows as text, JSON, JSON lines or CSV."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import itertools
import json
import math
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

FORMATS: Final = ("text", "json", "ndjson", "csv")
_WIDEST: Final = 80
"""The most characters of a value in a text."""
_ALIGNED_ROWS: Final = 1000
"""The rows of a text that have common widths of columns."""


def print_line(text: str) -> None:
    """Print a line to stdout."""
    sys.stdout.write(f"{text}\n")


def print_error(problem: object, code: int) -> int:
    """Print a problem as one line to stderr, and return the exit code."""
    sys.stderr.write(f"pds: {' '.join(str(problem).split())}\n")
    return code


def print_batches(names: Sequence[str], batches: Iterable[pa.RecordBatch], output: str) -> None:
    """Print rows that come as batches."""
    print_rows(names, (row for batch in batches for row in zip(*map(_to_list, batch.columns), strict=True)), output)


def _to_list(column: pa.Array[Any]) -> list[Any]:
    import pyarrow as pa  # noqa: PLC0415 for what prints rows

    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type) or pa.types.is_time(column.type):
        # Nanoseconds, and years that Python does not have.
        return column.cast(pa.string()).to_pylist() if not pa.types.is_duration(column.type) else column.to_pylist()
    return column.to_pylist()


def print_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], output: str) -> None:
    """Print rows: as a text with columns, as a JSON array, as a JSON object a line, or as CSV."""
    printers: dict[str, Callable[[Sequence[str], Iterator[Sequence[Any]], TextIO], None]] = {
        "text": _print_text,
        "json": _print_json,
        "ndjson": _print_json_lines,
        "csv": _print_csv,
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
        width = max(map(len, fields))
        for name, value in fields.items():
            print_line(f"{name:{width}}  {_to_text(value)}".rstrip())
    elif output == "json":
        print_line(json.dumps(_to_json(fields), ensure_ascii=False, indent=2))
    else:
        print_rows(list(fields), [list(fields.values())], output)


def _print_text(names: Sequence[str], rows: Iterator[Sequence[Any]], out: TextIO) -> None:
    widths: list[int] = []
    for block in itertools.batched(rows, _ALIGNED_ROWS) if hasattr(itertools, "batched") else _blocks(rows):
        cells = [[_shorten(_to_text(value)) for value in row] for row in block]
        numeric = [
            all(isinstance(row[at], int | float | decimal.Decimal | None) for row in block) for at in range(len(names))
        ]
        if not widths:
            widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
            _write_line(out, names, widths, [False] * len(names))
        for row in cells:
            _write_line(out, row, widths, numeric)
    if not widths:
        out.write("  ".join(names) + "\n")


def _blocks(rows: Iterator[Sequence[Any]]) -> Iterator[tuple[Sequence[Any], ...]]:
    while block := tuple(itertools.islice(rows, _ALIGNED_ROWS)):
        yield block


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


def _print_csv(names: Sequence[str], rows: Iterator[Sequence[Any]], out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow("" if value is None else _to_text(value) for value in row)


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
    return _to_text(value)


def _to_text(value: Any) -> str:  # noqa: ANN401 any value of a column
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dict | list | tuple):
        return json.dumps(_to_json(value), ensure_ascii=False)
    return str(value)


def _shorten(text: str) -> str:
    line = text.replace("\n", "\\n").replace("\r", "\\r")
    return line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…"

"""How the data files of a snapshot lie over the range of a column, by the statistics in its manifest."""

from __future__ import annotations

import base64
import datetime as dt
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pds.errors import InvalidInput
from pds.table.charts import Bar, Chart, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

_COOKIE_WITH_RUNS: Final = 12347


@dataclass(frozen=True)
class LayoutEntry:
    """A data file, or a list of data files that the manifest has one line for.

    Args:
        path: The path of the file or of the list, relative to the table.
        files: The number of data files.
        rows: The number of rows, deleted ones included; of a list also those of files that left the table since.
        min: The least value of the column; None if it is not known, or if all values are null.
        max: The greatest value of the column; None as above.
        has_nulls_only: Whether all values are null.
        has_deletes: Whether rows of the files are deleted.
    """

    path: str
    files: int
    rows: int
    min: Any
    max: Any
    has_nulls_only: bool
    has_deletes: bool


@dataclass(frozen=True)
class Layout:
    """The data files of a snapshot over the range of a column: `print` draws them, and so do notebooks.

    Args:
        column: The name of the column.
        entries: The newest files one by one, and the older ones of a large table by their lists.
    """

    column: str
    entries: tuple[LayoutEntry, ...]

    @property
    def files(self) -> int:
        """The number of data files."""
        return sum(entry.files for entry in self.entries)

    @property
    def overlap(self) -> int:
        """The most files in which one value of the column may be: those that a read of this value opens.

        Files of a list count as if each had the range of the list.
        """
        everywhere = sum(entry.files for entry in self.entries if entry.min is None and not entry.has_nulls_only)
        ends = [(value, is_end, entry.files) for entry, value, is_end in self._bounds()]
        open_files = most = 0
        for _value, is_end, files in sorted(ends):
            open_files += -files if is_end else files
            most = max(most, open_files)
        return everywhere + most

    def _bounds(self) -> list[tuple[LayoutEntry, Any, bool]]:
        known = [entry for entry in self.entries if entry.min is not None]
        return [(entry, value, is_end) for entry in known for value, is_end in ((entry.min, False), (entry.max, True))]

    def _chart(self) -> Chart:
        values = sorted({value for _entry, value, _is_end in self._bounds()})
        places = _place(values)
        span = f"{_show(values[0])} to {_show(values[-1])}" if values else "without statistics"
        files = format_count(self.files, "file")
        title = f"{files} over {self.column}, {span}; one value is in at most {self.overlap:,}"
        bars = []
        for entry in self.entries:
            start, end = (0.0, 1.0) if entry.min is None else (places[entry.min], places[entry.max])
            notes = [format_count(entry.rows, "row")]
            if entry.files > 1:
                notes.append(format_count(entry.files, "file"))
            if entry.has_nulls_only:
                notes.append("nulls only")
            elif entry.min is None:
                notes.append("no statistics")
            if entry.has_deletes:
                notes.append("with deletes")
            # The version at which the write began.
            label = entry.path.rpartition("/")[2].partition("-")[0]
            bar_start = None if entry.has_nulls_only else start
            bars.append(Bar(label, bar_start, end, ", ".join(notes), is_marked=entry.has_deletes))
        return Chart(title, tuple(bars))

    def __str__(self) -> str:
        return str(self._chart())

    def _repr_svg_(self) -> str:
        return self._chart()._repr_svg_()


def make_layout(manifest: dict[str, Any], schema: pa.Schema, column: str) -> Layout:
    """Return the layout of a snapshot by its manifest.

    Raises:
        InvalidInput: The column does not exist, or tables have no statistics of its type.
    """
    ids = {entry["name"]: str(entry["id"]) for entry in manifest["schema"]["columns"]}
    if column not in ids:
        raise InvalidInput(f"unknown column {column!r}; the table has the columns {schema.names}")
    data_type = schema.field(column).type
    if not _has_statistics(data_type):
        raise InvalidInput(f"column {column!r}: manifests have no statistics of the type {data_type}")
    targets: set[str] = set()
    for tombstone in manifest["tombstones"]:
        targets.update(tombstone.get("files", ()), tombstone.get("positions", {}))
    entries = []
    for listed in [*manifest["segments"], *manifest["data_files"]]:
        low, high = (_parse(listed[end].get(ids[column]), data_type) for end in ("min", "max"))
        is_known = low is not None and high is not None
        nulls = listed["null_counts"].get(ids[column])
        entries.append(
            LayoutEntry(
                path=listed["path"],
                files=listed.get("data_files", 1) - _count_removed(listed),
                rows=listed["total_rows"],
                min=low if is_known else None,
                max=high if is_known else None,
                has_nulls_only=nulls is not None and nulls == listed["total_rows"],
                has_deletes=listed["path"] in targets,
            )
        )
    return Layout(column, tuple(entries))


def _count_removed(listed: dict[str, Any]) -> int:
    """Return how many files of a list the snapshot has no more: the cardinality of a Roaring bitmap, by its header."""
    if "removed" not in listed:
        return 0
    bitmap = base64.b64decode(listed["removed"])
    cookie = int.from_bytes(bitmap[:4], "little")
    if cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        containers = (cookie >> 16) + 1
        begin = 4 + (containers + 7) // 8
    else:
        containers, begin = int.from_bytes(bitmap[4:8], "little"), 8
    # Of each container: its number, and the number of its values less one.
    header: tuple[int, ...] = struct.unpack_from(f"<{2 * containers}H", bitmap, begin)
    return sum(header[1::2]) + containers


def _has_statistics(data_type: pa.DataType) -> bool:
    types: Any = pa.types
    checks = (types.is_nested, types.is_floating, types.is_dictionary, types.is_null, types.is_duration)
    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return not any(check(data_type) for check in (*checks, *binary))


def _parse(value: object, data_type: pa.DataType) -> Any:  # noqa: ANN401 a value of any type
    """Return a bound as a value that can be compared; None if it is unknown."""
    types: Any = pa.types
    if not isinstance(value, str) or types.is_string(data_type) or types.is_large_string(data_type):
        return value
    try:
        if types.is_time(data_type):
            return dt.time.fromisoformat(value)
        scalar: Any = pa.scalar(value).cast(data_type)
        if types.is_timestamp(data_type):
            # Python has no nanoseconds.
            scalar = scalar.cast(pa.timestamp("us", getattr(data_type, "tz", None)), safe=False)
        return scalar.as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        # Python has no such date, or pyarrow does not read the text.
        return None


def _place(values: Sequence[Any]) -> dict[Any, float]:
    """Return the places of sorted values from 0 to 1: by their distances, and for texts by their order."""
    if len(values) < 2:  # noqa: PLR2004 a range
        return dict.fromkeys(values, 0.0)
    try:
        span = values[-1] - values[0]
        return {value: float((value - values[0]) / span) for value in values}
    except TypeError:
        return {value: place / (len(values) - 1) for place, value in enumerate(values)}


def _show(value: object) -> str:
    text = str(value)
    return text if len(text) <= 30 else f"{text[:29]}…"  # noqa: PLR2004 a short line

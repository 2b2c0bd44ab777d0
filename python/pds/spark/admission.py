"""The source of streams whose batches have limits, as Spark has them since version 4.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from pds.spark.options import parse_bytes, parse_positive
from pds.spark.stream import Offset, TableStreamReader, check_offset, is_in_snapshot, offset_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from pds import Table
    from pds.spark.options import FixedVersion

__all__ = ["LimitedStreamReader"]

_VERSIONS_AHEAD: Final = 64


class _Limits(NamedTuple):
    """The most that a batch has. One file or one commit is a batch, however large it is."""

    files: int | None = None
    bytes: int | None = None

    def admit(self, files: int, size: int) -> bool:
        """Whether a batch may have so many files and bytes."""
        return (self.files is None or files <= self.files) and (self.bytes is None or size <= self.bytes)

    def count_files(self, snapshot: Table, first: int) -> int:
        """How many files of a snapshot a batch has that begins with the one at a position."""
        count = snapshot.file_count - first if self.files is None else self.files
        if self.bytes is None:
            return count
        sizes = pc.cumulative_sum(snapshot.files()["size_bytes"].slice(first, count))
        return max(1, len(sizes.filter(pc.less_equal(sizes, pa.scalar(self.bytes, sizes.type)))))


class LimitedStreamReader(TableStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows that commits add to a table, at most so many files and bytes of files in a batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, version: FixedVersion | None) -> None:
        super().__init__(options, schema, version)
        self._limits = _Limits(
            parse_positive(options, "maxFilesPerTrigger"), parse_bytes(options, "maxBytesPerTrigger")
        )
        self._last: int | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 as Spark names it
        """Return the limit of a batch: one of two, for Spark only hands it back."""
        if self._limits.files is not None:
            return ReadMaxFiles(self._limits.files)
        return ReadAllAvailable() if self._limits.bytes is None else ReadMaxBytes(self._limits.bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 as Spark names it
        """Read nothing that is committed later."""
        self._last = self._place.open().version

    def latestOffset(  # type: ignore[override] # noqa: N802 as Spark names it
        self, start: Offset, limit: ReadLimit
    ) -> Offset:
        """Return the last version of the next batch."""
        table = self._place.open()
        last = table.version if self._last is None else min(self._last, table.version)
        first = start["version"]
        # A query may want all that is there, whatever the options are.
        limits = _Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        check_offset(table, start)
        end: Offset
        if is_in_snapshot(start):
            snapshot = table.as_of(first or last)
            end = {**offset_of(snapshot), "since": [first, start["commit"]]}
            read = start.get("files", 0)
            read += limits.count_files(snapshot, read)
            if read < snapshot.file_count:
                end["files"] = read
            return end
        if last <= first:
            return start
        if limits != _Limits():
            last = _limit_versions(table, first, last, limits)
        return {**offset_of(table.as_of(last)), "since": [first, start["commit"]]}


def _limit_versions(table: Table, first: int, last: int, limits: _Limits) -> int:
    """The last of the versions after `first` whose new files are within the limits together; one version at least."""
    files, size, begin = 0, 0, first
    while begin < last:
        # Each entry is a manifest: not those of a long backlog, for every batch.
        until = min(begin + _VERSIONS_AHEAD, last)
        entries = table.as_of(until).history(until - begin)
        for entry in sorted(entries, key=lambda entry: entry["version"]):
            files += int(entry["operation"].get("files", 0))
            size += 0 if limits.bytes is None else _new_bytes(table, entry)
            if entry["version"] > first + 1 and not limits.admit(files, size):
                return int(entry["version"]) - 1
        begin = until
    return last


def _new_bytes(table: Table, entry: dict[str, Any]) -> int:
    """The size of the files that a commit has added, as far as these are listed as such."""
    operation = entry["operation"]
    count = int(operation.get("files", 0))
    if count == 0 or "bytes" in operation:
        return int(operation.get("bytes", 0)) if count else 0
    # Some commits do not say it. What they have added comes last.
    sizes = table.as_of(entry["version"]).files()["size_bytes"]
    return int(pc.sum(sizes.slice(max(0, len(sizes) - count))).as_py() or 0)

"""The source of streams whose batches have limits, as Spark has them since version 4.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from pds.spark.options import parse_positive
from pds.spark.stream import Offset, TableStreamReader, check_offset, is_in_snapshot, offset_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from pds import Table
    from pds.spark.options import FixedVersion

__all__ = ["LimitedStreamReader"]

_VERSIONS_AHEAD: Final = 64


class LimitedStreamReader(TableStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows that commits add to a table, at most so many files in a batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, version: FixedVersion | None) -> None:
        super().__init__(options, schema, version)
        self._max_files = parse_positive(options, "maxFilesPerTrigger")
        self._last: int | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 as Spark names it
        """Return the limit of a batch."""
        return ReadAllAvailable() if self._max_files is None else ReadMaxFiles(self._max_files)

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
        most_files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        check_offset(table, start)
        end: Offset
        if is_in_snapshot(start):
            snapshot = table.as_of(first or last)
            end = {**offset_of(snapshot), "since": [first, start["commit"]]}
            read = start.get("files", 0)
            if most_files is not None and read + most_files < snapshot.file_count:
                end["files"] = read + most_files
            return end
        if last <= first:
            return start
        if most_files is not None:
            last = _limit_files(table, first, last, most_files)
        return {**offset_of(table.as_of(last)), "since": [first, start["commit"]]}


def _limit_files(table: Table, first: int, last: int, most: int) -> int:
    """The last of the versions after `first` that have at most so many new files together; one version at least."""
    total, begin = 0, first
    while begin < last:
        # Each entry is a manifest: not those of a long backlog, for every batch.
        until = min(begin + _VERSIONS_AHEAD, last)
        entries = table.as_of(until).history(until - begin)
        for entry in sorted(entries, key=lambda entry: entry["version"]):
            total += int(entry["operation"].get("files", 0))
            if total > most and entry["version"] > first + 1:
                return int(entry["version"]) - 1
        begin = until
    return last

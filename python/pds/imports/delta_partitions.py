"""Timestamps of Delta's partitions: without a zone, they are in that of the system that wrote them."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from pds.arguments import require_text
from pds.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

_OFFSET: Final = re.compile(r"[+-]\d\d:\d\d")
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_zone(name: str) -> dt.tzinfo:
    """Return the zone of a name such as `UTC`, `Europe/Berlin` or `+02:00`.

    Raises:
        InvalidInput: No zone has this name.
        InvalidType: It is not a text.
    """
    require_text("partition_time_zone", name)
    if name == "UTC":
        # Systems without a database of zones have it, too.
        return dt.UTC
    try:
        if _OFFSET.fullmatch(name):
            zone = dt.datetime.strptime(name, "%z").tzinfo
            if zone is not None:
                return zone
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"partition_time_zone is {name!r}, not a time zone; pass one such as UTC or Europe/Berlin"
        raise InvalidInput(message) from error


def in_zone(
    name: str, values: pa.ChunkedArray[Any], texts: Iterable[str | None], zone: dt.tzinfo | None
) -> pa.ChunkedArray[Any]:
    """Return the timestamps of a partition column, of which deltalake has read those without a zone as in UTC.

    `texts` are the distinct ones of the log.

    Raises:
        InvalidInput: A text has no zone, and there is no zone for it; or it is not known which values have none.
    """
    moments = [_parse(name, text) for text in texts if text is not None]
    local = {_ticks(moment.replace(tzinfo=dt.UTC)): moment for moment in moments if moment.tzinfo is None}
    if not local:
        return values
    if zone is None:
        example = next(text for text in texts if text is not None and _parse(name, text).tzinfo is None)
        raise InvalidInput(
            f"the partition column {name!r} has timestamps without a time zone, such as {example!r}, which are in that "
            "of the system that wrote them; if that was UTC, as deltalake writes them, pass "
            'partition_time_zone="UTC", or --partition-time-zone UTC on the command line'
        )
    if zone == dt.UTC:
        return values
    zoned = {_ticks(moment) for moment in moments if moment.tzinfo is not None}
    both = next(iter(zoned.intersection(local)), None)
    if both is not None:
        raise InvalidInput(
            f"the partition column {name!r} has {local[both].isoformat(sep=' ')!r} with the zone UTC and without one, "
            "which deltalake does not tell apart; rewrite these partitions"
        )
    ticks: list[int | None] = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    if any(tick is not None and tick not in zoned and tick not in local for tick in ticks):
        raise InvalidInput(f"deltalake reads other timestamps of the partition column {name!r} than the log has")
    # Of a time that occurs twice it is the first, and one that is skipped is as much later: `fold` is 0, as in Spark.
    moved = [_ticks(local[tick].replace(tzinfo=zone)) if tick in local else tick for tick in ticks]
    return pa.chunked_array([pa.array(moved, pa.int64()).cast(pa.timestamp("us", "UTC"))])


def _parse(name: str, text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"the partition column {name!r} has {text!r}, not a timestamp") from error


def _ticks(moment: dt.datetime) -> int:
    """Return the microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND

"""The two session settings that decide how rows cross from the JVM to Python.

With Spark's default limit of bytes the JVM measures every row, which costs several times what
writing them does. Without it a batch has only its number of rows as a limit, and wide rows can
end the JVM. So the limit of bytes is lifted only where the width of a row can be estimated, and
the number of rows follows from the estimate; what a user has set stays a bound.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from pyspark.sql import types as spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["BatchLimits", "batch_limit_settings", "batch_limits"]

_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS_DEFAULT: Final = 10_000
_BYTES_DEFAULT: Final = 64 << 20
# The one value with which the JVM does not measure rows.
_BYTES_UNLIMITED: Final = (1 << 31) - 1

_BATCH_BYTES: Final = 64 << 20
_BATCH_MAX_RECORDS: Final = 100_000
# Nobody knows how long strings are. One column of them may be of documents, all of them are
# not; batches this small cost next to nothing, and texts of 500 KB still fit into one.
_LONGEST_STRING_BYTES: Final = 16 << 10
_STRING_BYTES: Final = 1 << 10
_FIXED_BYTES: Final = {
    "NullType": 0,
    "BooleanType": 1,
    "ByteType": 1,
    "ShortType": 2,
    "IntegerType": 4,
    "FloatType": 4,
    "DateType": 4,
    "LongType": 8,
    "DoubleType": 8,
    "TimestampType": 8,
    "TimestampNTZType": 8,
    "DayTimeIntervalType": 8,
    "TimeType": 8,
    "DecimalType": 16,
}


@dataclass(frozen=True)
class BatchLimits:
    """What one batch may hold at most."""

    records: int
    bytes: int

    def least(self, other: BatchLimits) -> BatchLimits:
        """The limits that keep both."""
        return BatchLimits(min(self.records, other.records), min(self.bytes, other.bytes))


def batch_limits(schema: spark.StructType) -> BatchLimits:
    """The limits for rows of ``schema``: Spark's own where their width has no estimate."""
    width, strings = 0, 0
    for kind in _leaves(schema):
        name = type(kind).__name__
        if name in _FIXED_BYTES:
            width += _FIXED_BYTES[name]
        elif isinstance(kind, (spark.StringType, spark.CharType, spark.VarcharType)):
            strings += 1
        else:
            return BatchLimits(_RECORDS_DEFAULT, _BYTES_DEFAULT)
    if strings:
        width += _LONGEST_STRING_BYTES + strings * _STRING_BYTES
    records = _BATCH_BYTES // max(width, 1)
    return BatchLimits(max(1, min(records, _BATCH_MAX_RECORDS)), _BYTES_UNLIMITED)


def _leaves(kind: spark.DataType) -> Iterator[spark.DataType]:
    if isinstance(kind, spark.StructType):
        for field in kind:
            yield from _leaves(field.dataType)
    else:
        yield kind


@dataclass
class _Session:
    """The settings of a session as they were, and the limits of the actions under way."""

    before: dict[str, str | None]
    wanted: list[BatchLimits]


_lock = threading.Lock()
_sessions: WeakKeyDictionary[SparkSession, _Session] = WeakKeyDictionary()


@contextlib.contextmanager
def batch_limit_settings(session: SparkSession, limits: BatchLimits) -> Iterator[None]:
    """Set ``limits`` for the actions in this block; afterwards the settings are as before.

    Actions of several threads on one session share its settings: the least of their limits is
    set until the last of them ends.
    """
    with _lock:
        state = _sessions.get(session)
        if state is None:
            explicit = session.conf.getAll
            state = _Session({name: explicit.get(name) for name in (_RECORDS, _BYTES)}, [])
            _sessions[session] = state
        state.wanted.append(limits)
        _apply(session, state)
    try:
        yield
    finally:
        with _lock:
            state.wanted.remove(limits)
            if state.wanted:
                _apply(session, state)
            else:
                del _sessions[session]
                _restore(session, state)


def _apply(session: SparkSession, state: _Session) -> None:
    limits = state.wanted[0]
    for other in state.wanted[1:]:
        limits = limits.least(other)
    records, size = state.before[_RECORDS], state.before[_BYTES]
    if records is not None and int(records) > 0:
        limits = limits.least(BatchLimits(int(records), limits.bytes))
    session.conf.set(_RECORDS, limits.records)
    # In a session's settings sizes may have units: those are left to Spark.
    session.conf.set(_BYTES, size if size is not None else limits.bytes)


def _restore(session: SparkSession, state: _Session) -> None:
    for name, value in state.before.items():
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)

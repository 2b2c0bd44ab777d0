"""The two session settings that limit the Arrow batches between the JVM and Python.

With Spark's default limit of bytes, the JVM measures every row, which takes several times longer than writing the
rows. Without it, only the number of rows limits a batch, and wide rows can exhaust the memory of the JVM. So the limit
of bytes is removed only if the width of a row can be estimated, and the limit of rows follows from the estimate. The
limits that a user has set are kept; those that `enable` has set are as none, since they know nothing of the rows.
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

__all__ = ["BatchLimits", "batch_limit_settings", "batch_limits", "find_user_settings", "set_default_limit"]

MAX_BATCH_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
MAX_BATCH_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS_DEFAULT: Final = 10_000
_BYTES_DEFAULT: Final = 64 << 20
# With this value only, the JVM does not measure rows.
BYTES_UNLIMITED: Final = (1 << 31) - 1

BATCH_BYTES: Final = 64 << 20
BATCH_MAX_RECORDS: Final = 100_000
# The length of strings is unknown. One string column may have long documents, and others are assumed to be short.
# Batches for this estimate are small enough for strings of 500 KB, and cost little.
STRING_ROW_BYTES: Final = 16 << 10
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
    """The maximum number of rows and bytes in a batch."""

    records: int
    bytes: int

    def least(self, other: BatchLimits) -> BatchLimits:
        """Return the smaller limits of both."""
        return BatchLimits(min(self.records, other.records), min(self.bytes, other.bytes))


def batch_limits(schema: spark.StructType) -> BatchLimits:
    """Return the limits for rows of ``schema``: the defaults of Spark if the width of a row cannot be estimated."""
    row_bytes, string_columns = 0, 0
    for data_type in _iterate_leaves(schema):
        name = type(data_type).__name__
        if name in _FIXED_BYTES:
            row_bytes += _FIXED_BYTES[name]
        elif isinstance(data_type, (spark.StringType, spark.CharType, spark.VarcharType)):
            string_columns += 1
        else:
            return BatchLimits(_RECORDS_DEFAULT, _BYTES_DEFAULT)
    if string_columns:
        row_bytes += STRING_ROW_BYTES + string_columns * _STRING_BYTES
    records = BATCH_BYTES // max(row_bytes, 1)
    return BatchLimits(max(1, min(records, BATCH_MAX_RECORDS)), BYTES_UNLIMITED)


def _iterate_leaves(data_type: spark.DataType) -> Iterator[spark.DataType]:
    if isinstance(data_type, spark.StructType):
        for field in data_type:
            yield from _iterate_leaves(field.dataType)
    else:
        yield data_type


@dataclass
class _SessionState:
    """The original settings of a session, and the limits of its running actions."""

    original: dict[str, str | None]
    # The limits among them that a user has set.
    user_settings: dict[str, str]
    active: list[BatchLimits]


_lock = threading.Lock()
# A server of Spark Connect may not answer, and sessions do not wait for each other.
_locks: WeakKeyDictionary[SparkSession, threading.Lock] = WeakKeyDictionary()
_sessions: WeakKeyDictionary[SparkSession, _SessionState] = WeakKeyDictionary()
# The values of settings that `enable` has set.
_enabled: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()


def _lock_of(session: SparkSession) -> threading.Lock:
    with _lock:
        return _locks.setdefault(session, threading.Lock())


def find_user_settings(session: SparkSession) -> dict[str, str]:
    """Return the settings that a session has, without those that `enable` or a running action has set."""
    with _lock_of(session):
        settings = session.conf.getAll
        state = _sessions.get(session)
        if state is None:
            return _leave_out_enabled(session, settings)
        others = {name: value for name, value in settings.items() if name not in state.original}
        return others | {name: value for name, value in state.user_settings.items() if name in state.original}


def set_default_limit(session: SparkSession, name: str, value: str) -> str | None:
    """Set a limit of batches that a user has not set, and return its value before."""
    with _lock_of(session):
        _enabled.setdefault(session, {})[name] = value
        state = _sessions.get(session)
        if state is not None:
            # It is set when the running actions end.
            before, state.original[name] = state.original[name], value
        else:
            before = session.conf.getAll.get(name)
            session.conf.set(name, value)
        return before


def _leave_out_enabled(session: SparkSession, settings: dict[str, str]) -> dict[str, str]:
    enabled = _enabled.get(session, {})
    return {name: value for name, value in settings.items() if enabled.get(name) != value}


@contextlib.contextmanager
def batch_limit_settings(session: SparkSession, limits: BatchLimits) -> Iterator[None]:
    """Set ``limits`` for the actions in a ``with`` block, and restore the settings after it.

    Actions of several threads on one session share its settings: the smallest of their limits are set until the last
    action ends.
    """
    with _lock_of(session):
        state = _sessions.get(session)
        if state is None:
            settings = session.conf.getAll
            original = {name: settings.get(name) for name in (MAX_BATCH_RECORDS, MAX_BATCH_BYTES)}
            state = _SessionState(original, _leave_out_enabled(session, settings), [])
            _sessions[session] = state
        state.active.append(limits)
    try:
        with _lock_of(session):
            _apply(session, state)
        yield
    finally:
        with _lock_of(session):
            state.active.remove(limits)
            if state.active:
                _apply(session, state)
            else:
                del _sessions[session]
                _restore(session, state)


def _apply(session: SparkSession, state: _SessionState) -> None:
    limits = state.active[0]
    for other in state.active[1:]:
        limits = limits.least(other)
    records, size = (state.user_settings.get(name) for name in (MAX_BATCH_RECORDS, MAX_BATCH_BYTES))
    if records is not None and int(records) > 0:
        limits = limits.least(BatchLimits(int(records), limits.bytes))
    session.conf.set(MAX_BATCH_RECORDS, limits.records)
    # The size in the settings may have a unit, which only Spark parses.
    session.conf.set(MAX_BATCH_BYTES, size if size is not None else limits.bytes)


def _restore(session: SparkSession, state: _SessionState) -> None:
    """Restore every setting, whichever of them fails."""
    with contextlib.ExitStack() as settings:
        for name, value in state.original.items():
            if value is None:
                settings.callback(session.conf.unset, name)
            else:
                settings.callback(session.conf.set, name, value)

"""The settings of a running session that make tables of pds fast in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pds.errors import InvalidInput, InvalidType
from pds.spark.settings import (
    BATCH_BYTES,
    BATCH_MAX_RECORDS,
    BYTES_UNLIMITED,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    STRING_ROW_BYTES,
    find_user_settings,
    set_default_limit,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EnabledSettings", "enable"]

_ARROW: Final = "spark.sql.execution.arrow.pyspark.enabled"
# Of these Spark looks only when it starts. The second is the default value of each, the third the fast one.
_START_SETTINGS: Final = (
    ("spark.python.unix.domain.socket.enabled", "false", "true"),
    ("spark.python.worker.reuse", "true", "true"),
)


@dataclass(frozen=True)
class EnabledSettings:
    """What `enable` has done; ``print`` shows it."""

    changed: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    """The settings that were changed: the value before, or None without one, and the value now."""
    kept: dict[str, str] = field(default_factory=dict)
    """Settings that have another value because the user has set it."""
    at_start: dict[str, str] = field(default_factory=dict)
    """Settings that have another value and cannot be changed in a running session, with the value to start it with."""

    def __str__(self) -> str:
        """Return a line for each setting."""
        lines = [
            f"set    {name}={new} (was {'not set' if old is None else old})"
            for name, (old, new) in self.changed.items()
        ]
        lines += [f"kept   {name}={value}, which the session has set" for name, value in self.kept.items()]
        lines += [
            f"start  {name}={value} cannot be set now: by SparkSession.builder.config, or spark-submit --conf"
            for name, value in self.at_start.items()
        ]
        return "\n".join(lines) or "nothing to set"


def enable(spark: SparkSession, *, max_row_bytes: int = STRING_ROW_BYTES) -> EnabledSettings:
    """Set what makes ``format("pds")`` and other crossings between the JVM and Python fast in this session.

    Only settings that a running session may change are set, for all queries of this session: batches of Arrow hold up
    to 64 MiB of rows of ``max_row_bytes``, 100,000 rows at most, and the JVM no longer measures each row; ``toPandas``
    and ``createDataFrame`` use Arrow. What the session has set itself is kept. The functions of ``pds.spark`` set the
    limits of batches for their own jobs, with or without this.

    Filters are not pushed down by Spark into ``format("pds")``, whatever is set: pass the option ``where``, or use
    `read_table`.

    Args:
        spark: A classic or a Connect session.
        max_row_bytes: The width in bytes of the widest rows to expect in this session. The memory of a batch grows with
            rows that are wider: pass their width, or do not call this in a session with rows of megabytes.

    Returns:
        What was changed, what was kept, and what can only be set when the session is started.

    Raises:
        InvalidInput: ``max_row_bytes`` is not positive.
        InvalidType: An argument has an invalid type.
    """
    conf: Any = getattr(spark, "conf", None)
    if not hasattr(conf, "getAll"):
        raise InvalidType(f"spark must be a SparkSession, not {type(spark).__name__}")
    if isinstance(max_row_bytes, bool) or not isinstance(max_row_bytes, int):
        raise InvalidType(f"max_row_bytes must be an integer, not {max_row_bytes!r}")
    if max_row_bytes < 1:
        raise InvalidInput(f"max_row_bytes must be positive, not {max_row_bytes}")
    records = max(1, min(BATCH_BYTES // max_row_bytes, BATCH_MAX_RECORDS))
    limits = {MAX_BATCH_RECORDS: str(records), MAX_BATCH_BYTES: str(BYTES_UNLIMITED)}
    user_settings = find_user_settings(spark)
    result = EnabledSettings()
    for name, value in _choose(user_settings, limits, result).items():
        if name in limits:
            before = set_default_limit(spark, name, value)
            if before != value:
                result.changed[name] = before, value
        elif conf.get(name, "false").lower() != value:
            result.changed[name] = conf.getAll.get(name), value
            conf.set(name, value)
    for name, default, value in _START_SETTINGS:
        if conf.get(name, default).lower() != value:
            result.at_start[name] = value
    return result


def _choose(user_settings: dict[str, str], limits: dict[str, str], result: EnabledSettings) -> dict[str, str]:
    """Return the settings to change, and note in the result what is kept."""
    settings = {_ARROW: "true", **limits}
    result.kept.update(
        {name: user_settings[name] for name in settings if user_settings.get(name, settings[name]) != settings[name]}
    )
    records = int(user_settings.get(MAX_BATCH_RECORDS, limits[MAX_BATCH_RECORDS]))
    # Batches of more rows, and those of another limit of bytes, are as the user wants them.
    are_limited = 0 < records <= int(limits[MAX_BATCH_RECORDS]) and MAX_BATCH_BYTES not in result.kept
    left_out = set(user_settings) if are_limited else {*user_settings, *limits}
    return {name: value for name, value in settings.items() if name not in left_out}

"""Sensors that start runs when a table has changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from dagster import RunRequest, SensorEvaluationContext, SensorResult, SkipReason, sensor

from pds.errors import NotFound

if TYPE_CHECKING:
    from dagster import SensorDefinition

    from pds import Table
    from pds.dagster.resource import PdsResource

# Commits that change no row.
_MAINTENANCE: Final = frozenset({"compact", "sort", "tag", "untag", "vacuum"})
_MAX_COMMITS: Final = 100


def table_sensor(
    path: str,
    *,
    target: Any,  # noqa: ANN401 what Dagster takes
    name: str | None = None,
    resource_key: str = "pds",
    minimum_interval_seconds: int | None = None,
) -> SensorDefinition:
    """Return a sensor that requests a run for each new version of a table.

    Commits that change no row, such as compactions, start no run. The first evaluation requests a run for the version
    that there is. Several versions since the last evaluation are one run. The cursor and the run key are the version
    and the identifier of its commit, so that a table that was dropped and created anew has new ones. The run has the
    tags `pds/table` and `pds/version`.

    Args:
        path: The folder of the table, relative to the URL of the resource.
        target: The job or the selection of assets that is run, as for `dagster.sensor`.
        name: The name of the sensor. Defaults to the path, with the suffix `_sensor`.
        resource_key: The resource key of the `PdsResource`.
        minimum_interval_seconds: As for `dagster.sensor`.
    """

    @sensor(
        name=name or re.sub(r"\W", "_", path, flags=re.ASCII) + "_sensor",
        target=target,
        required_resource_keys={resource_key},
        minimum_interval_seconds=minimum_interval_seconds,
        description=f"New versions of the table {path}.",
    )
    def evaluate(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        resource: PdsResource = getattr(context.resources, resource_key)
        try:
            table = resource.open_table(path)
        except NotFound:
            return SkipReason(f"table {path} does not exist yet")
        (newest,) = table.history(1)
        cursor = f"{newest['version']} {newest['commit_id']}"
        if cursor == context.cursor:
            return SkipReason(f"table {path} is at version {newest['version']} still")
        if not _has_new_rows(table, context.cursor):
            return SensorResult(skip_reason=f"no row of table {path} has changed", cursor=cursor)
        request = RunRequest(run_key=cursor, tags={"pds/table": path, "pds/version": str(newest["version"])})
        return SensorResult([request], cursor=cursor)

    return evaluate


def _has_new_rows(table: Table, cursor: str | None) -> bool:
    """Return whether a commit after that of the cursor may have changed rows."""
    version, _, commit_id = (cursor or "").partition(" ")
    # A person may have set the cursor.
    if not version.isdecimal():
        return True
    count = table.version - int(version)
    if not 0 < count <= _MAX_COMMITS:
        return True
    entries = table.history(count + 1)
    last = entries[count]["commit_id"] if len(entries) > count else None
    return last != commit_id or any(entry["operation"]["name"] not in _MAINTENANCE for entry in entries[:count])

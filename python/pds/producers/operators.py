"""Operators: stages that are declared, and computed without Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from collections.abc import Mapping

FUNCTIONS = ("count", "sum", "mean", "min", "max")


def make_aggregate(stage: str, aggregates: Mapping[str, str | tuple[str, str]]) -> str:
    """Return the operator of aggregates as JSON; raise an InvalidInput or InvalidType for what is none."""
    if not isinstance(aggregates, dict):
        raise InvalidType(f"the aggregates of {stage!r} must be a dict, not {type(aggregates).__name__}")
    parsed = []
    for name, aggregate in aggregates.items():
        parts = ("", aggregate) if isinstance(aggregate, str) else aggregate
        if not isinstance(parts, tuple) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):  # noqa: PLR2004 a pair
            raise InvalidType(
                f'the aggregate {name!r} of {stage!r} must be a pair of column and function, or "count", '
                f"not {aggregate!r}"
            )
        column, function = parts
        if function not in FUNCTIONS:
            raise InvalidInput(f"{function!r}, of the aggregate {name!r} of {stage!r}, is none of {list(FUNCTIONS)}")
        spec = {"name": require_text("the name of an aggregate", name), "function": function}
        if not isinstance(aggregate, str):
            spec["column"] = column
        parsed.append(spec)
    return json.dumps({"aggregate": parsed})

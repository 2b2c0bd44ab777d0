"""Operators: stages that are declared, and computed without Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_JOINS = ("inner", "left", "right", "full", "semi", "anti")
# The functions by what an update computes them from: the state of a key and the rows that changed; also its values at
# one end of their order; all its rows.
AGGREGATE_CLASSES = {
    "invert": (
        *("count", "count_if", "sum", "mean", "variance", "stddev", "var_pop", "stddev_pop"),
        *("bool_and", "bool_or"),
    ),
    "prefix": ("min", "max"),
    "recompute": ("count_distinct", "median", "percentile_cont", "percentile_disc", "string_agg", "list"),
}
_FUNCTIONS = tuple(name for names in AGGREGATE_CLASSES.values() for name in names)
# What functions take beside a column.
_PARAMETERS = {"percentile_cont": "fraction", "percentile_disc": "fraction", "string_agg": "delimiter"}


def make_aggregate(stage: str, aggregates: Mapping[str, str | tuple[str, str] | tuple[str, str, str | float]]) -> str:
    """Return the operator of aggregates as JSON; raise an InvalidInput or InvalidType for what is none."""
    if not isinstance(aggregates, dict):
        raise InvalidType(f"the aggregates of {stage!r} must be a dict, not {type(aggregates).__name__}")
    parsed = [_make_one_aggregate(stage, name, aggregate) for name, aggregate in aggregates.items()]
    return json.dumps({"aggregate": parsed})


def _make_one_aggregate(stage: str, name: str, aggregate: object) -> dict[str, object]:
    is_of_rows = isinstance(aggregate, str)
    parts = ("", aggregate) if is_of_rows else aggregate
    is_text = [isinstance(part, str) for part in parts[:2]] if isinstance(parts, tuple) else []
    if not isinstance(parts, tuple) or is_text != [True, True] or len(parts) > 3:  # noqa: PLR2004 with a parameter
        raise InvalidType(
            f'the aggregate {name!r} of {stage!r} must be "count" or a pair of column and function, with the fraction '
            f"or delimiter if the function takes one, not {aggregate!r}"
        )
    column, function, *parameters = parts
    if function not in _FUNCTIONS:
        known = list(_FUNCTIONS)
        raise InvalidInput(f"unknown function {function!r} of the aggregate {name!r} of {stage!r}; there are {known}")
    spec: dict[str, object] = {"name": require_text("the name of an aggregate", name), "function": function}
    if is_of_rows:
        return spec
    spec["column"] = require_text(f"the column of the aggregate {name!r}", column)
    parameter = _PARAMETERS.get(function)
    if parameter is None and parameters:
        message = f"the aggregate {name!r} of {stage!r}: {function} takes a column only; leave out {parameters[0]!r}"
        raise InvalidInput(message)
    if parameter is not None:
        what = f"the {parameter} of the aggregate {name!r} of {stage!r}"
        if not parameters:
            raise InvalidInput(f"{what} is missing, as in ({column!r}, {function!r}, {parameter})")
        check = _check_fraction if parameter == "fraction" else _check_delimiter
        spec[parameter] = check(what, parameters[0])
    return spec


def _check_fraction(what: str, fraction: object) -> float:
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise InvalidType(f"{what} must be a number, not {fraction!r}")
    if not 0 <= fraction <= 1:
        raise InvalidInput(f"{what} must be 0 to 1, not {fraction}")
    return float(fraction)


def _check_delimiter(what: str, delimiter: object) -> str:
    if not isinstance(delimiter, str):
        raise InvalidType(f"{what} must be a str, not {delimiter!r}")
    return delimiter


def make_select(stage: str, key: str | None, value: str | dict[str, str] | None, where: str | None) -> str:
    """Return the operator of a selection as JSON; raise an InvalidType for what is none."""
    select: dict[str, object] = {}
    for name, text in (("key", key), ("filter", where)):
        if text is not None:
            select[name] = _require_sql(stage, text)
    if isinstance(value, dict):
        select["value"] = [(require_text("the name of a field", n), _require_sql(stage, v)) for n, v in value.items()]
    elif value is not None:
        select["value"] = _require_sql(stage, value)
    return json.dumps({"select": select})


def make_first(stage: str, by: str | Sequence[str], rows: int, descending: bool | Sequence[bool]) -> str:  # noqa: FBT001 an order
    """Return the operator of first rows as JSON; raise an InvalidInput or InvalidType for what is none."""
    expressions = _to_expressions(stage, by)
    directions = [descending] * len(expressions) if isinstance(descending, bool) else descending
    if not isinstance(directions, (list, tuple)) or not all(isinstance(one, bool) for one in directions):
        raise InvalidType(f"descending of {stage!r} must be True or False, or a list of these, not {descending!r}")
    if len(directions) != len(expressions):
        raise InvalidInput(
            f"{stage!r} has {len(expressions)} expressions to order by, and {len(directions)} directions"
        )
    if isinstance(rows, bool) or not isinstance(rows, int):
        raise InvalidType(f"rows of {stage!r} must be an int, not {rows!r}")
    if not 1 <= rows < 2**63:
        raise InvalidInput(f"rows of {stage!r} must be 1 or more, not {rows}")
    order = [{"expression": text, "descending": one} for text, one in zip(expressions, directions, strict=True)]
    return json.dumps({"first": {"rows": rows, "by": order}})


def make_order(stage: str, by: str | Sequence[str] | None, descending: bool) -> tuple[list[str], bool] | None:  # noqa: FBT001 an order
    """Check the order of the values of a key; raise an InvalidInput or InvalidType if it is not valid."""
    if not isinstance(descending, bool):
        raise InvalidType(f"order_descending of {stage!r} must be True or False, not {descending!r}")
    if by is None:
        if descending:
            raise InvalidInput(f"order_descending of {stage!r} needs order_by")
        return None
    expressions = _to_expressions(stage, by)
    if not expressions:
        raise InvalidInput(f"order_by of {stage!r} needs an expression")
    return expressions, descending


def make_join(stage: str, how: str, suffix: str) -> str:
    """Return the operator of a join as JSON; raise an InvalidInput or InvalidType for what is none."""
    if how not in _JOINS:
        raise InvalidInput(f"how of {stage!r} is one of {list(_JOINS)}, not {how!r}")
    if not isinstance(suffix, str):
        raise InvalidType(f"the suffix of {stage!r} must be a str, not {suffix!r}")
    return json.dumps({"join": {"how": how, "suffix": require_text(f"the suffix of {stage!r}", suffix)}})


def _to_expressions(stage: str, by: object) -> list[str]:
    expressions = [by] if isinstance(by, str) else by
    if not isinstance(expressions, (list, tuple)):
        raise InvalidType(f"the order of {stage!r} must be SQL or a list of it, not {by!r}")
    return [_require_sql(stage, text) for text in expressions]


def _require_sql(stage: str, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidType(f"an expression of {stage!r} must be SQL, not {text!r}")
    return require_text(f"an expression of {stage!r}", text)

"""Validation of flags. It imports no pyarrow, which a store does not need."""

from __future__ import annotations

from pds.errors import InvalidType


def require_bool(label: str, value: object) -> bool:
    """Return `value` if it is True or False; `label` names it in errors.

    Raises:
        InvalidType: It is neither.
    """
    if not isinstance(value, bool):
        raise InvalidType(f"{label} must be True or False, not {value!r}")
    return value

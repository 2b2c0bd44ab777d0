"""Validation of flags and options. It imports no pyarrow, which a store does not need."""

from __future__ import annotations

from pds.errors import InvalidInput, InvalidType


def require_bool(label: str, value: object) -> bool:
    """Return `value` if it is True or False; `label` names it in errors.

    Raises:
        InvalidType: It is neither.
    """
    if not isinstance(value, bool):
        raise InvalidType(f"{label} must be True or False, not {value!r}")
    return value


def require_utf8(label: str, text: str) -> str:
    """Return `text` if UTF-8 can encode it; the error has `label` and not the text, which may be a secret.

    Raises:
        InvalidInput: It has surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{label} cannot be encoded as UTF-8") from None
    return text

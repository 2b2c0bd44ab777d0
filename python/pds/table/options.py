"""How a write is committed."""

from __future__ import annotations

from typing import NamedTuple

from pds.table.checks import check_idempotency_key, check_version


class CommitOptions(NamedTuple):
    """How a write is committed; the attributes are read by the engine."""

    idempotency_key: str | None
    if_version: int | None
    timeout: float

    @classmethod
    def checked(cls, idempotency_key: object, if_version: object, timeout: float) -> CommitOptions:
        """Return the options for the arguments of a public method.

        Raises:
            InvalidInput: The version is not positive.
            InvalidType: An argument has an invalid type.
        """
        version = None if if_version is None else check_version(if_version, "if_version")
        return cls(check_idempotency_key(idempotency_key), version, timeout)

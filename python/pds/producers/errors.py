"""The error of a user's function that a pipeline calls."""

from __future__ import annotations

_MAX_KEY_LENGTH = 200


class ProduceError(Exception):
    """A producer's function raised an exception, or returned rows that its stage cannot store.

    The exception of the function, if there is one, is `__cause__`.

    Args:
        stage: The name of the stage.
        key: The source key as a plain Python value: a struct key is a tuple. In batch mode it is the first key of
            the batch, if the row is not known.
        reason: What failed, what was expected and what was returned.
        location: The line of the function as `file:line`, or None if it is not known.
    """

    def __init__(self, stage: str, key: object, reason: str, location: str | None = None) -> None:
        self.stage = stage
        self.key = key
        self.reason = reason
        self.location = location
        place = "" if location is None else f" at {location}"
        super().__init__(f"stage {stage!r} failed for key {abbreviate(key)}{place}: {reason}")

    def __reduce__(self) -> tuple[type[ProduceError], tuple[str, object, str, str | None]]:
        return type(self), (self.stage, self.key, self.reason, self.location)


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an error, whatever its `__str__` does."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failure:  # noqa: BLE001 the error of a user's class
        return f"{type(error).__name__}, whose text cannot be made: {type(failure).__name__}"


def abbreviate(value: object) -> str:
    """Return the `repr` of a value, cut to 200 characters."""
    text = repr(value)
    return text if len(text) <= _MAX_KEY_LENGTH else text[: _MAX_KEY_LENGTH - 1] + "…"

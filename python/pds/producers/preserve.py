"""Hooks that preserve values: calls of a user's function for each row that an update emits."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds.errors import InvalidInput, InvalidType
from pds.producers.convert import BadValueError, ColumnBuilder
from pds.producers.errors import ProduceError, abbreviate, describe_error
from pds.producers.groups import to_keys, to_plain, to_python
from pds.producers.locations import locate_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_STATE_BYTES = 64 * 2**10


@dataclass(frozen=True)
class Preserve:
    """A hook that gives the value to store for each row that an update emits, such as a surrogate id that stays.

    It is called in the order of target key, source key and emission, for every row of a source key that changed; with
    `order_by` that order comes after the target key. What it is given as the earlier value is that of the first stored
    row of the same pair of target key and source key, wherever it was in the order; else of the first stored row of the
    target key; else the first value that was stored for the target key in this update; else None. It is as a reader
    gets it. A target key that vanished and comes back is new.

    Args:
        function: `function(new, earlier, state) -> value`.
        state: What the function needs from one update to the next: a dict of at most 64 KiB as JSON, whose keys are
            strings; the function changes it in place. It is stored with the version, and passed as it was stored last.
    """

    function: Callable[[Any, Any, dict[str, Any]], Any]
    state: dict[str, Any] = field(default_factory=dict)

    def check(self, stage: str) -> None:
        """Raise an error if the function or the state cannot be used.

        Raises:
            InvalidInput: The state is too large, or JSON cannot store it.
            InvalidType: The function is not callable, or the state is not a dict.
        """
        if not callable(self.function):
            raise InvalidType(f"the hook of stage {stage!r} must be a function, not {type(self.function).__name__}")
        if not isinstance(self.state, dict):
            raise InvalidType(f"the state of the hook of stage {stage!r} must be a dict, not {self.state!r}")
        _to_json(self.state, stage)


class PreservePass:
    """One pass of a hook over the rows of a reader: iterates over the rows with their new values."""

    def __init__(
        self, hook: Preserve, stage: str, value: pa.Field[Any], reader: pa.RecordBatchReader, state: str | None
    ) -> None:
        self._function = hook.function
        self._stage = stage
        self._value = value.with_name("value")
        self._reader = reader
        self._state: dict[str, Any] = copy.deepcopy(hook.state) if state is None else json.loads(state)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        first: pa.Array[Any] | None = None
        for batch in self._reader:
            builder = ColumnBuilder(self._value)
            try:
                keys = to_keys(batch.column("target_key"))
                columns = [to_python(batch.column(name)) for name in ("value", "begins", "has_earlier", "earlier")]
            except (BadValueError, OverflowError, ValueError) as error:
                raise self._failure(None, error) from error
            # Only what a later row needs is converted. The last key may have more rows in the next batch.
            is_last = [*columns[1][1:], False]
            for row, (new, begins, has_earlier, earlier, ends) in enumerate(zip(*columns, is_last, strict=True)):
                try:
                    if begins:
                        first = None
                    previous = earlier if has_earlier else None if first is None else to_python(first)[0]
                    value = self._function(new, previous, self._state)
                    builder.append(value)
                    if begins and not has_earlier and not ends:
                        first = self._to_stored(value)
                except Exception as error:
                    raise self._failure(keys[row], error) from error
            try:
                values = builder.finish()
            except BadValueError as error:
                raise self._failure(keys[error.row or 0], error) from error
            names = ["target_key", "source_key", "value"]
            yield pa.record_batch([batch.column("target_key"), batch.column("source_key"), values], names)

    def _to_stored(self, value: object) -> pa.Array[Any]:
        """Return a value as it is stored: later rows of this update get what those of the next one would."""
        builder = ColumnBuilder(self._value)
        builder.append(value)
        return builder.finish()

    def _failure(self, key: object, error: Exception) -> ProduceError:
        location = locate_error(error, self._function, None)
        reason = str(error) if isinstance(error, BadValueError) else describe_error(error)
        return ProduceError(self._stage, to_plain(key), f"the hook that preserves values: {reason}", location)

    def get_state(self) -> str:
        """Return the state after the last row, as JSON.

        Raises:
            InvalidInput: It is too large, or JSON cannot store it.
        """
        return _to_json(self._state, self._stage)


def _has_large_integer(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_large_integer, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_large_integer, value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def _to_json(state: dict[str, Any], stage: str) -> str:
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the state of the hook of stage {stage!r} cannot be stored as JSON: {error}") from error
    if json.loads(text) != state or _has_large_integer(state):
        raise InvalidInput(
            f"the state of the hook of stage {stage!r} must come back from JSON as it is: the keys of dicts are "
            f"strings, integers have 64 bits, and there are no tuples; it is {abbreviate(state)}"
        )
    if len(text.encode()) > MAX_STATE_BYTES:
        raise InvalidInput(f"the state of the hook of stage {stage!r} has more than {MAX_STATE_BYTES} bytes as JSON")
    return text

"""Row mode: calls of a user's function for each group of sorted streams.

Readers yield batches with the columns `key` and `value` in which equal keys are adjacent. The result is a stream of
batches with the columns `source_key`, `target_key` and `value`. Memory does not depend on the size of a group: at most
65,536 values of each reader and about 16 MiB of emitted rows are in memory.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from pds import _pds
from pds.producers.convert import UNCOUNTED_BYTES, BadValueError, ColumnBuilder, measure, reject
from pds.producers.errors import ProduceError, abbreviate, describe_error
from pds.producers.groups import MAX_BYTES, MAX_ROWS, Chunk, Cursor, Run, make_schema, take, to_keys, to_plain
from pds.producers.locations import locate_error, locate_function

_Value = Any
"""A Python value of a row, or what a user's function returned."""


class _Output:
    """The emitted rows since the last batch."""

    def __init__(self, function: Callable[..., object], stage: str, location: str | None, schema: pa.Schema) -> None:
        self._stage = stage
        self._location = location
        self._schema = schema
        self._columns = [ColumnBuilder(schema.field("target_key")), ColumnBuilder(schema.field("value"))]
        self.calls = _pds.RowCalls(function, types.GeneratorType, _iterate, _check_pair, *self._columns)
        self._sources: list[pa.Array[Any]] = []
        self._chunk: Any = None
        self._key_size = 0
        self.count = 0
        self.size = 0

    def _open(self, chunk: Chunk) -> None:
        if chunk is not self._chunk:
            self._take_sources()
            self._chunk = chunk

    def open(self, chunk: Chunk, row: int) -> None:
        """Begin the rows of a source key."""
        self._open(chunk)
        self.calls.group = row
        self._key_size = measure(chunk.keys[row])

    def _take_sources(self) -> None:
        if self.calls.rows:
            self._sources.append(take(self._chunk.heads, self.calls.take_groups()))

    def take(self, pairs: Iterator[Any]) -> bool:
        """Store pairs until the batch is full (False) or the pairs end (True)."""
        limit = MAX_BYTES - self.size
        room = MAX_ROWS - self.count
        if self._key_size > UNCOUNTED_BYTES:
            room = min(room, limit // self._key_size)
        rows = self.calls.rows
        try:
            return self.calls.take(pairs, max(1, room), max(0, limit))
        finally:
            count = self.calls.rows - rows
            self.count += count
            if self._key_size > UNCOUNTED_BYTES:
                self.size += self._key_size * count

    def call(self, chunk: Chunk, end: int) -> bool:
        """Store the pairs of groups of a chunk, until the batch is full (False) or they end (True).

        They are those from `calls.group` to `end`. All their values are in the chunk, and their keys are small.
        """
        self._open(chunk)
        rows = self.calls.rows
        try:
            return self.calls.call(chunk, end, max(1, MAX_ROWS - self.count), max(0, MAX_BYTES - self.size))
        finally:
            self.count += self.calls.rows - rows

    def finish(self) -> pa.RecordBatch:
        """Return the rows as a batch, and begin the next one."""
        self._take_sources()
        sources = pa.concat_arrays(self._sources)
        arrays = [sources]
        for column, name in zip(self._columns, ("key", "value"), strict=True):
            try:
                arrays.append(column.finish())
            except BadValueError as error:
                key = to_plain(to_keys(sources.slice(error.row or 0, 1))[0])
                raise ProduceError(self._stage, key, f"emitted {name}: {error}", self._location) from error.__cause__
        self._sources = []
        self.count = self.size = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _check_pair(pair: object) -> None:
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # noqa: PLR2004 a pair
        raise BadValueError(f"expected a pair (key, value), got {abbreviate(pair)} of type {type(pair).__name__}")


def _iterate(result: _Value) -> Iterator[Any]:
    """Return an iterator over what a function returned."""
    if type(result) is types.GeneratorType:
        return result
    if result is None:
        return iter(())
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        name = type(result).__name__
        raise BadValueError(f"expected an iterable of pairs (key, value), got {abbreviate(result)} of type {name}")
    return iter(result)


def _cause_of(error: Exception) -> BaseException:
    return error.__cause__ or error if isinstance(error, BadValueError) else error


class _Call:
    """One call of the user's function."""

    __slots__ = ("_function", "_values", "is_done", "key", "pairs")

    def __init__(
        self, function: Callable[..., Iterable[Any] | None], key: _Value, cursors: list[Cursor | None]
    ) -> None:
        self._function = function
        self._values = [_pds.RowValues(cursor) for cursor in cursors]
        self.key = key
        self.pairs: Any = None
        self.is_done = False

    def start(self) -> Iterator[Any]:
        """Return the pairs that are not yet taken."""
        pairs = self.pairs
        if pairs is None:
            pairs = self.pairs = _iterate(self._function(self.key, *self._values))
        return cast("Iterator[Any]", pairs)

    def check_values(self) -> None:
        """Raise an error of the values that the function has caught: it would take it for their end."""
        for values in self._values:
            values.check()

    def close(self) -> None:
        """End the values, and a generator that did not end."""
        if not self.is_done and type(self.pairs) is types.GeneratorType:
            self.pairs.close()
        for values in self._values:
            values.close()


class RowFunction:
    """Calls `function(key, values)` for each key of a stream, or `function(key, values, …)` for each key of a join.

    The function yields or returns pairs (target key, value), or None. Struct keys are named tuples, and struct values
    are dicts. `values` is for one pass, and what is not read is skipped.

    Args:
        function: The user's function.
        stage: The name of the stage, for errors.
        source_key: The field of the source keys.
        source_values: The field of the values of each group of feeders: one field for a merge, more for a join.
        target_key: The field of the emitted keys.
        target_value: The field of the emitted values.

    Raises:
        TypeError: The function is not callable, or a type of an emitted column is not supported.
    """

    def __init__(
        self,
        function: Callable[..., Iterable[Any] | None],
        *,
        stage: str,
        source_key: pa.Field[Any],
        source_values: Sequence[pa.Field[Any]],
        target_key: pa.Field[Any],
        target_value: pa.Field[Any],
    ) -> None:
        if not callable(function):
            reject(function, "a function")
        self._function = function
        self._stage = stage
        self._schema = make_schema(source_key, target_key, target_value)
        self._values = list(source_values)
        self._new_output()

    def _new_output(self) -> _Output:
        return _Output(self._function, self._stage, locate_function(self._function), self._schema)

    def __call__(self, readers: Sequence[pa.RecordBatchReader]) -> Iterator[pa.RecordBatch]:
        """Call the function for every group, and yield batches of emitted rows in the order of emission.

        Args:
            readers: One reader for a merge. For a join, a reader of the column `key` that lists every key in order,
                and a reader of `key` and `value` for each item of `source_values`.

        Raises:
            ValueError: The number of readers is wrong.
            ProduceError: The function raised an exception, or emitted what the columns cannot store.
        """
        expected = 1 if len(self._values) == 1 else 1 + len(self._values)
        if len(readers) != expected:
            raise ValueError(f"stage {self._stage!r} needs {expected} readers, got {len(readers)}")
        return self._stream(readers)

    def _stream(self, readers: Sequence[pa.RecordBatchReader]) -> Iterator[pa.RecordBatch]:
        run = Run()
        driver, *feeders = [Cursor(reader, run) for reader in readers]
        output = self._new_output()
        run.pause()
        try:
            for feeder in feeders:
                feeder.advance()
            while driver.advance():
                if not feeders and driver.ends_in_chunk and not driver.chunk.has_large_keys:
                    yield from self._call_groups(driver, output, run)
                matches: list[Cursor | None] = [driver]
                if feeders:
                    identity = driver.chunk.identities[driver.group]
                    matches = [f if f.is_valid and f.chunk.identities[f.group] == identity else None for f in feeders]
                key = self._read_key(driver)
                output.open(driver.chunk, driver.group)
                call = _Call(self._function, key, matches)
                try:
                    while not self._take(call, output, run):
                        batch = output.finish()
                        run.resume()
                        yield batch
                        run.pause()
                finally:
                    call.close()
                for cursor in filter(None, matches if feeders else ()):
                    cursor.advance()
            if any(feeder.is_valid for feeder in feeders):
                raise RuntimeError(f"internal error: stage {self._stage!r}: a feeder has a key that is not listed")
            if output.count:
                batch = output.finish()
                run.resume()
                yield batch
        finally:
            run.resume()

    def _call_groups(self, driver: Cursor, output: _Output, run: Run) -> Iterator[pa.RecordBatch]:
        """Call the function for the groups that end in the chunk: all but the last one, which is the next."""
        chunk, calls = driver.chunk, output.calls
        self._read_key(driver)
        calls.group, last = driver.group, len(chunk.starts) - 1
        try:
            while not self._call(chunk, last, output):
                batch = output.finish()
                run.resume()
                yield batch
                run.pause()
        finally:
            calls.close()
        driver.group = last

    def _call(self, chunk: Chunk, end: int, output: _Output) -> bool:
        calls = output.calls
        try:
            return output.call(chunk, end)
        except Exception as error:  # noqa: BLE001 every error becomes a ProduceError
            raise self._error(error, chunk.keys[calls.group], calls.pairs) from _cause_of(error)

    def _error(self, error: Exception, key: _Value, pairs: _Value) -> ProduceError:
        reason = str(error) if isinstance(error, BadValueError) else describe_error(error)
        return ProduceError(self._stage, to_plain(key), reason, locate_error(error, self._function, pairs))

    def _read_key(self, driver: Cursor) -> _Value:
        try:
            return driver.chunk.keys[driver.group]
        except (BadValueError, OverflowError, ValueError) as error:
            reason = f"a key cannot become a Python value: {error}; use batch=True"
            raise ProduceError(self._stage, None, reason, locate_function(self._function)) from error

    def _take(self, call: _Call, output: _Output, run: Run) -> bool:
        """Store pairs of a call until the output is full (False) or the pairs end (True)."""
        try:
            is_done = call.is_done = output.take(call.start())
            call.check_values()
        except Exception as error:  # noqa: BLE001 every error becomes a ProduceError
            if run.failure is not None:
                raise run.failure from run.failure.__cause__
            raise self._error(error, call.key, call.pairs) from _cause_of(error)
        if run.failure is not None:
            raise run.failure
        return is_done

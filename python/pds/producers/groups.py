"""Groups of a sorted stream: chunks of batches, and cursors over the groups of a stream."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from pds import _pds
from pds.producers.convert import UNCOUNTED_BYTES, BadValueError, key_class
from pds.streams import replace_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_GROUPS = 8_192
MAX_ROWS = 65_536
MAX_BYTES = 16 * 2**20

_Value = Any
_ArrowArray = Any
_ArrowType = Any


def take(array: _ArrowArray, indices: _ArrowArray) -> _ArrowArray:
    """Return the rows of an array with these indices."""
    try:
        return array.take(indices)
    except pa.ArrowNotImplementedError:
        # pyarrow takes no views of texts and bytes.
        return array.cast(replace_views(array.type, large=True)).take(indices).cast(array.type)


def to_python(array: _ArrowArray) -> list[Any]:
    """Return the values as Python values.

    Raises:
        BadValueError: A time has nanoseconds, which `datetime.time` has not; pyarrow would leave them out.
    """
    if "time64[ns]" in str(array.type):
        for times in _find_times(array):
            nanoseconds = times.cast(pa.int64())
            whole = pc.multiply(pc.divide(nanoseconds, 1000), 1000)
            if pc.any(pc.not_equal(whole, nanoseconds)).as_py():
                raise BadValueError("a time has nanoseconds, which datetime.time has not")
    return list_values(array)


def list_values(array: _ArrowArray) -> list[Any]:
    """Return the values as `array.to_pylist` does, in a fraction of its time."""
    data_type = array.type
    if pa.types.is_struct(data_type):
        names = [sys.intern(field.name) for field in data_type]
        if names and len(set(names)) == len(names):
            valid = list_values(array.is_valid()) if array.null_count else None
            return _pds.make_dicts(names, list(map(list_values, array.flatten())), valid)
    elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return _pds.make_lists(list_values(array.flatten()), list_values(pc.list_value_length(array)))
    elif not pa.types.is_nested(data_type) and not isinstance(data_type, pa.BaseExtensionType):
        values = _pds.list_values(array)
        if values is not None:
            return values
    return cast("list[Any]", array.to_pylist())


def _find_times(array: _ArrowArray) -> Iterator[_ArrowArray]:
    """Yield the arrays of times in nanoseconds that the values of an array consist of."""
    data_type = array.type
    if isinstance(data_type, pa.BaseExtensionType):
        yield from _find_times(array.storage)
    elif pa.types.is_dictionary(data_type):
        yield from _find_times(array.dictionary)
    elif pa.types.is_struct(data_type):
        yield from itertools.chain.from_iterable(map(_find_times, array.flatten()))
    elif pa.types.is_map(data_type):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        yield from _find_times(array.keys[start:end])
        yield from _find_times(array.items[start:end])
    elif pa.types.is_nested(data_type):
        yield from _find_times(array.flatten())
    elif data_type == pa.time64("ns"):
        yield array


def to_keys(array: _ArrowArray) -> list[Any]:
    """Return keys as Python values, structs as named tuples. Errors are those of `to_python`."""
    if not pa.types.is_struct(array.type):
        return to_python(array)
    make = key_class(tuple(field.name for field in array.type))._make
    columns = [to_keys(child) for child in array.flatten()]
    rows = zip(*columns, strict=True) if columns else itertools.repeat((), len(array))
    return [make(row) if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def to_plain(key: _Value) -> _Value:
    """Return a key that can be pickled: a tuple instead of a named tuple."""
    return tuple(map(to_plain, key)) if isinstance(key, tuple) else key


def split_key(array: _ArrowArray) -> list[Any]:
    """Return flat columns that are equal in two rows exactly if the keys are: NaN equals NaN, null equals null."""
    data_type = array.type
    if isinstance(data_type, pa.BaseExtensionType):
        return split_key(array.storage)
    if pa.types.is_struct(data_type):
        return [array.is_valid(), *itertools.chain.from_iterable(map(split_key, array.flatten()))]
    if pa.types.is_floating(data_type):
        array = array.cast(pa.float64())
        nan = pc.is_nan(array)
        return [nan, pc.if_else(nan, 0.0, array)]
    if pa.types.is_temporal(data_type):
        return [array.view(pa.int32() if data_type.bit_width == pa.int32().bit_width else pa.int64())]
    return [array.is_valid()] if pa.types.is_null(data_type) else [array]


def differ(left: Sequence[Any], right: Sequence[Any]) -> _Value:
    """Return for each row whether the split keys differ."""
    differences = [
        pc.or_(pc.fill_null(pc.not_equal(a, b), False), pc.xor(a.is_null(), b.is_null()))  # noqa: FBT003
        for a, b in zip(left, right, strict=True)
    ]
    return functools.reduce(pc.or_, differences)


def _largest(keys: _ArrowArray) -> int:
    """Return a number of bytes that no key exceeds."""
    if pa.types.is_struct(keys.type):
        return sum(map(_largest, keys.flatten()))
    if pa.types.is_primitive(keys.type) or pa.types.is_decimal(keys.type):
        return 8
    if str(keys.type) in {"string", "large_string", "binary", "large_binary"}:
        lengths: Any = pc.binary_length(keys)
        longest: Any = pc.max(lengths)
        return longest.as_py() or 0
    return int(keys.nbytes)


class Chunk:
    """The first rows of a batch, with the bounds of their groups: at most 8,192.

    Keys and values become Python values when they are used.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        parts = split_key(rows.column("key"))
        changes = pc.indices_nonzero(differ([part[1:] for part in parts], [part[:-1] for part in parts]))
        ends = cast("list[int]", pc.add(changes[:MAX_GROUPS], 1).to_pylist())
        if len(ends) < MAX_GROUPS:
            ends.append(rows.num_rows)
        self.batch = rows.slice(0, ends[-1])
        self._parts = [part[: ends[-1]] for part in parts]
        self.bounds = [0, *ends]
        self.starts = self.bounds[:-1]
        self.is_decoded = False

    @functools.cached_property
    def heads(self) -> _ArrowArray:
        """The key of each group."""
        return take(self.batch.column("key"), pa.array(self.starts))

    @functools.cached_property
    def keys(self) -> list[Any]:
        """The key of each group as a Python value."""
        return to_keys(self.heads)

    @functools.cached_property
    def has_large_keys(self) -> bool:
        """Whether a key may have more than `UNCOUNTED_BYTES`."""
        return _largest(self.heads) > UNCOUNTED_BYTES

    @functools.cached_property
    def identities(self) -> list[Any]:
        """Python values that are equal exactly if the keys of two groups are equal."""
        return list(zip(*(take(part, pa.array(self.starts)).to_pylist() for part in self._parts), strict=True))

    @functools.cached_property
    def values(self) -> list[Any]:
        """All values as Python values."""
        self.is_decoded = True
        return to_python(self.batch.column("value"))

    def continues(self, previous: Chunk) -> bool:
        """Whether the first group is the last group of the chunk before."""
        tails = [part[-1:] for part in previous._parts]
        return not differ(tails, [part[:1] for part in self._parts])[0].as_py()


class Run:
    """The state of one call: the cyclic collector, and the error of a reader that passes the user's function."""

    def __init__(self) -> None:
        self._paused = False
        self.failure: BaseException | None = None

    def pause(self) -> None:
        """Disable the collector."""
        self._paused = gc.isenabled()
        gc.disable()

    def resume(self) -> None:
        """Enable the collector if `pause` disabled it."""
        if self._paused:
            gc.enable()
        self._paused = False


class Cursor:
    """The position in one reader: a chunk and a group of it."""

    def __init__(self, reader: Iterable[pa.RecordBatch], run: Run) -> None:
        self._chunks = self._split(reader)
        self._run = run
        self.chunk: Any = None
        self.group = -1
        self.is_valid = True

    @staticmethod
    def _split(reader: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
        for batch in reader:
            rest = batch
            while rest.num_rows:
                rows = max(1, min(MAX_ROWS, rest.num_rows * MAX_BYTES // max(1, rest.nbytes)))
                chunk = Chunk(rest.slice(0, rows))
                yield chunk
                rest = rest.slice(chunk.batch.num_rows)

    def load(self) -> bool:
        """Read the next chunk; `group` is 1 if the first group continues, else 0."""
        previous = self.chunk
        # The collector runs between chunks.
        self._run.resume()
        try:
            chunk = next(self._chunks, None)
        except BaseException as error:
            self._run.failure = error
            raise
        finally:
            self._run.pause()
        if chunk is None:
            self.is_valid = False
            return False
        self.group = 1 if previous is not None and chunk.continues(previous) else 0
        self.chunk = chunk
        return True

    def advance(self) -> bool:
        """Move to the next group, past the unread values of this one."""
        self.group += 1
        while self.is_valid and (self.chunk is None or self.group >= len(self.chunk.starts)):
            self.load()
        return self.is_valid

    @property
    def ends_in_chunk(self) -> bool:
        """Whether no value of the group is in the next chunk, as there are other groups behind it."""
        return self.group + 1 < len(self.chunk.starts)

    def read(self) -> tuple[list[Any], int, int]:
        """Return the values of the chunk, and the bounds of those of the group."""
        return self.chunk.values, self.chunk.bounds[self.group], self.chunk.bounds[self.group + 1]

    def read_more(self) -> tuple[list[Any], int, int]:
        """Return the values of the next chunk, and the bounds of those of the group; none at the end of the group."""
        if self.ends_in_chunk or not self.load():
            return [], 0, 0
        self.group -= 1
        return ([], 0, 0) if self.group < 0 else self.read()


def make_schema(source_key: pa.Field[Any], target_key: pa.Field[Any], target_value: pa.Field[Any]) -> pa.Schema:
    """Return the schema of the emitted rows."""
    names = {"source_key": source_key, "target_key": target_key, "value": target_value}
    return pa.schema([field.with_name(name) for name, field in names.items()])

"""Batch mode: calls of a user's function for batches of whole groups of a sorted stream."""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from pds.producers.convert import BadValueError, choose_family, reject, storage_type
from pds.producers.errors import ProduceError, describe_error
from pds.producers.groups import MAX_ROWS, Cursor, Run, differ, make_schema, split_key, take, to_keys, to_plain
from pds.producers.locations import locate_error, locate_function
from pds.streams import compact_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MIXED_FAMILIES = {("integer", "floating"), ("integer", "decimal")}

_Value = Any
_ArrowArray = Any
_ArrowType = Any


class BatchFunction:
    """Calls `function(batch)` for batches of whole groups, with the columns `key` and `value`.

    The function returns a batch with the columns `source_row` (an integer, the row of the input whose key is the source
    key), `key` and `value`. The order of emission is the order of rows within a source key.

    Args:
        function: The user's function.
        stage: The name of the stage, for errors.
        source_key: The field of the source keys.
        source_value: The field of the values.
        target_key: The field of the emitted keys.
        target_value: The field of the emitted values.
        max_group_rows: The largest group in rows. A batch has about 65,536 rows, or `batch_rows` if that is set, and
            more if a group is larger.

    Raises:
        TypeError: The function is not callable.
        ValueError: `max_group_rows` is not positive.
    """

    def __init__(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        stage: str,
        source_key: pa.Field[Any],
        source_value: pa.Field[Any],
        target_key: pa.Field[Any],
        target_value: pa.Field[Any],
        max_group_rows: int = 1_000_000,
    ) -> None:
        if not callable(function):
            reject(function, "a function")
        if max_group_rows < 1:
            raise ValueError(f"max_group_rows must be positive, not {max_group_rows}")
        self._function = function
        self._stage = stage
        self._input = pa.schema([source_key.with_name("key"), source_value.with_name("value")])
        self._schema = make_schema(source_key, target_key, target_value)
        self._max_group_rows = max_group_rows
        self.batch_rows: int | None = None

    def __call__(self, readers: Sequence[pa.RecordBatchReader]) -> Iterator[pa.RecordBatch]:
        """Call the function for all groups, and yield the emitted rows, one batch a call.

        Source keys are in the order of the input, and the rows of one source key are adjacent.

        Args:
            readers: One reader of the columns `key` and `value`.

        Raises:
            ValueError: The number of readers is not 1.
            ProduceError: The function raised an exception, or returned what the columns cannot store; a group has
                more than `max_group_rows` rows.
        """
        if len(readers) != 1:
            raise ValueError(f"stage {self._stage!r} needs 1 reader, got {len(readers)}")
        return self._stream(readers[0])

    def _stream(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        run = Run()
        cursor = Cursor(reader, run)
        pending: list[pa.RecordBatch] = []
        pending_rows = group_rows = 0
        most_rows = self.batch_rows or MAX_ROWS
        while self._load(cursor, run):
            chunk = cursor.chunk
            for group, (start, end) in enumerate(itertools.pairwise(chunk.bounds)):
                group_rows = end - start + (group_rows if group < cursor.group else 0)
                if group_rows > self._max_group_rows:
                    reason = f"the group has more than max_group_rows={self._max_group_rows} rows"
                    raise ProduceError(self._stage, to_plain(chunk.keys[group]), reason)
            # Groups are complete before the start of a new group.
            starts = chunk.starts[cursor.group :]
            complete = next((start for start in starts if pending_rows + start >= most_rows), None)
            if complete is None:
                pending.append(chunk.batch)
                pending_rows += chunk.batch.num_rows
                continue
            yield self._call([*pending, chunk.batch.slice(0, complete)])
            pending = [chunk.batch.slice(complete)]
            pending_rows = pending[0].num_rows
        if pending_rows:
            yield self._call(pending)

    @staticmethod
    def _load(cursor: Cursor, run: Run) -> bool:
        try:
            return cursor.load()
        finally:
            run.resume()

    def _call(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        columns = [pa.concat_arrays([part.column(name) for part in parts]) for name in ("key", "value")]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._input)
        try:
            result = self._function(batch)
        except Exception as error:
            location = locate_error(error, self._function, None)
            raise self._error(batch, describe_error(error), location=location) from error
        try:
            return self._convert(batch, result)
        except BadValueError as error:
            raise self._error(batch, str(error), error.row) from error.__cause__

    def _error(
        self, batch: pa.RecordBatch, reason: str, row: int | None = None, location: str | None = None
    ) -> ProduceError:
        if row is None:
            reason = f"{reason} (in a batch of {batch.num_rows} rows that begins with this key)"
        key = to_plain(to_keys(batch.column("key").slice(row or 0, 1))[0])
        return ProduceError(self._stage, key, reason, location or locate_function(self._function))

    def _convert(self, batch: pa.RecordBatch, result: _Value) -> pa.RecordBatch:
        """Return the result of the function with the types of the stage, sorted by source key."""
        if not isinstance(result, pa.RecordBatch):
            raise BadValueError(f"expected a pyarrow.RecordBatch, got {type(result).__name__}")
        if sorted(result.schema.names) != ["key", "source_row", "value"]:
            raise BadValueError(f"expected the columns source_row, key and value, got {result.schema.names}")
        rows: _ArrowArray = result.column("source_row")
        if len(rows) == 0:
            # An empty list has the type of nulls in Arrow.
            rows = pa.array([], pa.int64())
        if not pa.types.is_integer(rows.type) or rows.null_count:
            raise BadValueError(f"source_row must be integers without null, not {rows.type}")
        limits: Any = pc.min_max(rows).as_py()
        if len(rows) and not 0 <= limits["min"] <= limits["max"] < batch.num_rows:
            raise BadValueError(f"source_row must be from 0 to {batch.num_rows - 1}, got {limits}")
        columns = []
        for name, field in (("key", self._schema.field("target_key")), ("value", self._schema.field("value"))):
            try:
                columns.append(_cast_exactly(result.column(name), field))
            except (BadValueError, pa.ArrowException) as error:
                row = getattr(error, "row", None)
                source_row = None if row is None else rows[row].as_py()
                raise BadValueError(f"column {name!r}: {error}", source_row) from error
        parts = split_key(batch.column("key"))
        changes = differ([part[1:] for part in parts], [part[:-1] for part in parts])
        groups = pc.cumulative_sum(pa.concat_arrays([pa.array([0]), changes.cast(pa.int64())])).take(rows)
        columns = [take(batch.column("key"), rows), *columns]
        if not pc.all(pc.less_equal(groups[:-1], groups[1:])).as_py():
            order = pc.array_sort_indices(groups)  # a stable sort
            columns = [take(column, order) for column in columns]
        return compact_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))


def _cast_exactly(array: _ArrowArray, field: pa.Field[Any]) -> _Value:
    """Return a column in the type of the field; raise an error if a value would change or must not be null."""
    result = array = _declare(array, field.type)
    if array.type != field.type:
        if not _is_widening(array.type, field.type):
            raise BadValueError(f"expected {field.type}, got {array.type}; cast it in the function")
        result = array.cast(field.type)
        # Arrow does not cast to the type of nulls alone, which have one value.
        back = array if pa.types.is_null(array.type) else result.cast(array.type)
        if pa.types.is_nested(storage_type(field.type)):
            # Arrow finds not-a-number in a list different from itself.
            is_exact = back.equals(array) or str(back.to_pylist()) == str(array.to_pylist())
        else:
            is_exact = not pc.any(differ(split_key(back), split_key(array))).as_py()
        if not is_exact:
            raise BadValueError(f"a cast from {array.type} to {field.type} would change values")
    row = _find_null(result, field)
    if row is not None:
        raise BadValueError(f"null in {field.name!r}, which is not nullable", row)
    return result


def _declare(array: _ArrowArray, data_type: _ArrowType) -> _ArrowArray:
    """Return a struct with its fields as they are declared, if they differ in whether they may be null alone.

    Functions get structs whose fields all may be, and pyarrow does not cast one back that has nulls.
    """
    if array.type == data_type or not (pa.types.is_struct(array.type) and pa.types.is_struct(data_type)):
        return array
    if [field.name for field in array.type] != [field.name for field in data_type]:
        return array
    fields = [_declare(array.field(i), field.type) for i, field in enumerate(data_type)]
    if [column.type for column in fields] != [field.type for field in data_type]:
        return array
    return pa.StructArray.from_arrays(fields, fields=list(data_type), mask=array.is_null())


def _is_widening(source: _ArrowType, target: _ArrowType) -> bool:
    """Whether the types are of one family, so that a cast that keeps every value keeps its meaning."""
    source, target = storage_type(source), storage_type(target)
    if pa.types.is_null(source):
        return True
    if pa.types.is_nested(source) or pa.types.is_nested(target):
        children = [(source.field(i), target.field(i)) for i in range(min(source.num_fields, target.num_fields))]
        return (
            type(source) is type(target)
            and source.num_fields == target.num_fields
            and (not pa.types.is_struct(source) or all(a.name == b.name for a, b in children))
            and all(_is_widening(a.type, b.type) for a, b in children)
        )
    families = [choose_family(data_type).replace("double", "floating") for data_type in (source, target)]
    if families == ["ticks", "ticks"]:
        same_class = type(source).__name__.rstrip("0123456789") == type(target).__name__.rstrip("0123456789")
        return same_class and (getattr(source, "tz", None) is None) == (getattr(target, "tz", None) is None)
    return families[0] == families[1] or tuple(families) in _MIXED_FAMILIES


def _find_null(array: _ArrowArray, field: pa.Field[Any]) -> int | None:
    """Return the first row with a null where the field, or a field inside it, is not nullable."""
    if not field.nullable:
        # `null_count` leaves out nulls among the values of dictionaries and runs.
        row = pc.index(array.is_null(), True).as_py()
        if row >= 0:
            return row
    data_type: _ArrowType = field.type
    if not pa.types.is_nested(data_type) or isinstance(data_type, pa.BaseExtensionType):
        return None
    rows = pc.indices_nonzero(array.is_valid())
    valid = take(array, rows)
    if pa.types.is_struct(data_type):
        nulls = [_find_null(valid.field(i), child) for i, child in enumerate(data_type)]
    elif pa.types.is_map(data_type):
        # Keys are never null; pyarrow has no parents of the entries of a map.
        items = _find_null(valid.items, data_type.item_field)
        nulls = [None if items is None else bisect.bisect_right(valid.offsets.to_pylist(), items) - 1]
    else:
        item = _find_null(valid.flatten(), cast("Any", data_type).value_field)
        # pyarrow has no parents of items that views share.
        ends: _ArrowArray = pc.cumulative_sum(pc.list_value_length(valid))
        nulls = [None if item is None else bisect.bisect_right(ends.to_pylist(), item)]
    return min((rows[row].as_py() for row in nulls if row is not None), default=None)

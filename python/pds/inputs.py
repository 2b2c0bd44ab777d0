"""What callers pass as rows: frames of pandas are converted, and errors say what is wrong with the rows."""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds.errors import InvalidInput, InvalidType, RemoteStoreError
from pds.frames import fit_metadata
from pds.readers import make_reader

if TYPE_CHECKING:
    from collections.abc import Iterator


_BEGUN: weakref.WeakSet[pa.RecordBatchReader] = weakref.WeakSet()
"""The readers of which rows were read."""
_INTERRUPTS: dict[str, type[BaseException]] = {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}


def is_pandas_frame(data: object) -> bool:
    """Whether the data is a data frame of pandas, which is not imported for it."""
    frame_class = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame_class is not None and isinstance(data, frame_class)


def convert_pandas(frame: Any) -> pa.Table:  # noqa: ANN401 an optional dependency
    """Return the columns of a frame, and the levels of its index that have names.

    Raises:
        InvalidInput: Two columns, or a column and the index, have the same name.
        InvalidType: Arrow has no type for a column.
    """
    columns = {str(name) for name in frame.columns}
    if len(columns) < len(frame.columns):
        (name, _), *_ = Counter(map(str, frame.columns)).most_common(1)
        raise InvalidInput(f"column {name!r} is there twice; rename one of them")
    names = [None if name is None else str(name) for name in frame.index.names]
    for name in [name for name in names if name is not None]:
        if name in columns or names.count(name) > 1:
            raise InvalidInput(
                f"the index has the name {name!r}, which another column has; rename it, or leave it out with "
                f"frame.reset_index(drop=True)"
            )
    unnamed = [level for level, name in enumerate(names) if name is None]
    has_index = len(unnamed) < len(names)
    if not has_index:
        frame = frame.copy(deep=False)
        frame.index = sys.modules["pandas"].RangeIndex(len(frame))
    elif unnamed:
        frame = frame.set_axis(frame.index.droplevel(unnamed))
    try:
        # Otherwise pyarrow keeps a range of numbers as metadata, which are those of this frame and not of a table.
        table = pa.Table.from_pandas(frame, preserve_index=True if has_index else None)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidType(f"the data frame cannot be converted to Arrow data: {error}") from error
    return fit_metadata(table)


def refuse_data(data: object) -> InvalidType:
    """Return the error for data that is no Arrow data, which says what to do."""
    name = type(data).__name__
    advice = None
    if type(data).__module__.startswith("polars") and name == "LazyFrame":
        advice = "data.collect()"
    elif isinstance(data, dict):
        advice = "pa.table(data)"
    elif isinstance(data, list):
        first = data[0] if data else None
        name = f"a list of {type(first).__name__}" if data else "an empty list"
        if isinstance(first, dict):
            advice = "pa.Table.from_pylist(data)"
        elif isinstance(first, pa.RecordBatch):
            advice = "pa.Table.from_batches(data)"
        elif isinstance(first, pa.Table):
            advice = "pa.concat_tables(data)"
    return InvalidType(
        "data must be a pyarrow Table or implement __arrow_c_stream__, as objects of polars, pandas and DuckDB do; "
        f"{name} does not" + ("" if advice is None else f": pass {advice}")
    )


def refuse_closed(rows: object) -> None:
    """Refuse a generator that has ended: it would seem to have no rows.

    Raises:
        InvalidInput: It has ended.
    """
    if inspect.isgenerator(rows) and inspect.getgeneratorstate(rows) == inspect.GEN_CLOSED:
        raise _refuse_second_read(rows)


def read_batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a reader, once: to a second call it would seem to have no rows.

    A reader that others than pds have emptied has no rows: pyarrow does not tell it from one that never had any.

    Raises:
        InvalidInput: Batches of it were read by this function before. A call that is replayed reads none.
    """
    if reader in _BEGUN:
        raise _refuse_second_read(reader)
    _BEGUN.add(reader)
    yield from reader


def read_rows(reader: pa.RecordBatchReader) -> pa.Table:
    """Return all rows of a reader, with the errors that the engine has when it reads it.

    Raises:
        InvalidInput: The reader raised an exception, the cause.
        KeyboardInterrupt, SystemExit: Another library passed on one as text.
    """
    try:
        return reader.read_all()
    except Exception as error:
        lines = str(error).strip().splitlines()
        name = lines[-1].rpartition("exception: ")[2].partition(":")[0] if lines else ""
        if name in _INTERRUPTS and "Python exception" in str(error):
            raise _INTERRUPTS[name] from error
        refusal = refuse_stream(error)
        raise refusal from refusal.__cause__


def unfold_runs(rows: pa.Table | pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
    """Return the rows with plain values in the place of run-end encoded columns.

    Raises:
        InvalidType: A run-end encoded type is within another type, or pyarrow cannot decode it.
    """
    schema, encoded = rows.schema, []
    for position, field in enumerate(schema):
        data_type: Any = field.type
        values = data_type.value_type if pa.types.is_run_end_encoded(data_type) else data_type
        if _has_runs(values) or (values is not data_type and not _can_decode(data_type)):
            raise InvalidType(f"column {field.name!r} has the type {data_type}, which cannot be decoded; cast it")
        if values is not data_type:
            encoded.append(position)
            schema = schema.set(position, field.with_type(values))
    if not encoded:
        return rows
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    return make_reader(schema, (_decode(batch, schema, encoded) for batch in batches))


def _decode(batch: pa.RecordBatch, schema: pa.Schema, encoded: list[int]) -> pa.RecordBatch:
    columns: list[Any] = batch.columns
    for position in encoded:
        columns[position] = _decode_runs(columns[position])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _decode_runs(column: Any) -> Any:  # noqa: ANN401 an array of any type
    import pyarrow.compute as pc  # noqa: PLC0415 few rows are encoded

    compute: Any = pc
    return compute.run_end_decode(column)


def _has_runs(data_type: Any) -> bool:  # noqa: ANN401 a type of any kind
    if pa.types.is_run_end_encoded(data_type):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_runs(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return _has_runs(data_type.value_type)
    return any(_has_runs(data_type.field(position).type) for position in range(data_type.num_fields))


def _can_decode(data_type: Any) -> bool:  # noqa: ANN401 as above
    try:
        _decode_runs(pa.nulls(1, data_type))
    except pa.ArrowNotImplementedError:
        return False
    return True


def _refuse_second_read(rows: object) -> InvalidInput:
    return InvalidInput(
        f"the rows of this {type(rows).__name__} were read before, and it gives them once; make a new one, or pass "
        "a table"
    )


@contextlib.contextmanager
def keep_cause(data: object) -> Iterator[object]:
    """Yield the data to read within. An exception of a reader of the caller is the cause of the error that is raised.

    Through the Arrow C stream interface, the engine gets the text of the exception alone.

    Raises:
        InvalidInput: An earlier call of pds has read the data (see `read_batches`), or the reader raised an exception
            that is not of pds. One of pds is raised as it is.
        BaseException: The reader raised one that ends more than a call, such as SystemExit. It is raised itself.
    """
    failures: list[BaseException] = []
    # Other streams may be of C++ or Rust, which are read without the GIL.
    watched = _watch(data, failures) if isinstance(data, pa.RecordBatchReader) else data
    try:
        yield watched
    except BaseException as error:
        if not failures:
            raise
        failure = failures[0]
        if isinstance(failure, Exception) and error is not failure and type(error) is not RemoteStoreError:
            raise
        refusal = refuse_stream(failure)
        raise refusal from refusal.__cause__


def _watch(reader: pa.RecordBatchReader, failures: list[BaseException]) -> pa.RecordBatchReader:
    def read() -> Iterator[pa.RecordBatch]:
        batches = read_batches(reader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except BaseException as error:
                failures.append(error)
                raise
            # Not within the `try`: one who stops to read raises GeneratorExit here.
            yield batch

    return make_reader(reader.schema, read())


def refuse_stream(error: BaseException) -> BaseException:
    """Return the error for a stream that raised an exception: that itself if it is of pds or ends more than a call."""
    if not isinstance(error, Exception) or isinstance(error, RemoteStoreError | MemoryError):
        return error
    refusal = InvalidInput(f"reading the input failed: {type(error).__name__}: {error}")
    refusal.__cause__ = error
    return refusal

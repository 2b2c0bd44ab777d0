"""What callers pass as rows: data frames of pandas are converted, and what is no Arrow data is named."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pyarrow as pa

from pds.errors import InvalidInput, InvalidType


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
    names = list(frame.index.names)
    # pyarrow keeps the numbers of the rows as metadata.
    if not isinstance(frame.index, sys.modules["pandas"].RangeIndex):
        for name in names:
            if name is not None and (str(name) in columns or names.count(name) > 1):
                raise InvalidInput(
                    f"the index has the name {str(name)!r}, which another column has; rename it, or leave it out with "
                    f"frame.reset_index(drop=True)"
                )
    unnamed = [level for level, name in enumerate(names) if name is None]
    if unnamed and len(unnamed) < len(names):
        frame = frame.set_axis(frame.index.droplevel(unnamed))
    try:
        return pa.Table.from_pandas(frame, preserve_index=False if len(unnamed) == len(names) else None)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidType(f"the data frame cannot be converted to Arrow data: {error}") from error


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

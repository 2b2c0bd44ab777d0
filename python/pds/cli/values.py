"""The values of Arrow columns as Python has them, whatever their type is.

Times become texts as ISO 8601, in UTC if they have a time zone: Python has neither nanoseconds nor years after 9999.
"""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def to_rows(batch: pa.RecordBatch, block_rows: int) -> Iterator[tuple[Any, ...]]:
    """The rows of a batch, a few at a time."""
    for first in range(0, batch.num_rows, block_rows):
        block = batch.slice(first, block_rows)
        yield from zip(*map(to_values, block.columns), strict=True)


def to_values(column: Any) -> list[Any]:  # noqa: ANN401, PLR0911 arrays of all types
    """The values of a column."""
    data_type: Any = column.type
    if isinstance(data_type, pa.BaseExtensionType):
        known = data_type.extension_name in ("arrow.uuid", "arrow.bool8")
        return column.to_pylist() if known else to_values(column.storage)
    if pa.types.is_dictionary(data_type):
        return to_values(column.dictionary_decode())
    if pa.types.is_run_end_encoded(data_type):
        return to_values(pc.call_function("run_end_decode", [column]))
    if pa.types.is_timestamp(data_type) or pa.types.is_date(data_type) or pa.types.is_time(data_type):
        return _to_times(column)
    if pa.types.is_duration(data_type):
        return [None if value is None else _to_duration(value, data_type.unit) for value in _integers(column)]
    if pa.types.is_struct(data_type):
        names = [field.name for field in data_type]
        fields = zip(*map(to_values, column.flatten()), strict=True) if names else [()] * len(column)
        rows = (dict(zip(names, row, strict=True)) for row in fields)
        return [row if is_valid else None for row, is_valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
    if pa.types.is_map(data_type):
        entries = pa.struct([pa.field("key", data_type.key_type), pa.field("value", data_type.item_type)])
        pairs = to_values(column.cast(pa.list_(entries)))
        return [None if pair is None else [tuple(item.values()) for item in pair] for pair in pairs]
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.ListViewArray | pa.LargeListViewArray):
        return _to_lists(column)
    if pa.types.is_fixed_size_list(data_type):
        return _to_lists(column.cast(pa.list_(data_type.value_type)))
    values: list[Any] = column.to_pylist()
    return values


def _to_lists(column: Any) -> list[Any]:  # noqa: ANN401 one of lists
    items, lists, at = to_values(column.flatten()), [], 0
    for length in column.value_lengths().to_pylist():
        lists.append(None if length is None else items[at : at + length])
        at += length or 0
    return lists


def _to_times(column: pa.Array[Any]) -> list[Any]:
    data_type: Any = column.type
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        column = column.cast(pa.timestamp(data_type.unit, "UTC"))
    return [None if text is None else text.replace(" ", "T") for text in column.cast(pa.string()).to_pylist()]


def _integers(column: pa.Array[Any]) -> list[int | None]:
    values: list[int | None] = column.cast(pa.int64()).to_pylist()
    return values


def _to_duration(value: int, unit: str) -> str:
    """ISO 8601, in seconds."""
    with decimal.localcontext() as context:
        context.prec = 30
        return f"PT{decimal.Decimal(value).scaleb(-_DIGITS[unit]):f}S"

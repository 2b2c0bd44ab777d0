"""Filters of polars on decimals of 38 digits lose no row, whatever the context of the caller: judged by Python."""

from __future__ import annotations

import decimal
import operator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

COMPARE: list[Callable[[Any, Any], Any]] = [
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
VALUES = {
    "w": (
        pa.decimal128(38, 10),
        [
            "1234567890123456789012345678.0123456789",
            "1234567890123456789012345678.0123456788",
            "-9999999999999999999999999999.9999999999",
            "0.0000000001",
            "-0.0000000001",
            "0",
            "1000",
            "1.5",
        ],
    ),
    "n": (pa.decimal128(38, 0), ["9" * 38, "9" * 37 + "8", "-" + "9" * 38, "1" + "0" * 37, "100", "-1", "0", "10"]),
    "f": (pa.decimal128(38, 38), ["0." + "9" * 38, "0." + "0" * 37 + "1", "-0." + "1" * 38, "0.5", "0"] + ["0.25"] * 3),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("digits", [5, 28, 60])
def test_decimals_are_compared_with_all_their_digits(memory_store: pds.Store, name: str, digits: int) -> None:
    kind, texts = VALUES[name]
    values = [Decimal(text) for text in texts]
    table = pds.Table.create(memory_store, "t", pa.schema([(name, kind)]))
    table.append(pa.table({name: pa.array(values, kind)}))
    column = pl.col(name)
    with decimal.localcontext() as context:
        context.prec = digits
        for value in values:
            literal = pl.lit(value, pl.Decimal(kind.precision, kind.scale))
            for compare in COMPARE:
                read = table.scan_polars().filter(compare(column, literal)).collect()[name].to_list()
                assert read == [other for other in values if compare(other, value)], (compare, value)
            read = table.scan_polars().filter(column.is_between(literal, literal)).collect()[name].to_list()
            assert read == [other for other in values if other == value]

"""Texts beside decimals, dates and timestamps are compared exactly, or refused: judged by Python."""

from __future__ import annotations

import datetime as dt
import operator
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
KINDS = [
    pa.decimal32(9, 2),
    pa.decimal64(18, 2),
    pa.decimal128(10, 2),
    pa.decimal128(38, 30),
    pa.decimal256(40, 2),
    pa.decimal256(76, 60),
]
DECIMALS = ["1.26", "1.00", "-0.01", "0.00", "1.25", None]
TEXTS = [
    "1.255",
    "1.26",
    " +1.2600 ",
    "1.004",
    "-0.005",
    "-.01",
    "1.",
    "000",
    "9999999",
    "1.25000000000000000000000000000000000001",
    None,
]
ENCODINGS: dict[str, Callable[[Any], Any]] = {
    "string": lambda texts: texts,
    "large": lambda texts: texts.cast(pa.large_string()),
    "view": lambda texts: texts.cast(pa.string_view()),
    "dictionary": lambda texts: texts.dictionary_encode(),
}


def make_table(store: pds.Store, columns: dict[str, Any], name: str = "t", **options: Any) -> pds.Table:
    data = pa.table({"id": range(len(next(iter(columns.values())))), **columns})
    table = pds.Table.create(store, name, data.schema, **options)
    table.append(data)
    return table


def ids(table: pds.Table, predicate: str) -> list[int]:
    read: list[Any] = table.scan(["id"], where=predicate).to_pyarrow()["id"].to_pylist()
    assert table.scan(["id"], where=predicate, use_stats=False).to_pyarrow()["id"].to_pylist() == read, predicate
    return read


def meant(pairs: list[tuple[Any, Any]], holds: Callable[[Any, Any], bool]) -> list[int]:
    return [row for row, (a, b) in enumerate(pairs) if None not in (a, b) and holds(a, b)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_texts_beside_decimals(memory_store: pds.Store, kind: pa.DataType, encoding: str) -> None:
    cells = [(d, s) for d in DECIMALS for s in TEXTS]
    decimals = pa.array([None if d is None else Decimal(d) for d, _ in cells], kind)
    texts = ENCODINGS[encoding](pa.array([s for _, s in cells], pa.string()))
    table = make_table(memory_store, {"d": decimals, "s": texts})
    pairs = [(d and Fraction(d), s and Fraction(s.strip())) for d, s in cells]
    for sign, compare in COMPARE.items():
        assert ids(table, f"d {sign} s") == meant(pairs, compare), sign
        assert ids(table, f"s {sign} d") == meant([(s, d) for d, s in pairs], compare), sign
    equal = meant(pairs, operator.eq)
    for predicate in (
        "d IN (s)",
        "s IN (d)",
        "d IN (s, 7.5)",
        "s IN (d, '7.5')",
        "d BETWEEN s AND s",
        "s BETWEEN d AND d",
        "CASE d WHEN s THEN true ELSE false END",
        "(d, id) = (s, id)",
        "d IS NOT NULL AND nullif(d, s) IS NULL",
        "d IS NOT NULL AND d IS NOT DISTINCT FROM s",
        "d = s || ''",
    ):
        assert ids(table, predicate) == equal, predicate
    # A null within the list leaves the answer open only where nothing else is equal.
    either = [row for row, (d, s) in enumerate(pairs) if s is not None and s in (d, Fraction("1.255"))]
    assert ids(table, "s IN (d, 1.255)") == either
    # A sum has digits before the point that leave fewer after it.
    assert ids(table, "length(s) < 30 AND d + 1 = s") == meant(pairs, lambda d, s: d + 1 == s)


def test_a_write_takes_no_row_whose_text_is_another_number(memory_store: pds.Store) -> None:
    rows: dict[str, Any] = {
        "price": pa.array([Decimal("1.26"), Decimal("1.00")], pa.decimal128(10, 2)),
        "text": ["1.255", "1.0"],
    }
    table = make_table(memory_store, rows, key="id")
    source = pa.table({"id": [0, 1], "price": ["1.260", "1.004"]})
    table.merge(source).when_matched_delete("target.price = source.price").execute()
    assert table.scan(["id"]).to_pyarrow()["id"].to_pylist() == [1]
    table.append(pa.table({"id": [2], "price": rows["price"][:1], "text": ["1.255"]}))
    table.delete("price = text")
    assert table.scan(["id"]).to_pyarrow()["id"].to_pylist() == [2]


def test_fields_of_structs_are_compared_as_columns_are(memory_store: pds.Store) -> None:
    kind = pa.struct([("d", pa.decimal128(10, 2)), ("s", pa.string())])
    cells = [{"d": Decimal("1.26"), "s": "1.255"}, {"d": Decimal("1.26"), "s": "1.26"}, None]
    table = make_table(memory_store, {"r": pa.array(cells, kind)})
    assert ids(table, "r.d = r.s") == [1]
    assert ids(table, "r.d > r.s") == [0]


@pytest.mark.parametrize("text", ["1.25" + "0" * 60 + "1", "1" * 60, "abc", "", "1e0", "1_0", "1.2.3", "0x1"])
def test_a_text_that_cannot_be_compared_exactly_is_an_error(memory_store: pds.Store, text: str) -> None:
    column = pa.array([Decimal("1.25")], pa.decimal128(10, 2))
    table = make_table(memory_store, {"d": column, "s": pa.array([text])})
    for predicate in ("d = s", "d < s", "s IN (d)", f"d = '{text}'", f"d IN ('{text}', '7')"):
        with pytest.raises(pds.InvalidInput, match=r"the text .* cast it"):
            table.scan(where=predicate, use_stats=False).count()
        with pytest.raises(pds.InvalidInput, match=r"the text .* cast it"):
            table.delete(predicate)
    assert table.refresh().version == 2


def test_a_literal_of_any_length_is_not_rounded(memory_store: pds.Store) -> None:
    columns = {
        "d": pa.array([Decimal("1.26")], pa.decimal128(10, 2)),
        "e": pa.array([Decimal(10**60)], pa.decimal256(63, 2)),
    }
    table = make_table(memory_store, columns)
    assert ids(table, "d = '1.26'") == [0]
    assert ids(table, f"d = '1.26{'0' * 60}'") == [0]
    assert ids(table, "e = '1" + "0" * 60 + ".00'") == [0]
    assert ids(table, "e = '1" + "0" * 60 + ".001'") == []
    assert ids(table, "e < '1" + "0" * 60 + ".001'") == [0]


def test_decimals_of_76_digits_are_never_compared_by_what_is_left_of_them(memory_store: pds.Store) -> None:
    columns = {
        "a": pa.array([Decimal(10**60)], pa.decimal256(76, 2)),
        "b": pa.array([Decimal("1.5")], pa.decimal256(76, 70)),
    }
    table = make_table(memory_store, columns)
    for predicate in ("a > b", "b < a", "a IN (b)", "a BETWEEN b AND b", "CAST(a AS DECIMAL(76, 70)) > 1"):
        with pytest.raises(pds.InvalidInput):
            table.scan(where=predicate).count()
    assert ids(table, "CAST(a AS DOUBLE) > CAST(b AS DOUBLE)") == [0]


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TIMES = [
    "2026-01-01 00:00:00",
    "2026-01-01 00:00:00.000900",
    "2026-01-01 12:00:00",
    "2026-01-01",
    "2026-01-01T01:00:00+01:00",
    "9999-12-31 23:59:59.999999",
    "0001-01-01",
    "1969-12-31 23:59:59.5",
    None,
]


def _microseconds(text: str | None) -> int | None:
    if text is None:
        return None
    moment = dt.datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)) - EPOCH) // dt.timedelta(microseconds=1)


TIME_KINDS = {
    "s": (pa.timestamp("s", "UTC"), 10**6),
    "ms": (pa.timestamp("ms", "UTC"), 10**3),
    "us": (pa.timestamp("us", "UTC"), 1),
    "Berlin": (pa.timestamp("ms", "Europe/Berlin"), 10**3),
    "local s": (pa.timestamp("s"), 10**6),
    "local us": (pa.timestamp("us"), 1),
    "day": (pa.date32(), 86_400 * 10**6),
    "day in ms": (pa.date64(), 86_400 * 10**6),
}


@pytest.mark.parametrize("encoding", ["string", "dictionary"])
@pytest.mark.parametrize("name", TIME_KINDS)
def test_texts_beside_times(memory_store: pds.Store, name: str, encoding: str) -> None:
    kind, per_unit = TIME_KINDS[name]
    moments = ["2026-01-01 00:00:00", "2026-01-02 00:00:00", "9999-12-31 00:00:00", "1969-12-31 00:00:00", None]
    cells = [(t, s) for t in moments for s in TIMES]
    pairs = [(_microseconds(t), _microseconds(s)) for t, s in cells]
    scale = 1000 * 86_400 if name == "day in ms" else 1
    numbers = [None if t is None else t // per_unit * scale for t, _ in pairs]
    storage = pa.int32() if name == "day" else pa.int64()
    texts = ENCODINGS[encoding](pa.array([s for _, s in cells], pa.string()))
    table = make_table(memory_store, {"t": pa.array(numbers, storage).cast(kind), "s": texts})
    for sign, compare in COMPARE.items():
        assert ids(table, f"t {sign} s") == meant(pairs, compare), sign
        assert ids(table, f"s {sign} t") == meant([(s, t) for t, s in pairs], compare), sign
    equal = meant(pairs, operator.eq)
    for predicate in (
        "t IN (s)",
        "s IN (t)",
        "t IN (s, '2030-01-01')",
        "t BETWEEN s AND s",
        "s BETWEEN t AND t",
        "CASE t WHEN s THEN true ELSE false END",
        "t IS NOT NULL AND nullif(t, s) IS NULL",
    ):
        assert ids(table, predicate) == equal, predicate
    day = _microseconds("2026-01-01")
    assert ids(table, "s = DATE '2026-01-01'") == [row for row, (_, s) in enumerate(pairs) if s == day]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
def test_days_beside_far_times_and_days_in_other_forms(memory_store: pds.Store, kind: pa.DataType) -> None:
    days = [dt.date(1, 1, 1), dt.date(2024, 1, 1), dt.date(2024, 1, 5), dt.date(9999, 12, 31)]
    texts = ["0001-01-01", "20240101", "2024-1-5", "9999-12-31 00:00:00"]
    table = make_table(memory_store, {"day": pa.array(days, kind), "s": texts})
    assert ids(table, "day BETWEEN '2024-01-01 00:00:00' AND '9999-12-31 23:59:59'") == [1, 2, 3]
    assert ids(table, "day < '9999-12-31 23:59:59'") == [0, 1, 2, 3]
    assert ids(table, "day < '3000-01-01 12:00:00' AND day >= '1600-01-01 00:00:01'") == [1, 2]
    assert ids(table, "day IN ('2024-01-01', '9999-12-31 12:00:00', '2024-01-05 00:00:00')") == [1, 2]
    assert ids(table, "nullif(day, '9999-12-31 23:59:59') = day") == [0, 1, 2, 3]
    assert ids(table, "day = s") == [0, 1, 2, 3]
    assert ids(table, "day >= concat('2024-1-', id + 1)") == [2, 3]
    with pytest.raises(pds.InvalidInput):
        table.scan(where="day = concat(s, 'x')").count()


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_texts_beside_nanoseconds(memory_store: pds.Store, zone: str | None) -> None:
    at = pa.array([1], pa.timestamp("ns", zone))
    table = make_table(memory_store, {"t": at, "s": ["1970-01-01 00:00:00.000000001"]})
    assert ids(table, "t = s") == [0]
    assert ids(table, "t = '1970-01-01 00:00:00.000000001'") == [0]
    for text in ("9999-12-31", "1970-01-01 00:00:00.0000000011"):
        other = make_table(memory_store, {"t": at, "s": [text]}, name=text[:4])
        with pytest.raises(pds.InvalidInput):
            other.scan(where="t >= s").count()
    with pytest.raises(pds.InvalidInput, match="below a nanosecond"):
        table.scan(where="t = '1970-01-01 00:00:00.0000000011'").count()


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_text_with_nanoseconds_beside_a_coarser_time_is_an_error(memory_store: pds.Store, zone: str | None) -> None:
    at = pa.array([0], pa.timestamp("ms", zone))
    table = make_table(memory_store, {"t": at, "s": ["1970-01-01 00:00:00.000000001"]})
    with pytest.raises(pds.InvalidInput, match=r"below a microsecond.*CAST"):
        table.scan(where="t = s").count()
    assert ids(table, "t < CAST(s AS TIMESTAMP)") == [0]


def test_choices_and_nested_values_with_texts_are_refused(memory_store: pds.Store) -> None:
    struct = pa.struct([("v", pa.string())])
    columns = {
        "day": pa.array([dt.date(2026, 1, 1)]),
        "s": pa.array(["2026-01-01 12:00:00"]),
        "d": pa.array([Decimal("10.00")], pa.decimal128(10, 2)),
        "n": pa.array([10]),
        "texts": pa.array([["9", "8"]]),
        "r": pa.array([{"v": "10.001"}], struct),
        "rd": pa.array([{"v": Decimal("10.00")}], pa.struct([("v", pa.decimal128(10, 2))])),
        "rt": pa.array([{"v": dt.date(2026, 1, 1)}], pa.struct([("v", pa.date32())])),
        "ld": pa.array([[Decimal("10.00")]], pa.list_(pa.decimal128(10, 2))),
    }
    table = make_table(memory_store, columns)
    for predicate in (
        "CASE WHEN n = 1 THEN day ELSE s END = day",
        "CASE WHEN n = 1 THEN day ELSE '2026-01-01 12:00:00' END = day",
        "greatest(day, s) = day",
        "greatest(day, '2026-01-01 12:00:00') = day",
        "greatest(n, '9') = n",
        "least(d, s) = d",
        "r = rd",
        "rd = r",
        "r = rt",
        "rd IN (r)",
        "ld = texts",
        "d = ANY(texts)",
        "d < ANY(texts)",
        "d / 3 < ANY(texts)",
        "n < ANY(texts)",
        "n > ALL(texts)",
    ):
        with pytest.raises(pds.InvalidInput, match="text"):
            table.scan(where=predicate).count()
    assert ids(table, "CASE WHEN n = 1 THEN day ELSE '2026-01-01' END = day") == [0]
    assert ids(table, "greatest(day, DATE '2025-01-01') = day") == [0]
    assert ids(table, "s > ANY(texts) OR CAST(n AS VARCHAR) <> ALL(texts)") == [0]
    assert ids(table, "r.v > rd.v") == [0]

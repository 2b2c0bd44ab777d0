r"""Functions of texts: bounds of what they make, `$` and `\` in replacements, and texts in dictionaries."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import pds
from filter_results import assert_fails, find

ROWS = 5_000
# That in each row of the table is more than what a batch may have.
LONG = "repeat('x', 500000)"


def make_table(columns: dict[str, Any]) -> pds.Table:
    rows = pa.table({"id": range(len(next(iter(columns.values())))), **columns})
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema)
    table.append(rows)
    return table


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_texts_that_are_joined_are_bounded(kind: pa.DataType) -> None:
    table = make_table({"s": pa.array(["ab"] * ROWS, kind)})
    functions = [f"s || {LONG}", f"{LONG} || s", f"concat(s, {LONG})", f"concat_ws({LONG}, s, s, s)"]
    for joined in functions:
        assert_fails(table, f"length({joined}) > 0", "may have more than 2147483647 bytes")
        length = 1_000_006 if "_ws" in joined else 500_002
        # The right side of AND is evaluated for those rows only.
        assert find(table, f"id < 2 AND length({joined}) = {length}") == [0, 1]


def test_texts_that_are_copied_are_bounded() -> None:
    table = make_table({"s": ["ab"] * ROWS})
    wide = f"lpad(s, 65536, '{chr(0x20AC)}')"
    copied = [wide, f"rpad(s, 5, {LONG})", f"rpad({LONG}, id, s)", f"replace({LONG}, s, 'y')", f"replace(s, {LONG}, s)"]
    for function in copied:
        assert_fails(table, f"length({function}) > 0", "may have more than 1073741824 bytes")
    assert find(table, f"id < 2 AND length({wide}) = 65536") == [0, 1]
    assert find(table, f"id < 2 AND length(replace({LONG}, s, 'y')) = 500000") == [0, 1]


def test_texts_of_many_rows_are_made_in_parts() -> None:
    """What is made of all of them has more bytes than a batch may have, and that of no part of them."""
    table = make_table({"s": ["ab"] * 200_000})
    where = "length(concat(s, repeat('x', 11000))) = 11002 AND id % 50000 = 1"
    assert find(table, where) == [1, 50_001, 100_001, 150_001]


def test_merges_make_texts_in_parts() -> None:
    """Of their conditions and values, as filters do."""
    count = 110_000
    table = make_table({"s": ["ab"] * count, "n": pa.nulls(count, pa.int64())})
    made = "length(repeat(target.s, 5000))"
    merge = table.merge(pa.table({"id": range(count)}), on="id")
    merge.when_matched_update({"n": f"{made} + target.id"}, f"{made} + target.id >= 10000").execute()
    numbers = table.scan(["id", "n"]).to_pyarrow().sort_by("id")["n"]
    assert numbers.to_pylist() == list(range(10_000, 10_000 + count))


def test_matches_are_replaced_in_parts_of_the_rows() -> None:
    """What could be made of all rows at once has more bytes than a batch may have."""
    texts = ["xay" + "z" * 100 if row % 3 else "" for row in range(ROWS)]
    table = make_table({"s": texts})
    expected = [row for row, text in enumerate(texts) if text]
    assert find(table, "length(regexp_replace(s, 'a.*$', repeat('b', 3300), 'g')) = 3301") == expected


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_the_distance_of_long_texts_is_refused(kind: pa.DataType) -> None:
    table = make_table({"s": pa.array(["ab", "é", None], kind)})
    for distance in ("levenshtein(repeat(s, 100000), repeat(s, 90000))", f"levenshtein({LONG}, repeat(s, 9000))"):
        assert_fails(table, f"{distance} > 0", "pairs of characters")
    assert find(table, "levenshtein(repeat(s, 1000), repeat(s, 900)) = 200") == [0]
    assert find(table, "levenshtein(s, 'b') = 1") == [0, 1]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        ("X", "$1"),
        ("X", "$0"),
        ("X", "${1}"),
        ("X", "$$"),
        ("(X)", r"[\1]$1"),
        ("(X)", r"\0$name"),
        ("(X)", r"\10"),
        ("(X)", r"\\1"),
        ("(X)", r"\\\1$\\"),
        ("(.)X", r"\1\1\\\\2"),
        ("^a|(b).*$", r"\1"),
        ("^a(.).*$", r"\1"),
        ("^(a|b).*$", r"\1"),
    ],
)
def test_a_replacement_names_matches_by_a_backslash(kind: pa.DataType, pattern: str, other: str) -> None:
    texts = ["aXb", "a$b", "zzb123", "axyz", "X", "b\nX", "", None]
    rows = pa.table({"id": range(8), "s": texts, "other": [other] * 8})
    table = make_table({"s": pa.array(texts, kind), "other": pa.array([other] * 8, kind)})
    for written in (f"'{other}'", "other"):
        replaced = f"regexp_replace(s, '{pattern}', {written})"
        judged = duckdb.sql(f"SELECT id, {replaced} FROM rows").fetchall()  # noqa: S608 our own
        assert len(judged) == rows.num_rows
        for text in {text for _, text in judged if text is not None}:
            expected = sorted(row for row, value in judged if value == text)
            assert find(table, f"{replaced} = '{text}'") == expected, (written, text)
        assert find(table, f"{replaced} IS NULL") == [7]


@pytest.mark.parametrize("other", [r"\1", "Z"])
@pytest.mark.parametrize("pattern", ["^a(.)|(b) # the end.*$", "^a(.) # the rest.*$", "^(a).*$"])
def test_patterns_that_end_as_if_with_the_text(pattern: str, other: str) -> None:
    texts = ["aXb", "zzb123", "axyz", "zab", "ab", "a", "b", ""]
    table = make_table({"s": texts, "p": [pattern] * len(texts)})
    written = {
        f"'{pattern}', '{other}', 'x'": re.VERBOSE,
        f"p, '{other}', 'x'": re.VERBOSE,
        f"'^(?x){pattern[1:]}', '{other}'": re.VERBOSE,
        f"'{pattern}', '{other}'": re.NOFLAG,
    }
    for args, flags in written.items():
        results = [re.sub(pattern, other, text, count=1, flags=flags) for text in texts]
        for result in set(results):
            expected = [row for row, value in enumerate(results) if value == result]
            assert find(table, f"regexp_replace(s, {args}) = '{result}'") == expected, (args, result)
    # It may begin after the beginning.
    assert find(table, r"regexp_replace(s, '^?(a).*$', '[\1]') = 'z[a]'") == [3]
    assert find(table, r"regexp_replace(s, '^?(a).*$', '\1') = 'za'") == [3]


EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 without a zone
MOMENTS = [-1_500_001, -1, 0, 999_999, 1_000_000]
DICTIONARIES = [pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string())]


@pytest.mark.parametrize("kind", DICTIONARIES, ids=str)
def test_times_are_read_from_dictionaries(kind: pa.DictionaryType) -> None:
    moments = [EPOCH + dt.timedelta(microseconds=micros) for micros in MOMENTS]
    texts = [moment.isoformat(sep=" ", timespec="microseconds") for moment in moments]
    parts = {"s": texts, "d": [text[:10] for text in texts], "t": [text[11:19] for text in texts]}
    table = make_table({name: pa.array([*part, None], kind) for name, part in parts.items()})
    formatted = "s, '%Y-%m-%d %H:%M:%S%.f'"
    for unit, micros in {"seconds": 10**6, "millis": 10**3, "micros": 1}.items():
        for ticks in {moment // micros for moment in MOMENTS}:
            expected = [row for row, moment in enumerate(MOMENTS) if moment // micros == ticks]
            for args in ("s", formatted):
                assert find(table, f"CAST(to_timestamp_{unit}({args}) AS BIGINT) = {ticks}") == expected, (unit, args)
    for args in ("s", formatted):
        for second in {moment // 10**6 for moment in MOMENTS}:
            expected = [row for row, moment in enumerate(MOMENTS) if moment // 10**6 == second]
            assert find(table, f"to_unixtime({args}) = {second}") == expected, args
        for function in ("to_timestamp", "to_timestamp_nanos"):
            assert find(table, f"CAST({function}({args}) AS BIGINT) = -1000") == [1], function
    assert find(table, f"to_date({formatted}) = DATE '1969-12-31'") == [0, 1]
    assert find(table, "to_date(d) = DATE '1970-01-01'") == [2, 3, 4]
    assert find(table, "to_time(t) > TIME '23:59:58'") == [1]
    assert find(table, "to_unixtime(s) IS NULL") == [5]

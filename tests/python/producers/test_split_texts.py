"""Texts that are split by `string_to_array`, in selections and filters: DuckDB is the judge."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import pds
from filter_results import assert_fails, find

if TYPE_CHECKING:
    from collections.abc import Sequence

INT, TEXT = pa.int64(), pa.string()
TEXTS = [None, "", ",", "a", "a,b", ",a,,b,", "a--b-", "é€ß,a", "aaaa", "b,é"]
DELIMITERS = [None, "", ",", "--", "aa", "é", "x"]
# In DuckDB an empty text has a part, an empty delimiter is between characters, and NULL is no delimiter.
PARTS = """CASE WHEN s IS NULL THEN NULL WHEN s = '' THEN [] WHEN d IS NULL THEN string_split(s, '')
                WHEN d = '' THEN [s] ELSE string_split(s, d) END"""
KINDS = [TEXT, pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), TEXT)]
# Twice of it in each row of a batch is more than what a batch may have.
LONG = "repeat('x', 500000)"


def make_rows(kind: pa.DataType, words: Sequence[str | None]) -> pa.Table:
    texts, delimiters, parts = zip(*itertools.product(TEXTS, DELIMITERS, words), strict=True)
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.table(
        {
            "id": pa.array(range(len(texts)), INT),
            "s": pa.array(texts, kind),
            "d": pa.array(delimiters, plain),
            "w": pa.array(parts, plain),
        }
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_parts(memory_store: pds.Store, kind: pa.DataType) -> None:
    rows = make_rows(kind, [None, "a", ""])
    judged = duckdb.sql(f"SELECT id, {PARTS} FROM rows ORDER BY id").fetchall()  # noqa: S608 our own
    pipeline = pds.Pipeline(memory_store, "p")
    columns = rows.drop_columns(["id"])
    pipeline.source("rows", key=INT, value=pa.struct(list(columns.schema)))
    pipeline.select("rows", value="string_to_array(s, d)", name="parts")
    pipeline.select("rows", value="string_to_array(s, d, w)", name="parts_or_null")
    pipeline.update(rows=pds.Changes(pa.table({"key": rows["id"], "value": columns.to_struct_array()})))
    table = pipeline["parts"].read()
    assert table["value"].type.value_type == rows.schema.field("d").type
    assert list(zip(table["target_key"].to_pylist(), table["value"].to_pylist(), strict=True)) == judged
    assert any(parts is None for _, parts in judged)
    nulls = [
        None if parts is None else [None if part == word else part for part in parts]
        for (_, parts), word in zip(judged, rows["w"].to_pylist(), strict=True)
    ]
    assert pipeline["parts_or_null"].read()["value"].to_pylist() == nulls


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_filters(kind: pa.DataType) -> None:
    rows = make_rows(kind, [None, "a", "b", "é", "aaaa"])
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema)
    table.append(rows)
    # In DuckDB a list that is NULL has no elements; in PostgreSQL it has unknown ones.
    for where, judge in [
        ("w = ANY(string_to_array(s, d))", "parts IS NOT NULL AND w = ANY(parts)"),
        ("NOT (w = ANY(string_to_array(s, d)))", "parts IS NOT NULL AND NOT w = ANY(parts)"),
        ("string_to_array(s, d) IS NULL", "parts IS NULL"),
        ("w = ANY(string_to_array('a,é,,', ','))", "w IN ('a', 'é', '')"),
        ("'b' = ANY(string_to_array('a,b', ','))", "true"),
        ("'a,b' = ANY(string_to_array('a,b', ''))", "true"),
        ("'b' = ANY(string_to_array('', ','))", "false"),
    ]:
        split = f"SELECT id, w, {PARTS} AS parts FROM rows"  # noqa: S608 our own
        expected = duckdb.sql(f"SELECT id FROM ({split}) WHERE {judge} ORDER BY id").fetchall()  # noqa: S608 our own
        assert find(table, where) == [number for (number,) in expected], where
    for where in ("string_to_array(id, ',') IS NULL", "string_to_array(s) IS NULL"):
        assert_fails(table, where, "string_to_array")


def test_what_is_split_is_bounded() -> None:
    rows = pa.table({"id": range(5_000), "s": ["ab"] * 5_000})
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema)
    table.append(rows)
    assert_fails(table, f"'x' = ANY(string_to_array({LONG}, s))", "may have more than 1073741824 bytes")
    # The right side of AND is evaluated for those rows only.
    assert find(table, f"id < 2 AND {LONG} = ANY(string_to_array({LONG} || s || 'y', s))") == [0, 1]


# It takes a gigabyte of memory.
@pytest.mark.slow
@pytest.mark.soak
def test_the_number_of_parts_is_bounded() -> None:
    rows = pa.table({"s": ["x" * 500_000] * 240})
    table = pds.Table.create(pds.Store("memory://"), "t", rows.schema)
    table.append(rows)
    with pytest.raises(pds.InvalidInput, match="may have more than 1073741824 bytes"):
        table.scan(where="'y' = ANY(string_to_array(s, NULL))").to_pyarrow()


def count_words(texts: dict[int, str | None]) -> list[tuple[Any, ...]]:
    rows = pa.table({"text": pa.array(texts.values(), TEXT)})
    assert rows.num_rows == len(texts)
    return duckdb.sql(
        "SELECT word, count(*) FROM (SELECT unnest(string_split(text, ' ')) AS word FROM rows) "
        "WHERE word <> '' GROUP BY word ORDER BY word"
    ).fetchall()


@pytest.mark.parametrize("seed", range(3))
def test_words_are_counted(memory_store: pds.Store, seed: int) -> None:
    rng = random.Random(seed)
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("phrases", key=INT, value=TEXT)
    pipeline.select("phrases", value="string_to_array(value, ' ')", name="lists")
    pipeline.flatten("lists", name="words")
    pipeline.select("words", key="value", value="1", where="value <> ''", name="by_word")
    pipeline.aggregate("by_word", aggregates={"n": "count"}, name="counts")
    texts: dict[int, str | None] = {}
    for _ in range(5):
        keys = rng.sample(range(40), 15)
        deletes = [key for key in keys if key in texts and rng.random() < 0.3]
        upserts: dict[int, str | None] = {}
        for key in keys:
            if key not in deletes:
                words = rng.choices(["the", "blue", "red", "", "é", "fish"], k=rng.randrange(8))
                upserts[key] = None if rng.random() < 0.1 else " ".join(words)
        pipeline.update(phrases=pds.Changes(list(upserts.items()), deletes))
        texts = {key: text for key, text in (texts | upserts).items() if key not in deletes}
        rows = pipeline["counts"].read()
        counts = [value["n"] for value in rows["value"].to_pylist()]
        assert list(zip(rows["target_key"].to_pylist(), counts, strict=True)) == count_words(texts)
    assert pipeline.check().ok
    assert pipeline.check(sample=0.3).ok

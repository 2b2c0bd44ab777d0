"""Filters that compare rows of values find what SQLite finds, which has the comparisons of the SQL standard."""

from __future__ import annotations

import itertools
import sqlite3
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = (None, 1, 2, 3)
TEXTS = (None, "a", "b", "c")
ROWS = [{"n": n, "s": s, "id": at} for at, (n, s) in enumerate(itertools.product(NUMBERS, TEXTS))]
LITERALS = [
    f"({n or 'NULL'}, {repr(s) if s else 'NULL'})" for n, s in itertools.product((None, 1, 2), (None, "a", "b"))
]
COMPARISONS = ("<", "<=", ">", ">=", "=", "<>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


@pytest.fixture(scope="module")
def find() -> Callable[[str], list[int]]:
    """The ids that SQLite finds."""
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE t (n INTEGER, s TEXT, id INTEGER)")
    base.executemany("INSERT INTO t VALUES (:n, :s, :id)", ROWS)

    def find(where: str) -> list[int]:
        return [row[0] for row in base.execute(f"SELECT id FROM t WHERE {where} ORDER BY id")]  # noqa: S608 of this test

    return find


@pytest.fixture(params=[1, 100])
def table(request: pytest.FixtureRequest, memory_store: pds.Store) -> pds.Table:
    """The rows in row groups of their own, sorted, and in one."""
    options = pds.WriteOptions(row_group_size=request.param)
    schema = pa.schema([("n", pa.int32()), ("s", pa.string()), ("id", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema, options=options)
    table.append(pa.Table.from_pylist(ROWS, schema))
    return table


def _ids(table: pds.Table, where: str, **options: Any) -> list[int]:
    found = table.scan(["id"], where=where, **options).to_pyarrow()["id"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_comparisons(table: pds.Table, find: Callable[[str], list[int]], comparison: str) -> None:
    for literal in LITERALS:
        for where in (
            f"(n, s) {comparison} {literal}",
            f"{literal} {comparison} (n, s)",
            f"NOT (n, s) {comparison} {literal}",
        ):
            assert _ids(table, where) == find(where), where


def test_nested_calls_and_ranges(table: pds.Table, find: Callable[[str], list[int]]) -> None:
    for low, high in itertools.product(LITERALS[:6], LITERALS[3:]):
        for word in ("BETWEEN", "NOT BETWEEN"):
            where = f"(n, s) {word} {low} AND {high}"
            assert _ids(table, where) == find(where), where
            case = f"CASE (n, s) WHEN {low} THEN 1 WHEN {high} THEN 2 ELSE 3 END = 3"
            assert _ids(table, case) == find(case), case


def test_lists(table: pds.Table, find: Callable[[str], list[int]]) -> None:
    for first, second in itertools.combinations(LITERALS, 2):
        for word in ("IN", "NOT IN"):
            # SQLite takes lists of rows as values alone.
            where, theirs = f"(n, s) {word} ({first}, {second})", f"(n, s) {word} (VALUES {first}, {second})"
            assert _ids(table, where) == find(theirs), where


def test_a_delete_leaves_rows_about_which_nothing_is_known(table: pds.Table, find: Callable[[str], list[int]]) -> None:
    where = "(n, s) < (2, 'b')"
    gone = find(where)
    assert table.delete(where).rows == len(gone)
    assert sorted(table.scan().to_pyarrow()["id"].to_pylist()) == [row["id"] for row in ROWS if row["id"] not in gone]


def test_keys_that_cannot_be_null_stay_a_set(memory_store: pds.Store) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False)])
    table = pds.Table.create(memory_store, "t", schema)
    table.append(pa.Table.from_pylist([{"a": i, "b": str(i % 7)} for i in range(50)], schema))
    listed = ", ".join(f"({i}, '{i % 7}')" for i in range(10, 9_000))
    assert table.scan(where=f"(a, b) IN ({listed})").count() == 40
    assert table.scan(where=f"(a, b) NOT IN ({listed})").count() == 10


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("(n, s) < (1, 'a', 2)", "a row of 2 values cannot be compared with one of 3"),
        ("(n, random()) < (1, 2.0)", "cannot be compared"),
        ("named_struct('n', n) < named_struct('n', 1)", "have no order; compare their fields"),
        ("named_struct('n', n) BETWEEN named_struct('n', 1) AND named_struct('n', 2)", "have no order"),
    ],
)
def test_what_has_no_meaning_is_refused(table: pds.Table, where: str, message: str) -> None:
    with pytest.raises(pds.InvalidInput, match=message):
        table.scan(where=where).count()


def test_nested_comparisons_are_bounded(table: pds.Table) -> None:
    """Each level asks the one below twice."""
    where = "n < 1"
    for _ in range(14):
        where = f"struct(CAST({where} AS INT), n) < struct(1, 1)"
    with pytest.raises(pds.InvalidInput, match="a comparison of rows is nested too deeply"):
        table.scan(where=where).count()
    listed = ", ".join(f"({n}, 'a')" for n in range(6_000))
    with pytest.raises(pds.InvalidInput, match="IN has too many rows of values that may be NULL"):
        table.scan(where=f"(n, s) IN ({listed})").count()

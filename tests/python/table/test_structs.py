"""Fields of structs are null where their struct is: in filters, deletes, merges and overwrites, as DuckDB has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


INNER = pa.struct([_required("y", pa.int64()), pa.field("t", pa.string())])
STRUCT = pa.struct([_required("x", pa.int64()), pa.field("n", pa.float64()), pa.field("in", INNER)])
REQUIRED_INNER = pa.struct([_required("x", pa.int64()), _required("in", INNER)])


def _column(kind: pa.StructType, rows: int) -> pa.Array:
    """What is under the nulls would match, were it seen."""
    fives = pa.array([5] * rows, pa.int64())
    texts = pa.array(["five"] * rows)
    inner_null = pa.array([n % 3 == 1 for n in range(rows)])
    inner = pa.StructArray.from_arrays(
        [fives, texts], fields=list(INNER), mask=None if not kind.field("in").nullable else inner_null
    )
    outer_null = pa.array([n % 2 == 1 for n in range(rows)])
    numbers = [pa.array([5.0] * rows)] if kind.get_field_index("n") >= 0 else []
    return pa.StructArray.from_arrays([fives, *numbers, inner], fields=list(kind), mask=outer_null)


def _rows(kind: pa.StructType, rows: int = 12) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("s", kind), ("v", pa.int64())])
    return pa.table([pa.array(range(rows)), _column(kind, rows), pa.array([0] * rows)], schema=schema)


SHAPES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "whole": lambda rows: rows,
    "sliced": lambda rows: rows.slice(3, 7),
    "chunks": lambda rows: pa.concat_tables([rows.slice(5), rows.slice(0, 5)]),
}
KINDS = {"nullable": STRUCT, "required": REQUIRED_INNER}
PREDICATES = [
    "s.x = 5",
    "s.x <> 5",
    "s.x IS NULL",
    "s.x IS NOT NULL",
    "NOT (s.x = 5)",
    "s.x IN (5, 6)",
    "s.x BETWEEN 4 AND 6",
    "coalesce(s.x, -1) = -1",
    "CASE WHEN s.x = 5 THEN false ELSE true END",
    's."in".y = 5',
    's."in".y IS NULL',
    "s.\"in\".t = 'five'",
    "s.\"in\".t LIKE 'f%'",
    's."in" IS NULL',
    's."in".y + s.x = 10',
    "s.x = 5 OR id = 1",
]


def _expected(rows: pa.Table, predicate: str) -> list[int]:
    query = f"SELECT id FROM rows WHERE {predicate} ORDER BY id"  # noqa: S608 a predicate of this file
    with duckdb.connect() as connection:
        # As Python objects: what is under a null is no part of them.
        connection.register("rows", pa.Table.from_pylist(rows.to_pylist(), _nullable(rows.schema)))
        return [row[0] for row in connection.execute(query).fetchall()]


def _nullable(schema: pa.Schema) -> pa.Schema:
    def loosened(kind: pa.DataType) -> pa.DataType:
        if not pa.types.is_struct(kind):
            return kind
        return pa.struct([pa.field(f.name, loosened(f.type)) for f in kind])

    return pa.schema([(f.name, loosened(f.type)) for f in schema])


def _table(store: pds.Store, rows: pa.Table, name: str = "t", **options: Any) -> pds.Table:
    table = pds.Table.create(store, name, rows.schema, **options)
    table.append(rows)
    return table


def _ids(table: pds.Table, predicate: str | pc.Expression | None = None, **options: Any) -> list[int]:
    return sorted(table.scan(["id"], where=predicate, **options).to_pyarrow()["id"].to_pylist())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_filters_and_deletes(memory_store: pds.Store, kind: str, shape: str) -> None:
    rows = SHAPES[shape](_rows(KINDS[kind]))
    for number, predicate in enumerate(PREDICATES):
        expected = _expected(rows, predicate)
        table = _table(memory_store, rows, f"t{number}", key="id" if number % 2 else ())
        everything = _ids(table)

        assert _ids(table, predicate) == expected, predicate
        assert _ids(table, predicate, use_stats=False) == expected, predicate
        table.delete(predicate)
        left = [n for n in everything if n not in expected]
        assert _ids(table) == left, predicate
        table.optimize.compact()
        assert _ids(table) == left, predicate
        assert _ids(table, predicate) == [], predicate


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_predicates_of_a_merge(memory_store: pds.Store, kind: str) -> None:
    rows = _rows(KINDS[kind])
    table = _table(memory_store, rows, key="id")
    source = rows.slice(0, 8)

    merge = table.merge(source)
    merge.when_matched_delete("source.s.x IS NULL AND target.id = 1")
    merge.when_matched_update({"v": 'source.s."in".y'}, "target.id < 4")
    merge.when_matched_update({"v": "coalesce(target.s.x, -1)"}).execute()

    expected = {}
    for row in rows.to_pylist():
        number, struct = row["id"], row["s"] or {}
        if number == 1:
            continue
        inner = struct.get("in") or {}
        expected[number] = 0 if number >= 8 else inner.get("y") if number < 4 else struct.get("x", -1)
    assert {row["id"]: row["v"] for row in table.scan().to_pyarrow().to_pylist()} == expected


def test_overwrite_of_some_rows(memory_store: pds.Store) -> None:
    rows = _rows(STRUCT, 4)
    table = _table(memory_store, rows)

    table.overwrite(rows.slice(0, 1), where="s.x = 5")
    with pytest.raises(pds.InvalidInput, match="where"):
        table.overwrite(rows.slice(1, 1), where="s.x = 5")

    assert _ids(table) == [0, 1, 3]


def test_a_struct_that_was_added(memory_store: pds.Store) -> None:
    table = _table(memory_store, pa.table({"id": [1, 2]}))
    table.alter.add_column("z", pa.struct([_required("x", pa.int64())]))
    table.append(pa.table({"id": [3]}))

    for _ in range(2):
        assert _ids(table, "z.x = 0") == []
        assert _ids(table, "z.x IS NULL") == [1, 2, 3]
        table.optimize.compact()


def test_maps_and_dictionaries_of_structs(memory_store: pds.Store) -> None:
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()),
        pa.array(["k"] * 3),
        pa.array([5, 5, 5]),
        mask=pa.array([False, True, False]),
    )
    kind = pa.struct([_required("x", pa.int64())])
    values = pa.StructArray.from_arrays([pa.array([5, 5])], fields=list(kind), mask=pa.array([False, True]))
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), values)
    table = _table(memory_store, pa.table({"id": [0, 1, 2], "m": maps, "d": encoded}))

    assert _ids(table, "get_field(m, 'k') = 5") == [0, 2]
    assert _ids(table, "get_field(m, 'k') IS NULL") == [1]
    assert _ids(table, "get_field(d, 'x') = 5") == [0]
    assert _ids(table, "get_field(d, 'x') IS NULL") == [1, 2]


RUNS: list[tuple[pa.DataType, list[Any], list[str]]] = [
    (
        pa.struct([("x", pa.int64()), ("n", pa.struct([("t", pa.string())]))]),
        [{"x": 5, "n": {"t": "a"}}, None, {"x": None, "n": None}],
        ["c.x = 5", "c.x IS NULL", "NOT c.x = 5", "c.n.t = 'a'", "c.x IN (5, 6)", "c.x BETWEEN 1 AND 9"],
    ),
    (pa.list_(pa.int64()), [[1, None], None, []], []),
    (
        pa.dictionary(pa.int8(), pa.string()),
        ["a", None, "b"],
        ["c = 'a'", "c <> 'a'", "c LIKE 'b%'", "c IN ('b', 'x')"],
    ),
    (pa.bool_(), [True, None, False], ["c", "NOT c", "c = true", "c IS NOT TRUE"]),
    (
        pa.string(),
        ["a", None, "b"],
        ["c = 'a'", "c <> 'a'", "c > 'a'", "c LIKE '%b'", "length(c) = 1", "c || 'x' = 'ax'"],
    ),
    (pa.int32(), [1, None, -2], ["c = 1", "c + 1 > 0", "c IN (1, 7)", "c = 1.5", "c < 0.5"]),
    (pa.float64(), [0.0, None, -0.5], ["c = 0", "c < 0", "c * 2 = -1"]),
    (pa.timestamp("us"), [0, None, 10**15], ["c = TIMESTAMP '1970-01-01'", "c > now()", "c < '2000-01-01'"]),
]


@pytest.mark.parametrize("use_stats", [True, False])
@pytest.mark.parametrize(("kind", "distinct", "filters"), RUNS, ids=[str(kind) for kind, *_ in RUNS])
def test_runs_are_compared_as_plain_values(
    memory_store: pds.Store,
    kind: pa.DataType,
    distinct: list[Any],
    filters: list[str],
    use_stats: bool,
) -> None:
    """The same filter over a plain column is the judge."""
    plain = pa.array([value for value in distinct for _ in range(2)], kind)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4, 6], pa.int32()), pa.array(distinct, kind))
    within = pa.StructArray.from_arrays([runs], ["r"])
    ids = pa.array(range(6))
    expected = _table(memory_store, pa.table({"id": ids, "c": plain}), "plain")
    table = _table(memory_store, pa.table({"id": ids, "c": runs}), "runs")
    inner = _table(memory_store, pa.table({"id": ids, "s": within}), "within")
    always = ["c = c", "c <> c", "c IN (c)", "c NOT IN (c)", "c IS NULL", "c IS NOT NULL"]
    for where in (*always, *filters):
        rows = expected.scan(["id"], where=where, use_stats=use_stats).to_pyarrow()["id"].to_pylist()
        assert table.scan(["id"], where=where, use_stats=use_stats).to_pyarrow()["id"].to_pylist() == rows, where
        nested = re.sub(r"\bc\b", "s.r", where)
        assert inner.scan(["id"], where=nested, use_stats=use_stats).to_pyarrow()["id"].to_pylist() == rows, nested
    table.delete("c = c")
    expected.delete("c = c")
    assert {2, 3} <= set(_ids(table))
    assert _ids(table) == _ids(expected)


@pytest.mark.parametrize("use_stats", [True, False])
def test_runs_of_structs_within_structs_and_lists(memory_store: pds.Store, use_stats: bool) -> None:
    """The same filter over plain columns is the judge."""
    kind = pa.struct([("x", pa.int64()), ("t", pa.string())])
    distinct = pa.array([{"x": 5, "t": "a"}, None, {"x": None, "t": "b"}], kind)
    plain = pa.array([value for value in distinct.to_pylist() for _ in range(2)], kind)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4, 6], pa.int32()), distinct)
    ids, other = pa.array(range(6)), pa.array([1, 2, None, 1, 2, 1])
    is_null = pa.array([True, False, False, False, False, True])
    one_each = pa.array(range(7), pa.int32())

    def rows(values: pa.Array) -> pa.Table:
        below = pa.StructArray.from_arrays([values, other], ["r", "other"], mask=is_null)
        lists = pa.ListArray.from_arrays(one_each, values)
        return pa.table(
            {
                "id": ids,
                "s": below,
                "deep": pa.StructArray.from_arrays([below], ["s"]),
                "l": pa.ListArray.from_arrays(one_each, pa.StructArray.from_arrays([values], ["r"])),
                "sl": pa.StructArray.from_arrays([lists, other], ["l", "other"]),
            }
        )

    expected = _table(memory_store, rows(plain), "plain")
    table = _table(memory_store, rows(runs), "runs")
    filters = ["s.r.x = 5", "s.r.x IS NULL", "s.r.t <> 'a'", "s.r IS NULL", "s.other = 1", "s IS NULL", "s.r = s.r"]
    filters += [f"deep.{where}" for where in filters[:5]]
    filters += ["l IS NULL", "l = l", "l <> l", "sl.l IS NULL", "sl.other = 2", "sl.l = sl.l", "sl.other IN (1, 7)"]
    filters += ["s.r.x + s.other > 5", "NOT s.r.x = 5", "coalesce(s.r.x, s.other) = 2"]
    for where in filters:
        wanted = expected.scan(["id"], where=where, use_stats=use_stats).to_pyarrow()["id"].to_pylist()
        assert table.scan(["id"], where=where, use_stats=use_stats).to_pyarrow()["id"].to_pylist() == wanted, where
    table.delete("s.r.x = 5")
    expected.delete("s.r.x = 5")
    assert _ids(table) == _ids(expected)


def test_a_merge_assigns_runs(memory_store: pds.Store) -> None:
    kind = pa.struct([("x", pa.int64())])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([{"x": 5}, None], kind))
    rows = pa.table({"id": [0, 1, 2], "c": runs})
    table = _table(memory_store, rows.slice(0, 1), "merged", key="id")
    for value in ("source.c", "CASE WHEN source.id >= 0 THEN source.c END"):
        table.merge(rows).when_matched_update({"c": value}).when_not_matched_insert(
            {"id": "source.id", "c": value}
        ).execute()
        stored = table.scan().to_pyarrow()
        assert stored.schema.field("c").type == runs.type
        assert sorted(zip(stored["id"].to_pylist(), stored["c"].to_pylist(), strict=True)) == [
            (0, {"x": 5}),
            (1, {"x": 5}),
            (2, None),
        ]


def test_fields_in_expressions_of_pyarrow(memory_store: pds.Store) -> None:
    table = _table(memory_store, _rows(STRUCT, 4))

    assert _ids(table, pc.field("s", "x") == 5) == [0, 2]
    assert _ids(table, pc.field("s", "in", "y").is_null()) == [1, 3]


@pytest.mark.parametrize("nested", [False, True])
def test_keys_of_dictionaries_under_nulls(memory_store: pds.Store, nested: bool) -> None:
    """Some that the dictionary does not have, as pyarrow builds null structs. Rows are sorted, matched and merged."""
    encoded = pa.struct([("x", pa.dictionary(pa.int32(), pa.string()))])
    texts = pa.DictionaryArray.from_arrays(pa.array([3, 0], pa.int32()), pa.array([f"text {n}" for n in range(9)]))
    structs = pa.StructArray.from_arrays([texts], fields=list(encoded))
    values = pa.ListArray.from_arrays([0, 1, 2], structs) if nested else structs
    nulls = pa.array([[None], [None, None]] if nested else [None, None], values.type)
    # Two batches with a dictionary each.
    rows = pa.concat_tables([pa.table({"id": [2, 4], "v": values}), pa.table({"id": [3, 1], "v": nulls})])
    by_id = sorted(rows.to_pylist(), key=lambda row: int(row["id"]))

    def stored(table: pds.Table) -> list[Any]:
        return sorted(table.scan().to_pyarrow().to_pylist(), key=lambda row: int(row["id"]))

    for sort_by in ("id", "v"):
        table = _table(memory_store, rows, f"by {sort_by}", sort_by=sort_by)
        assert stored(table) == by_id
        if sort_by == "id":
            assert table.scan().to_pyarrow().to_pylist() == by_id
    table = _table(memory_store, rows.slice(0, 1), "merged", key="id")
    table.merge(rows).when_matched_update_all().when_not_matched_insert_all().execute()
    assert stored(table) == by_id
    table.upsert(rows)
    assert stored(table) == by_id
    if nested:
        table.upsert(rows.slice(2), on="v")
        assert stored(table) == by_id


def test_nulls_of_runs_prune_files(memory_store: pds.Store) -> None:
    kind = pa.run_end_encoded(pa.int32(), pa.string())
    table = pds.Table.create(memory_store, "t", pa.schema([("c", kind)]))
    for value in ("a", "b", None):
        table.append(pa.table({"c": pa.RunEndEncodedArray.from_arrays([2], pa.array([value]), kind)}))
    assert table.scan(where="c IS NULL").explain().files_read == 1
    assert table.scan(where="c IS NOT NULL").explain().files_read == 2
    assert table.scan(where="c IS NULL").to_pyarrow()["c"].to_pylist() == [None, None]
    assert sorted(table.scan(where="c IS NOT NULL").to_pyarrow()["c"].to_pylist()) == ["a", "a", "b", "b"]

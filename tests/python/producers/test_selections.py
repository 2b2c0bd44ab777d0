"""Selections by SQL: against DuckDB over the same rows, before and after random changes."""

from __future__ import annotations

import decimal
import random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.sampled(3)

INT, TEXT = pa.int64(), pa.string()
VALUE = pa.struct([("country", TEXT), ("quantity", pa.int32()), ("price", pa.float64()), ("day", pa.timestamp("us"))])


def orders(store: pds.Store, path: str = "p") -> pds.Pipeline:
    pipeline = pds.Pipeline(store, path)
    pipeline.source("orders", key=INT, value=VALUE)
    return pipeline


def make_row(rng: random.Random) -> dict[str, Any] | None:
    if rng.random() < 0.1:
        return None
    return {
        "country": rng.choice([None, "", "at", "be", "É"]),
        "quantity": rng.choice([None, 0, 1, -5, 2**31 - 1]),
        "price": rng.choice([None, 0.0, 0.5, -1.25, 1e300]),
        "day": rng.choice([None, 0, 86_400_000_000 * 365, -1]),
    }


def table_of(rows: dict[int, list[Any]]) -> pa.Table:
    keys = [key for key, values in rows.items() for _ in values]
    values = [value for values in rows.values() for value in values]
    return pa.table({"key": pa.array(keys, INT), "value": pa.array(values, VALUE)})


def sorted_rows(rows: Sequence[Any]) -> list[str]:
    return sorted(map(repr, rows))


SELECTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "filter": {"where": "quantity > 0 and country is not null"},
    "null condition": {"where": "price > 0"},
    "re-key": {"key": "country", "value": "quantity"},
    "fields": {"key": "upper(country)", "value": {"n": "cast(quantity as bigint) * 2", "k": "key"}},
    "case": {"key": "case when quantity > 0 then 'many' else 'few' end", "value": "coalesce(price, 0)"},
    "dates": {"key": "date_trunc('month', day)", "value": {"c": "country", "y": "extract(year from day)"}},
    "in": {"where": "country in ('at', '') or price between -2 and 0.25", "key": "key % 3", "value": "country"},
    "text": {"key": "substr(country, 1, 1)", "value": "country || '-' || key"},
    "constant": {"key": "1", "value": "key"},
    "split": {"key": "country", "value": "string_to_array('x,' || country || ',,' || key, ',')"},
}


def by_duckdb(rows: pa.Table, selection: dict[str, Any]) -> list[Any]:
    value = selection.get("value", "value")
    if isinstance(value, dict):
        value = "{" + ", ".join(f"{name}: {text}" for name, text in value.items()) + "}"
    fields = ", ".join(f"value.{name} as {name}" for name in VALUE.names)
    key, where = selection.get("key", "key"), selection.get("where", "true")
    assert rows is not None
    query = f"select {key}, key, {value} from (select key, value, {fields} from rows) where {where}"  # noqa: S608 own text
    return duckdb.sql(query).fetchall()


def read(pipeline: pds.Pipeline, name: str) -> list[Any]:
    return [tuple(row.values()) for row in pipeline[name].read().to_pylist()]


@pytest.mark.parametrize("seed", range(4))
def test_random_changes(memory_store: pds.Store, seed: int) -> None:
    rng = random.Random(seed)
    pipeline = orders(memory_store)
    for name, selection in SELECTIONS.items():
        pipeline.select("orders", name=name, **selection)
    rows: dict[int, list[Any]] = {}
    for _ in range(4):
        keys = rng.sample(range(20), rng.randrange(1, 12))
        deletes = [key for key in keys if key in rows and rng.random() < 0.3]
        changed = {key: [make_row(rng) for _ in range(rng.randrange(1, 4))] for key in keys if key not in deletes}
        pipeline.update(orders=pds.Changes(table_of(changed), deletes))
        rows = {key: values for key, values in (rows | changed).items() if key not in deletes}
        for name, selection in SELECTIONS.items():
            wanted = by_duckdb(table_of(rows), selection)
            assert sorted_rows(read(pipeline, name)) == sorted_rows(wanted), name
    assert pipeline.check().ok


def test_a_graph_without_python(memory_store: pds.Store) -> None:
    pipeline = orders(memory_store)
    amounts = pipeline.select(
        "orders",
        key="country",
        value={"amount": "quantity * price"},
        where="quantity is not null and price < 100",
        name="amounts",
    )
    revenue = pipeline.aggregate(amounts, aggregates={"n": "count", "sum": ("amount", "sum")}, name="revenue")
    pipeline.select(
        revenue, where="n > 1", key="n", value={"country": "key", "sum": '"sum"'}, descending=True, name="top"
    )
    rng = random.Random(1)
    rows = {key: [make_row(rng)] for key in range(200)}
    pipeline.update(orders=pds.Changes(table_of(rows)))
    for _ in range(3):
        rows |= {key: [make_row(rng)] for key in rng.sample(range(200), 5)}
        pipeline.update(orders=pds.Changes(table_of({key: rows[key] for key in rows})))
        source = table_of(rows)
        assert source.num_rows == len(rows)
        wanted = duckdb.sql(
            "select count(*) as n, value.country as c, fsum(value.quantity * value.price) as s from source "
            "where value.quantity is not null and value.price < 100 group by c having n > 1 order by n desc"
        ).fetchall()
        found = [(n, value["country"], value["sum"]) for n, _, value in read(pipeline, "top")]
        assert [n for n, *_ in found] == [n for n, *_ in wanted]
        close = {c: s for _, c, s in wanted}
        assert {c: pytest.approx(s, rel=1e-12) for _, c, s in found} == close


def test_unions(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    for name in ("x", "y"):
        pipeline.source(name, key=INT, value=TEXT)
    pipeline.select("x", "y", value="value || '!'", name="both")
    pipeline.update(x=pds.Changes([(1, "a"), (2, "b")]), y=pds.Changes([(1, "c")]))
    assert read(pipeline, "both") == [(1, 1, "a!"), (1, 1, "c!"), (2, 2, "b!")]
    pipeline.update(x=pds.Changes(deletes=[1]))
    assert read(pipeline, "both") == [(1, 1, "c!"), (2, 2, "b!")]


def test_a_column_named_key(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=pa.struct([("key", TEXT), ("value", TEXT), ("x", TEXT)]))
    pipeline.select("s", value={"k": "key", "inner": "value.key", "x": "x"}, name="out")
    pipeline.update(s=pds.Changes([(1, {"key": "a", "value": "b", "x": "c"})]))
    assert read(pipeline, "out") == [(1, 1, {"k": 1, "inner": "a", "x": "c"})]


def test_what_is_not_named_stays_as_it_was_declared(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    key, value = pa.field("key", INT, metadata={"unit": "m"}), pa.field("value", TEXT, metadata={"lang": "en"})
    pipeline.source("s", key=key, value=value)
    pipeline.select("s", where="key > 1", name="out")
    pipeline.update(s=pds.Changes([(1, "a"), (2, "b")]))
    schema = pipeline["out"].read().schema
    assert (schema.field("target_key").metadata, schema.field("value").metadata) == (key.metadata, value.metadata)
    assert read(pipeline, "out") == [(2, 2, "b")]


def test_struct_keys(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=pa.struct([("a", INT), ("b", TEXT)]), value=INT)
    pipeline.select("s", key="key.b", value="key.a + value", name="out")
    pipeline.update(s=pds.Changes([({"a": 1, "b": "x"}, 10), (None, 20)]))
    assert [(key, value) for key, _, value in read(pipeline, "out")] == [(None, None), ("x", 11)]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"key": "nothing"}, "nothing"),
        ({"where": "quantity"}, "must be true or false"),
        ({"value": "now()"}, "now is not deterministic"),
        ({"value": "random()"}, "random is not deterministic"),
        ({"value": "current_date"}, "current_date is not deterministic"),
        ({"value": "uuid()"}, "uuid is not deterministic"),
        ({"value": "version()"}, "version is not deterministic"),
        ({"value": "sum(quantity)"}, "sum"),
        ({"value": "(select 1)"}, "select|Subquer|subquer"),
        ({"value": "null"}, "no type"),
        ({"value": "quantity +"}, "quantity \\+"),
        ({"value": {}}, "needs a field"),
        ({"value": {"": "1"}}, "name of a field|names of their own"),
        ({"key": "make_array(1, 2)"}, "Invalid function"),
    ],
)
def test_bad_expressions(memory_store: pds.Store, selection: dict[str, Any], message: str) -> None:
    pipeline = orders(memory_store)
    with pytest.raises(pds.InvalidInput, match=message):
        pipeline.select("orders", name="out", **selection)
    with pytest.raises(pds.InvalidType, match="must be SQL"):
        pipeline.select("orders", name="out", key=1)  # type: ignore[arg-type]
    pipeline.select("orders", name="out")


def test_an_expression_that_fails_for_a_row(memory_store: pds.Store) -> None:
    pipeline = orders(memory_store)
    pipeline.select("orders", name="out", value="10 / quantity")
    pipeline.update(orders=pds.Changes(table_of({1: [{"country": "at", "quantity": 3, "price": None, "day": None}]})))
    before = {str(info.path) for info in memory_store.list_files("", recursive=True)}
    bad = {"country": "at", "quantity": 0, "price": None, "day": None}
    with pytest.raises(pds.InvalidInput, match=r'stage "out".*10 / quantity.*zero'):
        pipeline.update(orders=pds.Changes(table_of({2: [bad]})))
    assert {str(info.path) for info in memory_store.list_files("", recursive=True)} == before
    assert read(pipeline, "out") == [(1, 1, 3)]


def test_a_changed_expression_is_another_definition(memory_store: pds.Store) -> None:
    pipeline = orders(memory_store)
    pipeline.select("orders", name="out", value="quantity")
    row = {"country": "at", "quantity": 3, "price": 2.0, "day": None}
    pipeline.update(orders=pds.Changes(table_of({1: [row]})))
    other = orders(memory_store)
    other.select("orders", name="out", value="quantity + 1 - 1")
    with pytest.raises(pds.DefinitionChanged):
        other.update(orders=pds.Changes(table_of({2: [row]})))
    other.rebuild()
    assert [value for *_, value in read(other, "out")] == [3]


@pytest.mark.parametrize(
    "where",
    ["q <> 0 and 10 / q > 1", "q = 0 or 10 / q > 1", "q = 1 and cast(t as int) = 1", "not (q = 0 or 10 / q <= 1)"],
)
def test_what_a_row_gives_depends_on_no_other_row(memory_store: pds.Store, where: str) -> None:
    """A condition guards what is right of it, whatever rows share a batch."""
    rows = [(n, {"q": n % 3, "t": "1" if n % 3 == 1 else "x"}) for n in range(60)]
    results = []
    for number, size in enumerate((1, 7, 60)):
        pipeline = pds.Pipeline(memory_store, f"p{number}")
        pipeline.source("s", key=INT, value=pa.struct([("q", pa.int32()), ("t", TEXT)]))
        pipeline.select("s", name="out", where=where, value="q")
        for first in range(0, len(rows), size):
            pipeline.update(s=pds.Changes(rows[first : first + size]))
        assert pipeline.check().ok
        results.append(read(pipeline, "out"))
    assert results[0]
    assert results[1:] == results[:1] * 2


def test_a_constant_fails_only_for_a_row(memory_store: pds.Store) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=INT)
    pipeline.select("s", name="out", where="value > 5", value="1 / 0")
    pipeline.update(s=pds.Changes([(1, 5), (2, None)]))
    assert read(pipeline, "out") == []
    with pytest.raises(pds.InvalidInput, match="zero"):
        pipeline.update(s=pds.Changes([(3, 6)]))


@pytest.mark.parametrize(
    "data_type",
    [pa.decimal32(7, 2), pa.decimal64(12, 2), pa.dictionary(pa.int32(), pa.float64()), pa.dictionary(pa.int8(), INT)],
)
def test_what_is_left_alone_keeps_its_type(memory_store: pds.Store, data_type: pa.DataType) -> None:
    pipeline = pds.Pipeline(memory_store, "p")
    pipeline.source("s", key=INT, value=data_type)
    pipeline.select("s", name="out", key="key % 2")
    values = pa.array([1, None, 3], INT)
    if pa.types.is_dictionary(data_type):
        values = values.cast(data_type.value_type).dictionary_encode().cast(data_type)
    else:
        values = pa.array([decimal.Decimal(1), None, decimal.Decimal(3)], data_type)
    pipeline.update(s=pds.Changes(pa.table({"key": [1, 2, 3], "value": values})))
    found = pipeline["out"].read()
    assert found.schema.field("value").type == data_type
    assert found["source_key"].to_pylist() == [2, 1, 3]
    assert found["value"].to_pylist() == [None, values[0].as_py(), values[2].as_py()]


@pytest.mark.parametrize("key", ["c", "lower(c)", "coalesce(c, 'none')"])
def test_a_dictionary_of_texts_as_key_and_order(memory_store: pds.Store, key: str) -> None:
    """Keys are its texts, whatever dictionary they come from; null among its values is null."""
    pipeline = pds.Pipeline(memory_store, "p")
    texts = pa.dictionary(pa.int8(), TEXT)
    pipeline.source("s", key=INT, value=pa.struct([("c", texts), ("n", INT)]))
    pipeline.select("s", key=key, value="n", name="by_text")
    pipeline.select("s", key="n % 2", order_by="c", name="in_order")
    pipeline.aggregate("in_order", aggregates={"low": ("c", "min"), "high": ("c", "max")}, name="ends")
    pipeline.first("in_order", by="c", rows=2, name="first")
    stored: dict[int, tuple[str | None, int]] = {}
    for words, numbers, deleted in (
        (["b", "A", None], {0: (0, 5), 1: (1, 4), 2: (2, 3), 3: (None, 2), 4: (0, 1)}, []),
        (["A", "a", "b"], {1: (1, 1), 5: (0, 7), 6: (2, 8)}, [0]),
    ):
        codes, counts = zip(*numbers.values(), strict=True)
        dictionary = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(words, TEXT))
        value = pa.StructArray.from_arrays([dictionary, pa.array(counts, INT)], ["c", "n"])
        pipeline.update(s=pds.Changes(pa.table({"key": pa.array(list(numbers), INT), "value": value}), deleted))
        new = {k: (None if code is None else words[code], n) for k, (code, n) in numbers.items()}
        stored = {k: row for k, row in (stored | new).items() if k not in deleted}
        rows = pa.table(
            {
                "id": pa.array(list(stored), INT),
                "c": pa.array([c for c, _ in stored.values()], TEXT),
                "n": pa.array([n for _, n in stored.values()], INT),
            }
        )
        assert pipeline["by_text"].read().schema.field("target_key").type == TEXT
        by_text = duckdb.sql(f"select {key} k, id, n from rows order by k nulls first, id")  # noqa: S608 own text
        assert read(pipeline, "by_text") == by_text.fetchall()
        in_order = duckdb.sql("select n % 2 k, id, c, n from rows order by k, c nulls last, id").fetchall()
        assert [(k, i, v["c"], v["n"]) for k, i, v in read(pipeline, "in_order")] == in_order
        ends = duckdb.sql("select n % 2 k, min(c), max(c) from rows group by k order by k").fetchall()
        assert [(k, v["low"], v["high"]) for k, _, v in read(pipeline, "ends")] == ends
        groups = [[(k, c, n) for k, _, c, n in in_order if k == group] for group in (0, 1)]
        first = [row for group in groups for row in group[:2]]
        assert [(k, v["c"], v["n"]) for k, _, v in read(pipeline, "first")] == first
        assert rows.num_rows == len(stored)
    assert pipeline.check().ok


@pytest.mark.parametrize("nested", [False, True])
def test_a_null_among_the_values_of_a_dictionary(memory_store: pds.Store, nested: bool) -> None:
    """An update selects from a row what a rebuild does, which gets it from a file."""
    values: Any = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None, 0], pa.int8()), pa.array(["a", None, ""]))
    column = "value"
    if nested:
        values, column = pa.StructArray.from_arrays([values], ["c"]), "c"
    pipeline = pds.Pipeline(memory_store, "p")
    pushed = pipeline.source("pushed", key=INT, value=values.type)
    numbers = pipeline.source("numbers", key=INT, value=INT)

    @pipeline.producer(numbers, key=INT, value=values.type, batch=True)
    def emitted(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = pa.array(range(batch.num_rows), INT)
        return pa.record_batch({"source_row": rows, "key": batch["key"], "value": values.take(batch["value"])})

    for feeder in (pushed, emitted):
        pipeline.select(feeder, value=f"cast({column} as varchar)", name=f"texts of {feeder.name}")
    keys = pa.array(range(5), INT)
    pipeline.update(
        pushed=pds.Changes(pa.table({"key": keys, "value": values})),
        numbers=pds.Changes(pa.table({"key": keys, "value": keys})),
    )
    for feeder in (pushed, emitted):
        texts = pipeline[f"texts of {feeder.name}"].read()["value"]
        assert texts.to_pylist() == ["a", None, "", None, "a"]
    assert pipeline.check().ok

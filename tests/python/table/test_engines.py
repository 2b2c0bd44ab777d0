"""Filters as pyarrow expressions, and other engines that push columns and filters down."""

from __future__ import annotations

import datetime as dt
import functools
import operator
import pickle
import random
import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled(2)

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("large", pa.large_string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("a b", pa.int32()),
        ("pair", pa.struct([("left", pa.int64()), ("id", pa.string())])),
        ("tags", pa.list_(pa.int64())),
        ("empty", pa.int32()),
    ]
)
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ROWS = 250
FILES = 4

_id, _x, _name = pc.field("id"), pc.field("x"), pc.field("name")
EXPRESSIONS = [
    _id == 5,
    _id != 5,
    (_id >= 240) & (_id < 260),
    (_id < 3) | (_id > 10_000),
    ~(_id > 5),
    _id.isin([1, 249, 250, 251, 777, None]),
    _id.is_null(),
    _id.is_valid() & (_id - pc.floor(_id / 7) * 7 == 3),
    _x > 0.5,
    _x.is_nan(),
    _x.is_null(nan_is_null=True),
    _name == "b17",
    pc.starts_with(_name, "c"),
    pc.utf8_upper(_name) == "A3",
    pc.field("large") > "b",
    pc.field("at") >= pa.scalar(EPOCH + dt.timedelta(hours=2), pa.timestamp("us", "UTC")),
    pc.field("day") == dt.date(2026, 1, 7),
    pc.field("price") > Decimal("3.50"),
    pc.field("flag"),
    ~pc.field("flag"),
    pc.field("kind") == "two",
    pc.field("a b") > 90,
    pc.field("pair", "left") == 3,
    pc.field("pair", "id") == "p3",
    pc.list_value_length(pc.field("tags")) > 2,
    pc.field("empty").is_null() & (_id < 4),
    pc.field("empty") > 3,
    pc.field("small").cast(pa.string()) == "7",
    _id.cast(pa.float64()) / 2 > 120.2,
    pc.field(0) == 7,
    pc.field(3) == "a1",
    pc.scalar(value=True),
    pc.scalar(value=False),
    pc.scalar(None).cast(pa.bool_()),
    pc.if_else(_id < 9, pc.field("flag"), pc.scalar(value=False)),
]


def _rows(number: int) -> pa.Table:
    chance = random.Random(number)

    def maybe(value: object) -> object:
        return None if chance.random() < 0.1 else value

    return pa.Table.from_pylist(
        [
            {
                "id": maybe(number * ROWS + n),
                "small": maybe(n % 30),
                "x": maybe(float("nan") if n % 50 == 7 else chance.random()),
                "name": maybe(f"{'abc'[number % 3]}{n % 40}"),
                "large": maybe("abc"[chance.randrange(3)]),
                "at": maybe(EPOCH + dt.timedelta(hours=number, seconds=n)),
                "day": maybe(dt.date(2026, 1, 1) + dt.timedelta(days=number * 5 + n % 5)),
                "price": maybe(Decimal(chance.randrange(500)) / 100),
                "flag": maybe(chance.random() < 0.5),
                "kind": maybe(chance.choice(["one", "two"])),
                "a b": maybe(chance.randrange(100)),
                "pair": maybe({"left": n % 9, "id": f"p{n % 9}"}),
                "tags": maybe(list(range(n % 5))),
                "empty": None,
            }
            for n in range(ROWS)
        ],
        SCHEMA,
    )


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    """Several files of several row groups."""
    table = pds.Table.create(store, "t", SCHEMA, key="id", options=pds.WriteOptions(row_group_size=60))
    for number in range(FILES):
        table.append(_rows(number))
    return table


def _shown(rows: pa.Table) -> list[str]:
    return [repr(row) for row in rows.to_pylist()]


def test_expressions_find_what_pyarrow_finds(table: pds.Table) -> None:
    whole = table.scan().to_pyarrow()
    for expression in EXPRESSIONS:
        expected = whole.filter(expression)
        found = table.scan(where=expression)
        assert _shown(found.to_pyarrow()) == _shown(expected), str(expression)
        assert found.count() == expected.num_rows, str(expression)
        narrow = table.scan(["name", "id"], where=expression, limit=3).to_pyarrow()
        assert _shown(narrow) == _shown(expected.select(["name", "id"]).slice(0, 3)), str(expression)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_after_deletes_is_what_pyarrow_leaves(table: pds.Table, seed: int) -> None:
    chance = random.Random(seed)
    left = table.scan().to_pyarrow()
    for expression in chance.sample(EXPRESSIONS, 8):
        mask = pc.fill_null(_mask(left, expression), fill_value=False)
        assert table.delete(expression).rows in (None, pc.sum(mask).as_py() or 0), str(expression)
        left = left.filter(pc.invert(mask))
        assert _shown(table.scan().to_pyarrow()) == _shown(left), str(expression)


def _mask(rows: pa.Table, expression: pc.Expression) -> pa.Array:
    found = ds.dataset(rows).scanner(columns={"kept": expression}, use_threads=False).to_table()
    return found["kept"].combine_chunks()


def test_expressions_prune(table: pds.Table) -> None:
    plan = table.scan(where=(_id >= 300) & (_id < 310)).explain()
    assert (plan.files, plan.files_read, plan.row_groups_read) == (FILES, 1, 1)
    assert table.scan(where=_id < 0).explain().files_read == 0
    assert table.scan(where=pc.field("at") < EPOCH + dt.timedelta(minutes=59)).explain().files_read == 1
    # Nothing is known of floats: there may be a NaN.
    assert table.scan(where=_x > 7).explain().files_read == FILES


def test_only_columns_of_the_expression_are_read(s3_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("identity", pa.float64()), ("text", pa.string())])
    options = pds.WriteOptions(compression="none")
    table = pds.Table.create(s3_store, "t", schema, options=options)
    chance = random.Random(1)
    ids = range(20_000)
    table.append(pa.table({"id": ids, "identity": [chance.random() for _ in ids], "text": ["some text"] * 20_000}))
    s3_store.reset_metrics()
    assert table.scan([], where=pc.field("identity") >= 0).count() == 20_000
    assert s3_store.metrics()["bytes_read"] < 240_000


def test_rows_are_replaced_by_an_expression(table: pds.Table) -> None:
    more = _rows(1)
    table.overwrite(more, where=(_id >= ROWS) & (_id < 2 * ROWS) | _id.is_null())
    found = table.scan(["id"]).to_pyarrow()["id"].to_pylist()
    assert sum(1 for n in found if n is None) == more["id"].null_count
    with pytest.raises(pds.InvalidInput, match="does not satisfy"):
        table.overwrite(_rows(2), where=_id < 0)
    assert table.history(1)[0]["operation"]["filter"].startswith("(")


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (pc.field("nothing") == 1, "nothing"),
        (_id, "true or false"),
        (_id + 1, "true or false"),
        (pc.starts_with(_id, "a"), "starts_with"),
        (pc.field(99) == 1, "cannot be used"),
        (pc.field("pair", "nothing") == 1, "cannot be used"),
    ],
)
def test_expressions_that_cannot_be_used(memory_store: pds.Store, expression: pc.Expression, says: str) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    table.append(_rows(0))
    for use in (lambda: table.scan(where=expression), lambda: table.delete(expression)):
        with pytest.raises(pds.InvalidInput, match=says):
            use()
    assert table.refresh().version == 2


def test_an_error_of_a_value_is_told(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    table.append(_rows(0))
    with pytest.raises(pds.InvalidInput, match="cannot be evaluated"):
        table.scan(where=_name.cast(pa.int64()) > 3).to_pyarrow()


def test_an_expression_means_the_columns_that_the_handle_shows(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    stale = pds.Table(memory_store, "t")
    table.alter.rename_column("id", "number")
    assert stale.scan(where=pc.field("id") == 1).count() == 1
    assert stale.delete(pc.field("id") == 1).rows == 1
    assert stale.scan().to_pyarrow().to_pydict() == {"number": [2]}
    with pytest.raises(pds.InvalidInput, match="id"):
        stale.delete(pc.field("id") == 2)


# -- other engines ---------------------------------------------------------------

QUERIES = [
    ("id >= 240 AND id < 260", (pl.col("id") >= 240) & (pl.col("id") < 260)),
    ("name = 'b17'", pl.col("name") == "b17"),
    ("flag AND small IN (3, 4)", pl.col("flag") & pl.col("small").is_in([3, 4])),
    ("id IS NULL", pl.col("id").is_null()),
    ("price > 3.5", pl.col("price") > Decimal("3.5")),
    ("small > 20 OR id = 3", (pl.col("small") > 20) | (pl.col("id") == 3)),
]
COLUMNS = ["name", "id"]


def _expected(table: pds.Table, predicate: str) -> list[tuple[object, ...]]:
    rows = table.scan().to_pyarrow()  # noqa: F841 duckdb finds it by its name
    return sorted(duckdb.sql(f"SELECT name, id FROM rows WHERE {predicate}").fetchall(), key=repr)  # noqa: S608 our own


def test_duckdb_polars_and_datafusion_find_the_same(table: pds.Table) -> None:
    table.delete("id BETWEEN 30 AND 40 OR small = 5")
    dataset = table.to_pyarrow_dataset()
    context = datafusion.SessionContext()
    context.register_dataset("events", dataset)
    for predicate, expression in QUERIES:
        expected = _expected(table, predicate)
        query = f"SELECT name, id FROM dataset WHERE {predicate}"  # noqa: S608 our own
        assert sorted(duckdb.sql(query).fetchall(), key=repr) == expected, predicate
        lazy = pl.scan_pyarrow_dataset(dataset).filter(expression).select(COLUMNS)
        assert sorted(lazy.collect().rows(), key=repr) == expected, predicate
        found = context.sql(query.replace("dataset", "events")).to_arrow_table().to_pylist()
        assert sorted((tuple(row.values()) for row in found), key=repr) == expected, predicate
    assert duckdb.sql("SELECT count(*) FROM dataset").fetchall() == [(table.scan().count(),)]
    assert pl.scan_pyarrow_dataset(dataset).head(7).collect().height == 7


def test_the_stream_interface_is_enough(table: pds.Table) -> None:
    scan = table.scan(["id"], where="id < 10")
    assert pl.DataFrame(scan).height == scan.count()
    assert datafusion.SessionContext().from_arrow(scan).count() == scan.count()
    assert duckdb.sql("SELECT count(*) FROM scan").fetchall() == [(scan.count(),)]


def test_engines_read_no_more_than_they_need(s3_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("text", pa.string())])
    options = pds.WriteOptions(row_group_size=10_000, compression="none")
    table = pds.Table.create(s3_store, "t", schema, options=options)
    chance = random.Random(1)
    for begin in range(0, 100_000, 50_000):
        ids = range(begin, begin + 50_000)
        texts = [f"{chance.random()}" for _ in ids]
        table.append(pa.table({"id": ids, "x": [chance.random() for _ in ids], "text": texts}))
    dataset = table.to_pyarrow_dataset()
    context = datafusion.SessionContext()
    context.register_dataset("dataset", dataset)
    query = "SELECT x FROM dataset WHERE id >= 52000 AND id < 52010"
    engines = {
        "duckdb": lambda: len(duckdb.from_arrow(dataset).filter("id >= 52000 AND id < 52010").select("x").fetchall()),
        "polars": lambda: (
            pl.scan_pyarrow_dataset(dataset)
            .filter((pl.col("id") >= 52_000) & (pl.col("id") < 52_010))
            .select("x")
            .collect()
            .height
        ),
        "datafusion": lambda: context.sql(query).to_arrow_table().num_rows,
        "pyarrow": lambda: dataset.to_table(["x"], (_id >= 52_000) & (_id < 52_010)).num_rows,
    }
    for name, read in engines.items():
        s3_store.reset_metrics()
        assert read() == 10, name
        # One footer, and two columns of one row group.
        assert s3_store.metrics()["bytes_read"] < 70_000 + 160_000, name


def test_a_dataset_does_what_datasets_do(table: pds.Table) -> None:
    dataset = table.to_pyarrow_dataset()
    whole = table.scan().to_pyarrow()
    assert isinstance(dataset, ds.Dataset)
    assert dataset.schema == SCHEMA
    assert dataset.count_rows() == dataset.count_rows(None) == whole.num_rows
    assert dataset.count_rows(_id < 9) == whole.filter(_id < 9).num_rows
    assert _shown(dataset.to_table()) == _shown(whole)
    assert dataset.head(5, ["id"]) == whole.select(["id"]).slice(0, 5)
    assert dataset.take([3, 1], columns=["id"]) == whole.select(["id"]).take([3, 1])
    assert _shown(dataset.filter(_id < 9).filter(_id > 3).to_table()) == _shown(whole.filter((_id < 9) & (_id > 3)))
    assert _shown(dataset.sort_by("small").to_table()) == _shown(whole.sort_by("small"))
    assert [f.count_rows() for f in dataset.get_fragments(_id < 9)] == [whole.filter(_id < 9).num_rows]
    (fragment,) = dataset.get_fragments()
    assert fragment.to_table(columns=["id"]) == whole.select(["id"])
    assert max(batch.num_rows for batch in dataset.to_batches(batch_size=7)) == 7
    twice = {"twice": _id * 2, "name": _name}
    made = dataset.scanner(columns=twice, filter=_id < 9).to_table()
    assert made == whole.filter(_id < 9).select([]).append_column(
        "twice", pc.multiply(whole.filter(_id < 9)["id"], 2)
    ).append_column("name", whole.filter(_id < 9)["name"])
    assert _shown(dataset.replace_schema(SCHEMA).to_table()) == _shown(whole)
    for refused in (
        lambda: dataset.join(dataset, "id"),
        lambda: dataset.join_asof(dataset, "id", [], 1),
        lambda: dataset.replace_schema(pa.schema([])),
        lambda: fragment.scanner(pa.schema([])),
    ):
        with pytest.raises(pds.CapabilityNotSupported):
            refused()
    with pytest.raises(pds.InvalidInput, match="nothing"):
        dataset.scanner(columns={"a": pc.field("nothing")})
    with pytest.raises(pds.InvalidInput, match="nothing"):
        dataset.to_table(columns=["nothing"])


def test_a_dataset_is_pickled_with_its_snapshot(local_store: pds.Store) -> None:
    table = pds.Table.create(local_store, "t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    dataset = table.to_pyarrow_dataset().filter(_id > 1)
    pickled = pickle.loads(pickle.dumps(dataset))  # noqa: S301 our own
    table.append(pa.table({"id": [3]}))
    table.alter.rename_column("id", "number")
    assert dataset.to_table().to_pydict() == pickled.to_table().to_pydict() == {"id": [2]}


def test_pyarrow_s_own_code_reads_a_dataset_or_refuses(tmp_path: Path) -> None:
    """In a process of its own: what is not thought of ends it."""
    code = f"""
import pyarrow as pa, pyarrow.dataset as ds, pyarrow.acero as acero
import pds
table = pds.Table.create(pds.Store("memory://"), "t", pa.schema([("k", pa.int64())]))
table.append(pa.table({{"k": [1, 9]}}))
dataset, other = table.to_pyarrow_dataset(), ds.dataset(pa.table({{"k": [1], "z": [2]}}))
ds.write_dataset(dataset, {str(tmp_path / "x")!r}, format="parquet")
assert ds.dataset({str(tmp_path / "x")!r}).count_rows() == 2
ds.write_dataset(dataset.scanner(), {str(tmp_path / "y")!r}, format="parquet")
assert ds.dataset([dataset, dataset]).count_rows() == 4
for work in (
    lambda: ds.Scanner.from_dataset(dataset).to_table(),
    lambda: other.join(dataset, "k").count_rows(),
    lambda: acero.Declaration("scan", acero.ScanNodeOptions(dataset)).to_table(),
    lambda: ds.UnionDataset(dataset.schema, [dataset]).to_table(),
):
    try:
        work()
    except FileNotFoundError as error:
        assert "pds table" in str(error)
    else:
        raise AssertionError("rows were read around the snapshot")
print("done")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "done\n", (ended.returncode, ended.stderr[-2000:])


def test_deep_expressions(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("k", pa.int64())]))
    table.append(pa.table({"k": [1, 9] * 5}))
    deep = functools.reduce(operator.or_, [pc.field("k") == k for k in range(3000)])
    assert table.scan(where=deep).count() == 10
    assert table.delete(functools.reduce(lambda e, _: ~e, range(2000), pc.field("k") == 1)).rows == 5


def test_fields_by_place_mean_the_columns_that_were_shown(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append(pa.table({"a": [1, 2], "b": [2, 1]}))
    pds.Table(memory_store, "t").alter.reorder(["b", "a"])
    assert table.schema.names == ["a", "b"]
    assert table.delete(pc.field(0) == 1).rows == 1
    assert table.scan().to_pyarrow().to_pylist() == [{"b": 1, "a": 2}]


def test_bytes_in_an_expression(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("x", pa.binary())]))
    table.append(pa.table({"x": [b"\xff", b"a"]}))
    assert table.scan(where=pc.field("x") == b"\xff").count() == 1
    view = pc.scalar(pa.scalar(b"\xff", pa.binary_view()))
    with pytest.raises(pds.InvalidInput):
        table.scan(where=view)


def test_wrong_arguments_of_a_dataset(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))
    dataset = table.to_pyarrow_dataset()
    for wrong in (
        lambda: list(dataset.to_batches(batch_size=-1)),
        lambda: dataset.to_table(batch_size=0),
        lambda: dataset.to_table(batch_size="7"),
        lambda: dataset.to_table("id"),
        lambda: dataset.filter("id > 3"),
        lambda: dataset.filter(None),
        lambda: dataset.to_table({"a": 7}),
    ):
        with pytest.raises(pds.InvalidInput):
            wrong()

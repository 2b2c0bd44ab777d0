"""`pds.sql`: queries of DuckDB over tables, datasets and chains by URL."""

from __future__ import annotations

import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CITIES = ["Oslo", "Köln", "L'Aquila", None]


def make_rows(seed: int) -> pa.Table:
    chance = random.Random(seed)
    count = 60
    return pa.table(
        {
            "id": range(seed * count, (seed + 1) * count),
            "age": [chance.choice([None, *range(90)]) for _ in range(count)],
            "city": [chance.choice(CITIES) for _ in range(count)],
            "x": [chance.choice([None, float("nan"), float("inf"), -0.0, chance.random()]) for _ in range(count)],
        }
    )


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a table, a dataset and a chain, which relative paths begin at."""
    monkeypatch.chdir(tmp_path)
    table = pds.write_table("lake/people", make_rows(0))
    table.append(make_rows(1))
    table.delete("id BETWEEN 10 AND 20")
    cities = pa.table({"city": [city for city in CITIES if city], "country": ["NO", "DE", "IT"]})
    pds.write_dataset("lake/cities", cities)
    pds.odf.Dataset.create(pds.Store("lake"), "log").ingest(make_rows(2))
    return tmp_path


def run_on_rows(query: str) -> list[str]:
    """The result of DuckDB over the rows in memory."""
    connection = duckdb.connect()
    names = {"lake/people": pds.open_table("lake/people").scan().to_pyarrow()}
    names["lake/cities"] = pds.read_dataset("lake/cities")
    names["lake/log"] = pds.open_chain("lake/log").scan().to_pyarrow()
    for name, rows in names.items():
        connection.register("rows", rows)
        connection.execute(f'CREATE TABLE "{name}" AS FROM rows')
    return sorted(map(repr, connection.sql(query).fetchall()))


QUERIES = [
    "SELECT * FROM 'lake/people'",
    "SELECT count(*) FROM 'lake/people' WHERE x > 0.5",
    "SELECT city, count(*), sum(age) FROM 'lake/people' WHERE id >= 40 AND x IS NOT NULL GROUP BY ALL",
    "FROM \"lake/people\" p JOIN 'lake/cities' USING (city) SELECT id, country WHERE age BETWEEN 20 AND 60",
    "WITH p AS (FROM 'lake/people' WHERE city = 'L''Aquila') SELECT p.id, q.id FROM p JOIN 'lake/people' q USING (age)",
    "SELECT id FROM 'lake/people' WHERE city IN (SELECT city FROM 'lake/cities' WHERE country <> 'NO')",
    "SELECT id FROM 'lake/people' UNION ALL SELECT id FROM 'lake/log' ORDER BY id LIMIT 70",
    "SELECT id, x FROM 'lake/people' WHERE x <> 'nan'::DOUBLE OR city LIKE 'K%'",
    "SELECT max(id) FROM 'lake/log' WHERE age IS NULL OR x = 0",
    "SELECT (SELECT count(*) FROM 'lake/cities'), 'lake/nothing'",
    "SUMMARIZE 'lake/cities'",
    "PIVOT 'lake/people' ON city IN ('Oslo', 'Köln') USING count(*) GROUP BY age",
]


@pytest.mark.parametrize("query", QUERIES)
def test_queries_find_what_duckdb_finds_in_the_rows(query: str) -> None:
    # As text, since NaN is not NaN in Python.
    assert sorted(map(repr, pds.sql(query).fetchall())) == run_on_rows(query)


def test_urls_and_paths(lake: Path) -> None:
    expected = pds.open_table("lake/people").scan().count()
    for url in ("lake/people", "./lake/people", "./lake/../lake/people/", (lake / "lake/people").as_uri()):
        assert pds.sql(f"SELECT count(*) FROM '{url}'").fetchall() == [(expected,)]  # noqa: S608 ours
    pds.write_table('it\'s; DROP TABLE x/o "ne"', pa.table({"a": [1]}))
    assert pds.sql("SELECT a FROM 'it''s; DROP TABLE x/o \"ne\"'").fetchall() == [(1,)]
    assert pds.sql('SELECT a FROM "it\'s; DROP TABLE x/o ""ne"""').fetchall() == [(1,)]


def test_tables_by_keyword(lake: Path) -> None:
    new, old = pds.open_table("lake/people"), pds.open_table("lake/people", as_of=1)
    query = "SELECT count(*) FROM new FULL JOIN old USING (id) WHERE new.id IS NULL"
    assert pds.sql(query, new=new, old=old).fetchall() == [(11,)]
    for rows in (new, new.scan(["id"]), new.scan(["id"]).to_pyarrow(), pl.DataFrame(new), new.scan_polars()):
        assert pds.sql("SELECT max(id) FROM Rows", rows=rows).fetchall() == [(119,)]
    assert pds.sql("SELECT count(*) FROM log", log=pds.open_chain("lake/log")).fetchall() == [(60,)]
    # A keyword is before a URL.
    assert pds.sql("FROM 'a/b'", **{"a/b": pa.table({"n": [7]})}).fetchall() == [(7,)]


def test_a_query_reads_one_version_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    open_source = sys.modules["pds.engines.duckdb"].open_source
    monkeypatch.setattr("pds.engines.duckdb.open_source", lambda *args: opened.append(args) or open_source(*args))
    query = "SELECT count(*) FROM 'lake/people' a JOIN './lake/people' b USING (id)"
    result = pds.sql(query)
    assert len(opened) == 1
    before = result.fetchall()
    pds.open_table("lake/people").append(make_rows(3))
    assert pds.sql(query).fetchall() == [(before[0][0] + 60,)]
    # The relation runs again, and reads what it read before.
    assert result.filter("true").fetchall() == before


def test_names_that_duckdb_reads_itself() -> None:
    pds.open_table("lake/people").scan().to_polars().write_parquet("lake/x.parquet")
    expected = [(pds.open_table("lake/people").scan().count(),)]
    for name in ("lake/x.parquet", "lake/*.PARQUET".lower()):
        assert pds.sql(f"SELECT count(*) FROM '{name}'").fetchall() == expected  # noqa: S608 ours
    assert pds.sql("SELECT count(*) FROM read_parquet('lake/x.parquet')").fetchall() == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("WITH \"n/o\" AS (SELECT 1) FROM 'N/O'", [(1,)]),
        ('WITH "n/o" AS (SELECT 1 AS x), b AS (FROM "n/o") SELECT (WITH c AS (FROM \'n/o\') FROM c) FROM b', [(1,)]),
        ('WITH RECURSIVE "n/o" AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM "n/o" WHERE x < 3) FROM "n/o"', [*"123"]),
        ("WITH \"lake/one\" AS (SELECT 1 AS x) FROM 'lake/one'", [(1,)]),
        # What is not in the scope of a name reads the URL.
        ("WITH \"lake/one\" AS (SELECT x + 1 FROM 'lake/one') FROM 'lake/one'", [(8,)]),
        ("WITH a AS (FROM 'lake/one'), \"lake/one\" AS (SELECT 1 AS x) FROM a", [(7,)]),
        ("SELECT (WITH \"lake/one\" AS (SELECT 1) FROM 'lake/one'), x FROM 'lake/one'", [(1, 7)]),
        ("FROM 'lake/one' UNION ALL (WITH \"lake/one\" AS (SELECT 1) FROM 'lake/one') ORDER BY 1", [(1,), (7,)]),
    ],
)
def test_names_of_a_with_clause_are_no_urls(query: str, expected: list[Any]) -> None:
    pds.write_table("lake/one", pa.table({"x": [7]}))
    assert pds.sql(query).fetchall() == [(int(row[0]), *row[1:]) for row in expected]


def test_a_url_that_a_with_clause_reads_before_it_has_a_name() -> None:
    with pytest.raises(pds.NotFound, match="neither a table"):
        pds.sql("WITH a AS (FROM 'n/o'), \"n/o\" AS (SELECT 1) FROM a")


def test_variables_are_no_tables() -> None:
    connection = tables = query = pa.table({"a": [1]})  # noqa: F841 DuckDB would find them
    for name in ("connection", "tables", "query", "sources"):
        with pytest.raises(pds.InvalidInput, match=name):
            pds.sql(f"SELECT * FROM {name}")  # noqa: S608 ours


def test_parameters_are_values() -> None:
    evil = "x' OR 'a' = 'a"
    assert pds.sql("SELECT count(*) FROM 'lake/people' WHERE city = ?", params=[evil]).fetchall() == [(0,)]
    query = "SELECT count(*) FROM 'lake/people' WHERE city = $city"
    expected = pds.open_table("lake/people").scan(where="city = 'L''Aquila'").count()
    assert pds.sql(query, params={"city": "L'Aquila"}).fetchall() == [(expected,)]


@pytest.mark.parametrize(
    ("error", "query", "says"),
    [
        (pds.NotFound, "FROM 'lake/nothing'", "neither a table"),
        (pds.InvalidInput, "FROM 'lake/people'; FROM 'lake/cities'", "2 statements"),
        (pds.InvalidInput, "", "0 statements"),
        (pds.InvalidInput, "CREATE TABLE t AS FROM 'lake/people'", "one SELECT"),
        (pds.InvalidInput, "COPY (FROM 'lake/people') TO 'x.csv'", "one SELECT"),
        (pds.InvalidInput, "FROM 'lake/people' AT (VERSION => 1)", "as_of"),
        (pds.InvalidInput, "FROM 'lake/people', 'lake/People'", "case"),
        (pds.InvalidInput, "SELECT " + "(" * 450 + "id" + " + 1)" * 450 + " FROM 'lake/people'", "too deeply"),
        (pds.InvalidType, 7, "query must be a string"),
    ],
)
def test_queries_that_cannot_run(error: type[Exception], query: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        pds.sql(query)


@pytest.mark.parametrize(
    ("cause", "query", "says"),
    [
        (duckdb.ParserException, "FROM WHERE", "WHERE"),
        (duckdb.CatalogException, "FROM people", "people"),
        (duckdb.BinderException, "SELECT nothing FROM 'lake/people'", "nothing"),
        (duckdb.InvalidInputException, "SELECT * FROM 'lake/people' WHERE id = ?", "1"),
        (duckdb.Error, "SELECT CAST('x' AS INT) FROM 'lake/people' WHERE id = ?", "1"),
    ],
)
def test_what_duckdb_refuses_is_invalid_input(cause: type[Exception], query: str, says: str) -> None:
    with pytest.raises(pds.InvalidInput, match=f"DuckDB refuses the query: (?s:.)*{says}") as caught:
        pds.sql(query)
    assert isinstance(caught.value.__cause__, cause)
    assert str(caught.value.__cause__) in str(caught.value)


@pytest.mark.parametrize("params", ["1", b"1", 1, {1}])
def test_parameters_are_a_list_or_a_dict(params: object) -> None:
    with pytest.raises(pds.InvalidType, match="params must be a list or a dict of values, not"):
        pds.sql("SELECT ?", params=params)


def test_keywords_that_cannot_be_tables() -> None:
    with pytest.raises(pds.InvalidType, match="open_table"):
        pds.sql("FROM t", t="lake/people")
    with pytest.raises(pds.InvalidInput, match="case"):
        pds.sql("FROM t", t=pa.table({"a": [1]}), T=pa.table({"a": [2]}))
    for table in (7, [1], object(), pds.Store("lake")):
        with pytest.raises(pds.InvalidType, match=r"t must be a pds\.Table, a chain, a scan"):
            pds.sql("FROM t", t=table)


def test_types_that_duckdb_does_not_have() -> None:
    halves = pa.table({"id": [1], "half": pa.array([1.5], pa.float16())})
    table = pds.write_table("lake/halves", halves)
    for tables in ({"t": table}, {"t": table.scan()}, {"t": halves}):
        with pytest.raises(pds.CapabilityNotSupported, match=r"the column 'half' of type halffloat of 't'.*scan"):
            pds.sql("SELECT id FROM t", **tables)
    with pytest.raises(pds.CapabilityNotSupported, match="the column 'half' of type halffloat of 'lake/halves'"):
        pds.sql("SELECT id FROM 'lake/halves'")
    assert pds.sql("FROM t", t=table.scan(["id"])).fetchall() == [(1,)]


def test_errors_of_reads_are_told() -> None:
    table = pds.open_table("lake/people")
    result = pds.sql("SELECT sum(age) FROM 'lake/people'")
    table.store.delete(f"people/{table.files()['path'][0]}")
    with pytest.raises(duckdb.Error, match=r"\.parquet"):
        result.fetchall()


def test_results_are_written_in_bounded_memory() -> None:
    result = pds.sql("SELECT range AS n FROM range(300_000)")
    table = pds.write_table("lake/numbers", result)
    assert table.scan().count() == 300_000
    assert pds.sql("SELECT sum(n) FROM 'lake/numbers'").fetchall() == [(sum(range(300_000)),)]


def test_threads_run_queries_at_once() -> None:
    query = "SELECT city, count(*) FROM 'lake/people' GROUP BY ALL ORDER BY ALL"
    expected, results = pds.sql(query).fetchall(), []
    threads = [threading.Thread(target=lambda: results.append(pds.sql(query).fetchall())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8


def test_only_what_a_query_needs_is_read(s3_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("text", pa.string())])
    options = pds.WriteOptions(row_group_size=10_000, compression="none")
    table = pds.Table.create(s3_store, "t", schema, options=options)
    chance = random.Random(1)
    ids = range(50_000)
    texts = [f"{chance.random()}" for _ in ids]
    table.append(pa.table({"id": ids, "x": [chance.random() for _ in ids], "text": texts}))
    s3_store.reset_metrics()
    assert len(pds.sql("SELECT x FROM t WHERE id BETWEEN 20_000 AND 20_009", t=table).fetchall()) == 10
    assert s3_store.metrics()["bytes_read"] < 70_000 + 160_000


def test_duckdb_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "pds.engines.duckdb")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pds\[sql\]'"):
        pds.sql("SELECT 1")


def test_an_old_duckdb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb, "__version__", "1.5.6")
    with pytest.raises(pds.CapabilityNotSupported, match=r"2\.0"):
        pds.sql("SELECT 1")


def test_columns_that_differ_only_in_case_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB would give the values of the first for both."""
    monkeypatch.chdir(tmp_path)
    table = pds.write_table("./t", pa.table({"a": [1], "A": [10]}))
    for call in (lambda: pds.sql("SELECT * FROM './t'"), lambda: pds.sql("SELECT * FROM t", t=table)):
        with pytest.raises(pds.InvalidInput, match="differ only in case"):
            call()

"""Lazy frames of polars over tables, datasets and chains: `scan_polars`."""

from __future__ import annotations

import datetime as dt
import io
import operator
import pickle
import random
import sys
import warnings
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pds
from pds import frames
from pds.engines.sources import DatasetSource, open_source
from pds.table.polars import ReadSource, scan_polars
from pds.table.polars_filters import to_sql
from pds.table.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

c = pl.col
NAN, INF = float("nan"), float("inf")
TIME = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
LOCAL = TIME.replace(tzinfo=None)

# Of each column: its type, and values that are stored and compared with.
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 127]),
    "i64": (pa.int64(), [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]),
    "u64": (pa.uint64(), [0, 1, 2**53 + 1, 2**63, 2**64 - 1]),
    "f32": (pa.float32(), [-0.0, 0.0, 0.10000000149011612, 1.5, NAN, INF, -INF]),
    "f64": (pa.float64(), [-0.0, 0.0, 0.1, 1e300, 5e-324, -2.5, NAN, INF, -INF]),
    "text": (pa.string(), ["", "a", "ab", "a%b", "A", "é", "z\U0001f600", "it's", '"', "\\"]),
    "large": (pa.large_string(), ["", "a", "ab", "b"]),
    "bytes": (pa.binary(), [b"", b"a", b"\xff", b"a\x00"]),
    "kind": (pa.dictionary(pa.int8(), pa.string()), ["b", "a", "ab"]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 3, 1), dt.date(9999, 12, 31)]),
    "utc": (
        pa.timestamp("us", "UTC"),
        [TIME, TIME + dt.timedelta(microseconds=1), dt.datetime(1, 1, 2, tzinfo=dt.UTC)],
    ),
    "zone": (pa.timestamp("us", "America/New_York"), [TIME, TIME - dt.timedelta(microseconds=1)]),
    "local": (pa.timestamp("ns"), [LOCAL, LOCAL + dt.timedelta(microseconds=1), dt.datetime(1700, 1, 1)]),  # noqa: DTZ001
    "second": (pa.timestamp("s"), [LOCAL, LOCAL + dt.timedelta(seconds=1)]),
    "price": (pa.decimal128(10, 2), [Decimal("-0.01"), Decimal(0), Decimal("3.50"), Decimal("99999999.99")]),
    "wide": (pa.decimal128(38, 10), [Decimal("1e27"), Decimal("0.0000000001"), Decimal("-1e27")]),
    "day64": (pa.date64(), [dt.date(1969, 12, 31), dt.date(2026, 3, 1)]),
    "view": (pa.string_view(), ["", "a", "it's", "z\U0001f600"]),
    "bytes_view": (pa.binary_view(), [b"", b"\xff"]),
    "fixed": (pa.binary(2), [b"ab", b"\x00\xff"]),
    "f16": (pa.float16(), [np.float16(value) for value in (0.5, -1.0, NAN)]),  # pyarrow 17 takes no other
    "span": (pa.duration("us"), [dt.timedelta(0), dt.timedelta(days=-1), dt.timedelta(microseconds=1)]),
    "clock": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999_999)]),
    'a "b".c': (pa.int32(), [0, 1, 2]),
    "empty": (pa.int32(), []),
    "pair": (pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": None}]),
    "tags": (pa.list_(pa.int64()), [[], [1, 2]]),
}
SCHEMA = pa.schema([(name, data_type) for name, (data_type, _) in COLUMNS.items()])
PLAIN = [name for name in COLUMNS if name not in ("pair", "tags", "empty")]


def make_rows(seed: int, count: int) -> pa.Table:
    chance = random.Random(seed)
    arrays = []
    for data_type, values in COLUMNS.values():
        chosen = chance.sample(values, min(len(values), 2)) if seed % 2 else values
        storage = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
        column = pa.array(
            [None if chance.random() < 0.2 else chance.choice(chosen or [None]) for _ in range(count)], storage
        )
        arrays.append(column.dictionary_encode().cast(data_type) if pa.types.is_dictionary(data_type) else column)
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


@pytest.fixture(scope="module")
def table() -> pds.Table:
    """Several files of several row groups, with deleted rows; half of the files have few values."""
    table = pds.Table.create(pds.Store("memory://"), "t", SCHEMA, options=pds.WriteOptions(row_group_size=7))
    for seed in range(6):
        table.append(make_rows(seed, 25))
    table.delete('"i8" = 1 AND "flag"')
    return table


@pytest.fixture(scope="module")
def whole(table: pds.Table) -> pl.DataFrame:
    return table.scan().to_polars()


def _lit(name: str, value: Any) -> pl.Expr:
    """A literal with the type of its column, since polars does not compare times of different zones."""
    data_type = pl.from_arrow(pa.table({name: pa.array([], COLUMNS[name][0])})).schema[name]  # type: ignore[union-attr]
    return pl.lit(pl.Series([value]).cast(data_type).item(), dtype=data_type) if name == "zone" else pl.lit(value)


@st.composite
def comparisons(draw: st.DrawFn) -> pl.Expr:  # noqa: C901, PLR0911 a kind of comparison each
    name = draw(st.sampled_from(PLAIN))
    data_type, values = COLUMNS[name]
    value = st.sampled_from(values)
    compare = draw(st.sampled_from([operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]))
    kind = draw(
        st.sampled_from(["compare", "mirrored", "typed", "other", "in", "between", "null", "missing", "column"])
    )
    if kind == "compare":
        return compare(c(name), _lit(name, draw(value)))
    if kind == "mirrored":
        return compare(_lit(name, draw(value)), c(name))
    if kind == "typed":
        # The literal keeps its own type, or the column is cast.
        if pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type):
            number = draw(
                st.sampled_from([0, 1, -1, 127, 2**53 + 1, 0.1, 1.5, NAN, Decimal("3.5"), Decimal("0.001"), True])
            )
            return compare(c(name), number)
        if pa.types.is_timestamp(data_type) or pa.types.is_date(data_type):
            # Of a finer unit than the column.
            zone = getattr(data_type, "tz", None)
            moment = pl.lit(LOCAL + dt.timedelta(milliseconds=draw(st.sampled_from([0, 500]))))
            return compare(c(name), moment if zone is None else moment.dt.replace_time_zone(zone))
        return compare(c(name).cast(pl.String), draw(st.sampled_from(["a", "1", "2026-03-01"])))
    if kind == "other":
        other = draw(st.sampled_from(["i8", "i64", "f64"]))
        return compare(c("i64"), c(other))
    if kind == "in" and name not in ("zone", "kind"):
        listed = draw(st.lists(st.one_of(value, st.none()) if draw(st.booleans()) else value, max_size=4))
        return c(name).is_in(listed, nulls_equal=draw(st.booleans()))
    if kind == "between":
        closed = draw(st.sampled_from(["both", "left", "right", "none"]))
        return c(name).is_between(_lit(name, draw(value)), _lit(name, draw(value)), closed=closed)
    if kind == "missing":
        return draw(st.sampled_from([c(name).eq_missing, c(name).ne_missing]))(_lit(name, draw(value)))
    if kind == "column":
        return draw(
            st.sampled_from(
                [
                    c("flag"),
                    c("text").str.starts_with(draw(st.sampled_from(COLUMNS["text"][1]))),
                    c("text").str.ends_with("b"),
                    c("text").str.to_lowercase() == "a",
                    c("text").str.contains("a%", literal=True),
                    c("f64").is_nan(),
                    c("f64").is_finite(),
                    c("pair").struct.field("x") == 1,
                    c("tags").list.len() > 0,
                    c("i64").is_null() == c("flag"),
                    c("i8") + 1 > 1,
                    pl.when(c("flag")).then(c("i8") > 0).otherwise(c("i8") < 0),
                    pl.lit(value=True),
                    pl.lit(value=None, dtype=pl.Boolean),
                    c("empty") > 1,
                    c("utc").dt.year() == 2026,
                ]
            )
        )
    return draw(st.sampled_from([c(name).is_null(), c(name).is_not_null()]))


def predicates() -> st.SearchStrategy[pl.Expr]:
    def combine(inner: st.SearchStrategy[pl.Expr]) -> st.SearchStrategy[pl.Expr]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda pair: pair[0] & pair[1]),
            pairs.map(lambda pair: pair[0] | pair[1]),
            pairs.map(lambda pair: pair[0] ^ pair[1]),
            inner.map(lambda expression: ~expression),
        )

    return st.recursive(comparisons(), combine, max_leaves=5)


def run(query: Callable[[], Any]) -> Any:
    """The result of a query, or the class of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return query()
    except pl.exceptions.PolarsError as error:
        return type(error)


@settings(
    max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(predicates(), st.sampled_from(["auto", "streaming"]), st.none() | st.integers(0, 60))
def test_random_filters_find_what_polars_finds(
    table: pds.Table, whole: pl.DataFrame, predicate: pl.Expr, engine: Any, rows: int | None
) -> None:
    # A frame in memory, so that both are optimised alike.
    frames = (table.scan_polars(), whole.lazy())
    actual, expected = (
        run(lambda frame=frame: (frame if rows is None else frame.head(rows)).filter(predicate).collect(engine=engine))
        for frame in frames
    )
    if isinstance(expected, type):
        # polars may not evaluate a filter for which statistics leave no rows.
        assert actual is expected or (isinstance(actual, pl.DataFrame) and actual.is_empty()), predicate
    else:
        assert isinstance(actual, pl.DataFrame), predicate
        assert actual.equals(expected), predicate


@settings(
    max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(predicates())
def test_a_translated_filter_loses_no_row(table: pds.Table, whole: pl.DataFrame, predicate: pl.Expr) -> None:
    """Of the filter as it is written, too, which polars simplifies before it passes it on."""
    where = to_sql(predicate, whole.schema)
    expected = run(lambda: whole.filter(predicate))
    if where is None or isinstance(expected, type):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert table.scan(where=where).to_polars().filter(predicate).equals(expected), (predicate, where)


TRANSLATED = [
    (c("i64") == 5, True),
    (pl.lit(5) < c("i8"), True),
    (c("f64") >= 0.1, True),
    (c("text") == "it's", True),
    (c("text").str.starts_with("a%"), True),
    (c("kind") == "a", True),
    (c("flag"), True),
    (~c("flag"), True),
    (c("day") <= dt.date(2026, 3, True), 1),
    (c("utc") > TIME, True),
    (c("local") > LOCAL, True),
    (c("price") > Decimal("3.5"), True),
    (c("i64").is_in([1, 2]), True),
    (c("i64").is_between(1, 5), True),
    (c("i64").is_null(), True),
    ((c("i64") > 1) | (c("text") == "a"), True),
    ((c("i64") > 1) & (c("text") == "a") & c("f64").is_nan(), True),
    ((c("i64") > 1) & ((c("text") == "a") | c("f64").is_nan()), True),
    (c("f64").is_nan(), False),
    (c("f64") > NAN, False),
    (c("kind") > "a", False),
    (c("i64") > 1.5, False),
    (c("i64").is_in([1, None]), False),
    (c("wide") > Decimal("1e30"), False),
]


@pytest.mark.parametrize(("predicate", "is_pushed"), TRANSLATED, ids=str)
def test_which_filters_are_pushed_down(
    table: pds.Table, whole: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, predicate: pl.Expr, is_pushed: bool
) -> None:
    filters = spy_on_filters(monkeypatch)
    assert table.scan_polars().filter(predicate).collect().equals(whole.filter(predicate))
    assert [where is not None for where in filters] == [is_pushed]


def spy_on_filters(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    filters: list[str | None] = []
    scan = Snapshot.scan

    def spy(self: Snapshot, *args: Any, **kwargs: Any) -> Any:
        filters.append(kwargs.get("where"))
        return scan(self, *args, **kwargs)

    monkeypatch.setattr(Snapshot, "scan", spy)
    return filters


def test_the_part_of_a_conjunction_that_translates_is_pushed_down(
    table: pds.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = spy_on_filters(monkeypatch)
    table.scan_polars().filter((c("i64") > 1) & c("f64").is_nan() & (c("text") == "a")).collect()
    (where,) = filters
    assert where is not None
    assert {'("i64" > 1)', "(\"text\" = 'a')"} == set(where.split(" AND "))


def test_a_filter_of_hundreds_of_terms_is_read_without_pushdown(table: pds.Table, whole: pl.DataFrame) -> None:
    many = reduce(operator.or_, [c("i64") == number for number in range(250)])
    assert table.scan_polars().filter(many).collect().equals(whole.filter(many))
    every = reduce(operator.and_, [c("i64") != number for number in range(250)])
    assert table.scan_polars().filter(every).collect().equals(whole.filter(every))


def test_the_whole_frame_and_its_schema(table: pds.Table, whole: pl.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = spy_on_filters(monkeypatch)
    lazy = table.scan_polars()
    assert lazy.collect_schema() == whole.schema
    assert not scans
    for engine in ("in-memory", "streaming"):
        assert lazy.collect(engine=engine).equals(whole)  # type: ignore[call-overload]
        assert lazy.select("text", "i8").collect(engine=engine).equals(whole.select("text", "i8"))  # type: ignore[call-overload]
        assert lazy.select(pl.len()).collect(engine=engine).item() == whole.height  # type: ignore[call-overload]
        assert lazy.tail(3).collect(engine=engine).equals(whole.tail(3))  # type: ignore[call-overload]
        assert lazy.slice(5, 20).collect(engine=engine).equals(whole.slice(5, 20))  # type: ignore[call-overload]
    joined = lazy.join(lazy.filter(c("flag")), on="i64").group_by("text").agg(pl.len()).sort("text")
    expected = whole.lazy().join(whole.lazy().filter(c("flag")), on="i64").group_by("text").agg(pl.len()).sort("text")
    assert joined.collect().equals(expected.collect())


def test_the_limit_comes_before_the_filter(table: pds.Table, whole: pl.DataFrame) -> None:
    predicate = c("i64") > 0
    lazy = table.scan_polars()
    assert lazy.head(10).filter(predicate).collect().equals(whole.head(10).filter(predicate))
    assert lazy.filter(predicate).head(10).collect().equals(whole.filter(predicate).head(10))
    assert lazy.head(0).collect().equals(whole.head(0))


def test_polars_reads_no_more_than_it_needs(s3_store: pds.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("text", pa.string())])
    table = pds.Table.create(s3_store, "t", schema, options=pds.WriteOptions(row_group_size=10_000, compression="none"))
    chance = random.Random(1)
    for begin in range(0, 100_000, 50_000):
        ids = range(begin, begin + 50_000)
        texts = [f"{chance.random()}" for _ in ids]
        table.append(pa.table({"id": ids, "x": [chance.random() for _ in ids], "text": texts}))
    lazy = table.scan_polars()
    queries = {
        # Footers, and two columns of one row group.
        "filter": (lazy.filter(c("id").is_between(52_000, 52_009)).select("x"), 10, 70_000 + 160_000),
        "column": (lazy.select("x"), 100_000, 70_000 + 800_000),
        "limit": (lazy.select("id").head(10), 10, 70_000 + 3 * 80_000),
    }
    for name, (query, rows, most) in queries.items():
        s3_store.reset_metrics()
        assert query.collect().height == rows, name
        assert s3_store.metrics()["bytes_read"] < most, (name, s3_store.metrics()["bytes_read"])


def test_batches_are_as_small_as_polars_asks(table: pds.Table, whole: pl.DataFrame) -> None:
    read = ReadSource(table)
    frames = list(read(["i64"], None, None, 4))
    assert max(frame.height for frame in frames) == 4
    assert pl.concat(frames).equals(whole.select("i64"))
    # Whether or not polars asks for the columns of the filter.
    filtered = pl.concat(read(["text"], c("i64") > 0, None, None))
    assert filtered.equals(whole.filter(c("i64") > 0).select("text"))


def test_names_that_polars_takes_for_patterns(memory_store: pds.Store) -> None:
    rows = {"a": [1, 2], "*": [3, 4], "^a.*$": [5, 6]}
    table = pds.Table.create(memory_store, "t", pa.table(rows).schema)
    table.append(pa.table(rows))
    for lazy in (table.scan_polars(), table.scan_polars().filter(c("a") > 0)):
        assert lazy.collect().equals(pl.DataFrame(rows))
    for name, values in rows.items():
        (frame,) = ReadSource(table)([name], c("a") > 1, None, None)
        assert frame.equals(pl.DataFrame({name: values[1:]}))
    pds.ParquetDatasetStore(memory_store).write_dataset(pa.table({"": [1]}), "n")
    with pytest.raises(pds.CapabilityNotSupported, match="name"):
        scan_polars(DatasetSource(memory_store, "n"))


def test_a_frame_stays_at_its_snapshot_and_is_pickled_with_it(local_store: pds.Store) -> None:
    table = pds.Table.create(local_store, "t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    lazy, old = table.scan_polars(), table.as_of(1).scan_polars()
    table.append(pa.table({"id": [3]}))
    again = pl.LazyFrame.deserialize(io.BytesIO(lazy.serialize()))
    for frame in (lazy, again):
        assert frame.collect()["id"].to_list() == [1, 2]
    assert old.collect().is_empty()
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pl.exceptions.ComputeError, match="VersionExpired"):
        pl.LazyFrame.deserialize(io.BytesIO(old.serialize()))
    table.overwrite(pa.table({"id": [4]}))
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pds.VersionExpired):
        lazy.collect()


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_errors_of_reads_are_those_of_pds(local_store: pds.Store, engine: Any) -> None:
    table = pds.Table.create(local_store, "t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    lazy = pds.Table(local_store, "t").scan_polars()
    local_store.delete(f"t/{table.files()['path'][0]}")
    with pytest.raises(pds.Error, match="parquet"):
        lazy.collect(engine=engine)
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        lazy.select("name").collect(engine=engine)


@pytest.mark.parametrize("data_type", [pa.list_view(pa.int64()), pa.decimal256(60, 2)], ids=str)
def test_a_type_that_polars_does_not_have(memory_store: pds.Store, data_type: pa.DataType) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("other", data_type)]))
    with pytest.raises(pds.CapabilityNotSupported, match="other"):
        table.scan_polars()


def test_frames_by_url(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
    pds.write_dataset(tmp_path / "dataset", rows, options=pds.WriteOptions(max_rows_per_file=2))
    table = pds.write_table(tmp_path / "table", rows)
    table.append(rows)
    chain = pds.odf.Dataset.create(pds.Store(tmp_path), "chain")
    block = chain.ingest(rows).blocks[-1]
    first = pds.scan_polars(tmp_path / "chain")
    chain.ingest(rows)
    assert first.collect().height == 3
    assert pickle.loads(pickle.dumps(open_source(tmp_path / "chain", block.hash))).scan().count() == 3  # noqa: S301 our own
    expected = pl.DataFrame(rows)
    for lazy in (
        pds.scan_polars(tmp_path / "dataset"),
        pds.scan_polars(tmp_path / "table", as_of=1),
        first.select("id", "name"),
        pds.scan_polars(tmp_path / "chain", as_of=block.hash).select("id", "name"),
    ):
        assert lazy.collect().equals(expected)
        assert lazy.head(1).collect().equals(expected.head(1))
        assert lazy.filter(c("id") > 1).select("name").collect()["name"].to_list() == ["b", None]
        assert lazy.select(pl.len()).collect().item() == 3
    dataset = pickle.loads(pickle.dumps(open_source(tmp_path / "dataset")))  # noqa: S301 our own
    assert dataset.scan(["name"], where="id > 1").to_pyarrow().to_pydict() == {"name": ["b", None]}
    dataset = pds.scan_polars(tmp_path / "dataset")
    pds.write_dataset(tmp_path / "dataset", rows.slice(0, 1), overwrite=True)
    with pytest.raises(pds.DatasetIncomplete):
        dataset.collect()
    assert pds.scan_polars(tmp_path / "dataset").collect().height == 1


def test_urls_that_cannot_be_read(tmp_path: Path) -> None:
    rows = pa.table({"id": [1]})
    pds.write_dataset(tmp_path / "dataset", rows)
    pds.odf.Dataset.create(pds.Store(tmp_path), "chain").ingest(rows)
    pipeline = pds.open_pipeline(tmp_path / "pipeline")
    pipeline.source("words", key=pa.int64(), value=pa.string())
    pipeline.update({"words": pds.Changes(upserts=[(1, "a")])})
    for error, url, as_of in (
        (pds.NotFound, "nothing", None),
        (pds.InvalidInput, "dataset", 1),
        (pds.InvalidInput, "chain", 1),
        (pds.InvalidInput, "chain", "nothing"),
        (pds.InvalidInput, "pipeline", None),
    ):
        with pytest.raises(error):
            pds.scan_polars(tmp_path / url, as_of=as_of)


def test_polars_is_optional(memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.delitem(sys.modules, "pds.table.polars")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pds\[polars\]'"):
        table.scan_polars()


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_frame_without_its_package_names_it_before_anything_is_read(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    scan = table.scan()
    memory_store.reset_metrics()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=f"to_{package} needs {package}: pip install {package}"):
        getattr(scan, f"to_{package}")()
    assert not any(memory_store.metrics().values())


def test_queries_of_no_column(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("x", pa.string())]))
    for first in (0, 3):
        table.append(pa.table({"id": range(first, first + 3), "x": ["a"] * 3}))
    lazy = table.scan_polars()
    frame = lazy.collect()
    for query in (
        lambda f: f.with_row_index().select("index"),
        lambda f: f.with_row_index().filter(pl.col("index") > 3).select("index"),
        lambda f: f.with_row_index("n").select(pl.col("n").max()),
        lambda f: f.select(pl.len()),
        lambda f: f.select(pl.int_range(pl.len())),
        lambda f: f.filter(pl.col("id") > 1).select(pl.int_range(pl.len())),
        lambda f: f.join(pl.LazyFrame({"z": [1, 2]}), how="cross").select("z"),
        lambda f: f.head(4).with_row_index().select("index"),
        lambda f: f.with_row_index().select("index").head(4),
    ):
        assert query(lazy).collect().equals(query(frame.lazy()).collect())


UNREADABLE = {
    "offset": pa.timestamp("us", "+05:30"),
    "zulu": pa.timestamp("ns", "Z"),
    "unknown zone": pa.timestamp("s", "Nope/Nope"),
    "wide decimal": pa.decimal256(40, 2),
    "list": pa.list_(pa.timestamp("us", "Z")),
    "struct": pa.struct([("x", pa.decimal256(20, 2))]),
    "map": pa.map_(pa.string(), pa.timestamp("us", "+05:30")),
    "dictionary": pa.dictionary(pa.int8(), pa.timestamp("us", "Z")),
    "view": pa.list_view(pa.int64()),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("count", [0, 2])
def test_a_type_for_which_polars_panics_is_refused(capfd: pytest.CaptureFixture[str], name: str, count: int) -> None:
    """A panic is no Exception, and is printed; so polars is not asked."""
    rows = pa.table({"id": pa.array(range(count), pa.int64()), "other": pa.nulls(count, UNREADABLE[name])})
    with pytest.raises(pds.CapabilityNotSupported, match=r"'other' of type .*; use to_pyarrow\(\)"):
        frames.to_polars(lambda: rows, lambda: rows.schema)
    with pytest.raises(pds.CapabilityNotSupported, match=r"'other' of type"):
        frames.check_polars_types(rows.schema)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+00:00", "EST5EDT", None])
def test_time_zones_of_polars_are_read(zone: str | None) -> None:
    rows = pa.table({"at": pa.array([0, None], pa.timestamp("us", zone))})
    assert frames.to_polars(lambda: rows, lambda: rows.schema).equals(pl.DataFrame(rows))


def test_a_panic_of_polars_is_an_error_of_pds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types that we do not know of."""

    def panic(_rows: object) -> None:
        raise pl.exceptions.PanicException("not implemented")

    monkeypatch.setattr(pl, "DataFrame", panic)
    rows = pa.table({"x": [1]})
    with pytest.raises(pds.CapabilityNotSupported, match="not implemented"):
        frames.to_polars(lambda: rows, lambda: rows.schema)


@pytest.mark.parametrize("name", ["offset", "wide decimal"])
def test_a_type_that_polars_does_not_have_is_refused_before_anything_is_read(
    memory_store: pds.Store, name: str
) -> None:
    rows = pa.table({"id": [1, 2], "other": pa.nulls(2, UNREADABLE[name])})
    table = pds.Table.create(memory_store, "t", rows.schema)
    table.append(rows)
    memory_store.reset_metrics()
    for scan in (table.scan(), table.scan(limit=1)):
        with pytest.raises(pds.CapabilityNotSupported, match="'other'"):
            scan.to_polars()
        assert not any(memory_store.metrics().values())
    with pytest.raises(pds.CapabilityNotSupported, match="'other'"):
        table.scan_changes(1).to_polars()


def test_a_type_that_only_polars_refuses_is_refused_before_anything_is_read(
    memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("x", pa.int64())]))
    table.append(pa.table({"x": [1]}))
    memory_store.reset_metrics()

    def refuse(_rows: object) -> None:
        raise pl.exceptions.ComputeError("cannot create series")

    monkeypatch.setattr(pl, "DataFrame", refuse)
    with pytest.raises(pds.CapabilityNotSupported, match="cannot create series"):
        table.scan().to_polars()
    assert not any(memory_store.metrics().values())


@pytest.mark.parametrize("data_type", [pa.timestamp("us", "+05:30"), pa.decimal256(40, 2)], ids=str)
def test_frames_of_tables_and_datasets_without_a_type_of_polars(
    memory_store: pds.Store, capfd: pytest.CaptureFixture[str], data_type: pa.DataType
) -> None:
    rows = pa.table({"id": [1], "other": pa.nulls(1, data_type)})
    table = pds.Table.create(memory_store, "t", rows.schema)
    table.append(rows)
    with pytest.raises(pds.CapabilityNotSupported, match="'other'"):
        table.scan_polars()
    with pytest.raises(pds.CapabilityNotSupported, match="'other'"):
        table.scan().to_polars()
    assert table.scan(["id"]).to_polars()["id"].to_list() == [1]
    assert capfd.readouterr().err == ""

"""A word count, built in full: expressions of a pipeline beside polars and DuckDB, all from one Parquet file.

A peer groups the words and writes the counts, sorted, as Parquet. A pipeline stores, beside the counts, the texts and
each word by where it is from, since its next update needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from producers_costs import KIB, Table, in_turn, ratio, scratch
from producers_graphs import Graph, cached_table, query, write_by_duckdb

import pds

if TYPE_CHECKING:
    from pathlib import Path

INT, TEXT = pa.int64(), pa.string()
VOCABULARY = 200_000
WORDS_A_TEXT = 10
SPLIT = "string_to_array(value, ' ')"


def _lists(words: int) -> pa.ListArray[Any]:
    """Texts of ten words each, with frequencies as in a language."""
    random = np.random.default_rng(1)
    names = random.integers(0, 36**5, VOCABULARY)
    vocabulary = pa.array([f"{np.base_repr(name, 36).lower()}{number:x}" for number, name in enumerate(names)])
    ranks = random.zipf(1.2, words) % VOCABULARY
    offsets = pa.array(np.arange(0, words + 1, WORDS_A_TEXT), pa.int32())
    return pa.ListArray.from_arrays(offsets, vocabulary.take(pa.array(ranks)))


def _file(name: str, words: int, values: Any) -> dict[str, Path]:  # noqa: ANN401 a function from lists to a column
    def make() -> pa.Table:
        column = values(_lists(words))
        return pa.table({"key": np.arange(len(column)), "value": column})

    return {"texts": cached_table(f"{name}-{words}", make)}


def _split_words(p: pds.Pipeline, _: int) -> None:
    p.source("texts", key=INT, value=TEXT)
    p.select("texts", value=SPLIT, name="lists")
    _count(p, "lists")


def _flatten_lists(p: pds.Pipeline, _: int) -> None:
    p.source("texts", key=INT, value=pa.list_(TEXT))
    _count(p, "texts")


def _count(p: pds.Pipeline, lists: str) -> None:
    p.flatten(lists, name="words")
    p.select("words", key="value", value="true", name="by_word")
    p.aggregate("by_word", aggregates={"n": "count"}, name="counts")


def _count_rows(p: pds.Pipeline, _: int) -> None:
    p.source("texts", key=INT, value=TEXT)
    p.select("texts", key="value", value="true", name="by_word")
    p.aggregate("by_word", aggregates={"n": "count"}, name="counts")


def _by_polars(words: pl.Expr) -> Any:  # noqa: ANN401 what a graph has for a peer
    def count(sources: dict[str, Path], folder: Path) -> None:
        rows = pl.scan_parquet(sources["texts"]).select(words.alias("word"))
        rows.group_by("word").len().sort("word").collect().write_parquet(folder / "counts.parquet")

    return count


def _by_duckdb(words: str) -> Any:  # noqa: ANN401 as above
    text = "SELECT {} AS word, count(*) AS n FROM texts GROUP BY 1 ORDER BY 1".replace("{}", words)
    return lambda sources, folder: write_by_duckdb(sources, {"counts": text}, folder)


def _text_peers(split_by_polars: pl.Expr, split_by_duckdb: str) -> dict[str, Any]:
    return {"polars": _by_polars(split_by_polars), "duckdb": _by_duckdb(split_by_duckdb)}


VALUE = pl.col("value")
TEXTS = Graph(
    f"texts, split by {SPLIT}",
    _split_words,
    lambda words: _file("texts", words, lambda lists: pc.binary_join(lists, " ")),
    {},
    _text_peers(VALUE.str.split(" ").explode(), "unnest(string_split(value, ' '))"),
)
LISTS = Graph(
    "lists of words, flattened",
    _flatten_lists,
    lambda words: _file("lists", words, lambda lists: lists),
    {},
    _text_peers(VALUE.explode(), "unnest(value)"),
)
ROWS = Graph(
    "one word a row", _count_rows, lambda words: _file("words", words, lambda lists: lists.values), {},
    _text_peers(VALUE, "value"),
)  # fmt: skip


def can_split() -> bool:
    """Whether expressions split texts."""
    pipeline = pds.Pipeline(pds.Store("memory://"), "probe")
    try:
        _split_words(pipeline, 0)
        pipeline.update(texts=pds.Changes([(1, "a b")]))
    except pds.InvalidInput:
        return False
    return pipeline["words"].read()["value"].to_pylist() == ["a", "b"]


def compare(words: int, rounds: int) -> None:
    """Prints the ratios."""
    graphs = [LISTS, ROWS]
    if can_split():
        graphs.insert(0, TEXTS)
    else:
        print(f"There is no {SPLIT} in expressions: texts are not split, sources have lists of words or words.\n")
    table = Table(
        "source", "words", "pds / polars", "pds / DuckDB", "CPU: pds / polars", "CPU: pds / DuckDB",
        "KiB of the counts", texts=1,
    )  # fmt: skip
    for graph in graphs:
        with scratch() as folder:
            costs, counts_bytes = _measure(graph, words, rounds, folder)
        own, polars, duck = (costs[name] for name in ("pds", "polars", "duckdb"))
        ratios = [ratio(own, peer, figure) for figure in ("wall", "cpu") for peer in (polars, duck)]
        table.add(graph.title, f"{words:,}", *(f"{each:.2f}" for each in ratios), f"{counts_bytes / KIB:,.0f}")


def _measure(graph: Graph, words: int, rounds: int, folder: Path) -> tuple[dict[str, Any], int]:
    sources = graph.sources(words)
    (folder / "peers").mkdir()
    pipelines: list[pds.Pipeline] = []
    counts_bytes = []

    def build(number: int) -> Any:  # noqa: ANN401 what is measured
        pipeline = graph.open(pds.Store((folder / f"lake-{number}").as_uri()), words)
        pipelines.append(pipeline)

        def update() -> pds.UpdateResult:
            result = pipeline.update(graph.all_rows(words))
            counts_bytes.append(result.stages["counts"].bytes_written)
            return result

        return update

    works = {"pds": build}
    for peer in graph.peers:
        works[peer] = lambda _, peer=peer: lambda: graph.peers[peer](sources, folder / "peers")
    costs = in_turn(works, rounds, {})
    expected = pl.read_parquet(folder / "peers" / "counts.parquet").rows()
    stored = query(pipelines[-1], "SELECT target_key, value.n FROM counts ORDER BY 1", names=["counts"])
    if stored != expected:
        raise SystemExit(f"{graph.title}: the pipeline and its peers count otherwise")
    return costs, counts_bytes[-1]

"""Representations in notebooks and terminals: what they say, that they are safe and short, and send no request."""

from __future__ import annotations

import pickle
from datetime import timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from pds import odf
from pds.display import Listing, Summary
from pds.table.layout import Layout, LayoutEntry
from pds.table.results import CheckResult, ExportResult, IcebergExportResult, VacuumResult, VerifyResult

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pds.producers.results import UpdateResult

EVIL = "<script>alert('x')</script>&\""
MAX_CHARACTERS = 40_000


class _Reader(HTMLParser):
    """Reads HTML as a browser does: the tags and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _show(shown: Any) -> str:
    """Return the text of an object in a notebook, of which the HTML has no other tags than those of tables."""
    html = shown._repr_html_()
    assert len(html) < MAX_CHARACTERS
    reader = _Reader(html)
    assert set(reader.tags) <= {"p", "b", "br", "table", "thead", "tbody", "tr", "th", "td"}
    return "\n".join(reader.texts)


def _make_table(store: pds.Store) -> pds.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), (EVIL, pa.string())])
    table = pds.Table.create(store, "t", schema, key="id")
    table.append(pa.table({"id": range(100), EVIL: ["<b>" + "x" * 100] * 100}, schema))
    return table


def _make_pipeline(store: pds.Store) -> tuple[pds.Pipeline, UpdateResult]:
    pipeline = pds.Pipeline(store, "p")
    source = pipeline.source(EVIL, key=pa.int64(), value=pa.string())

    @pipeline.producer(source, key=pa.string(), value=pa.int64(), name="lengths")
    def lengths(key: int, values: Iterator[str]) -> Iterator[tuple[str, int]]:
        for value in values:
            yield value, len(value)

    result = pipeline.update({EVIL: pds.Changes(pa.table({"key": [1, 2], "value": ["a", "bb"]}))})
    return pipeline, result


def _make_chain(store: pds.Store) -> tuple[odf.Dataset, odf.IngestResult]:
    chain = odf.Dataset.create(store, "c")
    return chain, chain.ingest(pa.table({EVIL: [1, 2, 3]}))


def _make_objects(store: pds.Store) -> dict[str, tuple[Any, list[str]]]:
    """Return objects of all kinds, and what their HTML says."""
    table = _make_table(store)
    commit = table.delete("id = 5")
    vacuum = table.vacuum(timedelta(0), dry_run=True)
    pipeline, update = _make_pipeline(store)
    chain, ingest = _make_chain(store)
    datasets = pds.ParquetDatasetStore(store)
    manifest = datasets.write_dataset(pa.table({EVIL: [1]}), "d", metadata={EVIL: EVIL})
    preview = pipeline.preview({EVIL: pds.Changes(pa.table({"key": [3], "value": ["ccc"]}))})
    kept = table.as_of(2)
    return {
        "table": (table, ["version=3", "id", "not null", "about" if table.file_count == 0 else "before deletes", EVIL]),
        "older": (kept, ["version=2", "about 100"]),
        "scan": (table.scan(["id"], where="id > 50", limit=3), ["t", "3", "id > 50", "int64"]),
        "changes": (table.scan_changes(2), ["since version", EVIL]),
        "history": (table.history(), ["3 versions", "delete", "append", "create"]),
        "commit": (commit, [commit.commit_id, "attempts", "1"]),
        "plan": (table.scan().explain(), ["files_read", "1"]),
        "check": (table.check(), ["ok", "yes"]),
        "verify": (table.verify(), ["ok", "yes", "100"]),
        "vacuum": (vacuum, ["oldest_version"]),
        "export": (table.export_delta(leave_out=[EVIL]), ["versions"]),
        "datasets": (datasets, ["memory:", "zstd"]),
        "manifest": (manifest, ["dataset_key", "d", EVIL, "data.parquet"]),
        "dataset report": (datasets.verify_dataset("d"), ["parts", "1"]),
        "pipeline": (pipeline, ["lengths", "function", EVIL, "string"]),
        "stage": (pipeline["lengths"], ["lengths", "target_key"]),
        "pipeline version": (pipeline.as_of(1), ["lengths", EVIL, "2"]),
        "pipeline history": (pipeline.history(), ["1 version"]),
        "update": (update, ["lengths", update.commit_id, "keys_in"]),
        "preview": (preview, ["lengths", "keys_out"]),
        "pipeline check": (pipeline.check(), ["ok", "yes"]),
        "explanation": (pipeline.explain(), ["lengths", "all rows of the key"]),
        "chain": (chain, ["c", "memory:"]),
        "block": (chain.log()[0], ["AddData", chain.head]),
        "chain scan": (chain.scan(), ["block", EVIL]),
        "ledger": (chain.scan().to_ledger(), ["rows", "3", EVIL]),
        "ingest": (ingest, ["rows", "3", "AddData"]),
        "chain report": (chain.verify(), ["slices", "1"]),
    }


def test_nothing_is_read_to_show_an_object(memory_store: pds.Store) -> None:
    objects = _make_objects(memory_store)
    before = memory_store.metrics()
    for name, (shown, expected) in objects.items():
        text = _show(shown)
        assert all(part in text for part in expected), (name, text)
        assert repr(shown)
        assert str(shown)
    assert memory_store.metrics() == before


def test_declarations_show_themselves(memory_store: pds.Store) -> None:
    pipeline, _result = _make_pipeline(memory_store)
    stage = pipeline.aggregate("lengths", aggregates={"n": "count"}, name="counts")
    text = _show(stage)
    assert "aggregate" in text
    assert "lengths" in text
    unread = pds.Pipeline(memory_store, EVIL)
    assert repr(unread) in _show(unread)


def test_results_are_printed_line_by_line(memory_store: pds.Store) -> None:
    table = _make_table(memory_store)
    result = table.append(pa.table({"id": [1000]}))
    lines = str(result).splitlines()
    assert lines[0] == "CommitResult"
    assert [line.split()[0] for line in lines[1:]] == [
        "version", "commit_id", "rows", "files", "bytes", "requests", "attempts", "waited", "replayed",
    ]  # fmt: skip
    shown = str(table.history())
    assert [line.split()[0] for line in shown.splitlines()[2:]] == ["3", "2", "1"]
    assert pickle.loads(pickle.dumps(table.history())) == table.history()  # noqa: S301 its own bytes
    assert eval(repr(result), {"CommitResult": type(result)}) == result  # noqa: S307 its own text


@pytest.mark.parametrize(
    ("shown", "rest"),
    [
        (VacuumResult(3, [f"{EVIL}{n}" for n in range(10_000)], [], 5), "and 9,950 more files"),
        (CheckResult(3, [f"{EVIL}{n}" for n in range(10_000)], [], []), "and 9,950 more missing"),
        (VerifyResult(3, 10_000, 0, 0, [(f"{n}", EVIL * 1000) for n in range(10_000)]), "and 9,950 more problems"),
        (ExportResult(3, 10**9, 5), "1,000,000,000"),
        (IcebergExportResult(3, 1, 5, EVIL * 10_000), "metadata_location"),
        (odf.VacuumResult([EVIL] * 10_000, 5), "and 9,950 more files"),
    ],
)
def test_long_results_are_shown_in_part(shown: Any, rest: str) -> None:
    assert rest in _show(shown)
    assert rest in str(shown)
    assert len(str(shown)) < MAX_CHARACTERS
    assert len(repr(shown)) < MAX_CHARACTERS


def test_wide_tables_are_shown_in_part(memory_store: pds.Store) -> None:
    wide = pa.table({f"{EVIL}{number:04}": [1] for number in range(1000)})
    table = pds.Table.create(memory_store, "wide", wide.schema)
    table.append(wide)
    scan = table.scan()
    for shown in (table, scan, table.scan_changes(1)):
        assert "and 950 more columns" in _show(shown)
    assert "\"0009'" in repr(scan)
    assert "\"0010'" not in repr(scan)
    assert "… 990 more" in repr(scan)


def test_layouts_of_many_files_are_shown_in_part() -> None:
    entries = tuple(LayoutEntry(f"data/{EVIL}{n}-x", 1, 5, n, n, False, False) for n in range(10_000))
    svg = Layout(EVIL, entries)._repr_svg_()
    assert "<script>" not in svg
    assert "and 9,800 more" in svg
    assert len(svg) < 10 * MAX_CHARACTERS


def test_summaries_leave_out_what_is_empty() -> None:
    summary = Summary("title", {"a": None, "b": 0}, (Listing(("x",), [], 0, "rows"),))
    assert summary.to_text() == "title\n  b  0"
    assert _Reader(summary.to_html()).texts == ["title", "b", "0"]


def test_results_with_exports_are_shown(tmp_path: Path) -> None:
    table = pds.Table.create(pds.Store(tmp_path), "t", pa.schema([("id", pa.int64())]), exports=["delta", "iceberg"])
    (tmp_path / "t" / "metadata" / "v3.metadata.json").write_text("{}")
    for _ in range(2):
        result = table.append(pa.table({"id": [1]}))
        for text in (str(result), result._repr_html_()):
            assert "delta" in text
            assert "iceberg" in text
    assert "ExportConflict" in repr(result.exports)
    table.alter.exports("delta")
    assert "delta" in str(table.append(pa.table({"id": [1]})))

"""Spans of OpenTelemetry tell what a call returned. Without OpenTelemetry in the application, none of it is loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import opentelemetry.trace
import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import pds

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

ROWS = pa.table({"id": [1, 2, 3]})


class Spans:
    """The spans that ended since the last look."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def take(self) -> list[ReadableSpan]:
        spans = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return spans

    def one(self) -> ReadableSpan:
        (span,) = self.take()
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A provider can be set only once for a process.
    monkeypatch.setattr(opentelemetry.trace, "get_tracer", provider.get_tracer)
    return Spans(exporter)


@pytest.fixture
def store(tmp_path: Path) -> pds.Store:
    return pds.Store(tmp_path)


@pytest.fixture
def table(store: pds.Store) -> pds.Table:
    return pds.Table.create(store, "lake/t", ROWS.schema, key="id")


def test_a_commit(table: pds.Table, store: pds.Store, spans: Spans) -> None:
    result = table.append(ROWS, idempotency_key="k")
    span = spans.one()
    assert span.name == "pds.table.append"
    assert span.status.is_ok or span.status.is_unset
    assert dict(span.attributes or {}) == {
        "pds.url": f"{store.url}/lake/t",
        "pds.version": result.version,
        "pds.rows": result.rows,
        "pds.files": result.files,
        "pds.bytes": result.bytes,
        "pds.requests": result.requests,
        "pds.attempts": result.attempts,
        "pds.waited": result.waited,
        "pds.replayed": False,
    }


def test_an_error(table: pds.Table, store: pds.Store, spans: Spans) -> None:
    with pytest.raises(pds.CommitConflict) as raised:
        table.append(ROWS, if_version=7)
    span = spans.one()
    attributes = dict(span.attributes or {})
    assert attributes == {
        "pds.url": f"{store.url}/lake/t",
        "error.type": "CommitConflict",
        "pds.retryable": raised.value.retryable,
    }
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]


def test_operations_on_tables(table: pds.Table, store: pds.Store, spans: Spans) -> None:
    calls = {
        "pds.table.append": lambda: table.append(ROWS),
        "pds.table.upsert": lambda: table.upsert(ROWS),
        "pds.table.merge": lambda: table.merge(ROWS, on="id").when_matched_update_all().execute(),
        "pds.table.overwrite": lambda: table.overwrite(ROWS),
        "pds.table.delete": lambda: table.delete("id = 1"),
        "pds.table.sort": lambda: table.optimize.sort("id"),
        "pds.table.compact": table.optimize.compact,
        "pds.table.restore": lambda: table.restore(2),
        "pds.table.check": table.check,
        "pds.table.verify": table.verify,
        "pds.table.vacuum": table.vacuum,
    }
    for call in calls.values():
        call()
    taken = spans.take()
    assert [span.name for span in taken] == list(calls)
    assert {(span.attributes or {})["pds.url"] for span in taken} == {f"{store.url}/lake/t"}


def test_the_span_of_the_caller_is_the_parent(table: pds.Table, spans: Spans) -> None:
    with opentelemetry.trace.get_tracer("test").start_as_current_span("load"):
        table.append(ROWS)
    append, load = spans.take()
    assert append.parent is not None
    assert append.parent.span_id == load.get_span_context().span_id


def test_datasets(store: pds.Store, spans: Spans) -> None:
    datasets = pds.ParquetDatasetStore(store)
    datasets.write_dataset(ROWS, "bronze/people")
    datasets.read_dataset(key="bronze/people")
    with pytest.raises(pds.DatasetIncomplete):
        datasets.read_dataset("bronze/missing")
    write, read, missing = spans.take()
    assert (write.name, read.name) == ("pds.dataset.write_dataset", "pds.dataset.read_dataset")
    expected = {"pds.url": f"{store.url}/bronze/people", "pds.rows": 3}
    assert dict(write.attributes or {}) == dict(read.attributes or {}) == expected
    assert (missing.attributes or {})["error.type"] == "DatasetIncomplete"


def test_pipelines_and_chains(store: pds.Store, spans: Spans) -> None:
    pipeline = pds.Pipeline(store, "p")
    pipeline.source("numbers", key=pa.int64(), value=pa.int64())
    pipeline.update(numbers=pds.Changes([(1, 1)]))
    chain = pds.odf.Dataset.create(store, "c")
    spans.take()
    chain.ingest(pa.table({"at": pa.array([0], pa.timestamp("ms", "UTC"))}), event_time="at")
    chain.verify()
    ingest, verify = spans.take()
    assert (ingest.name, verify.name) == ("pds.odf.ingest", "pds.odf.verify")
    assert (verify.attributes or {})["pds.rows"] == 1
    result = pipeline.update(numbers=pds.Changes([(2, 2)]))
    span = spans.one()
    assert span.name == "pds.pipeline.update"
    assert (span.attributes or {})["pds.url"] == f"{store.url}/p"
    assert (span.attributes or {})["pds.version"] == result.version


def test_no_secret_is_in_a_span(spans: Spans) -> None:
    options = {"aws_access_key_id": "id", "aws_secret_access_key": "s3cr3t", "aws_region": "r", "max_retries": "0"}
    store = pds.Store("s3://bucket/p", storage_options={**options, "aws_endpoint": "http://user:s3cr3t@127.0.0.1:1"})
    with pytest.raises(pds.Error):
        pds.ParquetDatasetStore(store).read_dataset("d")
    assert "s3cr3t" not in spans.one().to_json()


@pytest.mark.parametrize("imports", ["", "import opentelemetry.trace"])
def test_without_a_provider(imports: str, tmp_path: Path) -> None:
    code = f"""
import sys, pyarrow as pa, pds
{imports}
print(pds.write_table("t", pa.table({{"id": [1]}})).append(pa.table({{"id": [2]}})).rows)
print(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["1", str(bool(imports))]


def test_what_is_traced_keeps_its_signature() -> None:
    assert pds.Table.append.__doc__
    assert pds.Table.append.__name__ == "append"
    assert pds.ParquetDatasetStore.write_dataset.__module__ == "pds.dataset"


def _fail(*_: object, **_named: object) -> None:
    raise RuntimeError("a processor fails")


def test_an_error_of_a_processor_changes_no_outcome(
    table: pds.Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    monkeypatch.setattr(opentelemetry.trace, "get_tracer", provider.get_tracer)
    for method in ("on_end", "on_start"):
        provider.add_span_processor(type("Failing", (SpanProcessor,), {method: _fail})())
        assert table.append(ROWS).rows == 3
        with pytest.raises(pds.InvalidInput, match="other"):
            table.append(pa.table({"other": [1]}))
        assert "a span could not be recorded" in caplog.text
        caplog.clear()


def test_an_interrupt_is_an_error(spans: Spans, monkeypatch: pytest.MonkeyPatch, memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pds.Table, "_write", interrupt)
    spans.take()
    with pytest.raises(KeyboardInterrupt):
        table.append(pa.table({"id": [1]}))
    span = spans.one()
    assert (span.attributes or {})["error.type"] == "KeyboardInterrupt"
    assert span.status.status_code is opentelemetry.trace.StatusCode.ERROR

"""`pds history --watch`: new versions as they come, by cheap requests, also while the store fails at times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from pds.cli import history

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.python.conftest import Run

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pds.Table:
    monkeypatch.chdir(tmp_path)
    return pds.write_table("t", ROWS)


@pytest.fixture
def between_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Does something in each pause between two looks, and interrupts the watch in the pause after the last."""

    def script(*steps: Callable[[], object]) -> None:
        remaining = list(steps)

        def sleep(_seconds: float) -> None:
            if not remaining:
                raise KeyboardInterrupt
            remaining.pop(0)()

        monkeypatch.setattr(history.time, "sleep", sleep)

    return script


def watch(run: Run, *argv: str) -> tuple[list[int], str]:
    code, out, err = run("history", "t", "--watch", "-o", "ndjson", *argv)
    assert code == 130
    assert err.endswith("pds: interrupted\n")
    return [json.loads(line)["version"] for line in out.splitlines()], err.removesuffix("pds: interrupted\n")


def test_versions_that_come_together_are_in_order(
    run: Run, table: pds.Table, between_looks: Callable[..., None]
) -> None:
    between_looks(lambda: None, lambda: [table.append(ROWS) for _ in range(5)], lambda: None)
    assert watch(run) == ([1, 2, 3, 4, 5, 6], "")


def test_an_unchanged_table_is_not_opened(
    run: Run, table: pds.Table, between_looks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    plain = history.Thing.table
    monkeypatch.setattr(history.Thing, "table", lambda thing: opened.append(thing) or plain(thing))
    between_looks(*[lambda: None] * 10)
    assert watch(run) == ([1], "")
    assert len(opened) == 1


def test_an_outage_is_one_line_and_loses_no_version(
    run: Run, table: pds.Table, between_looks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = pds.Store.get_file_info

    def fail(*_: object) -> None:
        raise pds.BackendUnavailable("the store does not answer")

    between_looks(
        lambda: monkeypatch.setattr(pds.Store, "get_file_info", fail),
        lambda: table.append(ROWS),
        lambda: None,
        lambda: monkeypatch.setattr(pds.Store, "get_file_info", plain),
        lambda: table.append(ROWS),
        lambda: monkeypatch.setattr(pds.Store, "get_file_info", fail),
    )
    line = "pds: the store does not answer; trying again every 2 s\n"
    assert watch(run) == ([1, 2, 3], 2 * line), "a second outage is another line"


def test_a_failed_read_after_a_new_pointer_is_repeated(
    run: Run, table: pds.Table, between_looks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pointer counts as seen when its versions were printed."""
    plain = history._read_history
    failures = [pds.BackendUnavailable("no answer")]

    def read(thing: history.Thing, limit: int | None) -> list[dict[str, object]]:
        if table.version == 2 and failures:
            raise failures.pop()
        return plain(thing, limit)

    monkeypatch.setattr(history, "_read_history", read)
    between_looks(lambda: table.append(ROWS), lambda: None)
    versions, err = watch(run)
    assert versions == [1, 2]
    assert err.count("\n") == 1


def test_what_was_created_again_is_printed_from_its_beginning(
    run: Run, table: pds.Table, between_looks: Callable[..., None]
) -> None:
    table.append(ROWS)

    def create_again() -> None:
        pds.Table.drop(table.store, table.path)
        pds.write_table("t", ROWS)

    between_looks(create_again)
    versions, err = watch(run)
    assert versions == [2, 1, 1]
    assert "created again" in err


def test_a_dropped_table_ends_the_watch(run: Run, table: pds.Table, between_looks: Callable[..., None]) -> None:
    between_looks(lambda: pds.Table.drop(table.store, table.path))
    code, out, err = run("history", "t", "--watch")
    assert (code, len(out.splitlines())) == (1, 2)
    assert err.count("\n") == 1


def test_pipelines_and_chains_are_watched(run: Run, table: pds.Table, between_looks: Callable[..., None]) -> None:
    pipeline = pds.open_pipeline("p")
    pipeline.source("s", key=pa.int64(), value=pa.string())
    pipeline.update(s=pds.Changes([(1, "a")]))
    between_looks(lambda: None, lambda: pipeline.update(s=pds.Changes([(2, "b")])))
    _, out, _ = run("history", "p", "--watch", "-o", "csv")
    assert [line.split(",")[0] for line in out.splitlines()] == ["version", "1", "2"]

    chain = pds.odf.Dataset.create(pds.Store("."), "c")
    between_looks(lambda: chain.set_schema(pa.schema([("x", pa.int64())])))
    _, out, _ = run("history", "c", "--watch", "-o", "csv")
    assert [line.split(",")[0] for line in out.splitlines()] == ["version", "0", "1"]

"""What `take_over` commits to a Delta table: readers go on, whatever its protocol, and writers refuse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from deltalake.exceptions import DeltaError

import pds
from delta_logs import edit_log
from delta_readers import read_delta_rs, read_polars
from exported_tables import make_rows, rows_of

if TYPE_CHECKING:
    from pathlib import Path


def _protocol(reader: int, writer: int, readers: list[str] | None, writers: list[str] | None) -> dict[str, Any]:
    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    named = {"readerFeatures": readers, "writerFeatures": writers}
    return protocol | {name: features for name, features in named.items() if features is not None}


PROTOCOLS = [
    *(_protocol(1, writer, None, None) for writer in range(1, 7)),
    _protocol(1, 7, None, []),
    _protocol(1, 7, None, ["appendOnly", "rowTracking", "domainMetadata"]),
    _protocol(2, 5, None, None),
    _protocol(2, 6, None, None),
    _protocol(2, 7, None, ["columnMapping"]),
    _protocol(3, 7, [], []),
    _protocol(3, 7, [], ["checkConstraints"]),
    _protocol(3, 7, ["columnMapping"], ["columnMapping"]),
    _protocol(3, 7, ["deletionVectors", "timestampNtz"], ["deletionVectors", "timestampNtz", "invariants"]),
]


def _set_protocol(folder: Path, protocol: dict[str, Any]) -> None:
    def edit(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = protocol

    edit_log(folder, edit)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: json.dumps([*protocol.values()]))
def test_every_protocol_can_be_read_afterwards_and_not_written(tmp_path: Path, protocol: dict[str, Any]) -> None:
    folder = tmp_path / "delta"
    for ids in (range(5), range(10)):
        deltalake.write_deltalake(folder, make_rows(ids), mode="overwrite")
    _set_protocol(folder, protocol)
    expected = rows_of(read_delta_rs(folder))
    table = pds.import_delta(folder, take_over=True)
    files = set(folder.rglob("*.parquet"))
    assert rows_of(read_delta_rs(folder)) == rows_of(table.scan().to_pyarrow()) == expected
    delta = deltalake.DeltaTable(folder)
    after = delta.protocol()
    if "columnMapping" not in (after.reader_features or ()):  # which polars never reads.
        assert rows_of(read_polars(folder)) == expected
    assert after.min_reader_version == (1 if protocol["minReaderVersion"] == 1 else 3)
    before = set(protocol.get("writerFeatures", ()))
    assert before <= set(after.writer_features or ())
    with pytest.raises(DeltaError):
        delta.delete("id = 1")
    with pytest.raises(DeltaError):
        delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert deltalake.DeltaTable(folder).version() == 2
    assert set(folder.rglob("*.parquet")) == files


def test_a_guard_that_no_reader_understands_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "delta"
    deltalake.write_deltalake(folder, make_rows(range(10)))
    broken = _protocol(1, 7, None, ["columnMapping", "pds-readOnly"])
    monkeypatch.setattr("pds.imports.delta_guard.guarded_protocol", lambda _: broken)
    before = sorted(folder.rglob("*"))
    with pytest.raises(pds.FormatNotSupported, match="cannot be made read-only"):
        pds.import_delta(folder, take_over=True)
    assert sorted(folder.rglob("*")) == before


def test_a_guard_that_another_writer_overwrote_is_committed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older writers on S3 do not put conditionally."""
    folder = tmp_path / "delta"
    deltalake.write_deltalake(folder, make_rows(range(10)))
    write, times = pds.Store.write, iter([1])

    def write_and_lose(store: pds.Store, path: str, content: bytes, *, overwrite: bool = False) -> None:
        write(store, path, content, overwrite=overwrite)
        if next(times, None):
            action = {"commitInfo": {"timestamp": 0, "operation": "WRITE", "operationParameters": {}}}
            (folder.parent / path).write_text(json.dumps(action) + "\n")

    monkeypatch.setattr(pds.Store, "write", write_and_lose)
    pds.import_delta(folder, take_over=True)
    delta = deltalake.DeltaTable(folder)
    assert delta.version() == 2
    assert "pds-readOnly" in (delta.protocol().writer_features or ())

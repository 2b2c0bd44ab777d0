"""The commit that makes a Delta table read-only: it demands a feature of writers that no other system has."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pds.errors import AlreadyExists, FormatNotSupported

if TYPE_CHECKING:
    from pds.store import Store

GUARD: Final = "pds-readOnly"
_NAMED_FEATURES: Final = 7
_NAMED_READER_FEATURES: Final = 3
# The features that a writer version stands for, until they are named. Source: PROTOCOL.md, "Valid Feature Names".
# `columnMapping` of version 5 is one of readers, too: it is active from reader version 2 on.
_FEATURES_OF_VERSION: Final = (
    (2, ("appendOnly", "invariants")),
    (3, ("checkConstraints",)),
    (4, ("changeDataFeed", "generatedColumns")),
    (6, ("identityColumns",)),
)


def is_guarded(delta: DeltaTable) -> bool:
    """Return whether a Delta table is read-only already."""
    return GUARD in (delta.protocol().writer_features or ())


def take_over(store: Store, path: str, delta: DeltaTable) -> bool:
    """Commit the guard as the next version of the log. False if another writer was faster.

    Raises:
        FormatNotSupported: No reader would understand the log afterwards. Nothing is written.
    """
    now = time.time_ns() // 1_000_000
    commit_info: dict[str, object] = {"timestamp": now, "operation": "UPGRADE PROTOCOL", "operationParameters": {}}
    if delta.metadata().configuration.get("delta.enableInCommitTimestamps") == "true":
        # It has to grow.
        last = next(iter(delta.history(1)), {}).get("inCommitTimestamp", 0)
        commit_info["inCommitTimestamp"] = max(now, int(last) + 1)
    commit = _to_lines([{"commitInfo": commit_info}, {"protocol": guarded_protocol(delta)}])
    _check_readable(delta, commit)
    name = f"{path}/_delta_log/{delta.version() + 1:020}.json"
    try:
        store.write(name, commit)
    except AlreadyExists:
        return False
    # Some writers on S3 overwrite a commit of others.
    return store.read_bytes(name) == commit


def guarded_protocol(delta: DeltaTable) -> dict[str, object]:
    """Return the protocol of the table with the guard, and with names of the features that its versions imply."""
    protocol = delta.protocol()
    writer, reader = set(protocol.writer_features or ()), set(protocol.reader_features or ())
    if protocol.min_writer_version < _NAMED_FEATURES:
        for version, features in _FEATURES_OF_VERSION:
            if protocol.min_writer_version >= version:
                writer.update(features)
    has_named_readers = protocol.min_reader_version > 1
    if protocol.min_reader_version == 2:  # noqa: PLR2004 which stands for one feature
        reader.add("columnMapping")
        writer.add("columnMapping")
    guarded: dict[str, object] = {
        "minReaderVersion": _NAMED_READER_FEATURES if has_named_readers else 1,
        "minWriterVersion": _NAMED_FEATURES,
        "writerFeatures": sorted(writer | {GUARD}),
    }
    if has_named_readers:
        guarded["readerFeatures"] = sorted(reader)
    return guarded


def _check_readable(delta: DeltaTable, commit: bytes) -> None:
    """Open a log of this commit alone: a table that nobody can read cannot be repaired by its own systems."""
    metadata = delta.metadata()
    action = {
        "id": str(metadata.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": delta.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.configuration,
    }
    with TemporaryDirectory() as folder:
        log = Path(folder, "_delta_log")
        log.mkdir()
        (log / f"{0:020}.json").write_bytes(commit + _to_lines([{"metaData": action}]))
        try:
            DeltaTable(folder).get_add_actions()
        except DeltaError as error:
            protocol = delta.protocol()
            raise FormatNotSupported(
                f"the Delta table has reader version {protocol.min_reader_version} and writer version "
                f"{protocol.min_writer_version}, which cannot be made read-only: {error}; import without take_over"
            ) from error


def _to_lines(actions: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()

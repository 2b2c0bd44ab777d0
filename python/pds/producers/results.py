"""The results of operations on pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pds.display import Result

if TYPE_CHECKING:
    from pds.engine_types import UpdateFields


@dataclass(frozen=True, repr=False)
class StageResult(Result):
    """What an update did to a source or a stage.

    Args:
        name: The name.
        keys_in: The number of source keys that changed.
        rows_out: The number of rows that the function emitted.
        keys_out: The number of target keys that changed.
        read_requests: The number of requests to read stored rows; 0 for local files. Those that lead to the commit,
            such as for manifests, are of no stage, and neither are those to the table that feeds a source.
        bytes_read: The bytes that these requests returned, or that were read of local files. What an earlier stage or
            update left in memory is not read.
        files_written: The number of files written.
        bytes_written: Their size in bytes.
        tasks: The number of tasks of the pipeline's engine that computed it; 0 if this process did. What tasks read and
            write is counted too.
    """

    name: str
    keys_in: int
    rows_out: int
    keys_out: int
    read_requests: int
    bytes_read: int
    files_written: int
    bytes_written: int
    tasks: int


@dataclass(frozen=True, repr=False)
class ChangeCounts(Result):
    """How many rows and keys of a source or a stage an update changes.

    The rows that a source key has given to a target key, or those of a key of a source, are compared one by one in
    their order; rows that stay the same count nowhere. With `order_by`, a row whose place changes goes and comes. A
    stage that is rebuilt with other types or another order loses all its rows and gets new ones.

    Args:
        name: The name.
        keys_added: The number of keys that have their first row.
        keys_updated: The number of keys that had rows and have other ones.
        keys_deleted: The number of keys that have no row any more.
        rows_added: The number of rows that come.
        rows_updated: The number of rows that get another value.
        rows_deleted: The number of rows that go.
    """

    name: str
    keys_added: int
    keys_updated: int
    keys_deleted: int
    rows_added: int
    rows_updated: int
    rows_deleted: int


@dataclass(frozen=True, repr=False)
class CompactResult(Result):
    """The result of a compaction of a pipeline.

    Args:
        version: The new version, or the newest one if there was nothing to merge.
        tables: The number of tables that have fewer runs.
        runs: The number of runs that were merged.
        bytes_written: The size of the files that were written, in bytes.
    """

    version: int
    tables: int
    runs: int
    bytes_written: int


@dataclass(frozen=True, repr=False)
class StageDifference(Result):
    """A stage that came out otherwise when it was computed anew.

    Args:
        name: The name.
        keys: The number of target keys with other rows.
        examples: Some of them, at most 10.
    """

    name: str
    keys: int
    examples: list[Any]


@dataclass(frozen=True, repr=False)
class PipelineCheck(Result):
    """The result of a check of a pipeline.

    Args:
        version: The version that was checked.
        differences: The stages that differ. One with 0 keys has other key mappings than its rows say, or other states
            of its aggregates.
    """

    version: int
    differences: list[StageDifference]

    @property
    def ok(self) -> bool:
        """Whether all stages came out as they are stored."""
        return not self.differences


@dataclass(frozen=True, repr=False)
class UpdateResult(Result):
    """The result of an update of a pipeline.

    Args:
        version: The new version of the pipeline.
        commit_id: The identifier of the commit.
        replayed: Whether an update with the same idempotency key existed already, so that nothing was changed.
        requests: The number of requests to the store during the update, including those of other threads.
        stages: What the update did to each source and stage, by name.
    """

    version: int
    commit_id: str
    replayed: bool
    requests: int
    stages: dict[str, StageResult]

    @classmethod
    def of(cls, fields: UpdateFields, requests: int) -> Self:
        """Return the result for the update that the engine reports and the number of requests."""
        stages = {node["name"]: StageResult(**node) for node in fields["nodes"]}
        return cls(fields["version"], fields["commit_id"], fields["replayed"], requests, stages)

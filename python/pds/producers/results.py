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
        files_written: The number of files written.
        bytes_written: Their size in bytes.
        tasks: The number of tasks of the pipeline's engine that computed it; 0 if this process did.
    """

    name: str
    keys_in: int
    rows_out: int
    keys_out: int
    files_written: int
    bytes_written: int
    tasks: int


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

"""Versions of a pipeline: those that were committed, and previews of the next one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Self

from pds.producers.results import StageDifference, UpdateResult
from pds.producers.tables import PipelineTable

if TYPE_CHECKING:
    from pds import _pds
    from pds.producers.results import StageResult
    from pds.store import Store


MAX_EXAMPLES = 10
"""How many keys of a difference are named."""


class PipelineVersion:
    """A version of a pipeline, which does not change."""

    def __init__(self, handle: _pds.PipelineHandle, memory_limit: int) -> None:
        self._handle = handle
        self._memory_limit = memory_limit

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._handle.version

    @property
    def names(self) -> list[str]:
        """The names of the sources and stages; a stage comes after those that feed it."""
        return [node["name"] for node in json.loads(self._handle.manifest())["nodes"]]

    def __getitem__(self, name: str) -> PipelineTable:
        self._handle.schema(name, False)  # noqa: FBT003 refuses unknown names
        return PipelineTable(self._handle, name, self._memory_limit)


def _run_ids(handle: _pds.PipelineHandle, name: str) -> list[str]:
    nodes = {node["name"]: node for node in json.loads(handle.manifest())["nodes"]}
    return [run["id"] for run in nodes[name]["mappings"]]


class Preview(PipelineVersion):
    """The version that an update would make. Its tables can be read like those of any version, `changes()` included.

    What the update wrote is in the store, and no reader of the pipeline sees it. `commit` makes it the next version;
    `discard`, or the end of a `with` block, removes it. What a process leaves that ends before is removed by a vacuum.
    """

    def __init__(self, handle: _pds.PreviewHandle, store: Store, memory_limit: int) -> None:
        super().__init__(handle.pipeline(), memory_limit)
        self._preview = handle
        self._store = store
        self._stages = UpdateResult.of(handle.report(), 0).stages

    @property
    def stages(self) -> dict[str, StageResult]:
        """What the update does to each source and stage, by name."""
        return self._stages

    def commit(self) -> UpdateResult:
        """Make this the newest version.

        Raises:
            CommitConflict: Another update came after the version that the preview is based on, or a compaction. What
                was written is removed.
            TransactionExpired: A vacuum may have removed what was written.
            CommitStateUnknown: The store did not say whether the version was made.
            InvalidInput: The preview was committed or discarded.
        """
        requests = self._store.metrics()["requests"]
        return UpdateResult.of(self._preview.commit(), self._store.metrics()["requests"] - requests)

    def discard(self) -> None:
        """Remove what was written. After a commit nothing is done."""
        self._preview.discard()

    def compare(self, name: str, base: _pds.PipelineHandle) -> StageDifference | None:
        """Return how a stage differs from that of the version `base`; None if it does not."""
        keys = self._stages[name].keys_out
        if keys:
            return StageDifference(name, keys, self[name].first_changed_keys(MAX_EXAMPLES))
        if _run_ids(self._handle, name) != _run_ids(base, name):
            return StageDifference(name, 0, [])
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

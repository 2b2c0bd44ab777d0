"""Versions of a pipeline: those that were committed, and previews of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from pds.arguments import require_text
from pds.display import Listing, Summarized, Summary, list_items
from pds.producers.results import ChangeCounts, StageDifference, UpdateResult
from pds.producers.tables import PipelineRows, PipelineTable, distinct_keys, read_nodes

if TYPE_CHECKING:
    from pds import _pds
    from pds.producers.results import StageResult
    from pds.store import Store


MAX_EXAMPLES = 10
"""How many keys of a difference are named."""


class PipelineVersion(Summarized):
    """A version of a pipeline, which does not change."""

    def __init__(self, handle: _pds.PipelineHandle, memory_limit: int, origin: tuple[Store, str] | None = None) -> None:
        self._handle = handle
        self._memory_limit = memory_limit
        # The store and the path of the pipeline; None of a preview.
        self._origin = origin

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._handle.version

    @property
    def names(self) -> list[str]:
        """The names of the sources and stages; a stage comes after those that feed it."""
        return list(read_nodes(self._handle))

    def __getitem__(self, name: str) -> PipelineTable:
        self._handle.schema(require_text("the name of a source or stage", name), False)  # noqa: FBT003 refuses unknown names
        return PipelineTable(self._handle, name, self._memory_limit, self._origin)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(version={self.version})"

    def _summarize(self) -> Summary:
        nodes = read_nodes(self._handle)
        rows = (
            (
                name,
                ", ".join(node["feeders"]),
                sum(file["rows"] for run in node["content"] for file in run["files"]),
                len(node["content"]),
            )
            for name, node in nodes.items()
        )
        return Summary(repr(self), {}, (Listing(("stage", "feeders", "rows", "runs"), rows, len(nodes), "stages"),))


class Preview(PipelineVersion):
    """The version that an update would make. Its tables can be read like those of any version, `changes()` included.

    What the update wrote is in the store, and no reader of the pipeline sees it. `commit` makes it the next version;
    `discard`, or the end of a `with` block, removes it. What a process leaves that ends before is removed by a vacuum.
    Reads raise `VersionExpired` if a vacuum removed it, or the version that the preview is based on.

    If an update with the same idempotency key was committed already, this one would change nothing (`replayed`): then
    the tables are those of the newest version, without changes, and `commit` returns the result of a replay.

    To count what changes, the old and the new rows of the pairs that it wrote are read, as a stream.
    """

    def __init__(self, handle: _pds.PreviewHandle, store: Store, memory_limit: int) -> None:
        super().__init__(handle.pipeline(), memory_limit)
        self._preview = handle
        self._store = store
        report = UpdateResult.of(handle.report(), 0)
        self._stages, self._replayed = report.stages, report.replayed
        try:
            self._counts = {counts["name"]: ChangeCounts(**counts) for counts in handle.count_changes(memory_limit)}
        except BaseException:
            handle.discard()
            raise

    @property
    def stages(self) -> dict[str, StageResult]:
        """What the update does to each source and stage, by name."""
        return self._stages

    @property
    def counts(self) -> dict[str, ChangeCounts]:
        """How many rows and keys of each source and stage come, change and go, by name."""
        return self._counts

    @property
    def replayed(self) -> bool:
        """Whether an update with the same idempotency key existed already, so that `commit` changes nothing."""
        return self._replayed

    def _summarize(self) -> Summary:
        listings = (
            list_items("stages", self._stages.values(), len(self._stages)),
            list_items("counts", self._counts.values(), len(self._counts)),
        )
        return Summary(repr(self), {}, listings)

    def commit(self) -> UpdateResult:
        """Make this the newest version, unless an update with the same idempotency key was committed.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def find_difference(preview: _pds.PreviewHandle, name: str, memory_limit: int) -> tuple[int, StageDifference | None]:
    """Return the version that a rebuild of a stage was compared with, and how the stage differs from it, if it does."""
    rebuilt = preview.pipeline()
    base = rebuilt.at(rebuilt.version - 1)
    keys = UpdateResult.of(preview.report(), 0).stages[name].keys_out
    examples: list[Any] = []
    if keys:
        changes = PipelineRows(lambda: rebuilt.changes(name, memory_limit)).to_reader()
        for batch in changes:
            examples = distinct_keys(pa.chunked_array([batch.column("key")]), examples)
            if len(examples) >= MAX_EXAMPLES:
                break
    elif _runs(rebuilt, name) == _runs(base, name):
        return base.version, None
    return base.version, StageDifference(name, keys, examples[:MAX_EXAMPLES])


def _runs(handle: _pds.PipelineHandle, name: str) -> list[str]:
    node = read_nodes(handle)[name]
    # A new run of the content without a changed key has other states.
    return [run["id"] for table in ("content", "mappings") for run in node[table]]

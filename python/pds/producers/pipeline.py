"""Pipelines: graphs of sources and stages whose results are kept up to date."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pds import _pds
from pds.arguments import require_text
from pds.defaults import COMMIT_TIMEOUT_SECONDS
from pds.errors import CommitConflict, InvalidInput, InvalidType, NotFound, RemoteStoreError, VersionExpired
from pds.producers.calls import vary_batches
from pds.producers.drawing import Box, Drawing
from pds.producers.errors import abbreviate
from pds.producers.explanation import Explanation, count_rows, explain
from pds.producers.function_digests import warn_of_change
from pds.producers.inputs import Inputs
from pds.producers.results import PipelineCheck, UpdateResult
from pds.producers.running import marked_functions, refuse_own_update
from pds.producers.tables import PipelineTable, read_nodes
from pds.producers.upkeep import Upkeep
from pds.producers.versions import PipelineVersion, Preview, find_difference
from pds.progress import reported
from pds.table.checks import check_size, check_version
from pds.table.location import TableLocation
from pds.telemetry import traces

if TYPE_CHECKING:
    from pds.producers.changes import Changes, Replace
    from pds.producers.engine import Engine
    from pds.producers.graph import Node, SourceInput, UpdateArguments
    from pds.progress import ProgressArgument
    from pds.store import Store

_MEMORY_LIMIT = 256 * 2**20


@traces("pds.pipeline", "update", "refresh", "rebuild", "check", "compact", "vacuum")
class Pipeline(Upkeep):
    """A graph of sources and stages in a folder of a store. An update costs what it changes, not what there is.

    A source has rows `key` and `value`, which callers push. A stage is a function that is called for each source key
    with all its values, and emits pairs of a target key and a value. Its result is stored, sorted by target key. An
    update calls the functions for the keys that changed only, and commits all stages together or none.

    A function that changed without a new `version` of its stage is a `UserWarning` of the next update, before anything
    is computed: rows of keys that do not change stay as they are.

    Args:
        store: The store. It must honor conditional writes, as S3, Azure Blob Storage, Google Cloud Storage, local files
            and memory do.
        path: The folder of the pipeline, relative to the store. The first update creates it.
        memory_limit: The limit of the memory of an update in bytes, beside what the functions take. What does not
            fit is spilled to temporary files.
        commit_timeout: The time in seconds in which a commit is attempted again after conflicts with other writers,
            waits for updates that have lost such conflicts included. It does not include the first eight computations
            of an update.
        engine: What computes stages with much work: `pds.spark.SparkEngine(spark)`. Defaults to this process. The
            tables are the same.

    Raises:
        InvalidInput: An argument has an invalid value.
        InvalidType: An argument has an invalid type.
        UnsafeStore: The store is a `remote_store.Store`, which has no conditional writes.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        memory_limit: int = _MEMORY_LIMIT,
        commit_timeout: float = COMMIT_TIMEOUT_SECONDS,
        engine: Engine | None = None,
    ) -> None:
        self._location = TableLocation.from_arguments(store, path, None, commit_timeout=commit_timeout)
        self._memory_limit = check_size("memory_limit", memory_limit)
        if engine is not None and not hasattr(engine, "bind"):
            raise InvalidType(f"engine must be a pds.spark.SparkEngine, not {type(engine).__name__}")
        self._engine = engine
        super().__init__()
        # Only tests change them.
        self._page_rows: int | None = None
        self._file_rows: int | None = None

    def update(
        self,
        changes: Mapping[str, Changes | Replace] | None = None,
        /,
        *,
        base_version: int | None = None,
        idempotency_key: str | None = None,
        progress: ProgressArgument = False,
        **named: Changes | Replace,
    ) -> UpdateResult:
        """Change sources, and bring all stages up to date, by one commit. The first update creates the pipeline.

        Args:
            changes: The changes by the name of the source, for names that are not identifiers.
            base_version: The version that the changes are based on; 0 for a pipeline without data. Defaults to any.
            idempotency_key: A name for this update. A second one with the same name changes nothing.
            progress: As for `Table.append`. The phase names the stage that is computed. Rows are those of the sources
                that change, and those that stages emit, also if they are stored already.
            named: The changes of each source.

        Raises:
            ProduceError: A function raised an exception, or emitted what its stage cannot store.
            InvalidInput: A source or a version does not exist; a row does not fit the source; a key is deleted twice,
                or both deleted and upserted; or a function of a stage calls this for its own pipeline.
            CommitConflict: Another update came after `base_version`, or others came first until the timeout.
            DefinitionChanged: The graph is not the one that is stored; see `rebuild`, `remove` and `rename`.
            InvalidType: An argument has an invalid type.
        """
        refuse_own_update(self._location.store, self.path)
        arguments, pushed = self._make_arguments(base_version, idempotency_key), _merge_names(changes, named)
        inputs = self._make_inputs(arguments)
        # The update finds a replay and a conflict itself, but only after the rows are read, or staged by an engine.
        if base_version is not None or (idempotency_key is not None and inputs.are_spread(pushed)):
            replay = self._find_replay(arguments)
            if replay is not None:
                return replay
        sources = inputs.of_changes(pushed)
        with reported("update", progress):
            return self._update(sources, arguments)

    def _find_replay(self, arguments: UpdateArguments) -> UpdateResult | None:
        store = self._location.store
        requests = store.metrics()["requests"]
        key, base_version = arguments.idempotency_key, arguments.base_version
        fields = _pds.find_pipeline_replay(self._location.handle, self.path, key, base_version)
        return None if fields is None else UpdateResult.of(fields, store.metrics()["requests"] - requests)

    def refresh(self, *, progress: ProgressArgument = False) -> UpdateResult | None:
        """Read what is new in the tables and pipelines that feed sources, and update all stages, by one commit.

        Of each the changes since the version that was read last are read: their keys are read whole at the newest
        version, which is the same for all sources that it feeds. Keys whose rows are the same stay unchanged. If a
        vacuum removed that version, all rows are read and compared with those of the source.

        Args:
            progress: As for `update`.

        Returns:
            The result, or None if nothing is new that feeds a source, and no source or stage is: then nothing is
            committed.

        Raises:
            NotFound: A table or a stage that feeds a source does not exist any more.
            ProduceError: As for `update`.
            DefinitionChanged: As for `update`; also if the types of a table's columns or of a stage are others.
            CommitConflict: Other updates of the pipeline came first until the timeout.
            InvalidInput: A function of a stage calls this for its own pipeline.
        """
        refuse_own_update(self._location.store, self.path)
        with reported("refresh", progress):
            return self._refresh()

    def _refresh(self) -> UpdateResult | None:
        deadline = time.monotonic() + self._location.timeout
        while True:
            # Each pass ends with an error of its own: what is not reached keeps the one of an earlier pass.
            for attached in self._attachments.values():
                attached.failure = None
            handle = self._open()
            stored = read_nodes(handle)
            try:
                arguments = self._make_arguments()
                inputs = self._make_inputs(arguments).of_attachments(stored)
                if not inputs and stored.keys() >= self._nodes.keys():
                    if handle is not None:
                        handle.check_definitions(list(self._nodes.values()))
                    return None
                return self._update(inputs, arguments)
            except RemoteStoreError as error:
                errors = (attached.failure for attached in self._attachments.values())
                failures = [failure for failure in errors if failure is not None]
                cause = failures[0] if failures else error
                # Another process has read the same changes, or a vacuum removed the version that is read.
                if not isinstance(cause, CommitConflict | VersionExpired) or time.monotonic() > deadline:
                    raise cause from cause.__cause__

    def _warn_of_changes(self, arguments: UpdateArguments) -> UpdateArguments:
        return arguments._replace(changed_function=functools.partial(warn_of_change, self._nodes))

    def _make_inputs(self, arguments: UpdateArguments) -> Inputs:
        return Inputs(self._location.store, self.path, self._nodes, self._attachments, self._engine, arguments)

    def _update(self, inputs: list[SourceInput], arguments: UpdateArguments) -> UpdateResult:
        store = self._location.store
        requests = store.metrics()["requests"]
        used = self._make_inputs(arguments).used(inputs)
        with used as sources, marked_functions(store, self.path, self._nodes.values()) as nodes:
            arguments = self._warn_of_changes(arguments)
            fields = _pds.update_pipeline(self._location.handle, self.path, nodes, sources, arguments)
        return UpdateResult.of(fields, store.metrics()["requests"] - requests)

    def preview(
        self,
        changes: Mapping[str, Changes | Replace] | None = None,
        /,
        *,
        base_version: int | None = None,
        idempotency_key: str | None = None,
        progress: ProgressArgument = False,
        **named: Changes | Replace,
    ) -> Preview:
        """Do all of an update but its commit, and return the version that it would make.

        Arguments and errors are those of `update`; no version is made. With an idempotency key that an update had
        before, nothing is computed: the preview has no changes, and is `replayed` as the result of `update` would be.

        Raises:
            VersionExpired: A vacuum removed rows of the version that the preview is based on, while it counted what
                changes. If they go while it is computed, it is computed again, from the newest version; this is the
                error if that happens time after time, too. Make another preview.
        """
        arguments, pushed = self._make_arguments(base_version, idempotency_key), _merge_names(changes, named)
        if base_version is not None:
            self._find_replay(arguments)
        inputs = self._make_inputs(arguments).of_changes(pushed)
        with reported("preview", progress):
            handle = self._preview(inputs, self._warn_of_changes(arguments))
        return Preview(handle, self._location.store, self._memory_limit)

    def _preview(
        self, inputs: list[SourceInput], arguments: UpdateArguments, declared: list[Node] | None = None
    ) -> _pds.PreviewHandle:
        declared = declared or list(self._nodes.values())
        used = self._make_inputs(arguments).used(inputs)
        with used as sources, marked_functions(self._location.store, self.path, declared) as nodes:
            return _pds.preview_pipeline(self._location.handle, self.path, nodes, sources, arguments)

    def check(self, *stages: str, sample: float | None = None, progress: ProgressArgument = False) -> PipelineCheck:
        """Compute stages anew from what feeds them, and compare that with what is stored. Nothing is committed.

        A stage that differs has a function that is not deterministic, or depends on how keys were batched, or has
        changed without a new version; or its stored rows are wrong. Each stage is computed from the stored rows of its
        feeders. It takes what rebuilds of the stages take, or about the part `sample` of that. Functions that take
        batches get smaller ones than in an update, of a size by chance. The values of a key come in their order, which
        functions may depend on.

        Args:
            stages: Their names. Defaults to all.
            sample: About which part of the keys of their feeders is looked at, above 0 and up to 1: some ranges of
                keys, others in each call, so functions see them in other batches. Keys of which the first 64 bytes are
                alike are looked at together. The other stages behind one that differs are computed, too. Defaults to
                all keys.
            progress: As for `update`.

        Raises:
            NotFound: The pipeline has no version yet, or no such stage.
            DefinitionChanged, ProduceError: As for `update`.
            InvalidInput: `sample` is not above 0 and at most 1.
            InvalidType: A name is not a text, or `sample` is not a number.
        """
        if sample is not None:
            if isinstance(sample, bool) or not isinstance(sample, int | float):
                raise InvalidType(f"sample must be a number, not {sample!r}")
            if not 0 < sample <= 1:
                raise InvalidInput(f"sample must be above 0 and at most 1, not {sample}")
        handle = self._open()
        if handle is None:
            raise NotFound("the pipeline has no version yet", path=self.path)
        stored_nodes = read_nodes(handle)
        stored = [name for name, node in stored_nodes.items() if node["feeders"]]
        for name in stages:
            if require_text("a stage", name) not in stored:
                raise NotFound(f"the pipeline has no stage {name!r}; it has {stored}", path=self.path)
        version, differences = handle.version, []
        with reported("check", progress):
            for name in stages or stored:
                nodes = self._vary_batches(stored_nodes, sample or 1)
                arguments = self._make_arguments(nodes=nodes)._replace(rebuilt=[name], sample=sample)
                preview = self._preview([], arguments, nodes)
                try:
                    version, difference = find_difference(preview, name, self._memory_limit)
                finally:
                    preview.discard()
                if difference is not None:
                    differences.append(difference)
        return PipelineCheck(version, differences)

    def _vary_batches(self, stored: dict[str, dict[str, Any]], part: float) -> list[Node]:
        rows = {name: sum(map(count_rows, node["content"])) for name, node in stored.items()}
        return [
            vary_batches(node, part * sum(rows.get(name, 0) for name in node.feeders or ()))
            for node in self._nodes.values()
        ]

    def rebuild(
        self,
        *stages: str,
        base_version: int | None = None,
        idempotency_key: str | None = None,
        progress: ProgressArgument = False,
    ) -> UpdateResult:
        """Compute stages anew from all rows of their feeders, by one commit.

        A stage whose definition is another than the stored one must be rebuilt: `update` refuses it. The old rows are
        compared with the new ones, so the stages behind it are called for the keys that differ. If the types or the
        order of its key or value are others, its tables are new, and all stages behind it are computed anew, too. A
        hook that preserves values gets the old ones if the types are the same.

        Args:
            stages: Their names. Defaults to all whose definition has changed.
            base_version: As in `update`.
            idempotency_key: As in `update`.
            progress: As for `update`.

        Raises:
            InvalidInput: There is no such stage, or a function of one calls this for its own pipeline.
            DefinitionChanged: The stored pipeline has a source or stage that is not declared, a source that is declared
                otherwise, a stage with a higher version of its function, or another changed stage than those named.
            ProduceError: As for `update`.
            CommitConflict: As for `update`.
            InvalidType: An argument has an invalid type.
        """
        refuse_own_update(self._location.store, self.path)
        names = [require_text("a stage", name) for name in stages]
        arguments = self._make_arguments(base_version, idempotency_key)
        with reported("rebuild", progress):
            return self._update([], arguments._replace(rebuilt=names, rebuilds_changed=not names))

    def as_of(self, version: int | str) -> PipelineVersion:
        """Return an older version of the pipeline.

        Args:
            version: Its number, or a tag.

        Raises:
            InvalidInput: The version does not exist.
            NotFound: There is no such tag.
            VersionExpired: A vacuum removed the version.
        """
        if isinstance(version, str):
            tags = self.tags
            if version not in tags:
                raise NotFound(f"there is no tag {version!r}; there are {sorted(tags)}", path=self.path)
            version = tags[version]
        handle = _pds.PipelineHandle.open(self._location.handle, self.path, check_version(version))
        if handle is None:
            raise InvalidInput(f"version {version} does not exist")
        return PipelineVersion(handle, self._memory_limit, (self._location.store, self.path))

    def draw(self) -> Drawing:
        """Return a drawing of the graph: its text is for terminals, and notebooks show it.

        An edge has the number of rows that its feeder has. The row counts are those of the stored runs: rows that newer
        runs replace count until they are compacted.
        """
        stored = read_nodes(self._open())
        boxes = [
            Box(
                name,
                tuple(node["feeders"]),
                sum(file["rows"] for run in node["content"] for file in run["files"]),
                len(node["content"]),
            )
            for name, node in stored.items()
        ]
        declared = (node for name, node in self._nodes.items() if name not in stored)
        boxes += (Box(node.name, tuple(node.feeders or ()), None, 0) for node in declared)
        return Drawing(boxes)

    def explain(self) -> Explanation:
        """Return how each declared source and stage is updated, and what is stored of it. No function is called.

        What an update with certain changes would do is found by `preview`.
        """
        return explain(self._nodes.values(), self._attachments, read_nodes(self._open()))

    def __getitem__(self, name: str) -> PipelineTable:
        """Return a source or a stage at the newest version.

        Raises:
            NotFound: It is neither declared nor stored.
        """
        require_text("the name of a source or stage", name)
        handle, origin = self._open(), (self._location.store, self.path)
        if handle is not None:
            return PipelineVersion(handle, self._memory_limit, origin)[name]
        if name not in self._nodes:
            raise NotFound(f"there is no source or stage {name!r}", path=self.path)
        return PipelineTable(None, name, self._memory_limit, origin)

    def __repr__(self) -> str:
        return f"Pipeline({self._location.store!r}, {self.path!r})"


def _merge_names(
    changes: Mapping[str, Changes | Replace] | None, named: Mapping[str, Changes | Replace]
) -> dict[str, Any]:
    if changes is not None and not isinstance(changes, Mapping):
        raise InvalidType(f"changes must be a dict of the changes of each source, not {abbreviate(changes)}")
    twice = sorted((changes or {}).keys() & named.keys())
    if twice:
        raise InvalidInput(
            f"the changes of {twice[0]!r} are given twice: as an argument and in the dict; give them once"
        )
    return {**(changes or {}), **named}

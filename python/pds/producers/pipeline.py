"""Pipelines: graphs of sources and stages whose results are kept up to date."""

from __future__ import annotations

import functools
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds import _pds
from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType, NotFound
from pds.producers.calls import StageCall
from pds.producers.changes import to_input
from pds.producers.drawing import Box, Drawing
from pds.producers.graph import Node, UpdateArguments
from pds.producers.preserve import Preserve, PreservePass
from pds.producers.results import CompactResult, UpdateResult
from pds.producers.tables import PipelineTable
from pds.table.checks import check_idempotency_key, check_limit, check_size, check_version
from pds.table.location import TableLocation
from pds.table.results import VacuumResult, make_history_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pds.producers.changes import Changes, Replace
    from pds.store import Store

_TIMEOUT_SECONDS = 120.0
_MEMORY_LIMIT = 256 * 2**20


class Declared:
    """A source or a stage that a pipeline declares; stages take it as a feeder."""

    def __init__(self, pipeline: Pipeline, node: Node) -> None:
        self._pipeline = pipeline
        self._node = node

    @property
    def name(self) -> str:
        """The name."""
        return self._node.name

    def _feeder_fields(self) -> list[pa.Schema]:
        declared = self._pipeline._declared  # noqa: SLF001 of this module
        return [declared[name]._node.fields for name in self._node.feeders or ()]  # noqa: SLF001

    def __repr__(self) -> str:
        return f"<{'source' if self._node.feeders is None else 'stage'} {self.name!r}>"


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


class Pipeline:
    """A graph of sources and stages in a folder of a store. An update costs what it changes, not what there is.

    A source has rows `key` and `value`, which callers push. A stage is a function that is called for each source key
    with all its values, and emits pairs of a target key and a value. Its result is stored, sorted by target key. An
    update calls the functions for the keys that changed only, and commits all stages together or none.

    Args:
        store: The store. It must honor conditional writes, as S3, Azure Blob Storage, Google Cloud Storage, local files
            and memory do.
        path: The folder of the pipeline, relative to the store. The first update creates it.
        memory_limit: The limit of the memory of an update in bytes, beside what the functions take. What does not
            fit is spilled to temporary files.
        commit_timeout: The time in seconds in which a commit is attempted again after conflicts with other writers.

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
        commit_timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        self._location = TableLocation.from_arguments(store, path, None, commit_timeout=commit_timeout)
        self._memory_limit = check_size("memory_limit", memory_limit)
        self._declared: dict[str, Declared] = {}
        # Only tests change them.
        self._page_rows: int | None = None
        self._file_rows: int | None = None

    @property
    def path(self) -> str:
        """The folder of the pipeline."""
        return self._location.path

    def source(
        self,
        name: str,
        *,
        key: pa.DataType | pa.Field[Any],
        value: pa.DataType | pa.Field[Any],
        descending: bool = False,
        skip_unchanged: bool = False,
    ) -> Declared:
        """Declare a source.

        Args:
            name: The name.
            key: The type of the key, which may be null; `pa.field("key", type, nullable=False)` for one that may not.
                Keys are scalars and structs of scalars.
            value: The type of the value, as `key`; any type.
            descending: Whether the greatest key comes first. Nulls are first in ascending order.
            skip_unchanged: Whether a key that is pushed with the rows that it has counts as unchanged.

        Raises:
            InvalidInput: The name is declared already.
            InvalidType: An argument has an invalid type.
        """
        fields = pa.schema([_to_field("key", key), _to_field("value", value)])
        node = Node(require_text("name", name), None, False, fields, descending, skip_unchanged, {}, None)  # noqa: FBT003
        return self._declare(node)

    def producer(  # noqa: PLR0913 a declaration
        self,
        *feeders: Declared,
        key: pa.DataType | pa.Field[Any],
        value: pa.DataType | pa.Field[Any],
        name: str | None = None,
        descending: bool = False,
        batch: bool = False,
        skip_unchanged: bool = False,
        preserve: Preserve | None = None,
        version: int = 1,
        max_group_rows: int = 1_000_000,
    ) -> Callable[[Callable[..., Any]], Declared]:
        """Declare a stage: decorate its function `produce(key, values)`, which yields pairs (target key, value).

        `values` iterates once over all values of the key, feeder by feeder; values that are not read are skipped. The
        result must depend on the key and the values only.

        Args:
            feeders: The sources and stages whose rows it reads: their keys are its source keys. They have the same
                types and the same order of keys.
            key: The type of the target key, as in `source`.
            value: The type of the value.
            name: The name. Defaults to that of the function.
            descending: Whether the greatest target key comes first.
            batch: Whether the function takes and returns record batches: `produce(batch)` gets whole groups, with the
                columns `key` and `value`, and returns `source_row` (the row of the input whose key is the source
                key), `key` and `value`.
            skip_unchanged: Whether keys whose rows stay the same are left out of what the stages behind it see.
            preserve: A hook that gives the value to store for each emitted row. It may keep an earlier one.
            version: The version of the function. Raise it when the function changes: then its results are another.
            max_group_rows: The largest group of a function that takes batches.

        Raises:
            InvalidInput: The feeders do not fit together, or the name is declared already.
            InvalidType: An argument has an invalid type.
        """

        def declare(function: Callable[..., Any]) -> Declared:
            fields = pa.schema([_to_field("key", key), _to_field("value", value)])
            call = StageCall(_name_of(function, name), function, fields, False, max_group_rows if batch else None)  # noqa: FBT003
            options = {"descending": descending, "skip_unchanged": skip_unchanged}
            return self._declare_stage(call, feeders, options, version, preserve)

        return declare

    def join(
        self,
        *feeders: Declared,
        key: pa.DataType | pa.Field[Any],
        value: pa.DataType | pa.Field[Any],
        name: str | None = None,
        descending: bool = False,
        skip_unchanged: bool = False,
        preserve: Preserve | None = None,
        version: int = 1,
    ) -> Callable[[Callable[..., Any]], Declared]:
        """Declare a stage whose function gets the values of each feeder apart: `produce(key, values_of_a, …)`.

        The feeders may have different types of values. A feeder without a row of the key gives no values; a key that
        none of them has is not called for. Arguments and errors are those of `producer`.
        """

        def declare(function: Callable[..., Any]) -> Declared:
            fields = pa.schema([_to_field("key", key), _to_field("value", value)])
            call = StageCall(_name_of(function, name), function, fields, True, None)  # noqa: FBT003
            options = {"descending": descending, "skip_unchanged": skip_unchanged}
            return self._declare_stage(call, feeders, options, version, preserve)

        return declare

    def _declare_stage(
        self,
        call: StageCall,
        feeders: Sequence[object],
        options: dict[str, bool],
        version: int,
        hook: Preserve | None,
    ) -> Declared:
        names = []
        for feeder in feeders:
            if not isinstance(feeder, Declared) or feeder._pipeline is not self:  # noqa: SLF001 of this module
                raise InvalidType(
                    f"a feeder of {call.stage!r} must be a source or stage of this pipeline, not {feeder!r}; "
                    f"a decorated function is one"
                )
            names.append(feeder.name)
        definition = {"version": check_version(version, f"version of stage {call.stage!r}")}
        preserve = None
        if hook is not None:
            if not isinstance(hook, Preserve):
                raise InvalidType(f"preserve of {call.stage!r} must be a pds.Preserve, not {type(hook).__name__}")
            hook.check(call.stage)
            definition["preserve"] = 1
            preserve = functools.partial(PreservePass, hook, call.stage, call.fields.field("value"))
        call.check()
        node = Node(
            call.stage,
            names,
            call.is_join,
            call.fields,
            **options,
            definition=definition,
            function=call,
            preserve=preserve,
        )
        return self._declare(node)

    def _declare(self, node: Node) -> Declared:
        for option in ("descending", "skip_unchanged"):
            if not isinstance(getattr(node, option), bool):
                raise InvalidType(f"{option} of {node.name!r} must be True or False, not {getattr(node, option)!r}")
        if node.name in self._declared:
            raise InvalidInput(f"there are two stages or sources named {node.name!r}")
        _pds.check_graph([*(declared._node for declared in self._declared.values()), node])  # noqa: SLF001
        self._declared[node.name] = Declared(self, node)
        return self._declared[node.name]

    def update(
        self,
        changes: Mapping[str, Changes | Replace] | None = None,
        /,
        *,
        base_version: int | None = None,
        idempotency_key: str | None = None,
        **named: Changes | Replace,
    ) -> UpdateResult:
        """Change sources, and bring all stages up to date, by one commit. The first update creates the pipeline.

        Args:
            changes: The changes by the name of the source, for names that are not identifiers.
            base_version: The version that the changes are based on; 0 for a pipeline without data. Defaults to any.
            idempotency_key: A name for this update. A second one with the same name changes nothing.
            named: The changes of each source.

        Raises:
            ProduceError: A function raised an exception, or emitted what its stage cannot store.
            InvalidInput: A source or a version does not exist; a row does not fit the source; a key is deleted twice,
                or both deleted and upserted.
            CommitConflict: Another update came after `base_version`, or others came first until the timeout.
            DefinitionChanged: The graph is not the one that is stored.
            InvalidType: An argument has an invalid type.
        """
        all_changes = {**(changes or {}), **named}
        inputs = []
        for name, change in all_changes.items():
            declared = self._declared.get(name)
            if declared is None or declared._node.feeders is not None:  # noqa: SLF001 of this module
                sources = [d.name for d in self._declared.values() if d._node.feeders is None]  # noqa: SLF001
                raise InvalidInput(f"there is no source {name!r}; there are {sources}")
            inputs.append(to_input(name, change, declared._node.fields))  # noqa: SLF001
        base = base_version
        if base is not None and (base != 0 or isinstance(base, bool)):
            check_version(base, "base_version")
        store = self._location.store
        requests = store.metrics()["requests"]
        fields = _pds.update_pipeline(
            self._location.handle,
            self.path,
            [declared._node for declared in self._declared.values()],  # noqa: SLF001
            inputs,
            self._make_arguments(base, check_idempotency_key(idempotency_key)),
        )
        return UpdateResult.of(fields, store.metrics()["requests"] - requests)

    @property
    def version(self) -> int:
        """The newest version; 0 before the first update."""
        handle = self._open()
        return 0 if handle is None else handle.version

    def as_of(self, version: int) -> PipelineVersion:
        """Return an older version of the pipeline.

        Raises:
            InvalidInput: The version does not exist.
            VersionExpired: A vacuum removed the version.
        """
        handle = _pds.PipelineHandle.open(self._location.handle, self.path, check_version(version))
        if handle is None:
            raise InvalidInput(f"version {version} does not exist")
        return PipelineVersion(handle, self._memory_limit)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the commits, newest first, without those that a vacuum removed.

        Args:
            limit: The maximum number of versions. Defaults to all versions.

        Returns:
            A dict for each version: `version`, `created_at`, `commit_id` and `operation` (a name and counts).
        """
        checked_limit = check_limit(limit)
        handle = self._open()
        if handle is None:
            return []
        entries = handle.history(handle.version if checked_limit is None else checked_limit)
        return [make_history_entry(json.loads(entry)) for entry in entries]

    def draw(self) -> Drawing:
        """Return a drawing of the graph: its text is for terminals, and notebooks show it.

        The row counts are those of the stored runs: rows that newer runs replace count until they are compacted.
        """
        handle = self._open()
        stored = [] if handle is None else json.loads(handle.manifest())["nodes"]
        boxes = [
            Box(
                node["name"],
                tuple(node["feeders"]),
                sum(file["rows"] for run in node["content"] for file in run["files"]),
                len(node["content"]),
            )
            for node in stored
        ]
        known = {box.name for box in boxes}
        for name, declared in self._declared.items():
            if name not in known:
                boxes.append(Box(name, tuple(declared._node.feeders or ()), None, 0))  # noqa: SLF001 of this module
        return Drawing(boxes)

    def compact(self, *, min_delta: float = 0.25) -> CompactResult:
        """Merge the runs of each table into fewer. No row changes, and no update conflicts with it.

        Args:
            min_delta: The newer runs of a table are merged into one. If they have at least this fraction of the bytes
                of the oldest one, that is rewritten too, and the table has one run. 0 merges all runs of all tables.

        Raises:
            InvalidInput: The fraction is negative.
            InvalidType: The fraction is not a number.
            NotFound: The pipeline has no version yet.
        """
        if isinstance(min_delta, bool) or not isinstance(min_delta, int | float):
            raise InvalidType(f"min_delta must be a number, not {min_delta!r}")
        if not min_delta >= 0:
            raise InvalidInput(f"min_delta must not be negative, not {min_delta}")
        arguments = self._make_arguments()
        fields = _pds.compact_pipeline(self._location.handle, self.path, float(min_delta), arguments)
        return CompactResult(**fields)

    def vacuum(self, retention: timedelta = timedelta(days=7), *, dry_run: bool = False) -> VacuumResult:
        """Remove versions that were replaced more than `retention` ago, and the files that only they reference.

        Args:
            retention: How long a replaced version can be read. Files of updates that run longer are removed, and such
                an update begins again.
            dry_run: Whether to report what would be removed, and remove nothing.

        Raises:
            InvalidInput: The retention is negative.
            InvalidType: An argument has an invalid type.
            NotFound: The pipeline has no version yet.
        """
        if not isinstance(retention, timedelta):
            raise InvalidType(f"retention must be a timedelta, not {retention!r}")
        location = self._location
        seconds = retention.total_seconds()
        fields = _pds.vacuum_pipeline(location.handle, self.path, seconds, bool(dry_run), location.timeout)
        return VacuumResult(**fields)

    def _make_arguments(self, base_version: int | None = None, idempotency_key: str | None = None) -> UpdateArguments:
        return UpdateArguments(
            base_version=base_version,
            idempotency_key=idempotency_key,
            memory_limit=self._memory_limit,
            page_rows=self._page_rows,
            file_rows=self._file_rows,
            commit_timeout=self._location.timeout,
        )

    def _open(self) -> _pds.PipelineHandle | None:
        return _pds.PipelineHandle.open(self._location.handle, self.path, None)

    def __getitem__(self, name: str) -> PipelineTable:
        """Return a source or a stage at the newest version.

        Raises:
            NotFound: It is neither declared nor stored.
        """
        handle = self._open()
        if handle is not None:
            return PipelineVersion(handle, self._memory_limit)[name]
        if name not in self._declared:
            raise NotFound(f"there is no source or stage {name!r}", path=self.path)
        return PipelineTable(None, name, self._memory_limit)

    def __repr__(self) -> str:
        return f"Pipeline({self._location.store!r}, {self.path!r})"


def _to_field(name: str, field: object) -> pa.Field[Any]:
    if isinstance(field, pa.Field):
        return field.with_name(name)
    if isinstance(field, pa.DataType):
        return pa.field(name, field)
    raise InvalidType(f"{name} must be a pyarrow DataType or Field, not {field!r}")


def _name_of(function: object, name: str | None) -> str:
    if not callable(function):
        raise InvalidType(f"a producer decorates a function, not {type(function).__name__}")
    return require_text("name", getattr(function, "__name__", None) if name is None else name)

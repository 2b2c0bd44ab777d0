"""Sources that are fed by a stage of another pipeline: what changed in it since the version that was read last.

The changes are the net ones between the two versions: of each key that differs all rows at the newer one, in the order
of the stage. So nothing is compared but where these versions cannot be: then all rows are.
"""

from __future__ import annotations

import functools
import itertools
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pds import _pds
from pds.errors import DefinitionChanged, InvalidInput, NotFound, VersionExpired
from pds.producers.attached import attach_table, describe_field
from pds.producers.attachment import Attachment
from pds.producers.graph import ConsumedTable, SourceInput
from pds.producers.groups import take
from pds.producers.tables import PipelineTable, read_nodes
from pds.readers import make_reader, read_scan
from pds.store import native_handle
from pds.streams import arrow_stream
from pds.urls import join_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pds.producers.attached import Stager
    from pds.store import Store

# The type of a change of a key that has no row any more.
_DELETE = pa.scalar(2, pa.int32())
# The most bytes of deleted keys that are held. More are read again.
_MAX_HELD_BYTES = 32 << 20
# What a batch takes besides its values, of which it may have few.
_BATCH_BYTES = 2 << 10


class StageChanges:
    """Changes of a stage: rows of keys, and keys without rows, which are read after the rows.

    Args:
        open_scan: Begins to read the changes.
        fields: The fields `key` and `value`.
    """

    def __init__(self, open_scan: Callable[[], _pds.Scan], fields: pa.Schema) -> None:
        self._open_scan = open_scan
        self._fields = fields
        self._batches = read_scan(open_scan())
        self._first = next(self._batches, None)
        self._deleted: list[pa.RecordBatch] | None = []
        self._deleted_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return self._first is None

    def read_upserts(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, once."""
        for batch in itertools.chain([] if self._first is None else [self._first], self._batches):
            self._hold(self._take(batch, is_delete=True))
            yield self._take(batch, is_delete=False)

    def read_deletes(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys without rows."""
        if self._deleted is not None:
            yield from self._deleted
            return
        for batch in read_scan(self._open_scan()):
            yield self._take(batch, is_delete=True)

    def _hold(self, keys: pa.RecordBatch) -> None:
        if self._deleted is not None and keys.num_rows:
            self._deleted.append(keys)
            self._deleted_bytes += keys.nbytes + _BATCH_BYTES
            if self._deleted_bytes > _MAX_HELD_BYTES:
                self._deleted = None

    def _take(self, batch: pa.RecordBatch, *, is_delete: bool) -> pa.RecordBatch:
        """Return the deleted keys of a batch, or its rows."""
        types: Any = batch.column(0)
        is_chosen: Any = pc.equal(types, _DELETE) if is_delete else pc.not_equal(types, _DELETE)
        columns = batch.columns[1:2] if is_delete else batch.columns[1:]
        # A copy of the keys, which are held, does not hold the memory of the values.
        if is_delete or pc.sum(is_chosen).as_py() != batch.num_rows:
            rows = pc.indices_nonzero(is_chosen)
            columns = [take(column, rows) for column in columns]
        schema = pa.schema([self._fields.field("key")]) if is_delete else self._fields
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class AttachedStage(Attachment):
    """A stage of another pipeline that feeds a source.

    Args:
        store: The store of the pipeline.
        path: Its path.
        stage: The name of the stage.
        fields: The fields `key` and `value` of the stage.
        memory_limit: The limit of the memory that reading it takes, in bytes.
    """

    kind = "stage"
    is_compared = False
    advice = "a stage of another pipeline; update that pipeline"

    def __init__(self, store: Store, path: str, stage: str, fields: pa.Schema, memory_limit: int) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._stage = stage
        self._fields = fields
        self._memory_limit = memory_limit

    @property
    def title(self) -> str:
        """The stage and its pipeline."""
        return f"{self._stage!r} of {self._path!r}"

    @property
    def fields(self) -> pa.Schema:
        """The fields `key` and `value`."""
        return self._fields

    @property
    def identity(self) -> tuple[Store, str]:
        """What sources that stages of the same pipeline feed have in common."""
        return self._store, self._path

    def describe_reads(self) -> str:
        """Say what is read for a changed key."""
        return f"its rows in stage {self._stage!r} of pipeline {self._path!r}, as they were and as they are"

    def open_newest(self) -> _pds.PipelineHandle:
        """Return the pipeline at its newest version.

        Raises:
            NotFound: It does not exist any more.
        """
        handle = _pds.PipelineHandle.open(native_handle(self._store), self._path, None)
        if handle is None:
            message = f"the pipeline at {self._path!r} does not exist; its stage {self._stage!r} feeds a source"
            raise NotFound(message, path=self._path)
        return handle

    def read(
        self,
        source: str,
        consumed: dict[str, Any] | None,
        stager: Stager,  # noqa: ARG002 what changed is read here
        newest: _pds.PipelineHandle,
    ) -> SourceInput | None:
        """Return what is new since the version that was read last, or everything; as `Attachment.read`.

        Raises:
            NotFound: The stage was removed or renamed.
            DefinitionChanged: The types of its key or value are others.
        """
        self._check_stage(source, newest)
        before = None if consumed is None else ConsumedTable(**{"columns": [], **consumed})
        location, commit_id = f"{self._path}#{self._stage}", _find_commit(newest)
        now = ConsumedTable(location, newest.version, commit_id, [])
        if now == before:
            return None
        changes = None
        if before is not None and (before.location, before.columns) == (now.location, now.columns):
            changes = self._find_changes(newest, before)
        if changes is None:
            return SourceInput(source, self._to_stream(self._read_rows(newest), self._fields), None, "all", now, before)
        if changes.is_empty:
            return None
        upserts = self._to_stream(changes.read_upserts(), self._fields)
        deletes = self._to_stream(changes.read_deletes(), pa.schema([self._fields.field("key")]))
        return SourceInput(source, upserts, deletes, "named", now, before)

    def _check_stage(self, source: str, newest: _pds.PipelineHandle) -> None:
        stages = [name for name, node in read_nodes(newest).items() if node["feeders"]]
        if self._stage not in stages:
            message = (
                f"pipeline {self._path!r} has no stage {self._stage!r} any more, which feeds {source!r}; it has "
                f"{stages}: if it was renamed, declare the source with the stage of the new name"
            )
            raise NotFound(message, path=self._path)
        for declared, stored in zip(self._fields, _find_fields(newest, self._stage), strict=True):
            if not stored.equals(declared):
                message = (
                    f"the {declared.name} of stage {self._stage!r} of pipeline {self._path!r}, which feeds {source!r}, "
                    f"is {describe_field(stored)} now, not {describe_field(declared)}; declare another source"
                )
                raise DefinitionChanged(message, path=self._path)

    def _find_changes(self, newest: _pds.PipelineHandle, before: ConsumedTable) -> StageChanges | None:
        """Return the changes since a version, or None if nobody can tell."""
        # After the pipeline was removed and made anew, or restored from a copy, the version is another.
        if before.version >= newest.version:
            return None
        try:
            older = newest.at(before.version)
            if _find_commit(older) != before.commit_id or self._stage not in read_nodes(older):
                return None
            scan = functools.partial(newest.net_changes, self._stage, before.version, self._memory_limit)
            return StageChanges(scan, self._fields)
        except (DefinitionChanged, VersionExpired):
            return None

    def _read_rows(self, newest: _pds.PipelineHandle) -> Iterator[pa.RecordBatch]:
        for batch in read_scan(newest.read(self._stage, False, None, self._memory_limit)):  # noqa: FBT003 its content
            yield pa.RecordBatch.from_arrays([batch.column(0), batch.column(2)], schema=self._fields)

    def _to_stream(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table | pa.RecordBatchReader:
        return arrow_stream(make_reader(schema, self._noting_failure(batches)))


def attach(feeding: object, key: object, value: object, own: tuple[Store, str]) -> Attachment:
    """Return what feeds a source.

    Args:
        feeding: The table, or the stage of another pipeline.
        key: The columns of the key; None for a stage.
        value: The columns of the value; None for all, and for a stage.
        own: The store and the path of the pipeline of the source.

    Raises:
        InvalidType: It is neither, or names of columns are not texts.
        InvalidInput: The table has no such column. The stage has no version yet, is one of a preview or of this
            pipeline, is a source, or columns are named.
    """
    if not isinstance(feeding, PipelineTable):
        return attach_table(feeding, key, value)
    name, origin = feeding.name, feeding._origin  # noqa: SLF001 of this package
    if key is not None or value is not None:
        raise InvalidInput(f"the key and the value are those of stage {name!r}; leave `key` and `value` out")
    if origin is None:
        raise InvalidInput(f"a stage of a preview cannot feed a source; commit it, and take pipeline[{name!r}]")
    if _find_place(*origin) == _find_place(*own):
        message = f"stage {name!r} is one of this pipeline, which cannot feed a source of it; name it as a feeder"
        raise InvalidInput(message, path=origin[1])
    handle = feeding._get_handle()  # noqa: SLF001 as above
    if not read_nodes(handle)[name]["feeders"]:
        message = f"{name!r} is a source, which has no changes to feed others; push its rows to both, or add a stage"
        raise InvalidInput(message, path=origin[1])
    return AttachedStage(*origin, name, _find_fields(handle, name), feeding._memory_limit)  # noqa: SLF001 as above


def _find_place(store: Store, path: str) -> tuple[object, ...]:
    """Return where something is, whichever part of its URL the store has."""
    url, folder, *options = store._get_identity()  # noqa: SLF001 of this package
    return join_url(join_url(str(url), str(folder)), path), *options


def _find_fields(handle: _pds.PipelineHandle, stage: str) -> pa.Schema:
    key, _, value = handle.schema(stage, False)  # noqa: FBT003 its content
    return pa.schema([key.with_name("key").remove_metadata(), value.with_name("value").remove_metadata()])


def _find_commit(handle: _pds.PipelineHandle) -> str:
    commit_id: str = json.loads(handle.manifest())["commit_id"]
    return commit_id

"""The tables of a pipeline at a version."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds.display import Summarized, Summary, list_columns
from pds.errors import InvalidInput, InvalidType
from pds.producers.changes import to_key_stream
from pds.producers.convert import BadValueError
from pds.producers.groups import to_python
from pds.readers import read_scan
from pds.table.checks import check_version
from pds.table.scan import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pds import _pds
    from pds.store import Store


class PipelineRows(Rows):
    """Rows of a table of a pipeline, which are read on demand. Every method reads them again."""

    def __init__(self, open_scan: Callable[[], _pds.Scan]) -> None:
        self._open = open_scan

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        scan = self._open()
        try:
            return scan.schema
        finally:
            scan.close()

    def _open_scan(self) -> _pds.Scan:
        return self._open()


def read_nodes(handle: _pds.PipelineHandle | None) -> dict[str, dict[str, Any]]:
    """Return what the manifest of a version has of each source and stage, by name; a stage after those that feed it.

    A pipeline without a version has none.
    """
    return {} if handle is None else {node["name"]: node for node in json.loads(handle.manifest())["nodes"]}


def _to_python(keys: pa.Array[Any]) -> list[Any]:
    try:
        return to_python(keys)
    except BadValueError as error:
        raise InvalidInput(f"the keys cannot be Python values: {error}") from error


def distinct_keys(sorted_keys: pa.ChunkedArray[Any], before: list[Any] | None = None) -> list[Any]:
    """Return the keys, each once, behind those before them."""
    keys = list(before or ())
    for key in itertools.chain.from_iterable(map(_to_python, sorted_keys.chunks)):
        # By their text, since not-a-number does not equal itself.
        if not keys or repr(keys[-1]) != repr(key):
            keys.append(key)
    return keys


class PipelineTable(Summarized):
    """A source or a stage at a version of its pipeline."""

    def __init__(
        self,
        handle: _pds.PipelineHandle | None,
        name: str,
        memory_limit: int,
        origin: tuple[Store, str] | None = None,
    ) -> None:
        self._handle = handle
        self._memory_limit = memory_limit
        # The store and the path of the pipeline; None of a preview.
        self._origin = origin
        self.name = name

    @property
    def version(self) -> int:
        """The version of the pipeline; 0 before the first one."""
        return 0 if self._handle is None else self._handle.version

    def _get_handle(self) -> _pds.PipelineHandle:
        if self._handle is None:
            raise InvalidInput(f"{self.name!r} has no data yet; update the pipeline first")
        return self._handle

    def __repr__(self) -> str:
        return f"PipelineTable({self.name!r}, version={self.version})"

    def _summarize(self) -> Summary:
        if self._handle is None:
            return Summary(repr(self))
        return Summary(repr(self), {}, (list_columns(self._handle.schema(self.name, False)),))  # noqa: FBT003 its content

    def scan(self, keys: object = None) -> PipelineRows:
        """Return the rows in the order of the key: `target_key`, `source_key`, `value`; of a source `key` and `value`.

        Args:
            keys: The target keys to read, or the keys of a source: a list, an Arrow array or a Series. Defaults to all.

        Raises:
            InvalidInput: The pipeline has no version yet, or the keys are of another type.
        """
        return self._scan(keys, is_mappings=False)

    def read(self, keys: object = None) -> pa.Table:
        """Return the rows as a pyarrow Table. Arguments and errors are those of `scan`."""
        return self.scan(keys).to_pyarrow()

    def batches(self, keys: object = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, in bounded memory. Arguments and errors are those of `scan`."""
        return iter(self.scan(keys).to_reader())

    def key_mappings(self, keys: object = None) -> pa.Table:
        """Return `source_key` and `target_key` of each row of a stage, in the order of the source key.

        Args:
            keys: The source keys to read. Defaults to all.

        Raises:
            InvalidInput: This is a source, or as for `scan`.
        """
        return self._scan(keys, is_mappings=True).to_pyarrow()

    def lineage(self, keys: object) -> dict[str, list[Any]]:
        """Return the keys from which the rows of some target keys were made, stage by stage up to the sources.

        Args:
            keys: The target keys: a list, or an Arrow array or Series.

        Returns:
            For each source and stage before this one, its keys that the rows were made of, in their order, each once. A
            struct key is a dict.

        Raises:
            InvalidInput: The pipeline has no version yet, or the keys are of another type.
        """
        if keys is None:
            raise InvalidType(f"the keys of {self.name!r} must be an Arrow array or a list of keys, not None")
        handle = self._get_handle()
        nodes = read_nodes(handle)
        feeders = {name: node["feeders"] for name, node in nodes.items()}
        joins = {name for name, node in nodes.items() if "join" in node.get("definition", {}).get("operator", {})}
        needed: dict[str, pa.Array[Any]] = {}
        origins: dict[str, list[Any]] = {}
        for name in reversed(list(feeders)):
            target_keys: Any = keys if name == self.name else needed.get(name)
            if target_keys is None:
                continue
            rows = PipelineTable(handle, name, self._memory_limit).read(target_keys)
            if name != self.name:
                origins[name] = distinct_keys(rows.column(0))
            for feeder in feeders[name]:
                known = needed.get(feeder)
                # The source keys of a declared join name rows of its feeders, by other keys than these have.
                keys_of_rows = rows.column(0 if name in joins else 1).combine_chunks()
                needed[feeder] = keys_of_rows if known is None else pa.concat_arrays([known, keys_of_rows])
        return dict(reversed(list(origins.items())))

    def _scan(self, keys: object, *, is_mappings: bool) -> PipelineRows:
        handle = self._get_handle()
        schema = handle.schema(self.name, is_mappings)

        def open_scan() -> _pds.Scan:
            stream = None if keys is None else to_key_stream(self.name, keys, schema.field(0))
            return handle.read(self.name, is_mappings, stream, self._memory_limit)

        return PipelineRows(open_scan)

    def changes(self, version: int | None = None, *, since: int | None = None, until: int | None = None) -> pa.Table:
        """Return what a version changed in a stage: `type` (0 add, 1 update, 2 delete), `key` and `value`.

        A key of which no row is left is one row of type 2. Of every other key that changed there are all its rows, in
        the order of the content; the first one is of type 0 if the key had no row before. A version that a compaction
        made changed nothing.

        With `since` these are the net changes of several versions: each key is compared at both ends, and is left out
        if its rows are the same, as those of a key are that came and went. What is read follows from what changed.

        A sink stores the version up to which it has the rows, in the transaction in which it changes them. After a
        crash it has both or none. It refuses changes that do not begin at its version, as those of a second process::

            stage = pipeline["totals"]
            changes = stage.changes(since=sink.version)  # 0 at first
            with sink.transaction():
                sink.apply(changes)
                sink.version = stage.version

        Args:
            version: The version. Defaults to the version of this object.
            since: The version after which net changes begin; 0 for all rows.
            until: The last version of these. Defaults to the version of this object.

        Raises:
            InvalidInput: This is a source, a version does not exist, `since` is newer than `until`, or it is used
                otherwise than said here: both `version` and `since`, or `until` alone.
            InvalidType: A version is not an integer.
            NotFound: The version `until` has no such stage.
            VersionExpired: A vacuum removed a version that is needed, and the error names the oldest that there is:
                read the whole stage then. Versions before `since` are not needed.
            DefinitionChanged: The types of the key or the value differ between `since` and `until`: as above.
        """
        handle = self._get_handle()
        if since is not None:
            if version is not None:
                raise InvalidInput("changes are those of `version`, or those after `since`; leave one of them out")
            return self._read_net_changes(since, until)
        if until is not None:
            raise InvalidInput("`until` needs `since`, the version after which changes begin; 0 for all rows")
        opened = handle if version is None else handle.at(check_version(version))
        return PipelineRows(lambda: opened.changes(self.name, self._memory_limit)).to_pyarrow()

    def _read_net_changes(self, since: int, until: int | None) -> pa.Table:
        first = 0 if type(since) is int and since == 0 else check_version(since, "since")
        opened = self._get_handle()
        if until is not None and check_version(until, "until") != opened.version:
            opened = opened.at(until)
        scan = opened.net_changes(self.name, first, self._memory_limit)
        return pa.Table.from_batches(list(read_scan(scan)), scan.schema)

"""Delta tables as tables."""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pds.by_url import open_parent
from pds.errors import CommitConflict, FormatNotSupported, InvalidInput, NotFound
from pds.imports.delta_partitions import in_zone, parse_zone
from pds.imports.delta_schema import list_rules, physical_name, to_columns, to_schema
from pds.imports.plan import ImportPlan, PlannedFile, locate, pack_positions, relative_path, to_texts
from pds.urls import join_url, merge_options, normalize_url

try:
    import deltalake
    from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError
except ImportError as error:
    raise ModuleNotFoundError("pds.import_delta needs deltalake: pip install 'pds[delta]'", name="deltalake") from error

from pds.imports import delta_guard as guard

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping

    from pds.by_url import Url
    from pds.store import Store
    from pds.table.table import Table

# How often a table is planned again that others write.
_ATTEMPTS: Final = 5
_MAX_READER: Final = 3
_DELETION_VECTORS: Final = "deletionVectors"
# What readers have to know of, and this one does, or deltalake on its behalf.
_READER_FEATURES: Final = frozenset(
    {
        "columnMapping",
        _DELETION_VECTORS,
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
# Commits to such tables go through a catalog.
_CATALOG_FEATURES: Final = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"})


def import_table(
    url: Url, *, take_over: bool, partition_time_zone: str | None, storage_options: Mapping[str, object] | None
) -> Table:
    """Make a table of a Delta table; `pds.import_delta` says what is raised."""
    zone = None if partition_time_zone is None else parse_zone(partition_time_zone)
    store, path = open_parent(url, storage_options, None)
    return import_into(store, path, lambda: _open(url, storage_options), take_over=take_over, zone=zone)


def import_into(
    store: Store,
    path: str,
    read: Callable[[], deltalake.DeltaTable],
    *,
    take_over: bool,
    zone: dt.tzinfo | None = None,
) -> Table:
    """Make a table of what `read` gives, which is the newest version of the Delta table in the folder."""
    location = locate(store, path)
    for attempt in range(_ATTEMPTS):
        with _typed_errors(path):
            delta = read()
            _check_features(delta)
            plan = _plan(delta, join_url(store.url, path), zone)
        prepared = plan.prepare(location)
        if attempt == 0:
            _warn(delta, path, is_writable=not take_over and not guard.is_guarded(delta))
        if _is_newest(store, path, delta, read, take_over=take_over):
            return plan.commit(prepared, location)
    raise CommitConflict("other writers committed to the Delta table during every attempt to import it", path=path)


def _is_newest(
    store: Store, path: str, delta: deltalake.DeltaTable, read: Callable[[], deltalake.DeltaTable], *, take_over: bool
) -> bool:
    """Return whether the version that was planned is the newest one; with `take_over`, for ever."""
    if guard.is_guarded(delta):
        return True
    if take_over:
        return guard.take_over(store, path, delta)
    with _typed_errors(path):
        return read().version() == delta.version()


def _warn(delta: deltalake.DeltaTable, path: str, *, is_writable: bool) -> None:
    if is_writable:
        warnings.warn(
            f"other systems can still write the Delta table {path!r}, and their VACUUM may remove files that "
            "the new table needs; take_over=True makes the Delta table read-only",
            stacklevel=5,
        )
    rules = list_rules(_fields(delta), delta.metadata().configuration)
    if rules:
        warnings.warn(
            f"the new table does not have these rules of the Delta table {path!r}, and does not check or fill new "
            f"rows by them: {', '.join(rules)}",
            stacklevel=5,
        )


@contextmanager
def _typed_errors(path: str) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        text = str(error)
        if isinstance(error, DeltaProtocolError) or "Unsupported" in text or "Invalid protocol" in text:
            raise FormatNotSupported(f"deltalake cannot read the Delta table: {text}", path=path) from error
        if "numRecords" in text:
            message = (
                "deltalake cannot read the deletion vector of a file whose statistics lack numRecords; rewrite the "
                f"file, for example by REORG TABLE ... APPLY (PURGE): {text}"
            )
            raise InvalidInput(message, path=path) from error
        raise


def _open(url: Url, storage_options: Mapping[str, object] | None) -> deltalake.DeltaTable:
    normal, implied = normalize_url(url)
    options = {name: str(value) for name, value in merge_options(implied, storage_options).items()}
    try:
        return deltalake.DeltaTable(normal, storage_options=options or None)
    except TableNotFoundError as error:
        raise NotFound("there is no Delta table in the folder", path=str(url)) from error


def _check_features(delta: deltalake.DeltaTable) -> None:
    protocol = delta.protocol()
    unknown = set(protocol.reader_features or ()) - _READER_FEATURES
    managed = _CATALOG_FEATURES.intersection(protocol.writer_features or ())
    if protocol.min_reader_version > _MAX_READER:
        raise FormatNotSupported(
            f"the Delta table has reader version {protocol.min_reader_version}, which is not known"
        )
    if unknown or managed:
        names = sorted(unknown | managed)
        raise FormatNotSupported(f"the Delta table has features that cannot be imported: {names}; drop them first")


def _fields(delta: deltalake.DeltaTable) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(delta.schema().to_json())["fields"]
    return fields


def _plan(delta: deltalake.DeltaTable, folder: str, zone: dt.tzinfo | None) -> ImportPlan:
    fields = _fields(delta)
    metadata = delta.metadata()
    mode = metadata.configuration.get("delta.columnMapping.mode", "none")
    partitions = {
        field["name"]: physical_name(field) for field in fields if field["name"] in metadata.partition_columns
    }
    return ImportPlan(
        source_format="delta",
        version=str(delta.version()),
        location=folder,
        schema=to_schema(fields),
        columns=to_columns(fields, mode, set(partitions)),
        files=_plan_files(delta, partitions, zone),
    )


def _plan_files(delta: deltalake.DeltaTable, partitions: dict[str, str], zone: dt.tzinfo | None) -> list[PlannedFile]:
    """Return the files; `partitions` has the physical names of the partition columns."""
    actions = pa.table(delta.get_add_actions())
    root = delta.table_uri
    files = [PlannedFile(relative_path(str(path), root, is_encoded=True)) for path in actions["path"].to_pylist()]
    for name, texts in _partition_values(delta, actions, partitions, zone).items():
        for file, text in zip(files, texts, strict=True):
            file.constants[name] = text
    if _DELETION_VECTORS not in (delta.protocol().reader_features or ()):
        return files
    by_path = {file.path: file for file in files}
    for batch in delta.deletion_vectors():
        for uri, selection in zip(*pa.record_batch(batch).columns, strict=True):
            path = relative_path(uri.as_py(), root, is_encoded=True)
            if path not in by_path:
                raise InvalidInput(f"the Delta table has a deletion vector of {path!r}, which it does not list")
            by_path[path].deleted = pack_positions(pc.indices_nonzero(pc.invert(selection.values)))
    return files


def _partition_values(
    delta: deltalake.DeltaTable, actions: pa.Table, partitions: dict[str, str], zone: dt.tzinfo | None
) -> dict[str, list[str | None]]:
    if not partitions or not actions.num_rows:
        return {}
    distinct = delta.partitions()
    for values in distinct:
        empty = next((name for name, value in values.items() if value == ""), None)
        if empty is not None:
            # The protocol says null, what readers say differs.
            raise InvalidInput(
                f"the partition column {empty!r} has an empty text, which readers of Delta take differently"
            )
    columns = actions.select(["partition"]).flatten()
    names = {name.removeprefix("partition.") for name in columns.schema.names}
    texts = {}
    for name, physical in partitions.items():
        column = columns[f"partition.{name if name in names else physical}"]
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            column = in_zone(name, column, {values.get(name, values.get(physical)) for values in distinct}, zone)
        texts[name] = to_texts(column)
    return texts

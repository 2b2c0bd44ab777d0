"""Iceberg tables as tables."""

from __future__ import annotations

import warnings
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pds.by_url import open_parent
from pds.errors import CommitConflict, InvalidInput, NotFound
from pds.imports.plan import ImportPlan, PlannedFile, decimal_to_text, file_path, locate, pack_positions, relative_path
from pds.urls import merge_options, normalize_url

try:
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.table import StaticTable
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import BinaryType, FixedType, UUIDType
except ImportError as error:
    raise ModuleNotFoundError(
        "pds.import_iceberg needs pyiceberg: pip install 'pds[iceberg]'", name="pyiceberg"
    ) from error

from pds.imports.iceberg_schema import to_columns, to_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask
    from pyiceberg.types import NestedField

    from pds.by_url import Url
    from pds.store import Store
    from pds.table.table import Table

# How often a table is planned again that others write.
_ATTEMPTS: Final = 5
# The names that pyiceberg has for options of S3.
_S3_OPTIONS: Final = {
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "endpoint": "s3.endpoint",
    "endpoint_url": "s3.endpoint",
}


def import_table(source: Url | IcebergTable, storage_options: Mapping[str, object] | None) -> Table:
    """Make a table of an Iceberg table; `pds.import_iceberg` says what is raised."""
    iceberg = _load(source, storage_options)
    location = iceberg.location()
    local = file_path(location)
    # pyiceberg takes the characters of a path as they are, a URL has them encoded.
    store, path = open_parent(location if local is None else Path(local), storage_options, None)
    return import_into(store, path, iceberg, lambda: _load(source, storage_options))


def import_into(store: Store, path: str, iceberg: IcebergTable, read: Callable[[], IcebergTable]) -> Table:
    """Make a table of an Iceberg table in a folder, or of what `read` gives if that is newer before the commit."""
    planned = locate(store, path)
    location = iceberg.location()
    for attempt in range(_ATTEMPTS):
        plan = _plan(iceberg, location)
        prepared = plan.prepare(planned)
        if attempt == 0:
            warnings.warn(
                f"other systems can still write the Iceberg table {location!r}, and when they expire snapshots or "
                "remove orphan files, they may remove files that the new table needs: let none of them do so",
                stacklevel=4,
            )
        newest = read()
        if newest.location() != location:
            raise CommitConflict("the Iceberg table was moved to another folder meanwhile", path=path)
        if newest.metadata_location == iceberg.metadata_location:
            return plan.commit(prepared, planned)
        iceberg = newest
    raise CommitConflict("other writers committed to the Iceberg table during every attempt to import it", path=path)


def _load(source: Url | IcebergTable, storage_options: Mapping[str, object] | None) -> IcebergTable:
    """Return the newest state of the table. That of a metadata file never changes."""
    if not isinstance(source, IcebergTable):
        return _open(source, storage_options)
    if isinstance(source, StaticTable):
        return source
    name = ".".join(source.name())
    try:
        newest = source.catalog.load_table(source.name())
    except NoSuchTableError as error:
        message = f"the catalog has no Iceberg table {name!r} any more; pass the path of its newest metadata file"
        raise NotFound(message, path=source.location()) from error
    if newest.metadata.table_uuid != source.metadata.table_uuid:
        raise InvalidInput(f"the catalog has another Iceberg table of the name {name!r} now; load it again")
    return newest


def _open(source: Url, storage_options: Mapping[str, object] | None) -> IcebergTable:
    normal = _to_location(source)
    passed = merge_options({}, storage_options)
    options = {str(name).lower().removeprefix("aws_"): str(value) for name, value in passed.items()}
    properties = {name: options[option] for option, name in _S3_OPTIONS.items() if option in options}
    try:
        return StaticTable.from_metadata(normal, properties)
    except FileNotFoundError as error:
        message = (
            "there is no Iceberg metadata: pass the path of the newest metadata file, the folder of a table with "
            "metadata/version-hint.text, or the table that a catalog of pyiceberg loads"
        )
        raise NotFound(message, path=str(source)) from error
    except ValueError as error:
        raise InvalidInput(f"{str(source)!r} cannot be read as Iceberg metadata: {error}") from error


def _to_location(source: Url) -> str:
    """Return a URL as pyiceberg takes it, which is as Iceberg's metadata has it: paths of files are not encoded."""
    local = file_path(source) if isinstance(source, str) else None
    if local is not None and Path(local).exists():
        return local
    normal, _ = normalize_url(source)
    local = file_path(normal)
    return normal if local is None else unquote(local)


def _plan(iceberg: IcebergTable, location: str) -> ImportPlan:
    schema = iceberg.schema()
    snapshot = iceberg.current_snapshot()
    return ImportPlan(
        source_format="iceberg",
        version=str(snapshot.snapshot_id) if snapshot else "0",
        location=location,
        schema=to_schema(schema),
        columns=to_columns(schema, iceberg.name_mapping()),
        files=_plan_files(iceberg, location) if snapshot else [],
    )


def _plan_files(iceberg: IcebergTable, location: str) -> list[PlannedFile]:
    try:
        tasks = list(iceberg.scan().plan_files())
    except ValueError as error:
        raise InvalidInput(f"the Iceberg table cannot be imported: {error}; compact it, and import again") from error
    deletes = _Deletes(iceberg)
    return [_plan_file(iceberg, task, location, deletes) for task in tasks]


def _plan_file(iceberg: IcebergTable, task: FileScanTask, location: str, deletes: _Deletes) -> PlannedFile:
    data_file = task.file
    if data_file.file_format != FileFormat.PARQUET:
        raise InvalidInput(
            f"the file {data_file.file_path!r} is {data_file.file_format.value}, not Parquet; rewrite it, "
            "and import again"
        )
    path = relative_path(data_file.file_path, location, is_encoded=False)
    return PlannedFile(path, _constants(iceberg, data_file), deletes.positions(data_file.file_path, task.delete_files))


def _constants(iceberg: IcebergTable, data_file: DataFile) -> dict[str, str | None]:
    """Return the values of the partition's columns. Files mostly hold these columns: then their own values count."""
    schema, spec = iceberg.schema(), iceberg.specs()[data_file.spec_id]
    constants: dict[str, str | None] = {}
    for position, field in enumerate(spec.fields):
        column = next((column for column in schema.fields if column.field_id == field.source_id), None)
        if column is None or not isinstance(field.transform, IdentityTransform):
            continue
        value = data_file.partition[position]
        if value is not None and isinstance(column.field_type, BinaryType | FixedType | UUIDType):
            _check_holds(iceberg, data_file, column)
        else:
            constants[column.name] = _to_text(field.transform, column, value)
    return constants


def _to_text(transform: IdentityTransform[Any], column: NestedField, value: Any) -> str | None:  # noqa: ANN401 of any type
    if value is None:
        return None
    if isinstance(value, Decimal):
        return decimal_to_text(value)
    return transform.to_human_string(column.field_type, value)


def _check_holds(iceberg: IcebergTable, data_file: DataFile, column: NestedField) -> None:
    """Refuse a file without a column of bytes: the value of its partition has no text."""
    with iceberg.io.new_input(data_file.file_path).open() as stream:
        source: Any = stream
        fields = list(pq.read_schema(source))
    ids = {(field.metadata or {}).get(b"PARQUET:field_id") for field in fields} - {None}
    mapped = to_columns(iceberg.schema(), iceberg.name_mapping())[iceberg.schema().fields.index(column)]
    holds = str(column.field_id).encode() in ids if ids else any(field.name in mapped.names for field in fields)
    if not holds:
        raise InvalidInput(
            f"the file {data_file.file_path!r} lacks the partition column {column.name!r} of bytes, whose values "
            "cannot be imported from the metadata; rewrite the file, and import again"
        )


class _Deletes:
    """The positions in delete files, of which each is read once."""

    def __init__(self, iceberg: IcebergTable) -> None:
        self._io = iceberg.io
        self._positions: dict[str, dict[str, list[pa.Array[Any]]]] = {}

    def positions(self, data_file: str, deletes: Iterable[DataFile]) -> bytes:
        """Return the deleted rows of a data file."""
        per_file = (self._read(delete).get(data_file, []) for delete in deletes)
        return b"".join(pack_positions(array) for array in chain.from_iterable(per_file))

    def _read(self, delete: DataFile) -> dict[str, list[pa.Array[Any]]]:
        path = delete.file_path
        if delete.content != DataFileContent.POSITION_DELETES:
            raise InvalidInput(
                f"the Iceberg table has deletes by equality in {path!r}, which cannot be imported; compact it, "
                "and import again"
            )
        if path not in self._positions:
            with self._io.new_input(path).open() as stream:
                if delete.file_format == FileFormat.PARQUET:
                    self._positions[path] = _split(
                        pq.read_table(pa.BufferReader(stream.read()), columns=["file_path", "pos"])
                    )
                elif delete.file_format == FileFormat.PUFFIN:
                    vectors = deletion_vectors_from_puffin_file(PuffinFile(stream.read()))
                    self._positions[path] = {v.referenced_data_file: v.to_vector().chunks for v in vectors}
                else:
                    raise InvalidInput(
                        f"the delete file {path!r} is {delete.file_format.value}; compact the table first"
                    )
        return self._positions[path]


def _split(deletes: pa.Table) -> dict[str, list[pa.Array[Any]]]:
    """Return positions by the path of the data file."""
    paths = pc.unique(deletes["file_path"])
    return {path.as_py(): deletes.filter(pc.equal(deletes["file_path"], path))["pos"].chunks for path in paths}

"""What of another system's table becomes a table: columns, and files with their constants and deleted rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from pds import _pds
from pds.errors import InvalidInput
from pds.table.location import TableLocation
from pds.table.table import Table

if TYPE_CHECKING:
    from decimal import Decimal

    from pds.store import Store

_TIMEOUT_SECONDS: Final = 60.0


@dataclass
class PlannedFile:
    """A data file: its path in the table's folder, the values of columns that it lacks, and its deleted rows."""

    path: str
    constants: dict[str, str | None] = field(default_factory=dict)
    # Positions as numbers of 64 bits.
    deleted: bytes = b""


@dataclass(frozen=True)
class PlannedColumn:
    """How a column is found in files: by its names there, and by its field id and those nested in it."""

    names: tuple[str, ...] = ()
    field_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImportPlan:
    """A version of another system's table, as a table."""

    source_format: str
    version: str
    location: str
    schema: pa.Schema
    columns: list[PlannedColumn]
    files: list[PlannedFile]

    def prepare(self, location: TableLocation) -> _pds.ImportHandle:
        """Read and check the files; nothing is written."""
        columns = [(list(column.names), list(column.field_ids)) for column in self.columns]
        files = [(file.path, file.constants, file.deleted) for file in self.files]
        return _pds.prepare_import(location.handle, location.path, self.schema, columns, files)

    def commit(self, prepared: _pds.ImportHandle, location: TableLocation) -> Table:
        """Create the table."""
        handle = prepared.commit(self.source_format, self.version, self.location)
        return Table._from_handle(location, handle)  # noqa: SLF001 of the package


def locate(store: Store, path: str) -> TableLocation:
    """Return the location of the table that will be created."""
    return TableLocation.from_arguments(store, path, None, commit_timeout=_TIMEOUT_SECONDS)


def map_type(key: pa.DataType, value: pa.Field[pa.DataType]) -> pa.DataType:
    """Return the type of a map whose values may be declared as not null."""
    # The stubs of pyarrow know types of values only.
    make: Any = pa.map_
    data_type: pa.DataType = make(key, value)
    return data_type


def pack_positions(positions: pa.Array[Any]) -> bytes:
    """Return positions of rows as the engine takes them."""
    numbers = positions.cast(pa.uint64())
    values = numbers.buffers()[1]
    begin, end = 8 * numbers.offset, 8 * (numbers.offset + len(numbers))
    return b"" if values is None else values.to_pybytes()[begin:end]


def to_texts(values: pa.ChunkedArray[Any]) -> list[str | None]:
    """Return values as texts that read back as the same values."""
    if str(values.type) in {"binary", "large_binary"} or str(values.type).startswith("fixed_size_binary"):
        raise InvalidInput("a partition column of bytes cannot be imported; rewrite the table without it")
    if pa.types.is_decimal(values.type):
        return [None if value is None else decimal_to_text(value) for value in values.to_pylist()]
    texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    return texts


def decimal_to_text(value: Decimal) -> str:
    """Return all digits of a decimal, without an exponent."""
    return format(value, "f")


def relative_path(uri: str, folder: str, *, is_encoded: bool) -> str:
    """Return the path of a file in the folder of its table.

    Raises:
        InvalidInput: It is not in the folder.
    """
    path = uri
    if "://" in uri or uri.startswith(("/", "file:/")):
        prefix = next((p for p in _spellings(folder, is_encoded=is_encoded) if uri.startswith(p)), None)
        if prefix is None:
            raise InvalidInput(
                f"the file {uri!r} is not in the folder of the table, {folder!r}; copy it there, or rewrite the table"
            )
        path = uri.removeprefix(prefix)
    return unquote(path) if is_encoded else path


def file_path(uri: str) -> str | None:
    """Return the path in a URI of the local file system, which may have one slash or three; None for other URIs."""
    if uri.startswith("/"):
        return uri
    rest = uri.removeprefix("file:")
    if rest == uri or not rest.startswith("/") or (rest.startswith("//") and not rest.startswith("///")):
        return None
    return "/" + rest.lstrip("/")


def _spellings(folder: str, *, is_encoded: bool) -> list[str]:
    """Return how the folder may be written at the begin of a path."""
    base = folder.rstrip("/") + "/"
    path = file_path(base)
    if path is not None:
        paths = [path, unquote(path)] if is_encoded else [path]
        return [base, *(f"{prefix}{spelling}" for spelling in paths for prefix in ("", "file:", "file://"))]
    scheme, separator, rest = base.partition("://")
    if scheme in {"s3", "s3a", "s3n"}:
        return [f"{other}{separator}{rest}" for other in ("s3", "s3a", "s3n")]
    return [base]

"""Options of writes, as plain values that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pds.errors import InvalidInput, InvalidType
from pds.flags import require_utf8

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class WriteOptions:
    """The options of Parquet files and of the write that creates them.

    Args:
        compression: The codec: zstd, snappy, gzip, brotli, lz4 or none. Defaults to zstd.
        compression_level: The level of the codec. A higher level makes smaller files and is slower. Defaults to
            the default level of the codec.
        row_group_size: The maximum number of rows in a row group. Larger row groups compress better and need
            fewer requests to read; smaller row groups let a filter skip more rows. Defaults to 1,048,576.
        max_rows_per_file: The maximum number of rows in a part. Defaults to one part with all rows.
        memory_limit: The memory of encoders and uploads together, in bytes. A limit that is small for the width
            of the rows makes smaller row groups. Defaults to 512 MiB.

    Raises:
        InvalidType: An option has an invalid type.
        InvalidInput: A number is too large for any file, or a text is not UTF-8. The write checks other values.
    """

    compression: str = "zstd"
    compression_level: int | None = None
    row_group_size: int | None = None
    max_rows_per_file: int | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        """Raise an error for an option of another type, or out of its range: the engine does not convert values."""
        if not isinstance(self.compression, str):
            raise InvalidType(f"compression must be a string, not {type(self.compression).__name__}")
        require_utf8("compression", self.compression)
        for name in ("compression_level", "row_group_size", "max_rows_per_file", "memory_limit"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidType(f"{name} must be an integer or None, not {type(value).__name__}")
            bits = 31 if name == "compression_level" else 63
            if value is not None and not -(2**bits) <= value < 2**bits:
                raise InvalidInput(f"{name} is out of range: {value}")


def resolve_options(options: object) -> WriteOptions:
    """Return the options of a write, those by default for None."""
    if options is None:
        return WriteOptions()
    if not isinstance(options, WriteOptions):
        raise InvalidType(f"options must be a WriteOptions, not {type(options).__name__}")
    return options


@dataclass(frozen=True)
class TaskOptions:
    """The options of one task of a write. The engine reads the fields by name."""

    number: int = 0
    threads: int | None = None
    input_in_memory: bool = False
    keep_empty: bool = True
    shared: bool = False


@dataclass(frozen=True)
class NewWrite:
    """A write by a single process, before it begins. The engine reads the fields by name."""

    key: str
    overwrite: bool
    run_id: str | None
    metadata: Mapping[str, str] | None
    options: WriteOptions

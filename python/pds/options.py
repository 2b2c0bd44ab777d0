"""Options as plain values that can be sent to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pds.errors import InvalidType

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class WriteOptions:
    """How parts are written.

    Args:
        compression: zstd, snappy, gzip, brotli, lz4 or none.
        compression_level: The codec's level; higher is smaller and slower. None is the codec's default.
        row_group_size: Rows of a row group, at most. Larger groups compress better and cost fewer
            requests to read; smaller ones can be skipped more finely. None is 1,048,576.
        max_rows_per_file: Rows of a part, at most. None writes one part.
        memory_limit: Bytes of encoders and uploads together. A limit that is small for wide rows
            makes smaller row groups. None is 512 MiB.
    """

    compression: str = "zstd"
    compression_level: int | None = None
    row_group_size: int | None = None
    max_rows_per_file: int | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse types that the engine would have to guess about."""
        if not isinstance(self.compression, str):
            raise InvalidType(f"compression must be a string, not {type(self.compression).__name__}")
        for name in ("compression_level", "row_group_size", "max_rows_per_file", "memory_limit"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidType(f"{name} must be an integer or None, not {type(value).__name__}")


@dataclass(frozen=True)
class TaskOptions:
    """How one task of a write differs from the others."""

    number: int = 0
    threads: int | None = None
    resident: bool = False
    keep_empty: bool = True
    shared: bool = False


@dataclass(frozen=True)
class NewWrite:
    """A write of one process that has not begun."""

    key: str
    overwrite: bool
    run_id: str | None
    metadata: Mapping[str, str] | None
    options: WriteOptions

"""The capabilities of stores, by the names of remote-store."""

from __future__ import annotations

import enum


class Capability(enum.Enum):
    """An operation that a store may support. Names and values are those of remote-store."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    LIST = "list"
    GLOB = "glob"
    MOVE = "move"
    COPY = "copy"
    ATOMIC_WRITE = "atomic_write"
    ATOMIC_MOVE = "atomic_move"
    METADATA = "metadata"
    USER_METADATA = "user_metadata"
    SEEKABLE_READ = "seekable_read"
    LAZY_READ = "lazy_read"
    WRITE_RESULT_NATIVE = "write_result_native"

"""The results of operations on Open Data Fabric datasets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pds.display import Result

if TYPE_CHECKING:
    from pds.odf.block import Block


@dataclass(frozen=True, repr=False)
class IngestResult(Result):
    """The result of an ingest.

    Attributes:
        blocks: The appended blocks, oldest first; empty if nothing changed.
        rows: The number of new rows.
        first_offset: The offset of the first row; None without rows.
        last_offset: The offset of the last row; None without rows.
        bytes: The size of the slice, in bytes; of several slices, of all.
        logical_hash: The hash of the rows of the slice; None without rows, and if tasks have written several slices,
            which `pds.spark.ingest` does: each has its hashes in its block, as `block.event.new_data`.
        physical_hash: The hash of the bytes of the slice, which is its name; None as above.
        attempts: The number of attempts to move the head.
    """

    blocks: list[Block]
    rows: int
    first_offset: int | None
    last_offset: int | None
    bytes: int
    logical_hash: str | None
    physical_hash: str | None
    attempts: int


@dataclass(frozen=True, repr=False)
class VerifyResult(Result):
    """The result of a verification that found no problem.

    Attributes:
        blocks: The number of verified blocks, from the head to the seed.
        slices: The number of slices whose data was hashed.
        rows: The number of rows in these slices.
    """

    blocks: int
    slices: int
    rows: int


@dataclass(frozen=True, repr=False)
class CompactResult(Result):
    """The result of a compaction.

    Attributes:
        before: The hash of the head before the compaction, from which the old chain is reachable.
        after: The hash of the head after the compaction.
        slices_before: The number of slices before the compaction.
        slices_after: The number of slices after the compaction.
    """

    before: str
    after: str
    slices_before: int
    slices_after: int


@dataclass(frozen=True, repr=False)
class VacuumResult(Result):
    """The objects that a vacuum removed, or would remove.

    Attributes:
        files: The paths of the objects, relative to the dataset.
        bytes: The size of all these objects, in bytes.
    """

    files: list[str]
    bytes: int

"""What operations on a chain tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pds.odf.block import Block


@dataclass(frozen=True)
class IngestResult:
    """Rows that were added.

    Attributes:
        blocks: The blocks that were appended, oldest first; none where there was nothing to say.
        rows: How many rows.
        first_offset: The number of the first; None without rows.
        last_offset: The number of the last; None without rows.
        bytes: The size of the slice.
        logical_hash: The hash of its rows; None without rows.
        physical_hash: The hash of its bytes, which is its name; None without rows.
        attempts: How often the head was tried to be moved.
    """

    blocks: list[Block]
    rows: int
    first_offset: int | None
    last_offset: int | None
    bytes: int
    logical_hash: str | None
    physical_hash: str | None
    attempts: int


@dataclass(frozen=True)
class VerifyResult:
    """A chain that is what was written.

    Attributes:
        blocks: How many blocks were checked, from the head to the seed.
        slices: How many slices of data were hashed.
        rows: Their rows.
    """

    blocks: int
    slices: int
    rows: int


@dataclass(frozen=True)
class CompactResult:
    """Slices that were merged.

    Attributes:
        before: The head before: the chain as it was leads from there.
        after: The head after.
        slices_before: How many slices there were.
        slices_after: How many there are.
    """

    before: str
    after: str
    slices_before: int
    slices_after: int


@dataclass(frozen=True)
class VacuumResult:
    """What was removed, or would be.

    Attributes:
        files: Paths relative to the dataset.
        bytes: Their sizes together.
    """

    files: list[str]
    bytes: int

"""Blocks of a chain."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from pds import _pds
from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType
from pds.odf.events import Event, rfc3339

if TYPE_CHECKING:
    from pds.odf.identity import Multihash


def _check_number(number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidType(f"sequence_number must be a whole number, not {number!r}")
    if not 0 <= number < 2**64:
        raise InvalidInput(f"sequence_number has 64 bits and no sign, and is {number}")


class Block:
    """One block of a chain: when, after which block, and the event.

    Args:
        system_time: When it is appended; with a time zone, or RFC 3339 text, to the nanosecond.
        prev_block_hash: The hash of the block before; None of the first.
        sequence_number: Its place in the chain, from 0.
        event: What happened.

    Raises:
        InvalidInput: A field cannot be encoded; the error names it.
        InvalidType: A field has a type that cannot be used.
    """

    def __init__(
        self,
        system_time: datetime | str,
        prev_block_hash: str | Multihash | None,
        sequence_number: int,
        event: Event | dict[str, Any],
    ) -> None:
        _check_number(sequence_number)
        fields = event.to_dict() if isinstance(event, Event) else event
        previous = None if prev_block_hash is None else str(prev_block_hash)
        self._handle = _pds.BlockHandle.create(rfc3339(system_time), previous, sequence_number, fields)

    @classmethod
    def _of(cls, handle: _pds.BlockHandle) -> Self:
        block = cls.__new__(cls)
        block._handle = handle  # noqa: SLF001 one's own
        return block

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read a block as it is stored.

        Raises:
            BlockCorrupted: The bytes are no block.
            FormatNotSupported: They are of a release that cannot be read, such as 0.33.
        """
        if not isinstance(raw, bytes | bytearray | memoryview):
            raise InvalidType(f"a block is bytes, not {type(raw).__name__}")
        return cls._of(_pds.BlockHandle.from_bytes(bytes(raw)))

    @classmethod
    def from_yaml(cls, yaml: str) -> Self:
        """Read the YAML of a block in the specification's spelling, and encode it.

        Raises:
            InvalidInput: It is no YAML, or no block; the error names the field.
        """
        return cls._of(_pds.BlockHandle.from_yaml(require_text("YAML", yaml)))

    @property
    def hash(self) -> str:
        """The SHA3-256 of the bytes as a multihash in base 16; the block's name."""
        return self._handle.hash

    @property
    def system_time(self) -> datetime:
        """When it was appended, in UTC, to the microsecond."""
        return datetime.fromisoformat(self._handle.system_time)

    @property
    def prev_block_hash(self) -> str | None:
        """The hash of the block before; None of the first."""
        return self._handle.prev_block_hash

    @property
    def sequence_number(self) -> int:
        """Its place in the chain, from 0."""
        return self._handle.sequence_number

    @property
    def manifest_version(self) -> int:
        """The version of the layout: 2 or 3."""
        return self._handle.manifest_version

    @property
    def event(self) -> Event:
        """What happened."""
        return Event.of(self._handle.event)

    def to_bytes(self) -> bytes:
        """The bytes as they were received; those that the hash is of."""
        return self._handle.to_bytes()

    def encode(self) -> bytes:
        """The bytes that the fields give anew, in the canonical order.

        Raises:
            FormatNotSupported: The block has fields of a later release, which would be lost.
        """
        return self._handle.encode()

    def to_yaml(self) -> str:
        """The block as YAML in the specification's spelling; `from_yaml` reads it."""
        return self._handle.to_yaml()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def __reduce__(self) -> tuple[Any, ...]:
        return Block.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"Block({self.sequence_number}, {self.event.kind}, {self._handle.system_time}, {self.hash})"

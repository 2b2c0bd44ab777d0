"""Metadata blocks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from pds import _pds
from pds.arguments import require_text
from pds.display import Summarized, Summary
from pds.errors import InvalidInput, InvalidType
from pds.odf.events import Event, format_rfc3339, to_plain
from pds.odf.identity import to_hash_text

if TYPE_CHECKING:
    from pds.odf.identity import Multihash


def _check_sequence_number(number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidType(f"sequence_number must be an integer, not {number!r}")
    if not 0 <= number < 2**64:
        raise InvalidInput(f"sequence_number must be from 0 to 2**64 - 1, not {number}")


class Block(Summarized):
    """A block of a metadata chain: a time, the hash of the previous block, and an event.

    Args:
        system_time: The time at which the block is appended: a datetime with a time zone, or RFC 3339 text with up to
            nanoseconds.
        prev_block_hash: The hash of the previous block; None for the first block.
        sequence_number: The position of the block in the chain, from 0.
        event: The event, or a dict in the spelling of the specification.

    Raises:
        InvalidInput: A field cannot be encoded. The message names the field.
        InvalidType: A field has an invalid type.
    """

    def __init__(
        self,
        system_time: datetime | str,
        prev_block_hash: str | Multihash | None,
        sequence_number: int,
        event: Event | dict[str, Any],
    ) -> None:
        _check_sequence_number(sequence_number)
        fields = event.to_dict() if isinstance(event, Event) else to_plain(event)
        previous = None if prev_block_hash is None else to_hash_text(prev_block_hash)
        self._handle = _pds.BlockHandle.create(format_rfc3339(system_time), previous, sequence_number, fields)

    @classmethod
    def _from_handle(cls, handle: _pds.BlockHandle) -> Self:
        block = cls.__new__(cls)
        block._handle = handle  # noqa: SLF001 an instance of this class
        return block

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Decode the bytes of a stored block.

        Raises:
            BlockCorrupted: The bytes are not a block.
            FormatNotSupported: The block has the layout of an unsupported release of the specification, such as 0.33.
            InvalidType: `raw` is not bytes.
        """
        if not isinstance(raw, bytes | bytearray | memoryview):
            raise InvalidType(f"raw must be bytes, not {type(raw).__name__}")
        return cls._from_handle(_pds.BlockHandle.from_bytes(bytes(raw)))

    @classmethod
    def from_yaml(cls, yaml: str) -> Self:
        """Parse the YAML of a block in the spelling of the specification, and encode the block.

        Raises:
            InvalidInput: The text is not YAML, or not a block. The message names the field.
            InvalidType: `yaml` is not a string.
        """
        return cls._from_handle(_pds.BlockHandle.from_yaml(require_text("yaml", yaml)))

    @property
    def hash(self) -> str:
        """The hash that names the block: the SHA3-256 of its bytes, as a multihash in base 16."""
        return self._handle.hash

    @property
    def system_time(self) -> datetime:
        """The time at which the block was appended, in UTC, in microseconds."""
        return datetime.fromisoformat(self._handle.system_time)

    @property
    def prev_block_hash(self) -> str | None:
        """The hash of the previous block; None for the first block."""
        return self._handle.prev_block_hash

    @property
    def sequence_number(self) -> int:
        """The position of the block in the chain, from 0."""
        return self._handle.sequence_number

    @property
    def manifest_version(self) -> int:
        """The version of the block layout: 2 or 3."""
        return self._handle.manifest_version

    @property
    def event(self) -> Event:
        """The event of the block."""
        return Event.of(self._handle.event)

    def to_bytes(self) -> bytes:
        """Return the bytes of the block as they were received. The hash is the hash of these bytes."""
        return self._handle.to_bytes()

    def encode(self) -> bytes:
        """Encode the fields of the block again, in the canonical order, and return the bytes.

        Raises:
            FormatNotSupported: The block has fields of a later release, which would be lost.
        """
        return self._handle.encode()

    def to_yaml(self) -> str:
        """Return the block as YAML in the spelling of the specification, which `from_yaml` parses."""
        return self._handle.to_yaml()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def __reduce__(self) -> tuple[Any, ...]:
        return Block.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"Block({self.sequence_number}, {self.event.kind}, {self._handle.system_time}, {self.hash})"

    def _summarize(self) -> Summary:
        properties = {
            "sequence number": self.sequence_number,
            "event": self.event.kind,
            "system time": self._handle.system_time,
            "hash": self.hash,
            "previous block": self.prev_block_hash,
        }
        return Summary("Block", properties)

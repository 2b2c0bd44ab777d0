"""Hashes that say how they were made, and identities of datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from pds import _pds
from pds.arguments import require_text


@dataclass(frozen=True)
class Multihash:
    """A hash with its code, as text in any of the bases that are in use.

    Args:
        value: Multibase text: base 16 (`f…`), base 58 of Bitcoin (`z…`) or base 64 for URLs (`u…`). It is
            kept in base 16.

    Raises:
        InvalidInput: It is no multihash.
    """

    value: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _pds.parse_multihash(require_text("a multihash", self.value))[2])

    @classmethod
    def sha3_256(cls, data: bytes) -> Self:
        """The SHA3-256 of some bytes."""
        return cls(_pds.sha3_256(data))

    @property
    def code(self) -> int:
        """The multicodec: 0x16 is SHA3-256, 0x300016 is arrow0-sha3-256."""
        return _pds.parse_multihash(self.value)[0]

    @property
    def digest(self) -> bytes:
        """The hash alone."""
        return _pds.parse_multihash(self.value)[1]

    def to_base58(self) -> str:
        """The text in base 58, as older tools have it."""
        return _pds.parse_multihash(self.value)[3]

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Identity:
    """Which dataset it is: an ed25519 public key.

    Args:
        id: `did:odf:…`, in any base; it is kept in base 16.
        private_key: The key's other half, PKCS#8. Who has it can prove that the dataset is theirs; a chain
            does not hold it.

    Raises:
        InvalidInput: It is no identity of a dataset.
    """

    id: str
    private_key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", _pds.parse_dataset_id(require_text("an identity", self.id))[0])

    @classmethod
    def generate(cls) -> Self:
        """A new key pair."""
        return cls(*_pds.new_identity())

    def to_did_key(self) -> str:
        """The same key as `did:key:…`."""
        return _pds.parse_dataset_id(self.id)[1]

    def __str__(self) -> str:
        return self.id

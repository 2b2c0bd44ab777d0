"""Multihashes, and identities of datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from pds import _pds
from pds.arguments import require_text
from pds.errors import InvalidType


@dataclass(frozen=True)
class Multihash:
    """A hash with the code of its algorithm.

    Args:
        value: The text of the multihash in base 16 (`f…`), base 58 of Bitcoin (`z…`) or base 64 for URLs (`u…`). The
            attribute has the text in base 16.

    Raises:
        InvalidInput: The text is not a multihash.
        InvalidType: The value is not a string.
    """

    value: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _pds.parse_multihash(require_text("a multihash", self.value))["base16"])

    @classmethod
    def sha3_256(cls, data: bytes) -> Self:
        """Return the SHA3-256 of bytes as a multihash. Anything else raises InvalidType."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidType(f"data must be bytes, not {type(data).__name__}")
        return cls(_pds.sha3_256(bytes(data)))

    @property
    def code(self) -> int:
        """The multicodec of the algorithm: 0x16 for SHA3-256, 0x300016 for arrow0-sha3-256."""
        return _pds.parse_multihash(self.value)["code"]

    @property
    def digest(self) -> bytes:
        """The hash without the code."""
        return _pds.parse_multihash(self.value)["digest"]

    def to_base58(self) -> str:
        """Return the text in base 58, which older tools use."""
        return _pds.parse_multihash(self.value)["base58"]

    def __str__(self) -> str:
        return self.value


def to_hash_text(value: object) -> str:
    """Return the hash of a block as text.

    Raises:
        InvalidType: The value is neither a Multihash nor a string.
    """
    return value.value if isinstance(value, Multihash) else require_text("the hash of a block", value)


@dataclass(frozen=True)
class Identity:
    """The identity of a dataset: an ed25519 public key.

    Args:
        id: The text `did:odf:…`, in any base. The attribute has the text in base 16.
        private_key: The private key, in PKCS#8. It proves the ownership of the dataset, and is not stored in the
            chain. Defaults to an identity without a private key.

    Raises:
        InvalidInput: The text is not the identity of a dataset.
        InvalidType: `id` is not a string.
    """

    id: str
    private_key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", _pds.parse_dataset_id(require_text("an identity", self.id))["id"])

    @classmethod
    def generate(cls) -> Self:
        """Generate a key pair and return its identity with the private key."""
        return cls(**_pds.new_identity())

    def to_did_key(self) -> str:
        """Return the public key as `did:key:…`."""
        return _pds.parse_dataset_id(self.id)["did_key"]

    def __str__(self) -> str:
        return self.id

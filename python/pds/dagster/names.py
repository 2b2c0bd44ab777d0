"""The paths of assets and op outputs in a store."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster import InputContext, OutputContext

# A folder with this file has a running writer, or had a writer that was interrupted.
INTENT: Final = "_publish.json"
_RESERVED: Final = frozenset({".", "..", "_SUCCESS", "manifest.json", INTENT})
_RESERVED_PREFIX: Final = ".pds-"


def escape(segment: str) -> str:
    """Escape ``segment`` as one segment of a store path. Different segments have different results."""
    if not segment:
        return "%"
    if segment in _RESERVED or segment.startswith(_RESERVED_PREFIX):
        return f"%{ord(segment[0]):02X}{_escape_characters(segment[1:])}"
    return _escape_characters(segment)


def _escape_characters(text: str) -> str:
    def escape(character: str) -> str:
        if character in "/\\%" or unicodedata.category(character) in ("Cc", "Cs"):
            raw = character.encode("utf-8", "surrogatepass")
            return "".join(f"%{byte:02X}" for byte in raw)
        return character

    return "".join(map(escape, text))


def join(segments: Iterable[str]) -> str:
    """Return the path that has these segments."""
    return "/".join(map(escape, segments))


def get_path(context: InputContext | OutputContext) -> str:
    """Return the path of the asset or op output that is written or read."""
    return join(context.asset_key.path if context.has_asset_key else context.get_identifier())

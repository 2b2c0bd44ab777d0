"""Normalization of paths by the rules of remote-store: `/a//b/` and `./a/b` become `a/b`, backslashes slashes."""

from __future__ import annotations

from pds import _pds
from pds.errors import InvalidPath, InvalidType

_ROOT = frozenset({"", "."})


def _require_path(path: object) -> str:
    if not isinstance(path, str):
        raise InvalidType(f"path must be a string, not {type(path).__name__}")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidPath(f"path {path!r} cannot be encoded as UTF-8", path=path) from error
    return path


def normalize_file_path(path: object) -> str:
    """Return the normalized path of a file.

    Raises:
        InvalidPath: The path is empty, leaves the store, or contains a control character.
        InvalidType: The path is not a string.
    """
    return _pds.normalize_path(_require_path(path))


def normalize_folder_path(path: object) -> str:
    """Return the normalized path of a folder. The normalized path of the root is empty.

    Raises:
        InvalidPath: The path leaves the store, or contains a control character.
        InvalidType: The path is not a string.
    """
    text = _require_path(path)
    return "" if text in _ROOT else _pds.normalize_path(text)

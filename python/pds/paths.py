"""The spellings of a path, as remote-store has them: `/a//b/` and `./a/b` are `a/b`, a backslash is a slash."""

from __future__ import annotations

from pds import _pds
from pds.errors import InvalidPath, InvalidType

_ROOT = frozenset({"", "."})


def _text(path: object) -> str:
    if not isinstance(path, str):
        raise InvalidType(f"a path must be a string, not {type(path).__name__}")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidPath(f"path {path!r} is not text that can be encoded", path=path) from error
    return path


def file_path(path: object) -> str:
    """The one spelling of a file's path.

    Raises:
        InvalidPath: It is empty, leaves the store, or holds a control character.
        InvalidType: It is not a string.
    """
    return _pds.normalize_path(_text(path))


def folder_path(path: object) -> str:
    """The one spelling of a folder's path; that of the root is empty.

    Raises:
        InvalidPath: It leaves the store, or holds a control character.
        InvalidType: It is not a string.
    """
    text = _text(path)
    return "" if text in _ROOT else _pds.normalize_path(text)

"""The URLs and paths by which users name stores, and what lies in them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from pds.errors import InvalidInput, InvalidPath, InvalidType

__all__ = ["join_url", "leads_through_file", "merge_options", "normalize_url", "split_url"]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# `s3:/bucket`, `dbfs:/x` and `C:/x` are mistakes, `a:b` may be a file.
_STORES: Final = "memory|file|s3a?|az|azure|adl|abfss?|wasbs?|gs|gcs|https?"
_MISTAKEN: Final = re.compile(rf"(?:{_STORES})(?::|//)|[A-Za-z][A-Za-z0-9+.-]*:[/\\\\]", re.IGNORECASE)
# What a URL has as it is.
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9_.~/-]*")
_UNPRINTABLE: Final = re.compile(r"^[\s\ufeff]|[\x00-\x1f\x7f]")
_ALIASES: Final = {"gcs": "gs", "azure": "az"}
_AZURE: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
_AZURE_HOST: Final = re.compile(r"([a-z0-9]+)\.(?:dfs|blob)\.(core\.windows\.net|fabric\.microsoft\.com)")


def normalize_url(url: object) -> tuple[str, dict[str, str]]:
    """Return the URL of a store as the engine has it, and the options that the given one implies.

    Args:
        url: A URL; or a path of the local file system, which may be relative and may begin with `~`.

    Raises:
        InvalidInput: The URL or path is not valid.
        InvalidType: It is neither a text nor a path.
    """
    text = _to_text(url)
    scheme = _SCHEME.match(text)
    if scheme is None or not isinstance(url, str):
        return _to_file_url(text), {}
    name, rest = scheme[1].lower(), text[scheme.end() :]
    if name in _AZURE:
        return _from_azure_url(name, rest)
    return f"{_ALIASES.get(name, name)}://{rest}", {}


def split_url(url: object) -> tuple[str, str, dict[str, str]]:
    """Split the URL of a table, dataset, pipeline or chain.

    Returns:
        The URL of the store, which is that of the parent folder; the path in it; and the options that the URL implies.

    Raises:
        InvalidInput: The URL is not valid, or has no folder below its store.
        InvalidPath: The name of the folder has a backslash, which the keys of datasets take for a slash.
        InvalidType: It is neither a text nor a path.
    """
    normal, implied = normalize_url(url)
    scheme, rest = normal.split("://", 1)
    if scheme == "file" and not rest.startswith("/"):
        raise InvalidInput("a file:// URL must have an absolute path: file:///folder; a relative path has no file://")
    rest = rest.rstrip("/")
    # All of a memory's URL but its name is a path.
    parent, _, path = rest.partition("/") if scheme == "memory" else rest.rpartition("/")
    if scheme == "file":
        parent, path = parent or "/", _unquote(path)
    elif "?" in path:
        raise InvalidInput("a URL must not have a query; pass tokens and signatures as storage_options")
    if scheme == "memory" and not parent:
        message = "memory:// without a name is another memory in each call; give it one: memory://name/folder"
        raise InvalidInput(message)
    if not parent or not path:
        raise InvalidInput("the URL must name a folder, such as s3://bucket/lake/events or ./lake/events")
    if "\\" in path:
        raise InvalidPath(f"path {path!r} has a backslash", path=path)
    return f"{scheme}://{parent}", path, implied


def leads_through_file(url: object) -> bool:
    """Return whether a URL is that of a file of the local file system, or of a folder below one."""
    from pathlib import Path  # noqa: PLC0415 only who meets an error needs it

    normal, _ = normalize_url(url)
    if not normal.startswith("file://"):
        return False
    folder = Path(_unquote(normal.removeprefix("file://")))
    return any(place.is_file() for place in (folder, *folder.parents))


def join_url(url: str, folder: str) -> str:
    """Return the URL of a folder of the store with this URL."""
    if not folder:
        return url
    return f"{url.rstrip('/')}/{_quote(folder) if url.startswith('file:') else folder}"


def _quote(text: str) -> str:
    # A first call spares itself the module where it can.
    if _UNRESERVED.fullmatch(text):
        return text
    from urllib.parse import quote  # noqa: PLC0415

    return quote(text)


def _unquote(segment: str) -> str:
    if "%" not in segment:
        return segment
    from urllib.parse import unquote  # noqa: PLC0415 as above

    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInput("the path of the file:// URL is not UTF-8") from error


def merge_options(implied: Mapping[str, str], options: object) -> dict[str, object]:
    """Return the options of a store with those that its URL implies.

    Raises:
        InvalidInput: An option has another value than the URL.
        InvalidType: The options are not a mapping.
    """
    if options is None:
        return dict(implied)
    if not isinstance(options, Mapping):
        raise InvalidType(f"storage_options must be a mapping, not {type(options).__name__}")
    for name, value in options.items():
        key = str(name).lower()
        key = "azure_storage_account_name" if key == "account_name" else key
        if key in implied and value != implied[key]:
            raise InvalidInput(f"option {name} has another value than the URL")
    return {**implied, **options}


def _to_text(url: object) -> str:
    if not isinstance(url, str | os.PathLike):
        raise InvalidType(f"a URL must be a string or a path, not {type(url).__name__}")
    text = os.fspath(url)
    if not isinstance(text, str):
        raise InvalidType("a path must be a text, not bytes")
    if not text:
        raise InvalidInput("the URL is empty")
    if _UNPRINTABLE.search(text):
        raise InvalidInput("the URL begins with a space, or has control characters")
    return text


def _to_file_url(path: str) -> str:
    if _MISTAKEN.match(path):
        message = "a URL begins with a scheme and ://, with two slashes; a path of such a name begins with ./"
        raise InvalidInput(message)
    expanded = os.path.expanduser(path)  # noqa: PTH111 a text as it is
    if path.startswith("~") and expanded == path:
        raise InvalidInput(
            f"no home folder is known for {path.partition('/')[0]!r}; a path of this name begins with ./"
        )
    # After a symbolic link `..` is what the system takes it for.
    whole = os.path.realpath(expanded) if ".." in expanded.split("/") else os.path.abspath(expanded)  # noqa: PTH100
    try:
        return "file://" + _quote(whole)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"path {path!r} cannot be encoded as UTF-8") from error


def _from_azure_url(name: str, rest: str) -> tuple[str, dict[str, str]]:
    authority, slash, folder = rest.partition("/")
    container, at, host = authority.partition("@")
    if not at:
        return f"az://{authority}{slash}{folder}", {}
    known = _AZURE_HOST.fullmatch(host)
    if known is None:
        # It may hold a secret.
        message = (
            f"a {name}:// URL is {name}://container@account.dfs.core.windows.net/folder; for another host use "
            "az://container/folder and the options azure_storage_account_name and azure_storage_endpoint"
        )
        raise InvalidInput(message)
    implied = {"azure_storage_account_name": known[1]}
    if known[2].startswith("fabric"):
        implied["azure_use_fabric_endpoint"] = "true"
    return f"az://{container}{slash}{folder}", implied

"""The connections of stores: those that are unpickled in one process share them."""

from __future__ import annotations

import functools
import os
from types import FunctionType
from typing import TYPE_CHECKING

from pds import _pds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# What cloud stores read of the environment.
_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")
_MAX_SHARED = 16


def open_handle(
    url: str, options: Mapping[str, str], credential_provider: Callable[[], Mapping[str, object]] | None
) -> _pds.StoreHandle:
    """Return the handle of an unpickled store.

    The tasks that a worker of an engine runs one after the other unpickle a store each. With connections of its own,
    each would ask for the credentials of its role again. No request is sent.
    """
    # A provider that is a function of a module is the same object again; others are pickled by value.
    is_shareable = credential_provider is None or isinstance(credential_provider, FunctionType)
    if not is_shareable or url.startswith(("memory:", "file:")):
        return _pds.StoreHandle(url, dict(options), credential_provider)
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_PREFIXES)))
    return _open_shared(url, tuple(sorted(options.items())), credential_provider, environment)


@functools.lru_cache(maxsize=_MAX_SHARED)
def _open_shared(
    url: str,
    options: tuple[tuple[str, str], ...],
    credential_provider: Callable[[], Mapping[str, object]] | None,
    _environment: tuple[tuple[str, str], ...],
) -> _pds.StoreHandle:
    return _pds.StoreHandle(url, dict(options), credential_provider)

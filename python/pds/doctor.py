"""Tries out what a store can do, by doing it under a scratch key that is removed afterwards.

Declarations and version numbers are no evidence: whether a store honours a condition shows
only when one that must fail does fail.

Example:
    ```python
    for finding in pds.doctor.probe(store):
        print(finding.name, finding.passed, finding.detail)
    ```
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pds.errors import AlreadyExists, RemoteStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pds import Store

__all__ = ["Finding", "probe"]

_FIRST: Final = b"pds doctor: first"
_SECOND: Final = b"pds doctor: second"


@dataclass(frozen=True)
class Finding:
    """What one probe found."""

    name: str
    passed: bool
    detail: str


class _ProbeError(Exception):
    """The store answered, and answered wrongly."""


def probe(store: Store) -> Iterator[Finding]:
    """Run the probes one after another.

    Nothing but a folder with a random name is touched. A probe that needs what an earlier
    one could not do fails as well.

    Args:
        store: The store to try out.

    Yields:
        A finding for each probe.
    """
    folder = f"pds-doctor-{uuid.uuid4().hex}"
    path = f"{folder}/probe"
    try:
        for name, check in _PROBES:
            try:
                yield Finding(name, passed=True, detail=check(store, path))
            except (_ProbeError, RemoteStoreError) as error:
                yield Finding(name, passed=False, detail=str(error))
    finally:
        # The delete probe has reported it already if this cannot work.
        with contextlib.suppress(RemoteStoreError):
            store.delete_folder(folder, recursive=True, missing_ok=True)


def _write(store: Store, path: str) -> str:
    store.write(path, _FIRST, overwrite=True)
    return "an object was written"


def _read(store: Store, path: str) -> str:
    _expect(store.read_bytes(path) == _FIRST, "what was read is not what was written")
    with store.read(path) as file:
        file.seek(len(_FIRST) - 5)
        _expect(file.read() == _FIRST[-5:], "a range of it is not what was written")
    return "whole and in part"


def _create(store: Store, path: str) -> str:
    try:
        store.write(path, _SECOND)
    except AlreadyExists:
        _expect(store.read_bytes(path) == _FIRST, "the object was replaced all the same")
        return "creating what exists is refused"
    msg = "creating what exists was not refused: two writers could both win"
    raise _ProbeError(msg)


def _replace(store: Store, path: str) -> str:
    honoured = store._handle.probe_replace(path)  # noqa: SLF001 conditions are not in the public API
    _expect(honoured, "a version that is gone could be replaced: two writers could both win")
    return "replacing another version than the one that was read is refused"


def _list(store: Store, path: str) -> str:
    folder, _, name = path.rpartition("/")
    names = [info.name for info in store.list_files(folder)]
    _expect(names == [name], f"expected one name, got {names}")
    return "the object is listed"


def _delete(store: Store, path: str) -> str:
    store.delete(path)
    _expect(not store.exists(path), "the object is still there")
    return "the object is gone"


def _expect(condition: bool, otherwise: str) -> None:  # noqa: FBT001
    if not condition:
        raise _ProbeError(otherwise)


_PROBES: Final[tuple[tuple[str, Callable[[Store, str], str]], ...]] = (
    ("write", _write),
    ("read", _read),
    ("conditional create", _create),
    ("conditional replace", _replace),
    ("list", _list),
    ("delete", _delete),
)

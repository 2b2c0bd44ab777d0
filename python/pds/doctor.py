"""Probes of the capabilities of a store, under a temporary key that is removed afterwards.

Capabilities are tested, because documentation and version numbers prove nothing: a store honors conditional
writes only if a write whose condition does not hold fails.

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
    """The result of one probe.

    Attributes:
        name: The name of the probe.
        passed: Whether the store behaves as expected.
        detail: What the store did, or why the probe failed.
    """

    name: str
    passed: bool
    detail: str


class _ProbeError(Exception):
    """The store answered, and the answer is wrong."""


def probe(store: Store) -> Iterator[Finding]:
    """Run the probes one after another.

    The probes use only a folder with a random name, which is removed at the end. A probe that depends on a
    failed probe fails too.

    Args:
        store: The store to probe.

    Yields:
        A finding for each probe: write, read, conditional create, conditional replace, list and delete.
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
        # The delete probe has already reported a store that cannot delete.
        with contextlib.suppress(RemoteStoreError):
            store.delete_folder(folder, recursive=True, missing_ok=True)


def _write(store: Store, path: str) -> str:
    store.write(path, _FIRST, overwrite=True)
    return "the object was written"


def _read(store: Store, path: str) -> str:
    _expect(store.read_bytes(path) == _FIRST, "the object that was read is not the object that was written")
    with store.read(path) as file:
        file.seek(len(_FIRST) - 5)
        _expect(file.read() == _FIRST[-5:], "the range that was read is not the range that was written")
    return "the object and a range of it were read"


def _create(store: Store, path: str) -> str:
    try:
        store.write(path, _SECOND)
    except AlreadyExists:
        _expect(store.read_bytes(path) == _FIRST, "a create of an existing object was denied and replaced the object")
        return "a create of an existing object is denied"
    msg = "a create of an existing object succeeded: two concurrent writers could overwrite each other"
    raise _ProbeError(msg)


def _replace(store: Store, path: str) -> str:
    is_honored = store._handle.probe_replace(path)  # noqa: SLF001 conditional writes are not in the public API
    _expect(is_honored, "a replace of an outdated version succeeded: two concurrent writers could overwrite each other")
    return "a replace of an outdated version is denied"


def _list(store: Store, path: str) -> str:
    folder, _, name = path.rpartition("/")
    names = [info.name for info in store.list_files(folder)]
    _expect(names == [name], f"expected the listing [{name!r}], found {names}")
    return "the object is listed"


def _delete(store: Store, path: str) -> str:
    store.delete(path)
    _expect(not store.exists(path), "the deleted object still exists")
    return "the object was deleted"


def _expect(condition: bool, message: str) -> None:  # noqa: FBT001 a condition, not a flag
    if not condition:
        raise _ProbeError(message)


_PROBES: Final[tuple[tuple[str, Callable[[Store, str], str]], ...]] = (
    ("write", _write),
    ("read", _read),
    ("conditional create", _create),
    ("conditional replace", _replace),
    ("list", _list),
    ("delete", _delete),
)

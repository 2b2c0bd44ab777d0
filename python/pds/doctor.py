"""Checks whether a store keeps what pds relies on, under a temporary key that is removed afterwards.

Rules are tried, because documentation and version numbers prove nothing: a store honors conditional writes only if
writes whose conditions do not hold fail, and only if many at the same time do, too.

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

from pds import _pds
from pds.errors import BackendUnavailable, PermissionDenied, RemoteStoreError, UnsafeStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pds import Store

__all__ = ["Finding", "judge", "probe"]


_FIRST: Final = "write"
"""The first check, without which no other one can succeed."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: The name of the rule.
        passed: Whether the store keeps the rule.
        detail: What the store does, or why the check failed.
        unsafe: Whether the store breaks a rule without which concurrent writers overwrite one another.
    """

    name: str
    passed: bool
    detail: str
    unsafe: bool = False


def probe(store: Store) -> Iterator[Finding]:
    """Run the checks one after another.

    They write some 200 small objects in a folder with a random name, which is removed at the end. After a check that
    cannot reach the store, or may not write, the others fail without being tried.

    Args:
        store: The store to check.

    Yields:
        A finding for each rule: write, read, list, conditional create, conditional replace, concurrent creates,
        concurrent replaces and delete.
    """
    folder = f"pds-doctor-{uuid.uuid4().hex}"
    handle = store._handle.child(folder)  # noqa: SLF001 conditional writes are not in the public API
    hopeless: str | None = None
    try:
        for check in _pds.contract_checks():
            name = check["name"]
            if hopeless is not None:
                yield Finding(name, passed=False, detail=f"not tried, since {hopeless} failed")
                continue
            try:
                _pds.check_contract(handle, name)
            except RemoteStoreError as error:
                # Every other request would fail alike, timeout by timeout.
                may_not_write = name == _FIRST and isinstance(error, PermissionDenied)
                if may_not_write or isinstance(error, BackendUnavailable):
                    hopeless = name
                yield Finding(name, passed=False, detail=str(error), unsafe=isinstance(error, UnsafeStore))
            else:
                yield Finding(name, passed=True, detail=check["expectation"])
    finally:
        if hopeless != _FIRST:
            # The check of deletions has already reported a store that cannot delete.
            with contextlib.suppress(RemoteStoreError):
                store.delete_folder(folder, recursive=True, missing_ok=True)


def judge(findings: Iterable[Finding]) -> str:
    """Return `safe`, `unsafe` or `unknown`: whether the store can hold tables, pipelines and chains.

    Args:
        findings: All findings of `probe`.

    Returns:
        `unsafe` if a rule is broken without which concurrent writers overwrite one another; else `unknown` if a check
        failed, for example because the store cannot be reached; else `safe`.
    """
    known = list(findings)
    if any(finding.unsafe for finding in known):
        return "unsafe"
    return "safe" if known and all(finding.passed for finding in known) else "unknown"

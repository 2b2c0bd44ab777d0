"""Validation of the arguments of datasets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pds import _pds
from pds.errors import InvalidInput, InvalidType
from pds.manifest import DatasetManifest

# Larger numbers are reduced to these: no dataset has so many parts, and no machine work for so many threads.
_MAX_INDEX = 2**53
_MAX_THREADS = 1024
# Nor does anybody read a part in so many shares.
_MAX_SHARES = 2**31


def check_manifest(manifest: object) -> DatasetManifest:
    """Return `manifest` if it is one."""
    if not isinstance(manifest, DatasetManifest):
        raise InvalidType(
            f"manifest must be a pds.DatasetManifest, not {type(manifest).__name__}; read_manifest returns it"
        )
    return manifest


@dataclass(frozen=True)
class PartSelection:
    """A part of a dataset, or a share of it. The engine reads the fields."""

    index: int
    share: tuple[int, int] | None


def check_part(
    manifest: object, index: object, share: object, part_index: object
) -> tuple[str, PartSelection, _pds.PartIndex | None]:
    """Return the manifest as JSON, a part of it or a share of one, and the index of all parts or None."""
    json = check_manifest(manifest).to_json()
    if isinstance(index, bool) or not isinstance(index, int):
        raise InvalidType(f"index must be a non-negative integer, not {index!r}")
    if index < 0:
        raise InvalidInput(f"index must be a non-negative integer, not {index}")
    if part_index is not None and not isinstance(part_index, _pds.PartIndex):
        raise InvalidType(f"part_index must be the result of index_parts, not {type(part_index).__name__}")
    return json, PartSelection(min(index, _MAX_INDEX), _check_share(share)), part_index


def _check_share(share: object) -> tuple[int, int] | None:
    if share is None:
        return None
    message = f"share must be its number from 0 and the number of shares, such as (0, 2), not {share!r}"
    match share:
        case (int() as number, int() as count) if not isinstance(number, bool) and not isinstance(count, bool):
            if 0 <= number < count < _MAX_SHARES:
                return number, count
            raise InvalidInput(message)
        case _:
            raise InvalidType(message)


def check_parts(parts: object) -> list[_pds.StagedPart]:
    """Return staged parts as a list."""
    values = parts if isinstance(parts, Iterable) and not isinstance(parts, str | bytes) else [parts]
    staged: list[_pds.StagedPart] = []
    for part in values:
        if not isinstance(part, _pds.StagedPart):
            raise InvalidType(f"parts must be a list of the results of prepare, not of {type(part).__name__}")
        staged.append(part)
    return staged


def check_threads(threads: object) -> int | None:
    """Return `threads` if it is None or a number of threads."""
    if threads is None:
        return None
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise InvalidType(f"threads must be a positive integer, not {threads!r}")
    if threads < 1:
        raise InvalidInput(f"threads must be a positive integer, not {threads}")
    return min(threads, _MAX_THREADS)

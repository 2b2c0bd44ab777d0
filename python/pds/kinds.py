"""What a folder of a store is: a table, a dataset, a pipeline or a chain, by the names of its files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pds.errors import InvalidPath, NotFound

if TYPE_CHECKING:
    from pds.store import Store

Kind = Literal["table", "dataset", "pipeline", "chain"]
_MANIFEST = re.compile(r"v\d{8,}\.json")


def find_kind(store: Store, path: str) -> Kind | None:
    """Return what a folder is; None if it is nothing by itself."""
    return inspect_folder(store, path)[0]


def inspect_folder(store: Store, folder: str) -> tuple[Kind | None, list[str]]:
    """Return what a folder is, or, if it is nothing by itself, the folders in it."""
    prefix = f"{folder}/" if folder else ""
    names = {file.name for file in store.list_files(folder)}
    if "_SUCCESS" in names:
        return "dataset", []
    folders = [entry.path for entry in store.list_folders(folder)]
    if "_latest_manifest" in names:
        return ("pipeline" if _is_pipeline(store, prefix, None) else "table"), []
    if f"{prefix}manifest" in folders:
        # The pointer was lost, or its writer has not put it yet.
        manifests = [file.path for file in store.list_files(f"{prefix}manifest") if _MANIFEST.fullmatch(file.name)]
        if manifests:
            return ("pipeline" if _is_pipeline(store, prefix, max(manifests)) else "table"), []
    if f"{prefix}refs" in folders and store.exists(f"{prefix}refs/head"):
        return "chain", []
    return None, folders


def _is_pipeline(store: Store, prefix: str, manifest: str | None) -> bool:
    """Return whether a manifest, by default the one that the pointer names, is that of a pipeline."""
    import json  # noqa: PLC0415 who reads a dataset needs none

    try:
        if manifest is None:
            manifest = prefix + json.loads(store.read_bytes(f"{prefix}_latest_manifest"))["manifest"]
        return "nodes" in json.loads(store.read_bytes(manifest))
    except (NotFound, ValueError, TypeError, KeyError, InvalidPath):
        # A vacuum removed it, or it is damaged: who opens the folder is told.
        return False

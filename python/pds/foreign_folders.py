"""The deletion of a folder of a `remote_store.Store`: what the engine, which sees only files, cannot do."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pds import _pds
from pds.errors import DirectoryNotEmpty, InvalidPath, NotFound, PermissionDenied

if TYPE_CHECKING:
    import remote_store


def delete_dataset(handle: _pds.StoreHandle, store: remote_store.Store, folder: str) -> None:
    """Delete the folder of a dataset with all files in it, as it is deleted in a `pds.Store` of local files.

    Raises:
        NotFound: The folder does not exist.
        InvalidPath: The folder is a symbolic link, or a file is in its place. Nothing is deleted.
        PermissionDenied: A link in the folder cannot be removed.
    """
    if _is_link(store, folder):
        raise InvalidPath(
            f"{folder!r} is a symbolic link, which a deletion does not follow; delete the folder where it leads by the "
            "path of that folder, or remove the link by the tools of the file system",
            path=folder,
        )
    try:
        _delete_files(handle, store, folder)
    except NotFound:
        # A folder without files is a folder all the same.
        if not store.is_folder(folder):
            raise
    _remove_links(store, folder)
    _remove_empty_folders(store, folder)


def _delete_files(handle: _pds.StoreHandle, store: remote_store.Store, folder: str) -> None:
    try:
        _pds.delete_dataset(handle, folder)
    except InvalidPath as error:
        # The store lists links to files elsewhere, and refuses to delete them.
        path = error.path or ""
        if not path.startswith(f"{folder}/") or not _is_link(store, path):
            raise
        _remove_links(store, folder)
        _pds.delete_dataset(handle, folder)


def _is_link(store: remote_store.Store, path: str) -> bool:
    plan = store.resolve(path)
    return plan.kind == "local" and Path(plan.native_path).is_symlink()


def _remove_links(store: remote_store.Store, folder: str) -> None:
    """Remove the links in a local folder and in those below, wherever they lead; what they lead to stays."""
    plan = store.resolve(folder)
    folders = [Path(plan.native_path)] if plan.kind == "local" else []
    try:
        while folders:
            with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
                for entry in list(entries):
                    if entry.is_symlink():
                        Path(entry.path).unlink(missing_ok=True)
                    elif entry.is_dir():
                        folders.append(Path(entry.path))
    except PermissionError as error:
        raise PermissionDenied(f"a link in {folder!r} cannot be removed: {error}", path=folder) from error


def _remove_empty_folders(store: remote_store.Store, folder: str) -> None:
    """Remove the empty folders of a deleted dataset, and keep files that were written concurrently."""
    for entry in list(store.list_folders(folder)):
        path = str(entry.path)
        # A link that has come meanwhile stays.
        if not _is_link(store, path):
            _remove_empty_folders(store, path)
    with contextlib.suppress(DirectoryNotEmpty):
        store.delete_folder(folder, missing_ok=True)

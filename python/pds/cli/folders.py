"""What a folder has, and what is deleted with a dataset: `delete_dataset` removes all of its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pds.cli.thing import PART_FILE
from pds.dataset import ParquetDatasetStore
from pds.errors import InvalidInput, ManifestCorrupted, NotFound
from pds.paths import normalize_folder_path

if TYPE_CHECKING:
    from pds.store import Store

_UNMARKED: Final = ("manifest.json", "_publish.json")
"""What a writer of a dataset leaves beside parts if it is killed before the marker is there."""
_MARKER: Final = "_SUCCESS"
_POINTERS: Final = ("_latest_manifest", "refs/head")
"""The files that make a folder a table, a pipeline or a chain."""


@dataclass(frozen=True)
class Contents:
    """What is in the folder of a dataset beside the dataset, by paths in the store.

    Args:
        datasets: The folders of other datasets.
        things: The folders of tables, pipelines and chains. One of them may be the folder itself.
        files: The files that writers of datasets do not leave.
    """

    datasets: list[str]
    things: list[str]
    files: list[str]


def has_something(store: Store, folder: str = "") -> bool:
    """Return whether a folder exists; where stores have no folders, whether it has files."""
    if normalize_folder_path(folder):
        return store.is_folder(folder)
    if store.url.startswith("file://"):
        return Path(unquote(store.url.removeprefix("file://"))).is_dir()
    return any(True for _ in store.list_files()) or any(True for _ in store.list_folders())


def list_contents(store: Store, folder: str) -> Contents:
    """Look into the folder of a dataset, by one listing."""
    folder = normalize_folder_path(folder)
    paths = sorted(file.path for file in store.list_files(folder, recursive=True))
    datasets = {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] == _MARKER}
    things = {thing for path in paths for thing in _find_folders_of_pointer(path)}
    files, listed = [], {}
    for path in paths:
        parent, _, name = path.rpartition("/")
        if parent in datasets:
            if name == _MARKER or is_left_by_writers(name):
                continue
            # Parts of other makers may have any name.
            if parent not in listed:
                listed[parent] = _list_parts(store, parent)
            if name in listed[parent]:
                continue
        files.append(path)
    return Contents(sorted(datasets - {folder}), sorted(things), files)


def is_left_by_writers(name: str) -> bool:
    """Return whether a writer that is killed may leave a file of this name in the folder of a dataset."""
    return name in _UNMARKED or PART_FILE.fullmatch(name) is not None


def check_deletion(store: Store, key: str, *, is_recursive: bool) -> str:
    """Return what is deleted with a dataset, for the question: nothing, or other datasets and files.

    Raises:
        InvalidInput: There is more than the dataset, and the deletion is not recursive; or there is something that
            `delete_dataset` refuses to delete.
    """
    contents = list_contents(store, key)
    if contents.things:
        raise InvalidInput(
            f"{contents.things[0]!r} is a table, a pipeline or a chain, which is not deleted with the dataset "
            f"{key!r}; drop it first, or delete its folder with other tools"
        )
    others = [
        (_count(paths, noun), f"{_count(paths, noun)}, such as {paths[0]!r}")
        for paths, noun in ((contents.datasets, "dataset"), (contents.files, "file"))
        if paths
    ]
    if not others:
        return ""
    if not is_recursive:
        named = ", and ".join(example for _, example in others)
        raise InvalidInput(f"the folder of {key!r} also has {named}; --recursive deletes all of them")
    return f", and what else is in its folder: {', '.join(count for count, _ in others)}"


def _count(paths: list[str], noun: str) -> str:
    return f"{len(paths)} other {noun}{'' if len(paths) == 1 else 's'}"


def _find_folders_of_pointer(path: str) -> list[str]:
    return [path.removesuffix(name).rstrip("/") for name in _POINTERS if f"/{path}".endswith(f"/{name}")]


def _list_parts(store: Store, key: str) -> list[str]:
    try:
        return list(ParquetDatasetStore(store).read_manifest(key).parts)
    except (NotFound, ManifestCorrupted):
        return []

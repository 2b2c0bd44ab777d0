"""The versions of a thing, and new ones as they come."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from pds.cli.codes import FAILED, OK
from pds.cli.output import print_error, print_rows, to_words
from pds.cli.thing import Thing
from pds.errors import InvalidInput, NotFound, RemoteStoreError

if TYPE_CHECKING:
    import argparse

_COLUMNS: Final = ("version", "created_at", "operation", "commit_id")


def show_history(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print the versions, newest first, or watch for new ones."""
    thing = Thing(args, options)
    if args.watch and args.output == "json":
        raise InvalidInput("--watch prints rows as they come; use -o ndjson, csv or text")
    # What is committed between the two reads changes the pointer.
    pointer = _read_pointer(thing) if args.watch else None
    versions = _read_history(thing, args.limit)
    _print(versions, args.output)
    if args.watch:
        _watch(thing, args, pointer, versions[0]["version"] if versions else 0)
    return OK


def _print(versions: list[dict[str, Any]], output: str, *, has_header: bool = True) -> None:
    if output == "text":
        versions = [{**version, "operation": describe_operation(version["operation"])} for version in versions]
    rows = [[version[name] for name in _COLUMNS] for version in versions]
    print_rows(_COLUMNS, rows, output, has_header=has_header)


def describe_operation(operation: dict[str, Any] | str) -> str:
    """An operation for a person, such as `append: files 1, rows 2`."""
    if isinstance(operation, str):
        return operation
    others = to_words({name: value for name, value in operation.items() if name != "name"})
    return f"{operation['name']}: {others}".removesuffix(": ")


def _watch(thing: Thing, args: argparse.Namespace, pointer: object, known: int) -> None:
    """Print new versions until an interrupt. A request that failed is sent again after the next interval."""
    problem: str | None = None
    while True:
        sys.stdout.flush()
        time.sleep(args.interval)
        try:
            current = _read_pointer(thing)
            is_unchanged = current is not None and current == pointer
            versions = [] if is_unchanged else _new_versions(thing, known)
        except RemoteStoreError as error:
            if not error.retryable:
                raise
            # One line for an outage, however long it is.
            if problem != type(error).__name__:
                print_error(f"{error}; trying again every {args.interval:g} s", FAILED)
            problem = type(error).__name__
            continue
        pointer, problem = current, None
        for version in versions:
            _print([version], args.output, has_header=False)
            known = version["version"]


def _read_pointer(thing: Thing) -> object | None:
    """Return what changes with each version, by one request without content; None if the store has no ETags."""
    name = "refs/head" if thing.kind == "chain" else "_latest_manifest"
    try:
        return thing.store.get_file_info(f"{thing.path}/{name}").etag
    except NotFound:
        # A table whose pointer was lost can be opened all the same.
        return None


def _new_versions(thing: Thing, known: int) -> list[dict[str, Any]]:
    """Return the versions after `known`, oldest first; all versions if the thing was dropped and created again."""
    limit = 1
    while True:
        history = _read_history(thing, limit)
        newest = history[0]["version"] if history else 0
        if newest < known:
            print_error(f"{thing.url} was created again or rewritten: its newest version is {newest}", FAILED)
            known = 0
        versions = [version for version in history if version["version"] > known]
        # Others may have come since the last look.
        if len(history) < limit or len(versions) < limit:
            break
        limit *= 2
    if not versions:
        return []
    oldest = versions[-1]["version"]
    if oldest > known + 1:
        print_error(f"versions {known + 1} to {oldest - 1} are gone: a vacuum removed them", FAILED)
    return versions[::-1]


def _read_history(thing: Thing, limit: int | None) -> list[dict[str, Any]]:
    if thing.kind == "table":
        return thing.table().history(limit)
    if thing.kind == "pipeline":
        return thing.pipeline().history(limit)
    return [
        {
            "version": block.sequence_number,
            "created_at": block.system_time,
            "operation": block.event.kind,
            "commit_id": block.hash,
        }
        for block in thing.chain().log(limit)
    ]

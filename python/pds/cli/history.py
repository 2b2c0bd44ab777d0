"""The versions of a thing, and new ones as they come."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from pds.cli.codes import FAILED, OK
from pds.cli.output import print_error, print_rows
from pds.cli.thing import Thing
from pds.errors import (
    InvalidInput,
)

if TYPE_CHECKING:
    import argparse


def show_history(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print the versions, newest first, or watch for new ones."""
    thing = Thing(args, options)
    if args.watch and args.output == "json":
        raise InvalidInput("--watch prints rows as they come; use -o ndjson, csv or text")
    names = ["version", "created_at", "operation", "commit_id"]
    versions = _read_history(thing, args.limit)
    print_rows(names, [[version[name] for name in names] for version in versions], args.output)
    known = versions[0]["version"] if versions else 0
    while args.watch:
        sys.stdout.flush()
        time.sleep(args.interval)
        for version in _new_versions(thing, known):
            print_rows(names, [[version[name] for name in names]], args.output, has_header=False)
            known = version["version"]
    return OK


def _new_versions(thing: Thing, known: int) -> list[dict[str, Any]]:
    """Return the versions after `known`, oldest first; all versions if the thing was dropped and created again."""
    limit = 1
    while True:
        history = _read_history(thing, limit)
        newest = history[0]["version"] if history else 0
        if newest < known:
            print_error(f"{thing.url} was dropped and created again", FAILED)
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
        versions = thing.table().history(limit)
    elif thing.kind == "pipeline":
        versions = thing.pipeline().history(limit)
    elif thing.kind == "chain":
        return [
            {
                "version": block.sequence_number,
                "created_at": block.system_time,
                "operation": block.event.kind,
                "commit_id": block.hash,
            }
            for block in thing.chain().log(limit)
        ]
    else:
        raise thing.refuse("has no history; tables, pipelines and chains have one")
    return versions

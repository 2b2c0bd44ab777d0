"""Commands that check a thing or keep it in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pds.cli.codes import FAILED, OK
from pds.cli.consent import require_consent, to_age
from pds.cli.folders import check_deletion
from pds.cli.output import print_fields, print_problems, print_rows
from pds.cli.progress import choose_progress
from pds.cli.thing import Thing, to_known_version
from pds.errors import (
    DatasetIncomplete,
    InvalidInput,
    ManifestCorrupted,
    PartCorrupted,
    VerificationFailed,
)
from pds.table.table import Table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pds.producers.pipeline import Pipeline
    from pds.progress import ProgressArgument


def check(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Compare a table with the objects of its folder."""
    result = Thing(args, options).table().check(progress=choose_progress(args))
    rows = [(what, path) for what in ("missing", "mismatched", "orphans") for path in getattr(result, what)]
    print_problems(["problem", "path"], rows, args.output)
    return FAILED if result.missing or result.mismatched else OK


def verify(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Verify every byte."""
    thing = Thing(args, options)
    progress = choose_progress(args)
    if thing.kind == "table":
        result = thing.table(args.as_of).verify(progress=progress)
        print_problems(["path", "problem"], result.problems, args.output)
        return FAILED if result.problems else OK
    thing.refuse_versions(args.as_of)
    try:
        report = _verify_dataset(thing, progress) if thing.kind == "dataset" else _verify_chain(thing, progress)
    except (DatasetIncomplete, ManifestCorrupted, PartCorrupted) as error:
        problems = [(error.path, error.args[0])]
    except VerificationFailed as error:
        problems = list(error.problems)
    else:
        print_fields(report, args.output)
        return OK
    print_problems(["path", "problem"], problems, args.output)
    return FAILED


def _verify_dataset(thing: Thing, progress: ProgressArgument) -> dict[str, Any]:
    report = thing.datasets().verify_dataset(thing.path, progress=progress)
    return {"parts": report.parts, "rows": report.rows, "bytes": report.bytes}


def _verify_chain(thing: Thing, progress: ProgressArgument) -> dict[str, Any]:
    result = thing.chain().verify(progress=progress)
    return {"blocks": result.blocks, "slices": result.slices, "rows": result.rows}


def optimize(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Combine small files, runs or slices, or sort all rows."""
    thing = Thing(args, options)
    if args.sort and thing.kind != "table":
        raise thing.refuse("has no sort order of its own: leave out --sort")
    progress = choose_progress(args)
    if thing.kind == "chain":
        compacted = thing.chain().compact(progress=progress)
        print_fields({"head": thing.chain().head if compacted is None else compacted.after}, args.output)
        return OK
    if thing.kind == "pipeline":
        result: Any = thing.pipeline().compact(progress=progress)
    else:
        rewrites = thing.table().optimize
        result = rewrites.sort(progress=progress) if args.sort else rewrites.compact(progress=progress)
    print_fields({"version": None if result is None else result.version}, args.output)
    return OK


def vacuum(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Remove objects that no retained version needs."""
    thing = Thing(args, options)
    age = to_age(args.older_than)
    if not args.dry_run:
        require_consent(args, f"remove the versions of {args.url!r} that are older than {args.older_than:g} days")
    kinds: dict[str, Callable[[], Any]] = {"chain": thing.chain, "table": thing.table}
    opened: Any = kinds.get(thing.kind, thing.pipeline)()
    result = opened.vacuum(age, dry_run=args.dry_run, progress=choose_progress(args))
    paths = [*result.files, *getattr(result, "manifests", ())]
    print_rows(["path"], [(path,) for path in paths], args.output)
    return OK


def restore(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Make the rows of an earlier version those of a new one."""
    table = Thing(args, options).table()
    result = table.restore(to_known_version(args.version, table.tags, table.version))
    print_fields({"version": result.version}, args.output)
    return OK


def tag(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Name a version, or print the names."""
    thing = Thing(args, options)
    if args.delete and (args.name is None or args.version is not None):
        raise InvalidInput("--delete takes the name of a tag, and no version")
    if args.name is not None and not args.delete and args.name.isascii() and args.name.isdigit():
        # `--as-of` would take it for a version.
        raise InvalidInput(f"{args.name!r} is the number of a version, not a name: `pds tag URL NAME {args.name}`")
    opened: Table | Pipeline = thing.table() if thing.kind == "table" else thing.pipeline()
    tags = opened.tags
    if args.delete and args.name not in tags:
        raise InvalidInput(f"the tag {args.name!r} does not exist")
    if args.name is None:
        print_rows(["tag", "version"], sorted(tags.items()), args.output)
        return OK
    if args.version is not None and args.version > opened.version:
        raise InvalidInput(f"there is no version {args.version}; the newest is {opened.version}")
    if isinstance(opened, Table):
        commit = opened.tags.delete(args.name) if args.delete else opened.tags.create(args.name, args.version)
        version = commit.version
    else:
        version = opened.untag(args.name) if args.delete else opened.tag(args.name, args.version)
    print_fields({"version": version}, args.output)
    return OK


def drop(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Delete a table or a dataset with all of its versions."""
    thing = Thing(args, options)
    more = ""
    if thing.kind == "dataset":
        more = check_deletion(thing.store, thing.path, is_recursive=args.recursive)
    elif args.recursive:
        raise thing.refuse("is dropped without what others have in its folder: leave out --recursive")
    require_consent(args, f"delete the {thing.kind} {args.url!r} with all of its rows{more}")
    if thing.kind == "table":
        Table.drop(thing.store, thing.path)
    else:
        thing.datasets().delete_dataset(thing.path)
    print_fields({"dropped": args.url}, args.output)
    return OK

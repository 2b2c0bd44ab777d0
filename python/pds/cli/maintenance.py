"""Commands that check a thing or keep it in order."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pds.cli.codes import FAILED, OK
from pds.cli.output import print_fields, print_problems, print_rows
from pds.cli.thing import Thing, to_version
from pds.errors import (
    DatasetIncomplete,
    InvalidInput,
    ManifestCorrupted,
    PartCorrupted,
    RemoteStoreError,
    VerificationFailed,
)
from pds.table.table import Table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def check(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Compare a table with the objects of its folder."""
    result = Thing(args.url, options).table().check()
    rows = [(what, path) for what in ("missing", "mismatched", "orphans") for path in getattr(result, what)]
    print_problems(["problem", "path"], rows, args.output)
    return FAILED if result.missing or result.mismatched else OK


def verify(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Verify every byte."""
    thing = Thing(args.url, options)
    if thing.kind == "table":
        result = thing.table(args.as_of).verify()
        print_problems(["path", "problem"], result.problems, args.output)
        return FAILED if result.problems else OK
    if thing.kind in ("dataset", "chain"):
        thing.refuse_versions(args.as_of)
        try:
            report = _verify_dataset(thing) if thing.kind == "dataset" else _verify_chain(thing)
        except (DatasetIncomplete, ManifestCorrupted, PartCorrupted) as error:
            problems = [(error.path, error.args[0])]
        except VerificationFailed as error:
            problems = list(error.problems)
        else:
            print_fields(report, args.output)
            return OK
        print_problems(["path", "problem"], problems, args.output)
        return FAILED
    raise thing.refuse("is checked by the process that declares it: Pipeline.check")


def _verify_dataset(thing: Thing) -> dict[str, Any]:
    report = thing.datasets().verify_dataset(thing.path)
    return {"parts": report.parts, "rows": report.rows, "bytes": report.bytes}


def _verify_chain(thing: Thing) -> dict[str, Any]:
    result = thing.chain().verify()
    return {"blocks": result.blocks, "slices": result.slices, "rows": result.rows}


def optimize(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Combine small files, or sort all."""
    thing = Thing(args.url, options)
    if thing.kind == "pipeline" and not args.sort:
        result: Any = thing.pipeline().compact()
    else:
        table = thing.table()
        result = table.optimize.sort() if args.sort else table.optimize.compact()
    if result is None:
        print_fields({"version": None}, args.output)
        return OK
    print_fields({"version": result.version}, args.output)
    return OK


def vacuum(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Remove objects that no retained version needs."""
    thing = Thing(args.url, options)
    if not args.dry_run:
        require_consent(args, f"remove the versions of {args.url!r} that are older than {args.older_than:g} days")
    try:
        age = timedelta(days=args.older_than)
    except (OverflowError, ValueError) as error:
        raise InvalidInput(f"--older-than is out of range: {args.older_than} days") from error
    opened: dict[str, Callable[[], Any]] = {"table": thing.table, "pipeline": thing.pipeline, "chain": thing.chain}
    if thing.kind not in opened:
        raise thing.refuse("has one version; clean it with `pds dataset clean`")
    result = opened[thing.kind]().vacuum(age, dry_run=args.dry_run)
    paths = [*result.files, *getattr(result, "manifests", ())]
    print_rows(["path"], [(path,) for path in paths], args.output)
    return OK


def require_consent(args: argparse.Namespace, what: str) -> None:
    """Ask at a terminal whether to go on; elsewhere `--yes` is needed."""
    if args.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidInput(f"to {what} needs --yes")
    sys.stderr.write(f"{what}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RemoteStoreError("nothing was done")


def restore(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Make the rows of an earlier version those of a new one."""
    table = Thing(args.url, options).table()
    result = table.restore(to_version(args.version, table.tags, table.version))
    print_fields({"version": result.version}, args.output)
    return OK


def tag(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Name a version, or print the names."""
    thing = Thing(args.url, options)
    table, pipeline = None, None
    if thing.kind == "pipeline":
        pipeline = thing.pipeline()
    else:
        table = thing.table()
    if args.delete and (args.name is None or args.version is not None):
        raise InvalidInput("--delete takes the name of a tag, and no version")
    if args.name is None:
        tags = dict(table.tags) if table is not None else thing.pipeline().tags
        print_rows(["tag", "version"], sorted(tags.items()), args.output)
        return OK
    if pipeline is not None:
        version = pipeline.untag(args.name) if args.delete else pipeline.tag(args.name, args.version)
    elif table is not None:
        commit = table.tags.delete(args.name) if args.delete else table.tags.create(args.name, args.version)
        version = commit.version
    print_fields({"version": version}, args.output)
    return OK


def drop(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Delete a table or a dataset with all of its versions."""
    thing = Thing(args.url, options)
    if thing.kind not in ("table", "dataset"):
        raise thing.refuse("cannot be dropped")
    require_consent(args, f"delete the {thing.kind} {args.url!r} with all of its rows")
    if thing.kind == "table":
        Table.drop(thing.store, thing.path)
    else:
        thing.datasets().delete_dataset(thing.path)
    print_fields({"dropped": args.url}, args.output)
    return OK

"""The commands that make tables readable for other systems."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from pds.cli.codes import OK
from pds.cli.names import parse_names
from pds.cli.output import print_fields
from pds.cli.progress import choose_progress
from pds.cli.thing import Thing
from pds.errors import InvalidInput

if TYPE_CHECKING:
    import argparse

    from pds.table import ExportResult


def export(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Write the metadata of another format."""
    table = Thing(args, options).table()
    leave_out = parse_names("--leave-out", args.leave_out) if args.leave_out != "" else []
    progress = choose_progress(args)
    if args.to == "iceberg":
        result: ExportResult = table.export_iceberg(
            args.location, leave_out=leave_out, rebuild=args.rebuild, progress=progress
        )
    elif args.location is not None:
        raise InvalidInput("--location is for --to iceberg: the paths of a Delta log are relative")
    else:
        result = table.export_delta(leave_out=leave_out, rebuild=args.rebuild, progress=progress)
    print_fields(asdict(result), args.output)
    return OK

"""The commands that make tables readable for other systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pds.cli.names import parse_names
from pds.cli.output import print_fields
from pds.cli.things import Thing

if TYPE_CHECKING:
    import argparse


def export(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Write the metadata of another format."""
    table = Thing(args.url, options).table()
    leave_out = parse_names("--leave-out", args.leave_out) if args.leave_out != "" else []
    result = table.export_delta(leave_out=leave_out, rebuild=args.rebuild)
    fields = {"version": result.version, "versions": result.versions, "bytes": result.bytes}
    print_fields(fields, args.output)
    return 0

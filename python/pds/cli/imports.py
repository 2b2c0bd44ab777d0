"""The command that makes tables of other systems' tables."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pds.cli.codes import OK
from pds.cli.output import print_error, print_fields

if TYPE_CHECKING:
    import argparse


def import_table(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Make a table, and print what it has."""
    from pds.errors import InvalidInput  # noqa: PLC0415 not for the other commands
    from pds.imports import import_delta, import_iceberg  # noqa: PLC0415 optional dependencies

    if args.take_over and args.source != "delta":
        raise InvalidInput("--take-over is for --from delta: Iceberg has no such feature")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        if args.source == "delta":
            table = import_delta(args.url, take_over=args.take_over, storage_options=options)
        else:
            table = import_iceberg(args.url, storage_options=options)
    for warning in caught:
        print_error(warning.message, 0)
    operation = table.history(1)[0]["operation"]
    print_fields({name: operation[name] for name in ("files", "rows", "deleted_rows")}, args.output)
    return OK

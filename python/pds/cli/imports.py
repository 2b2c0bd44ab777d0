"""The command that makes tables of other systems' tables."""

from __future__ import annotations

import shlex
import warnings
from typing import TYPE_CHECKING

from pds.cli.codes import OK
from pds.cli.output import print_error, print_fields

if TYPE_CHECKING:
    import argparse


def import_table(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Make a table, and print what it has."""
    from pds.errors import AlreadyExists, InvalidInput  # noqa: PLC0415 not for the other commands
    from pds.imports import import_delta, import_iceberg  # noqa: PLC0415 optional dependencies

    if args.take_over and args.source != "delta":
        raise InvalidInput("--take-over is for --from delta: Iceberg has no such feature")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            if args.source == "delta":
                table = import_delta(args.url, take_over=args.take_over, storage_options=options)
            else:
                table = import_iceberg(args.url, storage_options=options)
        except AlreadyExists as error:
            way_out = (
                f"to import it again, run `pds drop {shlex.quote(args.url)}` first, which deletes the table of pds "
                f"with all rows written to it, and leaves the files of the {args.source.title()} table"
            )
            raise AlreadyExists(f"{error.args[0]}; {way_out}", path=error.path) from error
    for warning in caught:
        print_error(str(warning.message).replace("take_over=True", "--take-over"), 0)
    operation = table.history(1)[0]["operation"]
    print_fields({name: operation[name] for name in ("files", "rows", "deleted_rows")}, args.output)
    return OK

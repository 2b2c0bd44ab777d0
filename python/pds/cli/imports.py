"""The command that makes tables of other systems' tables."""

from __future__ import annotations

import re
import shlex
import warnings
from typing import TYPE_CHECKING, Final

from pds.cli.codes import OK
from pds.cli.output import print_error, print_fields

if TYPE_CHECKING:
    import argparse

_OWN_FILE: Final = re.compile(r"data(/[0-9]+){4}/b[0-9]{8,}-[0-9a-f]{32}\.parquet")
"""The names that pds gives to data files. A drop removes such files, also those of a copied export."""


def import_table(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Make a table, and print what it has."""
    from pds.errors import AlreadyExists, InvalidInput  # noqa: PLC0415 not for the other commands
    from pds.imports import import_delta, import_iceberg  # noqa: PLC0415 optional dependencies

    if args.take_over and args.source != "delta":
        raise InvalidInput("--take-over is for --from delta: Iceberg has no such feature")
    if args.partition_time_zone is not None and args.source != "delta":
        raise InvalidInput("--partition-time-zone is for --from delta: Iceberg has all times in UTC")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            if args.source == "delta":
                table = import_delta(
                    args.url,
                    take_over=args.take_over,
                    partition_time_zone=args.partition_time_zone,
                    storage_options=options,
                )
            else:
                table = import_iceberg(args.url, storage_options=options)
        except AlreadyExists as error:
            hint = _explain_existing(args, options)
            raise (AlreadyExists(f"{error.args[0]}; {hint}", path=error.path) if hint else error) from error
    for warning in caught:
        print_error(str(warning.message).replace("take_over=True", "--take-over"), 0)
    operation = table.history(1)[0]["operation"]
    print_fields({name: operation[name] for name in ("files", "rows", "deleted_rows")}, args.output)
    return OK


def _explain_existing(args: argparse.Namespace, options: dict[str, object]) -> str | None:
    """What the table is that is there already, and how to import again; None if its first version is gone."""
    from pds.by_url import open_table  # noqa: PLC0415 not for the other commands
    from pds.errors import RemoteStoreError  # noqa: PLC0415 as above

    name = args.source.title()
    try:
        first = open_table(args.url, as_of=1, storage_options=options)
        operation, paths = first.history(1)[0]["operation"], map(str, first.files()["path"].to_pylist())
    except RemoteStoreError:
        return None
    if operation["name"] != "import":
        return f"pds made it, and not by an import; there is nothing to import of its own export to {name}"
    if operation["source"]["format"] != args.source:
        return None
    if any(_OWN_FILE.fullmatch(path) for path in paths):
        return "`pds drop` would delete the imported files with it, because they have names that pds gives"
    return (
        f"to import it again, run `pds drop {shlex.quote(args.url)}` first, which deletes the table of pds "
        f"with all rows written to it, and leaves the files of the {name} table"
    )

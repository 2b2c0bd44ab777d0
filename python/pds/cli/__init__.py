"""The ``pds`` command: look at tables, datasets, pipelines and chains, and keep them in order.

Every command takes the URL of the thing itself: `s3://bucket/lake/events`, `abfss://…`, or a path.

    pds ls       URL                   what lies below
    pds show     URL                   what it is: version, rows, files, bytes, key, columns
    pds schema   URL                   the columns
    pds history  URL                   the versions, newest first; --watch prints new ones as they come
    pds files    URL                   the files of its data
    pds head     URL                   the first rows
    pds scan     URL                   all rows; --where, --columns, --limit
    pds diff     URL V1 [V2]           the rows that a table got and lost between two versions
    pds check    URL                   a table against the objects of its folder
    pds health   URL                   what has accumulated, and what to run next
    pds verify   URL                   every byte
    pds optimize URL                   combine small files (--sort: sort all); of a pipeline, runs; of a chain, slices
    pds restore  URL VERSION           the rows of an earlier version
    pds tag      URL [NAME [VERSION]]  name a version, or print the names
    pds vacuum   URL                   remove old versions and orphans
    pds export   URL                   a Delta log or, --to iceberg, Iceberg metadata beside a table
    pds import   URL                   a table in the folder of a Delta or, --from iceberg, Iceberg table
    pds drop     URL                   delete a table or dataset
    pds doctor   URL                   probe the capabilities of a store
    pds demo     [FOLDER]              a table, a dataset and a pipeline, step by step
    pds completion bash|zsh|fish       the completion script of a shell

    pds dataset list|show|verify|clean|delete URL [KEY]   the datasets of a store
    pds odf     log|show|schema|verify|vacuum URL         the blocks of an Open Data Fabric dataset

`--as-of` takes a version, a time with a time zone, or a tag. `-o json|ndjson|csv` prints for programs: data goes to
stdout, problems go to stderr. What deletes asks first; a program passes `--yes`. Times are in UTC, bytes hexadecimal
digits; in CSV a null is empty and an empty text is `""`. Other datasets and files in the folder of a dataset are
deleted only with `--recursive`. Options of the store are passed as `--option name=value`. Credentials are safer in
environment variables, which other users of the machine cannot see.

Exit codes: 0 for success, 1 for damaged data or a failed operation, 2 for an invalid command line, 3 for a commit that
lost against another writer (nothing was changed), 4 for a commit of which nobody knows whether it landed, 130 after an
interrupt. An error is one line on stderr.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import TYPE_CHECKING

from pds.cli.codes import CONFLICT, FAILED, INTERRUPTED, UNKNOWN, USAGE
from pds.cli.output import print_error
from pds.cli.parser import build_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from types import ModuleType

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments without the name of the program. Defaults to those of the process.

    Returns:
        The exit code.
    """
    _open_streams()
    try:
        _check_arguments(sys.argv[1:] if argv is None else argv)
        code = _run(_parse(argv))
        sys.stdout.flush()
    except SystemExit:
        raise
    except _import_errors().RemoteStoreError as error:
        errors = _import_errors()
        codes = (
            ((errors.InvalidInput, errors.InvalidPath), USAGE),
            (errors.CommitConflict, CONFLICT),
            (errors.CommitStateUnknown, UNKNOWN),
        )
        return print_error(error, next((code for kinds, code in codes if isinstance(error, kinds)), FAILED))
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does.
        _drop_output()
        return FAILED
    except OSError as error:
        _drop_output()
        return print_error(error, FAILED)
    except KeyboardInterrupt:
        return print_error("interrupted", INTERRUPTED)
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    try:
        return build_parser().parse_args(argv)
    finally:
        # Help and versions were printed: an error of stdout is to be seen here, and not at exit.
        sys.stdout.flush()


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that the locale cannot decode: Python puts surrogates in the place of their bytes."""
    before = ""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            # The value of an option may be a secret.
            is_option = argument.startswith("--o") or before.startswith("--o")
            name = "the value of --option" if is_option else f"argument {argument!r}"
            raise _import_errors().InvalidInput(
                f"{name} is not text in the encoding of the locale, {sys.getfilesystemencoding()}; "
                "set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
            ) from error
        before = argument


def _drop_output() -> None:
    """Drop what stdout does not take: the flush at exit would fail again, with another exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _import_errors() -> ModuleType:
    """The errors, which are imported once there is one: what prints help or a script does without."""
    from pds import errors  # noqa: PLC0415 see above

    return errors


def _open_streams() -> None:
    """Data is UTF-8 whatever the terminal is; where a stream was closed there is nobody to print for."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 for the life of the process
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def _run(args: argparse.Namespace) -> int:
    options: dict[str, object] = dict(_parse_options(getattr(args, "option", ())))
    module, name = args.run
    command: Callable[..., int] = getattr(importlib.import_module(f"pds.cli.{module}"), name)
    if module != "stores":
        return command(args, options)
    from pds.store import Store  # noqa: PLC0415 for what has a store
    from pds.urls import merge_options, split_url  # noqa: PLC0415 as above

    if "folder" in args:
        args.url, args.folder, implied = split_url(args.url)
        options = merge_options(implied, options)
    with Store(args.url, storage_options=options) as store:
        return command(store, args)


def _parse_options(items: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name or not equals:
            # The message does not contain the item, which may be a secret.
            raise _import_errors().InvalidInput("--option must be NAME=VALUE")
        if name in options:
            raise _import_errors().InvalidInput(f"--option {name} is passed twice")
        options[name] = value
    return options

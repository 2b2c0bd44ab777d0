"""The ``pds`` command: inspect, verify, clean and delete datasets, and probe a store.

    pds dataset list   URL [PREFIX]    print the keys of the datasets
    pds dataset show   URL KEY         print the manifest
    pds dataset verify URL [KEY]       verify every byte of one dataset, or of all datasets
    pds dataset clean  URL KEY         finish or remove what a killed writer left
    pds dataset delete URL KEY         delete the dataset
    pds odf log        URL             print the blocks of an Open Data Fabric dataset, newest first
    pds odf show       URL [BLOCK]     print a block as YAML; defaults to the newest block
    pds odf schema     URL [BLOCK]     print the columns at a block; defaults to the newest block
    pds odf verify     URL             verify links, rules and every byte of the dataset
    pds odf vacuum     URL             remove objects that are not reachable from the head
    pds doctor         URL             probe the capabilities of the store

The URL of an Open Data Fabric dataset is the URL of its folder. BLOCK is the hash of a block.

Options of the store are passed as ``--option name=value``. Credentials are safer in environment variables, which
other users of the machine cannot see.

Exit codes: 0 for success, 1 for corrupted data or a failed operation, 2 for an invalid command line, 130 after an
interrupt. An error is one line on stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pds import ParquetDatasetStore, Store, errors
from pds.doctor import probe
from pds.errors import InvalidInput, InvalidPath, VerificationFailed
from pds.errors import RemoteStoreError as StoreError
from pds.odf import Dataset
from pds.urls import merge_options, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

_OK: Final = 0
_FAILED: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 130
_DAY_SECONDS: Final = 86400.0
_RETENTION_DAYS: Final = 7.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments without the name of the program. Defaults to those of the process.

    Returns:
        The exit code.
    """
    args = _build_parser().parse_args(argv)
    try:
        code = _run(args)
        sys.stdout.flush()
    except (InvalidInput, InvalidPath) as error:
        return _print_error(error, _USAGE)
    except StoreError as error:
        return _print_error(error, _FAILED)
    except BrokenPipeError:
        # The reader (`head`, for example) closed the pipe: the flush at exit must not write to it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except KeyboardInterrupt:
        return _print_error("interrupted", _INTERRUPTED)
    return code


def _run(args: argparse.Namespace) -> int:
    options: dict[str, object] = dict(_parse_options(args.option))
    if "folder" in args:
        args.url, args.folder, implied = split_url(args.url)
        options = merge_options(implied, options)
    with Store(args.url, storage_options=options) as store:
        command: Callable[[Store, argparse.Namespace], int] = args.run
        return command(store, args)


def _build_parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the store, as for pds.Store; can be repeated",
    )
    common.add_argument("url", metavar="URL", help="s3://…, az://…, gs://…, or a path")
    parser = argparse.ArgumentParser(prog="pds", description="Parquet datasets on object stores.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    dataset = commands.add_parser("dataset", help="list, show, verify, clean or delete datasets")
    verbs = dataset.add_subparsers(required=True, metavar="VERB")
    for name, run, key, description in (
        ("list", _list_datasets, "?", "print the keys of the datasets; with KEY, of those below that folder"),
        ("show", _show_manifest, None, "print the manifest"),
        ("verify", _verify_datasets, "?", "verify every byte; without KEY, of all datasets"),
        ("clean", _clean_dataset, None, "finish or remove what a killed writer left"),
        ("delete", _delete_dataset, None, "delete the dataset"),
    ):
        verb = verbs.add_parser(name, parents=[common], help=description, description=description)
        verb.add_argument("key", metavar="KEY", nargs=key, help="key of the dataset")
        verb.set_defaults(run=run)
        if run is _clean_dataset:
            verb.add_argument(
                "--older-than",
                type=float,
                default=_DAY_SECONDS,
                metavar="SECONDS",
                help="minimum age of removed files whose writer may still run (default: one day)",
            )
    odf = commands.add_parser("odf", help="inspect, verify or vacuum a dataset of the Open Data Fabric")
    verbs = odf.add_subparsers(required=True, metavar="VERB")
    for name, run, description in (
        ("log", _show_log, "print the blocks, newest first"),
        ("show", _show_block, "print a block as YAML"),
        ("schema", _show_schema, "print the columns"),
        ("verify", _verify_chain, "verify links, rules and every byte"),
        ("vacuum", _vacuum_chain, "remove objects that are not reachable from the head"),
    ):
        verb = verbs.add_parser(name, parents=[common], help=description, description=description)
        verb.set_defaults(run=run, folder="")
        if run in {_show_block, _show_schema}:
            verb.add_argument("block", metavar="BLOCK", nargs="?", help="hash of the block (default: the newest block)")
        if run is _vacuum_chain:
            verb.add_argument(
                "--older-than",
                type=float,
                default=_RETENTION_DAYS,
                metavar="DAYS",
                help="minimum age of removed objects, at least 2 (default: 7)",
            )
            verb.add_argument("--dry-run", action="store_true", help="print the objects, and do not remove them")
    description = "probe the capabilities of the store, under a temporary key"
    doctor = commands.add_parser("doctor", parents=[common], help=description, description=description)
    doctor.set_defaults(run=_run_doctor)
    return parser


def _parse_options(items: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name or not equals:
            # The message does not contain the item, which may be a secret.
            msg = "--option must be NAME=VALUE"
            raise InvalidInput(msg)
        if name in options:
            msg = f"--option {name} is passed twice"
            raise InvalidInput(msg)
        options[name] = value
    return options


def _list_datasets(store: Store, args: argparse.Namespace) -> int:
    for key in ParquetDatasetStore(store).list_datasets(args.key or ""):
        _print(key)
    return _OK


def _show_manifest(store: Store, args: argparse.Namespace) -> int:
    _print(ParquetDatasetStore(store).read_manifest(args.key).to_json())
    return _OK


def _verify_datasets(store: Store, args: argparse.Namespace) -> int:
    datasets = ParquetDatasetStore(store)
    code = _OK
    for key in [args.key] if args.key else datasets.list_datasets():
        try:
            report = datasets.verify_dataset(key)
        except (errors.DatasetIncomplete, errors.ManifestCorrupted) as error:
            code = _print_error(error, _FAILED)
            continue
        _print(
            f"{key}: ok, {report.rows} rows, {report.bytes} bytes, {report.parts} parts, "
            f"{report.checksummed_parts} with checksums",
        )
    return code


def _clean_dataset(store: Store, args: argparse.Namespace) -> int:
    removed = ParquetDatasetStore(store).clean_dataset(args.key, older_than=args.older_than)
    _print(f"{args.key}: {removed} leftovers removed")
    return _OK


def _delete_dataset(store: Store, args: argparse.Namespace) -> int:
    ParquetDatasetStore(store).delete_dataset(args.key)
    _print(f"{args.key}: deleted")
    return _OK


def _show_log(store: Store, args: argparse.Namespace) -> int:
    for block in Dataset(store, args.folder).log():
        time = block.system_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        _print(f"{block.sequence_number:>6}  {time}  {block.event.kind:<20}  {block.hash}")
    return _OK


def _show_block(store: Store, args: argparse.Namespace) -> int:
    dataset = Dataset(store, args.folder)
    _print(dataset.block(args.block or dataset.head).to_yaml().rstrip("\n"))
    return _OK


def _show_schema(store: Store, args: argparse.Namespace) -> int:
    _print(Dataset(store, args.folder).schema(at=args.block).to_string(show_schema_metadata=False))
    return _OK


def _verify_chain(store: Store, args: argparse.Namespace) -> int:
    try:
        result = Dataset(store, args.folder).verify()
    except VerificationFailed as error:
        for path, message in error.problems:
            _print_error(f"{path}: {message}", _FAILED)
        return _FAILED
    _print(f"{args.folder}: ok, {result.blocks} blocks, {result.slices} slices, {result.rows} rows")
    return _OK


def _vacuum_chain(store: Store, args: argparse.Namespace) -> int:
    try:
        older_than = timedelta(days=args.older_than)
    except (OverflowError, ValueError) as error:
        msg = f"--older-than is out of range: {args.older_than} days"
        raise InvalidInput(msg) from error
    result = Dataset(store, args.folder).vacuum(older_than, dry_run=args.dry_run)
    for path in result.files:
        _print(path)
    action = "would be removed" if args.dry_run else "removed"
    _print(f"{args.folder}: {len(result.files)} objects, {result.bytes} bytes {action}")
    return _OK


def _run_doctor(store: Store, _args: argparse.Namespace) -> int:
    has_failed = False
    for finding in probe(store):
        has_failed = has_failed or not finding.passed
        _print(f"{'ok  ' if finding.passed else 'FAIL'}  {finding.name}: {finding.detail}")
    return _FAILED if has_failed else _OK


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _print_error(problem: object, code: int) -> int:
    sys.stderr.write(f"pds: {' '.join(str(problem).split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

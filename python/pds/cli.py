"""The ``pds`` command: look at datasets, check them, clear up, and try out a store.

    pds dataset list   URL [PREFIX]    keys of the datasets
    pds dataset show   URL KEY         the manifest, as it is stored
    pds dataset verify URL [KEY]       every byte of one dataset, or of all
    pds dataset clean  URL KEY         finish or remove what a killed writer left
    pds dataset delete URL KEY         remove the dataset
    pds odf log        URL             blocks of an Open Data Fabric dataset, newest first
    pds odf show       URL [BLOCK]     a block as YAML, by its hash; the newest if none is named
    pds odf schema     URL [BLOCK]     the columns, as they were at a block
    pds odf verify     URL             links, rules and every byte of the dataset
    pds odf vacuum     URL             remove what no reference leads to
    pds doctor         URL             what the store can and cannot do

The URL of an Open Data Fabric dataset is that of its folder.

Options of the store are given as ``--option name=value``; credentials are better left to
the environment, where other users of the machine do not see them.

Exit codes: 0 all is well, 1 damage or a failed check, 2 the command line is wrong. An
error is one line on stderr.
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
    """Run the command line; the result is the exit code."""
    args = _parser().parse_args(argv)
    try:
        code = _run(args)
        sys.stdout.flush()
    except (InvalidInput, InvalidPath) as error:
        return _complain(error, _USAGE)
    except StoreError as error:
        return _complain(error, _FAILED)
    except BrokenPipeError:
        # The reader (head, say) has had enough: nothing more may be written, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except KeyboardInterrupt:
        return _complain("interrupted", _INTERRUPTED)
    return code


def _run(args: argparse.Namespace) -> int:
    if "folder" in args:
        # A dataset's folder is in its store, and not the store itself.
        args.url, _, args.folder = args.url.rstrip("/").rpartition("/")
        if not args.folder or args.url.endswith("/"):
            msg = "URL must be that of the dataset's folder, such as s3://bucket/weather"
            raise InvalidInput(msg)
    with Store(args.url, storage_options=_options(args.option)) as store:
        command: Callable[[Store, argparse.Namespace], int] = args.run
        return command(store, args)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the store, as pds.Store takes it; can be repeated",
    )
    common.add_argument("url", metavar="URL", help="memory://, file:///…, s3://…, az://…, gs://…")
    parser = argparse.ArgumentParser(prog="pds", description="Parquet datasets on object stores.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    dataset = commands.add_parser("dataset", help="list, show, verify, clean or delete datasets")
    verbs = dataset.add_subparsers(required=True, metavar="VERB")
    for name, run, key, text in (
        ("list", _list, "?", "print the keys of the datasets, below KEY if it is given"),
        ("show", _show, None, "print the manifest"),
        ("verify", _verify, "?", "check every byte; without KEY, of all datasets"),
        ("clean", _clean, None, "finish or remove what a killed writer left"),
        ("delete", _delete, None, "remove the dataset"),
    ):
        verb = verbs.add_parser(name, parents=[common], help=text, description=text)
        verb.add_argument("key", metavar="KEY", nargs=key, help="key of the dataset")
        verb.set_defaults(run=run)
        if run is _clean:
            verb.add_argument(
                "--older-than",
                type=float,
                default=_DAY_SECONDS,
                metavar="SECONDS",
                help="age at which the files of a writer that may still live go (default: a day)",
            )
    odf = commands.add_parser("odf", help="look at a dataset of the Open Data Fabric")
    verbs = odf.add_subparsers(required=True, metavar="VERB")
    for name, run, text in (
        ("log", _log, "print the blocks, newest first"),
        ("show", _show_block, "print a block as YAML"),
        ("schema", _schema, "print the columns"),
        ("verify", _verify_chain, "check links, rules and every byte"),
        ("vacuum", _vacuum_chain, "remove what no reference leads to"),
    ):
        verb = verbs.add_parser(name, parents=[common], help=text, description=text)
        verb.set_defaults(run=run, folder="")
        if run in {_show_block, _schema}:
            verb.add_argument("block", metavar="BLOCK", nargs="?", help="the block's hash (default: the newest)")
        if run is _vacuum_chain:
            verb.add_argument(
                "--older-than",
                type=float,
                default=_RETENTION_DAYS,
                metavar="DAYS",
                help="age at which objects go, at least 2 (default: 7)",
            )
            verb.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    text = "try out, under a key of its own, what the store can do"
    doctor = commands.add_parser("doctor", parents=[common], help=text, description=text)
    doctor.set_defaults(run=_doctor)
    return parser


def _options(given: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not name or not equals:
            # The text is not repeated: it may be a secret.
            msg = "--option wants NAME=VALUE"
            raise InvalidInput(msg)
        if name in options:
            msg = f"--option {name} is given twice"
            raise InvalidInput(msg)
        options[name] = value
    return options


def _list(store: Store, args: argparse.Namespace) -> int:
    for key in ParquetDatasetStore(store).list_datasets(args.key or ""):
        _print(key)
    return _OK


def _show(store: Store, args: argparse.Namespace) -> int:
    _print(ParquetDatasetStore(store).read_manifest(args.key).to_json())
    return _OK


def _verify(store: Store, args: argparse.Namespace) -> int:
    datasets = ParquetDatasetStore(store)
    code = _OK
    for key in [args.key] if args.key else datasets.list_datasets():
        try:
            report = datasets.verify_dataset(key)
        except (errors.DatasetIncomplete, errors.ManifestCorrupted) as damage:
            code = _complain(damage, _FAILED)
            continue
        _print(
            f"{key}: ok, {report.rows} rows, {report.bytes} bytes, {report.parts} parts, "
            f"{report.checksummed_parts} with checksums",
        )
    return code


def _clean(store: Store, args: argparse.Namespace) -> int:
    removed = ParquetDatasetStore(store).clean_dataset(args.key, older_than=args.older_than)
    _print(f"{args.key}: {removed} leftovers removed")
    return _OK


def _delete(store: Store, args: argparse.Namespace) -> int:
    ParquetDatasetStore(store).delete_dataset(args.key)
    _print(f"{args.key}: deleted")
    return _OK


def _log(store: Store, args: argparse.Namespace) -> int:
    for block in Dataset(store, args.folder).log():
        time = block.system_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        _print(f"{block.sequence_number:>6}  {time}  {block.event.kind:<20}  {block.hash}")
    return _OK


def _show_block(store: Store, args: argparse.Namespace) -> int:
    dataset = Dataset(store, args.folder)
    _print(dataset.block(args.block or dataset.head).to_yaml().rstrip("\n"))
    return _OK


def _schema(store: Store, args: argparse.Namespace) -> int:
    _print(Dataset(store, args.folder).schema(at=args.block).to_string(show_schema_metadata=False))
    return _OK


def _verify_chain(store: Store, args: argparse.Namespace) -> int:
    try:
        found = Dataset(store, args.folder).verify()
    except VerificationFailed as damage:
        for path, message in damage.problems:
            _complain(f"{path}: {message}", _FAILED)
        return _FAILED
    _print(f"{args.folder}: ok, {found.blocks} blocks, {found.slices} slices, {found.rows} rows")
    return _OK


def _vacuum_chain(store: Store, args: argparse.Namespace) -> int:
    try:
        older_than = timedelta(days=args.older_than)
    except (OverflowError, ValueError) as error:
        msg = f"--older-than cannot be {args.older_than} days"
        raise InvalidInput(msg) from error
    found = Dataset(store, args.folder).vacuum(older_than, dry_run=args.dry_run)
    for path in found.files:
        _print(path)
    done = "would be removed" if args.dry_run else "removed"
    _print(f"{args.folder}: {len(found.files)} objects, {found.bytes} bytes {done}")
    return _OK


def _doctor(store: Store, _args: argparse.Namespace) -> int:
    failed = False
    for finding in probe(store):
        failed = failed or not finding.passed
        _print(f"{'ok  ' if finding.passed else 'FAIL'}  {finding.name}: {finding.detail}")
    return _FAILED if failed else _OK


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(problem: object, code: int) -> int:
    sys.stderr.write(f"pds: {' '.join(str(problem).split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The ``pds`` command: look at datasets, check them, clear up, and try out a store.

    pds dataset list   URL [PREFIX]    keys of the datasets
    pds dataset show   URL KEY         the manifest, as it is stored
    pds dataset verify URL [KEY]       every byte of one dataset, or of all
    pds dataset clean  URL KEY         finish or remove what a killed writer left
    pds dataset delete URL KEY         remove the dataset
    pds doctor         URL             what the store can and cannot do

Options of the store are given as ``--option name=value``; credentials are better left to
the environment, where other users of the machine do not see them.

Exit codes: 0 all is well, 1 damage or a failed check, 2 the command line is wrong. An
error is one line on stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Final

from pds import ParquetDatasetStore, Store
from pds.doctor import probe
from pds.errors import DatasetIncomplete, InvalidInput, InvalidPath, ManifestCorrupted
from pds.errors import RemoteStoreError as StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

_OK: Final = 0
_FAILED: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 130
_DAY_SECONDS: Final = 86400.0


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
        except (DatasetIncomplete, ManifestCorrupted) as damage:
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

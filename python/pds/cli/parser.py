"""The commands and their arguments. Nothing of Arrow is imported for them."""

from __future__ import annotations

import argparse
import math
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pds.cli.output import FORMATS, print_line
from pds.defaults import RETENTION

if TYPE_CHECKING:
    from typing import TypeAlias

    from _typeshed import SupportsWrite

    _Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 has no public name

_DAY_SECONDS: Final = 86400.0
_RETENTION_DAYS: Final = RETENTION / timedelta(days=1)
_HEAD_ROWS: Final = 10
_OUTPUT: Final = "the format (default: text); in CSV a null of a single column is an empty line"
SHELLS: Final = ("bash", "zsh", "fish")
"""The shells that `pds completion` knows."""


class _Parser(argparse.ArgumentParser):
    """A parser that takes options anywhere between the arguments: `pds diff URL 1 -o json 2`."""

    _is_intermixed = False

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 overloads
        """Parse what the parser of the commands passes on."""
        if self._is_intermixed or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Let the caller see that stdout cannot be written: argparse drops such errors."""
        if file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser: argparse.ArgumentParser = _Parser(
        prog="pds",
        description="Tables, datasets, pipelines and chains on object stores.",
        epilog="The exit codes are 0, 1 (failed), 2 (invalid command), 3 (conflict), 4 (unknown outcome), 130.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions of pds and what it runs on")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _add_things(commands)
    _add_export(commands)
    _add_import(commands)
    _add_datasets(commands)
    _add_chains(commands)
    description = "probe the capabilities of the store, under a temporary key"
    doctor = commands.add_parser("doctor", parents=[_common()], help=description, description=description)
    doctor.set_defaults(run=("stores", "run_doctor"))
    description = "show what pds does, on a table, a dataset and a pipeline in a folder of its own"
    demo = commands.add_parser("demo", help=description, description=description)
    demo.set_defaults(run=("demo", "run_demo"))
    folder = "a folder that is new or empty; it stays (default: a temporary one, which is removed)"
    demo.add_argument("folder", metavar="FOLDER", nargs="?", help=folder)
    description = "print the completion script of a shell"
    completion = commands.add_parser("completion", help=description, description=description)
    completion.set_defaults(run=("completion", "print_completion"))
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import platform  # noqa: PLC0415 help does without
        from importlib import metadata  # noqa: PLC0415 as above

        from pds import __version__  # noqa: PLC0415 as above

        pyarrow, python = metadata.version("pyarrow"), platform.python_version()
        print_line(f"pds {__version__}, pyarrow {pyarrow}, Python {python}, {platform.platform()}")
        parser.exit()


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the store, as for pds.Store; can be repeated",
    )
    common.add_argument("url", metavar="URL", help="s3://…, az://…, gs://…, or a path")
    return common


def _add_things(commands: _Commands) -> None:
    verbs: dict[str, argparse.ArgumentParser] = {}
    for name, module, function, description in (
        ("ls", "listing", "list_things", "print the tables, datasets, pipelines and chains below a folder"),
        ("show", "listing", "show", "print what it is"),
        ("schema", "rows", "show_columns", "print the columns"),
        ("history", "history", "show_history", "print the versions, newest first"),
        (
            "files",
            "rows",
            "show_files",
            "print the files of its data",
        ),
        ("head", "rows", "scan", "print the first rows"),
        ("scan", "rows", "scan", "print the rows"),
        (
            "diff",
            "rows",
            "show_difference",
            "print the rows that each version after V1 inserted and deleted, up to V2; not the net difference",
        ),
        ("check", "maintenance", "check", "compare a table with the objects of its folder"),
        ("health", "health", "show_health", "print what has accumulated, and what to run next; reads no data"),
        ("verify", "maintenance", "verify", "verify every byte of a table, dataset or chain"),
        (
            "optimize",
            "maintenance",
            "optimize",
            "combine small files (of a pipeline: runs, of a chain: slices)",
        ),
        ("restore", "maintenance", "restore", "make the rows of an earlier version those of a new one"),
        ("tag", "maintenance", "tag", "name a version of a table or pipeline; without NAME, print the names"),
        ("vacuum", "maintenance", "vacuum", "remove old versions, and objects that no version needs"),
        ("drop", "maintenance", "drop", "delete a table or dataset with all of its rows"),
    ):
        verb = commands.add_parser(name, parents=[_common()], help=description, description=description)
        verb.set_defaults(run=(module, function), verb=name)
        verb.add_argument("-o", "--output", choices=FORMATS, default="text", help=_OUTPUT)
        verbs[name] = verb
    as_of = "a version, a time with a time zone, or a tag (default: the newest version)"
    for name in ("show", "schema", "files", "head", "scan", "verify"):
        verbs[name].add_argument("--as-of", metavar="VERSION", help=as_of)
    for name in ("schema", "head", "scan"):
        verbs[name].add_argument("--stage", metavar="NAME", help="the source or stage of a pipeline")
    for name, rows in (("head", _HEAD_ROWS), ("scan", None)):
        verbs[name].add_argument("--columns", metavar="NAMES", help="the columns, as a line of CSV (default: all)")
        verbs[name].add_argument("--where", metavar="SQL", help="which rows: an SQL predicate")
        verbs[name].add_argument("-n", "--limit", type=_count, default=rows, metavar="ROWS", help="the most rows")
    history = verbs["history"]
    history.add_argument("-n", "--limit", type=_count, metavar="VERSIONS", help="the most versions (default: all)")
    history.add_argument("--watch", action="store_true", help="print new versions as they come, until Ctrl-C")
    history.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="how often to look (default: 2)"
    )
    verbs["diff"].add_argument("--columns", metavar="NAMES", help="the columns, as a line of CSV (default: all)")
    verbs["diff"].add_argument("since", type=int, metavar="V1", help="a version; its own changes are not printed")
    verbs["diff"].add_argument("until", type=int, nargs="?", metavar="V2", help="a version (default: the newest)")
    verbs["optimize"].add_argument("--sort", action="store_true", help="sort all rows by the table's order")
    verbs["restore"].add_argument("version", metavar="VERSION", help="a version, a time with a time zone, or a tag")
    verbs["tag"].add_argument("name", nargs="?", metavar="NAME", help="the name")
    verbs["tag"].add_argument("version", type=int, nargs="?", metavar="VERSION", help="default: the newest")
    verbs["tag"].add_argument("--delete", action="store_true", help="remove the name, not the version")
    _add_retention(verbs["vacuum"], "minimum age of removed versions and objects (default: 7)")
    for name in ("vacuum", "drop"):
        _add_consent(verbs[name])
    _add_recursive(verbs["drop"])
    for name in ("check", "verify", "optimize", "vacuum"):
        _add_progress(verbs[name])


def _add_export(commands: _Commands) -> None:
    description = "write the metadata of another format beside a table, for the readers of that format"
    export = commands.add_parser("export", parents=[_common()], help=description, description=description)
    export.set_defaults(run=("exports", "export"), verb="export")
    export.add_argument("-o", "--output", choices=FORMATS, default="text", help=_OUTPUT)
    _add_progress(export)
    export.add_argument("--to", choices=("delta", "iceberg"), default="delta", help="the format (default: delta)")
    location = "where readers of Iceberg find the table (default: that of the last export, or URL)"
    export.add_argument("--location", metavar="URL", help=location)
    leave_out = "columns that it does not have, as a line of CSV (default: those of the last export)"
    export.add_argument("--leave-out", metavar="NAMES", help=leave_out)
    export.add_argument("--rebuild", action="store_true", help="remove the metadata, and write it anew")


def _add_import(commands: _Commands) -> None:
    description = "make a table in the folder of a Delta or Iceberg table, over the same files"
    parser = commands.add_parser("import", parents=[_common()], help=description, description=description)
    parser.set_defaults(run=("imports", "import_table"))
    parser.add_argument("-o", "--output", choices=FORMATS, default="text", help=_OUTPUT)
    parser.add_argument("--from", dest="source", choices=("delta", "iceberg"), default="delta", help="(default: delta)")
    take_over = "make the Delta table read-only for other systems"
    parser.add_argument("--take-over", action="store_true", help=take_over)
    zone = "where the Delta table was written, for timestamps of partitions without a zone"
    parser.add_argument("--partition-time-zone", metavar="ZONE", help=zone)


def _add_consent(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--yes", action="store_true", help="do not ask")


def _add_recursive(verb: argparse.ArgumentParser) -> None:
    description = "delete the other datasets and files in the folder of the dataset, too"
    verb.add_argument("--recursive", action="store_true", help=description)


def _add_progress(verb: argparse.ArgumentParser) -> None:
    description = "show the progress on stderr (default: on a terminal, after a second)"
    verb.add_argument("--progress", action=argparse.BooleanOptionalAction, help=description)


def _add_retention(verb: argparse.ArgumentParser, description: str) -> None:
    verb.add_argument("--older-than", type=float, default=_RETENTION_DAYS, metavar="DAYS", help=description)
    verb.add_argument("--dry-run", action="store_true", help="print the objects, and do not remove them")


def _count(text: str) -> int:
    # A message of argparse's own would contain the name of this function.
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: it is a whole number from 0 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _DAY_SECONDS:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: it is above 0 and at most {_DAY_SECONDS:g} seconds")
    return seconds


def _add_datasets(commands: _Commands) -> None:
    description = "list, show, verify, clean or delete the datasets of a store"
    dataset = commands.add_parser("dataset", help=description, description=description)
    verbs = dataset.add_subparsers(required=True, metavar="VERB")
    for name, function, key, description in (
        ("list", "list_datasets", "?", "print the keys of the datasets; with KEY, of those below that folder"),
        ("show", "show_manifest", None, "print the manifest"),
        ("verify", "verify_datasets", "?", "verify every byte; without KEY, of all datasets"),
        ("clean", "clean_dataset", None, "finish or remove what a killed writer left"),
        ("delete", "delete_dataset", None, "delete the dataset"),
    ):
        verb = verbs.add_parser(name, parents=[_common()], help=description, description=description)
        verb.add_argument("key", metavar="KEY", nargs=key, help="key of the dataset")
        verb.set_defaults(run=("stores", function))
        if name in ("clean", "delete"):
            _add_consent(verb)
        if name == "delete":
            _add_recursive(verb)
        if name == "verify":
            _add_progress(verb)
        if name == "clean":
            age = "minimum age of removed files whose writer may still run (default: 1)"
            verb.add_argument("--older-than", type=float, default=1.0, metavar="DAYS", help=age)


def _add_chains(commands: _Commands) -> None:
    description = "inspect, verify or vacuum a dataset of the Open Data Fabric"
    odf = commands.add_parser("odf", help=description, description=description)
    verbs = odf.add_subparsers(required=True, metavar="VERB")
    for name, function, description in (
        ("log", "show_log", "print the blocks, newest first"),
        ("show", "show_block", "print a block as YAML"),
        ("schema", "show_schema", "print the columns"),
        ("verify", "verify_chain", "verify links, rules and every byte"),
        ("vacuum", "vacuum_chain", "remove objects that are not reachable from the head"),
    ):
        verb = verbs.add_parser(name, parents=[_common()], help=description, description=description)
        verb.set_defaults(run=("stores", function), folder="")
        if name in ("show", "schema"):
            verb.add_argument("block", metavar="BLOCK", nargs="?", help="hash of the block (default: the newest block)")
        if name == "verify":
            _add_progress(verb)
        if name == "vacuum":
            _add_retention(verb, "minimum age of removed objects, at least 2 (default: 7)")
            _add_consent(verb)

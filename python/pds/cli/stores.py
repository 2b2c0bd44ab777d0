"""Commands on the datasets of a store, on chains, and on the store itself."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pds import ParquetDatasetStore, errors
from pds.cli.codes import FAILED, OK
from pds.cli.consent import require_consent, to_age
from pds.cli.folders import check_deletion, has_something, is_left_by_writers
from pds.cli.output import print_error, print_line
from pds.cli.progress import choose_progress
from pds.doctor import judge, probe
from pds.errors import InvalidInput, NotFound, VerificationFailed
from pds.kinds import find_kind
from pds.odf import Dataset
from pds.paths import normalize_folder_path
from pds.urls import join_url, normalize_url

if TYPE_CHECKING:
    import argparse

    from pds import Store

_VERDICTS: Final = {
    "safe": "safe: tables, pipelines and chains can be kept here",
    "unsafe": "UNSAFE: concurrent writers would overwrite one another; keep no tables, pipelines or chains here",
    "unknown": "UNKNOWN: a check failed, so nothing is known",
}


def list_datasets(store: Store, args: argparse.Namespace) -> int:
    """Print the keys of the datasets."""
    keys = ParquetDatasetStore(store).list_datasets(args.key or "")
    if not keys and not has_something(store, args.key or ""):
        raise _make_not_found(args)
    for key in keys:
        print_line(key)
    return OK


def _make_not_found(args: argparse.Namespace) -> NotFound:
    place = f"{args.key!r} in {args.url!r}" if args.key else repr(args.url)
    return NotFound(f"there is nothing at {place}", path=args.key)


def show_manifest(store: Store, args: argparse.Namespace) -> int:
    """Print the manifest of a dataset."""
    print_line(ParquetDatasetStore(store).read_manifest(args.key).to_json())
    return OK


def verify_datasets(store: Store, args: argparse.Namespace) -> int:
    """Verify every byte of a dataset, or of all."""
    datasets = ParquetDatasetStore(store)
    keys = [args.key] if args.key else datasets.list_datasets()
    if not keys:
        raise NotFound(f"there are no datasets below {args.url!r}")
    code = OK
    for key in keys:
        try:
            report = datasets.verify_dataset(key, progress=choose_progress(args))
        except (errors.DatasetIncomplete, errors.ManifestCorrupted) as error:
            code = print_error(error, FAILED)
            continue
        print_line(
            f"{key}: ok, {report.rows} rows, {report.bytes} bytes, {report.parts} parts, "
            f"{report.checksummed_parts} with checksums",
        )
    return code


def clean_dataset(store: Store, args: argparse.Namespace) -> int:
    """Finish or remove what a killed writer left."""
    age = to_age(args.older_than)
    _refuse_others(store, args, {"table": "vacuum", "pipeline": "vacuum", "chain": "vacuum"})
    require_consent(args, f"remove what killed writers left of {args.key!r}")
    removed = ParquetDatasetStore(store).clean_dataset(args.key, older_than=age.total_seconds())
    # Uploads that were aborted may have been all there was.
    if not removed and not has_something(store, args.key):
        raise _make_not_found(args)
    print_line(f"{args.key}: {removed} leftovers removed")
    return OK


def delete_dataset(store: Store, args: argparse.Namespace) -> int:
    """Delete a dataset, or what is left of one."""
    more = ""
    if _refuse_others(store, args, {"table": "drop"}) is None:
        _check_leftovers(store, args.key)
    else:
        more = check_deletion(store, args.key, is_recursive=args.recursive)
    require_consent(args, f"delete the dataset {args.key!r} with all of its rows{more}")
    ParquetDatasetStore(store).delete_dataset(args.key)
    print_line(f"{args.key}: deleted")
    return OK


def _refuse_others(store: Store, args: argparse.Namespace, verbs: dict[str, str]) -> str | None:
    """Return `dataset`, or None for a folder that is nothing by itself; refuse a thing of another kind."""
    kind = find_kind(store, args.key)
    if kind is None or kind == "dataset":
        return kind
    reason = f"{args.key!r} is a {kind}, not a dataset"
    if kind in verbs:
        raise InvalidInput(f"{reason}; use `pds {verbs[kind]} {shlex.quote(join_url(args.url, args.key))}`")
    raise InvalidInput(f"{reason}; pds has no command that deletes a {kind}: delete its folder with other tools")


def _check_leftovers(store: Store, key: str) -> None:
    """Refuse a folder with files that writers of datasets do not leave, such as a folder of tables."""
    prefix = f"{normalize_folder_path(key)}/"
    for file in store.list_files(key, recursive=True):
        name = file.path.removeprefix(prefix)
        if not is_left_by_writers(name):
            raise InvalidInput(f"{key!r} is not a dataset, and has other files, such as {file.path!r}; name a dataset")


def show_log(store: Store, args: argparse.Namespace) -> int:
    """Print the blocks of a chain, newest first."""
    for block in Dataset(store, args.folder).log():
        time = block.system_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print_line(f"{block.sequence_number:>6}  {time}  {block.event.kind:<20}  {block.hash}")
    return OK


def show_block(store: Store, args: argparse.Namespace) -> int:
    """Print a block as YAML."""
    dataset = Dataset(store, args.folder)
    print_line(dataset.block(args.block or dataset.head).to_yaml().rstrip("\n"))
    return OK


def show_schema(store: Store, args: argparse.Namespace) -> int:
    """Print the columns at a block."""
    print_line(Dataset(store, args.folder).schema(at=args.block).to_string(show_schema_metadata=False))
    return OK


def verify_chain(store: Store, args: argparse.Namespace) -> int:
    """Verify a chain."""
    try:
        result = Dataset(store, args.folder).verify(progress=choose_progress(args))
    except VerificationFailed as error:
        for path, message in error.problems:
            print_error(f"{path}: {message}", FAILED)
        return FAILED
    print_line(f"{args.folder}: ok, {result.blocks} blocks, {result.slices} slices, {result.rows} rows")
    return OK


def vacuum_chain(store: Store, args: argparse.Namespace) -> int:
    """Remove objects that are not reachable from the head."""
    age = to_age(args.older_than)
    if not args.dry_run:
        require_consent(args, f"remove objects of {args.url!r} that nothing references")
    result = Dataset(store, args.folder).vacuum(age, dry_run=args.dry_run)
    for path in result.files:
        print_line(path)
    action = "would be removed" if args.dry_run else "removed"
    print_line(f"{args.folder}: {len(result.files)} objects, {result.bytes} bytes {action}")
    return OK


def run_doctor(store: Store, args: argparse.Namespace) -> int:
    """Check whether the store keeps what tables rely on."""
    new_folders = _list_new_folders(args.url)
    findings = []
    for finding in probe(store):
        findings.append(finding)
        print_line(f"{'ok  ' if finding.passed else 'FAIL'}  {finding.name}: {finding.detail}")
    for folder in new_folders:
        # Others may have written into it.
        with contextlib.suppress(OSError):
            folder.rmdir()
    verdict = judge(findings)
    print_line(_VERDICTS[verdict])
    return OK if verdict == "safe" else FAILED


def _list_new_folders(url: str) -> list[Path]:
    """Return the folders of the local file system that a write below the URL would create, innermost first."""
    normal, _ = normalize_url(url)
    if not normal.startswith("file://"):
        return []
    folder = Path(unquote(normal.removeprefix("file://")))
    return [path for path in (folder, *folder.parents) if not path.exists()]

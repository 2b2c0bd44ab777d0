"""Commands that say what there is: `ls` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pds.by_url import Entry
from pds.by_url import list as list_entries
from pds.cli.codes import OK
from pds.cli.folders import has_something, list_contents
from pds.cli.history import describe_operation
from pds.cli.output import print_fields, print_rows
from pds.cli.thing import Thing, to_pipeline_version
from pds.errors import (
    NotFound,
)
from pds.kinds import find_kind
from pds.store import Store
from pds.urls import join_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pds.odf import Dataset
    from pds.producers.pipeline import Pipeline
    from pds.table.table import Table

_LISTINGS_AT_ONCE: Final = 16


def list_things(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print what lies below a URL."""
    entries = list_entries(args.url, storage_options=options)
    with Store(args.url, options) as store:
        if not entries and not has_something(store):
            raise NotFound(f"there is nothing at {args.url!r}")
        entries += _list_in_datasets(store, [entry.path for entry in entries if entry.kind == "dataset"])
    rows = sorted((entry.path, entry.kind, entry.url) for entry in entries)
    print_rows(["kind", "path", "url"], [(kind, path, url) for path, kind, url in rows], args.output)
    return OK


def _list_in_datasets(store: Store, datasets: list[str]) -> list[Entry]:
    """Return what lies in the folders of datasets, which `pds.list` does not look into: one listing for each."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 for what lists

    with ThreadPoolExecutor(_LISTINGS_AT_ONCE) as pool:
        listings = pool.map(lambda folder: _list_in_dataset(store, folder), datasets)
        return [entry for entries in listings for entry in entries]


def _list_in_dataset(store: Store, folder: str) -> list[Entry]:
    contents = list_contents(store, folder)
    entries: list[Entry] = []
    # Folders come before those in them. What is in a table is the table's.
    for path in sorted({*contents.datasets, *contents.things} - {folder}):
        is_inside = any(entry.kind != "dataset" and path.startswith(f"{entry.path}/") for entry in entries)
        kind = None if is_inside else "dataset" if path in contents.datasets else find_kind(store, path)
        if kind is not None:
            entries.append(Entry(kind, path, join_url(store.url, path)))
    return entries


def show(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print what a thing is."""
    thing = Thing(args, options)
    if thing.kind in ("dataset", "chain"):
        thing.refuse_versions(args.as_of)
    describe: dict[str, Callable[[], dict[str, Any]]] = {
        "table": lambda: _describe_table(thing.table(args.as_of)),
        "dataset": lambda: _describe_dataset(thing),
        "pipeline": lambda: _describe_pipeline(thing.pipeline(), args.as_of),
        "chain": lambda: _describe_chain(thing.chain()),
    }
    fields = {"kind": thing.kind, "url": args.url, **describe[thing.kind]()}
    if args.output == "text" and fields.get("operation"):
        fields["operation"] = describe_operation(fields["operation"])
    print_fields(fields, args.output)
    return OK


def _describe_table(table: Table) -> dict[str, Any]:
    newest = table.history(limit=1)
    return {
        "version": table.version,
        "created": newest[0]["created_at"] if newest else None,
        "operation": newest[0]["operation"] if newest else None,
        "rows": table.scan().count(),
        "files": table.file_count,
        "bytes": sum(table.files()["size_bytes"].to_pylist()),
        "key": table._get_column_names("key"),  # noqa: SLF001 of the package
        "sort_by": table._get_column_names("sort_by"),  # noqa: SLF001 of the package
        "tags": dict(table.tags),
        "columns": {field.name: str(field.type) for field in table.schema},
    }


def _describe_dataset(thing: Thing) -> dict[str, Any]:
    manifest = thing.datasets().read_manifest(thing.path)
    return {
        "created": manifest.created_at_utc,
        "rows": manifest.row_count,
        "parts": len(manifest.parts),
        "compression": manifest.compression,
        "run_id": manifest.run_id,
        "metadata": manifest.metadata,
        "columns": {field.name: str(field.type) for field in thing.datasets().scan_dataset(thing.path).schema},
    }


def _describe_pipeline(pipeline: Pipeline, as_of: str | None) -> dict[str, Any]:
    version = pipeline.as_of(to_pipeline_version(as_of, pipeline))
    return {"version": version.version, "tags": pipeline.tags, "stages": version.names}


def _describe_chain(chain: Dataset) -> dict[str, Any]:
    try:
        columns = {field.name: str(field.type) for field in chain.schema()}
    except NotFound:
        # A new chain has no schema before its first rows.
        columns = {}
    return {
        "id": chain.identity.id,
        "head": chain.head,
        "last_offset": chain.last_offset,
        "watermark": chain.watermark,
        "columns": columns,
    }

"""Commands on one table, dataset, pipeline or chain, by its URL."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pds.by_url import find_kind, open_parent
from pds.by_url import list as list_entries
from pds.cli.names import parse_names
from pds.cli.output import print_batches, print_error, print_fields, print_problems, print_rows
from pds.dataset import ParquetDatasetStore
from pds.errors import (
    DatasetIncomplete,
    InvalidInput,
    ManifestCorrupted,
    NotFound,
    PartCorrupted,
    RemoteStoreError,
    VerificationFailed,
)
from pds.odf import Dataset
from pds.producers.pipeline import Pipeline
from pds.store import Store
from pds.table.table import Table
from pds.urls import normalize_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Container, Iterable

    import pyarrow as pa

    from pds.producers.tables import PipelineRows


OK = 0
FAILED = 1


class Thing:
    """What lies at a URL."""

    def __init__(self, url: str, options: dict[str, object]) -> None:
        self.url = url
        self.store, self.path = open_parent(url, options, None)
        kind = find_kind(self.store, self.path)
        if kind is None:
            raise NotFound(f"nothing at {url!r} is a table, dataset, pipeline or chain", path=self.path)
        self.kind: str = kind

    def refuse(self, what: str) -> InvalidInput:
        """Return the error of a command that is not for this kind."""
        return InvalidInput(f"{self.url!r} is a {self.kind}, which {what}")

    def table(self, as_of: str | None = None) -> Table:
        """Return the table; raise an InvalidInput for another kind."""
        if self.kind != "table":
            raise self.refuse("has no such command; it is for tables")
        table = Table(self.store, self.path)
        return table if as_of is None else table.as_of(to_version(as_of, table.tags, table.version))

    def refuse_versions(self, as_of: str | None) -> None:
        """Refuse `--as-of` for what has one version."""
        if as_of is not None:
            raise self.refuse("has no versions to look at")

    def pipeline(self) -> Pipeline:
        """Return the pipeline."""
        return Pipeline(self.store, self.path)

    def datasets(self) -> ParquetDatasetStore:
        """Return the datasets of its folder."""
        return ParquetDatasetStore(self.store)

    def chain(self) -> Dataset:
        """Return the chain."""
        return Dataset(self.store, self.path)


def to_version(text: str, tags: Container[str], newest: int) -> int | datetime | str:
    """Return what a text names: a tag, a version, or a time with a time zone.

    Raises:
        InvalidInput: It is the name of a tag and the number of another version, or a time without a time zone.
    """
    is_number = text.isascii() and text.isdigit()
    if text in tags:
        if is_number and int(text) <= newest:
            raise InvalidInput(f"{text} is a version, and the name of a tag; rename the tag")
        return text
    if is_number:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    if when.tzinfo is None:
        raise InvalidInput(f"the time {text!r} has no time zone; append Z for UTC")
    return when


def list_things(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print what lies below a URL."""
    entries = list_entries(args.url, storage_options=options)
    if not entries and not _has_something(args.url, options):
        raise NotFound(f"there is nothing at {args.url!r}")
    print_rows(["kind", "path", "url"], [(entry.kind, entry.path, entry.url) for entry in entries], args.output)
    return OK


def _has_something(url: str, options: dict[str, object]) -> bool:
    normal, _ = normalize_url(url)
    if normal.startswith("file://"):
        return Path(unquote(normal.removeprefix("file://"))).is_dir()
    with Store(url, options) as store:
        return any(True for _ in store.list_files("")) or any(True for _ in store.list_folders(""))


def show(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print what a thing is."""
    thing = Thing(args.url, options)
    if thing.kind in ("dataset", "chain"):
        thing.refuse_versions(args.as_of)
    describe: dict[str, Callable[[], dict[str, Any]]] = {
        "table": lambda: _describe_table(thing.table(args.as_of)),
        "dataset": lambda: _describe_dataset(thing),
        "pipeline": lambda: _describe_pipeline(thing.pipeline(), args.as_of),
        "chain": lambda: _describe_chain(thing.chain()),
    }
    print_fields({"kind": thing.kind, "url": args.url, **describe[thing.kind]()}, args.output)
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
    version = pipeline.as_of(_to_pipeline_version(as_of, pipeline))
    return {"version": version.version, "tags": pipeline.tags, "stages": version.names}


def _to_pipeline_version(as_of: str | None, pipeline: Pipeline) -> int | str:
    newest = pipeline.version
    if as_of is None:
        return newest
    version = to_version(as_of, pipeline.tags, newest)
    if isinstance(version, datetime):
        raise InvalidInput("a pipeline is read at a version or a tag, not at a time")
    return version


def _describe_chain(chain: Dataset) -> dict[str, Any]:
    return {
        "id": chain.identity.id,
        "head": chain.head,
        "last_offset": chain.last_offset,
        "watermark": chain.watermark,
        "columns": {field.name: str(field.type) for field in chain.schema()},
    }


def show_columns(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print the columns."""
    _, names, _ = _open_rows(args, options)
    rows = [(field.name, str(field.type), field.nullable) for field in names]
    print_rows(["name", "type", "nullable"], rows, args.output)
    return OK


def show_history(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print the versions, newest first, or watch for new ones."""
    thing = Thing(args.url, options)
    if args.watch and args.output == "json":
        raise InvalidInput("--watch prints rows as they come; use -o ndjson, csv or text")
    names = ["version", "created_at", "operation", "commit_id"]
    versions = _read_history(thing, args.limit)
    print_rows(names, [[version[name] for name in names] for version in versions], args.output)
    known = versions[0]["version"] if versions else 0
    while args.watch:
        sys.stdout.flush()
        time.sleep(args.interval)
        for version in _new_versions(thing, known):
            print_rows(names, [[version[name] for name in names]], args.output, has_header=False)
            known = version["version"]
    return OK


def _new_versions(thing: Thing, known: int) -> list[dict[str, Any]]:
    """Return the versions after `known`, oldest first; all versions if the thing was dropped and created again."""
    limit = 1
    while True:
        history = _read_history(thing, limit)
        newest = history[0]["version"] if history else 0
        if newest < known:
            print_error(f"{thing.url} was dropped and created again", FAILED)
            known = 0
        versions = [version for version in history if version["version"] > known]
        # Others may have come since the last look.
        if len(history) < limit or len(versions) < limit:
            break
        limit *= 2
    if not versions:
        return []
    oldest = versions[-1]["version"]
    if oldest > known + 1:
        print_error(f"versions {known + 1} to {oldest - 1} are gone: a vacuum removed them", FAILED)
    return versions[::-1]


def _read_history(thing: Thing, limit: int | None) -> list[dict[str, Any]]:
    if thing.kind == "table":
        versions = thing.table().history(limit)
    elif thing.kind == "pipeline":
        versions = thing.pipeline().history(limit)
    elif thing.kind == "chain":
        return [
            {
                "version": block.sequence_number,
                "created_at": block.system_time,
                "operation": block.event.kind,
                "commit_id": block.hash,
            }
            for block in thing.chain().log(limit)
        ]
    else:
        raise thing.refuse("has no history; tables, pipelines and chains have one")
    return versions


def show_files(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print the data files."""
    thing = Thing(args.url, options)
    if thing.kind == "dataset":
        thing.refuse_versions(args.as_of)
        manifest = thing.datasets().read_manifest(thing.path)
        print_rows(["path"], [(part,) for part in manifest.parts], args.output)
        return OK
    files = thing.table(args.as_of).files()
    print_batches(files.column_names, files.to_batches(), args.output)
    return OK


def scan(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print rows."""
    _, schema, read = _open_rows(args, options)
    columns = parse_names("--columns", args.columns)
    names = columns if columns is not None else schema.names
    print_batches(names, _limited(read(columns), args.limit), args.output)
    return OK


def _open_rows(
    args: argparse.Namespace, options: dict[str, object]
) -> tuple[Thing, pa.Schema, Callable[[list[str] | None], Iterable[pa.RecordBatch]]]:
    """The rows of a thing: their columns, and how they are read."""
    thing = Thing(args.url, options)
    where, as_of, limit = getattr(args, "where", None), args.as_of, getattr(args, "limit", None)
    if args.stage is not None and thing.kind != "pipeline":
        raise thing.refuse("has no stages")
    if thing.kind == "table":
        table = thing.table(as_of)
        return thing, table.schema, lambda columns: table.scan(columns, where=where, limit=limit).to_reader()
    if thing.kind == "pipeline":
        rows = _open_stage(thing, args.stage, as_of)
        if where is not None:
            raise thing.refuse("has no filters; read it with Python")
        return thing, rows.schema, lambda columns: _select(rows, columns)
    if thing.kind == "chain":
        chain, at = thing.chain(), None if as_of is None else to_version(as_of, (), 0)
        if isinstance(at, int):
            raise InvalidInput("a chain is read at a time with a time zone, or at the hash of a block")
        schema = chain.scan(as_of=at).schema
        return thing, schema, lambda columns: chain.scan(columns, where=where, as_of=at).to_reader()
    thing.refuse_versions(as_of)
    datasets, path = thing.datasets(), thing.path
    schema = datasets.scan_dataset(path).schema
    return thing, schema, lambda columns: datasets.scan_dataset(path, columns=columns, where=where)


def _open_stage(thing: Thing, stage: str | None, as_of: str | None) -> Any:  # noqa: ANN401 the rows of a stage
    pipeline = thing.pipeline()
    version = pipeline.as_of(_to_pipeline_version(as_of, pipeline))
    if stage is None:
        raise InvalidInput(f"name the stage with --stage; there are {', '.join(version.names)}")
    return version[stage].scan()


def _select(rows: PipelineRows, columns: list[str] | None) -> Iterable[pa.RecordBatch]:
    names = rows.schema.names
    missing = [name for name in columns or () if name not in names]
    if missing:
        raise InvalidInput(f"columns {missing} do not exist; the columns are {names}")
    return rows.to_reader() if columns is None else (batch.select(columns) for batch in rows.to_reader())


def _limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterable[pa.RecordBatch]:
    if limit is None:
        yield from batches
        return
    left, stream = limit, iter(batches)
    # The batch after the last row that is printed is not asked for.
    while left > 0 and (batch := next(stream, None)) is not None:
        yield batch.slice(0, left)
        left -= batch.num_rows


def show_difference(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print the rows that were inserted and deleted between two versions."""
    table = Thing(args.url, options).table()
    changes = table.scan_changes(args.since, args.until, columns=parse_names("--columns", args.columns))
    print_batches(changes.schema.names, changes.to_reader(), args.output)
    return OK


def check(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Compare a table with the objects of its folder."""
    result = Thing(args.url, options).table().check()
    rows = [(what, path) for what in ("missing", "mismatched", "orphans") for path in getattr(result, what)]
    print_problems(["problem", "path"], rows, args.output)
    return FAILED if result.missing or result.mismatched else OK


def verify(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Verify every byte."""
    thing = Thing(args.url, options)
    if thing.kind == "table":
        result = thing.table(args.as_of).verify()
        print_problems(["path", "problem"], result.problems, args.output)
        return FAILED if result.problems else OK
    if thing.kind in ("dataset", "chain"):
        thing.refuse_versions(args.as_of)
        try:
            report = _verify_dataset(thing) if thing.kind == "dataset" else _verify_chain(thing)
        except (DatasetIncomplete, ManifestCorrupted, PartCorrupted) as error:
            problems = [(error.path, error.args[0])]
        except VerificationFailed as error:
            problems = list(error.problems)
        else:
            print_fields(report, args.output)
            return OK
        print_problems(["path", "problem"], problems, args.output)
        return FAILED
    raise thing.refuse("is checked by the process that declares it: Pipeline.check")


def _verify_dataset(thing: Thing) -> dict[str, Any]:
    report = thing.datasets().verify_dataset(thing.path)
    return {"parts": report.parts, "rows": report.rows, "bytes": report.bytes}


def _verify_chain(thing: Thing) -> dict[str, Any]:
    result = thing.chain().verify()
    return {"blocks": result.blocks, "slices": result.slices, "rows": result.rows}


def optimize(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Combine small files, or sort all."""
    thing = Thing(args.url, options)
    if thing.kind == "pipeline" and not args.sort:
        result: Any = thing.pipeline().compact()
    else:
        table = thing.table()
        result = table.optimize.sort() if args.sort else table.optimize.compact()
    if result is None:
        print_fields({"version": None}, args.output)
        return OK
    print_fields({"version": result.version}, args.output)
    return OK


def vacuum(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Remove objects that no retained version needs."""
    thing = Thing(args.url, options)
    if not args.dry_run:
        require_consent(args, f"remove the versions of {args.url!r} that are older than {args.older_than:g} days")
    try:
        age = timedelta(days=args.older_than)
    except (OverflowError, ValueError) as error:
        raise InvalidInput(f"--older-than is out of range: {args.older_than} days") from error
    opened: dict[str, Callable[[], Any]] = {"table": thing.table, "pipeline": thing.pipeline, "chain": thing.chain}
    if thing.kind not in opened:
        raise thing.refuse("has one version; clean it with `pds dataset clean`")
    result = opened[thing.kind]().vacuum(age, dry_run=args.dry_run)
    paths = [*result.files, *getattr(result, "manifests", ())]
    print_rows(["path"], [(path,) for path in paths], args.output)
    return OK


def require_consent(args: argparse.Namespace, what: str) -> None:
    """Ask at a terminal whether to go on; elsewhere `--yes` is needed."""
    if args.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidInput(f"to {what} needs --yes")
    sys.stderr.write(f"{what}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RemoteStoreError("nothing was done")


def restore(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Make the rows of an earlier version those of a new one."""
    table = Thing(args.url, options).table()
    result = table.restore(to_version(args.version, table.tags, table.version))
    print_fields({"version": result.version}, args.output)
    return OK


def tag(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Name a version, or print the names."""
    thing = Thing(args.url, options)
    table, pipeline = None, None
    if thing.kind == "pipeline":
        pipeline = thing.pipeline()
    else:
        table = thing.table()
    if args.delete and (args.name is None or args.version is not None):
        raise InvalidInput("--delete takes the name of a tag, and no version")
    if args.name is None:
        tags = dict(table.tags) if table is not None else thing.pipeline().tags
        print_rows(["tag", "version"], sorted(tags.items()), args.output)
        return OK
    if pipeline is not None:
        version = pipeline.untag(args.name) if args.delete else pipeline.tag(args.name, args.version)
    elif table is not None:
        commit = table.tags.delete(args.name) if args.delete else table.tags.create(args.name, args.version)
        version = commit.version
    print_fields({"version": version}, args.output)
    return OK


def drop(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Delete a table or a dataset with all of its versions."""
    thing = Thing(args.url, options)
    if thing.kind not in ("table", "dataset"):
        raise thing.refuse("cannot be dropped")
    require_consent(args, f"delete the {thing.kind} {args.url!r} with all of its rows")
    if thing.kind == "table":
        Table.drop(thing.store, thing.path)
    else:
        thing.datasets().delete_dataset(thing.path)
    print_fields({"dropped": args.url}, args.output)
    return OK

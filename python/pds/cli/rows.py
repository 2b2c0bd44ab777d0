"""Commands that print columns, rows and data files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pds.cli.codes import OK
from pds.cli.names import parse_names
from pds.cli.output import print_batches, print_rows
from pds.cli.stored_files import RUN_COLUMNS, SLICE_COLUMNS, list_run_files, list_slices
from pds.cli.thing import Thing, to_pipeline_version, to_version
from pds.errors import InvalidInput

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from pds.producers.tables import PipelineRows


def show_columns(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print the columns."""
    schema, _ = _open_rows(args, options)
    rows = [(field.name, str(field.type), field.nullable) for field in schema]
    print_rows(["name", "type", "nullable"], rows, args.output)
    return OK


def show_files(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print the data files of a table, the parts of a dataset, the runs of a pipeline, or the slices of a chain."""
    thing = Thing(args, options)
    if thing.kind == "table":
        files = thing.table(args.as_of).files()
        print_batches(files.column_names, files.to_batches(), args.output)
    elif thing.kind == "pipeline":
        pipeline = thing.pipeline()
        runs = list_run_files(pipeline.as_of(to_pipeline_version(args.as_of, pipeline)))
        print_rows(RUN_COLUMNS, [[file[name] for name in RUN_COLUMNS] for file in runs], args.output)
    else:
        thing.refuse_versions(args.as_of)
        if thing.kind == "dataset":
            manifest = thing.datasets().read_manifest(thing.path)
            print_rows(["path"], [(part,) for part in manifest.parts], args.output)
        else:
            slices = list_slices(thing.chain().log())[::-1]
            print_rows(SLICE_COLUMNS, [[file[name] for name in SLICE_COLUMNS] for file in slices], args.output)
    return OK


def scan(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print rows."""
    schema, read = _open_rows(args, options)
    columns = parse_names("--columns", args.columns)
    names = columns if columns is not None else schema.names
    print_batches(names, _limit_rows(read(columns), args.limit), args.output)
    return OK


def _open_rows(
    args: argparse.Namespace, options: dict[str, object]
) -> tuple[pa.Schema, Callable[[list[str] | None], Iterable[pa.RecordBatch]]]:
    """The rows of a thing: their columns, and how they are read."""
    thing = Thing(args, options)
    where, as_of, limit = getattr(args, "where", None), args.as_of, getattr(args, "limit", None)
    if args.stage is not None and thing.kind != "pipeline":
        raise thing.refuse("has no stages")
    if thing.kind == "table":
        table = thing.table(as_of)
        return table.schema, lambda columns: table.scan(columns, where=where, limit=limit).to_reader()
    if thing.kind == "pipeline":
        rows = _open_stage(thing, args.stage, as_of)
        if where is not None:
            raise thing.refuse("has no filters; read it with Python")
        return rows.schema, lambda columns: _select(rows, columns)
    if thing.kind == "chain":
        chain, at = thing.chain(), None if as_of is None else to_version(as_of, (), 0)
        if isinstance(at, int):
            raise InvalidInput("a chain is read at a time with a time zone, or at the hash of a block")
        schema = chain.scan(as_of=at).schema
        return schema, lambda columns: chain.scan(columns, where=where, as_of=at).to_reader()
    thing.refuse_versions(as_of)
    datasets, path = thing.datasets(), thing.path
    schema = datasets.scan_dataset(path).schema
    return schema, lambda columns: datasets.scan_dataset(path, columns=columns, where=where)


def _open_stage(thing: Thing, stage: str | None, as_of: str | None) -> PipelineRows:
    pipeline = thing.pipeline()
    version = pipeline.as_of(to_pipeline_version(as_of, pipeline))
    if stage is None:
        raise InvalidInput(f"name the stage with --stage; there are {', '.join(version.names)}")
    if stage not in version.names:
        raise InvalidInput(f"the source or stage {stage!r} does not exist; the pipeline has {', '.join(version.names)}")
    return version[stage].scan()


def _select(rows: PipelineRows, columns: list[str] | None) -> Iterable[pa.RecordBatch]:
    names = rows.schema.names
    missing = [name for name in columns or () if name not in names]
    if missing:
        raise InvalidInput(f"columns {missing} do not exist; the columns are {names}")
    return rows.to_reader() if columns is None else (batch.select(columns) for batch in rows.to_reader())


def _limit_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterable[pa.RecordBatch]:
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
    table = Thing(args, options).table()
    changes = table.scan_changes(args.since, args.until, columns=parse_names("--columns", args.columns))
    print_batches(changes.schema.names, changes.to_reader(), args.output)
    return OK

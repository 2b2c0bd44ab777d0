"""Pipelines of the engine for graphs of the model, and the comparison of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pds
from independent_pipeline import IndependentPipeline
from producers.model import Changes, Model, Source, Stage, exact, normalize_key

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES = ("add", "update", "delete")


def declare(
    store: pds.Store,
    path: str,
    sources: Sequence[Source],
    stages: Sequence[Stage],
    **options: Any,
) -> pds.Pipeline:
    """A pipeline with the sources and stages of a model; `page_rows` and `file_rows` set the sizes of its files."""
    page_rows, file_rows = options.pop("page_rows", None), options.pop("file_rows", None)
    pipeline = pds.Pipeline(store, path, **options)
    pipeline._page_rows, pipeline._file_rows = page_rows, file_rows
    declared: dict[str, Any] = {}
    for source in sources:
        declared[source.name] = pipeline.source(
            source.name,
            key=source.key,
            value=source.value,
            descending=source.descending,
            skip_unchanged=source.skip_unchanged,
        )
    for stage in stages:
        declare_stage = pipeline.join if stage.join else pipeline.producer
        declared[stage.name] = declare_stage(
            *(declared[name] for name in stage.feeders),
            key=stage.key,
            value=stage.value,
            name=stage.name,
            descending=stage.descending,
            skip_unchanged=stage.skip_unchanged,
            order_by=stage.order and stage.order.by,
            order_descending=stage.order is not None and stage.order.descending,
            preserve=None if stage.preserve is None else pds.Preserve(stage.preserve.function, stage.preserve.state),
        )(stage.produce)
    return pipeline


def to_changes(changes: dict[str, Changes]) -> dict[str, Any]:
    """Changes of the model for the engine; None stands for a side without any."""
    return {
        name: pds.Changes(list(change.upserts) or None, list(change.deletes) or None)
        for name, change in changes.items()
    }


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows; keys as the model has them, structs as tuples."""
    columns = []
    for name in table.column_names:
        values, data_type = table.column(name).to_pylist(), table.schema.field(name).type
        if name != "value" and (pa.types.is_struct(data_type) or pa.types.is_floating(data_type)):
            values = [normalize_key(value, data_type) for value in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as pyarrow gives them."""
    return [tuple(row.values()) for row in table.to_pylist()]


def objects(store: pds.Store) -> set[str]:
    """The paths of all objects of a store."""
    return {str(info.path) for info in store.list_files("", recursive=True)}


def assert_equal(actual: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Equal bit by bit, in the same order."""
    assert list(map(exact, actual)) == list(map(exact, expected)), f"{what}: {actual} != {expected}"


def compare(store: pds.Store, pipeline: pds.Pipeline, model: Model) -> None:
    """All tables of all stages have the rows of the model, in its order; an independent reader gets them too."""
    independent = IndependentPipeline(lambda path: store.read_bytes(f"{pipeline.path}/{path}"))
    for name in model.stages:
        table = pipeline[name]
        assert_equal(rows_of(table.read()), model.content(name), f"content of {name}")
        assert_equal(rows_of(table.key_mappings()), model.tables(name).key_mappings, f"mappings of {name}")
        assert_equal(independent.content(name), plain_rows(table.read()), f"files of the content of {name}")
        assert_equal(
            independent.key_mappings(name), plain_rows(table.key_mappings()), f"files of the mappings of {name}"
        )
        changes = [
            (TYPES[kind], key) if kind == TYPES.index("delete") else (TYPES[kind], key, value)
            for kind, key, value in rows_of(table.changes())
        ]
        if model.stages[name].preserve is not None:
            assert independent.nodes[name].get("state") in (model.tables(name).state, None)
        update = [row[:2] if row[0] == "delete" else row for row in model.tables(name).update]
        assert_equal(changes, update, f"update of {name}")
    for name in model.sources:
        rows = [(row.target_key, row.value) for row in model.tables(name).content]
        assert_equal(rows_of(pipeline[name].read()), rows, f"rows of {name}")

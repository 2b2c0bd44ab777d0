"""Running stages of pipelines in unit tests, without a store."""

from __future__ import annotations

__all__ = ["run"]

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pds.errors import InvalidInput, InvalidType
from pds.producers.convert import BadValueError, ColumnBuilder
from pds.producers.declarations import Declared


def run(stage: Declared, rows: Mapping[Any, Sequence[Any]]) -> list[tuple[Any, Any]]:
    """Call the function of a stage for some keys, as an update does, and return what it emits.

    Args:
        stage: A stage of a pipeline: what `Pipeline.producer` or `Pipeline.join` made of the function.
        rows: The values by source key, in the order in which the function is called. For a join, a list of the values
            of each feeder. A struct key is a tuple.

    Returns:
        The emitted pairs (target key, value) in the order of emission, as they would be read back: struct keys are
        named tuples, struct values dicts.

    Raises:
        ProduceError: The function raised an exception, or emitted what the stage cannot store.
        InvalidInput: A key or value does not fit the feeders.
        InvalidType: This is not a stage, or the rows are not a dict of lists.
    """
    declared: object = stage
    function = declared._node.function if isinstance(declared, Declared) else None  # noqa: SLF001 of the package
    if not isinstance(declared, Declared) or function is None:
        raise InvalidType(f"a stage is what a decorated function becomes, not {stage!r}")
    _check_rows(rows)
    node, fields = declared._node, declared._feeder_fields()  # noqa: SLF001 of the package
    if node.is_join:
        for key, sides in rows.items():
            if len(sides) != len(fields):
                raise InvalidInput(f"key {key!r} needs the values of {len(fields)} feeders, got {len(sides)}")
        keys = pa.table({"key": _to_array(list(rows), fields[0].field("key"))})
        tables = [keys]
        for at, side in enumerate(fields):
            tables.append(_to_table([(key, value) for key, sides in rows.items() for value in sides[at]], side))
    else:
        tables = [_to_table([(key, value) for key, values in rows.items() for value in values], fields[0])]
    emitted: list[tuple[Any, Any]] = []
    for batch in function([table.to_reader() for table in tables]):
        emitted.extend(zip(batch.column("target_key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    return emitted


def _check_rows(rows: object) -> None:
    if not isinstance(rows, Mapping):
        raise InvalidType(f"rows must be a dict of the values of each key, not {type(rows).__name__}")
    for key, values in rows.items():
        if isinstance(values, str | bytes) or not isinstance(values, Sequence):
            raise InvalidType(f"rows[{key!r}] must be a list of values, not {type(values).__name__}")


def _to_table(pairs: list[tuple[Any, Any]], fields: pa.Schema) -> pa.Table:
    columns = [_to_array([pair[at] for pair in pairs], fields.field(at)) for at in range(2)]
    return pa.Table.from_arrays(columns, names=["key", "value"])


def _to_array(values: list[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    # As values are taken that are pushed: pyarrow would cut 1.5 to 1.
    builder = ColumnBuilder(field.with_nullable(True))  # noqa: FBT003
    try:
        for value in values:
            builder.append(value)
        return builder.finish()
    except (BadValueError, TypeError) as error:
        raise InvalidInput(f"a {field.name} is not of type {field.type}: {error}") from error

"""Partitions of assets as filters over the columns of a table."""

from __future__ import annotations

import functools
import operator
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from dagster import MultiPartitionsDefinition, TimeWindowPartitionsDefinition

from pds.errors import InvalidInput
from pds.inputs import read_batches
from pds.readers import make_reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from dagster import InputContext, OutputContext, PartitionsDefinition


class Dimension(NamedTuple):
    """A partitioned column."""

    column: str
    definition: PartitionsDefinition[str]


class Partitions(NamedTuple):
    """The partitions that a run writes or reads: for each the keys of the dimensions."""

    label: str
    dimensions: list[Dimension]
    keys: list[tuple[str, ...]]

    @classmethod
    def of(cls, context: InputContext | OutputContext, columns: object) -> Partitions | None:
        """Return the partitions of an output or input, or None if the asset has none.

        Args:
            context: The context of the output or input.
            columns: The metadata `pds/partition_expr` of the asset: a column, or a dict of columns by dimension.

        Raises:
            InvalidInput: The asset has partitions, and `columns` does not name their columns.
        """
        if not (context.has_asset_key and context.has_asset_partitions):
            return None
        definition, keys = context.asset_partitions_def, list(context.asset_partition_keys)
        label = f"asset {context.asset_key.to_user_string()}"
        if isinstance(definition, MultiPartitionsDefinition):
            definitions = {part.name: part.partitions_def for part in definition.partitions_defs}
            if not isinstance(columns, dict) or columns.keys() != definitions.keys():
                message = (
                    f"{label} has the partition dimensions {sorted(definitions)}: its metadata needs a column for "
                    f'each, as in "pds/partition_expr": {dict.fromkeys(sorted(definitions), "column")}'
                )
                raise InvalidInput(message)
            names = list(definitions)
            by_dimension = [definition.get_partition_key_from_str(key).keys_by_dimension for key in keys]
            dimensions = [Dimension(_check_column(label, columns[name]), definitions[name]) for name in names]
            return cls(label, dimensions, [tuple(key[name] for name in names) for key in by_dimension])
        return cls(label, [Dimension(_check_column(label, columns), definition)], [(key,) for key in keys])

    @property
    def columns(self) -> list[str]:
        """The names of the partitioned columns."""
        return [dimension.column for dimension in self.dimensions]

    def __str__(self) -> str:
        texts = ["|".join(key) for key in self.keys[:3]]
        others = f" and {len(self.keys) - len(texts)} more" if len(self.keys) > len(texts) else ""
        return f"{'partition' if len(self.keys) == 1 else 'partitions'} {', '.join(texts)}{others} of {self.label}"

    def to_expression(self, schema: pa.Schema) -> pc.Expression:
        """Return the filter of the rows of these partitions.

        Args:
            schema: The columns of the table.

        Raises:
            InvalidInput: The table has no such column, or its type cannot hold the partitions.
        """
        fields = []
        for column in self.columns:
            if schema.get_field_index(column) < 0:
                raise InvalidInput(
                    f'{self.label}: "pds/partition_expr" names the column {column!r}; there are {schema.names}'
                )
            fields.append(schema.field(column))
        return _combine(self._make_product_filter(fields, keys) for keys in _factorize(self.keys))

    def _make_product_filter(self, fields: list[pa.Field[Any]], keys: list[list[str]]) -> pc.Expression:
        """Return the filter for all combinations of the keys of each dimension."""
        filters = [
            _make_filter(field, dimension.definition, values)
            for field, dimension, values in zip(fields, self.dimensions, keys, strict=True)
        ]
        return functools.reduce(operator.and_, filters)


def _is_true(where: Any) -> Any:  # noqa: ANN401 the stubs know no functions of expressions
    return pc.coalesce(where, pc.scalar(value=False))


class PartitionGuard:
    """Refuses rows that are outside the partitions of a run, before they are written.

    Args:
        partitions: The partitions.
        schema: The columns of the table.

    Raises:
        InvalidInput: As for `Partitions.to_expression`.
    """

    def __init__(self, partitions: Partitions, schema: pa.Schema) -> None:
        self._partitions = partitions
        self._schema = schema
        self.where = partitions.to_expression(schema)
        """The filter of the partitions."""

    def check(self, rows: pa.Table | pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
        """Return the rows: those in memory are checked, and those of a stream will be while it is read.

        Raises:
            InvalidInput: A row is outside the partitions, or the rows lack a column of theirs.
        """
        if isinstance(rows, pa.Table):
            self._check_table(rows)
            return rows
        return make_reader(rows.schema, self._check_batches(rows))

    def _check_batches(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in read_batches(rows):
            self._check_table(pa.Table.from_batches([batch]))
            yield batch

    def _check_table(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        columns = self._partitions.columns
        for column in columns:
            if column not in rows.column_names:
                raise InvalidInput(f"the rows have no column {column!r}, which {self._partitions} is in")
        try:
            types = {name: _get_value_type(self._schema.field(name)) for name in columns}
            values = rows.select(columns).cast(pa.schema(types))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInput(f"the columns {columns} do not have the types of the table: {error}") from error
        outside = values.filter(~_is_true(self.where))
        if outside.num_rows:
            message = (
                f"{outside.num_rows} of {rows.num_rows} rows are not in {self._partitions}, such as one with "
                f"{outside.slice(0, 1).to_pylist()[0]}; nothing was written"
            )
            raise InvalidInput(message)


def _check_column(label: str, column: object) -> str:
    if not isinstance(column, str):
        message = f'{label} has partitions: its metadata needs the column, as in "pds/partition_expr": "day"'
        raise InvalidInput(message)
    return column


def _factorize(keys: Sequence[tuple[str, ...]]) -> list[list[list[str]]]:
    """Return few products of keys by dimension that together are `keys`."""
    products: list[list[list[str]]] = []
    by_rest: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    by_first: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in keys:
        by_first.setdefault(first, []).append(tuple(rest))
    for first, rests in by_first.items():
        by_rest.setdefault(tuple(rests), []).append(first)
    for others, firsts in by_rest.items():
        if others[0]:
            products += [[firsts, *product] for product in _factorize(others)]
        else:
            products.append([firsts])
    return products


def _combine(filters: Iterable[pc.Expression]) -> pc.Expression:
    """Return the OR of filters, as a tree that is not deep."""
    level = list(filters)
    if not level:
        return pc.scalar(value=False)
    while len(level) > 1:
        level = [functools.reduce(operator.or_, level[index : index + 2]) for index in range(0, len(level), 2)]
    return level[0]


def _make_filter(field: pa.Field[Any], definition: PartitionsDefinition[str], keys: list[str]) -> pc.Expression:
    types: Any = pa.types
    if not isinstance(definition, TimeWindowPartitionsDefinition) or not types.is_temporal(field.type):
        values = pa.array([_to_value(field, key) for key in keys])
        column = pc.field(field.name)
        return column == values[0] if len(values) == 1 else column.isin(values)
    # Times with one zone are compared without their offsets, so that an hour that is repeated in autumn would be one.
    windows = sorted((definition.time_window_for_partition_key(key) for key in keys), key=lambda w: w.start.timestamp())
    ranges: list[tuple[datetime, datetime]] = []
    for window in windows:
        if ranges and window.start.timestamp() == ranges[-1][1].timestamp():
            ranges[-1] = ranges[-1][0], window.end
        else:
            ranges.append((window.start, window.end))
    column = pc.field(field.name)
    return _combine((column >= _to_moment(field, start)) & (column < _to_moment(field, end)) for start, end in ranges)


def _get_value_type(field: pa.Field[Any]) -> Any:  # noqa: ANN401 a type of any kind
    return field.type.value_type if pa.types.is_dictionary(field.type) else field.type


def _to_value(field: pa.Field[Any], key: str) -> Any:  # noqa: ANN401 a scalar of any type
    """Return the value of a column for a partition key.

    Raises:
        InvalidInput: The type is not text, whole numbers, booleans or dates, or the key is not such a value.
    """
    types: Any = pa.types
    data_type = _get_value_type(field)
    if types.is_string(data_type) or types.is_large_string(data_type):
        return pa.scalar(key, data_type)
    if not (types.is_integer(data_type) or types.is_boolean(data_type) or types.is_date32(data_type)):
        message = (
            f"column {field.name!r} has the type {field.type}, which partition keys such as {key!r} cannot name: "
            "use a column of texts, whole numbers, booleans or dates"
        )
        raise InvalidInput(message)
    try:
        value = pa.scalar(key).cast(data_type)
        # Two keys, such as 7 and 007, must not be the same value.
        is_same = value.cast(pa.string()).as_py() == key
    except pa.ArrowInvalid:
        is_same = False
    if not is_same:
        raise InvalidInput(f"partition key {key!r} is not the text of a value of column {field.name!r}: {data_type}")
    return value


def _to_moment(field: pa.Field[Any], moment: datetime) -> Any:  # noqa: ANN401 a scalar of any type
    """Return a bound of a time window as a value of a column of dates or timestamps.

    Raises:
        InvalidInput: The column cannot hold the bound.
    """
    types: Any = pa.types
    data_type: Any = field.type
    if types.is_date(data_type):
        if moment.timetz().replace(tzinfo=None).isoformat() != "00:00:00":
            message = (
                f"column {field.name!r} has dates, and the partition begins or ends at {moment.isoformat()}: use a "
                "column of timestamps"
            )
            raise InvalidInput(message)
        return pa.scalar(moment.date(), data_type)
    if not types.is_timestamp(data_type):
        raise InvalidInput(f"column {field.name!r} has the type {data_type}; time windows need dates or timestamps")
    if data_type.tz is not None:
        return pa.scalar(moment.astimezone(UTC), data_type)
    if moment.replace(fold=0).utcoffset() != moment.replace(fold=1).utcoffset():
        message = (
            f"column {field.name!r} has no time zone, in which the bound {moment.isoformat()} of the partition is "
            "ambiguous: use a column of timestamps with a time zone"
        )
        raise InvalidInput(message)
    return pa.scalar(moment.replace(tzinfo=None), data_type)

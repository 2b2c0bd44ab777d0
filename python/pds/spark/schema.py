"""Conversions between the schemas of Spark and Arrow.

Writes: Spark types become the Arrow types that pyarrow users expect: timestamps in UTC, whatever the time zone of the
session; ``timestamp_ntz`` without a time zone; day-time intervals as durations; times in microseconds. The metadata of
the schema has Spark's own description of the columns, under the key that it has in Parquet files of Spark. From it,
the readers of Spark and pds restore what Parquet cannot describe: intervals, variants, collations, vectors, comments.
Columns of a table keep types that Spark does not have. What it read of them it can write to them, other than floats of
16 bits, which would lose digits, and dictionaries of types that Spark does not have.

Reads: every Arrow type that has a Spark type is cast to exactly the layout that the JVM accepts. Errors name the
columns whose types cannot be converted.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.types as arrow
from pyspark.sql import types as spark

from pds.arguments import make_empty
from pds.errors import InvalidInput, InvalidType
from pds.readers import unfold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["align_to_schema", "check_columns", "dataset_schema", "fit_to_table", "frame_schema", "worker_schema"]

_Converted = TypeVar("_Converted")

# The same key as ParquetReadSupport.SPARK_METADATA_KEY of Spark.
_ROW_METADATA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_MICROSECOND_DIGITS: Final = 6
_NANOSECOND_DIGITS: Final = 9
_MAX_PRECISION: Final = 38

# By the names of the classes, because not every Spark 4.x has all of them.
_ARROW_BY_SPARK: Final[dict[str, pa.DataType]] = {
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "StringType": pa.string(),
    "CharType": pa.string(),
    "VarcharType": pa.string(),
    "BinaryType": pa.binary(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", tz="UTC"),
    "TimestampNTZType": pa.timestamp("us"),
    "DayTimeIntervalType": pa.duration("us"),
    "NullType": pa.null(),
    "VariantType": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            # The JVM recognizes a variant by this metadata.
            pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
        ],
    ),
}

_SUBSTITUTES: Final = {
    "YearMonthIntervalType": "the number of months",
    "CalendarIntervalType": "months, days and microseconds",
    "GeometryType": "st_asbinary(…)",
    "GeographyType": "st_asbinary(…)",
}

_SPARK_BY_ARROW: Final[tuple[tuple[Callable[[pa.DataType], bool], spark.DataType], ...]] = (
    (arrow.is_boolean, spark.BooleanType()),
    (arrow.is_int8, spark.ByteType()),
    (arrow.is_int16, spark.ShortType()),
    (arrow.is_uint8, spark.ShortType()),
    (arrow.is_int32, spark.IntegerType()),
    (arrow.is_uint16, spark.IntegerType()),
    (arrow.is_int64, spark.LongType()),
    (arrow.is_uint32, spark.LongType()),
    (arrow.is_uint64, spark.DecimalType(20, 0)),
    (arrow.is_float16, spark.FloatType()),
    (arrow.is_float32, spark.FloatType()),
    (arrow.is_float64, spark.DoubleType()),
    (arrow.is_string, spark.StringType()),
    (arrow.is_large_string, spark.StringType()),
    (arrow.is_string_view, spark.StringType()),
    (arrow.is_binary, spark.BinaryType()),
    (arrow.is_large_binary, spark.BinaryType()),
    (arrow.is_binary_view, spark.BinaryType()),
    (arrow.is_fixed_size_binary, spark.BinaryType()),
    (arrow.is_date, spark.DateType()),
    (arrow.is_duration, spark.DayTimeIntervalType()),
    (arrow.is_null, spark.NullType()),
)


def _is_coarse(data_type: Any) -> bool:  # noqa: ANN401 the stubs have no common type with a unit
    return (arrow.is_timestamp(data_type) or arrow.is_duration(data_type)) and data_type.unit in {"s", "ms"}


_LISTS: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    arrow.is_list,
    arrow.is_large_list,
    arrow.is_fixed_size_list,
    arrow.is_list_view,
    arrow.is_large_list_view,
)

# Types whose values Spark reads in a wider type and cannot write. A cast to them checks each value. To finer units and
# other zones the engine casts.
_NARROWED: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    arrow.is_unsigned_integer,
    _is_coarse,
    arrow.is_time,
    arrow.is_date64,
    arrow.is_fixed_size_binary,
)

# The description of any other class could name code that would be imported or unpickled.
_TRUSTED_USER_TYPES: Final = frozenset(
    {"pyspark.ml.linalg.MatrixUDT", "pyspark.ml.linalg.VectorUDT"},
)


class _UnsupportedTypeError(Exception):
    """A type has no counterpart in the other type system."""


def dataset_schema(schema: spark.StructType, *, case_sensitive: bool) -> pa.Schema:
    """Return the Arrow schema with which a DataFrame of this schema is written.

    Args:
        schema: The schema of the DataFrame.
        case_sensitive: Whether two names that differ only in case are different columns.

    Raises:
        InvalidInput: The schema has no columns, or two columns with the same name.
        InvalidType: Columns have types that Parquet cannot store. The message names all of them.
    """
    _check_names(schema.names, case_sensitive=case_sensitive)
    fields = _convert_fields(schema.fields, lambda field: _to_arrow_field(field, for_files=True))
    return pa.schema(fields, metadata={_ROW_METADATA: schema.json().encode()})


def frame_schema(schema: pa.Schema) -> spark.StructType:
    """Return the schema of the DataFrame for a dataset with this Arrow schema.

    A column that Spark wrote has its original type, if the description in the metadata still fits the column.

    Raises:
        InvalidInput: The schema has no columns, or two columns with the same name.
        InvalidType: Columns have types that Spark does not have. The message names all of them.
    """
    _check_names(schema.names, case_sensitive=True)
    described_fields = _read_described_fields(schema)

    def restore_field(field: pa.Field[Any]) -> spark.StructField:
        derived_type = _to_spark_type(field.type)
        original = described_fields.get(field.name)
        if original is None or _derive_from_file(original.dataType) != derived_type:
            return spark.StructField(field.name, derived_type, field.nullable)
        # A function cannot return char(n) or varchar(n); Spark uses strings for them.
        data_type = derived_type if _has_lengths(original.dataType) else original.dataType
        return spark.StructField(field.name, data_type, field.nullable, _without_orders(original.metadata))

    return spark.StructType(_convert_fields(schema, restore_field))


def _without_orders(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Leave out what Spark would act on: it pads texts that are compared with char(n), and waits for a watermark."""
    orders = ("__", "spark.")
    return {name: value for name, value in (metadata or {}).items() if not name.startswith(orders)}


class _RowTarget(Protocol):
    """Takes rows: a write of a table or a source of a pipeline."""

    def stage(self, rows: pa.RecordBatchReader, /) -> bytes: ...


def check_columns(target: _RowTarget, schema: pa.Schema) -> None:
    """Raise what is wrong with the columns, before a job starts: no rows are staged."""
    target.stage(make_empty(schema).to_reader())


def fit_to_table(schema: pa.Schema, table: pa.Schema, *, case_sensitive: bool) -> pa.Schema:
    """Return the schema of rows with the names and types of a table's columns.

    Names are matched as Spark resolves them. The types are those of the table where Spark reads these as the types
    that the rows have: it has no unsigned numbers, for example, so that what it reads as ``bigint`` may be written to
    the column again. A value that does not fit fails the cast of `align_to_schema`.

    Args:
        schema: The schema of the rows.
        table: The schema of the table. Columns that it does not have stay as they are.
        case_sensitive: Whether two names that differ only in case are different columns. Otherwise a name stands for
            the only column that it may mean.
    """
    own_names = _match_names(schema.names, [] if case_sensitive else table.names)
    fields: list[pa.Field[Any]] = []
    for field in schema:
        named = field.with_name(own_names.get(field.name, field.name))
        position = table.get_field_index(named.name)
        fields.append(named if position < 0 else named.with_type(_fit_type(named.type, table.field(position).type)))
    return pa.schema(fields).with_metadata(schema.metadata)


def _match_names(names: list[str], own_names: list[str]) -> dict[str, str]:
    """Return the names of columns that other names stand for, which differ from them in case."""
    by_lower: defaultdict[str, set[str]] = defaultdict(set)
    for own_name in set(own_names).difference(names):
        by_lower[own_name.lower()].add(own_name)
    others = set(names).difference(own_names)
    return {name: min(by_lower[name.lower()]) for name in others if len(by_lower[name.lower()]) == 1}


def _fit_type(data_type: pa.DataType, table_type: pa.DataType) -> pa.DataType:
    # The stubs have no common nested type.
    own: Any = data_type
    other: Any = table_type
    if isinstance(other, pa.BaseExtensionType):
        other = other.storage_type
    if arrow.is_run_end_encoded(other):
        other = other.value_type
    if arrow.is_map(own) and arrow.is_map(other):
        item: Any = own.item_field
        key_type = _fit_type(own.key_type, other.key_type)
        return pa.map_(key_type, item.with_type(_fit_type(item.type, other.item_type)))
    if arrow.is_struct(own) and arrow.is_struct(other):
        if [field.name for field in own] != [field.name for field in other]:
            return data_type
        pairs = zip(own, other, strict=True)
        return pa.struct([field.with_type(_fit_type(field.type, stored.type)) for field, stored in pairs])
    if arrow.is_list(own) and any(is_list(other) for is_list in _LISTS):
        element: Any = own.value_field
        fitting = element.with_type(_fit_type(element.type, other.value_type))
        fitted: pa.DataType = pa.list_(fitting, other.list_size if arrow.is_fixed_size_list(other) else -1)
        return fitted
    return data_type if arrow.is_nested(own) else _narrow(own, other)


def _narrow(own: Any, other: Any) -> pa.DataType:  # noqa: ANN401 the stubs have no common type with a unit
    data_type: pa.DataType = own
    if not any(matches(other) for matches in _NARROWED) or not _reads_as(other, _to_spark_leaf(own)):
        return data_type
    # The zone of the rows is that in which the clauses of merges compute.
    narrow: pa.DataType = pa.timestamp(other.unit, own.tz) if arrow.is_timestamp(other) else other
    return narrow


def _reads_as(data_type: pa.DataType, spark_type: spark.DataType) -> bool:
    try:
        return _to_spark_leaf(data_type) == spark_type
    except _UnsupportedTypeError:
        return False


def worker_schema(schema: spark.StructType) -> pa.Schema:
    """Return the Arrow schema with the layout that the JVM requires for columns of ``schema``."""
    return pa.schema(_convert_fields(schema.fields, lambda field: _to_arrow_field(field, for_files=False)))


def align_to_schema(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Cast batches to ``schema``. Columns are matched by position.

    The buffers of a column are not copied if only its description changes.

    Raises:
        InvalidType: A column cannot be cast, or a value is out of range. The message names the column.
    """
    for batch in batches:
        columns = [_cast(column, field) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    if column.type == field.type:
        return column
    # pyarrow casts no runs, and makes invalid lists of list views.
    plain = unfold(pa.RecordBatch.from_arrays([column], names=[field.name])).column(0)
    try:
        return plain.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        msg = f"column {field.name!r}: cannot cast {column.type} to {field.type}: {error}"
        raise InvalidType(msg) from error


def _convert_fields(fields: Iterable[Any], convert: Callable[[Any], _Converted]) -> list[_Converted]:
    """Convert all fields. The error names every field whose type is not supported."""
    converted, problems = [], []
    for field in fields:
        try:
            converted.append(convert(field))
        except _UnsupportedTypeError as error:
            problems.append(f"column {field.name!r} {error}")
    if problems:
        raise InvalidType("; ".join(problems))
    return converted


def _check_names(names: Iterable[str], *, case_sensitive: bool) -> None:
    unique_names: set[str] = set()
    for name in names:
        key = name if case_sensitive else name.lower()
        if key in unique_names:
            msg = f"column {name!r} occurs twice; the names of columns must be unique"
            raise InvalidInput(msg)
        unique_names.add(key)
    if not unique_names:
        msg = "the schema has no columns; a dataset needs at least one column"
        raise InvalidInput(msg)


def _to_arrow_field(field: spark.StructField, *, for_files: bool) -> pa.Field[Any]:
    data_type = _to_arrow_type(field.dataType, for_files=for_files)
    return pa.field(field.name, data_type, nullable=field.nullable)


def _to_arrow_type(data_type: spark.DataType, *, for_files: bool) -> pa.DataType:
    """Return the Arrow type for a Spark type: the type in files, or else the type that the JVM requires."""
    if isinstance(data_type, spark.UserDefinedType):
        return _to_arrow_type(data_type.sqlType(), for_files=for_files)
    if isinstance(data_type, spark.ArrayType):
        element = _to_arrow_type(data_type.elementType, for_files=for_files)
        return pa.list_(pa.field("element", element, nullable=data_type.containsNull or arrow.is_null(element)))
    if isinstance(data_type, spark.MapType):
        key = _to_arrow_type(data_type.keyType, for_files=for_files)
        if arrow.is_null(key):
            msg = f"is or holds {data_type.simpleString()}, which cannot be written"
            raise _UnsupportedTypeError(msg)
        item = _to_arrow_type(data_type.valueType, for_files=for_files)
        value: Any = pa.field("value", item, nullable=data_type.valueContainsNull or arrow.is_null(item))
        return pa.map_(key, value)
    if isinstance(data_type, spark.StructType):
        _check_struct(data_type)
        return pa.struct([_to_arrow_field(field, for_files=for_files) for field in data_type])
    return _to_arrow_leaf(data_type, for_files=for_files)


def _to_arrow_leaf(data_type: spark.DataType, *, for_files: bool) -> pa.DataType:
    if isinstance(data_type, spark.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    name = type(data_type).__name__
    if name == "TimeType":
        # The JVM requires nanoseconds; files of Spark have microseconds.
        is_short = for_files and vars(data_type)["precision"] <= _MICROSECOND_DIGITS
        return pa.time64("us") if is_short else pa.time64("ns")
    if name not in _ARROW_BY_SPARK:
        hint = f"; store {_SUBSTITUTES[name]} instead" if name in _SUBSTITUTES else ""
        msg = f"is or holds {data_type.simpleString()}, which cannot be written{hint}"
        raise _UnsupportedTypeError(msg)
    return _ARROW_BY_SPARK[name]


def _check_struct(data_type: spark.StructType) -> None:
    try:
        _check_names(data_type.names, case_sensitive=True)
    except InvalidInput as error:
        msg = f"is or holds {data_type.simpleString()}, which cannot be written"
        raise _UnsupportedTypeError(msg) from error


def _to_spark_type(data_type: Any) -> spark.DataType:  # noqa: ANN401 the stubs have no common nested type
    """Return the Spark type that holds all values of an Arrow type."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _to_spark_type(data_type.storage_type)
    if arrow.is_dictionary(data_type) or arrow.is_run_end_encoded(data_type):
        return _to_spark_type(data_type.value_type)
    if arrow.is_struct(data_type):
        fields = [spark.StructField(field.name, _to_spark_type(field.type), field.nullable) for field in data_type]
        return spark.StructType(fields)
    if arrow.is_map(data_type):
        value = data_type.item_field
        return spark.MapType(_to_spark_type(data_type.key_type), _to_spark_type(value.type), value.nullable)
    if any(is_list(data_type) for is_list in _LISTS):
        return spark.ArrayType(_to_spark_type(data_type.value_type), data_type.value_field.nullable)
    return _to_spark_leaf(data_type)


def _to_spark_leaf(data_type: Any) -> spark.DataType:  # noqa: ANN401 as above
    if arrow.is_timestamp(data_type):
        return spark.TimestampNTZType() if data_type.tz is None else spark.TimestampType()
    if arrow.is_decimal(data_type) and 0 <= data_type.scale <= data_type.precision <= _MAX_PRECISION:
        return spark.DecimalType(data_type.precision, data_type.scale)
    if arrow.is_time(data_type) and hasattr(spark, "TimeType"):
        digits = _NANOSECOND_DIGITS if data_type.unit == "ns" else _MICROSECOND_DIGITS
        return spark.TimeType(digits)
    for matches, spark_type in _SPARK_BY_ARROW:
        if matches(data_type):
            return spark_type
    msg = f"is or holds {data_type}, for which Spark has no type"
    raise _UnsupportedTypeError(msg)


def _read_described_fields(schema: pa.Schema) -> dict[str, spark.StructField]:
    """Return the columns as the metadata describes them, by name; empty without a valid description."""
    text = (schema.metadata or {}).get(_ROW_METADATA)
    if text is None:
        return {}
    try:
        struct_type = spark.StructType.fromJson(_replace_user_types(json.loads(text)))
    except Exception:  # noqa: BLE001 other writers may write anything there; the types are then derived
        return {}
    return {field.name: field for field in struct_type}


def _replace_user_types(description: Any) -> Any:  # noqa: ANN401 JSON
    """Replace user-defined types by their storage types: they could load code."""
    if isinstance(description, list):
        return [_replace_user_types(item) for item in description]
    if not isinstance(description, dict):
        return description
    is_trusted = description.get("pyClass") in _TRUSTED_USER_TYPES and "serializedClass" not in description
    if description.get("type") == "udt" and not is_trusted:
        return _replace_user_types(description["sqlType"])
    return {name: _replace_user_types(value) for name, value in description.items()}


def _derive_from_file(data_type: spark.DataType) -> spark.DataType | None:
    """Return the Spark type that is derived for a file with ``data_type``; None if no file can have it."""
    try:
        return _to_spark_type(_to_arrow_type(data_type, for_files=True))
    except _UnsupportedTypeError:
        return None


def _has_lengths(data_type: spark.DataType) -> bool:
    if isinstance(data_type, spark.ArrayType):
        return _has_lengths(data_type.elementType)
    if isinstance(data_type, spark.MapType):
        return _has_lengths(data_type.keyType) or _has_lengths(data_type.valueType)
    if isinstance(data_type, spark.StructType):
        return any(_has_lengths(field.dataType) for field in data_type)
    return isinstance(data_type, (spark.CharType, spark.VarcharType))

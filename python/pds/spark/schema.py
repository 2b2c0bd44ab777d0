"""Between Spark's schemas and Arrow's.

Written: Spark's types as pyarrow users expect them (timestamps in UTC whatever the session's
zone is, ``timestamp_ntz`` without a zone, day-time intervals as durations, times in
microseconds), and Spark's own description of the columns under the key it has in Spark's
Parquet files. From that, Spark's reader and ours restore what Parquet cannot say: intervals,
variants, collations, vectors, comments.

Read: every Arrow type that Spark has a type for, brought to exactly the layout that the JVM
takes. A type that fits on neither way is refused by the name of its column.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.types as arrow
from pyspark.sql import types as spark

from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["conform", "dataset_schema", "frame_schema", "worker_schema"]

_Converted = TypeVar("_Converted")

# Spark's own name for it: ParquetReadSupport.SPARK_METADATA_KEY.
_ROW_METADATA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_MICROSECOND_DIGITS: Final = 6
_NANOSECOND_DIGITS: Final = 9
_MAX_PRECISION: Final = 38

# By name: not every 4.x has every class.
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
            # The JVM tells a variant from a struct by this mark.
            pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
        ],
    ),
}

_HINTS: Final = {
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

# A description of another class could name any code to be imported or unpickled.
_USER_TYPES: Final = frozenset(
    {"pyspark.ml.linalg.MatrixUDT", "pyspark.ml.linalg.VectorUDT"},
)


class _UnfitError(Exception):
    """A type has no counterpart."""


def dataset_schema(schema: spark.StructType, *, case_sensitive: bool) -> pa.Schema:
    """The Arrow schema that a DataFrame of this schema is written with.

    Args:
        schema: The schema of the DataFrame.
        case_sensitive: Whether two names that differ in case are two columns.

    Raises:
        InvalidInput: No columns, or two of the same name.
        InvalidType: Columns of types that Parquet cannot hold, all of them by name.
    """
    _check_names(schema.names, case_sensitive=case_sensitive)
    fields = _each(schema.fields, lambda field: _arrow_field(field, as_written=True))
    return pa.schema(fields, metadata={_ROW_METADATA: schema.json().encode()})


def frame_schema(schema: pa.Schema) -> spark.StructType:
    """The schema of the DataFrame that a dataset of this Arrow schema is read as.

    What Spark wrote comes back as it was, where the columns are still those it described.

    Raises:
        InvalidInput: No columns, or two of the same name.
        InvalidType: Columns of types that Spark does not have, all of them by name.
    """
    _check_names(schema.names, case_sensitive=True)
    described = _described(schema)

    def restored(field: pa.Field[Any]) -> spark.StructField:
        derived = _spark_type(field.type)
        original = described.get(field.name)
        if original is None or _as_derived(original.dataType) != derived:
            return spark.StructField(field.name, derived, field.nullable)
        # No function returns char(n) or varchar(n): Spark takes strings for them.
        kind = derived if _has_lengths(original.dataType) else original.dataType
        return spark.StructField(field.name, kind, field.nullable, original.metadata)

    return spark.StructType(_each(schema, restored))


def worker_schema(schema: spark.StructType) -> pa.Schema:
    """The one Arrow layout in which the JVM takes columns of ``schema``."""
    return pa.schema(_each(schema.fields, lambda field: _arrow_field(field, as_written=False)))


def conform(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Bring batches to ``schema``, column by column in their order.

    Buffers are kept where only the description of a column differs.

    Raises:
        InvalidType: By column name, where a value does not fit.
    """
    for batch in batches:
        columns = [_cast(column, to) for column, to in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        msg = f"column {field.name!r}: {column.type} does not fit {field.type}: {error}"
        raise InvalidType(msg) from error


def _each(fields: Iterable[Any], convert: Callable[[Any], _Converted]) -> list[_Converted]:
    """Convert all fields; the error names every one that does not fit."""
    converted, unfit = [], []
    for field in fields:
        try:
            converted.append(convert(field))
        except _UnfitError as error:
            unfit.append(f"column {field.name!r} {error}")
    if unfit:
        raise InvalidType("; ".join(unfit))
    return converted


def _check_names(names: Iterable[str], *, case_sensitive: bool) -> None:
    seen: set[str] = set()
    for name in names:
        compared = name if case_sensitive else name.lower()
        if compared in seen:
            msg = f"column {name!r} is there twice: a dataset needs column names that differ"
            raise InvalidInput(msg)
        seen.add(compared)
    if not seen:
        msg = "there are no columns: a dataset needs at least one"
        raise InvalidInput(msg)


def _arrow_field(field: spark.StructField, *, as_written: bool) -> pa.Field[Any]:
    kind = _arrow_type(field.dataType, as_written=as_written)
    return pa.field(field.name, kind, nullable=field.nullable)


def _arrow_type(kind: spark.DataType, *, as_written: bool) -> pa.DataType:
    """The counterpart of a Spark type: as it is written, or else as the JVM takes it."""
    if isinstance(kind, spark.UserDefinedType):
        return _arrow_type(kind.sqlType(), as_written=as_written)
    if isinstance(kind, spark.ArrayType):
        element = _arrow_type(kind.elementType, as_written=as_written)
        return pa.list_(pa.field("element", element, nullable=kind.containsNull))
    if isinstance(kind, spark.MapType):
        key = _arrow_type(kind.keyType, as_written=as_written)
        item = _arrow_type(kind.valueType, as_written=as_written)
        value: Any = pa.field("value", item, nullable=kind.valueContainsNull)
        return pa.map_(key, value)
    if isinstance(kind, spark.StructType):
        _check_struct(kind)
        return pa.struct([_arrow_field(field, as_written=as_written) for field in kind])
    return _arrow_leaf(kind, as_written=as_written)


def _arrow_leaf(kind: spark.DataType, *, as_written: bool) -> pa.DataType:
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    name = type(kind).__name__
    if name == "TimeType":
        # The JVM takes nanoseconds only; in files Spark itself has microseconds.
        short = as_written and vars(kind)["precision"] <= _MICROSECOND_DIGITS
        return pa.time64("us") if short else pa.time64("ns")
    if name not in _ARROW_BY_SPARK:
        hint = f": store {_HINTS[name]} instead" if name in _HINTS else ""
        msg = f"is or holds {kind.simpleString()}, which cannot be written{hint}"
        raise _UnfitError(msg)
    return _ARROW_BY_SPARK[name]


def _check_struct(kind: spark.StructType) -> None:
    try:
        _check_names(kind.names, case_sensitive=True)
    except InvalidInput as error:
        msg = f"is or holds {kind.simpleString()}, which cannot be written"
        raise _UnfitError(msg) from error


def _spark_type(kind: Any) -> spark.DataType:  # noqa: ANN401 the stubs have no common nested type
    """The Spark type that holds every value of an Arrow type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _spark_type(kind.storage_type)
    if arrow.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if arrow.is_struct(kind):
        fields = [spark.StructField(f.name, _spark_type(f.type), f.nullable) for f in kind]
        return spark.StructType(fields)
    if arrow.is_map(kind):
        value = kind.item_field
        return spark.MapType(_spark_type(kind.key_type), _spark_type(value.type), value.nullable)
    # Not list views: pyarrow's cast makes invalid lists of them.
    if arrow.is_list(kind) or arrow.is_large_list(kind) or arrow.is_fixed_size_list(kind):
        return spark.ArrayType(_spark_type(kind.value_type), kind.value_field.nullable)
    return _spark_leaf(kind)


def _spark_leaf(kind: Any) -> spark.DataType:  # noqa: ANN401 as above
    if arrow.is_timestamp(kind):
        return spark.TimestampNTZType() if kind.tz is None else spark.TimestampType()
    if arrow.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _MAX_PRECISION:
        return spark.DecimalType(kind.precision, kind.scale)
    if arrow.is_time(kind) and hasattr(spark, "TimeType"):
        digits = _NANOSECOND_DIGITS if kind.unit == "ns" else _MICROSECOND_DIGITS
        return spark.TimeType(digits)
    for is_kind, spark_type in _SPARK_BY_ARROW:
        if is_kind(kind):
            return spark_type
    msg = f"is or holds {kind}, which Spark has no type for"
    raise _UnfitError(msg)


def _described(schema: pa.Schema) -> dict[str, spark.StructField]:
    """Spark's own description of the columns, where the dataset has one."""
    text = (schema.metadata or {}).get(_ROW_METADATA)
    if text is None:
        return {}
    try:
        described = spark.StructType.fromJson(_harmless(json.loads(text)))
    except Exception:  # noqa: BLE001 anything may have been written there; types are derived then
        return {}
    return {field.name: field for field in described}


def _harmless(description: Any) -> Any:  # noqa: ANN401 JSON
    """Replace user-defined types by what they are stored as: they would bring code with them."""
    if isinstance(description, list):
        return [_harmless(item) for item in description]
    if not isinstance(description, dict):
        return description
    known = description.get("pyClass") in _USER_TYPES and "serializedClass" not in description
    if description.get("type") == "udt" and not known:
        return _harmless(description["sqlType"])
    return {name: _harmless(value) for name, value in description.items()}


def _as_derived(kind: spark.DataType) -> spark.DataType | None:
    """What ``kind`` is derived as from the Arrow type it is written as; None if it is not."""
    try:
        return _spark_type(_arrow_type(kind, as_written=True))
    except _UnfitError:
        return None


def _has_lengths(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.ArrayType):
        return _has_lengths(kind.elementType)
    if isinstance(kind, spark.MapType):
        return _has_lengths(kind.keyType) or _has_lengths(kind.valueType)
    if isinstance(kind, spark.StructType):
        return any(_has_lengths(field.dataType) for field in kind)
    return isinstance(kind, (spark.CharType, spark.VarcharType))

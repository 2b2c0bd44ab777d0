//! Which Arrow types Parquet supports, and as which types they are stored.
//!
//! The file keeps the user's Arrow schema under `ARROW:schema`, as other writers do. [`storage_schema`] is the schema
//! with which the columns are written, so that readers that ignore the Arrow schema see a time as a time: seconds
//! become milliseconds, `date64` becomes `date32`, run-end encoding and list views are unpacked. Reading casts back,
//! by [`convert`].
//!
//! Refused, with an error of the kind `InvalidInput` that names the column: unions, month-day-nano intervals, empty
//! structs, names that occur twice, decimals whose scale is below 0 or above their precision, binaries and lists of the
//! fixed size 0, runs within lists of a fixed size, and types that are nested too deeply. A value that [`convert`]
//! cannot represent is such an error too.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, RecordBatch, make_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{
    ArrowError, DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, Fields, IntervalUnit, Schema,
    SchemaRef, TimeUnit,
};

use super::nested::{check_whole_days, child_fields, contains_type};
use super::pack::{pack, unpack_type};
use super::plain_values::plain_values;
use super::required::check_required;
use crate::error::{Error, Result};

/// The deepest nesting of a type; other readers recurse over it, too.
const MAX_DEPTH: usize = 64;

/// The schema with which files are written. An error names the column that Parquet does not support.
pub fn storage_schema(schema: &Schema) -> Result<SchemaRef> {
    let mut names = HashSet::new();
    for field in schema.fields() {
        if !names.insert(field.name()) {
            return Err(Error::invalid(format!(
                "column name {:?} occurs twice; names must be unique",
                field.name()
            )));
        }
        if field.name().contains('\0') {
            return Err(Error::invalid(format!(
                "column name {:?} contains a NUL character",
                field.name()
            )));
        }
    }
    let fields = schema
        .fields()
        .iter()
        .map(|field| storage_field(field, field.name(), 0))
        .collect::<Result<Fields>>()?;
    Ok(Arc::new(Schema::new_with_metadata(
        fields,
        schema.metadata().clone(),
    )))
}

fn storage_field(field: &FieldRef, column: &str, depth: usize) -> Result<FieldRef> {
    let data_type = storage_type(field.data_type(), column, depth)?;
    if data_type == *field.data_type() {
        return Ok(Arc::clone(field));
    }
    Ok(Arc::new(field.as_ref().clone().with_data_type(data_type)))
}

/// Why Parquet does not support a type, apart from the types nested in it.
fn unsupported_reason(data_type: &DataType) -> Option<&'static str> {
    match data_type {
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            Some("convert the interval to a duration or to its three numbers")
        }
        DataType::Union(..) => Some("convert the union to a struct"),
        DataType::Struct(fields) if fields.is_empty() => Some("a struct needs at least one field"),
        DataType::Struct(fields) => {
            let mut names = HashSet::new();
            let unique = fields.iter().all(|f| names.insert(f.name()));
            (!unique).then_some("field names of a struct must be unique")
        }
        DataType::FixedSizeBinary(width) if *width < 1 => Some("the width must be positive"),
        DataType::FixedSizeList(_, size) if *size < 1 => {
            Some("a fixed-size list needs a positive size")
        }
        // Arrow cuts runs wrongly there, and rows would be written that nothing reads.
        DataType::FixedSizeList(items, _)
            if contains_type(items.data_type(), |item| {
                matches!(item, DataType::RunEndEncoded(..))
            }) =>
        {
            Some("within a fixed-size list store plain values in place of runs")
        }
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale)
            if *scale < 0 || scale.unsigned_abs() > *precision =>
        {
            Some("the scale must be between 0 and the precision")
        }
        _ => None,
    }
}

fn storage_type(data_type: &DataType, column: &str, depth: usize) -> Result<DataType> {
    if depth > MAX_DEPTH {
        let message = format!("column {column:?}: nested deeper than {MAX_DEPTH} levels");
        return Err(Error::invalid(message));
    }
    if let Some(reason) = unsupported_reason(data_type) {
        let message =
            format!("column {column:?}: type {data_type} is not supported by Parquet; {reason}");
        return Err(Error::invalid(message));
    }
    let child = |field: &FieldRef| storage_field(field, column, depth + 1);
    Ok(match data_type {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
        }
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Date64 => DataType::Date32,
        // Decimals of one digit are stored in 64 bits, which are not read as 32-bit decimals.
        DataType::Decimal32(1, scale) => DataType::Decimal64(1, *scale),
        DataType::Dictionary(key, value) => {
            let value_type = storage_type(value, column, depth + 1)?;
            if value_type == **value && is_bytes(value) {
                DataType::Dictionary(key.clone(), value.clone())
            } else {
                value_type
            }
        }
        DataType::RunEndEncoded(_, values) => storage_type(values.data_type(), column, depth + 1)?,
        DataType::List(field) | DataType::ListView(field) => DataType::List(child(field)?),
        DataType::LargeList(field) | DataType::LargeListView(field) => {
            DataType::LargeList(child(field)?)
        }
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(child(field)?, *size),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(child).collect::<Result<_>>()?)
        }
        DataType::Map(entries, sorted) => {
            DataType::Map(map_entries(entries, column, depth)?, *sorted)
        }
        other => other.clone(),
    })
}

fn map_entries(entries: &FieldRef, column: &str, depth: usize) -> Result<FieldRef> {
    match entries.data_type() {
        DataType::Struct(fields) if fields.len() == 2 => storage_field(entries, column, depth + 1),
        _ => Err(Error::invalid(format!(
            "column {column:?}: a map needs a key and a value"
        ))),
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    use DataType::{Binary, LargeBinary, LargeUtf8, Utf8};
    matches!(data_type, Utf8 | LargeUtf8 | Binary | LargeBinary)
}

/// Converts `array` to the type `target`; a value that does not fit is an error, which names the column.
pub fn convert(array: &ArrayRef, target: &DataType, column: &str) -> Result<ArrayRef> {
    if array.data_type() == target {
        return Ok(Arc::clone(array));
    }
    let conversion_error = |e: ArrowError| {
        Error::invalid(format!(
            "column {column:?}: cannot convert {} to {target}: {e}",
            array.data_type()
        ))
        .with_source(e)
    };
    check_whole_days(array, target, column)?;
    if drops_bits(array.data_type(), target) {
        let wide = convert(array, &with_wide_decimals(target), column)?;
        return convert(&wide, target, column);
    }
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let fixes_lengths =
        contains_type(target, is_fixed_list) && contains_type(array.data_type(), is_list);
    // Of lists that get a fixed length, those under a null have another one.
    let source = &if fixes_lengths || contains_type(array.data_type(), is_dictionary) {
        plain_values(array, column)?
    } else {
        Arc::clone(array)
    };
    let unpacked_type = &unpack_type(source.data_type(), target);
    let converted = match cast_with_options(source, unpacked_type, &options) {
        Ok(converted) => converted,
        // Between other types the cast failed on a value; a new type for its bits would change its unit.
        Err(e) if !is_renamed(source.data_type(), unpacked_type) => {
            return Err(conversion_error(e));
        }
        Err(e) => relabel(source, unpacked_type).ok_or_else(|| conversion_error(e))?,
    };
    check_finite(source, &converted, column)?;
    pack(converted, target).map_err(conversion_error)
}

/// Whether a cast makes narrow decimals of integers, for which Arrow takes the lowest bits of wider ones.
fn drops_bits(from: &DataType, to: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Dictionary, RunEndEncoded};
    match (from, to) {
        (Dictionary(_, values), to) => drops_bits(values, to),
        (RunEndEncoded(_, values), to) => drops_bits(values.data_type(), to),
        (from, Dictionary(_, values)) => drops_bits(from, values),
        (from, RunEndEncoded(_, values)) => drops_bits(from, values.data_type()),
        (from, Decimal32(..) | Decimal64(..)) => from.is_integer(),
        _ => {
            let mut pairs = child_fields(from).iter().zip(child_fields(to));
            pairs.any(|(from, to)| drops_bits(from.data_type(), to.data_type()))
        }
    }
}

/// A type with decimals of 128 bits in place of narrower ones, at any depth.
fn with_wide_decimals(data_type: &DataType) -> DataType {
    use DataType::{
        Decimal32, Decimal64, Decimal128, Dictionary, FixedSizeList, LargeList, LargeListView,
        List, ListView, Map, RunEndEncoded, Struct,
    };
    let wide = |field: &FieldRef| {
        let data_type = with_wide_decimals(field.data_type());
        Arc::new(Field::clone(field).with_data_type(data_type))
    };
    match data_type {
        Decimal32(_, scale) | Decimal64(_, scale) => Decimal128(DECIMAL128_MAX_PRECISION, *scale),
        Dictionary(key, values) => Dictionary(key.clone(), Box::new(with_wide_decimals(values))),
        RunEndEncoded(ends, values) => RunEndEncoded(Arc::clone(ends), wide(values)),
        List(item) => List(wide(item)),
        LargeList(item) => LargeList(wide(item)),
        ListView(item) => ListView(wide(item)),
        LargeListView(item) => LargeListView(wide(item)),
        FixedSizeList(item, size) => FixedSizeList(wide(item), *size),
        Map(entries, sorted) => Map(wide(entries), *sorted),
        Struct(fields) => Struct(fields.iter().map(wide).collect()),
        other => other.clone(),
    }
}

fn is_dictionary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Dictionary(..))
}

fn is_fixed_list(data_type: &DataType) -> bool {
    matches!(data_type, DataType::FixedSizeList(..))
}

/// Whether it is a list of any length.
fn is_list(data_type: &DataType) -> bool {
    use DataType::{LargeList, LargeListView, List, ListView};
    matches!(
        data_type,
        List(_) | LargeList(_) | ListView(_) | LargeListView(_)
    )
}

/// Refuses floats that became infinite because their type is too narrow for them.
fn check_finite(source: &ArrayRef, converted: &ArrayRef, column: &str) -> Result<()> {
    if !(converted.data_type().is_floating() && source.data_type().is_numeric()) {
        return Ok(());
    }
    let overflow = find_overflow(source, converted);
    let overflow = overflow.map_err(|e| Error::invalid(format!("column {column:?}: {e}")))?;
    match overflow {
        None => Ok(()),
        Some(value) => Err(Error::invalid(format!(
            "column {column:?}: {value:e} is beyond the range of {}",
            converted.data_type()
        ))),
    }
}

/// A finite number that became infinite in a cast to floats.
pub(crate) fn find_overflow(
    source: &ArrayRef,
    converted: &ArrayRef,
) -> std::result::Result<Option<f64>, ArrowError> {
    let wide = |values: &ArrayRef| arrow_cast::cast(values, &DataType::Float64);
    let (before, after) = (wide(source)?, wide(converted)?);
    let before = before.as_primitive::<Float64Type>().iter();
    let mut pairs = before.zip(after.as_primitive::<Float64Type>());
    Ok(pairs.find_map(|(before, after)| {
        let before = before.filter(|value| value.is_finite())?;
        after?.is_infinite().then_some(before)
    }))
}

/// Whether two types differ at most in the names of nested fields and in whether a map is sorted.
fn is_renamed(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Map(from_entries, _), DataType::Map(to_entries, _)) => from_entries
            .data_type()
            .equals_datatype(to_entries.data_type()),
        _ => from.equals_datatype(to),
    }
}

/// The same buffers with another type; None if their layout does not allow it.
fn relabel(array: &ArrayRef, target: &DataType) -> Option<ArrayRef> {
    let data = array
        .to_data()
        .into_builder()
        .data_type(target.clone())
        .build()
        .ok()?;
    Some(make_array(data))
}

/// Converts every column of `batch` to its type in `schema`.
pub fn convert_batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    if batch.schema_ref() == schema {
        return Ok(batch.clone());
    }
    let columns = schema
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| convert(column, field.data_type(), field.name()))
        .collect::<Result<Vec<_>>>()?;
    batch_with_row_count(schema, columns, batch.num_rows())
}

/// The batch with its values in the one form in which a file gives them back. A null where its schema has none is an
/// error of the kind `InvalidInput`, which names the path.
pub fn batch_with_plain_values(batch: &RecordBatch) -> Result<RecordBatch> {
    check_required(batch)?;
    let schema = batch.schema();
    let fields_and_columns = schema.fields().iter().zip(batch.columns());
    let columns = fields_and_columns
        .map(|(field, column)| plain_values(column, field.name()))
        .collect::<Result<Vec<_>>>()?;
    batch_with_row_count(&schema, columns, batch.num_rows())
}

/// Builds a batch of `rows` rows, which may have no columns.
pub fn batch_with_row_count(
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch> {
    let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|e| Error::other(format!("columns do not match the schema: {e}")).with_source(e))
}

/// The index of a column of a schema; the error lists the columns of the schema.
pub fn index_of(schema: &Schema, column: &str) -> Result<usize> {
    schema.index_of(column).map_err(|_missing| {
        let names: Vec<&str> = schema
            .fields()
            .iter()
            .map(|f: &Arc<Field>| f.name().as_str())
            .collect();
        Error::invalid(format!(
            "unknown column {column:?}; the columns are {names:?}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, StructArray};

    use super::*;

    #[test]
    fn integers_lose_no_bits_in_decimals() {
        let number = (1 << 32) + 1;
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![number]));
        let fields = |data_type| Fields::from(vec![Field::new("n", data_type, true)]);
        let columns = vec![Arc::clone(&numbers)];
        let structs: ArrayRef = Arc::new(StructArray::new(fields(DataType::Int64), columns, None));
        for narrow in [DataType::Decimal32(9, 0), DataType::Decimal64(12, 3)] {
            let nested = DataType::Struct(fields(narrow.clone()));
            for (column, target) in [(&numbers, &narrow), (&structs, &nested)] {
                let error = convert(column, target, "c").unwrap_err();
                assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
                assert!(error.to_string().contains("column \"c\""), "{error}");
            }
        }
        let decimals = DataType::Decimal64(18, 3);
        let nested = DataType::Struct(fields(decimals.clone()));
        let converted = [
            convert(&numbers, &decimals, "c").unwrap(),
            convert(&numbers, &DataType::Decimal128(38, 3), "c").unwrap(),
            Arc::clone(
                convert(&structs, &nested, "c")
                    .unwrap()
                    .as_struct()
                    .column(0),
            ),
        ];
        for values in converted {
            let back = convert(&values, &DataType::Int64, "c").unwrap();
            assert_eq!(back.as_ref(), numbers.as_ref(), "{}", values.data_type());
            let texts = arrow_cast::cast(&values, &DataType::Utf8).unwrap();
            assert_eq!(texts.as_string::<i32>().value(0), format!("{number}.000"));
        }
    }
}

//! Keys of a run as JSON, and cut: what a key index holds.
//!
//! Integers, dates and times are numbers (of the column's unit), floats the hexadecimal digits of their bits, decimals
//! their digits without the point, texts texts, bytes hexadecimal, structs arrays.
//!
//! A text of [`MAX_LENGTH`] characters or more is cut there, bytes alike, and what comes after it in the key is null.
//! This keeps the order: of two keys the cut forms are in the same order, or equal. So a key can only be where its cut
//! form is.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Int64Type,
    UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Int64Array, PrimitiveArray, StringArray,
    StructArray, UInt64Array, make_array, new_empty_array,
};
use arrow_buffer::NullBuffer;
use arrow_cast::cast;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use serde_json::Value;

use super::sort_columns;
use super::{KeyColumn, SortColumn};
use crate::error::{Error, ErrorKind, Result};
use crate::files::merge::SortKeys;

/// A value of so many characters or bytes is cut.
const MAX_LENGTH: usize = 64;

/// How the cut keys of a run are read and compared.
#[derive(Debug)]
pub(super) struct CutKeys {
    schema: SchemaRef,
    pub(super) keys: SortKeys,
}

impl CutKeys {
    /// The first `columns` columns of the key of a run with the columns `schema`.
    pub(super) fn new(schema: &SchemaRef, key: &[KeyColumn], columns: usize) -> Result<Self> {
        let fields = sort_columns(schema, key)?.into_iter().take(columns);
        let (mut cut_fields, mut by) = (Vec::new(), Vec::new());
        for (index, column) in fields.enumerate() {
            let field = schema.field(column.index);
            let cut_type = cut_type(field.data_type()).ok_or_else(|| {
                let (name, data_type) = (field.name(), field.data_type());
                Error::invalid(format!(
                    "column {name:?} cannot be a key: type {data_type} has no order here"
                ))
            })?;
            cut_fields.push(Field::new(field.name(), cut_type, true));
            by.push(SortColumn { index, ..column });
        }
        let schema = Arc::new(Schema::new(cut_fields));
        let keys = SortKeys::new(&schema, &by)?;
        Ok(Self { schema, keys })
    }

    /// The number of columns that are compared.
    pub(super) fn columns(&self) -> usize {
        self.schema.fields().len()
    }

    /// Keys of a key index as rows, in comparable form. Of longer keys the first columns count.
    pub(super) fn parse(&self, keys: &[Vec<Value>]) -> Result<arrow_row::Rows> {
        let columns = self.schema.fields().iter().enumerate().map(|(at, field)| {
            let values = keys.iter().map(|key| key.get(at).unwrap_or(&Value::Null));
            decode(&values.collect::<Vec<_>>(), field.data_type())
        });
        self.convert(&columns.collect::<Result<Vec<ArrayRef>>>()?)
    }

    /// Keys in comparable form, cut.
    pub(super) fn cut(&self, columns: &[ArrayRef]) -> Result<arrow_row::Rows> {
        let is_own_cut = |(column, field): (&ArrayRef, &FieldRef)| {
            column.data_type() == field.data_type() && is_short(column)
        };
        if columns.iter().zip(self.schema.fields()).all(is_own_cut) {
            return self.convert(columns);
        }
        self.parse(&encode_keys(columns)?)
    }

    fn convert(&self, columns: &[ArrayRef]) -> Result<arrow_row::Rows> {
        let rows = self.keys.convert_columns(columns);
        rows.map_err(Error::from_cause)
    }
}

/// The type in which the values of a key of a run are compared when cut; `None` if such a type cannot be a key.
fn cut_type(data_type: &DataType) -> Option<DataType> {
    use DataType as T;
    Some(match data_type {
        T::Utf8 | T::LargeUtf8 | T::Utf8View => T::Utf8,
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => T::Binary,
        T::Dictionary(_, values) => cut_type(values)?,
        T::Struct(fields) => {
            let cut_fields = fields.iter().map(|field| {
                let cut_type = cut_type(field.data_type())?;
                Some(Arc::new(Field::new(field.name(), cut_type, true)))
            });
            T::Struct(cut_fields.collect::<Option<Fields>>()?)
        }
        T::Boolean | T::Date32 | T::Date64 | T::Time32(_) | T::Time64(_) | T::Timestamp(..) => {
            data_type.clone()
        }
        T::Duration(_) => data_type.clone(),
        other if other.is_numeric() => other.clone(),
        _ => return None,
    })
}

/// Whether no value of a column of a cut type is cut. Where that takes a look at more than lengths it says no.
fn is_short(array: &ArrayRef) -> bool {
    use DataType as T;
    let are_short = |offsets: &[i32]| {
        let lengths = offsets
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).unsigned_abs());
        lengths
            .max()
            .is_none_or(|longest| (longest as usize) < MAX_LENGTH)
    };
    match array.data_type() {
        T::Utf8 => are_short(array.as_string::<i32>().value_offsets()),
        T::Binary => are_short(array.as_binary::<i32>().value_offsets()),
        T::Struct(_) => array.as_struct().columns().iter().all(is_short),
        // Other types that are their own cut types have values of a fixed width.
        _ => true,
    }
}

/// The keys with these columns, cut, a value for each column.
pub(super) fn encode_keys(columns: &[ArrayRef]) -> Result<Vec<Vec<Value>>> {
    let rows = columns.first().map_or(0, |column| column.len());
    let mut is_cut = vec![false; rows];
    let mut keys = vec![Vec::with_capacity(columns.len()); rows];
    for column in columns {
        for (key, value) in keys.iter_mut().zip(encode(column, &mut is_cut)?) {
            key.push(value);
        }
    }
    Ok(keys)
}

/// The values of a column; null where the key is cut before.
fn encode(array: &ArrayRef, is_cut: &mut [bool]) -> Result<Vec<Value>> {
    use DataType as T;
    let to = |data_type: &DataType| cast(array, data_type).map_err(Error::from_cause);
    let bits = |data_type: DataType| reinterpret(array, data_type);
    let mut values: Vec<Value> = match array.data_type() {
        T::Dictionary(_, values) => return encode(&to(values)?, is_cut),
        T::Struct(_) => return encode_struct(array.as_struct(), is_cut),
        T::Boolean => array.as_boolean().iter().map(Value::from).collect(),
        T::Float16 => hex_digits(
            &cast(&bits(T::UInt16)?, &T::UInt64).map_err(Error::from_cause)?,
            4,
        ),
        T::Float32 => hex_digits(
            &cast(&bits(T::UInt32)?, &T::UInt64).map_err(Error::from_cause)?,
            8,
        ),
        T::Float64 => hex_digits(&bits(T::UInt64)?, 16),
        T::Decimal32(..) => digits::<Decimal32Type>(array),
        T::Decimal64(..) => digits::<Decimal64Type>(array),
        T::Decimal128(..) => digits::<Decimal128Type>(array),
        T::Decimal256(..) => digits::<Decimal256Type>(array),
        T::Date32 | T::Time32(_) => integers(&bits(T::Int32)?)?,
        T::Date64 | T::Time64(_) | T::Timestamp(..) | T::Duration(_) => integers(&bits(T::Int64)?)?,
        T::Utf8 | T::LargeUtf8 | T::Utf8View => return Ok(cut_texts(&to(&T::Utf8)?, is_cut)),
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => {
            return Ok(cut_bytes(&to(&T::Binary)?, is_cut));
        }
        other if other.is_integer() => integers(array)?,
        other => {
            let message = format!("a key cannot have values of type {other}");
            return Err(Error::invalid(message));
        }
    };
    for (value, _) in values.iter_mut().zip(is_cut).filter(|(_, is_cut)| **is_cut) {
        *value = Value::Null;
    }
    Ok(values)
}

/// Texts of the type [`DataType::Utf8`], cut.
fn cut_texts(texts: &ArrayRef, is_cut: &mut [bool]) -> Vec<Value> {
    let cut = |(text, is_cut): (Option<&str>, &mut bool)| {
        let text = text.filter(|_| !*is_cut)?;
        // The last of so many characters is kept too.
        let last = text.char_indices().nth(MAX_LENGTH - 1);
        let end = last.map(|(at, last)| at + last.len_utf8());
        *is_cut = end.is_some();
        Some(Value::from(&text[..end.unwrap_or(text.len())]))
    };
    let texts = texts.as_string::<i32>().iter().zip(is_cut);
    texts.map(|text| cut(text).unwrap_or_default()).collect()
}

/// Bytes of the type [`DataType::Binary`], cut.
fn cut_bytes(bytes: &ArrayRef, is_cut: &mut [bool]) -> Vec<Value> {
    let cut = |(bytes, is_cut): (Option<&[u8]>, &mut bool)| {
        let bytes = bytes.filter(|_| !*is_cut)?;
        *is_cut = bytes.len() >= MAX_LENGTH;
        let mut digits = String::new();
        for byte in bytes.iter().take(MAX_LENGTH) {
            let _ = write!(digits, "{byte:02x}");
        }
        Some(Value::from(digits))
    };
    let values = bytes.as_binary::<i32>().iter().zip(is_cut);
    values.map(|bytes| cut(bytes).unwrap_or_default()).collect()
}

fn encode_struct(array: &StructArray, is_cut: &mut [bool]) -> Result<Vec<Value>> {
    let was_cut = is_cut.to_vec();
    let mut rows = vec![Vec::with_capacity(array.num_columns()); array.len()];
    // What lies under a null is no part of the key.
    let mut is_cut_or_null: Vec<bool> = (0..array.len())
        .map(|row| is_cut[row] || array.is_null(row))
        .collect();
    for column in array.columns() {
        for (row, value) in rows.iter_mut().zip(encode(column, &mut is_cut_or_null)?) {
            row.push(value);
        }
    }
    let values = rows.into_iter().enumerate().map(|(at, row)| {
        if was_cut[at] || array.is_null(at) {
            return Value::Null;
        }
        is_cut[at] = is_cut_or_null[at];
        Value::from(row)
    });
    Ok(values.collect())
}

fn integers(array: &ArrayRef) -> Result<Vec<Value>> {
    if array.data_type().is_unsigned_integer() {
        let wide = cast(array, &DataType::UInt64).map_err(Error::from_cause)?;
        return Ok(wide
            .as_primitive::<UInt64Type>()
            .iter()
            .map(Value::from)
            .collect());
    }
    let wide = cast(array, &DataType::Int64).map_err(Error::from_cause)?;
    Ok(wide
        .as_primitive::<Int64Type>()
        .iter()
        .map(Value::from)
        .collect())
}

fn hex_digits(bits: &ArrayRef, width: usize) -> Vec<Value> {
    let bits = bits.as_primitive::<UInt64Type>().iter();
    bits.map(|bits| bits.map(|bits| format!("{bits:0width$x}")).into())
        .collect()
}

fn digits<T: ArrowPrimitiveType>(array: &ArrayRef) -> Vec<Value>
where
    T::Native: ToString,
{
    let values = array.as_primitive::<T>().iter();
    values
        .map(|value| value.map(|value| value.to_string()).into())
        .collect()
}

/// The same bytes as values of another type of the same width.
fn reinterpret(array: &ArrayRef, data_type: DataType) -> Result<ArrayRef> {
    let data = array.to_data().into_builder().data_type(data_type).build();
    Ok(make_array(data.map_err(Error::from_cause)?))
}

/// Keys of one column, as files of a run and samples name them, with its type. Cut keys stay cut.
pub(crate) fn decode_keys(keys: &[Value], data_type: &DataType) -> Result<ArrayRef> {
    let cut_type = cut_type(data_type)
        .ok_or_else(|| Error::invalid(format!("a key cannot have values of type {data_type}")))?;
    let values = decode(&keys.iter().collect::<Vec<_>>(), &cut_type)?;
    cast(&values, data_type).map_err(Error::from_cause)
}

/// The values of a column of a cut type.
fn decode(values: &[&Value], data_type: &DataType) -> Result<ArrayRef> {
    use DataType as T;
    if values.is_empty() {
        return Ok(new_empty_array(data_type));
    }
    let to_integers = |narrow: DataType| -> Result<ArrayRef> {
        let wide = parse_all(values, data_type, Value::as_i64)?;
        let wide: ArrayRef = Arc::new(Int64Array::from(wide));
        let narrow = cast(&wide, &narrow).map_err(Error::from_cause)?;
        reinterpret(&narrow, data_type.clone())
    };
    let from_hex = |narrow: DataType| -> Result<ArrayRef> {
        let parse = |value: &Value| u64::from_str_radix(value.as_str()?, 16).ok();
        let wide: ArrayRef = Arc::new(UInt64Array::from(parse_all(values, data_type, parse)?));
        let narrow = cast(&wide, &narrow).map_err(Error::from_cause)?;
        reinterpret(&narrow, data_type.clone())
    };
    Ok(match data_type {
        T::Struct(fields) => return decode_struct(values, fields, data_type),
        T::Boolean => Arc::new(BooleanArray::from(parse_all(
            values,
            data_type,
            Value::as_bool,
        )?)),
        T::Float16 => from_hex(T::UInt16)?,
        T::Float32 => from_hex(T::UInt32)?,
        T::Float64 => from_hex(T::UInt64)?,
        T::Decimal32(..) => parse_digits::<Decimal32Type>(values, data_type)?,
        T::Decimal64(..) => parse_digits::<Decimal64Type>(values, data_type)?,
        T::Decimal128(..) => parse_digits::<Decimal128Type>(values, data_type)?,
        T::Decimal256(..) => parse_digits::<Decimal256Type>(values, data_type)?,
        T::Date32 | T::Time32(_) => to_integers(T::Int32)?,
        T::Date64 | T::Time64(_) | T::Timestamp(..) | T::Duration(_) => to_integers(T::Int64)?,
        T::Utf8 => Arc::new(StringArray::from(parse_all(
            values,
            data_type,
            Value::as_str,
        )?)),
        T::Binary => {
            let bytes = parse_all(values, data_type, |value| parse_hex(value.as_str()?))?;
            Arc::new(BinaryArray::from_iter(bytes))
        }
        other if other.is_unsigned_integer() => {
            let wide: ArrayRef = Arc::new(UInt64Array::from(parse_all(
                values,
                data_type,
                Value::as_u64,
            )?));
            cast(&wide, other).map_err(Error::from_cause)?
        }
        other => to_integers(other.clone())?,
    })
}

fn decode_struct(values: &[&Value], fields: &Fields, data_type: &DataType) -> Result<ArrayRef> {
    let parse = |value: &Value| {
        value
            .as_array()
            .filter(|row| row.len() == fields.len())
            .cloned()
    };
    let rows = parse_all(values, data_type, parse)?;
    let nulls: Vec<bool> = rows.iter().map(Option::is_some).collect();
    let columns = fields.iter().enumerate().map(|(at, field)| {
        let column = rows
            .iter()
            .map(|row| row.as_ref().map_or(&Value::Null, |row| &row[at]));
        decode(&column.collect::<Vec<_>>(), field.data_type())
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let array = StructArray::try_new(fields.clone(), columns, Some(NullBuffer::from(nulls)));
    Ok(Arc::new(array.map_err(Error::from_cause)?))
}

fn parse_digits<T: ArrowPrimitiveType>(values: &[&Value], data_type: &DataType) -> Result<ArrayRef>
where
    T::Native: std::str::FromStr,
{
    let parse = |value: &Value| value.as_str()?.parse::<T::Native>().ok();
    let numbers: PrimitiveArray<T> = parse_all(values, data_type, parse)?.into_iter().collect();
    Ok(Arc::new(numbers.with_data_type(data_type.clone())))
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text
        .chars()
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes = pairs
        .iter()
        .map(|[high, low]| u8::try_from(high * 16 + low).ok());
    rest.is_empty().then(|| bytes.collect()).flatten()
}

fn parse_all<'v, T>(
    values: &[&'v Value],
    data_type: &DataType,
    parse: impl Fn(&'v Value) -> Option<T>,
) -> Result<Vec<Option<T>>> {
    let parsed = values.iter().map(|value| {
        if value.is_null() {
            return Ok(None);
        }
        parse(value).map(Some).ok_or_else(|| {
            let message = format!("{value} is not a key of type {data_type}");
            Error::new(ErrorKind::PartCorrupted, message)
        })
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use arrow_array::{Decimal128Array, Float64Array, LargeStringArray, TimestampMicrosecondArray};

    use super::*;

    /// Keys that have no value to cut are compared as they are, which is as their cut forms are.
    #[test]
    fn short_keys_are_their_own_cut_forms() {
        let lengths = [0, 1, MAX_LENGTH - 1, MAX_LENGTH, MAX_LENGTH + 1];
        let texts = |of: &str, rows: usize| -> ArrayRef {
            let texts = lengths[..rows]
                .iter()
                .map(|length| Some(of.repeat(*length)));
            Arc::new(texts.chain([None]).collect::<StringArray>())
        };
        let bytes = |rows: usize| -> ArrayRef {
            let bytes = lengths[..rows]
                .iter()
                .map(|length| Some(vec![0xff_u8; *length]));
            Arc::new(bytes.chain([None]).collect::<BinaryArray>())
        };
        let floats = Float64Array::from(vec![Some(-0.0), Some(0.0), Some(f64::NAN), None]);
        let fields = Fields::from(vec![
            Field::new("float", DataType::Float64, true),
            Field::new("text", DataType::Utf8, true),
        ]);
        let valid = NullBuffer::from(vec![true, false, true, true]);
        let columns: Vec<ArrayRef> = vec![Arc::new(floats.clone()), texts("a", 3)];
        let structs = StructArray::new(fields, columns, Some(valid));
        let decimals = Decimal128Array::from(vec![Some(-5), Some(7), None]);
        let times = TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1)]);
        let wide = LargeStringArray::from(vec![Some("a"), None]);
        let keys: Vec<Vec<ArrayRef>> = vec![
            vec![texts("a", 3), bytes(3)],
            vec![texts("a", 5), bytes(5)],
            vec![texts("\u{e4}", 5)],
            vec![Arc::new(floats), Arc::new(structs)],
            vec![Arc::new(decimals), Arc::new(times.with_timezone("+01:00"))],
            vec![Arc::new(wide)],
        ];
        for columns in keys {
            let fields = (0..).zip(&columns).map(|(at, column): (i32, _)| {
                Field::new(at.to_string(), column.data_type().clone(), true)
            });
            let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            let order = schema.fields().iter().map(|field| KeyColumn {
                name: field.name().clone(),
                descending: false,
            });
            let order: Vec<KeyColumn> = order.collect();
            let cut = CutKeys::new(&schema, &order, order.len()).unwrap();
            let expected = cut.parse(&encode_keys(&columns).unwrap()).unwrap();
            let rows = cut.cut(&columns).unwrap();
            assert!(rows.iter().eq(expected.iter()), "{columns:?}");
            let count = columns[0].len();
            let slices = columns.iter().map(|column| column.slice(1, count - 1));
            let rows = cut.cut(&slices.collect::<Vec<_>>()).unwrap();
            assert!(rows.iter().eq(expected.iter().skip(1)), "{columns:?}");
        }
    }
}

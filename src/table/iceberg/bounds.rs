//! The statistics of a data file as Iceberg has them: bounds are bytes.
//!
//! Source: the specification of Iceberg, "Binary single-value serialization".

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Decimal128Type};
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use serde_json::Value;

use super::schema::IcebergSchema;
use crate::files::DataFile;
use crate::files::expr::from_json;

/// The statistics of a data file, by field id.
#[derive(Debug, Default)]
pub(super) struct IcebergStatistics {
    pub(super) value_counts: Vec<(u32, u64)>,
    pub(super) null_counts: Vec<(u32, u64)>,
    pub(super) lower: Vec<(u32, Vec<u8>)>,
    pub(super) upper: Vec<(u32, Vec<u8>)>,
}

/// The statistics of a data file.
///
/// `DuckDB` takes a number of nulls that is missing for 0, and leaves out files for `IS NULL`, but looks at no file without bounds. So a
/// column whose nulls are not known has one, without a number of values, from which readers would count; and there are no
/// bounds if that cannot be (a file of one row: its column may have no other value) or if a column is nested (polars cannot read
/// numbers of nulls of these).
pub(super) fn statistics(file: &DataFile, schema: &IcebergSchema) -> IcebergStatistics {
    let mut statistics = IcebergStatistics::default();
    let is_flat = schema.columns.iter().all(|c| c.data_type.is_primitive());
    let mut can_have_bounds = is_flat;
    for column in &schema.columns {
        let id = column.id;
        match file.null_counts.get(&id) {
            _ if !column.data_type.is_primitive() => {}
            Some(nulls) => {
                statistics.value_counts.push((id, file.total_rows));
                statistics.null_counts.push((id, *nulls));
            }
            None if is_flat && file.total_rows > 1 => statistics.null_counts.push((id, 1)),
            None => can_have_bounds = false,
        }
    }
    if can_have_bounds {
        for column in &schema.columns {
            let of = |values: &BTreeMap<u32, Value>| {
                let value = values.get(&column.id)?;
                Some((column.id, bound(value, &column.arrow_type)?))
            };
            statistics.lower.extend(of(&file.min));
            statistics.upper.extend(of(&file.max));
        }
    }
    statistics
}

/// A bound; `None` if there is none for the type.
fn bound(value: &Value, data_type: &DataType) -> Option<Vec<u8>> {
    use DataType as D;
    match data_type {
        D::Int8 | D::Int16 | D::Int32 => {
            let number = i32::try_from(value.as_i64()?).ok()?;
            Some(number.to_le_bytes().to_vec())
        }
        D::Int64 => Some(value.as_i64()?.to_le_bytes().to_vec()),
        D::Utf8 | D::LargeUtf8 | D::Utf8View => Some(value.as_str()?.as_bytes().to_vec()),
        D::Date32 | D::Date64 => {
            let days = cast(&from_json(value, data_type).ok()?, &D::Date32).ok()?;
            let days = days.as_primitive_opt::<Date32Type>()?;
            Some(days.value(0).to_le_bytes().to_vec())
        }
        D::Timestamp(TimeUnit::Microsecond, _) => {
            let micros = cast(&from_json(value, data_type).ok()?, &D::Int64).ok()?;
            let micros = micros.as_primitive_opt::<arrow_array::types::Int64Type>()?;
            Some(micros.value(0).to_le_bytes().to_vec())
        }
        // DuckDB 1.4.4 reads short bounds of longer decimals wrongly, and leaves out files that have rows.
        D::Decimal128(precision, _) if *precision > MAX_BOUNDED_PRECISION => None,
        D::Decimal32(_, scale) | D::Decimal64(_, scale) | D::Decimal128(_, scale) => {
            let wide = D::Decimal128(38, *scale);
            let number = cast(&from_json(value, data_type).ok()?, &wide).ok()?;
            let number = number.as_primitive_opt::<Decimal128Type>()?;
            Some(shortest(number.value(0)))
        }
        _ => None,
    }
}

/// A number as two's complement, big-endian, in as few bytes as possible.
fn shortest(number: i128) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let fill = if number < 0 { 0xff } else { 0 };
    let sign = |byte: u8| byte & 0x80 == fill & 0x80;
    let is_redundant = |at: &usize| bytes[*at] == fill && sign(bytes[at + 1]);
    let redundant = (0..bytes.len() - 1).take_while(is_redundant).count();
    bytes[redundant..].to_vec()
}

/// The most digits of a decimal with bounds.
const MAX_BOUNDED_PRECISION: u8 = 18;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bounds_have_the_bytes_of_the_specification() {
        let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        for (value, data_type, bytes) in [
            (json!(-2), DataType::Int16, vec![0xfe, 0xff, 0xff, 0xff]),
            (json!(1), DataType::Int64, vec![1, 0, 0, 0, 0, 0, 0, 0]),
            (json!("ä"), DataType::Utf8, vec![0xc3, 0xa4]),
            (json!("1970-01-02"), DataType::Date32, vec![1, 0, 0, 0]),
            (
                json!("1970-01-01T00:00:00.000001Z"),
                zoned,
                vec![1, 0, 0, 0, 0, 0, 0, 0],
            ),
            (json!("1.28"), DataType::Decimal128(9, 2), vec![0, 128]),
            (json!("-1.28"), DataType::Decimal128(9, 2), vec![128]),
            (json!("0.00"), DataType::Decimal128(9, 2), vec![0]),
            (json!("-1.29"), DataType::Decimal64(9, 2), vec![0xff, 0x7f]),
        ] {
            assert_eq!(bound(&value, &data_type), Some(bytes), "{value}");
        }
        assert_eq!(bound(&json!(1.5), &DataType::Float64), None);
        assert_eq!(bound(&json!("1.28"), &DataType::Decimal128(19, 2)), None);
    }
}

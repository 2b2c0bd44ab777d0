//! The statistics of a data file as Delta has them: a text of JSON, by the names of columns in files.
//!
//! Source: `PROTOCOL.md` of delta-io/delta, "Per-file Statistics". Times have milliseconds there, so a minimum is rounded
//! down and a maximum up.

use std::fmt::Write as _;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use chrono::{DateTime, Datelike};
use serde_json::Value;

use super::schema::DeltaSchema;
use crate::files::DataFile;
use crate::files::expr::from_json;
use crate::table::export::ExportColumn;

/// The statistics of a file. With deleted rows the bounds may be wider than those of the other rows.
pub(super) fn statistics(file: &DataFile, schema: &DeltaSchema, has_deleted_rows: bool) -> String {
    let columns = || schema.exported_columns();
    let bounds = |is_max: bool| {
        let values = if is_max { &file.max } else { &file.min };
        to_object(columns().filter_map(move |column| {
            let value = values.get(&column.id)?;
            Some((column, bound(value, &column.arrow_type, is_max)?))
        }))
    };
    let null_counts = columns().filter_map(|column| {
        let is_flat = column.data_type.is_primitive();
        let count = file.null_counts.get(&column.id).filter(|_| is_flat)?;
        Some((column, count.to_string()))
    });
    let tight = if has_deleted_rows {
        ",\"tightBounds\":false"
    } else {
        ""
    };
    format!(
        "{{\"numRecords\":{},\"minValues\":{},\"maxValues\":{},\"nullCount\":{}{tight}}}",
        file.total_rows,
        bounds(false),
        bounds(true),
        to_object(null_counts),
    )
}

/// A JSON object of values that are JSON already: decimals are numbers with all their digits.
fn to_object<'a>(members: impl Iterator<Item = (&'a ExportColumn, String)>) -> String {
    let mut text = String::from("{");
    for (column, value) in members {
        let comma = if text.len() > 1 { "," } else { "" };
        let name = Value::from(column.stored.as_str());
        // Writing to a text cannot fail.
        let _ = write!(text, "{comma}{name}:{value}");
    }
    text.push('}');
    text
}

/// A bound as JSON; `None` if Delta has none for it.
fn bound(value: &Value, data_type: &DataType, is_max: bool) -> Option<String> {
    use DataType as D;
    match data_type {
        _ if data_type.is_integer() => value.is_number().then(|| value.to_string()),
        D::Utf8 | D::LargeUtf8 | D::Utf8View => value.is_string().then(|| value.to_string()),
        D::Decimal32(..) | D::Decimal64(..) | D::Decimal128(..) | D::Decimal256(..) => {
            let text = value.as_str()?;
            let is_number = serde_json::from_str::<Value>(text).is_ok_and(|json| json.is_number());
            is_number.then(|| text.to_owned())
        }
        D::Date32 | D::Date64 | D::Timestamp(..) => {
            let time = to_time(value, data_type)?;
            let millis = time.timestamp_micros().div_euclid(1000);
            let is_cut = time.timestamp_micros().rem_euclid(1000) > 0;
            let rounded = DateTime::from_timestamp_millis(millis + i64::from(is_max && is_cut))?;
            // Readers do not agree on other years.
            if !(1..=9999).contains(&rounded.year()) {
                return None;
            }
            let format = match data_type {
                D::Timestamp(_, None) => "%Y-%m-%dT%H:%M:%S%.3f",
                D::Timestamp(_, Some(_)) => "%Y-%m-%dT%H:%M:%S%.3fZ",
                _ => "%Y-%m-%d",
            };
            Some(Value::from(rounded.format(format).to_string()).to_string())
        }
        _ => None,
    }
}

fn to_time(value: &Value, data_type: &DataType) -> Option<DateTime<chrono::Utc>> {
    let array = from_json(value, data_type).ok()?;
    // With its own zone, a time stays the same number.
    let zone = match data_type {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    let micros = cast(&array, &DataType::Timestamp(TimeUnit::Microsecond, zone)).ok()?;
    let micros = micros.as_primitive_opt::<TimestampMicrosecondType>()?;
    DateTime::from_timestamp_micros(micros.value(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bounds_of_times_are_rounded_outwards() {
        let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let plain = DataType::Timestamp(TimeUnit::Microsecond, None);
        for (value, data_type, min, max) in [
            (
                "2026-01-02T03:04:05.000001Z",
                &zoned,
                "\"2026-01-02T03:04:05.000Z\"",
                "\"2026-01-02T03:04:05.001Z\"",
            ),
            (
                "1969-12-31T23:59:59.999999",
                &plain,
                "\"1969-12-31T23:59:59.999\"",
                "\"1970-01-01T00:00:00.000\"",
            ),
            (
                "2026-01-02",
                &DataType::Date32,
                "\"2026-01-02\"",
                "\"2026-01-02\"",
            ),
            (
                "2026-01-02T03:04:05Z",
                &DataType::Timestamp(TimeUnit::Second, Some("Europe/Berlin".into())),
                "\"2026-01-02T03:04:05.000Z\"",
                "\"2026-01-02T03:04:05.000Z\"",
            ),
            ("12.50", &DataType::Decimal128(9, 2), "12.50", "12.50"),
        ] {
            assert_eq!(bound(&json!(value), data_type, false).as_deref(), Some(min));
            assert_eq!(bound(&json!(value), data_type, true).as_deref(), Some(max));
        }
        assert_eq!(
            bound(&json!("9999-12-31T23:59:59.999999"), &plain, true),
            None
        );
    }
}
